/* recurrent.c - RECURRENT and its gradient: a sequence step by step, weights packed once.
 *
 * Units are worked on in blocks of a few vectors, the blocks shared out to threads; a barrier ends
 * each step. A block holds its columns of the weights for all gates side by side, so that one
 * product gives everything a unit needs and the gates follow at once, while it is in the cache.
 *
 * Every sum runs over k in order, in one accumulator per row and unit: bits depend neither on
 * threads nor on the other rows. State and gradients between steps are float32; what is stored in a
 * low type is rounded before the next step reads it.
 */
#include "backends/cpu/args.h"
#include "backends/cpu/vec.h"
#include "base/mem.h"

enum { ROWS_MAX = 12, GATES_MAX = 4 };

struct seq {
    int64_t steps, rows, units, gates;
    struct recurrent_attr a;
    enum dtype t; /* of gates and results */
    float *packed;
    float *state[2]; /* before and after this step: [rows, units], or [rows, gates units] */
    float *carry;    /* gradient: what reaches the state before other than through the product */
};

static struct seq
seq_of(const struct tensor *gates, const struct tensor *w, struct recurrent_attr a)
{
    int64_t units = w->shape.dim[1];
    return (struct seq){
        .steps = gates->shape.dim[0],
        .rows = gates->shape.dim[1],
        .units = units,
        .gates = units ? w->shape.dim[0] / units : 1,
        .a = a,
        .t = gates->dtype};
}

/* ---- products ---- */

/* Rows that are multiplied at once with a block of `wide` vectors: as many as registers hold. */
static int tile_rows(int wide)
{
    int n = (VL == 16 ? 24 : 8) / wide;
    return n < 1 ? 1 : n > ROWS_MAX ? ROWS_MAX : n;
}

/* acc[r][g] = the sum over k of x[r, k] w[k, g, lanes] */
VEC_FN void
tile(const float *x, int64_t x_row, const float *w, int64_t depth, int rows, int wide, float *acc)
{
    vf sum[ROWS_MAX][GATES_MAX];
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < wide; g++)
            sum[r][g] = vset(0);
    for (int64_t k = 0; k < depth; k++) {
        vf b[GATES_MAX];
        for (int g = 0; g < wide; g++)
            b[g] = vload(w, DT_F32, (k * wide + g) * VL);
        for (int r = 0; r < rows; r++) {
            vf a = vset(x[r * x_row + k]);
            for (int g = 0; g < wide; g++)
                sum[r][g] = vfma(a, b[g], sum[r][g]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < wide; g++)
            vstore(acc, DT_F32, (r * wide + g) * VL, sum[r][g]);
}

/* The same for constants the compiler can unroll: full tiles, else row by row. */
#define TILE_OF(WIDE, ROWS)                                                                        \
    static void tile_##WIDE(                                                                       \
        const float *x, int64_t x_row, const float *w, int64_t depth, int rows, float *acc)        \
    {                                                                                              \
        if (rows == (ROWS)) {                                                                      \
            tile(x, x_row, w, depth, (ROWS), WIDE, acc);                                           \
            return;                                                                                \
        }                                                                                          \
        for (int r = 0; r < rows; r++)                                                             \
            tile(x + r * x_row, x_row, w, depth, 1, WIDE, acc + r * WIDE * VL);                    \
    }
#define TILE_ROWS(WIDE)                                                                            \
    ((VL == 16 ? 24 : 8) / (WIDE) > ROWS_MAX ? ROWS_MAX : (VL == 16 ? 24 : 8) / (WIDE))
TILE_OF(1, TILE_ROWS(1))
TILE_OF(2, TILE_ROWS(2))
TILE_OF(3, TILE_ROWS(3))
TILE_OF(4, TILE_ROWS(4))

