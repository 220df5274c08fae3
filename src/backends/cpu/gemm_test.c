/* gemm_test.c - products against loops in double precision: types, transposes, strides, batches. */
#include "backends/cpu/kernel_test.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};

static double
element(const struct tensor *t, int64_t batch, bool batched, bool transposed, int64_t i, int64_t j)
{
    int r = t->shape.rank;
    int64_t at =
        i * t->stride[transposed ? r - 1 : r - 2] + j * t->stride[transposed ? r - 2 : r - 1];
    for (int d = r - 3; batched && d >= 0; d--) {
        at += batch % t->shape.dim[d] * t->stride[d];
        batch /= t->shape.dim[d];
    }
    return dtype_load(t->data, t->dtype, at);
}

static double *naive(const struct kt *k, int64_t batch, int64_t m, int64_t n, int64_t depth)
{
    const struct gemm_attr *at = &k->attr.gemm;
    double *y = mem_alloc(sizeof *y * (size_t)(batch * m * n + 1));
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double s = 0;
                for (int64_t p = 0; p < depth; p++)
                    s += element(&k->in[0], b, true, at->ta, i, p) *
                         element(&k->in[1], b, k->in[1].shape.rank > 2, at->tb, p, j);
                if (k->n_in > 2 && k->in[2].data)
                    s += dtype_load(k->in[2].data, k->in[2].dtype, j);
                y[(b * m + i) * n + j] = at->act == ACT_RELU && s < 0 ? 0 : s;
            }
    return y;
}

static struct shape matrix(int rank, int64_t batch, int64_t rows, int64_t cols)
{
    return rank == 2 ? SHAPE(rows, cols) : SHAPE(batch, rows, cols);
}

struct problem {
    int64_t batch, m, n, k;
};

static void check(const struct problem *p, enum dtype ta, enum dtype tb, enum dtype tc, int bits)
{
    struct kt k;
    kt_init(&k, OP_GEMM, (uint32_t)(p->m * 7 + p->n * 3 + p->k + bits));
    k.attr.gemm.ta = bits & 1, k.attr.gemm.tb = bits & 2;
    k.attr.gemm.act = bits & 4 ? ACT_RELU : ACT_NONE;
    int rank = p->batch ? 3 : 2;
    kt_in(
        &k, ta, LAYOUT_ROW,
        bits & 1 ? matrix(rank, p->batch, p->k, p->m) : matrix(rank, p->batch, p->m, p->k));
    int rank_b = bits & 16 ? 2 : rank;
    kt_in(
        &k, tb, LAYOUT_ROW,
        bits & 2 ? matrix(rank_b, p->batch, p->n, p->k) : matrix(rank_b, p->batch, p->k, p->n));
    if (bits & 8)
        kt_in(&k, tb, LAYOUT_ROW, SHAPE(p->n));
    kt_out(&k, tc, LAYOUT_ROW, matrix(rank, p->batch, p->m, p->n));
    k.threads = 1;
    kt_run(&k);
    double *want = naive(&k, p->batch ? p->batch : 1, p->m, p->n, p->k);
    double error = kt_error(&k.out[0], want), most = kt_tolerance(tc);
    if (error > most)
        test_fail(
            __FILE__, __LINE__, "%lldx%lldx%lld batch %lld %s %s %s bits %d: error %g",
            (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->batch, dtype_short(ta),
            dtype_short(tb), dtype_short(tc), bits, error);
    struct tensor one = kt_tensor(tc, LAYOUT_ROW, k.out[0].shape);
    memcpy(one.data, k.out[0].data, (size_t)tensor_count(&one) * (size_t)dtype_size(tc));
    for (k.threads = 2; k.threads <= 5; k.threads += 3) {
        kt_run(&k);
        CHECK(kt_same(&one, &k.out[0]));
    }
    kt_tensor_free(&one);
    mem_free(want);
    kt_free(&k);
}

TEST(gemm_shapes, "products of odd sizes, transposed, batched, with bias and relu")
{
    static const struct problem problems[] = {{0, 1, 1, 1},      {0, 7, 5, 3},     {0, 32, 10, 84},
                                              {0, 17, 49, 33},   {0, 8, 48, 16},   {0, 130, 97, 41},
                                              {0, 33, 130, 800}, {3, 9, 20, 31},   {5, 50, 64, 70},
                                              {2, 100, 100, 90}, {0, 5, 300, 1601}};
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int bits = 0; bits < 32; bits += 1 + (int)(i % 3))
            if (!((bits & 16) && problems[i].batch == 0))
                check(&problems[i], DT_F32, DT_F32, DT_F32, bits);
}

TEST(gemm_types, "products of every mix of storage types")
{
    static const struct problem problems[] = {{0, 19, 51, 37}, {0, 40, 70, 801}, {2, 65, 30, 129}};
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++)
            for (int c = 0; c < 3; c++)
                for (int bits = 0; bits < 16; bits += 5)
                    for (int i = 0; i < 3; i++)
                        check(&problems[i], types[a], types[b], types[c], bits + (i & 1));
}

TEST(gemm_long_sums, "a 16-bit result of a long sum is rounded once")
{
    struct problem p = {0, 3, 5, 5000};
    for (int c = 1; c < 3; c++) {
        check(&p, DT_F32, DT_F32, types[c], 0);
        check(&p, DT_BF16, DT_BF16, types[c], 9);
    }
}

TEST(gemm_strided, "operands that are views keep their strides")
{
    struct kt k;
    kt_init(&k, OP_GEMM, 1);
    struct tensor *a = kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(3, 4, 20, 2, 24));
    struct tensor *b = kt_in(&k, DT_BF16, LAYOUT_ROW, SHAPE(3, 4, 24, 70));
    struct tensor whole_a = *a, whole_b = *b;
    /* a: permuted to [4, 3, 20, 24] out of every second matrix; b: columns 1, 4, 7, ... */
    a->shape = SHAPE(4, 3, 20, 24);
    int64_t sa[] = {20 * 48, 4 * 20 * 48, 48, 1}, sb[] = {24 * 70, 4 * 24 * 70, 70, 3};
    memcpy(a->stride, sa, sizeof sa);
    a->data = (float *)a->data + 24;
    b->shape = SHAPE(4, 3, 24, 23);
    memcpy(b->stride, sb, sizeof sb);
    b->data = (uint16_t *)b->data + 1;
    kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(4, 3, 20, 23));
    kt_run(&k);
    double *want = naive(&k, 12, 20, 23, 24);
    CHECK(kt_error(&k.out[0], want) < 2e-6);
    k.in[0] = whole_a, k.in[1] = whole_b;
    mem_free(want);
    kt_free(&k);
}

TEST(gemm_empty, "no rows, no columns, or nothing to sum")
{
    static const struct problem problems[] = {
        {0, 0, 5, 4}, {0, 5, 0, 4}, {0, 4, 6, 0}, {0, 4, 6, 0}};
    for (int i = 0; i < 4; i++)
        check(&problems[i], DT_F32, DT_BF16, DT_F32, i == 3 ? 12 : 0);
}
