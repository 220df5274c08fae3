/* conv_test.c - convolutions and their gradients against loops in double precision. */
#include "backends/cpu/dnnl.h"
#include "backends/cpu/kernel_test.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDE = 64 << 20 }; /* workspace that every faster way fits in */

struct problem {
    int64_t n, ic, oc, groups, in[2], kernel[2], stride[2], low[2], high[2], dilation[2];
};

static int64_t out_size(const struct problem *p, int i)
{
    return (p->in[i] + p->low[i] + p->high[i] - p->dilation[i] * (p->kernel[i] - 1) - 1) /
               p->stride[i] +
           1;
}

/* Calls f(x index, w index, y index) for every product of the convolution. */
typedef void visit(int64_t x, int64_t w, int64_t y, void *ctx);
static void products(const struct problem *p, visit *f, void *ctx)
{
    int64_t oh = out_size(p, 0), ow = out_size(p, 1), icg = p->ic / p->groups,
            ocg = p->oc / p->groups;
    for (int64_t n = 0; n < p->n; n++)
        for (int64_t o = 0; o < p->oc; o++)
            for (int64_t c = 0; c < icg; c++)
                for (int64_t i = 0; i < oh; i++)
                    for (int64_t j = 0; j < ow; j++)
                        for (int64_t u = 0; u < p->kernel[0]; u++)
                            for (int64_t v = 0; v < p->kernel[1]; v++) {
                                int64_t r = i * p->stride[0] - p->low[0] + u * p->dilation[0];
                                int64_t q = j * p->stride[1] - p->low[1] + v * p->dilation[1];
                                if (r < 0 || r >= p->in[0] || q < 0 || q >= p->in[1])
                                    continue;
                                int64_t channel = o / ocg * icg + c;
                                f(((n * p->ic + channel) * p->in[0] + r) * p->in[1] + q,
                                  ((o * icg + c) * p->kernel[0] + u) * p->kernel[1] + v,
                                  ((n * p->oc + o) * oh + i) * ow + j, ctx);
                            }
}

struct sums {
    const struct tensor *x, *w, *y;
    double *into;
    enum opcode code;
};
static void product_add(int64_t x, int64_t w, int64_t y, void *ctx)
{
    struct sums *s = ctx;
    if (s->code == OP_CONV)
        s->into[y] += kt_at(s->x, x) * kt_at(s->w, w);
    else if (s->code == OP_CONV_DGRAD)
        s->into[x] += kt_at(s->y, y) * kt_at(s->w, w);
    else
        s->into[w] += kt_at(s->x, x) * kt_at(s->y, y);
}

static struct shape shape4(int spatial, int64_t a, int64_t b, int64_t h, int64_t w)
{
    return spatial == 2 ? SHAPE(a, b, h, w) : SHAPE(a, b, w);
}

struct form {
    enum opcode code;
    enum dtype in, out;
    enum layout x, y;
    bool bias;
    int spatial;
    int64_t limit_bytes; /* of the faster way's workspace */
};

static void check(const struct problem *p, const struct form *f)
{
    struct kt k;
    kt_init(&k, f->code, (uint32_t)(p->ic * 31 + p->oc));
    k.workspace_limit_bytes = f->limit_bytes;
    struct conv_attr *a = &k.attr.conv;
    for (int i = 0; i < 2; i++) {
        a->stride[i] = p->stride[i], a->dilation[i] = p->dilation[i];
        a->pad_low[i] = p->low[i], a->pad_high[i] = p->high[i];
        a->kernel[i] = p->kernel[i], a->input[i] = p->in[i];
    }
    a->groups = p->groups;
    a->spatial = f->spatial;
    struct shape x = shape4(f->spatial, p->n, p->ic, p->in[0], p->in[1]);
    struct shape y = shape4(f->spatial, p->n, p->oc, out_size(p, 0), out_size(p, 1));
    struct shape w = shape4(f->spatial, p->oc, p->ic / p->groups, p->kernel[0], p->kernel[1]);
    struct sums s = {.code = f->code};
    if (f->code == OP_CONV_DGRAD)
        s.y = kt_in(&k, f->in, f->y, y);
    else
        s.x = kt_in(&k, f->in, f->x, x);
    if (f->code == OP_CONV_WGRAD)
        s.y = kt_in(&k, f->in, f->y, y);
    else
        s.w = kt_in(&k, f->in, LAYOUT_ROW, w);
    if (f->bias && f->code != OP_CONV_WGRAD)
        kt_in(&k, f->in, LAYOUT_ROW, SHAPE(f->code == OP_CONV ? p->oc : p->ic));
    struct tensor *out = f->code == OP_CONV         ? kt_out(&k, f->out, f->y, y)
                         : f->code == OP_CONV_DGRAD ? kt_out(&k, f->out, f->x, x)
                                                    : kt_out(&k, f->out, LAYOUT_ROW, w);
    kt_run(&k);
    s.into = mem_alloc(sizeof(double) * (size_t)(tensor_count(out) + 1));
    products(p, product_add, &s);
    if (k.n_in == 3) {
        int64_t c = out->shape.dim[1], places = tensor_count(out) / (p->n > 0 ? p->n * c : 1);
        for (int64_t i = 0; i < tensor_count(out); i++)
            s.into[i] += kt_at(&k.in[2], i / places % c);
    }
    double error = kt_error(out, s.into), most = kt_tolerance(f->out);
    if (error > most)
        test_fail(
            __FILE__, __LINE__, "code %d %s->%s layouts %d %d ic %lld oc %lld g %lld: error %g",
            (int)f->code, dtype_short(f->in), dtype_short(f->out), (int)f->x, (int)f->y,
            (long long)p->ic, (long long)p->oc, (long long)p->groups, error);
    mem_free(s.into);
    kt_free(&k);
}

