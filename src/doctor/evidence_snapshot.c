/* evidence_snapshot.c - what a study of a snapshot says to the rules. */
#include "doctor/study.h"

#include "mem/pool/pool.h"

#include <stdio.h>
#include <string.h>

/* Of what a forward pass allocates, without gradients next to nothing lives at its end, with them a
 * third and more. */
static const double kept_without_grad = 0.2, kept_with_grad = 0.28;

static void settings(const struct snapshot *s, struct evidence *v)
{
    v->expandable = s->settings.expandable_segments;
    v->max_split = s->settings.max_split_size >= 0 && s->settings.present;
    (void)snprintf(v->conf, sizeof v->conf, "%s", snap_text(s, s->settings.conf));
    v->async = strstr(v->conf, "cudaMallocAsync") != NULL;
    v->fraction = strstr(v->conf, "per_process_memory_fraction") != NULL;
}

static void where(const struct study *x, const struct study_device *d, struct evidence *v)
{
    const struct snapshot *s = x->s;
    v->phase = d->phase;
    if (d->moment == SNAP_NONE)
        return;
    const struct stack_label *k = &x->labels.of[s->events[d->moment].stack];
    v->phases = d->phase != MOMENT_NONE ? 1u << d->phase : 0;
    if (k->marks & MARK(EVALUATION))
        v->phases |= 1u << MOMENT_EVALUATION;
    v->has_trace = k->frame != LABEL_NONE;
    v->evaluating = d->phase == MOMENT_EVALUATION;
    if (k->frame != LABEL_NONE) {
        const struct snap_frame *f = &s->frames[k->frame];
        (void)snprintf(v->user.file, sizeof v->user.file, "%s", snap_text(s, f->file));
        (void)snprintf(v->user.function, sizeof v->user.function, "%s", snap_text(s, f->name));
        v->user.line = (int)f->line;
    }
    if (k->marks & (MARK(ATTENTION) | MARK(SOFTMAX)))
        v->hints |= HINT_ATTENTION;
    if (d->loss || 10 * d->holders.by_category[HOLDER_LOSS] >= d->holders.live_bytes)
        v->hints |= HINT_LOGITS;
    for (uint32_t i = 0; i < s->stacks_n && !v->checkpointing; i++)
        v->checkpointing = (x->labels.of[i].marks & MARK(CHECKPOINT)) != 0;
}

static void over_time(const struct study *x, const struct study_device *d, struct evidence *v)
{
    const struct growth_report *g = &d->growth;
    if (!g->by)
        return;
    v->iterations = g->n;
    v->allocated_flat = !g->rising;
    if (v->allocated_flat)
        v->flat_level = amount_exact(g->live_bytes[g->n - 1]);
    if (!g->rising)
        return;
    v->growth = (struct growth){
        .rising = true,
        .kind = SERIES_ALLOCATED,
        .from_snapshot = true,
        .points = g->n - g->first,
        .first = (double)g->live_bytes[g->first],
        .last = (double)g->live_bytes[g->n - 1],
        .per_point = g->bytes_per_iteration};
    (void)snprintf(v->growth.label, sizeof v->growth.label, "live at each iteration");
    v->grows_by = amount_exact((int64_t)g->bytes_per_iteration);
    v->graph_retained = g->kept_places_n >= 2 && 2 * g->kept_activation_bytes >= g->kept_bytes;
    struct str place;
    str_init(&place);
    if (g->rows_n)
        label_group_text(&x->labels, g->rows[0].group, &place);
    (void)snprintf(v->grows_at, sizeof v->grows_at, "%s", place.data ? place.data : "");
    str_release(&place);
}

/* Whether an evaluation keeps its graph, where it can be told. */
/* A loop of forward passes without any backward pass, whose activations live until the next one: an
 * evaluation, whatever its functions are called. */
static bool never_goes_back(const struct study *x, const struct study_device *d)
{
    const struct growth_report *g = &d->growth;
    if (!g->by || g->by_optimizer || !g->swings || d->moment == SNAP_NONE)
        return false;
    for (uint32_t i = g->begins[0]; i <= d->moment; i++) {
        const struct snap_event *e = &x->s->events[i];
        uint8_t phase = x->labels.of[e->stack].phase;
        if (e->action == SNAP_ALLOC && (phase == MOMENT_BACKWARD || phase == MOMENT_OPTIMIZER))
            return false;
    }
    return d->phase == MOMENT_FORWARD && d->kept_share >= kept_with_grad;
}

