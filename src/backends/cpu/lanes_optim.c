/* lanes_optim.c - the nine optimizers on blocks: PyTorch 1.13's single-tensor functions, operation
 * by operation and in its order; its fused multiply-adds (add with alpha, addcmul) are fused here.
 */
#include "backends/cpu/lanes.h"
#include "backends/cpu/vec.h"

/* Vectors of one place: parameter, states, gradient. */
struct place {
    vf w, s0, s1, s2, g;
};

/* In one rounding on every instruction set: updates have the same bits on all of them. */
VEC_FN vf fused(vf a, vf b, vf c)
{
#if VEC_LANES == 4
    for (int i = 0; i < VL; i++)
        c[i] = fmaf(a[i], b[i], c[i]);
    return c;
#else
    return vfma(a, b, c);
#endif
}

VEC_FN vf lerp_up(vf average, vf g, float keep, float take) /* average keep + g take */
{
    return fused(g, vset(take), average * keep);
}
VEC_FN vf square_up(vf average, vf g, float keep, float take) /* average keep + (take g) g */
{
    return fused(take * g, g, average * keep);
}

VEC_FN void sgd(const struct optim_step *s, struct place *p)
{
    vf d = p->g;
    if (s->momentum != 0) {
        p->s0 = s->first ? d : lerp_up(p->s0, d, s->momentum, s->one_dampening);
        d = s->nesterov ? fused(p->s0, vset(s->momentum), d) : p->s0;
    }
    p->w = fused(d, vset(s->size), p->w);
}

VEC_FN vf larger(vf a, vf b) /* NaN propagates */
{
    return vsel((a > b) | (a != a), a, b);
}

/* x / d with the bits of the division, for one d in all lanes and its rounded reciprocal: three
 * multiply-adds in place of a division, which takes eleven (P. Markstein, Computation of elementary
 * functions on the IBM RISC System/6000 processor, 1990). x is 0 or far from the least number, so
 * that the remainder is exact; where x is infinite or NaN, so is the first quotient. */
VEC_FN vf divided(vf x, float d, float reciprocal)
{
#if VEC_LANES == 4
    (void)reciprocal;
    return x / d;
#else
    vf q = x * reciprocal, rest = vfma(-q, vset(d), x);
    return vsel(rest == rest, vfma(rest, vset(reciprocal), q), q);
#endif
}

VEC_FN void adam(const struct optim_step *s, struct place *p)
{
    p->s0 = lerp_up(p->s0, p->g, s->beta1, s->one_beta1);
    p->s1 = square_up(p->s1, p->g, s->beta2, s->one_beta2);
    vf second = p->s1;
    if (s->amsgrad)
        second = p->s2 = larger(p->s2, p->s1);
    vf denom = divided(vsqrt(second), s->denom, 1 / s->denom) + s->eps;
    p->w = p->w + s->size * p->s0 / denom;
}

VEC_FN void rmsprop(const struct optim_step *s, struct place *p)
{
    p->s0 = square_up(p->s0, p->g, s->beta2, s->one_beta2);
    vf second = p->s0, *average = s->momentum > 0 ? &p->s2 : &p->s1;
    if (s->centered) {
        *average = lerp_up(*average, p->g, s->beta2, s->one_beta2);
        second = fused(-1.0f * *average, *average, second);
    }
    vf denom = vsqrt(second) + s->eps;
    if (s->momentum > 0) {
        p->s1 = p->s1 * s->momentum + p->g / denom;
        p->w = fused(p->s1, vset(s->size), p->w);
    } else {
        p->w = p->w + s->size * p->g / denom;
    }
}

VEC_FN void adagrad(const struct optim_step *s, struct place *p)
{
    p->s0 = fused(p->g, p->g, p->s0);
    p->w = p->w + s->size * p->g / (vsqrt(p->s0) + s->eps);
}

VEC_FN void radam(const struct optim_step *s, struct place *p)
{
    p->s0 = lerp_up(p->s0, p->g, s->beta1, s->one_beta1);
    p->s1 = square_up(p->s1, p->g, s->beta2, s->one_beta2);
    vf step = p->s0 / s->correction1 * s->lr;
    if (s->rectified)
        step = step * (1.0f / (vsqrt(p->s1) + s->eps) * s->adaptive) * s->rect;
    p->w = p->w - step;
}

