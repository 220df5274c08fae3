/* lanes_ew.c - activations, their gradients, arithmetic, dropout and conversion, on blocks.
 *
 * Formulas are those of PyTorch 1.13's CPU kernels (torch.nn.functional's documentation).
 */
#include "backends/cpu/lanes.h"
#include "backends/cpu/vec.h"

/* y[i] = EXPR for all i, with the vectors A (and B) loaded from x (and z). */
#define MAP1(EXPR)                                                                                 \
    do {                                                                                           \
        int i = 0;                                                                                 \
        for (; i + VL <= n; i += VL) {                                                             \
            vf A = vload(x, DT_F32, i);                                                            \
            vstore(y, DT_F32, i, (EXPR));                                                          \
        }                                                                                          \
        if (i < n) {                                                                               \
            vf A = vload_n(x, DT_F32, i, n - i);                                                   \
            vstore_n(y, DT_F32, i, n - i, (EXPR));                                                 \
        }                                                                                          \
    } while (0)
#define MAP2(EXPR)                                                                                 \
    do {                                                                                           \
        int i = 0;                                                                                 \
        for (; i + VL <= n; i += VL) {                                                             \
            vf A = vload(x, DT_F32, i), B = vload(z, DT_F32, i);                                   \
            vstore(y, DT_F32, i, (EXPR));                                                          \
        }                                                                                          \
        if (i < n) {                                                                               \
            vf A = vload_n(x, DT_F32, i, n - i), B = vload_n(z, DT_F32, i, n - i);                 \
            vstore_n(y, DT_F32, i, n - i, (EXPR));                                                 \
        }                                                                                          \
    } while (0)

static void widen(const void *x, enum dtype t, float *y, int64_t n)
{
    DTYPE_CONST(t, T, {
        int64_t i = 0;
        for (; i + VL <= n; i += VL)
            vstore(y, DT_F32, i, vload(x, (enum dtype)T, i));
        if (i < n)
            vstore_n(y, DT_F32, i, (int)(n - i), vload_n(x, (enum dtype)T, i, (int)(n - i)));
    });
}

static void narrow(const float *x, void *y, enum dtype t, int64_t n)
{
    DTYPE_CONST(t, T, {
        int64_t i = 0;
        for (; i + VL <= n; i += VL)
            vstore(y, (enum dtype)T, i, vload(x, DT_F32, i));
        if (i < n)
            vstore_n(y, (enum dtype)T, i, (int)(n - i), vload_n(x, DT_F32, i, (int)(n - i)));
    });
}

/* ---- single functions ---- */
#define SELU_SCALE 1.0507009873554804934193349852946
#define SELU_ALPHA 1.6732632423543772848170429916717

VEC_FN vf sigmoid(vf x)
{
    return 1.0f / (1.0f + vexp(-x));
}
/* e^x - 1: near 0 by its series, so that small results keep their digits. */
VEC_FN vf expm1_of(vf x)
{
    vf p = vset(1.979035733e-4f);
    p = p * x + 1.394464984e-3f;
    p = p * x + 8.333496749e-3f;
    p = p * x + 4.166629538e-2f;
    p = p * x + 1.666666567e-1f;
    p = p * x + 0.5f;
    return vsel(vabs(x) < vset(0.34f), x * x * p + x, vexp(x) - 1.0f);
}
VEC_FN vf elu(vf x, vf alpha, vf scale)
{
    return vsel(x <= vset(0), alpha * expm1_of(x), x * scale);
}
VEC_FN vf gelu_erf(vf x)
{
    return x * 0.5f * (1.0f + verf(x * 0.70710678118654752f));
}
VEC_FN vf gelu_erf_slope(vf x)
{
    vf cdf = 0.5f * (1.0f + verf(x * 0.70710678118654752f));
    return cdf + x * (vexp(x * x * -0.5f) * 0.39894228040143268f);
}
/* (1 + tanh u) / 2 is the sigmoid of 2 u: one exponential, and no digits lost where tanh nears -1
 */
