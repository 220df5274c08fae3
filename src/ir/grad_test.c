/* grad_test.c - the structure of gradients: what reaches which variable, with which operators. */
#include "ir/ir_test.h"

#include <string.h>

enum { VARS_MAX = 16 };

struct back {
    int grad[VARS_MAX];
};

/* Differentiates the sum of y (a scalar stays as it is). */
static struct back backward(struct world *w, int y)
{
    struct back b;
    CHECK(w->vars.list.n <= VARS_MAX);
    if (y == IR_NONE)
        test_fail(__FILE__, __LINE__, "no value: %s", w->p->err.text);
    uint32_t all = (1U << w->p->values.data[y].shape.rank) - 1;
    int loss = ir_sum(w->p, y, all, false), seed = ir_input(w->p, "seed", DT_F32, shape_scalar());
    ir_backward(w->p, loss, seed, b.grad);
    struct err e = {0};
    CHECK_OK(ir_status(w->p, &e), &e);
    check_verifies(w);
    for (size_t i = 0; i < w->vars.list.n; i++) {
        if (!w->vars.list.data[i].trainable) {
            CHECK_EQ(b.grad[i], IR_NONE);
            continue;
        }
        if (b.grad[i] == IR_NONE)
            continue;
        check_shape(w, b.grad[i], w->vars.list.data[i].shape);
        CHECK_EQ(w->p->values.data[b.grad[i]].dtype, w->vars.list.data[i].dtype);
        CHECK_EQ(w->p->values.data[b.grad[i]].category, CATEGORY_GRADIENTS);
    }
    return b;
}

TEST(linear_gradients, "a linear layer on sequences takes one product for its weight's gradient")
{
    struct world w;
    world_open(&w);
    int x = world_input(&w, SHAPE(8, 5, 4)), k = world_param(&w, "k", SHAPE(3, 4)),
        bias = world_param(&w, "b", SHAPE(3));
    struct back b = backward(&w, ir_linear(w.p, x, k, bias));
    CHECK(b.grad[0] != IR_NONE && b.grad[1] != IR_NONE);
    CHECK_EQ(world_count(&w, OP_GEMM), 2); /* none for x, which nobody asked about */
    world_close(&w);
}

TEST(gemm_gradients, "every transposition and rank of a product has both gradients")
{
    for (int i = 0; i < 12; i++) {
        struct world w;
        world_open(&w);
        bool ta = i & 1, tb = i & 2, batch_a = i >= 4, batch_b = i >= 8;
        struct shape sa = ta ? SHAPE(3, 4, 2) : SHAPE(3, 2, 4),
                     sb = tb ? SHAPE(3, 5, 4) : SHAPE(3, 4, 5);
        sa = batch_a ? sa : shape_of(2, sa.dim + 1);
        sb = batch_b ? sb : shape_of(2, sb.dim + 1);
        int y = ir_gemm(w.p, world_param(&w, "a", sa), world_param(&w, "b", sb), IR_NONE, ta, tb);
        check_shape(&w, y, batch_a ? SHAPE(3, 2, 5) : SHAPE(2, 5));
        struct back b = backward(&w, y);
        CHECK(b.grad[0] != IR_NONE && b.grad[1] != IR_NONE);
        world_close(&w);
    }
}

TEST(conv_gradients, "a convolution and its transpose are each other's gradients")
{
    struct world w;
    world_open(&w);
    struct conv_attr a = {
        .stride = {2, 2}, .pad_low = {1, 0}, .pad_high = {0, 1}, .groups = 2, .spatial = 2};
    int x = world_param(&w, "x", SHAPE(2, 4, 9, 9)), k = world_param(&w, "k", SHAPE(6, 2, 3, 3));
    int t = world_param(&w, "t", SHAPE(6, 3, 4, 4)), c = world_param(&w, "c", SHAPE(6));
    int y = ir_conv(w.p, x, k, c, &a);
    y = ir_conv_transpose(w.p, y, t, c, &a, NULL);
    struct back b = backward(&w, y);
    for (int i = 0; i < 4; i++)
        CHECK(b.grad[i] != IR_NONE);
    CHECK_EQ(world_count(&w, OP_CONV), 2);
    CHECK_EQ(world_count(&w, OP_CONV_DGRAD), 2);
    CHECK_EQ(world_count(&w, OP_CONV_WGRAD), 2);
    world_close(&w);
}

