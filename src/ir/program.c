/* program.c - values, operators and their emission; copying and rewriting of whole programs. */
#include "ir/program.h"

#include "base/str.h"
#include "ir/ops/ops_int.h"

#include <string.h>

enum { OUT_MAX = 16 };

const char *category_name(enum category c)
{
    static const char *const names[CATEGORY_COUNT] = {
        "parameters", "gradients", "optimizer_state", "buffers",       "activations",
        "logits",     "inputs",    "workspace",       "communication", "gaps"};
    return names[c];
}

struct ir_program *ir_program_new(const char *name, struct ir_vars *vars)
{
    struct ir_program *p = mem_alloc(sizeof *p);
    arena_init(&p->arena);
    p->name = arena_strdup(&p->arena, name ? name : "");
    p->vars = vars;
    p->node = p->block = IR_NONE;
    return p;
}

void ir_program_free(struct ir_program *p)
{
    if (!p)
        return;
    vec_release(&p->values);
    vec_release(&p->ops);
    vec_release(&p->var_value);
    vec_release(&p->outputs);
    arena_release(&p->arena);
    mem_free(p);
}

static int *copy_ints(struct arena *a, const int *from, int n)
{
    int *to = ARENA_ARRAY(a, int, n > 0 ? n : 1);
    for (int i = 0; i < n; i++)
        to[i] = from[i];
    return to;
}

struct ir_program *ir_program_clone(const struct ir_program *p, const char *name)
{
    struct ir_program *q = ir_program_new(name, p->vars);
    for (size_t i = 0; i < p->values.n; i++) {
        struct ir_value v = p->values.data[i];
        v.name = v.name ? arena_strdup(&q->arena, v.name) : NULL;
        vec_push(&q->values, v);
    }
    for (size_t i = 0; i < p->ops.n; i++) {
        struct ir_op op = p->ops.data[i];
        op.in = copy_ints(&q->arena, op.in, op.n_in);
        op.out = copy_ints(&q->arena, op.out, op.n_out);
        vec_push(&q->ops, op);
    }
    for (size_t i = 0; i < p->var_value.n; i++)
        vec_push(&q->var_value, p->var_value.data[i]);
    for (size_t i = 0; i < p->outputs.n; i++)
        vec_push(&q->outputs, p->outputs.data[i]);
    q->phase = p->phase;
    q->node = p->node;
    q->block = p->block;
    q->err = p->err;
    return q;
}

enum status ir_status(const struct ir_program *p, struct err *e)
{
    if (p->err.status != ST_OK && e)
        *e = p->err;
    return p->err.status;
}

/* ---- values ---- */

static int value_push(struct ir_program *p, struct ir_value v)
{
    int i = (int)p->values.n;
    if (v.base == IR_NONE) {
        v.base = i;
        v.offset = 0;
        tensor_row_strides(&v.shape, v.stride);
    }
    vec_push(&p->values, v);
    return i;
}

/* Sizes stay below 2^62 bytes, so that no later sum of a few of them overflows. */
static enum status size_check(const struct shape *s, enum dtype t, struct err *e)
{
    int64_t n = shape_count(s);
    for (int i = 0; i < s->rank; i++)
        if (s->dim[i] < 0 || s->dim[i] > (int64_t)1 << 62)
            return err_set(e, ST_INVALID, "a tensor cannot have the shape %s", TEXT(*s));
    if (n >= 0 && n <= ((int64_t)1 << 62) / dtype_size(t))
        return ST_OK;
    return err_set(e, ST_INVALID, "a tensor of shape %s is larger than 2^62 bytes", TEXT(*s));
}

/* Names the node: its graph node for the document, its own name in front of the text. */
void ir_blame_node(struct ir_program *p, const char *fallback)
{
    const char *name = NULL;
    if (p->node >= 0 && (size_t)p->node < p->vars->nodes.n)
        name = p->vars->nodes.data[p->node];
    if (!name || !*name) {
        if (*fallback)
            err_prefix(&p->err, "%s", fallback);
        return;
    }
    const char *slash = strchr(name, '/');
    err_prefix(&p->err, "%s", slash && slash[1] ? slash + 1 : name);
    char id[128] = "";
    size_t n = slash ? (size_t)(slash - name) : strlen(name);
    memcpy(id, name, n < sizeof id - 1 ? n : sizeof id - 1);
    err_node(&p->err, id, "");
}

int ir_input(struct ir_program *p, const char *name, enum dtype t, struct shape s)
{
    if (p->err.status != ST_OK)
        return IR_NONE;
    if (size_check(&s, t, &p->err) != ST_OK) {
        err_prefix(&p->err, "input \"%s\"", name);
        return IR_NONE;
    }
    struct ir_value v = {
        .kind = VALUE_INPUT,
        .dtype = t,
        .category = CATEGORY_INPUTS,
        .shape = s,
        .base = IR_NONE,
        .var = IR_NONE,
        .def = IR_NONE,
        .node = p->node,
        .name = name ? arena_strdup(&p->arena, name) : NULL};
    return value_push(p, v);
}

