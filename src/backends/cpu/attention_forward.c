/* attention_forward.c - ATTENTION by tiles: scores of a tile of queries and a tile of keys exist at
 * a time, and the softmax is carried along with a running maximum and sum (Dao et al.,
 * "FlashAttention", 2022).
 *
 * A task is one tile of queries of one head. Tiles of keys are taken in order and those that nobody
 * sees are left out, so bits do not depend on threads.
 */
#include "backends/cpu/attention_tile.h"

struct forward {
    const struct attn *n;
    struct attn_rows y;
    float *lse;
    float *q, *k, *v; /* packed tiles */
    float *s, *p;     /* scores, probabilities: the same memory for float32 */
    float *out, *m, *l;
    int64_t first, rows; /* queries of the tile */
};

static int64_t room_divide(struct forward *f, float *room)
{
    const struct attn *n = f->n;
    struct attn_room r = {room, 0};
    f->q = attn_take(&r, TILE_Q * attn_rows_width(n));
    f->k = attn_take(&r, attn_units(n->d) * TILE_K);
    f->v = attn_take(&r, attn_units(TILE_K) * attn_width(n));
    f->s = attn_take(&r, TILE_Q * TILE_K);
    f->p = PAIRS ? attn_take(&r, TILE_Q * TILE_K / 2) : f->s;
    f->out = attn_take(&r, TILE_Q * attn_width(n));
    f->m = attn_take(&r, TILE_Q);
    f->l = attn_take(&r, TILE_Q);
    return r.used * 4;
}

int64_t attn_forward_bytes(const struct attn *n)
{
    struct forward f = {.n = n};
    return room_divide(&f, NULL);
}

/* Row r's part of the tile: probabilities against the running maximum; sums and results so far are
 * scaled when that rises. */
VEC_FN void row_softmax(
    struct forward *f, const struct attn_place *at, const struct dropout_key *key, int64_t r)
{
    const struct attn *n = f->n;
    float *row = f->s + r * TILE_K;
    vf s[TILE_V], top, sum;
    attn_scores(n, at, f->first + r, row, s);
    top = s[0];
#pragma GCC unroll 16
    for (int v = 1; v < TILE_V; v++)
        top = vmax(top, s[v]);
    float before = f->m[r], m = attn_lane_max(top);
    m = m > before ? m : before;
    float shift = m > -INFINITY ? m : 0; /* nothing seen yet: e^-inf, not NaN */
    sum = vset(0);
#pragma GCC unroll 16
    for (int v = 0; v < TILE_V; v++) {
        s[v] = attn_exp(s[v] - shift);
        sum = sum + s[v];
    }
    if (m > before) {
        float scale = attn_exp(vset(before - shift))[0];
        float *out = f->out + r * attn_width(n);
        f->m[r] = m;
        f->l[r] *= scale;
        for (int64_t c = 0; c < attn_width(n); c += VL)
            vstore(out, DT_F32, c, vload(out, DT_F32, c) * scale);
    }
    f->l[r] += attn_lane_sum(sum);
    if (key) {
        for (int v = 0; v < TILE_V; v++)
            vstore(row, DT_F32, v * VL, s[v]);
        attn_drop(n, key, at, f->first + r, row);
        for (int v = 0; v < TILE_V; v++)
            s[v] = vload(row, DT_F32, v * VL);
    }
    attn_store_row(f->p + r * attn_units(TILE_K), s);
}

