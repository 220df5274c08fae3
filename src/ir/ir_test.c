/* ir_test.c - shapes of the families, texts of refusals, emission, clones, dead code, dumps. */
#include "ir/ir_test.h"

#include "ir/optim_state.h"

#include <string.h>

static struct conv_attr plain(int64_t stride, int64_t pad)
{
    return (struct conv_attr){
        .stride = {stride, stride}, .pad_low = {pad, pad}, .pad_high = {pad, pad}, .spatial = 2};
}

TEST(conv_shapes, "convolution and pooling sizes follow PyTorch's formulas")
{
    struct world w;
    world_open(&w);
    int x = world_input(&w, SHAPE(8, 3, 28, 28));
    int k = world_param(&w, "k", SHAPE(16, 3, 3, 3));
    struct conv_attr a = {
        .stride = {2, 1}, .pad_low = {1, 0}, .pad_high = {1, 2}, .dilation = {1, 2}, .spatial = 2};
    check_shape(&w, ir_conv(w.p, x, k, IR_NONE, &a), SHAPE(8, 16, 14, 26));
    struct pool_attr m = {.kernel = {3, 3}, .stride = {2, 2}, .ceil_mode = true, .spatial = 2};
    check_shape(&w, ir_max_pool(w.p, x, &m), SHAPE(8, 3, 14, 14));
    CHECK_EQ(w.p->values.data[ir_out(w.p, 1)].dtype, DT_U8);
    m = (struct pool_attr){.kernel = {16, 16}, .spatial = 2};
    check_shape(&w, ir_max_pool(w.p, x, &m), SHAPE(8, 3, 1, 1));
    CHECK_EQ(w.p->values.data[ir_out(w.p, 1)].dtype, DT_I32);
    int t = world_param(&w, "t", SHAPE(3, 5, 4, 4));
    struct conv_attr up = plain(2, 1);
    check_shape(&w, ir_conv_transpose(w.p, x, t, IR_NONE, &up, NULL), SHAPE(8, 5, 56, 56));
    up = plain(3, 0);
    int64_t extra[] = {1, 2};
    check_shape(&w, ir_conv_transpose(w.p, x, t, IR_NONE, &up, extra), SHAPE(8, 5, 86, 87));
    check_shape(&w, ir_adaptive_avg_pool(w.p, x, 2, (int64_t[]){5, -1}), SHAPE(8, 3, 5, 28));
    check_verifies(&w);
    world_close(&w);
}

TEST(conv_of_other_ranks, "1-d and unbatched inputs, zero-sized batches")
{
    struct world w;
    world_open(&w);
    int k1 = world_param(&w, "k1", SHAPE(6, 2, 5)), b = world_param(&w, "b", SHAPE(6));
    struct conv_attr one = {
        .stride = {0, 2}, .pad_low = {0, 2}, .pad_high = {0, 2}, .groups = 2, .spatial = 1};
    check_shape(&w, ir_conv(w.p, world_input(&w, SHAPE(3, 4, 20)), k1, b, &one), SHAPE(3, 6, 10));
    check_shape(&w, ir_conv(w.p, world_input(&w, SHAPE(4, 20)), k1, b, &one), SHAPE(6, 10));
    check_shape(&w, ir_conv(w.p, world_input(&w, SHAPE(0, 4, 20)), k1, b, &one), SHAPE(0, 6, 10));
    struct pool_attr m = {.kernel = {0, 2}, .spatial = 1};
    check_shape(&w, ir_avg_pool(w.p, world_input(&w, SHAPE(3, 4, 21)), &m), SHAPE(3, 4, 10));
    check_verifies(&w);
    world_close(&w);
}