static struct ir_value var_version(const struct ir_program *p, int var)
{
    const struct ir_var *x = &p->vars->list.data[var];
    return (struct ir_value){
        .kind = VALUE_VAR,
        .dtype = x->dtype,
        .category = x->category,
        .shape = x->shape,
        .base = IR_NONE,
        .var = var,
        .def = IR_NONE,
        .node = x->node,
        .name = x->name};
}

static int *newest(struct ir_program *p, int var)
{
    while (p->var_value.n <= (size_t)var)
        vec_push(&p->var_value, IR_NONE);
    return &p->var_value.data[var];
}

int ir_var_read(struct ir_program *p, int var)
{
    if (p->err.status != ST_OK || var == IR_NONE)
        return IR_NONE;
    ASSERT(var >= 0 && (size_t)var < p->vars->list.n);
    int value = *newest(p, var);
    if (value != IR_NONE)
        return value;
    const struct ir_var *x = &p->vars->list.data[var];
    if (size_check(&x->shape, x->dtype, &p->err) != ST_OK) {
        err_prefix(&p->err, "%s", x->name);
        return IR_NONE;
    }
    value = value_push(p, var_version(p, var));
    *newest(p, var) = value;
    return value;
}

void ir_output(struct ir_program *p, int value, const char *name)
{
    value = ir_contiguous(p, value);
    if (p->err.status != ST_OK || value == IR_NONE)
        return;
    /* One value, one name: a second one names a view of it. */
    if (p->values.data[value].name && !str_eq(p->values.data[value].name, name)) {
        union op_attr attr = {.view.shape = p->values.data[value].shape};
        value = ir_emit(p, OP_RESHAPE, &value, 1, &attr);
    }
    p->values.data[value].name = arena_strdup(&p->arena, name);
    for (size_t i = 0; i < p->outputs.n; i++)
        if (p->outputs.data[i] == value)
            return;
    vec_push(&p->outputs, value);
}

int ir_output_find(const struct ir_program *p, const char *name)
{
    for (size_t i = 0; i < p->outputs.n; i++)
        if (str_eq(p->values.data[p->outputs.data[i]].name, name))
            return p->outputs.data[i];
    return IR_NONE;
}

int ir_input_find(const struct ir_program *p, const char *name)
{
    for (size_t i = 0; i < p->values.n; i++)
        if (p->values.data[i].kind == VALUE_INPUT && str_eq(p->values.data[i].name, name))
            return (int)i;
    return IR_NONE;
}

int ir_storage(const struct ir_program *p, int value)
{
    return p->values.data[value].base;
}

int64_t ir_value_bytes(const struct ir_program *p, int value)
{
    const struct ir_value *v = &p->values.data[value];
    return v->base == value ? shape_count(&v->shape) * dtype_size(v->dtype) : 0;
}

/* ---- emission ---- */

int ir_out(const struct ir_program *p, int i)
{
    if (p->err.status != ST_OK)
        return IR_NONE;
    const struct ir_op *op = &p->ops.data[p->ops.n - 1];
    ASSERT(i < op->n_out);
    return op->out[i];
}

static enum status operands_check(
    const struct ir_program *p, const struct ir_op_row *row, enum opcode code, const int *in,
    int n_in, struct err *e)
{
    if (n_in < row->n_in_min || (row->n_in_max >= 0 && n_in > row->n_in_max))
        return err_set(e, ST_INTERNAL, "operator \"%s\" given %d operands", row->name, n_in);
    for (int i = 0; i < n_in; i++) {
        ASSERT(in[i] < (int)p->values.n);
        if (in[i] < 0 && !ir_operand_optional(code, i))
            return err_set(e, ST_INTERNAL, "operator \"%s\" lacks operand %d", row->name, i);
    }
    return ST_OK;
}

/* Mutated operands must be the newest versions of different variables. */
static enum status
mutations_check(const struct ir_program *p, const struct ir_op *op, struct err *e)
{
    int n = ir_op_mutated(op);
    for (int i = 0; i < n; i++) {
        const struct ir_value *v = &p->values.data[op->in[i]];
        if (v->kind != VALUE_VAR || p->var_value.data[v->var] != op->in[i])
            return err_set(
                e, ST_INTERNAL, "operand %d of \"%s\" is not the newest version of a variable", i,
                ir_op_row(op->code)->name);
        for (int j = 0; j < i; j++)
            if (p->values.data[op->in[j]].var == v->var)
                return err_set(e, ST_INTERNAL, "variable \"%s\" is updated twice at once", v->name);
    }
    return ST_OK;
}

static enum status infer(struct ir_program *p, struct ir_op *op, struct ir_shape_out *out)
{
    const struct ir_op_row *row = ir_op_row(op->code);
    int n_out = row->n_out;
    TRY(mutations_check(p, op, &p->err));
    TRY(row->shape(p, op, out, &n_out, &p->err));
    ASSERT(n_out <= OUT_MAX);
    op->n_out = n_out;
    for (int i = 0; i < n_out; i++)
        TRY(size_check(&out[i].shape, out[i].dtype, &p->err));
    return ST_OK;
}

