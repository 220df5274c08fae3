/* http_wake_test.c - topics without sockets: no wake is lost, nobody is called twice. */
#include "server/http_test_support.h"

#include "base/env.h"
#include "test.h"

#include <time.h>

static void count_fire(void *ctx)
{
    atomic_fetch_add((atomic_int *)ctx, 1);
}

static void no_park(void *ctx)
{
    (void)ctx;
}

TEST(wakes_are_never_lost, "a wake between looking and waiting is seen; each waiter is fired once")
{
    struct door d = {0};
    door_open(&d, NULL, 0);
    struct waits *w = &d.h->waits;
    atomic_int fired = 0;
    struct waiter x = {.fire = count_fire, .ctx = &fired, .until_ns = INT64_MAX};
    x.link[0].topic = http_topic("a", "1");
    x.link[1].topic = http_topic("a", "2");
    uint64_t since = waits_now(w);
    http_wake(d.h, http_topic("a", "2"));
    CHECK(!waits_add(w, &x, since, no_park));
    CHECK(x.woken);
    CHECK(waits_add(w, &x, waits_now(w), no_park));
    http_wake(d.h, http_topic("a", "3"));
    CHECK_EQ(fired, 0);
    http_wake(d.h, http_topic("a", "1"));
    http_wake(d.h, http_topic("a", "1"));
    http_wake(d.h, http_topic("a", "2"));
    CHECK_EQ(fired, 1);
    x.until_ns = clock_ns() + 20000000;
    CHECK(waits_add(w, &x, waits_now(w), no_park));
    for (int i = 0; i < 200 && fired < 2; i++)
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    CHECK_EQ(fired, 2);
    CHECK(x.expired);
    struct waiter last = {.fire = count_fire, .ctx = &fired, .until_ns = INT64_MAX};
    CHECK(waits_add(w, &last, waits_now(w), no_park));
    door_close(&d);
    CHECK_EQ(fired, 3);
}
