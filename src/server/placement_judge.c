/* placement_judge.c - one request at submission: what exists, what can ever fit, what fits now;
 * and what the panel shows of a card. */
#include "server/placement_int.h"

#include <string.h>

/* ---- what exists (R4, R5) ---- */

static size_t kind_length(const char *device)
{
    return strcspn(device, ":");
}

static enum status judge_devices(const struct place_request *r, struct err *e)
{
    const char *first = r->devices[0];
    for (size_t i = 1; i < r->n_devices; i++) {
        const char *d = r->devices[i];
        if (kind_length(d) != kind_length(first) || strncmp(d, first, kind_length(first)) != 0)
            return err_set(
                e, ST_INVALID, "the devices of a run are of one kind, not %.64s and %.64s", first,
                d);
        for (size_t j = 0; j < i; j++)
            if (str_eq(d, r->devices[j]))
                return err_set(e, ST_INVALID, "%.64s is listed twice", d);
        if (!strchr(d, ':') && !str_eq(d, "cpu"))
            return err_set(e, ST_INVALID, "a set names its devices one by one, not %.64s", d);
    }
    return ST_OK;
}

static void text_known(const struct place *p, struct str *out)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_workers; i++) {
        const struct worker *w = &p->workers[i];
        if (w->seen && n++ < 16)
            str_printf(out, "%s%s", n > 1 ? ", " : "", w->server ? "local" : w->name);
    }
    if (n > 16)
        str_printf(out, " and %zu more", n - 16);
    if (n == 0)
        str_add(out, "nobody");
}

/* Takes the text; ST_INVALID. */
static enum status refuse(struct str *text, struct err *e)
{
    enum status st = err_set(e, ST_INVALID, "%.760s", text->data);
    str_release(text);
    return st;
}

static enum status refuse_unseen(const struct place *p, const char *name, struct err *e)
{
    struct str known;
    str_init(&known);
    text_known(p, &known);
    enum status st = err_set(
        e, ST_INVALID,
        "no worker \"%.128s\" has connected since the server started (those that have: %.500s)",
        name, known.data);
    str_release(&known);
    return st;
}

static enum status judge_named(const struct place *p, const struct queue *q, struct err *e)
{
    const struct worker *w = world_worker(p, q->shape.worker);
    if (!w || !w->seen)
        return refuse_unseen(p, q->shape.worker, e);
    if (q->n_candidates > 0)
        return ST_OK;
    struct str text;
    str_init(&text);
    str_printf(&text, "%s does not offer ", w->server ? "this server" : w->name);
    size_t n = 0;
    for (size_t i = 0; i < q->n; i++)
        if (!q->exact || !worker_device(w, q->shape.devices[i]))
            str_printf(&text, "%s%s", n++ ? ", " : "", q->shape.devices[i]);
    str_add(&text, " (");
    text_offers(&text, w);
    str_add(&text, ")");
    return refuse(&text, e);
}

static bool any_seen(const struct queue *q)
{
    for (size_t i = 0; i < q->n_candidates; i++)
        if (q->candidates[i].worker->seen)
            return true;
    return false;
}

/* A set, or a card other than the first, is taken by other workers alone under `any` (R5). */
static bool server_has_all(const struct place *p, const struct queue *q)
{
    const struct worker *w = NULL;
    for (size_t i = 0; i < p->n_workers && !w; i++)
        w = p->workers[i].server && p->workers[i].seen ? &p->workers[i] : NULL;
    for (size_t i = 0; i < q->n && w; i++)
        if (!worker_device(w, q->shape.devices[i]))
            return false;
    return w != NULL;
}

static enum status judge_any(const struct place *p, const struct queue *q, struct err *e)
{
    if (any_seen(q))
        return ST_OK;
    struct str text;
    str_init(&text);
    str_add(&text, "no worker that has connected since the server started offers ");
    text_names(&text, q);
    size_t n = 0;
    for (size_t i = 0; i < p->n_workers; i++) {
        const struct worker *w = &p->workers[i];
        if (!w->seen || w->one_shot || n >= 6)
            continue;
        str_add(&text, n++ ? "; " : " (");
        str_printf(&text, "%s: ", w->server ? "this server" : w->name);
        text_offers(&text, w);
    }
    if (n)
        str_add(&text, ")");
    enum status st = refuse(&text, e);
    if (q->shape.target == PLACE_ANY && server_has_all(p, q))
        err_hint(
            e, "Under \"any\" other workers alone take a set, or a card other than the first: name "
               "\"local\" for this server's.");
    return st;
}

/* ---- memory (B4, B5, B7) ---- */

/* Whether no candidate can ever take it, and the best of the reasons: the least final one. */
static bool never_fits(
    const struct place *p, const struct queue *q, int64_t budget, enum fit *f,
    const struct device **at)
{
    *f = FIT_COUNT;
    for (size_t i = 0; i < q->n_candidates; i++) {
        const struct device *here = NULL;
        enum fit x = candidate_ever(p, q, &q->candidates[i], budget, &here);
        if (!fit_is_never(x))
            return false;
        if (x < *f) {
            *f = x;
            *at = here;
        }
    }
    return q->n_candidates > 0;
}

/* Two of a worker's devices may be one card, which an exclusive one cannot give twice. */
static enum status judge_same_card(const struct queue *q, struct err *e)
{
    for (size_t k = 0; k < q->n_candidates && q->shape.target == PLACE_NAMED; k++)
        for (size_t i = 1; i < q->n; i++)
            for (size_t j = 0; j < i; j++)
                if (q->candidates[k].devices[i]->card == q->candidates[k].devices[j]->card)
                    return err_set(
                        e, ST_INVALID, "%.64s and %.64s of %.128s are the same card",
                        q->shape.devices[j], q->shape.devices[i], q->shape.worker);
    return ST_OK;
}

