/* tape.c - the replay of an eager training step: storages with reference counts, and a recorded
 * list of nodes. */
#include "plan/tape.h"

#include "base/mem.h"

#include <string.h>

static const struct {
    const char *name, *about;
} kinds[] = {
#define KIND(id, name, about) {name, about},
#include "plan/tape_kinds.def"
#undef KIND
};
static const char *const phases[] = {
#define PHASE(id, name) name,
#include "plan/tape_phases.def"
#undef PHASE
};

const char *tape_kind_name(enum tape_kind k)
{
    return kinds[k].name;
}

const char *tape_kind_about(enum tape_kind k)
{
    return kinds[k].about;
}

const char *tape_phase_name(enum tape_phase p)
{
    return phases[p];
}

struct storage {
    int64_t bytes;
    int refs, saved;
    enum tape_kind kind; /* as allocated; WORKING counts as SAVED while it is saved */
};
struct value {
    int storage, grad; /* -1: none */
    int64_t grad_bytes;
    enum tape_kind grad_kind;
    int uses; /* recorded nodes that will give it a gradient */
    bool needs_grad, leaf;
};
enum { SAVED_MAX = TAPE_IN_MAX + 4 };
struct node {
    const char *what;
    int out, in[TAPE_IN_MAX], n_in, layer;
    unsigned alias;
    bool overwrite, gradual;
    int parts[TAPE_PARTS_MAX], n_parts; /* of a split: its results; out is -1 */
    int saved[SAVED_MAX], n_saved;
    int64_t temporary, grad_temporary;
    tape_block *block;
    tape_call *call;
    void *ctx;
};
struct tape {
    int64_t round, live, by_kind[TAPE_KIND_COUNT];
    VEC(struct storage) storages;
    VEC(struct value) values;
    VEC(struct node) nodes;
    enum tape_phase phase;
    int layer;
    const char *what;
    bool consume; /* leaves' gradients are freed when whole */
    bool anew;    /* sums of gradients are new tensors */
    tape_watch *watch;
    void *watch_ctx;
    bool recomputing, silent; /* silent: nothing is recorded */
    struct tape_peak peak, by_phase[TAPE_PHASE_COUNT];
};

struct tape *tape_new(int64_t round_bytes)
{
    struct tape *t = mem_alloc(sizeof *t);
    t->round = round_bytes;
    t->layer = -1;
    t->what = "";
    return t;
}

void tape_free(struct tape *t)
{
    if (!t)
        return;
    vec_release(&t->storages);
    vec_release(&t->values);
    vec_release(&t->nodes);
    mem_free(t);
}

/* ---- storages ---- */

static void note(const struct tape *t, struct tape_peak *peak)
{
    if (t->live <= peak->bytes)
        return;
    peak->bytes = t->live;
    memcpy(peak->by_kind, t->by_kind, sizeof peak->by_kind);
    peak->phase = t->phase;
    peak->layer = t->layer;
    peak->what = t->what;
}

static enum tape_kind counted_as(const struct storage *s)
{
    return s->kind == TAPE_WORKING && s->saved > 0 ? TAPE_SAVED : s->kind;
}

static void count(struct tape *t, const struct storage *s, int sign)
{
    t->by_kind[counted_as(s)] += sign * s->bytes;
    t->live += sign * s->bytes;
}

int tape_storage(struct tape *t, int64_t bytes, enum tape_kind k)
{
    struct storage s = {
        .bytes = (bytes + t->round - 1) / t->round * t->round, .refs = 1, .kind = k};
    if (k == TAPE_WORKING && t->recomputing)
        s.kind = TAPE_RECOMPUTE;
    vec_push(&t->storages, s);
    count(t, &s, 1);
    if (t->watch)
        t->watch((int)t->storages.n - 1, s.bytes, t->what, t->watch_ctx);
    note(t, &t->peak);
    note(t, &t->by_phase[t->phase]);
    return (int)t->storages.n - 1;
}

void tape_ref(struct tape *t, int storage)
{
    if (storage >= 0)
        t->storages.data[storage].refs++;
}

