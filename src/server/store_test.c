/* store_test.c - what the database promises: transactions, moves, lists, retention, versions. */
#include "server/store_int.h"

#include "test.h"

TEST(store_opens, "a fresh database opens")
{
    struct store *s;
    struct err e;
    CHECK_OK(store_open(":memory:", NULL, &s, &e), &e);
    store_close(s);
}
