/* adapter.c - attaches adapters to a model, and takes them in again. */
#include "nn/adapter.h"

#include "base/rng.h"
#include "base/str.h"
#include "nn/init.h"
#include "nn/model_int.h"
#include "nn/transformer_int.h"

#include <math.h>
#include <string.h>

struct adaption {
    struct adapter_config config;
    struct adapter *list;
    int n;
    struct model_quant *quants;
    int n_quants;
};

/* A linear layer of the model. */
struct linear_place {
    const char *module;
    int weight;
    bool in_out, head, tied;
};
struct linear_places {
    VEC(struct linear_place) list;
};

/* ---- which linear layers there are ---- */

/* A tied head is called by its own name, not by the embedding's. */
static const char *place_name(const struct model *m, int weight, bool tied)
{
    for (int i = 0; tied && i < m->n_aliases; i++)
        if (m->aliases[i].var == weight && str_ends(m->aliases[i].name, ".weight"))
            return m->aliases[i].name;
    return m->vars->list.data[weight].name;
}

static void
place_add(struct model *m, struct linear_places *p, int weight, bool in_out, bool head, bool tied)
{
    const char *name = place_name(m, weight, tied);
    size_t n = strlen(name);
    if (!str_ends(name, ".weight"))
        return;
    struct linear_place place = {
        .module = arena_printf(&m->arena, "%.*s", (int)(n - strlen(".weight")), name),
        .weight = weight,
        .in_out = in_out,
        .head = head,
        .tied = tied};
    vec_push(&p->list, place);
}

static void
parts_add(struct model *m, struct linear_places *p, const struct part_vars *parts, int from, int to)
{
    const struct transformer *t = m->transformer;
    for (int k = from; k <= to; k++) {
        int w = parts[k].weight;
        if (w == IR_NONE || m->vars->list.data[w].shape.rank != 2 || k == PART_TOKENS ||
            k == PART_POSITIONS || k == PART_TYPES)
            continue;
        place_add(m, p, w, parts[k].in_out, k == PART_HEAD, w == t->part[PART_TOKENS].weight);
    }
}

/* In the order of the state_dict. The last linear layer of a SequentialModel is its head. */
static void places_find(struct model *m, struct linear_places *p)
{
    const struct transformer *t = m->transformer;
    if (t) {
        parts_add(m, p, t->part, 0, PART_EMBED_NORM);
        for (int64_t b = 0; b < t->c.layers; b++)
            parts_add(m, p, t->blocks[b].part, PART_NORM1, PART_DOWN);
        parts_add(m, p, t->part, PART_FINAL_NORM, PART_COUNT - 1);
        return;
    }
    int last = IR_NONE;
    for (int i = 0; i < m->n_layers; i++)
        if (str_eq(m->layers[m->order[i]].type->family, "linear"))
            last = m->order[i];
    for (int i = 0; i < m->n_layers; i++)
        if (str_eq(m->layers[i].type->family, "linear"))
            place_add(m, p, layer_var_find(&m->layers[i], "weight"), false, i == last, false);
}

/* One of the comma-separated names is the module, or the end of its name. */
static bool meant(const char *targets, const char *module)
{
    size_t length = strlen(module);
    for (const char *s = targets; *s;) {
        const char *end = strchr(s, ',');
        size_t n = end ? (size_t)(end - s) : strlen(s);
        const char *name = s;
        while (n && (*name == ' ' || *name == '\t'))
            name++, n--;
        while (n && (name[n - 1] == ' ' || name[n - 1] == '\t'))
            n--;
        if (n && n <= length && memcmp(module + length - n, name, n) == 0 &&
            (n == length || module[length - n - 1] == '.'))
            return true;
        s = end ? end + 1 : s + strlen(s);
    }
    return false;
}

static bool is_target(const struct model *m, const char *targets, const struct linear_place *p)
{
    if (strcmp(targets, "all-linear") == 0)
        return !(p->head && m->transformer);
    return meant(targets, p->module);
}

