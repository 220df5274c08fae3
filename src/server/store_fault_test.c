/* store_fault_test.c - the store on a disk that fails, fills up and loses power at every write and
 * sync; killed processes; two programs on one file. What was acknowledged is there (promise-P1). */
#include "base/env.h"
#include "base/log.h"
#include "base/rng.h"
#include "server/fault_vfs.h"
#include "server/store_int.h"
#include "test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RUNS = 24 };

/* What callers were told: the state of each run, or -1 where its submission was not acknowledged.
 */
struct told {
    int state[RUNS];
    int doubtful; /* run whose last transaction was cut off in flight; -1 none */
    int failures;
};

static enum status submit(struct store *s, int number, struct err *e)
{
    struct store_run r = {
        .state = RUN_WAITING,
        .name = "n",
        .kind = "graph",
        .lane = "queued",
        .options = "{\"device\": \"cpu\", \"seed\": 12345, \"deterministic\": true}",
        .variant = -1,
        .repetition = -1};
    struct store_event ev = {.cursor = 1, .type = "log", .payload = "{\"text\": \"submitted\"}"};
    int64_t id;
    (void)snprintf(r.run_id, sizeof r.run_id, "%032x", (unsigned)number);
    TRY(store_begin(s, e));
    enum status st = store_run_add(s, &r, &id, e);
    if (st == ST_OK)
        st = store_event_add(s, id, &ev, e);
    if (st == ST_OK)
        st = store_run_seen(s, id, 0, 1, e);
    return store_end(s, st, e);
}

static enum status advance(struct store *s, int number, int from, struct err *e)
{
    struct arena a;
    struct store_run r;
    char run_id[33];
    arena_init(&a);
    (void)snprintf(run_id, sizeof run_id, "%032x", (unsigned)number);
    enum status st = store_run_get(s, run_id, &a, &r, e);
    int64_t id = r.id, cursor = r.last_cursor + 1;
    arena_release(&a);
    TRY(st);
    struct store_end end = {.state = RUN_SUCCEEDED, .cause = "done", .result = "{\"schema\": 1}"};
    struct store_event ev = {.cursor = cursor, .type = "log", .payload = "{}"};
    TRY(store_begin(s, e));
    if (from == RUN_WAITING)
        st = store_run_assign(s, id, 1, "w", "cpu", "cpu", e);
    else if (from == RUN_ASSIGNED)
        st = store_run_start(s, id, 1, 5, e);
    else
        st = store_run_finish(s, id, 1, &end, e);
    if (st == ST_OK)
        st = store_event_add(s, id, &ev, e);
    if (st == ST_OK)
        st = store_run_seen(s, id, cursor, cursor, e);
    return store_end(s, st, e);
}

/* The state that follows. */
static int next_state(int state)
{
    return state < 0 ? RUN_WAITING : state == RUN_RUNNING ? RUN_SUCCEEDED : state + 1;
}

/* Submits and moves runs until each has ended, or the power is gone; failures are tried again. */
static void work(struct store *s, struct told *t, struct err *e)
{
    for (int round = 0; round < 4 * RUNS; round++) {
        int i = round % 6 + round / 24 * 6; /* six at a time, four moves each */
        int state = t->state[i];
        enum status st = state < 0 ? submit(s, i, e) : advance(s, i, state, e);
        if (st == ST_OK) {
            t->state[i] = next_state(state);
            continue;
        }
        t->failures++;
        CHECK(st == ST_IO);
        CHECK(e->text[0] && e->detail[0] && !store_inside(s));
        t->doubtful = i;
        if (t->failures > 3)
            return;
        round--;
    }
}

/* After the database was opened again: sound, every run whole. Returns how many runs differ from
 * what was acknowledged; the one whose answer got lost may be a move further. */