TEST(refusals_name_the_node, "a shape error names the layer, what was expected and what came")
{
    struct world w;
    world_open(&w);
    w.p->node = ir_node_intern(&w.vars, "model/conv1");
    int x = world_input(&w, SHAPE(128, 1, 28, 28));
    int k = world_param(&w, "k", SHAPE(16, 3, 3, 3)), fc = world_param(&w, "fc", SHAPE(10, 784));
    struct conv_attr a = plain(1, 1);
    int y = ir_conv(w.p, x, k, IR_NONE, &a);
    CHECK_STR(w.p->err.node, "model");
    check_refused(&w, y, "conv1: expected input with 3 channels, got 1 ([128, 1, 28, 28])");
    check_refused(
        &w, ir_linear(w.p, x, fc, IR_NONE),
        "conv1: expected input with 784 features, got 28 ([128, 1, 28, 28])");
    int tiny = world_input(&w, SHAPE(4, 3, 2, 2));
    a = plain(1, 0);
    check_refused(
        &w, ir_conv(w.p, tiny, k, IR_NONE, &a),
        "conv1: calculated padded input size per channel: 2, kernel size: 3; kernel size cannot be "
        "greater than actual input size ([4, 3, 2, 2])");
    check_refused(
        &w, ir_binary(w.p, OP_ADD, x, tiny),
        "conv1: shapes [128, 1, 28, 28] and [4, 3, 2, 2] cannot be broadcast together");
    struct pool_attr m = {.kernel = {2, 2}, .pad = {2, 0}};
    check_refused(
        &w, ir_max_pool(w.p, x, &m),
        "conv1: pad should be at most half of kernel size, but got pad=2 and kernel_size=2");
    w.p->node = IR_NONE;
    check_refused(
        &w, ir_matmul(w.p, fc, fc),
        "mat1 and mat2 shapes cannot be multiplied ([10, 784] and [10, 784])");
    world_close(&w);
}

TEST(errors_stick, "after the first error emitters do nothing, and the first error stays")
{
    struct world w;
    world_open(&w);
    int x = world_input(&w, SHAPE(2, 3)), y = ir_softmax(w.p, x, 7);
    CHECK_EQ(y, IR_NONE);
    size_t n = w.p->ops.n;
    y = ir_binary(w.p, OP_ADD, ir_unary(w.p, OP_RELU, y), x);
    y = ir_reshape(w.p, ir_flatten(w.p, y, 0, -1), SHAPE(-1));
    y = ir_cross_entropy(w.p, y, x, IR_NONE, &(struct loss_attr){0});
    int grads[1] = {0};
    ir_backward(w.p, y, x, grads);
    ir_output(w.p, y, "loss");
    struct err e = {0};
    CHECK_EQ(ir_status(w.p, &e), ST_INVALID);
    CHECK_STR(e.text, "dimension out of range (expected to be in range of [-2, 1], but got 7)");
    CHECK_EQ(w.p->ops.n, n);
    world_close(&w);
}

TEST(huge_layers, "sizes are 64-bit; what passes 2^62 bytes is refused, and nothing is allocated")
{
    struct world w;
    world_open(&w);
    int64_t big = 1000000000;
    int x = world_input(&w, SHAPE(64, big));
    int weight = world_param(&w, "w", SHAPE(big, big));
    check_shape(&w, ir_linear(w.p, x, weight, IR_NONE), SHAPE(64, big));
    int wide = world_input(&w, SHAPE(big, 1, 1)), tall = world_input(&w, SHAPE(1, big, 100));
    check_refused(
        &w, ir_binary(w.p, OP_ADD, wide, tall),
        "add: a tensor of shape [1000000000, 1000000000, 100] is larger than 2^62 bytes");
    CHECK_EQ(world_input(&w, SHAPE((int64_t)1 << 40, (int64_t)1 << 40)), IR_NONE);
    world_close(&w);
}

TEST(matmul_shapes, "products of every rank, as torch.matmul")
{
    struct world w;
    world_open(&w);
    int v = world_input(&w, SHAPE(4)), m = world_input(&w, SHAPE(4, 5)),
        mt = world_input(&w, SHAPE(3, 4));
    int b = world_input(&w, SHAPE(7, 3, 4)), b2 = world_input(&w, SHAPE(2, 1, 4, 6));
    check_shape(&w, ir_matmul(w.p, v, v), shape_scalar());
    check_shape(&w, ir_matmul(w.p, v, m), SHAPE(5));
    check_shape(&w, ir_matmul(w.p, mt, v), SHAPE(3));
    check_shape(&w, ir_matmul(w.p, mt, m), SHAPE(3, 5));
    check_shape(&w, ir_matmul(w.p, b, m), SHAPE(7, 3, 5));
    check_shape(&w, ir_matmul(w.p, b, v), SHAPE(7, 3));
    check_shape(&w, ir_matmul(w.p, v, b2), SHAPE(2, 1, 6));
    check_shape(&w, ir_matmul(w.p, b, b2), SHAPE(2, 7, 3, 6));
    int n = world_count(&w, OP_CONTIGUOUS);
    check_shape(&w, ir_matmul(w.p, b, ir_transpose(w.p, b, 1, 2)), SHAPE(7, 3, 3));
    CHECK_EQ(world_count(&w, OP_CONTIGUOUS), n); /* a transposed matrix is read as it lies */
    CHECK(w.p->ops.data[w.p->ops.n - 1].attr.gemm.tb);
    check_verifies(&w);
    world_close(&w);
}

