/* attention_tile.h - private to the attention kernels: tiles of operands, products of tiles, and
 * scores made from them.
 *
 * A tile is TILE_Q queries or TILE_K keys. Packed tiles hold units of 4 bytes: a float32, or, in
 * the files compiled with AVX512_BF16 (PAIRS), a pair of bf16 that are neighbours along the sum of
 * the product that reads them. So one set of loops serves both.
 */
#ifndef BACKENDS_CPU_ATTENTION_TILE_H
#define BACKENDS_CPU_ATTENTION_TILE_H

#include "backends/cpu/attention.h"
#include "backends/cpu/lanes.h"

#ifdef __AVX512BF16__
enum { PAIRS = 1 };
#else
enum { PAIRS = 0 };
#endif
enum { TILE_Q = 96, TILE_K = 64, TILE_V = TILE_K / VL };

VEC_FN int64_t attn_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
VEC_FN int64_t attn_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
VEC_FN int64_t attn_round(int64_t x, int64_t unit)
{
    return (x + unit - 1) / unit * unit;
}
/* Units of x elements. */
VEC_FN int64_t attn_units(int64_t x)
{
    return PAIRS ? (x + 1) / 2 : x;
}
/* Length of rows of D floats, or of D units along which another operand is read. */
VEC_FN int64_t attn_width(const struct attn *n)
{
    return attn_round(n->d, VL);
}
VEC_FN int64_t attn_tiles(int64_t length, int64_t tile)
{
    return (length + tile - 1) / tile;
}

/* C [m, n] = (add ? C : 0) + sum over k of A[m, k] B[k, n], in order of k. Element (i, k) of A is
 * a[i a_row + k a_k]; rows of B are b_row units apart. n is a multiple of VL. */
struct attn_product {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_k;
    const float *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
    bool add;
};
#define attn_multiply ISA_GLUE(attn_multiply, ISA_SUFFIX)
void attn_multiply(const struct attn_product *p);

/* Packing of `valid` rows of D elements, `count` rows in all, zeros past the valid ones.
 * rows: [count][units(D), rounded up to VL]; columns: [units(D)][TILE_K], a row becomes a column;
 * sums: [units(count)][width], to be summed over rows. */
#define attn_pack_rows ISA_GLUE(attn_pack_rows, ISA_SUFFIX)
void attn_pack_rows(
    float *to, const struct attn *n, const char *from, enum dtype t, int64_t stride, int64_t valid,
    int64_t count);
#define attn_pack_columns ISA_GLUE(attn_pack_columns, ISA_SUFFIX)
void attn_pack_columns(
    float *to, const struct attn *n, const char *from, enum dtype t, int64_t stride, int64_t valid);
#define attn_pack_sums ISA_GLUE(attn_pack_sums, ISA_SUFFIX)
void attn_pack_sums(
    float *to, const struct attn *n, const char *from, enum dtype t, int64_t stride, int64_t valid,
    int64_t count);
VEC_FN int64_t attn_rows_width(const struct attn *n)
{
    return attn_round(attn_units(n->d), VL);
}

/* e^x for x <= 88, 0 below -87; NaN passes. */
VEC_FN vf attn_exp(vf x)
{
    x = vmin(vset(88.0f), vmax(vset(-88.0f), x));
    vf n = vround(x * 1.44269504f);
    vf r = vfma(n, vset(-0.693359375f), x);
    r = vfma(n, vset(2.12194440e-4f), r);
    vf p = vset(1.989124731e-4f);
    p = vfma(p, r, vset(1.393388096e-3f));
    p = vfma(p, r, vset(8.333310694e-3f));
    p = vfma(p, r, vset(4.166646284e-2f));
    p = vfma(p, r, vset(1.666666668e-1f));
    p = vfma(p, r, vset(0.5f));
    vf y = vfma(r * r, p, r) + 1.0f;
    return y * (vf)((vu)(__builtin_convertvector(n, vi) + 127) << 23);
}
VEC_FN float attn_lane_max(vf x)
{
#if VEC_LANES == 16
    return _mm512_reduce_max_ps((__m512)x);
#else
    return vmax_lane(x);
#endif
}
VEC_FN float attn_lane_sum(vf x)
{
#if VEC_LANES == 16
    return _mm512_reduce_add_ps((__m512)x);
#else
    return vsum(x);
#endif
}

/* One head's tile: keys first_key .. first_key + TILE_K. */
struct attn_place {
    int64_t b, h;      /* batch, head of the query */
    int64_t first_key; /* of the tile */
};

/* The bias of query i and the tile's keys, as one row; NULL: none. */
VEC_FN const float *
attn_bias_row(const struct attn *n, const struct attn_place *at, int64_t i, float room[TILE_K])
{
    if (!n->bias.data)
        return NULL;
    const int64_t *st = n->bias.stride;
    const float *row = (const float *)n->bias.data + at->b * st[0] + at->h * st[1] + i * st[2] +
                       at->first_key * st[3];
    int64_t keys = attn_least(TILE_K, n->t - at->first_key);
    if (st[3] == 1 && keys == TILE_K)
        return row;
    for (int64_t j = 0; j < TILE_K; j++)
        room[j] = j < keys ? row[j * st[3]] : 0;
    return room;
}

