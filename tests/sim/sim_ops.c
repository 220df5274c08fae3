/* sim_ops.c - the fleet of a seed, what people and bad luck do to it, and the planted faults. */
#include "sim.h"

#include "server/core_int.h"
#include "test.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

/* ---- the fleet ---- */

static void make_host(struct sim *s)
{
    static const int64_t sizes[] = {8, 12, 24, 24};
    struct sim_host *h = &s->hosts[s->n_hosts];
    h->n_cards = (int)(sim_one_in(s, 6) ? 1 + sim_below(s, SIM_CARDS) : sim_below(s, 4));
    for (int i = 0; i < h->n_cards; i++) {
        (void)snprintf(h->cards[i].uuid, sizeof h->cards[i].uuid, "GPU-%d-%d", s->n_hosts, i);
        h->cards[i].total_bytes = sizes[sim_below(s, 4)] * SIM_GIB;
    }
    s->n_hosts++;
}

/* Its own numbering: some of the host's cards in any order. */
static void make_machine(struct sim *s)
{
    int i = s->n_machines++;
    struct sim_machine *m = &s->machines[i];
    if (i == 0 || !sim_one_in(s, 3))
        make_host(s);
    m->host = i == 0 || s->n_hosts == 1 ? 0 : (int)sim_below(s, (uint64_t)s->n_hosts);
    (void)snprintf(m->name, sizeof m->name, i == 0 ? "local" : "w%02d", i);
    m->same_host = m->host == 0;
    m->one_shot = i > 0 && sim_one_in(s, 8);
    (void)snprintf(m->pool, sizeof m->pool, "%s", m->one_shot && sim_one_in(s, 2) ? "night" : "");
    m->can_cap = i == 0 || !sim_one_in(s, 10);
    (void)snprintf(m->devices[0].name, sizeof m->devices[0].name, "cpu");
    m->devices[0].card = -1;
    m->n_devices = 1;
    int from =
        s->hosts[m->host].n_cards ? (int)sim_below(s, (uint64_t)s->hosts[m->host].n_cards) : 0;
    for (int k = 0; k < s->hosts[m->host].n_cards; k++) {
        if (sim_one_in(s, 5))
            continue;
        (void)snprintf(
            m->devices[m->n_devices].name, sizeof m->devices[0].name, "cuda:%d", m->n_devices - 1);
        m->devices[m->n_devices++].card = (from + k) % s->hosts[m->host].n_cards;
    }
    m->up_ns = s->now_ns + (int64_t)sim_below(s, 15) * SIM_SECOND;
}

static json_t *make_graph(int units)
{
    return json_pack(
        "{s:s,s:[{s:s,s:s,s:{s:{}}},{s:s,s:s,s:{s:{s:s,s:i}}}],s:[{s:s,s:s,s:s,s:s,s:s,s:s}]}",
        "name", "small", "nodes", "id", "start", "type", "Start", "data", "params", "id", "d",
        "type", "Dataset", "data", "params", "name", "MNIST", "units", units, "edges", "id", "t",
        "source", "start", "target", "d", "type", "trigger", "sourceHandle", "trigger",
        "targetHandle", "trigger");
}

void sim_fleet(struct sim *s)
{
    static const char *const limits[] = {
        "", "", "cuda:0=2,w01/cuda:0=3", "w01/cuda:0=1,w02/cuda:1=2,cpu=3,cuda:1=2"};
    uint64_t n = sim_one_in(s, 16) ? 10 + sim_below(s, 41) : 1 + sim_below(s, 7);
    for (uint64_t i = 0; i < n && s->n_machines < SIM_MACHINES; i++)
        make_machine(s);
    for (int i = 0; i < SIM_GRAPHS; i++)
        s->graphs[i] = make_graph(i + 1);
    s->owner = (struct actor){.role = ROLE_OWNER, .exec = true, .name = "owner"};
    (void)snprintf(s->limits, sizeof s->limits, "%s", limits[sim_below(s, 4)]);
    core_config_init(&s->config);
    s->devices = machine_devices(s, &s->machines[0]);
    s->config.version = "1.0";
    s->config.nodes_hash = "hash";
    s->config.machine_secret = "machine";
    s->config.devices = s->devices;
    s->config.limits = s->limits;
    s->config.limit_gpu = sim_one_in(s, 6) ? 2 : 1;
    s->config.reserve_s = 60;
    s->config.keep_last = -1;
}