static int judge(const struct told *t, bool cut)
{
    int wrong = 0;
    struct store *s;
    struct err e;
    struct arena a;
    struct store_options o = {.vfs = FAULT_VFS, .readers = 1};
    CHECK_OK(store_open("snug.db", &o, &s, &e), &e);
    sqlite3_stmt *st;
    CHECK_EQ(sqlite3_prepare_v2(s->writer.db, "PRAGMA integrity_check", -1, &st, NULL), SQLITE_OK);
    CHECK_EQ(sqlite3_step(st), SQLITE_ROW);
    CHECK_STR((const char *)sqlite3_column_text(st, 0), "ok");
    (void)sqlite3_finalize(st);
    arena_init(&a);
    for (int i = 0; i < RUNS; i++) {
        struct store_run r;
        char run_id[33];
        (void)snprintf(run_id, sizeof run_id, "%032x", (unsigned)i);
        enum status found = store_run_get(s, run_id, &a, &r, &e);
        int state = found == ST_OK ? (int)r.state : -1;
        if (!(cut && i == t->doubtful && state == next_state(t->state[i])))
            wrong += state != t->state[i];
        if (state < 0)
            continue;
        struct store_event *events;
        size_t n;
        CHECK_OK(store_events_read(s, r.id, 0, 100, 1 << 20, &a, &events, &n, &e), &e);
        CHECK_EQ((int64_t)n, r.last_cursor);
        CHECK_EQ((int64_t)n, state == RUN_SUCCEEDED ? 4 : state + 1);
        CHECK_EQ(r.result[0] != '\0', state == RUN_SUCCEEDED);
    }
    arena_release(&a);
    store_close(s);
    return wrong;
}

/* One life of a database with a fault at the given operations. Returns what judge found. */
static int
life(enum fault f, int64_t first, int64_t n, uint64_t seed, bool fast, int64_t *operations)
{
    struct told t = {.doubtful = -1};
    struct err e = {0};
    struct store *s = NULL;
    struct store_options o = {.vfs = FAULT_VFS, .readers = 1, .fast = fast};
    for (int i = 0; i < RUNS; i++)
        t.state[i] = -1;
    log_level_set(LOG_ERROR); /* what is said at each of thousands of faults */
    fault_disk_new(seed);
    fault_plan(f, first, n);
    enum status st = store_open("snug.db", &o, &s, &e);
    if (st != ST_OK && f != FAULT_CUT) {
        CHECK(e.text[0]);
        fault_heal();
        CHECK_OK(store_open("snug.db", &o, &s, &e), &e);
        st = ST_OK;
    }
    if (st == ST_OK) {
        work(s, &t, &e);
        store_idle(s);
        if (f != FAULT_CUT) {
            /* The disk works again: so does the server, without a restart. */
            fault_heal();
            t.doubtful = -1;
            t.failures = 0;
            for (int i = 0; i < RUNS; i++)
                while (t.state[i] != RUN_SUCCEEDED) {
                    CHECK_OK(t.state[i] < 0 ? submit(s, i, &e) : advance(s, i, t.state[i], &e), &e);
                    t.state[i] = next_state(t.state[i]);
                }
        }
        store_close(s);
    }
    *operations = fault_operations();
    if (f == FAULT_CUT)
        fault_power_on();
    return judge(&t, f == FAULT_CUT);
}

static bool soak(void)
{
    return getenv("SNUG_SOAK") != NULL;
}

/* Every fault at every operation; `make check` takes a sample that the seed moves. */
static void every_operation(enum fault f, int64_t n)
{
    struct rng rng;
    rng_init(&rng, test_seed(), 2, (uint32_t)f);
    int64_t operations, own;
    CHECK_EQ(life(FAULT_NONE, 0, 0, 1, false, &operations), 0);
    int64_t stride = soak() ? 1 : operations / 60 + 1;
    CHECK(operations > 300);
    for (int64_t at = 1 + (int64_t)rng_below(&rng, (uint64_t)stride); at <= operations;
         at += stride)
        for (int i = 0; i < (soak() && f == FAULT_CUT ? 5 : 1); i++)
            CHECK_EQ(life(f, at, n, rng_u32(&rng), false, &own), 0);
}

