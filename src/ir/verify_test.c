/* verify_test.c - programs broken by hand are caught. */
#include "ir/ir_test.h"

#include <string.h>

/* input -> relu -> slice -> sum, and a buffer that is updated. */
struct sample {
    struct world w;
    int x, y, view, total;
};

static void sample_open(struct sample *s)
{
    world_open(&s->w);
    struct ir_program *p = s->w.p;
    s->x = world_input(&s->w, SHAPE(4, 6));
    s->y = ir_unary(p, OP_RELU, s->x);
    s->view = ir_slice(p, s->y, 1, 1, 3, 2);
    s->total = world_buffer(&s->w, "total", DT_F32, SHAPE(4, 3));
    int next = ir_binary(p, OP_ACCUMULATE, ir_var_read(p, s->total), s->view);
    ir_output(p, ir_sum(p, next, 3, false), "sum");
    check_verifies(&s->w);
}

static void sample_broken(struct sample *s, const char *text)
{
    struct err e = {0};
    CHECK_EQ(ir_verify(s->w.p, &e), ST_INTERNAL);
    if (!strstr(e.text, text))
        test_fail(__FILE__, __LINE__, "\"%s\" lacks \"%s\"", e.text, text);
    world_close(&s->w);
}

TEST(order_is_checked, "an operand used before its definition is caught")
{
    struct sample s;
    sample_open(&s);
    struct ir_op first = s.w.p->ops.data[0];
    s.w.p->ops.data[0] = s.w.p->ops.data[1];
    s.w.p->ops.data[1] = first;
    sample_broken(&s, "not defined before its use");
}

TEST(types_are_checked, "a wrong shape or type is caught")
{
    struct sample s;
    sample_open(&s);
    s.w.p->values.data[s.y].dtype = DT_BF16;
    sample_broken(&s, "inferred f32[4, 6]");
    sample_open(&s);
    s.w.p->values.data[s.view].shape = SHAPE(4, 2);
    sample_broken(&s, "inferred f32[4, 3]");
    sample_open(&s);
    s.w.p->ops.data[1].attr.view.start = 3;
    sample_broken(&s, "out of range");
}

TEST(
    views_are_checked,
    "views outside their storage, of another base, or with other strides are caught")
{
    struct sample s;
    sample_open(&s);
    s.w.p->values.data[s.view].offset = 2;
    sample_broken(&s, "leaves the storage");
    sample_open(&s);
    s.w.p->values.data[s.view].offset = 0;
    sample_broken(&s, "does not lie where its operand does");
    sample_open(&s);
    s.w.p->values.data[s.view].base = s.x;
    sample_broken(&s, "does not lie where its operand does");
    sample_open(&s);
    s.w.p->values.data[s.y].base = s.x;
    sample_broken(&s, "owns no storage");
}

TEST(versions_are_checked, "an old version of a variable is not read after its update")
{
    struct sample s;
    sample_open(&s);
    struct ir_op *sum = &s.w.p->ops.data[s.w.p->ops.n - 1];
    struct ir_op *accumulate = &s.w.p->ops.data[s.w.p->ops.n - 2];
    CHECK_EQ(accumulate->code, OP_ACCUMULATE);
    sum->in[0] = accumulate->in[0];
    sample_broken(&s, "is an old version of variable \"total\"");
    sample_open(&s);
    s.w.p->var_value.data[s.total] = s.w.p->ops.data[s.w.p->ops.n - 2].in[0];
    sample_broken(&s, "the newest version of \"total\"");
}

TEST(operands_are_checked, "missing, unknown and strided operands are caught")
{
    struct sample s;
    sample_open(&s);
    s.w.p->ops.data[0].in[0] = IR_NONE;
    sample_broken(&s, "not defined before its use");
    sample_open(&s);
    s.w.p->ops.data[0].in[0] = 1000;
    sample_broken(&s, "not defined before its use");
    sample_open(&s);
    s.w.p->ops.data[0].n_in = 7;
    sample_broken(&s, "7 operands");
    sample_open(&s);
    struct ir_op *accumulate = &s.w.p->ops.data[s.w.p->ops.n - 2];
    accumulate->in[1] = s.view; /* past the copy that made it dense */
    sample_broken(&s, "is not dense");
    sample_open(&s);
    s.w.p->ops.data[0].out[0] = s.x;
    sample_broken(&s, "defined twice");
}

TEST(outputs_are_checked, "an output that nobody defines is caught, layouts too")
{
    struct sample s;
    sample_open(&s);
    s.w.p->ops.n--;
    sample_broken(&s, "is not defined");
    sample_open(&s);
    s.w.p->values.data[s.y].layout = LAYOUT_CL;
    sample_broken(&s, "has layout cl");
    sample_open(&s);
    s.w.p->ops.data[0].node = 12;
    sample_broken(&s, "no node 12");
}
