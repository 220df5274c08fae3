/* placement_text.c - placement in words: why a run waits, what was refused and for whose sake. */
#include "server/placement_int.h"

#include <string.h>

enum { LIST_MAX = 6 }; /* names in a list, before "and N more" */

void text_device(struct str *out, const struct device *d)
{
    str_printf(out, "%s on %s", d->name, d->worker->server ? "this server" : d->worker->name);
}

static const char *worker_text(const struct worker *w)
{
    return w->server ? "this server" : w->name;
}

void text_names(struct str *out, const struct queue *q)
{
    for (size_t i = 0; i < q->n; i++)
        str_printf(out, "%s%s", i ? ", " : "", q->shape.devices[i]);
}

void text_offers(struct str *out, const struct worker *w)
{
    str_add(out, w->n_devices ? "it offers " : "it offers nothing");
    for (size_t i = 0; i < w->n_devices; i++)
        str_printf(out, "%s%s", i ? ", " : "", w->devices[i].name);
}

/* "a1b2c3d4, c3d4e5f6 and 3 more"; how many. */
static size_t text_holders(struct str *out, const struct card *c, bool queued_only)
{
    size_t n = 0;
    for (const struct holder *h = c->holders; h; h = h->next) {
        if ((queued_only && !h->queued) || !*h->who.id) /* idle canvas children have no run */
            continue;
        if (n < LIST_MAX)
            str_printf(out, "%s%s", n ? ", " : "", h->who.id);
        n++;
    }
    if (n > LIST_MAX)
        str_printf(out, " and %zu more", n - LIST_MAX);
    return n;
}

/* ---- sizes ---- */

enum rounding { NEAREST, UP, DOWN };

/* Bytes as thousandths or tenths of a GiB; of two that are as near the even one, as printf does. */
static int64_t in_gib(int64_t bytes, int64_t parts, enum rounding how)
{
    const int64_t gib = (int64_t)1 << 30;
    int64_t n = bytes / gib * parts + bytes % gib * parts / gib;
    int64_t rest = bytes % gib * parts % gib;
    bool up = how == UP ? rest > 0 : rest > gib / 2 || (rest == gib / 2 && n % 2 == 1);
    return n + (how != DOWN && up);
}

static void text_gib(struct str *out, int64_t n, int64_t parts)
{
    str_printf(
        out, parts == 10 ? "%lld.%lld GiB" : "%lld.%03lld GiB", (long long)(n / parts),
        (long long)(n % parts));
}

/* "needs 12.0 GiB (+0.8 GiB CUDA context), <device> has 6.3 GiB <what>". Where tenths would make
 * it seem to fit, thousandths show that it does not. */
static void text_figures(
    const struct place *p, const struct device *at, int64_t budget_bytes, int64_t has_bytes,
    const char *what, struct str *out)
{
    int64_t context = at->card->cuda ? p->context_bytes : 0, parts = 10;
    int64_t has_most = has_bytes < 0 ? 0 : has_bytes;
    int64_t needs = in_gib(budget_bytes, 10, NEAREST), has = in_gib(has_most, 10, NEAREST);
    int64_t beside = in_gib(context, 10, NEAREST);
    if (needs + beside <= has) {
        parts = 1000;
        needs = in_gib(budget_bytes, parts, UP);
        beside = in_gib(context, parts, UP);
        has = in_gib(has_most, parts, DOWN);
    }
    str_add(out, "needs ");
    text_gib(out, needs, parts);
    if (context > 0) {
        str_add(out, " (+");
        text_gib(out, beside, parts);
        str_add(out, " CUDA context)");
    }
    str_add(out, ", ");
    text_device(out, at);
    str_add(out, " has ");
    text_gib(out, has, parts);
    str_printf(out, " %s", what);
}

void text_needs(
    const struct place *p, const struct device *at, int64_t budget_bytes, struct str *out)
{
    const struct card *c = at->card;
    text_figures(p, at, budget_bytes, card_room(c), "free", out);
    struct str who;
    str_init(&who);
    if (text_holders(&who, c, false) > 0)
        str_printf(out, " (runs %s)", who.data);
    str_release(&who);
}

