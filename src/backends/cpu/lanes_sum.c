/* lanes_sum.c - sums, maxima and exponentials of blocks.
 *
 * Sums add their lanes in double, in an order given by the length; NaN propagates through all.
 */
#include "backends/cpu/lanes.h"
#include "backends/cpu/vec.h"

typedef double vd VEC_TYPE(8 * VEC_LANES);
/* Eight whatever the set: the order of a sum depends on it. */
typedef float eight_floats VEC_LOOSE(32, 4);
typedef double eight_doubles VEC_TYPE(64);

VEC_FN vf load_n(const float *x, int i, int n)
{
    return n - i >= VL ? vload(x, DT_F32, i) : vload_n(x, DT_F32, i, n - i);
}
VEC_FN void store_n(float *x, int i, int n, vf v)
{
    if (n - i >= VL)
        vstore(x, DT_F32, i, v);
    else
        vstore_n(x, DT_F32, i, n - i, v);
}
VEC_FN double lanes_total(const vd *x) /* by address: wider than a register may be */
{
    double s = 0;
    for (int i = 0; i < VL; i++)
        s += (*x)[i];
    return s;
}
/* Lanes past n as 0. */
VEC_FN vf only_n(vf x, int i, int n)
{
    vi lane;
    for (int k = 0; k < VL; k++)
        lane[k] = k;
    return vsel(lane < (n - i), x, vset(0));
}

/* Sum over i of EXPR, a vector, its lanes added in double: memory is slower than that. */
#define SUM_OF(EXPR)                                                                               \
    do {                                                                                           \
        vd s0 = {0}, s1 = {0};                                                                     \
        int i = 0;                                                                                 \
        for (; i + 2 * VL <= n; i += VL) {                                                         \
            s0 += __builtin_convertvector((EXPR), vd);                                             \
            i += VL;                                                                               \
            s1 += __builtin_convertvector((EXPR), vd);                                             \
        }                                                                                          \
        for (; i + VL <= n; i += VL)                                                               \
            s0 += __builtin_convertvector((EXPR), vd);                                             \
        if (i < n)                                                                                 \
            s1 += __builtin_convertvector(only_n((EXPR), i, n), vd);                               \
        s0 += s1;                                                                                  \
        return lanes_total(&s0);                                                                   \
    } while (0)

static double sum(const float *x, int n)
{
    SUM_OF(load_n(x, i, n));
}

static double dot(const float *x, const float *y, int n)
{
    SUM_OF(load_n(x, i, n) * load_n(y, i, n));
}

/* In double throughout: squares of float32 overflow it. */
static double sum_squares(const float *x, float scale, float scale2, int n)
{
    eight_doubles total = {0};
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        eight_floats scaled = *(const eight_floats *)(x + i) * scale * scale2;
        eight_doubles v = __builtin_convertvector(scaled, eight_doubles);
        total += v * v;
    }
    double s[8];
    memcpy(s, &total, sizeof s);
    for (int k = 0; i + k < n; k++) {
        double v = (double)(x[i + k] * scale * scale2);
        s[k] += v * v;
    }
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

/* The square of a float32 is exact in double, so that one rounding or two are the same. */
VEC_FN eight_doubles add_square(eight_doubles total, eight_floats x)
{
#if VEC_LANES == 16
    __m512d v = _mm512_cvtps_pd((__m256)x);
    return (eight_doubles)_mm512_fmadd_pd(v, v, (__m512d)total);
#else
    eight_doubles v = __builtin_convertvector(x, eight_doubles);
    return total + v * v;
#endif
}

/* sum_squares of four blocks side by side: each one's sum alone waits for its last addition. */
VEC_FN void squares_of_four(const float *x, bool scaled, const float scale[2], int n, double *sums)
{
    eight_doubles total[4];
#pragma GCC unroll 4
    for (int b = 0; b < 4; b++)
        total[b] = (eight_doubles){0};
    for (int i = 0; i < n; i += 8) {
        /* Four short runs hide from the processor that memory is read in order. */
        __builtin_prefetch(x + 16 * n + 4 * i);
        __builtin_prefetch(x + 16 * n + 4 * i + 16);
#pragma GCC unroll 4
        for (int b = 0; b < 4; b++) {
            eight_floats v = *(const eight_floats *)(x + b * n + i);
            if (scaled)
                v = v * scale[0] * scale[1];
            total[b] = add_square(total[b], v);
        }
    }
#pragma GCC unroll 4
    for (int b = 0; b < 4; b++) {
        double s[8];
        memcpy(s, &total[b], sizeof s);
        sums[b] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    }
}

static void four_squares(const float *x, float scale, float scale2, int n, double sums[4])
{
    const float by[2] = {scale, scale2};
    if (scale == 1 && scale2 == 1)
        squares_of_four(x, false, by, n, sums);
    else
        squares_of_four(x, true, by, n, sums);
}

static float largest(const float *x, int n)
{
    vf m = vset(-INFINITY), bad = vset(0);
    int i = 0;
    for (; i + VL <= n; i += VL) {
        vf v = vload(x, DT_F32, i);
        m = vmax(v, m);
        bad = vsel(v != v, v, bad);
    }
    float r = -INFINITY;
    for (int k = 0; k < VL; k++) {
        if (bad[k] != bad[k])
            return bad[k];
        r = m[k] > r ? m[k] : r;
    }
    for (; i < n; i++) {
        if (x[i] != x[i])
            return x[i];
        r = x[i] > r ? x[i] : r;
    }
    return r;
}