/* ---- submissions ---- */

static const char *some_card(struct sim *s, const struct sim_machine *m)
{
    return m->n_devices > 1 && !sim_one_in(s, 8)
               ? m->devices[1 + sim_below(s, (uint64_t)m->n_devices - 1)].name
               : "cpu";
}

static json_t *some_set(struct sim *s, const struct sim_machine *m)
{
    json_t *list = json_array();
    int n = 2 + sim_one_in(s, 3), from = 1 + (int)sim_below(s, (uint64_t)m->n_devices - 1);
    for (int i = 0; i < n && i < m->n_devices - 1; i++)
        json_array_append_new(
            list, json_string(m->devices[1 + (from - 1 + i) % (m->n_devices - 1)].name));
    return list;
}

static json_t *some_target(struct sim *s)
{
    const struct sim_machine *m = &s->machines[sim_below(s, (uint64_t)s->n_machines)];
    json_t *t = json_object(), *devices = NULL;
    uint64_t way = sim_below(s, 10);
    if (way < 5 && m->n_devices > 2 && sim_one_in(s, 4))
        devices = some_set(s, m);
    if (way < 5) {
        json_put_str(t, "worker", m->name);
        json_put(t, "devices", devices ? devices : json_pack("[s]", some_card(s, m)));
    } else if (way < 9) {
        json_put_str(t, "worker", "any");
        if (m->n_devices > 2 && sim_one_in(s, 5))
            json_put(t, "devices", some_set(s, m));
        else
            json_put(
                t, "devices",
                json_pack(
                    "[s]", sim_one_in(s, 5)   ? "cpu"
                           : sim_one_in(s, 4) ? "cuda:0"
                                              : "cuda"));
    } else {
        json_put_str(t, "worker", "any");
        json_put_str(t, "pool", sim_one_in(s, 2) ? "night" : "");
        json_put(t, "devices", json_pack("[s]", sim_one_in(s, 3) ? "cpu" : "cuda"));
    }
    static const double budgets[] = {1, 2, 4, 6, 8, 11.25, 20, 30, 23.25};
    if (sim_one_in(s, 2))
        json_put_f64(t, "memory_gib", budgets[sim_below(s, sizeof budgets / sizeof budgets[0])]);
    if (!sim_one_in(s, 3))
        json_put_bool(t, "wait", !sim_one_in(s, 5));
    return t;
}

static void remember(struct sim *s, const char *run_id, const char *key, int graph)
{
    struct sim_run r = {.graph = graph};
    (void)snprintf(r.run_id, sizeof r.run_id, "%s", run_id);
    (void)snprintf(r.key, sizeof r.key, "%s", key);
    vec_push(&s->runs, r);
    sim_note(s, json_pack("{s:s,s:s,s:s}", "e", "submitted", "run_id", run_id, "key", key));
    sim_write_run(s, run_id);
}

/* A submission with a key may come again: it must name the same run. */
static void op_submit(struct sim *s, bool canvas)
{
    char key[16] = "", tab[16];
    struct err e;
    json_t *reply = NULL, *options = json_object();
    int graph = (int)sim_below(s, SIM_GRAPHS);
    if (canvas) {
        (void)snprintf(tab, sizeof tab, "tab%d", (int)sim_below(s, 3));
        json_put_str(options, "lane", "interactive");
        json_put_str(options, "graph_id", tab);
        json_put_str(options, "device", s->machines[0].n_devices > 1 ? "cuda:0" : "cpu");
    } else {
        json_put(options, "target", some_target(s));
        (void)snprintf(key, sizeof key, "k%zu", s->runs.n);
    }
    struct core_submission x = {
        .graph = s->graphs[graph],
        .options = options,
        .idempotency_key = *key ? key : NULL,
        .variant = -1,
        .repetition = -1};
    int times = *key && sim_one_in(s, 6) ? 2 : 1;
    for (int i = 0; i < times; i++) {
        enum status st = core_submit(s->core, &s->owner, &x, sim_now(s), &reply, &e);
        if (st != ST_OK) {
            sim_note(s, json_pack("{s:s,s:s}", "e", "refused", "text", e.text));
            break;
        }
        if (i == 0)
            remember(s, json_get_str(reply, "run_id", ""), key, graph);
        else
            sim_note(
                s, json_pack(
                       "{s:s,s:s,s:s}", "e", "repeated", "run_id",
                       json_get_str(reply, "run_id", ""), "key", key));
        json_decref(reply);
        if (i == 0 && times == 2)
            sim_pass(s, (int64_t)sim_below(s, 3) * SIM_SECOND);
        if (!s->core || s->now_ns < s->paused_ns)
            break;
    }
    json_decref(options);
}

