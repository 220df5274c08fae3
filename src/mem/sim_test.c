/* sim_test.c - simulated cards: descriptions, and one memory that processes share. */
#include "mem/sim.h"

#include "base/env.h"
#include "mem/device.h"
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const int64_t MIB = 1 << 20, GIB = 1 << 30;

/* ---- descriptions ---- */

TEST(description, "D1: cards as SNUG_SIM_CARDS gives them")
{
    static struct sim_spec s[SIM_CARDS_MAX];
    struct err e;
    int n;
    CHECK_OK(sim_specs_parse("RTX 4090:24GiB:sm89,RTX 3060:12GiB:sm86", "text", s, &n, &e), &e);
    CHECK_EQ(n, 2);
    CHECK_STR(s[0].name, "RTX 4090");
    CHECK_EQ(s[0].capacity_bytes, 24 * GIB);
    CHECK_EQ(s[0].compute_capability, 89);
    CHECK_EQ(s[0].context_bytes, 650 * MIB);
    CHECK_EQ(s[0].others_bytes, 0);
    CHECK(strcmp(s[0].uuid, s[1].uuid) != 0 && strncmp(s[0].uuid, "GPU-", 4) == 0);
    char uuid[80];
    (void)snprintf(uuid, sizeof uuid, "%s", s[0].uuid);
    CHECK_OK(
        sim_specs_parse(
            " T4 : 16GB : sm_75 : context=0 : uuid=U-1.a : others=1 ", "text", s, &n, &e),
        &e);
    CHECK_STR(s[0].uuid, "U-1.a");
    CHECK(s[0].context_bytes == 0 && s[0].others_bytes == 1 && s[0].compute_capability == 75);
    CHECK_OK(sim_specs_parse("RTX 4090:24GiB:sm89", "text", s, &n, &e), &e);
    CHECK_STR(s[0].uuid, uuid); /* the same text, the same card */
    CHECK_OK(sim_specs_parse("small:1GiB:sm80", "text", s, &n, &e), &e);
    CHECK_EQ(s[0].context_bytes, 256 * MIB);
    CHECK_OK(sim_specs_parse("\nA:1GiB:sm80,\n B:1GiB:sm80\r\n", "text", s, &n, &e), &e);
    CHECK(n == 2 && strcmp(s[0].name, "A") == 0 && strcmp(s[1].name, "B") == 0);
    CHECK_OK(sim_specs_parse(" \r\n", "text", s, &n, &e), &e);
    CHECK_EQ(n, 0);
}

TEST(malformed, "D1: a malformed description names card and field")
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"RTX 4090", "card 1 (RTX 4090): size \"\" is missing"},
        {"A:1GiB", "card 1 (A): compute capability \"\" is missing"},
        {"A:1GiB:sm80,:1GiB:sm80", "card 2: name \"\" is empty"},
        {"A:1GiB:sm80,", "card 2: name"},
        {"A:1Gib:sm80", "card 1 (A): size \"1Gib\" is not a size"},
        {"A:0:sm80", "card 1 (A): size \"0\" is not above 0"},
        {"A:-1GiB:sm80", "card 1 (A): size \"-1GiB\""},
        {"A:9999999GiB:sm80", "card 1 (A): size"},
        {"A:1GiB:80", "card 1 (A): compute capability \"80\" is not smXX"},
        {"A:1GiB:sm8x", "card 1 (A): compute capability \"sm8x\""},
        {"A:1GiB:sm80:contxt=1", "card 1 (A): field \"contxt=1\" is not uuid="},
        {"A:1GiB:sm80:context=x", "card 1 (A): context \"x\" is not a size"},
        {"A:1GiB:sm80:context=2GiB", "card 1 (A): context \"2.00 GiB\" is more than the card"},
        {"A:1GiB:sm80:others=2GiB", "card 1 (A): others \"2.00 GiB\" is more than the card"},
        {"A:1GiB:sm80:uuid=../x", "card 1 (A): uuid \"../x\""},
        {"A:1GiB:sm80:uuid=", "card 1 (A): uuid \"\""},
        {"A:1GiB:sm80:uuid=u,B:1GiB:sm80:uuid=u", "card 2 (B): uuid \"u\" is another card's"},
        {"A:1GiB:sm80:::::::::::::::", "card 1 (A): field"},
        {"A\xff:1GiB:sm80", "card 1: name"},
        {"A:1GiB:sm80:uuid=u:uuid=v", "card 1 (A): field \"uuid=v\" is given a second time"},
        {"A:1GiB:sm80:context=1:context=1", "\"context=1\" is given a second time"},
        {"A:1GiB:sm80:others=0:others=0", "\"others=0\" is given a second time"},
    };
    static struct sim_spec s[SIM_CARDS_MAX];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err e = {0};
        int n;
        CHECK_EQ(sim_specs_parse(rows[i].text, "SNUG_SIM_CARDS", s, &n, &e), ST_INVALID);
        if (!strstr(e.text, rows[i].says) || strncmp(e.text, "SNUG_SIM_CARDS: ", 16) != 0)
            test_fail(__FILE__, __LINE__, "\"%s\" gives \"%s\"", rows[i].text, e.text);
    }
}

