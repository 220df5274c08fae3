/* slot_test.c - foreground runs on devices, as a queue sees them. */
#include "mem/slot.h"

#include "test.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

TEST(
    a_foreground_run_is_seen, "R7: a run in the foreground is seen on its card, several may be "
                              "there, and the end of one gives its place back")
{
    struct slot a, b;
    struct err e;
    CHECK_EQ(setenv("SNUG_HOME", test_dir(), 1), 0);
    CHECK(!slot_held("GPU-1/x"));
    CHECK_OK(slot_hold(&a, "GPU-1/x", &e), &e);
    CHECK_OK(slot_hold(&b, "GPU-1/x", &e), &e);
    CHECK(slot_held("GPU-1/x") && !slot_held("GPU-2"));
    slot_release(&a);
    CHECK(slot_held("GPU-1/x"));
    slot_release(&b);
    slot_release(&b);
    CHECK(!slot_held("GPU-1/x"));
}

TEST(a_killed_run_gives_its_place_back, "R7: kill -9 of a foreground run frees its card")
{
    struct slot s;
    struct err e;
    int ready[2];
    char c;
    CHECK_EQ(setenv("SNUG_HOME", test_dir(), 1), 0);
    CHECK_EQ(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        if (slot_hold(&s, "cpu", &e) == ST_OK)
            (void)!write(ready[1], "x", 1);
        (void)pause();
        _exit(0);
    }
    CHECK_EQ(read(ready[0], &c, 1), 1);
    CHECK(slot_held("cpu"));
    CHECK_EQ(kill(child, SIGKILL), 0);
    CHECK_EQ(waitpid(child, NULL, 0), child);
    CHECK(!slot_held("cpu"));
}
