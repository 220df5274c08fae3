/* sim.c - clock, network and server of the simulation (sim.h). */
#include "sim.h"

#include "test.h"

#include <stdlib.h>
#include <string.h>

uint64_t sim_below(struct sim *s, uint64_t n)
{
    return rng_below(&s->rng, n);
}

bool sim_one_in(struct sim *s, uint64_t n)
{
    return sim_below(s, n) == 0;
}

void sim_note(struct sim *s, json_t *line)
{
    json_put_i64(line, "t", s->now_ns);
    ASSERT(json_dumpf(line, s->history, JSON_COMPACT) == 0 && fputc('\n', s->history) != EOF);
    json_decref(line);
}

struct instant sim_now(const struct sim *s)
{
    return (struct instant){.now_ns = s->now_ns, .wall_us = s->wall_us};
}

/* ---- runs as the server tells them ---- */

struct sim_run *sim_find(struct sim *s, const char *run_id)
{
    for (size_t i = s->runs.n; i-- > 0;)
        if (strcmp(s->runs.data[i].run_id, run_id) == 0)
            return &s->runs.data[i];
    return NULL;
}

static json_t *row_line(const json_t *row)
{
    static const char *const kept[] = {
        "run_id",  "state",       "status", "epoch",  "worker",
        "devices", "budget",      "cause",  "target", "requested_devices",
        "lane",    "cancel_asked"};
    json_t *line = json_object();
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        json_object_set(line, kept[i], json_object_get(row, kept[i]));
    json_t *pool =
        json_object_get(json_object_get(json_object_get(row, "options"), "target"), "pool");
    json_object_set(line, "pool", pool);
    return line;
}

static void write_events(struct sim *s, struct sim_run *r)
{
    json_t *page, *one;
    struct err e;
    size_t i;
    if (core_events(s->core, r->run_id, r->cursor, 1000, &page, &e) != ST_OK)
        return;
    json_array_foreach(json_object_get(page, "events"), i, one)
    {
        r->cursor = json_get_i64(one, "cursor", 0);
        json_t *line = json_pack(
            "{s:s,s:s,s:I,s:s}", "e", "event", "run_id", r->run_id, "cursor", (json_int_t)r->cursor,
            "type", json_get_str(one, "type", ""));
        json_object_set(line, "text", json_object_get(json_object_get(one, "payload"), "text"));
        sim_note(s, line);
    }
    json_decref(page);
}

void sim_write_run(struct sim *s, const char *run_id)
{
    json_t *row;
    struct err e;
    struct sim_run *r = sim_find(s, run_id);
    if (!r || !s->core || core_run(s->core, run_id, &row, &e) != ST_OK)
        return;
    json_t *line = row_line(row);
    char *text = json_text(line, false);
    uint64_t hash = hash_name(text);
    mem_free(text);
    bool over = !json_get_bool(row, "active", true);
    if (!over)
        write_events(s, r); /* of the attempt that this row is about */
    if (hash != r->row_hash) {
        json_put_str(line, "e", "row");
        sim_note(s, line);
        r->row_hash = hash;
    } else {
        json_decref(line);
    }
    if (over)
        write_events(s, r);
    r->over = over;
    json_decref(row);
}

/* ---- the server ---- */

static void on_changed(void *ctx, const char *kind, const char *id)
{
    struct sim *s = ctx;
    if (!s->core)
        return;
    if (strcmp(kind, "run") == 0)
        sim_write_run(s, id);
    if (strcmp(kind, "orders") != 0)
        return;
    for (size_t i = 0; i < s->items.n; i++) {
        struct sim_item *x = &s->items.data[i];
        if (x->parked && strcmp(json_get_str(x->body, "session", ""), id) == 0)
            x->at_ns = s->now_ns;
    }
}

static void on_due(void *ctx, int64_t at_ns)
{
    struct sim *s = ctx;
    if (at_ns < s->tick_ns)
        s->tick_ns = at_ns;
}

