/* vec.h - vectors for kernels that are compiled once per instruction set (ISA_SOURCES).
 *
 * A vf holds VL floats: 16 with AVX-512, 8 with AVX2, 4 elsewhere (GCC's vector extensions, so any
 * processor works). Arithmetic is + - * / and comparisons on the types themselves; comparisons
 * give a vi of 0 and -1, to be used with vsel. Every kernel computes in float32, whatever the
 * storage: vload/vstore convert from and to f32, bf16 and f16 (round to nearest, ties to even).
 * Multiply-adds are not contracted: same bits on every set unless a kernel says vfma.
 *
 * Element types are best made constants, so that the compiler sees them:
 *
 *     static inline void scale(void *y, const void *x, enum dtype t, int64_t n) ALWAYS_INLINE ...
 *     DTYPE_CONST(t, T, scale(y, x, T, n));
 *
 *     for (i = 0; i + VL <= n; i += VL)
 *         vstore(y, t, i, f(vload(x, t, i)));
 *     if (i < n)
 *         vstore_n(y, t, i, (int)(n - i), f(vload_n(x, t, i, (int)(n - i))));
 *
 * Lanes past a tail are loaded as 0 and never stored. exp, log, tanh and erf are within 2 units in
 * the last place of float32 (vec_test.c), infinities, NaN and subnormal numbers included.
 */
#ifndef BACKENDS_CPU_VEC_H
#define BACKENDS_CPU_VEC_H

#include "backends/backend.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef ISA_SUFFIX
#define ISA_SUFFIX portable
#endif
#define ISA_GLUE_(a, b) a##_##b
#define ISA_GLUE(a, b) ISA_GLUE_(a, b)
/* The name of an object in this instruction set: KERNEL(relu) is kernel_relu_avx2, ... */
#define KERNEL(name) ISA_GLUE(kernel_##name, ISA_SUFFIX)

#if defined(__AVX512F__)
#define VEC_LANES 16
#elif defined(__AVX2__)
#define VEC_LANES 8
#else
#define VEC_LANES 4
#endif
enum { VL = VEC_LANES };

#define VEC_TYPE(bytes) __attribute__((vector_size(bytes)))
typedef float vf VEC_TYPE(4 * VEC_LANES);
typedef int32_t vi VEC_TYPE(4 * VEC_LANES);
typedef uint32_t vu VEC_TYPE(4 * VEC_LANES);
typedef uint16_t vh VEC_TYPE(2 * VEC_LANES);
typedef uint8_t vb VEC_TYPE(VEC_LANES);
#define VEC_LOOSE(bytes, unit) __attribute__((vector_size(bytes), aligned(unit), may_alias))
typedef float vf_loose VEC_LOOSE(4 * VEC_LANES, 4);
typedef int32_t vi_loose VEC_LOOSE(4 * VEC_LANES, 4);
typedef uint16_t vh_loose VEC_LOOSE(2 * VEC_LANES, 2);

#define ALWAYS_INLINE __attribute__((always_inline))
#define VEC_FN static inline ALWAYS_INLINE __attribute__((unused))

/* Runs the statement with T a constant, for the three storage types of kernels. */
#define DTYPE_CONST(t, T, ...)                                                                     \
    do {                                                                                           \
        if ((t) == DT_F32) {                                                                       \
            const enum dtype T = DT_F32;                                                           \
            __VA_ARGS__;                                                                           \
        } else if ((t) == DT_BF16) {                                                               \
            const enum dtype T = DT_BF16;                                                          \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            const enum dtype T = DT_F16;                                                           \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* ---- basics ---- */
VEC_FN vf vset(float x)
{
    return x - (vf){0};
}
VEC_FN vf vsel(vi mask, vf yes, vf no)
{
#if VEC_LANES == 16
    return (vf)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), (__m512)no, (__m512)yes);
#elif VEC_LANES == 8
    return (vf)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
#endif
}
/* a > b ? a : b, and a < b ? a : b: b when either is NaN. */
VEC_FN vf vmax(vf a, vf b)
{
#if VEC_LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VEC_LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vsel(a > b, a, b);
#endif
}
VEC_FN vf vmin(vf a, vf b)
{
#if VEC_LANES == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif VEC_LANES == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vsel(a < b, a, b);
#endif
}
VEC_FN vf vrelu(vf x) /* NaN stays NaN */
{
    return vmax(vset(0), x);
}
VEC_FN vf vabs(vf x)
{
    return (vf)((vi)x & 0x7fffffff);
}
VEC_FN vf vcopysign(vf magnitude, vf sign)
{
    return (vf)(((vi)magnitude & 0x7fffffff) | ((vu)sign & 0x80000000));
}
VEC_FN vf vsqrt(vf x)
{
#if VEC_LANES == 16
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif VEC_LANES == 8
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < VL; i++)
        x[i] = sqrtf(x[i]);
    return x;