/* ---- one memory ---- */

static struct sim_spec spec_of(const char *more)
{
    static struct sim_spec s[SIM_CARDS_MAX];
    char text[200];
    struct err e;
    int n;
    (void)snprintf(text, sizeof text, "A:1GiB:sm80:uuid=card:context=100MiB%s", more);
    CHECK_OK(sim_specs_parse(text, "text", s, &n, &e), &e);
    return s[0];
}

static struct sim_card *card_of(const char *more)
{
    struct sim_spec s = spec_of(more);
    return sim_card_new(&s, test_dir());
}

static int64_t free_of(struct sim_card *c)
{
    struct sim_state s;
    struct err e;
    CHECK_OK(sim_card_look(c, &s, &e), &e);
    return s.free_bytes;
}

static void card_path(char *out, size_t cap)
{
    (void)path_join(test_dir(), "card.card", out, cap);
}

TEST(shared_memory, "two users of one card share its memory: contexts, segments, others")
{
    struct sim_card *a = card_of(":others=24MiB"), *b = card_of(":others=24MiB");
    struct sim_state s;
    struct err e;
    CHECK_EQ(free_of(a), 1000 * MIB); /* no file yet */
    CHECK_OK(sim_card_attach(a, &e), &e);
    CHECK_OK(sim_card_attach(a, &e), &e); /* once is enough */
    CHECK_EQ(free_of(b), 900 * MIB);
    CHECK_OK(sim_card_charge(a, 500 * MIB, &e), &e);
    CHECK_OK(sim_card_attach(b, &e), &e);
    CHECK_EQ(free_of(b), 300 * MIB);
    CHECK_EQ(sim_card_charge(b, 300 * MIB + 1, &e), ST_OOM);
    CHECK_OK(sim_card_charge(b, 300 * MIB, &e), &e);
    CHECK_EQ(free_of(a), 0);
    CHECK_EQ(sim_card_charge(a, 1, &e), ST_OOM);
    CHECK_OK(sim_card_look(a, &s, &e), &e);
    CHECK_EQ(s.n, 2);
    CHECK_EQ(s.use[0].held_bytes, 500 * MIB);
    CHECK(s.use[0].own && !s.use[1].own && s.use[0].pid == getpid());
    CHECK_EQ(s.use[1].context_bytes, 100 * MIB);
    CHECK_OK(sim_card_charge(a, -500 * MIB, &e), &e);
    CHECK_EQ(free_of(b), 500 * MIB);
    sim_card_free(b);
    CHECK_EQ(free_of(a), 900 * MIB);
    sim_card_free(a);
}

TEST(context_room, "a card without room for a context takes nobody more")
{
    struct sim_card *a = card_of(""), *b = card_of("");
    struct err e = {0};
    CHECK_OK(sim_card_attach(a, &e), &e);
    CHECK_OK(sim_card_charge(a, 1024 * MIB - 199 * MIB, &e), &e);
    CHECK_EQ(sim_card_attach(b, &e), ST_OOM);
    CHECK(strstr(e.hint, "context"));
    CHECK_OK(sim_card_charge(a, -MIB, &e), &e);
    CHECK_OK(sim_card_attach(b, &e), &e);
    CHECK_EQ(free_of(a), 0);
    sim_card_free(a);
    sim_card_free(b);
}

