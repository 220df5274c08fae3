/* optool.c - runs small programs for tests in other languages: requests on stdin, answers on
 * stdout.
 *
 * FORMAT. A request is one line of JSON, then the bytes of its inputs (little-endian, row-major) in
 * the order of "inputs". The answer is one line of JSON, then the bytes of its "tensors".
 *
 *   inputs     [{"name", "dtype", "shape", "kind": "input" | "param" | "buffer" | "late",
 *                "each": bool}]
 *              param: a trainable variable; buffer: a variable without gradient; late: an input
 *              that a pass makes (the update's "hyper" and "loss_scale"). "each": the bytes hold
 *              one tensor for every run.
 *   steps      [{"fn", "in", "out", constants}]; see optool_steps.c
 *   outputs    names of values to send back
 *   backward   name of the value to differentiate, with "upstream" (name of a value) its loss is
 *              sum(value * upstream), else the value itself; gradients of all params are sent
 *   vars       names of variables whose last contents are sent
 *   update     {constants of an optimizer, "lr" (of the first run), "max_norm",
 *                "allow_nonfinite", "log_update_ratio"}: the
 *              update of all params by their gradients; "ctl" and "update_ratio" are outputs
 *   autocast   "bfloat16" | "float16"; layout "none" | "cl" | "c16"; recompute, fuse, dynamic: bool
 *   threads    1...; runs 1...; dump: bool (the program as text)
 *
 *   answer     {"status": "ok" | "error", "error", "dump", "peak_planned", "peak_measured",
 *              "tensors": [{"name", "dtype", "shape"}]}; a gradient that does not exist has the
 *              dtype "none" and no bytes
 */
#include "optool.h"

#include "backends/exec.h"
#include "base/str.h"
#include "ir/optim_state.h"
#include "passes/passes.h"
#include "passes/update.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_MAX = 512 };

/* A request while it is worked on. */
struct job {
    json_t *spec;
    struct ir_vars vars;
    struct ir_program *p;
    struct exec *x;
    struct {
        const char *name;
        int value, var; /* var: IR_NONE for inputs and results */
    } names[NAMES_MAX];
    int n_names;
    char *payload;
    size_t payload_bytes;
    int *grad_of_var;
    struct optim_attr optim; /* of the update, if there is one */
    double rate;             /* of its first run */
    struct update_vars states;
    json_t *answer;
    struct str bytes;
};

/* ---- tensors of any layout as row-major bytes ---- */

/* Offset in elements of the logical index. */
static int64_t element_offset(const struct tensor *t, const int64_t *index)
{
    int64_t offset = 0;
    if (t->layout == LAYOUT_ROW) {
        for (int d = 0; d < t->shape.rank; d++)
            offset += index[d] * t->stride[d];
        return offset;
    }
    int64_t block = t->layout == LAYOUT_C16 ? 16 : t->shape.dim[1];
    int64_t blocks = t->shape.dim[1] / block;
    offset = index[0] * blocks + index[1] / block;
    for (int d = 2; d < t->shape.rank; d++)
        offset = offset * t->shape.dim[d] + index[d];
    return offset * block + index[1] % block;
}

/* Copies between a tensor and dense row-major bytes. */
static void tensor_copy(const struct tensor *t, char *row, bool into_tensor)
{
    int64_t index[RANK_MAX] = {0}, n = tensor_count(t);
    size_t size = (size_t)dtype_size(t->dtype);
    for (int64_t i = 0; i < n; i++) {
        char *inside = (char *)t->data + (size_t)element_offset(t, index) * size;
        char *outside = row + (size_t)i * size;
        memcpy(into_tensor ? inside : outside, into_tensor ? outside : inside, size);
        for (int d = t->shape.rank - 1; d >= 0 && ++index[d] == t->shape.dim[d]; d--)
            index[d] = 0;
    }
}

