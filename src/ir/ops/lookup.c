/* lookup.c - embedding tables: shape, gradients, cost. */
#include "ir/ops/ops_int.h"

static enum status index_check(const struct ir_value *index, struct err *e)
{
    if (index->dtype == DT_I64 || index->dtype == DT_I32)
        return ST_OK;
    return err_set(
        e, ST_INVALID, "expected indices of type int64 or int32, got %s", dtype_name(index->dtype));
}

enum status shape_embedding(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *index = op_in(p, op, 0), *table = op_in(p, op, 1);
    TRY(index_check(index, e));
    if (table->shape.rank != 2)
        return err_set(e, ST_INVALID, "'weight' must be 2-D, got %s", TEXT(table->shape));
    if (op->attr.embed.padding_idx >= table->shape.dim[0])
        return err_set(
            e, ST_INVALID, "padding_idx must be within num_embeddings, got %lld for %lld rows",
            (long long)op->attr.embed.padding_idx, (long long)table->shape.dim[0]);
    if (index->shape.rank == RANK_MAX)
        return err_set(e, ST_INVALID, "indices of rank %d are too deep", RANK_MAX);
    out->dtype = table->dtype;
    out->shape = index->shape;
    out->shape.dim[out->shape.rank++] = table->shape.dim[1];
    return ST_OK;
}

enum status shape_embedding_grad(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *index = op_in(p, op, 0), *dy = op_in(p, op, 1);
    TRY(index_check(index, e));
    struct shape lead = dy->shape;
    lead.rank--;
    if (dy->shape.rank < 1 || !shape_eq(&lead, &index->shape))
        return err_set(
            e, ST_INVALID, "a gradient of %s for indices of %s", TEXT(dy->shape),
            TEXT(index->shape));
    out->dtype = dy->dtype;
    out->shape = SHAPE(op->attr.embed.rows, dy->shape.dim[lead.rank]);
    const struct ir_value *into = op_in(p, op, 2);
    if (into && !shape_eq(&into->shape, &out->shape))
        return err_set(
            e, ST_INVALID, "rows for a table of %s cannot be added to %s", TEXT(out->shape),
            TEXT(into->shape));
    if (into)
        out->dtype = into->dtype;
    return ST_OK;
}

/* A table that has a gradient already (the head is tied to it) gets its rows added there. */
void grad_embedding(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    union op_attr attr = op->attr;
    attr.embed.rows = value_shape(p, op->in[1]).dim[0];
    int table = op->in[1];
    int in[] = {op->in[0], grad_out(g, op, 0), ir_contiguous(p, ir_grad_get(g, table))};
    if (in[2] == IR_NONE)
        ir_grad_add(g, table, ir_emit(p, OP_EMBEDDING_GRAD, in, 2, &attr));
    else
        ir_grad_replace(g, table, ir_emit(p, OP_EMBEDDING_GRAD, in, 3, &attr));
}

/* Only the rows looked up are moved. */
void cost_embedding(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    const struct ir_value *y = &p->values.data[op->out[0]];
    *c = (struct ir_cost){.bytes = 2.0 * (double)shape_count(&y->shape) * dtype_size(y->dtype)};
}

void cost_embedding_grad(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_moves(p, op, c);
    const struct ir_value *dy = op_in(p, op, 1), *into = op_in(p, op, 2);
    c->flops = (double)shape_count(&dy->shape);
    if (into) /* only the rows looked up are moved */
        c->bytes = 3.0 * c->flops * dtype_size(dy->dtype);
}
