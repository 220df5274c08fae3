/* copy_test.c - the copy engine: order, waiting, a full queue. */
#include "backends/copy.h"

#include "base/mem.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

enum { N = 3000, BYTES = 256 };

TEST(copy_order, "copies run in the order of issue, more of them than the queue holds")
{
    struct copy_engine *c;
    struct err e = {0};
    unsigned char *a = mem_alloc((size_t)(N + 1) * BYTES);
    CHECK_OK(copy_engine_new(&c, &e), &e);
    memset(a, 7, BYTES);
    for (int i = 0; i < N; i++) /* each reads what the one before wrote */
        CHECK_EQ(copy_issue(c, a + (i + 1) * BYTES, a + i * BYTES, BYTES), i + 1);
    copy_wait(c, N);
    for (int i = 0; i < (N + 1) * BYTES; i++)
        CHECK_EQ(a[i], 7);
    copy_wait_all(c);
    copy_engine_free(c);
    mem_free(a);
}

TEST(
    copy_wait,
    "case-T73: a wait returns when its copy is done, however late that is, and not after all")
{
    struct copy_engine *c;
    struct err e = {0};
    char from[3] = {1, 2, 3}, to[3] = {0};
    (void)setenv("SNUG_TEST_COPY_DELAY_MS", "40", 1);
    CHECK_OK(copy_engine_new(&c, &e), &e);
    uint64_t first = copy_issue(c, &to[0], &from[0], 1);
    (void)copy_issue(c, &to[1], &from[1], 1);
    copy_wait(c, 0);
    copy_wait(c, first);
    CHECK_EQ(to[0], 1);
    uint64_t last = copy_issue(c, &to[2], &from[2], 1);
    copy_wait(c, last);
    CHECK(to[1] == 2 && to[2] == 3);
    (void)copy_issue(c, &to[0], &from[2], 1);
    copy_engine_free(c); /* after the last copy */
    CHECK_EQ(to[0], 3);
    copy_engine_free(NULL);
}
