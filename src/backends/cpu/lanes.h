/* lanes.h - inner loops on arrays of float32, compiled once per instruction set.
 *
 * The kernels around them (elementwise, reductions, softmax, losses, optimizers) are ordinary code
 * that finds blocks of at most ND_BLOCK elements (nd.h); everything done to a block is here. Output
 * arrays may be the input arrays. Sums are in double.
 */
#ifndef BACKENDS_CPU_LANES_H
#define BACKENDS_CPU_LANES_H

#include "backends/backend.h"
#include "ir/quant.h"

struct dropout_key {
    uint64_t seed;
    uint32_t stream, step;
    uint32_t threshold; /* dropped when the number is below */
    float scale;        /* of what is kept */
};

/* Elementwise: lanes_ew.c, lanes_loss.c. */
struct lanes_ew {
    /* f32, bf16, f16 to float32 and back */
    void (*widen)(const void *x, enum dtype t, float *y, int64_t n);
    void (*narrow)(const float *x, void *y, enum dtype t, int64_t n);
    void (*unary)(enum opcode c, const struct ew_attr *a, const float *x, float *y, int n);
    /* dx from dy and what the forward operator saved */
    void (*grad)(
        enum opcode c, const struct ew_attr *a, const float *dy, const float *s, float *dx, int n);
    void (*binary)(enum opcode c, const float *x, const float *y, float *z, int n);
    /* y[i] = x[i] (kept ? scale : 0) for the elements first + i, or for the elements at[i]. */
    void (*dropout)(const float *x, float *y, int n, const struct dropout_key *k, int64_t first);
    void (*dropout_at)(
        const float *x, float *y, int n, const struct dropout_key *k, const int64_t *at);
    /* y[i] = x[i] rounded to a neighbour of type t (bf16, f16), up with the chance that keeps the
     * mean, by the numbers of elements first + i. */
    void (*by_chance)(
        const float *x, float *y, enum dtype t, int n, const struct dropout_key *k, int64_t first);
};

/* One element of LOSS_EW, or its gradient, for whole blocks. NULL weights are 1. */
struct loss_block {
    const float *x, *target, *weight, *pos_weight;
    const float *d; /* gradient: factor of each element */
    float *y;
};
struct lanes_loss {
    void (*value)(const struct loss_attr *a, const struct loss_block *b, int n);
    void (*grad)(const struct loss_attr *a, const struct loss_block *b, int n);
};

/* Sums and exponentials: lanes_sum.c. */
struct lanes_sum {
    double (*sum)(const float *x, int n);
    double (*sum_squares)(
        const float *x, float scale, float scale2, int n); /* of (x scale) scale2 */
    /* The same of four blocks that follow each other; n a multiple of 8. */
    void (*four_squares)(const float *x, float scale, float scale2, int n, double sums[4]);
    double (*dot)(const float *x, const float *y, int n);
    float (*max)(const float *x, int n); /* NaN when there is one; -inf for n = 0 */
    bool (*finite)(const float *x, int n);
    /* Rows of n floats, row_stride apart, added to n sums. */
    void (*add_rows)(double *sum, const float *x, int64_t row_stride, int rows, int n);
    /* y = e^(x - shift) scale; the sum of e^(x - shift) */
    void (*exp_scale)(const float *x, float shift, float scale, float *y, int n);
    double (*exp_sum)(const float *x, float shift, int n);
    /* Columns side by side: m = max(m, x); s += e^(x - m); s += x y */
    void (*max_into)(float *m, const float *x, int n);
    void (*exp_into)(double *s, const float *x, const float *m, int n);
    void (*mul_into)(double *s, const float *x, const float *y, int n);
    /* y = e^(x - m) scale; y = (x - m) - l; dx = y (dy - s); dx = dy - e^y s */
    void (*exp_columns)(const float *x, const float *m, const float *scale, float *y, int n);
    void (*log_columns)(const float *x, const float *m, const float *l, float *y, int n);
    void (*softmax_grad)(const float *dy, const float *y, const float *s, float *dx, int n);
    void (*log_softmax_grad)(const float *dy, const float *y, const float *s, float *dx, int n);
    /* sum of w (lse - x), and of t' w (lse - x) with t' = t keep + floor; w NULL: 1 */
    double (*smooth)(float lse, const float *x, const float *w, int n);
    double (*soft)(
        float lse, const float *x, const float *t, const float *w, const float keep_floor[2],
        int n);
};

/* Constants of one optimizer step, made in double and rounded once, as PyTorch passes them. */
struct optim_step {
    enum optim_kind kind;
    float inverse_scale, clip; /* the gradient is (g inverse_scale) clip */
    float decay;               /* decay w is added to the gradient (decays) */
    float shrink;              /* ADAMW, ASGD: factor of w */
    float beta1, one_beta1, beta2, one_beta2, eps;
    float size;     /* factor of the update, its sign included */
    float size_avg; /* NADAM: factor of the average's part */
    float denom;    /* ADAM, ADAMW: root of the second correction; NADAM: correction */
    float lr, correction1, adaptive, rect; /* RADAM */
    float momentum, one_dampening;
    float eta_minus, eta_plus, step_min, step_max, mu;
    bool maximize, decays, nesterov, amsgrad, centered, first, rectified;
};
struct optim_block { /* parameter, up to three states, gradient */
    float *w, *s[3];
    const float *g;
};
struct lanes_optim {
    void (*run)(const struct optim_step *s, const struct optim_block *b, int n);
    /* A block of 8-bit state to float32 and back (ir/quant.h); pack returns the new absmax. */
    void (*unpack)(
        const struct quant_dynamic *m, const uint8_t *code, float absmax, float *x, int n);
    float (*pack)(const struct quant_dynamic *m, const float *x, uint8_t *code, int n);
    /* Adafactor: y = g scale[0] scale[1] scale[2]; u = u / sqrt(max(row v, floor));
     * w = w keep + u size; sum += g^2 */
    void (*scaled)(const float *g, float *y, int n, const float scale[3]);
    void (*factored)(const float *v, float *u, int n, float row, float floor);
    void (*applied)(float *w, const float *u, int n, float keep, float size);
    void (*squares_added)(const float *g, double *sum, int n);
};

/* Those of this process's instruction set. */
const struct lanes_ew *lanes_ew(void);
const struct lanes_loss *lanes_loss(void);
const struct lanes_sum *lanes_sum(void);
const struct lanes_optim *lanes_optim(void);

#endif
