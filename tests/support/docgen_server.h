/* docgen_server.h - tables of the server for docgen. */
#ifndef DOCGEN_SERVER_H
#define DOCGEN_SERVER_H

#include "base/str.h"

void docgen_routes(struct str *out);
void docgen_settings(struct str *out);

#endif
