/* placement_test.c - limits, slots, sets, queues, workers: the rules one by one, on small worlds.
 */
#include "../sim/scene.h"

#include <stdio.h>

/* ---- limits ---- */

static int64_t limit_of(struct scene *s, const char *worker_name, const char *dev)
{
    struct place_card c;
    CHECK(place_card_get(s->p, worker_name, dev, &c));
    return c.limit;
}

TEST(limits_read, "R8: a bare device is this server's, worker/device a worker's; the rest is told")
{
    struct scene s;
    struct str warnings;
    str_init(&warnings);
    scene_open(&s, NULL);
    place_limits_free(s.limits);
    s.limits = place_limits_new(
        " cuda:0=2 ,gpu-box/cuda:1 = 3,cpu=0,mps=4,cuda=5,lab/=1,/cuda:0=1,cuda:1,cuda:2=x,"
        "cuda:3=1.5,cuda:01=2,,gpu-box/cuda:1=4",
        1, 2, &warnings);
    struct place_worker *w = worker(&s, "local");
    device(&s, w, "cpu", "");
    device(&s, w, "cuda:0", "");
    device(&s, w, "cuda:1", "");
    device(&s, w, "mps:0", "");
    w = worker(&s, "gpu-box");
    device(&s, w, "cpu", "");
    device(&s, w, "cuda:0", "");
    device(&s, w, "cuda:1", "");
    begin(&s);
    CHECK_EQ(limit_of(&s, "local", "cuda:0"), 2);
    CHECK_EQ(limit_of(&s, "local", "cpu"), 1);
    CHECK_EQ(limit_of(&s, "local", "cuda:1"), 1);
    CHECK_EQ(limit_of(&s, "local", "mps:0"), 4);
    CHECK_EQ(limit_of(&s, "gpu-box", "cuda:1"), 4);
    CHECK_EQ(limit_of(&s, "gpu-box", "cuda:0"), 1);
    CHECK_EQ(limit_of(&s, "gpu-box", "cpu"), 2);
    size_t lines = 0;
    for (const char *c = warnings.data; *c; c++)
        lines += *c == '\n';
    CHECK_EQ(lines, 7);
    CHECK_HAS(warnings.data, "\"cuda:1\" has no \"=\"; left out");
    str_release(&warnings);
    scene_close(&s);
}

TEST(limits_hostile, "R8: numbers beyond all bounds, names of any length")
{
    struct scene s;
    static char text[4000];
    memset(text, 'x', 2000);
    (void)snprintf(
        text + 2000, 2000,
        "/cuda:0=1,cuda:0=9223372036854775807,cuda:1=99999999999999999999,cuda:2=-"
        "9223372036854775808");
    scene_open(&s, text);
    struct place_worker *w = worker(&s, "local");
    device(&s, w, "cuda:0", "");
    device(&s, w, "cuda:1", "");
    device(&s, w, "cuda:2", "");
    begin(&s);
    CHECK(limit_of(&s, "local", "cuda:0") == INT64_MAX);
    CHECK_EQ(limit_of(&s, "local", "cuda:1"), 1);
    CHECK_EQ(limit_of(&s, "local", "cuda:2"), 1);
    scene_close(&s);
}

/* ---- slots ---- */

TEST(slots, "R7 case-Q19: one run a card, two on the CPU, the rest wait in order and say for whom")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "local");
    device(&s, w, "cpu", "");
    device(&s, w, "cuda:0", "");
    on(&s, "local", "cuda:0", "", 0);
    begin(&s);
    CHECK_STR(next(&s, "local:cpu", 0), "local cpu");
    CHECK_STR(next(&s, "local:cpu", 0), "local cpu");
    CHECK_STR(next(&s, "local:cpu", 0), "");
    CHECK_STR(
        why(&s), "waits for its turn: cpu on this server is taken by runs 00000100, 00000101");
    CHECK_STR(next(&s, "local:cuda:0", 0), "");
    CHECK_STR(why(&s), "waits for its turn: cuda:0 on this server is taken by run a1b2c3d4");
    CHECK_STR(next(&s, "local:cuda:0", 0), "");
    CHECK_STR(
        why(&s), "waits for its turn: cuda:0 on this server is taken by run a1b2c3d4; run 00000103 "
                 "is before it in the queue");
    scene_close(&s);
}

