/* kernels.c - rates of products, convolutions and norms, against the machine's peak. Run by hand.
 *
 *     kernels [gemm|conv|norm|pool|attention|products|others|updates] [threads]
 *
 * Shapes are those of ResNet-18 for CIFAR at batch 128, a small MLP, and GPT-2's.
 */
#include "backends/backend.h"
#include "base/env.h"
#include "base/mem.h"
#include "ir/optim_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OPERANDS = 8, REPEATS = 5 };

struct call {
    union op_attr attr;
    struct tensor in[OPERANDS], out[OPERANDS];
    int n_in, n_out;
};

static struct tensor fresh(enum dtype t, enum layout l, struct shape s)
{
    struct tensor x = tensor_make(NULL, t, s);
    size_t bytes = (size_t)tensor_count(&x) * (size_t)dtype_size(t);
    x.layout = l;
    x.data = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!x.data)
        exit(3);
    for (int64_t i = 0; i < tensor_count(&x); i++)
        dtype_store(x.data, t, i, (double)(i * 7919 % 1000) / 1000 - 0.5);
    return x;
}

/* With one thread the processor's time: other people's work disturbs it less. */
static double seconds_now(void)
{
    return cpu_threads() == 1 ? (double)clock() / CLOCKS_PER_SEC : (double)clock_ns() * 1e-9;
}

/* Best time of one call in seconds; frees the operands. */
static double time_call(enum opcode code, struct call *c)
{
    const struct kernel *k = cpu_kernel(code);
    struct err e = {0};
    struct kernel_args a = {
        .code = code,
        .attr = &c->attr,
        .in = c->in,
        .out = c->out,
        .n_in = c->n_in,
        .n_out = c->n_out};
    if (k->prepare && k->prepare(&a, &a.workspace_bytes, &a.state, &e) != ST_OK)
        exit(1);
    a.workspace = aligned_alloc(64, (size_t)(a.workspace_bytes + 127) / 64 * 64);
    double best = 1e9, spent = 0;
    for (int i = 0; i < REPEATS && spent < 2; i++) {
        double from = seconds_now();
        if (k->run(&a, &e) != ST_OK)
            exit(1);
        double s = seconds_now() - from;
        best = s < best ? s : best;
        spent += s;
    }
    free(a.workspace);
    if (k->release)
        k->release(a.state);
    for (int i = 0; i < c->n_in; i++)
        free(c->in[i].data);
    for (int i = 0; i < c->n_out; i++)
        free(c->out[i].data);
    return best;
}

/* ---- peak: independent multiply-adds in registers ---- */
#if defined(__x86_64__)
#include <immintrin.h>
__attribute__((target("avx2,fma"))) static double fma_loop(int64_t n)
{
    __m256 s[12];
#pragma GCC unroll 12
    for (int j = 0; j < 12; j++)
        s[j] = _mm256_set1_ps((float)j);
    __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
    for (int64_t i = 0; i < n; i++)
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++)
            s[j] = _mm256_fmadd_ps(s[j], a, b);
    double sum = 0;
#pragma GCC unroll 12
    for (int j = 0; j < 12; j++)
        sum += (double)_mm256_cvtss_f32(s[j]);
    return sum;
}
__attribute__((target("avx512f"))) static double fma_loop_wide(int64_t n)
{
    __m512 s[12];
#pragma GCC unroll 12
    for (int j = 0; j < 12; j++)
        s[j] = _mm512_set1_ps((float)j);
    __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
    for (int64_t i = 0; i < n; i++)
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++)
            s[j] = _mm512_fmadd_ps(s[j], a, b);
    double sum = 0;
#pragma GCC unroll 12
    for (int j = 0; j < 12; j++)
        sum += (double)_mm512_cvtss_f32(s[j]);
    return sum;
}
/* GFLOP/s of one thread in float32. */
static double peak(void)
{
    int64_t n = 8000000;
    bool wide = cpu_isa() >= ISA_AVX512;
    if (cpu_isa() < ISA_AVX2)
        return 0;
    double best = 0;
    for (int i = 0; i < 3; i++) {
        clock_t from = clock();
        volatile double sink = wide ? fma_loop_wide(n) : fma_loop(n);
        (void)sink;
        double rate =
            (double)n * 12 * (wide ? 32 : 16) / ((double)(clock() - from) / CLOCKS_PER_SEC) * 1e-9;
        best = rate > best ? rate : best;
    }
    return best;
}
#else
static double peak(void)
{
    return 0;
}
#endif

