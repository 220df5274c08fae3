/* closed_layer.c - the operators of a transformer's layer, one after another, onto a tape.
 *
 * Follows the modules people run: which tensors each operator makes, which of them autograd keeps,
 * and when the caller's variables go. Frozen weights keep no inputs; quantised ones are made whole
 * for each product. Sources: PyTorch's derivatives (a product keeps an operand when the other needs
 * a gradient), Korthikanti et al. (34 s b h + 5 a s s b for a GPT layer).
 */
#include "plan/closed_walk_int.h"

int walk_apply(struct walk *w, struct tape_op op)
{
    return tape_apply(w->t, &op);
}

void walk_drop(struct walk *w, struct act a)
{
    tape_drop(w->t, a.v);
}

int64_t walk_bytes(struct act a)
{
    return a.n * a.size;
}

/* ---- parameters ---- */

bool walk_sharded(const struct walk *w, int stage)
{
    return w->r->cards > 1 && w->r->zero >= stage;
}

int walk_parameter(struct walk *w, int64_t n, bool trainable)
{
    if (!trainable)
        return tape_parameter(w->t, 0, false);
    if (w->cursor < w->cursor_end)
        return w->parameters[w->cursor++];
    int v = tape_parameter(w->t, w->buffer >= 0 ? 0 : n * w->row.gradient, true);
    w->parameters[w->n_parameters++] = v;
    w->n_trainable += n;
    if (n > w->largest)
        w->largest = n;
    return v;
}

/* A matrix of an adapter, in its own type. */
static int adapter(struct walk *w, int64_t n)
{
    int keep = w->row.gradient, bytes = w->r->adapter_bytes;
    if (bytes)
        w->row.gradient = bytes;
    int v = walk_parameter(w, n, true);
    w->row.gradient = keep;
    return v;
}

bool walk_half_base(const struct walk *w)
{
    return w->r->method == CLOSED_QLORA || (w->r->method == CLOSED_LORA && w->r->adapter_bytes);
}

struct weight walk_weight(struct walk *w, int64_t n)
{
    bool full = w->r->method == CLOSED_FULL && !w->r->inference;
    return (struct weight){
        .v = walk_parameter(w, n, full),
        .n = n,
        .trainable = full,
        .quantised = w->r->method == CLOSED_QLORA};
}

/* ---- operators ---- */

/* Autocast makes a half copy of what a product reads; weights once per forward pass. */
static struct act to_half(struct walk *w, struct act x)
{
    if (!w->p->autocast || x.size == 2)
        return x;
    int v =
        walk_apply(w, (struct tape_op){.what = "cast", .in = {x.v}, .n_in = 1, .bytes = x.n * 2});
    return (struct act){v, x.n, 2};
}

static int weight_operand(struct walk *w, const struct weight *k)
{
    if (!w->p->autocast || (!k->trainable && walk_half_base(w)))
        return k->v;
    int v = walk_apply(
        w, (struct tape_op){
               .what = "cast of the weight",
               .in = {k->v},
               .n_in = 1,
               .kind = TAPE_CASTS,
               .bytes = k->n * 2});
    return v;
}

/* The cache of autocast lives to the end of the forward pass; a recomputation has its own. */
static void weight_done(struct walk *w, const struct weight *k, int v)
{
    if (v == k->v)
        return;
    if (tape_recomputing(w->t) || !k->trainable ||
        w->n_casts == (int)(sizeof w->casts / sizeof *w->casts))
        tape_drop(w->t, v);
    else
        w->casts[w->n_casts++] = v;
}

static struct act add(struct walk *w, struct act a, struct act b)
{
    int size = a.size > b.size ? a.size : b.size;
    unsigned alias = (a.size == size ? 1u : 0u) | (b.size == size ? 2u : 0u);
    int v = walk_apply(
        w, (struct tape_op){
               .what = "add", .in = {a.v, b.v}, .n_in = 2, .alias_in = alias, .bytes = a.n * size});
    walk_drop(w, a);
    walk_drop(w, b);
    return (struct act){v, a.n, size};
}

struct act walk_product(
    struct walk *w, struct act x, int64_t in, int64_t out, const struct weight *k,
    enum tape_kind kind)
{
    struct act half = to_half(w, x);
    int operand = weight_operand(w, k);
    int64_t rows = x.n / in, whole = k->quantised ? k->n * 2 : 0;
    unsigned save = (k->trainable ? 1u : 0u) | (tape_needs_grad(w->t, x.v) ? 2u : 0u);
    struct act y = {0, rows * out, w->p->compute};
    if (k->quantised && (w->r->habits & CLOSED_QUANT_INPUTS))
        save |= 1u;
    if (w->forgets) {
        save &= ~1u;
        whole += walk_bytes(x);
    }
    y.v = walk_apply(
        w, (struct tape_op){
               .what = "linear",
               .in = {half.v, operand},
               .n_in = 2,
               .save_in = save,
               .kind = kind,
               .bytes = walk_bytes(y),
               .forward_temporary = whole,
               .grad_temporary = whole});
    weight_done(w, k, operand);
    if (half.v != x.v)
        walk_drop(w, half);
    return y;
}

