/* catalog_int.h - between catalog.c and catalog_presets.c. */
#ifndef SERVER_CATALOG_INT_H
#define SERVER_CATALOG_INT_H

#include "server/catalog.h"

/* The users' presets as stored, by file name; a new reference. */
json_t *catalog_own_presets(const char *home);
/* Fills in the types of exposed ports and the definitions of exposed parameters. */
void catalog_complete_preset(json_t *preset, const struct catalog_devices *d);

#endif
