/* torch_attention.c - attention as PyTorch code writes it out (CPU), or as its flash kernel (CUDA).
 */
#include "plan/torch_style_int.h"

struct heads {
    struct tensor_of q, k, v;
    int64_t batch, queries, keys, n, kv_n, dim;
};

static int64_t scores_of(const struct heads *h)
{
    return h->batch * h->n * h->queries * h->keys;
}

/* A dense copy of a permuted view: what the product reads and keeps. */
static struct tensor_of dense(struct replay *r, struct tensor_of x, int64_t n)
{
    struct tensor_of y = {0, n, x.size};
    bool same = n == x.n;
    y.v = replay_apply(
        r, (struct tape_op){
               .what = "copy of heads",
               .in = {x.v},
               .n_in = 1,
               .alias_in = same,
               .bytes = replay_bytes(y)});
    return y;
}

static struct tensor_of score_step(
    struct replay *r, struct tensor_of x, const char *what, bool save_out, int64_t keep, bool alias)
{
    struct tensor_of y = x;
    y.v = replay_apply(
        r, (struct tape_op){
               .what = what,
               .in = {x.v},
               .n_in = 1,
               .save_out = save_out,
               .alias_in = alias,
               .bytes = replay_bytes(y),
               .keep_bytes = keep});
    tape_drop(r->t, x.v);
    return y;
}

static struct tensor_of
multiply(struct replay *r, struct tensor_of a, struct tensor_of b, int64_t n, const char *what)
{
    struct tensor_of y = {0, n, a.size};
    y.v = replay_apply(
        r, (struct tape_op){
               .what = what, .in = {a.v, b.v}, .n_in = 2, .save_in = 3, .bytes = replay_bytes(y)});
    return y;
}

/* softmax(q k' scale + mask) v, every step a tensor. */
static struct tensor_of plain(struct replay *r, const struct ir_op *op, const struct heads *h)
{
    int64_t all = h->batch * h->n * h->dim;
    bool masked = op->attr.attention.causal || (op->n_in > 3 && op->in[3] != IR_NONE);
    struct tensor_of q = dense(r, h->q, all * h->queries), k = dense(r, h->k, all * h->keys);
    struct tensor_of s = multiply(r, q, k, scores_of(h), "q k'");
    tape_drop(r->t, q.v);
    tape_drop(r->t, k.v);
    s = score_step(r, s, "scale", false, 0, false);
    if (masked)
        s = score_step(r, s, "mask", false, 0, !op->attr.attention.causal);
    if (r->o->autocast && r->o->cuda) {
        struct tensor_of wide = replay_cast(r, s, 4);
        tape_drop(r->t, s.v);
        s = wide;
    }
    s = score_step(r, s, "softmax", true, 0, false);
    if (op->attr.attention.dropout > 0)
        s = score_step(r, s, "dropout", false, r->o->cuda ? s.n : replay_bytes(s), false);
    if (s.size != h->v.size) {
        struct tensor_of low = replay_cast(r, s, h->v.size);
        tape_drop(r->t, s.v);
        s = low;
    }
    struct tensor_of v = dense(r, h->v, all * h->keys);
    struct tensor_of y = multiply(r, s, v, all * h->queries, "scores v");
    tape_drop(r->t, s.v);
    tape_drop(r->t, v.v);
    struct tensor_of z = dense(r, y, y.n);
    tape_drop(r->t, y.v);
    return z;
}

static struct tensor_of flash(struct replay *r, const struct heads *h)
{
    struct tensor_of y = {0, h->batch * h->n * h->dim * h->queries, h->q.size};
    y.v = replay_apply(
        r, (struct tape_op){
               .what = "flash attention",
               .in = {h->q.v, h->k.v, h->v.v},
               .n_in = 3,
               .save_in = 7,
               .save_out = true,
               .bytes = replay_bytes(y),
               .keep_bytes = h->batch * h->n * h->queries * 4,
               .grad_temporary = 4 * y.n});
    return y;
}

void replay_attention(struct replay *r, const struct ir_op *op)
{
    const struct attention_attr *a = &op->attr.attention;
    const struct shape *q = &ir_value_at(r->p, op->in[0])->shape;
    bool packed = op->n_in < 2 || op->in[1] == IR_NONE;
    struct heads h = {
        .batch = q->dim[0],
        .queries = q->dim[1],
        .n = a->heads,
        .kv_n = a->kv_heads,
        .dim = q->dim[3]};
    if (h.kv_n == 0)
        h.kv_n = h.n;
    h.keys = packed ? h.queries : ir_value_at(r->p, op->in[1])->shape.dim[1];
    struct tensor_of in = replay_low(r, op, 0), y;
    int64_t rows = h.batch * h.dim;
    h.q = (struct tensor_of){in.v, rows * h.queries * h.n, in.size};
    h.k = h.v = (struct tensor_of){in.v, rows * h.keys * h.kv_n, in.size};
    int part[3];
    if (packed) {
        int64_t bytes[3] = {replay_bytes(h.q), replay_bytes(h.k), replay_bytes(h.v)};
        tape_split(r->t, in.v, bytes, 3, part);
        h.q.v = part[0];
        h.k.v = part[1];
        h.v.v = part[2];
    } else {
        h.k = replay_low(r, op, 1);
        h.v = replay_low(r, op, 2);
    }
    y = r->o->plain_attention ? plain(r, op, &h) : flash(r, &h);
    for (int i = 0; packed && i < 3; i++)
        tape_drop(r->t, part[i]);
    if (!packed) {
        replay_done(r, replay_in(r, op, 1), h.k);
        replay_done(r, replay_in(r, op, 2), h.v);
    }
    replay_done(r, replay_in(r, op, 0), in);
    replay_out(r, op, 0, y);
}
