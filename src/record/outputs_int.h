/* outputs_int.h - recorded outputs as readers see them; private to src/record. */
#ifndef RECORD_OUTPUTS_INT_H
#define RECORD_OUTPUTS_INT_H

#include "record/outputs.h"

/* One port, looked up in the index. */
struct output {
    json_t *line;     /* owned; texts below are borrowed from it */
    const char *kind; /* "tensor", ... */
    enum record_dtype dtype;
    int rank;
    int64_t shape[RECORD_RANK_MAX], count;
    int fd; /* of a tensor's file; -1 */
};
enum status output_open(
    const char *run_dir, const char *node, const char *port, struct output *out,
    struct err *e) NODISCARD;
void output_close(struct output *o);
/* `n` elements from element `from` on. */
enum status
output_load(const struct output *o, int64_t from, int64_t n, void *to, struct err *e) NODISCARD;
/* The index's last lines by port, in the order of recording: a new reference to an array. */
enum status output_lines(const char *run_dir, json_t **out, struct err *e) NODISCARD;
/* Reading makes a run's outputs the newest. */
void output_touch(const char *run_dir);
json_t *output_shape_json(const struct output *o);
/* {"run_id", "node_id", "port"}. */
json_t *output_answer(const char *run_dir, const char *node, const char *port);

#endif