#endif
}
/* a b + c in one rounding where the set has it, in two elsewhere: only where bits may differ. */
VEC_FN vf vfma(vf a, vf b, vf c)
{
#if VEC_LANES == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VEC_LANES == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    for (int i = 0; i < VL; i++)
        c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c;
#endif
}
VEC_FN vf vround(vf x) /* to the nearest integer, |x| < 2^22 */
{
    return (x + 12582912.0f) - 12582912.0f;
}
/* Sum and largest of the lanes, in a fixed tree. */
VEC_FN float vsum(vf x)
{
    float a[VL];
    memcpy(a, &x, sizeof a);
    for (int n = VL / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            a[i] += a[i + n];
    return a[0];
}
VEC_FN float vmax_lane(vf x) /* NaN when a lane is NaN */
{
    float m = x[0];
    for (int i = 1; i < VL; i++)
        m = x[i] > m || x[i] != x[i] ? x[i] : m;
    return m;
}

/* ---- conversion ---- */
VEC_FN vf vf_of_bf16(vh h)
{
#if VEC_LANES == 16
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif VEC_LANES == 8
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#else
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}
/* The bits of x rounded to bf16, in place: the low half is meaningless. */
VEC_FN vu bf16_bits(vf x)
{
    vu u = (vu)x, rounded = u + 0x7fff + ((u >> 16) & 1);
    return (vu)vsel(x != x, (vf)(u | 0x400000), (vf)rounded);
}
VEC_FN vh bf16_of_vf(vf x)
{
#if VEC_LANES == 16
    return (vh)_mm512_cvtepi32_epi16((__m512i)(bf16_bits(x) >> 16));
#else
    return __builtin_convertvector(bf16_bits(x) >> 16, vh);
#endif
}
VEC_FN vf vf_of_f16(vh h)
{
#if VEC_LANES == 16
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif VEC_LANES == 8
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    vu u = __builtin_convertvector(h, vu);
    vu magnitude = u & 0x7fff;
    /* Moving the exponent by a multiplication makes subnormal numbers right too. */
    vu r = (vu)((vf)(magnitude << 13) * 0x1p112f);
    r |= (vu)(magnitude > 0x7bff) & 0x7f800000;
    r |= (vu)(magnitude > 0x7c00) & 0x400000;
    return (vf)(r | (u & 0x8000) << 16);
#endif
}
VEC_FN vh f16_of_vf(vf x)
{
#if VEC_LANES == 16
    return (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif VEC_LANES == 8
    return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    vu sign = ((vu)x >> 16) & 0x8000, a = (vu)x & 0x7fffffff;
    vu big = (vu)(a > 0x477ff000), small = (vu)(a < 0x38800000), nan = (vu)(a > 0x7f800000);
    vu normal = (a + 0xfff + ((a >> 13) & 1) - (112u << 23)) >> 13;
    vu tiny = (vu)((vf)(a & small) + 0.5f) - 0x3f000000; /* the sum rounds to units of 2^-24 */
    vu r = (tiny & small) | (normal & ~small);
    r = (r & ~big) | (0x7c00 & big);
    r = (r & ~nan) | (0x7e00 & nan);
    return __builtin_convertvector(r | sign, vh);
#endif
}
/* What storing as t and loading again makes of x: fused kernels round where unfused ones store. */
VEC_FN vf vround_to(vf x, enum dtype t)
{
    if (t == DT_BF16)
        return (vf)(bf16_bits(x) & 0xffff0000);
    if (t == DT_F16)
        return vf_of_f16(f16_of_vf(x));
    return x;
}

/* ---- memory: elements i .. i + VL of an array of f32, bf16 or f16; _n: n < VL of them ---- */
VEC_FN vf vload(const void *p, enum dtype t, int64_t i)
{
    if (t == DT_F32)
        return *(const vf_loose *)((const float *)p + i);
    vh h = *(const vh_loose *)((const uint16_t *)p + i);
    return t == DT_BF16 ? vf_of_bf16(h) : vf_of_f16(h);
}
VEC_FN void vstore(void *p, enum dtype t, int64_t i, vf x)
{
    if (t == DT_F32)
        *(vf_loose *)((float *)p + i) = x;
    else if (t == DT_BF16)
        *(vh_loose *)((uint16_t *)p + i) = bf16_of_vf(x);
    else
        *(vh_loose *)((uint16_t *)p + i) = f16_of_vf(x);
}
VEC_FN vf vload_n(const void *p, enum dtype t, int64_t i, int n)
{
    if (t == DT_F32) {
#if VEC_LANES == 16
        return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), (const float *)p + i);
#else
        vf x = {0};
        memcpy(&x, (const float *)p + i, (size_t)n * 4);
        return x;
#endif
    }
    vh h = {0};
#if VEC_LANES == 16
    h = (vh)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), (const uint16_t *)p + i);
