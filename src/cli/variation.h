/* variation.h - what `snug sweep` and `snug study` submit, from the command line or from a file. */
#ifndef CLI_VARIATION_H
#define CLI_VARIATION_H

#include "base/client.h"
#include "cli/args.h"

/* "loader.batch_size=32,64" or "optimizer.lr=1e-4..1e-2:3:log": {node_id, param, values | range}.
 * In `graph` (a document) NODE is an id, or a type that one node has. */
enum status
variation_param(const char *text, const json_t *graph, json_t **out, struct err *e) NODISCARD;
/* "min:val_loss": {metric, direction}. */
enum status variation_objective(const char *text, json_t **out, struct err *e) NODISCARD;

/* The body: {base_graph, sweep_spec, objective, options, name, seed_variants} of a graph file with
 * --param ..., or a file that is a body already (its base_graph may be the path of a graph file).
 */
enum status variation_body(
    const struct args *a, const struct client *c, const char *path, bool needs_params, json_t **out,
    struct err *e) NODISCARD;

#endif
