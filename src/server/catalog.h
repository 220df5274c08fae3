/* catalog.h - node types and presets as an editor reads them.
 *
 * FORMAT  A node definition is that of nodes.h (node_type_json) with the devices of this
 * installation in its device lists; a preset definition has the types of its ports and the
 * definitions of its parameters filled in. Presets that users made lie in SNUG_HOME/presets, a
 * file each; graphs that use one without embedding it get it from there.
 */
#ifndef SERVER_CATALOG_H
#define SERVER_CATALOG_H

#include "base/json.h"

#include <stddef.h>

/* What device lists offer beside "auto" and "cpu" (D1, R16). */
struct catalog_devices {
    int cuda;     /* cards of this server */
    int cuda_set; /* cards of the largest other worker: names within a run's device set */
    bool mps;
};
/* Of core_workers' document. */
void catalog_devices_of(const json_t *workers, struct catalog_devices *out);

/* All definitions, or one: NULL where the type is unknown. New references. */
json_t *catalog_nodes(const struct catalog_devices *d);
json_t *catalog_node(const char *name, const struct catalog_devices *d);

/* The program's and the users'; new references. NULL: no such preset. Files that cannot be read
 * are left out. d: the devices of parameters' lists; NULL: all that the table has. */
json_t *catalog_presets(const char *home, const struct catalog_devices *d);
json_t *catalog_preset(const char *home, const char *name, const struct catalog_devices *d);
/* Makes a preset of {name, description, category, tags, nodes, edges} and stores it: every
 * unconnected port and every parameter that is no secret is exposed. ST_INVALID: no node, or one
 * that a preset cannot have; ST_CONFLICT: the name is taken. */
enum status catalog_create_preset(
    const char *home, const json_t *from, json_t **preset, struct err *e) NODISCARD;

/* Embeds the users' presets that the graph names and does not have. Changes only the list of
 * presets, which it replaces. */
void catalog_complete(const char *home, json_t *graph);

#endif