static void product(
    int wide, const float *x, int64_t x_row, const float *w, int64_t depth, int rows, float *acc)
{
    switch (wide) {
    case 1:
        tile_1(x, x_row, w, depth, rows, acc);
        break;
    case 2:
        tile_2(x, x_row, w, depth, rows, acc);
        break;
    case 3:
        tile_3(x, x_row, w, depth, rows, acc);
        break;
    default:
        tile_4(x, x_row, w, depth, rows, acc);
        break;
    }
}

static int64_t blocks_of(int64_t units, int64_t width)
{
    return (units + width - 1) / width;
}

/* ---- forward ---- */

/* packed[block][k][gate][lane] = w[gate units + block VL + lane, k] */
static void pack_forward(const struct seq *s, const struct tensor *w)
{
    int64_t blocks = blocks_of(s->units, VL), each = s->units * s->gates * VL;
#pragma omp parallel for schedule(static) if (blocks > 1 && s->units > 64)
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t g = 0; g < s->gates; g++)
            for (int64_t lane = 0; lane < VL; lane++) {
                int64_t unit = b * VL + lane, row = g * s->units + unit;
                float *to = s->packed + b * each + g * VL + lane;
                for (int64_t k = 0; k < s->units; k++)
                    to[k * s->gates * VL] =
                        unit < s->units ? fload(w->data, w->dtype, row * s->units + k) : 0.0f;
            }
}

VEC_FN vf vsigmoid(vf x)
{
    return 1.0f / (1.0f + vexp(-x));
}

/* A vector of one row: where it is read and written. */
struct lane {
    const float *acc; /* [gates][VL]: product with the state before */
    const void *x, *bias;
    enum dtype t, bias_t;
    int64_t at, gate; /* offset in x and gates; distance of gates */
    int64_t unit;     /* first of the vector */
    int n;            /* lanes that exist */
};

/* What the input, the state and the bias give to gate g. */
VEC_FN vf gate_sum(const struct lane *l, int g)
{
    vf sum =
        vload_n(l->x, l->t, l->at + g * l->gate, l->n) + vload(l->acc, DT_F32, (int64_t)g * VL);
    return l->bias ? sum + vload_n(l->bias, l->bias_t, g * l->gate + l->unit, l->n) : sum;
}

static vf lstm_lane(const struct lane *l, void *gates, const float *before, float *cell)
{
    vf i = vsigmoid(gate_sum(l, 0)), f = vsigmoid(gate_sum(l, 1));
    vf g = vtanh(gate_sum(l, 2)), o = vsigmoid(gate_sum(l, 3));
    vf c = before ? f * vload_n(before, DT_F32, 0, l->n) + i * g : i * g;
    vf all[4] = {i, f, g, o};
    for (int k = 0; k < 4; k++)
        vstore_n(gates, l->t, l->at + k * l->gate, l->n, all[k]);
    vstore_n(cell, DT_F32, 0, l->n, c);
    return o * vtanh(c);
}

/* The state's share of n is kept: the gradient of r needs it. */
static vf gru_lane(const struct lane *l, void *gates, vf before, float *cell)
{
    vf r = vsigmoid(gate_sum(l, 0)), z = vsigmoid(gate_sum(l, 1));
    vf hidden = vload(l->acc, DT_F32, 2 * VL);
    if (l->bias)
        hidden = hidden + vload_n(l->bias, l->bias_t, 2 * l->gate + l->unit, l->n);
    vf n = vtanh(vload_n(l->x, l->t, l->at + 2 * l->gate, l->n) + r * hidden);
    vf all[3] = {r, z, n};
    for (int k = 0; k < 3; k++)
        vstore_n(gates, l->t, l->at + k * l->gate, l->n, all[k]);
    vstore_n(cell, DT_F32, 0, l->n, hidden);
    return n + z * (before - n);
}

/* One step of the rows of a tile in one block. step, last: places in the sequence (last < 0: the
 * first of all). */