void tape_unref(struct tape *t, int storage)
{
    if (storage < 0)
        return;
    struct storage *s = &t->storages.data[storage];
    if (--s->refs > 0)
        return;
    count(t, s, -1);
    if (t->watch)
        t->watch(storage, -s->bytes, t->what, t->watch_ctx);
}

static void save(struct tape *t, struct node *n, int storage)
{
    if (storage < 0 || n->n_saved == SAVED_MAX)
        return;
    struct storage *s = &t->storages.data[storage];
    count(t, s, -1);
    s->saved++;
    s->refs++;
    count(t, s, 1);
    n->saved[n->n_saved++] = storage;
}

static void unsave(struct tape *t, struct node *n)
{
    for (int i = 0; i < n->n_saved; i++) {
        struct storage *s = &t->storages.data[n->saved[i]];
        count(t, s, -1);
        s->saved--;
        count(t, s, 1);
        tape_unref(t, n->saved[i]);
    }
    n->n_saved = 0;
}

void tape_flash(struct tape *t, int64_t bytes, enum tape_kind k)
{
    if (bytes > 0)
        tape_unref(t, tape_storage(t, bytes, k));
}

/* ---- values ---- */

static int value_new(struct tape *t, int storage, int64_t grad_bytes, bool needs_grad, bool leaf)
{
    struct value v = {
        .storage = storage,
        .grad = -1,
        .grad_kind = storage < 0                                     ? TAPE_GRADIENTS
                     : t->storages.data[storage].kind == TAPE_LOGITS ? TAPE_LOGITS
                     : t->storages.data[storage].kind == TAPE_CASTS  ? TAPE_CASTS
                                                                     : TAPE_WORKING,
        .grad_bytes = grad_bytes,
        .needs_grad = needs_grad,
        .leaf = leaf};
    vec_push(&t->values, v);
    return (int)t->values.n - 1;
}

int tape_value(struct tape *t, int64_t bytes, enum tape_kind k, bool needs_grad)
{
    return value_new(t, tape_storage(t, bytes, k), bytes, needs_grad, true);
}

int tape_parameter(struct tape *t, int64_t grad_bytes, bool trainable)
{
    return value_new(t, -1, grad_bytes, trainable, true);
}

bool tape_needs_grad(const struct tape *t, int value)
{
    return value >= 0 && t->values.data[value].needs_grad;
}

int tape_storage_of(const struct tape *t, int value)
{
    return value >= 0 ? t->values.data[value].storage : -1;
}

void tape_drop(struct tape *t, int value)
{
    if (value < 0)
        return;
    struct value *v = &t->values.data[value];
    tape_unref(t, v->storage);
    v->storage = -1;
}

void tape_consume_grads(struct tape *t, bool on)
{
    t->consume = on;
}

void tape_drop_grad(struct tape *t, int value)
{
    struct value *v = &t->values.data[value];
    tape_unref(t, v->grad);
    v->grad = -1;
}

int64_t tape_grad_held(const struct tape *t, int value)
{
    int grad = t->values.data[value].grad;
    return grad >= 0 ? t->storages.data[grad].bytes : 0;
}

/* ---- forward ---- */

static bool wants_grad(const struct tape *t, const struct tape_op *op)
{
    for (int i = 0; i < op->n_in; i++)
        if (tape_needs_grad(t, op->in[i]))
            return true;
    return false;
}

static void record(struct tape *t, const struct tape_op *op, int out)
{
    struct node n = {
        .what = op->what,
        .out = out,
        .n_in = op->n_in,
        .layer = t->layer,
        .alias = op->alias_in,
        .overwrite = op->overwrite_in,
        .gradual = op->gradual,
        .temporary = op->backward_temporary,
        .grad_temporary = op->grad_temporary};
    memcpy(n.in, op->in, sizeof n.in);
    for (int i = 0; i < op->n_in; i++)
        if (tape_needs_grad(t, op->in[i]))
            t->values.data[op->in[i]].uses++;
    for (int i = 0; i < op->n_in; i++)
        if (op->save_in & 1u << i)
            save(t, &n, tape_storage_of(t, op->in[i]));
    if (op->save_out)
        save(t, &n, tape_storage_of(t, out));
    if (op->keep_bytes > 0) {
        int kept = tape_storage(t, op->keep_bytes, TAPE_WORKING);
        save(t, &n, kept);
        tape_unref(t, kept);
    }
    vec_push(&t->nodes, n);
}

