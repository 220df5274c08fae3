/* snapshot_test.c - every form of a snapshot gives the same tables; real files give their figures;
 * damaged and hostile ones an error. The corpus is made by tests/support/make_snapshots.py. */
#include "doctor/snapshot.h"

#include "base/env.h"
#include "base/str.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)

static const char *corpus(const char *folder, const char *name)
{
    static char path[1024];
    (void)snprintf(path, sizeof path, "%s/tests/corpus/%s/%s", SNUG_SOURCE_DIR, folder, name);
    return path;
}

static struct snapshot *read_ok(const char *folder, const char *name)
{
    struct err e = {0};
    struct snapshot *s = NULL;
    if (snapshot_read_file(corpus(folder, name), NULL, &s, &e) != ST_OK)
        test_fail(__FILE__, __LINE__, "%s: %s", name, e.text);
    return s;
}

/* The error of a file of the corpus. */
static struct err refused(const char *name)
{
    struct err e = {0};
    struct snapshot *s = NULL;
    if (snapshot_read_file(corpus("snapshot", name), NULL, &s, &e) == ST_OK)
        test_fail(__FILE__, __LINE__, "%s was read", name);
    CHECK(!s);
    return e;
}

static void check_refused(const char *name, enum status st, const char *words)
{
    struct err e = refused(name);
    if (e.status != st || !strstr(e.text, words) || !strstr(e.text, name))
        test_fail(__FILE__, __LINE__, "%s: %s", name, e.text);
}

/* ---- the small snapshot of make_snapshots.py ---- */

static void check_segments(const struct snapshot *s)
{
    CHECK_EQ(s->devices_n, 2);
    CHECK_EQ(s->segments_n, 3);
    CHECK_EQ(s->blocks_n, 7);
    CHECK_EQ(s->devices[0].segments_n, 2);
    CHECK_EQ(s->devices[0].reserved_bytes, 22 * MIB);
    CHECK_EQ(s->devices[0].active_bytes, 3 * MIB + 1024);
    CHECK_EQ(s->devices[0].free_block_bytes_max, 12 * MIB - 512);
    CHECK_EQ(s->devices[1].active_bytes, 512);
    CHECK_EQ(s->devices[1].allocated_bytes, 0);
    const struct snap_segment *g = &s->segments[1];
    CHECK(g->large && !s->segments[0].large);
    CHECK_EQ(g->addr, 0x7f0000000000 + 20 * MIB);
    CHECK_EQ(g->blocks_n, 3);
    const struct snap_block *k = &s->blocks[g->first_block + 1];
    CHECK_EQ(k->addr, 0x7f0000000000 + 25 * MIB + 512);
    CHECK_EQ(k->size, 3 * MIB);
    CHECK_EQ(k->requested_size, 3 * MIB);
    CHECK_EQ(k->state, SNAP_ACTIVE);
    CHECK_EQ(k->segment, 1);
    CHECK_EQ(s->blocks[s->segments[2].first_block].state, SNAP_PENDING);
    CHECK_EQ(s->streams[s->segments[2].stream], 94);
    CHECK_EQ(s->warnings_n, 0);
}

static const struct snap_frame *frame_at(const struct snapshot *s, uint32_t stack, uint32_t i)
{
    CHECK(i < s->stacks[stack].n);
    return &s->frames[snap_stack_frames(s, stack)[i]];
}

static void check_events(const struct snapshot *s)
{
    CHECK(s->has_history && s->has_stacks);
    CHECK_EQ(s->events_n, 6);
    CHECK_EQ(s->devices[0].events_n, 6);
    const struct snap_event *v = s->events;
    CHECK_EQ(v[0].action, SNAP_SEGMENT_ALLOC);
    CHECK_EQ(v[1].action, SNAP_ALLOC);
    CHECK_EQ(v[1].size, 5 * MIB + 1);
    CHECK_EQ(v[4].action, SNAP_FREE_COMPLETED);
    CHECK_EQ(v[5].action, SNAP_OOM);
    CHECK_EQ(v[5].addr, 7 * MIB);
    CHECK_EQ(v[5].size, 64 * MIB);
    CHECK_EQ(v[0].stack, v[1].stack);
    CHECK(v[0].stack != v[2].stack);
    CHECK_EQ(s->stacks[v[2].stack].n, 3);
    CHECK_STR(snap_text(s, frame_at(s, v[2].stack, 1)->file), "train.py");
    CHECK_STR(snap_text(s, frame_at(s, v[2].stack, 1)->name), "step");
    CHECK_EQ(frame_at(s, v[2].stack, 1)->line, 40);
    CHECK_EQ(frame_at(s, v[2].stack, 0)->line, 0);
    CHECK_EQ(s->frames_n, 3);
    /* The block of the end belongs to the allocation of the trace, the other one to none. */
    CHECK_EQ(s->devices[0].lives_n, 3);
    CHECK_EQ(s->devices[0].earlier_n, 1);
    CHECK_EQ(s->devices[0].earlier_bytes, 1000);
    const struct snap_life *life = &s->lives[s->event_life[2]];
    CHECK_EQ(life->free_requested, SNAP_NONE);
    CHECK_EQ(s->blocks[life->block].size, 3 * MIB);
    CHECK_EQ(s->lives[s->event_life[1]].free_completed, 4);
}