VEC_FN void nadam(const struct optim_step *s, struct place *p)
{
    p->s0 = lerp_up(p->s0, p->g, s->beta1, s->one_beta1);
    p->s1 = square_up(p->s1, p->g, s->beta2, s->one_beta2);
    vf denom = vsqrt(p->s1 / s->denom) + s->eps;
    p->w = p->w + s->size * p->g / denom;
    p->w = p->w + s->size_avg * p->s0 / denom;
}

VEC_FN vf sign_of(vf x)
{
    return vsel(x > vset(0), vset(1), vsel(x < vset(0), vset(-1), vset(0)));
}

VEC_FN void rprop(const struct optim_step *s, struct place *p)
{
    vf product = p->g * p->s0;
    vf factor = vsel(
        product > vset(0), vset(s->eta_plus), vsel(product < vset(0), vset(s->eta_minus), vset(1)));
    vf size = p->s1 * factor;
    p->s1 = vmin(vset(s->step_max), vmax(vset(s->step_min), size));
    vf g = vsel(factor == vset(s->eta_minus), vset(0), p->g);
    p->w = fused(-1.0f * sign_of(g), p->s1, p->w);
    p->s0 = g;
}

VEC_FN void asgd(const struct optim_step *s, struct place *p)
{
    p->w = p->w * s->shrink;
    p->w = fused(p->g, vset(s->size), p->w);
    p->s0 = s->mu != 1 ? p->s0 + (p->w - p->s0) * s->mu : p->w;
}

VEC_FN void step_of(enum optim_kind kind, const struct optim_step *s, struct place *p)
{
    p->g = p->g * s->inverse_scale * s->clip;
    if (s->maximize)
        p->g = -p->g;
    if (kind == OPTIM_ADAMW)
        p->w = p->w * s->shrink;
    else if (s->decays)
        p->g = fused(p->w, vset(s->decay), p->g);
    switch (kind) {
    case OPTIM_SGD:
        sgd(s, p);
        break;
    case OPTIM_ADAM:
    case OPTIM_ADAMW:
        adam(s, p);
        break;
    case OPTIM_RMSPROP:
        rmsprop(s, p);
        break;
    case OPTIM_ADAGRAD:
        adagrad(s, p);
        break;
    case OPTIM_RADAM:
        radam(s, p);
        break;
    case OPTIM_NADAM:
        nadam(s, p);
        break;
    case OPTIM_RPROP:
        rprop(s, p);
        break;
    case OPTIM_ASGD:
        asgd(s, p);
        break;
    case OPTIM_ADAFACTOR: /* optim_adafactor.c */
    case OPTIM_COUNT:
        break;
    }
}

VEC_FN vf load_n(const float *x, int i, int n)
{
    if (!x)
        return vset(0);
    return n - i >= VL ? vload(x, DT_F32, i) : vload_n(x, DT_F32, i, n - i);
}
VEC_FN void store_n(float *x, int i, int n, vf v)
{
    if (!x)
        return;
    if (n - i >= VL)
        vstore(x, DT_F32, i, v);
    else
        vstore_n(x, DT_F32, i, n - i, v);
}

VEC_FN void
loop(enum optim_kind kind, const struct optim_step *s, const struct optim_block *b, int n)
{
    const struct optim_step own = *s; /* which no store can change: constants stay in registers */
    for (int i = 0; i < n; i += VL) {
        struct place p = {
            load_n(b->w, i, n), load_n(b->s[0], i, n), load_n(b->s[1], i, n), load_n(b->s[2], i, n),
            load_n(b->g, i, n)};
        step_of(kind, &own, &p);
        store_n(b->w, i, n, p.w);
        store_n(b->s[0], i, n, p.s0);
        store_n(b->s[1], i, n, p.s1);
        store_n(b->s[2], i, n, p.s2);
    }
}

