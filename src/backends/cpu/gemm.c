/* gemm.c - packed matrix products: register tiles over panels of A and B, see gemm.h.
 *
 * A thread owns a rectangle of C and packs for itself: for each block of NC columns and KC of k,
 * for each block of MC rows, panels of A; then tiles of MR x NR. A panel of B is packed when its
 * first tile needs it, and while tiles are computed the memory of the next one is prefetched: the
 * usual product here has few rows and weights that lie far away. Sums that cannot wait in C between
 * blocks of k (16-bit results, accumulation) wait in a float32 buffer.
 */
#include "backends/cpu/gemm.h"

#if VEC_LANES == 16
enum { MR = 8, NV = 3, MC = 256, KC = 384, NC = 768 };
#elif VEC_LANES == 8
enum { MR = 6, NV = 2, MC = 120, KC = 384, NC = 768 };
#else
enum { MR = 4, NV = 2, MC = 128, KC = 384, NC = 768 };
#endif
enum { NR = NV * VL, MS = 512 / MC * MC, ALIGN = 64 };

/* What follows from a job's shape. */
struct plan {
    bool pairs;         /* bf16 dot products: panels hold pairs of k */
    bool wait;          /* sums wait in a buffer */
    bool once;          /* one block of rows: a panel of B is used up before the next is packed */
    int64_t kc;         /* block of k */
    int64_t mc, nc, ms; /* largest blocks that occur */
    int64_t a_bytes, b_bytes, wait_bytes, thread_bytes;
    int grid_m, grid_n; /* rectangles per result */
};

static int64_t round_up(int64_t x, int64_t unit)
{
    return (x + unit - 1) / unit * unit;
}
static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t batch_count(const struct gemm_job *g)
{
    int64_t n = 1;
    for (int i = 0; i < g->batch_rank; i++)
        n *= g->batch[i];
    return n;
}

/* Cuts a result among the threads that its share of the batch leaves: the cut with the least to
 * pack. */
static void plan_grid(const struct gemm_job *g, int threads, struct plan *p)
{
    int64_t batch = batch_count(g);
    double work = (double)g->m * (double)g->n * (double)g->k;
    int share = (int)(batch >= threads || batch < 1 ? 1 : (threads + batch - 1) / batch);
    p->grid_m = p->grid_n = 1;
    if (work < 131072)
        return;
    double best = (double)INFINITY;
    for (int m = 1; m <= share; m++) {
        int n = share / m;
        if (m > (g->m + MR - 1) / MR || n > (g->n + NR - 1) / NR)
            continue;
        double rows = ceil((double)g->m / m), cols = ceil((double)g->n / n);
        double cost = rows * cols * (double)g->k / 16 + (rows + cols) * (double)g->k;
        if (cost < best) {
            best = cost;
            p->grid_m = m, p->grid_n = n;
        }
    }
}

static struct plan plan_make(const struct gemm_job *g, int threads)
{
    struct plan p = {0};
#if VEC_LANES == 16
    bool low = (g->a.dtype == DT_BF16 || g->a.round) && (g->b.dtype == DT_BF16 || g->b.round);
    p.pairs = low && cpu_isa() == ISA_AVX512_BF16;
#endif
    p.kc = p.pairs ? 2 * KC : KC;
    p.wait = g->k > p.kc && (g->c_dtype != DT_F32 || g->accumulate);
    plan_grid(g, threads, &p);
    int64_t k = least(p.kc, g->k), units = p.pairs ? (k + 1) / 2 : k;
    p.mc = least(MC, round_up(g->m, MR));
    p.nc = least(NC, round_up(g->n, NR));
    p.ms = p.wait ? least(MS, round_up(g->m, MR)) : round_up(g->m, MR);
    p.once = p.ms <= p.mc;
    p.a_bytes = round_up(p.mc * units * 4 + 4 * VL, ALIGN);
    p.b_bytes = round_up((p.once ? NR : p.nc) * units * 4 + 4 * VL, ALIGN);
    p.wait_bytes = p.wait ? round_up(p.ms * p.nc * 4, ALIGN) : 0;
    p.thread_bytes = p.a_bytes + p.b_bytes + p.wait_bytes;
    return p;
}