static void check_settings(const struct snapshot *s)
{
    const struct snap_settings *t = &s->settings;
    CHECK(t->present && t->roundup_power2 && !t->expandable_segments);
    CHECK_STR(snap_text(s, t->conf), "roundup_power2_divisions:[8:8]");
    CHECK_EQ(t->max_split_size, -1);
    CHECK_NEAR(t->garbage_collection_threshold, 0.5, 0);
    CHECK_EQ(t->roundup_power2_divisions[3], 8);
    CHECK_EQ(t->roundup_power2_divisions[4], 0);
    CHECK_EQ(t->trace_overflowed, -1);
    CHECK_EQ(s->annotations_n, 2);
    CHECK(s->annotations[1].end && s->annotations[1].time_us == 1004);
    CHECK_STR(snap_text(s, s->annotations[0].name), "Optimizer.step#SGD.step");
}

TEST(
    snapshot_forms, "T4: pickles of protocols 2 to 5, of PyTorch's C++ pickler, padded, in a page, "
                    "and JSON give the same")
{
    static const char *const names[] = {
        "protocol2.pickle", "protocol3.pickle", "protocol4.pickle",      "protocol5.pickle",
        "cpp.pickle",       "padded.pickle",    "python_pickler.pickle", "page.html",
        "plain.json",       "shared.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct snapshot *s = read_ok("snapshot", names[i]);
        check_segments(s);
        check_events(s);
        check_settings(s);
        CHECK(s->has_time && s->events[1].time_us == 1001);
        CHECK_STR(snap_text(s, s->events[5].metadata), "last");
        CHECK_STR(snap_text(s, s->events[5].context), "N/A");
        CHECK_EQ(s->pools[s->segments[2].pool].b, 1);
        CHECK_EQ(s->form == SNAP_JSON, strstr(names[i], ".json") != NULL);
        snapshot_free(s);
    }
}

TEST(
    snapshot_old,
    "T4: a snapshot of 2.0 has its frames and requested sizes in the history of blocks")
{
    struct snapshot *s = read_ok("snapshot", "old.pickle");
    check_segments(s);
    check_events(s);
    CHECK(!s->has_time && !s->settings.present);
    CHECK_STR(snap_text(s, frame_at(s, s->blocks[3].stack, 1)->name), "step");
    snapshot_free(s);
}

TEST(snapshot_list, "T4: a plain list of segments is a snapshot without events")
{
    struct snapshot *s = read_ok("snapshot", "list.pickle");
    check_segments(s);
    CHECK(s->plain_list && !s->has_history && s->events_n == 0);
    CHECK_EQ(s->devices[0].earlier_n, 2);
    snapshot_free(s);
}

TEST(snapshot_lenient, "T4: unknown keys, pool ids as lists and -1 as nine bytes are read over")
{
    struct snapshot *s = read_ok("snapshot", "lenient.pickle");
    check_segments(s);
    check_events(s);
    check_settings(s);
    CHECK_EQ(s->pools[s->segments[2].pool].b, 1);
    CHECK_EQ(s->events[1].pool, 0);
    snapshot_free(s);
}