TEST(canvas_runs_take_no_slot, "R1: a canvas run skips the queue and may share a card of limit 1")
{
    struct scene s;
    scene_open(&s, "");
    device(&s, worker(&s, "local"), "cuda:0", "");
    on(&s, "local", "cuda:0", "", 0)->lane = PLACE_CANVAS;
    on(&s, "local", "cuda:0", "", GIB)->lane = PLACE_WARM;
    begin(&s);
    CHECK_STR(next(&s, "local:cuda:0", 0), "local cuda:0");
    size_t n;
    const size_t *evicted = place_evictions(s.p, &n);
    CHECK_EQ(n, 1);
    CHECK_EQ(evicted[0], 1);
    CHECK_STR(next(&s, "local:cuda:0", 0), "");
    scene_close(&s);
}

TEST(sets_keep_their_cards, "R7 promise-P7: a set at the head keeps free cards, single runs wait")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "gpu-box");
    device(&s, w, "cuda:0", "");
    device(&s, w, "cuda:1", "");
    device(&s, w, "cuda:2", "");
    on(&s, "gpu-box", "cuda:0", "", 0);
    begin(&s);
    CHECK_STR(next(&s, "gpu-box:cuda:0+cuda:1", 0), "");
    CHECK_STR(
        why(&s), "waits for its turn: cuda:0 on gpu-box is taken by run a1b2c3d4; it needs cuda:0, "
                 "cuda:1 at once");
    CHECK_STR(next(&s, "gpu-box:cuda:1", 0), "");
    CHECK_STR(
        why(&s), "waits for its turn: cuda:1 on gpu-box is kept for run 00000100, which needs "
                 "several cards at once");
    CHECK_STR(next(&s, "gpu-box:cuda:2", 0), "gpu-box cuda:2");
    CHECK_STR(next(&s, "any:cuda", 0), "");
    s.n_live = 0;
    begin(&s);
    CHECK_STR(next_as(&s, "gpu-box:cuda:0+cuda:1", 0, 100), "gpu-box cuda:0 cuda:1");
    CHECK_STR(next_as(&s, "gpu-box:cuda:1", 0, 101), "");
    scene_close(&s);
}

TEST(sets_behind_others_keep_nothing, "R7: a set that is not at the head keeps no card")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "gpu-box");
    device(&s, w, "cuda:0", "");
    device(&s, w, "cuda:1", "");
    on(&s, "gpu-box", "cuda:0", "", 0);
    begin(&s);
    CHECK_STR(next(&s, "gpu-box:cuda:0", 0), "");
    CHECK_STR(next(&s, "gpu-box:cuda:0+cuda:1", 0), "");
    CHECK_STR(next(&s, "gpu-box:cuda:1", 0), "gpu-box cuda:1");
    scene_close(&s);
}

TEST(set_order, "R4 R7: the order of devices is the user's; a set under any goes to one worker")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "b");
    device(&s, w, "cuda:0", "");
    device(&s, w, "cuda:2", "");
    w = worker(&s, "a");
    device(&s, w, "cuda:0", "");
    device(&s, w, "cuda:2", "");
    on(&s, "a", "cuda:2", "", 0);
    begin(&s);
    CHECK_STR(next(&s, "any:cuda:2+cuda:0", 0), "b cuda:2 cuda:0");
    CHECK_STR(next(&s, "any:cuda:2+cuda:0", 0), "");
    CHECK_STR(next(&s, "any:cuda", 0), ""); /* a's cuda:0 is kept */
    scene_close(&s);
}

TEST(local_sets, "R4: on this server a set takes every slot of the set")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "local");
    device(&s, w, "cuda:0", "");
    device(&s, w, "cuda:1", "");
    begin(&s);
    CHECK_STR(next(&s, "local:cuda:1+cuda:0", 0), "local cuda:1 cuda:0");
    CHECK_STR(next(&s, "local:cuda:0", 0), "");
    scene_close(&s);
}

/* ---- queues ---- */