int64_t gemm_bytes(const struct gemm_job *g, int threads)
{
    if (g->m == 0 || g->n == 0 || g->k == 0)
        return 0;
    struct plan p = plan_make(g, threads);
    int64_t tasks = batch_count(g) * p.grid_m * p.grid_n;
    return p.thread_bytes * least(tasks, threads);
}

/* ---- packing: panels of `width` with dst[k * width + w] = src[w * sw + k * sk], zeros past
 * `valid`; gemm_put says where a vector of w goes ---- */

VEC_FN void pack_along_width(
    struct gemm_panel to, int valid, int64_t k, const void *src, enum dtype t, int64_t sk)
{
    for (int64_t i = 0; i < k; i++)
        for (int w = 0; w < to.width; w += VL) {
            int left = valid - w < 0 ? 0 : valid - w;
            __builtin_prefetch((const char *)src + ((i + 16) * sk + w) * (t == DT_F32 ? 4 : 2));
            gemm_put(
                &to, i, w,
                left >= VL ? vload(src, t, i * sk + w) : vload_n(src, t, i * sk + w, left));
        }
}

/* Rows are read side by side: more of them than the processor sees coming. */
VEC_FN void
pack_along_k(struct gemm_panel to, int valid, int64_t k, const void *src, enum dtype t, int64_t sw)
{
    for (int64_t i = 0; i < k; i += VL) {
        int steps = (int)least(VL, k - i);
        for (int w = 0; w < to.width; w += VL) {
            vf r[VL];
            bool whole = steps == VL && valid - w >= VL;
            if (whole)
                for (int j = 0; j < VL; j++) {
                    __builtin_prefetch(
                        (const char *)src + ((w + j) * sw + i + 64) * (t == DT_F32 ? 4 : 2));
                    r[j] = vload(src, t, (w + j) * sw + i);
                }
            else
                for (int j = 0; j < VL; j++)
                    r[j] = w + j < valid ? vload_n(src, t, (w + j) * sw + i, steps) : vset(0);
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

VEC_FN void pack_any(
    struct gemm_panel to, int valid, int64_t k, const void *src, enum dtype t, int64_t sw,
    int64_t sk)
{
    for (int64_t i = 0; i < k; i++)
        for (int w = 0; w < to.width; w++)
            *gemm_place(&to, i, w) = w < valid ? fload(src, t, w * sw + i * sk) : 0;
}

VEC_FN void pack_panel(
    struct gemm_panel to, int valid, int64_t k, const void *src, enum dtype t, int64_t sw,
    int64_t sk)
{
    if (sw == 1)
        DTYPE_CONST(t, T, pack_along_width(to, valid, k, src, T, sk));
    else if (sk == 1)
        DTYPE_CONST(t, T, pack_along_k(to, valid, k, src, T, sw));
    else
        DTYPE_CONST(t, T, pack_any(to, valid, k, src, T, sw, sk));
}

/* Pair i of bf16 is elements 2i and 2i + 1 of k; an odd last one gets a 0. */
VEC_FN vf pair_up(vh even, vh odd)
{
    return (vf)(__builtin_convertvector(even, vu) | __builtin_convertvector(odd, vu) << 16);
}
VEC_FN vh load_u16(const uint16_t *x, int n)
{
    vh h = {0};
    if (n >= VL)
        return *(const vh_loose *)x;
#if VEC_LANES == 16
    h = (vh)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), x);
#else
    memcpy(&h, x, (size_t)n * 2);
#endif
    return h;
}

VEC_FN void
pairs_along_k(struct gemm_panel to, int valid, int64_t k, const uint16_t *src, int64_t sw)
{
    for (int64_t i = 0; i < k / 2; i += VL) { /* a pair is one 32-bit element */
        int steps = (int)least(VL, k / 2 - i);
        for (int w = 0; w < to.width; w += VL) {
            vf r[VL];
            for (int j = 0; j < VL; j++) {
                const uint16_t *at = src + (w + j) * sw + 2 * i;
                __builtin_prefetch(at + 128);
                r[j] = w + j >= valid ? vset(0) : vload_n(at, DT_F32, 0, steps);
            }
            vtranspose(r);
            for (int j = 0; j < steps; j++)
                gemm_put(&to, i + j, w, r[j]);
        }
    }
}

VEC_FN void
pairs_along_width(struct gemm_panel to, int valid, int64_t k, const uint16_t *src, int64_t sk)
{
    for (int64_t i = 0; i < k / 2; i++)
        for (int w = 0; w < to.width; w += VL) {
            const uint16_t *even = src + 2 * i * sk + w;
            int left = valid - w < 0 ? 0 : valid - w;
            __builtin_prefetch(even + 16 * sk);
            __builtin_prefetch(even + 17 * sk);
            gemm_put(&to, i, w, pair_up(load_u16(even, left), load_u16(even + sk, left)));
        }
}

VEC_FN void
pack_pairs(struct gemm_panel to, int valid, int64_t k, const uint16_t *src, int64_t sw, int64_t sk)
{
    if (sk == 1)
        pairs_along_k(to, valid, k, src, sw);
    else if (sw == 1)
        pairs_along_width(to, valid, k, src, sk);
    for (int64_t i = sk == 1 || sw == 1 ? k / 2 : 0; i < (k + 1) / 2; i++)
        for (int w = 0; w < to.width; w++) {
            const uint16_t *even = src + w * sw + 2 * i * sk;
            uint32_t pair = w < valid ? even[0] : 0;
            if (w < valid && 2 * i + 1 < k)
                pair |= (uint32_t)even[sk] << 16;
            memcpy(gemm_place(&to, i, w), &pair, sizeof pair);
        }
}

/* A packed panel as if it had been bf16 in memory. */
static void round_panel(float *panel, int64_t n)
{
    for (int64_t i = 0; i < n; i += VL) {
        int left = (int)least(VL, n - i);
        vstore_n(panel, DT_F32, i, left, vround_to(vload_n(panel, DT_F32, i, left), DT_BF16));
    }
}

/* Packs `count` rows (A) or columns (B) in panels of `width`, two at a time where a vector holds
 * two. */
VEC_FN void pack(
    void *dst, int width, int64_t count, int64_t k, const void *src, const struct gemm_operand *o,
    int64_t sw, int64_t sk, bool pairs)
{
    int64_t units = pairs ? (k + 1) / 2 : k;
    for (int64_t w = 0; w < count;) {
        struct gemm_panel to = {(float *)dst + w * units, width, 0};
        if (2 * width == VL && count - w > width)
            to = (struct gemm_panel){to.data, VL, width * units};
        int valid = (int)least(to.width, count - w);
        const char *at = (const char *)src + w * sw * dtype_size(o->dtype);
        w += to.width;
        if (!pairs) {
            pack_panel(to, valid, k, at, o->dtype, sw, sk);
            if (o->round)
                round_panel(to.data, to.width * units);
            continue;
        }
#if VEC_LANES == 16
        if (o->round) {
            gemm_pack_rounded(to, valid, k, (const void *)at, sw, sk);
            continue;
        }
#endif
        pack_pairs(to, valid, k, (const void *)at, sw, sk);
    }
}

static __attribute__((noinline)) void pack_a(
    void *dst, int64_t count, int64_t k, const struct gemm_operand *a, const void *src, bool pairs)
{
    pack(dst, MR, count, k, src, a, a->row, a->col, pairs);
}
static __attribute__((noinline)) void pack_b(
    void *dst, int64_t count, int64_t k, const struct gemm_operand *b, const void *src, bool pairs)
{
    pack(dst, NR, count, k, src, b, b->col, b->row, pairs);
}

/* ---- tiles ---- */

VEC_FN void tile_step(const float *a, const float *b, vf sum[MR][NV])
{
    vf y[NV];
#pragma GCC unroll 3
    for (int j = 0; j < NV; j++)
        y[j] = *(const vf_loose *)(b + j * VL);
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) {
        vf x = vset(a[i]);
#pragma GCC unroll 3
        for (int j = 0; j < NV; j++)
            sum[i][j] = vfma(x, y[j], sum[i][j]);
    }
}

