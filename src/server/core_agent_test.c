/* core_agent_test.c - agents that come, go, lie, repeat themselves and return. */
#include "server/core_test_support.h"

#include "test.h"

#include <string.h>

static size_t order_count(struct puppet *f, const char *type)
{
    json_t *list = puppet_orders(f), *one;
    size_t i, n = 0;
    json_array_foreach(list, i, one) n += strcmp(json_get_str(one, "type", ""), type) == 0;
    json_decref(list);
    return n;
}

static void put_run(struct puppet *f, const char *run, int64_t epoch, const char *state)
{
    json_t *r = json_object();
    json_put_str(r, "run_id", run);
    json_put_i64(r, "epoch", epoch);
    json_put_str(r, "state", state);
    json_array_append_new(json_object_get(f->hello, "runs"), r);
}

static const json_t *verdict_of(const struct puppet *f, const char *run)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(f->welcome, "runs"), i, one)
    {
        if (strcmp(json_get_str(one, "run_id", ""), run) == 0)
            return one;
    }
    return NULL;
}

TEST(
    repeated_and_reordered_events,
    "promise-P12 promise-P10: each event once and in order; other epochs are fenced")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    const char *run = submit(&s, NULL);
    CHECK_EQ(puppet_start(&f, run), 1);
    CHECK(puppet_event(&f, run, 1, 2, "execution_start", "{}"));
    CHECK(puppet_event(&f, run, 1, 2, "execution_start", "{}"));   /* again */
    CHECK(puppet_event(&f, run, 1, 4, "log", "{'text':'later'}")); /* a gap: not taken */
    CHECK_STR(field(&s, run, "last_cursor"), "1");
    CHECK(puppet_event(&f, run, 1, 3, "log", "{'text':'a'}"));
    CHECK(puppet_event(&f, run, 1, 4, "log", "{'text':'later'}"));
    CHECK_STR(field(&s, run, "last_cursor"), "3");
    CHECK(!puppet_event(&f, run, 0, 5, "log", "{}"));
    CHECK(!puppet_event(&f, run, 2, 1, "ended", "{'status':'succeeded'}"));
    CHECK_STR(field(&s, run, "status"), "running");
    CHECK(puppet_event(&f, run, 1, 5, "nonsense", "{}")); /* of a later version: counted */
    CHECK(puppet_event(&f, run, 1, 6, "ended", "{'status':'succeeded','cause':'done'}"));
    CHECK_STR(field(&s, run, "status"), "succeeded");
    CHECK(!puppet_event(&f, run, 1, 7, "log", "{}")); /* promise-P3: nothing after the end */
    CHECK_STR(field(&s, run, "last_cursor"), "4");
    puppet_close(&f);
    stage_close(&s);
}

TEST(another_worker_cannot_report, "promise-P12: events of a run come from the worker that has it")
{
    struct stage s;
    struct puppet f, g;
    stage_open(&s, 0);
    puppet_open(&f, &s, "local", 0, 0);
    puppet_open(&g, &s, "box", 0, 0);
    CHECK(puppet_connect(&f) && puppet_connect(&g));
    const char *run = submit(&s, NULL);
    CHECK_EQ(puppet_start(&f, run), 1);
    CHECK(!puppet_event(&g, run, 1, 2, "ended", "{'status':'failed'}"));
    CHECK_STR(field(&s, run, "status"), "running");
    puppet_close(&f);
    puppet_close(&g);
    stage_close(&s);
}

