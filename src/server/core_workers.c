/* core_workers.c - workers as the panel shows them (W3, W4), and what people do with them (W5, W6,
 * B1). */
#include "server/core_int.h"

#include <string.h>

/* ---- what is shown ---- */

static void put_text(json_t *object, const char *key, const char *text)
{
    json_put_str(object, key, *text ? text : NULL);
}

static const char *state_of(const struct core *c, const struct worker *w)
{
    if (w->disabled)
        return "disabled";
    if (!w->connected)
        return "disconnected";
    if (w->draining)
        return "draining";
    bool late = c->now.now_ns - w->heartbeat_ns > (int64_t)(c->config.heartbeat_s * 2e9);
    return late || w->nodes_differ ? "degraded" : "online";
}

static void put_degraded(const struct core *c, const struct worker *w, json_t *out)
{
    struct str reason;
    str_init(&reason);
    int64_t age = c->now.now_ns - w->heartbeat_ns;
    if (w->connected && age > (int64_t)(c->config.heartbeat_s * 2e9))
        str_printf(&reason, "its last heartbeat was %lld s ago", (long long)(age / SECOND_NS));
    if (w->connected && w->nodes_differ)
        str_printf(&reason, "%sits node types differ from the server's", reason.n ? "; " : "");
    put_text(out, "reason", reason.data);
    str_release(&reason);
}

static json_t *gib(int64_t bytes)
{
    return json_real((double)bytes / 1073741824.0);
}

/* The bar of a shared card: what is in use, reserved, and what a new budget may be. */
static json_t *memory_json(const struct place_card *p)
{
    json_t *out = json_object();
    int64_t used = p->total_bytes - p->free_bytes;
    json_put_i64(out, "total_bytes", p->total_bytes);
    json_put_i64(out, "free_bytes", p->free_bytes);
    json_put_i64(out, "used_bytes", used > 0 ? used : 0);
    json_put_i64(out, "reserved_bytes", p->reserved_bytes);
    json_put_i64(out, "running_bytes", p->running_bytes);
    json_put_i64(out, "room_bytes", p->room_bytes);
    json_put(out, "room_gib", gib(p->room_bytes));
    return out;
}

static json_t *card_json(const struct core *c, const struct worker *w, const struct card *d)
{
    json_t *out = json_object();
    struct place_card p = {0};
    bool known = place_card_get(c->place, w->name, d->device, &p);
    json_put_str(out, "device", d->device);
    json_put_str(out, "kind", d->kind);
    put_text(out, "name", d->name);
    put_text(out, "uuid", d->uuid);
    json_put(out, "total_bytes", d->total_bytes ? json_integer(d->total_bytes) : json_null());
    json_put(out, "free_bytes", d->total_bytes ? json_integer(d->free_bytes) : json_null());
    json_put(out, "total_gib", d->total_bytes ? gib(d->total_bytes) : json_null());
    json_put(out, "free_gib", d->total_bytes ? gib(d->free_bytes) : json_null());
    json_put_bool(out, "as_last_reported", !w->connected);
    json_put_str(out, "mode", d->mode == CARD_SHARED ? "shared" : "exclusive");
    json_put_bool(out, "can_share", !str_eq(d->kind, "cpu"));
    json_t *slots = json_object(), *others = json_array();
    json_put_i64(slots, "used", p.used);
    json_put(slots, "limit", p.limit ? json_integer(p.limit) : json_null());
    json_put(slots, "own_limit", p.own_limit ? json_integer(p.own_limit) : json_null());
    put_text(slots, "limit_by", known && p.limit_by ? p.limit_by : "");
    json_put(out, "slots", slots);
    json_put_bool(out, "shared", known && p.shared);
    json_put(out, "memory", known && p.shared && p.total_bytes ? memory_json(&p) : json_null());
    for (size_t i = 0; i < p.n_others && i < 8; i++)
        json_array_append_new(others, json_string(p.others[i]));
    json_put(out, "same_card_as", others);
    return out;
}

