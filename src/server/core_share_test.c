/* core_share_test.c - cards shared by memory: modes, budgets, measured peaks, what waiting runs
 * take. */
#include "server/core_test_support.h"

#include "base/log.h"
#include "test.h"

#include <string.h>

/* A worker "box" with one shared card of 24 GiB. */
static void open_shared(struct stage *s, struct puppet *f)
{
    stage_open(s, 0);
    puppet_open(f, s, "box", 1, 24);
    CHECK(puppet_connect(f));
    CHECK_OK(core_card_mode(s->core, "box", "cuda:0", "shared", s->now, &s->e), &s->e);
    (void)core_tick(s->core, s->now);
}

static const char *box(struct stage *s, int units, const char *rest)
{
    char options[256];
    (void)snprintf(
        options, sizeof options, "{'target':{'worker':'box','devices':['cuda:0']%s}}", rest);
    return submit_graph(s, units, options);
}

/* Runs a graph to its end with this peak. */
static void measure(struct stage *s, struct puppet *f, int units, double gib, const char *rest)
{
    char payload[200], run[33];
    const char *id = box(s, units, rest);
    CHECK(id);
    (void)snprintf(run, sizeof run, "%s", id);
    CHECK_EQ(puppet_start(f, run), 1);
    (void)snprintf(
        payload, sizeof payload,
        "{'status':'succeeded','cause':'done','peaks':[{'device':'cuda:0','bytes':%lld}]}",
        (long long)(gib * 1073741824.0));
    CHECK(puppet_event(f, run, 1, 2, "ended", payload));
}

