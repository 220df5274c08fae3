/* placement_memory_test.c - cards shared by memory: ledger, refusals, who may pass whom. */
#include "../sim/scene.h"

TEST(
    refusal_text,
    "B5 B7: the refusal names need, context, what is free and the holders, to the letter")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "gpu-box");
    shared(device(&s, w, "cuda:0", ""));
    struct place_device *d = shared(device(&s, w, "cuda:1", ""));
    d->free_bytes = 63 * GIB / 10;
    on(&s, "gpu-box", "cuda:1", "", 4 * GIB);
    on(&s, "gpu-box", "cuda:1", "", 4 * GIB);
    begin(&s);
    const char *text = "needs 12.0 GiB (+0.8 GiB CUDA context), cuda:1 on gpu-box has 6.3 GiB free "
                       "(runs a1b2c3d4, c3d4e5f6)";
    CHECK_STR(judge(&s, "gpu-box:cuda:1", 12 * GIB, PLACE_WAIT_DEFAULT), text);
    CHECK_STR(judge(&s, "gpu-box:cuda:1", 12 * GIB, PLACE_WAIT_NO), text);
    CHECK_STR(judge(&s, "gpu-box:cuda:1", 12 * GIB, PLACE_WAIT_YES), "");
    CHECK_STR(judge(&s, "gpu-box:cuda:1", 5 * GIB, PLACE_WAIT_DEFAULT), "");
    CHECK_STR(judge(&s, "gpu-box:cuda:0+cuda:1", 12 * GIB, PLACE_WAIT_DEFAULT), text);
    CHECK_STR(judge(&s, "any:cuda:1", 12 * GIB, PLACE_WAIT_NO), text);
    CHECK_STR(judge(&s, "any:cuda:1", 12 * GIB, PLACE_WAIT_DEFAULT), "");
    CHECK_STR(next(&s, "gpu-box:cuda:1", 12 * GIB), "");
    CHECK_HAS(why(&s), text);
    CHECK_HAS(why(&s), "waits for memory: needs 12.0 GiB");
    scene_close(&s);
}

TEST(never_fits, "B4 B7: larger than every card is refused at once, whether it may wait or not")
{
    struct scene s;
    scene_open(&s, "");
    shared(device(&s, worker(&s, "a"), "cuda:0", ""))->total_bytes = 12 * GIB;
    shared(device(&s, worker(&s, "b"), "cuda:0", ""));
    begin(&s);
    CHECK_STR(
        judge(&s, "a:cuda:0", 20 * GIB, PLACE_WAIT_YES),
        "needs 20.0 GiB (+0.8 GiB CUDA context), cuda:0 on a has 12.0 GiB in all");
    CHECK_STR(judge(&s, "any:cuda", 20 * GIB, PLACE_WAIT_YES), "");
    CHECK_STR(
        judge(&s, "any:cuda", 24 * GIB, PLACE_WAIT_YES),
        "needs 24.0 GiB (+0.8 GiB CUDA context), cuda:0 on b has 24.0 GiB in all, and no card that "
        "it may use has more");
    /* One byte decides, and the text does not hide it. */
    CHECK_STR(judge(&s, "b:cuda:0", 24 * GIB - 768 * (GIB / 1024), PLACE_WAIT_YES), "");
    CHECK_STR(
        judge(&s, "b:cuda:0", 24 * GIB - 768 * (GIB / 1024) + 1, PLACE_WAIT_YES),
        "needs 23.3 GiB (+0.8 GiB CUDA context), cuda:0 on b has 24.0 GiB in all");
    CHECK_HAS(judge(&s, "b:cuda:0", INT64_MAX, PLACE_WAIT_YES), "GiB in all");
    scene_close(&s);
}

TEST(raised_budgets, "B4: a raised budget that no card can hold fails; one that was typed waits")
{
    struct scene s;
    scene_open(&s, "");
    struct place_device *d = shared(device(&s, worker(&s, "a"), "cuda:0", ""));
    d->total_bytes = 12 * GIB;
    begin(&s);
    struct place_request r = request("a:cuda:0", 20 * GIB);
    struct place_result result;
    struct place_class *typed = place_class_get(s.p, &r);
    r.raised = true;
    struct place_class *raised = place_class_get(s.p, &r);
    CHECK(typed != raised);
    CHECK_EQ(place_next(s.p, typed, 1, "00000001", &result), PLACE_WAITS);
    CHECK_EQ(place_next(s.p, raised, 2, "00000002", &result), PLACE_FAILS);
    CHECK(result.too_large);
    CHECK_STR(
        result.text, "needs 20.0 GiB (+0.8 GiB CUDA context), cuda:0 on a has 12.0 GiB in all");
    d->total_bytes = 24 * GIB;
    d->free_bytes = 3 * GIB;
    begin(&s);
    CHECK_EQ(place_next(s.p, raised, 2, "00000002", &result), PLACE_WAITS);
    place_class_give(s.p, typed);
    place_class_give(s.p, raised);
    scene_close(&s);
}