static void op_batch(struct sim *s)
{
    enum { MOST = 8 };
    struct core_submission x[MOST];
    char ids[MOST][33];
    struct err e;
    json_t *options = json_object();
    int n = 2 + (int)sim_below(s, MOST - 1), graph = (int)sim_below(s, SIM_GRAPHS);
    json_put(options, "target", some_target(s));
    for (int i = 0; i < n; i++)
        x[i] = (struct core_submission){
            .graph = s->graphs[graph], .options = options, .variant = -1, .repetition = -1};
    enum status st =
        core_submit_all(s->core, &s->owner, x, (size_t)n, NULL, NULL, sim_now(s), ids, &e);
    if (st != ST_OK)
        sim_note(s, json_pack("{s:s,s:s}", "e", "refused", "text", e.text));
    for (int i = 0; st == ST_OK && i < n; i++)
        remember(s, ids[i], "", graph);
    json_decref(options);
}

/* ---- what people do ---- */

static void op_cancel(struct sim *s)
{
    struct err e;
    json_t *reply;
    if (!s->runs.n)
        return;
    size_t from = s->runs.n > 30 ? s->runs.n - 30 : 0;
    const struct sim_run *r = &s->runs.data[from + sim_below(s, s->runs.n - from)];
    char run_id[33];
    memcpy(run_id, r->run_id, sizeof run_id);
    if (core_cancel(s->core, run_id, sim_now(s), &reply, &e) != ST_OK)
        return;
    if (json_get_bool(reply, "cancelled", false))
        sim_note(s, json_pack("{s:s,s:s}", "e", "cancel", "run_id", run_id));
    json_decref(reply);
    sim_write_run(s, run_id);
}

static struct sim_machine *some_machine(struct sim *s)
{
    return &s->machines[sim_below(s, (uint64_t)s->n_machines)];
}

static void op_drain(struct sim *s)
{
    struct err e;
    const struct sim_machine *m = some_machine(s);
    bool on = sim_one_in(s, 3);
    if (core_worker_drain(s->core, m->name, on, sim_now(s), &e) == ST_OK)
        sim_note(s, json_pack("{s:s,s:s,s:b}", "e", "drain", "worker", m->name, "on", on));
}

static void op_mode(struct sim *s)
{
    struct err e;
    const struct sim_machine *m = some_machine(s);
    if (m->n_devices < 2)
        return;
    int k = 1 + (int)sim_below(s, (uint64_t)m->n_devices - 1);
    const char *mode = sim_one_in(s, 3) ? "exclusive" : "shared";
    if (core_card_mode(s->core, m->name, m->devices[k].name, mode, sim_now(s), &e) != ST_OK)
        return;
    sim_note(
        s, json_pack(
               "{s:s,s:s,s:s,s:b}", "e", "mode", "worker", m->name, "uuid",
               s->hosts[m->host].cards[m->devices[k].card].uuid, "shared",
               strcmp(mode, "shared") == 0));
    for (size_t i = 0; i < s->runs.n; i++)
        if (!s->runs.data[i].over)
            sim_write_run(s, s->runs.data[i].run_id);
}

static void op_enable(struct sim *s)
{
    struct err e;
    const struct sim_machine *m = some_machine(s);
    bool on = sim_one_in(s, 2);
    if (core_worker_enable(s->core, m->name, on, true, sim_now(s), &e) == ST_OK)
        sim_note(s, json_pack("{s:s,s:s,s:b}", "e", "enable", "worker", m->name, "on", on));
}

static void op_remove(struct sim *s)
{
    struct err e;
    struct sim_machine *m = some_machine(s);
    if (core_worker_remove(s->core, m->name, true, sim_now(s), &e) != ST_OK)
        return;
    sim_note(s, json_pack("{s:s,s:s}", "e", "remove", "worker", m->name));
}

