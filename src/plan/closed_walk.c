/* closed_walk.c - a whole training step of a transformer onto a tape: what is resident, the layers
 * as units that are sharded or computed again, the scores and the loss, the optimizer's step. */
#include "plan/closed_walk_int.h"

#include "base/mem.h"

#include <math.h>

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
               .bytes = walk_bytes(in)});
    struct act y = walk_layer(w, in);
    if (b->count == 0)
        b->count = w->n_parameters - b->first;
    w->cursor = w->cursor_end = 0;
    w->layer_size = y.size;
    return y.v;
}

/* ---- sharded units ---- */

static int64_t shard(const struct walk *w, int64_t bytes, int stage)
{
    return walk_sharded(w, stage) ? (bytes + w->r->cards - 1) / w->r->cards : bytes;
}

/* Two units are whole at a time: the one that computes and the one that is being fetched. */
static void gather(struct tape *t, int index, void *ctx)
{
    struct block *b = ctx;
    (void)index;
    tape_unref(t, b->w->gathered);
    b->w->gathered = tape_storage(t, 2 * b->w->unit_bytes, TAPE_GATHERED);
}

/* Whole gradients of parameters become this card's share. */
static void reduce(struct walk *w, int first, int end)
{
    int whole = closed_precision_at(w->r->precision)->gradient;
    for (int i = first; i < end && w->buffer < 0 && walk_sharded(w, 2); i++) {
        int64_t bytes = tape_grad_held(w->t, w->parameters[i]);
        if (bytes == 0)
            continue;
        (void)tape_storage(w->t, shard(w, bytes / w->p->gradient * whole, 2), TAPE_GRADIENTS);
        tape_drop_grad(w->t, w->parameters[i]);
    }
}

static void release(struct tape *t, int index, void *ctx)
{
    struct block *b = ctx;
    (void)index;
    tape_unref(t, b->w->gathered);
    b->w->gathered = -1;
    reduce(b->w, b->first, b->first + b->count);
}

static struct act run_layer(struct walk *w, struct block *b, struct act x, int index)
{
    bool units = walk_sharded(w, 2) || (walk_sharded(w, 3)) || w->r->offload_params;
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
    walk_drop(w, x);
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
    int table = walk_parameter(w, n, trained);
    int size = w->p->autocast && !walk_half_base(w) ? 4 : w->p->compute;
    struct act x = {0, w->tokens * m->hidden, size};
    /* Adapters under checkpointing ask the embeddings' result for a gradient. */
    int hook = tape_parameter(
        w->t, 0, !w->r->inference && w->r->checkpointing == CLOSED_BLOCKS && !trained);
    x.v = walk_apply(
        w, (struct tape_op){
               .what = "embedding", .in = {table, hook}, .n_in = 2, .bytes = walk_bytes(x)});
    return m->positions ? walk_dropout(w, x, m->dropout) : x;
}

static int scalar(struct walk *w, struct act logits, bool save, const char *what)
{
    return walk_apply(
        w,
        (struct tape_op){.what = what, .in = {logits.v}, .n_in = 1, .save_in = save, .bytes = 4});
}

static struct act
scores_like(struct walk *w, struct act x, int size, const char *what, bool save_out)
{
    struct act y = {0, x.n, size};
    y.v = walk_apply(
        w, (struct tape_op){
               .what = what,
               .in = {x.v},
               .n_in = 1,
               .save_out = save_out,
               .kind = TAPE_LOGITS,
               .bytes = walk_bytes(y)});
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
        walk_drop(w, x);
    int loss = scalar(w, y, true, "picked");
    walk_drop(w, y);
    return loss;
}

/* The caller's variable for the scores goes when its habit says. */
static void hold(struct walk *w, struct act logits)
{
    if (w->r->holds_logits)
        w->held = logits.v;
    else
        walk_drop(w, logits);
}

static int whole_loss(struct walk *w, struct act logits)
{
    struct act shifted = logits;
    if (w->r->loss == CLOSED_LOSS_UPCAST && logits.size == 2) {
        shifted = scores_like(w, logits, 4, "scores in float32", false);
        walk_drop(w, logits);
        logits = shifted;
    }
    if (w->r->loss == CLOSED_LOSS_SHIFTED || w->r->loss == CLOSED_LOSS_UPCAST)
        shifted = scores_like(w, logits, logits.size, "shifted copy", false);
    int loss = cross_entropy(w, shifted);
    if (shifted.v != logits.v)
        walk_drop(w, shifted);
    hold(w, logits);
    return loss;
}