TEST(modes_are_kept, "B1: a card's mode is kept over reconnect and restart, by the card's UUID")
{
    struct stage s;
    struct puppet f;
    json_t *doc;
    open_shared(&s, &f);
    CHECK_EQ(core_card_mode(s.core, "box", "cpu", "shared", s.now, &s.e), ST_INVALID);
    CHECK_EQ(core_card_mode(s.core, "box", "cuda:7", "shared", s.now, &s.e), ST_NOT_FOUND);
    CHECK_EQ(core_card_mode(s.core, "no", "cuda:0", "shared", s.now, &s.e), ST_NOT_FOUND);
    CHECK_EQ(core_card_mode(s.core, "box", "cuda:0", "half", s.now, &s.e), ST_INVALID);
    CHECK(puppet_connect(&f));
    stage_restart(&s);
    for (int again = 0; again < 2; again++) {
        CHECK_OK(core_worker(s.core, "box", s.now, &doc, &s.e), &s.e);
        const json_t *card = json_array_get(json_object_get(doc, "devices"), 1);
        CHECK_STR(json_get_str(card, "mode", ""), "shared");
        json_decref(doc);
        CHECK(puppet_connect(&f));
    }
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    this_server_shares_too, "B11: cards of this server can be shared by memory; exclusive at first")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 1);
    puppet_open(&f, &s, "local", 1, 24);
    CHECK(puppet_connect(&f));
    CHECK_OK(core_card_mode(s.core, "local", "cuda:0", "shared", s.now, &s.e), &s.e);
    (void)core_tick(s.core, s.now);
    CHECK(!submit(&s, "{'device':'cuda:0'}"));
    const char *a = submit(&s, "{'device':'cuda:0','target':{'memory_gib':6}}");
    const char *b = submit(&s, "{'device':'cuda:0','target':{'memory_gib':6}}");
    CHECK_STR(field(&s, a, "state"), "assigned");
    CHECK_STR(field(&s, b, "state"), "assigned");
    json_t *order = puppet_order(&f, "start");
    const json_t *body = json_object_get(order, "body");
    CHECK_EQ(json_get_i64(body, "budget_bytes", 0), INT64_C(6) << 30);
    CHECK_STR(json_get_str(body, "budget_source", ""), "given");
    json_decref(order);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    no_peak_no_budget_no_run,
    "B2 B4: without a budget and without a measured peak a shared card refuses")
{
    struct stage s;
    struct puppet f;
    open_shared(&s, &f);
    CHECK(!box(&s, 1, ""));
    CHECK_EQ(s.e.status, ST_INVALID);
    CHECK(strstr(s.e.text, "budget"));
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    measured_default,
    "B2 B3 R12: the last success of the same graph plus 20%, and from which run; typed ones stay")
{
    struct stage s;
    struct puppet f;
    json_t *graph = small_graph(3), *doc;
    open_shared(&s, &f);
    measure(&s, &f, 3, 5, ",'memory_gib':8");
    const char *a = box(&s, 3, "");
    CHECK(a);
    CHECK_STR(field(&s, a, "budget.gib"), "6.0");
    CHECK_STR(field(&s, a, "budget.source"), "measured");
    CHECK(strlen(field(&s, a, "budget.run_id")) == 32);
    CHECK(!box(&s, 4, "")); /* another graph */
    const char *b = box(&s, 3, ",'memory_gib':2");
    CHECK_STR(field(&s, b, "budget.source"), "given");
    CHECK_STR(field(&s, b, "budget.gib"), "2.0");
    CHECK_OK(core_budget_hint(s.core, graph, 1, &doc, &s.e), &s.e);
    CHECK_NEAR(json_get_f64(json_object_get(doc, "measured"), "gib", 0), 6, 0);
    json_decref(doc);
    CHECK_OK(core_budget_hint(s.core, graph, 2, &doc, &s.e), &s.e); /* on two cards: nothing */
    CHECK(json_is_null(json_object_get(doc, "measured")));
    json_decref(doc);
    json_decref(graph);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    estimates_rise,
    "B4: at submission and while waiting an estimate gives way to a larger measured peak")
{
    struct stage s;
    struct puppet f;
    char a[33], b[33], c[33], t[33];
    open_shared(&s, &f);
    const char *small = ",'memory_gib':2,'memory_source':'estimate','wait':true";
    /* A first run holds most of the card, so that the others wait. */
    (void)snprintf(a, sizeof a, "%s", box(&s, 9, ",'memory_gib':17"));
    CHECK_EQ(puppet_start(&f, a), 1);
    (void)snprintf(c, sizeof c, "%s", box(&s, 5, ",'memory_gib':3"));
    CHECK_EQ(puppet_start(&f, c), 1);
    (void)snprintf(b, sizeof b, "%s", box(&s, 5, small));
    (void)snprintf(t, sizeof t, "%s", box(&s, 5, ",'memory_gib':2,'wait':true"));
    CHECK_STR(field(&s, b, "state"), "waiting");
    CHECK(puppet_event(
        &f, c, 1, 2, "ended",
        "{'status':'succeeded','cause':'done','peaks':[{'device':'cuda:0','bytes':6442450944}]}"));
    CHECK_STR(field(&s, b, "budget.gib"), "7.2001953125"); /* 6 GiB and 20%, in whole MiB */
    CHECK_STR(field(&s, b, "budget.source"), "measured");
    CHECK_STR(field(&s, b, "budget.raised"), "true");
    CHECK(strstr(field(&s, b, "reason"), "budget was raised to 7.2 GiB"));
    CHECK_STR(field(&s, t, "budget.gib"), "2.0"); /* what a person typed stays */
    const char *d = box(&s, 5, small);
    CHECK_STR(field(&s, d, "budget.source"), "measured");
    CHECK_STR(field(&s, d, "budget.raised"), "true");
    puppet_close(&f);
    stage_close(&s);
}