/* A process that holds `bytes` until it is killed. */
static pid_t holder(int64_t bytes)
{
    int ready[2];
    char one;
    CHECK(pipe(ready) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        struct sim_card *c = card_of("");
        struct err e;
        if (sim_card_attach(c, &e) != ST_OK || sim_card_charge(c, bytes, &e) != ST_OK ||
            write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            (void)pause();
    }
    CHECK(close(ready[1]) == 0 && read(ready[0], &one, 1) == 1 && close(ready[0]) == 0);
    return pid;
}

TEST(killed_holder, "what a killed process held is free again")
{
    struct sim_card *c = card_of("");
    struct sim_state s;
    struct err e;
    pid_t pid = holder(800 * MIB);
    CHECK_OK(sim_card_attach(c, &e), &e);
    CHECK_EQ(sim_card_charge(c, 100 * MIB, &e), ST_OOM);
    CHECK_OK(sim_card_look(c, &s, &e), &e);
    CHECK(s.n == 2 && (s.use[0].pid == pid || s.use[1].pid == pid));
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
    CHECK_EQ(free_of(c), 924 * MIB);
    CHECK_OK(sim_card_charge(c, 924 * MIB, &e), &e);
    CHECK_OK(sim_card_look(c, &s, &e), &e);
    CHECK_EQ(s.n, 1);
    sim_card_free(c);
}

TEST(slot_of_dead, "a dead process's number means nothing: its slot is used again, and counts anew")
{
    struct err e;
    for (int i = 0; i < 3 * SIM_SLOTS; i++) { /* more than there are slots */
        struct sim_card *c = card_of("");
        CHECK_OK(sim_card_attach(c, &e), &e);
        CHECK_OK(sim_card_charge(c, 900 * MIB, &e), &e);
        sim_card_free(c); /* leaves what the slot says */
    }
    /* The live process of that number holds nothing. */
    struct sim_card *c = card_of("");
    CHECK_EQ(free_of(c), 1024 * MIB);
    sim_card_free(c);
}

TEST(forked_child, "a child of fork is not on its parent's card, and does not free it")
{
    struct sim_card *c = card_of("");
    struct err e;
    CHECK_OK(sim_card_attach(c, &e), &e);
    CHECK_OK(sim_card_charge(c, 10 * MIB, &e), &e);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        bool refused = sim_card_charge(c, MIB, &e) == ST_INTERNAL;
        sim_card_free(c);
        _exit(refused ? 0 : 1);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK_EQ(free_of(c), 914 * MIB);
    sim_card_free(c);
}

/* Takes and gives at random until killed; never sees a card that is overfull or damaged. */
static void hammer(unsigned seed)
{
    for (;;) {
        struct sim_card *c = card_of("");
        struct err e = {0};
        int64_t held = 0;
        enum status st = sim_card_attach(c, &e);
        for (int i = 0; st == ST_OK && i < 40; i++) {
            seed = seed * 1664525 + 1013904223;
            int64_t bytes = (int64_t)(seed >> 12) % 100 * MIB;
            if (seed & 512)
                bytes = -(held < bytes ? held : bytes);
            st = sim_card_charge(c, bytes, &e);
            held += st == ST_OK ? bytes : 0;
            st = st == ST_OOM ? ST_OK : st;
        }
        sim_card_free(c);
        if (st != ST_OK && st != ST_OOM) {
            (void)fprintf(stderr, "hammer: %s\n", e.text);
            _exit(1);
        }
    }
}

TEST(
    kill_anywhere,
    "many processes on one card, killed at any moment: the card is never overfull and "
    "free at the end")
{
    enum { PROCESSES = 6, ROUNDS = 60 };
    pid_t pid[PROCESSES] = {0};
    struct sim_card *c = card_of("");
    struct sim_state s;
    struct err e;
    unsigned seed = (unsigned)test_seed();
    for (int round = 0; round < ROUNDS; round++) {
        int k = round % PROCESSES;
        int status;
        if (pid[k]) {
            CHECK(kill(pid[k], SIGKILL) == 0 && waitpid(pid[k], &status, 0) == pid[k]);
            CHECK(WIFSIGNALED(status)); /* not ended by itself: it saw no fault */
        }
        pid[k] = fork();
        CHECK(pid[k] >= 0);
        if (pid[k] == 0)
            hammer(seed + (unsigned)round);
        CHECK(usleep(1000 * (useconds_t)(round % 13)) == 0);
        CHECK_OK(sim_card_look(c, &s, &e), &e);
        int64_t used = 0;
        for (int i = 0; i < s.n; i++)
            used += s.use[i].held_bytes + s.use[i].context_bytes;
        CHECK(s.free_bytes >= 0 && used + s.free_bytes == 1024 * MIB);
    }
    for (int k = 0; k < PROCESSES; k++)
        CHECK(kill(pid[k], SIGKILL) == 0 && waitpid(pid[k], NULL, 0) == pid[k]);
    CHECK_EQ(free_of(c), 1024 * MIB);
    sim_card_free(c);
}

static void write_at(int64_t at, const void *data, size_t n)
{
    char path[1100];
    card_path(path, sizeof path);
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, data, n, at) == (ssize_t)n && close(fd) == 0);
}

