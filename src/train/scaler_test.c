/* scaler_test.c - the gradient scaler: its moves, its state, what it says. */
#include "train/scaler.h"

#include "test.h"

#include <math.h>
#include <string.h>

/* One attempt at an update whose true gradient is `g`, stored in fp16. True when skipped. */
static bool attempt(struct scaler *s, double g)
{
    struct err e;
    CHECK_OK(scaler_unscale(s, &e), &e);
    return scaler_update(s, g * s->scale > 65504);
}

TEST(
    scaler_finds_level,
    "P7 case-T16: halves on overflow, doubles after good updates, skips are counted")
{
    struct scaler s = scaler_new(0, false, 4);
    CHECK(s.scale == 65536);
    int64_t updates = 0;
    for (int i = 0; i < 10; i++)
        updates += !attempt(&s, 200);
    CHECK(s.scale == 256);
    CHECK_EQ(s.growth_tracker, 2);
    CHECK_EQ(s.skipped, 8);
    CHECK_EQ(updates, 2);
}

TEST(scaler_resumes, "P8 case-T16: a restored scaler goes on as the uninterrupted one")
{
    struct scaler s = scaler_new(0, false, 4), fresh = scaler_new(0, false, 4);
    struct err e;
    for (int i = 0; i < 10; i++)
        (void)attempt(&s, 200);
    json_t *state = scaler_state(&s);
    CHECK_OK(scaler_restore(&fresh, state, &e), &e);
    json_decref(state);
    CHECK(!attempt(&fresh, 200)); /* 11 */
    CHECK_EQ(fresh.growth_tracker, 3);
    CHECK(!attempt(&fresh, 200)); /* 12 */
    CHECK(fresh.scale == 512);
    CHECK(attempt(&fresh, 200)); /* 13 */
    CHECK(fresh.scale == 256);
    CHECK_EQ(fresh.growth_tracker, 0);
}

TEST(scaler_state_keys, "P8: the state has PyTorch's five keys")
{
    struct scaler s = scaler_new(1024, false, 7);
    json_t *state = scaler_state(&s);
    CHECK_EQ(json_object_size(state), 5);
    CHECK(json_get_f64(state, "scale", 0) == 1024);
    CHECK(json_get_f64(state, "growth_factor", 0) == 2);
    CHECK(json_get_f64(state, "backoff_factor", 0) == 0.5);
    CHECK_EQ(json_get_i64(state, "growth_interval", 0), 7);
    CHECK_EQ(json_get_i64(state, "_growth_tracker", -1), 0);
    json_decref(state);
}

TEST(scaler_state_lost, "P8: losing the state is not fatal")
{
    struct scaler s = scaler_new(1024, false, 0);
    struct err e;
    json_t *empty = json_object();
    CHECK_OK(scaler_restore(&s, NULL, &e), &e);
    CHECK_OK(scaler_restore(&s, empty, &e), &e);
    CHECK(s.scale == 1024);
    json_decref(empty);
}

TEST(scaler_state_bad, "a saved scale that cannot be one is refused and changes nothing")
{
    static const char *const bad[] = {
        "{\"scale\": 0}",
        "{\"scale\": -1}",
        "{\"scale\": \"NaN\"}",
        "{\"scale\": 1e300}",
        "{\"growth_interval\": 5}",
        "[]",
        "{\"scale\": 2, \"growth_factor\": 0}",
        "{\"scale\": 2, \"growth_factor\": 1}",
        "{\"scale\": 2, \"backoff_factor\": 1}",
        "{\"scale\": 2, \"growth_interval\": 0}",
        "{\"scale\": 2, \"_growth_tracker\": -3}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct scaler s = scaler_new(1024, false, 9);
        struct err e = {0};
        json_t *state;
        CHECK_OK(json_parse(bad[i], strlen(bad[i]), "state", &state, &e), &e);
        CHECK_EQ(scaler_restore(&s, state, &e), ST_CORRUPT);
        CHECK(s.scale == 1024 && s.growth_interval == 9 && s.growth_tracker == 0);
        json_decref(state);
    }
}

