/* store_test.c - what the database promises: transactions, moves, lists, retention, versions. */
#include "base/env.h"
#include "base/rng.h"
#include "base/str.h"
#include "server/store_int.h"
#include "test.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct err e;

static const char *db_path(void)
{
    static char path[512];
    (void)snprintf(path, sizeof path, "%s/snug.db", test_dir());
    return path;
}

static struct store *open_at(const char *path)
{
    struct store *s;
    CHECK_OK(store_open(path, NULL, &s, &e), &e);
    return s;
}

/* A run that differs from others by its number only. */
static struct store_run make_run(int number)
{
    struct store_run r = {
        .state = RUN_WAITING,
        .name = "train",
        .owner = "ann",
        .kind = "graph",
        .lane = "queued",
        .options = "{}",
        .graph_key = "k",
        .target = "local",
        .wanted = "cpu",
        .queue_key = "cpu",
        .variant = -1,
        .repetition = -1,
        .created_us = 1000 + number};
    (void)snprintf(r.run_id, sizeof r.run_id, "%032x", (unsigned)number);
    return r;
}

static int64_t add_run(struct store *s, int number)
{
    struct store_run r = make_run(number);
    int64_t id;
    CHECK_OK(store_begin(s, &e), &e);
    CHECK_OK(store_end(s, store_run_add(s, &r, &id, &e), &e), &e);
    return id;
}

static void finish_run(struct store *s, int64_t id, enum run_state state, int64_t time_us)
{
    struct store_end end = {.state = state, .cause = "done", .error = "", .time_us = time_us};
    CHECK_OK(store_begin(s, &e), &e);
    CHECK_OK(store_run_assign(s, id, 1, "w", "cpu", "cpu", &e), &e);
    CHECK_OK(store_run_start(s, id, 1, time_us - 1, &e), &e);
    CHECK_OK(store_end(s, store_run_finish(s, id, 1, &end, &e), &e), &e);
}

TEST(store_keeps_every_field_of_a_run, "R11: a run's row comes back as it was written")
{
    struct store *s = open_at(db_path());
    struct arena a;
    struct store_run r = make_run(7), got;
    struct store_blob blob;
    const char *graph = "{\"nodes\": [], \"edges\": []}";
    arena_init(&a);
    r.patch = "{\"n\": {\"lr\": 0.5}}";
    r.timeout_s = 1.5;
    r.wait = true;
    r.git_dirty = true;
    r.sweep = 3;
    r.variant = 2;
    r.repetition = 1;
    r.budget_bytes = INT64_C(6) << 30;
    r.budget_source = BUDGET_MEASURED;
    r.budget_run = "0123456789abcdef0123456789abcdef";
    r.idempotency_key = "once";
    CHECK_OK(store_blob_pack(graph, strlen(graph), &blob, &e), &e);
    CHECK_OK(store_begin(s, &e), &e);
    CHECK_OK(store_graph_put(s, &blob, &r.graph_id, &e), &e);
    int64_t id, same;
    CHECK_OK(store_run_add(s, &r, &id, &e), &e);
    CHECK_OK(store_graph_put(s, &blob, &same, &e), &e);
    CHECK_EQ(same, r.graph_id);
    CHECK_OK(store_end(s, ST_OK, &e), &e);
    store_close(s);

    s = open_at(db_path());
    CHECK_OK(store_run_get(s, r.run_id, &a, &got, &e), &e);
    CHECK_EQ(got.id, id);
    CHECK_STR(got.patch, r.patch);
    CHECK_STR(got.owner, "ann");
    CHECK_NEAR(got.timeout_s, 1.5, 0);
    CHECK(got.wait && got.git_dirty && !got.cancel_asked);
    CHECK_EQ(got.sweep * 100 + got.variant * 10 + got.repetition, 321);
    CHECK_EQ(got.budget_bytes, INT64_C(6) << 30);
    CHECK_EQ(got.budget_source, BUDGET_MEASURED);
    CHECK_STR(got.budget_run, r.budget_run);
    CHECK_EQ(got.created_us, r.created_us);
    CHECK_STR(got.result, "");
    char *text;
    size_t n;
    CHECK_OK(store_graph_get(s, got.graph_id, &text, &n, &e), &e);
    CHECK_STR(text, graph);
    mem_free(text);
    CHECK_OK(store_run_by_key(s, "ann", "once", &same, &e), &e);
    CHECK_EQ(same, id);
    CHECK_OK(store_run_by_key(s, "bob", "once", &same, &e), &e);
    CHECK_EQ(same, 0);
    store_blob_release(&blob);
    arena_release(&a);
    store_close(s);
}