static void answer_tensor(struct job *j, const char *name, const struct tensor *t)
{
    json_t *row = json_object(), *shape = json_array();
    json_put_str(row, "name", name);
    json_put_str(row, "dtype", t ? dtype_name(t->dtype) : "none");
    for (int d = 0; t && d < t->shape.rank; d++)
        json_array_append_new(shape, json_integer(t->shape.dim[d]));
    json_put(row, "shape", shape);
    json_array_append_new(json_object_get(j->answer, "tensors"), row);
    if (!t)
        return;
    size_t n = (size_t)tensor_count(t) * (size_t)dtype_size(t->dtype);
    char *row_bytes = mem_alloc(n + 1);
    tensor_copy(t, row_bytes, false);
    str_add_n(&j->bytes, row_bytes, n);
    mem_free(row_bytes);
}

/* ---- building the program ---- */

static enum status name_add(struct job *j, const char *name, int value, int var, struct err *e)
{
    if (j->n_names == NAMES_MAX)
        return err_set(e, ST_INVALID, "more than %d names", NAMES_MAX);
    j->names[j->n_names].name = name;
    j->names[j->n_names].value = value;
    j->names[j->n_names++].var = var;
    return ST_OK;
}

/* Index into names of the newest entry; -1 when unknown. */
static int name_find(const struct job *j, const char *name)
{
    for (int i = j->n_names - 1; i >= 0; i--)
        if (str_eq(j->names[i].name, name))
            return i;
    return -1;
}

/* The newest version of a named value: variables change by operators that update them. */
static enum status name_value(struct job *j, const char *name, int *out, struct err *e)
{
    int i = name_find(j, name);
    if (i < 0)
        return err_set(e, ST_INVALID, "unknown value \"%s\"", name);
    *out = j->names[i].var == IR_NONE ? j->names[i].value : ir_var_read(j->p, j->names[i].var);
    return ST_OK;
}

static enum status input_parse(const json_t *spec, enum dtype *t, struct shape *s, struct err *e)
{
    const json_t *shape = json_object_get(spec, "shape");
    if (!dtype_parse(json_get_str(spec, "dtype", ""), t))
        return err_set(e, ST_INVALID, "unknown dtype \"%s\"", json_get_str(spec, "dtype", ""));
    if (json_array_size(shape) > RANK_MAX)
        return err_set(e, ST_INVALID, "more than %d dimensions", RANK_MAX);
    int64_t dim[RANK_MAX] = {0};
    for (size_t d = 0; d < json_array_size(shape); d++)
        dim[d] = json_integer_value(json_array_get(shape, d));
    *s = shape_of((int)json_array_size(shape), dim);
    return ST_OK;
}

static enum status build_inputs(struct job *j, struct err *e)
{
    size_t i;
    json_t *spec;
    json_array_foreach(json_object_get(j->spec, "inputs"), i, spec)
    {
        enum dtype t;
        struct shape s;
        TRY(input_parse(spec, &t, &s, e));
        const char *name = json_get_str(spec, "name", ""), *kind = json_get_str(spec, "kind", "");
        if (str_eq(kind, "late"))
            continue;
        if (str_eq(kind, "input")) {
            TRY(name_add(j, name, ir_input(j->p, name, t, s), IR_NONE, e));
            continue;
        }
        bool trainable = str_eq(kind, "param");
        struct ir_var var = {
            .name = name,
            .dtype = t,
            .shape = s,
            .category = trainable ? CATEGORY_PARAMETERS : CATEGORY_BUFFERS,
            .trainable = trainable,
            .of = IR_NONE,
            .node = IR_NONE,
        };
        TRY(name_add(j, name, IR_NONE, ir_var_new(&j->vars, &var), e));
    }
    return ir_status(j->p, e);
}

static enum status build_step(struct job *j, const json_t *spec, struct err *e)
{
    struct step s = {.p = j->p, .spec = spec};
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(spec, "in"), i, name)
    {
        if (s.n_in == STEP_OPERANDS_MAX)
            return err_set(e, ST_INVALID, "more than %d operands", STEP_OPERANDS_MAX);
        s.in[s.n_in] = IR_NONE;
        if (json_is_string(name))
            TRY(name_value(j, json_string_value(name), &s.in[s.n_in], e));
        s.n_in++;
    }
    int result = IR_NONE;
    TRY(step_emit(&s, &result, e));
    const json_t *out = json_object_get(spec, "out");
    if (json_is_string(out))
        return name_add(j, json_string_value(out), result, IR_NONE, e);
    json_array_foreach(out, i, name)
        TRY(name_add(j, json_string_value(name), ir_out(j->p, (int)i), IR_NONE, e));
    return ST_OK;
}