TEST(
    conv_transpose_extended,
    "an output padding from the stride up to the dilation is zeros and bias")
{
    struct world w;
    world_open(&w);
    struct conv_attr a = {.dilation = {3, 3}, .pad_high = {0, 2}, .spatial = 2};
    int x = world_param(&w, "x", SHAPE(2, 4, 5, 5)), k = world_param(&w, "k", SHAPE(4, 3, 2, 2));
    int c = world_param(&w, "c", SHAPE(3));
    int y = ir_conv_transpose(w.p, x, k, c, &a, (int64_t[]){2, 2});
    check_shape(&w, y, SHAPE(2, 3, 10, 8));
    struct back b = backward(&w, y);
    for (int i = 0; i < 3; i++)
        CHECK(b.grad[i] != IR_NONE);
    CHECK_EQ(world_count(&w, OP_SLICE_GRAD), 1);
    world_close(&w);
}

/* One parameter through everything that has one operand. */
TEST(unary_gradients, "every differentiable operator of one operand has a gradient")
{
    for (int code = OP_RELU; code <= OP_POW; code++) {
        struct world w;
        world_open(&w);
        int x = world_param(&w, "x", SHAPE(2, 3));
        struct ew_attr attr = {.a = 0.5, .b = 2};
        struct back b = backward(&w, ir_unary_attr(w.p, (enum opcode)code, x, attr));
        CHECK_EQ(b.grad[0] != IR_NONE, code != OP_SIGN);
        world_close(&w);
    }
}

TEST(broadcast_gradients, "a broadcast operand's gradient is summed back to its shape")
{
    for (int code = OP_ADD; code <= OP_MINIMUM; code++) {
        struct world w;
        world_open(&w);
        int x = world_param(&w, "x", SHAPE(4, 1, 3)), y = world_param(&w, "y", SHAPE(5, 1));
        struct back b = backward(&w, ir_binary(w.p, (enum opcode)code, x, y));
        CHECK(b.grad[0] != IR_NONE && b.grad[1] != IR_NONE);
        world_close(&w);
    }
}

TEST(
    reuse_is_summed,
    "a variable read twice has one gradient, summed from the last use to the first")
{
    struct world w;
    world_open(&w);
    int x = world_param(&w, "x", SHAPE(3));
    int y = ir_binary(w.p, OP_MUL, x, x); /* first use */
    int z = ir_binary(w.p, OP_ADD, y, ir_unary(w.p, OP_SIGMOID, x));
    struct back b = backward(&w, z);
    int add = w.p->values.data[b.grad[0]].def;
    CHECK_EQ(w.p->ops.data[add].code, OP_ADD);
    int before = w.p->ops.data[add].in[0];
    before = w.p->ops.data[w.p->values.data[before].def].in[0];
    CHECK_EQ(w.p->ops.data[w.p->values.data[before].def].code, OP_SIGMOID_GRAD);
    world_close(&w);
}

TEST(norm_gradients, "normalisations of all kinds, with and without their parameters")
{
    for (int kind = 0; kind < 10; kind++) {
        struct world w;
        world_open(&w);
        int x = world_param(&w, "x", SHAPE(4, 6, 2, 2)), y = IR_NONE;
        bool affine = kind < 5;
        int gamma = affine ? world_param(&w, "gamma", kind == 2 ? SHAPE(2, 2) : SHAPE(6)) : IR_NONE;
        int beta = affine ? world_param(&w, "beta", kind == 2 ? SHAPE(2, 2) : SHAPE(6)) : IR_NONE;
        int mean = world_buffer(&w, "m", DT_F32, SHAPE(6)),
            var = world_buffer(&w, "v", DT_F32, SHAPE(6));
        int n = world_buffer(&w, "n", DT_I64, shape_scalar());
        if (kind % 5 < 2)
            y = ir_batch_norm(w.p, x, gamma, beta, mean, var, n, kind % 5 == 0, 0.1, 1e-5);
        else if (kind % 5 == 2)
            y = ir_layer_norm(w.p, x, gamma, beta, 2, 1e-5);
        else if (kind % 5 == 3)
            y = ir_group_norm(w.p, x, gamma, beta, 3, 1e-5);
        else
            y = ir_instance_norm(w.p, x, gamma, beta, 1e-5);
        struct back b = backward(&w, y);
        for (int i = 0; i < (affine ? 3 : 1); i++)
            CHECK(b.grad[i] != IR_NONE);
        world_close(&w);
    }
}

