/* profile.h - where the time of a training step went, as text. */
#ifndef CLI_PROFILE_H
#define CLI_PROFILE_H

#include "base/json.h"
#include "base/str.h"

/* `document`: run_document of a run with run_options.profile. */
void profile_text(const json_t *document, bool colour, struct str *out);

#endif