/* ---- variables ---- */

static void listed(struct model *m, int **list, int *n, int var)
{
    int *longer = ARENA_ARRAY(&m->arena, int, *n + 1);
    memcpy(longer, *list, sizeof *longer * (size_t)*n);
    longer[(*n)++] = var;
    *list = longer;
}

static int
var_add(struct model *m, const char *name, enum dtype t, struct shape s, bool trainable, int node)
{
    struct ir_var v = {
        .name = name,
        .dtype = t,
        .shape = s,
        .category = CATEGORY_PARAMETERS,
        .trainable = trainable,
        .of = IR_NONE,
        .node = node};
    int var = ir_var_new(m->vars, &v);
    listed(m, &m->state, &m->n_state, var);
    if (trainable)
        listed(m, &m->params, &m->n_params, var);
    else
        m->n_scales++;
    return var;
}

static void adapter_add(struct model *m, struct adaption *d, const struct linear_place *p)
{
    const struct adapter_config *c = &d->config;
    struct ir_var w = m->vars->list.data[p->weight];
    int64_t out = w.shape.dim[p->in_out ? 1 : 0], in = w.shape.dim[p->in_out ? 0 : 1];
    struct adapter a = {
        .module = p->module,
        .weight = p->weight,
        .in_out = p->in_out,
        .scale = c->alpha / (c->rslora ? sqrt((double)c->rank) : (double)c->rank)};
    const char *name = arena_printf(&m->arena, "%s.lora_A.weight", p->module);
    a.stream = (uint32_t)hash_name(name);
    a.a = var_add(m, name, DT_F32, SHAPE(c->rank, in), true, w.node);
    name = arena_printf(&m->arena, "%s.lora_B.weight", p->module);
    a.b = var_add(m, name, DT_F32, SHAPE(out, c->rank), true, w.node);
    d->list[d->n++] = a;
}

static void quant_add(struct model *m, struct adaption *d, int var)
{
    struct ir_var w = m->vars->list.data[var];
    int64_t n = shape_count(&w.shape), blocks = quant_blocks(n, QUANT_WEIGHT_BLOCK);
    bool nested = d->config.double_quant;
    struct model_quant q = {
        .kind = d->config.base,
        .shape = w.shape,
        .codes = var,
        .nested = IR_NONE,
        .offset = IR_NONE};
    m->vars->list.data[var].dtype = DT_U8;
    m->vars->list.data[var].shape = SHAPE(quant_code_bytes(q.kind, n));
    q.absmax = var_add(
        m, arena_printf(&m->arena, "%s.absmax", w.name), nested ? DT_U8 : DT_F32, SHAPE(blocks),
        false, w.node);
    if (nested) {
        q.nested = var_add(
            m, arena_printf(&m->arena, "%s.nested_absmax", w.name), DT_F32,
            SHAPE(quant_blocks(blocks, QUANT_NESTED_BLOCK)), false, w.node);
        q.offset = var_add(
            m, arena_printf(&m->arena, "%s.nested_offset", w.name), DT_F32, SHAPE(1), false,
            w.node);
    }
    d->quants[d->n_quants++] = q;
}

/* ---- attaching ---- */

static enum status
no_target(const struct adapter_config *c, const struct linear_places *p, struct err *e)
{
    struct str names;
    str_init(&names);
    for (size_t i = 0; i < p->list.n && i < 8; i++)
        str_printf(&names, "%s%s", i ? ", " : "", p->list.data[i].module);
    (void)err_set(
        e, ST_INVALID, "parameter 'targets': no linear layer is called \"%.200s\"", c->targets);
    err_hint(
        e, p->list.n ? "linear layers are %s%s" : "the model has no linear layers%s%s", names.data,
        p->list.n > 8 ? ", ..." : "");
    str_release(&names);
    return ST_INVALID;
}