static void forward_tile(
    const struct seq *s, const struct kernel_args *a, int64_t block, int64_t row, int rows,
    int64_t step, int64_t last)
{
    float acc[ROWS_MAX * GATES_MAX * VL];
    int64_t unit = block * VL, width = s->gates * s->units, each = s->units * s->gates * VL;
    const float *before = s->state[0];
    memset(acc, 0, sizeof acc);
    if (last >= 0)
        product(
            (int)s->gates, before + row * s->units, s->units, s->packed + block * each, s->units,
            rows, acc);
    int64_t left = s->units - unit, cells = s->a.keep ? s->rows * s->units : 0;
    struct lane l = {
        .x = a->in[0].data,
        .bias = arg_present(a, 2) ? a->in[2].data : NULL,
        .t = s->t,
        .bias_t = arg_present(a, 2) ? a->in[2].dtype : DT_F32,
        .gate = s->units,
        .unit = unit,
        .n = left < VL ? (int)left : VL};
    for (int r = 0; r < rows; r++) {
        int64_t at = (row + r) * s->units + unit;
        l.acc = acc + r * s->gates * VL;
        l.at = (step * s->rows + row + r) * width + unit;
        float *cell = a->n_out > 2 ? (float *)a->out[2].data + step * cells + at : NULL;
        const float *old = last >= 0 && cell ? cell + (last - step) * cells : NULL;
        vf h = vset(0), was = last >= 0 ? vload_n(before, DT_F32, at, l.n) : vset(0);
        if (s->a.kind == RECURRENT_LSTM) {
            h = lstm_lane(&l, a->out[0].data, old, cell);
        } else if (s->a.kind == RECURRENT_GRU) {
            h = gru_lane(&l, a->out[0].data, was, cell);
        } else {
            vf sum = gate_sum(&l, 0);
            h = s->a.kind == RECURRENT_TANH ? vtanh(sum) : vrelu(sum);
            vstore_n(a->out[0].data, s->t, l.at, l.n, h);
        }
        h = vround_to(h, s->t);
        vstore_n(a->out[1].data, s->t, step * s->rows * s->units + at, l.n, h);
        vstore_n(s->state[1], DT_F32, at, l.n, h);
    }
}

static int64_t step_at(const struct seq *s, int64_t i)
{
    return s->a.reverse ? s->steps - 1 - i : i;
}

/* Enough work in a step to share it out? */
static bool shared(const struct seq *s)
{
    return s->rows * s->units * s->units * s->gates > 1 << 16;
}

static void swap_states(struct seq *s)
{
    float *t = s->state[0];
    s->state[0] = s->state[1];
    s->state[1] = t;
}

static enum status forward(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct seq all = seq_of(&a->in[0], &a->in[1], a->attr->recurrent);
    int64_t blocks = blocks_of(all.units, VL);
    all.packed = a->workspace;
    all.state[0] = all.packed + blocks * VL * all.units * all.gates;
    all.state[1] = all.state[0] + all.rows * all.units;
    pack_forward(&all, &a->in[1]);
    bool parallel = shared(&all);
    (void)parallel;
#pragma omp parallel if (parallel)
    {
        struct seq s = all;
        int tile_max = tile_rows((int)s.gates);
        for (int64_t i = 0; i < s.steps; i++) {
#pragma omp for schedule(static)
            for (int64_t b = 0; b < blocks; b++)
                for (int64_t row = 0; row < s.rows; row += tile_max) {
                    int64_t n = s.rows - row < tile_max ? s.rows - row : tile_max;
                    forward_tile(
                        &s, a, b, row, (int)n, step_at(&s, i), i ? step_at(&s, i - 1) : -1);
                }
            swap_states(&s);
        }
    }
    return ST_OK;
}

static enum status
forward_prepare(const struct kernel_args *a, int64_t *workspace_bytes, void **state, struct err *e)
{
    (void)state;
    (void)e;
    struct seq s = seq_of(&a->in[0], &a->in[1], a->attr->recurrent);
    int64_t packed = blocks_of(s.units, VL) * VL * s.units * s.gates;
    *workspace_bytes = (packed + 2 * s.rows * s.units) * (int64_t)sizeof(float);
    return ST_OK;
}