static void
tile_run(const float *a, const float *b, int64_t k, struct gemm_ahead ahead, float *tile)
{
    vf sum[MR][NV];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int j = 0; j < NV; j++)
            sum[i][j] = vset(0);
    int64_t p = 0;
    for (; p + GEMM_AHEAD <= k; p += GEMM_AHEAD) {
        gemm_ahead_step(&ahead);
        for (int64_t q = p; q < p + GEMM_AHEAD; q++)
            tile_step(a + q * MR, b + q * NR, sum);
    }
    for (; p < k; p++)
        tile_step(a + p * MR, b + p * NR, sum);
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 3
        for (int j = 0; j < NV; j++)
            *(vf_loose *)(tile + i * NR + j * VL) = sum[i][j];
}

/* A finished tile's way to C, or to where it waits for the next block of k. */
struct finish {
    float *wait; /* this tile's sums so far, NULL when they are in C */
    int64_t wait_row;
    void *c;
    int64_t c_row;
    const void *bias;
    enum dtype bias_dtype;
    bool first, last, relu, accumulate;
};

VEC_FN void finish_row(const struct finish *f, const float *tile, int row, int cols, enum dtype t)
{
    const float *sum = tile + row * NR;
    for (int j = 0; j < cols; j += VL) {
        int n = cols - j < VL ? cols - j : VL;
        int64_t at = row * f->c_row + j;
        vf x = *(const vf_loose *)(sum + j);
        if (f->wait) {
            float *w = f->wait + row * f->wait_row + j;
            if (!f->first)
                x = x + *(vf_loose *)w;
            if (!f->last) {
                *(vf_loose *)w = x;
                continue;
            }
        } else if (!f->first) {
            x = x + (n == VL ? vload(f->c, t, at) : vload_n(f->c, t, at, n));
        }
        if (f->last) {
            if (f->bias) {
                if (f->bias_dtype == DT_F32)
                    x = x + vload_n(f->bias, DT_F32, j, n < VL ? n : VL);
                else
                    x = x + vload_n(f->bias, f->bias_dtype, j, n);
            }
            if (f->accumulate)
                x = x + vload_n(f->c, t, at, n);
            if (f->relu)
                x = vrelu(x);
        }
        if (n == VL)
            vstore(f->c, t, at, x);
        else
            vstore_n(f->c, t, at, n, x);
    }
}

