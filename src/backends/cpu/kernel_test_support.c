/* kernel_test_support.c - see kernel_test.h. */
#include "backends/cpu/kernel_test.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, GUARD_BYTE = 0xa5 };

static size_t bytes_of(const struct tensor *t)
{
    return (size_t)tensor_count(t) * (size_t)dtype_size(t->dtype);
}

static char *guarded(size_t bytes)
{
    char *p = aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64);
    CHECK(p);
    memset(p, GUARD_BYTE, GUARD);
    memset(p + GUARD, 0, bytes);
    memset(p + GUARD + bytes, GUARD_BYTE, GUARD);
    return p + GUARD;
}

static void guard_check(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (int i = 0; i < GUARD; i++) {
        CHECK(p[-1 - i] == GUARD_BYTE);
        CHECK(p[bytes + (size_t)i] == GUARD_BYTE);
    }
}

struct tensor kt_tensor(enum dtype t, enum layout l, struct shape s)
{
    struct tensor x = tensor_make(NULL, t, s);
    x.layout = l;
    x.data = guarded(bytes_of(&x));
    return x;
}

void kt_tensor_free(struct tensor *t)
{
    if (!t->data)
        return;
    guard_check(t->data, bytes_of(t));
    free((char *)t->data - GUARD);
    t->data = NULL;
}

void kt_init(struct kt *k, enum opcode code, uint32_t seed)
{
    memset(k, 0, sizeof *k);
    k->code = code;
    rng_init(&k->rng, test_seed(), (uint32_t)code, seed);
}

void kt_random(struct tensor *t, struct rng *r)
{
    for (int64_t i = 0; i < tensor_count(t); i++)
        dtype_store(
            t->data, t->dtype, i,
            dtype_floating(t->dtype) ? rng_normal(r) : (double)rng_below(r, 10));
}

struct tensor *kt_in(struct kt *k, enum dtype t, enum layout l, struct shape s)
{
    CHECK(k->n_in < KT_OPERANDS);
    struct tensor *x = &k->in[k->n_in++];
    *x = kt_tensor(t, l, s);
    kt_random(x, &k->rng);
    return x;
}

struct tensor *kt_in_absent(struct kt *k)
{
    return &k->in[k->n_in++];
}

struct tensor *kt_out(struct kt *k, enum dtype t, enum layout l, struct shape s)
{
    CHECK(k->n_out < KT_OPERANDS);
    struct tensor *x = &k->out[k->n_out++];
    *x = kt_tensor(t, l, s);
    memset(x->data, 0x7f, bytes_of(x)); /* kernels must write all of it */
    return x;
}

void kt_run(struct kt *k)
{
    const struct kernel *kernel = cpu_kernel(k->code);
    CHECK(kernel);
    struct err e = {0};
    struct tensor in[KT_OPERANDS], out[KT_OPERANDS];
    memcpy(in, k->in, sizeof in);
    memcpy(out, k->out, sizeof out);
    struct kernel_args a = {
        .code = k->code,
        .attr = &k->attr,
        .in = in,
        .out = out,
        .n_in = k->n_in,
        .n_out = k->n_out,
        .workspace_limit_bytes = k->workspace_limit_bytes};
    for (int i = 0; i < KT_OPERANDS; i++)
        in[i].data = out[i].data = NULL;
    int before = cpu_threads();
    if (k->threads)
        cpu_threads_set(k->threads);
    if (kernel->prepare)
        CHECK_OK(kernel->prepare(&a, &a.workspace_bytes, &a.state, &e), &e);
    a.in = k->in;
    a.out = k->out;
    k->workspace_bytes = a.workspace_bytes;
    a.workspace = guarded((size_t)a.workspace_bytes);
    memset(a.workspace, 0x7f, (size_t)a.workspace_bytes);
    CHECK_OK(kernel->run(&a, &e), &e);
    guard_check(a.workspace, (size_t)a.workspace_bytes);
    free((char *)a.workspace - GUARD);
    if (kernel->release)
        kernel->release(a.state);
    cpu_threads_set(before);
    for (int i = 0; i < k->n_out; i++)
        if (k->out[i].data)
            guard_check(k->out[i].data, bytes_of(&k->out[i]));
}

void kt_free(struct kt *k)
{
    for (int i = 0; i < k->n_in; i++)
        kt_tensor_free(&k->in[i]);
    for (int i = 0; i < k->n_out; i++)
        kt_tensor_free(&k->out[i]);
}

static int64_t place_of(const struct tensor *t, int64_t index)
{
    if (t->layout == LAYOUT_ROW)
        return index;
    int64_t spatial = 1, channels = t->shape.dim[1];
    for (int i = 2; i < t->shape.rank; i++)
        spatial *= t->shape.dim[i];
    int64_t s = index % spatial, c = index / spatial % channels, n = index / spatial / channels;
    if (t->layout == LAYOUT_CL)
        return (n * spatial + s) * channels + c;
    return ((n * (channels / 16) + c / 16) * spatial + s) * 16 + c % 16;
}

double kt_at(const struct tensor *t, int64_t index)
{
    return dtype_load(t->data, t->dtype, place_of(t, index));
}

void kt_put(struct tensor *t, int64_t index, double value)
{
    dtype_store(t->data, t->dtype, place_of(t, index), value);
}

bool kt_same(const struct tensor *a, const struct tensor *b)
{
    return bytes_of(a) == bytes_of(b) && memcmp(a->data, b->data, bytes_of(a)) == 0;
}

double kt_error(const struct tensor *got, const double *want)
{
    double d = 0, n = 0;
    for (int64_t i = 0; i < tensor_count(got); i++) {
        double x = kt_at(got, i) - want[i];
        d += x * x;
        n += want[i] * want[i];
    }
    if (!(d > 0))
        return isnan(d) ? (double)INFINITY : 0;
    return sqrt(d / (n > 0 ? n : 1e-30));
}

double kt_tolerance(enum dtype t)
{
    return t == DT_F32 ? 2e-6 : t == DT_BF16 ? 5e-3 : 7e-4;
}