int tape_apply(struct tape *t, const struct tape_op *op)
{
    bool needs = !t->silent && wants_grad(t, op);
    enum tape_kind kind = op->kind == TAPE_WEIGHTS ? TAPE_WORKING : op->kind;
    int storage;
    t->what = op->what;
    if (op->view || op->in_place) {
        storage = tape_storage_of(t, op->in[0]);
        tape_ref(t, storage);
    } else {
        storage = tape_storage(t, op->bytes, kind);
    }
    int out = value_new(t, storage, op->grad_bytes ? op->grad_bytes : op->bytes, needs, false);
    tape_flash(t, op->forward_temporary + (needs ? 0 : op->keep_bytes), TAPE_WORKING);
    if (needs)
        record(t, op, out);
    return out;
}

void tape_split(struct tape *t, int x, const int64_t *part_bytes, int n, int *parts)
{
    struct node split = {.what = "split", .out = -1, .in = {x}, .n_in = 1, .layer = t->layer};
    bool needs = !t->silent && tape_needs_grad(t, x);
    int storage = tape_storage_of(t, x);
    for (int i = 0; i < n; i++) {
        tape_ref(t, storage);
        parts[i] = split.parts[i] = value_new(t, storage, part_bytes[i], needs, false);
    }
    split.n_parts = n;
    if (needs)
        vec_push(&t->nodes, split);
}

int tape_checkpoint(struct tape *t, tape_block *block, int x, int layer, void *ctx)
{
    bool silent = t->silent;
    t->silent = true;
    int y = block(t, x, layer, ctx);
    t->silent = silent;
    if (silent || !tape_needs_grad(t, x))
        return y;
    t->values.data[y].needs_grad = true;
    struct node n = {
        .what = "checkpoint",
        .out = y,
        .in = {x},
        .n_in = 1,
        .layer = layer,
        .block = block,
        .ctx = ctx};
    save(t, &n, tape_storage_of(t, x));
    vec_push(&t->nodes, n);
    return y;
}

void tape_hook(struct tape *t, tape_call *call, int layer, void *ctx)
{
    struct node n = {.what = "unit", .out = -1, .layer = layer, .call = call, .ctx = ctx};
    if (!t->silent)
        vec_push(&t->nodes, n);
}

void tape_save_with(struct tape *t, int value, int storage)
{
    for (size_t i = t->nodes.n; i-- > 0;) {
        if (t->nodes.data[i].out != value)
            continue;
        save(t, &t->nodes.data[i], storage);
        return;
    }
}

bool tape_recomputing(const struct tape *t)
{
    return t->recomputing;
}

bool tape_recording(const struct tape *t)
{
    return !t->silent;
}

void tape_record(struct tape *t, bool on)
{
    t->silent = !on;
}

void tape_sum_anew(struct tape *t, bool on)
{
    t->anew = on;
}

void tape_set_watch(struct tape *t, tape_watch *watch, void *ctx)
{
    t->watch = watch;
    t->watch_ctx = ctx;
}

void tape_enter(struct tape *t, enum tape_phase p, int layer)
{
    t->phase = p;
    t->layer = layer;
    t->what = tape_phase_name(p);
    note(t, &t->by_phase[p]);
}

/* ---- backward ---- */

/* Takes the reference to `grad`. */
static void accumulate(struct tape *t, int value, int grad)
{
    struct value *v = &t->values.data[value];
    if (v->grad >= 0 && (t->anew || t->storages.data[v->grad].refs > 1)) {
        int sum = tape_storage(t, v->grad_bytes, v->grad_kind);
        v = &t->values.data[value];
        tape_unref(t, v->grad);
        v->grad = sum;
    }
    if (v->grad >= 0)
        tape_unref(t, grad);
    else
        v->grad = grad;
    if (--v->uses <= 0 && t->consume && v->leaf)
        tape_drop_grad(t, value);
}

