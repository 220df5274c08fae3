/* quant_test.c - the maps of 8 and 4 bits against their papers' text, and rounding to them. */
#include "ir/quant.h"

#include "base/rng.h"

#include "test.h"

#include <math.h>

/* Nearest value of the map by looking at all of them, in double precision. */
static double nearest(const struct quant_dynamic *m, double x)
{
    double best = 2;
    for (int i = 0; i < 256; i++)
        if (fabs((double)m->value[i] - x) < fabs(best - x))
            best = (double)m->value[i];
    return best;
}

TEST(quant_dynamic_map, "L4: 256 ascending values, 0 and 1 among them, the paper's decades")
{
    for (int s = 0; s < 2; s++) {
        const struct quant_dynamic *m = quant_dynamic(s);
        for (int i = 1; i < 256; i++)
            CHECK(m->value[i] > m->value[i - 1]);
        CHECK(m->value[m->zero] == 0 && m->value[255] == 1.0f);
        CHECK_EQ(m->zero, s ? 127 : 0);
        /* The top decade: 64 parts of [0.1, 1] with a sign, 128 without. */
        CHECK_NEAR((double)m->value[254], 1 - 0.45 / (s ? 64 : 128), 1e-6);
        CHECK_NEAR((double)m->value[m->zero + 1], s ? 0.55e-6 : 0.325e-6, 1e-12);
        CHECK_NEAR((double)m->value[0], s ? -(1 - 0.45 / 64) : 0, 1e-6);
    }
}

TEST(quant_dynamic_nearest, "L4: every quotient gets the nearest value of its map")
{
    struct rng r;
    rng_init(&r, test_seed(), 1, 0);
    for (int s = 0; s < 2; s++) {
        const struct quant_dynamic *m = quant_dynamic(s);
        for (int i = 0; i < 20000; i++) {
            double size = pow(10, -8 * rng_f64(&r)), sign = s && rng_u32(&r) & 1 ? -1 : 1;
            float x = (float)(sign * size);
            double got = (double)m->value[quant_dynamic_code(m, x)], want = nearest(m, (double)x);
            CHECK_NEAR(fabs(got - (double)x), fabs(want - (double)x), 1e-7 * fabs(want) + 1e-14);
        }
        for (int i = 0; i < 256; i++)
            CHECK_EQ(quant_dynamic_code(m, m->value[i]), i);
        CHECK_EQ(quant_dynamic_code(m, (float)NAN), 255);
        CHECK_EQ(quant_dynamic_code(m, -1.0f), s ? 0 : m->zero);
    }
}

TEST(quant_dynamic_blocks, "L4: a block of zeros, of tiny numbers, of one number")
{
    const struct quant_dynamic *m = quant_dynamic(true);
    float x[4] = {0, 0, 0, 0};
    uint8_t code[4];
    CHECK(quant_dynamic_block(m, x, 4, code) == 0);
    CHECK(code[0] == m->zero && code[3] == m->zero);
    x[2] = 1e-42f;
    CHECK(quant_dynamic_block(m, x, 4, code) == 0 && code[2] == m->zero);
    x[2] = 3e30f;
    CHECK(quant_dynamic_block(m, x, 4, code) == 3e30f && code[2] == 255 && code[1] == m->zero);
}

/* Mean |x - q(x)| of normal numbers, relative to their mean size, block by block. */
static double error_of(bool is_signed, int block)
{
    const struct quant_dynamic *m = quant_dynamic(is_signed);
    static float x[2048];
    static uint8_t code[2048];
    struct rng r;
    double error = 0, size = 0;
    rng_init(&r, 7, 1, 0);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 2048; i++) {
            double n = rng_normal(&r);
            x[i] = (float)(is_signed ? n : n * n);
        }
        for (int at = 0; at < 2048; at += block) {
            float absmax = quant_dynamic_block(m, x + at, block, code);
            for (int i = 0; i < block; i++) {
                error += fabs((double)(m->value[code[i]] * absmax) - (double)x[at + i]);
                size += fabs((double)x[at + i]);
            }
        }
    }
    return error / size;
}

