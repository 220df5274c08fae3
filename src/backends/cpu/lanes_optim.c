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

VEC_FN void adam(const struct optim_step *s, struct place *p)
{
    p->s0 = lerp_up(p->s0, p->g, s->beta1, s->one_beta1);
    p->s1 = square_up(p->s1, p->g, s->beta2, s->one_beta2);
    vf second = p->s1;
    if (s->amsgrad)
        second = p->s2 = larger(p->s2, p->s1);
    vf denom = vsqrt(second) / s->denom + s->eps;
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
    for (int i = 0; i < n; i += VL) {
        struct place p = {
            load_n(b->w, i, n), load_n(b->s[0], i, n), load_n(b->s[1], i, n), load_n(b->s[2], i, n),
            load_n(b->g, i, n)};
        step_of(kind, s, &p);
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

static void unpack(
    const struct quant_dynamic *m, const uint8_t *restrict code, float absmax, float *restrict x,
    int n)
{
    for (int i = 0; i < n; i++)
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
    return quant_dynamic_codes(m, x, n, absmax, code);
}

extern const struct lanes_optim KERNEL(lanes_optim);
const struct lanes_optim KERNEL(lanes_optim) = {.run = run, .unpack = unpack, .pack = pack};