/* The candidate whose smallest card is the largest: what comes nearest. */
static const struct device *
largest_too_small(const struct place *p, const struct queue *q, int64_t b)
{
    const struct device *best = NULL;
    for (size_t i = 0; i < q->n_candidates; i++) {
        const struct device *at = NULL;
        if (candidate_ever(p, q, &q->candidates[i], b, &at) != FIT_TOO_LARGE)
            continue;
        if (!best || at->card->total_bytes > best->card->total_bytes)
            best = at;
    }
    return best;
}

void text_too_large(
    const struct place *p, const struct queue *q, int64_t budget_bytes, struct str *out)
{
    const struct device *at = largest_too_small(p, q, budget_bytes);
    if (!at)
        return;
    text_figures(p, at, budget_bytes, at->card->total_bytes, "in all", out);
    if (q->n_candidates > 1)
        str_add(out, ", and no card that it may use has more");
}

/* ---- why a run does not start ---- */

static void text_slot(const struct queue *q, const struct device *at, struct str *out)
{
    struct str who;
    str_init(&who);
    size_t n = text_holders(&who, at->card, true);
    text_device(out, at);
    str_printf(out, " is taken by run%s %s", n == 1 ? "" : "s", who.data);
    str_release(&who);
    if (q->n > 1) {
        str_add(out, "; it needs ");
        text_names(out, q);
        str_add(out, " at once");
    }
}

static void text_card(
    const struct place *p, const struct queue *q, const struct device *at, enum fit f,
    const struct place_request *r, struct str *out)
{
    const struct card *c = at->card;
    struct str name;
    str_init(&name);
    text_device(&name, at);
    if (f == FIT_SLOT)
        text_slot(q, at, out);
    else if (f == FIT_KEPT)
        str_printf(
            out, "%s is kept for run %s, which needs several cards at once", name.data,
            c->kept_for.id);
    else if (f == FIT_CLOSED)
        str_printf(
            out, "%s takes nothing new until run %s fits, which has waited long for memory",
            name.data, c->claim.id);
    else if (f == FIT_ALONE)
        str_printf(
            out,
            "%s is shared by memory, and run %s, which has no memory budget, has it for itself",
            name.data, c->alone.id);
    else if (f == FIT_UNREPORTED)
        str_printf(out, "the memory of %s is known with its next heartbeat", name.data);
    else if (f == FIT_NO_BUDGET)
        str_printf(
            out,
            "%s is shared by memory, and the run has no memory budget: no successful run of this "
            "graph on %zu card%s has been measured",
            name.data, q->n, q->n == 1 ? "" : "s");
    else if (f == FIT_TOO_LARGE)
        text_too_large(p, q, r->budget_bytes, out);
    else if (f == FIT_NO_TOTAL)
        str_printf(
            out,
            "%s is shared by memory but reports no total, so no budget can be judged until it is "
            "exclusive again",
            name.data);
    else if (f == FIT_CANNOT_CAP)
        str_printf(
            out, "%s is shared by memory, and the agent there cannot hold a run to its budget",
            name.data);
    else
        text_needs(p, at, r->budget_bytes, out);
    str_release(&name);
}

static const char *worker_state_text(enum fit f)
{
    switch ((int)f) {
    case FIT_ADOPTING:
        return "has just connected, and what it still runs is being settled";
    case FIT_SPENT:
        return "has had its one run";
    case FIT_DRAINING:
        return "is draining";
    case FIT_DISABLED:
        return "is disabled";
    default:
        return "is not connected";
    }
}

static bool fit_is_worker(enum fit f)
{
    return f >= FIT_ADOPTING && f <= FIT_DISABLED;
}

void text_fit(
    const struct place *p, const struct queue *q, const struct device *at, enum fit f,
    const struct place_request *r, struct str *out)
{
    if (fit_is_worker(f))
        str_printf(out, "%s %s", worker_text(at->worker), worker_state_text(f));
    else
        text_card(p, q, at, f, r, out);
}

/* ---- reasons ---- */

