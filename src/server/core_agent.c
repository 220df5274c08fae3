/* core_agent.c - agents: who may connect, what becomes of their runs when they do, when they leave.
 *
 * A session is one connection of one agent process. Everything that was ordered in an earlier one
 * is made anew from what is stored: starts of runs that the agent does not know, stops of runs that
 * are to stop. An agent that is there keeps its name: another process with the same name is refused
 * unless it comes from the same SNUG_HOME, whose lock lets only one live (case-Q13).
 */
#include "base/log.h"
#include "server/core_int.h"

#include <string.h>

/* ---- workers in memory ---- */

struct worker *worker_by_name(const struct core *c, const char *name)
{
    for (size_t i = 0; i < c->workers.n; i++)
        if (strcmp(c->workers.data[i]->name, name) == 0)
            return c->workers.data[i];
    return NULL;
}

struct worker *worker_by_session(const struct core *c, const char *session)
{
    for (size_t i = 0; *session && i < c->workers.n; i++)
        if (strcmp(c->workers.data[i]->session, session) == 0)
            return c->workers.data[i];
    return NULL;
}

struct worker *worker_new(struct core *c, const char *name)
{
    struct worker *w = mem_alloc(sizeof *w);
    snprintf(w->name, sizeof w->name, "%s", name);
    snprintf(w->kind, sizeof w->kind, "local");
    make_id(c, w->worker_id);
    w->created_us = c->now.wall_us;
    w->contact_ns = c->now.now_ns;
    vec_push(&c->workers, w);
    core_stale(c);
    return w;
}

static void orders_clear(struct worker *w)
{
    for (size_t i = 0; i < w->orders.n; i++)
        json_decref(w->orders.data[i].body);
    w->orders.n = 0;
}

void worker_free(struct worker *w)
{
    orders_clear(w);
    json_decref(w->hello);
    json_decref(w->caches);
    json_decref(w->nodes_differ);
    vec_release(&w->cards);
    vec_release(&w->orders);
    mem_free(w);
}

struct card *worker_card(struct worker *w, const char *device)
{
    for (size_t i = 0; i < w->cards.n; i++)
        if (strcmp(w->cards.data[i].device, device) == 0)
            return &w->cards.data[i];
    return NULL;
}

enum status worker_store(struct core *c, struct worker *w, struct err *e)
{
    char *hello = w->hello ? json_text(w->hello, false) : NULL;
    struct store_worker row = {
        .id = w->row,
        .name = w->name,
        .kind = w->kind,
        .pool = w->pool,
        .ssh_host = w->ssh_host,
        .hello = hello ? hello : "",
        .last_refusal = w->last_refusal,
        .draining = w->draining,
        .disabled = w->disabled,
        .created_us = w->created_us,
        .seen_us = w->seen_us};
    memcpy(row.worker_id, w->worker_id, sizeof row.worker_id);
    enum status st = store_worker_put(c->store, &row, &w->row, e);
    mem_free(hello);
    return st;
}

/* A card is known by its UUID where it has one, so that its mode follows it. */
static const char *card_key(const struct card *d)
{
    return *d->uuid ? d->uuid : d->device;
}

void worker_modes(struct core *c, struct worker *w)
{
    for (size_t i = 0; i < w->cards.n; i++) {
        struct card *d = &w->cards.data[i];
        d->mode = CARD_EXCLUSIVE;
        for (size_t k = 0; k < c->modes.n; k++)
            if (c->modes.data[k].worker == w->row && w->row &&
                str_eq(c->modes.data[k].card, card_key(d)))
                d->mode = c->modes.data[k].mode;
    }
}

