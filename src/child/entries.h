/* entries.h - what a node put out, as entries of its node_status and as records. */
#ifndef CHILD_ENTRIES_H
#define CHILD_ENTRIES_H

#include "record/outputs.h"
#include "runner/run.h"

/* {port: summary} of all outputs: a new reference. */
json_t *entries_summaries(const struct run *r, const struct graph_node *n);
/* The output of that port; false: the node has put out none. */
bool entries_find(
    const struct run *r, const struct graph_node *n, const char *port, struct run_output *out);
json_t *entry_summary(const struct run_output *o);
/* {"output_kind": "image", "port": ..., "image": {"format": "png", "encoding": "base64", "data"}}
 * of a picture in a file, of a chart.svg that in chart.png; NULL where it cannot be read, or is
 * larger than the cap. */
json_t *entry_image(const char *path, const char *port, int64_t bytes_max);
json_t *entry_text(const char *text);

/* Records an output under these names. */
enum status entries_record(
    struct outputs *to, const struct run_output *o, const char *node, const char *port,
    struct err *e) NODISCARD;

/* Makes the payload of a node_status smaller than cap_bytes (0: no cap). */
void entries_cap(json_t *payload, int64_t cap_bytes);
/* The same with null for what JSON lacks ("NaN", "Infinity", "-Infinity" of json_f64): a new
 * reference. */
json_t *json_safe(const json_t *v);

#endif
