/* docgen_wire.h - docs/wire.md: what server, agent and run child say to each other. */
#ifndef TESTS_SUPPORT_DOCGEN_WIRE_H
#define TESTS_SUPPORT_DOCGEN_WIRE_H

#include "base/str.h"

/* `messages`: the text of src/wire/messages.def, whose comments say what fields mean. False: a
 * field of the program's table is not found in it. */
bool docgen_wire(const char *messages, struct str *out);

#endif