/* The scalar to differentiate: the value itself, or sum(value * upstream). */
static enum status build_loss(struct job *j, int *loss, struct err *e)
{
    const char *upstream = json_get_str(j->spec, "upstream", NULL);
    TRY(name_value(j, json_get_str(j->spec, "backward", ""), loss, e));
    j->p->phase = PHASE_LOSS;
    if (upstream) {
        int weight;
        TRY(name_value(j, upstream, &weight, e));
        int product = ir_cast(j->p, ir_binary(j->p, OP_MUL, *loss, weight), DT_F32);
        TRY(ir_status(j->p, e));
        int rank = ir_value_at(j->p, product)->shape.rank;
        *loss = rank ? ir_sum(j->p, product, (1u << rank) - 1, false) : product;
    } else {
        *loss = ir_cast(j->p, *loss, DT_F32);
    }
    return ir_status(j->p, e);
}

/* Values that the host reads are marked after the gradients exist and before the passes that
 * rewrite the program around them. */
static enum status mark_outputs(struct job *j, struct err *e)
{
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(j->spec, "outputs"), i, name)
    {
        int value;
        if (name_find(j, json_string_value(name)) < 0 && json_object_get(j->spec, "update"))
            continue; /* the update makes it */
        TRY(name_value(j, json_string_value(name), &value, e));
        ir_output(j->p, value, json_string_value(name));
    }
    for (size_t v = 0; j->grad_of_var && v < j->vars.list.n; v++)
        if (j->vars.list.data[v].trainable && j->grad_of_var[v] != IR_NONE)
            ir_output(
                j->p, j->grad_of_var[v],
                arena_printf(&j->vars.arena, "grad:%s", j->vars.list.data[v].name));
    return ir_status(j->p, e);
}

static enum status build_update(struct job *j, struct err *e)
{
    const json_t *spec = json_object_get(j->spec, "update");
    if (!spec || !j->grad_of_var)
        return ST_OK;
    struct step s = {.p = j->p, .spec = spec};
    struct update_options o = {
        .window = WINDOW_ONLY,
        .optim = step_optim(&s),
        .max_norm = json_get_f64(spec, "max_norm", 0),
        .allow_nonfinite = json_get_bool(spec, "allow_nonfinite", false),
        .log_update_ratio = json_get_bool(spec, "log_update_ratio", false),
    };
    j->optim = o.optim;
    j->rate = json_get_f64(spec, "lr", 0);
    update_vars_make(&j->vars, &o.optim, false, j->grad_of_var, j->vars.list.n, &j->states);
    return pass_update(j->p, &o, j->grad_of_var, &j->states, e);
}

static enum status run_passes(struct job *j, struct err *e)
{
    const char *layout = json_get_str(j->spec, "layout", "none");
    if (json_get_bool(j->spec, "recompute", false))
        TRY(pass_recompute(j->p, false, e));
    struct layout_options o = {
        .enabled = !str_eq(layout, "none"), .blocked = str_eq(layout, "c16")};
    TRY(pass_layout(j->p, &o, e));
    if (json_get_bool(j->spec, "fuse", false))
        TRY(pass_fuse(j->p, e));
    return ir_verify(j->p, e);
}

