/* core_thread_test.c - everybody at once: submitting, cancelling, reading, ticking, an agent at
 * work. */
#include "server/core_test_support.h"

#include "base/env.h"
#include "base/log.h"
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { ROUNDS = 120, CLIENTS = 3 };
struct crowd {
    struct core *core;
    struct actor who;
    atomic_int done, stop, submitted, cancelled;
    atomic_llong now_ns;
};

static struct instant tell_time(struct crowd *x)
{
    return (struct instant){atomic_fetch_add(&x->now_ns, 1000000), INT64_C(1790000000000000)};
}

static void *client(void *ctx)
{
    struct crowd *x = ctx;
    json_t *options = J("{'device':'cuda:0'}"), *graph = small_graph(1), *reply, *doc;
    struct core_submission sub = {
        .graph = graph, .options = options, .variant = -1, .repetition = -1};
    for (int i = 0; i < ROUNDS; i++) {
        struct err e;
        char id[33];
        struct core_filter all = {.limit = 20};
        CHECK_OK(core_submit(x->core, &x->who, &sub, tell_time(x), &reply, &e), &e);
        (void)snprintf(id, sizeof id, "%s", json_get_str(reply, "run_id", ""));
        json_decref(reply);
        atomic_fetch_add(&x->submitted, 1);
        CHECK_OK(core_run(x->core, id, &doc, &e), &e);
        json_decref(doc);
        if (i % 3 == 0) {
            CHECK_OK(core_cancel(x->core, id, tell_time(x), &reply, &e), &e);
            json_decref(reply);
        }
        CHECK_OK(core_events(x->core, id, 0, 10, &doc, &e), &e);
        json_decref(doc);
        CHECK_OK(core_runs(x->core, &all, &doc, &e), &e);
        json_decref(doc);
        json_decref(core_workers(x->core, tell_time(x)));
    }
    json_decref(options);
    json_decref(graph);
    atomic_fetch_add(&x->done, 1);
    return NULL;
}

static void *timer(void *ctx)
{
    struct crowd *x = ctx;
    while (!atomic_load(&x->stop)) {
        (void)core_tick(x->core, tell_time(x));
        core_check(x->core);
    }
    return NULL;
}

/* Starts and ends whatever it is given; stops what it is to stop. */
static void serve(struct crowd *x, const char *session, int64_t *after)
{
    json_t *reply, *one, *report = json_object(), *events = json_array();
    struct actor owner = {.role = ROLE_OWNER, .exec = true, .name = "owner"};
    struct err e;
    size_t i;
    CHECK_OK(core_agent_orders(x->core, &owner, session, *after, tell_time(x), &reply, &e), &e);
    json_array_foreach(json_object_get(reply, "orders"), i, one)
    {
        *after = json_get_i64(one, "number", 0);
        if (strcmp(json_get_str(one, "type", ""), "start") != 0)
            continue;
        for (int k = 0; k < 2; k++) {
            json_t *ev = json_object();
            json_put_str(ev, "run_id", json_get_str(one, "run_id", ""));
            json_put_i64(ev, "epoch", json_get_i64(one, "epoch", 0));
            json_put_i64(ev, "sequence", k + 1);
            json_put_str(ev, "type", k ? "ended" : "started");
            json_put(ev, "payload", J(k ? "{'status':'succeeded','cause':'done'}" : "{}"));
            json_array_append_new(events, ev);
        }
    }
    json_decref(reply);
    json_put_str(report, "session", session);
    json_put(report, "events", events);
    CHECK_OK(core_agent_report(x->core, &owner, report, tell_time(x), &reply, &e), &e);
    json_decref(report);
    json_decref(reply);
}

TEST_WITHIN(
    everybody_at_once, 120,
    "promise-P3 promise-P4 case-Q15: threads that submit, cancel, read, tick and report leave "
    "every run at an end")
{
    struct stage s;
    struct puppet f;
    struct crowd x = {.stop = 0};
    pthread_t threads[CLIENTS + 1];
    int64_t after = 0;
    stage_open(&s, 1);
    s.hooks = (struct core_hooks){.ctx = NULL};
    s.config.keep_last = -1;
    core_close(s.core);
    CHECK_OK(core_open(s.store, &s.config, &s.hooks, s.now, &s.core, &s.e), &s.e);
    puppet_open(&f, &s, "local", 1, 24);
    CHECK(puppet_connect(&f));
    x.core = s.core;
    x.who = s.person;
    x.now_ns = s.now.now_ns;
    for (int i = 0; i <= CLIENTS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, i ? client : timer, &x), 0);
    int64_t left = 1;
    while (atomic_load(&x.done) < CLIENTS || left) {
        serve(&x, f.session, &after);
        json_t *status = core_status(s.core, tell_time(&x));
        const json_t *runs = json_object_get(status, "runs");
        left = json_get_i64(runs, "queued", 0) + json_get_i64(runs, "running", 0);
        json_decref(status);
    }
    atomic_store(&x.stop, 1);
    for (int i = 0; i <= CLIENTS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    s.now.now_ns = x.now_ns;
    json_t *status = core_status(s.core, s.now);
    const json_t *runs = json_object_get(status, "runs");
    CHECK_EQ(
        json_get_i64(runs, "succeeded", 0) + json_get_i64(runs, "cancelled", 0) +
            json_get_i64(runs, "interrupted", 0) + json_get_i64(runs, "failed", 0),
        CLIENTS * ROUNDS);
    CHECK_EQ(json_get_i64(runs, "failed", 0), 0);
    json_decref(status);
    puppet_close(&f);
    stage_close(&s);
}