TEST_WITHIN(
    store_survives_power_cuts, 1800,
    "promise-P1: after a power cut at any write or sync what was acknowledged is there, whole")
{
    every_operation(FAULT_CUT, 1);
}

TEST_WITHIN(
    store_survives_a_full_disk, 1800,
    "promise-P1 promise-P13: a full disk refuses with a text; later calls work when the disk does")
{
    every_operation(FAULT_FULL, 1);
    every_operation(FAULT_FULL, 40);
}

TEST_WITHIN(store_survives_short_writes, 1800, "promise-P1: half a write before the disk is full")
{
    every_operation(FAULT_SHORT, 1);
}

TEST_WITHIN(
    store_survives_io_errors, 1800,
    "promise-P1: an input/output error at any operation, once and for a while")
{
    every_operation(FAULT_IO, 1);
    every_operation(FAULT_IO, 25);
}

TEST(store_says_what_failed, "promise-P1: full, read-only and damaged have texts of their own")
{
    struct store_options o = {.vfs = FAULT_VFS, .readers = 1};
    struct store *s;
    struct err e;
    struct store_health h;
    fault_disk_new(1);
    CHECK_OK(store_open("snug.db", &o, &s, &e), &e);
    fault_plan(FAULT_FULL, 1, 1000);
    CHECK_EQ(submit(s, 1, &e), ST_IO);
    CHECK_STR(e.text, "could not write the database: the disk is full");
    CHECK(strstr(e.hint, "Free some space"));
    store_health(s, &h);
    CHECK(h.failing && h.failures == 1 && strstr(h.last_error, "disk is full"));
    fault_heal();
    CHECK_OK(submit(s, 1, &e), &e);
    store_health(s, &h);
    CHECK(!h.failing && h.failures == 1);
    fault_plan(FAULT_IO, 1, 1000);
    CHECK_EQ(submit(s, 2, &e), ST_IO);
    CHECK_STR(e.text, "could not write the database: input/output error");
    fault_heal();
    store_close(s);

    fault_read_only(true);
    CHECK_EQ(store_open("snug.db", &o, &s, &e), ST_IO);
    CHECK(strstr(e.text, "read-only"));
    fault_read_only(false);
    CHECK_OK(store_open("snug.db", &o, &s, &e), &e);
    store_close(s);
    CHECK(fault_flip("snug.db", 3));
    CHECK_EQ(store_open("snug.db", &o, &s, &e), ST_CORRUPT);
    CHECK(strstr(e.text, "not a database") && e.hint[0]);
}

TEST(
    store_checks_after_an_unclean_stop,
    "promise-P1: the whole file is checked when the last program did not close it")
{
    struct store_options o = {.vfs = FAULT_VFS, .readers = 1};
    struct store *s;
    struct err e;
    struct store_health h;
    fault_disk_new(1);
    CHECK_OK(store_open("snug.db", &o, &s, &e), &e);
    for (int i = 0; i < 300; i++)
        CHECK_OK(submit(s, i, &e), &e);
    store_close(s);
    CHECK_OK(store_open("snug.db", &o, &s, &e), &e);
    store_health(s, &h);
    CHECK(!h.checked);
    CHECK_OK(submit(s, 1000, &e), &e);
    fault_plan(FAULT_CUT, 1, 1);
    CHECK_EQ(submit(s, 1001, &e), ST_IO);
    store_close(s);
    fault_power_on();
    /* A page in the middle of a table that nobody looks at before it is read. */
    CHECK(fault_flip("snug.db", 40 * 4096 + 3));
    CHECK(fault_flip("snug.db", 40 * 4096 + 8));
    CHECK_EQ(store_open("snug.db", &o, &s, &e), ST_CORRUPT);
    CHECK(strstr(e.text, "damaged"));
    CHECK(fault_flip("snug.db", 40 * 4096 + 3));
    CHECK(fault_flip("snug.db", 40 * 4096 + 8));
    CHECK_OK(store_open("snug.db", &o, &s, &e), &e);
    store_health(s, &h);
    CHECK(h.checked);
    store_close(s);
}

