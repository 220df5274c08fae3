/* model_nodes.c - models, optimizers, losses, schedules; weights from initialisation and files. */
#include "runner/run_int.h"

#include "base/str.h"
#include "nn/peft.h"
#include "nn/weights.h"

#include <string.h>

struct flow_model *flow_model_new(struct run *r, const struct graph_node *n)
{
    struct flow_model *m = ARENA_NEW(&r->memory, struct flow_model);
    m->node_id = n->id;
    ir_vars_init(&m->vars);
    vec_push(&r->models, m);
    return m;
}

enum status node_sequential(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow_model *m = flow_model_new(r, n);
    TRY(model_from_layers(graph_param_str(n, "layers"), n->id, &m->vars, &m->model, e));
    flow_set(r, node, "model", (struct flow){.kind = FLOW_MODEL, .model = m});
    return ST_OK;
}

enum status node_optimizer(struct run *r, size_t node, struct err *e)
{
    struct flow in;
    TRY(flow_get(r, node, "model", FLOW_MODEL, &in, e));
    struct flow_optimizer *o = ARENA_NEW(&r->memory, struct flow_optimizer);
    o->model = in.model;
    json_t *params = graph_params_full(graph_node_at(r->graph, node));
    enum status st = optim_spec_make(params, &o->spec, e);
    json_decref(params);
    flow_set(r, node, "optimizer", (struct flow){.kind = FLOW_OPTIMIZER, .optimizer = o});
    return st;
}

enum status node_loss(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct loss_spec *l = ARENA_NEW(&r->memory, struct loss_spec);
    json_t *params = graph_params_full(n);
    enum status st = loss_spec_make(params, l, e);
    json_decref(params);
    l->node_id = n->id;
    if (st == ST_OK)
        vec_push(&r->losses, l);
    flow_set(r, node, "loss_fn", (struct flow){.kind = FLOW_LOSS, .loss = l});
    return st;
}

enum status node_scheduler(struct run *r, size_t node, struct err *e)
{
    struct flow in;
    TRY(flow_get(r, node, "optimizer", FLOW_OPTIMIZER, &in, e));
    struct flow_schedule *s = ARENA_NEW(&r->memory, struct flow_schedule);
    json_t *params = graph_params_full(graph_node_at(r->graph, node));
    enum status st = schedule_new(params, &in.optimizer->spec, &s->schedule, e);
    json_decref(params);
    if (st == ST_OK)
        vec_push(&r->schedules, s);
    flow_set(r, node, "scheduler", (struct flow){.kind = FLOW_SCHEDULE, .schedule = s});
    return st;
}

/* ---- weights ---- */

/* A checkpoint of a model with adapters holds its state as it is stored, adapters too. */
static bool is_stored(const struct tensorfile *f, const struct flow_model *m)
{
    if (model_adapter_count(m->model) == 0)
        return false;
    int var = model_adapter_at(m->model, 0)->a;
    return tensorfile_find(f, m->vars.list.data[var].name) != NULL;
}

/* The starting value of one variable, or what the last file that has it says. */
enum status flow_model_fill(int var, void *data, void *ctx, struct err *e)
{
    struct fill_ctx *c = ctx;
    struct flow_model *m = c->model;
    const struct ir_var *v = &m->vars.list.data[var];
    for (size_t i = m->loads.n; i-- > 0;) {
        struct tensorfile *f = c->files[i];
        /* Codes of a checkpoint are those that the base has anyway: it never changes. */
        if (is_stored(f, m) && model_quant_of(m->model, var))
            continue;
        if (tensorfile_find(f, v->name))
            return weights_read(f, m->model, &m->vars, var, data, e);
    }
    if (!model_var_in_files(m->model, var) && c->adapter)
        return peft_read(c->adapter, m->model, var, data, e);
    if (m->origin && model_var_in_files(m->model, var))
        return hf_read(m->origin, m->model, var, data, e);
    model_init_var(m->model, var, data, (uint64_t)c->run->seed);
    return ST_OK;
}

void flow_model_home(struct flow_model *m, struct exec *x, struct run_place *place, bool owned)
{
    m->home = x;
    m->home_place = place;
    m->owns_home = owned;
    m->home_vars = m->vars.list.n;
    m->home_dtype = fill_type(m->model, &m->vars);
}

/* Opens the model's files and checks that they fit; not strict: what does not match is said. */
enum status fill_begin(struct fill_ctx *c, struct run *r, struct flow_model *m, struct err *e)
{
    *c = (struct fill_ctx){.run = r, .model = m};
    c->files = mem_alloc((m->loads.n + 1) * sizeof(struct tensorfile *));
    enum status st = ST_OK;
    for (size_t i = 0; i < m->loads.n && st == ST_OK; i++) {
        struct tensorfile_match match = {0};
        st = tensorfile_open(m->loads.data[i], &c->files[i], e);
        if (st != ST_OK)
            break;
        st = weights_match(
            c->files[i], m->model, &m->vars, is_stored(c->files[i], m), m->strict.data[i], &match,
            e);
        if (st == ST_OK && (match.n_missing || match.n_unexpected || match.n_mismatched)) {
            struct str text;
            str_init(&text);
            tensorfile_match_text(&match, &text);
            run_warn(r, NULL, "weights", "\"%s\": %s", m->loads.data[i], text.data);
            str_release(&text);
        }
        tensorfile_match_release(&match);
    }
    if (st == ST_OK && m->adapter) {
        st = peft_open(m->adapter, m->model, &c->adapter, e);
        if (st != ST_OK)
            err_node(e, m->adapter_id, "snug:Adapter");
    }
    if (st != ST_OK)
        fill_end(c);
    return st;
}

void fill_end(struct fill_ctx *c)
{
    for (size_t i = 0; c->files && i < c->model->loads.n; i++)
        tensorfile_close(c->files[i]);
    tensorfile_close(c->adapter);
    mem_free(c->files);
    c->adapter = NULL;
    c->files = NULL;
}

enum status node_model_loader(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    char path[1024];
    struct flow in;
    if (flow_get(r, node, "model", FLOW_MODEL, &in, e) != ST_OK) {
        err_hint(
            e, "load_mode state_dict puts weights into a model: connect one to its input 'model'");
        return ST_INVALID;
    }
    const char *name = graph_param_str(n, "path");
    if (!name[0])
        return err_set(e, ST_INVALID, "parameter 'path' is empty: name the weights file");
    TRY(run_model_path(name, path, sizeof path, e));
    vec_push(&in.model->loads, arena_strdup(&r->memory, path));
    vec_push(&in.model->strict, graph_param_bool(n, "strict"));
    flow_set(r, node, "model", in);
    /* Weights that are in an arena already are replaced now. */
    if (in.model->home && !r->planning)
        return flow_model_refill(r, in.model, e);
    return ST_OK;
}

enum status flow_model_refill(struct run *r, struct flow_model *m, struct err *e)
{
    struct fill_ctx c;
    enum status st = fill_begin(&c, r, m, e);
    for (int i = 0; st == ST_OK && i < model_state_count(m->model); i++) {
        int var = model_state_var(m->model, i);
        const char *name = m->vars.list.data[var].name;
        struct train_weights w = {.fill = flow_model_fill, .ctx = &c};
        if (tensorfile_find(c.files[m->loads.n - 1], name))
            st = fill_states(m->model, &m->vars, m->home, &w, i, 1, e);
    }
    fill_end(&c);
    return st;
}