static void run(const struct optim_step *s, const struct optim_block *b, int n)
{
    switch (s->kind) {
#define ROW(kind)                                                                                  \
    case kind:                                                                                     \
        loop(kind, s, b, n);                                                                       \
        break;
        ROW(OPTIM_SGD)
        ROW(OPTIM_ADAM)
        ROW(OPTIM_ADAMW)
        ROW(OPTIM_RMSPROP)
        ROW(OPTIM_ADAGRAD)
        ROW(OPTIM_RADAM)
        ROW(OPTIM_NADAM)
        ROW(OPTIM_RPROP)
        ROW(OPTIM_ASGD)
#undef ROW
    case OPTIM_ADAFACTOR:
    case OPTIM_COUNT:
        break;
    }
}

/* ---- states in 8 bits ---- */

#if VEC_LANES > 4
/* Few quotients are that close to a middle. */
static __attribute__((noinline)) void
magnitudes_by_middle(const struct quant_dynamic *m, const float *size, int32_t *k)
{
    for (int i = 0; i < VL; i++)
        k[i] = quant_dynamic_magnitude(m, size[i]);
}

#if VEC_LANES == 16
VEC_FN vf pick(const float *table, vi i)
{
    return (vf)_mm512_permutexvar_ps((__m512i)i, _mm512_loadu_ps(table));
}
VEC_FN vi borders_below(const struct quant_dynamic *m, vf size)
{
    __m512 x = _mm512_max_ps((__m512)size, _mm512_set1_ps(0x1p-31f));
    __m512i i = _mm512_srli_epi32(_mm512_castps_si512(x), 23);
    __m512i n = _mm512_permutex2var_epi32(
        _mm512_loadu_si512(m->below), i, _mm512_loadu_si512(m->below + 16));
    __m512 edge =
        _mm512_permutex2var_ps(_mm512_loadu_ps(m->edge), i, _mm512_loadu_ps(m->edge + 16));
    __mmask16 more = _mm512_cmp_ps_mask(x, edge, _CMP_GT_OQ);
    return (vi)_mm512_mask_add_epi32(n, more, n, _mm512_set1_epi32(1));
}
VEC_FN bool close_to_whole(vf x)
{
    __m512 apart = _mm512_abs_ps((__m512)(x - vround(x)));
    return _mm512_cmp_ps_mask(apart, _mm512_set1_ps(QUANT_NEAR), _CMP_LT_OQ) != 0;
}
/* zero + k, or zero less k, at most `last`, where v is negative */
VEC_FN void store_codes(uint8_t *to, vf v, vi k, int zero, int last)
{
    __m512i from = _mm512_set1_epi32(zero), up = _mm512_add_epi32(from, (__m512i)k);
    __mmask16 negative = _mm512_cmp_ps_mask((__m512)v, _mm512_setzero_ps(), _CMP_LT_OQ);
    __m512i down = _mm512_min_epi32((__m512i)k, _mm512_set1_epi32(last));
    __m512i code = _mm512_mask_sub_epi32(up, negative, from, down);
    _mm_storeu_si128((__m128i_u *)to, _mm512_cvtepi32_epi8(code));
}
#else
VEC_FN vf pick(const float *table, vi i)
{
    __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)i);
    __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), (__m256i)i);
    return vsel(i > 7, (vf)high, (vf)low);
}
VEC_FN vi borders_below(const struct quant_dynamic *m, vf size)
{
    vi below = {0};
    for (int d = 0; d < 8; d++)
        below -= size > vset(m->border[d]);
    return below;
}
VEC_FN bool close_to_whole(vf x)
{
    return _mm256_movemask_ps((__m256)(vabs(x - vround(x)) < vset(QUANT_NEAR))) != 0;
}
VEC_FN void store_codes(uint8_t *to, vf v, vi k, int zero, int last)
{
    vi down = (vi)vsel(k < last, (vf)k, (vf)((vi){0} + last));
    vb code = __builtin_convertvector(zero + (vi)vsel(v < vset(0), (vf)-down, (vf)k), vb);
    memcpy(to, &code, sizeof code);
}
#endif

/* The magnitudes of quotients in [0, 1]: arithmetic, and the middles where it is too close. */
VEC_FN vi magnitudes(const struct quant_dynamic *m, vf size)
{
    vi c = borders_below(m, size);
    vf place = size * pick(m->slope, c) + pick(m->shift, c);
    vi k = __builtin_convertvector(vmin(place, pick(m->cap, c)), vi);
    if (__builtin_expect(close_to_whole(place), 0)) {
        float sizes[VL];
        int32_t exact[VL];
        memcpy(sizes, &size, sizeof sizes);
        magnitudes_by_middle(m, sizes, exact);
        memcpy(&k, exact, sizeof k);
    }
    return k;
}