static int
output_push(struct ir_program *p, const struct ir_op *op, const struct ir_shape_out *out, int i)
{
    const struct ir_op_row *row = ir_op_row(op->code);
    if (i < ir_op_mutated(op)) {
        int var = p->values.data[op->in[i]].var;
        struct ir_value v = var_version(p, var);
        v.def = (int)p->ops.n;
        return *newest(p, var) = value_push(p, v);
    }
    struct ir_value v = {
        .kind = VALUE_TEMP,
        .dtype = out->dtype,
        .category = p->phase == PHASE_UPDATE ? CATEGORY_WORKSPACE : CATEGORY_ACTIVATIONS,
        .shape = out->shape,
        .base = IR_NONE,
        .var = IR_NONE,
        .def = (int)p->ops.n,
        .node = p->node};
    if (op->code == OP_REORDER)
        v.layout = op->attr.cast.layout;
    if (row->flags & OPF_VIEW) {
        v.base = ir_storage(p, op->in[0]);
        v.offset = out->offset;
        memcpy(v.stride, out->stride, sizeof v.stride);
        v.category = p->values.data[v.base].category;
    }
    return value_push(p, v);
}

int ir_emit(
    struct ir_program *p, enum opcode code, const int *in, int n_in, const union op_attr *attr)
{
    if (p->err.status != ST_OK)
        return IR_NONE;
    const struct ir_op_row *row = ir_op_row(code);
    if (operands_check(p, row, code, in, n_in, &p->err) != ST_OK) {
        ir_blame_node(p, row->name);
        return IR_NONE;
    }
    struct ir_op op = {
        .code = code,
        .phase = p->phase,
        .n_in = n_in,
        .in = copy_ints(&p->arena, in, n_in),
        .node = p->node,
        .block = p->phase == PHASE_FORWARD ? p->block : IR_NONE};
    if (attr)
        op.attr = *attr;
    for (int i = 0; i < n_in && !ir_reads_strided(code); i++)
        if (op.in[i] >= 0)
            op.in[i] = ir_contiguous(p, op.in[i]);
    struct ir_shape_out out[OUT_MAX] = {0};
    if (infer(p, &op, out) != ST_OK) {
        ir_blame_node(p, row->name);
        return IR_NONE;
    }
    op.out = ARENA_ARRAY(&p->arena, int, op.n_out);
    for (int i = 0; i < op.n_out; i++)
        op.out[i] = output_push(p, &op, &out[i], i);
    vec_push(&p->ops, op);
    return op.out[0];
}

/* ---- rewriting ---- */

/* The newest version of each variable: its first value, or what the last operator that updates it
 * made. */
static void versions_renew(struct ir_program *p)
{
    for (size_t i = 0; i < p->var_value.n; i++)
        p->var_value.data[i] = IR_NONE;
    for (size_t i = 0; i < p->values.n; i++) {
        const struct ir_value *v = &p->values.data[i];
        if (v->kind == VALUE_VAR && *newest(p, v->var) == IR_NONE)
            *newest(p, v->var) = (int)i;
    }
    for (size_t i = 0; i < p->ops.n; i++)
        for (int j = 0; j < ir_op_mutated(&p->ops.data[i]); j++) {
            int value = p->ops.data[i].out[j];
            *newest(p, p->values.data[value].var) = value;
        }
}

void ir_ops_replace(struct ir_program *p, const struct ir_op *ops, size_t n)
{
    struct ir_op *copy = mem_alloc(n * sizeof *copy + 1); /* `ops` may lie in p->ops */
    if (n)
        memcpy(copy, ops, n * sizeof *copy);
    p->ops.n = 0;
    for (size_t i = 0; i < n; i++)
        vec_push(&p->ops, copy[i]);
    mem_free(copy);
    for (size_t i = 0; i < p->values.n; i++)
        p->values.data[i].def = IR_NONE;
    for (size_t i = 0; i < n; i++)
        for (int j = 0; j < p->ops.data[i].n_out; j++)
            p->values.data[p->ops.data[i].out[j]].def = (int)i;
    versions_renew(p);
}

void ir_dead_code(struct ir_program *p)
{
    if (p->ops.n == 0 || p->err.status != ST_OK)
        return;
    bool *used = mem_alloc(p->values.n + 1);
    bool *keep = mem_alloc(p->ops.n);
    for (size_t i = 0; i < p->outputs.n; i++)
        used[p->outputs.data[i]] = true;
    for (size_t i = p->ops.n; i-- > 0;) {
        const struct ir_op *op = &p->ops.data[i];
        keep[i] = ir_op_mutated(op) > 0;
        for (int j = 0; j < op->n_out; j++)
            keep[i] = keep[i] || used[op->out[j]];
        for (int j = 0; j < op->n_in && keep[i]; j++)
            if (op->in[j] >= 0)
                used[op->in[j]] = true;
    }
    size_t n = 0;
    struct ir_op *ops = mem_alloc(p->ops.n * sizeof *ops);
    for (size_t i = 0; i < p->ops.n; i++)
        if (keep[i])
            ops[n++] = p->ops.data[i];
    ir_ops_replace(p, ops, n);
    mem_free(ops);
    mem_free(keep);
    mem_free(used);
}
