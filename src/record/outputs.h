/* outputs.h - what nodes put out, recorded as files below a run folder, and read back in parts.
 *
 *     struct outputs *o;                                   the run's process writes
 *     TRY(outputs_begin(&o, run_dir, e)) -> outputs_put ... -> outputs_end(o)
 *     TRY(outputs_read(run_dir, "n1", "output", "0,:", 4096, &json, e));   the agent reads, also
 * meanwhile
 *
 * FORMAT of RUN_DIR/outputs/
 *   index.jsonl  a line per port, appended after its data is whole; of two lines for one port the
 *                later holds; a torn last line is ignored:
 *                {"node", "port", "kind", "file": "3.bin" or null, "dtype", "shape", "bytes",
 * "value"} N.bin        elements in C order, little-endian; dtype float32, float64, int64, int32,
 * uint8, bool, float16, bfloat16 kinds        "tensor" (its data is in the file), "scalar",
 * "string", "list", "model", "value": "value" holds them LIMITS  65536 ports of a run; values of
 * other kinds than tensor 1 MiB; of all runs below one folder outputs_evict keeps the newest.
 *
 * Requirements S1, S2, W9; reference section 2.1 (slices), 2.2 (stats).
 */
#ifndef RECORD_OUTPUTS_H
#define RECORD_OUTPUTS_H

#include "base/json.h"

#include <stddef.h>

enum {
    OUTPUTS_ELEMENTS = 4096,        /* max_elements where a reader says none */
    OUTPUTS_ELEMENTS_MAX = 1000000, /* and the most that may be asked for */
    OUTPUTS_SAMPLE_ABOVE = 4000000, /* statistics of larger tensors come from a sample */
    OUTPUTS_SAMPLE = 1000000,       /* of so many elements */
    OUTPUTS_BINS = 64,
    OUTPUTS_RANK_MAX = 16
};

/* ---- writing ---- */
struct outputs;
enum status outputs_begin(struct outputs **out, const char *run_dir, struct err *e) NODISCARD;
void outputs_end(struct outputs *o); /* NULL is fine */
struct outputs_tensor {
    const char *dtype;
    int rank;
    const int64_t *shape;
    const void *data; /* dense, C order */
};
enum status outputs_put_tensor(
    struct outputs *o, const char *node, const char *port, const struct outputs_tensor *t,
    struct err *e) NODISCARD;
/* Any other value; takes the reference. Above 1 MiB its place says how large it was. */
enum status outputs_put_value(
    struct outputs *o, const char *node, const char *port, const char *kind, json_t *value,
    struct err *e) NODISCARD;

/* ---- reading: answers to `read` orders. No RUN_DIR/outputs, node or port: ST_NOT_FOUND ---- */
/* {"node_id": {"port": summary, ...}, ...}: summary as of node_status (summary.h). */
enum status outputs_list(const char *run_dir, json_t **out, struct err *e) NODISCARD;
/* A tensor's part: {"node_id", "port", "type", "shape" (of the part), "full_shape", "dtype",
 * "slice", "values" (nested), "truncated": false}; other kinds: {"node_id", "port", "type",
 * "value"}. slice: "0,:,2:5" or NULL for all; a dimension an integer (negative from the end) or
 * START:STOP:STEP. A bad slice is ST_INVALID (400); more than max_elements, ST_TOO_LARGE (413).
 * max_elements 0: OUTPUTS_ELEMENTS; above OUTPUTS_ELEMENTS_MAX, ST_INVALID. */
enum status outputs_read(
    const char *run_dir, const char *node, const char *port, const char *slice,
    int64_t max_elements, json_t **out, struct err *e) NODISCARD;
/* Statistics of a tensor. */
enum status outputs_stats(
    const char *run_dir, const char *node, const char *port, json_t **out, struct err *e) NODISCARD;
/* What there is of a node's steps ("__steps_index") and gradients ("__grad_index"). */
enum status outputs_index(
    const char *run_dir, const char *node, const char *which, json_t **out,
    struct err *e) NODISCARD;

/* ---- the store as a whole ---- */
/* Removes one run's recorded outputs; harmless where there are none. */
void outputs_drop(const char *run_dir);
/* Runs with recorded outputs below SNUG_HOME/runs, and their bytes. */
void outputs_count(const char *runs_dir, int64_t *runs, int64_t *bytes);
/* Removes the least recently written or read until at most runs_max runs and bytes_max bytes (0: no
 * limit) are left; never those of `keep` (a run id, NULL none). Returns how many went. */
int outputs_evict(const char *runs_dir, int64_t runs_max, int64_t bytes_max, const char *keep);

#endif