/* ---- gradient ---- */

enum { WIDE = 2 }; /* vectors of a block */

/* packed[block][gate k][vector][lane] = w[gate k, block WIDE VL + ...] */
static void pack_backward(const struct seq *s, const struct tensor *w)
{
    int64_t width = WIDE * VL, blocks = blocks_of(s->units, width), depth = s->gates * s->units;
#pragma omp parallel for schedule(static) if (blocks > 1 && s->units > 64)
    for (int64_t b = 0; b < blocks; b++) {
        float *to = s->packed + b * depth * width;
        int64_t n = s->units - b * width < width ? s->units - b * width : width;
        for (int64_t k = 0; k < depth; k++)
            for (int64_t j = 0; j < width; j++)
                to[k * width + j] =
                    j < n ? fload(w->data, w->dtype, k * s->units + b * width + j) : 0.0f;
    }
}

/* Operands and results of RECURRENT_GRAD, at one vector of one row of one step. */
struct back {
    const struct seq *s;
    const void *gates, *y;
    const float *cell;
    void *dx, *dn;
    int64_t at;     /* in [steps, rows, units] */
    int64_t before; /* the same of the step before; -1: there is none */
    int64_t gate_at;
    float *state, *carry; /* this vector's: [gates units] of a row, [units] of a row */
    int n;
};

static vf gate(const struct back *b, int k)
{
    return vload_n(b->gates, b->s->t, b->gate_at + k * b->s->units, b->n);
}

/* The gradient of gate k: stored, and kept for the next step's product. */
static void gate_put(const struct back *b, int k, vf d)
{
    d = vround_to(d, b->s->t);
    vstore_n(b->dx, b->s->t, b->gate_at + k * b->s->units, b->n, d);
    vstore_n(b->state, DT_F32, k * b->s->units, b->n, d);
}

static void lstm_back(const struct back *b, vf dh)
{
    vf i = gate(b, 0), f = gate(b, 1), g = gate(b, 2), o = gate(b, 3);
    vf c = vtanh(vload_n(b->cell, DT_F32, b->at, b->n));
    vf was = b->before < 0 ? vset(0) : vload_n(b->cell, DT_F32, b->before, b->n);
    vf dc = vload_n(b->carry, DT_F32, 0, b->n) + dh * o * (1.0f - c * c);
    gate_put(b, 0, dc * g * i * (1.0f - i));
    gate_put(b, 1, dc * was * f * (1.0f - f));
    gate_put(b, 2, dc * i * (1.0f - g * g));
    gate_put(b, 3, dh * c * o * (1.0f - o));
    vstore_n(b->carry, DT_F32, 0, b->n, dc * f);
}

static void gru_back(const struct back *b, vf dh)
{
    vf r = gate(b, 0), z = gate(b, 1), n = gate(b, 2);
    vf hidden = vload_n(b->cell, DT_F32, b->at, b->n);
    vf was = b->before < 0 ? vset(0) : vload_n(b->y, b->s->t, b->before, b->n);
    dh = dh + vload_n(b->carry, DT_F32, 0, b->n);
    vf dn = dh * (1.0f - z) * (1.0f - n * n);
    gate_put(b, 0, dn * hidden * r * (1.0f - r));
    gate_put(b, 1, dh * (was - n) * z * (1.0f - z));
    gate_put(b, 2, dn);
    vf dhidden = vround_to(dn * r, b->s->t);
    vstore_n(b->dn, b->s->t, b->at, b->n, dhidden);
    vstore_n(b->state, DT_F32, 2 * b->s->units, b->n, dhidden);
    vstore_n(b->carry, DT_F32, 0, b->n, dh * z);
}