static const enum opcode codes[] = {OP_CONV, OP_CONV_DGRAD, OP_CONV_WGRAD};

static bool fits(enum layout l, int64_t channels)
{
    return l != LAYOUT_C16 || channels % 16 == 0;
}

static void check_all(const struct problem *p, enum dtype in, enum dtype out)
{
    for (int c = 0; c < 3; c++)
        for (int x = LAYOUT_ROW; x <= LAYOUT_C16; x++)
            for (int y = LAYOUT_ROW; y <= LAYOUT_C16; y++) {
                struct form f = {codes[c],       in,          out, (enum layout)x,
                                 (enum layout)y, (x + y) % 2, 2,   0};
                if (fits(f.x, p->ic) && fits(f.y, p->oc))
                    check(p, &f);
            }
}

static const struct problem problems[] = {
    {2, 1, 6, 1, {9, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {2, 16, 32, 1, {7, 9}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}},
    {3, 3, 16, 1, {11, 6}, {5, 3}, {2, 1}, {2, 0}, {1, 2}, {1, 1}},
    {1, 16, 16, 1, {12, 10}, {3, 2}, {1, 2}, {2, 0}, {0, 1}, {2, 3}},
    {2, 32, 32, 32, {8, 8}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {2, 6, 9, 3, {5, 7}, {1, 3}, {1, 1}, {0, 1}, {0, 1}, {1, 1}},
    {2, 32, 16, 1, {6, 6}, {1, 1}, {2, 2}, {0, 0}, {0, 0}, {1, 1}},
    {2, 10, 20, 1, {8, 8}, {5, 5}, {1, 1}, {0, 0}, {0, 0}, {1, 1}},
    /* Taps that only ever meet padding, inputs that no window covers: their gradients are zero. */
    {1, 3, 5, 1, {2, 2}, {5, 5}, {3, 3}, {2, 2}, {2, 2}, {1, 1}},
    {2, 7, 5, 1, {2, 2}, {4, 4}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {1, 12, 12, 1, {2, 2}, {2, 2}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {3, 16, 32, 1, {2, 3}, {5, 4}, {4, 3}, {2, 1}, {2, 1}, {1, 1}},
    {2, 16, 16, 1, {9, 8}, {2, 1}, {4, 3}, {0, 0}, {0, 0}, {1, 1}}};
enum { PROBLEMS = sizeof problems / sizeof *problems };

TEST(conv_f32, "convolutions and gradients, all layouts: strides, paddings, dilation, groups")
{
    for (int i = 0; i < PROBLEMS; i++)
        check_all(&problems[i], DT_F32, DT_F32);
}

TEST(conv_halves, "bf16 and f16 convolutions accumulate in float32, also into float32")
{
    for (int i = 0; i < PROBLEMS; i++) {
        check_all(&problems[i], DT_BF16, DT_BF16);
        check_all(&problems[i], DT_BF16, DT_F32);
        check_all(&problems[i], DT_F16, DT_F16);
        check_all(&problems[i], DT_F16, DT_F32);
    }
}

TEST(conv_lines, "one-dimensional convolutions")
{
    struct problem p = {3, 16, 32, 1, {1, 23}, {1, 4}, {1, 2}, {0, 1}, {0, 2}, {1, 2}};
    for (int c = 0; c < 3; c++)
        for (int l = LAYOUT_ROW; l <= LAYOUT_C16; l++) {
            struct form f = {codes[c], DT_F32, DT_F32, (enum layout)l, (enum layout)l, true, 1, 0};
            check(&p, &f);
        }
}

TEST(conv_empty, "a batch of no images gives no output and a weight gradient of zeros")
{
    struct problem p = problems[1];
    p.n = 0;
    check_all(&p, DT_F32, DT_F32);
    check_all(&p, DT_F16, DT_F16);
}

TEST(conv_chunks, "f16 activations are converted some images at a time")
{
    struct problem p = {4, 2, 2, 1, {480, 480}, {1, 3}, {1, 1}, {0, 1}, {0, 1}, {1, 1}};
    for (int c = 0; c < 3; c++) {
        struct form f = {codes[c], DT_F16, DT_F16, LAYOUT_CL, LAYOUT_CL, true, 2, 0};
        check(&p, &f);
    }
}

/* Random data of a ResNet-like layer, on 1 and 2 threads. */
static void threads_check(enum opcode code, enum dtype t, int64_t limit_bytes)
{
    struct kt k;
    kt_init(&k, code, 3);
    k.workspace_limit_bytes = limit_bytes;
    k.attr.conv = (struct conv_attr){
        .stride = {1, 1},
        .dilation = {1, 1},
        .pad_low = {1, 1},
        .pad_high = {1, 1},
        .groups = 1,
        .spatial = 2,
        .kernel = {3, 3},
        .input = {14, 14}};
    struct shape map = SHAPE(8, 32, 14, 14), w = SHAPE(32, 32, 3, 3);
    kt_in(&k, t, LAYOUT_C16, map);
    if (code == OP_CONV_WGRAD)
        kt_in(&k, t, LAYOUT_C16, map);
    else
        kt_in(&k, t, LAYOUT_ROW, w);
    struct tensor *out =
        code == OP_CONV_WGRAD ? kt_out(&k, t, LAYOUT_ROW, w) : kt_out(&k, t, LAYOUT_C16, map);
    k.threads = 1;
    kt_run(&k);
    struct tensor one = kt_tensor(t, out->layout, out->shape);
    memcpy(one.data, out->data, (size_t)tensor_count(out) * (size_t)dtype_size(t));
    k.threads = 2;
    kt_run(&k);
    CHECK(kt_same(&one, out));
    kt_tensor_free(&one);
    kt_free(&k);
}

TEST(conv_threads, "results of convolutions do not depend on the number of threads")
{
    threads_check(OP_CONV, DT_F32, 0);
    threads_check(OP_CONV_DGRAD, DT_F32, 0);
    threads_check(OP_CONV, DT_F32, WIDE);
    threads_check(OP_CONV_DGRAD, DT_F32, WIDE);
    threads_check(OP_CONV, DT_BF16, 0);
    threads_check(OP_CONV_DGRAD, DT_BF16, 0);
    if (cpu_isa() == ISA_PORTABLE) /* the library sums weight gradients per thread */
        threads_check(OP_CONV_WGRAD, DT_F32, 0);
}

/* 3 x 3 convolutions of enough channels and places that Winograd's way pays, tiles cut at the edge
 * too, padded or not. */
static const struct problem tiled[] = {
    {4, 32, 48, 1, {14, 16}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}},
    {12, 48, 32, 1, {9, 10}, {3, 3}, {1, 1}, {0, 0}, {0, 0}, {1, 1}},
    {48, 32, 32, 1, {4, 4}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}}};

TEST(conv_winograd, "convolutions by fewer products differ by rounding only")
{
    for (int i = 0; i < 3; i++)
        for (int c = 0; c < 3; c++) {
            struct form f = {codes[c],   DT_F32, DT_F32, LAYOUT_C16,
                             LAYOUT_C16, c == 0, 2,      .limit_bytes = WIDE};
            check(&tiled[i], &f);
            f.in = f.out = DT_F16;
            check(&tiled[i], &f);
        }
}

/* Workspace of one forward convolution under a limit. */
static int64_t room_under(int64_t limit_bytes)
{
    struct kt k;
    kt_init(&k, OP_CONV, 4);
    k.workspace_limit_bytes = limit_bytes;
    k.attr.conv = (struct conv_attr){
        .stride = {1, 1},
        .dilation = {1, 1},
        .pad_low = {1, 1},
        .pad_high = {1, 1},
        .groups = 1,
        .spatial = 2};
    kt_in(&k, DT_F32, LAYOUT_C16, SHAPE(8, 32, 16, 16));
    kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(32, 32, 3, 3));
    kt_out(&k, DT_F32, LAYOUT_C16, SHAPE(8, 32, 16, 16));
    kt_run(&k);
    int64_t bytes = k.workspace_bytes;
    kt_free(&k);
    return bytes;
}

TEST(conv_limit, "what a faster way takes in workspace stays within the limit")
{
    enum { SMALL = 1 << 20 };
    CHECK(room_under(SMALL) == room_under(0));
    CHECK(room_under(WIDE) <= WIDE);
    if (cpu_isa() >= ISA_AVX512 && onednn_has_bf16()) /* the library is there */
        CHECK(room_under(WIDE) > SMALL);
}