#else
    memcpy(&h, (const uint16_t *)p + i, (size_t)n * 2);
#endif
    return t == DT_BF16 ? vf_of_bf16(h) : vf_of_f16(h);
}
VEC_FN void vstore_n(void *p, enum dtype t, int64_t i, int n, vf x)
{
    if (t == DT_F32) {
#if VEC_LANES == 16
        _mm512_mask_storeu_ps((float *)p + i, (__mmask16)((1u << n) - 1), (__m512)x);
#else
        memcpy((float *)p + i, &x, (size_t)n * 4);
#endif
        return;
    }
    vh h = t == DT_BF16 ? bf16_of_vf(x) : f16_of_vf(x);
#if VEC_LANES == 16
    _mm256_mask_storeu_epi16((uint16_t *)p + i, (__mmask16)((1u << n) - 1), (__m256i)h);
#else
    memcpy((uint16_t *)p + i, &h, (size_t)n * 2);
#endif
}
/* One element, by the same conversions. */
VEC_FN float fload(const void *p, enum dtype t, int64_t i)
{
    if (t == DT_F32)
        return ((const float *)p)[i];
    return vload_n(p, t, i, 1)[0];
}
VEC_FN void fstore(void *p, enum dtype t, int64_t i, float x)
{
    if (t == DT_F32)
        ((float *)p)[i] = x;
    else
        vstore_n(p, t, i, 1, vset(x));
}

/* Transposes VL vectors of VL lanes: one exchange of blocks per power of two. */
#define VEC_LOW(i, d) ((i) & (d) ? (i) - (d) + VEC_LANES : (i))
#define VEC_HIGH(i, d) ((i) & (d) ? (i) + VEC_LANES : (i) + (d))
#if VEC_LANES == 16
#define VEC_EACH(F, d)                                                                             \
    F(0, d), F(1, d), F(2, d), F(3, d), F(4, d), F(5, d), F(6, d), F(7, d), F(8, d), F(9, d),      \
        F(10, d), F(11, d), F(12, d), F(13, d), F(14, d), F(15, d)
#elif VEC_LANES == 8
#define VEC_EACH(F, d) F(0, d), F(1, d), F(2, d), F(3, d), F(4, d), F(5, d), F(6, d), F(7, d)
#else
#define VEC_EACH(F, d) F(0, d), F(1, d), F(2, d), F(3, d)
#endif
#define VEC_EXCHANGE(r, d)                                                                         \
    for (int i_ = 0; i_ < VL; i_++)                                                                \
        if (!(i_ & (d))) {                                                                         \
            vf a_ = (r)[i_], b_ = (r)[i_ + (d)];                                                   \
            (r)[i_] = __builtin_shufflevector(a_, b_, VEC_EACH(VEC_LOW, d));                       \
            (r)[i_ + (d)] = __builtin_shufflevector(a_, b_, VEC_EACH(VEC_HIGH, d));                \
        }