TEST(raised_beyond_every_card, "B4: a budget that was raised above every card fails, saying so")
{
    struct stage s;
    struct puppet f, big;
    char a[33], b[33];
    stage_open(&s, 0);
    puppet_open(&f, &s, "box", 1, 8);
    puppet_open(&big, &s, "big", 1, 48);
    CHECK(puppet_connect(&f) && puppet_connect(&big));
    CHECK_OK(core_card_mode(s.core, "box", "cuda:0", "shared", s.now, &s.e), &s.e);
    CHECK_OK(core_card_mode(s.core, "big", "cuda:0", "shared", s.now, &s.e), &s.e);
    (void)core_tick(s.core, s.now);
    (void)snprintf(b, sizeof b, "%s", box(&s, 9, ",'memory_gib':6"));
    CHECK_EQ(puppet_start(&f, b), 1);
    (void)snprintf(
        a, sizeof a, "%s", box(&s, 5, ",'memory_gib':4,'memory_source':'estimate','wait':true"));
    CHECK_STR(field(&s, a, "state"), "waiting");
    const char *c =
        submit_graph(&s, 5, "{'target':{'worker':'big','devices':['cuda:0'],'memory_gib':40}}");
    CHECK_EQ(puppet_start(&big, c), 1);
    CHECK(puppet_event(
        &big, c, 1, 2, "ended",
        "{'status':'succeeded','cause':'done','peaks':[{'device':'cuda:0','bytes':21474836480}]}"));
    CHECK_STR(field(&s, a, "status"), "failed");
    CHECK_STR(field(&s, a, "cause"), "budget_too_large");
    CHECK(*field(&s, a, "error"));
    puppet_close(&f);
    puppet_close(&big);
    stage_close(&s);
}

TEST(
    refused_or_waiting, "B5 B7 B9: a named worker refuses at once with both figures, or waits; a "
                        "batch by each one's own wait")
{
    struct stage s;
    struct puppet f;
    char a[33], text[64];
    open_shared(&s, &f);
    (void)snprintf(a, sizeof a, "%s", box(&s, 1, ",'memory_gib':16"));
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK(!box(&s, 2, ",'memory_gib':12"));
    CHECK(strstr(s.e.text, "needs 12.0 GiB (+0.8 GiB CUDA context), cuda:0 on box has "));
    (void)snprintf(text, sizeof text, "(runs %.8s)", a);
    CHECK(strstr(s.e.text, text));
    const char *b = box(&s, 2, ",'memory_gib':12,'wait':true");
    CHECK_STR(field(&s, b, "state"), "waiting");
    CHECK(strstr(field(&s, b, "reason"), "12.0 GiB"));
    CHECK(!box(&s, 2, ",'memory_gib':40,'wait':true")); /* larger than the card */
    json_t *graph = small_graph(2), *patient, *hasty;
    patient = J("{'target':{'worker':'box','devices':['cuda:0'],'memory_gib':12,'wait':true}}");
    hasty = J("{'target':{'worker':'box','devices':['cuda:0'],'memory_gib':12}}");
    struct core_submission x[2] = {
        {.graph = graph, .options = patient, .variant = 0, .repetition = -1},
        {.graph = graph, .options = hasty, .variant = 1, .repetition = -1}};
    char ids[2][33];
    CHECK_EQ(core_submit_all(s.core, &s.person, x, 2, NULL, NULL, s.now, ids, &s.e), ST_INVALID);
    x[1].options = patient;
    CHECK_OK(core_submit_all(s.core, &s.person, x, 2, NULL, NULL, s.now, ids, &s.e), &s.e);
    json_decref(graph);
    json_decref(patient);
    json_decref(hasty);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    two_in_a_row_count_both,
    "B5 case-M23: a run is reserved when it is accepted, so the next one sees it")
{
    struct stage s;
    struct puppet f;
    open_shared(&s, &f);
    json_t *graph = small_graph(1);
    json_t *options = J("{'target':{'worker':'box','devices':['cuda:0'],'memory_gib':14}}");
    struct core_submission x = {
        .graph = graph, .options = options, .variant = -1, .repetition = -1};
    json_t *reply;
    CHECK_OK(core_submit(s.core, &s.person, &x, s.now, &reply, &s.e), &s.e);
    json_decref(reply);
    CHECK_EQ(core_submit(s.core, &s.person, &x, s.now, &reply, &s.e), ST_INVALID);
    json_decref(graph);
    json_decref(options);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    a_card_becomes_shared,
    "B8: runs queued while it was exclusive take their default, or wait until a peak appears")
{
    struct stage s;
    struct puppet f, g;
    char a[33], b[33], c[33];
    stage_open(&s, 0);
    puppet_open(&f, &s, "box", 1, 24);
    puppet_open(&g, &s, "other", 1, 24);
    CHECK(puppet_connect(&f) && puppet_connect(&g));
    measure(&s, &f, 1, 5, "");
    (void)snprintf(a, sizeof a, "%s", box(&s, 7, ""));
    CHECK_EQ(puppet_start(&f, a), 1);
    (void)snprintf(b, sizeof b, "%s", box(&s, 1, ""));
    (void)snprintf(c, sizeof c, "%s", box(&s, 2, ""));
    CHECK_STR(field(&s, b, "budget"), "");
    CHECK_OK(core_card_mode(s.core, "box", "cuda:0", "shared", s.now, &s.e), &s.e);
    (void)core_tick(s.core, s.now);
    CHECK_STR(field(&s, b, "budget.gib"), "6.0");
    CHECK_STR(field(&s, b, "budget.source"), "measured");
    CHECK_STR(field(&s, b, "state"), "waiting"); /* who is there without a budget has it alone */
    puppet_end(&f, a, 1, "succeeded");
    CHECK_STR(field(&s, b, "state"), "assigned");
    CHECK_STR(field(&s, c, "state"), "waiting");
    CHECK(strstr(field(&s, c, "reason"), "budget"));
    /* The same graph succeeds elsewhere: it has a peak now. */
    const char *d = submit_graph(&s, 2, "{'target':{'worker':'other','devices':['cuda:0']}}");
    CHECK_EQ(puppet_start(&g, d), 1);
    CHECK(puppet_event(
        &g, d, 1, 2, "ended",
        "{'status':'succeeded','cause':'done','peaks':[{'device':'cuda:0','bytes':1073741824}]}"));
    CHECK_STR(field(&s, c, "state"), "assigned");
    /* And back: what was given away stays. */
    CHECK_OK(core_card_mode(s.core, "box", "cuda:0", "exclusive", s.now, &s.e), &s.e);
    puppet_close(&f);
    puppet_close(&g);
    stage_close(&s);
}

