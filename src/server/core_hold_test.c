/* core_hold_test.c - cards that are not free although nobody who is there says so. */
#include "server/core_test_support.h"

#include "test.h"

#include <string.h>

static void set_uuid(struct puppet *f, const char *uuid)
{
    json_put_str(json_array_get(json_object_get(f->hello, "devices"), 1), "uuid", uuid);
}

static void has_live(struct puppet *f, const char *run, int64_t epoch, int64_t sequence)
{
    json_t *one = json_object(), *runs = json_array();
    json_put_str(one, "run_id", run);
    json_put_i64(one, "epoch", epoch);
    json_put_str(one, "state", "live");
    json_put_i64(one, "sequence", sequence);
    json_array_append_new(runs, one);
    json_put(f->hello, "runs", runs);
}

TEST(
    a_card_that_is_offered_no_more, "R9 promise-P4: a run keeps its card when its agent comes back "
                                    "without it, also after a restart")
{
    struct stage s;
    struct puppet a, b;
    stage_open(&s, 0);
    puppet_open(&a, &s, "a", 1, 24);
    puppet_open(&b, &s, "b", 1, 24);
    set_uuid(&a, "GPU-1");
    set_uuid(&b, "GPU-1");
    CHECK(puppet_connect(&a) && puppet_connect(&b));
    const char *first = submit(&s, "{'target':{'worker':'a','devices':['cuda:0']}}");
    int64_t epoch = puppet_start(&a, first);
    CHECK(epoch);
    const char *second = submit(&s, "{'target':{'worker':'b','devices':['cuda:0']}}");
    CHECK_STR(field(&s, second, "state"), "waiting");
    json_array_remove(json_object_get(a.hello, "devices"), 1);
    has_live(&a, first, epoch, 1);
    CHECK(puppet_connect(&a));
    stage_pass(&s, 2);
    CHECK_STR(field(&s, second, "state"), "waiting");
    stage_restart(&s);
    CHECK(puppet_connect(&b));
    stage_pass(&s, 2);
    CHECK_STR(field(&s, second, "state"), "waiting");
    CHECK(strstr(field(&s, second, "reason"), "is taken by run"));
    CHECK(puppet_connect(&a));
    puppet_end(&a, first, epoch, "succeeded");
    CHECK_STR(field(&s, second, "state"), "assigned");
    puppet_close(&a);
    puppet_close(&b);
    stage_close(&s);
}

TEST(
    a_removed_worker_comes_back,
    "W6 promise-P9: what a removed worker still runs goes before its cards are given away again")
{
    struct stage s;
    struct puppet a;
    stage_open(&s, 0);
    puppet_open(&a, &s, "a", 1, 24);
    CHECK(puppet_connect(&a));
    const char *first = submit(&s, "{'target':{'worker':'a','devices':['cuda:0']}}");
    int64_t epoch = puppet_start(&a, first);
    CHECK_OK(core_worker_remove(s.core, "a", true, s.now, &s.e), &s.e);
    CHECK_STR(field(&s, first, "status"), "interrupted");
    has_live(&a, first, epoch, 1);
    CHECK(puppet_connect(&a));
    const json_t *verdict = json_array_get(json_object_get(a.welcome, "runs"), 0);
    CHECK_STR(json_get_str(verdict, "action", ""), "forget");
    const char *second = submit(&s, "{'target':{'worker':'a','devices':['cuda:0']}}");
    CHECK_STR(field(&s, second, "state"), "waiting");
    CHECK(strstr(field(&s, second, "reason"), "what it still runs is being settled"));
    puppet_heartbeat(&a);
    CHECK_STR(field(&s, second, "state"), "waiting");
    puppet_heartbeat(&a);
    CHECK_STR(field(&s, second, "state"), "assigned");
    puppet_close(&a);
    stage_close(&s);
}

TEST(
    removed_workers_leave_no_modes,
    "B1 W6: a worker that was removed and comes back has its cards exclusive, as the database says")
{
    struct stage s;
    struct puppet a;
    stage_open(&s, 0);
    puppet_open(&a, &s, "a", 1, 24);
    CHECK(puppet_connect(&a));
    CHECK_OK(core_card_mode(s.core, "a", "cuda:0", "shared", s.now, &s.e), &s.e);
    CHECK_OK(core_worker_remove(s.core, "a", false, s.now, &s.e), &s.e);
    CHECK(puppet_connect(&a));
    json_t *doc;
    CHECK_OK(core_worker(s.core, "a", s.now, &doc, &s.e), &s.e);
    CHECK_STR(
        json_get_str(json_array_get(json_object_get(doc, "devices"), 1), "mode", ""), "exclusive");
    json_decref(doc);
    puppet_close(&a);
    stage_close(&s);
}
