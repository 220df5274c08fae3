/* core.c - the core as a whole: its lock, its transactions, its start from the store, its timer.
 *
 * A public function is: core_enter; checks; tx_begin; moves of runs (core_run.c), each of which
 * writes the store and run_now; tx_end; what memory alone has to do; core_leave, which unlocks and
 * calls the hooks for what was noted on the way.
 */
#include "base/env.h"
#include "base/log.h"
#include "server/core_int.h"

#include <string.h>

void core_config_init(struct core_config *c)
{
    *c = (struct core_config){
        .version = "",
        .commit = "",
        .nodes_hash = "",
        .machine_secret = "",
        .local_url = "",
        .loopback_only = true,
        .limits = "",
        .limit_gpu = 1,
        .limit_cpu = 2,
        .interactive_max = 2,
        .queue_max = 1000000,
        .reserve_s = 600,
        .grace_s = 300,
        .heartbeat_s = 10,
        .start_s = 60,
        .stop_s = 30,
        .context_bytes = INT64_C(768) << 20,
        .payload_cap_bytes = 131072,
        .response_cap_bytes = 4194304,
        .keep_last = 200,
        .output_runs_max = 20};
}

/* ---- the lock, and what happens after it ---- */

void core_enter(struct core *c, struct instant now)
{
    ASSERT(pthread_mutex_lock(&c->lock) == 0);
    if (now.now_ns > c->now.now_ns)
        c->now.now_ns = now.now_ns;
    c->now.wall_us = now.wall_us;
}

void core_enter_read(struct core *c)
{
    ASSERT(pthread_mutex_lock(&c->lock) == 0);
}

void note(struct core *c, const char *kind, const char *id)
{
    struct note n = {.kind = kind};
    snprintf(n.id, sizeof n.id, "%s", id);
    size_t from = c->notes.n > 8 ? c->notes.n - 8 : 0; /* bursts are about the same few things */
    for (size_t i = from; i < c->notes.n; i++)
        if (strcmp(c->notes.data[i].kind, kind) == 0 && strcmp(c->notes.data[i].id, n.id) == 0)
            return;
    vec_push(&c->notes, n);
}

void core_dirty(struct core *c)
{
    c->dirty = true;
    c->passed = false;
}

void core_stale(struct core *c)
{
    c->stale = true;
    core_dirty(c);
    c->note_workers = true;
}

void make_id(struct core *c, char id[ID_BYTES])
{
    for (int i = 0; i < 4; i++)
        snprintf(id + 8 * i, 9, "%08x", rng_u32(&c->rng));
}

/* Whether the timer is to come earlier than it knows. */
static bool wants_tick(struct core *c)
{
    if (!core_pass_due(c))
        return false;
    int64_t at = c->now.now_ns;
    at = c->pass_ns > at ? c->pass_ns : at;
    at = c->retry_ns > at ? c->retry_ns : at;
    if (c->due_ns <= at)
        return false;
    c->due_ns = at;
    return true;
}

static void tell(const struct core_hooks *h, const struct note *notes, size_t n)
{
    if (!h->changed)
        return;
    for (size_t i = 0; i < n; i++)
        h->changed(h->ctx, notes[i].kind, notes[i].id);
}

void core_leave(struct core *c)
{
    ASSERT(!c->undo.n && !c->endings.n);
    struct note *notes = c->notes.data;
    size_t n_notes = c->notes.n;
    struct ending *ended = c->ended.data;
    size_t n_ended = c->ended.n;
    bool runs = c->note_runs, workers = c->note_workers, due = wants_tick(c);
    int64_t at_ns = c->due_ns;
    struct core_hooks hooks = c->hooks;
    c->notes.data = NULL;
    c->notes.n = c->notes.cap = 0;
    c->ended.data = NULL;
    c->ended.n = c->ended.cap = 0;
    c->note_runs = c->note_workers = false;
    ASSERT(pthread_mutex_unlock(&c->lock) == 0);

    tell(&hooks, notes, n_notes);
    if (runs)
        tell(&hooks, &(struct note){.kind = "runs"}, 1);
    if (workers)
        tell(&hooks, &(struct note){.kind = "workers"}, 1);
    for (size_t i = 0; i < n_ended; i++) {
        struct run *r = ended[i].run;
        if (hooks.ended)
            hooks.ended(
                hooks.ctx, &(struct core_end){
                               .run_id = r->run_id,
                               .status = run_state_status(ended[i].state),
                               .cause = cause_code(ended[i].cause),
                               .sweep = r->sweep,
                               .study = r->study});
        mem_free(r->texts);
        mem_free(r->graph_text);
        mem_free(r);
    }
    if (due && hooks.due)
        hooks.due(hooks.ctx, at_ns);
    mem_free(notes);
    mem_free(ended);
}

