/* ir_test.c - shapes, errors' texts, emission, rewriting. */
#include "base/str.h"
#include "ir/build.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

struct world {
    struct ir_vars vars;
    struct ir_program *p;
};

static struct world world_open(void)
{
    struct world w;
    ir_vars_init(&w.vars);
    return w;
}

static struct world *world(void)
{
    static struct world w;
    w = world_open();
    w.p = ir_program_new("test", &w.vars);
    return &w;
}

static void world_close(struct world *w)
{
    ir_program_free(w->p);
    ir_vars_release(&w->vars);
}

static int param(struct world *w, const char *name, struct shape s)
{
    struct ir_var v = {.name = name, .dtype = DT_F32, .shape = s, .trainable = true, .of = IR_NONE, .node = IR_NONE};
    return ir_var_read(w->p, ir_var_new(&w->vars, &v));
}

static int input(struct world *w, struct shape s)
{
    return ir_input(w->p, "x", DT_F32, s);
}

static void check_shape(struct world *w, int value, struct shape s)
{
    char a[128], b[128];
    if (value == IR_NONE)
        test_fail(__FILE__, __LINE__, "no value: %s", w->p->err.text);
    CHECK_STR(shape_text(&w->p->values.data[value].shape, a, sizeof a), shape_text(&s, b, sizeof b));
}

TEST(conv_shapes, "E1: convolution and pooling sizes follow PyTorch's formulas")
{
    struct world *w = world();
    int x = input(w, SHAPE(8, 3, 28, 28));
    int k = param(w, "k", SHAPE(16, 3, 3, 3));
    struct conv_attr a = {.stride = {2, 1}, .pad_low = {1, 0}, .pad_high = {1, 2}, .dilation = {1, 2}, .spatial = 2};
    check_shape(w, ir_conv(w->p, x, k, IR_NONE, &a), SHAPE(8, 16, 14, 26));
    struct pool_attr m = {.kernel = {3, 3}, .stride = {2, 2}, .ceil_mode = true, .spatial = 2};
    check_shape(w, ir_max_pool(w->p, x, &m), SHAPE(8, 3, 14, 14));
    CHECK_EQ(w->p->values.data[ir_out(w->p, 1)].dtype, DT_U8);
    int t = param(w, "t", SHAPE(3, 5, 4, 4));
    struct conv_attr up = {.stride = {2, 2}, .pad_low = {1, 1}, .pad_high = {1, 1}, .spatial = 2};
    check_shape(w, ir_conv_transpose(w->p, x, t, IR_NONE, &up, NULL), SHAPE(8, 5, 56, 56));
    world_close(w);
}
