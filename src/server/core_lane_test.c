/* core_lane_test.c - canvas runs beside the queue; cancel, stop, time limits; a disk that fails. */
#include "server/core_test_support.h"

#include "test.h"

#include <string.h>

static enum status canvas(struct stage *s, const char *tab, bool replace, char id[33])
{
    json_t *graph = small_graph(1), *options = json_object(), *reply = NULL;
    json_put_str(options, "lane", "interactive");
    json_put_str(options, "graph_id", tab);
    json_put_str(options, "device", "cuda:0");
    struct core_submission x = {
        .graph = graph, .options = options, .variant = -1, .repetition = -1, .replace = replace};
    s->e = (struct err){0};
    enum status st = core_submit(s->core, &s->person, &x, s->now, &reply, &s->e);
    if (st == ST_OK)
        (void)snprintf(id, 33, "%s", json_get_str(reply, "run_id", ""));
    json_decref(reply);
    json_decref(graph);
    json_decref(options);
    (void)core_tick(s->core, s->now);
    core_check(s->core);
    return st;
}

static bool has_order(struct puppet *f, const char *type, const char *run)
{
    json_t *list = puppet_orders(f), *one;
    size_t i;
    bool found = false;
    json_array_foreach(list, i, one)
    {
        if (strcmp(json_get_str(one, "type", ""), type) == 0 &&
            (!run || strcmp(json_get_str(one, "run_id", ""), run) == 0))
            found = true;
    }
    json_decref(list);
    return found;
}

TEST(
    canvas_runs_skip_the_queue,
    "R1: at once, at most two, one a tab, also on a card that is taken; over it 503")
{
    struct stage s;
    struct puppet f;
    char a[33], b[33], c[33], q[33];
    stage_open(&s, 1);
    puppet_open(&f, &s, "local", 1, 24);
    CHECK(puppet_connect(&f));
    (void)snprintf(q, sizeof q, "%s", submit(&s, "{'device':'cuda:0'}"));
    CHECK_EQ(puppet_start(&f, q), 1);
    CHECK_EQ(canvas(&s, "tab1", false, a), ST_OK);
    CHECK_STR(field(&s, a, "state"), "assigned");
    CHECK_STR(field(&s, a, "lane"), "interactive");
    json_t *order = puppet_order(&f, "start");
    CHECK_STR(json_get_str(json_object_get(order, "body"), "lane", ""), "interactive");
    CHECK_STR(json_get_str(json_object_get(order, "body"), "tab", ""), "tab1");
    json_decref(order);
    CHECK_EQ(canvas(&s, "tab1", false, c), ST_BUSY);
    CHECK(strstr(s.e.text, "this tab has a run"));
    CHECK_EQ(canvas(&s, "tab2", false, b), ST_OK);
    CHECK_EQ(canvas(&s, "tab3", false, c), ST_BUSY);
    CHECK_STR(s.e.text, "2 canvas runs at a time, and 2 are running");
    CHECK(puppet_event(&f, a, 1, 1, "started", "{}"));
    puppet_end(&f, a, 1, "succeeded");
    CHECK_EQ(canvas(&s, "tab3", false, c), ST_OK);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    a_tab_replaces_its_run, "R1: the run before is cancelled, the next one follows when it is gone")
{
    struct stage s;
    struct puppet f;
    char a[33], b[33];
    stage_open(&s, 1);
    puppet_open(&f, &s, "local", 1, 24);
    CHECK(puppet_connect(&f));
    CHECK_EQ(canvas(&s, "tab1", true, a), ST_OK);
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK_EQ(canvas(&s, "tab1", true, b), ST_OK);
    CHECK_STR(field(&s, a, "state"), "stopping");
    CHECK_STR(field(&s, b, "state"), "waiting");
    CHECK(has_order(&f, "stop", a));
    puppet_end(&f, a, 1, "cancelled");
    CHECK_STR(field(&s, a, "status"), "cancelled");
    CHECK_EQ(puppet_start(&f, b), 1);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    canvas_without_its_worker,
    "R1 promise-P14: it says what it waits for, and fails when nobody comes")
{
    struct stage s;
    char a[33];
    stage_open(&s, 1);
    CHECK_EQ(canvas(&s, "t", false, a), ST_OK);
    CHECK_STR(field(&s, a, "reason"), "waits for this server's own worker");
    stage_pass(&s, 16);
    CHECK_STR(field(&s, a, "status"), "failed");
    CHECK(strstr(field(&s, a, "error"), "own worker is not there"));
    stage_close(&s);
}