TEST(store_refuses_a_second_run_of_a_key, "promise-P1: at most once by idempotency key")
{
    struct store *s = open_at(":memory:");
    struct store_run r = make_run(1), again = make_run(2), other = make_run(3);
    int64_t id;
    r.idempotency_key = again.idempotency_key = other.idempotency_key = "once";
    other.owner = "bob";
    CHECK_OK(store_begin(s, &e), &e);
    CHECK_OK(store_run_add(s, &r, &id, &e), &e);
    CHECK_EQ(store_run_add(s, &again, &id, &e), ST_CONFLICT);
    CHECK_OK(store_run_add(s, &other, &id, &e), &e);
    again.idempotency_key = "";
    CHECK_OK(store_run_add(s, &again, &id, &e), &e);
    CHECK_EQ(store_run_add(s, &again, &id, &e), ST_CONFLICT); /* the same run_id */
    CHECK_OK(store_end(s, ST_OK, &e), &e);
    store_close(s);
}

TEST(store_rolls_back_whole, "promise-P8: what fails leaves nothing behind")
{
    struct store *s = open_at(":memory:");
    struct store_run r = make_run(1);
    int64_t id, counts[RUN_STATE_COUNT];
    CHECK_OK(store_begin(s, &e), &e);
    CHECK_OK(store_run_add(s, &r, &id, &e), &e);
    CHECK(store_inside(s));
    CHECK_EQ(store_end(s, ST_FAILED, &e), ST_FAILED);
    CHECK(!store_inside(s));
    CHECK_OK(store_runs_count(s, counts, &e), &e);
    CHECK_EQ(counts[RUN_WAITING], 0);
    CHECK_EQ(add_run(s, 1), id);
    store_close(s);
}

TEST(
    store_moves_runs_by_the_table,
    "promise-P3 case-S15 case-S17: a move is a compare-and-set; ended is ended")
{
    struct store *s = open_at(":memory:");
    int64_t id = add_run(s, 1);
    struct store_end end = {.state = RUN_SUCCEEDED, .cause = "done", .time_us = 9};
    CHECK_OK(store_begin(s, &e), &e);
    CHECK_EQ(store_run_start(s, id, 0, 5, &e), ST_CONFLICT); /* waiting runs do not start */
    CHECK_EQ(store_run_finish(s, id, 0, &end, &e), ST_CONFLICT);
    CHECK_OK(store_run_assign(s, id, 1, "w", "cuda:1", "w/cuda:1", &e), &e);
    CHECK_EQ(store_run_assign(s, id, 1, "v", "cuda:0", "v/cuda:0", &e), ST_CONFLICT);
    CHECK_OK(store_run_unassign(s, id, 1, &e), &e);
    CHECK_EQ(store_run_assign(s, id, 1, "v", "cpu", "cpu", &e), ST_CONFLICT); /* an old epoch */
    CHECK_OK(store_run_assign(s, id, 2, "v", "cpu", "cpu", &e), &e);
    CHECK_EQ(store_run_start(s, id, 1, 5, &e), ST_CONFLICT); /* the first attempt is fenced */
    CHECK_OK(store_run_start(s, id, 2, 5, &e), &e);
    CHECK_EQ(store_run_start(s, id, 2, 5, &e), ST_CONFLICT);
    CHECK_EQ(store_run_unassign(s, id, 2, &e), ST_CONFLICT);
    CHECK_OK(store_run_stopping(s, id, 2, &e), &e);
    CHECK_EQ(store_run_finish(s, id, 1, &end, &e), ST_CONFLICT);
    CHECK_OK(store_run_finish(s, id, 2, &end, &e), &e);
    end.state = RUN_FAILED;
    CHECK_EQ(store_run_finish(s, id, 2, &end, &e), ST_CONFLICT);
    CHECK_EQ(store_run_stopping(s, id, 2, &e), ST_CONFLICT);
    CHECK_EQ(store_run_assign(s, id, 3, "w", "cpu", "cpu", &e), ST_CONFLICT);
    CHECK_EQ(store_run_start(s, 99, 1, 5, &e), ST_NOT_FOUND);
    CHECK_OK(store_end(s, ST_OK, &e), &e);
    store_close(s);
}