TEST(
    server_restart_adopts,
    "W7 promise-P11 promise-P1 case-F1 case-F21: running runs go on, queued ones stay queued")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 1);
    puppet_open(&f, &s, "local", 1, 24);
    CHECK(puppet_connect(&f));
    char a[33], b[33];
    (void)snprintf(a, sizeof a, "%s", submit(&s, "{'device':'cuda:0'}"));
    (void)snprintf(b, sizeof b, "%s", submit(&s, "{'device':'cuda:0'}"));
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK(puppet_event(&f, a, 1, 2, "execution_start", "{}"));
    stage_restart(&s);
    CHECK_STR(field(&s, a, "status"), "running");
    CHECK_STR(field(&s, a, "contact"), "false");
    CHECK_STR(field(&s, b, "state"), "waiting");
    json_t *reply;
    CHECK_EQ(core_agent_orders(s.core, &f.who, f.session, 0, s.now, &reply, &s.e), ST_GONE);
    put_run(&f, a, 1, "live");
    CHECK(puppet_connect(&f));
    const json_t *v = verdict_of(&f, a);
    CHECK_STR(json_get_str(v, "action", ""), "keep");
    CHECK_EQ(json_get_i64(v, "sequence", 0), 2);
    CHECK_STR(field(&s, b, "state"), "waiting");
    CHECK_EQ(order_count(&f, "start"), 0);
    CHECK(puppet_event(&f, a, 1, 3, "execution_complete", "{}"));
    CHECK(puppet_event(&f, a, 1, 4, "ended", "{'status':'succeeded','cause':'done'}"));
    CHECK_STR(field(&s, a, "status"), "succeeded");
    CHECK_STR(field(&s, a, "last_cursor"), "2");
    CHECK_EQ(order_count(&f, "start"), 1);
    puppet_close(&f);
    stage_close(&s);
}

TEST(a_log_is_closed_once, "promise-P3: after a restart the last event is not written twice")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    char a[33];
    (void)snprintf(a, sizeof a, "%s", submit(&s, NULL));
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK(puppet_event(&f, a, 1, 2, "execution_complete", "{}"));
    stage_restart(&s);
    put_run(&f, a, 1, "ended");
    CHECK(puppet_connect(&f));
    CHECK(puppet_event(&f, a, 1, 3, "ended", "{'status':'succeeded','cause':'done'}"));
    CHECK_STR(field(&s, a, "last_cursor"), "1");
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    a_start_is_ordered_again,
    "case-Q21 promise-P2: a start that the agent never got is ordered again, with the same epoch")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    char a[33];
    (void)snprintf(a, sizeof a, "%s", submit(&s, NULL));
    json_decref(puppet_orders(&f)); /* handed out, and lost on the way */
    stage_restart(&s);
    CHECK_STR(field(&s, a, "state"), "assigned");
    CHECK(puppet_connect(&f));
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK_STR(field(&s, a, "status"), "running");
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    silence_ends_runs_after_the_grace, "W7 promise-P10 case-F19 case-F23: no contact is said, then "
                                       "interrupted; the old agent is fenced")
{
    struct stage s;
    struct puppet f, own;
    stage_open(&s, 0);
    puppet_open(&own, &s, "local", 0, 0);
    puppet_open(&f, &s, "box", 1, 24);
    CHECK(puppet_connect(&f));
    char a[33];
    (void)snprintf(
        a, sizeof a, "%s", submit(&s, "{'target':{'worker':'box','devices':['cuda:0']}}"));
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK(json_get_f64(f.welcome, "lease_s", 1e9) < s.config.grace_s);
    stage_pass(&s, 60);
    CHECK_STR(field(&s, a, "status"), "running");
    CHECK(strstr(field(&s, a, "reason"), "no contact with worker \"box\""));
    stage_pass(&s, 230);
    CHECK_STR(field(&s, a, "status"), "running");
    stage_pass(&s, 20);
    CHECK_STR(field(&s, a, "status"), "interrupted");
    CHECK_STR(field(&s, a, "cause"), "agent_lost");
    CHECK(strstr(field(&s, a, "error"), "\"box\" was out of reach"));
    /* It wakes up and does not know yet. */
    CHECK(!puppet_event(&f, a, 1, 2, "ended", "{'status':'succeeded','cause':'done'}"));
    CHECK_STR(field(&s, a, "status"), "interrupted");
    put_run(&f, a, 1, "live");
    CHECK(puppet_connect(&f));
    CHECK_STR(json_get_str(verdict_of(&f, a), "action", ""), "forget");
    puppet_close(&f);
    puppet_close(&own);
    stage_close(&s);
}