struct act walk_dropout(struct walk *w, struct act x, double p)
{
    if (p <= 0 || w->r->inference)
        return x;
    int v = walk_apply(
        w,
        (struct tape_op){
            .what = "dropout", .in = {x.v}, .n_in = 1, .bytes = walk_bytes(x), .keep_bytes = x.n});
    walk_drop(w, x);
    return (struct act){v, x.n, x.size};
}

static struct act cast(struct walk *w, struct act x, int size)
{
    struct act y = {x.v, x.n, size};
    if (x.size != size)
        y.v = walk_apply(
            w, (struct tape_op){.what = "cast", .in = {x.v}, .n_in = 1, .bytes = x.n * size});
    return y;
}

/* One of an adapter's two products, in the adapter's type. */
static struct act adapter_product(struct walk *w, struct act x, int64_t in, int64_t out, int size)
{
    int64_t n = in * out;
    struct weight k = {adapter(w, n), n, true, false};
    struct act y = {0, x.n / in * out, size};
    if (w->p->autocast || size == w->p->compute)
        return walk_product(w, x, in, out, &k, TAPE_WORKING);
    unsigned save = 1u | (tape_needs_grad(w->t, x.v) ? 2u : 0u);
    y.v = walk_apply(
        w, (struct tape_op){
               .what = "adapter",
               .in = {x.v, k.v},
               .n_in = 2,
               .save_in = save,
               .bytes = walk_bytes(y)});
    return y;
}

/* y + (walk_dropout(x) A) B * scale. PEFT first casts x to the adapter's type. */
static struct act adapt(struct walk *w, struct act x, int64_t in, int64_t out, struct act y)
{
    int size = w->p->autocast || w->r->adapter_bytes == 0 ? x.size : w->r->adapter_bytes;
    struct act wide = cast(w, x, size), d = wide;
    if (w->r->lora_dropout > 0 && !w->r->inference)
        d.v = walk_apply(
            w, (struct tape_op){
                   .what = "adapter's dropout",
                   .in = {wide.v},
                   .n_in = 1,
                   .bytes = walk_bytes(wide),
                   .keep_bytes = x.n});
    if (wide.v != x.v && d.v != wide.v)
        walk_drop(w, wide);
    struct act u = adapter_product(w, d, in, w->r->rank, size);
    if (d.v != x.v)
        walk_drop(w, d);
    struct act v = adapter_product(w, u, w->r->rank, out, size);
    walk_drop(w, u);
    struct act s = v;
    s.v = walk_apply(
        w, (struct tape_op){
               .what = "adapter's scale", .in = {v.v}, .n_in = 1, .bytes = walk_bytes(v)});
    walk_drop(w, v);
    struct act same = cast(w, s, y.size);
    if (same.v != s.v)
        walk_drop(w, s);
    return add(w, y, same);
}

/* x stays the caller's. */
static struct act linear(struct walk *w, struct act x, int64_t in, int64_t out, unsigned target)
{
    struct weight k = walk_weight(w, in * out);
    struct act y = walk_product(w, x, in, out, &k, TAPE_WORKING);
    if (w->r->method != CLOSED_FULL && (w->r->targets & target) && !w->r->inference)
        y = adapt(w, x, in, out, y);
    return y;
}

/* x stays the caller's (the residual). HF's RMSNorm keeps a float32 copy and the normalised rows.
 */
struct act walk_norm(struct walk *w, struct act x)
{
    struct weight g = walk_weight(w, w->m->hidden);
    int64_t rows = x.n / w->m->hidden, wide = x.n * 4;
    bool rms = w->m->norm == CLOSED_RMS_NORM;
    struct tape_op op = {.what = "norm", .in = {x.v, g.v}, .n_in = 2};
    struct act y = {0, x.n, w->p->autocast && !rms ? 4 : x.size};
    if (!rms || w->r->fused_norm) {
        op.save_in = 1;
        op.keep_bytes = rows * (rms ? 4 : 8);
        if (w->p->autocast && x.size == 2 && !rms)
            op.keep_bytes += wide;
    } else {
        op.save_in = x.size == 4;
        op.keep_bytes = rows * 4 + (x.size == 2 ? wide : 0) + (g.trainable ? walk_bytes(y) : 0);
        op.forward_temporary = wide;
        op.backward_temporary = 3 * wide;
    }
    op.bytes = walk_bytes(y);
    y.v = tape_apply(w->t, &op);
    return y;
}