VEC_FN void vtranspose(vf r[VL])
{
#if VEC_LANES == 16
    VEC_EXCHANGE(r, 8)
#endif
#if VEC_LANES >= 8
    VEC_EXCHANGE(r, 4)
#endif
    VEC_EXCHANGE(r, 2)
    VEC_EXCHANGE(r, 1)
}

/* ---- functions ---- */
/* e^x: x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 P(r); 2^n in two steps. */
VEC_FN vf vexp(vf x)
{
    vf a = vmin(vset(89.0f), vmax(vset(-105.0f), x)); /* NaN passes */
    vf n = vround(a * 1.44269504f);
    vf r = a - n * 0.693359375f + n * 2.12194440e-4f; /* 355/512: n times it is exact */
    vf p = vset(1.989124731e-4f);
    p = p * r + 1.393388096e-3f;
    p = p * r + 8.333310694e-3f;
    p = p * r + 4.166646284e-2f;
    p = p * r + 1.666666668e-1f;
    p = p * r + 0.5f;
    vf y = r * r * p + r + 1.0f;
    vi k = __builtin_convertvector(n, vi), half = k >> 1;
    return y * (vf)((vu)(half + 127) << 23) * (vf)((vu)(k - half + 127) << 23);
}
/* ln x: x = 2^k m with m in [sqrt 1/2, sqrt 2), f = m - 1, ln m = f - f^2/2 + f^3 P(f). */
VEC_FN vf vlog(vf x)
{
    vi tiny = x < 1.17549435e-38f;
    vf a = vsel(tiny, x * 8388608.0f, x);
    vi k = (vi)((vu)a - 0x3f3504f3u) >> 23; /* unsigned: negative x would overflow */
    vf f = (vf)((vu)a - ((vu)k << 23)) - 1.0f;
    vf e = __builtin_convertvector(k - (tiny & 23), vf);
    vf p = vset(6.971611471e-2f);
    p = p * f - 1.147973385e-1f;
    p = p * f + 1.168541992e-1f;
    p = p * f - 1.242568733e-1f;
    p = p * f + 1.424905765e-1f;
    p = p * f - 1.666780232e-1f;
    p = p * f + 2.000071575e-1f;
    p = p * f - 2.499999696e-1f;
    p = p * f + 3.333333118e-1f;
    vf s = f * f;
    vf y = s * f * p - e * 2.12194440e-4f - 0.5f * s;
    y = y + f + e * 0.693359375f;
    y = vsel(x == vset(0), vset(-INFINITY), y);
    y = vsel(x == vset(INFINITY), x, y);
    return vsel((x < vset(0)) | (x != x), vset(NAN), y);
}
/* tanh: odd polynomial near 0, else 1 - 2 / (e^2x + 1). */
VEC_FN vf vtanh(vf x)
{
    vf t = vabs(x), s = x * x;
    vf p = vset(-6.094641315e-3f);
    p = p * s + 2.099575389e-2f;
    p = p * s - 5.385060911e-2f;
    p = p * s + 1.333276776e-1f;
    p = p * s - 3.333332892e-1f;
    vf near = x + x * s * p;
    vf far = 1.0f - 2.0f / (vexp(t + t) + 1.0f);
    return vsel(t < vset(0.625f), near, vcopysign(far, x));
}
/* erf: odd polynomial near 0, else 1 - e^(-t Q(t)). */
VEC_FN vf verf(vf x)
{
    vf t = vabs(x), s = x * x;
    vf p = vset(8.334718615e-5f);
    p = p * s - 8.134709332e-4f;
    p = p * s + 5.200368587e-3f;
    p = p * s - 2.685915147e-2f;
    p = p * s + 1.128369152e-1f;
    p = p * s - 3.761263352e-1f;
    p = p * s + 1.283791666e-1f;
    vf near = x + x * p;
    vf c = vmin(vset(4.0f), t);
    vf q = vset(-1.046065682e-6f);
    q = q * c + 3.438850877e-5f;
    q = q * c - 4.988250082e-4f;
    q = q * c + 4.303789308e-3f;
    q = q * c - 2.513955031e-2f;
    q = q * c + 1.078556529e-1f;
    q = q * c + 6.341481838e-1f;
    q = q * c + 1.128902798f;
    vf far = 1.0f - vexp(-(c * q));
    return vsel(t < vset(0.93f), near, vcopysign(far, x));
}

#endif
