/* attention_grad.c - ATTENTION_GRAD by tiles: probabilities are made again from the scores and
 * their logarithm of the sum (Dao, "FlashAttention-2", 2023).
 *
 *     P = e^(scale Q K^T + bias - lse),  dP = dO V^T,  dS = scale P (dP - rowsum(dO O))
 *     dV = P^T dO,  dQ = dS K,  dK = dS^T Q
 *
 * A task is one head of keys of one batch entry: it owns that head's dK and dV and the dQ of the
 * heads that share it. So nothing is added from two threads, and bits do not depend on them.
 * With dropout, P in dV and dP in dS are dropped by the same numbers as in the forward pass.
 */
#include "backends/cpu/attention_tile.h"

struct grad {
    const struct attn *n;
    const struct attn_grads *g;
    float *q, *q_sums, *dy, *dy_sums;      /* packed tiles of queries */
    float *k_columns, *v_columns, *k_sums; /* packed tiles of keys */
    float *s, *dp;                         /* products: scores, dP */
    float *p, *ds, *ds_rows;               /* operands made of them; float32: in place */
    float *dq, *dk, *dv;                   /* sums: [TILE_Q, width], [T, width] */
    float *lse, *delta;                    /* of the tile's queries */
    int64_t first, rows;
};

static int64_t room_divide(struct grad *f, float *room)
{
    const struct attn *n = f->n;
    struct attn_room r = {room, 0};
    int64_t wide = attn_rows_width(n), width = attn_width(n), tile = TILE_Q * TILE_K;
    f->q = attn_take(&r, TILE_Q * wide);
    f->dy = attn_take(&r, TILE_Q * wide);
    f->q_sums = PAIRS ? attn_take(&r, TILE_Q / 2 * width) : f->q;
    f->dy_sums = PAIRS ? attn_take(&r, TILE_Q / 2 * width) : f->dy;
    f->k_columns = attn_take(&r, attn_units(n->d) * TILE_K);
    f->v_columns = attn_take(&r, attn_units(n->d) * TILE_K);
    f->k_sums = attn_take(&r, attn_units(TILE_K) * width);
    f->s = attn_take(&r, tile);
    f->dp = attn_take(&r, tile);
    f->p = PAIRS ? attn_take(&r, tile / 2) : f->s;
    f->ds = PAIRS ? attn_take(&r, tile / 2) : f->dp;
    f->ds_rows = PAIRS ? attn_take(&r, tile / 2) : f->dp;
    f->dq = attn_take(&r, TILE_Q * width);
    f->dk = attn_take(&r, n->t * width);
    f->dv = attn_take(&r, n->t * width);
    f->lse = attn_take(&r, TILE_Q);
    f->delta = attn_take(&r, TILE_Q);
    return r.used * 4;
}

int64_t attn_grad_bytes(const struct attn *n)
{
    struct grad f = {.n = n};
    return room_divide(&f, NULL);
}

/* p (after dropout) and dS of row r of the tile. */
VEC_FN void row_grad(
    const struct grad *f, const struct attn_place *at, const struct dropout_key *key, int64_t r,
    vf p[TILE_V], vf ds[TILE_V])
{
    const struct attn *n = f->n;
    float *row = f->s + r * TILE_K, *dp = f->dp + r * TILE_K;
    vf lse = vset(f->lse[r]), delta = vset(f->delta[r]), scale = vset(n->scale);
    vf s[TILE_V];
    attn_scores(n, at, f->first + r, row, s);
#pragma GCC unroll 16
    for (int v = 0; v < TILE_V; v++)
        p[v] = s[v] = attn_exp(s[v] - lse);
    if (key) {
        for (int v = 0; v < TILE_V; v++)
            vstore(row, DT_F32, v * VL, s[v]);
        attn_drop(n, key, at, f->first + r, row);
        attn_drop(n, key, at, f->first + r, dp);
        for (int v = 0; v < TILE_V; v++)
            p[v] = vload(row, DT_F32, v * VL);
    }
#pragma GCC unroll 16
    for (int v = 0; v < TILE_V; v++)
        ds[v] = s[v] * (vload(dp, DT_F32, v * VL) - delta) * scale;
}