TEST(quant_dynamic_error, "L4: the error of a rounding as docs/quantisation.md states it")
{
    double fine = error_of(true, 256), coarse = error_of(true, 2048),
           squares = error_of(false, 256);
    CHECK_NEAR(fine, 0.0107, 0.0002);
    CHECK_NEAR(coarse, 0.0123, 0.0002);
    CHECK_NEAR(squares, 0.0068, 0.0002);
}

/* ---- weights ---- */

enum { N = 5 * 64 * 256 + 17 };
static uint8_t codes[N], scales[8192];
static float absmax[8192], nested[64], offset;

static struct quant_weight weight_of(enum quant_kind kind, bool twice)
{
    return (struct quant_weight){
        .kind = kind,
        .n = N,
        .codes = codes,
        .absmax = twice ? (void *)scales : absmax,
        .nested = twice ? nested : NULL,
        .offset = twice ? &offset : NULL};
}

/* Root mean square error of normal weights, relative to their deviation. */
static double weight_error(enum quant_kind kind, bool twice)
{
    static float x[N], y[64];
    struct quant_weight w = weight_of(kind, twice);
    struct rng r;
    double sum = 0;
    rng_init(&r, 5, 1, 0);
    for (int i = 0; i < N; i++)
        x[i] = (float)(0.02 * rng_normal(&r));
    quant_weight_store(&w, x);
    for (int64_t b = 0, at = 0; b < quant_blocks(N, QUANT_WEIGHT_BLOCK); b++) {
        int n = quant_weight_block(&w, b, y);
        for (int i = 0; i < n; i++)
            sum += pow((double)y[i] - (double)x[at + i], 2);
        at += n;
    }
    return sqrt(sum / N) / 0.02;
}

TEST(quant_weight_error, "L3: errors of the 4- and 8-bit forms as docs/quantisation.md states them")
{
    CHECK_NEAR(weight_error(QUANT_NF4, false), 0.0933, 0.002);
    CHECK_NEAR(weight_error(QUANT_NF4, true), 0.0937, 0.002);
    CHECK_NEAR(weight_error(QUANT_INT8, false), 0.0059, 0.0002);
    CHECK_NEAR(weight_error(QUANT_INT8, true), 0.0062, 0.0002);
}

TEST(quant_nf4_values, "L3 case-T77: 0.5 in a block of absmax 1 is read as 0.440710")
{
    static float x[64] = {1, 0.5f, -1, 0, 0.0398f, 0.0397f};
    float y[64];
    struct quant_weight w = weight_of(QUANT_NF4, false);
    w.n = 64;
    quant_weight_store(&w, x);
    CHECK_EQ(quant_weight_block(&w, 0, y), 64);
    CHECK_NEAR((double)y[1], 0.440710, 1e-6);
    CHECK(y[0] == 1 && y[2] == -1 && y[3] == 0);
    CHECK_NEAR((double)y[4], 0.0795803, 1e-6);
    CHECK(y[5] == 0);
    CHECK_EQ(codes[0], 0xfc); /* the first element in the upper half */
}

TEST(quant_weight_repeats, "L3: the same numbers give the same bytes, zeros read as zeros")
{
    static float x[N], y[64];
    static uint8_t first[N];
    struct rng r;
    rng_init(&r, 9, 1, 0);
    for (int i = 0; i < N; i++)
        x[i] = i < 6400 ? 0 : (float)rng_normal(&r);
    struct quant_weight w = weight_of(QUANT_NF4, true);
    quant_weight_store(&w, x);
    for (int i = 0; i < N; i++)
        first[i] = codes[i];
    quant_weight_store(&w, x);
    for (int i = 0; i < (N + 1) / 2; i++)
        CHECK_EQ(codes[i], first[i]);
    CHECK_EQ(quant_weight_block(&w, 3, y), 64);
    for (int i = 0; i < 64; i++)
        CHECK(y[i] == 0);
}