static struct act rope(struct walk *w, struct act x)
{
    struct act y = x;
    int64_t b = walk_bytes(x);
    y.v = walk_apply(
        w, (struct tape_op){
               .what = "rotary",
               .in = {x.v},
               .n_in = 1,
               .bytes = b,
               .forward_temporary = w->r->fused_norm ? 0 : 2 * b,
               .backward_temporary = w->r->fused_norm ? 0 : 2 * b});
    walk_drop(w, x);
    return y;
}

static struct act repeat(struct walk *w, struct act x)
{
    struct act y = {0, x.n / w->m->kv_heads * w->m->heads, x.size};
    if (w->m->kv_heads == w->m->heads || w->r->attention == CLOSED_FLASH)
        return x;
    y.v = walk_apply(
        w, (struct tape_op){
               .what = "repeat of K or V", .in = {x.v}, .n_in = 1, .bytes = walk_bytes(y)});
    walk_drop(w, x);
    return y;
}

/* softmax(Q K') V with every step stored. */
static struct act plain_attention(struct walk *w, struct act q, struct act k, struct act v)
{
    int64_t scores = w->r->batch * w->m->heads * w->r->seq * w->r->seq;
    int c = w->p->compute;
    bool wide = w->p->autocast || w->m->norm == CLOSED_RMS_NORM || c == 4;
    double p = w->m->dropout;
    struct act s = {0, scores, c}, y = {0, q.n, c};
    s.v = walk_apply(
        w, (struct tape_op){
               .what = "Q K'", .in = {q.v, k.v}, .n_in = 2, .save_in = 3, .bytes = walk_bytes(s)});
    walk_drop(w, q);
    walk_drop(w, k);
    struct act masked = s;
    masked.v = walk_apply(
        w, (struct tape_op){
               .what = "mask", .in = {s.v}, .n_in = 1, .alias_in = 1, .bytes = walk_bytes(s)});
    walk_drop(w, s);
    struct act soft = {0, scores, wide ? 4 : c};
    soft.v = walk_apply(
        w, (struct tape_op){
               .what = "softmax",
               .in = {masked.v},
               .n_in = 1,
               .save_out = true,
               .bytes = walk_bytes(soft),
               .forward_temporary = wide && c == 2 && w->p->autocast ? 4 * scores : 0});
    walk_drop(w, masked);
    if (wide && c == 2 && !w->p->autocast) {
        struct act low = {0, scores, 2};
        low.v = walk_apply(
            w, (struct tape_op){
                   .what = "softmax in half", .in = {soft.v}, .n_in = 1, .bytes = walk_bytes(low)});
        walk_drop(w, soft);
        soft = low;
    }
    soft = walk_dropout(w, soft, p);
    struct act low = to_half(w, soft);
    if (low.v != soft.v)
        walk_drop(w, soft);
    y.v = walk_apply(
        w, (struct tape_op){
               .what = "scores V",
               .in = {low.v, v.v},
               .n_in = 2,
               .save_in = 3,
               .bytes = walk_bytes(y)});
    walk_drop(w, low);
    walk_drop(w, v);
    return y;
}

static struct act flash_attention(struct walk *w, struct act q, struct act k, struct act v)
{
    struct act y = {0, q.n, w->p->compute};
    int64_t scores = w->r->batch * w->m->heads * w->r->seq * w->r->seq;
    bool core = w->r->attention == CLOSED_PLAIN; /* selective: the core is computed again */
    struct tape_op op = {
        .what = "attention",
        .in = {q.v, k.v, v.v},
        .n_in = 3,
        .save_in = 7,
        .save_out = true,
        .bytes = walk_bytes(y),
        .keep_bytes = w->tokens * w->m->heads * 4,
        .grad_temporary = q.n * 4};
    if (w->r->habits & CLOSED_JOINT_QKV) /* V is a part of the joint result, which stays whole */
        op.keep_bytes += (q.n + k.n) * w->p->compute;
    if (core) {
        op.keep_bytes = 0;
        op.save_out = false;
        op.forward_temporary = scores * (4 + w->p->compute);
        op.grad_temporary = scores * (4 + 2 * w->p->compute);
    }
    y.v = tape_apply(w->t, &op);
    walk_drop(w, q);
    walk_drop(w, k);
    walk_drop(w, v);
    return y;
}

static struct act attention(struct walk *w, struct act x)
{
    const struct closed_model *m = w->m;
    int64_t h = m->hidden, q_out = m->heads * m->head_dim, kv_out = m->kv_heads * m->head_dim;
    bool rotary = m->positions == 0;
    struct act q = linear(w, x, h, q_out, CLOSED_Q), k = linear(w, x, h, kv_out, CLOSED_K);
    struct act v = linear(w, x, h, kv_out, CLOSED_V);
    if (rotary) {
        q = rope(w, q);
        k = rope(w, k);
    }
    k = repeat(w, k);
    v = repeat(w, v);
    bool plain = w->r->attention == CLOSED_PLAIN && w->r->checkpointing != CLOSED_SELECTIVE;
    struct act y = plain ? plain_attention(w, q, k, v) : flash_attention(w, q, k, v);
    struct act o = linear(w, y, q_out, h, CLOSED_O);
    walk_drop(w, y);
    return walk_dropout(w, o, m->dropout);
}

