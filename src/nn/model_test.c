/* model_test.c - SequentialModel: the document's rules, names, counts, order and forward shapes. */
#include "nn/model.h"

#include "base/mem.h"
#include "base/str.h"
#include "ir/build.h"
#include "test.h"

#include <math.h>
#include <string.h>

struct fixture {
    struct ir_vars vars;
    struct model *m;
    struct err e;
};

static enum status make(struct fixture *f, const char *layers)
{
    memset(f, 0, sizeof *f);
    ir_vars_init(&f->vars);
    return model_from_layers(layers, "model", &f->vars, &f->m, &f->e);
}

static void drop(struct fixture *f)
{
    model_free(f->m);
    ir_vars_release(&f->vars);
}

TEST(default_model_is_the_mnist_cnn, "N1: the default layers build, with PyTorch's names and counts")
{
    struct fixture f;
    CHECK_OK(make(&f, model_default_layers()), &f.e);
    CHECK_EQ(model_parameter_count(f.m), 421642);
    CHECK_EQ(model_state_count(f.m), 8);
    CHECK_STR(f.vars.list.data[model_state_var(f.m, 0)].name, "layers.c1.weight");
    struct ir_program *p = ir_program_new("t", &f.vars);
    int x = ir_input(p, "input", DT_F32, SHAPE(16, 1, 28, 28)), y;
    CHECK_OK(model_forward(f.m, p, &x, 1, true, IR_NONE, &y, &f.e), &f.e);
    struct shape s = ir_value_at(p, y)->shape;
    struct shape want = SHAPE(16, 10);
    CHECK(shape_eq(&s, &want));
    ir_program_free(p);
    drop(&f);
}
