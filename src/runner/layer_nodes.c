/* layer_nodes.c - nodes on the canvas that compute tensors from tensors: layers with weights of
 * their own, and tensor operations (layer_nodes.def); and AttentionMask.
 *
 * Each is a small program with an executor of its own, planned and run as every other. Weights are
 * drawn from the node's parameter `seed`, else from the run's seed and the node's id.
 */
#include "runner/small.h"

#include "base/rng.h"
#include "base/str.h"
#include "ir/build.h"
#include "train/step.h"

#include <stdio.h>
#include <string.h>

/* ---- parameters ---- */

static void adjust_nothing(const struct small *s, json_t *params)
{
    (void)s;
    (void)params;
}

static void adjust_activation(const struct small *s, json_t *params)
{
    (void)s;
    (void)json_object_clear(params);
}

static void adjust_output_size(const struct small *s, json_t *params)
{
    json_t *pair = json_array();
    (void)json_array_append_new(pair, json_integer(graph_param_i64(s->n, "output_height")));
    (void)json_array_append_new(pair, json_integer(graph_param_i64(s->n, "output_width")));
    (void)json_object_clear(params);
    json_put(params, "output_size", pair);
}

/* "5,7" as a list; what is no list is left for the layer to refuse. */
static void adjust_normalized_shape(const struct small *s, json_t *params)
{
    int64_t dims[RANK_MAX];
    int n;
    if (small_list(s, "normalized_shape", dims, &n, NULL) != ST_OK)
        return;
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        (void)json_array_append_new(list, json_integer(dims[i]));
    json_put(params, "normalized_shape", list);
}

static void adjust_padding_idx(const struct small *s, json_t *params)
{
    if (graph_param_i64(s->n, "padding_idx") == -1)
        json_put(params, "padding_idx", json_null());
}

static void adjust_time_first(const struct small *s, json_t *params)
{
    (void)s;
    json_put(params, "batch_first", json_false());
}

/* The width of an encoding is its input's. */
static void adjust_width(const struct small *s, json_t *params)
{
    const struct shape *x = &s->from[0]->shape;
    json_put_i64(params, "d_model", x->rank > 0 ? x->dim[x->rank - 1] : 0);
}

struct row {
    const char *type;
    enum status (*emit)(struct small *s, struct err *e); /* NULL: a layer */
    const char *layer;
    void (*adjust)(const struct small *s, json_t *params);
    bool training;
};
static const struct row rows[] = {
#define LAYER(type, layer, adjust, training) {type, NULL, layer, adjust_##adjust, training},
#define OPERATOR(type, emit) {type, emit_##emit, NULL, NULL, false},
#include "runner/layer_nodes.def"
};

static const struct row *row_of(const char *type)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (str_eq(rows[i].type, type))
            return &rows[i];
    return NULL;
}

/* The node's parameters as the layer's: numbers of the right kind, without `seed`. */
static json_t *params_of(const struct small *s)
{
    json_t *params = json_object();
    for (const struct node_param *p = s->n->kind->params; p->name; p++) {
        if (str_eq(p->name, "seed"))
            continue;
        if (p->type == PARAM_INT)
            json_put_i64(params, p->name, graph_param_i64(s->n, p->name));
        else if (p->type == PARAM_FLOAT)
            json_put_f64(params, p->name, graph_param_f64(s->n, p->name));
        else if (p->type == PARAM_BOOL)
            json_put(params, p->name, json_boolean(graph_param_bool(s->n, p->name)));
        else
            json_put_str(params, p->name, graph_param_str(s->n, p->name));
    }
    return params;
}

/* "leaky_relu" is the layer LeakyReLU. */
static const char *activation_layer(const struct small *s)
{
    static const struct {
        const char *function, *layer;
    } names[] = {
        {"relu", "ReLU"},
        {"sigmoid", "Sigmoid"},
        {"tanh", "Tanh"},
        {"elu", "ELU"},
        {"leaky_relu", "LeakyReLU"},
        {"gelu", "GELU"},
        {"silu", "SiLU"},
        {"mish", "Mish"},
        {"selu", "SELU"},
        {"softmax", "Softmax"},
        {"prelu", "PReLU"},
        {"hardswish", "Hardswish"}};
    const char *function = graph_param_str(s->n, "function");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (str_eq(names[i].function, function))
            return names[i].layer;
    return function;
}

