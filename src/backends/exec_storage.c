/* exec_storage.c - folds views and in-place operators into storages with sizes and lifetimes. */
#include "backends/exec_int.h"

#include <string.h>

/* What is known of a value's own storage while folding. */
struct fold {
    int owner; /* value whose storage this one uses (path-compressed by find) */
    int64_t first, last;
    bool kept;    /* read by the host: live to the end */
    bool outside; /* lies in a variable */
    bool absent;  /* a temporary that no operator defines any more: passes leave some behind */
};

struct folding {
    const struct ir_program *p;
    struct fold *f;
};

static int find(struct fold *f, int v)
{
    while (f[v].owner != v)
        v = f[v].owner = f[f[v].owner].owner;
    return v;
}

static void see_use(struct folding *w, int v, int64_t op)
{
    struct fold *s = &w->f[find(w->f, v)];
    if (op > s->last)
        s->last = op;
}

/* Base values own storages; views follow their base, versions of variables are outside. */
static void start(struct folding *w)
{
    const struct ir_program *p = w->p;
    for (int v = 0; v < (int)p->values.n; v++) {
        const struct ir_value *value = ir_value_at(p, v);
        struct fold *f = &w->f[v];
        f->owner = value->base;
        f->outside = ir_value_at(p, value->base)->kind == VALUE_VAR;
        f->first = value->def == IR_NONE ? 0 : value->def;
        f->last = f->first;
        f->absent = value->kind == VALUE_TEMP;
    }
    for (int i = 0; i < (int)p->ops.n; i++) {
        const struct ir_op *op = &p->ops.data[i];
        for (int k = 0; k < op->n_in; k++)
            if (op->in[k] != IR_NONE)
                see_use(w, op->in[k], i);
        for (int k = 0; k < op->n_out; k++) {
            w->f[op->out[k]].absent = false;
            see_use(w, op->out[k], i);
        }
    }
    for (size_t i = 0; i < p->outputs.n; i++) {
        struct fold *f = &w->f[find(w->f, p->outputs.data[i])];
        f->kept = true;
        f->last = (int64_t)p->ops.n - 1;
    }
}

/* Whether a value fills its storage without holes, so that an equal one can replace it. */
static bool dense(const struct ir_program *p, int v)
{
    const struct ir_value *value = ir_value_at(p, v);
    if (value->layout != LAYOUT_ROW)
        return true;
    struct tensor t = {.layout = LAYOUT_ROW, .shape = value->shape};
    memcpy(t.stride, value->stride, sizeof t.stride);
    return tensor_contiguous(&t);
}

static bool same_form(const struct ir_value *a, const struct ir_value *b)
{
    return shape_eq(&a->shape, &b->shape) && a->layout == b->layout &&
           dtype_size(a->dtype) == dtype_size(b->dtype);
}

/* Whether output 0 of op i may take the storage of operand k. */
static bool may_take(struct folding *w, const struct ir_op *op, int i, int k)
{
    const struct ir_program *p = w->p;
    int in = op->in[k], out = op->out[0];
    if (in == IR_NONE || !ir_may_overwrite(op, k))
        return false;
    int root = find(w->f, in);
    const struct fold *f = &w->f[root];
    const struct ir_value *a = ir_value_at(p, in), *b = ir_value_at(p, out);
    if (f->outside || f->kept || f->last != i || !same_form(a, b) || a->offset != 0)
        return false;
    if (!dense(p, in) || ir_value_bytes(p, a->base) != ir_value_bytes(p, out))
        return false;
    /* Another operand in the same storage must be the very same value. */
    for (int j = 0; j < op->n_in; j++)
        if (op->in[j] != IR_NONE && op->in[j] != in && find(w->f, op->in[j]) == root)
            return false;
    return true;
}

static void fold_in_place(struct folding *w)
{
    for (int i = 0; i < (int)w->p->ops.n; i++) {
        const struct ir_op *op = &w->p->ops.data[i];
        if (!(ir_op_row(op->code)->flags & OPF_INPLACE) || op->n_out == 0)
            continue;
        int out = op->out[0], owner = find(w->f, out);
        if (owner != out || w->f[out].outside)
            continue;
        for (int k = 0; k < op->n_in; k++) {
            if (!may_take(w, op, i, k))
                continue;
            struct fold *to = &w->f[find(w->f, op->in[k])];
            w->f[out].owner = find(w->f, op->in[k]);
            if (w->f[out].last > to->last)
                to->last = w->f[out].last;
            to->kept = to->kept || w->f[out].kept;
            break;
        }
    }
}

static void add_storage(
    struct exec_storages *s, int64_t bytes, const struct fold *f, enum category category, int node)
{
    s->buffers[s->n] = (struct mem_plan_buffer){
        .size_bytes = bytes ? bytes + EXEC_RED_ZONE : 0,
        .first = f->first,
        .last = f->last,
        .tag = (int)category};
    s->category[s->n] = (int)category;
    s->node[s->n] = node;
    s->n++;
}

void exec_storages_make(const struct ir_program *p, bool in_place, struct exec_storages *out)
{
    size_t n_values = p->values.n, n_ops = p->ops.n;
    struct folding w = {p, mem_alloc(n_values * sizeof *w.f)};
    start(&w);
    if (in_place)
        fold_in_place(&w);
    size_t cap = n_values + n_ops;
    *out = (struct exec_storages){
        .buffers = mem_alloc(cap * sizeof *out->buffers),
        .of_value = mem_alloc(n_values * sizeof *out->of_value),
        .of_workspace = mem_alloc(n_ops * sizeof *out->of_workspace),
        .node = mem_alloc(cap * sizeof *out->node),
        .category = mem_alloc(cap * sizeof *out->category)};
    for (int v = 0; v < (int)n_values; v++) {
        const struct ir_value *value = ir_value_at(p, v);
        out->of_value[v] = IR_NONE;
        if (find(w.f, v) != v || w.f[v].outside || w.f[v].absent)
            continue;
        out->of_value[v] = (int)out->n;
        add_storage(out, ir_value_bytes(p, v), &w.f[v], value->category, value->node);
    }
    for (int v = 0; v < (int)n_values; v++)
        out->of_value[v] = out->of_value[find(w.f, v)];
    for (int i = 0; i < (int)n_ops; i++) {
        const struct ir_op *op = &p->ops.data[i];
        out->of_workspace[i] = op->workspace_bytes > 0 ? (int)out->n : IR_NONE;
        struct fold f = {.first = i, .last = i};
        if (op->workspace_bytes > 0)
            add_storage(out, op->workspace_bytes, &f, CATEGORY_WORKSPACE, op->node);
    }
    mem_free(w.f);
}

void exec_storages_release(struct exec_storages *s)
{
    mem_free(s->buffers);
    mem_free(s->of_value);
    mem_free(s->of_workspace);
    mem_free(s->node);
    mem_free(s->category);
    mem_free(s->again);
    mem_free(s->again_from);
    *s = (struct exec_storages){0};
}