VEC_FN vf gelu_tanh(vf x)
{
    vf s = x * x;
    return x * sigmoid(x * (1.5957691216057308f + 0.071354816272600247f * s));
}
VEC_FN vf gelu_tanh_slope(vf x)
{
    vf s = x * x, y = sigmoid(x * (1.5957691216057308f + 0.071354816272600247f * s));
    vf inner = 1.5957691216057308f + 0.21406444881780074f * s;
    return y + x * y * (1.0f - y) * inner;
}
/* tanh(ln(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2); 1 where e^x passes 2^24. */
VEC_FN vf tanh_softplus(vf x)
{
    vf e = vexp(vmin(vset(20.0f), x)), n = e * (e + 2.0f);
    return n / (n + 2.0f);
}
VEC_FN vf mish_slope(vf x)
{
    vf t = tanh_softplus(x);
    return t + x * sigmoid(x) * (1.0f - t * t);
}
VEC_FN vf hardswish(vf x)
{
    return x * vmin(vset(6.0f), vmax(vset(0), x + 3.0f)) / 6.0f;
}
VEC_FN vf hardswish_slope_times(vf dy, vf x)
{
    vf middle = dy * (x / 3.0f + 0.5f);
    return vsel(x < vset(-3.0f), vset(0), vsel(x <= vset(3.0f), middle, dy));
}
VEC_FN vf sign_of(vf x)
{
    return vsel(x > vset(0), vset(1), vsel(x < vset(0), vset(-1), vset(0)));
}
VEC_FN vf clamp_of(vf x, float low, float high) /* NaN passes */
{
    return vmin(vset(high), vmax(vset(low), x));
}
VEC_FN vf nan_or(vf a, vf b, vf z)
{
    return vsel((a != a) | (b != b), a + b, z);
}

/* x^a with PyTorch's short cuts; the rest through the library's pow. */
static void power(double a, const float *x, float *y, int n)
{
    if (a == 0.5)
        MAP1(vsqrt(A));
    else if (a == 2)
        MAP1((A)*A);
    else if (a == 3)
        MAP1((A)*A * A);
    else if (a == -1)
        MAP1(1.0f / A);
    else if (a == -2)
        MAP1(1.0f / (A * A));
    else if (a == -0.5)
        MAP1(1.0f / vsqrt(A));
    else
        for (int i = 0; i < n; i++)
            y[i] = (float)pow((double)x[i], a);
}

static void unary(enum opcode c, const struct ew_attr *at, const float *x, float *y, int n)
{
    float a = (float)at->a, b = (float)at->b;
    switch ((int)c) {
    case OP_RELU:
        MAP1(vrelu(A));
        break;
    case OP_LEAKY_RELU:
        MAP1(vsel(A > vset(0), A, A * a));
        break;
    case OP_ELU:
        MAP1(elu(A, vset(a), vset(1)));
        break;
    case OP_SELU:
        MAP1(elu(A, vset((float)(SELU_ALPHA * SELU_SCALE)), vset((float)SELU_SCALE)));
        break;
    case OP_GELU:
        if (at->tanh_form)
            MAP1(gelu_tanh(A));
        else
            MAP1(gelu_erf(A));
        break;
    case OP_SIGMOID:
        MAP1(sigmoid(A));
        break;
    case OP_TANH:
        MAP1(vtanh(A));
        break;
    case OP_SILU:
        MAP1(A / (1.0f + vexp(-A)));
        break;
    case OP_MISH:
        MAP1(A * tanh_softplus(A));
        break;
    case OP_HARDSWISH:
        MAP1(hardswish(A));
        break;
    case OP_EXP:
        MAP1(vexp(A));
        break;
    case OP_LOG:
        MAP1(vlog(A));
        break;
    case OP_SQRT:
        MAP1(vsqrt(A));
        break;
    case OP_RECIPROCAL:
        MAP1(1.0f / A);
        break;
    case OP_ABS:
        MAP1(vabs(A));
        break;
    case OP_SIGN:
        MAP1(sign_of(A));
        break;
    case OP_AFFINE:
        MAP1(A * a + b);
        break;
    case OP_CLAMP:
        MAP1(clamp_of(A, a, b));
        break;
    case OP_POW:
        power(at->a, x, y, n);
        break;
    default:
        ASSERT(!"an elementwise operator");
    }
}

