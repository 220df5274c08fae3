/* optim.c - one optimizer step of one parameter, in one pass over its memory.
 *
 * Operands: param, states, gradient, hyper (f64[2]: rate, number t of this update from 1 on), ctl
 * (f32[4], see GRAD_CHECK); param and states are updated in place. Nothing changes when ctl[2] is
 * not 0. Formulas and order of operations: torch/optim of PyTorch 1.13, single-tensor functions.
 *
 * 8-bit states, masters, rounding by chance: ir/optim_state.h. A block of 8-bit state is read,
 * updated and written in one go, so nothing is ever held in float32 but that block; blocks never
 * cross pieces, so threads do not change the bits.
 *
 * States, in order, and what the host must set before the first step (0 where nothing is said):
 *   SGD      momentum_buffer                     if momentum != 0; its first value is the gradient
 *   ADAM(W)  exp_avg, exp_avg_sq, max_exp_avg_sq the last with amsgrad
 *   RMSPROP  square_avg, momentum_buffer, grad_avg   if momentum > 0; if centered
 *   ADAGRAD  sum                                 initial_accumulator_value
 *   RADAM    exp_avg, exp_avg_sq
 *   NADAM    exp_avg, exp_avg_sq, mu_product     float32 scalar, 1
 *   RPROP    prev, step_size                     step_size: the rate
 *   ASGD     ax, eta, mu                         float32 scalars: the rate, 1
 */
#include "backends/backend.h"
#include "backends/cpu/lanes.h"
#include "backends/cpu/nd.h"
#include "backends/cpu/optim_adafactor.h"
#include "backends/cpu/optim_weights.h"
#include "ir/optim_state.h"

#include <math.h>
#include <string.h>

enum { STATES = 3 };

struct job {
    struct optim_weights weights;
    struct nd s[STATES], g;
    int n_states; /* with the parameter's shape */
    int64_t count;
    struct optim_step step;
    /* States in 8 bits; map NULL: float32. */
    const struct quant_dynamic *map[STATES];
    uint8_t *codes[STATES];
    float *absmax[STATES];
};

/* Constants that every optimizer shares. */
static void common(const struct optim_attr *o, const float *ctl, double t, struct optim_step *s)
{
    *s = (struct optim_step){
        .kind = o->kind,
        .inverse_scale = ctl[0],
        .clip = ctl[1],
        .decay = (float)o->weight_decay,
        .decays = o->weight_decay != 0,
        .shrink = 1,
        .beta1 = (float)o->beta1,
        .one_beta1 = (float)(1 - o->beta1),
        .beta2 = (float)o->beta2,
        .one_beta2 = (float)(1 - o->beta2),
        .eps = (float)o->eps,
        .momentum = (float)o->momentum,
        .one_dampening = (float)(1 - o->dampening),
        .eta_minus = (float)o->eta_minus,
        .eta_plus = (float)o->eta_plus,
        .step_min = (float)o->step_min,
        .step_max = (float)o->step_max,
        .maximize = o->maximize,
        .nesterov = o->nesterov,
        .amsgrad = o->amsgrad,
        .centered = o->centered,
        .first = t == 1};
}

static void adam(const struct optim_attr *o, double lr, double t, struct optim_step *s)
{
    s->size = (float)-(lr / (1 - pow(o->beta1, t)));
    s->denom = (float)sqrt(1 - pow(o->beta2, t));
    if (o->kind == OPTIM_ADAMW)
        s->shrink = (float)(1 - lr * o->weight_decay);
    s->decays = s->decays && o->kind == OPTIM_ADAM;
}

static void rmsprop(const struct optim_attr *o, double lr, struct optim_step *s)
{
    s->beta2 = (float)o->alpha;
    s->one_beta2 = (float)(1 - o->alpha);
    s->size = (float)-lr;
}

