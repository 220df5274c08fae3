/* core_budget.c - memory budgets: declared, measured by an earlier run of the graph, raised
 * (B2-B4).
 *
 * A budget that a person typed is never changed. A measured one is the peak of the last successful
 * run of the same graph on as many cards, plus 20%; an estimate gives way to a larger one of those,
 * at submission and while it waits.
 */
#include "server/core_int.h"

#include <string.h>

/* Plus 20%, rounded up to the MiB, so that the figure people read is the one that counts. */
static int64_t with_margin(int64_t peak_bytes)
{
    int64_t mib = INT64_C(1) << 20, bytes = peak_bytes / 5 > INT64_MAX - peak_bytes
                                                ? INT64_MAX - mib
                                                : peak_bytes + peak_bytes / 5;
    return (bytes + mib - 1) / mib * mib;
}

static int count_cuda(const struct place_request *q)
{
    int n = 0;
    for (size_t i = 0; i < q->n_devices; i++)
        n += str_starts(q->devices[i], "cuda");
    return n;
}

/* Whether a card that the request may get is shared by memory. */
static bool may_be_shared(const struct core *c, const struct place_request *q)
{
    for (size_t i = 0; i < c->workers.n; i++) {
        const struct worker *w = c->workers.data[i];
        if (q->target == PLACE_NAMED && !str_eq(w->name, q->worker))
            continue;
        if (q->target == PLACE_POOL ? !w->one_shot : q->target == PLACE_ANY && w->one_shot)
            continue;
        for (size_t k = 0; k < w->cards.n; k++) {
            const struct card *d = &w->cards.data[k];
            for (size_t j = 0; d->mode == CARD_SHARED && j < q->n_devices; j++)
                if (str_eq(q->devices[j], d->device) || str_eq(q->devices[j], d->kind))
                    return true;
        }
    }
    return false;
}

static void take_measured(struct store_run *row, const struct store_peak *p, char run_id[ID_BYTES])
{
    row->budget_bytes = with_margin(p->bytes);
    row->budget_source = BUDGET_MEASURED;
    memcpy(run_id, p->run_id, ID_BYTES);
    row->budget_run = run_id;
}

enum status budget_at_submission(
    struct core *c, const struct run_options *o, struct store_run *row, struct place_request *q,
    char run_id[ID_BYTES], struct err *e)
{
    struct store_peak peak = {0};
    int cards = count_cuda(q);
    bool declared = o->target.memory_bytes > 0;
    row->budget_bytes = o->target.memory_bytes;
    row->budget_source = !declared            ? BUDGET_NONE
                         : o->target.estimate ? BUDGET_ESTIMATE
                                              : BUDGET_GIVEN;
    row->budget_run = "";
    bool ask = cards && *row->graph_key &&
               (row->budget_source == BUDGET_ESTIMATE || (!declared && may_be_shared(c, q)));
    if (ask)
        TRY(store_peak_get(c->store, row->graph_key, cards, &peak, e));
    if (peak.bytes > 0 && with_margin(peak.bytes) > row->budget_bytes) {
        row->budget_raised = declared;
        take_measured(row, &peak, run_id);
    }
    q->budget_bytes = row->budget_bytes;
    q->raised = row->budget_raised;
    return ST_OK;
}

static enum status
raise(struct core *c, struct run *r, const struct store_peak *peak, struct err *e)
{
    bool raised = r->now.budget_bytes > 0;
    int64_t bytes = with_margin(peak->bytes);
    run_touch(c, r);
    TRY(store_run_budget(c->store, r->id, bytes, BUDGET_MEASURED, peak->run_id, raised, e));
    r->now.budget_bytes = bytes;
    r->now.source = BUDGET_MEASURED;
    r->now.raised = raised;
    memcpy(r->now.budget_run, peak->run_id, sizeof r->now.budget_run);
    vec_push(&c->reclass, r);
    note(c, "run", r->run_id);
    c->note_runs = true;
    return ST_OK;
}

static bool run_may_be_shared(const struct core *c, const struct run *r)
{
    char scratch[DEVICES_BYTES];
    struct place_request q;
    run_request(r, scratch, &q);
    return may_be_shared(c, &q);
}

enum status budgets_follow_peak(
    struct core *c, const char *graph_key, int cards, const struct store_peak *peak, struct err *e)
{
    for (struct run *r = c->by_key[hash_name(graph_key) % KEY_BUCKETS]; r; r = r->key_next) {
        if (r->n_cards != cards || !str_eq(r->graph_key, graph_key) ||
            with_margin(peak->bytes) <= r->now.budget_bytes)
            continue;
        if (!r->now.budget_bytes && !run_may_be_shared(c, r))
            continue;
        TRY(raise(c, r, peak, e));
    }
    return ST_OK;
}

enum status budgets_follow_cards(struct core *c, struct err *e)
{
    for (size_t i = 0; i < c->waiting.n; i++) {
        struct run *r = c->waiting.data[i].run;
        struct store_peak peak;
        if (!r || r->now.budget_bytes || !r->n_cards || !*r->graph_key || !run_may_be_shared(c, r))
            continue;
        TRY(store_peak_get(c->store, r->graph_key, r->n_cards, &peak, e));
        if (peak.bytes > 0)
            TRY(raise(c, r, &peak, e));
    }
    return ST_OK;
}

enum status
core_budget_hint(struct core *c, const json_t *graph, int cards, json_t **doc, struct err *e)
{
    struct graph_read g;
    struct store_peak peak;
    TRY(graph_read(graph, NULL, false, &g, e));
    TRY(store_peak_get(c->store, g.key, cards, &peak, e));
    json_t *measured = json_null();
    if (peak.bytes > 0) {
        char when[40];
        measured = json_object();
        json_put_f64(measured, "gib", (double)with_margin(peak.bytes) / 1073741824.0);
        json_put_i64(measured, "bytes", with_margin(peak.bytes));
        json_put_i64(measured, "peak_bytes", peak.bytes);
        json_put_str(measured, "run_id", peak.run_id);
        json_put_str(measured, "finished_at", iso_time(peak.time_us, when));
    }
    *doc = json_object();
    json_put_str(*doc, "graph_key", g.key);
    json_put_i64(*doc, "cards", cards);
    json_put(*doc, "measured", measured);
    return ST_OK;
}