TEST(states_are_a_table, "promise-P3: nothing follows an end, and every state can reach one")
{
    for (int from = 0; from < RUN_STATE_COUNT; from++) {
        bool reaches_end = run_state_ended((enum run_state)from);
        for (int to = 0; to < RUN_STATE_COUNT; to++) {
            bool may = run_state_may((enum run_state)from, (enum run_state)to);
            CHECK(!(may && run_state_ended((enum run_state)from)));
            reaches_end |= may && run_state_ended((enum run_state)to);
        }
        CHECK(reaches_end);
    }
    enum run_state s;
    CHECK(run_state_find_ended("interrupted", &s) && s == RUN_INTERRUPTED);
    CHECK(!run_state_find_ended("running", &s) && !run_state_find_ended("", &s));
    CHECK_STR(run_state_status(RUN_ASSIGNED), "queued");
}

TEST(
    store_keeps_logs,
    "R11 case-S9: events, metrics and artifacts in order; the last metric is derived")
{
    struct store *s = open_at(db_path());
    struct arena a;
    arena_init(&a);
    int64_t id = add_run(s, 1), other = add_run(s, 2), artifact;
    CHECK_OK(store_begin(s, &e), &e);
    for (int i = 1; i <= 100; i++) {
        struct store_event ev = {
            .cursor = i, .type = "metric", .payload = "{\"x\": 1}", .time_us = i};
        struct store_metric loss = {.name = "loss", .node_id = "t", .step = i, .value = 1.0 / i},
                            lr = {
                                .name = "lr",
                                .node_id = "t",
                                .step = i,
                                .value = i == 100 ? (double)NAN : 0.1};
        CHECK_OK(store_event_add(s, id, &ev, &e), &e);
        CHECK_OK(store_metric_add(s, id, i, &loss, &e), &e);
        CHECK_OK(store_metric_add(s, id, i, &lr, &e), &e);
    }
    struct store_event twice = {.cursor = 5, .type = "metric", .payload = "{}"};
    CHECK_EQ(store_event_add(s, id, &twice, &e), ST_CONFLICT);
    CHECK_OK(store_event_add(s, other, &twice, &e), &e);
    struct store_artifact file = {
        .kind = "checkpoint", .path = "models/a.pt", .meta = "{}", .node_id = "t"};
    CHECK_OK(store_artifact_add(s, id, &file, &artifact, &e), &e);
    file.kind = "image";
    CHECK_OK(store_artifact_add(s, id, &file, &artifact, &e), &e);
    CHECK_OK(store_run_seen(s, id, 100, 100, &e), &e);
    CHECK_OK(store_end(s, ST_OK, &e), &e);

    struct store_event *events;
    struct store_metric *metrics;
    struct store_artifact *artifacts;
    const char *last;
    size_t n;
    CHECK_OK(store_events_read(s, id, 90, 500, 1 << 20, &a, &events, &n, &e), &e);
    CHECK_EQ(n, 10);
    CHECK_EQ(events[0].cursor, 91);
    CHECK_STR(events[9].payload, "{\"x\": 1}");
    CHECK_OK(store_events_read(s, id, 0, 3, 1 << 20, &a, &events, &n, &e), &e);
    CHECK_EQ(n, 3);
    CHECK_OK(store_events_read(s, id, 0, 500, 17, &a, &events, &n, &e), &e);
    CHECK_EQ(n, 2); /* two payloads of 8 bytes fit 17 */
    CHECK_OK(store_events_read(s, id, 0, 500, 1, &a, &events, &n, &e), &e);
    CHECK_EQ(n, 1); /* always one */
    CHECK_OK(store_metrics_read(s, id, NULL, &a, &metrics, &n, &e), &e);
    CHECK_EQ(n, 200);
    CHECK_STR(metrics[99].name, "loss");
    CHECK_STR(metrics[100].name, "lr");
    CHECK_NEAR(metrics[9].value, 0.1, 0);
    CHECK(isnan(metrics[199].value));
    CHECK_OK(store_metrics_read(s, id, "lr", &a, &metrics, &n, &e), &e);
    CHECK_EQ(n, 100);
    CHECK_OK(store_metrics_final(s, id, &a, &last, &e), &e);
    CHECK_STR(last, "{\"loss\":0.01,\"lr\":null}");
    CHECK_OK(store_artifacts_read(s, id, NULL, &a, &artifacts, &n, &e), &e);
    CHECK_EQ(n, 2);
    CHECK_OK(store_artifacts_read(s, id, "image", &a, &artifacts, &n, &e), &e);
    CHECK_EQ(n, 1);
    CHECK_STR(artifacts[0].path, "models/a.pt");
    arena_release(&a);
    store_close(s);
}

