/* bound.c - what the convolutions, or the products with weights, of a training step take alone: the
 * bound of bench/train.
 *
 *     bound [resnet18|fashion-cnn|gpt2-124m-LENGTH] [fp32|bf16] [threads]
 *
 * Forward, gradient of the input (not for the first layer) and gradient of the weights of every
 * convolution at batch 128, each in the library's blocked layout with weights in the library's own
 * form, so that nothing is reordered. Times are medians; the line is JSON.
 */
#include "backends/backend.h"
#include "backends/cpu/dnnl.h"
#include "base/env.h"
#include "base/mem.h"
#include "mem/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 128, REPEATS = 5 };

struct layer {
    int64_t in, out, size, kernel, stride;
    int times; /* in the network */
};
static const struct layer resnet18[] = {
    {3, 64, 32, 3, 1, 1},    {64, 64, 32, 3, 1, 4},   {64, 128, 32, 3, 2, 1},
    {64, 128, 32, 1, 2, 1},  {128, 128, 16, 3, 1, 3}, {128, 256, 16, 3, 2, 1},
    {128, 256, 16, 1, 2, 1}, {256, 256, 8, 3, 1, 3},  {256, 512, 8, 3, 2, 1},
    {256, 512, 8, 1, 2, 1},  {512, 512, 4, 3, 1, 3},  {0}};
static const struct layer fashion[] = {{1, 32, 28, 3, 1, 1}, {32, 64, 14, 3, 1, 1}, {0}};