static void finish_tile(const struct finish *f, const float *tile, int rows, int cols, enum dtype t)
{
    for (int i = 0; i < rows; i++)
        DTYPE_CONST(t, T, finish_row(f, tile, i, cols, T));
}

/* ---- one thread's rectangle ---- */

struct area {
    const struct gemm_job *g;
    const struct plan *p;
    const char *a, *b; /* of this result */
    char *c;
    int64_t m0, m1, n0, n1;
    char *a_pack, *b_pack;
    float *wait;
};

/* Columns [j, j1) of B for k in [k0, k0 + k). */
struct columns {
    int64_t j, j1, k0, k;
};

static const char *columns_at(const struct area *s, const struct columns *c, int64_t k, int64_t j)
{
    const struct gemm_operand *b = &s->g->b;
    return s->b + ((c->k0 + k) * b->row + j * b->col) * dtype_size(b->dtype);
}

/* What tile `part` of `parts` prefetches of the panel from column j on, whose lines run along k or
 * along the columns. */
static struct gemm_ahead
ahead_of(const struct area *s, const struct columns *c, int64_t j, int64_t part, int64_t parts)
{
    const struct gemm_operand *b = &s->g->b;
    int64_t size = dtype_size(b->dtype), last = least(NR, c->j1 - j) - 1;
    if (b->row == 1) { /* three columns at a time */
        int64_t w = least(3 * part, last), more = w + 2 <= last ? b->col * size : 0;
        return (struct gemm_ahead){
            columns_at(s, c, 0, j + w), ALIGN, more, (c->k * size + ALIGN - 1) / ALIGN};
    }
    int64_t k = c->k * part / parts; /* up to three lines of some rows */
    return (struct gemm_ahead){
        columns_at(s, c, k, j), b->row * size, ALIGN, c->k * (part + 1) / parts - k};
}

