/* closed_advice_test.c - what is advised, in which order, and the levers' directions everywhere. */
#include "plan/closed_advice.h"

#include "test.h"

#include <string.h>

static struct closed_model shape(const char *family)
{
    struct closed_model m = {.layers = 12, .hidden = 512, .heads = 8, .vocab = 32000};
    struct err e;
    (void)strncpy(m.family, family, sizeof m.family - 1);
    CHECK(closed_model_family(&m, &e) == ST_OK);
    if (strcmp(family, "mixtral") == 0) {
        m.experts = 4;
        m.experts_per_token = 2;
    }
    CHECK(closed_model_complete(&m, &e) == ST_OK);
    return m;
}

static int64_t card(const struct closed_model *m, struct closed_run r)
{
    struct closed_estimate x;
    struct err e;
    CHECK(closed_estimate_make(m, &r, &x, &e) == ST_OK);
    return x.card_bytes;
}

/* One run and what must not need less, or more, than it. */
static void check_directions(const struct closed_model *m, struct closed_run r)
{
    int64_t here = card(m, r);
    struct closed_run x = r;
    x.batch *= 2;
    CHECK(card(m, x) > here);
    x = r;
    x.seq *= 2;
    CHECK(card(m, x) > here);
    struct closed_model deeper = *m;
    deeper.layers += 4;
    CHECK(card(&deeper, r) > here);
    x = r;
    x.checkpointing = CLOSED_BLOCKS;
    CHECK(card(m, x) <= here);
    x = r;
    x.attention = CLOSED_PLAIN;
    CHECK(card(m, x) >= here);
    x = r;
    x.offload_optimizer = true;
    CHECK(card(m, x) <= here);
    x = r;
    x.method = CLOSED_LORA;
    int64_t lora = card(m, x);
    CHECK(lora < here);
    x.method = CLOSED_QLORA;
    x.habits &= ~(unsigned)CLOSED_QUANT_INPUTS; /* the old library's waste can exceed the gain */
    CHECK(card(m, x) < lora);
}

TEST(directions, "E5: batch, length and depth cost, every lever saves, whatever the framework")
{
    static const char *const families[] = {"llama", "gpt2", "mixtral"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct closed_model m = shape(families[f]);
        for (int i = 0; closed_framework_at(i); i++)
            for (int p = -1; p < CLOSED_PRECISION_COUNT; p++) {
                struct closed_run r;
                closed_run_defaults(&r);
                closed_run_framework(&r, i);
                r.batch = 2;
                r.seq = 512;
                if (p >= 0)
                    r.precision = p;
                check_directions(&m, r);
            }
    }
}

TEST(stages, "E5: each stage of ZeRO needs less of a card than the one before")
{
    struct closed_model m = shape("llama");
    m.layers = 24;
    m.hidden = 1024;
    m.ffn = 4096;
    for (int i = 0; closed_framework_at(i); i++) {
        int64_t before = INT64_MAX;
        struct closed_run r;
        closed_run_defaults(&r);
        closed_run_framework(&r, i);
        if (r.habits & CLOSED_ENGINE)
            continue; /* its stage 3 keeps a billion parameters whole: below that it saves nothing
                       */
        r.cards = 8;
        r.seq = 256;
        for (r.zero = 0; r.zero <= 3; r.zero++) {
            int64_t now = card(&m, r);
            CHECK(now < before);
            before = now;
        }
    }
}

TEST(order_of_advice, "T8: the mildest change comes first, each lowers the need, the last one fits")
{
    struct closed_model m = shape("llama");
    struct closed_run r;
    struct closed_lever x[CLOSED_LEVERS_MAX];
    struct err e;
    int n;
    closed_run_defaults(&r);
    r.batch = 16;
    r.seq = 1024;
    int64_t need = card(&m, r);
    CHECK(closed_advise(&m, &r, need, x, &n, &e) == ST_OK && n == 0);
    CHECK(closed_advise(&m, &r, need - 1, x, &n, &e) == ST_OK && n == 1);
    CHECK(strcmp(x[0].option, "--batch 15") == 0 && x[0].bytes == x[0].alone_bytes);
    r.batch = 15;
    CHECK_EQ(card(&m, r), x[0].bytes);
    r.batch = 16;
    CHECK(closed_advise(&m, &r, 0, x, &n, &e) == ST_OK && n >= 5);
    CHECK(strcmp(x[0].option, "--batch 1") == 0);
    for (int i = 0; i < n; i++) {
        CHECK(x[i].bytes < need);
        need = x[i].bytes;
    }
}

TEST(advice_that_saves_nothing, "T8: where the optimizer's step holds the peak, no smaller batch")
{
    struct closed_model m = shape("llama");
    struct closed_run r;
    struct closed_lever x[CLOSED_LEVERS_MAX];
    struct err e;
    int n;
    closed_run_defaults(&r);
    r.batch = 2;
    r.seq = 16;
    CHECK(closed_advise(&m, &r, 0, x, &n, &e) == ST_OK && n > 0);
    for (int i = 0; i < n; i++)
        CHECK(strcmp(x[i].option, "--batch 1") != 0 && strncmp(x[i].option, "--check", 7) != 0);
}