static void tile_run(struct forward *f, const struct attn_place *at, const struct dropout_key *key)
{
    const struct attn *n = f->n;
    int64_t keys = attn_least(TILE_K, n->t - at->first_key), r0, r1, g = at->h / (n->h / n->g);
    int64_t wide = attn_rows_width(n), width = attn_width(n);
    attn_rows_seeing(n, f->first, f->rows, at->first_key, &r0, &r1);
    if (r0 == r1)
        return;
    const char *k = attn_row(&n->k, at->b, at->first_key, g);
    const char *v = attn_row(&n->v, at->b, at->first_key, g);
    attn_pack_columns(f->k, n, k, n->k.dtype, n->k.position, keys);
    attn_pack_sums(f->v, n, v, n->v.dtype, n->v.position, keys, TILE_K);
    attn_multiply(&(struct attn_product){
        .m = r1 - r0,
        .n = TILE_K,
        .k = attn_units(n->d),
        .a = f->q + r0 * wide,
        .a_row = wide,
        .a_k = 1,
        .b = f->k,
        .b_row = TILE_K,
        .c = f->s + r0 * TILE_K,
        .c_row = TILE_K});
    for (int64_t r = r0; r < r1; r++)
        row_softmax(f, at, key, r);
    attn_multiply(&(struct attn_product){
        .m = r1 - r0,
        .n = width,
        .k = attn_units(keys),
        .a = f->p + r0 * attn_units(TILE_K),
        .a_row = attn_units(TILE_K),
        .a_k = 1,
        .b = f->v,
        .b_row = width,
        .c = f->out + r0 * width,
        .c_row = width,
        .add = true});
}

VEC_FN void row_store(const struct forward *f, char *y, enum dtype t, int64_t r)
{
    int64_t d = f->n->d;
    const float *out = f->out + r * attn_width(f->n);
    float scale = f->l[r] > 0 || f->l[r] != f->l[r] ? 1 / f->l[r] : 0;
    for (int64_t c = 0; c < d; c += VL) {
        int left = (int)attn_least(VL, d - c);
        vf x = vload(out, DT_F32, c) * scale;
        if (left == VL)
            vstore(y, t, c, x);
        else
            vstore_n(y, t, c, left, x);
    }
}

static void task_run(struct forward *f, int64_t task, const struct dropout_key *key)
{
    const struct attn *n = f->n;
    int64_t tiles = attn_tiles(n->s, TILE_Q), from, to;
    struct attn_place at = {.b = task / tiles / n->h, .h = task / tiles % n->h};
    f->first = task % tiles * TILE_Q;
    f->rows = attn_least(TILE_Q, n->s - f->first);
    const char *q = attn_row(&n->q, at.b, f->first, at.h);
    attn_pack_rows(f->q, n, q, n->q.dtype, n->q.position, f->rows, f->rows);
    memset(f->out, 0, (size_t)(f->rows * attn_width(n)) * 4);
    for (int64_t r = 0; r < f->rows; r++)
        f->m[r] = -INFINITY, f->l[r] = 0;
    attn_keys_seen(n, f->first, f->rows, &from, &to);
    for (at.first_key = from; at.first_key < to; at.first_key += TILE_K)
        tile_run(f, &at, key);
    for (int64_t r = 0; r < f->rows; r++) {
        float *lse = f->lse + (at.b * n->h + at.h) * n->s + f->first + r;
        *lse = f->l[r] > 0 || f->l[r] != f->l[r] ? f->m[r] + logf(f->l[r]) : -INFINITY;
        char *y = attn_row(&f->y, at.b, f->first + r, at.h);
        DTYPE_CONST(f->y.dtype, T, row_store(f, y, T, r));
    }
}

void attn_forward_run(const struct kernel_args *a, const struct attn *n, int threads)
{
    int64_t tasks = n->b * n->h * attn_tiles(n->s, TILE_Q), each = attn_forward_bytes(n) / 4;
    struct dropout_key key;
    if (n->dropout > 0)
        key = attn_dropout_key(n);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int i = 0; i < threads; i++) {
        struct forward f = {.n = n, .y = attn_rows_of(&a->out[0], 0), .lse = a->out[1].data};
        (void)room_divide(&f, (float *)a->workspace + i * each);
        /* Every threads-th tile: with a causal mask the later ones have more to do. */
        for (int64_t task = i; task < tasks; task += threads)
            task_run(&f, task, n->dropout > 0 ? &key : NULL);
    }
}
