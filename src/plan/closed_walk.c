/* closed_walk.c - the operators of a named transformer family, one after another, onto a tape.
 *
 * Follows the modules people run: which tensors each operator makes, which of them autograd keeps,
 * and when the caller's variables go. Frozen weights keep no inputs; quantised ones are made whole
 * for each product. Sources: PyTorch's derivatives (a product keeps an operand when the other needs
 * a gradient), Korthikanti et al. (34 s b h + 5 a s s b for a GPT layer), memory of public traces.
 */
#include "plan/closed_form.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

struct walk {
    const struct closed_model *m;
    const struct closed_run *r;
    const struct closed_precision_row *p;
    struct tape *t;
    int64_t tokens, n_trainable, largest, unit_bytes;
    int casts[8192], n_casts;                          /* autocast's cache: copies of weights */
    int *parameters, n_parameters, cursor, cursor_end; /* trainable ones; cursor: a second run */
    int *shards, n_shards;
    int gathered; /* storage of the unit in hand; -1: none */
    int held;     /* scores that the caller keeps */
    int layer_size;
};

/* An activation: a value, its elements, the bytes of each. */
struct act {
    int v;
    int64_t n;
    int size;
};

static void drop(struct walk *w, struct act a)
{
    tape_drop(w->t, a.v);
}

static int64_t bytes_of(struct act a)
{
    return a.n * a.size;
}

/* ---- parameters ---- */

struct weight {
    int v;
    int64_t n;
    bool trainable, quantised;
};

static bool sharded(const struct walk *w, int stage)
{
    return w->r->cards > 1 && w->r->zero >= stage;
}

static int parameter(struct walk *w, int64_t n, bool trainable)
{
    if (!trainable)
        return tape_parameter(w->t, 0, false);
    if (w->cursor < w->cursor_end)
        return w->parameters[w->cursor++];
    int v = tape_parameter(w->t, n * w->p->gradient, true);
    w->parameters[w->n_parameters++] = v;
    w->n_trainable += n;
    if (n > w->largest)
        w->largest = n;
    return v;
}