static bool cancel(struct stage *s, const char *run, const char *status)
{
    json_t *reply;
    CHECK_OK(core_cancel(s->core, run, s->now, &reply, &s->e), &s->e);
    CHECK_STR(json_get_str(reply, "status", ""), status);
    bool cancelled = json_get_bool(reply, "cancelled", false);
    json_decref(reply);
    (void)core_tick(s->core, s->now);
    core_check(s->core);
    return cancelled;
}

TEST(
    cancel_while_it_waits,
    "R11 promise-P9: it never starts, has no start time, and one execution_stopped")
{
    struct stage s;
    struct puppet f;
    json_t *page;
    stage_open(&s, 1);
    puppet_open(&f, &s, "local", 1, 24);
    CHECK(puppet_connect(&f));
    const char *a = submit(&s, "{'device':'cuda:0'}"), *b = submit(&s, "{'device':'cuda:0'}");
    CHECK(cancel(&s, b, "cancelled"));
    CHECK_STR(field(&s, b, "status"), "cancelled");
    CHECK_STR(field(&s, b, "started_at"), "");
    CHECK_OK(core_events(s.core, b, 0, 10, &page, &s.e), &s.e);
    CHECK_EQ(json_array_size(json_object_get(page, "events")), 1);
    const json_t *event = json_array_get(json_object_get(page, "events"), 0);
    CHECK_STR(json_get_str(event, "type", ""), "execution_stopped");
    CHECK_STR(json_get_str(json_object_get(event, "payload"), "reason", ""), "cancelled");
    json_decref(page);
    CHECK(!cancel(&s, b, "cancelled")); /* again: no harm */
    CHECK(cancel(&s, a, "cancelled"));  /* assigned, but its start never left */
    CHECK(!has_order(&f, "start", NULL));
    json_t *reply;
    CHECK_EQ(
        core_cancel(s.core, "00000000000000000000000000000000", s.now, &reply, &s.e), ST_NOT_FOUND);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    cancel_while_it_runs, "promise-P9 promise-P3 case-F33: the slot is free when it is gone; "
                          "cancelled survives a restart")
{
    struct stage s;
    struct puppet f;
    char a[33], b[33];
    stage_open(&s, 1);
    puppet_open(&f, &s, "local", 1, 24);
    CHECK(puppet_connect(&f));
    (void)snprintf(a, sizeof a, "%s", submit(&s, "{'device':'cuda:0'}"));
    (void)snprintf(b, sizeof b, "%s", submit(&s, "{'device':'cuda:0'}"));
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK(cancel(&s, a, "running"));
    CHECK_STR(field(&s, a, "state"), "stopping");
    CHECK_STR(field(&s, b, "state"), "waiting"); /* until the processes are gone */
    stage_restart(&s);
    json_t *r = J("{'epoch':1,'state':'live'}");
    json_put_str(r, "run_id", a);
    json_array_append_new(json_object_get(f.hello, "runs"), r);
    CHECK(puppet_connect(&f));
    CHECK(has_order(&f, "stop", a));
    stage_pass(&s, 15);
    puppet_heartbeat(&f);
    stage_pass(&s, 16);
    CHECK(has_order(&f, "kill", a)); /* it did not listen */
    CHECK(puppet_event(
        &f, a, 1, 2, "ended", "{'status':'failed','cause':'crashed','signal':9,'exit_code':-1}"));
    CHECK_STR(field(&s, a, "status"), "cancelled");
    CHECK_STR(field(&s, b, "state"), "assigned");
    puppet_close(&f);
    stage_close(&s);
}