/* ---- what happens to machines and networks ---- */

static int64_t some_outage(struct sim *s)
{
    return (int64_t)(sim_one_in(s, 4) ? 100 + sim_below(s, 500) : 1 + sim_below(s, 60)) *
           SIM_SECOND;
}

static void op_agent(struct sim *s)
{
    int i = (int)sim_below(s, (uint64_t)s->n_machines);
    if (!s->machines[i].up)
        return;
    int64_t back = s->now_ns + some_outage(s);
    if (s->machines[i].one_shot && sim_one_in(s, 2))
        back = INT64_MAX;
    if (sim_one_in(s, 4))
        machine_crash(s, i, back);
    else
        machine_kill_agent(s, i, back);
    if (i > 0 && s->machines[i].n_devices > 1 && sim_one_in(s, 5))
        s->machines[i].n_devices--; /* it comes back with fewer devices */
    if (i > 0 && sim_one_in(s, 6))
        s->machines[i].can_cap = !s->machines[i].can_cap; /* it comes back as another version */
}

static void op_link(struct sim *s)
{
    some_machine(s)->link_ns = s->now_ns + some_outage(s);
}

static void op_foreign(struct sim *s)
{
    struct sim_host *h = &s->hosts[sim_below(s, (uint64_t)s->n_hosts)];
    if (!h->n_cards)
        return;
    struct sim_card *c = &h->cards[sim_below(s, (uint64_t)h->n_cards)];
    c->foreign_bytes = sim_one_in(s, 2) ? 0 : (int64_t)sim_below(s, 16) * SIM_GIB;
}

static void op_server(struct sim *s)
{
    if (sim_one_in(s, 3))
        s->paused_ns = s->now_ns + some_outage(s);
    else
        sim_shut(
            s, sim_one_in(s, 2), (int64_t)sim_below(s, sim_one_in(s, 5) ? 400 : 10) * SIM_SECOND);
}

static void op_clock(struct sim *s)
{
    s->wall_us += ((int64_t)sim_below(s, 200000) - 100000) * 1000000;
}

/* Time until the next thing happens: mostly seconds, now and then minutes. */
static void some_time(struct sim *s)
{
    if (sim_one_in(s, 3))
        return;
    sim_pass(
        s, (int64_t)(sim_one_in(s, 25) ? sim_below(s, 200) : sim_below(s, 8)) * SIM_SECOND +
               (int64_t)sim_below(s, 1000000000));
}

void sim_operation(struct sim *s)
{
    uint64_t what = sim_below(s, 100);
    some_time(s);
    if (what >= 78 && what < 84)
        op_agent(s);
    else if (what >= 84 && what < 89)
        op_link(s);
    else if (what >= 89 && what < 93)
        op_foreign(s);
    else if (what >= 93 && what < 95)
        op_clock(s);
    if (!s->core || s->now_ns < s->paused_ns)
        return;
    if (what < 42)
        op_submit(s, false);
    else if (what < 45)
        op_submit(s, true);
    else if (what < 49)
        op_batch(s);
    else if (what < 60)
        op_cancel(s);
    else if (what < 65)
        op_drain(s);
    else if (what < 74)
        op_mode(s);
    else if (what < 77)
        op_enable(s);
    else if (what < 78)
        op_remove(s);
    else if (what >= 95)
        op_server(s);
}

/* ---- planted faults ---- */

static void look_again(struct core *c)
{
    c->dirty = c->stale = true;
    c->passed = false;
}

/* A run that is counted after its end. */
static void plant_ghost(struct sim *s)
{
    struct core *c = s->core;
    for (size_t i = 0; i < c->live.n; i++) {
        const struct run *r = c->live.data[i];
        if (r->interactive || !r->now.worker->connected)
            continue;
        struct run *ghost = mem_alloc(sizeof *ghost);
        *ghost = *r;
        ghost->texts = ghost->graph_text = NULL;
        ghost->uuids = mem_alloc(PLACE_SET_MAX * sizeof *ghost->uuids);
        memcpy(ghost->uuids, r->uuids, PLACE_SET_MAX * sizeof *ghost->uuids);
        ghost->owner = ghost->tab = ghost->graph_key = ghost->target = ghost->wanted = "";
        ghost->pool = "";
        ghost->class = NULL;
        ghost->key_link = NULL;
        ghost->key_next = NULL;
        (void)snprintf(ghost->run_id, sizeof ghost->run_id, "%032d", 7);
        ghost->at = c->live.n;
        vec_push(&c->live, ghost);
        look_again(c);
        s->planted = true;
        return;
    }
}

