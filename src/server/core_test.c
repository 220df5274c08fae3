/* core_test.c - submission, queue, order, events and end, with agents that only talk. */
#include "server/core_test_support.h"

#include "test.h"

#include <string.h>

TEST(a_run_goes_through, "R2 R11: submitted, queued, ordered, started, its events, its end")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 1);
    puppet_open(&f, &s, "local", 1, 24);
    CHECK(puppet_connect(&f));
    const char *run = submit(&s, "{'device':'cuda:0','seed':7}");
    CHECK(run);
    CHECK_STR(field(&s, run, "status"), "queued");
    CHECK_STR(field(&s, run, "state"), "assigned");
    CHECK_STR(field(&s, run, "queue_key"), "cuda:0");

    json_t *order = puppet_order(&f, "start");
    CHECK(order);
    const json_t *body = json_object_get(order, "body");
    CHECK_STR(json_get_str(body, "run_id", ""), run);
    CHECK_EQ(json_get_i64(json_object_get(body, "options"), "seed", 0), 7);
    CHECK_STR(json_string_value(json_array_get(json_object_get(body, "devices"), 0)), "cuda:0");
    CHECK_STR(json_string_value(json_array_get(json_object_get(body, "uuids"), 0)), "own-0");
    CHECK(json_array_size(json_object_get(json_object_get(body, "graph"), "nodes")) == 3);
    CHECK_EQ(json_get_i64(order, "epoch", 0), 1);
    json_decref(order);

    CHECK(
        puppet_event(&f, run, 1, 1, "started", "{'pid':1,'facts':{'visible_devices':['cuda:0']}}"));
    CHECK_STR(field(&s, run, "status"), "running");
    CHECK(puppet_event(&f, run, 1, 2, "execution_start", "{}"));
    CHECK(puppet_event(
        &f, run, 1, 3, "metric",
        "{'points':[{'name':'train_loss','value':0.5,'step':1,'node_id':'loop'}]}"));
    CHECK(puppet_event(&f, run, 1, 4, "execution_complete", "{}"));
    CHECK(puppet_event(
        &f, run, 1, 5, "ended",
        "{'status':'succeeded','cause':'done','peaks':[{'device':'cuda:0','bytes':1073741824}]}"));
    CHECK_STR(field(&s, run, "status"), "succeeded");
    CHECK_STR(field(&s, run, "execution_facts.visible_devices.0"), "cuda:0");
    CHECK_STR(field(&s, run, "final_metrics.train_loss"), "0.5");
    CHECK_STR(field(&s, run, "peaks.0.bytes"), "1073741824");
    CHECK_STR(field(&s, run, "last_cursor"), "3");

    json_t *page;
    CHECK_OK(core_events(s.core, run, 0, 500, &page, &s.e), &s.e);
    const json_t *events = json_object_get(page, "events");
    CHECK_EQ(json_array_size(events), 3);
    for (size_t i = 0; i < 3; i++)
        CHECK_EQ(json_get_i64(json_array_get(events, i), "cursor", 0), i + 1);
    CHECK_STR(json_get_str(json_array_get(events, 2), "type", ""), "execution_complete");
    CHECK(!json_get_bool(page, "active", true));
    json_decref(page);

    order = puppet_order(&f, "forget");
    CHECK(order && strcmp(json_get_str(order, "run_id", ""), run) == 0);
    json_decref(order);
    CHECK(strstr(s.said, "succeeded done"));
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    one_run_per_card,
    "R7 D3 promise-P6: one run a card, others wait in order; a card does not delay another")
{
    struct stage s;
    struct puppet f;
    stage_open(&s, 2);
    puppet_open(&f, &s, "local", 2, 24);
    CHECK(puppet_connect(&f));
    const char *a = submit(&s, "{'device':'cuda:0'}");
    const char *b = submit(&s, "{'device':'cuda:0'}");
    const char *c = submit(&s, "{'device':'cuda:0'}");
    const char *d = submit(&s, "{'device':'cuda:1'}");
    CHECK_STR(field(&s, a, "state"), "assigned");
    CHECK_STR(field(&s, b, "state"), "waiting");
    CHECK_STR(field(&s, d, "state"), "assigned");
    CHECK_STR(field(&s, b, "queue_position"), "1");
    CHECK_STR(field(&s, c, "queue_position"), "2");
    CHECK(*field(&s, c, "reason"));
    json_decref(puppet_orders(&f));
    CHECK(puppet_event(&f, a, 1, 1, "started", "{}"));
    puppet_end(&f, a, 1, "succeeded");
    CHECK_STR(field(&s, b, "state"), "assigned");
    CHECK_STR(field(&s, c, "state"), "waiting");
    puppet_close(&f);
    stage_close(&s);
}