static struct act unary(struct walk *w, struct act x, const char *what, int64_t keep)
{
    struct act y = x;
    y.v = walk_apply(
        w, (struct tape_op){
               .what = what,
               .in = {x.v},
               .n_in = 1,
               .save_in = 1,
               .bytes = walk_bytes(x),
               .keep_bytes = keep,
               .backward_temporary = keep > 0 ? walk_bytes(x) : 0});
    walk_drop(w, x);
    return y;
}

/* silu(gate) * up; the fused form keeps the two operands only. */
static struct act gated(struct walk *w, struct act gate, struct act up)
{
    struct act y = gate;
    if (w->r->fused_mlp) {
        y.v = walk_apply(
            w, (struct tape_op){
                   .what = "gated",
                   .in = {gate.v, up.v},
                   .n_in = 2,
                   .save_in = 3,
                   .bytes = walk_bytes(gate)});
        walk_drop(w, gate);
        walk_drop(w, up);
        return y;
    }
    struct act s = unary(w, gate, "silu", 0);
    y.v = walk_apply(
        w, (struct tape_op){
               .what = "gate", .in = {s.v, up.v}, .n_in = 2, .save_in = 3, .bytes = walk_bytes(s)});
    walk_drop(w, s);
    walk_drop(w, up);
    return y;
}

/* x stays the caller's. */
static struct act mlp(struct walk *w, struct act x)
{
    int64_t h = w->m->hidden, f = w->m->ffn;
    struct act inner;
    if (w->m->act == CLOSED_GATED) {
        struct act gate = linear(w, x, h, f, CLOSED_GATE), up = linear(w, x, h, f, CLOSED_UP);
        inner = gated(w, gate, up);
    } else {
        inner = linear(w, x, h, f, CLOSED_UP);
        bool written = w->m->act == CLOSED_GELU_NEW && !w->r->fused_mlp;
        inner = unary(w, inner, "gelu", written ? 3 * walk_bytes(inner) : 0);
    }
    w->forgets = w->r->checkpointing == CLOSED_GELU_AGAIN && w->m->act != CLOSED_GATED;
    struct act y = linear(w, inner, f, h, CLOSED_DOWN);
    w->forgets = false;
    walk_drop(w, inner);
    return y;
}

/* Every expert with its share of the tokens: together experts_per_token times all of them. */
static struct act mixture(struct walk *w, struct act x)
{
    const struct closed_model *m = w->m;
    struct act scores = linear(w, x, m->hidden, m->experts, 0);
    walk_drop(w, scores);
    struct weight others =
        walk_weight(w, (m->experts - m->experts_per_token) * 3 * m->hidden * m->ffn);
    (void)others;
    struct act sum = {-1, 0, 0};
    for (int64_t i = 0; i < m->experts_per_token && i < 64; i++) {
        struct act part = x;
        part.v = walk_apply(
            w, (struct tape_op){
                   .what = "tokens of an expert", .in = {x.v}, .n_in = 1, .bytes = walk_bytes(x)});
        struct act y = mlp(w, part), weighed = y;
        walk_drop(w, part);
        weighed.v = walk_apply(
            w, (struct tape_op){
                   .what = "weight of an expert",
                   .in = {y.v},
                   .n_in = 1,
                   .save_in = 1,
                   .bytes = walk_bytes(y)});
        walk_drop(w, y);
        sum = i == 0 ? weighed : add(w, sum, weighed);
    }
    return sum;
}

/* ---- a layer ---- */

/* Attention and MLP around the residual; x is taken. */
struct act walk_layer(struct walk *w, struct act x)
{
    bool post = w->m->post_norm;
    struct act a = post ? x : walk_norm(w, x);
    struct act y = attention(w, a);
    if (!post)
        walk_drop(w, a);
    struct act sum = add(w, x, y);
    if (post) {
        struct act n = walk_norm(w, sum);
        walk_drop(w, sum);
        sum = n;
    }
    struct act b = post ? sum : walk_norm(w, sum);
    struct act z = w->m->experts ? mixture(w, b) : mlp(w, b);
    if (!post)
        walk_drop(w, b);
    struct act out = add(w, sum, walk_dropout(w, z, w->m->dropout));
    if (post) {
        struct act n = walk_norm(w, out);
        walk_drop(w, out);
        out = n;
    }
    return out;
}