TEST(types_promote, "mixed operands have the widest type")
{
    struct world w;
    world_open(&w);
    int f = ir_input(w.p, "f", DT_F32, SHAPE(2, 2)), b = ir_input(w.p, "b", DT_BF16, SHAPE(2, 2));
    int h = ir_input(w.p, "h", DT_F16, SHAPE(2, 2)), i = ir_input(w.p, "i", DT_I64, SHAPE(2, 2));
    CHECK_EQ(ir_value_at(w.p, ir_matmul(w.p, b, b))->dtype, DT_BF16);
    CHECK_EQ(ir_value_at(w.p, ir_matmul(w.p, b, f))->dtype, DT_F32);
    CHECK_EQ(ir_value_at(w.p, ir_binary(w.p, OP_ADD, b, h))->dtype, DT_F32);
    CHECK_EQ(ir_value_at(w.p, ir_binary(w.p, OP_MUL, i, h))->dtype, DT_F16);
    CHECK_EQ(ir_value_at(w.p, ir_sum(w.p, ir_cast(w.p, i, DT_BOOL), 3, false))->dtype, DT_I64);
    check_refused(&w, ir_mean(w.p, i, 3, false), "mean: mean needs floating values, got int64");
    check_refused(&w, ir_unary(w.p, OP_EXP, i), "exp: \"exp\" needs floating values, got int64");
    world_close(&w);
}

TEST(norms, "batch norm's statistics: running, own, and the refusal of a single value")
{
    struct world w;
    world_open(&w);
    int mean = world_buffer(&w, "mean", DT_F32, SHAPE(3)),
        var = world_buffer(&w, "var", DT_F32, SHAPE(3));
    int batches = world_buffer(&w, "batches", DT_I64, shape_scalar());
    int x = world_input(&w, SHAPE(4, 3, 5, 5)), one = world_input(&w, SHAPE(1, 3));
    int before = ir_var_read(w.p, mean);
    int y = ir_batch_norm(w.p, x, IR_NONE, IR_NONE, mean, var, batches, true, 0.1, 1e-5);
    check_shape(&w, y, SHAPE(4, 3, 5, 5));
    CHECK(ir_var_read(w.p, mean) != before);
    y = ir_batch_norm(w.p, x, IR_NONE, IR_NONE, mean, var, batches, false, 0.1, 1e-5);
    const struct ir_op *op = &w.p->ops.data[w.p->ops.n - 1];
    CHECK(op->attr.norm.infer && op->in[1] == ir_var_read(w.p, mean));
    y = ir_batch_norm(w.p, one, IR_NONE, IR_NONE, mean, var, batches, true, 0.1, 1e-5);
    check_refused(
        &w, y, "Expected more than 1 value per channel when training, got input size [1, 3]");
    check_shape(
        &w, ir_batch_norm(w.p, one, IR_NONE, IR_NONE, mean, var, batches, false, 0.1, 1e-5),
        SHAPE(1, 3));
    check_shape(&w, ir_group_norm(w.p, x, IR_NONE, IR_NONE, 3, 1e-5), SHAPE(4, 3, 5, 5));
    check_shape(&w, ir_layer_norm(w.p, x, IR_NONE, IR_NONE, 2, 1e-5), SHAPE(4, 3, 5, 5));
    check_refused(
        &w, ir_group_norm(w.p, x, IR_NONE, IR_NONE, 2, 1e-5),
        "norm_stats: expected number of channels in input to be divisible by num_groups, got input "
        "of "
        "shape [4, 3, 5, 5] and num_groups=2");
    check_refused(
        &w, ir_instance_norm(w.p, one, IR_NONE, IR_NONE, 1e-5),
        "Expected more than 1 spatial element when training, got input size [1, 3]");
    check_verifies(&w);
    world_close(&w);
}