static enum status
config_check(const struct model *m, const struct adapter_config *c, struct err *e)
{
    if (m->adapted)
        return err_set(e, ST_UNSUPPORTED, "the model has adapters already");
    if (c->rank < 1 || c->rank > 65536)
        return err_set(
            e, ST_INVALID, "parameter 'rank' is %lld, not in 1 .. 65536", (long long)c->rank);
    if (!isfinite(c->alpha))
        return err_set(e, ST_INVALID, "parameter 'alpha' is not a number");
    if (!(c->dropout >= 0 && c->dropout < 1))
        return err_set(e, ST_INVALID, "parameter 'dropout' is %g, not in [0, 1)", c->dropout);
    return ST_OK;
}

static enum status
attach(struct model *m, struct adaption *d, const struct linear_places *p, struct err *e)
{
    const struct adapter_config *c = &d->config;
    bool any = false;
    for (size_t i = 0; i < p->list.n; i++) {
        const struct linear_place *place = &p->list.data[i];
        if (!is_target(m, c->targets, place))
            continue;
        any = true;
        if (!place->tied)
            continue;
        (void)err_set(
            e, ST_INVALID,
            "parameter 'targets': \"%s\" shares its weight with the embedding, so an adapter on it "
            "could not be merged without changing the embedding",
            place->module);
        err_hint(e, "leave it out, or give the model a head of its own (tie_embeddings false)");
        return ST_INVALID;
    }
    if (!any)
        return no_target(c, p, e);
    for (int i = 0; i < m->n_params; i++)
        m->vars->list.data[m->params[i]].trainable = false;
    for (size_t i = 0; i < p->list.n; i++)
        if (is_target(m, c->targets, &p->list.data[i]))
            adapter_add(m, d, &p->list.data[i]);
    for (size_t i = 0; i < p->list.n && c->base != QUANT_NONE; i++)
        if (!p->list.data[i].head)
            quant_add(m, d, p->list.data[i].weight);
    return ST_OK;
}

enum status model_adapt(struct model *m, const struct adapter_config *c, struct err *e)
{
    struct linear_places p = {0};
    TRY(config_check(m, c, e));
    struct adaption *d = ARENA_NEW(&m->arena, struct adaption);
    places_find(m, &p);
    d->config = *c;
    d->config.targets = arena_strdup(&m->arena, c->targets);
    d->list = ARENA_ARRAY(&m->arena, struct adapter, p.list.n + 1);
    d->quants = ARENA_ARRAY(&m->arena, struct model_quant, p.list.n + 1);
    enum status st = attach(m, d, &p, e);
    if (st == ST_OK)
        m->adapted = d;
    vec_release(&p.list);
    return st;
}

/* ---- looking up ---- */

const struct adapter_config *model_adapter_config(const struct model *m)
{
    return m->adapted ? &m->adapted->config : NULL;
}

int model_adapter_count(const struct model *m)
{
    return m->adapted ? m->adapted->n : 0;
}

const struct adapter *model_adapter_at(const struct model *m, int i)
{
    return &m->adapted->list[i];
}

const struct adapter *model_adapter_of(const struct model *m, int weight_var)
{
    for (int i = 0; i < model_adapter_count(m); i++)
        if (m->adapted->list[i].weight == weight_var)
            return &m->adapted->list[i];
    return NULL;
}

const struct model_quant *model_quant_of(const struct model *m, int var)
{
    for (int i = 0; m->adapted && i < m->adapted->n_quants; i++)
        if (m->adapted->quants[i].codes == var)
            return &m->adapted->quants[i];
    return NULL;
}

bool model_var_in_files(const struct model *m, int var)
{
    for (int i = 0; i < model_adapter_count(m); i++)
        if (m->adapted->list[i].a == var || m->adapted->list[i].b == var)
            return false;
    return !model_var_is_scale(m, var);
}