static json_t *edge(const char *from, const char *from_port, const char *to, const char *to_port)
{
    json_t *o = json_object();
    json_put_str(o, "source", from);
    json_put_str(o, "target", to);
    if (from_port)
        json_put_str(o, "sourceHandle", from_port);
    if (to_port)
        json_put_str(o, "targetHandle", to_port);
    return o;
}

static json_t *end_node(const char *id, const char *type, json_t *ports)
{
    json_t *o = json_object();
    json_put_str(o, "id", id);
    json_put_str(o, "type", type);
    json_put(o, "ports", ports);
    return o;
}

static json_t *port(const char *id)
{
    json_t *o = json_object();
    json_put_str(o, "id", id);
    json_put_str(o, "name", id);
    return o;
}

/* A `layers` document of one layer; takes params. */
static char *document_of(const char *layer, json_t *params, int inputs)
{
    json_t *d = json_object(), *nodes = json_array(), *edges = json_array(), *l = json_object();
    json_t *in = json_array(), *out = json_array();
    for (int i = 0; i < inputs; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "x%d", i);
        (void)json_array_append_new(in, port(id));
        (void)json_array_append_new(edges, edge("in", id, "layer", NULL));
    }
    (void)json_array_append_new(out, port("y"));
    (void)json_array_append_new(edges, edge("layer", NULL, "out", "y"));
    json_put_str(l, "id", "layer");
    json_put_str(l, "type", layer);
    json_put(l, "params", params);
    (void)json_array_append_new(nodes, end_node("in", "Input", in));
    (void)json_array_append_new(nodes, l);
    (void)json_array_append_new(nodes, end_node("out", "Output", out));
    json_put_i64(d, "version", 2);
    json_put(d, "nodes", nodes);
    json_put(d, "edges", edges);
    char *text = json_text(d, false);
    json_decref(d);
    return text;
}

enum status
small_model(struct small *s, const char *layer, json_t *params, int inputs, struct err *e)
{
    char *text = document_of(layer, params, inputs);
    enum status st = model_from_layers(text, s->n->id, &s->vars, &s->model, e);
    mem_free(text);
    return st;
}

/* ---- building ---- */

/* The tensors that arrive, by the node's input ports. */
static enum status inputs_get(struct small *s, struct err *e)
{
    for (const struct node_port *p = s->n->kind->inputs; p->name; p++) {
        struct flow f;
        int i = s->n_in++;
        s->in[i] = IR_NONE;
        if (p->optional && !flow_has(s->run, s->node, p->name, &f))
            continue;
        TRY(flow_get(s->run, s->node, p->name, FLOW_NUMBERS, &f, e));
        s->from[i] = f.numbers;
    }
    return ST_OK;
}

/* Whole numbers stay whole where nothing is computed with them. */
static enum dtype dtype_for(const struct small *s, int i)
{
    static const char *const moves[] = {"Concat", "Permute",   "Reshape", "Split", "Squeeze",
                                        "Stack",  "Unsqueeze", "Flatten", NULL};
    enum dtype t = s->from[i]->dtype;
    if (s->model && model_input_dtype_at(s->model, i) == DT_I64)
        return DT_I64;
    for (int k = 0; moves[k]; k++)
        if (str_eq(moves[k], s->n->kind->name) && !dtype_floating(t))
            return DT_I64;
    return DT_F32;
}

static void inputs_make(struct small *s)
{
    for (int i = 0; i < s->n_in; i++)
        if (s->from[i])
            s->in[i] =
                ir_input(s->p, s->n->kind->inputs[i].name, dtype_for(s, i), s->from[i]->shape);
}

static enum status layer_emit(struct small *s, const struct row *row, struct err *e)
{
    int rng = row->training ? ir_input(s->p, "rng", DT_I64, SHAPE(2)) : IR_NONE;
    return model_layer_forward(s->model, s->p, s->in, row->training, rng, s->out, e);
}

/* What the node has no port for is not computed, nor a further result that nobody reads:
 * attention's weights are larger than all else. */
