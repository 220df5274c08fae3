/* sim_test.c - the core under random fleets, faults and clocks, judged by the offline checker; and
 * the checker under planted faults. */
#include "checker.h"
#include "sim.h"

#include "test.h"

#include "base/log.h"

#include <stdlib.h>

static bool play(uint64_t seed, int events, enum sim_canary canary, struct verdict *v)
{
    char history[512];
    struct err e;
    log_level_set(LOG_ERROR); /* workers that do not answer are what this is about */
    const char *kept = getenv("SNUG_SIM_HISTORY"); /* to look at it afterwards */
    (void)snprintf(history, sizeof history, "%s/history.jsonl", test_dir());
    if (kept)
        (void)snprintf(history, sizeof history, "%s", kept);
    bool planted = sim_run(&(struct sim_options){
        .seed = seed, .events = events, .canary = canary, .history = history, .dir = test_dir()});
    CHECK_OK(check_history(history, v, &e), &e);
    return planted;
}

TEST_WITHIN(
    simulation, 14400,
    "promise-P1 promise-P2 promise-P3 promise-P4 promise-P5 promise-P6 promise-P9 promise-P10 "
    "promise-P11 promise-P12 promise-P14 R5 R7 R9 R19 W5 W7 B5 B8: random fleets, faults, clocks")
{
    /* A seed alone replays one world; in a soak it is where its thousand worlds begin, and
     * SNUG_SIM_SKIP leaves out those that an earlier one has done. */
    const char *seed = getenv("SNUG_TEST_SEED"), *skip = getenv("SNUG_SIM_SKIP");
    bool soak = getenv("SNUG_SOAK") != NULL;
    uint64_t first = !seed ? 1 : strtoull(seed, NULL, 10) * (soak ? 1000 : 1);
    int worlds = soak ? 1000 : seed ? 1 : 20;
    int events = soak || seed ? 500 : 200;
    struct verdict v, sum = {0};
    for (int i = skip ? atoi(skip) : 0; i < worlds; i++) {
        if (soak && i % 50 == 0)
            (void)fprintf(stderr, "  world %d of %d\n", i, worlds);
        (void)play(first + (uint64_t)i, events, CANARY_NONE, &v);
        if (v.broken)
            test_fail(
                __FILE__, __LINE__, "seed %llu: %s\n  again: SNUG_TEST_SEED=%llu",
                (unsigned long long)first + (unsigned long long)i, v.text,
                (unsigned long long)first + (unsigned long long)i);
        sum.runs += v.runs;
        sum.admissions += v.admissions;
        sum.starts += v.starts;
        sum.reasons += v.reasons;
        sum.restarts += v.restarts;
    }
    (void)printf(
        "  %d worlds: %lld runs, %lld admissions, %lld starts, %lld reasons, %lld starts of the "
        "server\n",
        worlds, (long long)sum.runs, (long long)sum.admissions, (long long)sum.starts,
        (long long)sum.reasons, (long long)sum.restarts);
}

static void find_canary(enum sim_canary canary)
{
    struct verdict v = {0};
    for (uint64_t seed = 1; seed <= 40; seed++)
        if (play(seed, 150, canary, &v) && v.broken) {
            (void)printf("  seed %llu: %s\n", (unsigned long long)seed, v.text);
            return;
        }
    test_fail(__FILE__, __LINE__, "a planted fault was not found");
}

#define CANARY_TEST(name, canary, text)                                                            \
    TEST_WITHIN(name, 300, text)                                                                   \
    {                                                                                              \
        find_canary(canary);                                                                       \
    }
CANARY_TEST(canary_start_twice, CANARY_START_TWICE, "promise-P2: a second start is found")
CANARY_TEST(
    canary_drop_release, CANARY_DROP_RELEASE, "promise-P4: a slot that stays taken is found")
CANARY_TEST(canary_count_less, CANARY_COUNT_LESS, "promise-P5: a budget counted too low is found")
CANARY_TEST(canary_forget, CANARY_FORGET_ADOPTED, "promise-P11: a run not adopted is found")
CANARY_TEST(
    canary_lose_run, CANARY_LOSE_RUN, "promise-P1: an acknowledged run that is lost is found")
CANARY_TEST(canary_overtake, CANARY_OVERTAKE, "promise-P6: a run that overtakes is found")
CANARY_TEST(canary_wrong_reason, CANARY_WRONG_REASON, "promise-P14: an untrue reason is found")
CANARY_TEST(canary_stall, CANARY_STALL, "promise-P14: a queue that stands still is found")
CANARY_TEST(canary_old_events, CANARY_OLD_EVENTS, "promise-P12: events of an old attempt are found")
CANARY_TEST(canary_event_gap, CANARY_EVENT_GAP, "promise-P10: a lost event is found")
CANARY_TEST(
    canary_ignore_lease, CANARY_IGNORE_LEASE, "promise-P10: a run beyond its lease is found")
CANARY_TEST(canary_after_end, CANARY_AFTER_END, "promise-P3: an event behind the last is found")