TEST(done_before_it_heard, "promise-P3: a run that succeeded before its stop arrived has succeeded")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    const char *a = submit(&s, NULL);
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK(cancel(&s, a, "running"));
    puppet_end(&f, a, 1, "succeeded");
    CHECK_STR(field(&s, a, "status"), "succeeded");
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    time_limits,
    "promise-P3 case-F3: a run that outlives its time limit and its child's own clock is killed")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    const char *a = submit(&s, "{'timeout_s':10}");
    json_t *order = puppet_order(&f, "start");
    CHECK_NEAR(json_get_f64(json_object_get(order, "body"), "timeout_s", 0), 10, 0);
    json_decref(order);
    CHECK(puppet_event(&f, a, 1, 1, "started", "{}"));
    for (int i = 0; i < 4; i++) {
        stage_pass(&s, 9);
        puppet_heartbeat(&f);
    }
    CHECK(!has_order(&f, "kill", a));
    stage_pass(&s, 5);
    CHECK(has_order(&f, "kill", a));
    CHECK(puppet_event(
        &f, a, 1, 2, "ended", "{'status':'failed','cause':'timed_out','error':'too long'}"));
    CHECK_STR(field(&s, a, "cause"), "timed_out");
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    stopping_the_server, "promise-P3: waiting runs end interrupted, running ones are asked to "
                         "stop, nothing starts any more")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    const char *a = submit(&s, NULL), *b = submit(&s, NULL), *c = submit(&s, NULL);
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK(puppet_event(&f, b, 1, 1, "started", "{}"));
    core_stop(s.core, s.now);
    CHECK_STR(field(&s, c, "status"), "interrupted");
    CHECK_STR(field(&s, c, "cause"), "server_stopped");
    CHECK(has_order(&f, "stop", a));
    CHECK(!submit(&s, NULL));
    CHECK_EQ(s.e.status, ST_BUSY);
    CHECK(puppet_event(&f, a, 1, 2, "ended", "{'status':'cancelled','cause':'cancelled'}"));
    CHECK_STR(field(&s, a, "status"), "interrupted");
    CHECK_STR(field(&s, a, "cause"), "server_stopped");
    CHECK_EQ(core_live_count(s.core), 1);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    agents_that_stop,
    "case-F27 case-F29: a run that its agent ended is interrupted, not failed or done")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    const char *a = submit(&s, NULL), *b = submit(&s, NULL);
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK(puppet_event(&f, b, 1, 1, "started", "{}"));
    CHECK(puppet_event(&f, a, 1, 2, "ended", "{'status':'interrupted','cause':'agent_stopped'}"));
    CHECK_STR(field(&s, a, "status"), "interrupted");
    CHECK_STR(field(&s, a, "cause"), "agent_stopped");
    CHECK(puppet_event(&f, b, 1, 2, "ended", "{'status':'bogus'}"));
    CHECK_STR(field(&s, b, "status"), "failed");
    puppet_close(&f);
    stage_close(&s);
}

TEST(deleting_runs, "R11: only what has ended; its rows are gone")
{
    struct stage s;
    json_t *reply, *page;
    stage_open(&s, 0);
    const char *a = submit(&s, NULL);
    CHECK_EQ(core_delete(s.core, a, &reply, &s.e), ST_CONFLICT);
    CHECK(cancel(&s, a, "cancelled"));
    CHECK_OK(core_delete(s.core, a, &reply, &s.e), &s.e);
    CHECK(json_get_bool(reply, "deleted", false));
    json_decref(reply);
    CHECK_EQ(core_run(s.core, a, &reply, &s.e), ST_NOT_FOUND);
    CHECK_EQ(core_events(s.core, a, 0, 10, &page, &s.e), ST_NOT_FOUND);
    CHECK_EQ(core_delete(s.core, a, &reply, &s.e), ST_NOT_FOUND);
    stage_close(&s);
}

TEST(retention_keeps_the_newest, "R11: ended runs beyond the limit go, waiting ones stay")
{
    struct stage s;
    struct core_filter all = {.limit = 100};
    json_t *page;
    stage_open(&s, 0);
    core_close(s.core);
    s.config.keep_last = 3;
    CHECK_OK(core_open(s.store, &s.config, &s.hooks, s.now, &s.core, &s.e), &s.e);
    for (int i = 0; i < 8; i++) {
        const char *a = submit(&s, NULL);
        if (i != 2)
            CHECK(cancel(&s, a, "cancelled"));
    }
    stage_pass(&s, 3);
    CHECK_OK(core_runs(s.core, &all, &page, &s.e), &s.e);
    CHECK_EQ(json_get_i64(page, "total", 0), 4);
    json_decref(page);
    stage_close(&s);
}