static json_t *runs_json(const struct core *c, const struct worker *w)
{
    json_t *out = json_array();
    for (size_t i = 0; i < c->live.n; i++) {
        const struct run *r = c->live.data[i];
        if (r->now.worker != w)
            continue;
        json_t *one = json_object();
        json_put_str(one, "run_id", r->run_id);
        json_put_str(one, "state", run_state_name(r->now.state));
        json_put_str(one, "lane", r->interactive ? "interactive" : "queued");
        json_put(one, "devices", devices_json(r->now.devices));
        json_put(one, "budget_gib", r->now.budget_bytes ? gib(r->now.budget_bytes) : json_null());
        json_array_append_new(out, one);
    }
    return out;
}

static json_t *worker_json(const struct core *c, const struct worker *w)
{
    json_t *out = json_object(), *devices = json_array();
    char when[40];
    bool seen = w->heartbeat_ns != 0;
    json_put_str(out, "worker_id", w->worker_id);
    json_put_str(out, "name", w->name);
    json_put_str(out, "kind", w->kind);
    put_text(out, "pool", w->pool);
    json_put_str(out, "state", state_of(c, w));
    put_degraded(c, w, out);
    json_put_bool(out, "connected", w->connected);
    json_put_bool(out, "seen", w->seen);
    json_put_bool(out, "draining", w->draining);
    json_put_bool(out, "disabled", w->disabled);
    json_put_bool(out, "one_shot", w->one_shot);
    json_put_bool(out, "same_host", w->same_host);
    json_put_bool(out, "can_cap", w->can_cap);
    json_put_bool(out, "allow_commands", w->allow_commands);
    const char *version = json_get_str(w->hello, "version", "");
    put_text(out, "version", version);
    json_put(
        out, "version_matches",
        *version ? json_boolean(str_eq(version, c->config.version)) : json_null());
    put_text(out, "commit", json_get_str(w->hello, "commit", ""));
    put_text(out, "hostname", json_get_str(w->hello, "hostname", ""));
    static const char *const copied[] = {"environment", "mounts"};
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        json_t *value = json_object_get(w->hello, copied[i]);
        json_put(out, copied[i], value ? json_deep_copy(value) : json_null());
    }
    json_put_bool(out, "node_types_match", !w->nodes_differ);
    json_put(
        out, "node_types_differ", w->nodes_differ ? json_deep_copy(w->nodes_differ) : json_null());
    put_text(out, "last_refusal", w->last_refusal);
    json_put(
        out, "heartbeat_age_s",
        seen ? json_real((double)(c->now.now_ns - w->heartbeat_ns) / 1e9) : json_null());
    put_text(out, "last_seen_at", iso_time(w->seen_us, when));
    /* A session token's agent and an SSH worker have no credential to renew (W6). */
    json_put_bool(out, "can_reissue", str_eq(w->kind, "enrolled") || str_eq(w->kind, "one_shot"));
    for (size_t i = 0; i < w->cards.n; i++)
        json_array_append_new(devices, card_json(c, w, &w->cards.data[i]));
    json_put(out, "devices", devices);
    json_put(out, "runs", runs_json(c, w));
    return out;
}

static bool has_runs(const struct core *c, const struct worker *w)
{
    for (size_t i = 0; i < c->live.n; i++)
        if (c->live.data[i]->now.worker == w)
            return true;
    return false;
}

/* Instances that came with another's credential, or for one run, are not listed once they left. */
static bool is_listed(const struct core *c, const struct worker *w)
{
    bool guest = w->one_shot || (*w->credential && !str_eq(w->credential, w->worker_id));
    return w->connected || !guest || has_runs(c, w);
}

static json_t *refusals_json(struct core *c)
{
    json_t *out = json_array();
    struct arena a;
    struct store_refusal *list;
    size_t n;
    struct err ignored;
    char when[40];
    arena_init(&a);
    if (store_refusals_read(c->store, &a, &list, &n, &ignored) == ST_OK)
        for (size_t i = 0; i < n; i++) {
            json_t *one = json_object();
            json_put_str(one, "name", list[i].name);
            put_text(one, "version", list[i].version);
            put_text(one, "hostname", list[i].hostname);
            json_put_str(one, "reason", list[i].reason);
            put_text(one, "at", iso_time(list[i].time_us, when));
            json_array_append_new(out, one);
        }
    arena_release(&a);
    return out;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct worker *const *)a)->name, (*(struct worker *const *)b)->name);
}

