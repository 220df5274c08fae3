/* lanes_loss.c - elementwise losses and their gradients, on blocks.
 *
 * Formulas: torch.nn.functional's documentation. z is x - target. BCE clamps logarithms at -100.
 */
#include "backends/cpu/lanes.h"
#include "backends/cpu/vec.h"

struct operands {
    vf x, t, w, pw;
};

/* ln(1 + y), y in [0, 1]: the logarithm of the rounded sum, and what rounding lost. */
VEC_FN vf log1p_of(vf y)
{
    vf u = 1.0f + y;
    return vlog(u) + (y - (u - 1.0f)) / u;
}

VEC_FN vf bce(struct operands o)
{
    vf low = vset(-100.0f);
    vf yes = vmax(low, vlog(o.x)), no = vmax(low, vlog(1.0f - o.x)); /* NaN passes */
    return (o.t - 1.0f) * no - o.t * yes;
}
/* (1 - t) x + ((pw - 1) t + 1) ln(1 + e^-x), without overflow. */
VEC_FN vf bce_logits(struct operands o)
{
    vf softplus = log1p_of(vexp(-vabs(o.x))) + vmax(vset(0), -o.x);
    return (1.0f - o.t) * o.x + ((o.pw - 1.0f) * o.t + 1.0f) * softplus;
}
VEC_FN vf bce_logits_slope(struct operands o)
{
    vf s = 1.0f / (1.0f + vexp(-o.x)), t = o.pw * o.t;
    return (t + 1.0f - o.t) * s - t;
}
VEC_FN vf smooth_l1(vf z, float beta)
{
    vf a = vabs(z);
    return vsel(a < vset(beta), 0.5f * z * z / beta, a - 0.5f * beta);
}
VEC_FN vf sign_or_nan(vf z)
{
    return vsel(z > vset(0), vset(1), vsel(z < vset(0), vset(-1), z * 0.0f));
}
VEC_FN vf smooth_l1_slope(vf z, float beta)
{
    return vsel(vabs(z) >= vset(beta), sign_or_nan(z), z / beta);
}
VEC_FN vf huber(vf z, float delta)
{
    vf a = vabs(z);
    return vsel(a <= vset(delta), 0.5f * z * z, delta * (a - 0.5f * delta));
}
VEC_FN vf kldiv(struct operands o)
{
    return vsel(o.t > vset(0), o.t * (vlog(o.t) - o.x), vset(0));
}

VEC_FN vf value_of(enum loss_kind kind, const struct loss_attr *a, struct operands o)
{
    vf z = o.x - o.t;
    float beta = (float)a->beta;
    switch (kind) {
    case LOSS_MSE:
        return z * z;
    case LOSS_L1:
        return vabs(z);
    case LOSS_SMOOTH_L1:
        return smooth_l1(z, beta);
    case LOSS_HUBER:
        return huber(z, beta);
    case LOSS_BCE:
        return bce(o);
    case LOSS_BCE_LOGITS:
        return bce_logits(o);
    case LOSS_KLDIV:
        return a->log_target ? vexp(o.t) * (o.t - o.x) : kldiv(o);
    }
    return z;
}

VEC_FN vf slope_of(enum loss_kind kind, const struct loss_attr *a, struct operands o)
{
    vf z = o.x - o.t;
    float beta = (float)a->beta;
    switch (kind) {
    case LOSS_MSE:
        return 2.0f * z;
    case LOSS_L1:
        return sign_or_nan(z);
    case LOSS_SMOOTH_L1:
        return smooth_l1_slope(z, beta);
    case LOSS_HUBER:
        return vmin(vset(beta), vmax(vset(-beta), z));
    case LOSS_BCE:
        return z / vmax((1.0f - o.x) * o.x, vset(1e-12f));
    case LOSS_BCE_LOGITS:
        return bce_logits_slope(o);
    case LOSS_KLDIV:
        return a->log_target ? -vexp(o.t) : vsel(o.t > vset(0), -o.t, vset(0));
    }
    return z;
}

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

VEC_FN void
run(enum loss_kind kind, bool slope, const struct loss_attr *a, const struct loss_block *b, int n)
{
    for (int i = 0; i < n; i += VL) {
        struct operands o = {
            load_n(b->x, i, n), load_n(b->target, i, n),
            b->weight ? load_n(b->weight, i, n) : vset(1),
            b->pos_weight ? load_n(b->pos_weight, i, n) : vset(1)};
        vf y = slope ? slope_of(kind, a, o) * load_n(b->d, i, n) : value_of(kind, a, o);
        store_n(b->y, i, n, b->weight ? y * o.w : y);
    }
}

/* One loop for each kind, so that the choice is outside of it. */
#define KINDS(slope)                                                                               \
    switch (a->kind) {                                                                             \
    case LOSS_MSE:                                                                                 \
        run(LOSS_MSE, slope, a, b, n);                                                             \
        break;                                                                                     \
    case LOSS_L1:                                                                                  \
        run(LOSS_L1, slope, a, b, n);                                                              \
        break;                                                                                     \
    case LOSS_SMOOTH_L1:                                                                           \
        run(LOSS_SMOOTH_L1, slope, a, b, n);                                                       \
        break;                                                                                     \
    case LOSS_HUBER:                                                                               \
        run(LOSS_HUBER, slope, a, b, n);                                                           \
        break;                                                                                     \
    case LOSS_BCE:                                                                                 \
        run(LOSS_BCE, slope, a, b, n);                                                             \
        break;                                                                                     \
    case LOSS_BCE_LOGITS:                                                                          \
        run(LOSS_BCE_LOGITS, slope, a, b, n);                                                      \
        break;                                                                                     \
    case LOSS_KLDIV:                                                                               \
        run(LOSS_KLDIV, slope, a, b, n);                                                           \
        break;                                                                                     \
    }

static void value(const struct loss_attr *a, const struct loss_block *b, int n)
{
    KINDS(false)
}

static void grad(const struct loss_attr *a, const struct loss_block *b, int n)
{
    KINDS(true)
}

extern const struct lanes_loss KERNEL(lanes_loss);
const struct lanes_loss KERNEL(lanes_loss) = {.value = value, .grad = grad};