static void outputs_drop(struct small *s)
{
    struct node_port p;
    char buf[32];
    json_t *params = graph_params_full(s->n);
    for (size_t i = 0; i < SMALL_PORTS_MAX; i++)
        if (!node_port_at(s->n->kind, params, true, i, &p, buf) ||
            (i > 0 && graph_output_uses(s->run->graph, s->node, p.name) == 0))
            s->out[i] = IR_NONE;
    json_decref(params);
}

static enum status build(struct small *s, const struct row *row, struct err *e)
{
    TRY(inputs_get(s, e));
    if (row->layer) {
        json_t *params = params_of(s);
        row->adjust(s, params);
        TRY(small_model(s, *row->layer ? row->layer : activation_layer(s), params, s->n_in, e));
    }
    s->p->phase = PHASE_FORWARD;
    s->p->node = ir_node_intern(&s->vars, s->n->id);
    inputs_make(s);
    TRY(ir_status(s->p, e));
    TRY(row->layer ? layer_emit(s, row, e) : row->emit(s, e));
    TRY(ir_status(s->p, e));
    outputs_drop(s);
    for (int i = 0; i < SMALL_PORTS_MAX; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "out%d", i);
        if (s->out[i] == IR_NONE)
            continue;
        ir_output(s->p, s->out[i], name);
        s->out[i] = ir_output_find(s->p, name);
    }
    TRY(ir_status(s->p, e));
    return step_lower(s->p, e);
}

/* ---- running ---- */

static void numbers_put(void *to, enum dtype t, const struct flow_numbers *from)
{
    for (int64_t i = 0; i < shape_count(&from->shape); i++)
        dtype_store(to, t, i, dtype_load(from->data, from->dtype, i));
}

static uint64_t seed_of(const struct small *s)
{
    if (node_param_find(s->n->kind, "seed"))
        return (uint64_t)graph_param_i64(s->n, "seed");
    return (uint64_t)s->run->seed ^ hash_name(s->n->id);
}

static size_t var_bytes(const struct small *s, int var)
{
    const struct ir_var *v = &s->vars.list.data[var];
    return (size_t)(shape_count(&v->shape) * dtype_size(v->dtype));
}

static enum status execute(struct small *s, struct exec *x, struct err *e)
{
    TRY(exec_map(x, e));
    for (int i = 0; s->model && i < model_state_count(s->model); i++) {
        int var = model_state_var(s->model, i);
        void *data = exec_var(x, var);
        size_t bytes = data ? var_bytes(s, var) : 0;
        if (!data || run_weights_take(s->run, s->n, i, data, bytes))
            continue;
        model_init_var(s->model, var, data, seed_of(s));
        run_weights_keep(s->run, s->n, i, data, bytes);
    }
    TRY(exec_inputs_ready(x, 0, e));
    for (int i = 0; i < s->n_in; i++) {
        void *to = s->in[i] == IR_NONE ? NULL : exec_value(x, 0, s->in[i]);
        if (to)
            numbers_put(to, ir_value_at(s->p, s->in[i])->dtype, s->from[i]);
    }
    int rng = ir_input_find(s->p, "rng");
    int64_t *noise = rng == IR_NONE ? NULL : exec_value(x, 0, rng);
    if (noise)
        noise[0] = (int64_t)seed_of(s);
    return exec_run(x, 0, e);
}

/* Results in the order of the output ports; while planning, zeros of their shapes. */
static enum status outputs_set(struct small *s, struct exec *x, struct err *e)
{
    struct node_port p;
    char buf[32];
    json_t *params = graph_params_full(s->n);
    for (size_t i = 0; node_port_at(s->n->kind, params, true, i, &p, buf); i++) {
        if (i >= SMALL_PORTS_MAX || s->out[i] == IR_NONE)
            continue;
        const struct ir_value *v = ir_value_at(s->p, s->out[i]);
        struct flow_numbers *out = flow_numbers_new(s->run, &v->shape, v->dtype, e);
        if (!out) {
            json_decref(params);
            return ST_INVALID;
        }
        if (!s->run->planning)
            memcpy(
                out->data, exec_value(x, 0, s->out[i]),
                (size_t)(shape_count(&v->shape) * dtype_size(v->dtype)));
        flow_set(
            s->run, s->node, arena_strdup(&s->run->memory, p.name),
            (struct flow){.kind = FLOW_NUMBERS, .numbers = out});
    }
    json_decref(params);
    return ST_OK;
}