TEST(damaged_unheld, "a damaged, cut or empty file that nobody holds is made anew")
{
    struct sim_card *c = card_of("");
    struct err e;
    char path[1100];
    card_path(path, sizeof path);
    for (int64_t size = 0; size < 9000; size += size < 200 ? 7 : 431) {
        CHECK_OK(sim_card_attach(c, &e), &e);
        CHECK_OK(sim_card_charge(c, MIB, &e), &e);
        sim_card_detach(c);
        CHECK(truncate(path, size) == 0);
        CHECK_EQ(free_of(c), 1024 * MIB);
    }
    for (int at = 0; at < 64 + 64; at++) {
        write_at(at, "\xff", 1);
        CHECK_OK(sim_card_attach(c, &e), &e);
        CHECK_EQ(free_of(c), 924 * MIB);
        sim_card_detach(c);
    }
    CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0);
    CHECK(sim_card_attach(c, &e) != ST_OK && strstr(e.text, "card.card"));
    CHECK(rmdir(path) == 0);
    sim_card_free(c);
}

TEST(damaged_held, "a file that is damaged or deleted while somebody holds memory is an error")
{
    struct sim_card *a = card_of(""), *b = card_of("");
    struct err e = {0};
    char path[1100];
    card_path(path, sizeof path);
    CHECK_OK(sim_card_attach(a, &e), &e);
    CHECK_OK(sim_card_charge(a, MIB, &e), &e);
    write_at(80, "\x01", 1); /* within slot 0 */
    CHECK_EQ(sim_card_attach(b, &e), ST_CORRUPT);
    CHECK(strstr(e.text, "damaged") && e.hint[0]);
    CHECK_EQ(sim_card_charge(a, MIB, &e), ST_CORRUPT);
    CHECK(truncate(path, 100) == 0);
    CHECK_EQ(sim_card_attach(b, &e), ST_CORRUPT);
    CHECK_OK(sim_card_charge(a, -MIB, &e), &e); /* giving never fails */
    sim_card_detach(a);
    CHECK_OK(sim_card_attach(b, &e), &e);
    CHECK(unlink(path) == 0);
    CHECK_EQ(sim_card_charge(b, MIB, &e), ST_CORRUPT);
    CHECK(strstr(e.text, "deleted"));
    sim_card_free(a);
    sim_card_free(b);
}