/* quant_dynamic_codes for whole vectors; returns how many elements those are. */
VEC_FN int codes_of(const struct quant_dynamic *m, const float *x, int n, float most, uint8_t *code)
{
    float inverse = most >= FLT_MIN ? 1 / most : 0;
    int i = 0, zero = m->zero, last = m->last_negative; /* codes may alias the map */
    for (; i + VL <= n; i += VL) {
        vf v = vload(x, DT_F32, i);
        vi k = magnitudes(m, vmin(vabs(v * inverse), vset(1)));
        store_codes(code + i, v, k, zero, last);
    }
    return i;
}
#else
VEC_FN int codes_of(const struct quant_dynamic *m, const float *x, int n, float most, uint8_t *code)
{
    (void)m, (void)x, (void)n, (void)most, (void)code;
    return 0;
}
#endif

#if VEC_LANES == 16
/* value[i] of 256: eight pairs of registers, halved by the bits above the lowest five. */
VEC_FN vf value_of(const float *value, __m512i i)
{
    __m512 part[8];
    for (int k = 0; k < 8; k++)
        part[k] = _mm512_permutex2var_ps(
            _mm512_loadu_ps(value + 32 * k), i, _mm512_loadu_ps(value + 32 * k + 16));
    for (int bit = 32, left = 4; left > 0; bit *= 2, left /= 2) {
        __mmask16 upper = _mm512_test_epi32_mask(i, _mm512_set1_epi32(bit));
        for (int k = 0; k < left; k++)
            part[k] = _mm512_mask_blend_ps(upper, part[2 * k], part[2 * k + 1]);
    }
    return (vf)part[0];
}
#endif

static void unpack(
    const struct quant_dynamic *m, const uint8_t *restrict code, float absmax, float *restrict x,
    int n)
{
    int i = 0;
#if VEC_LANES == 16
    for (; i + VL <= n; i += VL) {
        __m512i c = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i_u *)(code + i)));
        vstore(x, DT_F32, i, value_of(m->value, c) * absmax);
    }
#endif
    for (; i < n; i++)
        x[i] = m->value[code[i]] * absmax;
}

static float pack(const struct quant_dynamic *m, const float *x, uint8_t *code, int n)
{
    vf most = vset(0);
    float top[VL], absmax = 0;
    for (int i = 0; i < n; i += VL) {
        vf v = n - i >= VL ? vload(x, DT_F32, i) : vload_n(x, DT_F32, i, n - i);
        most = vmax(most, vmax(v, -v));
    }
    memcpy(top, &most, sizeof top);
    for (int i = 0; i < VL; i++)
        absmax = top[i] > absmax ? top[i] : absmax;
    int done = codes_of(m, x, n, absmax, code);
    return quant_dynamic_codes(m, x + done, n - done, absmax, code + done);
}

/* ---- Adafactor ---- */

static void scaled(const float *g, float *y, int n, const float scale[3])
{
    for (int i = 0; i < n; i += VL)
        store_n(y, i, n, load_n(g, i, n) * scale[0] * scale[1] * scale[2]);
}

static void factored(const float *v, float *u, int n, float row, float floor)
{
    for (int i = 0; i < n; i += VL) {
        vf x = vmax(row * load_n(v, i, n), vset(floor));
        store_n(u, i, n, load_n(u, i, n) / vsqrt(x));
    }
}

static void applied(float *w, const float *u, int n, float keep, float size)
{
    for (int i = 0; i < n; i += VL)
        store_n(w, i, n, load_n(w, i, n) * keep + load_n(u, i, n) * size);
}

static void squares_added(const float *g, double *restrict sum, int n)
{
    for (int i = 0; i < n; i++)
        sum[i] += (double)g[i] * (double)g[i];
}

extern const struct lanes_optim KERNEL(lanes_optim);
const struct lanes_optim KERNEL(lanes_optim) = {
    .run = run,
    .unpack = unpack,
    .pack = pack,
    .scaled = scaled,
    .factored = factored,
    .applied = applied,
    .squares_added = squares_added};