TEST(
    back_within_the_grace,
    "W7 promise-P10 case-F13 case-F17: an agent that returns keeps its runs; its queue wakes")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "box", 1, 24);
    CHECK(puppet_connect(&f));
    char a[33], b[33];
    const char *options = "{'target':{'worker':'box','devices':['cuda:0']}}";
    (void)snprintf(a, sizeof a, "%s", submit(&s, options));
    CHECK_EQ(puppet_start(&f, a), 1);
    stage_pass(&s, 200);
    (void)snprintf(b, sizeof b, "%s", submit(&s, options)); /* offline: it waits */
    CHECK(b[0]);
    CHECK(strstr(field(&s, b, "reason"), "box"));
    put_run(&f, a, 1, "live");
    CHECK(puppet_connect(&f));
    CHECK(puppet_event(&f, a, 1, 2, "ended", "{'status':'failed','cause':'graph_error'}"));
    CHECK_STR(field(&s, a, "status"), "failed");
    CHECK_EQ(puppet_start(&f, b), 1);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    an_agent_that_lost_its_run,
    "case-F25: a run that its agent does not know any more ends as interrupted")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    const char *a = submit(&s, NULL);
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK(puppet_connect(&f));
    CHECK_STR(field(&s, a, "status"), "interrupted");
    CHECK_STR(field(&s, a, "cause"), "child_lost");
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    not_handed_out_goes_elsewhere,
    "R5: a run whose start never left for a silent agent goes back to its place in the queue")
{
    struct stage s;
    struct puppet f, g;
    stage_open(&s, 0);
    puppet_open(&f, &s, "a-box", 1, 24);
    puppet_open(&g, &s, "b-box", 1, 24);
    CHECK(puppet_connect(&f) && puppet_connect(&g));
    char x[33], y[33];
    const char *any = "{'device':'cuda','target':{'worker':'any'}}";
    (void)snprintf(x, sizeof x, "%s", submit(&s, any));
    CHECK_STR(field(&s, x, "worker"), "a-box");
    (void)snprintf(y, sizeof y, "%s", submit(&s, any));
    CHECK_EQ(puppet_start(&g, y), 1);
    for (int i = 0; i < 4; i++) {
        stage_pass(&s, 10);
        puppet_heartbeat(&g);
    }
    CHECK_STR(field(&s, x, "state"), "waiting");
    puppet_end(&g, y, 1, "succeeded");
    CHECK_STR(field(&s, x, "worker"), "b-box");
    CHECK_EQ(puppet_start(&g, x), 2); /* promise-P2: another attempt, another epoch */
    puppet_close(&f);
    puppet_close(&g);
    stage_close(&s);
}