TEST(
    ledger, "B5 case-M11 case-M23: a run is reserved at admission, and counted once when it starts")
{
    struct scene s;
    scene_open(&s, "");
    struct place_device *d = shared(device(&s, worker(&s, "a"), "cuda:0", ""));
    int64_t context = 768 * (GIB / 1024);
    begin(&s);
    CHECK_STR(next(&s, "a:cuda:0", 10 * GIB), "a cuda:0");
    CHECK_STR(next(&s, "a:cuda:0", 10 * GIB), "a cuda:0");
    CHECK_STR(next(&s, "a:cuda:0", 3 * GIB), "");
    CHECK_STR(next(&s, "a:cuda:0", 24 * GIB - 2 * (10 * GIB + context) - context), "a cuda:0");
    struct place_card c;
    on(&s, "a", "cuda:0", "", 10 * GIB)->started = false;
    begin(&s);
    CHECK(place_card_get(s.p, "a", "cuda:0", &c));
    CHECK(c.reserved_bytes == 10 * GIB + context && c.running_bytes == 0);
    s.live[0].started = true;
    d->free_bytes = 24 * GIB; /* as before it started: no heartbeat yet */
    begin(&s);
    CHECK(place_card_get(s.p, "a", "cuda:0", &c));
    CHECK(c.reserved_bytes == 0 && c.running_bytes == 10 * GIB + context);
    CHECK(c.room_bytes == 24 * GIB - 10 * GIB - 2 * context);
    d->free_bytes = 5 * GIB; /* others take the rest */
    begin(&s);
    CHECK(place_card_get(s.p, "a", "cuda:0", &c));
    CHECK(c.room_bytes == 5 * GIB - context);
    s.n_live = 0;
    d->free_bytes = 24 * GIB;
    begin(&s);
    CHECK(place_card_get(s.p, "a", "cuda:0", &c));
    CHECK(c.reserved_bytes == 0 && c.running_bytes == 0 && c.used == 0);
    scene_close(&s);
}

TEST(ledger_hostile, "B5 case-M1: sums beyond 2^63 stay full, never below zero")
{
    struct scene s;
    scene_open(&s, "");
    struct place_device *d = shared(device(&s, worker(&s, "a"), "cuda:0", ""));
    on(&s, "a", "cuda:0", "", INT64_MAX);
    on(&s, "a", "cuda:0", "", INT64_MAX)->started = false;
    on(&s, "a", "cuda:0", "", INT64_MIN);
    d->free_bytes = -5;
    begin(&s);
    struct place_card c;
    CHECK(place_card_get(s.p, "a", "cuda:0", &c));
    CHECK(c.running_bytes == INT64_MAX && c.reserved_bytes == INT64_MAX && c.room_bytes == 0);
    CHECK_STR(next(&s, "a:cuda:0", 1), "");
    CHECK_STR(next(&s, "a:cuda:0", INT64_MAX), "");
    CHECK_STR(next(&s, "a:cuda:0", INT64_MIN), "");
    CHECK_HAS(why(&s), "no memory budget");
    s.n_live = 0;
    d->total_bytes = INT64_MAX;
    d->free_bytes = INT64_MAX;
    begin(&s);
    CHECK_STR(next(&s, "a:cuda:0", INT64_MAX), "a cuda:0"); /* the context saturates */
    CHECK_STR(next(&s, "a:cuda:0", 1), "");
    scene_close(&s);
}

TEST(unequal_cards, "B5 case-M13: a set of unequal cards is judged card by card")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "a");
    shared(device(&s, w, "cuda:0", ""));
    struct place_device *d = shared(device(&s, w, "cuda:1", ""));
    d->total_bytes = d->free_bytes = 12 * GIB;
    begin(&s);
    CHECK_STR(next(&s, "a:cuda:0+cuda:1", 8 * GIB), "a cuda:0 cuda:1");
    CHECK_STR(next(&s, "a:cuda:0+cuda:1", 8 * GIB), "");
    CHECK_HAS(why(&s), "cuda:1 on a has 3.2 GiB free (runs 00000100)");
    CHECK_STR(next(&s, "a:cuda:0", 8 * GIB), "a cuda:0");
    CHECK_HAS(
        judge(&s, "a:cuda:0+cuda:1", 12 * GIB, PLACE_WAIT_YES), "cuda:1 on a has 12.0 GiB in all");
    scene_close(&s);
}