static double top; /* of the threads in use */

static void row(const char *name, enum dtype t, double flops, double seconds)
{
    double rate = flops / seconds * 1e-9, limit = t == DT_BF16 ? 2 * top : top;
    (void)printf("%-44s %-5s %9.3f ms %7.0f GFLOP/s", name, dtype_short(t), seconds * 1e3, rate);
    if (limit > 0)
        (void)printf(" %4.0f%%", 100 * rate / limit);
    (void)printf("\n");
}

/* ---- products ---- */

static double
gemm(const char *what, int64_t m, int64_t n, int64_t k, bool ta, bool tb, enum dtype t)
{
    struct call c = {.n_in = 2, .n_out = 1};
    bool weight = t == DT_BF16 && !ta; /* float32 in memory, rounded by the product */
    c.attr.gemm.ta = ta, c.attr.gemm.tb = tb, c.attr.gemm.round[1] = weight;
    c.in[0] = fresh(t, LAYOUT_ROW, ta ? SHAPE(k, m) : SHAPE(m, k));
    c.in[1] = fresh(weight ? DT_F32 : t, LAYOUT_ROW, tb ? SHAPE(n, k) : SHAPE(k, n));
    c.out[0] = fresh(t, LAYOUT_ROW, SHAPE(m, n));
    char name[64];
    (void)snprintf(
        name, sizeof name, "%s %lldx%lldx%lld %s%s", what, (long long)m, (long long)n, (long long)k,
        ta ? "T" : "N", tb ? "T" : "N");
    double seconds = time_call(OP_GEMM, &c);
    row(name, t, 2.0 * (double)m * (double)n * (double)k, seconds);
    return seconds;
}

static void gemms(void)
{
    static const enum dtype types[] = {DT_F32, DT_BF16};
    for (int i = 0; i < 2; i++) {
        enum dtype t = types[i];
        (void)gemm("square", 1024, 1024, 1024, false, false, t);
        (void)gemm("square", 1024, 1024, 1024, false, true, t);
        (void)gemm("square", 1024, 1024, 1024, true, false, t);
        (void)gemm("gpt2 fc", 256, 3072, 768, false, true, t);
        (void)gemm("gpt2 fc dgrad", 256, 768, 3072, false, false, t);
        (void)gemm("gpt2 fc wgrad", 3072, 768, 256, true, false, t);
        (void)gemm("mlp", 32, 512, 784, false, true, t);
        (void)gemm("mlp dgrad", 32, 784, 512, false, false, t);
        (void)gemm("mlp wgrad", 512, 784, 32, true, false, t);
        (void)gemm("mlp head", 128, 10, 512, false, true, t);
        (void)gemm("resnet head", 128, 10, 512, false, true, t);
    }
}

/* ---- convolutions ---- */

struct layer {
    int64_t in, out, size, kernel, stride;
    int times; /* in one ResNet-18 step */
};
static const struct layer layers[] = {
    {3, 64, 32, 3, 1, 1},   {64, 64, 32, 3, 1, 4},   {64, 128, 32, 3, 2, 1},
    {64, 128, 32, 1, 2, 3}, {128, 128, 16, 3, 1, 3}, {128, 256, 16, 3, 2, 1},
    {256, 256, 8, 3, 1, 3}, {256, 512, 8, 3, 2, 1},  {512, 512, 4, 3, 1, 3}};
enum { LAYERS = sizeof layers / sizeof *layers, BATCH = 128 };

static enum layout fit(enum layout l, int64_t channels)
{
    return l == LAYOUT_C16 && channels % 16 ? LAYOUT_CL : l;
}

