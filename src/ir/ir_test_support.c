/* ir_test_support.c - a program to build in, for the tests of ir. */
#include "ir/ir_test.h"

void world_open(struct world *w)
{
    ir_vars_init(&w->vars);
    w->p = ir_program_new("test", &w->vars);
}

void world_close(struct world *w)
{
    ir_program_free(w->p);
    ir_vars_release(&w->vars);
}

int world_param(struct world *w, const char *name, struct shape s)
{
    struct ir_var v = {
        .name = name,
        .dtype = DT_F32,
        .shape = s,
        .trainable = true,
        .of = IR_NONE,
        .node = IR_NONE};
    return ir_var_read(w->p, ir_var_new(&w->vars, &v));
}

int world_buffer(struct world *w, const char *name, enum dtype t, struct shape s)
{
    struct ir_var v = {
        .name = name,
        .dtype = t,
        .shape = s,
        .category = CATEGORY_BUFFERS,
        .of = IR_NONE,
        .node = IR_NONE};
    return ir_var_new(&w->vars, &v);
}

int world_input(struct world *w, struct shape s)
{
    return ir_input(w->p, "x", DT_F32, s);
}

void check_shape(const struct world *w, int value, struct shape s)
{
    char a[192], b[192];
    if (value == IR_NONE)
        test_fail(__FILE__, __LINE__, "no value: %s", w->p->err.text);
    CHECK_STR(
        shape_text(&w->p->values.data[value].shape, a, sizeof a), shape_text(&s, b, sizeof b));
}

void check_refused(const struct world *w, int value, const char *text)
{
    CHECK_EQ(value, IR_NONE);
    CHECK_EQ(w->p->err.status, ST_INVALID);
    CHECK_STR(w->p->err.text, text);
    w->p->err = (struct err){0};
}

int world_count(const struct world *w, enum opcode code)
{
    int n = 0;
    for (size_t i = 0; i < w->p->ops.n; i++)
        n += w->p->ops.data[i].code == code;
    return n;
}

void check_verifies(const struct world *w)
{
    struct err e = {0};
    CHECK_OK(ir_verify(w->p, &e), &e);
}