void worker_devices(struct core *c, struct worker *w, const json_t *devices, bool fresh)
{
    size_t i;
    json_t *one;
    w->cards.n = 0;
    json_array_foreach((json_t *)(uintptr_t)devices, i, one)
    {
        struct device_report d;
        struct err ignored;
        char kind[8];
        int index;
        if (wire_read(&wire_device_report, one, &d, &ignored) != ST_OK ||
            !device_name_split(d.device, kind, &index) || worker_card(w, d.device) ||
            w->cards.n == 128)
            continue;
        struct card card = {
            .total_bytes = d.total_bytes > 0 ? d.total_bytes : 0,
            .free_bytes = d.free_bytes > 0 ? d.free_bytes : 0,
            .context_bytes = d.context_bytes,
            .reported_ns = fresh ? c->now.now_ns : 0};
        snprintf(card.device, sizeof card.device, "%s", d.device);
        snprintf(card.kind, sizeof card.kind, "%s", kind);
        snprintf(card.uuid, sizeof card.uuid, "%s", d.uuid);
        snprintf(card.name, sizeof card.name, "%s", d.name);
        vec_push(&w->cards, card);
    }
    worker_modes(c, w);
}

void worker_remembers(struct core *c, struct worker *w, const char *hello)
{
    struct err ignored;
    if (!*hello || json_parse(hello, strlen(hello), "hello", &w->hello, &ignored) != ST_OK)
        return;
    worker_devices(c, w, json_object_get(w->hello, "devices"), false);
    snprintf(w->credential, sizeof w->credential, "%s", json_get_str(w->hello, "credential", ""));
}

void worker_lost(struct core *c, struct worker *w)
{
    w->connected = false;
    log_warn("worker %s does not answer", w->name);
    /* What was never handed out can go elsewhere: nobody has it. */
    struct err e = {0};
    VEC(struct run *) back = {0};
    for (size_t i = 0; i < c->live.n; i++) {
        struct run *r = c->live.data[i];
        if (r->now.worker == w && r->now.state == RUN_ASSIGNED && !r->handed)
            vec_push(&back, r);
    }
    enum status st = tx_begin(c, &e);
    if (st == ST_OK) {
        for (size_t i = 0; st == ST_OK && i < back.n; i++) {
            run_touch(c, back.data[i]);
            st = store_run_unassign(c->store, back.data[i]->id, back.data[i]->now.epoch, &e);
            back.data[i]->now.state = RUN_WAITING;
        }
        st = tx_end(c, st, &e);
    }
    for (size_t i = 0; st == ST_OK && i < back.n; i++) {
        struct run *r = back.data[i];
        order_drop(w, r->run_id, ORDER_COUNT);
        run_live_remove(c, r);
        r->now.worker = NULL;
        r->now.devices[0] = 0;
        r->start_ns = 0;
        run_enqueue(c, r);
        note(c, "run", r->run_id);
    }
    vec_release(&back);
    core_stale(c);
}

/* ---- orders ---- */

void order_push(
    struct core *c, struct worker *w, enum order_type type, const struct run *r, int64_t epoch)
{
    if (!*w->session)
        return; /* it is told when it connects */
    struct order_item o = {
        .number = ++w->number, .type = type, .run = r ? r->id : 0, .epoch = epoch};
    if (r)
        memcpy(o.run_id, r->run_id, sizeof o.run_id);
    vec_push(&w->orders, o);
    c->figures.orders++;
    note(c, "orders", w->session);
}

void order_drop(struct worker *w, const char *run_id, enum order_type type)
{
    size_t n = 0;
    for (size_t i = 0; i < w->orders.n; i++) {
        struct order_item *o = &w->orders.data[i];
        if (strcmp(o->run_id, run_id) == 0 && (type == ORDER_COUNT || o->type == type) &&
            o->type != ORDER_READ) {
            json_decref(o->body);
            continue;
        }
        w->orders.data[n++] = *o;
    }
    w->orders.n = n;
}

/* ---- who may connect ---- */