TEST(
    payloads_have_a_cap,
    "R11: outputs over the cap are told, not kept; long texts are cut; not finite is null")
{
    struct stage s;
    struct puppet f;
    json_t *page;
    struct str big;
    stage_open(&s, 0);
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    const char *a = submit(&s, NULL);
    CHECK_EQ(puppet_start(&f, a), 1);
    str_init(&big);
    str_add(&big, "{'node_id':'n','outputs':[{'output_kind':'image','port':'p','data':'");
    for (int i = 0; i < 20000; i++)
        str_add(&big, "0123456789");
    str_add(&big, "'},{'output_kind':'text','text':'short'}]}");
    CHECK(puppet_event(&f, a, 1, 2, "node_status", big.data));
    str_clear(&big);
    str_add(&big, "{'text':'");
    for (int i = 0; i < 20000; i++)
        str_add(&big, "0123456789");
    str_add(&big, "'}");
    CHECK(puppet_event(&f, a, 1, 3, "log", big.data));
    CHECK(puppet_event(
        &f, a, 1, 4, "metric",
        "{'points':[{'name':'=x','value':null,'step':1,'node_id':'a,b'},"
        "{'name':'y','value':1.5,'step':2,'node_id':'n'}]}"));
    str_release(&big);
    CHECK_OK(core_events(s.core, a, 0, 10, &page, &s.e), &s.e);
    const json_t *events = json_object_get(page, "events");
    const json_t *outputs =
        json_object_get(json_object_get(json_array_get(events, 0), "payload"), "outputs");
    const json_t *image = json_array_get(outputs, 0);
    CHECK(json_get_bool(image, "elided", false));
    CHECK_STR(json_get_str(image, "port", ""), "p");
    CHECK_EQ(json_get_i64(image, "cap_bytes", 0), 131072);
    CHECK(json_get_i64(image, "bytes", 0) > 200000);
    CHECK_STR(json_get_str(json_array_get(outputs, 1), "text", ""), "short");
    const char *text =
        json_get_str(json_object_get(json_array_get(events, 1), "payload"), "text", "");
    CHECK(strlen(text) < 5000 && strstr(text, "bytes more"));
    json_decref(page);
    struct str csv;
    str_init(&csv);
    CHECK_OK(core_metrics_csv(s.core, a, NULL, &csv, &s.e), &s.e);
    CHECK(str_starts(csv.data, "\xef\xbb\xbfrun_id,node_id,name,step,value,ts\r\n"));
    CHECK(strstr(csv.data, ",\"a,b\",\"'=x\",1,,"));
    CHECK(strstr(csv.data, ",n,y,2,1.5,"));
    str_release(&csv);
    CHECK_OK(core_metrics(s.core, a, "y", &page, &s.e), &s.e);
    CHECK_EQ(json_array_size(json_object_get(page, "points")), 1);
    json_decref(page);
    CHECK_STR(field(&s, a, "final_metrics.y"), "1.5");
    puppet_close(&f);
    stage_close(&s);
}

TEST(artifacts_are_rows, "R11: an artifact has an id that its event tells")
{
    struct stage s;
    struct puppet f;
    json_t *doc;
    stage_open(&s, 0);
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    const char *a = submit(&s, NULL);
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK(puppet_event(
        &f, a, 1, 2, "artifact",
        "{'kind':'checkpoint','path':'models/a.pt','meta':{'epoch':1},'node_id':'n'}"));
    CHECK(puppet_event(&f, a, 1, 3, "artifact", "{'kind':'image','path':'b.png'}"));
    CHECK_OK(core_artifacts(s.core, a, "checkpoint", &doc, &s.e), &s.e);
    const json_t *list = json_object_get(doc, "artifacts");
    CHECK_EQ(json_array_size(list), 1);
    int64_t id = json_get_i64(json_array_get(list, 0), "id", 0);
    CHECK_EQ(json_get_i64(json_object_get(json_array_get(list, 0), "meta"), "epoch", 0), 1);
    json_decref(doc);
    CHECK_OK(core_events(s.core, a, 0, 10, &doc, &s.e), &s.e);
    CHECK_EQ(
        json_get_i64(
            json_object_get(json_array_get(json_object_get(doc, "events"), 0), "payload"),
            "artifact_id", 0),
        id);
    json_decref(doc);
    puppet_close(&f);
    stage_close(&s);
}

TEST(lists_of_runs, "R11: by status, newest first, page by page; a wrong status is refused")
{
    struct stage s;
    json_t *page;
    stage_open(&s, 0);
    const char *a = submit(&s, NULL), *b = submit(&s, NULL), *c = submit(&s, NULL);
    CHECK(cancel(&s, b, "cancelled"));
    struct core_filter f = {.statuses = {"queued"}, .n_statuses = 1, .limit = 1};
    CHECK_OK(core_runs(s.core, &f, &page, &s.e), &s.e);
    CHECK_EQ(json_get_i64(page, "total", 0), 2);
    CHECK_EQ(json_array_size(json_object_get(page, "runs")), 1);
    CHECK_STR(json_get_str(json_array_get(json_object_get(page, "runs"), 0), "id", ""), c);
    CHECK(*json_get_str(json_array_get(json_object_get(page, "runs"), 0), "reason", ""));
    json_decref(page);
    f.offset = 1;
    CHECK_OK(core_runs(s.core, &f, &page, &s.e), &s.e);
    CHECK_STR(json_get_str(json_array_get(json_object_get(page, "runs"), 0), "id", ""), a);
    json_decref(page);
    f.statuses[0] = "waiting";
    CHECK_EQ(core_runs(s.core, &f, &page, &s.e), ST_INVALID);
    json_t *status = core_status(s.core, s.now);
    CHECK_EQ(json_get_i64(json_object_get(status, "runs"), "queued", 0), 2);
    CHECK_EQ(json_get_i64(json_object_get(status, "runs"), "cancelled", 0), 1);
    json_decref(status);
    stage_close(&s);
}