static void run_back(struct tape *t, size_t mark);

static void run_checkpoint(struct tape *t, struct node *n, int grad)
{
    struct node copy = *n;
    struct value *x = &t->values.data[copy.in[0]];
    int again = value_new(t, copy.saved[0], x->grad_bytes, true, false);
    size_t mark = t->nodes.n;
    tape_ref(t, copy.saved[0]);
    t->recomputing = true;
    int y = copy.block(t, again, copy.layer, copy.ctx);
    t->recomputing = false;
    tape_drop(t, y);
    t->values.data[y].grad = grad;
    run_back(t, mark);
    tape_drop(t, again);
    grad = t->values.data[again].grad;
    t->values.data[again].grad = -1;
    unsave(t, &copy);
    if (grad >= 0)
        accumulate(t, copy.in[0], grad);
}

static void run_node(struct tape *t, struct node *n, int grad)
{
    int made[TAPE_IN_MAX], temporary = -1;
    if (n->grad_temporary > 0)
        temporary = tape_storage(t, n->grad_temporary, TAPE_WORKING);
    tape_flash(t, n->temporary, TAPE_WORKING);
    if (n->gradual)
        unsave(t, n);
    for (int i = 0; i < n->n_in; i++) {
        made[i] = -1;
        if (!tape_needs_grad(t, n->in[i]))
            continue;
        if (n->overwrite && i == 0)
            tape_ref(t, made[i] = n->saved[0]);
        else if (n->alias & 1u << i)
            tape_ref(t, made[i] = grad);
        else
            made[i] = tape_storage(
                t, t->values.data[n->in[i]].grad_bytes, t->values.data[n->in[i]].grad_kind);
    }
    tape_unref(t, temporary);
    tape_unref(t, grad);
    unsave(t, n);
    for (int i = 0; i < n->n_in; i++)
        if (made[i] >= 0)
            accumulate(t, n->in[i], made[i]);
}

static void run_split(struct tape *t, const struct node *n)
{
    bool any = false;
    for (int i = 0; i < n->n_parts; i++)
        any = any || t->values.data[n->parts[i]].grad >= 0;
    if (!any)
        return;
    const struct value *x = &t->values.data[n->in[0]];
    int grad = tape_storage(t, x->grad_bytes, x->grad_kind);
    for (int i = 0; i < n->n_parts; i++)
        tape_drop_grad(t, n->parts[i]);
    accumulate(t, n->in[0], grad);
}

/* Nodes from the last one down to `mark`; they are gone afterwards. */
static void run_back(struct tape *t, size_t mark)
{
    while (t->nodes.n > mark) {
        struct node n = t->nodes.data[--t->nodes.n];
        t->layer = n.layer;
        t->what = n.what;
        if (n.n_parts) {
            run_split(t, &n);
            continue;
        }
        if (n.call) {
            n.call(t, n.layer, n.ctx);
            continue;
        }
        int grad = t->values.data[n.out].grad;
        t->values.data[n.out].grad = -1;
        if (grad < 0)
            unsave(t, &n);
        else if (n.block)
            run_checkpoint(t, &n, grad);
        else
            run_node(t, &n, grad);
    }
}

void tape_backward(struct tape *t, int loss)
{
    t->values.data[loss].grad = tape_storage(t, t->values.data[loss].grad_bytes, TAPE_WORKING);
    run_back(t, 0);
}

/* ---- results ---- */

int64_t tape_live(const struct tape *t)
{
    return t->live;
}

void tape_reset_peak(struct tape *t)
{
    t->peak = (struct tape_peak){0};
    memset(t->by_phase, 0, sizeof t->by_phase);
}

const struct tape_peak *tape_peak(const struct tape *t)
{
    return &t->peak;
}

const struct tape_peak *tape_phase_peak(const struct tape *t, enum tape_phase p)
{
    return &t->by_phase[p];
}
