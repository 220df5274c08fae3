/* verify.c - checks the invariants of program.h, by their numbers there. */
#include "ir/ops/ops_int.h"

#include <string.h>

struct walk {
    const struct ir_program *p;
    bool *defined; /* by value */
    int *current;  /* by variable: the version that may be read now */
    struct err *e;
};

static bool value_known(const struct ir_program *p, int value)
{
    return value >= 0 && (size_t)value < p->values.n;
}

/* 4. A view lies inside its base, and a base is no view. */
static enum status storage_check(const struct ir_program *p, int i, struct err *e)
{
    const struct ir_value *v = &p->values.data[i];
    if (!value_known(p, v->base) || p->values.data[v->base].base != v->base)
        return err_set(e, ST_INTERNAL, "%%%d has base %%%d, which owns no storage", i, v->base);
    if (v->layout != LAYOUT_ROW) {
        if (v->base != i || v->shape.rank < 3)
            return err_set(
                e, ST_INTERNAL, "%%%d has layout %s but is a view or too flat", i,
                layout_name(v->layout));
        if (v->layout == LAYOUT_C16 && v->shape.dim[1] % 16)
            return err_set(
                e, ST_INTERNAL, "%%%d has layout c16 with channels of %s", i, TEXT(v->shape));
        return ST_OK;
    }
    int64_t last = v->offset, count = shape_count(&v->shape);
    bool bad = v->offset < 0;
    for (int d = 0; d < v->shape.rank && count > 0; d++) {
        bad = bad || v->stride[d] < 0;
        int64_t reach;
        bad = bad || __builtin_mul_overflow(v->shape.dim[d] - 1, v->stride[d], &reach) ||
              __builtin_add_overflow(last, reach, &last);
    }
    if (bad || (count > 0 && last >= shape_count(&p->values.data[v->base].shape)))
        return err_set(e, ST_INTERNAL, "view %%%d leaves the storage of %%%d", i, v->base);
    if (v->base == i && (v->offset != 0 || !value_dense(v)))
        return err_set(e, ST_INTERNAL, "%%%d owns its storage but is not dense", i);
    return ST_OK;
}

static enum status value_check(const struct ir_program *p, int i, struct err *e)
{
    const struct ir_value *v = &p->values.data[i];
    if (v->shape.rank < 0 || v->shape.rank > RANK_MAX || v->dtype < 0 || v->dtype >= DT_COUNT ||
        v->layout < 0 || v->layout > LAYOUT_C16)
        return err_set(e, ST_INTERNAL, "%%%d has no valid type", i);
    for (int d = 0; d < v->shape.rank; d++)
        if (v->shape.dim[d] < 0)
            return err_set(e, ST_INTERNAL, "%%%d has shape %s", i, TEXT(v->shape));
    if ((v->kind == VALUE_VAR) != (v->var != IR_NONE) ||
        (v->var != IR_NONE && (v->var < 0 || (size_t)v->var >= p->vars->list.n)))
        return err_set(e, ST_INTERNAL, "%%%d belongs to no variable", i);
    if (v->kind == VALUE_VAR) {
        const struct ir_var *x = &p->vars->list.data[v->var];
        if (x->dtype != v->dtype || !shape_eq(&x->shape, &v->shape))
            return err_set(e, ST_INTERNAL, "%%%d differs in type from variable \"%s\"", i, x->name);
    }
    return storage_check(p, i, e);
}

/* 3. Values that variables own are read in their newest version only. */
static enum status version_check(const struct walk *w, int value, struct err *e)
{
    const struct ir_value *base = &w->p->values.data[w->p->values.data[value].base];
    if (base->kind != VALUE_VAR || w->current[base->var] == w->p->values.data[value].base)
        return ST_OK;
    return err_set(
        e, ST_INTERNAL, "%%%d is an old version of variable \"%s\"", value,
        w->p->vars->list.data[base->var].name);
}

static enum status operands_check(const struct walk *w, const struct ir_op *op)
{
    const struct ir_op_row *row = ir_op_row(op->code);
    if (op->n_in < row->n_in_min || (row->n_in_max >= 0 && op->n_in > row->n_in_max))
        return err_set(w->e, ST_INTERNAL, "%d operands", op->n_in);
    for (int i = 0; i < op->n_in; i++) {
        int value = op->in[i];
        if (value == IR_NONE && ir_operand_optional(op->code, i))
            continue;
        if (!value_known(w->p, value) || !w->defined[value])
            return err_set(
                w->e, ST_INTERNAL, "operand %d, %%%d, is not defined before its use", i, value);
        TRY(version_check(w, value, w->e));
        const struct ir_value *v = &w->p->values.data[value];
        if (!ir_reads_strided(op->code) && !value_dense(v))
            return err_set(w->e, ST_INTERNAL, "operand %d, %%%d, is not dense", i, value);
        if (v->layout != LAYOUT_ROW && !(row->flags & (OPF_CHANNEL | OPF_ELEMENT)))
            return err_set(
                w->e, ST_INTERNAL, "operand %d, %%%d, has layout %s", i, value,
                layout_name(v->layout));
    }
    return ST_OK;
}