TEST(snapshot_own, "T2: our own JSON shares stacks by number and says who asked")
{
    struct snapshot *s = read_ok("snapshot", "shared.json");
    CHECK(s->snug.present);
    CHECK_EQ(s->devices[0].card.capacity_bytes, 64 * MIB);
    CHECK_STR(snap_text(s, s->devices[0].card.name), "cpu");
    CHECK_EQ(s->devices[1].card.capacity_bytes, 0);
    CHECK_STR(snap_text(s, s->snug.version), "0.1.0");
    const struct snap_origin *o = &s->origins[s->events[1].origin];
    CHECK_STR(snap_text(s, o->node), "train");
    CHECK_STR(snap_text(s, o->category), "activation");
    CHECK_STR(snap_text(s, o->what), "conv1");
    CHECK_EQ(o->step, 3);
    CHECK_EQ(s->origins_n, 2);
    snapshot_free(s);
}

TEST(snapshot_real, "T4: figures of real snapshots: reserved, allocated, events, code paths")
{
    static const struct {
        const char *name;
        uint32_t events, segments;
        int64_t reserved, active, largest;
    } files[] = {
        {"tiny_97_events.pickle", 97, 9, 3781165056, 31719936, 536870912},
        {"forward_bf16_s128.pickle", 2811, 43, 861929472, 525286400, 20971520},
        {"infer_fp32_s128.pickle", 3840, 98, 1763704832, 1703276544, 20971520},
        {"train_bf16_s512.pickle", 22332, 400, 12660506624, 6838108672, 83886080}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct snapshot *s = read_ok("snapshots", files[i].name);
        const struct snap_device *d = s->devices;
        CHECK_EQ(s->devices_n, 1);
        CHECK_EQ(d->events_n, files[i].events);
        CHECK_EQ(d->segments_n, files[i].segments);
        CHECK_EQ(d->reserved_bytes, files[i].reserved);
        CHECK_EQ(d->active_bytes, files[i].active);
        CHECK_EQ(d->free_block_bytes_max, files[i].largest);
        CHECK_EQ(d->reserved_bytes, d->active_bytes + d->free_bytes);
        CHECK_EQ(d->unmatched_n + s->warnings_n, 0);
        snapshot_free(s);
    }
}

TEST(snapshot_refused, "T4: opcodes that could name, make or call something are refused by name")
{
    static const char *const names[] = {"GLOBAL", "STACK_GLOBAL", "REDUCE",         "BUILD",
                                        "INST",   "OBJ",          "NEWOBJ",         "NEWOBJ_EX",
                                        "PERSID", "BINPERSID",    "EXT1",           "EXT2",
                                        "EXT4",   "NEXT_BUFFER",  "READONLY_BUFFER"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char file[64], words[64];
        (void)snprintf(file, sizeof file, "refused_%s.pickle", names[i]);
        for (char *c = file; *c; c++)
            *c = *c >= 'A' && *c <= 'Z' ? (char)(*c + 32) : *c;
        (void)snprintf(words, sizeof words, "opcode %s is refused", names[i]);
        check_refused(file, ST_UNSUPPORTED, words);
    }
}

TEST(snapshot_hostile, "T4: damaged and hostile files are errors that say where")
{
    check_refused("memo_get.pickle", ST_CORRUPT, "nothing was memoized there");
    check_refused("memo_put.pickle", ST_CORRUPT, "no memo is so large");
    check_refused("memo_gap.pickle", ST_CORRUPT, "nothing was memoized there");
    check_refused("frame.pickle", ST_CORRUPT, "at byte 11: FRAME of 9223372036854775807 bytes");
    check_refused("frame_cut.pickle", ST_CORRUPT, "cut off");
    check_refused("long9_wide.pickle", ST_CORRUPT, "beyond 64 bits");
    check_refused("long255.pickle", ST_CORRUPT, "LONG1 of 255 bytes");
    check_refused("long4.pickle", ST_CORRUPT, "LONG4 of 2147483647 bytes");
    check_refused("text.pickle", ST_CORRUPT, "more than the 67108864 allowed");
    check_refused("text_cut.pickle", ST_CORRUPT, "ends within BINUNICODE");
    check_refused("marks.pickle", ST_CORRUPT, "nested deeper than 1000");
    check_refused("json_depth.json", ST_CORRUPT, "nested deeper than 1000");
    check_refused("unmarked.pickle", ST_CORRUPT, "not begun");
    check_refused("append_below.pickle", ST_CORRUPT, "nothing on the stack");
    check_refused("self.pickle", ST_CORRUPT, "no segment");
    check_refused("cut.pickle", ST_CORRUPT, "cut off");
    check_refused("other.pickle", ST_CORRUPT, "this is no memory snapshot");
    check_refused("same_trace.pickle", ST_CORRUPT, "the trace of device 1 is also another's");
    check_refused("same_block.pickle", ST_CORRUPT, "a block is part of two segments");
    check_refused("sizes.pickle", ST_CORRUPT, "more than any memory has");
    check_refused("negative.pickle", ST_CORRUPT, "beyond all addresses");
    check_refused("empty.pickle", ST_CORRUPT, "it is empty");
    check_refused("protocol0.pickle", ST_CORRUPT, "no pickle, JSON or page");
    check_refused("protocol1.pickle", ST_UNSUPPORTED, "a pickle of protocol 1");
    check_refused("page_without.html", ST_CORRUPT, "this page holds no memory snapshot");
    check_refused("page_cut.html", ST_CORRUPT, "cut off");
    check_refused("json_trailing.json", ST_CORRUPT, "no value");
}

