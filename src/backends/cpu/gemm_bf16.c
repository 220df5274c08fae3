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
VEC_FN void
rounded_along_k(struct gemm_panel to, int valid, int64_t k, const float *src, int64_t sw)
{
    int64_t pairs = (k + 1) / 2;
    for (int64_t i = 0; i < pairs; i += VL) {
        int steps = (int)(pairs - i < VL ? pairs - i : VL);
        for (int w = 0; w < to.width; w += VL) {
            const float *at = src + w * sw + 2 * i;
            vf r[VL];
            bool whole = 2 * i + 2 * VL <= k && valid - w >= VL;
            if (whole)
                for (int j = 0; j < VL; j++) {
                    /* Sixteen rows are too many for the processor to see them coming. */
                    __builtin_prefetch(at + j * sw + 64);
                    __builtin_prefetch(at + j * sw + 80);
                    r[j] = (vf)(__m512i)_mm512_cvtne2ps_pbh(
                        _mm512_loadu_ps(at + j * sw + 16), _mm512_loadu_ps(at + j * sw));
                }
            else
                for (int j = 0; j < VL; j++)
                    r[j] = w + j < valid ? (vf)pairs_load(at + j * sw, k - 2 * i) : vset(0);
            vtranspose(r);
            if (whole)
                for (int j = 0; j < VL; j++)
                    gemm_put(&to, i + j, w, r[j]);
            else
                for (int j = 0; j < steps; j++)
                    gemm_put(&to, i + j, w, r[j]);
        }
    }
}

/* The lanes of `mask` of a row of k rounded, in 32 bits each. */
static inline __m512i rounded_load(__mmask16 mask, const float *x)
{
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, x)));
}

/* Adjacent along the panel's width: two rows of k make one of pairs. */
VEC_FN void
rounded_along_width(struct gemm_panel to, int valid, int64_t k, const float *src, int64_t sk)
{
    for (int64_t i = 0; i < k; i += 2, src += 2 * sk)
        for (int w = 0; w < to.width; w += VL) {
            int left = valid - w < 0 ? 0 : valid - w;
            __mmask16 mask = (__mmask16)(left >= VL ? 0xffff : (1u << left) - 1);
            __builtin_prefetch(src + 16 * sk + w);
            __builtin_prefetch(src + 17 * sk + w);
            __m512i even = rounded_load(mask, src + w);
            __m512i odd = rounded_load(i + 1 < k ? mask : 0, src + sk + w);
            gemm_put(&to, i / 2, w, (vf)_mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
        }
}

void gemm_pack_rounded(
    struct gemm_panel to, int valid, int64_t k, const float *src, int64_t sw, int64_t sk)
{
    if (sk == 1) {
        rounded_along_k(to, valid, k, src, sw);
    } else if (sw == 1) {
        rounded_along_width(to, valid, k, src, sk);
    } else {
        for (int64_t i = 0; i < (k + 1) / 2; i++)
            for (int w = 0; w < to.width; w++) {
                const float *x = src + w * sw + 2 * i * sk;
                uint32_t even = w < valid ? bf16_from_f32(x[0]) : 0;
                uint32_t odd = w < valid && 2 * i + 1 < k ? bf16_from_f32(x[sk]) : 0;
                uint32_t pair = even | odd << 16;
                memcpy(gemm_place(&to, i, w), &pair, sizeof pair);
            }
    }
}