static void tile_rows(
    const struct grad *f, const struct attn_place *at, const struct dropout_key *key, int64_t r0,
    int64_t r1)
{
    for (int64_t r = r0; r < r1; r += 2) {
        vf p[2][TILE_V], ds[2][TILE_V];
        for (int i = 0; i < 2; i++) {
            if (r + i < r1) {
                row_grad(f, at, key, r + i, p[i], ds[i]);
                if (PAIRS) /* float32 rows serve both products */
                    attn_store_row(f->ds_rows + (r + i) * attn_units(TILE_K), ds[i]);
            } else {
                for (int v = 0; v < TILE_V; v++)
                    p[i][v] = ds[i][v] = vset(0);
            }
        }
        attn_store_two(f->p + attn_units(r) * TILE_K, p[0], p[1]);
        attn_store_two(f->ds + attn_units(r) * TILE_K, ds[0], ds[1]);
    }
}

/* C [keys or queries, width] += the tile's operand times packed rows. */
static void add_product(
    float *c, int64_t m, int64_t width, int64_t k, const float *a, int64_t a_row, int64_t a_k,
    const float *b)
{
    attn_multiply(&(struct attn_product){
        .m = m,
        .n = width,
        .k = k,
        .a = a,
        .a_row = a_row,
        .a_k = a_k,
        .b = b,
        .b_row = width,
        .c = c,
        .c_row = width,
        .add = true});
}

static void tile_products(const struct grad *f, int64_t r0, int64_t r1)
{
    int64_t wide = attn_rows_width(f->n);
    struct attn_product s = {
        .m = r1 - r0,
        .n = TILE_K,
        .k = attn_units(f->n->d),
        .a = f->q + r0 * wide,
        .a_row = wide,
        .a_k = 1,
        .b = f->k_columns,
        .b_row = TILE_K,
        .c = f->s + r0 * TILE_K,
        .c_row = TILE_K};
    attn_multiply(&s);
    s.a = f->dy + r0 * wide;
    s.b = f->v_columns;
    s.c = f->dp + r0 * TILE_K;
    attn_multiply(&s);
}

static void tile_run(struct grad *f, const struct attn_place *at, const struct dropout_key *key)
{
    const struct attn *n = f->n;
    int64_t keys = attn_least(TILE_K, n->t - at->first_key), r0, r1, g = at->h / (n->h / n->g);
    int64_t width = attn_width(n);
    attn_rows_seeing(n, f->first, f->rows, at->first_key, &r0, &r1);
    if (r0 == r1)
        return;
    const char *k = attn_row(&n->k, at->b, at->first_key, g);
    const char *v = attn_row(&n->v, at->b, at->first_key, g);
    attn_pack_columns(f->k_columns, n, k, n->k.dtype, n->k.position, keys);
    attn_pack_columns(f->v_columns, n, v, n->v.dtype, n->v.position, keys);
    attn_pack_sums(f->k_sums, n, k, n->k.dtype, n->k.position, keys, TILE_K);
    tile_products(f, r0, r1);
    tile_rows(f, at, key, r0, r1);
    int64_t u0 = attn_units(r0), units = attn_units(r1) - u0;
    float *dk = f->dk + at->first_key * width, *dv = f->dv + at->first_key * width;
    add_product(dv, keys, width, units, f->p + u0 * TILE_K, 1, TILE_K, f->dy_sums + u0 * width);
    add_product(dk, keys, width, units, f->ds + u0 * TILE_K, 1, TILE_K, f->q_sums + u0 * width);
    add_product(
        f->dq + r0 * width, r1 - r0, width, attn_units(keys), f->ds_rows + r0 * attn_units(TILE_K),
        attn_units(TILE_K), 1, f->k_sums);
}

VEC_FN void rows_store(
    const struct attn *n, const float *x, char *y, enum dtype t, int64_t stride, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++, x += attn_width(n), y += stride * dtype_size(t))
        for (int64_t c = 0; c < n->d; c += VL) {
            int left = (int)attn_least(VL, n->d - c);
            if (left == VL)
                vstore(y, t, c, vload(x, DT_F32, c));
            else
                vstore_n(y, t, c, left, vload(x, DT_F32, c));
        }
}