/* The kernel writes the gradient over the scores. */
static int fused_loss(struct walk *w, struct act logits)
{
    bool copies = w->r->loss == CLOSED_LOSS_UPCAST_FUSED;
    if ((copies || w->r->loss == CLOSED_LOSS_FLOAT) && logits.size == 2) {
        struct act wide = scores_like(w, logits, 4, "scores in float32", false);
        walk_drop(w, logits);
        logits = wide;
    }
    if (copies) {
        struct act shifted = scores_like(w, logits, logits.size, "shifted copy", false);
        walk_drop(w, logits);
        logits = shifted;
    }
    int loss = walk_apply(
        w, (struct tape_op){
               .what = "fused cross-entropy",
               .in = {logits.v},
               .n_in = 1,
               .save_in = 1,
               .overwrite_in = true,
               .bytes = 4,
               .keep_bytes = w->tokens * 4});
    walk_drop(w, logits);
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
    return walk_apply(
        w, (struct tape_op){
               .what = "chunked cross-entropy",
               .in = {x.v, k->v},
               .n_in = 2,
               .alias_in = 0,
               .bytes = 4,
               .keep_bytes = walk_bytes(x) + weight_grad,
               .forward_temporary = scores * (w->p->compute + 4)});
}

/* Scores stay in their type; parts of them are made float32 one after another, and the log-softmax
 * of each stays. */
static int parted_loss(struct walk *w, struct act logits, int parts)
{
    int64_t part = logits.n / parts * 4;
    int loss = walk_apply(
        w, (struct tape_op){
               .what = "cross-entropy in parts",
               .in = {logits.v},
               .n_in = 1,
               .bytes = 4,
               .keep_bytes = 4 * logits.n,
               .forward_temporary = part,
               .backward_temporary = 2 * part});
    walk_drop(w, logits);
    return loss;
}

static int loss_of(struct walk *w, struct act logits)
{
    enum { OUTPUT_PARTS = 8 };
    int loss;
    switch (w->r->loss) {
    case CLOSED_LOSS_FUSED:
    case CLOSED_LOSS_FLOAT:
    case CLOSED_LOSS_UPCAST_FUSED:
        return fused_loss(w, logits);
    case CLOSED_LOSS_CHUNKED_OUTPUT:
        return parted_loss(w, logits, OUTPUT_PARTS);
    case CLOSED_LOSS_CHUNK128:
        loss = cross_entropy(w, logits);
        hold(w, logits);
        return loss;
    case CLOSED_LOSS_PLAIN:
    case CLOSED_LOSS_SHIFTED:
    case CLOSED_LOSS_UPCAST:
    case CLOSED_LOSS_CHUNKED:
        break;
    }
    return whole_loss(w, logits);
}

static int head(struct walk *w, struct act x)
{
    const struct closed_model *m = w->m;
    if (m->head == CLOSED_HEAD_NONE || m->head == CLOSED_HEAD_CLASSES || m->vocab == 0) {
        struct weight pool = walk_weight(w, m->hidden * m->hidden);
        struct act y = walk_product(w, x, m->hidden, m->hidden, &pool, TAPE_WORKING);
        int loss = scalar(w, y, true, "loss");
        walk_drop(w, y);
        walk_drop(w, x);
        return loss;
    }
    if (!m->post_norm) {
        struct act n = walk_norm(w, x);
        walk_drop(w, x);
        x = n;
    }
    struct weight k = walk_weight(w, m->tied ? 0 : m->vocab * m->hidden);
    k.quantised = false;
    k.n = m->vocab * m->hidden;
    if (m->tied && w->r->method == CLOSED_FULL)
        k.v = w->parameters[0];
    int loss;
    tape_enter(w->t, TAPE_PHASE_LOSS, -1);
    if (w->r->loss == CLOSED_LOSS_CHUNKED) {
        loss = chunked_loss(w, x, &k);
    } else {
        struct act logits = walk_product(w, x, m->hidden, m->vocab, &k, TAPE_LOGITS);
        loss = loss_of(w, logits);
    }
    walk_drop(w, x);
    return loss;
}

/* ---- the step ---- */

static double moment_bytes(const struct walk *w)
{
    const struct closed_optim_row *o = closed_optim_at(w->r->optimizer);
    return o->states * (o->bytes > 0 ? o->bytes : (double)w->p->moment);
}

enum {
    ENGINE_ELEMENTS = 1000000000
}; /* sub_group_size and stage3_max_live_parameters, as shipped */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* DeepSpeed makes float32 gradients of this card's share: of all of it, in stage 3 of a group at a
 * time. */
