/* outputs.h - what nodes put out, recorded as files below a run folder, and read back in parts.
 *
 *     struct outputs *o;                                   the run's process writes
 *     TRY(outputs_begin(&o, run_dir, e)) -> outputs_put_tensor, outputs_put_value -> outputs_end(o)
 *     TRY(outputs_read(run_dir, "n1", "output", "0,:", 0, &json, e));    the agent, meanwhile
 *
 * FORMAT of RUN_DIR/outputs/
 *   index.jsonl  a line per port, appended after its data is whole; of two lines for one port the
 *                later holds; a torn last line is ignored:
 *                {"node", "port", "kind", "file": "3.bin", "dtype", "shape"}   kind "tensor"
 *                {"node", "port", "kind", "value"}        other kinds (summary.h)
 *   N.bin        elements in C order, little-endian
 *
 * LIMITS  OUTPUTS_PORTS_MAX ports of a run, OUTPUTS_VALUE_MAX bytes of a value that is no tensor
 * (above, it says how large it was), and of the store as a whole (S1): see outputs_evict.
 *
 * Requirements S1, S2, W9; reference 2.1 (slices), 2.2 (statistics).
 */
#ifndef RECORD_OUTPUTS_H
#define RECORD_OUTPUTS_H

#include "record/summary.h"

enum {
    OUTPUTS_PORTS_MAX = 65536,
    OUTPUTS_VALUE_MAX = 1 << 20,
    OUTPUTS_ELEMENTS = 4096,        /* max_elements where a reader gives 0 */
    OUTPUTS_ELEMENTS_MAX = 1000000, /* and the most that it may ask for */
    OUTPUTS_SAMPLE_ABOVE = 4000000, /* distributions of larger tensors come from a sample */
    OUTPUTS_SAMPLE = 1000000,       /* of so many elements; both unless settings say otherwise */
    OUTPUTS_BINS = 64,              /* of a histogram; most values that are counted singly */
    OUTPUTS_RUNS_MAX = 20           /* S1: runs that are kept */
};
static const int64_t outputs_bytes_max = INT64_C(2) << 30; /* S1: bytes of all of them */

/* ---- writing ---- */
struct outputs;
enum status outputs_begin(struct outputs **out, const char *run_dir, struct err *e) NODISCARD;
void outputs_end(struct outputs *o); /* NULL is fine */
enum status outputs_put_tensor(
    struct outputs *o, const char *node, const char *port, const struct record_tensor *t,
    struct err *e) NODISCARD;
/* Any other value (summary.h's kinds); takes the reference. */
enum status outputs_put_value(
    struct outputs *o, const char *node, const char *port, const char *kind, json_t *value,
    struct err *e) NODISCARD;
int64_t outputs_bytes(const struct outputs *o); /* written so far: S2, storages once */

/* ---- reading, for `read` orders. Without recorded outputs, node or port: ST_NOT_FOUND ----
 * The run's id in answers is the name of its folder. */
/* [{"node_id", "port", "type", "full_shape" (null: no tensor)}], in the order of recording. */
enum status outputs_list(const char *run_dir, json_t **out, struct err *e) NODISCARD;
/* A part of a tensor: {"run_id", "node_id", "port", "type": "tensor", "full_shape", "dtype",
 * "slice", "sliced_shape", "values" (nested), "truncated": false, "min", "max", "mean"}; of other
 * kinds the value as summary.h has it, up to 4000 characters of a text and 1024 values of a list.
 * slice: "0,:,2:10:2", one place a dimension, from the first: an index (negative: from the end),
 * which takes the dimension away, or START:STOP:STEP, each optional; NULL or "": all. A slice that
 * is none, an index that is not there or more than max_elements asked for: ST_INVALID (400); a part
 * of more than max_elements: ST_TOO_LARGE (413). */
enum status outputs_read(
    const char *run_dir, const char *node, const char *port, const char *slice,
    int64_t max_elements, json_t **out, struct err *e) NODISCARD;
/* {"run_id", "node_id", "port", "kind": "tensor", "shape", "dtype", "device", "count", "sampled",
 * "sample_size", "mean", "std", "min", "max", "quantiles": {p1, p5, p25, p50, p75, p95, p99},
 * "nan_count", "inf_count", "zero_frac", "histogram": {"bins", "edges", "counts"}, "value_counts":
 * [{"value", "count"}]}. Counts, extremes and value_counts (whole numbers of at most OUTPUTS_BINS
 * values, in place of a histogram) are exact; mean, std, quantiles and histogram are of the sample
 * where `sampled`. Lists of plain values: {"kind": "tabular", ...}; others {"kind": "unsupported",
 * "type"}. */
enum status outputs_stats(
    const char *run_dir, const char *node, const char *port, json_t **out, struct err *e) NODISCARD;
/* `which` "__steps_index": [{"index", ...}] of ports __step__N__meta; "__grad_index": [{"port",
 * "kind": "port" | "weight", "has_grad", "health"}] of ports NAME__grad and __weight_grad__NAME. */
enum status outputs_index(
    const char *run_dir, const char *node, const char *which, json_t **out,
    struct err *e) NODISCARD;

/* ---- the store as a whole: runs_dir is SNUG_HOME/runs ---- */
/* Removes one run's recorded outputs; false: there were none. */
bool outputs_drop(const char *run_dir);
/* S3: how many runs have recorded outputs, and their bytes. */
void outputs_count(const char *runs_dir, int64_t *runs, int64_t *bytes);
/* S1: removes those that were written or read longest ago until at most runs_max runs (0: no limit)
 * and bytes_max bytes (0: no limit) are left, never those of run `keep` (NULL: none). Returns how
 * many went. */
int outputs_evict(const char *runs_dir, int64_t runs_max, int64_t bytes_max, const char *keep);

#endif