TEST(
    without_budget, "B4 B8: no run without budget on a shared card; one that is there has it alone")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "a");
    shared(device(&s, w, "cuda:0", ""));
    device(&s, w, "cuda:1", "");
    begin(&s);
    CHECK_HAS(
        judge(&s, "a:cuda:0", 0, PLACE_WAIT_YES),
        "cuda:0 on a is shared by memory, and the run has no memory budget");
    CHECK_STR(judge(&s, "any:cuda", 0, PLACE_WAIT_YES), "");
    CHECK_STR(next(&s, "a:cuda:0", 0), "");
    CHECK_STR(next(&s, "any:cuda", 0), "a cuda:1");
    CHECK_STR(next(&s, "a:cuda:0", 4 * GIB), "a cuda:0");
    on(&s, "a", "cuda:0", "", 0)->lane = PLACE_CANVAS;
    begin(&s);
    CHECK_STR(next(&s, "a:cuda:0", 4 * GIB), "");
    CHECK_HAS(why(&s), "run a1b2c3d4, which has no memory budget, has it for itself");
    CHECK_HAS(judge(&s, "a:cuda:0", 4 * GIB, PLACE_WAIT_NO), "has it for itself");
    scene_close(&s);
}

TEST(shared_limits, "B12: on a shared card only a limit that was set counts beside the ledger")
{
    struct scene s;
    scene_open(&s, "a/cuda:1=2");
    struct place_worker *w = worker(&s, "a");
    shared(device(&s, w, "cuda:0", ""));
    shared(device(&s, w, "cuda:1", ""));
    begin(&s);
    for (int i = 0; i < 5; i++)
        CHECK_STR(next(&s, "a:cuda:0", GIB), "a cuda:0");
    CHECK_STR(next(&s, "a:cuda:1", GIB), "a cuda:1");
    CHECK_STR(next(&s, "a:cuda:1", GIB), "a cuda:1");
    CHECK_STR(next(&s, "a:cuda:1", GIB), "");
    CHECK_HAS(why(&s), "is taken by runs");
    struct place_card c;
    CHECK(place_card_get(s.p, "a", "cuda:0", &c));
    CHECK_EQ(c.limit, 0);
    CHECK_EQ(c.used, 5);
    scene_close(&s);
}

TEST(
    unknown_memory, "B1: a CUDA card is judged at its next heartbeat, MPS without total is refused")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "mac");
    struct place_device *d = shared(device(&s, w, "cuda:0", ""));
    d->total_bytes = d->free_bytes = 0;
    shared(device(&s, w, "mps:0", ""));
    begin(&s);
    CHECK_STR(judge(&s, "mac:cuda:0", 4 * GIB, PLACE_WAIT_DEFAULT), "");
    CHECK_STR(next(&s, "mac:cuda:0", 4 * GIB), "");
    CHECK_HAS(why(&s), "the memory of cuda:0 on mac is known with its next heartbeat");
    CHECK_HAS(judge(&s, "mac:mps:0", 4 * GIB, PLACE_WAIT_YES), "reports no total");
    s.devices[0][1].shared = false;
    begin(&s);
    CHECK_STR(next(&s, "mac:mps:0", 4 * GIB), "mac mps:0");
    scene_close(&s);
}

TEST(context_on_cuda_only, "B5: the context is added on CUDA cards only")
{
    struct scene s;
    scene_open(&s, "");
    struct place_device *d = shared(device(&s, worker(&s, "mac"), "mps:0", ""));
    d->total_bytes = 16 * GIB;
    d->free_bytes = 8 * GIB;
    begin(&s);
    CHECK_STR(
        judge(&s, "mac:mps:0", 9 * GIB, PLACE_WAIT_NO),
        "needs 9.0 GiB, mps:0 on mac has 8.0 GiB free");
    CHECK_STR(next(&s, "mac:mps:0", 8 * GIB), "mac mps:0");
    scene_close(&s);
}

TEST(cannot_cap, "B10 case-M15: no start by budget on an agent that cannot cap; named runs fail")
{
    struct scene s;
    scene_open(&s, "");
    struct place_worker *w = worker(&s, "a");
    w->can_cap = false;
    shared(device(&s, w, "cuda:0", ""));
    shared(device(&s, worker(&s, "b"), "cuda:0", ""));
    begin(&s);
    CHECK_HAS(next(&s, "a:cuda:0", GIB), "cannot hold a run to its budget");
    CHECK_STR(next(&s, "any:cuda", GIB), "b cuda:0");
    CHECK_STR(next(&s, "any:cuda", 23 * GIB), "");
    CHECK_HAS(judge(&s, "a:cuda:0", GIB, PLACE_WAIT_YES), "cannot hold");
    scene_close(&s);
}