void sim_open(struct sim *s)
{
    struct err e;
    struct core_hooks hooks = {.ctx = s, .changed = on_changed, .due = on_due};
    struct store_options fast = {.fast = true};
    CHECK_OK(store_open(s->path, &fast, &s->store, &e), &e);
    s->config.seed = s->options.seed * 1000 + (uint64_t)++s->databases;
    json_t *line = json_pack(
        "{s:s,s:s,s:i,s:i,s:I,s:I,s:I}", "e", "boot", "limits", s->limits, "gpu",
        s->config.limit_gpu, "cpu", s->config.limit_cpu, "context",
        (json_int_t)s->config.context_bytes, "reserve_ns", (json_int_t)(s->config.reserve_s * 1e9),
        "grace_ns", (json_int_t)(s->config.grace_s * 1e9));
    json_object_set(line, "devices", s->devices);
    sim_note(s, line);
    CHECK_OK(core_open(s->store, &s->config, &hooks, sim_now(s), &s->core, &e), &e);
    s->tick_ns = s->now_ns;
    for (size_t i = 0; i < s->runs.n; i++)
        if (!s->runs.data[i].over)
            sim_write_run(s, s->runs.data[i].run_id);
}

static void copy_file(const char *from, const char *to)
{
    char buf[1 << 16];
    FILE *in = fopen(from, "rb"), *out = in ? fopen(to, "wb") : NULL;
    size_t n;
    while (out && (n = fread(buf, 1, sizeof buf, in)) > 0)
        ASSERT(fwrite(buf, 1, n, out) == n);
    if (out)
        ASSERT(fclose(out) == 0);
    if (in)
        ASSERT(fclose(in) == 0);
}

/* A kill leaves the files as they are at that moment: a copy of them is what the next one opens. */
void sim_shut(struct sim *s, bool kill, int64_t down_ns)
{
    char next[600], from[600], to[600];
    sim_note(s, json_pack("{s:s,s:b}", "e", "down", "killed", kill));
    if (kill) {
        (void)snprintf(next, sizeof next, "%s/snug-%d.db", s->options.dir, s->databases);
        copy_file(s->path, next);
        (void)snprintf(from, sizeof from, "%.500s-wal", s->path);
        (void)snprintf(to, sizeof to, "%.500s-wal", next);
        copy_file(from, to);
    }
    struct core *core = s->core;
    s->core = NULL;
    core_close(core);
    store_close(s->store);
    s->store = NULL;
    for (size_t i = 0; i < s->items.n; i++)
        if (s->items.data[i].parked)
            s->items.data[i].at_ns = s->now_ns; /* its connection breaks */
    if (kill) {
        (void)remove(s->path);
        (void)snprintf(s->path, sizeof s->path, "%.500s", next);
    }
    s->back_ns = s->now_ns + down_ns;
}

/* ---- calls ---- */

void sim_item(struct sim *s, struct sim_item item)
{
    item.order = ++s->order;
    vec_push(&s->items, item);
}

static const char *const call_names[CALL_COUNT] = {"connect", "orders", "report", "leave"};

/* Whether it has live runs that the server told it to forget. */
static bool has_strays(const json_t *hello, const json_t *welcome)
{
    size_t i, k;
    json_t *run, *v;
    json_array_foreach(json_object_get(hello, "runs"), i, run)
        json_array_foreach(json_object_get(welcome, "runs"), k, v) if (
            str_eq(json_get_str(run, "state", ""), "live") &&
            str_eq(json_get_str(v, "action", ""), "forget") &&
            json_equal(json_object_get(run, "run_id"), json_object_get(v, "run_id"))) return true;
    return false;
}