TEST(
    versions_must_match,
    "W4 case-F9: another version is refused before anything changes, and listed")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "old-box", 1, 24);
    json_put_str(f.hello, "version", "0.9");
    CHECK(!puppet_connect(&f));
    CHECK_EQ(s.e.status, ST_CONFLICT);
    CHECK(strstr(s.e.text, "version 0.9 is not the server's (1.0)"));
    json_t *doc = core_workers(s.core, s.now);
    const json_t *refused = json_array_get(json_object_get(doc, "refused"), 0);
    CHECK_STR(json_get_str(refused, "name", ""), "old-box");
    CHECK_STR(json_get_str(refused, "version", ""), "0.9");
    CHECK_EQ(json_array_size(json_object_get(doc, "workers")), 0);
    json_decref(doc);
    json_put_str(f.hello, "version", "1.0");
    CHECK(puppet_connect(&f)); /* updated: not refused any more */
    doc = core_workers(s.core, s.now);
    CHECK_EQ(json_array_size(json_object_get(doc, "refused")), 0);
    CHECK_EQ(json_array_size(json_object_get(doc, "workers")), 1);
    json_decref(doc);
    json_put_str(f.hello, "version", "0.9"); /* with a card of its own: the reason stands there */
    CHECK(!puppet_connect(&f));
    CHECK_OK(core_worker(s.core, "old-box", s.now, &doc, &s.e), &s.e);
    CHECK(strstr(json_get_str(doc, "last_refusal", ""), "version 0.9"));
    json_decref(doc);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    one_identity_one_agent,
    "case-Q13 promise-P12: a second agent of a name is refused, the first unharmed")
{
    struct stage s;
    struct puppet f, g;
    stage_open(&s, 0);
    puppet_open(&f, &s, "box", 1, 24);
    puppet_open(&g, &s, "box", 1, 24);
    json_put_str(f.hello, "secret", "home-1");
    json_put_str(g.hello, "secret", "home-2");
    (void)snprintf(g.instance, sizeof g.instance, "another");
    CHECK(puppet_connect(&f));
    CHECK(!puppet_connect(&g));
    CHECK_EQ(s.e.status, ST_CONFLICT);
    CHECK(strstr(s.e.text, "another agent is connected as \"box\""));
    puppet_heartbeat(&f);
    /* From the same SNUG_HOME there is one at a time: it follows its dead predecessor at once. */
    (void)snprintf(f.instance, sizeof f.instance, "born-again");
    CHECK(puppet_connect(&f));
    stage_pass(&s, 40); /* out of reach: its name is free for the other */
    CHECK(puppet_connect(&g));
    puppet_close(&f);
    puppet_close(&g);
    stage_close(&s);
}