TEST(losses, "class losses of every shape; targets that do not fit are refused")
{
    struct world w;
    world_open(&w);
    struct loss_attr mean = {.ignore_index = -100}, none = {.reduction = REDUCE_NONE};
    int x = world_input(&w, SHAPE(4, 10, 7)), t = ir_input(w.p, "t", DT_I64, SHAPE(4, 7));
    int flat = world_input(&w, SHAPE(10)), label = ir_input(w.p, "l", DT_I64, shape_scalar());
    check_shape(&w, ir_cross_entropy(w.p, x, t, IR_NONE, &mean), shape_scalar());
    check_shape(&w, ir_cross_entropy(w.p, x, t, flat, &none), SHAPE(4, 7));
    check_shape(&w, ir_cross_entropy(w.p, flat, label, IR_NONE, &mean), shape_scalar());
    check_shape(&w, ir_cross_entropy(w.p, x, x, IR_NONE, &mean), shape_scalar());
    check_shape(&w, ir_nll(w.p, x, t, IR_NONE, &none), SHAPE(4, 7));
    check_refused(
        &w, ir_cross_entropy(w.p, x, label, IR_NONE, &mean),
        "cross_entropy: expected target size [4, 7], got [] (input [4, 10, 7])");
    check_refused(
        &w, ir_nll(w.p, x, x, IR_NONE, &mean),
        "nll: expected a target of class indices, got float32");
    struct loss_attr mse = {.kind = LOSS_MSE, .reduction = REDUCE_NONE}, bce = {.kind = LOSS_BCE};
    check_shape(
        &w, ir_loss_ew(w.p, x, world_input(&w, SHAPE(10, 1)), IR_NONE, IR_NONE, &mse),
        SHAPE(4, 10, 7));
    check_refused(
        &w, ir_loss_ew(w.p, x, flat, IR_NONE, IR_NONE, &bce),
        "loss_ew: target size ([10]) must be the same as input size ([4, 10, 7])");
    int a = world_input(&w, SHAPE(5, 6)), y = ir_input(w.p, "y", DT_I64, SHAPE(5));
    check_shape(&w, ir_cosine_embedding(w.p, a, a, y, 0.1, REDUCE_NONE), SHAPE(5));
    check_shape(&w, ir_margin_ranking(w.p, y, y, y, 0.1, REDUCE_NONE), SHAPE(5));
    check_verifies(&w);
    world_close(&w);
}

TEST(optimizer_states, "every optimizer's states are one table")
{
    struct world w;
    world_open(&w);
    for (int kind = 0; kind < OPTIM_COUNT; kind++) {
        union op_attr attr = {
            .optim = {
                .kind = (enum optim_kind)kind, .momentum = 0.9, .amsgrad = true, .centered = true}};
        struct shape s = SHAPE(3, 4);
        bool rates = kind == OPTIM_RPROP || kind == OPTIM_ASGD;
        if (rates)
            CHECK_NEAR(optim_state_start(&attr.optim, 1, 0.5), 0.5, 0);
        int in[8] = {world_param(&w, optim_name(attr.optim.kind), s)};
        int n = optim_state_count(&attr.optim);
        for (int i = 0; i < n; i++)
            in[i + 1] = ir_var_read(
                w.p, world_buffer(
                         &w, optim_state_name(&attr.optim, i), optim_state_dtype(&attr.optim, i),
                         optim_state_shape(&attr.optim, i, &s)));
        in[n + 1] = world_input(&w, s);
        in[n + 2] = ir_input(w.p, "hyper", DT_F64, SHAPE(2));
        in[n + 3] = world_input(&w, SHAPE(4));
        int next = ir_emit(w.p, OP_OPTIMIZER, in, n + 4, &attr);
        check_shape(&w, next, s);
        CHECK_EQ(w.p->ops.data[w.p->ops.n - 1].n_out, n + 1);
        CHECK_EQ(ir_var_read(w.p, w.p->values.data[next].var), next);
        CHECK_EQ(ir_emit(w.p, OP_OPTIMIZER, in, n + 4, &attr), IR_NONE); /* old versions */
        w.p->err = (struct err){0};
    }
    check_verifies(&w);
    world_close(&w);
}

TEST(dead_code, "unread results go; outputs, their operands and updates of variables stay")
{
    struct world w;
    world_open(&w);
    int total = world_buffer(&w, "total", DT_F32, SHAPE(4));
    int x = world_input(&w, SHAPE(4)), y = ir_unary(w.p, OP_RELU, x);
    (void)ir_unary(w.p, OP_EXP, y);
    (void)ir_binary(w.p, OP_ACCUMULATE, ir_var_read(w.p, total), ir_affine(w.p, y, 2, 0));
    ir_output(w.p, ir_sum(w.p, y, 1, false), "sum");
    struct ir_program *copy = ir_program_clone(w.p, "copy");
    ir_dead_code(w.p);
    CHECK_EQ(w.p->ops.n, 4);
    CHECK_EQ(world_count(&w, OP_EXP), 0);
    CHECK_EQ(copy->ops.n, 5);
    CHECK_EQ(ir_output_find(copy, "sum"), ir_output_find(w.p, "sum"));
    CHECK_EQ(ir_input_find(copy, "x"), x);
    check_verifies(&w);
    struct err e = {0};
    CHECK_OK(ir_verify(copy, &e), &e);
    ir_program_free(copy);
    world_close(&w);
}