/* A = dy, B = what was saved: the output for RELU, SIGMOID and TANH, else the input. */
static void
grad(enum opcode c, const struct ew_attr *at, const float *x, const float *z, float *y, int n)
{
    float a = (float)at->a, b = (float)at->b;
    float selu_n = (float)(SELU_ALPHA * SELU_SCALE), selu_p = (float)SELU_SCALE;
    switch ((int)c) {
    case OP_RELU_GRAD:
        MAP2(vsel(B <= vset(0), vset(0), A));
        break;
    case OP_LEAKY_RELU_GRAD:
        MAP2(vsel(B > vset(0), A, A * a));
        break;
    case OP_ELU_GRAD:
        MAP2(vsel(B <= vset(0), A * a * vexp(B), A));
        break;
    case OP_SELU_GRAD:
        MAP2(vsel(B <= vset(0), A * selu_n * vexp(B), A * selu_p));
        break;
    case OP_GELU_GRAD:
        if (at->tanh_form)
            MAP2((A)*gelu_tanh_slope(B));
        else
            MAP2((A)*gelu_erf_slope(B));
        break;
    case OP_SIGMOID_GRAD:
        MAP2((A) * (1.0f - B) * B);
        break;
    case OP_TANH_GRAD:
        MAP2((A) * (1.0f - B * B));
        break;
    case OP_SILU_GRAD:
        MAP2((A)*sigmoid(B) * (1.0f + B * (1.0f - sigmoid(B))));
        break;
    case OP_MISH_GRAD:
        MAP2((A)*mish_slope(B));
        break;
    case OP_HARDSWISH_GRAD:
        MAP2(hardswish_slope_times(A, B));
        break;
    case OP_CLAMP_GRAD:
        MAP2(vsel((B >= vset(a)) & (B <= vset(b)), A, vset(0)));
        break;
    default:
        ASSERT(!"an activation's gradient");
    }
}

static void binary(enum opcode c, const float *x, const float *z, float *y, int n)
{
    switch ((int)c) {
    case OP_ADD:
        MAP2(A + B);
        break;
    case OP_SUB:
        MAP2(A - B);
        break;
    case OP_MUL:
        MAP2((A)*B);
        break;
    case OP_DIV:
        MAP2(A / B);
        break;
    case OP_MAXIMUM:
        MAP2(nan_or(A, B, vmax(A, B)));
        break;
    case OP_MINIMUM:
        MAP2(nan_or(A, B, vmin(A, B)));
        break;
    case OP_GREATER:
        MAP2(vsel(A > B, vset(1), vset(0)));
        break;
    case OP_EQUAL:
        MAP2(vsel(A == B, vset(1), vset(0)));
        break;
    default:
        ASSERT(!"an arithmetic operator");
    }
}

/* ---- dropout: rng_block of base/rng.h, VL blocks at a time ---- */

/* Halves of the 64-bit products of 32-bit lanes. */
VEC_FN void product(vu a, uint32_t m, vu *high, vu *low)
{
#if VEC_LANES == 16
    __m512i by = _mm512_set1_epi32((int)m), even = _mm512_mul_epu32((__m512i)a, by);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), by);
    *high = (vu)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    *low = (vu)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
#elif VEC_LANES == 8
    __m256i by = _mm256_set1_epi32((int)m), even = _mm256_mul_epu32((__m256i)a, by);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), by);
    *high = (vu)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    *low = (vu)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
#else /* from 16-bit parts */
    vu al = a & 0xffff, ah = a >> 16;
    uint32_t ml = m & 0xffff, mh = m >> 16;
    vu lower = al * ml, mid1 = ah * ml + (lower >> 16), mid2 = al * mh + (mid1 & 0xffff);
    *high = ah * mh + (mid1 >> 16) + (mid2 >> 16);
    *low = a * m;
#endif
}