static void text_nobody(const struct place *p, const struct queue *q, struct str *out)
{
    const struct worker *w;
    switch (q->shape.target) {
    case PLACE_NAMED:
        w = world_worker(p, q->shape.worker);
        if (!w) {
            str_printf(out, "%s has not connected since the server started", q->shape.worker);
            return;
        }
        str_printf(out, "%s does not offer ", worker_text(w));
        text_names(out, q);
        str_add(out, " now (");
        text_offers(out, w);
        str_add(out, ")");
        return;
    case PLACE_POOL:
        str_printf(
            out,
            *q->shape.pool ? "no one-shot worker of pool %s with " : "no one-shot worker%s with ",
            q->shape.pool);
        break;
    case PLACE_ANY:
        str_add(out, "no worker with ");
        break;
    }
    text_names(out, q);
    str_add(out, " is known");
}

/* Of several workers none takes runs: each with its state, or what all have in common. */
static void text_workers(const struct queue *q, struct str *out)
{
    size_t n = 0, draining = 0;
    const struct worker *last = NULL;
    struct str each;
    str_init(&each);
    /* Those first that are nearest to taking runs again; then those that never take this one. */
    for (int pass = FIT_ADOPTING; pass <= FIT_DISABLED + 1; pass++) {
        enum fit f = pass > FIT_DISABLED ? FIT_OK : (enum fit)pass;
        last = NULL;
        for (size_t i = 0; i < q->n_candidates; i++) {
            const struct worker *w = q->candidates[i].worker;
            if (w == last || worker_fit(w) != f)
                continue;
            last = w;
            draining += f == FIT_DRAINING;
            if (n < LIST_MAX)
                str_printf(
                    &each, "%s%s %s", n ? ", " : "", worker_text(w),
                    f == FIT_OK ? "cannot take it" : worker_state_text(f));
            n++;
        }
    }
    if (n > LIST_MAX)
        str_printf(&each, " and %zu more", n - LIST_MAX);
    if (draining == n && n > 1) {
        str_add(out, "every worker with ");
        text_names(out, q);
        str_add(out, " is draining");
    } else {
        str_add(out, each.data);
    }
    str_release(&each);
}

static size_t cards_beside(const struct queue *q)
{
    return q->n_candidates > 1 ? q->n_candidates - 1 : 0;
}

static const char *reason_begin(enum fit f)
{
    if (fit_is_memory(f))
        return "waits for memory: ";
    if (f == FIT_SLOT || f == FIT_KEPT || f == FIT_CLOSED)
        return "waits for its turn: ";
    return "waits: ";
}

/* What the run, or one before it, does to others meanwhile (R19), and who is before it. */
static void reason_end(
    const struct place_class *c, int64_t run, enum fit f, const struct device *at, struct str *out)
{
    const struct queue *q = c->queue;
    const struct card *card = at ? at->card : NULL;
    if (fit_is_room(f) && cards_beside(q) == 1)
        str_add(out, "; the other card it may use has no room either");
    else if (fit_is_room(f) && cards_beside(q) > 1)
        str_printf(out, "; %zu other cards it may use have no room either", cards_beside(q));
    if (fit_is_memory(f) && card->warm && card->evicted)
        str_add(out, "; idle canvas runs are asked to leave");
    if (fit_is_memory(f) && q->first_run == run)
        str_add(
            out, card->claim.run == run && card->closed
                     ? "; the card takes nothing new until it fits"
                     : "; later runs that fit may pass");
    if (q->waiting.run && q->waiting.run < run)
        str_printf(out, "; run %s is before it in the queue", q->waiting.id);
}

void place_reason(const struct place *p, const struct place_class *c, int64_t run, struct str *out)
{
    const struct queue *q = c->queue;
    if (q->pass != p->pass) {
        str_add(out, "waits: it is placed in a moment");
        return;
    }
    enum fit f;
    const struct device *at = NULL;
    const struct candidate *best = queue_best(p, q, c->request.budget_bytes, run, &f, &at);
    str_add(out, reason_begin(f));
    if (!best)
        text_nobody(p, q, out);
    else if (f == FIT_OK)
        str_add(out, "it is placed in a moment");
    else if (fit_is_worker(f))
        text_workers(q, out);
    else
        text_fit(p, q, at, f, &c->request, out);
    reason_end(c, run, f, best ? at : NULL, out);
}