TEST(kinds_do_not_block, "case-Q1 case-Q7 promise-P6: a queue that waits stops no other queue")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "gpu-box");
    device(&s, w, "cpu", "");
    device(&s, w, "cuda:0", "");
    device(&s, w, "cuda:1", "");
    on(&s, "gpu-box", "cuda:0", "", 0);
    begin(&s);
    CHECK_STR(next(&s, "any:mps", 0), "");
    CHECK_STR(why(&s), "waits: no worker with mps is known");
    CHECK_STR(next(&s, "gpu-box:cuda:0", 0), "");
    CHECK_STR(next(&s, "gpu-box:cuda:1", 0), "gpu-box cuda:1");
    CHECK_STR(next(&s, "any:cuda", 0), "");
    CHECK_STR(next(&s, "any:cpu", 0), "gpu-box cpu");
    CHECK_STR(next(&s, "gpu-box:cpu", 0), "gpu-box cpu");
    scene_close(&s);
}

TEST(
    strict_order, "case-Q3 case-Q5 promise-P6: the third request is never served before the second")
{
    struct scene s;
    scene_open(&s, "");
    device(&s, worker(&s, "gpu-box"), "cuda:0", "");
    begin(&s);
    CHECK_STR(next_as(&s, "gpu-box:cuda:0", 0, 11), "gpu-box cuda:0");
    CHECK_STR(next_as(&s, "any:cuda", 5 * GIB, 12), "");
    CHECK_STR(next_as(&s, "gpu-box:cuda:0", 0, 13), "");
    begin(&s);
    CHECK_STR(next_as(&s, "any:cuda", 5 * GIB, 12), "gpu-box cuda:0");
    CHECK_STR(next_as(&s, "gpu-box:cuda:0", 0, 13), "");
    scene_close(&s);
}

TEST(one_more_at_the_end, "promise-P6: a run folded onto the end of a pass sees what the pass gave")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "gpu-box");
    device(&s, w, "cuda:0", "");
    device(&s, w, "cuda:1", "");
    begin(&s);
    for (int i = 0; i < 10; i++)
        CHECK_STR(
            next(&s, "any:cuda", 0), i == 0   ? "gpu-box cuda:0"
                                     : i == 1 ? "gpu-box cuda:1"
                                              : "");
    scene_close(&s);
}

/* ---- any, workers' states ---- */

TEST(any_by_name, "R5: any takes workers by name, this server last, devices in the worker's order")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "local");
    device(&s, w, "cuda:0", "");
    w = worker(&s, "zoo");
    device(&s, w, "cuda:1", "");
    device(&s, w, "cuda:0", "");
    device(&s, worker(&s, "attic"), "cuda:0", "");
    begin(&s);
    CHECK_STR(next(&s, "any:cuda", 0), "attic cuda:0");
    CHECK_STR(next(&s, "any:cuda", 0), "zoo cuda:1");
    CHECK_STR(next(&s, "any:cuda", 0), "zoo cuda:0");
    CHECK_STR(next(&s, "any:cuda", 0), "local cuda:0");
    begin(&s);
    CHECK_STR(next(&s, "any:cuda:1", 0), "zoo cuda:1");
    CHECK_STR(next(&s, "any:cuda:0", 0), "attic cuda:0");
    scene_close(&s);
}

TEST(
    any_by_number,
    "R5: cards by number under any are workers' only, and refused where none has them")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "local");
    device(&s, w, "cpu", "");
    device(&s, w, "cuda:0", "");
    device(&s, w, "cuda:1", "");
    begin(&s);
    CHECK_STR(next(&s, "any:cuda:1", 0), "");
    CHECK_STR(next(&s, "any:cuda:0", 0), "local cuda:0");
    CHECK_STR(
        judge(&s, "any:cuda:0+cuda:1", 0, PLACE_WAIT_DEFAULT),
        "no worker that has connected since the server started offers cuda:0, cuda:1 (this server: "
        "it offers cpu, cuda:0, cuda:1)");
    CHECK_STR(judge(&s, "any:cuda:0", 0, PLACE_WAIT_DEFAULT), "");
    CHECK_HAS(judge(&s, "any:mps", 0, PLACE_WAIT_DEFAULT), "offers mps");
    scene_close(&s);
}