/* The place of a finished tile: rows are far apart, and written at once. */
static void prefetch_tile(const char *c, int64_t row_bytes, int rows, int64_t bytes)
{
    for (int i = 0; i < rows; i++)
        for (int64_t at = 0; at < bytes; at += ALIGN)
            __builtin_prefetch(c + i * row_bytes + at, 1, 3);
}

static void tile_sums(
    const struct plan *p, const char *a, const char *b, int64_t units, struct gemm_ahead ahead,
    float *to)
{
#if VEC_LANES == 16
    if (p->pairs) {
        gemm_tile_bf16((const void *)a, (const void *)b, units, ahead, to);
        return;
    }
#endif
    (void)p;
    tile_run((const void *)a, (const void *)b, units, ahead, to);
}

/* Tiles of rows i0 .. i1 with the columns c, A packed; the rows are the first ones to need B. */
static void
area_tiles(const struct area *s, int64_t i0, int64_t i1, const struct columns *c, int64_t top)
{
    const struct gemm_job *g = s->g;
    float tile[MR * NR] __attribute__((aligned(64)));
    int64_t units = s->p->pairs ? (c->k + 1) / 2 : c->k, parts = (i1 - i0 + MR - 1) / MR;
    int size = dtype_size(g->c_dtype);
    struct finish f = {
        .wait_row = s->p->nc,
        .c_row = g->c_row,
        .bias_dtype = g->bias_dtype,
        .first = c->k0 == 0,
        .last = c->k0 + c->k == g->k,
        .relu = g->relu,
        .accumulate = g->accumulate};
    for (int64_t j = c->j; j < c->j1; j += NR) {
        int cols = (int)least(NR, c->j1 - j);
        char *b = s->b_pack + (s->p->once ? 0 : j - c->j) * units * 4;
        if (i0 == top)
            pack_b(b, cols, c->k, &g->b, columns_at(s, c, 0, j), s->p->pairs);
        if (g->bias)
            f.bias = (const char *)g->bias + j * dtype_size(g->bias_dtype);
        for (int64_t i = i0; i < i1; i += MR) {
            int rows = (int)least(MR, i1 - i);
            f.c = s->c + (i * g->c_row + j) * size;
            f.wait = s->wait ? s->wait + (i - top) * s->p->nc + (j - c->j) : NULL;
            if (!f.wait || f.last)
                prefetch_tile(f.c, g->c_row * size, rows, (int64_t)cols * size);
            struct gemm_ahead ahead = {b, 0, 0, 0};
            if (i0 == top && j + NR < c->j1)
                ahead = ahead_of(s, c, j + NR, (i - i0) / MR, parts);
            tile_sums(s->p, s->a_pack + (i - i0) * units * 4, b, units, ahead, tile);
            finish_tile(&f, tile, rows, cols, g->c_dtype);
        }
    }
}

