/* nd.h - operands as strided views in one common order, and blocks of them as float32.
 *
 * A kernel that works element by element turns its tensors, whatever their layout or broadcasting,
 * into `struct nd` of one shape whose dimensions are sorted by the strides of the first operand and
 * merged where possible: equal dense tensors become one dimension. Element i is then the i-th in
 * that order, and blocks of up to ND_BLOCK elements are read and written as float32.
 */
#ifndef BACKENDS_CPU_ND_H
#define BACKENDS_CPU_ND_H

#include "ir/tensor.h"

enum { ND_MAX = RANK_MAX + 2, ND_BLOCK = 512 };

struct nd {
    char *data;
    enum dtype dtype;
    int rank;
    int64_t dim[ND_MAX], stride[ND_MAX]; /* strides in elements */
};

/* t as it lies, in logical order of dimensions, broadcast to `shape`. With `split`, dimension 1 is
 * cut in two, (C / 16, 16), so that C16 tensors have strides too: t's rank + 1. */
struct nd nd_of(const struct tensor *t, const struct shape *shape, bool split);
/* All of t[0..n) broadcast to `shape`, sorted by the strides of t[0], merged. */
void nd_align(struct nd *v, const struct tensor *const *t, int n, const struct shape *shape);
/* Merges neighbouring dimensions from..to where all n views allow it; drops dimensions of size 1.
 * Returns how many of from..to are left. */
int nd_merge(struct nd *v, int n, int from, int to);
/* Moves dimension `from` to place `to`, the others keeping their order. */
void nd_move(struct nd *v, int from, int to);
int64_t nd_count(const struct nd *v);
bool nd_flat(const struct nd *v); /* element i lies at i */

/* Elements [i, i + n), n <= ND_BLOCK, as float32: in place when v is flat float32, else in buf. */
const float *nd_read(const struct nd *v, int64_t i, int n, float *buf);
/* Where to put results for [i, i + n): v itself when flat float32, else buf; then nd_write. */
float *nd_target(const struct nd *v, int64_t i, float *buf);
void nd_write(const struct nd *v, int64_t i, int n, const float *from);
/* The same in double precision, for types that float32 does not hold. */
void nd_read_f64(const struct nd *v, int64_t i, int n, double *buf);
void nd_write_f64(const struct nd *v, int64_t i, int n, const double *from);
/* Element numbers (offsets) of [i, i + n). */
void nd_offsets(const struct nd *v, int64_t i, int n, int64_t *out);
/* Copies elements of equal size, [i, i + n), from one view to another of the same shape. */
void nd_copy(const struct nd *to, const struct nd *from, int64_t i, int64_t n);

/* Threads split [0, count) into pieces of this many elements; results never depend on it. */
enum { ND_PIECE = 16 * ND_BLOCK };

#endif
