/* model.c - a model's variables and its forward pass. */
#include "base/str.h"
#include "ir/build.h"
#include "nn/adapter.h"
#include "nn/model_int.h"

#include <string.h>

/* Lists the variables: state and parameters, both in the order of the nodes. */
static void lists_make(struct model *m)
{
    size_t n = 0;
    for (int i = 0; i < m->n_layers; i++)
        n += m->layers[i].vars.n;
    m->state = ARENA_ARRAY(&m->arena, int, n + 1);
    m->params = ARENA_ARRAY(&m->arena, int, n + 1);
    for (int i = 0; i < m->n_layers; i++) {
        const struct layer *l = &m->layers[i];
        for (size_t k = 0; k < l->vars.n; k++) {
            m->state[m->n_state++] = l->vars.data[k].var;
            if (l->vars.data[k].parameter)
                m->params[m->n_params++] = l->vars.data[k].var;
        }
    }
}

static enum status layers_check(struct model *m, struct err *e)
{
    for (int i = 0; i < m->n_layers; i++) {
        struct layer *l = &m->layers[i];
        struct layer_check c = {.layer = l, .vars = m->vars, .e = e};
        l->node = ir_node_intern(m->vars, arena_printf(&m->arena, "%s/%s", m->node_id, l->id));
        TRY(l->type->check(&c));
    }
    return ST_OK;
}

struct model *model_new(const struct model_kind *kind, const char *node_id, struct ir_vars *vars)
{
    struct model *m = mem_alloc(sizeof *m);
    arena_init(&m->arena);
    m->kind = kind;
    m->vars = vars;
    m->node_id = arena_strdup(&m->arena, node_id);
    return m;
}

static const struct model_kind sequential;

enum status model_from_layers(
    const char *layers_json, const char *node_id, struct ir_vars *vars, struct model **out,
    struct err *e)
{
    struct model *m = model_new(&sequential, node_id, vars);
    enum status st = ST_OK;
    TRY_OUT(model_parse(m, layers_json, e));
    TRY_OUT(layers_check(m, e));
    lists_make(m);
    *out = m;
    return ST_OK;
out:
    if (e)
        err_node(e, node_id, sequential.node_type);
    model_free(m);
    return st;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n_layers; i++)
        vec_release(&m->layers[i].vars);
    arena_release(&m->arena);
    mem_free(m);
}

/* ---- what it is made of ---- */

int model_input_count(const struct model *m)
{
    return m->n_inputs;
}

int model_output_count(const struct model *m)
{
    return m->n_outputs;
}

const char *model_input_name(const struct model *m, int i)
{
    return m->inputs[i].name;
}

const char *model_output_name(const struct model *m, int i)
{
    return m->outputs[i].name;
}

int model_state_count(const struct model *m)
{
    return m->n_state;
}

int model_state_var(const struct model *m, int i)
{
    return m->state[i];
}

int model_alias_count(const struct model *m)
{
    return m->n_aliases;
}

const char *model_alias(const struct model *m, int i, int *var)
{
    *var = m->aliases[i].var;
    return m->aliases[i].name;
}

int model_param_count_vars(const struct model *m)
{
    return m->n_params;
}

int model_param_var(const struct model *m, int i)
{
    return m->params[i];
}

static int64_t count_params(const struct model *m, bool trainable_only)
{
    int64_t n = 0;
    for (int i = 0; i < m->n_params; i++) {
        const struct ir_var *v = &m->vars->list.data[m->params[i]];
        struct shape s = model_var_shape(m, m->params[i]);
        n += v->trainable || !trainable_only ? shape_count(&s) : 0;
    }
    return n;
}

int64_t model_parameter_count(const struct model *m)
{
    return count_params(m, false);
}

int64_t model_trainable_count(const struct model *m)
{
    return count_params(m, true);
}

bool model_has_batch_stats(const struct model *m)
{
    return m->n_state > m->n_params + m->n_scales;
}

const char *model_node_type(const struct model *m)
{
    return m->kind->node_type;
}

