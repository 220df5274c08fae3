/* kernel_test.h - for tests of kernels: hand-made tensors, random contents, calls through the
 * table. */
#ifndef BACKENDS_CPU_KERNEL_TEST_H
#define BACKENDS_CPU_KERNEL_TEST_H

#include "backends/backend.h"
#include "base/rng.h"

#include "test.h"

enum { KT_OPERANDS = 9 };

/* A call under construction: kt_in and kt_out add operands, dense, in the given layout. Memory is
 * guarded on both sides; kt_run checks the guards and that the workspace was not overrun. */
struct kt {
    enum opcode code;
    union op_attr attr;
    struct tensor in[KT_OPERANDS], out[KT_OPERANDS];
    int n_in, n_out;
    int threads;                   /* 0 = as they are */
    int64_t workspace_limit_bytes; /* for kernels that have a faster way with more workspace */
    int64_t workspace_bytes;       /* what the last run had */
    struct rng rng;
};

void kt_init(struct kt *k, enum opcode code, uint32_t seed);
/* Dense operand with random normal contents (integers: 0 .. 9). Returns it. */
struct tensor *kt_in(struct kt *k, enum dtype t, enum layout l, struct shape s);
struct tensor *kt_in_absent(struct kt *k);
struct tensor *kt_out(struct kt *k, enum dtype t, enum layout l, struct shape s);
void kt_run(struct kt *k);
void kt_free(struct kt *k);

struct tensor kt_tensor(enum dtype t, enum layout l, struct shape s); /* zeroed, guarded */
void kt_tensor_free(struct tensor *t);
void kt_random(struct tensor *t, struct rng *r);
/* Element at logical place `index` (row-major order of the logical shape), whatever the layout. */
double kt_at(const struct tensor *t, int64_t index);
void kt_put(struct tensor *t, int64_t index, double value);
/* True when all bits are equal. */
bool kt_same(const struct tensor *a, const struct tensor *b);
/* |got - want| / |want| in the Frobenius norm, want in logical row-major order. */
double kt_error(const struct tensor *got, const double *want);
/* What an honest result of this type may differ by: 2e-6, 5e-3, 7e-4 for f32, bf16, f16. */
double kt_tolerance(enum dtype t);

#endif
