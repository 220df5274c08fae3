/* evidence.c - facts of a text brought together. */
#include "doctor/evidence.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int64_t mib = (int64_t)1 << 20, gib = (int64_t)1 << 30;

void evidence_init(struct evidence *v)
{
    const struct amount u = amount_unknown;
    *v = (struct evidence){
        .strength = -1,
        .device = -1,
        .rank = -1,
        .step = -1,
        .request = u,
        .total = u,
        .free = u,
        .allowed = u,
        .allocated = u,
        .private_pools = u,
        .reserved = u,
        .own = u,
        .processes = u,
        .slack = u,
        .gap = u,
        .other = u,
        .flat_level = u,
        .peak = u,
        .series_slack = u,
        .inactive_split = u,
        .smi_used = u,
        .smi_total = u,
        .smi_largest = u,
        .smi_explained = u,
        .smi_utilisation = -1,
        .largest_free = u,
        .free_sum = u,
        .grows_by = u,
        .replay_needs = u,
        .replay_base_needs = u,
        .ooms = -1,
        .retries = -1};
}

/* ---- derived ---- */

/* A container's own process under a number of its host: at least as large as what it reserved, and
 * at most a context and libraries larger. */
static int own_line(const struct message *m)
{
    int found = -1;
    for (int i = 0; i < m->n_processes; i++) {
        const struct amount *p = &m->process[i].used;
        if (!amount_known(m->reserved) || p->high < m->reserved.low ||
            p->low > m->reserved.high + gib + gib / 2)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

static void processes(const struct message *m, struct evidence *v)
{
    int own = -1;
    v->own_printed = amount_known(m->own);
    if (!v->own_printed && m->n_processes) {
        own = own_line(m);
        if (own >= 0) {
            v->own = m->process[own].used;
            v->own_printed = v->own_from_process = true;
        }
    }
    struct amount sum = amount_exact(0);
    for (int i = 0; i < m->n_processes; i++)
        if (i != own)
            sum = amount_add(sum, m->process[i].used);
    v->n_processes = m->n_processes - (own >= 0);
    if (v->n_processes)
        v->processes = sum;
}

void evidence_derive(struct evidence *v)
{
    v->slack = amount_sub(v->reserved, v->allocated);
    v->gap = amount_sub(v->request, v->free);
    if (v->n_processes)
        v->other = v->processes;
    else if (amount_known(v->own))
        v->other = amount_sub(amount_sub(v->total, v->free), v->own);
    else
        v->other = amount_sub(amount_sub(v->total, v->free), v->reserved);
    if (v->other.bytes < 0 && amount_known(v->other))
        v->other = (struct amount){0, 0, v->other.high > 0 ? v->other.high : 0};
}

/* ---- the message ---- */

static int figures(const struct message *m)
{
    return amount_known(m->request) + amount_known(m->total) + amount_known(m->free) +
           amount_known(m->reserved) + amount_known(m->allowed);
}

/* The first of the most telling ones: what comes later is often a consequence. */
size_t evidence_main_message(const struct text_facts *f)
{
    size_t best = SIZE_MAX;
    int most = -1;
    for (size_t i = 0; i < f->messages.n; i++) {
        const struct text_message *t = &f->messages.data[i];
        int score = 10 * message_info_of(t->m.id)->strength + figures(&t->m) + t->has_trace;
        if (score > most) {
            most = score;
            best = i;
        }
    }
    return best;
}

static void take_message(const struct text_message *t, struct evidence *v)
{
    const struct message *m = &t->m;
    const struct message_info *info = message_info_of(m->id);
    v->has_message = true;
    v->id = m->id;
    v->where = info->where;
    v->strength = info->strength;
    v->era = m->era;
    v->device = m->device;
    v->rank = t->rank;
    memcpy(v->backend, m->backend, sizeof v->backend);
    v->line = t->line;
    v->step = t->step;
    v->repeats = t->repeats;
    v->truncated = m->truncated;
    v->distrusted_request = m->distrusted > 0 && !amount_known(m->request);
    v->hint_expandable = m->hint_expandable;
    v->hint_split = m->hint_split;
    v->request = m->request;
    v->total = m->total;
    v->free = m->free;
    v->allowed = m->allowed;
    v->allocated = m->allocated;
    v->private_pools = m->private_pools;
    v->reserved = m->reserved;
    v->own = m->own;
    v->has_trace = t->has_trace;
    v->user = t->user;
    v->phase = t->phase;
    v->phases = t->phases;
    v->hints = t->hints;
    v->evaluating = t->evaluating;
    processes(m, v);
    if (m->id == MESSAGE_CUDA_ERROR &&
        (t->phases >> MOMENT_LOADER & 1 || strstr(t->user.code, "pin_memory")))
        v->where = WHERE_PINNED;
}

/* ---- over time ---- */

/* The most telling of the series that rise: what is allocated says more than what is used. */
static void take_growth(const struct text_facts *f, struct evidence *v)
{
    static const int weight[SERIES_KINDS] = {
        [SERIES_ALLOCATED] = 5,
        [SERIES_USED] = 4,
        [SERIES_RESERVED] = 3,
        [SERIES_FREE] = 2,
        [SERIES_PEAK] = 1};
    int best = 0;
    bool flat = false;
    for (size_t i = 0; i < f->series.all.n; i++) {
        const struct series *s = f->series.all.data[i];
        struct series_trend t = series_trend_of(s);
        if (s->kind == SERIES_PEAK && s->most > 0 && s->most > (double)v->peak.bytes)
            v->peak = amount_exact((int64_t)s->most);
        if (s->kind == SERIES_ALLOCATED && s->n >= 3 && !t.rising) {
            flat = true;
            v->flat_level = amount_exact((int64_t)s->last);
        }
        v->reserved_grows = v->reserved_grows || (s->kind == SERIES_RESERVED && t.rising);
        if (!t.rising || weight[s->kind] <= best)
            continue;
        best = weight[s->kind];
        v->growth = (struct growth){
            .rising = true,
            .kind = s->kind,
            .points = s->n,
            .first = s->first,
            .last = s->last,
            .per_point = t.per_point};
        memcpy(v->growth.label, s->label, sizeof v->growth.label);
        memcpy(v->growth.source, s->source, sizeof v->growth.source);
    }
    v->allocated_flat = flat && !(v->growth.rising && v->growth.kind == SERIES_ALLOCATED);
    if (v->allocated_flat) /* the rest may follow from the cache */
        v->growth.rising = false;
}

static void take_slack_of_log(const struct text_facts *f, struct evidence *v)
{
    double reserved = -1, allocated = -1;
    for (size_t i = 0; i < f->series.all.n; i++) {
        const struct series *s = f->series.all.data[i];
        if (s->kind == SERIES_RESERVED)
            reserved = s->last;
        if (s->kind == SERIES_ALLOCATED)
            allocated = s->last;
    }
    if (reserved >= 0 && allocated >= 0 && reserved > allocated)
        v->series_slack = amount_exact((int64_t)(reserved - allocated));
    if (!v->has_message && reserved >= 0 && allocated >= 0) {
        v->reserved = amount_exact((int64_t)reserved);
        v->allocated = amount_exact((int64_t)allocated);
    }
}

/* Messages of one process, one after another, each with more allocated than the one before. */
static void take_growth_of_messages(const struct text_facts *f, struct evidence *v)
{
    const struct text_message *first = NULL, *last = NULL;
    int n = 0;
    bool down = false;
    for (size_t i = 0; i < f->messages.n; i++) {
        const struct text_message *t = &f->messages.data[i];
        if (t->m.id != MESSAGE_TORCH || !amount_known(t->m.allocated))
            continue;
        if (!first)
            first = t;
        if (strcmp(t->source, first->source) != 0 || t->m.device != first->m.device)
            continue;
        if (last && t->m.allocated.high < last->m.allocated.low)
            down = true;
        last = t;
        n++;
    }
    if (n < 2 || down || v->growth.rising)
        return;
    double rise = (double)(last->m.allocated.bytes - first->m.allocated.bytes);
    double total = amount_known(first->m.total) ? (double)first->m.total.bytes : 0;
    if (rise < 0.03 * total || rise < (double)(128 * mib))
        return;
    v->growth = (struct growth){
        .rising = true,
        .kind = SERIES_ALLOCATED,
        .points = n,
        .from_messages = true,
        .first = (double)first->m.allocated.bytes,
        .last = (double)last->m.allocated.bytes,
        .per_point = rise / (n - 1)};
    (void)snprintf(v->growth.label, sizeof v->growth.label, "allocated");
}

/* ---- tables ---- */

static void take_summary(const struct text_facts *f, struct evidence *v)
{
    const struct summary *s = NULL;
    for (size_t i = 0; i < f->summaries.n; i++)
        if (v->device < 0 || f->summaries.data[i].device < 0 ||
            f->summaries.data[i].device == v->device)
            s = &f->summaries.data[i];
    if (!s)
        return;
    v->has_summary = true;
    v->ooms = s->ooms;
    v->retries = s->retries;
    v->inactive_split = s->inactive_split.current;
    if (amount_known(s->allocated.peak) && s->allocated.peak.bytes > v->peak.bytes)
        v->peak = s->allocated.peak;
    if (!amount_known(v->allocated))
        v->allocated = s->allocated.current;
    if (!amount_known(v->reserved))
        v->reserved = s->reserved.current;
    if (v->device < 0)
        v->device = s->device;
    /* Table after table with more allocated. */
    int n = 0;
    const struct summary *first = NULL, *before = NULL;
    bool rising = true;
    for (size_t i = 0; i < f->summaries.n; i++) {
        const struct summary *t = &f->summaries.data[i];
        if (t->device != s->device || !amount_known(t->allocated.current))
            continue;
        rising = rising && (!before || t->allocated.current.low > before->allocated.current.high);
        first = first ? first : t;
        before = t;
        n++;
    }
    if (n >= 3 && rising && !v->growth.rising) {
        v->growth = (struct growth){
            .rising = true,
            .kind = SERIES_ALLOCATED,
            .points = n,
            .first = (double)first->allocated.current.bytes,
            .last = (double)before->allocated.current.bytes};
        v->growth.per_point = (v->growth.last - v->growth.first) / (n - 1);
        (void)snprintf(v->growth.label, sizeof v->growth.label, "memory summaries");
    }
}

static void take_smi(const struct text_facts *f, struct evidence *v)
{
    const struct smi *s = &f->smi;
    int at = -1;
    for (int i = 0; i < s->n_gpus; i++)
        if (s->gpu[i].index == v->device ||
            (v->device < 0 && (at < 0 || s->gpu[i].used.bytes > s->gpu[at].used.bytes)))
            at = i;
    if (at < 0 && s->n_gpus == 1)
        at = 0;
    v->has_smi = s->seen;
    if (at >= 0) {
        v->smi_used = s->gpu[at].used;
        v->smi_total = s->gpu[at].total;
        v->smi_utilisation = s->gpu[at].utilisation;
    }
    for (int i = 0; i < s->n_processes; i++) {
        const struct smi_process *p = &s->process[i];
        if (at >= 0 && p->gpu >= 0 && p->gpu != s->gpu[at].index)
            continue;
        if (amount_known(p->used))
            v->smi_explained =
                amount_known(v->smi_explained) ? amount_add(v->smi_explained, p->used) : p->used;
        if (amount_known(p->used) && p->used.bytes >= 100 * mib)
            v->smi_processes++;
        if (amount_known(p->used) && p->used.bytes > v->smi_largest.bytes) {
            v->smi_largest = p->used;
            memcpy(v->smi_name, p->name, sizeof v->smi_name);
        }
    }
    if (at >= 0 && s->samples[at] >= 3 &&
        s->rises[at] >= (s->samples[at] - 1) * 2 / 3 + (s->samples[at] == 3) && !v->growth.rising &&
        s->gpu[at].used.bytes > s->first_used[at].bytes + 64 * mib) {
        v->growth = (struct growth){
            .rising = true,
            .kind = SERIES_USED,
            .points = s->samples[at],
            .from_smi = true,
            .first = (double)s->first_used[at].bytes,
            .last = (double)s->gpu[at].used.bytes};
        v->growth.per_point = (v->growth.last - v->growth.first) / (s->samples[at] - 1);
        (void)snprintf(v->growth.label, sizeof v->growth.label, "nvidia-smi");
    }
}

static void take_words(const struct text_facts *f, struct evidence *v)
{
    const int64_t *w = f->words;
    memcpy(v->conf, f->conf, sizeof v->conf);
    v->expandable =
        strstr(f->conf, "expandable_segments:True") || strstr(f->conf, "expandable_segments:true");
    v->max_split = strstr(f->conf, "max_split_size_mb:") != NULL;
    v->async = strstr(f->conf, "cudaMallocAsync") || (v->has_message && v->id == MESSAGE_ASYNC);
    v->half = w[WORD_HALF] > 0 || (v->hints & HINT_AUTOCAST);
    v->checkpointing = w[WORD_CHECKPOINTING] > 0 || (v->hints & HINT_CHECKPOINT);
    v->batch_one = w[WORD_BATCH_ONE] > 0;
    v->quantised = w[WORD_QUANTISED] > 0;
    v->lora = w[WORD_LORA] > 0;
    v->sharded = w[WORD_SHARDED] > 0;
    v->no_grad = ((v->hints | f->code_hints) & HINT_NO_GRAD) && w[WORD_VOLATILE] == 0;
    v->resumed = w[WORD_RESUMED] > 0 || (v->phases >> MOMENT_RESUME & 1);
    v->webui = w[WORD_WEBUI] > 0;
    v->vllm = w[WORD_VLLM] > 0;
    v->notebook = w[WORD_NOTEBOOK] > 0;
    v->windows = w[WORD_WINDOWS] > 0 || f->smi.wddm;
    v->fraction = w[WORD_FRACTION] > 0;
    v->overflow = w[WORD_OVERFLOW] > 0;
    v->turing = w[WORD_TURING] > 0;
    v->said_grows = w[WORD_SAID_GROWS] > 0;
    v->hints |= f->code_hints & ~(unsigned)HINT_NO_GRAD;
    v->iterations = f->steps;
}

void evidence_from_text(const struct text_facts *f, size_t message, struct evidence *v)
{
    evidence_init(v);
    if (message == SIZE_MAX)
        message = evidence_main_message(f);
    if (message < f->messages.n)
        take_message(&f->messages.data[message], v);
    else
        v->evaluating = f->words[WORD_EVALUATING] > 0 &&
                        f->word_line[WORD_EVALUATING] > f->word_line[WORD_TRAINING];
    v->messages = f->messages_seen;
    take_words(f, v);
    take_growth(f, v);
    take_slack_of_log(f, v);
    take_growth_of_messages(f, v);
    take_summary(f, v);
    take_smi(f, v);
    evidence_derive(v);
}