TEST(
    workers_away,
    "R5 W5 promise-P11: offline, draining, disabled and adopting workers take nothing")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "gpu-box");
    device(&s, w, "cuda:0", "");
    struct place_worker *v = worker(&s, "lab");
    device(&s, v, "cuda:0", "");
    w->draining = v->draining = true;
    begin(&s);
    CHECK_STR(next(&s, "gpu-box:cuda:0", 0), "");
    CHECK_STR(why(&s), "waits: gpu-box is draining");
    CHECK_STR(next(&s, "any:cuda", 0), "");
    CHECK_STR(why(&s), "waits: every worker with cuda is draining");
    w->draining = false;
    w->connected = false;
    begin(&s);
    CHECK_STR(next(&s, "any:cuda", 0), "");
    CHECK_STR(why(&s), "waits: lab is draining, gpu-box is not connected");
    w->disabled = true;
    begin(&s);
    CHECK_STR(next(&s, "gpu-box:cuda:0", 0), "");
    CHECK_STR(why(&s), "waits: gpu-box is disabled");
    w->disabled = false;
    w->connected = w->adopting = true;
    begin(&s);
    CHECK_STR(next(&s, "gpu-box:cuda:0", 0), "");
    CHECK_HAS(why(&s), "is being settled");
    w->adopting = false;
    begin(&s);
    CHECK_STR(next(&s, "any:cuda", 0), "gpu-box cuda:0");
    scene_close(&s);
}

TEST(named_refusals, "R4 R5: unknown workers and devices are refused with what exists")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "local");
    device(&s, w, "cpu", "");
    device(&s, w, "mps:0", "");
    w = worker(&s, "gpu-box");
    w->connected = false;
    device(&s, w, "cpu", "");
    device(&s, w, "cuda:0", "");
    w = worker(&s, "old");
    w->connected = w->seen = false;
    device(&s, w, "cuda:0", "");
    begin(&s);
    CHECK_STR(
        judge(&s, "local:cuda:0", 0, PLACE_WAIT_DEFAULT),
        "this server does not offer cuda:0 (it offers cpu, mps:0)");
    CHECK_STR(
        judge(&s, "gpu-box:cuda:0+cuda:1", 0, PLACE_WAIT_DEFAULT),
        "gpu-box does not offer cuda:1 (it offers cpu, cuda:0)");
    CHECK_STR(judge(&s, "gpu-box:cuda:0", 0, PLACE_WAIT_DEFAULT), "");
    CHECK_STR(
        judge(&s, "gpu-bax:cuda:0", 0, PLACE_WAIT_DEFAULT),
        "no worker \"gpu-bax\" has connected since the server started (those that have: gpu-box, "
        "local)");
    CHECK_HAS(judge(&s, "old:cuda:0", 0, PLACE_WAIT_DEFAULT), "no worker \"old\"");
    CHECK_HAS(judge(&s, "gpu-box:cuda:0+cpu", 0, PLACE_WAIT_DEFAULT), "of one kind");
    CHECK_HAS(judge(&s, "gpu-box:cuda:0+cuda:0", 0, PLACE_WAIT_DEFAULT), "listed twice");
    scene_close(&s);
}

TEST(pools, "B7 W9: a one-shot worker takes one run of its pool, and no other run")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "once-1");
    w->one_shot = true;
    w->pool = "night";
    device(&s, w, "cpu", "");
    shared(device(&s, w, "cuda:0", ""));
    begin(&s);
    CHECK_STR(next(&s, "any:cpu", 0), "");
    CHECK_STR(next(&s, "pool day:cpu", 0), "");
    CHECK_STR(why(&s), "waits: no one-shot worker of pool day with cpu is known");
    CHECK_STR(next(&s, "pool night:cpu", 0), "once-1 cpu");
    CHECK_STR(next(&s, "pool:cpu", 0), "");
    CHECK_STR(why(&s), "waits: once-1 has had its one run");
    begin(&s);
    CHECK_STR(judge(&s, "pool night:cuda", 8 * GIB, PLACE_WAIT_NO), "");
    CHECK_HAS(judge(&s, "pool night:cuda", 30 * GIB, PLACE_WAIT_DEFAULT), "GiB in all");
    CHECK_STR(judge(&s, "pool day:cuda", 30 * GIB, PLACE_WAIT_DEFAULT), "");
    CHECK_HAS(judge(&s, "pool day:cuda", 30 * GIB, PLACE_WAIT_NO), "no one-shot worker");
    scene_close(&s);
}

/* ---- one card, several workers ---- */