/* ---- transactions ---- */

enum status tx_begin(struct core *c, struct err *e)
{
    ASSERT(!c->undo.n && !c->endings.n && !c->later.n);
    return store_begin(c->store, e);
}

void run_touch(struct core *c, struct run *r)
{
    if (r->touched)
        return;
    r->touched = true;
    struct undo u = {.run = r, .now = r->now};
    vec_push(&c->undo, u);
}

void order_later(struct core *c, enum order_type type, const struct run *r)
{
    struct later l = {.worker = r->now.worker, .type = type, .run = r, .epoch = r->now.epoch};
    if (l.worker)
        vec_push(&c->later, l);
}

/* The run has ended and that is stored: it leaves memory, its card is free. */
static void leave_memory(struct core *c, const struct ending *end)
{
    struct run *r = end->run;
    if (r->in_live)
        run_live_remove(c, r);
    else
        run_dequeue(c, r);
    run_map_remove(&c->runs, r);
    struct worker *w = r->now.worker;
    if (w && r->now.epoch) {
        order_drop(w, r->run_id, ORDER_COUNT);
        if (r->handed)
            order_push(c, w, ORDER_FORGET, r, r->now.epoch);
    }
    vec_push(&c->ended, *end);
    c->figures.finished++;
    c->note_runs = true;
    c->prune = true;
    core_dirty(c);
}

enum status tx_end(struct core *c, enum status st, struct err *e)
{
    st = store_end(c->store, st, e);
    for (size_t i = 0; i < c->undo.n; i++) {
        struct undo *u = &c->undo.data[i];
        u->run->touched = false;
        if (st != ST_OK)
            u->run->now = u->now;
    }
    c->undo.n = 0;
    if (st == ST_OK) {
        for (size_t i = 0; i < c->later.n; i++) {
            struct later *l = &c->later.data[i];
            order_push(c, l->worker, l->type, l->run, l->epoch);
        }
        for (size_t i = 0; i < c->reclass.n; i++)
            run_reclass(c, c->reclass.data[i]);
        for (size_t i = 0; i < c->endings.n; i++)
            leave_memory(c, &c->endings.data[i]);
    }
    if (st == ST_OK && c->ledger_moved)
        core_dirty(c);
    c->ledger_moved = false;
    c->reclass.n = 0;
    c->later.n = 0;
    c->endings.n = 0;
    return st;
}

/* ---- start ---- */

static enum status load_workers(struct core *c, struct err *e)
{
    struct arena a;
    arena_init(&a);
    struct store_worker *rows;
    struct store_card *cards;
    size_t n;
    enum status st = store_cards_read(c->store, &a, &cards, &n, e);
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        struct store_card mode = cards[i];
        mode.card = mem_strdup(mode.card);
        vec_push(&c->modes, mode);
    }
    if (st == ST_OK)
        st = store_workers_read(c->store, &a, &rows, &n, e);
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        struct worker *w = worker_new(c, rows[i].name);
        w->row = rows[i].id;
        memcpy(w->worker_id, rows[i].worker_id, sizeof w->worker_id);
        snprintf(w->kind, sizeof w->kind, "%s", rows[i].kind);
        snprintf(w->pool, sizeof w->pool, "%s", rows[i].pool);
        snprintf(w->ssh_host, sizeof w->ssh_host, "%s", rows[i].ssh_host);
        snprintf(w->last_refusal, sizeof w->last_refusal, "%s", rows[i].last_refusal);
        w->draining = rows[i].draining;
        w->disabled = rows[i].disabled;
        w->created_us = rows[i].created_us;
        w->seen_us = rows[i].seen_us;
        w->one_shot = str_eq(w->kind, "one_shot");
        worker_remembers(c, w, rows[i].hello);
    }
    arena_release(&a);
    return st;
}