static void note_call(struct sim *s, const struct sim_item *x, enum status st, const json_t *reply)
{
    const struct sim_machine *m = &s->machines[x->machine];
    json_t *line = json_pack(
        "{s:s,s:s,s:s,s:i}", "e", "call", "call", call_names[x->call], "worker", m->name, "status",
        (int)st);
    json_put_i64(line, "sent", x->sent_ns);
    bool fresh = x->call == CALL_CONNECT || json_get_bool(x->body, "heartbeat", false);
    if (fresh)
        json_object_set(line, "devices", json_object_get(x->body, "devices"));
    if (x->call == CALL_CONNECT) {
        json_object_set(line, "instance", json_object_get(x->body, "instance"));
        json_put_bool(line, "same_host", m->same_host);
        json_put_bool(line, "strays", has_strays(x->body, reply));
        json_put_bool(line, "one_shot", m->one_shot);
        json_put_bool(line, "has_runs", json_array_size(json_object_get(x->body, "runs")) > 0);
        json_put_bool(line, "can_cap", json_get_bool(x->body, "can_cap", false));
        json_put_str(line, "pool", m->pool);
    }
    sim_note(s, line);
}

/* Starts as they leave the server. */
static void note_handed(struct sim *s, const json_t *reply)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(reply, "orders"), i, one)
    {
        if (strcmp(json_get_str(one, "type", ""), "start") == 0)
            sim_note(
                s, json_pack(
                       "{s:s,s:s,s:I}", "e", "handed", "run_id", json_get_str(one, "run_id", ""),
                       "epoch", (json_int_t)json_get_i64(one, "epoch", 0)));
    }
}

static enum status serve(struct sim *s, const struct sim_item *x, json_t **reply)
{
    struct err e;
    const char *session = json_get_str(x->body, "session", "");
    switch (x->call) {
    case CALL_CONNECT:
        return core_agent_connect(s->core, &s->owner, x->body, sim_now(s), reply, &e);
    case CALL_ORDERS:
        return core_agent_orders(
            s->core, &s->owner, session, json_get_i64(x->body, "after", 0), sim_now(s), reply, &e);
    case CALL_REPORT:
        return core_agent_report(s->core, &s->owner, x->body, sim_now(s), reply, &e);
    case CALL_LEAVE:
        return core_agent_leave(s->core, &s->owner, session, sim_now(s), &e);
    case CALL_COUNT:
        break;
    }
    return ST_INVALID;
}

/* Budgets of waiting runs may follow what a run measured: their rows are told anew. */
static void write_followers(struct sim *s, const json_t *report)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(report, "events"), i, one)
    {
        const struct sim_run *r = sim_find(s, json_get_str(one, "run_id", ""));
        if (!r || strcmp(json_get_str(one, "type", ""), "ended") != 0)
            continue;
        int graph = r->graph;
        for (size_t k = 0; k < s->runs.n; k++)
            if (!s->runs.data[k].over && s->runs.data[k].graph == graph)
                sim_write_run(s, s->runs.data[k].run_id);
    }
}

static int64_t some_delay(struct sim *s)
{
    if (s->quiet || !sim_one_in(s, 30))
        return (int64_t)sim_below(s, 50000000);
    return (int64_t)sim_below(s, 20) * SIM_SECOND;
}

static bool link_works(struct sim *s, int machine)
{
    return s->now_ns >= s->machines[machine].link_ns && (s->quiet || !sim_one_in(s, 60));
}

static void answer(struct sim *s, const struct sim_item *x, enum status st, json_t *reply)
{
    if (x->again || !link_works(s, x->machine)) {
        json_decref(reply);
        return;
    }
    sim_item(
        s, (struct sim_item){
               .at_ns = s->now_ns + some_delay(s),
               .kind = ITEM_ANSWER,
               .call = x->call,
               .machine = x->machine,
               .generation = x->generation,
               .serial = x->serial,
               .sent_ns = x->sent_ns,
               .status = st,
               .body = reply});
}