static double conv(const struct layer *p, enum opcode code, enum dtype t, enum layout l)
{
    int64_t out = (p->size - 1) / p->stride + 1, pad = p->kernel / 2;
    struct call c = {.n_in = 2, .n_out = 1};
    c.attr.conv = (struct conv_attr){
        .stride = {p->stride, p->stride},
        .pad_low = {pad, pad},
        .pad_high = {pad, pad},
        .dilation = {1, 1},
        .groups = 1,
        .spatial = 2,
        .kernel = {p->kernel, p->kernel},
        .input = {p->size, p->size}};
    enum dtype tw = code == OP_CONV_WGRAD ? DT_F32 : t;
    struct tensor x = fresh(t, fit(l, p->in), SHAPE(BATCH, p->in, p->size, p->size));
    struct tensor y = fresh(t, fit(l, p->out), SHAPE(BATCH, p->out, out, out));
    struct tensor w = fresh(tw, LAYOUT_ROW, SHAPE(p->out, p->in, p->kernel, p->kernel));
    c.in[0] = code == OP_CONV_DGRAD ? y : x;
    c.in[1] = code == OP_CONV_WGRAD ? y : w;
    c.out[0] = code == OP_CONV ? y : code == OP_CONV_DGRAD ? x : w;
    double s = time_call(code, &c);
    char name[64];
    (void)snprintf(
        name, sizeof name, "%s %lld->%lld %lldx%lld k%lld s%lld %s",
        code == OP_CONV         ? "fwd"
        : code == OP_CONV_DGRAD ? "dgrad"
                                : "wgrad",
        (long long)p->in, (long long)p->out, (long long)p->size, (long long)p->size,
        (long long)p->kernel, (long long)p->stride, layout_name(l));
    row(name, t, 2.0 * BATCH * (double)(p->in * p->out * out * out * p->kernel * p->kernel), s);
    return s;
}

static void convs(void)
{
    static const enum dtype types[] = {DT_F32, DT_BF16};
    for (int t = 0; t < 2; t++)
        for (enum layout l = LAYOUT_CL; l <= LAYOUT_C16; l++) {
            double step = 0;
            for (int i = 0; i < LAYERS; i++) {
                step += conv(&layers[i], OP_CONV, types[t], l) * layers[i].times;
                if (i > 0) /* the image needs no gradient */
                    step += conv(&layers[i], OP_CONV_DGRAD, types[t], l) * layers[i].times;
                step += conv(&layers[i], OP_CONV_WGRAD, types[t], l) * layers[i].times;
            }
            (void)printf(
                "convolutions of a ResNet-18 step, %s %s: %.0f ms, %.1f images/s\n\n",
                dtype_short(types[t]), layout_name(l), step * 1e3, BATCH / step);
        }
}

/* ---- memory-bound ones: GB/s of what must be read and written ---- */

static void moved(const char *name, enum dtype t, enum layout l, double tensors, double seconds)
{
    double bytes = tensors * BATCH * 64 * 32 * 32 * dtype_size(t);
    (void)printf(
        "%-24s %-4s %-4s %8.3f ms %6.1f GB/s\n", name, layout_name(l), dtype_short(t),
        seconds * 1e3, bytes / seconds * 1e-9);
}

static void norms(void)
{
    static const enum dtype types[] = {DT_F32, DT_BF16};
    struct shape map = SHAPE(BATCH, 64, 32, 32), c = SHAPE(64);
    for (int t = 0; t < 2; t++)
        for (enum layout l = LAYOUT_ROW; l <= LAYOUT_C16; l++) {
            struct call s = {.n_in = 1, .n_out = 2}, a = {.n_in = 6, .n_out = 1},
                        g = {.n_in = 6, .n_out = 3};
            s.attr.norm.eps = 1e-5;
            a.attr.norm.act = g.attr.norm.act = ACT_RELU;
            s.in[0] = fresh(types[t], l, map);
            a.in[0] = fresh(types[t], l, map), a.in[5] = fresh(types[t], l, map);
            a.out[0] = fresh(types[t], l, map);
            g.in[0] = fresh(types[t], l, map), g.in[1] = fresh(types[t], l, map);
            g.out[0] = fresh(types[t], l, map);
            for (int i = 0; i < 4; i++) {
                a.in[i + 1] = fresh(DT_F32, LAYOUT_ROW, c);
                g.in[i + 2] = fresh(DT_F32, LAYOUT_ROW, c);
                if (i < 2)
                    s.out[i] = fresh(DT_F32, LAYOUT_ROW, c),
                    g.out[i + 1] = fresh(DT_F32, LAYOUT_ROW, c);
            }
            moved("norm_stats", types[t], l, 1, time_call(OP_NORM_STATS, &s));
            moved("norm_apply add relu", types[t], l, 3, time_call(OP_NORM_APPLY, &a));
            moved("norm_grad relu", types[t], l, 5, time_call(OP_NORM_GRAD, &g));
        }
}

