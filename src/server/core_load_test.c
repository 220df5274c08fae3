/* core_load_test.c - many waiting runs: batches, single submissions, passes, restart, an agent's
 * pace.
 *
 * `make check` takes a sample and checks behaviour alone; SNUG_SOAK=1 takes the full counts. Times
 * are printed, never judged: a busy machine must not fail a test.
 */
#include "server/core_test_support.h"

#include "base/env.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t began;
static clock_t began_cpu;
static void clock_begin(void)
{
    began = clock_ns();
    began_cpu = clock();
}

static void clock_end(const char *what, int64_t n)
{
    double ms = (double)(clock_ns() - began) / 1e6;
    double cpu_ms = (double)(clock() - began_cpu) * 1e3 / CLOCKS_PER_SEC;
    printf(
        "  %s: %lld in %.1f ms (%.3f ms each), %.1f ms of a core\n", what, (long long)n, ms,
        ms / (double)n, cpu_ms);
}

static void submit_many(struct stage *s, int n, const char *options)
{
    json_t *graph = small_graph(1), *o = J(options);
    struct core_submission *x = mem_alloc((size_t)n * sizeof *x);
    char(*ids)[33] = mem_alloc((size_t)n * sizeof *ids);
    for (int i = 0; i < n; i++)
        x[i] =
            (struct core_submission){.graph = graph, .options = o, .variant = -1, .repetition = -1};
    CHECK_OK(
        core_submit_all(s->core, &s->person, x, (size_t)n, NULL, NULL, s->now, ids, &s->e), &s->e);
    mem_free(x);
    mem_free(ids);
    json_decref(graph);
    json_decref(o);
}

static void submit_sweep(struct stage *s, int n)
{
    json_t *graph = small_graph(1), *o = J("{'device':'cuda:0'}");
    struct core_submission *x = mem_alloc((size_t)n * sizeof *x);
    char(*ids)[33] = mem_alloc((size_t)n * sizeof *ids);
    json_t **patches = mem_alloc((size_t)n * sizeof *patches);
    for (int i = 0; i < n; i++) {
        patches[i] = J("{'l':{'batch_size':1}}");
        json_object_set_new(json_object_get(patches[i], "l"), "batch_size", json_integer(i + 1));
        x[i] = (struct core_submission){
            .graph = graph, .options = o, .patch = patches[i], .variant = i, .repetition = -1};
    }
    clock_begin();
    CHECK_OK(
        core_submit_all(s->core, &s->person, x, (size_t)n, NULL, NULL, s->now, ids, &s->e), &s->e);
    clock_end("variants of a sweep, checked and stored whole", n);
    for (int i = 0; i < n; i++)
        json_decref(patches[i]);
    mem_free(patches);
    mem_free(x);
    mem_free(ids);
    json_decref(graph);
    json_decref(o);
}

/* An agent that runs what it is given at once: a report with start and end of each. */
static int work_off(struct puppet *f, int most)
{
    json_t *list = puppet_orders(f), *one, *report = json_object(), *events = json_array(), *reply;
    size_t i;
    int n = 0;
    json_array_foreach(list, i, one)
    {
        if (strcmp(json_get_str(one, "type", ""), "start") != 0 || n == most)
            continue;
        static const char *const types[] = {
            "started", "execution_start", "execution_complete", "ended"};
        for (int k = 0; k < 4; k++) {
            json_t *ev = json_object();
            json_put_str(ev, "run_id", json_get_str(one, "run_id", ""));
            json_put_i64(ev, "epoch", json_get_i64(one, "epoch", 0));
            json_put_i64(ev, "sequence", k + 1);
            json_put_str(ev, "type", types[k]);
            json_put(ev, "payload", J(k == 3 ? "{'status':'succeeded','cause':'done'}" : "{}"));
            json_array_append_new(events, ev);
        }
        n++;
    }
    json_put_str(report, "session", f->session);
    json_put(report, "events", events);
    CHECK_OK(core_agent_report(f->s->core, &f->who, report, f->s->now, &reply, &f->s->e), &f->s->e);
    json_decref(report);
    json_decref(reply);
    json_decref(list);
    (void)core_tick(f->s->core, f->s->now);
    return n;
}

TEST_WITHIN(
    many_waiting, 600,
    "promise-P1 promise-P14 case-S11: 100,000 waiting runs are stored, restarted with, explained "
    "and worked off")
{
    bool soak = getenv("SNUG_SOAK") != NULL;
    int waiting = soak ? 100000 : 3000, single = soak ? 2000 : 100, trivial = soak ? 1000 : 60;
    struct stage s;
    struct puppet f;
    stage_open(&s, 8);
    if (soak) { /* commits that survive a power cut */
        core_close(s.core);
        store_close(s.store);
        CHECK_OK(store_open(s.path, NULL, &s.store, &s.e), &s.e);
        CHECK_OK(core_open(s.store, &s.config, &s.hooks, s.now, &s.core, &s.e), &s.e);
    }
    clock_begin();
    for (int i = 0; i < 8; i++) {
        char options[64];
        (void)snprintf(options, sizeof options, "{'device':'cuda:%d'}", i);
        submit_many(&s, waiting / 8, options);
    }
    clock_end("submitted in batches", waiting);
    submit_sweep(&s, soak ? 10000 : 300);
    (void)core_tick(s.core, s.now);

    json_t *graph = small_graph(2), *o = J("{'device':'cuda:0','seed':1}"), *reply;
    struct core_submission x = {.graph = graph, .options = o, .variant = -1, .repetition = -1};
    clock_begin();
    for (int i = 0; i < single; i++) {
        CHECK_OK(core_submit(s.core, &s.person, &x, s.now, &reply, &s.e), &s.e);
        json_decref(reply);
        (void)core_tick(s.core, s.now);
    }
    clock_end("durable submissions, one by one", single);
    json_decref(graph);
    json_decref(o);

    clock_begin();
    stage_restart(&s);
    clock_end("restart", 1);
    clock_begin();
    for (int i = 0; i < 20; i++) {
        CHECK_OK(core_worker_drain(s.core, "local", i % 2 == 0, s.now, &s.e), &s.e);
        (void)core_tick(s.core, s.now);
    }
    clock_end("whole passes", 20);

    json_t *page;
    struct core_filter filter = {.statuses = {"queued"}, .n_statuses = 1, .limit = 50};
    clock_begin();
    for (int i = 0; i < 10; i++) {
        CHECK_OK(core_runs(s.core, &filter, &page, &s.e), &s.e);
        CHECK(json_get_i64(page, "total", 0) > waiting);
        json_decref(page);
    }
    clock_end("pages of 50 waiting runs with their reasons", 10);

    puppet_open(&f, &s, "local", 8, 24);
    CHECK(puppet_connect(&f));
    clock_begin();
    int done = 0;
    while (done < trivial)
        done += work_off(&f, trivial - done);
    clock_end("trivial runs through one agent", done);
    core_check(s.core);
    puppet_close(&f);
    stage_close(&s);
}