static void evaluation(const struct study *x, const struct study_device *d, struct evidence *v)
{
    if (never_goes_back(x, d)) {
        v->phase = MOMENT_EVALUATION;
        v->phases |= 1u << MOMENT_EVALUATION;
        v->graph_retained = true;
        return;
    }
    if (d->phase != MOMENT_EVALUATION || d->kept_share < 0)
        return;
    if (d->kept_share >= kept_with_grad)
        v->graph_retained = true;
    else if (d->kept_share < kept_without_grad && !v->graph_retained)
        v->no_grad = true;
    if (v->no_grad && v->growth.rising)
        v->hints |= HINT_KEEPS_RESULTS;
}

/* What the device was asked for: the event has the rounded request, the allocator wants a segment
 * of it, but for expandable ones. */
static int64_t asked_of_device(const struct snapshot *s, int64_t rounded_bytes)
{
    struct mem_pool_conf conf;
    replay_recorded_conf(s, &conf, NULL);
    return conf.expandable_segments ? rounded_bytes : mem_pool_segment_size(&conf, rounded_bytes);
}

static void
failed_request(const struct snapshot *s, const struct study_device *d, struct evidence *v)
{
    const struct walk *w = &d->walk;
    v->has_message = true;
    v->id = MESSAGE_TORCH;
    v->where = WHERE_CARD;
    v->era = ERA_NEW;
    v->strength = 3;
    v->messages = v->ooms = w->d->actions_n[SNAP_OOM];
    v->distrusted_request = w->oom_request_bytes < 0 || w->oom_request_bytes >= (int64_t)1 << 56;
    if (!v->distrusted_request)
        v->request = amount_exact(asked_of_device(s, w->oom_request_bytes));
    if (w->oom_free_bytes < WALK_FREE_MAX)
        v->free = amount_exact(w->oom_free_bytes);
    v->allocated = amount_exact(w->oom_live_bytes < 0 ? 0 : w->oom_live_bytes);
    v->reserved = amount_exact(
        w->oom_reserved_bytes < w->oom_live_bytes ? w->oom_live_bytes : w->oom_reserved_bytes);
}

static void proof(const struct study_proof *p, struct evidence *v)
{
    v->replayed = p->done;
    v->replay_fits = p->fits;
    v->replay_tried = p->tried_n;
    (void)snprintf(v->replay_setting, sizeof v->replay_setting, "%s", p->setting);
    if (p->needs_bytes >= 0)
        v->replay_needs = amount_exact(p->needs_bytes);
    if (p->base_needs_bytes >= 0)
        v->replay_base_needs = amount_exact(p->base_needs_bytes);
}

void evidence_from_study(const struct study *x, struct evidence *v)
{
    const struct snapshot *s = x->s;
    const struct study_device *d = study_main(x);
    evidence_init(v);
    v->has_snapshot = true;
    settings(s, v);
    proof(&x->proof, v);
    if (!d)
        return;
    const struct walk *w = &d->walk;
    v->device = d->device;
    v->has_history = w->d->events_n > 0;
    v->own_snapshot = s->snug.present;
    v->allocated = amount_exact(w->end_bytes < 0 ? 0 : w->end_bytes);
    v->reserved =
        amount_exact(w->reserved_end_bytes < w->end_bytes ? w->end_bytes : w->reserved_end_bytes);
    v->peak = amount_exact(
        d->replayed && replay_is_exact(&d->exact) ? d->exact.allocated_peak_bytes : w->peak_bytes);
    v->free_sum = amount_exact(d->at.free_bytes);
    v->largest_free = amount_exact(d->at.largest_free_bytes);
    v->inactive_split = amount_exact(d->at.split_bytes);
    if (d->at.private_bytes > 0)
        v->private_pools = amount_exact(d->at.private_bytes);
    if (x->capacity_bytes > 0)
        v->total = amount_exact(x->capacity_bytes);
    if (s->snug.limit_bytes > 0)
        v->allowed = amount_exact(s->snug.limit_bytes);
    where(x, d, v);
    over_time(x, d, v);
    evaluation(x, d, v);
    if (w->oom_event != SNAP_NONE)
        failed_request(s, d, v);
    evidence_derive(v);
    if (s->snug.others_bytes > 0)
        v->other = amount_exact(s->snug.others_bytes);
}