TEST(
    agents_that_cannot_cap,
    "B10 case-M15: a run that was admitted by budget fails on an agent that cannot hold it to it")
{
    struct stage s;
    struct puppet f;
    char a[33];
    open_shared(&s, &f);
    (void)snprintf(a, sizeof a, "%s", box(&s, 1, ",'memory_gib':20"));
    CHECK_EQ(puppet_start(&f, a), 1);
    char b[33];
    (void)snprintf(b, sizeof b, "%s", box(&s, 1, ",'memory_gib':6,'wait':true"));
    json_put_bool(f.hello, "can_cap", false);
    json_t *r = J("{'epoch':1,'state':'live'}");
    json_put_str(r, "run_id", a);
    json_array_append_new(json_object_get(f.hello, "runs"), r);
    CHECK(puppet_connect(&f));
    puppet_end(&f, a, 1, "succeeded");
    CHECK_STR(field(&s, b, "status"), "failed");
    CHECK_STR(field(&s, b, "cause"), "cannot_cap");
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    adopted_budgets_count, "W7 B5 promise-P5 promise-P11: after a restart running budgets are in "
                           "the ledger before anybody connects")
{
    struct stage s;
    struct puppet f;
    char a[33];
    json_t *doc;
    open_shared(&s, &f);
    (void)snprintf(a, sizeof a, "%s", box(&s, 1, ",'memory_gib':16"));
    CHECK_EQ(puppet_start(&f, a), 1);
    stage_restart(&s);
    json_t *r = J("{'epoch':1,'state':'live'}");
    json_put_str(r, "run_id", a);
    json_array_append_new(json_object_get(f.hello, "runs"), r);
    CHECK(puppet_connect(&f));
    CHECK(!box(&s, 2, ",'memory_gib':12"));
    CHECK_OK(core_worker(s.core, "box", s.now, &doc, &s.e), &s.e);
    const json_t *card = json_array_get(json_object_get(doc, "devices"), 1);
    const json_t *memory = json_object_get(card, "memory");
    CHECK_EQ(json_get_i64(memory, "running_bytes", 0), (INT64_C(16) << 30) + (INT64_C(768) << 20));
    CHECK_EQ(json_get_i64(memory, "reserved_bytes", -1), 0);
    CHECK_EQ(json_array_size(json_object_get(doc, "runs")), 1);
    json_decref(doc);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    heartbeats_feed_the_ledger,
    "W8 B5: what others take shows at the next heartbeat; who waits starts when it is free")
{
    struct stage s;
    struct puppet f;
    char a[33];
    open_shared(&s, &f);
    json_t *card = json_array_get(json_object_get(f.hello, "devices"), 1);
    json_put_i64(card, "free_bytes", INT64_C(4) << 30);
    puppet_heartbeat(&f);
    CHECK(!box(&s, 1, ",'memory_gib':6"));
    (void)snprintf(a, sizeof a, "%s", box(&s, 1, ",'memory_gib':6,'wait':true"));
    CHECK_STR(field(&s, a, "state"), "waiting");
    json_put_i64(card, "free_bytes", INT64_C(20) << 30);
    puppet_heartbeat(&f);
    CHECK_STR(field(&s, a, "state"), "assigned");
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    sets_and_their_order, "R4 R6 R7 case-Q11: a set takes all its cards in the order given; a peak "
                          "of two says nothing about one")
{
    struct stage s;
    struct puppet f;
    char a[33], b[33], c[33];
    stage_open(&s, 0);
    puppet_open(&f, &s, "box", 3, 24);
    CHECK(puppet_connect(&f));
    (void)snprintf(
        b, sizeof b, "%s", submit_graph(&s, 1, "{'target':{'worker':'box','devices':['cuda:1']}}"));
    (void)snprintf(
        a, sizeof a, "%s",
        submit_graph(&s, 1, "{'target':{'worker':'box','devices':['cuda:2','cuda:1']}}"));
    (void)snprintf(
        c, sizeof c, "%s", submit_graph(&s, 1, "{'target':{'worker':'box','devices':['cuda:2']}}"));
    CHECK_EQ(puppet_start(&f, b), 1);
    CHECK_STR(field(&s, a, "state"), "waiting");
    CHECK_STR(field(&s, c, "state"), "waiting"); /* kept for the set */
    puppet_end(&f, b, 1, "succeeded");
    CHECK_STR(field(&s, a, "state"), "assigned");
    CHECK_STR(field(&s, a, "devices"), "[\"cuda:2\",\"cuda:1\"]");
    json_t *order = puppet_order(&f, "start");
    while (order && strcmp(json_get_str(order, "run_id", ""), a) != 0) {
        json_decref(order);
        order = puppet_order(&f, "start");
    }
    CHECK_STR(
        json_string_value(
            json_array_get(json_object_get(json_object_get(order, "body"), "uuids"), 0)),
        "box-2");
    json_decref(order);
    CHECK_STR(field(&s, a, "queue_key"), "box/cuda:2+cuda:1");
    CHECK(puppet_event(&f, a, 1, 1, "started", "{}"));
    CHECK(puppet_event(
        &f, a, 1, 2, "ended",
        "{'status':'succeeded','cause':'done','peaks':[{'device':'cuda:2','bytes':1073741824},"
        "{'device':'cuda:1','bytes':3221225472}]}"));
    json_t *graph = small_graph(1), *doc;
    CHECK_OK(core_budget_hint(s.core, graph, 2, &doc, &s.e), &s.e);
    CHECK_EQ(json_get_i64(json_object_get(doc, "measured"), "peak_bytes", 0), INT64_C(3) << 30);
    json_decref(doc);
    CHECK_OK(core_budget_hint(s.core, graph, 1, &doc, &s.e), &s.e);
    CHECK(json_is_null(json_object_get(doc, "measured")));
    json_decref(doc);
    json_decref(graph);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    children_spread, "R10 R18 R5: under any each child takes the next free card; this server last; "
                     "each says where it is")
{
    struct stage s;
    struct puppet f, g, own;
    json_t *graph = small_graph(1), *options = J("{'device':'cuda','target':{'worker':'any'}}");
    struct core_submission x[4];
    char ids[4][33];
    stage_open(&s, 1);
    puppet_open(&f, &s, "a", 1, 24);
    puppet_open(&g, &s, "b", 1, 24);
    puppet_open(&own, &s, "local", 1, 24);
    CHECK(puppet_connect(&own) && puppet_connect(&g) && puppet_connect(&f));
    for (int i = 0; i < 4; i++)
        x[i] = (struct core_submission){
            .graph = graph, .options = options, .variant = i, .repetition = -1};
    CHECK_OK(core_submit_all(s.core, &s.person, x, 4, NULL, NULL, s.now, ids, &s.e), &s.e);
    (void)core_tick(s.core, s.now);
    CHECK_STR(field(&s, ids[0], "worker"), "a");
    CHECK_STR(field(&s, ids[1], "worker"), "b");
    CHECK_STR(field(&s, ids[2], "worker"), "local");
    CHECK_STR(field(&s, ids[3], "state"), "waiting");
    CHECK_STR(field(&s, ids[0], "queue_key"), "a/cuda:0");
    CHECK_STR(field(&s, ids[2], "queue_key"), "cuda:0");
    CHECK_STR(field(&s, ids[1], "devices.0"), "cuda:0");
    json_decref(graph);
    json_decref(options);
    puppet_close(&f);
    puppet_close(&g);
    puppet_close(&own);
    stage_close(&s);
}

