/* core_fault_test.c - the core over a disk that fails at every operation in turn.
 *
 * A small day of the server is played once for each operation of the disk, which fails there (full,
 * half a write, input/output error), for a while or for good. Every call answers; nothing that was
 * acknowledged is lost; when the disk is well again, everything goes on by itself.
 */
#include "server/core_test_support.h"
#include "server/fault_vfs.h"

#include "base/log.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

enum { RUNS_MAX = 16 };
struct day {
    struct stage s;
    struct puppet f;
    char ids[RUNS_MAX][33]; /* acknowledged */
    int64_t epoch[RUNS_MAX], sent[RUNS_MAX];
    int n, refused, cancelled;
};

static void no_log(enum log_level level, const char *text, void *ctx)
{
    (void)level;
    (void)text;
    (void)ctx;
}

static void open_day(struct day *d, uint64_t seed)
{
    *d = (struct day){.n = 0};
    log_sink_set(no_log, NULL);
    stage_open(&d->s, 1);
    core_close(d->s.core);
    store_close(d->s.store);
    fault_disk_new(seed);
    (void)snprintf(d->s.path, sizeof d->s.path, "day.db");
    CHECK_OK(
        store_open(d->s.path, &(struct store_options){.vfs = FAULT_VFS}, &d->s.store, &d->s.e),
        &d->s.e);
    CHECK_OK(
        core_open(d->s.store, &d->s.config, &d->s.hooks, d->s.now, &d->s.core, &d->s.e), &d->s.e);
    puppet_open(&d->f, &d->s, "local", 1, 24);
    CHECK(puppet_connect(&d->f));
}

static void try_submit(struct day *d)
{
    const char *id = submit(&d->s, "{'device':'cuda:0'}");
    if (id) {
        (void)snprintf(d->ids[d->n++], 33, "%s", id);
        return;
    }
    d->refused++;
    CHECK_EQ(d->s.e.status, ST_IO); /* said, not swallowed: case-S11 */
    CHECK(d->s.e.text[0]);
}

static void try_cancel(struct day *d, int i)
{
    json_t *reply;
    if (i < d->n && core_cancel(d->s.core, d->ids[i], d->s.now, &reply, &d->s.e) == ST_OK) {
        d->cancelled += json_get_bool(reply, "cancelled", false);
        json_decref(reply);
    }
}

/* Takes orders, and sends again what was not taken. */
static void work(struct day *d)
{
    static const char *const types[] = {
        "started", "execution_start", "execution_complete", "ended"};
    json_t *reply, *one;
    size_t k;
    if (core_agent_orders(
            d->s.core, &d->f.who, d->f.session, d->f.after, d->s.now, &reply, &d->s.e) == ST_OK) {
        json_array_foreach(json_object_get(reply, "orders"), k, one)
        {
            d->f.after = json_get_i64(one, "number", 0);
            for (int i = 0; i < d->n; i++)
                if (strcmp(json_get_str(one, "type", ""), "start") == 0 &&
                    strcmp(json_get_str(one, "run_id", ""), d->ids[i]) == 0) {
                    CHECK(d->epoch[i] == 0); /* promise-P2: one start */
                    d->epoch[i] = json_get_i64(one, "epoch", 0);
                }
        }
        json_decref(reply);
    }
    for (int i = 0; i < d->n; i++) {
        if (!d->epoch[i] || d->sent[i] == 4)
            continue;
        json_t *report = json_object(), *events = json_array(), *ev = json_object();
        json_put_str(ev, "run_id", d->ids[i]);
        json_put_i64(ev, "epoch", d->epoch[i]);
        json_put_i64(ev, "sequence", d->sent[i] + 1);
        json_put_str(ev, "type", types[d->sent[i]]);
        json_put(
            ev, "payload", J(d->sent[i] == 3 ? "{'status':'succeeded','cause':'done'}" : "{}"));
        json_array_append_new(events, ev);
        json_put_str(report, "session", d->f.session);
        json_put(report, "events", events);
        if (core_agent_report(d->s.core, &d->f.who, report, d->s.now, &reply, &d->s.e) == ST_OK) {
            CHECK_EQ(json_array_size(json_object_get(reply, "forget")), 0);
            d->sent[i]++;
            json_decref(reply);
        }
        json_decref(report);
        core_check(d->s.core);
    }
    stage_pass(&d->s, 1.5);
}

static void play(struct day *d)
{
    for (int i = 0; i < 3; i++)
        try_submit(d);
    work(d);
    (void)!core_card_mode(d->s.core, "local", "cuda:0", "exclusive", d->s.now, &d->s.e);
    try_submit(d);
    try_cancel(d, 3); /* waits, and never starts */
    work(d);
    (void)!core_worker_drain(d->s.core, "local", true, d->s.now, &d->s.e);
    work(d);
    (void)!core_worker_drain(d->s.core, "local", false, d->s.now, &d->s.e);
    work(d);
}

/* The disk is well: everything ends, and is as it was told, also after a restart. */
static void settle(struct day *d)
{
    fault_heal();
    (void)!core_worker_drain(d->s.core, "local", false, d->s.now, &d->s.e);
    try_submit(d);
    CHECK(d->n >= 1);
    for (int i = 0; i < 40; i++)
        work(d);
    int cancelled = 0;
    for (int i = 0; i < d->n; i++) {
        const char *status = field(&d->s, d->ids[i], "status");
        cancelled += strcmp(status, "cancelled") == 0;
        if (strcmp(status, "cancelled") != 0)
            CHECK_STR(status, "succeeded");
        json_t *page;
        CHECK_OK(core_events(d->s.core, d->ids[i], 0, 100, &page, &d->s.e), &d->s.e);
        size_t n = json_array_size(json_object_get(page, "events"));
        CHECK_EQ(n, strcmp(status, "cancelled") == 0 ? 1 : 2);
        json_decref(page);
    }
    CHECK_EQ(cancelled, d->cancelled);
    json_t *page;
    struct core_filter all = {.limit = 100};
    CHECK_OK(core_runs(d->s.core, &all, &page, &d->s.e), &d->s.e);
    CHECK_EQ(json_get_i64(page, "total", 0), d->n); /* what was refused is not there */
    json_decref(page);
}

static void close_day(struct day *d)
{
    puppet_close(&d->f);
    stage_close(&d->s);
    log_sink_set(NULL, NULL);
}

TEST_WITHIN(
    disk_faults_under_the_core, 300,
    "promise-P1 promise-P3 promise-P13 case-S11: a disk that fails at any operation loses nothing "
    "acknowledged, and all goes on when it is well")
{
    struct day d;
    bool soak = getenv("SNUG_SOAK") != NULL;
    open_day(&d, test_seed());
    fault_plan(FAULT_NONE, 0, 0);
    play(&d);
    int64_t operations = fault_operations();
    settle(&d);
    CHECK_EQ(d.refused, 0);
    close_day(&d);
    int64_t refused = 0;
    int64_t step = soak ? 1 : operations / 12 + 1;
    for (int f = FAULT_FULL; f <= FAULT_IO; f++)
        for (int64_t at = 1; at <= operations; at += step)
            for (int64_t n = 1; n <= 1000000; n *= 1000000) { /* once, and until it is healed */
                open_day(&d, test_seed() + (uint64_t)at);
                fault_plan((enum fault)f, at, n);
                play(&d);
                settle(&d);
                refused += d.refused;
                close_day(&d);
            }
    CHECK(refused > 0); /* the disk did fail */
}
