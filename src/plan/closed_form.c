/* closed_form.c - the tables of the closed form, the founding formula, and counts of cards. */
#include "plan/closed_form.h"

#include <math.h>
#include <string.h>

static const struct closed_precision_row precisions[] = {
#define PRECISION(id, name, w, g, master, moment, compute, cast, about)                            \
    {name, w, g, master, moment, compute, cast, about},
#include "plan/precisions.def"
#undef PRECISION
};
static const struct closed_optim_row optims[] = {
#define OPTIM(id, name, states, bytes, copies, largest, about)                                     \
    {name, states, bytes, copies, largest, about},
#include "plan/optims.def"
#undef OPTIM
};
static const struct closed_framework_row frameworks[] = {
#define FRAMEWORK(id, name, loss, holds, fused, step, adapter, habits, precision, targets, p, a)   \
    {name,                                                                                         \
     CLOSED_LOSS_##loss,                                                                           \
     holds,                                                                                        \
     fused,                                                                                        \
     CLOSED_STEP_##step,                                                                           \
     adapter,                                                                                      \
     habits,                                                                                       \
     CLOSED_##precision,                                                                           \
     targets,                                                                                      \
     p,                                                                                            \
     a},
#include "plan/frameworks.def"
#undef FRAMEWORK
};
static const struct closed_card cards[] = {
#define CARD(name, gb, mib, sm) {name, (int64_t)gb * 1000000000, (int64_t)mib << 20, sm},
#include "plan/cards.def"
#undef CARD
};
#define AT(table, i) (i >= 0 && (size_t)i < sizeof table / sizeof *table ? &table[i] : NULL)

const struct closed_precision_row *closed_precision_at(int i)
{
    return AT(precisions, i);
}

const struct closed_optim_row *closed_optim_at(int i)
{
    return AT(optims, i);
}

const struct closed_framework_row *closed_framework_at(int i)
{
    return AT(frameworks, i);
}

const struct closed_card *closed_card_at(int i)
{
    return AT(cards, i);
}

/* The context of a current card and driver with cuBLAS loaded: 0.5 to 0.6 GiB are usual. */
enum { CONTEXT_MIB = 560 };

void closed_run_defaults(struct closed_run *r)
{
    *r = (struct closed_run){
        .batch = 1,
        .seq = 2048,
        .rank = 8,
        .quant_bits = 4.127,
        .cards = 1,
        .sm = 80,
        .context_bytes = (int64_t)CONTEXT_MIB << 20,
    };
    closed_run_framework(r, 0);
}

void closed_run_framework(struct closed_run *r, int framework)
{
    const struct closed_framework_row *f = &frameworks[framework];
    r->framework = framework;
    r->loss = f->loss;
    r->holds_logits = f->holds_logits;
    r->fused_norm = r->fused_mlp = f->fused_layers;
    r->step = f->step;
    r->adapter_bytes = f->adapter_bytes;
    r->habits = f->habits;
    r->precision = (int)f->precision;
    r->targets = f->targets;
    r->lora_dropout = f->lora_dropout;
}

/* ---- the founding formula ---- */

struct closed_founding
closed_founding_make(const struct closed_model *m, const struct closed_run *r)
{
    struct closed_founding f = {0};
    const struct closed_precision_row *p = &precisions[r->precision];
    const struct closed_optim_row *o = &optims[r->optimizer];
    double tokens = (double)r->batch * (double)r->seq;
    double each = p->weight + p->gradient + p->master +
                  o->states * (o->bytes > 0 ? o->bytes : (double)p->moment);
    double layer =
        2 * (19 * tokens * (double)m->hidden + 3 * tokens * (double)m->heads * (double)r->seq);
    double inputs = 2 * tokens * (double)m->hidden * (double)m->layers;
    f.states_bytes = llround((double)closed_model_parameters(m) * each);
    f.layer_bytes = llround(layer);
    f.activations_bytes =
        llround(r->checkpointing == CLOSED_BLOCKS ? inputs + layer : layer * (double)m->layers);
    f.total_bytes = f.states_bytes + f.activations_bytes;
    return f;
}

/* ---- cards ---- */

static int64_t next_count(int64_t n)
{
    return n < 8 ? 2 * n : n + 8;
}

struct closed_cards closed_cards_for(int64_t total, int64_t card)
{
    struct closed_cards c = {.bare = (total + card - 1) / card, .minimum = 1};
    if (c.bare < 1)
        c.bare = 1;
    while (c.minimum < c.bare && c.minimum < 8)
        c.minimum = next_count(c.minimum);
    if (c.minimum < c.bare)
        c.minimum = (c.bare + 7) / 8 * 8;
    c.safer = c.minimum < 8 ? c.minimum + 1 : c.minimum + 8;
    c.minimum_free = 1 - (double)total / ((double)c.minimum * (double)card);
    c.safer_free = 1 - (double)total / ((double)c.safer * (double)card);
    c.tight = c.minimum_free < 0.1;
    return c;
}