bool model_wants_checkpointing(const struct model *m)
{
    return m->wants_checkpointing;
}

bool model_has_dropout(const struct model *m)
{
    const struct adapter_config *c = model_adapter_config(m);
    return m->kind->has_dropout(m) || (c && c->dropout > 0);
}

enum dtype model_input_dtype_at(const struct model *m, int port)
{
    return m->kind->input_dtype(m, port);
}

enum dtype model_input_dtype(const struct model *m)
{
    return model_input_dtype_at(m, 0);
}

bool model_input_shape_hint(const struct model *m, struct shape *sample)
{
    return m->kind->input_shape_hint(m, sample);
}

void model_init_var(const struct model *m, int var, void *data, uint64_t seed)
{
    if (!adapter_init_var(m, var, data, seed))
        m->kind->init_var(m, var, data, seed);
}

/* ---- SequentialModel: what it wants ---- */

static bool sequential_has_dropout(const struct model *m)
{
    for (int i = 0; i < m->n_layers; i++)
        if ((str_eq(m->layers[i].type->name, "Dropout") && m->layers[i].params.p > 0) ||
            m->layers[i].params.dropout > 0)
            return true;
    return false;
}

static bool reads(const struct layer *l, int source)
{
    for (int i = 0; i < l->n_sources; i++)
        if (l->source[i] == source)
            return true;
    return false;
}

/* Does a layer hand indices on as they are? */
static bool passes_indices(const struct layer *l)
{
    static const char *const views[] = {"flatten", "reshape", "select"};
    for (int i = 0; i < 3; i++)
        if (str_eq(l->type->family, views[i]))
            return true;
    return false;
}

/* A value holds indices when an Embedding or a PaddingMask reads it, straight or through views. In
 * topological order from the end, so that each layer's readers are known before it. */
static enum dtype sequential_input_dtype(const struct model *m, int port)
{
    bool *indices = mem_alloc((size_t)m->n_layers + 1);
    bool found = false;
    for (int i = m->n_layers - 1; i >= 0; i--) {
        const struct layer *l = &m->layers[m->order[i]];
        bool wanted = str_eq(l->type->family, "embedding") ||
                      str_eq(l->type->family, "padding_mask") ||
                      (passes_indices(l) && indices[m->order[i]]);
        for (int k = 0; k < l->n_sources && wanted; k++)
            if (l->source[k] >= 0)
                indices[l->source[k]] = true;
        found = found || (wanted && reads(l, -1 - port));
    }
    mem_free(indices);
    return found ? DT_I64 : DT_F32;
}

static bool layer_hint(const struct layer *l, struct shape *s)
{
    const struct layer_params *a = &l->params;
    const char *family = l->type->family;
    if (str_eq(family, "linear"))
        *s = SHAPE(a->in_features);
    else if (str_eq(family, "conv") || str_eq(family, "conv_transpose"))
        *s = l->type->spatial == 2 ? SHAPE(a->in_channels, -1, -1) : SHAPE(a->in_channels, -1);
    else if (str_eq(l->type->name, "BatchNorm2d") || str_eq(family, "instance_norm"))
        *s = SHAPE(a->num_features, -1, -1);
    else if (str_eq(family, "layer_norm"))
        *s = a->normalized_shape;
    else if (a->input_size > 0)
        *s = SHAPE(-1, a->input_size);
    else if (a->embed_dim > 0 || a->d_model > 0)
        *s = SHAPE(-1, a->embed_dim > 0 ? a->embed_dim : a->d_model);
    else
        return false;
    return true;
}

static bool sequential_hint(const struct model *m, struct shape *sample)
{
    for (int i = 0; i < m->n_layers; i++)
        if (reads(&m->layers[i], -1) && layer_hint(&m->layers[i], sample))
            return true;
    return false;
}

/* ---- forward ---- */