/* The request is at the server's door; an empty poll waits there for up to 20 seconds. */
static void request(struct sim *s, struct sim_item *x)
{
    json_t *reply = NULL;
    if (!x->parked && !link_works(s, x->machine))
        return;
    if (!s->core) {
        answer(s, x, ST_IO, NULL);
        return;
    }
    enum status st = serve(s, x, &reply);
    note_call(s, x, st, reply);
    if (x->call == CALL_REPORT && st == ST_OK)
        write_followers(s, x->body);
    if (x->call == CALL_ORDERS && st == ST_OK) {
        note_handed(s, reply);
        if (!x->parked && !x->again && !json_array_size(json_object_get(reply, "orders"))) {
            json_decref(reply);
            struct sim_item parked = *x;
            parked.parked = true;
            parked.at_ns = s->now_ns + 20 * SIM_SECOND;
            json_incref(parked.body);
            sim_item(s, parked);
            return;
        }
    }
    answer(s, x, st, reply);
}

/* ---- the loop ---- */

static void step(struct sim *s, struct sim_item *x)
{
    struct sim_machine *m = &s->machines[x->machine];
    bool current = m->up && m->generation == x->generation;
    switch (x->kind) {
    case ITEM_REQUEST:
        request(s, x);
        break;
    case ITEM_ANSWER:
        if (current && m->serial[x->call] == x->serial)
            machine_answer(s, x);
        break;
    case ITEM_TIMEOUT:
        if (current && m->serial[x->call] == x->serial) {
            m->serial[x->call] = 0;
            if (x->call == CALL_ORDERS)
                machine_disconnect(m);
            machine_step(s, x->machine);
        }
        break;
    case ITEM_WAKE:
        if (current)
            machine_step(s, x->machine);
        break;
    }
    json_decref(x->body);
}

static size_t first_item(const struct sim *s)
{
    size_t best = 0;
    for (size_t i = 1; i < s->items.n; i++) {
        const struct sim_item *a = &s->items.data[i], *b = &s->items.data[best];
        if (a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->order < b->order))
            best = i;
    }
    return best;
}