bool worker_name_is_valid(const char *name)
{
    size_t n = strlen(name);
    return n >= 1 && n < NAME_BYTES && !str_eq(name, "any") && *name != '.' && *name != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

static bool same_machine(const struct core *c, const struct hello *h)
{
    return *h->secret && str_eq(h->secret, c->config.machine_secret);
}

/* The refusal is kept: in the worker's row where it has one, else in the list (W4). */
static enum status
refuse(struct core *c, const struct hello *h, enum status status, const char *reason, struct err *e)
{
    struct worker *w = worker_by_name(c, h->name);
    struct err ignored = {0};
    log_warn("agent %s refused: %s", h->name, reason);
    enum status st = store_begin(c->store, &ignored);
    if (st == ST_OK) {
        if (w && w->row) {
            snprintf(w->last_refusal, sizeof w->last_refusal, "%s", reason);
            st = worker_store(c, w, &ignored);
        } else {
            st = store_refusal_put(
                c->store,
                &(struct store_refusal){
                    .name = h->name,
                    .version = h->version,
                    .hostname = h->hostname,
                    .reason = reason,
                    .time_us = c->now.wall_us},
                &ignored);
        }
        st = store_end(c->store, st, &ignored);
    }
    if (st != ST_OK)
        log_warn("the refusal could not be stored: %s", ignored.text);
    c->note_workers = true;
    return err_set(e, status, "%s", reason);
}

static enum status check_version(struct core *c, const struct hello *h, struct err *e)
{
    char reason[256];
    if (h->protocol == WIRE_PROTOCOL && str_eq(h->version, c->config.version))
        return ST_OK;
    snprintf(
        reason, sizeof reason, "version %.60s is not the server's (%.60s)", h->version,
        c->config.version);
    return refuse(c, h, ST_CONFLICT, reason, e);
}

/* Whether this caller may be the worker of that name; `*w` is NULL for one that is new. */
static enum status find_worker(
    struct core *c, const struct actor *who, const struct hello *h, struct worker **w,
    struct err *e)
{
    *w = worker_by_name(c, h->name);
    bool own = who->role == ROLE_OWNER;
    if (!own && who->role != ROLE_WORKER)
        return err_set(e, ST_DENIED, "a worker connects with its credential");
    if (!worker_name_is_valid(h->name))
        return err_set(
            e, ST_INVALID, "a worker's name has 1 to 64 of letters, digits, '.', '_', '-'");
    if (str_eq(h->name, "local") && !(own && same_machine(c, h)))
        return refuse(c, h, ST_DENIED, "the name \"local\" is that of this server", e);
    if (own)
        return *w && *(*w)->credential
                   ? refuse(c, h, ST_CONFLICT, "the name belongs to a worker with a credential", e)
                   : ST_OK;
    if (*w && !str_eq((*w)->credential, who->id) && !str_eq((*w)->worker_id, who->id))
        return refuse(c, h, ST_CONFLICT, "the name belongs to another worker", e);
    return ST_OK;
}

static enum status
check_instance(struct core *c, const struct hello *h, const struct worker *w, struct err *e)
{
    if (!w)
        return ST_OK;
    if (w->disabled)
        return refuse(c, h, ST_DENIED, "the worker is disabled", e);
    if (!w->connected || str_eq(w->instance, h->instance) ||
        (*h->secret && str_eq(w->secret, h->secret)))
        return ST_OK;
    char reason[256];
    snprintf(
        reason, sizeof reason, "another agent is connected as \"%.64s\" (on %.80s)", w->name,
        json_get_str(w->hello, "hostname", "an unknown host"));
    return refuse(c, h, ST_CONFLICT, reason, e);
}

/* A hello may wait in a socket while its agent dies and the next one connects: what it says of runs
 * is no longer so. */
static enum status check_order(const struct hello *h, const struct worker *w, struct err *e)
{
    if (w && w->hello && h->boot && json_get_i64(w->hello, "boot", 0) == h->boot &&
        h->sent_ns <= json_get_i64(w->hello, "sent_ns", 0))
        return err_set(e, ST_CONFLICT, "a later hello of \"%.64s\" has been answered", w->name);
    return ST_OK;
}

/* ---- what it is ---- */

static json_t *missing_from(const json_t *a, const json_t *b)
{
    json_t *out = json_array(), *one, *other;
    size_t i, k;
    json_array_foreach((json_t *)(uintptr_t)a, i, one)
    {
        bool found = false;
        json_array_foreach((json_t *)(uintptr_t)b, k, other) found =
            found || json_equal(one, other);
        if (!found)
            json_array_append(out, one);
    }
    return out;
}

static void compare_nodes(struct core *c, struct worker *w, const struct hello *h)
{
    json_decref(w->nodes_differ);
    w->nodes_differ = NULL;
    if (str_eq(h->nodes_hash, c->config.nodes_hash))
        return;
    w->nodes_differ = json_object();
    json_put(w->nodes_differ, "missing", missing_from(c->config.node_types, h->node_types));
    json_put(w->nodes_differ, "extra", missing_from(h->node_types, c->config.node_types));
}

/* Cards that runs of this worker are on and that it does not offer any more: they are to be known
 * after a restart too. */
static json_t *held_cards(const struct core *c, struct worker *w)
{
    json_t *held = json_array();
    char list[DEVICES_BYTES];
    for (size_t i = 0; i < c->live.n; i++) {
        const struct run *r = c->live.data[i];
        size_t n = 0;
        snprintf(list, sizeof list, "%s", r->now.worker == w ? r->now.devices : "");
        for (char *save, *d = strtok_r(list, ",", &save); d; d = strtok_r(NULL, ",", &save), n++) {
            if (worker_card(w, d))
                continue;
            json_t *one = json_object();
            json_put_str(one, "device", d);
            json_put_str(one, "uuid", r->uuids[n]);
            json_array_append_new(held, one);
        }
    }
    return held;
}

static void take_hello(
    struct core *c, const struct actor *who, struct worker *w, const json_t *document,
    const struct hello *h)
{
    bool again = str_eq(w->instance, h->instance);
    json_decref(w->hello);
    w->hello = json_deep_copy(document); /* the request's thread lets go of its own */
    json_object_del(w->hello, "runs");
    json_object_del(w->hello, "secret");
    json_object_del(w->hello, "node_types");
    w->server = str_eq(w->name, "local");
    w->same_host = same_machine(c, h);
    w->one_shot = h->one_shot;
    w->can_cap = h->can_cap;
    w->allow_commands = h->allow_commands;
    if (!again) /* after a restart of ours, too: what it has was its one run */
        w->spent = json_array_size(h->runs) > 0;
    snprintf(w->pool, sizeof w->pool, "%s", h->pool);
    snprintf(w->instance, sizeof w->instance, "%s", h->instance);
    snprintf(w->secret, sizeof w->secret, "%s", h->secret);
    if (who->role == ROLE_WORKER) {
        snprintf(w->credential, sizeof w->credential, "%s", who->id);
        json_put_str(w->hello, "credential", who->id); /* an id, not the secret */
    }
    if (!str_eq(w->kind, "ssh"))
        snprintf(
            w->kind, sizeof w->kind, "%s",
            w->server                  ? "builtin"
            : w->one_shot              ? "one_shot"
            : who->role == ROLE_WORKER ? "enrolled"
                                       : "local");
    w->last_refusal[0] = 0;
    w->seen_us = c->now.wall_us;
    worker_devices(c, w, h->devices, true);
    json_put(w->hello, "held", held_cards(c, w));
    compare_nodes(c, w, h);
}

/* ---- adoption ---- */

static json_t *verdict(const struct run_report *report, const char *action, int64_t sequence)
{
    return wire_write(
        &wire_verdict, &(struct verdict){
                           .run_id = report->run_id,
                           .epoch = report->epoch,
                           .action = action,
                           .sequence = sequence});
}

/* Marks what the agent has (`at` of listed) and says what becomes of it. */
static enum status judge_runs(
    struct core *c, struct worker *w, const json_t *runs, bool *listed, json_t *verdicts,
    struct err *e)
{
    size_t i;
    json_t *one;
    w->strays = 0;
    json_array_foreach((json_t *)(uintptr_t)runs, i, one)
    {
        struct run_report report;
        TRY(wire_read(&wire_run_report, one, &report, e));
        struct run *r = run_map_get(&c->runs, report.run_id);
        bool mine = r && r->in_live && r->now.worker == w && r->now.epoch == report.epoch;
        if (mine)
            listed[r->at] = true;
        else if (str_eq(report.state, "live"))
            w->strays = 2; /* the first may be out before they are dead */
        json_array_append_new(
            verdicts,
            mine ? verdict(&report, "keep", r->now.sequence) : verdict(&report, "forget", 0));
    }
    return ST_OK;
}

/* A run that was ordered from this agent, and that it does not have. */
static enum status not_there(struct core *c, struct run *r, struct err *e)
{
    bool started = r->now.started_us != 0;
    if (r->now.state == RUN_ASSIGNED)
        return ST_OK; /* the order is given again */
    if (r->now.cancel_asked || (!started && r->now.state == RUN_STOPPING))
        return run_finish(
            c, r,
            &(struct run_outcome){
                .state = r->now.cancel_asked ? RUN_CANCELLED : RUN_INTERRUPTED,
                .cause = r->now.cancel_asked ? CAUSE_CANCELLED : CAUSE_SERVER_STOPPED,
                .error = ""},
            e);
    return run_finish(
        c, r,
        &(struct run_outcome){
            .state = RUN_INTERRUPTED,
            .cause = CAUSE_CHILD_LOST,
            .error = "its worker came back without it"},
        e);
}

static enum status adopt(struct core *c, struct worker *w, const bool *listed, struct err *e)
{
    for (size_t i = 0; i < c->live.n; i++) {
        struct run *r = c->live.data[i];
        if (r->now.worker == w && !listed[i])
            TRY(not_there(c, r, e));
    }
    return ST_OK;
}

/* Orders of the new session, from what is stored. */
static void renew_orders(struct core *c, struct worker *w, const bool *listed, size_t n_listed)
{
    for (size_t i = 0; i < c->live.n; i++) {
        struct run *r = c->live.data[i];
        if (r->now.worker != w)
            continue;
        bool has = i < n_listed && listed[i];
        if (!has && r->now.state == RUN_ASSIGNED) {
            r->handed = false;
            r->start_ns = c->now.now_ns + (int64_t)(c->config.start_s * 1e9);
            order_push(c, w, ORDER_START, r, r->now.epoch);
        } else if (has) {
            r->handed = true;
            if (r->now.state == RUN_STOPPING)
                order_push(c, w, ORDER_STOP, r, r->now.epoch);
        }
    }
}

/* It may lower the limits of who offers the same cards, and they its. */
static void limits_to_say(struct core *c, struct worker *w)
{
    w->limits_unsaid = true;
    for (size_t i = 0; i < c->workers.n; i++) {
        struct worker *other = c->workers.data[i];
        for (size_t k = 0; other != w && k < other->cards.n; k++)
            for (size_t j = 0; j < w->cards.n; j++)
                if (*w->cards.data[j].uuid &&
                    str_eq(w->cards.data[j].uuid, other->cards.data[k].uuid))
                    other->limits_unsaid = true;
    }
}

static enum status connect_worker(
    struct core *c, const struct actor *who, const json_t *document, const struct hello *h,
    struct worker *w, json_t *verdicts, struct err *e)
{
    size_t n = c->live.n;
    bool *listed = mem_alloc(n + 1);
    enum status st = judge_runs(c, w, h->runs, listed, verdicts, e);
    if (st == ST_OK)
        st = tx_begin(c, e);
    if (st == ST_OK) {
        take_hello(c, who, w, document, h);
        st = worker_store(c, w, e);
        if (st == ST_OK)
            st = store_refusal_clear(c->store, w->name, e);
        if (st == ST_OK)
            st = adopt(c, w, listed, e);
        struct run **before = mem_alloc((n + 1) * sizeof *before);
        for (size_t i = 0; i < n; i++)
            before[i] = c->live.data[i];
        st = tx_end(c, st, e);
        if (st == ST_OK && c->live.n != n) { /* some ended, and others took their places */
            bool *moved = mem_alloc(n + 1);
            for (size_t i = 0; i < n; i++)
                for (size_t k = 0; listed[i] && k < c->live.n; k++)
                    if (c->live.data[k] == before[i])
                        moved[k] = true;
            mem_free(listed);
            listed = moved;
        }
        mem_free(before);
    }
    if (st == ST_OK) {
        orders_clear(w);
        w->number = 0;
        make_id(c, w->session);
        w->connected = w->seen = true;
        limits_to_say(c, w);
        w->contact_ns = w->heartbeat_ns = c->now.now_ns;
        w->heartbeat_us = c->now.wall_us;
        worker_modes(c, w);
        renew_orders(c, w, listed, c->live.n);
        core_stale(c);
    }
    mem_free(listed);
    return st;
}

/* The agent kills its runs by itself this long after its last answered message; the server waits
 * longer, so that a run never has two owners. */
static double lease_s(const struct core *c)
{
    double g = c->config.grace_s;
    return g > 60 ? g - 30 : g / 2;
}

static json_t *write_welcome(const struct core *c, const struct worker *w, json_t *verdicts)
{
    return wire_write(
        &wire_welcome, &(struct welcome){
                           .session = w->session,
                           .credential = "",
                           .worker_id = w->worker_id,
                           .name = w->name,
                           .heartbeat_s = c->config.heartbeat_s,
                           .lease_s = lease_s(c),
                           .runs = verdicts});
}

enum status core_agent_check(
    struct core *c, const char *name, const json_t *hello, struct instant now, struct err *e)
{
    struct hello h;
    TRY(wire_read(&wire_hello, hello, &h, e));
    if (*name)
        h.name = name;
    core_enter(c, now);
    enum status st = check_version(c, &h, e);
    if (st == ST_OK && !worker_name_is_valid(h.name))
        st =
            err_set(e, ST_INVALID, "a worker's name has 1 to 64 of letters, digits, '.', '_', '-'");
    if (st == ST_OK && (str_eq(h.name, "local") || worker_by_name(c, h.name)))
        st = refuse(c, &h, ST_CONFLICT, "the name belongs to another worker", e);
    core_leave(c);
    return st;
}

enum status core_agent_connect(
    struct core *c, const struct actor *who, const json_t *hello, struct instant now,
    json_t **welcome, struct err *e)
{
    struct hello h;
    TRY(wire_read(&wire_hello, hello, &h, e));
    struct worker *w = NULL;
    json_t *verdicts = json_array();
    core_enter(c, now);
    enum status st = find_worker(c, who, &h, &w, e);
    if (st == ST_OK)
        st = check_version(c, &h, e);
    if (st == ST_OK)
        st = check_instance(c, &h, w, e);
    if (st == ST_OK)
        st = check_order(&h, w, e);
    if (st == ST_OK && !w)
        w = worker_new(c, h.name);
    if (st == ST_OK)
        st = connect_worker(c, who, hello, &h, w, verdicts, e);
    if (st == ST_OK)
        *welcome = write_welcome(c, w, verdicts);
    core_leave(c);
    json_decref(verdicts);
    return st;
}

/* ---- sessions ---- */

enum status session_find(
    struct core *c, const struct actor *who, const char *session, struct worker **w, struct err *e)
{
    *w = worker_by_session(c, session);
    if (!*w)
        return err_set(e, ST_GONE, "the session is not known: connect again");
    if (who->role != ROLE_OWNER && !(who->role == ROLE_WORKER && str_eq(who->id, (*w)->credential)))
        return err_set(e, ST_DENIED, "the session belongs to another worker");
    (*w)->contact_ns = c->now.now_ns;
    if (!(*w)->connected) { /* it was silent, not gone */
        (*w)->connected = true;
        core_stale(c);
    }
    return ST_OK;
}

enum status core_agent_leave(
    struct core *c, const struct actor *who, const char *session, struct instant now, struct err *e)
{
    struct worker *w;
    core_enter(c, now);
    enum status st = session_find(c, who, session, &w, e);
    if (st == ST_OK) {
        worker_lost(c, w);
        orders_clear(w);
        w->session[0] = 0;
    }
    core_leave(c);
    return st;
}