TEST(
    who_may_be_a_worker,
    "H1 W6: credentials belong to one worker; keys and pages are none; local is ours")
{
    struct stage s;
    struct puppet f;
    char id[33];
    stage_open(&s, 0);
    CHECK_OK(core_worker_add(s.core, "box", "", s.now, id, &s.e), &s.e);
    CHECK_EQ(core_worker_add(s.core, "box", "", s.now, id, &s.e), ST_CONFLICT);
    puppet_open(&f, &s, "box", 1, 24);
    f.who = s.person;
    CHECK(!puppet_connect(&f));
    CHECK_EQ(s.e.status, ST_DENIED);
    f.who = (struct actor){.role = ROLE_WORKER, .name = "other", .id = "0123"};
    CHECK(!puppet_connect(&f)); /* somebody else's credential */
    f.who = s.owner;
    CHECK(!puppet_connect(&f)); /* the session token is not its credential */
    json_t *doc;
    CHECK_OK(core_worker(s.core, "box", s.now, &doc, &s.e), &s.e);
    f.who = (struct actor){.role = ROLE_WORKER, .name = "box"};
    (void)snprintf(f.who.id, sizeof f.who.id, "%s", json_get_str(doc, "worker_id", ""));
    json_decref(doc);
    CHECK(puppet_connect(&f));
    struct actor own = f.who;
    json_t *reply;
    f.who.id[0] = 'x';
    CHECK_EQ(core_agent_orders(s.core, &f.who, f.session, 0, s.now, &reply, &s.e), ST_DENIED);
    f.who = own;
    stage_restart(&s); /* still its own */
    CHECK(puppet_connect(&f));
    puppet_close(&f);
    puppet_open(&f, &s, "local", 0, 0);
    json_put_str(f.hello, "secret", "elsewhere");
    CHECK(!puppet_connect(&f));
    puppet_close(&f);
    puppet_open(&f, &s, "any", 0, 0);
    CHECK(!puppet_connect(&f));
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    degraded_workers_say_why,
    "W3: late heartbeats and differing node types; online, draining, disconnected, disabled")
{
    struct stage s;
    struct puppet f;
    json_t *doc;
    stage_open(&s, 0);
    puppet_open(&f, &s, "box", 1, 24);
    json_put_str(f.hello, "nodes_hash", "other");
    json_put(f.hello, "node_types", J("['A','Extra']"));
    CHECK(puppet_connect(&f));
    CHECK_OK(core_worker(s.core, "box", s.now, &doc, &s.e), &s.e);
    CHECK_STR(json_get_str(doc, "state", ""), "degraded");
    CHECK(strstr(json_get_str(doc, "reason", ""), "node types differ"));
    CHECK(
        json_array_size(json_object_get(json_object_get(doc, "node_types_differ"), "extra")) == 2);
    json_decref(doc);
    json_put_str(f.hello, "nodes_hash", "hash");
    CHECK(puppet_connect(&f));
    CHECK_OK(core_worker(s.core, "box", s.now, &doc, &s.e), &s.e);
    CHECK_STR(json_get_str(doc, "state", ""), "online");
    CHECK(json_get_bool(doc, "version_matches", false));
    json_decref(doc);
    stage_pass(&s, 22);
    CHECK_OK(core_worker(s.core, "box", s.now, &doc, &s.e), &s.e);
    CHECK_STR(json_get_str(doc, "state", ""), "degraded");
    CHECK(strstr(json_get_str(doc, "reason", ""), "last heartbeat was 22 s ago"));
    json_decref(doc);
    puppet_heartbeat(&f);
    CHECK_OK(core_worker_drain(s.core, "box", true, s.now, &s.e), &s.e);
    CHECK_OK(core_worker(s.core, "box", s.now, &doc, &s.e), &s.e);
    CHECK_STR(json_get_str(doc, "state", ""), "draining");
    json_decref(doc);
    stage_restart(&s); /* draining is kept */
    CHECK_OK(core_worker(s.core, "box", s.now, &doc, &s.e), &s.e);
    CHECK_STR(json_get_str(doc, "state", ""), "disconnected");
    CHECK(json_get_bool(doc, "draining", false));
    CHECK(json_is_true(
        json_object_get(json_array_get(json_object_get(doc, "devices"), 1), "as_last_reported")));
    json_decref(doc);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    draining_keeps_what_runs,
    "W5 R5: no new run goes to a draining worker, running ones finish, waiting ones say why")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "box", 1, 24);
    CHECK(puppet_connect(&f));
    const char *any = "{'device':'cuda','target':{'worker':'any'}}";
    char a[33], b[33];
    (void)snprintf(a, sizeof a, "%s", submit(&s, any));
    CHECK_EQ(puppet_start(&f, a), 1);
    (void)snprintf(b, sizeof b, "%s", submit(&s, any));
    CHECK_OK(core_worker_drain(s.core, "box", true, s.now, &s.e), &s.e);
    (void)core_tick(s.core, s.now);
    CHECK(strstr(field(&s, b, "reason"), "drain"));
    puppet_end(&f, a, 1, "succeeded");
    CHECK_STR(field(&s, a, "status"), "succeeded");
    CHECK_STR(field(&s, b, "state"), "waiting");
    CHECK_OK(core_worker_drain(s.core, "box", false, s.now, &s.e), &s.e);
    (void)core_tick(s.core, s.now);
    CHECK_EQ(puppet_start(&f, b), 1);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    removing_a_worker,
    "W6 case-F5: asks twice while runs live; what waited for it fails, its runs are interrupted")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "box", 1, 24);
    CHECK(puppet_connect(&f));
    const char *named = "{'target':{'worker':'box','devices':['cuda:0']}}";
    char a[33], b[33];
    (void)snprintf(a, sizeof a, "%s", submit(&s, named));
    CHECK_EQ(puppet_start(&f, a), 1);
    (void)snprintf(b, sizeof b, "%s", submit(&s, named));
    CHECK_EQ(core_worker_remove(s.core, "box", false, s.now, &s.e), ST_CONFLICT);
    CHECK(strstr(s.e.text, "has 1 run"));
    CHECK_OK(core_worker_remove(s.core, "box", true, s.now, &s.e), &s.e);
    CHECK_STR(field(&s, a, "status"), "interrupted");
    CHECK_STR(field(&s, b, "status"), "failed");
    CHECK_STR(field(&s, b, "cause"), "worker_removed");
    json_t *reply;
    CHECK_EQ(core_agent_orders(s.core, &f.who, f.session, 0, s.now, &reply, &s.e), ST_GONE);
    CHECK_EQ(core_worker_remove(s.core, "box", true, s.now, &s.e), ST_NOT_FOUND);
    CHECK_EQ(core_worker_remove(s.core, "local", true, s.now, &s.e), ST_INVALID);
    CHECK(!submit(&s, named));
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    disabled_workers_are_refused,
    "W3 W6 R3: disabling sends the agent away until it is enabled again")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "box", 1, 24);
    CHECK(puppet_connect(&f));
    CHECK_OK(core_worker_enable(s.core, "box", false, false, s.now, &s.e), &s.e);
    CHECK_EQ(order_count(&f, "exit"), 1);
    CHECK_OK(core_agent_leave(s.core, &f.who, f.session, s.now, &s.e), &s.e);
    CHECK(!puppet_connect(&f));
    CHECK_EQ(s.e.status, ST_DENIED);
    CHECK(!submit(&s, "{'target':{'worker':'box','devices':['cuda:0']}}"));
    CHECK_OK(core_worker_enable(s.core, "box", true, false, s.now, &s.e), &s.e);
    CHECK(puppet_connect(&f));
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    a_shared_credential,
    "R15: instances of one credential have names of their own, and are not listed once they left")
{
    struct stage s;
    struct puppet f, g;
    char id[33];
    stage_open(&s, 0);
    CHECK_OK(core_worker_add(s.core, "farm", "", s.now, id, &s.e), &s.e);
    puppet_open(&f, &s, "farm-1", 1, 24);
    puppet_open(&g, &s, "farm-2", 1, 24);
    f.who = g.who = (struct actor){.role = ROLE_WORKER, .name = "farm"};
    (void)snprintf(f.who.id, sizeof f.who.id, "%s", id);
    g.who = f.who;
    CHECK(puppet_connect(&f) && puppet_connect(&g));
    json_t *doc = core_workers(s.core, s.now);
    CHECK_EQ(json_array_size(json_object_get(doc, "workers")), 3);
    json_decref(doc);
    CHECK_OK(core_agent_leave(s.core, &g.who, g.session, s.now, &s.e), &s.e);
    doc = core_workers(s.core, s.now);
    CHECK_EQ(json_array_size(json_object_get(doc, "workers")), 2);
    json_decref(doc);
    stage_restart(&s); /* and the next server knows whose they are */
    CHECK(puppet_connect(&g));
    doc = core_workers(s.core, s.now);
    CHECK_EQ(json_array_size(json_object_get(doc, "workers")), 2); /* farm, farm-2 */
    json_decref(doc);
    puppet_close(&f);
    puppet_close(&g);
    stage_close(&s);
}