TEST(passing_by, "R19: who waits for memory lets others pass for ten minutes, then nobody")
{
    struct scene s;
    scene_open(&s, "");
    shared(device(&s, worker(&s, "a"), "cuda:0", ""));
    on(&s, "a", "cuda:0", "", 10 * GIB);
    s.now_ns = 1000 * SECOND;
    begin(&s);
    CHECK_STR(next_as(&s, "a:cuda:0", 20 * GIB, 10), "");
    CHECK_HAS(why(&s), "later runs that fit may pass");
    CHECK(place_wake_ns(s.p) == 1600 * SECOND);
    CHECK_STR(next_as(&s, "a:cuda:0", 2 * GIB, 11), "a cuda:0");
    s.now_ns = 1600 * SECOND - 1;
    begin(&s);
    CHECK_STR(next_as(&s, "a:cuda:0", 20 * GIB, 10), "");
    CHECK_STR(next_as(&s, "a:cuda:0", 2 * GIB, 12), "a cuda:0");
    s.now_ns = 1600 * SECOND;
    begin(&s);
    CHECK_STR(next_as(&s, "a:cuda:0", 20 * GIB, 10), "");
    CHECK_HAS(why(&s), "the card takes nothing new until it fits");
    CHECK(place_wake_ns(s.p) == INT64_MAX);
    CHECK_STR(next_as(&s, "a:cuda:0", 2 * GIB, 13), "");
    CHECK_HAS(why(&s), "takes nothing new until run 00000010 fits");
    CHECK_HAS(judge(&s, "a:cuda:0", GIB, PLACE_WAIT_NO), "takes nothing new until run 00000010");
    s.n_live = 0;
    begin(&s);
    CHECK_STR(next_as(&s, "a:cuda:0", 20 * GIB, 10), "a cuda:0");
    CHECK_STR(next_as(&s, "a:cuda:0", 2 * GIB, 13), "a cuda:0");
    scene_close(&s);
}

TEST(
    passing_by_any,
    "R19: under any it is the card with most room that is kept, the others stay open")
{
    struct scene s;
    scene_open(&s, "");
    shared(device(&s, worker(&s, "a"), "cuda:0", ""));
    shared(device(&s, worker(&s, "b"), "cuda:0", ""));
    on(&s, "a", "cuda:0", "", 12 * GIB);
    on(&s, "b", "cuda:0", "", 8 * GIB);
    begin(&s);
    CHECK_STR(next_as(&s, "any:cuda", 20 * GIB, 10), "");
    s.now_ns = 600 * SECOND;
    begin(&s);
    CHECK_STR(next_as(&s, "any:cuda", 20 * GIB, 10), "");
    CHECK_HAS(why(&s), "cuda:0 on b has 15.2 GiB free");
    CHECK_STR(next_as(&s, "b:cuda:0", GIB, 11), "");
    CHECK_STR(next_as(&s, "any:cuda", GIB, 12), "a cuda:0");
    scene_close(&s);
}

TEST(clock_set_back, "R19: a clock that jumps back starts the ten minutes anew and breaks nothing")
{
    struct scene s;
    scene_open(&s, "");
    shared(device(&s, worker(&s, "a"), "cuda:0", ""));
    on(&s, "a", "cuda:0", "", 10 * GIB);
    s.now_ns = INT64_MAX - 1;
    begin(&s);
    CHECK_STR(next_as(&s, "a:cuda:0", 20 * GIB, 10), "");
    s.now_ns = -5;
    begin(&s);
    CHECK_STR(next_as(&s, "a:cuda:0", 20 * GIB, 10), "");
    CHECK(place_wake_ns(s.p) == 600 * SECOND - 5);
    CHECK_STR(next_as(&s, "a:cuda:0", 2 * GIB, 12), "a cuda:0");
    scene_close(&s);
}

TEST(
    warm_children,
    "B5 B8: an idle canvas child is in the ledger and leaves when a run needs the card")
{
    struct scene s;
    scene_open(&s, "");
    struct place_device *d = shared(device(&s, worker(&s, "local"), "cuda:0", ""));
    d->free_bytes = 20 * GIB;
    struct place_live *child = on(&s, "local", "cuda:0", "", 4 * GIB);
    child->lane = PLACE_WARM;
    child->run = -1;
    child->run_id = "";
    begin(&s);
    size_t n;
    CHECK_STR(next(&s, "local:cuda:0", 4 * GIB), "local cuda:0");
    (void)place_evictions(s.p, &n);
    CHECK_EQ(n, 0);
    CHECK_STR(next(&s, "local:cuda:0", 18 * GIB), "");
    (void)place_evictions(s.p, &n);
    CHECK_EQ(n, 1);
    CHECK_HAS(why(&s), "cuda:0 on this server has 14.5 GiB free (runs 00000100)");
    CHECK_HAS(why(&s), "idle canvas runs are asked to leave");
    CHECK_STR(judge(&s, "local:cuda:0", GIB, PLACE_WAIT_NO), "");
    scene_close(&s);
}
