/* dtype_test.c - conversions between element types. */
#include "ir/dtype.h"

#include "test.h"

#include <math.h>
#include <string.h>

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

TEST(bf16_rounds_to_even, "case-T84: bfloat16 is rounded to nearest even; NaN stays NaN")
{
    CHECK_EQ(bf16_from_f32(float_of(0x3F818000)), 0x3F82);
    CHECK_EQ(bf16_from_f32(1.00390625F + ldexpf(1, -20)), 0x3F81);
    CHECK_EQ(bf16_from_f32(1.00390625F), 0x3F80);
    CHECK_EQ(bf16_from_f32(3.4e38F), 0x7F80);
    CHECK(isnan(f32_from_bf16(bf16_from_f32(float_of(0x7F800001)))));
    CHECK(isnan(f32_from_bf16(bf16_from_f32(float_of(0xFFFFFFFF)))));
    CHECK(signbit(f32_from_bf16(bf16_from_f32(-0.0F))));
}

TEST(sixteen_bits_there_and_back, "every bfloat16 and float16 survives float32")
{
    for (unsigned i = 0; i < 65536; i++) {
        uint16_t u = (uint16_t)i;
        float h = f32_from_f16(u), b = f32_from_bf16(u);
        if (isnan(h))
            CHECK(isnan(f32_from_f16(f16_from_f32(h))));
        else
            CHECK_EQ(f16_from_f32(h), u);
        if (isnan(b))
            CHECK(isnan(f32_from_bf16(bf16_from_f32(b))));
        else
            CHECK_EQ(bf16_from_f32(b), u);
        if (!isnan(h))
            CHECK_EQ(f16_from_f64((double)h), u);
        if (!isnan(b))
            CHECK_EQ(bf16_from_f64((double)b), u);
    }
}

/* Between neighbours: below the middle down, above it up, on it to the even one. */
TEST(f16_rounds_between_neighbours, "float16 is rounded to nearest even, subnormal numbers too")
{
    for (unsigned i = 0; i < 0x7BFF; i++) {
        double low = (double)f32_from_f16((uint16_t)i),
               high = (double)f32_from_f16((uint16_t)(i + 1));
        double middle = (low + high) / 2;
        CHECK_EQ(f16_from_f32((float)middle), i % 2 ? i + 1 : i);
        CHECK_EQ(f16_from_f32(nextafterf((float)middle, 0)), i);
        CHECK_EQ(f16_from_f32(nextafterf((float)middle, 1e6F)), i + 1);
        CHECK_EQ(f16_from_f64(nextafter(middle, 0)), i);
        CHECK_EQ(f16_from_f64(nextafter(middle, 1e6)), i + 1);
    }
    CHECK_EQ(f16_from_f32(65519.996F), 0x7BFF);
    CHECK_EQ(f16_from_f32(65520.0F), 0x7C00);
}

TEST(doubles_round_once, "a double is rounded once, not by way of float32")
{
    /* Just above the middle of two bfloat16, but float32 would see the middle itself. */
    double x = 1.00390625 + ldexp(1, -40);
    CHECK_EQ(bf16_from_f64(x), 0x3F81);
    CHECK_EQ(f16_from_f64(1 + ldexp(1, -11) + ldexp(1, -40)), 0x3C01);
}

TEST(elements_load_and_store, "every element type is stored and loaded")
{
    for (int t = 0; t < DT_COUNT; t++) {
        char buf[16] = {0};
        enum dtype back;
        dtype_store(buf, (enum dtype)t, 1, 1);
        CHECK_NEAR(dtype_load(buf, (enum dtype)t, 1), 1, 0);
        CHECK_NEAR(dtype_load(buf, (enum dtype)t, 0), 0, 0);
        CHECK(dtype_parse(dtype_name((enum dtype)t), &back) && (int)back == t);
        CHECK(dtype_parse(dtype_short((enum dtype)t), &back) && (int)back == t);
    }
}
