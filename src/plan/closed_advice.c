/* closed_advice.c - the rescue order of requirement T8 as changes of a run. What T8 does not know
 * and costs no time (scores in parts, attention that never stores them) stands before
 * checkpointing. */
#include "plan/closed_advice.h"

#include <stdio.h>

/* Changes the run; false where it is so already or cannot be. */
typedef bool change(const struct closed_model *m, struct closed_run *r);

static bool smaller_batch(const struct closed_model *m, struct closed_run *r)
{
    (void)m;
    bool changes = r->batch > 1;
    r->batch = 1;
    return changes;
}

static bool flash(const struct closed_model *m, struct closed_run *r)
{
    (void)m;
    bool changes = r->attention == CLOSED_PLAIN;
    r->attention = CLOSED_FLASH;
    return changes;
}

static bool chunked(const struct closed_model *m, struct closed_run *r)
{
    bool changes = m->head == CLOSED_HEAD_LM && r->loss != CLOSED_LOSS_CHUNKED && !r->inference;
    r->loss = CLOSED_LOSS_CHUNKED;
    r->holds_logits = 0;
    return changes;
}

static bool checkpointing(const struct closed_model *m, struct closed_run *r)
{
    (void)m;
    bool changes = r->checkpointing != CLOSED_BLOCKS && !r->inference;
    r->checkpointing = CLOSED_BLOCKS;
    return changes;
}

static bool share(const struct closed_model *m, struct closed_run *r)
{
    (void)m;
    bool changes = r->cards > 1 && r->zero < 3;
    r->zero = 3;
    return changes;
}

static bool to_host(const struct closed_model *m, struct closed_run *r)
{
    (void)m;
    bool changes = !r->offload_optimizer && !r->inference;
    r->offload_optimizer = true;
    return changes;
}

static bool small_state(const struct closed_model *m, struct closed_run *r)
{
    (void)m;
    enum { ADAMW, ADAM, ADAMW8BIT = 4 };
    bool changes = r->optimizer <= ADAM && !r->inference && !r->offload_optimizer;
    r->optimizer = ADAMW8BIT;
    return changes;
}

static bool lora(const struct closed_model *m, struct closed_run *r)
{
    (void)m;
    bool changes = r->method == CLOSED_FULL && !r->inference;
    r->method = CLOSED_LORA;
    return changes;
}

static bool qlora(const struct closed_model *m, struct closed_run *r)
{
    (void)m;
    bool changes = r->method != CLOSED_QLORA && !r->inference;
    r->method = CLOSED_QLORA;
    return changes;
}

static bool half(const struct closed_model *m, struct closed_run *r)
{
    (void)m;
    bool changes = r->precision != CLOSED_BF16;
    r->precision = CLOSED_BF16;
    return changes;
}

static bool shorter(const struct closed_model *m, struct closed_run *r)
{
    (void)m;
    bool changes = r->seq >= 512;
    r->seq /= 2;
    return changes;
}

static const struct {
    change *apply;
    const char *option, *about;
} levers[] = {
    {smaller_batch, "--batch 1", "accumulate micro-batches to keep the effective batch"},
    {flash, "--attention flash", "scores of attention are never stored; no slower"},
    {chunked, "--loss chunked", "scores of the vocabulary never exist whole; no slower"},
    {checkpointing, "--checkpointing blocks",
     "activations again in the backward pass; 20 to 30% slower"},
    {share, "--zero 3", "the cards share weights, gradients and state; more transfer"},
    {small_state, "--optimizer adamw8bit", "optimizer's state in 8 bits; other rounding"},
    {to_host, "--offload optimizer", "optimizer's state in the host's memory; slower steps"},
    {lora, "--method lora", "only adapters are trained; other results"},
    {qlora, "--method qlora", "and the base is kept in 4 bits; slower, other results"},
    {half, "--precision bf16", "everything in bfloat16; other results"},
    {shorter, "half of --seq", "shorter sequences; other data"},
};

static enum status
need_of(const struct closed_model *m, const struct closed_run *r, int64_t *out, struct err *e)
{
    struct closed_estimate x;
    TRY(closed_estimate_make(m, r, &x, e));
    *out = x.card_bytes;
    return ST_OK;
}

/* The largest batch below the asked one that the limit holds; 1 where none does. */
static enum status fitting_batch(
    const struct closed_model *m, const struct closed_run *r, int64_t limit_bytes, int64_t *out,
    struct err *e)
{
    int64_t high = r->batch;
    struct closed_run x = *r;
    *out = 1;
    while (limit_bytes > 0 && high - *out > 1) {
        int64_t bytes;
        x.batch = *out + (high - *out) / 2;
        TRY(need_of(m, &x, &bytes, e));
        *(bytes <= limit_bytes ? out : &high) = x.batch;
    }
    return ST_OK;
}

enum status closed_advise(
    const struct closed_model *m, const struct closed_run *r, int64_t limit_bytes,
    struct closed_lever out[CLOSED_LEVERS_MAX], int *n, struct err *e)
{
    struct closed_run so_far = *r;
    int64_t first, now;
    *n = 0;
    TRY(need_of(m, r, &first, e));
    now = first;
    for (size_t i = 0; i < sizeof levers / sizeof *levers && now > limit_bytes; i++) {
        struct closed_run alone = *r, with = so_far;
        struct closed_lever x = {.about = levers[i].about};
        (void)snprintf(x.option, sizeof x.option, "%s", levers[i].option);
        if (!levers[i].apply(m, &with))
            continue;
        if (levers[i].apply == smaller_batch) {
            TRY(fitting_batch(m, r, limit_bytes, &with.batch, e));
            (void)snprintf(x.option, sizeof x.option, "--batch %lld", (long long)with.batch);
        }
        struct err too_large = {0};
        if (closed_run_check(m, &with, &too_large) != ST_OK)
            continue;
        TRY(need_of(m, &with, &x.bytes, e));
        bool fits = x.bytes <= limit_bytes;
        if (x.bytes >= now || (!fits && x.bytes > now - now / 100))
            continue;
        (void)levers[i].apply(m, &alone);
        if (levers[i].apply == smaller_batch)
            alone.batch = with.batch;
        TRY(need_of(m, &alone, &x.alone_bytes, e));
        out[(*n)++] = x;
        so_far = with;
        now = x.bytes;
    }
    return ST_OK;
}