static void pools(void)
{
    static const enum dtype types[] = {DT_F32, DT_BF16};
    struct shape map = SHAPE(BATCH, 64, 32, 32), half = SHAPE(BATCH, 64, 16, 16);
    for (int t = 0; t < 2; t++)
        for (enum layout l = LAYOUT_ROW; l <= LAYOUT_C16; l++) {
            struct call f = {.n_in = 1, .n_out = 2}, b = {.n_in = 2, .n_out = 1};
            struct call r = {.n_in = 1, .n_out = 1};
            f.attr.pool = (struct pool_attr){
                .kernel = {2, 2}, .stride = {2, 2}, .dilation = {1, 1}, .spatial = 2};
            b.attr.pool = f.attr.pool;
            b.attr.pool.output[0] = b.attr.pool.output[1] = 32;
            f.in[0] = fresh(types[t], l, map);
            f.out[0] = fresh(types[t], l, half), f.out[1] = fresh(DT_U8, l, half);
            b.in[0] = fresh(types[t], l, half), b.in[1] = fresh(DT_U8, l, half);
            b.out[0] = fresh(types[t], l, map);
            r.in[0] = fresh(types[t], l, map);
            r.out[0] = fresh(types[t], l == LAYOUT_ROW ? LAYOUT_C16 : LAYOUT_ROW, map);
            moved("max_pool 2x2", types[t], l, 1.25, time_call(OP_MAX_POOL, &f));
            moved("max_pool_grad 2x2", types[t], l, 1.25, time_call(OP_MAX_POOL_GRAD, &b));
            moved("reorder row", types[t], l, 2, time_call(OP_REORDER, &r));
        }
}

/* Products of a GPT-2 block and its head on `rows` tokens, and what one step's take together. */
static void gpt2_products(int64_t rows)
{
    static const struct {
        const char *name;
        int64_t out, in;
        int times;
    } linears[] = {
        {"qkv", 2304, 768, 12},
        {"attention out", 768, 768, 12},
        {"mlp up", 3072, 768, 12},
        {"mlp down", 768, 3072, 12},
        {"head", 50257, 768, 1}};
    for (int t = 0; t < 2; t++) {
        enum dtype type = t ? DT_BF16 : DT_F32;
        double all = 0, flops = 0;
        for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
            int64_t out = linears[i].out, in = linears[i].in;
            double s = gemm(linears[i].name, rows, out, in, false, true, type);
            s += gemm("  dX", rows, in, out, false, false, type);
            s += gemm("  dW", out, in, rows, true, false, type);
            all += s * linears[i].times;
            flops += 6.0 * (double)rows * (double)out * (double)in * linears[i].times;
        }
        row("products of a step of GPT-2 124M", type, flops, all);
    }
}

/* Everything else of its step, on 1024 tokens: GB/s of what must be read and written. */
static struct call call_of(int n_in, int n_out)
{
    return (struct call){.n_in = n_in, .n_out = n_out};
}

static void gpt2_other(const char *name, enum opcode code, struct call *c, double bytes)
{
    double s = time_call(code, c);
    (void)printf("%-44s %9.3f ms %7.1f GB/s\n", name, s * 1e3, bytes / s * 1e-9);
}