/* Scores of query i from its row of products: scaled, with bias, -inf where nothing is seen. */
VEC_FN void attn_scores(
    const struct attn *n, const struct attn_place *at, int64_t i, const float *row, vf s[TILE_V])
{
    float room[TILE_K];
    const float *bias = attn_bias_row(n, at, i, room);
    int64_t from, to;
    attn_span(n, i, &from, &to);
    from -= at->first_key, to -= at->first_key;
    vf scale = vset(n->scale);
#pragma GCC unroll 16
    for (int v = 0; v < TILE_V; v++)
        s[v] = vload(row, DT_F32, v * VL) * scale;
    if (bias)
        for (int v = 0; v < TILE_V; v++)
            s[v] = s[v] + vload(bias, DT_F32, v * VL);
    if (from <= 0 && to >= TILE_K)
        return;
    vi lane;
    for (int k = 0; k < VL; k++)
        lane[k] = k;
    int32_t lo = (int32_t)attn_most(from, 0), hi = (int32_t)attn_most(attn_least(to, TILE_K), 0);
#pragma GCC unroll 16
    for (int v = 0; v < TILE_V; v++) {
        vi key = lane + v * VL;
        s[v] = vsel((key >= lo) & (key < hi), s[v], vset(-INFINITY));
    }
}

/* Queries [*r0, *r1) of the `rows` from first_query on that see a key of the tile, r0 even. */
VEC_FN void attn_rows_seeing(
    const struct attn *n, int64_t first_query, int64_t rows, int64_t first_key, int64_t *r0,
    int64_t *r1)
{
    *r0 = 0;
    *r1 = rows;
    if (!n->causal)
        return;
    *r0 = attn_most(0, first_key - n->offset - first_query) & ~(int64_t)1;
    if (n->window) /* the last key of the tile is still in the window */
        *r1 = attn_least(rows, first_key + TILE_K - 1 + n->window - n->offset - first_query);
    *r0 = attn_least(*r0, rows);
    *r1 = attn_most(*r0, *r1);
}

/* Keys [*from, *to) that some query of first .. first + rows sees. */
VEC_FN void
attn_keys_seen(const struct attn *n, int64_t first, int64_t rows, int64_t *from, int64_t *to)
{
    int64_t unused;
    attn_span(n, first, from, &unused);
    attn_span(n, first + rows - 1, &unused, to);
    *from = attn_least(*from, *to) / TILE_K * TILE_K;
}

VEC_FN struct dropout_key attn_dropout_key(const struct attn *n)
{
    return (struct dropout_key){
        .seed = (uint64_t)n->rng[0],
        .stream = n->stream,
        .step = (uint32_t)n->rng[1],
        .threshold = (uint32_t)fmin(n->dropout * 0x1p32, 0x1p32 - 1),
        .scale = n->dropout >= 1 ? 0.0f : 1.0f / (float)(1 - n->dropout)};
}
/* Drops from a row of the tile, in place: the number of an element is its place in [B, H, S, T]. */
VEC_FN void attn_drop(
    const struct attn *n, const struct dropout_key *key, const struct attn_place *at, int64_t i,
    float *row)
{
    int64_t first = ((at->b * n->h + at->h) * n->s + i) * n->t + at->first_key;
    int keys = (int)attn_least(TILE_K, n->t - at->first_key);
    lanes_ew()->dropout(row, row, keys, key, first);
}

/* Stores a row of the tile as operand A of a product over keys: `units(TILE_K)` units. */
VEC_FN void attn_store_row(float *to, const vf x[TILE_V])
{
#if defined(__AVX512BF16__)
#pragma GCC unroll 16
    for (int v = 0; v < TILE_V; v++)
        *(__m256bh *)(void *)((uint16_t *)(void *)to + v * VL) = _mm512_cvtneps_pbh((__m512)x[v]);
#else
#pragma GCC unroll 16
    for (int v = 0; v < TILE_V; v++)
        vstore(to, DT_F32, v * VL, x[v]);
#endif
}
/* Stores two rows as operand A of a product over queries: [units(2)][TILE_K]. */
VEC_FN void attn_store_two(float *to, const vf x[TILE_V], const vf y[TILE_V])
{
#pragma GCC unroll 16
    for (int v = 0; v < TILE_V; v++) {
#if defined(__AVX512BF16__)
        __m512i lo = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x[v]));
        __m512i hi = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)y[v]));
        _mm512_storeu_si512(to + v * VL, _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16)));
#else
        vstore(to, DT_F32, v * VL, x[v]);
        vstore(to, DT_F32, TILE_K + v * VL, y[v]);
#endif
    }
}

/* Hands out a thread's workspace in pieces of whole cache lines. */
struct attn_room {
    float *at;
    int64_t used;
};
VEC_FN float *attn_take(struct attn_room *r, int64_t floats)
{
    float *p = r->at ? r->at + r->used : NULL;
    r->used += attn_round(floats, 16);
    return p;
}

#endif