VEC_FN void philox(const struct dropout_key *k, vu c0, vu c1, vu out[4])
{
    vu c2 = (vu){0} + k->step, c3 = (vu){0} + k->stream;
    uint32_t k0 = (uint32_t)k->seed, k1 = (uint32_t)(k->seed >> 32);
    for (int round = 0; round < 10; round++) {
        vu h0, l0, h1, l1;
        product(c0, 0xD2511F53u, &h0, &l0);
        product(c2, 0xCD9E8D57u, &h1, &l1);
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Numbers of the elements 4 block .. 4 (block + VL). Lane i has block (VL / 4) (i % 4) + i / 4:
 * then four vectors transposed within parts of four lanes are in order. */
static void numbers(const struct dropout_key *k, uint64_t block, uint32_t *out)
{
    uint32_t lo[VL], hi[VL];
    for (int i = 0; i < VL; i++) {
        uint64_t own = block + (uint64_t)(VL / 4 * (i % 4) + i / 4);
        lo[i] = (uint32_t)own;
        hi[i] = (uint32_t)(own >> 32);
    }
    vu c0, c1, r[4];
    memcpy(&c0, lo, sizeof c0);
    memcpy(&c1, hi, sizeof c1);
    philox(k, c0, c1, r);
#if VEC_LANES == 16
    __m512i a = _mm512_unpacklo_epi32((__m512i)r[0], (__m512i)r[1]);
    __m512i b = _mm512_unpackhi_epi32((__m512i)r[0], (__m512i)r[1]);
    __m512i c = _mm512_unpacklo_epi32((__m512i)r[2], (__m512i)r[3]);
    __m512i d = _mm512_unpackhi_epi32((__m512i)r[2], (__m512i)r[3]);
    _mm512_storeu_si512(out, _mm512_unpacklo_epi64(a, c));
    _mm512_storeu_si512(out + 16, _mm512_unpackhi_epi64(a, c));
    _mm512_storeu_si512(out + 32, _mm512_unpacklo_epi64(b, d));
    _mm512_storeu_si512(out + 48, _mm512_unpackhi_epi64(b, d));
#else
    for (int i = 0; i < VL; i++)
        for (int j = 0; j < 4; j++)
            out[4 * (VL / 4 * (i % 4) + i / 4) + j] = r[j][i];
#endif
}

static void dropout(const float *x, float *y, int n, const struct dropout_key *k, int64_t first)
{
    uint32_t r[4 * VL];
    for (int i = 0; i < n;) {
        int64_t element = first + i;
        numbers(k, (uint64_t)element / 4, r);
        int skip = (int)(element & 3), m = 4 * VL - skip < n - i ? 4 * VL - skip : n - i;
        for (int j = 0; j < m; j++)
            y[i + j] = x[i + j] * (r[skip + j] >= k->threshold ? k->scale : 0.0f);
        i += m;
    }
}

/* Rounds x up or down, up with the chance that makes the mean x: then x has type t exactly. */
VEC_FN vf one_by_chance(vf x, enum dtype t, vu random)
{
    int drop = t == DT_BF16 ? 16 : 13;
    vf y = (vf)(((vu)x + (random >> (32 - drop))) & ~((1u << drop) - 1));
    if (t == DT_F16) { /* its subnormal numbers are 2^-24 apart */
        vf units = x * 0x1p24f + __builtin_convertvector((vi)(random >> 8), vf) * 0x1p-24f;
        vf whole = vround(units);
        whole = whole - vsel(whole > units, vset(1), vset(0));
        y = vsel(vabs(x) < vset(0x1p-14f), whole * 0x1p-24f, y);
    }
    return vsel(vabs(x) < vset(INFINITY), y, x);
}

static void
by_chance(const float *x, float *y, enum dtype t, int n, const struct dropout_key *k, int64_t first)
{
    uint32_t r[8 * VL] = {0};
    for (int i = 0; i < n;) {
        int64_t element = first + i;
        numbers(k, (uint64_t)element / 4, r);
        int skip = (int)(element & 3), m = 4 * VL - skip < n - i ? 4 * VL - skip : n - i;
        for (int j = 0; j < m; j += VL) {
            vu random;
            memcpy(&random, r + skip + j, sizeof random);
            if (m - j >= VL)
                vstore(y, DT_F32, i + j, one_by_chance(vload(x, DT_F32, i + j), t, random));
            else
                vstore_n(
                    y, DT_F32, i + j, m - j,
                    one_by_chance(vload_n(x, DT_F32, i + j, m - j), t, random));
        }
        i += m;
    }
}

static void
dropout_at(const float *x, float *y, int n, const struct dropout_key *k, const int64_t *at)
{
    for (int i = 0; i < n; i += VL) {
        int m = n - i < VL ? n - i : VL;
        uint32_t lo[VL] = {0}, hi[VL] = {0};
        for (int j = 0; j < m; j++) {
            lo[j] = (uint32_t)(at[i + j] / 4);
            hi[j] = (uint32_t)(at[i + j] / 4 >> 32);
        }
        vu c0, c1, r[4];
        memcpy(&c0, lo, sizeof c0);
        memcpy(&c1, hi, sizeof c1);
        philox(k, c0, c1, r);
        for (int j = 0; j < m; j++) {
            uint32_t number = r[at[i + j] & 3][j];
            y[i + j] = x[i + j] * (number >= k->threshold ? k->scale : 0.0f);
        }
    }
}

extern const struct lanes_ew KERNEL(lanes_ew);
const struct lanes_ew KERNEL(lanes_ew) = {
    .widen = widen,
    .narrow = narrow,
    .unary = unary,
    .grad = grad,
    .binary = binary,
    .dropout = dropout,
    .dropout_at = dropout_at,
    .by_chance = by_chance,
};