static void plain_back(const struct back *b, vf dh)
{
    vf y = vload_n(b->y, b->s->t, b->at, b->n);
    gate_put(
        b, 0,
        b->s->a.kind == RECURRENT_TANH ? dh * (1.0f - y * y) : vsel(y > vset(0), dh, vset(0)));
}

static void backward_tile(
    const struct seq *s, const struct kernel_args *a, int64_t block, int64_t row, int rows,
    int64_t i)
{
    float acc[ROWS_MAX * WIDE * VL];
    int64_t width = WIDE * VL, depth = s->gates * s->units, step = step_at(s, i);
    int64_t past = i ? step_at(s, i - 1) : -1;
    memset(acc, 0, sizeof acc);
    if (i < s->steps - 1)
        product(
            WIDE, s->state[0] + row * depth, depth, s->packed + block * depth * width, depth, rows,
            acc);
    struct back b = {
        .s = s,
        .gates = a->in[1].data,
        .y = a->in[2].data,
        .cell = a->in[3].data,
        .dx = a->out[0].data,
        .dn = a->n_out > 1 ? a->out[1].data : NULL};
    for (int r = 0; r < rows * WIDE; r++) {
        int64_t unit = block * width + r % WIDE * VL, at = (row + r / WIDE) * s->units + unit;
        if (unit >= s->units)
            continue;
        b.n = s->units - unit < VL ? (int)(s->units - unit) : VL;
        b.at = step * s->rows * s->units + at;
        b.before = past < 0 ? -1 : past * s->rows * s->units + at;
        b.gate_at = (step * s->rows + row + r / WIDE) * depth + unit;
        b.state = s->state[1] + (row + r / WIDE) * depth + unit;
        b.carry = s->carry + at;
        vf dh = vload_n(a->in[0].data, s->t, b.at, b.n) + vload(acc, DT_F32, (int64_t)r * VL);
        if (s->a.kind == RECURRENT_LSTM)
            lstm_back(&b, dh);
        else if (s->a.kind == RECURRENT_GRU)
            gru_back(&b, dh);
        else
            plain_back(&b, dh);
    }
}

static enum status backward(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct seq all = seq_of(&a->in[1], &a->in[4], a->attr->recurrent);
    int64_t width = WIDE * VL, blocks = blocks_of(all.units, width), depth = all.gates * all.units;
    all.packed = a->workspace;
    all.state[0] = all.packed + blocks * width * depth;
    all.state[1] = all.state[0] + all.rows * depth;
    all.carry = all.state[1] + all.rows * depth;
    memset(all.carry, 0, (size_t)(all.rows * all.units) * sizeof(float));
    pack_backward(&all, &a->in[4]);
    bool parallel = shared(&all);
    (void)parallel;
#pragma omp parallel if (parallel)
    {
        struct seq s = all;
        int tile_max = tile_rows(WIDE);
        for (int64_t i = s.steps; i-- > 0;) {
#pragma omp for schedule(static)
            for (int64_t b = 0; b < blocks; b++)
                for (int64_t row = 0; row < s.rows; row += tile_max) {
                    int64_t n = s.rows - row < tile_max ? s.rows - row : tile_max;
                    backward_tile(&s, a, b, row, (int)n, i);
                }
            swap_states(&s);
        }
    }
    return ST_OK;
}

static enum status
backward_prepare(const struct kernel_args *a, int64_t *workspace_bytes, void **state, struct err *e)
{
    (void)state;
    (void)e;
    struct seq s = seq_of(&a->in[1], &a->in[4], a->attr->recurrent);
    int64_t width = WIDE * VL, depth = s.gates * s.units;
    int64_t floats =
        blocks_of(s.units, width) * width * depth + 2 * s.rows * depth + s.rows * s.units;
    *workspace_bytes = floats * (int64_t)sizeof(float);
    return ST_OK;
}

const struct kernel KERNEL(recurrent) = {forward_prepare, forward, NULL, "recurrent"};
const struct kernel KERNEL(recurrent_grad) = {
    backward_prepare, backward, NULL, "recurrent gradient"};