TEST(
    described_otherwise,
    "one card has one size: another for a card in use is refused; of others, the most counts")
{
    struct sim_card *a = card_of(""), *b = card_of(":others=1MiB"), *c;
    struct sim_spec larger = spec_of("");
    struct err e = {0};
    larger.capacity_bytes *= 2;
    c = sim_card_new(&larger, test_dir());
    CHECK_OK(sim_card_attach(a, &e), &e);
    CHECK_EQ(free_of(b), 923 * MIB); /* the most that anybody says */
    CHECK_OK(sim_card_attach(b, &e), &e);
    CHECK_EQ(free_of(a), 823 * MIB);
    sim_card_detach(b);
    CHECK_EQ(free_of(a), 924 * MIB);
    CHECK_EQ(sim_card_attach(c, &e), ST_INVALID);
    CHECK(strstr(e.text, "size is 2.00 GiB here, and 1.00 GiB"));
    sim_card_detach(a);
    CHECK_OK(sim_card_attach(c, &e), &e);
    CHECK_EQ(free_of(c), 1948 * MIB);
    sim_card_free(a);
    sim_card_free(b);
    sim_card_free(c);
}

TEST(all_slots, "more processes than a card has places for is an error, not a lost byte")
{
    enum { EACH = 1 };
    static struct sim_card *c[SIM_SLOTS + 1];
    struct sim_spec s = spec_of("");
    struct err e = {0};
    s.context_bytes = EACH;
    for (int i = 0; i <= SIM_SLOTS; i++) {
        c[i] = sim_card_new(&s, test_dir());
        CHECK_EQ(sim_card_attach(c[i], &e), i < SIM_SLOTS ? ST_OK : ST_IO);
    }
    CHECK(strstr(e.text, "128 places"));
    for (int i = 0; i <= SIM_SLOTS; i++)
        sim_card_free(c[i]);
}

/* ---- threads, and the source ---- */

static void *take_and_give(void *ctx)
{
    struct mem_source *s = ctx;
    for (int i = 0; i < 300; i++) {
        uint64_t addr = mem_source_segment_take(s, 64 * MIB);
        if (addr)
            mem_source_segment_give(s, addr, 64 * MIB);
    }
    return NULL;
}

TEST(threads, "B6: several threads on one card stay within its capacity and the cap")
{
    struct devices *d = calloc(1, sizeof *d);
    struct mem_source s;
    struct err e;
    pthread_t t[4];
    CHECK(d && setenv("SNUG_HOME", test_dir(), 1) == 0);
    CHECK(setenv("SNUG_SIM_CARDS", "A:300MiB:sm80:context=44MiB", 1) == 0);
    CHECK_OK(devices_open(d, &e), &e);
    CHECK_OK(device_attach(&d->list[1], &e), &e);
    device_source(&d->list[1], 200 * MIB, &s);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&t[i], NULL, take_and_give, &s) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    CHECK(s.held_bytes == 0 && s.held_bytes_peak <= 192 * MIB && s.taken_n > 0);
    void *p;
    CHECK_EQ(mem_source_take(&s, 201 * MIB, &p, &e), ST_OOM);
    CHECK(strstr(e.text, "of a budget of"));
    CHECK_EQ(s.refused.need_bytes, 201 * MIB);
    CHECK(s.refused.free_bytes == 256 * MIB && s.refused.total_bytes == 300 * MIB);
    CHECK_OK(mem_source_take(&s, 150 * MIB, &p, &e), &e);
    mem_source_lower(&s, 100 * MIB);
    struct device_memory m;
    CHECK_OK(device_memory(&d->list[1], &m, &e), &e);
    CHECK_EQ(m.free_bytes, 206 * MIB);
    mem_source_give_rest(&s, p, 150 * MIB, 50 * MIB);
    CHECK_OK(device_memory(&d->list[1], &m, &e), &e);
    CHECK_EQ(m.free_bytes, 256 * MIB);
    uint64_t range = mem_source_reserve(&s, 400 * MIB);
    CHECK(range && mem_source_map(&s, range, 200 * MIB));
    CHECK(!mem_source_map(&s, range + 200 * 1048576u, 2 * MIB)); /* expandable segments, too */
    mem_source_unmap(&s, range, 200 * MIB);
    mem_source_release(&s, range, 400 * MIB);
    devices_close(d);
    free(d);
}
