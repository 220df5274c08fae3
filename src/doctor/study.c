/* study.c - runs the parts over each device of a snapshot. */
#include "doctor/study.h"

#include <stdio.h>
#include <string.h>

/* Events up to which the exact replay, and the search over settings, are within seconds. */
enum { EXACT_EVENTS_MAX = 4000000, SEARCH_EVENTS_MAX = 200000 };

static void study_replay(const struct snapshot *s, struct study_device *d)
{
    struct mem_pool_conf conf;
    struct err e;
    replay_recorded_conf(s, &conf, NULL);
    d->replayed = d->walk.d->events_n > 0 && d->walk.d->events_n <= EXACT_EVENTS_MAX &&
                  replay_exact(s, d->device, &conf, &d->exact, &e) == ST_OK;
}

/* Of the last whole iteration where the iterations are those of a loop, else of what came before
 * the moment. */
static double kept_share(const struct study_device *d, uint32_t begin)
{
    const struct growth_report *g = &d->growth;
    double share = -1;
    for (uint32_t i = 1; g->by && !g->by_optimizer && i < g->n; i++)
        if (g->begins[i] == begin)
            share = growth_kept_share(&d->walk, g->begins[i - 1], begin - 1);
    return share >= 0 ? share : growth_kept_share(&d->walk, begin, d->moment);
}

static void study_device(struct study *x, int device, const struct study_options *o)
{
    struct study_device *d = &x->devices[x->devices_n++];
    *d = (struct study_device){.device = device, .kept_share = -1};
    walk_init(&d->walk, &x->labels, device);
    growth_find(&d->walk, &d->growth);
    const struct walk *w = &d->walk;
    d->peak_is_moment = w->oom_event == SNAP_NONE;
    d->moment = d->peak_is_moment ? w->peak_event : w->oom_event;
    d->phase = walk_phase_at(w, d->moment, &d->loss);
    d->peak_phase = walk_phase_at(w, w->peak_event, &d->peak_loss);
    d->backward_begins = d->peak_phase == MOMENT_BACKWARD && walk_backward_begins(w, w->peak_event);
    uint32_t begin = growth_iteration(&d->growth, d->moment);
    holders_at(w, d->moment, begin, &d->holders);
    layout_at(w, d->moment, &d->at);
    if (w->d->events_n)
        layout_at(w, w->d->events_first + w->d->events_n - 1, &d->end);
    else
        layout_at(w, SNAP_NONE, &d->end);
    d->kept_share = kept_share(d, begin);
    if (!o->no_replay)
        study_replay(x->s, d);
}

/* The latest out-of-memory; else the most reserved. */
static int find_main(const struct study *x)
{
    int best = -1;
    for (int i = 0; i < x->devices_n; i++) {
        const struct walk *w = &x->devices[i].walk;
        if (best < 0) {
            best = i;
            continue;
        }
        const struct walk *b = &x->devices[best].walk;
        bool oom = w->oom_event != SNAP_NONE, best_oom = b->oom_event != SNAP_NONE;
        bool later = oom && best_oom &&
                     x->s->events[w->oom_event].time_us > x->s->events[b->oom_event].time_us;
        bool fuller = !oom && !best_oom && w->reserved_peak_bytes > b->reserved_peak_bytes;
        if ((oom && !best_oom) || later || fuller)
            best = i;
    }
    return best;
}

void study_init(struct study *x, const struct snapshot *s, const struct study_options *options)
{
    struct study_options o = options ? *options : (struct study_options){0};
    *x = (struct study){.s = s, .main = -1};
    labels_init(&x->labels, s);
    x->devices = mem_alloc(((size_t)s->devices_n + 1) * sizeof *x->devices);
    for (int d = 0; d < s->devices_n; d++)
        if (s->devices[d].events_n || s->devices[d].segments_n)
            study_device(x, d, &o);
    x->main = find_main(x);
    x->capacity_bytes = o.capacity_bytes ? o.capacity_bytes : s->snug.capacity_bytes;
}

void study_release(struct study *x)
{
    for (int i = 0; i < x->devices_n; i++) {
        struct study_device *d = &x->devices[i];
        walk_release(&d->walk);
        growth_release(&d->growth);
        holders_release(&d->holders);
        layout_release(&d->at);
        layout_release(&d->end);
    }
    mem_free(x->devices);
    labels_release(&x->labels);
    *x = (struct study){.main = -1};
}

/* ---- other settings ---- */

/* A long trace: whether it passes, and nothing more. */
static enum status ask_shortly(
    const struct snapshot *s, int device, int64_t capacity, struct replay_row *r, struct err *e)
{
    struct replay_setting o = {
        .conf = &r->conf, .capacity_bytes = capacity, .stop_event = SNAP_NONE};
    r->outcome.capacity_needed_bytes = -1;
    return replay_run(s, device, &o, false, &r->outcome.run, e);
}

static void take_proof(struct study *x, const struct replay_row *rows, int n, bool shortly)
{
    int best = -1;
    if (!shortly)
        best = replay_recommend(rows, n);
    for (int i = 1; i < n && shortly && best < 0; i++)
        if (rows[0].outcome.run.oom && !rows[i].outcome.run.oom)
            best = i;
    x->proof.done = true;
    x->proof.tried_n = n - 1;
    x->proof.base_fails = rows[0].outcome.run.oom;
    x->proof.base_needs_bytes = rows[0].outcome.capacity_needed_bytes;
    x->proof.needs_bytes = -1;
    if (best < 0)
        return;
    x->proof.needs_bytes = rows[best].outcome.capacity_needed_bytes;
    x->proof.fits = !rows[best].outcome.run.oom;
    (void)snprintf(
        x->proof.setting, sizeof x->proof.setting, "%.255s",
        rows[best].text[0] ? rows[best].text : "(none: PyTorch's defaults)");
}

void study_prove(struct study *x)
{
    const struct study_device *d = study_main(x);
    struct err e;
    if (!d || d->walk.d->events_n == 0 || x->proof.done)
        return;
    struct replay_row *rows = mem_alloc((REPLAY_SETTINGS_MAX + 1) * sizeof *rows);
    rows[0].recorded = true;
    replay_recorded_conf(x->s, &rows[0].conf, NULL);
    int n = 1 + replay_settings(&rows[0].conf, rows + 1);
    bool shortly = d->walk.d->events_n > SEARCH_EVENTS_MAX;
    int64_t capacity =
        d->walk.oom_event != SNAP_NONE ? d->walk.oom_free_bytes + d->walk.oom_reserved_bytes : 0;
    struct replay_question q = replay_question_for(x->s, d->device, capacity);
    if (shortly && n > 3)
        n = 3;
    enum status st = ST_OK;
    for (int i = 0; i < n && st == ST_OK; i++)
        st = shortly ? ask_shortly(x->s, d->device, capacity, &rows[i], &e)
                     : replay_ask(x->s, d->device, &rows[i].conf, &q, &rows[i].outcome, &e);
    if (st == ST_OK)
        take_proof(x, rows, n, shortly);
    mem_free(rows);
}