TEST(store_lists_newest_first, "R11: runs by state, owner, worker, page by page, with their number")
{
    struct store *s = open_at(":memory:");
    struct arena a;
    struct store_runs page;
    int64_t ids[12];
    arena_init(&a);
    for (int i = 0; i < 12; i++)
        ids[i] = add_run(s, i);
    for (int i = 0; i < 6; i++)
        finish_run(s, ids[i], i % 2 ? RUN_FAILED : RUN_SUCCEEDED, 100 + i);
    struct store_run_filter f = {.limit = 5, .offset = 2};
    CHECK_OK(store_runs_list(s, &f, &a, &page, &e), &e);
    CHECK_EQ(page.total, 12);
    CHECK_EQ(page.n, 5);
    CHECK_EQ(page.runs[0].id, ids[9]);
    CHECK_EQ(page.runs[4].id, ids[5]);
    f = (struct store_run_filter){.states = 1U << RUN_FAILED | 1U << RUN_SUCCEEDED, .limit = 50};
    CHECK_OK(store_runs_list(s, &f, &a, &page, &e), &e);
    CHECK_EQ(page.total, 6);
    CHECK_EQ(page.runs[0].id, ids[5]);
    CHECK_EQ(page.runs[0].state, RUN_FAILED);
    CHECK_STR(page.runs[0].final_metrics, "{}");
    f = (struct store_run_filter){.worker = "w", .limit = 2, .offset = 5};
    CHECK_OK(store_runs_list(s, &f, &a, &page, &e), &e);
    CHECK_EQ(page.total, 6);
    CHECK_EQ(page.n, 1);
    f = (struct store_run_filter){.owner = "bob", .limit = 5};
    CHECK_OK(store_runs_list(s, &f, &a, &page, &e), &e);
    CHECK_EQ(page.total, 0);
    arena_release(&a);
    store_close(s);
}

struct walk {
    int64_t last;
    int n, stop_at;
};

