/* model_fuzz.c - any bytes as a `layers` document; what is accepted must give a sound program or a
 * clear refusal, in training and evaluation. The first byte chooses the input's shape. */
#include "nn/model.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct shape shape_from(const struct model *m, unsigned choice)
{
    struct shape s = {.rank = 1 + (int)(choice & 3)}, hint;
    for (int i = 0; i < s.rank; i++)
        s.dim[i] = 1 + (int)(choice >> 2 & 7);
    if (model_input_shape_hint(m, &hint)) {
        s.rank = hint.rank + 1;
        for (int i = 0; i < hint.rank; i++)
            s.dim[i + 1] = hint.dim[i] < 0 ? 8 + (int)(choice & 15) : hint.dim[i];
    }
    if (choice > 240)
        s.dim[0] = 0;
    return s;
}

static void forward(const struct model *m, struct ir_vars *vars, unsigned choice, bool training)
{
    struct err e = {0};
    int in[64], out[64], n = model_input_count(m);
    struct ir_program *p = ir_program_new("fuzz", vars);
    for (int i = 0; i < n; i++)
        in[i] = ir_input(p, "input", model_input_dtype_at(m, i), shape_from(m, choice));
    int rng = ir_input(p, "rng", DT_I64, SHAPE(2));
    if (model_forward(m, p, in, n, training, rng, out, &e) == ST_OK)
        ASSERT(ir_verify(p, &e) == ST_OK);
    else
        ASSERT(e.text[0] && e.node[0]);
    ir_program_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct ir_vars vars;
    struct model *m;
    if (size < 1)
        return 0;
    char *text = mem_alloc(size);
    memcpy(text, data + 1, size - 1);
    ir_vars_init(&vars);
    if (model_from_layers(text, "model", &vars, &m, &e) == ST_OK) {
        forward(m, &vars, data[0], true);
        forward(m, &vars, data[0], false);
        model_free(m);
    } else {
        ASSERT(e.text[0] && strcmp(e.node, "model") == 0);
    }
    ir_vars_release(&vars);
    mem_free(text);
    return 0;
}
