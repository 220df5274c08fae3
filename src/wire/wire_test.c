/* wire_test.c - messages survive writing and reading; wrong types are named. */
#include "wire/wire.h"

#include "test.h"

#include <string.h>

TEST(round_trip, "a message that is written and read has the same fields")
{
    struct err e = {0};
    json_t *devices = json_pack("[s]", "cuda:2");
    struct start_order o = {
        .run_id = "ab",
        .epoch = INT64_MAX,
        .devices = devices,
        .budget_bytes = 6LL << 30,
        .timeout_s = 1.5};
    json_t *j = wire_write(&wire_start_order, &o);
    struct start_order back;
    CHECK_OK(wire_read(&wire_start_order, j, &back, &e), &e);
    CHECK(strcmp(back.run_id, "ab") == 0 && back.epoch == INT64_MAX && back.timeout_s == 1.5);
    CHECK(json_equal(back.devices, devices) && back.graph == NULL);
    CHECK(back.budget_bytes == 6LL << 30 && strcmp(back.name, "") == 0);
    json_decref(devices);
    json_decref(j);
}

TEST(wrong_types, "a field of another type is refused by name; absent and unknown fields are not")
{
    struct err e = {0};
    struct report r;
    json_t *j = json_pack("{s:i, s:i}", "session", 3, "new_field", 1);
    CHECK(wire_read(&wire_report, j, &r, &e) == ST_INVALID && strstr(e.text, "session"));
    json_decref(j);
    j = json_pack("{s:i}", "new_field", 1);
    CHECK_OK(wire_read(&wire_report, j, &r, &e), &e);
    CHECK(!r.heartbeat && r.events == NULL);
    json_decref(j);
}

TEST(names, "every order, event and cause is found under its own name")
{
    for (int i = 0; i < EVENT_COUNT; i++) {
        enum event_type t;
        CHECK(event_find(event_name((enum event_type)i), &t) && (int)t == i);
    }
    for (int i = 0; i < ORDER_COUNT; i++) {
        enum order_type t;
        CHECK(order_find(order_name((enum order_type)i), &t) && (int)t == i);
    }
    for (int i = 0; i < CAUSE_COUNT; i++) {
        enum cause c;
        CHECK(cause_find(cause_code((enum cause)i), &c) && (int)c == i);
    }
    CHECK(run_id_is_valid("0123456789abcdef0123456789abcdef"));
    CHECK(!run_id_is_valid("0123456789abcdef0123456789abcdeF") && !run_id_is_valid(""));
}