static enum status count_one(void *ctx, const struct store_run *r, struct err *err)
{
    struct walk *w = ctx;
    CHECK(r->id > w->last && !run_state_ended(r->state));
    w->last = r->id;
    if (++w->n == w->stop_at)
        return err_set(err, ST_INVALID, "enough");
    return ST_OK;
}

TEST(store_walks_what_lives, "promise-P11: what has not ended is read in order of submission")
{
    struct store *s = open_at(db_path());
    for (int i = 0; i < 20; i++)
        if (add_run(s, i) % 3 == 0)
            finish_run(s, i + 1, RUN_SUCCEEDED, i + 1);
    struct walk w = {.stop_at = -1};
    CHECK_OK(store_runs_active(s, count_one, &w, &e), &e);
    CHECK_EQ(w.n, 14);
    w = (struct walk){.stop_at = 3};
    CHECK_EQ(store_runs_active(s, count_one, &w, &e), ST_INVALID);
    CHECK_EQ(w.n, 3);
    store_close(s);
}

TEST(
    store_forgets_old_runs,
    "R11: retention keeps the newest ended runs; a deleted run takes its rows and its graph along")
{
    struct store *s = open_at(db_path());
    struct arena a;
    struct store_old_run *old;
    struct store_blob blob;
    size_t n;
    arena_init(&a);
    for (int i = 0; i < 10; i++)
        finish_run(s, add_run(s, i), i == 1 ? RUN_INTERRUPTED : RUN_SUCCEEDED, 1000 - i);
    int64_t waiting = add_run(s, 10);
    CHECK_OK(store_runs_old(s, -1, 100, &a, &old, &n, &e), &e);
    CHECK_EQ(n, 0);
    CHECK_OK(store_runs_old(s, 10, 100, &a, &old, &n, &e), &e);
    CHECK_EQ(n, 0);
    CHECK_OK(store_runs_old(s, 4, 100, &a, &old, &n, &e), &e);
    CHECK_EQ(n, 6);
    CHECK_EQ(old[0].id, 10); /* ended first */
    CHECK_OK(store_runs_old(s, 0, 3, &a, &old, &n, &e), &e);
    CHECK_EQ(n, 3);
    CHECK_OK(store_begin(s, &e), &e);
    CHECK_EQ(store_run_delete(s, waiting, &e), ST_CONFLICT);
    CHECK_EQ(store_run_delete(s, 77, &e), ST_NOT_FOUND);
    CHECK_OK(store_run_delete(s, 10, &e), &e);
    CHECK_EQ(store_run_delete(s, 10, &e), ST_NOT_FOUND);
    CHECK_OK(store_end(s, ST_OK, &e), &e);

    /* One with a graph and a long log goes piece by piece, and is not to be seen meanwhile. */
    struct store_run r = make_run(11);
    struct store_event ev = {.type = "log", .payload = "{}"};
    int64_t id;
    CHECK_OK(store_blob_pack("{}", 2, &blob, &e), &e);
    CHECK_OK(store_begin(s, &e), &e);
    CHECK_OK(store_graph_put(s, &blob, &r.graph_id, &e), &e);
    CHECK_OK(store_run_add(s, &r, &id, &e), &e);
    for (ev.cursor = 1; ev.cursor <= 12000; ev.cursor++) {
        struct store_metric m = {.name = "x", .node_id = "n", .step = ev.cursor};
        CHECK_OK(store_event_add(s, id, &ev, &e), &e);
        CHECK_OK(store_metric_add(s, id, ev.cursor, &m, &e), &e);
    }
    CHECK_OK(store_run_seen(s, id, 12000, 12000, &e), &e);
    CHECK_OK(store_end(s, ST_OK, &e), &e);
    finish_run(s, id, RUN_SUCCEEDED, 5000);
    CHECK_OK(store_begin(s, &e), &e);
    CHECK_OK(store_run_delete(s, id, &e), &e);
    CHECK_OK(store_end(s, ST_OK, &e), &e);
    CHECK_EQ(store_run_get(s, r.run_id, &a, &r, &e), ST_NOT_FOUND);
    for (int i = 0; i < 10; i++)
        store_idle(s);
    char *text;
    CHECK_EQ(store_graph_get(s, 1, &text, &n, &e), ST_NOT_FOUND);
    struct store_event *events;
    CHECK_OK(store_events_read(s, id, 0, 10, 1000, &a, &events, &n, &e), &e);
    CHECK_EQ(n, 0);
    store_blob_release(&blob);
    arena_release(&a);
    store_close(s);
}