/* The operators put "<layer id>: " in front of their errors; this says what kind of layer it is. */
static void blame(struct ir_program *p, const struct layer *l)
{
    size_t n = strlen(l->id);
    char *text = p->err.text;
    if (strncmp(text, l->id, n) == 0 && text[n] == ':' && text[n + 1] == ' ')
        memmove(text, text + n + 2, strlen(text + n + 2) + 1);
    err_prefix(&p->err, "layer \"%s\" (%s)", l->id, l->type->name);
}

/* What a source stands for: an input, or what a layer gave. */
static int value_of(int source, const int *inputs, const int *values)
{
    return source < 0 ? inputs[-1 - source] : values[source];
}

static int sources_max(const struct model *m)
{
    int n = 0;
    for (int i = 0; i < m->n_layers; i++)
        n = m->layers[i].n_sources > n ? m->layers[i].n_sources : n;
    return n;
}

static void
layers_run(const struct model *m, struct layer_run *r, const int *inputs, int *values, int *in)
{
    for (int i = 0; i < m->n_layers && r->p->err.status == ST_OK; i++) {
        const struct layer *l = &m->layers[m->order[i]];
        for (int k = 0; k < l->n_sources; k++)
            in[k] = value_of(l->source[k], inputs, values);
        r->layer = l;
        r->in = in;
        r->n_in = l->n_sources;
        r->p->node = l->node;
        values[m->order[i]] = l->type->forward(r);
        if (r->p->err.status != ST_OK)
            blame(r->p, l);
    }
}

/* The storage behind an output counts as logits, unless it is an input or a variable. */
static void outputs_mark(const struct model *m, struct ir_program *p, const int *outputs)
{
    for (int i = 0; i < m->n_outputs; i++) {
        struct ir_value *owner = ir_value_at(p, ir_storage(p, outputs[i]));
        if (owner->kind != VALUE_TEMP)
            continue;
        owner->category = CATEGORY_LOGITS;
        ir_value_at(p, outputs[i])->category = CATEGORY_LOGITS;
    }
}

static void sequential_forward(
    const struct model *m, struct ir_program *p, const int *inputs, bool training, int rng,
    int *outputs)
{
    int blocks = 0;
    struct layer_run r = {.model = m, .p = p, .training = training, .rng = rng, .blocks = &blocks};
    int *values = mem_alloc(((size_t)m->n_layers + 1) * sizeof *values);
    int *in = mem_alloc(((size_t)sources_max(m) + 1) * sizeof *in);
    layers_run(m, &r, inputs, values, in);
    for (int i = 0; i < m->n_outputs; i++)
        outputs[i] =
            p->err.status == ST_OK ? value_of(m->outputs[i].source, inputs, values) : IR_NONE;
    mem_free(values);
    mem_free(in);
}

enum status model_forward(
    const struct model *m, struct ir_program *p, const int *inputs, int n_inputs, bool training,
    int rng, int *outputs, struct err *e)
{
    TRY(ir_status(p, e));
    if (n_inputs != m->n_inputs) {
        (void)err_set(
            e, ST_INVALID, "the model takes %d inputs, and got %d", m->n_inputs, n_inputs);
        if (e)
            err_node(e, m->node_id, m->kind->node_type);
        return ST_INVALID;
    }
    int node = p->node, block = p->block;
    m->kind->forward(m, p, inputs, training, rng, outputs);
    p->node = node;
    p->block = block;
    if (p->err.status == ST_OK)
        outputs_mark(m, p, outputs);
    else
        err_node(&p->err, m->node_id, m->kind->node_type);
    return ir_status(p, e);
}

enum status model_layer_forward(
    const struct model *m, struct ir_program *p, const int *inputs, bool training, int rng,
    int outputs[MODEL_LAYER_OUTPUTS], struct err *e)
{
    const struct layer *l = &m->layers[0];
    int blocks = 0, in[8];
    ASSERT(m->n_layers == 1 && l->n_sources <= 8);
    for (int i = 0; i < MODEL_LAYER_OUTPUTS; i++)
        outputs[i] = IR_NONE;
    struct layer_run r = {
        .model = m,
        .layer = l,
        .p = p,
        .in = in,
        .n_in = l->n_sources,
        .training = training,
        .rng = rng,
        .more = outputs + 1,
        .blocks = &blocks};
    for (int i = 0; i < l->n_sources; i++)
        in[i] = value_of(l->source[i], inputs, NULL);
    outputs[0] = l->type->forward(&r);
    if (p->err.status != ST_OK)
        blame(p, l);
    return ir_status(p, e);
}