static json_t *pools_json(struct worker *const *list, size_t n)
{
    json_t *pools = json_object(), *out = json_array(), *count;
    const char *name;
    for (size_t i = 0; i < n; i++)
        if (list[i]->one_shot)
            json_object_set_new(
                pools, list[i]->pool,
                json_integer(
                    json_integer_value(json_object_get(pools, list[i]->pool)) +
                    (list[i]->connected && !list[i]->spent)));
    json_object_foreach(pools, name, count)
    {
        json_t *one = json_object();
        json_put_str(one, "name", name);
        json_put_i64(one, "free", json_integer_value(count));
        json_array_append_new(out, one);
    }
    json_decref(pools);
    return out;
}

json_t *core_workers(struct core *c, struct instant now)
{
    json_t *out = json_object(), *list = json_array();
    json_put(out, "refused", refusals_json(c));
    core_enter(c, now);
    core_world_fresh(c, false);
    size_t n = c->workers.n;
    struct worker **sorted = mem_alloc((n + 1) * sizeof *sorted);
    memcpy(sorted, c->workers.data, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_name);
    json_put(out, "local", json_null());
    for (size_t i = 0; i < n; i++) {
        if (sorted[i]->server)
            json_put(out, "local", worker_json(c, sorted[i]));
        else if (is_listed(c, sorted[i]))
            json_array_append_new(list, worker_json(c, sorted[i]));
    }
    json_put(out, "workers", list);
    json_put(out, "pools", pools_json(sorted, n));
    json_put_str(out, "version", c->config.version);
    mem_free(sorted);
    core_leave(c);
    return out;
}

static struct worker *need_worker(struct core *c, const char *name, struct err *e)
{
    struct worker *w = worker_by_name(c, name);
    if (!w)
        (void)err_set(e, ST_NOT_FOUND, "no worker is named \"%.64s\"", name);
    return w;
}

enum status
core_worker(struct core *c, const char *name, struct instant now, json_t **doc, struct err *e)
{
    core_enter(c, now);
    core_world_fresh(c, false);
    struct worker *w = need_worker(c, name, e);
    if (w)
        *doc = worker_json(c, w);
    core_leave(c);
    return w ? ST_OK : ST_NOT_FOUND;
}

/* ---- what people do ---- */

static enum status store_change(struct core *c, struct worker *w, struct err *e)
{
    TRY(tx_begin(c, e));
    TRY(tx_end(c, worker_store(c, w, e), e));
    core_stale(c);
    return ST_OK;
}

enum status
core_worker_drain(struct core *c, const char *name, bool drain, struct instant now, struct err *e)
{
    core_enter(c, now);
    struct worker *w = need_worker(c, name, e);
    enum status st = w ? ST_OK : ST_NOT_FOUND;
    if (w && w->draining != drain) {
        w->draining = drain;
        st = store_change(c, w, e);
        if (st != ST_OK)
            w->draining = !drain;
    }
    core_leave(c);
    return st;
}

static int count_runs(const struct core *c, const struct worker *w)
{
    int n = 0;
    for (size_t i = 0; i < c->live.n; i++)
        n += c->live.data[i]->now.worker == w;
    return n;
}

/* An agent that is sent away stops its runs, reports their ends and leaves. */
static void send_away(struct core *c, struct worker *w)
{
    order_push(c, w, ORDER_EXIT, NULL, 0);
}

enum status core_worker_enable(
    struct core *c, const char *name, bool enable, bool confirm, struct instant now, struct err *e)
{
    core_enter(c, now);
    struct worker *w = need_worker(c, name, e);
    enum status st = w ? ST_OK : ST_NOT_FOUND;
    int n = w ? count_runs(c, w) : 0;
    if (w && w->server)
        st = err_set(e, ST_INVALID, "this server's own worker cannot be disabled");
    else if (w && !enable && n && !confirm)
        st = err_set(
            e, ST_CONFLICT, "worker \"%s\" has %d run%s, which disabling interrupts: confirm it",
            name, n, n == 1 ? "" : "s");
    else if (w && w->disabled != !enable) {
        w->disabled = !enable;
        st = store_change(c, w, e);
        if (st != ST_OK)
            w->disabled = enable;
        else if (!enable)
            send_away(c, w);
    }
    core_leave(c);
    return st;
}

/* ---- cards (B1) ---- */