TEST(store_keeps_peaks, "B2: the last measured peak by graph key and number of cards")
{
    struct store *s = open_at(":memory:");
    struct store_peak p = {.bytes = 100, .time_us = 1}, got;
    CHECK_OK(store_begin(s, &e), &e);
    CHECK_OK(store_peak_put(s, "k", 1, &p, &e), &e);
    p.bytes = 50;
    CHECK_OK(store_peak_put(s, "k", 1, &p, &e), &e);
    CHECK_OK(store_end(s, ST_OK, &e), &e);
    CHECK_OK(store_peak_get(s, "k", 1, &got, &e), &e);
    CHECK_EQ(got.bytes, 50);
    CHECK_OK(store_peak_get(s, "k", 2, &got, &e), &e);
    CHECK_EQ(got.bytes, 0);
    store_close(s);
}

TEST(store_keeps_workers, "W6 B1: workers with their cards and credentials, which go with them")
{
    struct store *s = open_at(db_path());
    struct arena a;
    arena_init(&a);
    struct store_worker w = {.worker_id = "a1", .name = "box", .kind = "enrolled", .hello = "{}"},
                        *workers;
    struct store_credential
        key =
            {.credential_id = "c1",
             .kind = CREDENTIAL_KEY,
             .name = "ann",
             .prefix = "snk_abc",
             .exec = true,
             .uses_left = -1},
        cred = {.credential_id = "c2", .kind = CREDENTIAL_WORKER, .name = "box", .uses_left = -1},
        *all, one;
    struct store_card card = {.card = "GPU-1", .mode = CARD_SHARED}, *cards;
    int64_t id;
    size_t n;
    memset(key.hash, 1, 32);
    memset(cred.hash, 2, 32);
    CHECK_OK(store_begin(s, &e), &e);
    CHECK_OK(store_worker_put(s, &w, &w.id, &e), &e);
    cred.worker = card.worker = w.id;
    CHECK_OK(store_card_put(s, &card, &e), &e);
    CHECK_OK(store_credential_add(s, &key, &key.id, &e), &e);
    CHECK_OK(store_credential_add(s, &cred, &cred.id, &e), &e);
    CHECK_EQ(store_credential_add(s, &cred, &id, &e), ST_CONFLICT);
    struct store_worker same = {.worker_id = "a2", .name = "box", .kind = "ssh"};
    CHECK_EQ(store_worker_put(s, &same, &id, &e), ST_CONFLICT);
    w.draining = true;
    w.seen_us = 5;
    CHECK_OK(store_worker_put(s, &w, &id, &e), &e);
    key.used_us = 9;
    CHECK_OK(store_credential_update(s, &key, &e), &e);
    CHECK_OK(store_end(s, ST_OK, &e), &e);
    store_close(s);

    s = open_at(db_path());
    CHECK_OK(store_workers_read(s, &a, &workers, &n, &e), &e);
    CHECK_EQ(n, 1);
    CHECK(workers[0].draining && !workers[0].disabled && workers[0].seen_us == 5);
    CHECK_STR(workers[0].kind, "enrolled");
    CHECK_OK(store_cards_read(s, &a, &cards, &n, &e), &e);
    CHECK(n == 1 && cards[0].mode == CARD_SHARED);
    CHECK_OK(store_credentials_read(s, CREDENTIAL_KEY, &a, &all, &n, &e), &e);
    CHECK(n == 1 && all[0].exec && all[0].used_us == 9 && all[0].worker == 0);
    CHECK_OK(store_credential_by_hash(s, cred.hash, &a, &one, &e), &e);
    CHECK_STR(one.credential_id, "c2");
    CHECK_EQ(one.worker, w.id);
    CHECK_OK(store_begin(s, &e), &e);
    CHECK_OK(store_worker_delete(s, w.id, &e), &e);
    CHECK_EQ(store_worker_delete(s, w.id, &e), ST_NOT_FOUND);
    CHECK_OK(store_end(s, ST_OK, &e), &e);
    CHECK_EQ(store_credential_by_hash(s, cred.hash, &a, &one, &e), ST_NOT_FOUND);
    CHECK_OK(store_credential_by_hash(s, key.hash, &a, &one, &e), &e);
    CHECK_OK(store_cards_read(s, &a, &cards, &n, &e), &e);
    CHECK_EQ(n, 0);
    arena_release(&a);
    store_close(s);
}

