/* queued.h - `snug run` through a server: whether, the submission, and looking on. */
#ifndef CLI_QUEUED_H
#define CLI_QUEUED_H

#include "base/client.h"
#include "cli/args.h"

/* Whether this line goes to a server: --server, or one runs under this SNUG_HOME, and not --local.
 * ST_USAGE: it has options that only a server knows, and there is none, or it is to be --local; or
 * options that only a run here knows, and it goes to a server. */
enum status queued_wanted(const struct args *a, bool *out, struct err *e) NODISCARD;

/* options of POST /api/runs from --device, --target, --memory-gib, ...; a new reference. */
enum status queued_options(const struct args *a, json_t **out, struct err *e) NODISCARD;
/* The graph of the command's argument with its --set, checked; and the folder that its paths start
 * from, where the server is on this machine ("" elsewhere), put into `options`. */
enum status queued_graph(
    const struct args *a, const char *path, const struct client *c, json_t *options, json_t **out,
    struct err *e) NODISCARD;

/* Submits and looks on. */
int queued_run(const struct args *a);

#endif
