/* attention_product.c - products of tiles and their packing, see attention_tile.h. */
#include "backends/cpu/attention_tile.h"

/* Registers: ROWS x COLS sums, COLS vectors of B, one of A. */
#if VEC_LANES == 16
enum { ROWS = 6, COLS = 4 };
#else
enum { ROWS = 6, COLS = 2 };
#endif

VEC_FN vf multiply_add(const float *a, vf b, vf sum)
{
#if defined(__AVX512BF16__)
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)b);
#else
    return vfma(vset(*a), b, sum);
#endif
}

/* Rows i .. i + ROWS (those past m repeat the last one and are not stored), `cols` vectors. */
VEC_FN void block(const struct attn_product *p, int64_t i, int64_t j, const int cols)
{
    const float *a[ROWS], *b = p->b + j;
    int rows = (int)attn_least(ROWS, p->m - i);
    vf sum[ROWS][COLS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        a[r] = p->a + (i + attn_least(r, rows - 1)) * p->a_row;
#pragma GCC unroll 4
        for (int c = 0; c < cols; c++)
            sum[r][c] = vset(0);
    }
    int64_t step = p->a_k, b_row = p->b_row;
    for (int64_t k = 0, at = 0; k < p->k; k++, at += step, b += b_row) {
        vf y[COLS];
#pragma GCC unroll 4
        for (int c = 0; c < cols; c++)
            y[c] = *(const vf_loose *)(b + c * VL);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int c = 0; c < cols; c++)
                sum[r][c] = multiply_add(a[r] + at, y[c], sum[r][c]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        float *to = p->c + (i + r) * p->c_row + j;
        if (r < rows)
#pragma GCC unroll 4
            for (int c = 0; c < cols; c++) {
                vf before = p->add ? vload(to, DT_F32, c * VL) : vset(0);
                vstore(to, DT_F32, c * VL, before + sum[r][c]);
            }
    }
}

void attn_multiply(const struct attn_product *p)
{
    const struct attn_product q = *p; /* stores cannot change a copy */
    for (int64_t j = 0; j < q.n; j += COLS * VL) {
        int cols = (int)attn_least(COLS, (q.n - j) / VL);
        for (int64_t i = 0; i < q.m; i += ROWS) {
            if (cols == COLS)
                block(&q, i, j, COLS);
#if VEC_LANES == 16
            else if (cols == 3)
                block(&q, i, j, 3);
            else if (cols == 2)
                block(&q, i, j, 2);
#endif
            else
                block(&q, i, j, 1);
        }
    }
}

/* ---- packing ---- */

/* n units of a row from unit u on: float32 of n elements, or pairs as they lie. */
VEC_FN vf units_load(const char *row, enum dtype t, int64_t u, int n)
{
    if (PAIRS)
        return vload_n(row, DT_F32, u, n);
    return n == VL ? vload(row, t, u) : vload_n(row, t, u, n);
}

VEC_FN void rows_pack(
    float *to, int64_t width, int64_t units, const char *from, enum dtype t, int64_t stride,
    int64_t valid, int64_t count)
{
    for (int64_t i = 0; i < count; i++, to += width)
        for (int64_t u = 0; u < width; u += VL) {
            int n = (int)attn_least(VL, units - u);
            const char *row = from + i * stride * dtype_size(t);
            vstore(to, DT_F32, u, i < valid ? units_load(row, t, u, n) : vset(0));
        }
}

void attn_pack_rows(
    float *to, const struct attn *n, const char *from, enum dtype t, int64_t stride, int64_t valid,
    int64_t count)
{
    int64_t width = attn_rows_width(n), units = attn_units(n->d);
    DTYPE_CONST(t, T, rows_pack(to, width, units, from, T, stride, valid, count));
}

VEC_FN void columns_pack(
    float *to, int64_t units, const char *from, enum dtype t, int64_t stride, int64_t valid)
{
    for (int64_t j = 0; j < TILE_K; j += VL)
        for (int64_t u = 0; u < units; u += VL) {
            int n = (int)attn_least(VL, units - u);
            vf r[VL];
            for (int k = 0; k < VL; k++) {
                const char *row = from + (j + k) * stride * dtype_size(t);
                r[k] = j + k < valid ? units_load(row, t, u, n) : vset(0);
            }
            vtranspose(r);
            for (int k = 0; k < n; k++)
                vstore(to + (u + k) * TILE_K, DT_F32, j, r[k]);
        }
}

void attn_pack_columns(
    float *to, const struct attn *n, const char *from, enum dtype t, int64_t stride, int64_t valid)
{
    DTYPE_CONST(t, T, columns_pack(to, attn_units(n->d), from, T, stride, valid));
}

void attn_pack_sums(
    float *to, const struct attn *n, const char *from, enum dtype t, int64_t stride, int64_t valid,
    int64_t count)
{
#if defined(__AVX512BF16__)
    int64_t width = attn_width(n);
    const uint16_t *x = (const void *)from;
    for (int64_t i = 0; i < count; i += 2, to += width, x += 2 * stride)
        for (int64_t c = 0; c < width; c += VL) {
            int left = (int)attn_least(VL, n->d - c);
            __mmask16 low = (__mmask16)(i < valid ? (1u << left) - 1 : 0);
            __mmask16 high = (__mmask16)(i + 1 < valid ? (1u << left) - 1 : 0);
            __m256i lo = _mm256_maskz_loadu_epi16(low, x + c);
            __m256i hi = _mm256_maskz_loadu_epi16(high, x + stride + c);
            __m512i pair = _mm512_or_si512(
                _mm512_cvtepu16_epi32(lo), _mm512_slli_epi32(_mm512_cvtepu16_epi32(hi), 16));
            _mm512_storeu_si512(to + c, pair);
        }
    (void)t;
#else
    attn_pack_rows(to, n, from, t, stride, valid, count);
#endif
}