static char *map(struct mem_source *s, int64_t bytes)
{
    void *p = NULL;
    struct err e = {0};
    if (mem_source_take(s, bytes, &p, &e) != ST_OK) {
        (void)fprintf(stderr, "bound: %s\n", e.text);
        exit(3);
    }
    return p;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static enum layout layout_of(int64_t channels)
{
    return channels % 16 == 0 ? LAYOUT_C16 : LAYOUT_CL;
}

static struct onednn_conv_spec spec_of(const struct layer *l, enum conv_way way, enum dtype t)
{
    int64_t pad = l->kernel / 2, out = (l->size - 1) / l->stride + 1;
    struct onednn_conv_spec s = {
        .way = way,
        .size =
            {.n = BATCH,
             .ic = l->in,
             .oc = l->out,
             .groups = 1,
             .in = {l->size, l->size},
             .out = {out, out},
             .kernel = {l->kernel, l->kernel},
             .stride = {l->stride, l->stride},
             .dilation = {1, 1},
             .pad_low = {pad, pad},
             .pad_high = {pad, pad}},
        .x = t,
        .w = way == CONV_WEIGHT_GRAD ? DT_F32 : t,
        .y = t,
        .bias = DT_F32,
        .x_layout = layout_of(l->in),
        .y_layout = layout_of(l->out),
        .library_weights = true};
    return s;
}

/* Ordinary numbers: the time of a product of zeros or denormals says nothing. */
static void fill(char *p, int64_t bytes, enum dtype t)
{
    for (int64_t i = 0; i < bytes / dtype_size(t); i++)
        dtype_store(p, t, i, (double)(i * 7919 % 1000) / 1000 - 0.5);
}

static double seconds_of(const struct layer *l, enum conv_way way, enum dtype t)
{
    struct onednn_conv_spec s = spec_of(l, way, t);
    struct onednn_conv *c = onednn_conv_new(&s);
    struct err e = {0};
    double times[REPEATS];
    if (!c) {
        (void)fprintf(stderr, "bound: the library has no such convolution\n");
        exit(1);
    }
    int64_t x = BATCH * l->in * l->size * l->size * dtype_size(t);
    int64_t y = BATCH * l->out * s.size.out[0] * s.size.out[1] * dtype_size(t);
    int64_t w = onednn_conv_weights_bytes(c), room = onednn_conv_workspace_bytes(c) + 64;
    int64_t bytes[4] = {x, y, w, room};
    char *at[4];
    struct mem_source source;
    mem_source_init_host(&source, 0);
    for (int i = 0; i < 4; i++) {
        at[i] = map(&source, bytes[i]);
        fill(at[i], bytes[i], i == 2 ? s.w : t);
    }
    struct onednn_conv_data d = {.x = at[0], .y = at[1], .w = at[2], .workspace = at[3]};
    for (int i = -1; i < REPEATS; i++) {
        int64_t from = clock_ns();
        if (onednn_conv_run(c, &d, &e) != ST_OK)
            exit(1);
        if (i >= 0)
            times[i] = (double)(clock_ns() - from) * 1e-9;
    }
    for (int i = 0; i < 4; i++)
        mem_source_give(&source, at[i], bytes[i]);
    onednn_conv_free(c);
    qsort(times, REPEATS, sizeof *times, by_value);
    return times[REPEATS / 2];
}

static void report(const char *net, const struct layer *layers, enum dtype t)
{
    double s[3] = {0};
    for (const struct layer *l = layers; l->out; l++)
        for (enum conv_way way = CONV_FORWARD; way <= CONV_WEIGHT_GRAD; way++)
            if (way != CONV_INPUT_GRAD || l > layers)
                s[way] += seconds_of(l, way, t) * l->times;
    double step = s[CONV_FORWARD] + s[CONV_INPUT_GRAD] + s[CONV_WEIGHT_GRAD];
    (void)printf(
        "{\"net\": \"%s\", \"dtype\": \"%s\", \"threads\": %d, \"forward_ms\": %.3f, "
        "\"input_grad_ms\": %.3f, \"weight_grad_ms\": %.3f, \"step_ms\": %.3f, "
        "\"images_per_s\": %.2f}\n",
        net, dtype_short(t), cpu_threads(), s[CONV_FORWARD] * 1e3, s[CONV_INPUT_GRAD] * 1e3,
        s[CONV_WEIGHT_GRAD] * 1e3, step * 1e3, BATCH / step);
}

/* ---- products of GPT-2 124M: forward, gradient of the input, gradient of the weights ---- */

static double product_seconds(int64_t m, int64_t n, int64_t k, bool ta, bool tb, enum dtype t)
{
    struct mem_source source;
    struct err e = {0};
    union op_attr attr = {.gemm = {.ta = ta, .tb = tb}};
    struct tensor in[2] = {
        tensor_make(NULL, t, ta ? SHAPE(k, m) : SHAPE(m, k)),
        tensor_make(NULL, t, tb ? SHAPE(n, k) : SHAPE(k, n))};
    struct tensor out = tensor_make(NULL, t, SHAPE(m, n));
    struct kernel_args a = {
        .code = OP_GEMM, .attr = &attr, .in = in, .out = &out, .n_in = 2, .n_out = 1};
    const struct kernel *kernel = cpu_kernel(OP_GEMM);
    if (kernel->prepare(&a, &a.workspace_bytes, &a.state, &e) != ST_OK)
        exit(1);
    mem_source_init_host(&source, 0);
    in[0].data = map(&source, m * k * dtype_size(t));
    in[1].data = map(&source, n * k * dtype_size(t));
    out.data = map(&source, m * n * dtype_size(t));
    a.workspace = map(&source, a.workspace_bytes + 64);
    fill(in[0].data, m * k * dtype_size(t), t);
    fill(in[1].data, n * k * dtype_size(t), t);
    double times[REPEATS];
    for (int i = -1; i < REPEATS; i++) { /* the first run touches the memory */
        int64_t from = clock_ns();
        if (kernel->run(&a, &e) != ST_OK)
            exit(1);
        if (i >= 0)
            times[i] = (double)(clock_ns() - from) * 1e-9;
    }
    qsort(times, REPEATS, sizeof *times, by_value);
    kernel->release(a.state);
    mem_source_give(&source, in[0].data, m * k * dtype_size(t));
    mem_source_give(&source, in[1].data, n * k * dtype_size(t));
    mem_source_give(&source, out.data, m * n * dtype_size(t));
    mem_source_give(&source, a.workspace, a.workspace_bytes + 64);
    return times[REPEATS / 2];
}

static void report_gpt2(const char *net, int64_t length, enum dtype t)
{
    static const int64_t linears[][3] = {/* out, in, times in the network */
                                         {2304, 768, 12},
                                         {768, 768, 12},
                                         {3072, 768, 12},
                                         {768, 3072, 12},
                                         {50257, 768, 1}};
    enum { SEQUENCES = 4 };
    int64_t rows = SEQUENCES * length;
    double seconds = 0, flops = 0;
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
        int64_t out = linears[i][0], in = linears[i][1], times = linears[i][2];
        double each = product_seconds(rows, out, in, false, true, t) +
                      product_seconds(rows, in, out, false, false, t) +
                      product_seconds(out, in, rows, true, false, t);
        seconds += each * (double)times;
        flops += 6.0 * (double)rows * (double)(out * in * times);
    }
    (void)printf(
        "{\"net\": \"%s\", \"type\": \"%s\", \"threads\": %d, \"ms\": %.2f, \"images_per_s\": "
        "%.3f, \"gflops\": %.1f}\n",
        net, dtype_short(t), cpu_threads(), seconds * 1e3, SEQUENCES / seconds,
        flops / seconds * 1e-9);
}

int main(int argc, char **argv)
{
    const char *net = argc > 1 ? argv[1] : "", *type = argc > 2 ? argv[2] : "";
    if (argc > 3)
        cpu_threads_set(atoi(argv[3]));
    for (int low = 0; low < 2; low++) {
        enum dtype t = low ? DT_BF16 : DT_F32;
        if (strncmp(net, "gpt2-124m-", 10) == 0 && strstr(low ? "bf16" : "fp32", type)) {
            report_gpt2(net, atoi(net + 10), t);
            continue;
        }
        if (!strstr(low ? "bf16" : "fp32", type) || (low && !onednn_has_bf16()))
            continue;
        if (strstr("resnet18", net))
            report("resnet18", resnet18, t);
        if (strstr("fashion-cnn", net))
            report("fashion-cnn", fashion, t);
    }
    return 0;
}