static void gpt2_elements(enum dtype t)
{
    struct shape wide = SHAPE(1024, 3072);
    double bytes = 1024.0 * 3072 * dtype_size(t);
    struct call c = call_of(1, 1);
    c.attr.ew.tanh_form = true;
    c.in[0] = fresh(t, LAYOUT_ROW, wide), c.out[0] = fresh(t, LAYOUT_ROW, wide);
    gpt2_other("gelu", OP_GELU, &c, 2 * bytes);
    c = call_of(2, 1);
    c.attr.ew.tanh_form = true;
    c.in[0] = fresh(t, LAYOUT_ROW, wide), c.in[1] = fresh(t, LAYOUT_ROW, wide);
    c.out[0] = fresh(t, LAYOUT_ROW, wide);
    gpt2_other("gelu gradient", OP_GELU_GRAD, &c, 3 * bytes);
    c = call_of(1, 1);
    c.attr.reduce = (struct reduce_attr){.dims = 1};
    c.in[0] = fresh(t, LAYOUT_ROW, wide), c.out[0] = fresh(t, LAYOUT_ROW, SHAPE(3072));
    gpt2_other("bias gradient", OP_SUM, &c, bytes);
    c = call_of(2, 1);
    c.in[0] = fresh(DT_F32, LAYOUT_ROW, wide), c.in[1] = fresh(t, LAYOUT_ROW, wide);
    c.out[0] = fresh(DT_F32, LAYOUT_ROW, wide);
    gpt2_other("residual", OP_ADD, &c, bytes + 2 * 1024 * 3072 * 4.0);
}

static void gpt2_norm(void)
{
    struct shape x = SHAPE(1024, 768), e = SHAPE(768), r = SHAPE(1024);
    double bytes = 1024 * 768 * 4.0;
    union op_attr attr = {.norm = {.kind = NORM_LAYER, .trailing = 1, .eps = 1e-5}};
    struct call c = call_of(1, 2);
    c.attr = attr;
    c.in[0] = fresh(DT_F32, LAYOUT_ROW, x);
    c.out[0] = fresh(DT_F32, LAYOUT_ROW, r), c.out[1] = fresh(DT_F32, LAYOUT_ROW, r);
    gpt2_other("layer norm statistics", OP_NORM_STATS, &c, bytes);
    c = call_of(5, 1);
    c.attr = attr;
    c.in[0] = fresh(DT_F32, LAYOUT_ROW, x), c.out[0] = fresh(DT_F32, LAYOUT_ROW, x);
    for (int i = 1; i < 5; i++)
        c.in[i] = fresh(DT_F32, LAYOUT_ROW, i < 3 ? r : e);
    gpt2_other("layer norm", OP_NORM_APPLY, &c, 2 * bytes);
    c = call_of(6, 3);
    c.attr = attr;
    c.in[0] = fresh(DT_F32, LAYOUT_ROW, x), c.in[1] = fresh(DT_F32, LAYOUT_ROW, x);
    c.out[0] = fresh(DT_F32, LAYOUT_ROW, x);
    for (int i = 2; i < 6; i++)
        c.in[i] = fresh(DT_F32, LAYOUT_ROW, i < 4 ? r : e);
    for (int i = 1; i < 3; i++)
        c.out[i] = fresh(DT_F32, LAYOUT_ROW, e);
    gpt2_other("layer norm gradient", OP_NORM_GRAD, &c, 3 * bytes);
}

/* Token numbers below n. */
static struct tensor tokens(int64_t count, int64_t n)
{
    struct tensor t = fresh(DT_I64, LAYOUT_ROW, SHAPE(count));
    for (int64_t i = 0; i < count; i++)
        ((int64_t *)t.data)[i] = i * 7919 % n;
    return t;
}

static void gpt2_loss(enum dtype t)
{
    struct shape logits = SHAPE(256, 50257), one = shape_scalar();
    double bytes = 256.0 * 50257 * dtype_size(t);
    struct call c = call_of(2, 3);
    c.attr.loss.ignore_index = -100;
    c.in[0] = fresh(t, LAYOUT_ROW, logits), c.in[1] = tokens(256, 50257);
    c.out[0] = fresh(DT_F32, LAYOUT_ROW, one), c.out[1] = fresh(DT_F32, LAYOUT_ROW, SHAPE(256));
    c.out[2] = fresh(DT_F32, LAYOUT_ROW, one);
    gpt2_other("cross-entropy, 256 tokens", OP_CROSS_ENTROPY, &c, bytes);
    c = call_of(6, 1);
    c.attr.loss.ignore_index = -100;
    c.in[0] = fresh(DT_F32, LAYOUT_ROW, one), c.in[1] = fresh(t, LAYOUT_ROW, logits);
    c.in[2] = tokens(256, 50257), c.in[4] = fresh(DT_F32, LAYOUT_ROW, SHAPE(256));
    c.in[5] = fresh(DT_F32, LAYOUT_ROW, one), c.out[0] = fresh(t, LAYOUT_ROW, logits);
    gpt2_other("cross-entropy gradient", OP_CROSS_ENTROPY_GRAD, &c, 2 * bytes);
}