TEST(store_keeps_refusals, "W4: refused agents with their reasons, a hundred at most")
{
    struct store *s = open_at(":memory:");
    struct arena a;
    struct store_refusal *all;
    size_t n;
    arena_init(&a);
    CHECK_OK(store_begin(s, &e), &e);
    for (int i = 0; i < 130; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "w%d", i);
        struct store_refusal r = {
            .name = name, .version = "0", .hostname = "h", .reason = "version 0", .time_us = i};
        CHECK_OK(store_refusal_put(s, &r, &e), &e);
    }
    CHECK_OK(store_refusal_clear(s, "w129", &e), &e);
    CHECK_OK(store_setting_put(s, "k", "v", &e), &e);
    CHECK_OK(store_end(s, ST_OK, &e), &e);
    CHECK_OK(store_refusals_read(s, &a, &all, &n, &e), &e);
    CHECK_EQ(n, 99);
    CHECK_STR(all[0].name, "w128");
    const char *value;
    CHECK_OK(store_setting_get(s, "k", &a, &value, &e), &e);
    CHECK_STR(value, "v");
    CHECK_OK(store_setting_get(s, "none", &a, &value, &e), &e);
    CHECK_STR(value, "");
    arena_release(&a);
    store_close(s);
}

TEST(
    store_refuses_newer_databases,
    "a database of a newer program is refused; an older one is copied, then brought up to date")
{
    static const char *const second[] = {"CREATE TABLE later(id INTEGER PRIMARY KEY)", NULL};
    static const char *const broken[] = {
        "CREATE TABLE latest(id INTEGER PRIMARY KEY)", "CREATE TABLE latest(id INTEGER)", NULL};
    const char *const *const longer[] = {store_migrations[0], second, broken};
    struct store *s = open_at(db_path());
    (void)add_run(s, 1);
    CHECK_OK(store_migrate(s, longer, 2, &e), &e);
    char copy[600];
    (void)snprintf(copy, sizeof copy, "%s.v1", db_path());
    CHECK(file_exists(copy));
    /* One that fails leaves the version before it. */
    CHECK(store_migrate(s, longer, 3, &e) != ST_OK);
    CHECK_OK(store_migrate(s, longer, 2, &e), &e);
    store_close(s);
    CHECK_EQ(store_open(db_path(), NULL, &s, &e), ST_UNSUPPORTED);
    CHECK(strstr(e.text, "newer program") && strstr(e.text, "version is 2, this one knows 1"));
    CHECK(strstr(e.hint, "snug.db.v1"));
    s = open_at(copy);
    int64_t counts[RUN_STATE_COUNT];
    CHECK_OK(store_runs_count(s, counts, &e), &e);
    CHECK_EQ(counts[RUN_WAITING], 1);
    store_close(s);
}

