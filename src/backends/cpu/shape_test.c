/* shape_test.c - copies, concatenation, embedding. */
#include "backends/cpu/kernel_test.h"

#include <math.h>
#include <string.h>

TEST(k_contiguous, "a permuted view becomes dense, whatever the element's size")
{
    for (int t = 0; t < DT_COUNT; t++) {
        struct kt k;
        kt_init(&k, OP_CONTIGUOUS, 1);
        struct tensor *x = kt_in(&k, (enum dtype)t, LAYOUT_ROW, SHAPE(30, 40, 7)), whole = *x;
        kt_out(&k, (enum dtype)t, LAYOUT_ROW, SHAPE(7, 30, 40));
        x->shape = SHAPE(7, 30, 40);
        x->stride[0] = 1, x->stride[1] = 280, x->stride[2] = 7;
        kt_run(&k);
        *x = whole;
        for (int i = 0; i < 8400; i++)
            CHECK(kt_at(&k.out[0], i) == kt_at(x, i % 1200 * 7 + i / 1200));
        kt_free(&k);
    }
}

TEST(k_concat, "concatenation along a middle dimension, an empty operand among them")
{
    struct kt k;
    kt_init(&k, OP_CONCAT, 1);
    k.attr.view.dim = 1;
    static const int64_t lengths[] = {2, 0, 3};
    for (int i = 0; i < 3; i++)
        kt_in(&k, DT_BF16, LAYOUT_ROW, SHAPE(4, lengths[i], 5));
    kt_out(&k, DT_BF16, LAYOUT_ROW, SHAPE(4, 5, 5));
    kt_run(&k);
    for (int i = 0; i < 100; i++) {
        int n = i / 25, j = i / 5 % 5, c = i % 5;
        double want =
            j < 2 ? kt_at(&k.in[0], n * 10 + j * 5 + c) : kt_at(&k.in[2], n * 15 + (j - 2) * 5 + c);
        CHECK(kt_at(&k.out[0], i) == want);
    }
    kt_free(&k);
}

TEST(k_slice_grad, "the gradient of a slice is zero outside of it")
{
    struct kt k;
    kt_init(&k, OP_SLICE_GRAD, 1);
    k.attr.view =
        (struct view_attr){.shape = SHAPE(3, 11), .dim = 1, .start = 2, .step = 3, .length = 3};
    kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(3, 3));
    kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(3, 11));
    kt_run(&k);
    for (int i = 0; i < 33; i++) {
        int c = i % 11 - 2;
        bool taken = c >= 0 && c % 3 == 0 && c / 3 < 3;
        CHECK(kt_at(&k.out[0], i) == (taken ? kt_at(&k.in[0], i / 11 * 3 + c / 3) : 0));
    }
    kt_free(&k);
}

TEST(k_embedding, "rows by index; the gradient adds repeats in order and skips the padding row")
{
    struct kt k, g;
    kt_init(&k, OP_EMBEDDING, 1);
    kt_in(&k, DT_I64, LAYOUT_ROW, SHAPE(20, 30)); /* 0 .. 9 */
    kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(10, 130));
    kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(20, 30, 130));
    kt_run(&k);
    for (int i = 0; i < 600 * 130; i++)
        CHECK(
            kt_at(&k.out[0], i) ==
            kt_at(&k.in[1], (int64_t)kt_at(&k.in[0], i / 130) * 130 + i % 130));
    for (int t = DT_F32; t <= DT_F16; t++) {
        kt_init(&g, OP_EMBEDDING_GRAD, 1);
        g.attr.embed = (struct embed_attr){.rows = 10, .padding_idx = 3};
        kt_in(&g, DT_I64, LAYOUT_ROW, SHAPE(20, 30));
        memcpy(g.in[0].data, k.in[0].data, 600 * 8);
        kt_in(&g, (enum dtype)t, LAYOUT_ROW, SHAPE(20, 30, 130));
        kt_out(&g, (enum dtype)t, LAYOUT_ROW, SHAPE(10, 130));
        double want[1300] = {0};
        for (int i = 0; i < 600 * 130; i++) {
            int64_t row = (int64_t)kt_at(&g.in[0], i / 130);
            want[row * 130 + i % 130] += row == 3 ? 0 : kt_at(&g.in[1], i);
        }
        g.threads = 2;
        kt_run(&g);
        CHECK(kt_error(&g.out[0], want) <= kt_tolerance((enum dtype)t));
        struct tensor two = kt_tensor((enum dtype)t, LAYOUT_ROW, SHAPE(10, 130));
        memcpy(two.data, g.out[0].data, (size_t)(1300 * dtype_size((enum dtype)t)));
        g.threads = 1;
        kt_run(&g);
        CHECK(kt_same(&two, &g.out[0]));
        kt_tensor_free(&two);
        kt_free(&g);
    }
    kt_free(&k);
}

TEST(k_embedding_range, "an index outside the table is an error that names it")
{
    int64_t index[2] = {1, 10};
    float table[20] = {0}, out[4];
    struct err e = {0};
    union op_attr a = {0};
    struct tensor in[2] = {
        tensor_make(index, DT_I64, SHAPE(2)), tensor_make(table, DT_F32, SHAPE(10, 2))};
    struct tensor o = tensor_make(out, DT_F32, SHAPE(2, 2));
    struct kernel_args call = {
        .code = OP_EMBEDDING, .attr = &a, .in = in, .out = &o, .n_in = 2, .n_out = 1};
    CHECK_EQ(cpu_kernel(OP_EMBEDDING)->run(&call, &e), ST_INVALID);
    CHECK_STR(e.text, "index 10 is outside 0..9 (a table of 10 rows)");
}