TEST(dump_is_stable, "a program prints as one line an operator, defaults left out")
{
    struct world w;
    world_open(&w);
    w.p->node = ir_node_intern(&w.vars, "model/conv1");
    int x = world_input(&w, SHAPE(8, 3, 28, 28)),
        k = world_param(&w, "conv1.weight", SHAPE(4, 3, 3, 3));
    struct conv_attr a = plain(2, 1);
    int y = ir_unary(w.p, OP_RELU, ir_conv(w.p, x, k, IR_NONE, &a));
    w.p->phase = PHASE_LOSS;
    w.p->node = IR_NONE;
    y = ir_permute(w.p, y, (int[]){1, 0, 2, 3});
    ir_output(
        w.p,
        ir_mean(
            w.p, ir_batch_norm(w.p, y, IR_NONE, IR_NONE, -1, -1, -1, true, 0.1, 1e-3), 15, false),
        "m");
    struct str s;
    str_init(&s);
    ir_print(w.p, &s);
    CHECK_STR(
        s.data,
        "program \"test\" : 2 values from outside, 7 operators\n"
        "%0 = input \"x\" : f32[8, 3, 28, 28]\n"
        "%1 = var \"conv1.weight\" : f32[4, 3, 3, 3]  # parameters, trainable\n"
        "%2 = conv(%0, %1) stride=[2, 2] pad=[1, 1] : f32[8, 4, 14, 14]  # forward model/conv1\n"
        "%3 = relu(%2) : f32[8, 4, 14, 14]  # forward model/conv1\n"
        "%4 = permute(%3) perm=[1, 0, 2, 3] : f32[4, 8, 14, 14]  # loss\n"
        "%5 = contiguous(%4) : f32[4, 8, 14, 14]  # loss\n"
        "%6, %7 = norm_stats(%5) batch eps=0.001 : f32[8], f32[8]  # loss\n"
        "%8 = norm_apply(%5, %6, %7, _, _) batch eps=0.001 : f32[4, 8, 14, 14]  # loss\n"
        "%9 = mean(%8) dims=[0, 1, 2, 3] : f32[]  # loss\n"
        "output \"m\" = %9\n");
    str_release(&s);
    world_close(&w);
}

TEST(
    table_is_whole,
    "every operator has a name, a shape rule, a cost, and a gradient unless it needs none")
{
    for (int i = 0; i < OP_COUNT; i++) {
        const struct ir_op_row *row = ir_op_row((enum opcode)i);
        enum opcode found;
        CHECK(row->shape && row->cost);
        CHECK(ir_opcode_find(row->name, &found) && (int)found == i);
    }
    enum opcode none;
    CHECK(!ir_opcode_find("frobnicate", &none));
    CHECK_STR(category_name(CATEGORY_OPTIMIZER_STATE), "optimizer_state");
    CHECK_STR(category_name(CATEGORY_GAPS), "gaps");
}

TEST(costs, "a convolution costs two operations per tap and output element")
{
    struct world w;
    world_open(&w);
    int x = world_input(&w, SHAPE(8, 3, 28, 28)), k = world_param(&w, "k", SHAPE(4, 3, 3, 3));
    struct conv_attr a = plain(1, 1);
    (void)ir_conv(w.p, x, k, IR_NONE, &a);
    struct ir_cost c;
    ir_op_row(OP_CONV)->cost(w.p, &w.p->ops.data[0], &c);
    CHECK_NEAR(c.flops, 2.0 * 27 * 8 * 4 * 28 * 28, 0);
    CHECK_NEAR(c.bytes, 4.0 * (8 * 3 * 784 + 108 + 8 * 4 * 784), 0);
    (void)ir_flatten(w.p, x, 1, -1);
    ir_op_row(OP_RESHAPE)->cost(w.p, &w.p->ops.data[1], &c);
    CHECK_NEAR(c.bytes, 0, 0);
    world_close(&w);
}
