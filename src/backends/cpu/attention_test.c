/* attention_test.c - attention's kernels against the formulas in double; threads; workspace. */
#include "backends/cpu/kernel_test.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};

struct form {
    int64_t b, s, t, h, g, d;
    bool causal;
    int64_t window;
    double dropout;
};
static const struct form forms[] = {
    {1, 5, 5, 1, 1, 16, false, 0, 0},     {2, 97, 97, 2, 2, 64, true, 0, 0},
    {1, 200, 131, 4, 2, 33, true, 0, 0},  {1, 130, 300, 2, 1, 80, false, 0, 0},
    {2, 70, 70, 3, 3, 256, true, 20, 0},  {1, 1, 129, 2, 2, 64, true, 0, 0},
    {1, 100, 100, 2, 2, 32, true, 0, 0.2}};
enum { FORMS = sizeof forms / sizeof *forms };

/* Operands from a->in[first] on: q k v, no bias, rng. */
static void operands(struct kt *k, const struct form *f, enum dtype t)
{
    k->attr.attention = (struct attention_attr){
        .heads = f->h,
        .kv_heads = f->g,
        .causal = f->causal,
        .window = f->window,
        .dropout = f->dropout,
        .stream = 3};
    kt_in(k, t, LAYOUT_ROW, SHAPE(f->b, f->s, f->h, f->d));
    kt_in(k, t, LAYOUT_ROW, SHAPE(f->b, f->t, f->g, f->d));
    kt_in(k, t, LAYOUT_ROW, SHAPE(f->b, f->t, f->g, f->d));
    kt_in_absent(k);
    if (f->dropout > 0)
        kt_in(k, DT_I64, LAYOUT_ROW, SHAPE(2));
    else
        kt_in_absent(k);
}

static int64_t place(const struct tensor *t, int64_t b, int64_t i, int64_t h, int64_t c)
{
    return ((b * t->shape.dim[1] + i) * t->shape.dim[2] + h) * t->shape.dim[3] + c;
}

/* What the probability of (b, h, i, j) is multiplied with. */
static double kept(const struct form *f, const struct tensor *rng, int64_t element)
{
    uint32_t out[4];
    if (!(f->dropout > 0))
        return 1;
    const int64_t *r = rng->data;
    rng_block((uint64_t)r[0], 3, (uint32_t)r[1], (uint64_t)element / 4, out);
    return out[element % 4] >= (uint32_t)(f->dropout * 0x1p32) ? 1 / (1 - f->dropout) : 0;
}

/* Probabilities of one query, before dropout; returns the logarithm of the sum. */
static double row_want(
    const struct form *f, const struct tensor *q, const struct tensor *k, int64_t b, int64_t h,
    int64_t i, double *p)
{
    double sum = 0, top = -1e300;
    int64_t last = i + f->t - f->s;
    for (int64_t j = 0; j < f->t; j++) {
        bool sees = !f->causal || (j <= last && (!f->window || j > last - f->window));
        p[j] = sees ? 0 : -1e300;
        for (int64_t c = 0; c < f->d && sees; c++)
            p[j] += kt_at(q, place(q, b, i, h, c)) *
                    kt_at(k, place(k, b, j, h / (f->h / f->g), c)) / sqrt((double)f->d);
        top = p[j] > top ? p[j] : top;
    }
    for (int64_t j = 0; j < f->t; j++) {
        p[j] = p[j] > -1e300 ? exp(p[j] - top) : 0;
        sum += p[j];
    }
    for (int64_t j = 0; j < f->t; j++)
        p[j] = sum > 0 ? p[j] / sum : 0;
    return sum > 0 ? top + log(sum) : (double)-INFINITY;
}

/* Doubles of a tensor's size, zeroed. */
static double *zeros(const struct tensor *t)
{
    return mem_alloc(sizeof(double) * (size_t)(tensor_count(t) + 1));
}

static void forward_check(const struct form *f, enum dtype t)
{
    struct kt k;
    kt_init(&k, OP_ATTENTION, 1);
    operands(&k, f, t);
    struct tensor *y = kt_out(&k, t, LAYOUT_ROW, SHAPE(f->b, f->s, f->h, f->d));
    struct tensor *lse = kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(f->b, f->h, f->s));
    k.threads = 1;
    kt_run(&k);
    double *want = zeros(y), *p = mem_alloc(sizeof(double) * (size_t)f->t);
    for (int64_t r = 0; r < f->b * f->h * f->s; r++) {
        int64_t b = r / f->s / f->h, h = r / f->s % f->h, i = r % f->s;
        double l = row_want(f, &k.in[0], &k.in[1], b, h, i, p), got = kt_at(lse, r);
        CHECK(isinf(l) ? isinf(got) && got < 0 : fabs(got - l) < 1e-4);
        for (int64_t j = 0; j < f->t; j++)
            for (int64_t c = 0; c < f->d && p[j] > 0; c++)
                want[place(y, b, i, h, c)] +=
                    p[j] * kept(f, &k.in[4], r * f->t + j) *
                    kt_at(&k.in[2], place(&k.in[2], b, j, h / (f->h / f->g), c));
    }
    CHECK(kt_error(y, want) <= 2 * kt_tolerance(t));
    struct tensor one = *y;
    *y = kt_tensor(t, LAYOUT_ROW, one.shape);
    k.threads = 2;
    kt_run(&k);
    CHECK(kt_same(&one, y));
    kt_tensor_free(&one);
    mem_free(want), mem_free(p);
    kt_free(&k);
}