static int64_t earliest(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void server_step(struct sim *s)
{
    if (!s->core && s->back_ns && s->now_ns >= s->back_ns) {
        s->back_ns = 0;
        sim_open(s);
    }
    if (s->core && s->now_ns >= s->tick_ns && s->now_ns >= s->paused_ns) {
        s->tick_ns = INT64_MAX;
        int64_t next = core_tick(s->core, sim_now(s));
        if (next < s->tick_ns)
            s->tick_ns = next;
        if (s->tick_ns <= s->now_ns)
            s->tick_ns = s->now_ns + 1000000;
        if (!s->options.canary)
            core_check(s->core);
    }
}

static int64_t next_time(const struct sim *s, int64_t until)
{
    int64_t at = until;
    if (s->items.n)
        at = earliest(at, s->items.data[first_item(s)].at_ns);
    if (s->core)
        at = earliest(at, s->tick_ns > s->paused_ns ? s->tick_ns : s->paused_ns);
    else if (s->back_ns)
        at = earliest(at, s->back_ns);
    for (int i = 0; i < s->n_machines; i++)
        at = earliest(at, machine_next_ns(s, i));
    return at;
}

static void clock_to(struct sim *s, int64_t at)
{
    if (at <= s->now_ns)
        return;
    s->wall_us += (at - s->now_ns) / 1000;
    s->now_ns = at;
}

void sim_pass(struct sim *s, int64_t ns)
{
    int64_t until = s->now_ns + ns;
    for (;;) {
        int64_t at = next_time(s, until);
        clock_to(s, at);
        for (int i = 0; i < s->n_machines; i++)
            if (machine_next_ns(s, i) <= s->now_ns)
                machine_lives(s, i);
        server_step(s);
        while (s->items.n) {
            size_t i = first_item(s);
            struct sim_item x = s->items.data[i];
            if (x.at_ns > s->now_ns)
                break;
            if (x.kind == ITEM_REQUEST && s->core && s->now_ns < s->paused_ns) {
                s->items.data[i].at_ns = s->paused_ns;
                continue;
            }
            s->items.data[i] = s->items.data[--s->items.n];
            step(s, &x);
        }
        if (at >= until)
            return;
    }
}

/* ---- what is compared with a recount ---- */

static json_t *card_line(const json_t *worker, const json_t *device)
{
    const json_t *memory = json_object_get(device, "memory"),
                 *slots = json_object_get(device, "slots");
    return json_pack(
        "{s:s,s:s,s:I,s:I,s:b,s:I,s:I}", "worker", json_get_str(worker, "name", ""), "device",
        json_get_str(device, "device", ""), "used", (json_int_t)json_get_i64(slots, "used", 0),
        "limit", (json_int_t)json_get_i64(slots, "limit", 0), "shared",
        (int)json_get_bool(device, "shared", false), "reserved",
        (json_int_t)json_get_i64(memory, "reserved_bytes", -1), "running",
        (json_int_t)json_get_i64(memory, "running_bytes", -1));
}

static void cards_of(const json_t *worker, json_t *list)
{
    size_t i;
    json_t *device;
    json_array_foreach(json_object_get(worker, "devices"), i, device)
        json_array_append_new(list, card_line(worker, device));
}

void sim_snapshot(struct sim *s)
{
    struct err e;
    size_t i;
    json_t *one, *page, *waiting = json_array(), *cards = json_array();
    struct core_filter queued = {.statuses = {"queued"}, .n_statuses = 1, .limit = 100000};
    if (!s->core || s->now_ns < s->paused_ns)
        goto out;
    (void)core_tick(s->core, sim_now(s)); /* whatever is due: reasons are those of the last pass */
    json_t *workers = core_workers(s->core, sim_now(s));
    cards_of(json_object_get(workers, "local"), cards);
    json_array_foreach(json_object_get(workers, "workers"), i, one) cards_of(one, cards);
    json_decref(workers);
    CHECK_OK(core_runs(s->core, &queued, &page, &e), &e);
    json_array_foreach(json_object_get(page, "runs"), i, one)
    {
        if (strcmp(json_get_str(one, "state", ""), "waiting") != 0)
            continue;
        json_array_append_new(
            waiting, json_pack(
                         "{s:s,s:s}", "run_id", json_get_str(one, "run_id", ""), "reason",
                         json_get_str(one, "reason", "")));
    }
    json_decref(page);
    if (s->options.canary == CANARY_WRONG_REASON && json_array_size(waiting)) {
        json_put_str(
            json_array_get(waiting, 0), "reason",
            "waits for its turn: cuda:77 on nowhere is kept for run 00000000");
        s->planted = true;
    }
    sim_note(s, json_pack("{s:s,s:O,s:O}", "e", "snapshot", "waiting", waiting, "cards", cards));
out:
    json_decref(waiting);
    json_decref(cards);
}

/* ---- a whole life ---- */

static bool all_over(const struct sim *s)
{
    for (size_t i = 0; i < s->runs.n; i++)
        if (!s->runs.data[i].over)
            return false;
    return true;
}

/* Everything works again: what can be placed is placed, and what runs comes to its end. */
static void settle(struct sim *s)
{
    struct err e;
    s->quiet = true;
    if (!s->core && s->back_ns > s->now_ns)
        s->back_ns = s->now_ns + SIM_SECOND;
    sim_pass(s, 2 * SIM_SECOND);
    s->paused_ns = 0;
    for (size_t i = 0; i < s->items.n; i++)
        if (s->items.data[i].kind == ITEM_REQUEST && !s->items.data[i].parked)
            s->items.data[i].at_ns = s->now_ns; /* what lay at the door */
    for (int i = 0; i < s->n_machines; i++) {
        struct sim_machine *m = &s->machines[i];
        m->link_ns = 0;
        if (m->removed || (m->one_shot && !m->up))
            continue;
        if (!m->up)
            m->up_ns = s->now_ns + SIM_SECOND;
        if (core_worker_enable(s->core, m->name, true, true, sim_now(s), &e) == ST_OK)
            sim_note(s, json_pack("{s:s,s:s,s:b}", "e", "enable", "worker", m->name, "on", 1));
        if (core_worker_drain(s->core, m->name, false, sim_now(s), &e) == ST_OK)
            sim_note(s, json_pack("{s:s,s:s,s:b}", "e", "drain", "worker", m->name, "on", 0));
    }
    sim_pass(s, 60 * SIM_SECOND);
    sim_plant(s);
    for (int i = 0; i < 40 && !all_over(s); i++) {
        sim_pass(s, 30 * SIM_SECOND);
        sim_plant(s);
        sim_snapshot(s);
    }
    sim_note(s, json_pack("{s:s}", "e", "quiet"));
    sim_snapshot(s);
    /* What waits for something that will not come is cancelled; the rest may end. */
    for (size_t i = 0; i < s->runs.n; i++) {
        json_t *reply = NULL;
        if (s->runs.data[i].over ||
            core_cancel(s->core, s->runs.data[i].run_id, sim_now(s), &reply, &e) != ST_OK)
            continue;
        json_decref(reply);
        sim_note(s, json_pack("{s:s,s:s}", "e", "cancel", "run_id", s->runs.data[i].run_id));
        sim_write_run(s, s->runs.data[i].run_id);
    }
    for (int i = 0; i < 60 && !all_over(s); i++)
        sim_pass(s, 10 * SIM_SECOND);
}

static void write_final(struct sim *s)
{
    struct err e;
    char status[16];
    json_t *page, *list = json_array();
    for (size_t i = 0; i < s->runs.n; i++) {
        enum status st = core_run_status(s->core, s->runs.data[i].run_id, status, &e);
        sim_write_run(s, s->runs.data[i].run_id);
        json_array_append_new(
            list, json_pack(
                      "{s:s,s:s}", "run_id", s->runs.data[i].run_id, "status",
                      st == ST_OK ? status : "lost"));
    }
    struct core_filter all = {.limit = 1};
    CHECK_OK(core_runs(s->core, &all, &page, &e), &e);
    sim_note(
        s, json_pack(
               "{s:s,s:o,s:I}", "e", "final", "runs", list, "total",
               (json_int_t)json_get_i64(page, "total", 0)));
    json_decref(page);
}

bool sim_run(const struct sim_options *o)
{
    struct sim *s = mem_alloc(sizeof *s);
    s->options = *o;
    s->history = fopen(o->history, "w");
    ASSERT(s->history);
    rng_init(&s->rng, o->seed, 11, 0);
    s->now_ns = 1000 * SIM_SECOND;
    s->wall_us = INT64_C(1790000000000000);
    (void)snprintf(s->path, sizeof s->path, "%s/snug-0.db", o->dir);
    sim_fleet(s);
    sim_open(s);
    for (int i = 0; i < o->events; i++) {
        sim_operation(s);
        if (i % 20 == 19) {
            sim_plant(s);
            sim_snapshot(s);
        }
    }
    settle(s);
    write_final(s);
    struct core *core = s->core;
    s->core = NULL;
    core_close(core);
    store_close(s->store);
    (void)remove(s->path);
    for (int i = 0; i < s->n_machines; i++)
        machine_free(&s->machines[i]);
    for (size_t i = 0; i < s->items.n; i++)
        json_decref(s->items.data[i].body);
    for (int i = 0; i < SIM_GRAPHS; i++)
        json_decref(s->graphs[i]);
    json_decref(s->devices);
    vec_release(&s->items);
    vec_release(&s->runs);
    ASSERT(fclose(s->history) == 0);
    bool planted = s->planted || !o->canary;
    mem_free(s);
    return planted;
}