TEST(
    unknown_workers_are_refused,
    "R5: a worker that has not connected since the server started is refused; offline later waits")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    CHECK(!box(&s, 1, ""));
    CHECK(strstr(s.e.text, "box"));
    puppet_open(&f, &s, "box", 1, 24);
    CHECK(puppet_connect(&f));
    CHECK(box(&s, 1, ""));
    CHECK(!submit(&s, "{'target':{'worker':'box','devices':['cuda:5']}}"));
    CHECK(strstr(s.e.text, "box does not offer cuda:5 (it offers cpu, cuda:0)"));
    stage_pass(&s, 60);
    CHECK(box(&s, 1, "")); /* offline: it waits */
    stage_restart(&s);
    CHECK(!box(&s, 1, ""));
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    one_card_two_providers,
    "R9 W3: a card of this server and of a worker counts once; the panel names the other")
{
    struct stage s;
    struct puppet f, own;
    json_t *doc;
    stage_open(&s, 1);
    puppet_open(&own, &s, "local", 1, 24);
    puppet_open(&f, &s, "box", 1, 24);
    json_put_str(json_array_get(json_object_get(f.hello, "devices"), 1), "uuid", "own-0");
    CHECK(puppet_connect(&own) && puppet_connect(&f));
    const char *a = submit(&s, "{'device':'cuda:0'}");
    CHECK_STR(field(&s, a, "state"), "assigned");
    const char *b = box(&s, 1, "");
    CHECK_STR(field(&s, b, "state"), "waiting");
    CHECK_OK(core_worker(s.core, "box", s.now, &doc, &s.e), &s.e);
    const json_t *card = json_array_get(json_object_get(doc, "devices"), 1);
    CHECK_STR(json_string_value(json_array_get(json_object_get(card, "same_card_as"), 0)), "local");
    CHECK_EQ(json_get_i64(json_object_get(card, "slots"), "used", 0), 1);
    CHECK_EQ(json_get_i64(json_object_get(card, "slots"), "limit", 0), 1);
    json_decref(doc);
    puppet_close(&f);
    puppet_close(&own);
    stage_close(&s);
}