static enum status judge_ever(
    const struct place *p, const struct queue *q, const struct place_request *r, struct err *e)
{
    TRY(judge_same_card(q, e));
    enum fit f;
    const struct device *at = NULL;
    if (!never_fits(p, q, r->budget_bytes, &f, &at))
        return ST_OK;
    struct str text;
    str_init(&text);
    text_fit(p, q, at, f, r, &text);
    enum status st = refuse(&text, e);
    if (f == FIT_NO_BUDGET)
        err_hint(e, "Give the run a budget: target.memory_gib, or --memory-gib.");
    return st;
}

/* Where a run that may not wait for memory can be queued: it fits, or lacks only a slot or the
 * next heartbeat; a worker that is named may also be away (R5). */
static bool fit_is_accepted(enum fit f, enum place_target target)
{
    if (f == FIT_OK || f == FIT_EVICT || f == FIT_SLOT || f == FIT_KEPT || f == FIT_UNREPORTED)
        return true;
    return target == PLACE_NAMED && !fit_is_room(f) && !fit_is_never(f);
}

/* Every card that lacks room, with its figures. */
static void text_no_room(
    const struct place *p, const struct queue *q, const struct place_request *r, struct str *out)
{
    size_t n = 0;
    for (size_t i = 0; i < q->n_candidates; i++) {
        const struct device *at = NULL;
        enum fit f = candidate_fit(p, q, &q->candidates[i], r->budget_bytes, 0, &at);
        if (n++ >= 4)
            continue;
        str_add(out, n > 1 ? "; " : "");
        text_fit(p, q, at, f, r, out);
    }
    if (n > 4)
        str_printf(out, "; and %zu more", n - 4);
    if (n == 0)
        str_add(out, "no one-shot worker is there now, and the run may not wait");
}

static enum status judge_now(
    const struct place *p, const struct queue *q, const struct place_request *r,
    enum place_wait wait, struct err *e)
{
    bool may_wait = r->target == PLACE_NAMED ? wait == PLACE_WAIT_YES : wait != PLACE_WAIT_NO;
    if (may_wait || r->budget_bytes <= 0)
        return ST_OK;
    for (size_t i = 0; i < q->n_candidates; i++)
        if (fit_is_accepted(
                candidate_fit(p, q, &q->candidates[i], r->budget_bytes, 0, NULL), r->target))
            return ST_OK;
    struct str text;
    str_init(&text);
    text_no_room(p, q, r, &text);
    enum status st = refuse(&text, e);
    err_hint(e, "Set target.wait (--wait-memory) to wait in the queue until it fits.");
    return st;
}

static enum status judge(
    struct place *p, const struct queue *q, const struct place_request *r, enum place_wait wait,
    struct err *e)
{
    if (r->target == PLACE_NAMED)
        TRY(judge_named(p, q, e));
    else if (r->target == PLACE_ANY)
        TRY(judge_any(p, q, e));
    TRY(judge_ever(p, q, r, e));
    return judge_now(p, q, r, wait, e);
}

enum status
place_judge(struct place *p, const struct place_request *r, enum place_wait wait, struct err *e)
{
    TRY(judge_devices(r, e));
    struct place_class *c = place_class_get(p, r);
    queue_ready(p, c->queue);
    enum status st = judge(p, c->queue, &c->request, wait, e);
    place_class_give(p, c);
    return st;
}

/* ---- the panel ---- */

static void card_others(const struct device *d, struct place_card *out)
{
    for (const struct device *x = d->card->offers; x; x = x->next_offer) {
        if (x->worker == d->worker)
            continue;
        if (out->n_others < sizeof out->others / sizeof out->others[0])
            out->others[out->n_others] = x->worker->name;
        out->n_others++;
    }
}

bool place_card_get(
    const struct place *p, const char *worker, const char *device, struct place_card *out)
{
    const struct worker *w = world_worker(p, worker);
    const struct device *d = w ? worker_device(w, device) : NULL;
    if (!d)
        return false;
    const struct card *c = d->card;
    *out = (struct place_card){
        .shared = c->shared,
        .own_mode = d->shared,
        .limit = c->limit,
        .own_limit = d->own_limit,
        .limit_by = c->limit_by ? c->limit_by->name : "",
        .used = c->used,
        .total_bytes = c->total_bytes,
        .free_bytes = c->free_bytes,
        .reserved_bytes = c->reserved_bytes,
        .running_bytes = c->running_bytes};
    int64_t room = c->alone.run || c->total_bytes == 0 ? 0 : card_room(c);
    int64_t context = c->cuda ? p->context_bytes : 0;
    out->room_bytes = room > context ? room - context : 0;
    card_others(d, out);
    return true;
}

/* ---- invariants ---- */

void place_check(const struct place *p)
{
    for (size_t i = 0; i < p->cap_cards; i++)
        for (const struct card *c = p->cards[i]; c; c = c->chain) {
            ASSERT(c->used >= 0 && c->kept >= 0);
            ASSERT(c->reserved_bytes >= 0 && c->running_bytes >= 0 && c->warm_bytes >= 0);
            ASSERT(c->warm_bytes <= c->running_bytes);
            ASSERT(!c->kept || c->kept_for.run);
            ASSERT(!c->kept || bytes_add(c->used, c->kept) <= c->limit);
            ASSERT(!c->closed || c->claim.run);
            for (const struct device *d = c->offers; d; d = d->next_offer)
                ASSERT(d->card == c);
        }
    for (size_t i = 0; i < p->cap_queues; i++)
        for (const struct queue *q = p->queues[i]; q; q = q->chain)
            ASSERT(q->references > 0 && q->n >= 1 && q->n <= PLACE_SET_MAX);
}