TEST(view_gradients, "views, joins, copies, casts and lookups pass gradients back")
{
    struct world w;
    world_open(&w);
    int x = world_param(&w, "x", SHAPE(4, 6)), table = world_param(&w, "table", SHAPE(10, 6));
    int index = ir_input(w.p, "index", DT_I64, SHAPE(4));
    int rng = ir_input(w.p, "rng", DT_I64, SHAPE(2));
    int y = ir_reshape(w.p, ir_transpose(w.p, x, 0, 1), SHAPE(2, 12));
    y = ir_concat(w.p, (int[]){y, ir_slice(w.p, y, 1, 1, 5, 2)}, 2, 1);
    y = ir_sum(w.p, ir_expand(w.p, ir_unsqueeze(w.p, y, 0), SHAPE(3, 2, 17)), 7, false);
    int e = ir_dropout(w.p, ir_embedding(w.p, index, table, -1), rng, IR_NONE, 0.5, 1);
    e = ir_softmax(w.p, ir_cast(w.p, ir_cast(w.p, e, DT_BF16), DT_F32), -1);
    int pool = ir_max_pool(
        w.p, ir_unsqueeze(w.p, e, 0), &(struct pool_attr){.kernel = {1, 2}, .spatial = 1});
    y = ir_binary(w.p, OP_ADD, y, ir_mean(w.p, pool, 7, false));
    struct back b = backward(&w, y);
    CHECK(b.grad[0] != IR_NONE && b.grad[1] != IR_NONE);
    CHECK_EQ(world_count(&w, OP_DROPOUT), 2);
    CHECK_EQ(world_count(&w, OP_EMBEDDING_GRAD), 1);
    world_close(&w);
}

TEST(loss_gradients, "losses have gradients for the input, differences for the target too")
{
    struct world w;
    world_open(&w);
    int x = world_param(&w, "x", SHAPE(4, 5)), t = ir_input(w.p, "t", DT_I64, SHAPE(4));
    int u = world_param(&w, "u", SHAPE(4, 5)), y = ir_input(w.p, "y", DT_I64, SHAPE(4));
    struct loss_attr ce = {.ignore_index = -100}, none = {.reduction = REDUCE_NONE};
    struct loss_attr mse = {.kind = LOSS_MSE},
                     kl = {.kind = LOSS_KLDIV, .reduction = REDUCE_BATCHMEAN};
    int loss = ir_cross_entropy(w.p, x, t, IR_NONE, &ce);
    loss = ir_binary(
        w.p, OP_ADD, loss,
        ir_sum(w.p, ir_nll(w.p, ir_log_softmax(w.p, x, 1), t, IR_NONE, &none), 1, false));
    loss = ir_binary(w.p, OP_ADD, loss, ir_loss_ew(w.p, x, u, IR_NONE, IR_NONE, &mse));
    loss = ir_binary(
        w.p, OP_ADD, loss, ir_loss_ew(w.p, x, world_input(&w, SHAPE(4, 5)), IR_NONE, IR_NONE, &kl));
    loss = ir_binary(w.p, OP_ADD, loss, ir_cosine_embedding(w.p, x, u, y, 0.1, REDUCE_MEAN));
    struct back b = backward(&w, loss);
    CHECK(b.grad[0] != IR_NONE && b.grad[1] != IR_NONE);
    world_close(&w);
}

TEST(low_precision_gradients, "a cast parameter's gradient is low, the parameter's own is float32")
{
    struct world w;
    world_open(&w);
    int x = ir_input(w.p, "x", DT_BF16, SHAPE(4, 5)), k = world_param(&w, "k", SHAPE(3, 5));
    int y = ir_linear(w.p, x, ir_cast(w.p, k, DT_BF16), IR_NONE);
    CHECK_EQ(w.p->values.data[y].dtype, DT_BF16);
    struct back b = backward(&w, ir_cast(w.p, y, DT_F32));
    const struct ir_op *op = &w.p->ops.data[w.p->values.data[b.grad[0]].def];
    CHECK_EQ(op->code, OP_CAST);
    CHECK_EQ(w.p->values.data[op->in[0]].dtype, DT_BF16);
    world_close(&w);
}

TEST(backward_refusals, "a loss that is no scalar is refused; frozen parameters take no operators")
{
    struct world w;
    world_open(&w);
    int x = world_input(&w, SHAPE(3)), frozen = world_param(&w, "frozen", SHAPE(3));
    w.vars.list.data[0].trainable = false;
    int y = ir_binary(w.p, OP_MUL, x, frozen), seed = ir_input(w.p, "seed", DT_F32, shape_scalar());
    int grad[VARS_MAX];
    size_t n = w.p->ops.n;
    ir_backward(w.p, ir_sum(w.p, y, 1, false), seed, grad);
    CHECK_EQ(grad[0], IR_NONE);
    CHECK_EQ(w.p->ops.n, n + 1);
    ir_backward(w.p, y, seed, grad);
    check_refused(
        &w, IR_NONE,
        "grad can be implicitly created only for scalar outputs, the loss has shape [3]");
    world_close(&w);
}