static void remember_mode(struct core *c, int64_t worker, const char *key, enum card_mode mode)
{
    for (size_t i = 0; i < c->modes.n; i++)
        if (c->modes.data[i].worker == worker && str_eq(c->modes.data[i].card, key)) {
            c->modes.data[i].mode = mode;
            return;
        }
    struct store_card card = {.worker = worker, .card = mem_strdup(key), .mode = mode};
    vec_push(&c->modes, card);
}

static enum status
set_mode(struct core *c, struct worker *w, struct card *d, enum card_mode mode, struct err *e)
{
    const char *key = *d->uuid ? d->uuid : d->device;
    enum card_mode before = d->mode;
    TRY(tx_begin(c, e));
    enum status st = w->row ? ST_OK : worker_store(c, w, e);
    if (st == ST_OK)
        st = store_card_put(
            c->store, &(struct store_card){.worker = w->row, .card = key, .mode = mode}, e);
    d->mode = mode;
    if (st == ST_OK && mode == CARD_SHARED)
        st = budgets_follow_cards(c, e);
    st = tx_end(c, st, e);
    if (st != ST_OK) {
        d->mode = before;
        return st;
    }
    remember_mode(c, w->row, key, mode);
    core_stale(c);
    return ST_OK;
}

enum status core_card_mode(
    struct core *c, const char *worker, const char *device, const char *mode, struct instant now,
    struct err *e)
{
    bool shared = str_eq(mode, "shared");
    if (!shared && !str_eq(mode, "exclusive"))
        return err_set(e, ST_INVALID, "mode must be \"exclusive\" or \"shared\"");
    core_enter(c, now);
    struct worker *w = need_worker(c, worker, e);
    struct card *d = w ? worker_card(w, device) : NULL;
    enum status st = w ? ST_OK : ST_NOT_FOUND;
    if (w && !d)
        st = err_set(e, ST_NOT_FOUND, "worker \"%s\" has no device \"%.24s\"", worker, device);
    else if (d && shared && str_eq(d->kind, "cpu"))
        st = err_set(e, ST_INVALID, "the CPU cannot be shared by memory");
    else if (d)
        st = set_mode(c, w, d, shared ? CARD_SHARED : CARD_EXCLUSIVE, e);
    core_leave(c);
    return st;
}

/* ---- add, remove ---- */

enum status core_worker_add(
    struct core *c, const char *name, const char *pool, struct instant now, char worker_id[33],
    struct err *e)
{
    enum status st = ST_OK;
    core_enter(c, now);
    if (!worker_name_is_valid(name))
        st =
            err_set(e, ST_INVALID, "a worker's name has 1 to 64 of letters, digits, '.', '_', '-'");
    else if (str_eq(name, "local") || worker_by_name(c, name))
        st = err_set(e, ST_CONFLICT, "the name \"%s\" is taken", name);
    if (st == ST_OK) {
        struct worker *w = worker_new(c, name);
        snprintf(w->kind, sizeof w->kind, "%s", pool && *pool ? "one_shot" : "enrolled");
        snprintf(w->pool, sizeof w->pool, "%s", pool ? pool : "");
        w->one_shot = pool && *pool;
        memcpy(w->credential, w->worker_id, sizeof w->credential);
        st = store_change(c, w, e);
        if (st == ST_OK) {
            memcpy(worker_id, w->worker_id, ID_BYTES);
        } else {
            c->workers.n--;
            worker_free(w);
        }
    }
    core_leave(c);
    return st;
}

enum status core_worker_name_free(struct core *c, const char *name, struct err *e)
{
    core_enter_read(c);
    bool taken = *name && (str_eq(name, "local") || str_eq(name, "any") || worker_by_name(c, name));
    core_leave(c);
    return taken ? err_set(e, ST_CONFLICT, "the name \"%s\" is taken", name) : ST_OK;
}

bool core_reachable(const struct core *c)
{
    return !c->config.loopback_only;
}