/* ---- starting values ---- */

static void sequential_init_var(const struct model *m, int var, void *data, uint64_t seed)
{
    const struct ir_var *v = &m->vars->list.data[var];
    for (int i = 0; i < m->n_layers; i++) {
        const struct layer *l = &m->layers[i];
        for (size_t k = 0; k < l->vars.n; k++) {
            if (l->vars.data[k].var != var)
                continue;
            const struct layer_var *as = &l->vars.data[l->vars.data[k].like];
            const char *name = m->vars->list.data[as->var].name;
            init_fill(&as->init, name, seed, v->dtype, shape_count(&v->shape), data);
        }
    }
}

static const struct model_kind sequential = {
    .node_type = "SequentialModel",
    .input_dtype = sequential_input_dtype,
    .input_shape_hint = sequential_hint,
    .has_dropout = sequential_has_dropout,
    .forward = sequential_forward,
    .init_var = sequential_init_var};

/* ---- the default ---- */

const char *model_default_layers(void)
{
    return "{\"version\":2,\"nodes\":["
           "{\"id\":\"in\",\"type\":\"Input\",\"ports\":[{\"id\":\"p_x\",\"name\":\"x\"}]},"
           "{\"id\":\"c1\",\"type\":\"Conv2d\",\"params\":{\"in_channels\":1,\"out_channels\":32,"
           "\"kernel_size\":3,\"stride\":1,\"padding\":1}},"
           "{\"id\":\"r1\",\"type\":\"ReLU\"},"
           "{\"id\":\"p1\",\"type\":\"MaxPool2d\",\"params\":{\"kernel_size\":2,\"stride\":2}},"
           "{\"id\":\"c2\",\"type\":\"Conv2d\",\"params\":{\"in_channels\":32,\"out_channels\":64,"
           "\"kernel_size\":3,\"stride\":1,\"padding\":1}},"
           "{\"id\":\"r2\",\"type\":\"ReLU\"},"
           "{\"id\":\"p2\",\"type\":\"MaxPool2d\",\"params\":{\"kernel_size\":2,\"stride\":2}},"
           "{\"id\":\"f\",\"type\":\"Flatten\"},"
           "{\"id\":\"l1\",\"type\":\"Linear\",\"params\":{\"in_features\":3136,"
           "\"out_features\":128}},"
           "{\"id\":\"r3\",\"type\":\"ReLU\"},"
           "{\"id\":\"l2\",\"type\":\"Linear\",\"params\":{\"in_features\":128,"
           "\"out_features\":10}},"
           "{\"id\":\"out\",\"type\":\"Output\",\"ports\":[{\"id\":\"p_y\",\"name\":\"y\"}]}],"
           "\"edges\":["
           "{\"source\":\"in\",\"sourceHandle\":\"p_x\",\"target\":\"c1\"},"
           "{\"source\":\"c1\",\"target\":\"r1\"},"
           "{\"source\":\"r1\",\"target\":\"p1\"},"
           "{\"source\":\"p1\",\"target\":\"c2\"},"
           "{\"source\":\"c2\",\"target\":\"r2\"},"
           "{\"source\":\"r2\",\"target\":\"p2\"},"
           "{\"source\":\"p2\",\"target\":\"f\"},"
           "{\"source\":\"f\",\"target\":\"l1\"},"
           "{\"source\":\"l1\",\"target\":\"r3\"},"
           "{\"source\":\"r3\",\"target\":\"l2\"},"
           "{\"source\":\"l2\",\"target\":\"out\",\"targetHandle\":\"p_y\"}]}";
}