TEST(
    idle_canvas_children_leave, "R1 B5: an idle child of a tab is in the ledger and is sent away "
                                "when a queued run needs its card")
{
    struct stage s;
    struct puppet f;
    json_t *report, *reply, *doc;
    stage_open(&s, 1);
    puppet_open(&f, &s, "local", 1, 24);
    CHECK(puppet_connect(&f));
    CHECK_OK(core_card_mode(s.core, "local", "cuda:0", "shared", s.now, &s.e), &s.e);
    report = J("{'heartbeat':true,'caches':[{'tab':'t1','idle':true,'devices':[{'device':'cuda:0',"
               "'bytes':4294967296}]}]}");
    json_put_str(report, "session", f.session);
    json_object_set(report, "devices", json_object_get(f.hello, "devices"));
    CHECK_OK(core_agent_report(s.core, &f.who, report, s.now, &reply, &s.e), &s.e);
    json_decref(report);
    json_decref(reply);
    (void)core_tick(s.core, s.now);
    CHECK_OK(core_worker(s.core, "local", s.now, &doc, &s.e), &s.e);
    const json_t *memory =
        json_object_get(json_array_get(json_object_get(doc, "devices"), 1), "memory");
    CHECK(json_get_i64(memory, "running_bytes", 0) >= INT64_C(4) << 30);
    json_decref(doc);
    CHECK(submit(&s, "{'device':'cuda:0','target':{'memory_gib':21,'wait':true}}"));
    json_t *order = puppet_order(&f, "evict");
    CHECK(order);
    CHECK_STR(json_get_str(json_object_get(order, "body"), "tab", ""), "t1");
    CHECK_STR(json_get_str(json_object_get(order, "body"), "what", ""), "child");
    json_decref(order);
    puppet_close(&f);
    stage_close(&s);
}

