/* view_test.c - views: strides against counting, bases, copies where no view exists. */
#include "ir/ir_test.h"

#include "base/rng.h"
#include "ir/ops/ops_int.h"

#include <stdlib.h>
#include <string.h>

/* Offset of the k-th element in logical order. */
static int64_t place(const struct shape *s, const int64_t *stride, int64_t k)
{
    int64_t at = 0;
    for (int i = s->rank - 1; i >= 0; i--) {
        at += k % s->dim[i] * stride[i];
        k /= s->dim[i];
    }
    return at;
}

/* The only strides that could do: steps of one in each dimension. */
static bool views_by_counting(const struct ir_value *v, const struct shape *to, int64_t *stride)
{
    int64_t unit = 1, n = shape_count(to);
    for (int i = to->rank - 1; i >= 0; i--) {
        stride[i] = to->dim[i] > 1 ? place(&v->shape, v->stride, unit) : 0;
        unit *= to->dim[i];
    }
    for (int64_t k = 0; k < n; k++)
        if (place(to, stride, k) != place(&v->shape, v->stride, k))
            return false;
    return true;
}

static uint32_t state = 1;
static int draw(int n)
{
    state = state * 1664525U + 1013904223U;
    return (int)(state >> 16) % n;
}

static struct shape random_factors(int64_t count)
{
    struct shape s = {0};
    while (s.rank < 5 && (count > 1 || draw(3) == 0)) {
        static const int64_t few[] = {1, 2, 3, 4, 6};
        int64_t f = s.rank == 4 ? count : few[draw(5)];
        if (count % f == 0) {
            s.dim[s.rank++] = f;
            count /= f;
        }
    }
    if (count > 1)
        s.dim[s.rank - 1] *= count;
    return s;
}

static int random_view(struct ir_program *p, int x)
{
    for (int i = draw(4); i > 0; i--) {
        struct shape s = p->values.data[x].shape;
        if (s.rank == 0)
            return x;
        int d = draw(s.rank), what = draw(3);
        if (what == 0)
            x = ir_transpose(p, x, d, draw(s.rank));
        if (what == 1 && s.dim[d] > 1)
            x = ir_slice(p, x, d, draw(2), (s.dim[d] - 1 + draw(2)) / 2, 1 + draw(2));
        if (what == 2 && s.dim[d] == 1 && shape_count(&s) < 500) {
            s.dim[d] = 1 + draw(3);
            x = ir_expand(p, x, s);
        }
        if (p->err.status != ST_OK) {
            p->err = (struct err){0};
            return IR_NONE;
        }
    }
    return x;
}

TEST(strides_agree_with_counting, "a reshape is a view exactly where strides exist for it")
{
    struct world w;
    world_open(&w);
    int views = 0, copies = 0;
    for (int round = 0; round < 20000; round++) {
        struct shape s = random_factors(1 + draw(36));
        int x = random_view(w.p, world_input(&w, s));
        if (x == IR_NONE)
            continue;
        struct ir_value v = w.p->values.data[x];
        if (shape_count(&v.shape) == 0)
            continue;
        struct shape to = random_factors(shape_count(&v.shape));
        int64_t ours[RANK_MAX] = {0}, counted[RANK_MAX] = {0};
        bool have = view_strides(&v, &to, ours), exist = views_by_counting(&v, &to, counted);
        CHECK_EQ(have, exist);
        for (int i = 0; i < to.rank && have; i++)
            CHECK(to.dim[i] == 1 || ours[i] == counted[i]);
        views += have;
        copies += !have;
    }
    CHECK(views > 1000 && copies > 500);
    check_verifies(&w);
    world_close(&w);
}

TEST(views_share_a_base, "a view of a view names the owner of the storage")
{
    struct world w;
    world_open(&w);
    int x = world_input(&w, SHAPE(4, 6));
    int v = ir_slice(w.p, ir_transpose(w.p, x, 0, 1), 0, 2, 2, 2); /* [2, 4] of columns 2 and 4 */
    check_shape(&w, v, SHAPE(2, 4));
    CHECK_EQ(ir_storage(w.p, v), x);
    CHECK_EQ(w.p->values.data[v].offset, 2);
    CHECK_EQ(w.p->values.data[v].stride[0], 2);
    CHECK_EQ(w.p->values.data[v].stride[1], 6);
    CHECK_EQ(ir_value_bytes(w.p, v), 0);
    int r = ir_reshape(w.p, v, SHAPE(-1));
    check_shape(&w, r, SHAPE(8));
    CHECK_EQ(world_count(&w, OP_CONTIGUOUS), 1);
    check_verifies(&w);
    world_close(&w);
}

TEST(shape_helpers, "flatten, squeeze, chunk, stack and select have PyTorch's shapes")
{
    struct world w;
    world_open(&w);
    int x = world_input(&w, SHAPE(2, 3, 4, 5));
    check_shape(&w, ir_flatten(w.p, x, 1, -1), SHAPE(2, 60));
    check_shape(&w, ir_unsqueeze(w.p, x, -1), SHAPE(2, 3, 4, 5, 1));
    check_shape(&w, ir_select(w.p, x, 1, -1), SHAPE(2, 4, 5));
    check_shape(&w, ir_squeeze(w.p, x, 0), SHAPE(2, 3, 4, 5));
    check_shape(&w, ir_chunk(w.p, x, 2, 3, 1), SHAPE(2, 3, 4, 2));
    check_shape(&w, ir_stack(w.p, (int[]){x, x, x}, 3, 1), SHAPE(2, 3, 3, 4, 5));
    check_shape(&w, ir_concat(w.p, (int[]){x, x}, 2, -1), SHAPE(2, 3, 4, 10));
    check_shape(
        &w, ir_expand(w.p, ir_select(w.p, x, 0, 0), SHAPE(7, -1, -1, -1)), SHAPE(7, 3, 4, 5));
    check_refused(
        &w, ir_reshape(w.p, x, SHAPE(7, -1)),
        "shape [7, -1] is invalid for input of size 120 ([2, 3, 4, 5])");
    check_refused(
        &w, ir_flatten(w.p, x, 1, 4),
        "dimension out of range (expected to be in range of [-4, 3], but got 4)");
    check_refused(
        &w, ir_concat(w.p, (int[]){x, ir_select(w.p, x, 0, 0)}, 2, 0),
        "concat: sizes of tensors must match except in dimension 0: got [2, 3, 4, 5] and [3, 4, 5] "
        "for "
        "tensor number 1");
    check_verifies(&w);
    world_close(&w);
}