/* What waits for this worker alone can never start; what it runs is interrupted. */
static enum status end_its_runs(struct core *c, struct worker *w, struct err *e)
{
    struct err why = {0};
    (void)err_set(&why, ST_NOT_FOUND, "worker \"%s\" was removed", w->name);
    for (size_t i = 0; i < c->waiting.n; i++) {
        struct run *r = c->waiting.data[i].run;
        if (r && str_eq(r->target, w->name))
            TRY(run_finish(
                c, r,
                &(struct run_outcome){
                    .state = RUN_FAILED, .cause = CAUSE_WORKER_REMOVED, .error = why.text},
                e));
    }
    for (size_t i = 0; i < c->live.n; i++) {
        struct run *r = c->live.data[i];
        if (r->now.worker != w)
            continue;
        bool cancelled = r->now.cancel_asked;
        TRY(run_finish(
            c, r,
            &(struct run_outcome){
                .state = cancelled ? RUN_CANCELLED : RUN_INTERRUPTED,
                .cause = cancelled ? CAUSE_CANCELLED : CAUSE_AGENT_STOPPED,
                .error = cancelled ? "" : why.text},
            e));
    }
    return ST_OK;
}

/* Another worker may get the number of its row. */
static void forget_modes(struct core *c, int64_t row)
{
    size_t n = 0;
    for (size_t i = 0; i < c->modes.n; i++) {
        if (c->modes.data[i].worker == row)
            mem_free((char *)(uintptr_t)c->modes.data[i].card);
        else
            c->modes.data[n++] = c->modes.data[i];
    }
    c->modes.n = n;
}

static void forget_worker(struct core *c, struct worker *w)
{
    forget_modes(c, w->row);
    for (size_t i = 0; i < c->questions.n; i++)
        if (c->questions.data[i].worker == w) {
            c->questions.data[i].worker = NULL;
            c->questions.data[i].until_ns = 0; /* the next tick says so */
        }
    for (size_t i = 0; i < c->workers.n; i++)
        if (c->workers.data[i] == w) {
            c->workers.data[i] = c->workers.data[--c->workers.n];
            break;
        }
    if (*w->session)
        note(c, "orders", w->session); /* its wait ends: 410 */
    worker_free(w);
    core_stale(c);
}

enum status core_worker_remove(
    struct core *c, const char *name, bool confirm, struct instant now, struct err *e)
{
    core_enter(c, now);
    struct worker *w = need_worker(c, name, e);
    enum status st = w ? ST_OK : ST_NOT_FOUND;
    int n = w ? count_runs(c, w) : 0;
    if (w && w->server)
        st = err_set(e, ST_INVALID, "this server's own worker cannot be removed");
    else if (w && n && !confirm)
        st = err_set(
            e, ST_CONFLICT, "worker \"%s\" has %d run%s, which removing interrupts: confirm it",
            name, n, n == 1 ? "" : "s");
    else if (w && (st = tx_begin(c, e)) == ST_OK) {
        st = end_its_runs(c, w, e);
        if (st == ST_OK && w->row)
            st = store_worker_delete(c->store, w->row, e);
        st = tx_end(c, st, e);
        if (st == ST_OK)
            forget_worker(c, w);
    }
    core_leave(c);
    return st;
}

/* ---- the whole ---- */

json_t *core_status(struct core *c, struct instant now)
{
    int64_t counts[RUN_STATE_COUNT];
    struct err ignored;
    json_t *out = json_object(), *runs = json_object(), *workers = json_object();
    json_t *figures = json_object();
    if (store_runs_count(c->store, counts, &ignored) != ST_OK)
        memset(counts, 0, sizeof counts);
    for (int i = 0; i < RUN_STATE_COUNT; i++) {
        const char *status = run_state_status((enum run_state)i);
        json_put_i64(runs, status, json_get_i64(runs, status, 0) + counts[i]);
    }
    core_enter(c, now);
    for (size_t i = 0; i < c->workers.n; i++) {
        const char *state = state_of(c, c->workers.data[i]);
        json_put_i64(workers, state, json_get_i64(workers, state, 0) + 1);
    }
    json_put_i64(figures, "waiting", (int64_t)(c->waiting.n - c->gaps + c->canvas.n));
    json_put_i64(figures, "live", (int64_t)c->live.n);
    json_put_i64(figures, "submitted", c->figures.submitted);
    json_put_i64(figures, "started", c->figures.started);
    json_put_i64(figures, "finished", c->figures.finished);
    json_put_i64(figures, "events", c->figures.events);
    json_put_i64(figures, "orders", c->figures.orders);
    json_put_i64(figures, "passes", c->figures.passes);
    json_put_f64(figures, "pass_ms_max", (double)c->figures.pass_ns_max / 1e6);
    core_leave(c);
    json_put(out, "runs", runs);
    json_put(out, "workers", workers);
    json_put(out, "figures", figures);
    return out;
}