static void gpt2_update(void)
{
    struct shape w = SHAPE(50257, 768);
    double bytes = 50257 * 768 * 4.0;
    struct call c = call_of(2, 1);
    c.in[0] = fresh(DT_F32, LAYOUT_ROW, shape_scalar());
    *(float *)c.in[0].data = 1;
    c.in[1] = fresh(DT_F32, LAYOUT_ROW, w), c.out[0] = fresh(DT_F32, LAYOUT_ROW, SHAPE(4));
    gpt2_other("gradient check, embedding", OP_GRAD_CHECK, &c, bytes);
    c = call_of(6, 3);
    c.attr.optim = (struct optim_attr){
        .kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
    for (int i = 0; i < 4; i++)
        c.in[i] = fresh(DT_F32, LAYOUT_ROW, w);
    c.in[4] = fresh(DT_F64, LAYOUT_ROW, SHAPE(2)), c.in[5] = fresh(DT_F32, LAYOUT_ROW, SHAPE(4));
    ((double *)c.in[4].data)[1] = 5;
    ((float *)c.in[5].data)[2] = 0;
    gpt2_other("adamw, embedding", OP_OPTIMIZER, &c, 7 * bytes);
    c = call_of(3, 1);
    c.attr.embed = (struct embed_attr){.rows = 50257, .padding_idx = -1};
    c.in[0] = tokens(1024, 50257), c.in[1] = fresh(DT_F32, LAYOUT_ROW, SHAPE(1024, 768));
    c.in[2] = fresh(DT_F32, LAYOUT_ROW, w);
    c.out[0] = c.in[2];
    c.n_out = 0;
    gpt2_other(
        "embedding gradient, in place, 1024 tokens", OP_EMBEDDING_GRAD, &c, 1024 * 768 * 12.0);
}

/* One update of 16384 x 768 weights in each form of the state, and what 124M weights take. */
static void update(const char *name, struct optim_attr o, enum dtype t)
{
    struct shape w = SHAPE(16384, 768);
    double count = 16384 * 768.0;
    o.beta1 = 0.9, o.beta2 = 0.999, o.eps = 1e-8, o.weight_decay = 0.01;
    o.beta2_decay = -0.8, o.eps2 = 1e-3, o.d = 1;
    struct call c = call_of(1, 0);
    c.attr.optim = optim_attr_for(&o, &w, t, "w");
    const struct optim_attr *a = &c.attr.optim;
    c.in[0] = fresh(t, LAYOUT_ROW, w);
    for (int i = 0; i < optim_state_count(a); i++) {
        struct tensor *s = &c.in[c.n_in++];
        *s = fresh(optim_state_dtype(a, i), LAYOUT_ROW, optim_state_shape(a, i, &w));
        for (int64_t k = 0; k < tensor_count(s); k++)
            dtype_store(s->data, s->dtype, k, optim_state_start(a, i, 0.1));
    }
    c.in[c.n_in++] = fresh(DT_F32, LAYOUT_ROW, w);
    double *hyper = (c.in[c.n_in++] = fresh(DT_F64, LAYOUT_ROW, SHAPE(5))).data;
    float *ctl = (c.in[c.n_in++] = fresh(DT_F32, LAYOUT_ROW, SHAPE(4))).data;
    hyper[0] = 1e-3, hyper[1] = 5, hyper[2] = (double)NAN, hyper[3] = 1, hyper[4] = 2;
    ctl[0] = ctl[1] = 1, ctl[2] = 0;
    double s = time_call(OP_OPTIMIZER, &c);
    (void)printf("%-44s %9.3f ms %7.1f ms per 124M\n", name, s * 1e3, s * 1e3 * 124439808 / count);
}

static void updates(void)
{
    static const struct {
        const char *name;
        struct optim_attr o;
        enum dtype t;
    } forms[] = {
        {"adamw", {.kind = OPTIM_ADAMW}, DT_F32},
        {"adamw, states in 8 bits", {.kind = OPTIM_ADAMW, .int8 = true}, DT_F32},
        {"adamw, bfloat16, masters", {.kind = OPTIM_ADAMW, .master = true}, DT_BF16},
        {"adamw, bfloat16, stochastic", {.kind = OPTIM_ADAMW, .stochastic = true}, DT_BF16},
        {"adamw, float16, stochastic", {.kind = OPTIM_ADAMW, .stochastic = true}, DT_F16},
        {"adamw, bfloat16, stochastic, 8 bits",
         {.kind = OPTIM_ADAMW, .stochastic = true, .int8 = true},
         DT_BF16},
        {"adafactor", {.kind = OPTIM_ADAFACTOR}, DT_F32},
        {"adafactor, bfloat16, stochastic",
         {.kind = OPTIM_ADAFACTOR, .stochastic = true},
         DT_BF16}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        update(forms[i].name, forms[i].o, forms[i].t);
}

static void gpt2_rest(void)
{
    for (int t = 0; t < 2; t++) {
        gpt2_elements(t ? DT_BF16 : DT_F32);
        gpt2_loss(t ? DT_BF16 : DT_F32);
    }
    gpt2_norm();
    gpt2_update();
}

/* Queries, keys and values of one product, as GPT-2 has them; flops are those of the half of the
 * scores that a causal mask leaves. */
static void attention(int64_t b, int64_t s, int64_t h, int64_t d, enum dtype t)
{
    char name[64];
    struct call c = {.n_in = 1, .n_out = 2};
    c.attr.attention = (struct attention_attr){.heads = h, .kv_heads = h, .causal = true};
    c.in[0] = fresh(t, LAYOUT_ROW, SHAPE(b, s, 3 * h, d));
    c.out[0] = fresh(t, LAYOUT_ROW, SHAPE(b, s, h, d));
    c.out[1] = fresh(DT_F32, LAYOUT_ROW, SHAPE(b, h, s));
    double flops = 2.0 * (double)(b * h * d) * (double)s * (double)(s + 1) / 2;
    (void)snprintf(name, sizeof name, "attention %lldx%lld", (long long)b, (long long)s);
    row(name, t, 2 * flops, time_call(OP_ATTENTION, &c));
    struct call g = {.n_in = 8, .n_out = 1, .attr = c.attr};
    g.in[0] = fresh(t, LAYOUT_ROW, SHAPE(b, s, h, d));
    g.in[1] = fresh(t, LAYOUT_ROW, SHAPE(b, s, 3 * h, d));
    g.in[6] = fresh(t, LAYOUT_ROW, SHAPE(b, s, h, d));
    g.in[7] = fresh(DT_F32, LAYOUT_ROW, SHAPE(b, h, s));
    memset(g.in[7].data, 0, (size_t)(b * h * s) * 4);
    g.out[0] = fresh(t, LAYOUT_ROW, SHAPE(b, s, 3 * h, d));
    (void)snprintf(name, sizeof name, "attention grad %lldx%lld", (long long)b, (long long)s);
    row(name, t, 5 * flops, time_call(OP_ATTENTION_GRAD, &g));
}

static void attentions(void)
{
    for (int t = 0; t < 2; t++) {
        attention(4, 64, 12, 64, t ? DT_BF16 : DT_F32);
        attention(4, 1024, 12, 64, t ? DT_BF16 : DT_F32);
        attention(1, 1024, 16, 128, t ? DT_BF16 : DT_F32);
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (argc > 2)
        cpu_threads_set(atoi(argv[2]));
    top = peak() * cpu_threads();
    (void)printf(
        "%s, %d threads, float32 peak %.0f GFLOP/s\n", isa_name(cpu_isa()), cpu_threads(), top);
    if (strstr("gemm", what))
        gemms();
    if (strstr("conv", what))
        convs();
    if (strstr("norm", what))
        norms();
    if (strstr("pool", what))
        pools();
    if (strstr("attention", what))
        attentions();
    if (strstr("products", what)) {
        gpt2_products(256);
        gpt2_products(4096);
    }
    if (strstr("others", what))
        gpt2_rest();
    if (strstr("updates", what))
        updates();
    return 0;
}
