/* rope.c - rotary position embedding (Su et al., "RoFormer", 2021): the table of angles, and the
 * turning of pairs of features.
 *
 * Frequency i of a head is theta^(-2i / dims). With `factor`, Llama 3.1 stretches it: wavelengths
 * above original_positions / low_freq_factor are multiplied by factor, those below
 * original_positions / high_freq_factor stay, the ones between are blended.
 */
#include "backends/cpu/attention.h"

static double frequency(const struct rope_attr *a, int64_t i)
{
    double f = pow(a->theta, -2.0 * (double)i / (double)a->dims);
    if (!(a->factor > 0))
        return f;
    double turns = (double)a->original_positions * f / (2 * 3.14159265358979323846);
    if (turns < a->low_freq_factor)
        return f / a->factor;
    if (turns > a->high_freq_factor)
        return f;
    double smooth = (turns - a->low_freq_factor) / (a->high_freq_factor - a->low_freq_factor);
    return (1 - smooth) * f / a->factor + smooth * f;
}

static enum status table_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    const struct rope_attr *at = &a->attr->rope;
    int64_t half = at->dims / 2;
    float *out = a->out[0].data;
#pragma omp parallel for schedule(static) if (at->positions * half > 4096)
    for (int64_t i = 0; i < half; i++) {
        double f = frequency(at, i);
        for (int64_t s = 0; s < at->positions; s++) {
            double angle = (double)(at->start + s) * f;
            out[s * at->dims + i] = (float)cos(angle);
            out[s * at->dims + half + i] = (float)sin(angle);
        }
    }
    return ST_OK;
}

/* Features i and i + half of a row: (x c - z s, z c + x s). In place too. */
VEC_FN void turn_halves(
    const char *x, char *y, enum dtype t, const float *c, const float *s, int64_t half, float sign)
{
    for (int64_t i = 0; i < half; i += VL) {
        int n = half - i < VL ? (int)(half - i) : VL;
        vf a = vload_n(x, t, i, n), b = vload_n(x, t, half + i, n);
        vf cosine = vload_n(c, DT_F32, i, n), sine = vload_n(s, DT_F32, i, n) * sign;
        vstore_n(y, t, i, n, a * cosine - b * sine);
        vstore_n(y, t, half + i, n, b * cosine + a * sine);
    }
}

VEC_FN void turn_neighbours(
    const char *x, char *y, enum dtype t, const float *c, const float *s, int64_t half, float sign)
{
    for (int64_t i = 0; i < half; i++) {
        float a = fload(x, t, 2 * i), b = fload(x, t, 2 * i + 1), sine = s[i] * sign;
        fstore(y, t, 2 * i, a * c[i] - b * sine);
        fstore(y, t, 2 * i + 1, b * c[i] + a * sine);
    }
}

struct turn {
    struct attn_rows x, y;
    const float *table;
    int64_t dims, d, heads, turned;
    float sign;
    bool interleaved;
};

VEC_FN void position_turn(const struct turn *p, enum dtype t, int64_t b, int64_t s)
{
    const float *c = p->table + s * p->dims;
    int64_t half = p->dims / 2;
    size_t size = (size_t)dtype_size(t);
    for (int64_t h = 0; h < p->heads; h++) {
        const char *x = attn_row(&p->x, b, s, h);
        char *y = attn_row(&p->y, b, s, h);
        int64_t done = 0;
        if (h < p->turned) {
            (p->interleaved ? turn_neighbours : turn_halves)(x, y, t, c, c + half, half, p->sign);
            done = p->dims;
        }
        if (x != y && done < p->d)
            memcpy(y + (size_t)done * size, x + (size_t)done * size, (size_t)(p->d - done) * size);
    }
}

static enum status rope_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    const struct rope_attr *at = &a->attr->rope;
    const struct shape *x = &a->in[0].shape;
    struct turn p = {
        .x = attn_rows_of(&a->in[0], 0),
        .y = attn_rows_of(&a->out[0], 0),
        .table = a->in[1].data,
        .dims = a->in[1].shape.dim[1],
        .d = x->dim[3],
        .heads = x->dim[2],
        .turned = at->heads > 0 ? at->heads : x->dim[2],
        .sign = at->inverse ? -1.0f : 1.0f,
        .interleaved = at->interleaved};
    int64_t rows = x->dim[0] * x->dim[1];
#pragma omp parallel for schedule(static) if (shape_count(x) > 16384)
    for (int64_t r = 0; r < rows; r++)
        DTYPE_CONST(p.x.dtype, T, position_turn(&p, T, r / x->dim[1], r % x->dim[1]));
    return ST_OK;
}

const struct kernel KERNEL(rope_table) = {.run = table_run, .name = "rotary table"};
const struct kernel KERNEL(rope) = {.run = rope_run, .name = "rotary embedding"};
