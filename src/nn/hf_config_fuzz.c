/* hf_config_fuzz.c - any bytes as a config.json; what is accepted must give a sound program, or a
 * clear refusal. The first byte is whether a head is wanted, and how long the sequence is. */
#include "nn/hf_int.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void forward(const struct model *m, struct ir_vars *vars, int64_t seq, bool training)
{
    struct err e = {0};
    int out[2];
    struct ir_program *p = ir_program_new("fuzz", vars);
    int in = ir_input(p, "input", DT_I64, SHAPE(2, seq)),
        rng = ir_input(p, "rng", DT_I64, SHAPE(2));
    if (model_forward(m, p, &in, 1, training, rng, out, &e) == ST_OK)
        ASSERT(ir_verify(p, &e) == ST_OK);
    else
        ASSERT(e.text[0] && e.node[0]);
    ir_program_free(p);
}

static void model_of(struct hf *h, int64_t seq)
{
    struct err e = {0};
    struct ir_vars vars;
    struct model *m;
    ir_vars_init(&vars);
    if (transformer_make(&h->c, "model", &vars, &m, &e) == ST_OK) {
        ASSERT(model_parameter_count(m) >= 0);
        forward(m, &vars, seq, true);
        forward(m, &vars, seq, false);
        model_free(m);
    } else {
        ASSERT(e.text[0] && strcmp(e.node, "model") == 0);
    }
    ir_vars_release(&vars);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    if (size < 1)
        return 0;
    struct hf *h = mem_alloc(sizeof *h);
    arena_init(&h->arena);
    str_init(&h->notes);
    h->dir = "folder";
    h->head = data[0] & 1;
    if (json_parse((const char *)data + 1, size - 1, "config.json", &h->config, &e) == ST_OK) {
        bool read = hf_config_read(h, &e) == ST_OK;
        ASSERT(read || e.text[0]);
        if (read && (data[0] & 2)) /* a refusal leaves the model without the mask */
            ASSERT(hf_mask_padding(h, &e) == ST_OK || e.text[0]);
        if (read && h->c.layers <= 32)
            model_of(h, 1 + data[0] / 2);
    }
    hf_close(h);
    return 0;
}
