/* model_tool.c - builds SequentialModels and runs them forward, for the tests against PyTorch.
 *
 * FORMAT. A request is one line of JSON {"layers", "shape": [...], "seed", "training": bool}, then
 * the bytes of the input (little-endian, of the model's input type). The answer is one line of JSON
 * {"status", "error", "input": dtype, "parameters": n, "params": [names],
 * "tensors": [{"name", "dtype", "shape"}]}, then the tensors' bytes: the state as it starts, the
 * outputs (by port name), the state afterwards (names start with "after:").
 */
#include "backends/exec.h"
#include "base/json.h"
#include "base/str.h"
#include "nn/model.h"
#include "passes/passes.h"

#include <stdio.h>
#include <stdlib.h>

struct job {
    json_t *spec, *answer;
    struct ir_vars vars;
    struct model *m;
    struct ir_program *p;
    struct exec *x;
    int outputs[64];
    struct str bytes;
};

/* Adds a dense tensor to the answer. */
static void
answer_tensor(struct job *j, const char *prefix, const char *name, const struct tensor *t)
{
    json_t *row = json_object(), *dims = json_array();
    char full[256];
    (void)snprintf(full, sizeof full, "%s%s", prefix, name);
    for (int i = 0; i < t->shape.rank; i++)
        (void)json_array_append_new(dims, json_integer(t->shape.dim[i]));
    json_put_str(row, "name", full);
    json_put_str(row, "dtype", dtype_name(t->dtype));
    json_put(row, "shape", dims);
    (void)json_array_append_new(json_object_get(j->answer, "tensors"), row);
    str_add_n(&j->bytes, t->data, (size_t)tensor_count(t) * (size_t)dtype_size(t->dtype));
}

static void answer_state(struct job *j, const char *prefix)
{
    for (int i = 0; i < model_state_count(j->m); i++) {
        int var = model_state_var(j->m, i);
        const struct ir_var *v = &j->vars.list.data[var];
        struct tensor t = tensor_make(exec_var(j->x, var), v->dtype, v->shape);
        if (t.data)
            answer_tensor(j, prefix, v->name, &t);
    }
}

static struct shape input_shape(const json_t *spec)
{
    const json_t *list = json_object_get(spec, "shape");
    struct shape s = {.rank = (int)json_array_size(list)};
    for (int i = 0; i < s.rank && i < RANK_MAX; i++)
        s.dim[i] = json_integer_value(json_array_get(list, (size_t)i));
    return s;
}

static enum status build(struct job *j, int *x, struct err *e)
{
    bool training = json_get_bool(j->spec, "training", false);
    struct layout_options plain = {0};
    j->p->phase = PHASE_FORWARD;
    *x = ir_input(j->p, "input", model_input_dtype(j->m), input_shape(j->spec));
    int rng = training ? ir_input(j->p, "rng", DT_I64, SHAPE(2)) : IR_NONE;
    TRY(model_forward(j->m, j->p, x, 1, training, rng, j->outputs, e));
    for (int i = 0; i < model_output_count(j->m); i++)
        ir_output(j->p, j->outputs[i], model_output_name(j->m, i));
    TRY(pass_layout(j->p, &plain, e));
    return ir_verify(j->p, e);
}

static void answer_model(struct job *j)
{
    json_t *names = json_array();
    for (int i = 0; i < model_param_count_vars(j->m); i++)
        (void)json_array_append_new(
            names, json_string(j->vars.list.data[model_param_var(j->m, i)].name));
    json_put_str(j->answer, "input", dtype_name(model_input_dtype(j->m)));
    json_put_i64(j->answer, "parameters", model_parameter_count(j->m));
    json_put(j->answer, "params", names);
}

static enum status run(struct job *j, struct err *e)
{
    struct exec_options o = {.storage = EXEC_PLANNED};
    int x;
    TRY(model_from_layers(json_get_str(j->spec, "layers", ""), "model", &j->vars, &j->m, e));
    answer_model(j);
    TRY(build(j, &x, e));
    TRY(exec_new(&j->vars, &j->p, 1, &o, &j->x, e));
    TRY(exec_map(j->x, e));
    for (int i = 0; i < model_state_count(j->m); i++) {
        int var = model_state_var(j->m, i);
        void *data = exec_var(j->x, var);
        if (data)
            model_init_var(j->m, var, data, (uint64_t)json_get_i64(j->spec, "seed", 1));
    }
    answer_state(j, "");
    struct tensor t = exec_tensor(j->x, 0, x);
    size_t n = (size_t)ir_value_bytes(j->p, x);
    if (!t.data || fread(t.data, 1, n, stdin) != n)
        return err_set(e, ST_IO, "the request ends early");
    TRY(exec_run(j->x, 0, e));
    for (int i = 0; i < model_output_count(j->m); i++) {
        struct tensor y = exec_tensor(j->x, 0, j->outputs[i]);
        if (!tensor_contiguous(&y))
            return err_set(e, ST_INTERNAL, "output %d is not dense", i);
        answer_tensor(j, "", model_output_name(j->m, i), &y);
    }
    answer_state(j, "after:");
    return ST_OK;
}

static void serve(const char *line, size_t n)
{
    struct err e = {0};
    struct job j = {0};
    if (json_parse(line, n, "request", &j.spec, &e) != ST_OK) {
        fprintf(stderr, "model_tool: %s\n", e.text);
        exit(2);
    }
    ir_vars_init(&j.vars);
    j.p = ir_program_new("model_tool", &j.vars);
    j.answer = json_object();
    json_put(j.answer, "tensors", json_array());
    str_init(&j.bytes);
    enum status st = run(&j, &e);
    json_put_str(j.answer, "status", st == ST_OK ? "ok" : "error");
    if (st != ST_OK) {
        str_clear(&j.bytes);
        (void)json_array_clear(json_object_get(j.answer, "tensors"));
        json_put_str(j.answer, "error", e.text);
    }
    char *text = json_text(j.answer, false);
    printf("%s\n", text);
    (void)fwrite(j.bytes.data, 1, j.bytes.n, stdout);
    mem_free(text);
    exec_free(j.x);
    ir_program_free(j.p);
    model_free(j.m);
    ir_vars_release(&j.vars);
    str_release(&j.bytes);
    json_decref(j.answer);
    json_decref(j.spec);
}

/* One request per process: what follows a refused request's line are its input's bytes. */
int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, stdin);
    if (n > 0)
        serve(line, (size_t)n);
    free(line);
    return n > 0 ? 0 : 2;
}