static void area_run(const struct area *s)
{
    const struct gemm_job *g = s->g;
    int64_t kc = s->p->kc;
    for (int64_t top = s->m0; top < s->m1; top += s->p->ms) {
        int64_t bottom = least(s->m1, top + s->p->ms);
        for (int64_t j = s->n0; j < s->n1; j += s->p->nc) {
            for (int64_t k0 = 0; k0 < g->k; k0 += kc) {
                struct columns c = {j, least(s->n1, j + s->p->nc), k0, least(kc, g->k - k0)};
                for (int64_t i = top; i < bottom; i += s->p->mc) {
                    int64_t i1 = least(bottom, i + s->p->mc);
                    pack_a(
                        s->a_pack, i1 - i, c.k, &g->a,
                        s->a + (i * g->a.row + k0 * g->a.col) * dtype_size(g->a.dtype),
                        s->p->pairs);
                    area_tiles(s, i, i1, &c, top);
                }
            }
        }
    }
}

/* k = 0: the sums are empty. */
static void fill_empty(const struct gemm_job *g)
{
    for (int64_t r = 0; r < batch_count(g) * g->m; r++)
        for (int64_t j = 0; j < g->n; j++) {
            int64_t at = r / g->m * g->c_batch + r % g->m * g->c_row + j;
            float x = g->bias ? fload(g->bias, g->bias_dtype, j) : 0;
            if (g->accumulate)
                x += fload(g->c, g->c_dtype, at);
            fstore(g->c, g->c_dtype, at, g->relu && x < 0 ? 0 : x);
        }
}

/* Where result `index` of the batch begins in an operand. */
static const char *batch_at(const struct gemm_job *g, const struct gemm_operand *x, int64_t index)
{
    int64_t at = 0;
    for (int i = g->batch_rank - 1; i >= 0; i--) {
        at += index % g->batch[i] * x->batch[i];
        index /= g->batch[i];
    }
    return (const char *)x->data + at * dtype_size(x->dtype);
}

/* Bounds of part i of n parts of `size`, cut at multiples of `unit`. */
static int64_t cut(int64_t size, int64_t unit, int64_t i, int64_t n)
{
    int64_t units = (size + unit - 1) / unit;
    return least(size, units * i / n * unit);
}

static void task_run(const struct gemm_job *g, const struct plan *p, int64_t task, char *room)
{
    int64_t result = task / (p->grid_m * p->grid_n), part = task % (p->grid_m * p->grid_n);
    int64_t im = part / p->grid_n, in = part % p->grid_n;
    struct area s = {.g = g, .p = p};
    s.a = batch_at(g, &g->a, result);
    s.b = batch_at(g, &g->b, result);
    s.c = (char *)g->c + result * g->c_batch * dtype_size(g->c_dtype);
    s.m0 = cut(g->m, MR, im, p->grid_m), s.m1 = cut(g->m, MR, im + 1, p->grid_m);
    s.n0 = cut(g->n, NR, in, p->grid_n), s.n1 = cut(g->n, NR, in + 1, p->grid_n);
    s.a_pack = room;
    s.b_pack = room + p->a_bytes;
    s.wait = p->wait ? (float *)(void *)(room + p->a_bytes + p->b_bytes) : NULL;
    area_run(&s);
}

void gemm_run(const struct gemm_job *g, void *workspace, int threads)
{
    if (g->m == 0 || g->n == 0)
        return;
    if (g->k == 0) {
        fill_empty(g);
        return;
    }
    struct plan p = plan_make(g, threads);
    int64_t tasks = batch_count(g) * p.grid_m * p.grid_n;
    int used = (int)least(tasks, threads);
    if (used < 1)
        return;
#pragma omp parallel for schedule(static) num_threads(used) if (used > 1)
    for (int i = 0; i < used; i++)
        for (int64_t task = tasks * i / used; task < tasks * (i + 1) / used; task++)
            task_run(g, &p, task, (char *)workspace + i * p.thread_bytes);
}
