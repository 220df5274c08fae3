/* gemm_bf16.c - the tile of bf16 products by AVX512_BF16's dot product of pairs. */
#include "backends/cpu/gemm.h"

enum { ROWS = 8, COLS = 3 };

void gemm_tile_bf16(const uint32_t *a, const uint32_t *b, int64_t pairs, float *tile)
{
    __m512 sum[ROWS][COLS];
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 3
        for (int j = 0; j < COLS; j++)
            sum[i][j] = _mm512_setzero_ps();
    for (int64_t p = 0; p < pairs; p++) {
        __m512bh y[COLS];
#pragma GCC unroll 3
        for (int j = 0; j < COLS; j++)
            y[j] = (__m512bh)_mm512_loadu_si512(b + p * 16 * COLS + 16 * j);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; i++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[p * ROWS + i]);
#pragma GCC unroll 3
            for (int j = 0; j < COLS; j++)
                sum[i][j] = _mm512_dpbf16_ps(sum[i][j], x, y[j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 3
        for (int j = 0; j < COLS; j++)
            _mm512_storeu_ps(tile + i * 16 * COLS + 16 * j, sum[i][j]);
}