TEST(scaler_window, "P7 case-T18: the scale changes only at the end of a window, unscaled once")
{
    struct scaler s = scaler_new(2, false, 1);
    struct err e = {0};
    /* Two micro-batches of gradient 1 under one scale, halved by N = 2. */
    double sum = 0;
    for (int micro = 0; micro < 2; micro++)
        sum += s.scale * 1.0 / 2;
    CHECK_OK(scaler_unscale(&s, &e), &e);
    CHECK(sum / s.scale == 1.0);
    CHECK_EQ(scaler_unscale(&s, &e), ST_INTERNAL);
    CHECK(s.scale == 2);
    CHECK(!scaler_update(&s, false));
    CHECK(s.scale == 4);
    CHECK_OK(scaler_unscale(&s, &e), &e); /* the next window */
}

TEST(scaler_fixed, "P7: a fixed scale never changes, and overflow still skips")
{
    struct scaler s = scaler_new(128, true, 1);
    CHECK(scaler_update(&s, true));
    CHECK(!scaler_update(&s, false));
    CHECK(s.scale == 128);
    CHECK_EQ(s.skipped, 1);
}

TEST(scaler_bounds, "the scale stays a finite float32 above zero")
{
    struct scaler s = scaler_new(0x1p126, false, 1);
    for (int i = 0; i < 10; i++)
        CHECK(!scaler_update(&s, false));
    CHECK(s.scale == 0x1p127);
    for (int i = 0; i < 1000; i++)
        CHECK(scaler_update(&s, true));
    CHECK((float)s.scale > 0 && isfinite(1 / (float)s.scale));
}

TEST(scaler_none, "without a scaler the scale is 1 and nothing moves it")
{
    struct scaler s = scaler_off();
    struct err e;
    char buf[400];
    bool bad;
    CHECK_OK(scaler_unscale(&s, &e), &e);
    CHECK_OK(scaler_unscale(&s, &e), &e);
    CHECK(!scaler_update(&s, false));
    CHECK(scaler_update(&s, true));
    CHECK(s.scale == 1 && s.skipped == 0);
    CHECK(!scaler_health(&s, &bad, buf, sizeof buf) && !bad);
}

TEST(
    scaler_health_low,
    "P10: a low scale with skips points at rate, clipping, samples, structure, in this order")
{
    struct scaler s = scaler_new(64, false, 0);
    char buf[400];
    bool bad = false;
    for (int i = 0; i < 2; i++)
        CHECK(scaler_update(&s, true));
    CHECK(s.scale == 16);
    const char *said = scaler_health(&s, &bad, buf, sizeof buf);
    CHECK(said && bad);
    const char *explode = strstr(said, "exploding"), *rate = strstr(said, "learning rate");
    const char *clip = strstr(said, "clipping"), *samples = strstr(said, "abnormal samples");
    const char *structure = strstr(said, "unstable structure");
    CHECK(explode && rate && clip && samples && structure);
    CHECK(explode < rate && rate < clip && clip < samples && samples < structure);
    /* Nothing new since: nothing to say. */
    CHECK(!scaler_health(&s, &bad, buf, sizeof buf) && !bad);
}

TEST(scaler_health_ok, "P10: a rising scale reads as healthy; skips at a high scale are no alarm")
{
    struct scaler s = scaler_new(64, false, 1);
    char buf[400];
    bool bad = true;
    CHECK(!scaler_health(&s, &bad, buf, sizeof buf) && !bad);
    CHECK(!scaler_update(&s, false));
    const char *said = scaler_health(&s, &bad, buf, sizeof buf);
    CHECK(said && !bad && strstr(said, "healthy"));
    CHECK(scaler_update(&s, true));
    said = scaler_health(&s, &bad, buf, sizeof buf);
    CHECK(said && !bad && !strstr(said, "exploding"));
    /* Low without skips is no alarm either. */
    s = scaler_new(8, false, 0);
    CHECK(!scaler_health(&s, &bad, buf, sizeof buf) && !bad);
}