static void radam(const struct optim_attr *o, double lr, double t, struct optim_step *s)
{
    double power = pow(o->beta2, t), correction2 = 1 - power;
    double longest = 2 / (1 - o->beta2) - 1, length = longest - 2 * t * power / correction2;
    s->correction1 = (float)(1 - pow(o->beta1, t));
    s->lr = (float)lr;
    s->rectified = length > 5;
    if (!s->rectified)
        return;
    s->rect = (float)sqrt(
        (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length));
    s->adaptive = (float)sqrt(correction2);
}

/* Also moves mu_product on, in float32 as PyTorch's scalar tensor. */
static void
nadam(const struct optim_attr *o, double lr, double t, float *mu_product, struct optim_step *s)
{
    double mu = o->beta1 * (1 - 0.5 * pow(0.96, t * o->momentum_decay));
    double mu_next = o->beta1 * (1 - 0.5 * pow(0.96, (t + 1) * o->momentum_decay));
    *mu_product *= (float)mu;
    float next = *mu_product * (float)mu * (float)mu_next;
    s->denom = (float)(1 - pow(o->beta2, t));
    s->size = (float)(-lr * (1 - mu) / (1 - (double)*mu_product));
    s->size_avg = (float)(-lr * mu_next / (1 - (double)next));
}

/* Uses eta and mu, then sets those of the next step. */
static void
asgd(const struct optim_attr *o, double lr, double t, float *eta, float *mu, struct optim_step *s)
{
    s->shrink = (float)(1 - o->lambd * (double)*eta);
    s->size = -*eta;
    s->mu = *mu;
    *eta = (float)(lr / pow(1 + o->lambd * lr * t, o->alpha));
    *mu = (float)(1 / fmax(1, t - o->t0));
}

static void step_of(const struct kernel_args *a, const struct optim_attr *fixed, struct job *j)
{
    const double *hyper = a->in[a->n_in - 2].data;
    double lr = hyper[0], t = hyper[1];
    struct optim_attr now = *fixed, *o = &now;
    if (tensor_count(&a->in[a->n_in - 2]) > 2 && !isnan(hyper[2]))
        now.momentum = now.beta1 = hyper[2];
    struct optim_step *s = &j->step;
    common(o, a->in[a->n_in - 1].data, t, s);
    switch (o->kind) {
    case OPTIM_SGD:
        s->size = (float)-lr;
        break;
    case OPTIM_ADAM:
    case OPTIM_ADAMW:
        adam(o, lr, t, s);
        break;
    case OPTIM_RMSPROP:
        rmsprop(o, lr, s);
        break;
    case OPTIM_ADAGRAD:
        s->size = (float)-(lr / (1 + (t - 1) * o->lr_decay));
        break;
    case OPTIM_RADAM:
        radam(o, lr, t, s);
        break;
    case OPTIM_NADAM:
        nadam(o, lr, t, a->in[3 + o->master].data, s);
        break;
    case OPTIM_RPROP:
        s->decays = false;
        break;
    case OPTIM_ASGD:
        asgd(o, lr, t, a->in[2 + o->master].data, a->in[3 + o->master].data, s);
        break;
    case OPTIM_ADAFACTOR:
    case OPTIM_COUNT:
        break;
    }
}

static void read_states(const struct job *j, int64_t i, int n, float *const buf[STATES], float **s)
{
    for (int k = 0; k < j->n_states; k++) {
        s[k] = j->map[k] ? buf[k] : nd_target(&j->s[k], i, buf[k]);
        if (!j->map[k])
            (void)nd_read(&j->s[k], i, n, s[k]);
        for (int at = 0; j->map[k] && at < n; at += QUANT_STATE_BLOCK) {
            int part = n - at < QUANT_STATE_BLOCK ? n - at : QUANT_STATE_BLOCK;
            lanes_optim()->unpack(
                j->map[k], j->codes[k] + i + at, j->absmax[k][(i + at) / QUANT_STATE_BLOCK],
                s[k] + at, part);
        }
    }
}

