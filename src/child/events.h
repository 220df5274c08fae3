/* events.h - a run's events in the words of the API (reference 4.1), appended to its journal.
 *
 *     struct events *v;
 *     TRY(events_open(&order, dir, graph, cards, &v, e));
 *     struct run_sink sink = {events_event, events_node, stop, v}; ... run ...
 *     TRY(events_close(v, e));
 *
 * TRANSLATION
 *   a node's beginning and end   node_status {node_id, status, error?, outputs[]}; of nodes inside
 * a preset or subgraph one for the whole, under its id what it printed              an entry "text"
 * of its end; pictures it wrote an entry "image" what it put out              an entry
 * "tensor_summary": {port: summary}, and recorded outputs batches, epochs, ...         node_status
 * "progress" with an entry "progress", batches at most every EVENTS_PROGRESS_MS; and points of
 * series points                       metric {points[]}, at 64 points or after 0.5 s; NaN is null
 *   files                        artifact {kind, path, meta, node_id}
 *   warnings                     run_warning
 * A payload above the cap (SNUG_RUN_EVENT_PAYLOAD_CAP_BYTES, 128 KiB) loses its largest entries:
 * {output_kind, port, elided: true, bytes, cap_bytes}.
 *
 * A write that fails (disk full) is kept: events_failed is true from then on, so that the run can
 * end.
 */
#ifndef CHILD_EVENTS_H
#define CHILD_EVENTS_H

#include "runner/run.h"
#include "wire/wire.h"

enum { EVENTS_POINTS = 64, EVENTS_FLUSH_MS = 500, EVENTS_PROGRESS_MS = 200 };

struct events;
/* The run's graph and order outlive it. */
enum status events_open(
    const struct start_order *order, const char *dir, const struct graph *g, struct events **out,
    struct err *e) NODISCARD;
/* Writes what waits, and frees. ST_OK only where everything was written. */
enum status events_close(struct events *v, struct err *e) NODISCARD;

/* As functions of run_sink, ctx the events. */
void events_event(const json_t *event, void *ctx);
void events_node(
    const struct run *r, const struct graph_node *n, enum run_node_status status,
    const struct err *e, void *ctx);
/* The run failed with this, maybe before any node began: the node it names has failed. */
void events_failure(struct events *v, const struct err *e);
/* Bytes of recorded outputs of all runs: SNUG_RUN_OUTPUT_STORE_MAX_MB (MiB, 2048), 0 no limit. */
enum status events_record_limit(int64_t *bytes_max, struct err *e) NODISCARD;
/* Any other event; takes payload. */
void events_put(struct events *v, enum event_type type, json_t *payload);
bool events_failed(const struct events *v);

#endif
