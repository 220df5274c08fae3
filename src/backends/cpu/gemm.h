/* gemm.h - matrix products for the kernels of this folder: C = act(A B + bias) in float32 sums.
 *
 * Operands are f32, bf16 or f16 with any strides; they are converted while being packed into
 * panels, so no converted copy exists. bf16 times bf16 uses the dot-product instruction where the
 * machine has it (it treats subnormal numbers as 0).
 *
 * The sum over k runs in blocks of fixed length in increasing order, whatever the tiles and the
 * threads: the bits of C depend on the shape alone.
 */
#ifndef BACKENDS_CPU_GEMM_H
#define BACKENDS_CPU_GEMM_H

#include "backends/cpu/vec.h"

struct gemm_operand {
    const void *data;
    enum dtype dtype;
    int64_t row, col;        /* strides in elements: along m (a) or k (b); along k (a) or n (b) */
    int64_t batch[RANK_MAX]; /* strides of the batch dimensions */
    bool round;              /* float32 that counts as bf16: rounded while being packed */
};
struct gemm_job {
    int64_t m, n, k;
    struct gemm_operand a, b;
    void *c;
    enum dtype c_dtype;
    int64_t c_row, c_batch; /* strides of rows and of whole results; columns are adjacent */
    const void *bias;       /* [n], or NULL */
    enum dtype bias_dtype;
    bool relu, accumulate; /* accumulate: C = C + product */
    int batch_rank;
    int64_t batch[RANK_MAX]; /* batch dimensions; their product is the number of results */
};

/* Workspace of a job (data pointers are not looked at) on `threads` threads. */
#define gemm_bytes ISA_GLUE(gemm_bytes, ISA_SUFFIX)
int64_t gemm_bytes(const struct gemm_job *g, int threads);
#define gemm_run ISA_GLUE(gemm_run, ISA_SUFFIX)
void gemm_run(const struct gemm_job *g, void *workspace, int threads);

/* A packed panel: `width` 32-bit elements for every step of k. With `split`, two panels of half the
 * width, the second one `split` elements after the first. */
struct gemm_panel {
    float *data;
    int width;
    int64_t split;
};
VEC_FN float *gemm_place(const struct gemm_panel *p, int64_t k, int w)
{
    if (!p->split)
        return p->data + k * p->width + w;
    int half = p->width / 2;
    return p->data + k * half + (w < half ? w : p->split + w - half);
}
/* Elements w .. w + VL of step k. The store runs over the end of a step when the width is no
 * multiple of VL: the next step overwrites it, and buffers have room for one vector more. */
VEC_FN void gemm_put(const struct gemm_panel *p, int64_t k, int w, vf x)
{
#if VEC_LANES == 16
    if (p->split) {
        float *at = p->data + k * (VL / 2);
        _mm256_storeu_ps(at, _mm512_castps512_ps256((__m512)x));
        _mm256_storeu_ps(at + p->split, _mm512_extractf32x8_ps((__m512)x, 1));
        return;
    }
#endif
    *(vf_loose *)(p->data + k * p->width + w) = x;
}

/* Pairs of bf16 from float32: gemm.c's pack_pairs, rounding. */
void gemm_pack_rounded(
    struct gemm_panel to, int valid, int64_t k, const float *src, int64_t sw, int64_t sk);

/* Lines of memory that a tile prefetches while it computes, three at every GEMM_AHEAD steps of k,
 * `steps` times. */
enum { GEMM_AHEAD = 8 };
struct gemm_ahead {
    const char *at;
    int64_t step, apart; /* bytes from one time to the next, and between the three */
    int64_t steps;
};
VEC_FN void gemm_ahead_step(struct gemm_ahead *a)
{
    if (a->steps-- <= 0)
        return;
    __builtin_prefetch(a->at, 0, 2);
    __builtin_prefetch(a->at + a->apart, 0, 2);
    __builtin_prefetch(a->at + 2 * a->apart, 0, 2);
    a->at += a->step;
}

/* A tile of the bf16 dot-product kernel: 8 x 48 sums of `pairs` pairs; a: 8, b: 48 pairs a step. */
void gemm_tile_bf16(
    const uint32_t *a, const uint32_t *b, int64_t pairs, struct gemm_ahead ahead, float *tile);

#endif