TEST(
    attention_forward,
    "L6: attention by tiles is softmax(q k^T) v, on 1 and 2 threads, within its workspace")
{
    for (int i = 0; i < FORMS; i++)
        for (int t = 0; t < 3; t++)
            forward_check(&forms[i], types[t]);
}

/* Adds query (b, h, i) to the wanted gradients. */
static void grad_want(
    const struct form *f, const struct kt *k, const struct tensor *rng, int64_t r, const double *p,
    double *const want[3])
{
    const struct tensor *dy = &k->in[0], *q = &k->in[1], *key = &k->in[2], *value = &k->in[3];
    int64_t b = r / f->s / f->h, h = r / f->s % f->h, i = r % f->s, g = h / (f->h / f->g);
    double delta = 0;
    for (int64_t c = 0; c < f->d; c++)
        delta += kt_at(dy, place(dy, b, i, h, c)) * kt_at(&k->in[6], place(dy, b, i, h, c));
    for (int64_t j = 0; j < f->t; j++) {
        double dp = 0, keep = kept(f, rng, r * f->t + j);
        for (int64_t c = 0; c < f->d && p[j] > 0; c++)
            dp += kt_at(dy, place(dy, b, i, h, c)) * kt_at(value, place(value, b, j, g, c));
        double ds = p[j] * (dp * keep - delta) / sqrt((double)f->d);
        for (int64_t c = 0; c < f->d && p[j] > 0; c++) {
            want[0][place(q, b, i, h, c)] += ds * kt_at(key, place(key, b, j, g, c));
            want[1][place(key, b, j, g, c)] += ds * kt_at(q, place(q, b, i, h, c));
            want[2][place(key, b, j, g, c)] += p[j] * keep * kt_at(dy, place(dy, b, i, h, c));
        }
    }
}

/* The forward pass's results, for the gradient's operands. */
static void grad_operands(struct kt *k, struct kt *forward, const struct form *f, enum dtype t)
{
    kt_in(k, t, LAYOUT_ROW, SHAPE(f->b, f->s, f->h, f->d));
    operands(k, f, t);
    for (int i = 0; i < 5; i++)
        forward->in[i] = k->in[1 + i];
    forward->n_in = 5;
    forward->attr = k->attr;
    kt_out(forward, t, LAYOUT_ROW, SHAPE(f->b, f->s, f->h, f->d));
    kt_out(forward, DT_F32, LAYOUT_ROW, SHAPE(f->b, f->h, f->s));
    kt_run(forward);
    for (int i = 0; i < 2; i++)
        k->in[k->n_in++] = forward->out[i];
}

static void grad_check(const struct form *f, enum dtype t)
{
    struct kt k, forward;
    kt_init(&k, OP_ATTENTION_GRAD, 2);
    kt_init(&forward, OP_ATTENTION, 2);
    grad_operands(&k, &forward, f, t);
    double *want[3], *p = mem_alloc(sizeof(double) * (size_t)f->t);
    for (int i = 0; i < 3; i++)
        want[i] = zeros(kt_out(&k, t, LAYOUT_ROW, k.in[1 + i].shape));
    k.threads = 1;
    kt_run(&k);
    for (int64_t r = 0; r < f->b * f->h * f->s; r++) {
        (void)row_want(f, &k.in[1], &k.in[2], r / f->s / f->h, r / f->s % f->h, r % f->s, p);
        grad_want(f, &k, &k.in[5], r, p, want);
    }
    for (int i = 0; i < 3; i++) {
        CHECK(kt_error(&k.out[i], want[i]) <= 3 * kt_tolerance(t));
        mem_free(want[i]);
    }
    struct tensor one[3];
    for (int i = 0; i < 3; i++) {
        one[i] = k.out[i];
        k.out[i] = kt_tensor(t, LAYOUT_ROW, one[i].shape);
    }
    k.threads = 2;
    kt_run(&k);
    for (int i = 0; i < 3; i++) {
        CHECK(kt_same(&one[i], &k.out[i]));
        kt_tensor_free(&one[i]);
    }
    mem_free(p);
    kt_free(&k);
}

TEST(
    attention_grad,
    "L6: gradients of attention by tiles, on 1 and 2 threads, within their workspace")
{
    for (int i = 0; i < FORMS; i++)
        for (int t = 0; t < 3; t++)
            grad_check(&forms[i], types[t]);
}

TEST(attention_memory, "L6: attention's workspace does not grow with S x T")
{
    int64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        struct kt k;
        struct form f = {1, i ? 2048 : 128, i ? 2048 : 128, 1, 1, 16, true, 0, 0};
        kt_init(&k, OP_ATTENTION, 1);
        operands(&k, &f, DT_F32);
        kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(1, f.s, 1, 16));
        kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(1, 1, f.s));
        kt_run(&k);
        bytes[i] = k.workspace_bytes;
        kt_free(&k);
    }
    CHECK(bytes[0] == bytes[1]);
}
