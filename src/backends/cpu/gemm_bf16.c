/* gemm_bf16.c - bf16 products by AVX512_BF16's dot product of pairs: the tile, and pairs from
 * float32. */
#include "backends/cpu/gemm.h"

enum { ROWS = 8, COLS = 3 };

VEC_FN void tile_step(const uint32_t *a, const uint32_t *b, __m512 sum[ROWS][COLS])
{
    __m512bh y[COLS];
#pragma GCC unroll 3
    for (int j = 0; j < COLS; j++)
        y[j] = (__m512bh)_mm512_loadu_si512(b + 16 * j);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
        __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[i]);
#pragma GCC unroll 3
        for (int j = 0; j < COLS; j++)
            sum[i][j] = _mm512_dpbf16_ps(sum[i][j], x, y[j]);
    }
}

void gemm_tile_bf16(
    const uint32_t *a, const uint32_t *b, int64_t pairs, struct gemm_ahead ahead, float *tile)
{
    __m512 sum[ROWS][COLS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 3
        for (int j = 0; j < COLS; j++)
            sum[i][j] = _mm512_setzero_ps();
    int64_t p = 0;
    for (; p + GEMM_AHEAD <= pairs; p += GEMM_AHEAD) {
        gemm_ahead_step(&ahead);
        for (int64_t q = p; q < p + GEMM_AHEAD; q++)
            tile_step(a + q * ROWS, b + q * 16 * COLS, sum);
    }
    for (; p < pairs; p++)
        tile_step(a + p * ROWS, b + p * 16 * COLS, sum);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 3
        for (int j = 0; j < COLS; j++)
            _mm512_storeu_ps(tile + i * 16 * COLS + 16 * j, sum[i][j]);
}

/* Sixteen pairs of a row of 32 float32, `count` of which are there. */
static inline __m512i pairs_load(const float *x, int64_t count)
{
    __mmask16 low = (__mmask16)(count >= 16 ? 0xffff : (1u << count) - 1);
    __mmask16 high = (__mmask16)(count >= 32 ? 0xffff : count <= 16 ? 0 : (1u << (count - 16)) - 1);
    return (__m512i)_mm512_cvtne2ps_pbh(
        _mm512_maskz_loadu_ps(high, x + 16), _mm512_maskz_loadu_ps(low, x));
}

/* Adjacent along k: rows of pairs are turned, VL of them at a time. */
static void
rounded_along_k(uint32_t *dst, int width, int valid, int64_t k, const float *src, int64_t sw)
{
    int64_t pairs = (k + 1) / 2;
    for (int64_t i = 0; i < pairs; i += VL) {
        int steps = (int)(pairs - i < VL ? pairs - i : VL);
        for (int w = 0; w < width; w += VL) {
            vf r[VL];
            /* Sixteen rows are too many for the processor to see them coming. */
            for (int j = 0; j < VL && w + j < valid && 2 * i + 96 <= k; j++) {
                __builtin_prefetch(src + (w + j) * sw + 2 * i + 64);
                __builtin_prefetch(src + (w + j) * sw + 2 * i + 80);
            }
            for (int j = 0; j < VL; j++)
                r[j] =
                    w + j < valid ? (vf)pairs_load(src + (w + j) * sw + 2 * i, k - 2 * i) : vset(0);
            vtranspose(r);
            for (int j = 0; j < steps; j++)
                *(vf_loose *)(void *)(dst + (i + j) * width + w) = r[j];
        }
    }
}

/* The lanes of `mask` of a row of k rounded, in 32 bits each. */
static inline __m512i rounded_load(__mmask16 mask, const float *x)
{
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, x)));
}

/* Adjacent along the panel's width: two rows of k make one of pairs. */
static void
rounded_along_width(uint32_t *dst, int width, int valid, int64_t k, const float *src, int64_t sk)
{
    for (int64_t i = 0; i < k; i += 2, dst += width, src += 2 * sk)
        for (int w = 0; w < width; w += VL) {
            int left = valid - w < 0 ? 0 : valid - w;
            __mmask16 mask = (__mmask16)(left >= VL ? 0xffff : (1u << left) - 1);
            __m512i even = rounded_load(mask, src + w);
            __m512i odd = rounded_load(i + 1 < k ? mask : 0, src + sk + w);
            _mm512_storeu_si512(dst + w, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
        }
}

void gemm_pack_rounded(
    uint32_t *dst, int width, int valid, int64_t k, const float *src, int64_t sw, int64_t sk)
{
    if (sk == 1) {
        rounded_along_k(dst, width, valid, k, src, sw);
    } else if (sw == 1) {
        rounded_along_width(dst, width, valid, k, src, sk);
    } else {
        for (int64_t i = 0; i < (k + 1) / 2; i++)
            for (int w = 0; w < width; w++) {
                const float *x = src + w * sw + 2 * i * sk;
                uint32_t even = w < valid ? bf16_from_f32(x[0]) : 0;
                uint32_t odd = w < valid && 2 * i + 1 < k ? bf16_from_f32(x[sk]) : 0;
                dst[i * width + w] = even | odd << 16;
            }
    }
}