static bool all_finite(const float *x, int n)
{
    vf bad = vset(0);
    for (int i = 0; i < n; i += VL)
        bad += load_n(x, i, n) * 0.0f; /* NaN when not finite */
    return vsum(bad) == 0;
}

enum { ROWS = 16 }; /* added in float32 before they go to double */

/* m lanes from column i on. */
VEC_FN void add_columns(double *total, const float *x, int64_t row_stride, int rows, int i, int m)
{
    vd t = {0};
    memcpy(&t, total + i, (size_t)m * sizeof *total);
    for (int first = 0; first < rows; first += ROWS) {
        int end = first + ROWS < rows ? first + ROWS : rows;
        vf s = vset(0);
        for (int r = first; r < end; r++)
            s += m == VL ? vload(x + r * row_stride, DT_F32, i)
                         : vload_n(x + r * row_stride, DT_F32, i, m);
        t += __builtin_convertvector(s, vd);
    }
    memcpy(total + i, &t, (size_t)m * sizeof *total);
}

static void add_rows(double *total, const float *x, int64_t row_stride, int rows, int n)
{
    int i = 0;
    for (; i + VL <= n; i += VL)
        add_columns(total, x, row_stride, rows, i, VL);
    if (i < n)
        add_columns(total, x, row_stride, rows, i, n - i);
}

static void exp_scale(const float *x, float shift, float scale, float *y, int n)
{
    for (int i = 0; i < n; i += VL)
        store_n(y, i, n, vexp(load_n(x, i, n) - shift) * scale);
}

static double exp_sum(const float *x, float shift, int n)
{
    SUM_OF(vexp(load_n(x, i, n) - shift));
}

static void max_into(float *m, const float *x, int n) /* NaN in x stays in m */
{
    for (int i = 0; i < n; i += VL) {
        vf a = load_n(m, i, n), b = load_n(x, i, n);
        store_n(m, i, n, vsel((b > a) | (b != b), b, a));
    }
}

static void add_to(double *s, vf x, int n)
{
    for (int k = 0; k < n; k++)
        s[k] += (double)x[k];
}

static void exp_into(double *s, const float *x, const float *m, int n)
{
    for (int i = 0; i < n; i += VL)
        add_to(s + i, vexp(load_n(x, i, n) - load_n(m, i, n)), n - i < VL ? n - i : VL);
}

static void exp_columns(const float *x, const float *m, const float *scale, float *y, int n)
{
    for (int i = 0; i < n; i += VL)
        store_n(y, i, n, vexp(load_n(x, i, n) - load_n(m, i, n)) * load_n(scale, i, n));
}

static void log_columns(const float *x, const float *m, const float *l, float *y, int n)
{
    for (int i = 0; i < n; i += VL)
        store_n(y, i, n, load_n(x, i, n) - load_n(m, i, n) - load_n(l, i, n));
}

static void softmax_grad(const float *dy, const float *y, const float *s, float *dx, int n)
{
    for (int i = 0; i < n; i += VL)
        store_n(dx, i, n, load_n(y, i, n) * (load_n(dy, i, n) - load_n(s, i, n)));
}

static void log_softmax_grad(const float *dy, const float *y, const float *s, float *dx, int n)
{
    for (int i = 0; i < n; i += VL)
        store_n(dx, i, n, load_n(dy, i, n) - vexp(load_n(y, i, n)) * load_n(s, i, n));
}

static void mul_into(double *s, const float *x, const float *y, int n)
{
    for (int i = 0; i < n; i += VL)
        add_to(s + i, load_n(x, i, n) * load_n(y, i, n), n - i < VL ? n - i : VL);
}

static double smooth(float lse, const float *x, const float *w, int n)
{
    if (w)
        SUM_OF(load_n(w, i, n) * (lse - load_n(x, i, n)));
    SUM_OF(lse - load_n(x, i, n));
}

static double
soft(float lse, const float *x, const float *t, const float *w, const float keep_floor[2], int n)
{
    float keep = keep_floor[0], least = keep_floor[1];
    if (w)
        SUM_OF((load_n(t, i, n) * keep + least) * load_n(w, i, n) * (lse - load_n(x, i, n)));
    SUM_OF((load_n(t, i, n) * keep + least) * (lse - load_n(x, i, n)));
}

extern const struct lanes_sum KERNEL(lanes_sum);
const struct lanes_sum KERNEL(lanes_sum) = {
    .sum = sum,
    .sum_squares = sum_squares,
    .four_squares = four_squares,
    .dot = dot,
    .max = largest,
    .finite = all_finite,
    .add_rows = add_rows,
    .exp_scale = exp_scale,
    .exp_sum = exp_sum,
    .max_into = max_into,
    .exp_into = exp_into,
    .exp_columns = exp_columns,
    .mul_into = mul_into,
    .log_columns = log_columns,
    .softmax_grad = softmax_grad,
    .log_softmax_grad = log_softmax_grad,
    .smooth = smooth,
    .soft = soft,
};