TEST(store_refuses_other_files, "what is not ours is left alone")
{
    struct store *s;
    sqlite3 *db;
    CHECK_OK(file_write(db_path(), "hello, this is a text of some length", 36, &e), &e);
    CHECK_EQ(store_open(db_path(), NULL, &s, &e), ST_CORRUPT);
    char other[600];
    (void)snprintf(other, sizeof other, "%s/other.db", test_dir());
    CHECK_EQ(sqlite3_open(other, &db), SQLITE_OK);
    CHECK_EQ(sqlite3_exec(db, "CREATE TABLE t(x)", NULL, NULL, NULL), SQLITE_OK);
    (void)sqlite3_close(db);
    CHECK_EQ(store_open(other, NULL, &s, &e), ST_CORRUPT);
    CHECK(strstr(e.text, "another program") && e.hint[0]);
    (void)snprintf(other, sizeof other, "%s/none/snug.db", test_dir());
    CHECK(store_open(other, NULL, &s, &e) != ST_OK);
}

TEST(
    store_settings_of_sqlite,
    "promise-P1: WAL, synchronous FULL, foreign keys, 30 s, no mapping, readers never checkpoint")
{
    static const struct {
        const char *sql;
        long long writer, reader;
    } wanted[] = {
        {"PRAGMA synchronous", 2, -1},
        {"PRAGMA foreign_keys", 1, -1},
        {"PRAGMA busy_timeout", 30000, 30000},
        {"PRAGMA wal_autocheckpoint", 0, 0},
        {"PRAGMA mmap_size", 0, 0},
        {"PRAGMA query_only", 0, 1}};
    struct store *s = open_at(db_path());
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        for (int reader = 0; reader < 2; reader++) {
            sqlite3_stmt *st;
            sqlite3 *db = reader ? s->readers[0].db : s->writer.db;
            CHECK_EQ(sqlite3_prepare_v2(db, wanted[i].sql, -1, &st, NULL), SQLITE_OK);
            CHECK_EQ(sqlite3_step(st), SQLITE_ROW);
            long long value = sqlite3_column_int64(st, 0),
                      want = reader ? wanted[i].reader : wanted[i].writer;
            if (want >= 0)
                CHECK_EQ(value, want);
            (void)sqlite3_finalize(st);
        }
    CHECK_EQ(sqlite3_db_readonly(s->readers[0].db, "main"), 1);
    struct store_health h;
    store_health(s, &h);
    CHECK_STR(h.sqlite_version, sqlite3_libversion());
    CHECK(h.file_bytes >= 0 && !h.wal_large && !h.failing);
    store_close(s);
}

struct crowd {
    struct store *s;
    bool stop;
    int64_t reads;
};

static void *read_all_the_time(void *arg)
{
    struct crowd *c = arg;
    struct err own;
    while (!__atomic_load_n(&c->stop, __ATOMIC_RELAXED)) {
        struct arena a;
        struct store_runs page;
        struct store_run_filter f = {.limit = 20};
        arena_init(&a);
        CHECK_OK(store_runs_list(c->s, &f, &a, &page, &own), &own);
        CHECK(page.n == (size_t)(page.total < 20 ? page.total : 20)); /* of one moment */
        arena_release(&a);
        __atomic_add_fetch(&c->reads, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

TEST(
    store_reads_beside_writes, "case-S7: readers on other threads neither wait for the writer nor "
                               "stop it; the WAL stays small")
{
    struct crowd c = {.s = open_at(db_path())};
    pthread_t threads[6]; /* more than there are readers */
    for (int i = 0; i < 6; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, read_all_the_time, &c), 0);
    for (int i = 0; i < 1500; i++)
        (void)add_run(c.s, i);
    __atomic_store_n(&c.stop, true, __ATOMIC_RELAXED);
    for (int i = 0; i < 6; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK(c.reads > 6);
    store_idle(c.s);
    struct store_health h;
    store_health(c.s, &h);
    CHECK(h.wal_bytes >= 0 && h.wal_bytes < 64 << 20);
    store_close(c.s);
}