static struct weight weight_new(struct walk *w, int64_t n)
{
    bool full = w->r->method == CLOSED_FULL && !w->r->inference;
    return (struct weight){
        .v = parameter(w, n, full),
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
    int v = tape_apply(
        w->t, &(struct tape_op){.what = "cast", .in = {x.v}, .n_in = 1, .bytes = x.n * 2});
    return (struct act){v, x.n, 2};
}

static int weight_operand(struct walk *w, const struct weight *k)
{
    if (!w->p->autocast || k->quantised)
        return k->v;
    int v = tape_apply(
        w->t, &(struct tape_op){
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
    int v = tape_apply(
        w->t,
        &(struct tape_op){
            .what = "add", .in = {a.v, b.v}, .n_in = 2, .alias_in = alias, .bytes = a.n * size});
    drop(w, a);
    drop(w, b);
    return (struct act){v, a.n, size};
}

static struct act product(
    struct walk *w, struct act x, int64_t in, int64_t out, const struct weight *k,
    enum tape_kind kind)
{
    struct act half = to_half(w, x);
    int operand = weight_operand(w, k);
    int64_t rows = x.n / in, whole = k->quantised ? k->n * 2 : 0;
    unsigned save = (k->trainable ? 1u : 0u) | (tape_needs_grad(w->t, x.v) ? 2u : 0u);
    struct act y = {0, rows * out, w->p->compute};
    y.v = tape_apply(
        w->t, &(struct tape_op){
                  .what = "linear",
                  .in = {half.v, operand},
                  .n_in = 2,
                  .save_in = save,
                  .kind = kind,
                  .bytes = bytes_of(y),
                  .forward_temporary = whole,
                  .grad_temporary = whole});
    weight_done(w, k, operand);
    if (half.v != x.v)
        drop(w, half);
    return y;
}

static struct act dropout(struct walk *w, struct act x, double p)
{
    if (p <= 0 || w->r->inference)
        return x;
    int v = tape_apply(
        w->t,
        &(struct tape_op){
            .what = "dropout", .in = {x.v}, .n_in = 1, .bytes = bytes_of(x), .keep_bytes = x.n});
    drop(w, x);
    return (struct act){v, x.n, x.size};
}

/* y + (dropout(x) A) B * scale */
static struct act adapt(struct walk *w, struct act x, int64_t in, int64_t out, struct act y)
{
    int64_t r = w->r->rank;
    struct weight a = {parameter(w, in * r, true), in * r, true, false};
    struct weight b = {parameter(w, r * out, true), r * out, true, false};
    struct act d = x;
    if (w->r->lora_dropout > 0 && !w->r->inference)
        d.v = tape_apply(
            w->t, &(struct tape_op){
                      .what = "adapter's dropout",
                      .in = {x.v},
                      .n_in = 1,
                      .bytes = bytes_of(x),
                      .keep_bytes = x.n});
    struct act u = product(w, d, in, r, &a, TAPE_WORKING);
    if (d.v != x.v)
        drop(w, d);
    struct act v = product(w, u, r, out, &b, TAPE_WORKING);
    drop(w, u);
    struct act s = v;
    s.v = tape_apply(
        w->t,
        &(struct tape_op){.what = "adapter's scale", .in = {v.v}, .n_in = 1, .bytes = bytes_of(v)});
    drop(w, v);
    return add(w, y, s);
}

/* x stays the caller's. */
static struct act linear(struct walk *w, struct act x, int64_t in, int64_t out, unsigned target)
{
    struct weight k = weight_new(w, in * out);
    struct act y = product(w, x, in, out, &k, TAPE_WORKING);
    if (w->r->method != CLOSED_FULL && (w->r->targets & target) && !w->r->inference)
        y = adapt(w, x, in, out, y);
    return y;
}

/* x stays the caller's (the residual). HF's RMSNorm keeps a float32 copy and the normalised rows.
 */
static struct act norm(struct walk *w, struct act x)
{
    struct weight g = weight_new(w, w->m->hidden);
    int64_t rows = x.n / w->m->hidden, wide = x.n * 4;
    bool rms = w->m->norm == CLOSED_RMS_NORM;
    struct tape_op op = {.what = "norm", .in = {x.v, g.v}, .n_in = 2};
    struct act y = {0, x.n, w->p->autocast && (!rms || !w->r->fused_norm) ? 4 : x.size};
    if (!rms || w->r->fused_norm) {
        op.save_in = 1;
        op.keep_bytes = rows * (rms ? 4 : 8);
        if (w->p->autocast && x.size == 2 && !rms)
            op.keep_bytes += wide;
    } else {
        op.save_in = x.size == 4;
        op.keep_bytes = rows * 4 + (x.size == 2 ? wide : 0) + (g.trainable ? bytes_of(y) : 0);
        op.forward_temporary = wide;
        op.backward_temporary = 3 * wide;
    }
    op.bytes = bytes_of(y);
    y.v = tape_apply(w->t, &op);
    return y;
}

static struct act rope(struct walk *w, struct act x)
{
    struct act y = x;
    int64_t b = bytes_of(x);
    y.v = tape_apply(
        w->t, &(struct tape_op){
                  .what = "rotary",
                  .in = {x.v},
                  .n_in = 1,
                  .bytes = b,
                  .forward_temporary = w->r->fused_norm ? 0 : 2 * b,
                  .backward_temporary = w->r->fused_norm ? 0 : 2 * b});
    drop(w, x);
    return y;
}

static struct act repeat(struct walk *w, struct act x)
{
    struct act y = {0, x.n / w->m->kv_heads * w->m->heads, x.size};
    if (w->m->kv_heads == w->m->heads || w->r->attention == CLOSED_FLASH)
        return x;
    y.v = tape_apply(
        w->t, &(struct tape_op){
                  .what = "repeat of K or V", .in = {x.v}, .n_in = 1, .bytes = bytes_of(y)});
    drop(w, x);
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
    s.v = tape_apply(
        w->t, &(struct tape_op){
                  .what = "Q K'", .in = {q.v, k.v}, .n_in = 2, .save_in = 3, .bytes = bytes_of(s)});
    drop(w, q);
    drop(w, k);
    struct act masked = s;
    masked.v = tape_apply(
        w->t, &(struct tape_op){
                  .what = "mask", .in = {s.v}, .n_in = 1, .alias_in = 1, .bytes = bytes_of(s)});
    drop(w, s);
    struct act soft = {0, scores, wide ? 4 : c};
    soft.v = tape_apply(
        w->t, &(struct tape_op){
                  .what = "softmax",
                  .in = {masked.v},
                  .n_in = 1,
                  .save_out = true,
                  .bytes = bytes_of(soft),
                  .forward_temporary = wide && c == 2 && w->p->autocast ? 4 * scores : 0});
    drop(w, masked);
    if (wide && c == 2 && !w->p->autocast) {
        struct act low = {0, scores, 2};
        low.v = tape_apply(
            w->t,
            &(struct tape_op){
                .what = "softmax in half", .in = {soft.v}, .n_in = 1, .bytes = bytes_of(low)});
        drop(w, soft);
        soft = low;
    }
    soft = dropout(w, soft, p);
    struct act low = to_half(w, soft);
    if (low.v != soft.v)
        drop(w, soft);
    y.v = tape_apply(
        w->t,
        &(struct tape_op){
            .what = "scores V", .in = {low.v, v.v}, .n_in = 2, .save_in = 3, .bytes = bytes_of(y)});
    drop(w, low);
    drop(w, v);
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
        .bytes = bytes_of(y),
        .keep_bytes = w->tokens * w->m->heads * 4,
        .grad_temporary = q.n * 4};
    if (core) {
        op.keep_bytes = 0;
        op.save_out = false;
        op.forward_temporary = scores * (4 + w->p->compute);
        op.grad_temporary = scores * (4 + 2 * w->p->compute);
    }
    y.v = tape_apply(w->t, &op);
    drop(w, q);
    drop(w, k);
    drop(w, v);
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
    drop(w, y);
    return dropout(w, o, m->dropout);
}

static struct act unary(struct walk *w, struct act x, const char *what, int64_t keep)
{
    struct act y = x;
    y.v = tape_apply(
        w->t, &(struct tape_op){
                  .what = what,
                  .in = {x.v},
                  .n_in = 1,
                  .save_in = 1,
                  .bytes = bytes_of(x),
                  .keep_bytes = keep,
                  .backward_temporary = keep > 0 ? bytes_of(x) : 0});
    drop(w, x);
    return y;
}

/* silu(gate) * up; the fused form keeps the two operands only. */
static struct act gated(struct walk *w, struct act gate, struct act up)
{
    struct act y = gate;
    if (w->r->fused_mlp) {
        y.v = tape_apply(
            w->t, &(struct tape_op){
                      .what = "gated",
                      .in = {gate.v, up.v},
                      .n_in = 2,
                      .save_in = 3,
                      .bytes = bytes_of(gate)});
        drop(w, gate);
        drop(w, up);
        return y;
    }
    struct act s = unary(w, gate, "silu", 0);
    y.v = tape_apply(
        w->t,
        &(struct tape_op){
            .what = "gate", .in = {s.v, up.v}, .n_in = 2, .save_in = 3, .bytes = bytes_of(s)});
    drop(w, s);
    drop(w, up);
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
        inner = unary(w, inner, "gelu", written ? 3 * bytes_of(inner) : 0);
    }
    struct act y = linear(w, inner, f, h, CLOSED_DOWN);
    drop(w, inner);
    return y;
}

/* Every expert with its share of the tokens: together experts_per_token times all of them. */
static struct act mixture(struct walk *w, struct act x)
{
    const struct closed_model *m = w->m;
    struct act scores = linear(w, x, m->hidden, m->experts, 0);
    drop(w, scores);
    struct weight others =
        weight_new(w, (m->experts - m->experts_per_token) * 3 * m->hidden * m->ffn);
    (void)others;
    struct act sum = {-1, 0, 0};
    for (int64_t i = 0; i < m->experts_per_token && i < 64; i++) {
        struct act part = x;
        part.v = tape_apply(
            w->t, &(struct tape_op){
                      .what = "tokens of an expert", .in = {x.v}, .n_in = 1, .bytes = bytes_of(x)});
        struct act y = mlp(w, part), weighed = y;
        drop(w, part);
        weighed.v = tape_apply(
            w->t, &(struct tape_op){
                      .what = "weight of an expert",
                      .in = {y.v},
                      .n_in = 1,
                      .save_in = 1,
                      .bytes = bytes_of(y)});
        drop(w, y);
        sum = i == 0 ? weighed : add(w, sum, weighed);
    }
    return sum;
}

/* ---- a layer ---- */

/* Attention and MLP around the residual; x is taken. */
static struct act layer(struct walk *w, struct act x)
{
    bool post = w->m->post_norm;
    struct act a = post ? x : norm(w, x);
    struct act y = attention(w, a);
    if (!post)
        drop(w, a);
    struct act sum = add(w, x, y);
    if (post) {
        struct act n = norm(w, sum);
        drop(w, sum);
        sum = n;
    }
    struct act b = post ? sum : norm(w, sum);
    struct act z = w->m->experts ? mixture(w, b) : mlp(w, b);
    if (!post)
        drop(w, b);
    struct act out = add(w, sum, dropout(w, z, w->m->dropout));
    if (post) {
        struct act n = norm(w, out);
        drop(w, out);
        out = n;
    }
    return out;
}

/* One layer as the tape's block; a second run uses the parameters of the first. */
struct block {
    struct walk *w;
    struct act x;
    int first, count;
};

static int run_block(struct tape *t, int x, int index, void *ctx)
{
    struct block *b = ctx;
    struct walk *w = b->w;
    (void)index;
    w->cursor = b->first;
    w->cursor_end = b->first + b->count;
    struct act in = b->x; /* the caller holds x while the layer runs */
    in.v = tape_apply(
        t, &(struct tape_op){
               .what = "layer's input",
               .in = {x},
               .n_in = 1,
               .view = true,
               .alias_in = 1,
               .bytes = bytes_of(in)});
    struct act y = layer(w, in);
    if (b->count == 0)
        b->count = w->n_parameters - b->first;
    w->cursor = w->cursor_end = 0;
    w->layer_size = y.size;
    return y.v;
}

/* ---- sharded units ---- */

static int64_t shard(const struct walk *w, int64_t bytes, int stage)
{
    return sharded(w, stage) ? (bytes + w->r->cards - 1) / w->r->cards : bytes;
}

/* Two units are whole at a time: the one that computes and the one that is being fetched. */
static void gather(struct tape *t, int index, void *ctx)
{
    struct block *b = ctx;
    (void)index;
    tape_unref(t, b->w->gathered);
    b->w->gathered = tape_storage(t, 2 * b->w->unit_bytes, TAPE_GATHERED);
}

static void release(struct tape *t, int index, void *ctx)
{
    struct block *b = ctx;
    struct walk *w = b->w;
    (void)index;
    tape_unref(t, w->gathered);
    w->gathered = -1;
    if (!sharded(w, 2))
        return;
    for (int i = b->first; i < b->first + b->count; i++) {
        int64_t bytes = tape_grad_held(t, w->parameters[i]);
        if (bytes == 0)
            continue;
        w->shards[w->n_shards++] = tape_storage(t, shard(w, bytes, 2), TAPE_GRADIENTS);
        tape_drop_grad(t, w->parameters[i]);
    }
}

static struct act run_layer(struct walk *w, struct block *b, struct act x, int index)
{
    bool units = sharded(w, 2) || (sharded(w, 3)) || w->r->offload_params;
    *b = (struct block){.w = w, .x = x, .first = w->n_parameters};
    tape_enter(w->t, TAPE_PHASE_FORWARD, index);
    if (units) {
        tape_hook(w->t, release, index, b);
        if (w->unit_bytes > 0)
            gather(w->t, index, b);
    }
    struct act y = x;
    bool keep = w->r->checkpointing != CLOSED_BLOCKS || w->r->inference;
    y.v = keep ? run_block(w->t, x.v, index, b) : tape_checkpoint(w->t, run_block, x.v, index, b);
    y.size = w->layer_size;
    drop(w, x);
    if (units) {
        tape_unref(w->t, w->gathered);
        w->gathered = -1;
        if (w->unit_bytes > 0)
            tape_hook(w->t, gather, index, b);
    }
    return y;
}

/* ---- the ends: embeddings, scores, loss ---- */

static struct act embed(struct walk *w)
{
    const struct closed_model *m = w->m;
    int64_t n = (m->vocab + m->positions + m->types) * m->hidden;
    bool trained = !w->r->inference && (w->r->method == CLOSED_FULL || w->r->train_embeddings);
    int table = parameter(w, n, trained);
    int size = w->p->autocast ? 4 : w->p->compute;
    struct act x = {0, w->tokens * m->hidden, size};
    /* Adapters under checkpointing ask the embeddings' result for a gradient. */
    int hook = tape_parameter(
        w->t, 0, !w->r->inference && w->r->checkpointing == CLOSED_BLOCKS && !trained);
    x.v = tape_apply(
        w->t, &(struct tape_op){
                  .what = "embedding", .in = {table, hook}, .n_in = 2, .bytes = bytes_of(x)});
    return m->positions ? dropout(w, x, m->dropout) : x;
}

static int scalar(struct walk *w, struct act logits, bool save, const char *what)
{
    return tape_apply(
        w->t,
        &(struct tape_op){.what = what, .in = {logits.v}, .n_in = 1, .save_in = save, .bytes = 4});
}

static struct act
scores_like(struct walk *w, struct act x, int size, const char *what, bool save_out)
{
    struct act y = {0, x.n, size};
    y.v = tape_apply(
        w->t, &(struct tape_op){
                  .what = what,
                  .in = {x.v},
                  .n_in = 1,
                  .save_out = save_out,
                  .kind = TAPE_LOGITS,
                  .bytes = bytes_of(y)});
    return y;
}

/* Log-softmax in the scores' type (float32 under autocast), and the mean of what it picks. */
static int cross_entropy(struct walk *w, struct act logits)
{
    struct act x = logits;
    if (w->p->autocast && logits.size == 2)
        x = scores_like(w, logits, 4, "scores in float32", false);
    struct act y = scores_like(w, x, x.size, "log-softmax", true);
    if (x.v != logits.v)
        drop(w, x);
    int loss = scalar(w, y, true, "picked");
    drop(w, y);
    return loss;
}

static int whole_loss(struct walk *w, struct act logits)
{
    struct act shifted = logits;
    if (w->r->loss == CLOSED_LOSS_UPCAST && logits.size == 2) {
        shifted = scores_like(w, logits, 4, "scores in float32", false);
        drop(w, logits);
        logits = shifted;
    }
    if (w->r->loss == CLOSED_LOSS_SHIFTED || w->r->loss == CLOSED_LOSS_UPCAST)
        shifted = scores_like(w, logits, logits.size, "shifted copy", false);
    int loss = cross_entropy(w, shifted);
    if (shifted.v != logits.v)
        drop(w, shifted);
    if (w->r->holds_logits)
        w->held = logits.v;
    else
        drop(w, logits);
    return loss;
}

/* The kernel writes the gradient over the scores: twice their size at most, on the way back. */
static int fused_loss(struct walk *w, struct act logits)
{
    int loss = tape_apply(
        w->t, &(struct tape_op){
                  .what = "fused cross-entropy",
                  .in = {logits.v},
                  .n_in = 1,
                  .save_in = 1,
                  .alias_in = 0,
                  .bytes = 4,
                  .keep_bytes = w->tokens * 4});
    drop(w, logits);
    return loss;
}

/* Scores exist for one chunk of tokens; the input's gradient is made with the loss. Liger's chunk:
 * as many tokens as make the scores about as large as the hidden states. */
static int chunked_loss(struct walk *w, struct act x, const struct weight *k)
{
    int64_t parts = (w->m->vocab + w->m->hidden - 1) / w->m->hidden, chunk = 1;
    int64_t share = (w->tokens + parts - 1) / parts, scores;
    while (chunk < share)
        chunk *= 2;
    if (chunk > w->tokens)
        chunk = w->tokens;
    scores = chunk * w->m->vocab;
    int64_t weight_grad = k->trainable ? k->n * w->p->compute : 0;
    return tape_apply(
        w->t, &(struct tape_op){
                  .what = "chunked cross-entropy",
                  .in = {x.v, k->v},
                  .n_in = 2,
                  .alias_in = 0,
                  .bytes = 4,
                  .keep_bytes = bytes_of(x) + weight_grad,
                  .forward_temporary = scores * (w->p->compute + 4)});
}

static int head(struct walk *w, struct act x)
{
    const struct closed_model *m = w->m;
    if (m->head == CLOSED_HEAD_NONE || m->head == CLOSED_HEAD_CLASSES || m->vocab == 0) {
        struct weight pool = weight_new(w, m->hidden * m->hidden);
        struct act y = product(w, x, m->hidden, m->hidden, &pool, TAPE_WORKING);
        int loss = scalar(w, y, true, "loss");
        drop(w, y);
        drop(w, x);
        return loss;
    }
    if (!m->post_norm) {
        struct act n = norm(w, x);
        drop(w, x);
        x = n;
    }
    struct weight k = weight_new(w, m->tied ? 0 : m->vocab * m->hidden);
    k.quantised = false;
    k.n = m->vocab * m->hidden;
    if (m->tied && w->r->method == CLOSED_FULL)
        k.v = w->parameters[0];
    int loss;
    tape_enter(w->t, TAPE_PHASE_LOSS, -1);
    if (w->r->loss == CLOSED_LOSS_CHUNKED) {
        loss = chunked_loss(w, x, &k);
    } else {
        struct act logits = product(w, x, m->hidden, m->vocab, &k, TAPE_LOGITS);
        loss = w->r->loss == CLOSED_LOSS_FUSED      ? fused_loss(w, logits)
               : w->r->loss == CLOSED_LOSS_CHUNK128 ? cross_entropy(w, logits)
                                                    : whole_loss(w, logits);
        if (w->r->loss == CLOSED_LOSS_CHUNK128)
            drop(w, logits);
    }
    drop(w, x);
    return loss;
}

/* ---- the step ---- */

static double moment_bytes(const struct walk *w)
{
    const struct closed_optim_row *o = closed_optim_at(w->r->optimizer);
    return o->states * (o->bytes > 0 ? o->bytes : (double)w->p->moment);
}

static void optimizer_step(struct walk *w)
{
    const struct closed_optim_row *o = closed_optim_at(w->r->optimizer);
    int64_t element = o->bytes > 0 ? 4 : w->p->moment;
    tape_enter(w->t, TAPE_PHASE_STEP, -1);
    if (w->r->offload_optimizer || w->p->master)
        return; /* on the host, or one fused kernel over masters */
    if (w->r->step == CLOSED_STEP_FOREACH && o->copies > 0 && !w->r->update_in_backward)
        tape_flash(
            w->t, shard(w, w->n_trainable * element, w->r->zero >= 2 ? 2 : 1) * o->copies,
            TAPE_STEP);
    else if (w->r->step != CLOSED_STEP_FUSED)
        tape_flash(w->t, w->largest * element * o->largest, TAPE_STEP);
}

/* What is there before the first operator: weights, masters, state. */
static void resident(struct walk *w, struct closed_estimate *out)
{
    const struct closed_model *m = w->m;
    int64_t p = closed_model_parameters(m),
            tables = (m->vocab + m->positions + m->types) * m->hidden;
    int64_t ends = tables + (m->tied ? 0 : m->vocab * m->hidden), trained = out->trainable;
    double weights = (double)p * w->p->weight;
    if (w->r->method != CLOSED_FULL) {
        double base = w->p->autocast && w->r->method == CLOSED_LORA ? w->p->weight : 2;
        weights = (double)p * base + (double)trained * w->p->weight;
        if (w->r->method == CLOSED_QLORA)
            weights = (double)(p - ends) * w->r->quant_bits / 8 + (double)ends * 2 +
                      (double)trained * w->p->weight;
    }
    int64_t masters = trained * w->p->master, moments = llround((double)trained * moment_bytes(w));
    if (w->r->inference)
        masters = moments = 0;
    weights = (double)shard(w, llround(weights), 3);
    masters = shard(w, masters, 1);
    moments = shard(w, moments, 1);
    if (w->r->offload_params) {
        out->host_bytes += llround(weights);
        weights = 0;
    }
    if (w->r->offload_optimizer) {
        out->host_bytes += masters + moments;
        masters = moments = 0;
    }
    (void)tape_storage(w->t, llround(weights), TAPE_WEIGHTS);
    if (masters)
        (void)tape_storage(w->t, masters, TAPE_MASTERS);
    if (moments)
        (void)tape_storage(w->t, moments, TAPE_MOMENTS);
    (void)tape_storage(
        w->t, (w->r->inference ? 1 : 2) * (w->r->sm >= 90 ? 33554432LL : 8519680LL),
        TAPE_WORKSPACE);
    (void)tape_storage(w->t, 2 * w->tokens * 8, TAPE_INPUTS);
    out->bytes_per_parameter =
        (double)w->p->weight + w->p->gradient + w->p->master + moment_bytes(w);
}

static int64_t lora_parameters(const struct closed_model *m, const struct closed_run *r)
{
    int64_t h = m->hidden, q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim, n = 0;
    const struct {
        unsigned target;
        int64_t in, out;
    } row[] = {{CLOSED_Q, h, q},        {CLOSED_K, h, kv},        {CLOSED_V, h, kv},
               {CLOSED_O, q, h},        {CLOSED_GATE, h, m->ffn}, {CLOSED_UP, h, m->ffn},
               {CLOSED_DOWN, m->ffn, h}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        bool gate = row[i].target == CLOSED_GATE;
        if ((r->targets & row[i].target) && (!gate || m->act == CLOSED_GATED))
            n += r->rank * (row[i].in + row[i].out);
    }
    return n * m->layers + (r->train_embeddings ? (m->vocab * h) * (m->tied ? 1 : 2) : 0);
}

static int64_t trainable(const struct closed_model *m, const struct closed_run *r)
{
    if (r->inference)
        return 0;
    return r->method == CLOSED_FULL ? closed_model_parameters(m) : lora_parameters(m, r);
}

/* The unit that is gathered whole: a layer's weights in the type it computes in. */
static int64_t unit_bytes(const struct closed_model *m, const struct closed_run *r, int compute)
{
    struct closed_model one = *m, two = *m;
    if (!(r->zero >= 3 && r->cards > 1) && !r->offload_params)
        return 0;
    one.parameters = two.parameters = 0;
    one.layers = 1;
    two.layers = 2;
    int64_t n = closed_model_parameters(&two) - closed_model_parameters(&one);
    double each = r->method == CLOSED_QLORA ? r->quant_bits / 8 : compute;
    return llround((double)n * each);
}

static void run(struct walk *w, struct block *blocks, struct closed_estimate *out)
{
    const struct closed_model *m = w->m;
    resident(w, out);
    out->start_bytes = tape_live(w->t);
    int64_t ends = w->unit_bytes ? (m->vocab * m->hidden) * (m->tied ? 1 : 2) * w->p->compute : 0;
    int root = ends ? tape_storage(w->t, ends, TAPE_GATHERED) : -1;
    tape_enter(w->t, TAPE_PHASE_FORWARD, -1);
    tape_record(w->t, !w->r->inference);
    struct act x = embed(w);
    int64_t before = tape_live(w->t);
    for (int i = 0; i < m->layers; i++) {
        x = run_layer(w, &blocks[i], x, i);
        if (i == 0)
            out->layer_bytes = tape_live(w->t) - before;
    }
    int loss = head(w, x);
    for (int i = 0; i < w->n_casts; i++)
        tape_drop(w->t, w->casts[i]);
    if (!w->r->inference) {
        tape_enter(w->t, TAPE_PHASE_BACKWARD, -1);
        tape_backward(w->t, loss);
        tape_unref(w->t, root);
        optimizer_step(w);
    }
    out->peak = *tape_peak(w->t);
    for (int i = 0; i < TAPE_PHASE_COUNT; i++)
        out->phase[i] = *tape_phase_peak(w->t, (enum tape_phase)i);
}

static enum status check(const struct closed_model *m, const struct closed_run *r, struct err *e)
{
    double tokens = (double)r->batch * (double)r->seq;
    if (r->batch < 1 || r->seq < 1 || r->cards < 1 || r->cards > 100000)
        return err_set(e, ST_USAGE, "batch, seq and cards are counted from 1");
    if (tokens * (double)m->heads * (double)r->seq > 1e15 ||
        tokens * (double)(m->ffn + m->vocab + m->hidden) > 1e16 || m->layers > 10000)
        return err_set(e, ST_INVALID, "the configuration is absurdly large");
    if (r->rank < 1 || r->rank > 1 << 20 || r->lora_dropout < 0 || r->lora_dropout >= 1)
        return err_set(e, ST_USAGE, "the rank is counted from 1, dropout lies in 0 to 1");
    return ST_OK;
}

enum status closed_estimate_make(
    const struct closed_model *m, const struct closed_run *r, struct closed_estimate *out,
    struct err *e)
{
    enum { WEIGHTS_OF_A_LAYER = 600 };
    *out = (struct closed_estimate){0};
    TRY(check(m, r, e));
    struct walk w = {
        .m = m, .r = r, .p = closed_precision_at(r->precision), .gathered = -1, .held = -1};
    size_t cap = (size_t)(m->layers + 2) * WEIGHTS_OF_A_LAYER;
    struct block *blocks = mem_alloc((size_t)m->layers * sizeof *blocks);
    w.parameters = mem_alloc(cap * sizeof *w.parameters);
    w.shards = mem_alloc(cap * sizeof *w.shards);
    w.t = tape_new(512);
    w.tokens = r->batch * r->seq;
    w.unit_bytes = unit_bytes(m, r, w.p->compute);
    out->parameters = closed_model_parameters(m);
    out->trainable = trainable(m, r);
    run(&w, blocks, out);
    out->logits_bytes = m->head == CLOSED_HEAD_LM ? w.tokens * m->vocab * w.p->compute : 0;
    out->context_bytes = r->context_bytes;
    out->card_bytes = out->peak.bytes + r->context_bytes;
    out->total_bytes = out->card_bytes * r->cards;
    tape_free(w.t);
    mem_free(blocks);
    mem_free(w.parameters);
    mem_free(w.shards);
    return ST_OK;
}