/* 2. Types are what the shape rule says; views lie where it says. */
static enum status types_check(const struct walk *w, const struct ir_op *op)
{
    struct ir_shape_out out[16] = {0};
    const struct ir_op_row *row = ir_op_row(op->code);
    int n_out = row->n_out;
    TRY(row->shape(w->p, op, out, &n_out, w->e));
    if (n_out != op->n_out)
        return err_set(w->e, ST_INTERNAL, "%d results, not %d", op->n_out, n_out);
    for (int i = 0; i < n_out; i++) {
        if (!value_known(w->p, op->out[i]))
            return err_set(w->e, ST_INTERNAL, "result %d is no value", i);
        const struct ir_value *v = &w->p->values.data[op->out[i]];
        if (v->dtype != out[i].dtype || !shape_eq(&v->shape, &out[i].shape))
            return err_set(
                w->e, ST_INTERNAL, "result %%%d is %s%s, inferred %s%s", op->out[i],
                dtype_short(v->dtype), TEXT(v->shape), dtype_short(out[i].dtype),
                TEXT(out[i].shape));
    }
    if (!(row->flags & OPF_VIEW))
        return ST_OK;
    const struct ir_value *v = &w->p->values.data[op->out[0]];
    bool same = v->base == ir_storage(w->p, op->in[0]) && v->offset == out[0].offset;
    for (int d = 0; d < v->shape.rank; d++)
        same = same && v->stride[d] == out[0].stride[d];
    if (!same)
        return err_set(
            w->e, ST_INTERNAL, "view %%%d does not lie where its operand does", op->out[0]);
    return ST_OK;
}

/* 1. Every value is defined once. 3. Mutated operands get their next versions. */
static enum status results_check(const struct walk *w, const struct ir_op *op, int index)
{
    int mutated = ir_op_mutated(op);
    for (int i = 0; i < op->n_out; i++) {
        const struct ir_value *v = &w->p->values.data[op->out[i]];
        if (w->defined[op->out[i]] || v->def != index)
            return err_set(
                w->e, ST_INTERNAL, "%%%d is defined twice, or its definition is wrong", op->out[i]);
        w->defined[op->out[i]] = true;
        bool view = ir_op_row(op->code)->flags & OPF_VIEW;
        if (!view && v->base != op->out[i])
            return err_set(
                w->e, ST_INTERNAL, "%%%d is a view made by no view operator", op->out[i]);
        if ((i < mutated) != (v->kind == VALUE_VAR) || v->kind == VALUE_INPUT)
            return err_set(w->e, ST_INTERNAL, "%%%d is of the wrong kind", op->out[i]);
        if (i >= mutated)
            continue;
        if (w->p->values.data[op->in[i]].var != v->var)
            return err_set(w->e, ST_INTERNAL, "%%%d is a version of another variable", op->out[i]);
        w->current[v->var] = op->out[i];
    }
    return ST_OK;
}

static enum status op_check(const struct walk *w, int index)
{
    const struct ir_op *op = &w->p->ops.data[index];
    if (op->code < 0 || op->code >= OP_COUNT)
        return err_set(w->e, ST_INTERNAL, "unknown operator");
    if (op->node != IR_NONE && (op->node < 0 || (size_t)op->node >= w->p->vars->nodes.n))
        return err_set(w->e, ST_INTERNAL, "no node %d", op->node);
    TRY(operands_check(w, op));
    TRY(types_check(w, op));
    return results_check(w, op, index);
}

static enum status values_check(const struct walk *w)
{
    for (size_t i = 0; i < w->p->values.n; i++) {
        const struct ir_value *v = &w->p->values.data[i];
        TRY(value_check(w->p, (int)i, w->e));
        if (v->kind == VALUE_TEMP || v->def != IR_NONE)
            continue;
        w->defined[i] = true;
        /* Versions whose operator was removed stay in the table, unread. */
        if (v->kind == VALUE_VAR && w->current[v->var] == IR_NONE)
            w->current[v->var] = (int)i;
    }
    return ST_OK;
}

static enum status outputs_check(const struct walk *w)
{
    for (size_t i = 0; i < w->p->outputs.n; i++) {
        int value = w->p->outputs.data[i];
        if (!value_known(w->p, value) || !w->defined[value])
            return err_set(w->e, ST_INTERNAL, "output %%%d is not defined", value);
        TRY(version_check(w, value, w->e));
    }
    for (size_t i = 0; i < w->p->var_value.n; i++)
        if (w->p->var_value.data[i] != w->current[i])
            return err_set(
                w->e, ST_INTERNAL, "the newest version of \"%s\" is %%%d, not %%%d",
                w->p->vars->list.data[i].name, w->current[i], w->p->var_value.data[i]);
    return ST_OK;
}

static enum status walk_all(const struct walk *w)
{
    TRY(values_check(w));
    for (size_t i = 0; i < w->p->ops.n; i++) {
        enum status st = op_check(w, (int)i);
        if (st == ST_OK)
            continue;
        enum opcode code = w->p->ops.data[i].code;
        err_prefix(
            w->e, "operator %zu (%s)", i, (unsigned)code < OP_COUNT ? ir_op_row(code)->name : "?");
        return st;
    }
    return outputs_check(w);
}

enum status ir_verify(const struct ir_program *p, struct err *e)
{
    struct err own;
    struct walk w = {
        .p = p,
        .defined = mem_alloc(p->values.n + 1),
        .current = mem_alloc((p->vars->list.n + 1) * sizeof(int)),
        .e = e ? e : &own};
    for (size_t i = 0; i <= p->vars->list.n; i++)
        w.current[i] = IR_NONE;
    enum status st = ir_status(p, w.e);
    if (st == ST_OK) {
        st = walk_all(&w);
        if (st != ST_OK) { /* a shape rule's refusal is our own fault here */
            st = w.e->status = ST_INTERNAL;
            err_prefix(w.e, "program \"%s\"", p->name);
        }
    }
    mem_free(w.defined);
    mem_free(w.current);
    return st;
}