static void store(
    const struct attn *n, const float *x, const struct attn_rows *y, const struct attn_place *at,
    int64_t head, int64_t first, int64_t rows)
{
    if (rows > 0)
        DTYPE_CONST(
            y->dtype, T, rows_store(n, x, attn_row(y, at->b, first, head), T, y->position, rows));
}

/* The sum of dO O, and the logarithm of the sum, of row r. */
VEC_FN void row_constants(struct grad *f, const struct attn_place *at, int64_t r)
{
    const struct attn_grads *g = f->g;
    int64_t i = f->first + r, d = f->n->d;
    const char *dy = attn_row(&g->dy, at->b, i, at->h), *y = attn_row(&g->y, at->b, i, at->h);
    vf sum = vset(0);
    for (int64_t c = 0; c < d; c += VL) {
        int left = (int)attn_least(VL, d - c);
        sum = sum + vload_n(dy, g->dy.dtype, c, left) * vload_n(y, g->y.dtype, c, left);
    }
    float lse = g->lse[(at->b * f->n->h + at->h) * f->n->s + i];
    f->delta[r] = attn_lane_sum(sum);
    f->lse[r] = lse > -INFINITY || lse != lse ? lse : INFINITY; /* saw nothing: e^-inf */
}

static void
queries_run(struct grad *f, struct attn_place *at, int64_t first, const struct dropout_key *key)
{
    const struct attn *n = f->n;
    int64_t from, to, rows = attn_least(TILE_Q, n->s - first), even = attn_round(rows, 2);
    const char *q = attn_row(&n->q, at->b, first, at->h);
    const char *dy = attn_row(&f->g->dy, at->b, first, at->h);
    f->first = first, f->rows = rows;
    attn_pack_rows(f->q, n, q, n->q.dtype, n->q.position, rows, even);
    attn_pack_rows(f->dy, n, dy, f->g->dy.dtype, f->g->dy.position, rows, even);
    if (PAIRS) {
        attn_pack_sums(f->q_sums, n, q, n->q.dtype, n->q.position, rows, even);
        attn_pack_sums(f->dy_sums, n, dy, f->g->dy.dtype, f->g->dy.position, rows, even);
    }
    for (int64_t r = 0; r < rows; r++)
        row_constants(f, at, r);
    memset(f->dq, 0, (size_t)(rows * attn_width(n)) * 4);
    attn_keys_seen(n, first, rows, &from, &to);
    for (at->first_key = from; at->first_key < to; at->first_key += TILE_K)
        tile_run(f, at, key);
    store(n, f->dq, &f->g->dq, at, at->h, first, rows);
}

static void task_run(struct grad *f, int64_t task, const struct dropout_key *key)
{
    const struct attn *n = f->n;
    int64_t g = task % n->g, each = n->h / n->g;
    struct attn_place at = {.b = task / n->g};
    memset(f->dk, 0, (size_t)(n->t * attn_width(n)) * 4);
    memset(f->dv, 0, (size_t)(n->t * attn_width(n)) * 4);
    for (at.h = g * each; at.h < (g + 1) * each; at.h++)
        for (int64_t first = 0; first < n->s; first += TILE_Q)
            queries_run(f, &at, first, key);
    store(n, f->dk, &f->g->dk, &at, g, 0, n->t);
    store(n, f->dv, &f->g->dv, &at, g, 0, n->t);
}

void attn_grad_run(const struct attn_grads *g, const struct attn *n, void *workspace, int threads)
{
    int64_t tasks = n->b * n->g, each = attn_grad_bytes(n) / 4;
    struct dropout_key key;
    if (n->dropout > 0)
        key = attn_dropout_key(n);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int i = 0; i < threads; i++) {
        struct grad f = {.n = n, .g = g};
        (void)room_divide(&f, (float *)workspace + i * each);
        for (int64_t task = i; task < tasks; task += threads)
            task_run(&f, task, n->dropout > 0 ? &key : NULL);
    }
}