static void plant_less(struct sim *s)
{
    struct core *c = s->core;
    for (size_t i = 0; i < c->live.n; i++) {
        struct run *r = c->live.data[i];
        char first[DEVICES_BYTES];
        (void)snprintf(first, sizeof first, "%s", r->now.devices);
        first[strcspn(first, ",")] = 0;
        const struct card *d = worker_card(r->now.worker, first);
        if (r->now.budget_bytes <= SIM_GIB || !d || d->mode != CARD_SHARED)
            continue;
        r->now.budget_bytes -= SIM_GIB;
        look_again(c);
        s->planted = true;
        return;
    }
}

static void plant_forget(struct sim *s)
{
    struct core *c = s->core;
    if (s->databases < 2)
        return;
    for (size_t i = 0; i < c->live.n; i++) {
        struct run *r = c->live.data[i];
        if (r->interactive)
            continue;
        c->live.data[i] = c->live.data[--c->live.n];
        c->live.data[i]->at = i;
        mem_free(r->texts); /* the map still has it; it is leaked with its core */
        r->texts = NULL;
        look_again(c);
        s->planted = true;
        return;
    }
}

static void plant_lost(struct sim *s)
{
    struct core *c = s->core;
    char sql[128];
    sqlite3 *db;
    for (size_t i = 0; i < c->waiting.n; i++) {
        if (!c->waiting.data[i].run)
            continue;
        (void)snprintf(
            sql, sizeof sql, "DELETE FROM runs WHERE run_id='%s'", c->waiting.data[i].run->run_id);
        sim_shut(s, false, SIM_SECOND);
        CHECK_EQ(sqlite3_open(s->path, &db), SQLITE_OK);
        CHECK_EQ(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
        (void)sqlite3_close(db);
        s->planted = true;
        return;
    }
}

static void plant_overtake(struct sim *s)
{
    struct core *c = s->core;
    for (size_t i = 0; i < c->waiting.n; i++)
        for (size_t j = i + 1; j < c->waiting.n; j++) {
            struct slot *a = &c->waiting.data[i], *b = &c->waiting.data[j];
            if (!a->run || !b->run || a->class != b->class)
                continue;
            struct slot first = *a;
            *a = *b;
            *b = first;
            a->run->at = i;
            b->run->at = j;
            look_again(c);
            s->planted = true;
            return;
        }
}

static void plant_after_end(struct sim *s)
{
    struct err e;
    struct arena a;
    struct store_run row;
    arena_init(&a);
    for (size_t i = 0; i < s->runs.n; i++) {
        if (!s->runs.data[i].over ||
            store_run_get(s->store, s->runs.data[i].run_id, &a, &row, &e) != ST_OK)
            continue;
        CHECK_OK(store_begin(s->store, &e), &e);
        struct store_event ev = {
            .cursor = row.last_cursor + 1, .type = "log", .payload = "{\"text\":\"late\"}"};
        CHECK_OK(store_end(s->store, store_event_add(s->store, row.id, &ev, &e), &e), &e);
        s->planted = true;
        break;
    }
    arena_release(&a);
}

void sim_plant(struct sim *s)
{
    if (s->planted || !s->core || s->now_ns < s->paused_ns)
        return;
    if (s->options.canary == CANARY_DROP_RELEASE)
        plant_ghost(s);
    else if (s->options.canary == CANARY_COUNT_LESS)
        plant_less(s);
    else if (s->options.canary == CANARY_FORGET_ADOPTED)
        plant_forget(s);
    else if (s->options.canary == CANARY_LOSE_RUN)
        plant_lost(s);
    else if (s->options.canary == CANARY_OVERTAKE)
        plant_overtake(s);
    else if (s->options.canary == CANARY_AFTER_END)
        plant_after_end(s);
    else if (s->options.canary == CANARY_STALL && s->core->waiting.n > s->core->gaps) {
        s->core->stopped = true;
        s->planted = true;
    }
}