/* Submits runs for ever, and says so after each acknowledgement. */
static _Noreturn void submit_and_tell(const char *path, int first, int out)
{
    struct store *s;
    struct err e;
    if (store_open(path, NULL, &s, &e) != ST_OK)
        _exit(3);
    for (int i = first;; i++) {
        if (submit(s, i, &e) != ST_OK || write(out, &i, sizeof i) != sizeof i)
            _exit(4);
        if (i % 50 == 0)
            store_idle(s);
    }
}

TEST_WITHIN(
    store_survives_kills, 3600,
    "promise-P1: kill -9 at any moment loses nothing that was acknowledged")
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/snug.db", test_dir());
    struct rng rng;
    rng_init(&rng, test_seed(), 3, 0);
    int next = 0, last = -1;
    for (int round = 0; round < (soak() ? 1000 : 12); round++) {
        int ends[2];
        CHECK_EQ(pipe(ends), 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child)
            submit_and_tell(path, next, ends[1]);
        (void)close(ends[1]);
        /* Mostly after its first acknowledgement; else somewhere in its start. */
        int told;
        if (round % 4 && read(ends[0], &told, sizeof told) == sizeof told)
            last = told;
        struct timespec pause = {.tv_nsec = (long)rng_below(&rng, 40000000)};
        (void)nanosleep(&pause, NULL);
        CHECK_EQ(kill(child, SIGKILL), 0);
        while (read(ends[0], &told, sizeof told) == sizeof told)
            last = told;
        (void)close(ends[0]);
        int how;
        CHECK_EQ(waitpid(child, &how, 0), child);
        CHECK(WIFSIGNALED(how));

        struct store *s;
        struct err e;
        int64_t counts[RUN_STATE_COUNT];
        CHECK_OK(store_open(path, NULL, &s, &e), &e);
        CHECK_OK(store_runs_count(s, counts, &e), &e);
        CHECK(counts[RUN_WAITING] == last + 1 || counts[RUN_WAITING] == last + 2);
        next = (int)counts[RUN_WAITING];
        last = next - 1;
        store_close(s);
    }
    CHECK(next >= 9);
}

TEST(
    store_waits_for_a_second_program,
    "case-S7: somebody else's write lock delays a run, and fails none")
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/snug.db", test_dir());
    struct store *s;
    struct err e;
    CHECK_OK(store_open(path, NULL, &s, &e), &e);
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) { /* a person with the shell */
        sqlite3 *db;
        struct timespec pause = {.tv_nsec = 300000000};
        if (sqlite3_open(path, &db) != SQLITE_OK ||
            sqlite3_exec(db, "BEGIN IMMEDIATE; DELETE FROM settings", NULL, NULL, NULL) !=
                SQLITE_OK)
            _exit(3);
        if (write(ends[1], "x", 1) != 1)
            _exit(4);
        (void)nanosleep(&pause, NULL);
        _exit(sqlite3_exec(db, "COMMIT", NULL, NULL, NULL) == SQLITE_OK ? 0 : 5);
    }
    char go;
    CHECK_EQ(read(ends[0], &go, 1), 1);
    CHECK_OK(submit(s, 1, &e), &e); /* waits here */
    int how;
    CHECK_EQ(waitpid(child, &how, 0), child);
    CHECK(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    store_close(s);
}

TEST(
    canary_without_sync_loses_runs,
    "promise-P1: the same power cuts find a store that does not sync")
{
    int64_t operations, own;
    int lost = 0;
    CHECK_EQ(life(FAULT_NONE, 0, 0, 1, true, &operations), 0);
    for (int i = 0; i < 40 && !lost; i++)
        lost = life(FAULT_CUT, operations - 100 + i, 1, test_seed() + (uint64_t)i, true, &own);
    CHECK(lost > 0);
}