TEST(
    one_shot_workers,
    "W9 R5 B7: a one-shot worker takes one run of its pool, and is not listed once it left")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "shot", 1, 24);
    json_put_bool(f.hello, "one_shot", true);
    json_put_str(f.hello, "pool", "night");
    CHECK(puppet_connect(&f));
    const char *any = submit(&s, "{'device':'cuda','target':{'worker':'any','wait':true}}");
    CHECK(!any || strcmp(field(&s, any, "state"), "waiting") == 0);
    char a[33], b[33];
    (void)snprintf(a, sizeof a, "%s", submit(&s, "{'device':'cuda','target':{'pool':'night'}}"));
    (void)snprintf(b, sizeof b, "%s", submit(&s, "{'device':'cuda','target':{'pool':'night'}}"));
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK_STR(field(&s, a, "worker"), "shot");
    puppet_end(&f, a, 1, "succeeded");
    CHECK_STR(field(&s, b, "state"), "waiting");
    CHECK_OK(core_agent_leave(s.core, &f.who, f.session, s.now, &s.e), &s.e);
    json_t *doc = core_workers(s.core, s.now);
    CHECK_EQ(json_array_size(json_object_get(doc, "workers")), 0);
    json_decref(doc);
    (void)snprintf(f.instance, sizeof f.instance, "next");
    CHECK(puppet_connect(&f));
    CHECK_EQ(puppet_start(&f, b), 1);
    char c[33];
    (void)snprintf(c, sizeof c, "%s", submit(&s, "{'device':'cuda','target':{'pool':'night'}}"));
    stage_restart(&s); /* it has its run: the next one is not for it */
    put_run(&f, b, 1, "live");
    CHECK(puppet_connect(&f));
    puppet_end(&f, b, 1, "succeeded");
    CHECK_STR(field(&s, c, "state"), "waiting");
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    questions_reach_the_agent,
    "W9 R11: what is asked about a run goes to its agent; the answer is handed out once")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 0);
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    char request[33], run[33];
    int status;
    json_t *question = J("{'what':'log'}"), *body, *reply;
    (void)snprintf(run, sizeof run, "%s", submit(&s, NULL));
    CHECK_EQ(puppet_start(&f, run), 1);
    CHECK_OK(core_ask(s.core, run, question, s.now, request, &s.e), &s.e);
    CHECK(!core_answer(s.core, request, &status, &body));
    json_t *order = puppet_order(&f, "read");
    CHECK_STR(json_get_str(order, "request", ""), request);
    CHECK_STR(json_get_str(order, "run_id", ""), run);
    json_decref(order);
    json_t *report = J("{'answers':[{'status':200,'body':{'text':'hello'}}]}");
    json_put_str(report, "session", f.session);
    json_put_str(json_array_get(json_object_get(report, "answers"), 0), "request", request);
    CHECK_OK(core_agent_report(s.core, &f.who, report, s.now, &reply, &s.e), &s.e);
    json_decref(reply);
    CHECK(core_answer(s.core, request, &status, &body));
    CHECK_EQ(status, 200);
    CHECK_STR(json_get_str(body, "text", ""), "hello");
    json_decref(body);
    CHECK(!core_answer(s.core, request, &status, &body));
    CHECK_OK(core_ask(s.core, run, question, s.now, request, &s.e), &s.e);
    for (int i = 0; i < 3; i++) {
        stage_pass(&s, 11);
        puppet_heartbeat(&f);
    }
    CHECK(core_answer(s.core, request, &status, &body)); /* nobody answered */
    CHECK_EQ(status, 504);
    json_decref(body);
    CHECK_EQ(
        core_ask(s.core, "00000000000000000000000000000000", question, s.now, request, &s.e),
        ST_NOT_FOUND);
    json_decref(question);
    json_decref(report);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    overtaken_hello,
    "promise-P10 promise-P12: a hello that waited while a later one was answered changes nothing")
{
    struct stage s;
    struct puppet f;
    struct err e = {0};
    char a[33];
    stage_open(&s, 0);
    puppet_open(&f, &s, "box", 1, 24);
    json_put_i64(f.hello, "boot", 7);
    json_put_i64(f.hello, "sent_ns", 100);
    json_t *early = json_deep_copy(f.hello), *welcome = NULL;
    json_put_i64(early, "sent_ns", 50);
    CHECK(puppet_connect(&f));
    (void)snprintf(
        a, sizeof a, "%s", submit(&s, "{'target':{'worker':'box','devices':['cuda:0']}}"));
    CHECK_EQ(puppet_start(&f, a), 1);
    CHECK(core_agent_connect(s.core, &f.who, early, s.now, &welcome, &e) == ST_CONFLICT);
    CHECK_STR(field(&s, a, "status"), "running");
    json_put_i64(early, "sent_ns", 100); /* the same once more */
    CHECK(core_agent_connect(s.core, &f.who, early, s.now, &welcome, &e) == ST_CONFLICT);
    CHECK_STR(field(&s, a, "status"), "running");
    json_put_i64(f.hello, "boot", 8); /* the machine started anew: its clock did too */
    json_put_i64(f.hello, "sent_ns", 1);
    CHECK(puppet_connect(&f));
    json_decref(early);
    puppet_close(&f);
    stage_close(&s);
}