TEST(
    one_card_many_workers,
    "R9 promise-P4: a card of several workers counts once, the smallest limit holds")
{
    struct scene s;
    scene_open(&s, "cuda:0=3,far/cuda:5=2");
    struct place_worker *w = worker(&s, "local");
    device(&s, w, "cuda:0", "GPU-1");
    w = worker(&s, "beside");
    w->same_host = true;
    device(&s, w, "cuda:1", "GPU-1");
    struct place_worker *far = worker(&s, "far");
    device(&s, far, "cuda:5", "GPU-1");
    far->connected = false;
    begin(&s);
    struct place_card c;
    CHECK(place_card_get(s.p, "beside", "cuda:1", &c));
    CHECK_EQ(c.limit, 3); /* this server's, for the same card */
    CHECK_STR(c.limit_by, "local");
    CHECK_EQ(c.n_others, 2);
    CHECK_STR(next(&s, "beside:cuda:1", 0), "beside cuda:1");
    CHECK_STR(next(&s, "local:cuda:0", 0), "local cuda:0");
    CHECK_STR(next(&s, "any:cuda", 0), "beside cuda:1");
    CHECK_STR(next(&s, "local:cuda:0", 0), "");
    far->connected = true;
    begin(&s);
    CHECK(place_card_get(s.p, "local", "cuda:0", &c));
    CHECK_EQ(c.limit, 2);
    CHECK_EQ(c.own_limit, 3);
    CHECK_STR(c.limit_by, "far");
    scene_close(&s);
}

TEST(one_card_one_mode, "R9 B1: shared only when every connected worker has it so; one ledger")
{
    struct scene s;
    scene_open(&s, "");
    struct place_device *a = device(&s, worker(&s, "a"), "cuda:0", "GPU-1");
    struct place_worker *w = worker(&s, "b");
    struct place_device *b = device(&s, w, "cuda:3", "GPU-1");
    a->shared = true;
    a->reported_ns = 5;
    a->free_bytes = 10 * GIB;
    b->reported_ns = 4;
    on(&s, "b", "cuda:3", "GPU-1", 8 * GIB);
    begin(&s);
    CHECK_STR(next(&s, "a:cuda:0", 2 * GIB), "");
    CHECK_HAS(why(&s), "cuda:0 on a is taken by run a1b2c3d4");
    b->shared = true;
    begin(&s);
    struct place_card c;
    CHECK(place_card_get(s.p, "b", "cuda:3", &c));
    CHECK(c.free_bytes == 10 * GIB); /* the latest report */
    CHECK(c.running_bytes == 8 * GIB + 768 * (GIB / 1024));
    CHECK_STR(next(&s, "a:cuda:0", 9 * GIB), "a cuda:0");
    CHECK_STR(next(&s, "b:cuda:3", GIB), "");
    b->shared = w->connected = false;
    begin(&s);
    CHECK_STR(next(&s, "a:cuda:0", 9 * GIB), "a cuda:0");
    scene_close(&s);
}

TEST(classes_end, "promise-P14: classes and queues go with their last run")
{
    struct place *p = place_new();
    struct place_class *c[500];
    char name[16];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 500; i++) {
            (void)snprintf(name, sizeof name, "cuda:%d", i % 50);
            struct place_request r = {.worker = "a", .devices = {name}, .n_devices = 1};
            r.budget_bytes = i / 100;
            c[i] = place_class_get(p, &r);
            CHECK_STR(place_class_request(c[i])->devices[0], name);
            CHECK(i < 100 || c[i] != c[i - 100]);
            CHECK(i % 100 < 50 || c[i] == c[i - 50]);
        }
        CHECK_STR(place_class_queue(c[7]), "a/cuda:7");
        for (int i = 0; i < 500; i++)
            place_class_give(p, c[i]);
        place_check(p);
    }
    place_free(p);
}

TEST(queue_keys, "R10: a queue is named by its target and devices")
{
    static const struct {
        const char *request, *key;
    } cases[] = {
        {"local:cpu", "cpu"},
        {"local:cuda:0+cuda:1", "cuda:0+cuda:1"},
        {"gpu-box:cuda:2+cuda:0", "gpu-box/cuda:2+cuda:0"},
        {"any:cuda", "any/cuda"},
        {"pool night:cuda", "pool:night/cuda"},
        {"pool:cpu", "pool:/cpu"}};
    struct place *p = place_new();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct place_request r = request(cases[i].request, 0);
        struct place_class *c = place_class_get(p, &r);
        CHECK_STR(place_class_queue(c), cases[i].key);
        struct str text;
        str_init(&text);
        place_reason(p, c, 1, &text);
        CHECK_HAS(text.data, "in a moment");
        str_release(&text);
        place_class_give(p, c);
    }
    place_free(p);
}