static enum status load_run(void *ctx, const struct store_run *row, struct err *e)
{
    struct core *c = ctx;
    struct run *r = core_run_new(row);
    run_map_put(&c->runs, r);
    (void)e;
    if (row->state == RUN_WAITING) {
        run_enqueue(c, r);
        return ST_OK;
    }
    r->now.worker = worker_by_name(c, row->worker);
    if (!r->now.worker) /* its row is gone: the grace will end its runs */
        r->now.worker = worker_new(c, row->worker);
    r->handed = true; /* as far as we know */
    r->closed_unknown = true;
    if (row->state == RUN_STOPPING)
        r->kill_ns = c->now.now_ns + (int64_t)(c->config.stop_s * 1e9);
    run_live_add(c, r);
    return ST_OK;
}

/* This server's own devices, whether or not its worker is there yet. */
static void load_own_devices(struct core *c)
{
    if (!json_array_size(c->config.devices))
        return;
    struct worker *w = worker_by_name(c, "local");
    if (!w)
        w = worker_new(c, "local");
    snprintf(w->kind, sizeof w->kind, "builtin");
    w->server = w->same_host = w->seen = w->can_cap = true;
    worker_devices(c, w, c->config.devices, false);
}

enum status core_open(
    struct store *store, const struct core_config *config, const struct core_hooks *hooks,
    struct instant now, struct core **out, struct err *e)
{
    struct core *c = mem_alloc(sizeof *c);
    ASSERT(pthread_mutex_init(&c->lock, NULL) == 0);
    c->store = store;
    c->config = *config;
    if (hooks)
        c->hooks = *hooks;
    c->now = now;
    c->due_ns = INT64_MAX;
    rng_init(&c->rng, config->seed, 0, 0);
    struct str warnings;
    str_init(&warnings);
    c->limits = place_limits_new(config->limits, config->limit_gpu, config->limit_cpu, &warnings);
    if (warnings.n)
        log_warn("%s", warnings.data);
    str_release(&warnings);
    c->place = place_new();
    enum status st = load_workers(c, e);
    if (st == ST_OK) {
        load_own_devices(c);
        st = store_runs_active(store, load_run, c, e);
    }
    if (st != ST_OK) {
        core_close(c);
        return st;
    }
    for (size_t i = 0; i < c->workers.n; i++)
        c->workers.data[i]->contact_ns = now.now_ns; /* everybody's grace begins */
    c->prune = true;
    core_dirty(c);
    *out = c;
    return ST_OK;
}

void core_close(struct core *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->waiting.n; i++)
        if (c->waiting.data[i].run)
            core_run_free(c, c->waiting.data[i].run);
    for (size_t i = 0; i < c->canvas.n; i++)
        core_run_free(c, c->canvas.data[i]);
    for (size_t i = 0; i < c->live.n; i++)
        core_run_free(c, c->live.data[i]);
    for (size_t i = 0; i < c->workers.n; i++)
        worker_free(c->workers.data[i]);
    for (size_t i = 0; i < c->modes.n; i++)
        mem_free((char *)(uintptr_t)c->modes.data[i].card);
    for (size_t i = 0; i < c->questions.n; i++)
        json_decref(c->questions.data[i].body);
    vec_release(&c->waiting);
    vec_release(&c->canvas);
    vec_release(&c->warm);
    vec_release(&c->live);
    vec_release(&c->workers);
    vec_release(&c->modes);
    vec_release(&c->questions);
    vec_release(&c->undo);
    vec_release(&c->endings);
    vec_release(&c->later);
    vec_release(&c->reclass);
    vec_release(&c->notes);
    vec_release(&c->ended);
    run_map_release(&c->runs);
    place_free(c->place);
    place_limits_free(c->limits);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

/* ---- the timer ---- */

enum { PRUNE_MAX = 64 }; /* old runs removed in one tick */

/* A worker that said nothing for three heartbeats is out of reach: nothing new is sent to it. */
static int64_t silence_ns(const struct core *c)
{
    return (int64_t)(c->config.heartbeat_s * 3e9);
}

