/* replay_test.c - recordings are predicted to the last address; other settings give what they must.
 * tests/corpus/snapshots are real; tests/corpus/traces are made by tests/support/alloc_sim.py, an
 * allocator that shares nothing with ours. */
#include "doctor/replay.h"

#include "base/str.h"
#include "mem/history.h"
#include "mem/pool/pool.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)

static struct snapshot *open_file(const char *folder, const char *name)
{
    char path[1024];
    struct err e = {0};
    struct snapshot *s = NULL;
    (void)snprintf(path, sizeof path, "%s/tests/corpus/%s/%s", SNUG_SOURCE_DIR, folder, name);
    if (snapshot_read_file(path, NULL, &s, &e) != ST_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", name, e.text);
    return s;
}

static struct replay_exact exact_of(const struct snapshot *s, int device)
{
    struct err e = {0};
    struct mem_pool_conf conf;
    struct replay_exact x;
    replay_recorded_conf(s, &conf, NULL);
    CHECK_OK(replay_exact(s, device, &conf, &x, &e), &e);
    return x;
}

/* Every device of the file, with its events, is predicted without a difference. */
static struct replay_exact check_exact(const char *folder, const char *name)
{
    struct snapshot *s = open_file(folder, name);
    struct replay_exact x = {0}, sum = {0};
    for (int d = 0; d < s->devices_n; d++) {
        x = exact_of(s, d);
        if (!replay_is_exact(&x))
            test_fail(__FILE__, __LINE__, "%s: %s", name, x.first_wrong);
        CHECK_EQ(x.allocs_n, s->devices[d].actions_n[SNAP_ALLOC]);
        CHECK_EQ(x.ooms_n, s->devices[d].actions_n[SNAP_OOM]);
        CHECK_EQ(x.unplaced_n, 0);
        sum.allocs_n += x.allocs_n;
        sum.segments_n += x.segments_n;
        sum.ooms_n += x.ooms_n;
        sum.pending_n += x.pending_n;
        sum.blocks_n += x.blocks_n;
        sum.reserved_peak_bytes = x.reserved_peak_bytes;
        sum.allocated_peak_bytes = x.allocated_peak_bytes;
    }
    snapshot_free(s);
    return sum;
}

TEST(
    replay_real,
    "T5: real recordings: every address, segment event and block of the end is predicted")
{
    struct replay_exact x = check_exact("snapshots", "tiny_97_events.pickle");
    CHECK_EQ(x.allocs_n, 36);
    CHECK_EQ(x.segments_n, 9);
    CHECK_EQ(x.reserved_peak_bytes, 3781165056);
    x = check_exact("snapshots", "forward_bf16_s128.pickle");
    CHECK_EQ(x.allocs_n, 937);
    CHECK_EQ(x.reserved_peak_bytes, 861929472);
    x = check_exact("snapshots", "infer_fp32_s128.pickle");
    CHECK_EQ(x.allocs_n, 1280);
    CHECK_EQ(x.reserved_peak_bytes, 1763704832);
    CHECK_EQ(x.allocated_peak_bytes, 1738928128);
    x = check_exact("snapshots", "train_bf16_s512.pickle");
    CHECK_EQ(x.allocs_n, 7591);
    CHECK_EQ(x.blocks_n, 1041);
    CHECK_EQ(x.reserved_peak_bytes, 12660506624);
}

TEST(
    replay_kinds,
    "T5: rings, streams, pending frees, private pools, rounding, max_split_size are predicted")
{
    static const char *const names[] = {"plain.pickle",   "ring.pickle",    "streams.pickle",
                                        "pending.pickle", "private.pickle", "pool_ids.pickle",
                                        "roundup.pickle", "split.pickle"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        (void)check_exact("traces", names[i]);
    CHECK(check_exact("traces", "pending.pickle").pending_n > 100);
}

TEST(replay_oom, "T5: requests that failed fail again, after the same segments were given back")
{
    CHECK(check_exact("traces", "split_oom.pickle").ooms_n > 0);
    CHECK_EQ(check_exact("traces", "oom.pickle").ooms_n, 0);
    (void)check_exact("traces", "oom_ring.pickle");
}

TEST(
    replay_expandable,
    "T5: expandable segments: every map and unmap, on several devices, up to a failed request")
{
    CHECK(check_exact("traces", "expandable.pickle").segments_n > 100);
    (void)check_exact("traces", "expandable_ring.pickle");
    CHECK(check_exact("traces", "expandable_oom.pickle").ooms_n > 0);
    CHECK(check_exact("traces", "devices.pickle").ooms_n > 0);
}

TEST(
    replay_differs,
    "T5: a recording that the rules do not explain is said to differ, with the first place")
{
    struct snapshot *s = open_file("snapshots", "train_bf16_s512.pickle");
    struct snap_event *v = &s->events[s->devices[0].events_first + 1000];
    while (v->action != SNAP_ALLOC)
        v++;
    s->lives[s->event_life[v - s->events]].addr += 512;
    v->addr += 512;
    struct replay_exact x = exact_of(s, 0);
    CHECK(!replay_is_exact(&x) && x.allocs_wrong_n >= 1);
    CHECK(strstr(x.first_wrong, "event 1") && strstr(x.first_wrong, "an allocation of"));
    snapshot_free(s);
    /* Other settings than those of the recording do not explain it either. */
    s = open_file("traces", "roundup.pickle");
    struct err e = {0};
    struct mem_pool_conf conf;
    mem_pool_conf_init(&conf);
    CHECK_OK(replay_exact(s, 0, &conf, &x, &e), &e);
    CHECK(!replay_is_exact(&x));
    snapshot_free(s);
}

TEST(
    replay_recorded_settings,
    "T5: the settings of the recording come from its text and its numbers")
{
    struct mem_pool_conf conf;
    struct snapshot *s = open_file("traces", "split.pickle");
    replay_recorded_conf(s, &conf, NULL);
    CHECK_EQ(conf.max_split_size_bytes, 64 * MIB);
    CHECK(!conf.expandable_segments);
    CHECK_STR(conf.text, "max_split_size_mb:64");
    snapshot_free(s);
    s = open_file("traces", "roundup.pickle");
    replay_recorded_conf(s, &conf, NULL);
    CHECK_EQ(conf.roundup_power2_divisions[0], 4);
    CHECK_EQ(conf.roundup_power2_divisions[15], 4);
    snapshot_free(s);
    s = open_file("traces", "expandable.pickle");
    s->settings.present = false; /* as before 2.2: told by the segments */
    s->settings.conf = 0;
    replay_recorded_conf(s, &conf, NULL);
    CHECK(conf.expandable_segments);
    snapshot_free(s);
}

static struct replay_outcome
ask(const struct snapshot *s, const char *setting, int64_t capacity, int orders)
{
    struct err e = {0};
    struct mem_pool_conf conf;
    struct replay_outcome x;
    struct replay_question q = {
        .capacity_bytes = capacity, .orders_n = orders, .bisect = true, .bisect_steps_max = 20};
    mem_pool_conf_init(&conf);
    CHECK_OK(mem_pool_conf_parse(&conf, setting, NULL, &e), &e);
    CHECK_OK(replay_ask(s, 0, &conf, &q, &x, &e), &e);
    return x;
}

TEST(
    replay_clean_start,
    "T5: from the events alone the reserved peak is within 1 % of the recorded one")
{
    static const struct {
        const char *name;
        int64_t reserved, allocated;
    } files[] = {
        {"tiny_97_events.pickle", 3781165056, 3249144832},
        {"forward_bf16_s128.pickle", 861929472, 815783936},
        {"infer_fp32_s128.pickle", 1763704832, 1738928128},
        {"train_bf16_s512.pickle", 12660506624, 12434494464}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct snapshot *s = open_file("snapshots", files[i].name);
        struct replay_outcome x = ask(s, "", 0, 5);
        CHECK_NEAR((double)x.run.reserved_peak_bytes / (double)files[i].reserved, 1, 0.01);
        CHECK_NEAR((double)x.reserved_peak_bytes_max / (double)files[i].reserved, 1, 0.01);
        CHECK_NEAR((double)x.run.allocated_peak_bytes / (double)files[i].allocated, 1, 0.001);
        CHECK(x.reserved_peak_bytes_min <= x.run.reserved_peak_bytes);
        CHECK(!x.run.oom && x.run.retries_n == 0);
        snapshot_free(s);
    }
}

TEST(
    replay_capacity,
    "T5: the smallest capacity passes, less runs out of memory; flushes are counted")
{
    struct snapshot *s = open_file("snapshots", "train_bf16_s512.pickle");
    struct replay_outcome x = ask(s, "", 0, 1);
    CHECK(x.capacity_needed_bytes >= x.run.allocated_peak_bytes);
    CHECK(x.capacity_needed_bytes <= x.run.reserved_peak_bytes);
    CHECK(x.capacity_tolerance_bytes <= 2 * MIB);
    struct replay_outcome fits = ask(s, "", x.capacity_needed_bytes, 1);
    CHECK(!fits.run.oom && fits.run.retries_n > 0);
    CHECK(fits.run.reserved_peak_bytes <= x.capacity_needed_bytes);
    struct replay_outcome fails =
        ask(s, "", x.capacity_needed_bytes - x.capacity_tolerance_bytes, 1);
    CHECK(fails.run.oom && fails.run.oom_event != SNAP_NONE && fails.run.oom_bytes > 0);
    snapshot_free(s);
}

TEST(
    replay_expandable_helps,
    "T5: the same requests under expandable segments need less, by maps instead of segments")
{
    struct snapshot *s = open_file("traces", "plain.pickle");
    struct replay_outcome native = ask(s, "", 0, 1),
                          grows = ask(s, "expandable_segments:True", 0, 1);
    CHECK(grows.run.reserved_peak_bytes < native.run.reserved_peak_bytes);
    CHECK_EQ(grows.run.segments_taken_n, 0);
    CHECK(grows.run.maps_n > 0 && native.run.maps_n == 0 && native.run.segments_taken_n > 0);
    CHECK(native.largest_free_at_peak_bytes > 0);
    snapshot_free(s);
}

TEST(
    replay_oom_still,
    "T5: with what the device had left, the recorded failure happens again or it does not")
{
    struct snapshot *s = open_file("traces", "expandable_oom.pickle");
    struct replay_exact x = exact_of(s, 0);
    int64_t capacity = replay_oom_capacity(&x);
    CHECK_EQ(capacity, 2500 * MIB);
    struct replay_outcome y = ask(s, "expandable_segments:True", 0, 1);
    CHECK(!y.run.oom);
    y = ask(s, "expandable_segments:True", y.run.allocated_peak_bytes - 20 * MIB, 1);
    CHECK(y.run.oom);
    snapshot_free(s);
}

TEST(
    replay_search, "T5: a setting is recommended only if it fits where the recorded one does not, "
                   "or saves 2 % and 64 MiB")
{
    struct replay_row rows[3] = {0};
    const int64_t gib = 1024 * MIB;
    rows[0].outcome.capacity_needed_bytes = 10 * gib;
    rows[1].outcome.capacity_needed_bytes = 10 * gib - 180 * MIB; /* 1.8 % */
    rows[2].outcome.capacity_needed_bytes = 11 * gib;
    CHECK_EQ(replay_recommend(rows, 3), -1);
    rows[1].outcome.capacity_needed_bytes = 10 * gib - 210 * MIB;
    CHECK_EQ(replay_recommend(rows, 3), 1);
    rows[2].outcome.capacity_needed_bytes = 9 * gib;
    CHECK_EQ(replay_recommend(rows, 3), 2);
    rows[0].outcome.run.oom = true; /* the first that passes, not the one that needs least */
    CHECK_EQ(replay_recommend(rows, 3), 1);
    rows[0].outcome.run.oom = rows[2].outcome.run.oom = true;
    CHECK_EQ(replay_recommend(rows, 3), 1);
    for (int i = 0; i < 3; i++)
        rows[i].outcome.capacity_needed_bytes /= 100; /* 2 %, but a few MiB */
    rows[0].outcome.run.oom = rows[2].outcome.run.oom = false;
    rows[2].outcome.capacity_needed_bytes = rows[0].outcome.capacity_needed_bytes;
    CHECK_EQ(replay_recommend(rows, 3), -1);
    struct mem_pool_conf conf;
    struct replay_row all[REPLAY_SETTINGS_MAX];
    mem_pool_conf_init(&conf);
    int n = replay_settings(&conf, all);
    conf.expandable_segments = true;
    CHECK(n >= 6 && replay_settings(&conf, all) == n);
    for (int i = 0; i < n; i++)
        CHECK(!str_eq(all[i].text, "expandable_segments:True"));
}

TEST(
    replay_no_device,
    "T5: a device that is not there is an error; one without events has only its blocks")
{
    struct err e = {0};
    struct mem_pool_conf conf;
    struct replay_exact x;
    struct snapshot *s = open_file("snapshot", "protocol4.pickle");
    replay_recorded_conf(s, &conf, NULL);
    CHECK_EQ(replay_exact(s, 2, &conf, &x, &e), ST_INVALID);
    CHECK_OK(replay_exact(s, 1, &conf, &x, &e), &e);
    CHECK_EQ(x.allocs_n, 0);
    CHECK_EQ(x.blocks_n, 2);
    snapshot_free(s);
}

/* A pool of ours, watched by a history: some requests, frees, a flush. */
static void run_watched(struct mem_history *h, struct mem_pool *p)
{
    struct err e = {0};
    struct mem_block *live[40] = {0};
    uint64_t random = 7;
    int device = mem_history_device(
        h, &(struct mem_history_device){.name = "sim:0", .capacity_bytes = 4096 * MIB});
    mem_history_watch(h, device, p);
    for (int i = 0; i < 2000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        struct mem_block **b = &live[(random >> 33) % 40];
        mem_history_step(h, i / 100);
        if (i % 500 == 499)
            mem_pool_trim(p);
        mem_pool_give(p, *b);
        *b = NULL;
        if (i % 3 == 0)
            continue;
        int64_t size = (int64_t)(random >> 40) % (i % 7 == 0 ? 30 * MIB : MIB / 4) + 1;
        CHECK_OK(
            mem_pool_alloc(
                p, size, (struct mem_tag){.what = "activation", .node = "train", .step = i / 100},
                b, &e),
            &e);
    }
}

TEST(
    replay_own, "T2 T5: the history of our own pool, as pickle and as JSON, is read and predicted "
                "to the last block")
{
    for (int pickle = 0; pickle < 2; pickle++) {
        struct err e = {0};
        char path[1024];
        struct mem_virtual *card = mem_virtual_new(NULL);
        struct mem_pool *p = mem_pool_new(mem_virtual_source(card));
        struct mem_history *h = mem_history_new(1000); /* the ring overflows */
        run_watched(h, p);
        (void)snprintf(path, sizeof path, "%s/own.%s", test_dir(), pickle ? "pickle" : "json");
        struct mem_history_form form = {.pickle = pickle != 0, .version = "1.2"};
        CHECK_OK(mem_history_write(h, path, &form, &e), &e);
        struct snapshot *s = NULL;
        CHECK_OK(snapshot_read_file(path, NULL, &s, &e), &e);
        CHECK_EQ(s->warnings_n, 1); /* of the ring */
        CHECK_EQ(s->devices[0].events_n, 1000);
        CHECK_EQ(s->devices[0].card.capacity_bytes, 4096 * MIB);
        CHECK_STR(snap_text(s, s->snug.version), "1.2");
        struct replay_exact x = exact_of(s, 0);
        if (!replay_is_exact(&x))
            test_fail(__FILE__, __LINE__, "%s", x.first_wrong);
        CHECK(x.allocs_n > 200 && x.segments_n > 3 && x.blocks_n > 20);
        const struct snap_block *block = s->blocks;
        while (block->state == SNAP_INACTIVE)
            block++;
        CHECK_STR(snap_text(s, s->origins[block->origin].category), "activation");
        CHECK_STR(snap_text(s, s->origins[block->origin].node), "train");
        snapshot_free(s);
        mem_history_unwatch(h, p);
        mem_history_free(h);
        mem_pool_free(p);
        mem_virtual_free(card);
    }
}
