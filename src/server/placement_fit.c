/* placement_fit.c - whether a run fits a card or a set of cards, by slots and by memory. */
#include "server/placement_int.h"

int64_t card_cost(const struct place *p, const struct card *c, int64_t budget_bytes)
{
    return c->cuda ? bytes_add(budget_bytes, p->context_bytes) : budget_bytes;
}

int64_t card_room(const struct card *c)
{
    /* Neither is negative, and a difference of such numbers cannot overflow; the second one can. */
    int64_t by_free = c->free_bytes - c->reserved_bytes;
    int64_t by_total = c->total_bytes - bytes_add(c->reserved_bytes, c->running_bytes);
    return by_free < by_total ? by_free : by_total;
}

enum fit worker_fit(const struct worker *w)
{
    if (w->disabled)
        return FIT_DISABLED;
    if (!w->connected)
        return FIT_OFFLINE;
    if (w->adopting)
        return FIT_ADOPTING;
    if (w->draining)
        return FIT_DRAINING;
    return w->spent ? FIT_SPENT : FIT_OK;
}

static enum fit card_ever(const struct place *p, const struct device *d, int64_t budget_bytes)
{
    const struct card *c = d->card;
    if (!c->shared)
        return FIT_OK;
    if (budget_bytes <= 0)
        return FIT_NO_BUDGET;
    if (!d->worker->can_cap && d->worker->connected)
        return FIT_CANNOT_CAP;
    if (c->total_bytes == 0)
        return c->cuda ? FIT_UNREPORTED : FIT_NO_TOTAL;
    return card_cost(p, c, budget_bytes) > c->total_bytes ? FIT_TOO_LARGE : FIT_OK;
}

enum fit candidate_ever(
    const struct place *p, const struct queue *q, const struct candidate *c, int64_t budget_bytes,
    const struct device **at)
{
    enum fit worst = FIT_OK;
    for (size_t i = 0; i < q->n; i++) {
        enum fit f = card_ever(p, c->devices[i], budget_bytes);
        if (f > worst) {
            worst = f;
            if (at)
                *at = c->devices[i];
        }
    }
    return worst;
}

/* How often the card of device i comes before it in the set: two of a worker's devices may be one
 * card. */
static int64_t times_before(const struct candidate *c, size_t i)
{
    int64_t n = 0;
    for (size_t j = 0; j < i; j++)
        n += c->devices[j]->card == c->devices[i]->card;
    return n;
}

static int64_t times(int64_t bytes, int64_t n)
{
    int64_t r;
    return __builtin_mul_overflow(bytes, n, &r) ? INT64_MAX : r;
}

static enum fit slot_fit(const struct card *c, int64_t before, int64_t run)
{
    if (bytes_add(c->used, before) >= c->limit)
        return FIT_SLOT;
    int64_t kept = c->kept_for.run == run ? 0 : c->kept;
    return bytes_add(c->used, before) >= c->limit - kept ? FIT_KEPT : FIT_OK;
}

static enum fit memory_fit(
    const struct place *p, const struct card *c, int64_t budget_bytes, int64_t before, int64_t run)
{
    if (c->claim.run && c->claim.run != run && c->closed)
        return FIT_CLOSED;
    if (c->limit > 0 && bytes_add(c->used, before) >= c->limit)
        return FIT_SLOT;
    if (c->alone.run)
        return FIT_ALONE;
    int64_t cost = times(card_cost(p, c, budget_bytes), before + 1), room = card_room(c);
    if (cost <= room)
        return FIT_OK;
    int64_t without_warm = room < 0 ? room + c->warm_bytes : bytes_add(room, c->warm_bytes);
    return !c->evicted && cost <= without_warm ? FIT_EVICT : FIT_MEMORY;
}

enum fit candidate_fit(
    const struct place *p, const struct queue *q, const struct candidate *c, int64_t budget_bytes,
    int64_t run, const struct device **at)
{
    enum fit found = worker_fit(c->worker);
    if (at)
        *at = c->devices[0];
    if (found != FIT_OK)
        return found;
    found = candidate_ever(p, q, c, budget_bytes, at);
    for (size_t i = 0; i < q->n && (found == FIT_OK || found == FIT_EVICT); i++) {
        const struct card *card = c->devices[i]->card;
        int64_t before = q->n > 1 ? times_before(c, i) : 0;
        enum fit f = card->shared ? memory_fit(p, card, budget_bytes, before, run)
                                  : slot_fit(card, before, run);
        if (f > found) {
            found = f;
            if (at)
                *at = c->devices[i];
        }
    }
    return found;
}

int64_t candidate_room(const struct queue *q, const struct candidate *c)
{
    int64_t least = INT64_MAX;
    for (size_t i = 0; i < q->n; i++) {
        const struct card *card = c->devices[i]->card;
        if (!card->shared)
            continue;
        int64_t room = card->alone.run ? -1 : card_room(card);
        least = room < least ? room : least;
    }
    return least;
}

const struct candidate *queue_best(
    const struct place *p, const struct queue *q, int64_t budget_bytes, int64_t run, enum fit *fit,
    const struct device **at)
{
    const struct candidate *best = NULL;
    int64_t room = 0;
    *fit = FIT_COUNT;
    for (size_t i = 0; i < q->n_candidates; i++) {
        const struct candidate *c = &q->candidates[i];
        const struct device *here;
        enum fit f = candidate_fit(p, q, c, budget_bytes, run, &here);
        int64_t r = f == FIT_MEMORY ? candidate_room(q, c) : 0;
        if (f > *fit || (best && f == *fit && !(f == FIT_MEMORY && r > room)))
            continue;
        best = c;
        *fit = f;
        *at = here;
        room = r;
        if (f == FIT_OK)
            break;
    }
    return best;
}
