/* journal_test.c - journals cut at every byte, disks without room, readers that follow. */
#include "wire/journal.h"

#include "base/env.h"
#include "base/mem.h"
#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static json_t *text_payload(const char *text)
{
    json_t *p = json_object();
    json_put_str(p, "text", text);
    return p;
}

static void fill_journal(const char *dir, int64_t epoch)
{
    struct journal j;
    struct err e;
    CHECK_OK(journal_open(&j, dir, epoch, &e), &e);
    CHECK_OK(journal_append(&j, EVENT_STARTED, NULL, &e), &e);
    CHECK_OK(journal_append(&j, EVENT_LOG, text_payload("line one\nline two\n"), &e), &e);
    CHECK_OK(journal_append(&j, EVENT_ENDED, NULL, &e), &e);
    CHECK(j.ended && j.sequence == 3);
    journal_close(&j);
}

static char *path_of(const char *dir)
{
    static char path[1200];
    (void)snprintf(path, sizeof path, "%s/events.jsonl", dir);
    return path;
}

/* Events of the journal, checked to have no gaps; -1 where one is bad. */
static int count(const char *dir, int64_t epoch)
{
    struct journal_reader r;
    struct run_event ev;
    struct err e;
    json_t *doc;
    int n = 0, bad = 0;
    CHECK_OK(journal_read_open(&r, dir, &e), &e);
    while (journal_next(&r, &doc, &ev, &bad)) {
        if (ev.epoch == epoch)
            CHECK_EQ(ev.sequence, ++n);
        json_decref(doc);
    }
    journal_read_close(&r);
    return bad ? -1 : n;
}

TEST(
    every_cut,
    "W7 promise-P10: a journal cut at any byte goes on without a gap and without a torn line")
{
    char *whole;
    size_t n;
    struct err e;
    const char *dir = test_dir();
    fill_journal(dir, 1);
    CHECK_OK(file_read(path_of(dir), 1 << 20, &whole, &n, &e), &e);
    for (size_t cut = 0; cut <= n; cut++) {
        struct journal j;
        CHECK_OK(file_write(path_of(dir), whole, cut, &e), &e);
        CHECK_OK(journal_open(&j, dir, 1, &e), &e);
        int lines = 0;
        for (size_t i = 0; i < cut; i++)
            lines += whole[i] == '\n';
        CHECK_EQ(j.sequence, lines);
        CHECK_EQ(j.ended, lines == 3);
        CHECK_EQ(j.started, lines > 0);
        if (!j.ended)
            CHECK_OK(journal_append(&j, EVENT_LOG, text_payload("after"), &e), &e);
        journal_close(&j);
        CHECK_EQ(count(dir, 1), lines == 3 ? 3 : lines + 1);
    }
    mem_free(whole);
}

TEST(zeros_at_the_end, "W7: blocks of zeros, as after a loss of power, are cut off")
{
    const char *dir = test_dir();
    char zeros[5000] = {0};
    struct journal j;
    struct err e;
    CHECK_OK(journal_open(&j, dir, 4, &e), &e);
    CHECK_OK(journal_append(&j, EVENT_STARTED, NULL, &e), &e);
    CHECK(write(j.fd, zeros, sizeof zeros) == (ssize_t)sizeof zeros);
    CHECK(write(j.fd, "\nnonsense\n", 10) == 10);
    journal_close(&j);
    CHECK_OK(journal_open(&j, dir, 4, &e), &e);
    CHECK_EQ(j.sequence, 1);
    CHECK_OK(journal_append(&j, EVENT_ENDED, NULL, &e), &e);
    journal_close(&j);
    CHECK_EQ(count(dir, 4), 2);
}

TEST(epochs, "promise-P12: a later attempt counts from one; an earlier one may not write after it")
{
    const char *dir = test_dir();
    struct journal j;
    struct err e = {0};
    fill_journal(dir, 1);
    CHECK_OK(journal_open(&j, dir, 2, &e), &e);
    CHECK(j.sequence == 0 && !j.started && !j.ended);
    CHECK_OK(journal_append(&j, EVENT_STARTED, NULL, &e), &e);
    journal_close(&j);
    CHECK_EQ(journal_open(&j, dir, 1, &e), ST_CONFLICT);
    CHECK_EQ(count(dir, 1), 3);
    CHECK_EQ(count(dir, 2), 1);
}

TEST(no_room, "promise-P13: an event that finds no room leaves no torn line")
{
    const char *dir = test_dir();
    char big[4000];
    struct journal j;
    struct err e;
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    CHECK_OK(journal_open(&j, dir, 1, &e), &e);
    CHECK_OK(journal_append(&j, EVENT_STARTED, NULL, &e), &e);
    struct rlimit full = {2000, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_FSIZE, &full) == 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    CHECK_EQ(journal_append(&j, EVENT_LOG, text_payload(big), &e), ST_IO);
    CHECK_EQ(j.sequence, 1);
    full.rlim_cur = RLIM_INFINITY;
    CHECK(setrlimit(RLIMIT_FSIZE, &full) == 0);
    CHECK_OK(journal_append(&j, EVENT_ENDED, NULL, &e), &e);
    journal_close(&j);
    CHECK_EQ(count(dir, 1), 2);
}

TEST(reader_follows, "R11: a reader sees a line when it is whole, and what replaces a torn one")
{
    const char *dir = test_dir();
    struct journal j;
    struct journal_reader r;
    struct run_event ev;
    struct err e;
    json_t *doc;
    CHECK_OK(journal_open(&j, dir, 1, &e), &e);
    CHECK_OK(journal_append(&j, EVENT_STARTED, NULL, &e), &e);
    CHECK_OK(journal_read_open(&r, dir, &e), &e);
    CHECK(journal_next(&r, &doc, &ev, NULL));
    CHECK_STR(ev.type, "started");
    json_decref(doc);
    int64_t at = r.at;
    CHECK(write(j.fd, "{\"epoch\":1,\"seq", 15) == 15);
    CHECK(!journal_next(&r, &doc, &ev, NULL));
    journal_close(&j);
    CHECK_OK(journal_open(&j, dir, 1, &e), &e);
    CHECK_OK(journal_append(&j, EVENT_LOG, text_payload("new"), &e), &e);
    for (int round = 0; round < 2; round++) {
        CHECK(journal_next(&r, &doc, &ev, NULL));
        CHECK_STR(json_get_str(ev.payload, "text", ""), "new");
        json_decref(doc);
        CHECK(!journal_next(&r, &doc, &ev, NULL));
        journal_read_seek(&r, at);
    }
    journal_read_close(&r);
    journal_close(&j);
}
