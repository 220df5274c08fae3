/* dtype.c - element types and their conversion. */
#include "ir/dtype.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *torch, *brief;
    int size;
    bool floating;
} rows[DT_COUNT] = {
#define X(name, torch, brief, size, floating) {torch, brief, size, floating},
#include "ir/dtypes.def"
#undef X
};

int dtype_size(enum dtype t)
{
    return rows[t].size;
}

const char *dtype_name(enum dtype t)
{
    return rows[t].torch;
}

const char *dtype_short(enum dtype t)
{
    return rows[t].brief;
}

bool dtype_floating(enum dtype t)
{
    return rows[t].floating;
}

bool dtype_parse(const char *name, enum dtype *out)
{
    for (int i = 0; i < DT_COUNT; i++) {
        if (strcmp(name, rows[i].torch) == 0 || strcmp(name, rows[i].brief) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t bf16_from_f32(float x)
{
    uint32_t u = bits_of(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* quiet NaN, whatever its low bits were */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float f32_from_bf16(uint16_t x)
{
    return float_of((uint32_t)x << 16);
}

uint16_t f16_from_f64(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    uint16_t sign = (uint16_t)(u >> 48 & 0x8000);
    double a = fabs(x);
    if (isnan(x))
        return (uint16_t)(sign | 0x7e00);
    if (a >= 65520.0)
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x1p-14) /* subnormal: units of 2^-24; nearbyint rounds ties to even */
        return (uint16_t)(sign | (uint16_t)nearbyint(a * 0x1p24));
    int exponent;
    double m = frexp(a, &exponent);                    /* a = m 2^exponent, m in [0.5, 1) */
    unsigned mantissa = (unsigned)nearbyint(m * 2048); /* 1024 .. 2048 */
    return (uint16_t)(sign | (((unsigned)(exponent + 14) << 10) + (mantissa - 1024)));
}

uint16_t f16_from_f32(float x)
{
    return f16_from_f64((double)x);
}

float f32_from_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, mantissa = x & 1023;
    if (exponent == 31)
        return float_of(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    if (exponent == 0) {
        float v = (float)mantissa * 0x1p-24f;
        return sign ? -v : v;
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t bf16_from_f64(double x)
{
    /* To float with rounding to odd, so that the second rounding sees a sticky bit. */
    float f = (float)x;
    if (isfinite(x) && isfinite(f) && (double)f != x) {
        uint32_t u = bits_of(f);
        bool away = fabs((double)f) > fabs(x);
        if (away)
            u--; /* towards zero */
        f = float_of(u | 1);
    } else if (isfinite(x) && isinf(f)) {
        f = x > 0 ? 3.4028234e38f : -3.4028234e38f;
    }
    return bf16_from_f32(f);
}

double dtype_load(const void *p, enum dtype t, int64_t i)
{
    switch (t) {
    case DT_F32:
        return (double)((const float *)p)[i];
    case DT_BF16:
        return (double)f32_from_bf16(((const uint16_t *)p)[i]);
    case DT_F16:
        return (double)f32_from_f16(((const uint16_t *)p)[i]);
    case DT_F64:
        return ((const double *)p)[i];
    case DT_I64:
        return (double)((const int64_t *)p)[i];
    case DT_I32:
        return ((const int32_t *)p)[i];
    case DT_U8:
    case DT_BOOL:
        return ((const uint8_t *)p)[i];
    case DT_COUNT:
        break;
    }
    return 0;
}

void dtype_store(void *p, enum dtype t, int64_t i, double v)
{
    switch (t) {
    case DT_F32:
        ((float *)p)[i] = (float)v;
        break;
    case DT_BF16:
        ((uint16_t *)p)[i] = bf16_from_f64(v);
        break;
    case DT_F16:
        ((uint16_t *)p)[i] = f16_from_f64(v);
        break;
    case DT_F64:
        ((double *)p)[i] = v;
        break;
    case DT_I64:
        ((int64_t *)p)[i] = (int64_t)v;
        break;
    case DT_I32:
        ((int32_t *)p)[i] = (int32_t)v;
        break;
    case DT_U8:
    case DT_BOOL:
        ((uint8_t *)p)[i] = (uint8_t)v;
        break;
    case DT_COUNT:
        break;
    }
}