static enum status build(struct job *j, struct err *e)
{
    size_t i;
    json_t *step;
    j->p->phase = PHASE_FORWARD;
    TRY(build_inputs(j, e));
    json_array_foreach(json_object_get(j->spec, "steps"), i, step) TRY(build_step(j, step, e));
    int loss = IR_NONE;
    bool backward = json_get_str(j->spec, "backward", NULL);
    if (backward)
        TRY(build_loss(j, &loss, e));
    /* Passes keep the numbers of values, so names stay right. */
    const char *autocast = json_get_str(j->spec, "autocast", NULL);
    enum dtype low = DT_F32;
    if (autocast && dtype_parse(autocast, &low))
        TRY(pass_autocast(j->p, low, e));
    if (backward) {
        j->grad_of_var = ARENA_ARRAY(&j->vars.arena, int, j->vars.list.n + 1);
        ir_backward(j->p, loss, ir_fill(j->p, shape_scalar(), 1.0), j->grad_of_var);
        TRY(ir_status(j->p, e));
    }
    TRY(mark_outputs(j, e));
    TRY(build_update(j, e));
    TRY(ir_verify(j->p, e));
    return run_passes(j, e);
}

/* ---- running it ---- */

static size_t input_bytes(const json_t *spec, int64_t runs)
{
    enum dtype t;
    struct shape s;
    struct err e;
    if (input_parse(spec, &t, &s, &e) != ST_OK)
        return 0;
    size_t n = (size_t)shape_count(&s) * (size_t)dtype_size(t);
    return json_get_bool(spec, "each", false) ? n * (size_t)runs : n;
}

static void write_input(struct job *j, const char *name, char *from, size_t n)
{
    int var = ir_var_find(&j->vars, name), value = ir_input_find(j->p, name);
    if (var != IR_NONE) {
        memcpy(exec_var(j->x, var), from, n);
    } else if (value != IR_NONE) {
        struct tensor t = exec_tensor(j->x, 0, value);
        if (t.data) /* NULL: no operator reads it */
            tensor_copy(&t, from, true);
    }
}

/* Writes what run `run` needs: variables before the first, inputs before each. */
static void write_inputs(struct job *j, int64_t run, int64_t runs)
{
    size_t i, at = 0;
    json_t *spec;
    json_array_foreach(json_object_get(j->spec, "inputs"), i, spec)
    {
        const char *name = json_get_str(spec, "name", "");
        bool each = json_get_bool(spec, "each", false);
        size_t n = input_bytes(spec, runs);
        size_t part = each ? n / (size_t)runs : n;
        /* Inputs live until their last use: the host writes them before every run. */
        if (run == 0 || ir_var_find(&j->vars, name) == IR_NONE)
            write_input(j, name, j->payload + at + (each ? part * (size_t)run : 0), part);
        at += n;
    }
}

/* Optimizer states as a new optimizer has them. */
static void write_states(struct job *j)
{
    for (size_t v = 0; v < j->states.n; v++) {
        for (int k = 0; k < UPDATE_STATES_MAX && j->states.state[v][k] != IR_NONE; k++) {
            int var = j->states.state[v][k];
            const struct ir_var *s = &j->vars.list.data[var], *p = &j->vars.list.data[v];
            struct optim_attr a = optim_attr_for(&j->optim, &p->shape, p->dtype, p->name);
            for (int64_t i = 0; i < shape_count(&s->shape); i++)
                dtype_store(exec_var(j->x, var), s->dtype, i, optim_state_start(&a, k, j->rate));
        }
    }
}

static enum status answer_vars(struct job *j, struct err *e)
{
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(j->spec, "vars"), i, name)
    {
        int var = ir_var_find(&j->vars, json_string_value(name));
        if (var == IR_NONE)
            return err_set(e, ST_INVALID, "unknown variable \"%s\"", json_string_value(name));
        const struct ir_var *v = &j->vars.list.data[var];
        struct tensor t = tensor_make(exec_var(j->x, var), v->dtype, v->shape);
        answer_tensor(j, json_string_value(name), &t);
    }
    return ST_OK;
}

static void answer_gradients(struct job *j)
{
    for (size_t v = 0; j->grad_of_var && v < j->vars.list.n; v++) {
        if (!j->vars.list.data[v].trainable)
            continue;
        char name[256];
        snprintf(name, sizeof name, "grad:%s", j->vars.list.data[v].name);
        int value = ir_output_find(j->p, name);
        if (value == IR_NONE) {
            answer_tensor(j, name, NULL);
        } else {
            struct tensor t = exec_tensor(j->x, 0, value);
            answer_tensor(j, name, &t);
        }
    }
}