static void end_lost_runs(struct core *c, struct worker *w)
{
    struct err e = {0};
    struct str text;
    str_init(&text);
    str_printf(
        &text, "worker \"%s\" was out of reach for more than %.0f s", w->name, c->config.grace_s);
    enum status st = tx_begin(c, &e);
    if (st == ST_OK) {
        for (size_t i = 0; st == ST_OK && i < c->live.n; i++) {
            struct run *r = c->live.data[i];
            if (r->now.worker != w)
                continue;
            bool cancelled = r->now.cancel_asked;
            st = run_finish(
                c, r,
                &(struct run_outcome){
                    .state = cancelled ? RUN_CANCELLED : RUN_INTERRUPTED,
                    .cause = cancelled ? CAUSE_CANCELLED : CAUSE_AGENT_LOST,
                    .error = cancelled ? "" : text.data},
                &e);
        }
        st = tx_end(c, st, &e);
    }
    if (st != ST_OK)
        log_warn("runs of a lost worker could not be ended: %s", e.text);
    str_release(&text);
}

static bool has_runs(const struct core *c, const struct worker *w)
{
    for (size_t i = 0; i < c->live.n; i++)
        if (c->live.data[i]->now.worker == w)
            return true;
    return false;
}

static void tick_workers(struct core *c)
{
    int64_t now = c->now.now_ns, grace = (int64_t)(c->config.grace_s * 1e9);
    for (size_t i = 0; i < c->workers.n; i++) {
        struct worker *w = c->workers.data[i];
        if (w->connected && now - w->contact_ns > silence_ns(c))
            worker_lost(c, w);
        if (now - w->contact_ns > grace && has_runs(c, w))
            end_lost_runs(c, w);
    }
}

/* Deadlines of live runs: a start that nobody confirmed is sent again, a stop becomes a kill. */
static void tick_runs(struct core *c)
{
    int64_t now = c->now.now_ns;
    for (size_t i = 0; i < c->live.n; i++) {
        struct run *r = c->live.data[i];
        struct worker *w = r->now.worker;
        if (r->limit_ns && now >= r->limit_ns && r->now.state != RUN_STOPPING) {
            r->limit_ns = 0; /* its own child should have ended it by now */
            r->kill_ns = now;
        }
        if (!w->connected)
            continue;
        if (r->start_ns && now >= r->start_ns && r->now.state == RUN_ASSIGNED) {
            order_drop(w, r->run_id, ORDER_START);
            order_push(c, w, ORDER_START, r, r->now.epoch);
            r->start_ns = now + (int64_t)(c->config.start_s * 1e9);
        }
        if (r->kill_ns && now >= r->kill_ns) {
            order_drop(w, r->run_id, ORDER_KILL);
            order_push(c, w, ORDER_KILL, r, r->now.epoch);
            r->kill_ns = now + (int64_t)(c->config.stop_s * 1e9);
        }
    }
}

static void tick_questions(struct core *c)
{
    for (size_t i = 0; i < c->questions.n;) {
        struct asked *q = &c->questions.data[i];
        if (q->until_ns > c->now.now_ns) {
            i++;
            continue;
        }
        if (!q->answered) {
            q->answered = true;
            q->status = 504;
            q->until_ns = c->now.now_ns + 60 * SECOND_NS; /* for whoever fetches it */
            note(c, "answer", q->request);
            i++;
            continue;
        }
        json_decref(q->body); /* nobody fetched it */
        c->questions.data[i] = c->questions.data[--c->questions.n];
    }
}

/* What one old run leaves behind, in the arena; read before its rows go. */
static enum status read_leftovers(
    struct core *c, const struct store_old_run *old, struct arena *a, struct core_pruned *out,
    struct err *e)
{
    struct store_artifact *list;
    struct store_run row;
    size_t n;
    *out =
        (struct core_pruned){.run_id = old->run_id, .interrupted = old->state == RUN_INTERRUPTED};
    TRY(store_run_by_id(c->store, old->id, a, &row, e));
    TRY(store_artifacts_read(c->store, old->id, "checkpoint", a, &list, &n, e));
    const char **paths = ARENA_ARRAY(a, const char *, n + 1);
    for (size_t i = 0; i < n; i++)
        if (strstr(list[i].meta, "\"epoch\"")) /* of a training loop, not of a node that saves */
            paths[out->n_checkpoints++] = list[i].path;
    out->checkpoints = paths;
    out->ended_us = row.finished_us;
    return ST_OK;
}

