/* conv_own.c - convolutions as matrix products, see conv_own.h. */
#include "backends/cpu/conv_own.h"

#include "backends/cpu/gemm.h"

/* Sizes of one group of one image. */
struct taps {
    int64_t ic, oc, k, s_in, s_out; /* channels of a group, rows of the matrix, places */
};

static struct taps taps_of(const struct conv_size *s)
{
    int64_t ic = s->ic / s->groups;
    return (struct taps){
        ic, s->oc / s->groups, ic * s->kernel[0] * s->kernel[1], s->in[0] * s->in[1],
        s->out[0] * s->out[1]};
}

static int64_t col_bytes(const struct taps *t)
{
    return (t->k * t->s_out * 4 + 63) / 64 * 64;
}

/* The product of a direction: forward y = w col; input gradient col = w' y; weights w += y col'. */
static struct gemm_job job_of(enum conv_way way, const struct taps *t)
{
    struct gemm_job g = {.c_dtype = DT_F32};
    g.a.dtype = g.b.dtype = DT_F32;
    if (way == CONV_FORWARD) {
        g.m = t->oc, g.n = t->s_out, g.k = t->k;
        g.a.row = t->k, g.a.col = 1;
        g.b.row = t->s_out, g.b.col = 1;
    } else if (way == CONV_INPUT_GRAD) {
        g.m = t->k, g.n = t->s_out, g.k = t->oc;
        g.a.row = 1, g.a.col = t->k;
        g.b.row = t->s_out, g.b.col = 1;
    } else {
        g.m = t->oc, g.n = t->k, g.k = t->s_out;
        g.a.row = t->s_out, g.a.col = 1;
        g.b.row = 1, g.b.col = t->s_out;
        g.accumulate = true;
    }
    g.c_row = g.n;
    return g;
}

int64_t conv_own_bytes(enum conv_way way, const struct conv_size *s, int threads)
{
    struct taps t = taps_of(s);
    struct gemm_job g = job_of(way, &t);
    return col_bytes(&t) + gemm_bytes(&g, threads);
}

/* Row r of the matrix of taps is one channel of the group at one place of the kernel. */
struct tap {
    int64_t c, di, dj; /* channel, offsets in the image */
};
static struct tap tap_of(const struct conv_size *s, int64_t r)
{
    int64_t place = r % (s->kernel[0] * s->kernel[1]);
    return (struct tap){
        r / (s->kernel[0] * s->kernel[1]), place / s->kernel[1] * s->dilation[0] - s->pad_low[0],
        place % s->kernel[1] * s->dilation[1] - s->pad_low[1]};
}

static void gather(const struct conv_size *s, const struct taps *t, const float *x, float *col)
{
#pragma omp parallel for schedule(static) if (t->k * t->s_out > 16384)
    for (int64_t r = 0; r < t->k; r++) {
        struct tap p = tap_of(s, r);
        float *to = col + r * t->s_out;
        for (int64_t i = 0; i < s->out[0]; i++) {
            int64_t row = i * s->stride[0] + p.di;
            for (int64_t j = 0; j < s->out[1]; j++) {
                int64_t c = j * s->stride[1] + p.dj;
                bool inside = row >= 0 && row < s->in[0] && c >= 0 && c < s->in[1];
                *to++ = inside ? x[p.c * t->s_in + row * s->in[1] + c] : 0;
            }
        }
    }
}

static void
scatter_tap(const struct conv_size *s, const struct tap *p, const float *from, float *plane)
{
    for (int64_t i = 0; i < s->out[0]; i++) {
        int64_t row = i * s->stride[0] + p->di;
        if (row < 0 || row >= s->in[0])
            continue;
        for (int64_t j = 0; j < s->out[1]; j++) {
            int64_t c = j * s->stride[1] + p->dj;
            if (c >= 0 && c < s->in[1])
                plane[row * s->in[1] + c] += from[i * s->out[1] + j];
        }
    }
}

/* x = the sum of what its taps got; each channel belongs to one thread. */
static void scatter(const struct conv_size *s, const struct taps *t, const float *col, float *x)
{
    int64_t places = s->kernel[0] * s->kernel[1];
#pragma omp parallel for schedule(static) if (t->k * t->s_out > 16384)
    for (int64_t c = 0; c < t->ic; c++) {
        memset(x + c * t->s_in, 0, (size_t)t->s_in * sizeof *x);
        for (int64_t r = c * places; r < (c + 1) * places; r++) {
            struct tap p = tap_of(s, r);
            scatter_tap(s, &p, col + r * t->s_out, x + c * t->s_in);
        }
    }
}

static void bias_add(const struct taps *t, const float *bias, float *y)
{
    for (int64_t c = 0; c < t->oc; c++)
        for (int64_t i = 0; i < t->s_out; i++)
            y[c * t->s_out + i] += bias[c];
}

/* One group of one image; x, w, y begin at it. */
static void group_run(
    enum conv_way way, const struct conv_size *s, const struct taps *t, float *x, float *w,
    float *y, void *workspace, int threads)
{
    float *col = workspace;
    struct gemm_job g = job_of(way, t);
    if (way != CONV_INPUT_GRAD)
        gather(s, t, x, col);
    g.a.data = way == CONV_WEIGHT_GRAD ? y : w;
    g.b.data = way == CONV_INPUT_GRAD ? y : col;
    g.c = way == CONV_FORWARD ? y : way == CONV_INPUT_GRAD ? col : w;
    gemm_run(&g, (char *)workspace + col_bytes(t), threads);
    if (way == CONV_INPUT_GRAD)
        scatter(s, t, col, x);
}

void conv_own_run(
    enum conv_way way, const struct conv_size *s, const struct conv_own_data *d, bool add,
    int threads)
{
    struct taps t = taps_of(s);
    if (way == CONV_WEIGHT_GRAD && !add)
        memset(d->w, 0, (size_t)(s->oc * t.k) * sizeof *d->w);
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t g = 0; g < s->groups; g++) {
            float *x = d->x + (n * s->groups + g) * t.ic * t.s_in;
            float *y = d->y + (n * s->groups + g) * t.oc * t.s_out;
            group_run(way, s, &t, x, d->w + g * t.oc * t.k, y, d->workspace, threads);
            if (way == CONV_FORWARD && d->bias)
                bias_add(&t, d->bias + g * t.oc, y);
        }
}