bool model_var_is_scale(const struct model *m, int var)
{
    for (int i = 0; m->adapted && i < m->adapted->n_quants; i++) {
        const struct model_quant *q = &m->adapted->quants[i];
        if (q->absmax == var || q->nested == var || q->offset == var)
            return true;
    }
    return false;
}

struct shape model_var_shape(const struct model *m, int var)
{
    const struct model_quant *q = model_quant_of(m, var);
    return q ? q->shape : m->vars->list.data[var].shape;
}

bool adapter_init_var(const struct model *m, int var, void *data, uint64_t seed)
{
    const struct ir_var *v = &m->vars->list.data[var];
    for (int i = 0; i < model_adapter_count(m); i++) {
        const struct adapter *a = &m->adapted->list[i];
        if (a->a != var && a->b != var)
            continue;
        struct init init = a->a == var ? init_fan_in(v->shape.dim[1]) : init_constant(0);
        init_fill(&init, v->name, seed, v->dtype, shape_count(&v->shape), data);
        return true;
    }
    return false;
}

/* ---- values ---- */

void model_quantise(
    const struct model_quant *q, void *(*at)(int var, void *ctx), void *ctx, const float *x)
{
    struct quant_weight w = {
        .kind = q->kind,
        .n = shape_count(&q->shape),
        .codes = at(q->codes, ctx),
        .absmax = at(q->absmax, ctx),
        .nested = q->nested == IR_NONE ? NULL : at(q->nested, ctx),
        .offset = q->offset == IR_NONE ? NULL : at(q->offset, ctx)};
    quant_weight_store(&w, x);
}

static void *plain_at(const struct model_values *values, int var)
{
    enum dtype type = DT_F32;
    return var == IR_NONE ? NULL : (void *)(uintptr_t)values->at(var, &type, values->ctx);
}

static void base_read(const struct model *m, int var, const struct model_values *values, float *out)
{
    const struct model_quant *q = model_quant_of(m, var);
    struct shape s = model_var_shape(m, var);
    enum dtype type = m->vars->list.data[var].dtype;
    if (!q) {
        const void *x = values->at(var, &type, values->ctx);
        for (int64_t i = 0; i < shape_count(&s); i++)
            out[i] = (float)dtype_load(x, type, i);
        return;
    }
    struct quant_weight w = {
        .kind = q->kind,
        .n = shape_count(&s),
        .codes = plain_at(values, q->codes),
        .absmax = plain_at(values, q->absmax),
        .nested = plain_at(values, q->nested),
        .offset = plain_at(values, q->offset)};
    for (int64_t b = 0; b < quant_blocks(w.n, QUANT_WEIGHT_BLOCK); b++)
        (void)quant_weight_block(&w, b, out + b * QUANT_WEIGHT_BLOCK);
}

void model_merged(const struct model *m, int var, const struct model_values *values, float *out)
{
    const struct adapter *l = model_adapter_of(m, var);
    base_read(m, var, values, out);
    if (!l)
        return;
    enum dtype ta = DT_F32, tb = DT_F32;
    const void *a = values->at(l->a, &ta, values->ctx), *b = values->at(l->b, &tb, values->ctx);
    const struct shape *sa = &m->vars->list.data[l->a].shape, *sb = &m->vars->list.data[l->b].shape;
    int64_t rank = sa->dim[0], in = sa->dim[1], rows = sb->dim[0];
    double *sum = mem_alloc((size_t)(in + 1) * sizeof *sum);
    for (int64_t o = 0; o < rows; o++) {
        memset(sum, 0, (size_t)in * sizeof *sum);
        for (int64_t r = 0; r < rank; r++) {
            double f = l->scale * dtype_load(b, tb, o * rank + r);
            for (int64_t i = 0; i < in; i++)
                sum[i] += f * dtype_load(a, ta, r * in + i);
        }
        for (int64_t i = 0; i < in; i++) {
            float *w = out + (l->in_out ? i * rows + o : o * in + i);
            *w = (float)((double)*w + sum[i]);
        }
    }
    mem_free(sum);
}