TEST(snapshot_nested_lists, "T4: a hundred thousand nested lists cost their bytes and no depth")
{
    struct err e = {0};
    struct snapshot *s = NULL;
    size_t n = 100000, at = 2;
    char *data = mem_alloc(2 * n + 64);
    memcpy(data, "\x80\x02", 2);
    memset(data + at, ']', n);
    memset(data + at + n, 'a', n - 1);
    data[at + 2 * n - 1] = '.';
    CHECK(snapshot_read_bytes(data, at + 2 * n, "nested", NULL, &s, &e) == ST_CORRUPT);
    CHECK(strstr(e.text, "no segment"));
    mem_free(data);
}

TEST(snapshot_truncated, "T4: a file that ends anywhere is an error, never a crash")
{
    static const char *const names[] = {
        "protocol4.pickle", "cpp.pickle", "shared.json", "page.html"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct err e = {0};
        char *data;
        size_t size;
        CHECK_OK(file_read(corpus("snapshot", names[i]), 1 << 20, &data, &size, &e), &e);
        size_t end = size;
        while (data[end - 1] == '\n' || data[end - 1] == '>')
            end--;
        size_t most = strstr(names[i], "page") ? size - 200 : end;
        for (size_t n = 0; n < most; n++) {
            struct snapshot *s = NULL;
            char *part = mem_alloc(n + 1); /* of its own, so that a sanitizer sees its end */
            memcpy(part, data, n);
            CHECK(snapshot_read_bytes(part, n, names[i], NULL, &s, &e) != ST_OK);
            mem_free(part);
        }
        mem_free(data);
    }
}

TEST(snapshot_limit, "T4: more host memory than allowed is out of memory, not a crash")
{
    struct err e = {0};
    enum status st = ST_OOM;
    int64_t limit = 1 << 12;
    for (; st == ST_OOM; limit += limit / 4) {
        struct snapshot_options o = {.memory_bytes = limit};
        struct snapshot *s = NULL;
        st = snapshot_read_file(corpus("snapshots", "infer_fp32_s128.pickle"), &o, &s, &e);
        snapshot_free(s);
    }
    CHECK_OK(st, &e);
    CHECK(limit > 1 << 17 && limit < 8 << 20);
}

static int64_t told_total;
static void tell(void *ctx, int64_t done, int64_t total)
{
    *(int *)ctx += done > 0;
    told_total = total;
}

TEST(snapshot_progress, "T4: a long read tells how far it is, of how much")
{
    struct err e = {0};
    struct snapshot *s = NULL;
    int calls = 0;
    struct snapshot_options o = {.progress = tell, .ctx = &calls};
    CHECK_OK(snapshot_read_file(corpus("snapshots", "train_bf16_s512.pickle"), &o, &s, &e), &e);
    CHECK(calls >= 1 && told_total == s->file_bytes);
    snapshot_free(s);
}

TEST(snapshot_look, "T4: what may be a snapshot is seen from its first bytes")
{
    CHECK(snapshot_looks_like("\x80\x04\x95", 3));
    CHECK(snapshot_looks_like("{\"segments\": [", 14));
    CHECK(snapshot_looks_like("  <!DOCTYPE html>", 17));
    CHECK(!snapshot_looks_like("RuntimeError: CUDA out of memory", 32));
    CHECK(!snapshot_looks_like("[rank0]: Traceback", 18));
    CHECK(!snapshot_looks_like("", 0));
}