static int64_t engine_gradients(const struct walk *w)
{
    int64_t share = shard(w, w->n_trainable, 1);
    return 4 * (w->r->zero >= 3 ? least(share, ENGINE_ELEMENTS) : share);
}

static void optimizer_step(struct walk *w)
{
    const struct closed_optim_row *o = closed_optim_at(w->r->optimizer);
    int64_t element = o->bytes > 0 ? 4 : w->p->moment;
    tape_enter(w->t, TAPE_PHASE_STEP, -1);
    if (w->moments_late)
        (void)tape_storage(w->t, w->moments_late, TAPE_MOMENTS);
    if ((w->r->habits & CLOSED_ENGINE) && w->r->zero > 0 && !w->r->offload_optimizer)
        tape_flash(w->t, engine_gradients(w), TAPE_STEP);
    if (w->r->offload_optimizer || w->p->master)
        return; /* on the host, or one fused kernel over masters */
    if (w->r->step == CLOSED_STEP_FOREACH && o->copies > 0 && !w->r->update_in_backward)
        tape_flash(
            w->t, shard(w, w->n_trainable * element, w->r->zero >= 2 ? 2 : 1) * o->copies,
            TAPE_STEP);
    else if (w->r->step != CLOSED_STEP_FUSED)
        tape_flash(w->t, w->largest * element * o->largest, TAPE_STEP);
}

/* Buffers that live as long as the run: DDP gathers gradients in buckets that together are as large
 * as they are; DeepSpeed has two of hidden x hidden elements (Hugging Face's "auto"). */
static int64_t buckets(const struct walk *w, int64_t trained)
{
    const struct closed_run *r = w->r;
    if (r->inference)
        return 0;
    if ((r->habits & CLOSED_ENGINE) && r->zero > 0)
        return 2 * w->m->hidden * w->m->hidden * w->p->compute;
    bool ddp = r->cards > 1 && r->zero == 0 && !(r->habits & CLOSED_GRADIENT_BUFFER);
    return ddp ? trained * w->p->gradient : 0;
}

/* What is there before the first operator: weights, masters, state. */
static void resident(struct walk *w, struct closed_estimate *out)
{
    const struct closed_model *m = w->m;
    int64_t p = closed_model_parameters(m),
            tables = (m->vocab + m->positions + m->types) * m->hidden;
    int64_t ends = tables + (m->tied ? 0 : m->vocab * m->hidden), trained = out->trainable;
    double weights = (double)p * w->p->weight;
    int master = w->p->master;
    double each_moments = moment_bytes(w);
    if (w->r->method != CLOSED_FULL) {
        const struct closed_optim_row *o = closed_optim_at(w->r->optimizer);
        int own = w->r->adapter_bytes ? w->r->adapter_bytes : w->p->weight;
        if (own == 4) {
            master = 0;
            each_moments = o->states * (o->bytes > 0 ? o->bytes : 4.0);
        }
        double base = walk_half_base(w) ? w->p->compute : w->p->weight;
        weights = (double)p * base + (double)trained * own;
        if (w->r->method == CLOSED_QLORA)
            weights = (double)(p - ends) * w->r->quant_bits / 8 + (double)ends * 2 +
                      (double)trained * own;
    }
    int64_t masters = trained * master, moments = llround((double)trained * each_moments);
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
    if (moments && !w->r->first_step)
        (void)tape_storage(w->t, moments, TAPE_MOMENTS);
    w->moments_late = w->r->first_step ? moments : 0;
    if ((w->r->habits & CLOSED_GRADIENT_BUFFER) && !w->r->inference)
        w->buffer =
            tape_storage(w->t, shard(w, out->trainable * w->p->gradient, 2), TAPE_GRADIENTS);
    (void)tape_storage(w->t, buckets(w, trained), TAPE_GRADIENTS);
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
    if ((!(r->zero >= 3 && r->cards > 1) && !r->offload_params) || (r->habits & CLOSED_ENGINE))
        return 0;
    one.parameters = two.parameters = 0;
    one.layers = 1;
    two.layers = 2;
    int64_t n = closed_model_parameters(&two) - closed_model_parameters(&one);
    double each = r->method == CLOSED_QLORA ? r->quant_bits / 8 : compute;
    return llround((double)n * each);
}

/* Whole weights that stay from the forward pass to the end of the backward pass: FSDP's root unit,
 * or as many as DeepSpeed's stage 3 lets live. */
static int64_t whole_bytes(const struct walk *w)
{
    const struct closed_model *m = w->m;
    if ((w->r->habits & CLOSED_ENGINE) && w->r->zero >= 3)
        return least(closed_model_parameters(m), ENGINE_ELEMENTS) * w->p->compute;
    return w->unit_bytes ? m->vocab * m->hidden * (m->tied ? 1 : 2) * w->p->compute : 0;
}