static enum status run_small(struct small *s, const struct row *row, struct err *e)
{
    struct run *r = s->run;
    struct run_place *place = run_place_of(r, s->n);
    struct exec_options o = {
        .storage = r->o.storage,
        .workspace_limit_bytes = r->frugal ? -1 : 0,
        .source = &place->source};
    struct exec *x = NULL;
    enum status st = ST_OK;
    TRY(build(s, row, e));
    TRY(exec_new(&s->vars, &s->p, 1, &o, &x, e));
    if (r->planning) {
        run_account(r, s->n, place, NULL, x, &s->vars, &s->p);
    } else {
        TRY_OUT(execute(s, x, e));
        run_measured(r, place, NULL, x);
    }
    TRY_OUT(outputs_set(s, x, e));
out:
    exec_free(x);
    return st;
}

/* The layer inside is called "layer" and its model SequentialModel: the user knows the node only.
 */
static void blame(const struct small *s, struct err *e)
{
    const char *after = strstr(e->text, "): ");
    if (str_starts(e->text, "layer \"layer\" (") && after)
        memmove(e->text, after + 3, strlen(after + 3) + 1);
    size_t n = strlen(s->n->id);
    if (str_starts(e->text, s->n->id) && str_starts(e->text + n, ": "))
        memmove(e->text, e->text + n + 2, strlen(e->text + n + 2) + 1);
    if (str_eq(e->node, s->n->id))
        (void)snprintf(e->node_type, sizeof e->node_type, "%s", s->n->type);
}

enum status node_small(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    const struct row *row = row_of(n->kind->name);
    struct small *s = mem_alloc(sizeof *s);
    ASSERT(row != NULL);
    s->run = r;
    s->node = node;
    s->n = n;
    for (int i = 0; i < SMALL_PORTS_MAX; i++)
        s->out[i] = IR_NONE;
    ir_vars_init(&s->vars);
    s->p = ir_program_new(n->kind->name, &s->vars);
    enum status st = run_small(s, row, e);
    if (st != ST_OK)
        blame(s, e);
    ir_program_free(s->p);
    model_free(s->model);
    ir_vars_release(&s->vars);
    mem_free(s);
    return st;
}

/* ---- AttentionMask: true where nothing is seen ---- */

/* Length of the sequence: the tokens', else the tensor's ([.., S, F]; [S]). */
static bool length_of(const struct flow *tokens, const struct flow *tensor, int64_t *out)
{
    if (tokens->kind == FLOW_JSON) {
        *out = (int64_t)json_array_size(tokens->json);
        return json_is_array(tokens->json);
    }
    if (tensor->kind != FLOW_NUMBERS || tensor->numbers->shape.rank < 1)
        return false;
    const struct shape *s = &tensor->numbers->shape;
    *out = s->dim[s->rank > 1 ? s->rank - 2 : 0];
    return true;
}

enum status node_attention_mask(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    bool causal = str_eq(graph_param_str(n, "mode"), "causal");
    struct flow tokens = {0}, tensor = {0};
    int64_t steps = 0;
    (void)flow_has(r, node, "tokens", &tokens);
    (void)flow_has(r, node, "tensor", &tensor);
    if (!causal && tokens.kind != FLOW_JSON)
        return err_set(e, ST_INVALID, "a padding mask needs the input 'tokens', a list");
    if (!length_of(&tokens, &tensor, &steps))
        return err_set(e, ST_INVALID, "a mask needs one of the inputs 'tokens' and 'tensor'");
    struct shape shape = causal ? SHAPE(steps, steps) : SHAPE(steps);
    struct flow_numbers *mask = flow_numbers_new(r, &shape, DT_BOOL, e);
    if (!mask)
        return ST_INVALID;
    bool *hidden = mask->data;
    const char *pad = graph_param_str(n, "pad_token");
    for (int64_t i = 0; i < steps; i++) {
        if (!causal)
            hidden[i] = str_eq(json_string_value(json_array_get(tokens.json, (size_t)i)), pad);
        for (int64_t k = 0; k < steps && causal; k++)
            hidden[i * steps + k] = k > i;
    }
    flow_set(r, node, "mask", (struct flow){.kind = FLOW_NUMBERS, .numbers = mask});
    return ST_OK;
}