static enum status answer_outputs(struct job *j, struct err *e)
{
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(j->spec, "outputs"), i, name)
    {
        int value = ir_output_find(j->p, json_string_value(name));
        if (value == IR_NONE)
            return err_set(e, ST_INVALID, "output \"%s\" is lost", json_string_value(name));
        struct tensor t = exec_tensor(j->x, 0, value);
        answer_tensor(j, json_string_value(name), &t);
    }
    answer_gradients(j);
    return answer_vars(j, e);
}

static enum status job_run(struct job *j, struct err *e)
{
    int64_t runs = json_get_i64(j->spec, "runs", 1);
    cpu_threads_set((int)json_get_i64(j->spec, "threads", 1));
    TRY(build(j, e));
    if (json_get_bool(j->spec, "dump", false)) {
        struct str dump;
        str_init(&dump);
        ir_print(j->p, &dump);
        json_put_str(j->answer, "dump", dump.data);
        str_release(&dump);
    }
    struct exec_options o = {
        .storage = json_get_bool(j->spec, "dynamic", false) ? EXEC_DYNAMIC : EXEC_PLANNED};
    TRY(exec_new(&j->vars, &j->p, 1, &o, &j->x, e));
    TRY(exec_map(j->x, e));
    write_states(j);
    for (int64_t run = 0; run < runs; run++) {
        TRY(exec_inputs_ready(j->x, 0, e));
        write_inputs(j, run, runs);
        TRY(exec_run(j->x, 0, e));
    }
    json_put_i64(j->answer, "peak_planned", exec_peak_planned(j->x));
    json_put_i64(j->answer, "peak_measured", exec_peak_measured(j->x));
    return answer_outputs(j, e);
}

/* ---- requests ---- */

static void job_read_payload(struct job *j)
{
    size_t i, n = 0;
    json_t *spec;
    json_array_foreach(json_object_get(j->spec, "inputs"), i, spec) n +=
        input_bytes(spec, json_get_i64(j->spec, "runs", 1));
    j->payload = mem_alloc(n + 1);
    j->payload_bytes = fread(j->payload, 1, n, stdin);
    if (j->payload_bytes != n) {
        fprintf(stderr, "optool: the request ends early\n");
        exit(2);
    }
}

static void job_answer(struct job *j, enum status st, const struct err *e)
{
    json_put_str(j->answer, "status", st == ST_OK ? "ok" : "error");
    if (st != ST_OK) {
        str_clear(&j->bytes);
        json_array_clear(json_object_get(j->answer, "tensors"));
        json_put_str(j->answer, "error", e->text);
        json_put_str(j->answer, "detail", e->detail);
    }
    char *text = json_text(j->answer, false);
    printf("%s\n", text);
    fwrite(j->bytes.data, 1, j->bytes.n, stdout);
    fflush(stdout);
    mem_free(text);
}

static void job_release(struct job *j)
{
    if (j->x)
        exec_free(j->x);
    if (j->states.n)
        update_vars_release(&j->states);
    ir_program_free(j->p);
    ir_vars_release(&j->vars);
    json_decref(j->spec);
    json_decref(j->answer);
    str_release(&j->bytes);
    mem_free(j->payload);
}

static void serve(const char *line, size_t n)
{
    struct err e = {0};
    struct job *j = mem_alloc(sizeof *j);
    if (json_parse(line, n, "request", &j->spec, &e) != ST_OK) {
        fprintf(stderr, "optool: %s\n", e.text);
        exit(2);
    }
    ir_vars_init(&j->vars);
    j->p = ir_program_new("optool", &j->vars);
    j->answer = json_object();
    json_put(j->answer, "tensors", json_array());
    str_init(&j->bytes);
    job_read_payload(j);
    job_answer(j, job_run(j, &e), &e);
    job_release(j);
    mem_free(j);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0)
        serve(line, (size_t)n);
    free(line);
    return 0;
}