static void run(struct walk *w, struct block *blocks, struct closed_estimate *out)
{
    const struct closed_model *m = w->m;
    resident(w, out);
    out->start_bytes = tape_live(w->t);
    int64_t whole = whole_bytes(w);
    int root = whole ? tape_storage(w->t, whole, TAPE_GATHERED) : -1;
    tape_enter(w->t, TAPE_PHASE_FORWARD, -1);
    tape_record(w->t, !w->r->inference);
    tape_consume_grads(w->t, w->r->update_in_backward);
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
        reduce(w, 0, w->n_parameters);
        tape_unref(w->t, root);
        if (w->r->holds_logits == 1)
            tape_drop(w->t, w->held);
        optimizer_step(w);
    }
    out->peak = *tape_peak(w->t);
    for (int i = 0; i < TAPE_PHASE_COUNT; i++)
        out->phase[i] = *tape_phase_peak(w->t, (enum tape_phase)i);
}

enum { LAYERS_MAX = 8192 }; /* and experts of a token: a walk takes seconds */

/* Bytes stay far below what 64 bits hold, whatever is multiplied and summed: a layer's activations
 * are some dozens of times its widest. */
enum status
closed_run_check(const struct closed_model *m, const struct closed_run *r, struct err *e)
{
    double tokens = (double)r->batch * (double)r->seq;
    double rank = r->method == CLOSED_FULL ? 0 : (double)r->rank;
    double wide = (double)m->hidden + (double)m->ffn * (double)(1 + m->experts_per_token) +
                  (double)m->heads * (double)m->head_dim + rank;
    double layer = tokens * (wide + (double)m->heads * (double)r->seq);
    if (r->batch < 1 || r->seq < 1 || r->cards < 1 || r->cards > 100000)
        return err_set(e, ST_USAGE, "batch, seq and cards are counted from 1");
    if (tokens * (double)m->heads * (double)r->seq > 1e15 ||
        tokens * (double)(m->ffn + m->vocab + m->hidden) > 1e16 ||
        (double)m->layers * (layer + rank * wide) > 1e16 ||
        m->layers * (1 + m->experts_per_token) > LAYERS_MAX)
        return err_set(e, ST_INVALID, "the configuration is absurdly large");
    if (r->rank < 1 || r->rank > 1 << 20 || r->lora_dropout < 0 || r->lora_dropout >= 1)
        return err_set(e, ST_USAGE, "the rank is counted from 1, dropout lies in 0 to 1");
    return ST_OK;
}

/* FSDP's mixed precision hands modules weights in the compute type: no autocast copies, and
 * gradients of that type until they are sharded. Adapters on a half base leave the residual in
 * half. */
static void precision_of(struct walk *w)
{
    w->row = *w->p;
    w->p = &w->row;
    if (w->row.autocast && walk_sharded(w, 3)) {
        w->row.autocast = false;
        w->row.gradient = 2;
    }
}

enum status closed_estimate_make(
    const struct closed_model *m, const struct closed_run *r, struct closed_estimate *out,
    struct err *e)
{
    enum { WEIGHTS_OF_A_LAYER = 800 };
    *out = (struct closed_estimate){0};
    TRY(closed_run_check(m, r, e));
    struct walk w = {
        .m = m,
        .r = r,
        .p = closed_precision_at(r->precision),
        .gathered = -1,
        .held = -1,
        .buffer = -1};
    precision_of(&w);
    size_t cap = (size_t)(m->layers + 2) * WEIGHTS_OF_A_LAYER;
    struct block *blocks = mem_alloc((size_t)m->layers * sizeof *blocks);
    w.parameters = mem_alloc(cap * sizeof *w.parameters);
    w.t = tape_new(512);
    w.tokens = r->batch * r->seq;
    w.unit_bytes = unit_bytes(m, r, w.p->compute);
    out->parameters = closed_model_parameters(m);
    out->trainable = trainable(m, r);
    run(&w, blocks, out);
    out->logits_bytes = m->head == CLOSED_HEAD_LM ? w.tokens * m->vocab * w.p->compute : 0;
    out->context_bytes = r->context_bytes;
    out->card_bytes = out->peak.bytes + r->context_bytes;
    tape_free(w.t);
    mem_free(blocks);
    mem_free(w.parameters);
    if (out->card_bytes > INT64_MAX / r->cards)
        return err_set(e, ST_INVALID, "the configuration is absurdly large");
    out->total_bytes = out->card_bytes * r->cards;
    return ST_OK;
}