static void write_states(const struct job *j, int64_t i, int n, float *const *s)
{
    for (int k = 0; k < j->n_states; k++) {
        if (!j->map[k])
            nd_write(&j->s[k], i, n, s[k]);
        for (int at = 0; j->map[k] && at < n; at += QUANT_STATE_BLOCK) {
            int part = n - at < QUANT_STATE_BLOCK ? n - at : QUANT_STATE_BLOCK;
            j->absmax[k][(i + at) / QUANT_STATE_BLOCK] =
                lanes_optim()->pack(j->map[k], s[k] + at, j->codes[k] + i + at, part);
        }
    }
}

static void piece(const struct job *j, int64_t i, int64_t end)
{
    float buf[STATES + 2][ND_BLOCK];
    float *const state_buf[STATES] = {buf[1], buf[2], buf[3]};
    for (; i < end; i += ND_BLOCK) {
        int n = end - i < ND_BLOCK ? (int)(end - i) : ND_BLOCK;
        /* Read into buf unless flat float32: then the block is the memory itself. */
        struct optim_block b = {.w = optim_weights_read(&j->weights, i, n, buf[0])};
        read_states(j, i, n, state_buf, b.s);
        b.g = nd_read(&j->g, i, n, buf[STATES + 1]);
        lanes_optim()->run(&j->step, &b, n);
        write_states(j, i, n, b.s);
        optim_weights_write(&j->weights, i, n, b.w);
    }
}

/* All operands in the order of the parameter's memory. */
static enum status operands(const struct kernel_args *a, struct job *j, struct err *e)
{
    const struct optim_attr *o = &a->attr->optim;
    const struct tensor *t[STATES + 3] = {&a->in[0], &a->in[a->n_in - 3]};
    struct nd v[STATES + 3];
    int n = 2;
    if (o->master)
        t[n++] = &a->in[1];
    for (int k = 0; k < j->n_states; k++) {
        const struct tensor *s = &a->in[1 + o->master + k];
        if (!o->int8) {
            t[n++] = s;
            continue;
        }
        j->map[k] = quant_dynamic(optim_state_signed(o, k));
        j->codes[k] = s->data;
        j->absmax[k] = a->in[1 + o->master + j->n_states + k].data;
    }
    nd_align(v, t, n, &a->in[0].shape);
    /* Blocks and random numbers go by the element's place in memory. */
    if ((o->int8 || o->stochastic) && !nd_flat(&v[0]))
        return err_set(e, ST_INTERNAL, "optimizer: the parameter is not dense");
    optim_weights_init(a, &j->weights);
    j->weights.w = v[0];
    j->g = v[1];
    if (o->master)
        j->weights.master = v[2];
    for (int k = 0; k < j->n_states && !o->int8; k++)
        j->s[k] = v[2 + o->master + k];
    return ST_OK;
}

static enum status run(const struct kernel_args *a, struct err *e)
{
    const struct optim_attr *o = &a->attr->optim;
    if (o->kind == OPTIM_ADAFACTOR)
        return optim_adafactor_run(a, e);
    struct job j = {.n_states = optim_state_full(o), .count = tensor_count(&a->in[0])};
    if (a->n_in != 4 + optim_state_count(o) || j.n_states > STATES)
        return err_set(
            e, ST_INTERNAL, "optimizer: %d operands, not %d", a->n_in, 4 + optim_state_count(o));
    if (((const float *)a->in[a->n_in - 1].data)[2] != 0)
        return ST_OK;
    TRY(operands(a, &j, e));
    step_of(a, o, &j);
    int64_t pieces = (j.count + ND_PIECE - 1) / ND_PIECE;
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (int64_t p = 0; p < pieces; p++)
        piece(&j, p * ND_PIECE, (p + 1) * ND_PIECE < j.count ? (p + 1) * ND_PIECE : j.count);
    return ST_OK;
}

static enum status prepare(const struct kernel_args *a, int64_t *bytes, void **state, struct err *e)
{
    (void)e;
    (void)state;
    *bytes = a->attr->optim.kind == OPTIM_ADAFACTOR ? optim_adafactor_workspace(a) : 0;
    return ST_OK;
}

extern const struct kernel kernel_optimizer;
const struct kernel kernel_optimizer = {.prepare = prepare, .run = run, .name = "optimizer"};
