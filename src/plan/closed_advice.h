/* closed_advice.h - which changes would make a run fit, from the mildest on (requirement T8's
 * order), and where each leads. */
#ifndef PLAN_CLOSED_ADVICE_H
#define PLAN_CLOSED_ADVICE_H

#include "plan/closed_form.h"

/* One change, on top of those before it. */
struct closed_lever {
    char option[32];     /* what to type */
    const char *about;   /* what it does and costs */
    int64_t alone_bytes; /* a card with this change only, context included */
    int64_t bytes;       /* with those before it too */
};
enum { CLOSED_LEVERS_MAX = 12 };

/* The batch is lowered no further than needed. Fills `out` with the changes that lower the need of
 * a card, and ends with the first that brings it to `limit_bytes` (0: all of them). A change that
 * is in force already, or saves less than 1%, is left out: where the optimizer's step holds the
 * peak, a smaller batch is no advice. Returns the number through `n`. */
enum status closed_advise(
    const struct closed_model *m, const struct closed_run *r, int64_t limit_bytes,
    struct closed_lever out[CLOSED_LEVERS_MAX], int *n, struct err *e) NODISCARD;

#endif