static char lowered[256];
static void hear(enum log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == LOG_WARN && strstr(text, "lowered"))
        (void)snprintf(lowered, sizeof lowered, "%s", text);
}

TEST(
    lowered_overrides_are_logged,
    "R8 R9: an override that another provider of the card lowers is logged at connection")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 1);
    core_close(s.core);
    s.config.limits = "box/cuda:0=3";
    CHECK_OK(core_open(s.store, &s.config, &s.hooks, s.now, &s.core, &s.e), &s.e);
    log_sink_set(hear, NULL);
    struct puppet own;
    puppet_open(&own, &s, "local", 1, 24);
    puppet_open(&f, &s, "box", 1, 24);
    json_put_str(json_array_get(json_object_get(f.hello, "devices"), 1), "uuid", "own-0");
    CHECK(puppet_connect(&own) && puppet_connect(&f));
    log_sink_set(NULL, NULL);
    CHECK(strstr(lowered, "the limit 3 of box/cuda:0 is lowered to 1, that of local"));
    lowered[0] = 0; /* the other way round: who was there first is lowered by who comes */
    core_close(s.core);
    CHECK_OK(core_open(s.store, &s.config, &s.hooks, s.now, &s.core, &s.e), &s.e);
    log_sink_set(hear, NULL);
    CHECK(puppet_connect(&f) && !lowered[0]);
    CHECK(puppet_connect(&own));
    log_sink_set(NULL, NULL);
    CHECK(strstr(lowered, "the limit 3 of box/cuda:0 is lowered to 1, that of local"));
    puppet_close(&f);
    puppet_close(&own);
    stage_close(&s);
}