/* Retention: a few runs at a time, so that nobody waits long. */
static void tick_prune(struct core *c)
{
    if (!c->prune || c->config.keep_last < 0)
        return;
    struct arena a;
    struct store_old_run *old;
    struct core_pruned *left = NULL;
    struct err e = {0};
    size_t n = 0;
    arena_init(&a);
    enum status st = store_runs_old(c->store, c->config.keep_last, PRUNE_MAX, &a, &old, &n, &e);
    c->prune = st == ST_OK && n == PRUNE_MAX;
    if (st == ST_OK && n) {
        left = ARENA_ARRAY(&a, struct core_pruned, n);
        for (size_t i = 0; st == ST_OK && i < n; i++)
            st = read_leftovers(c, &old[i], &a, &left[i], &e);
        if (st == ST_OK)
            st = store_begin(c->store, &e);
        if (st == ST_OK) {
            for (size_t i = 0; st == ST_OK && i < n; i++)
                st = store_run_delete(c->store, old[i].id, &e);
            st = store_end(c->store, st, &e);
        }
        for (size_t i = 0; st == ST_OK && c->hooks.pruned && i < n; i++)
            c->hooks.pruned(c->hooks.ctx, &left[i]);
    }
    if (st != ST_OK)
        log_warn("old runs could not be removed: %s", e.text);
    arena_release(&a);
}

int64_t core_tick(struct core *c, struct instant now)
{
    core_enter(c, now);
    tick_workers(c);
    tick_runs(c);
    tick_questions(c);
    if (core_wake_ns(c) <= c->now.now_ns)
        core_dirty(c);
    if ((core_pass_due(c) || c->canvas.n) && c->now.now_ns >= c->retry_ns &&
        c->now.now_ns >= c->pass_ns)
        core_pass(c);
    tick_prune(c);
    int64_t next = c->now.now_ns + SECOND_NS;
    if (core_wake_ns(c) < next)
        next = core_wake_ns(c) > c->now.now_ns ? core_wake_ns(c) : c->now.now_ns + 1000000;
    c->due_ns = next;
    if (core_pass_due(c))
        wants_tick(c);
    next = c->due_ns;
    core_leave(c);
    return next;
}

void core_stop(struct core *c, struct instant now)
{
    core_enter(c, now);
    struct err e = {0};
    c->stopped = true;
    enum status st = tx_begin(c, &e);
    if (st == ST_OK) {
        for (size_t i = 0; st == ST_OK && i < c->waiting.n; i++) {
            const struct run *r = c->waiting.data[i].run;
            if (r && !r->sweep && !r->study) /* those survive a restart as a whole (SW2) */
                st = run_stop(c, c->waiting.data[i].run, false, &e);
        }
        for (size_t i = 0; st == ST_OK && i < c->canvas.n; i++)
            st = run_stop(c, c->canvas.data[i], false, &e);
        for (size_t i = 0; st == ST_OK && i < c->live.n; i++)
            st = run_stop(c, c->live.data[i], false, &e);
        st = tx_end(c, st, &e);
    }
    if (st != ST_OK)
        log_warn("runs could not be stopped: %s", e.text);
    core_leave(c);
}

int core_live_count(struct core *c)
{
    core_enter_read(c);
    int n = (int)c->live.n;
    core_leave(c);
    return n;
}

void core_check(struct core *c)
{
    core_enter_read(c);
    size_t waiting = 0;
    for (size_t i = 0; i < c->waiting.n; i++) {
        const struct run *r = c->waiting.data[i].run;
        if (!r)
            continue;
        waiting++;
        ASSERT(r->class == c->waiting.data[i].class && r->id == c->waiting.data[i].id);
        ASSERT(r->at == i && r->class && r->now.state == RUN_WAITING);
    }
    ASSERT(waiting + c->gaps == c->waiting.n);
    ASSERT(waiting + c->canvas.n + c->live.n == c->runs.n);
    for (size_t i = 0; i < c->live.n; i++) {
        const struct run *r = c->live.data[i];
        ASSERT(r->at == i && r->in_live && !r->class && r->now.worker && r->now.epoch > 0);
        ASSERT(!run_state_ended(r->now.state) && r->now.state != RUN_WAITING);
        ASSERT(run_map_get(&c->runs, r->run_id) == r);
    }
    place_check(c->place);
    core_leave(c);
}
