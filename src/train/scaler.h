/* scaler.h - the dynamic gradient scaler (requirements P7, P8, P10), torch.cuda.amp.GradScaler's
 * rule.
 *
 * The loss is multiplied by `scale`; after the last micro-batch of a window gradients are unscaled
 * and checked once. Inf or NaN: the update is skipped whole and the scale halves. After
 * growth_interval good updates in a row it doubles.
 */
#ifndef TRAIN_SCALER_H
#define TRAIN_SCALER_H

#include "base/err.h"
#include "base/json.h"

struct scaler {
    double scale, growth_factor, backoff_factor;
    int64_t growth_interval, growth_tracker;
    bool enabled, fixed,
        unscaled;          /* fixed: scale never changes; unscaled: in this window already */
    int64_t skipped;       /* updates skipped in all */
    int64_t recent_skips;  /* since the last health report */
    double reported_scale; /* at the last health report */
};
struct scaler scaler_off(void); /* scale 1 */
struct scaler scaler_new(double initial, bool fixed, int64_t growth_interval);
/* Marks the gradients of this window as unscaled; twice is an error. */
enum status scaler_unscale(struct scaler *s, struct err *e) NODISCARD;
/* Ends a window; returns true when the update was skipped. */
bool scaler_update(struct scaler *s, bool found_inf);
/* {scale, growth_factor, backoff_factor, growth_interval, _growth_tracker}; new reference. */
json_t *scaler_state(const struct scaler *s);
enum status scaler_restore(struct scaler *s, const json_t *state, struct err *e) NODISCARD;
/* P10: one sentence about the scale since the last report, into buf; NULL when there is nothing to
 * say. *bad: likely exploding gradient. */
const char *scaler_health(struct scaler *s, bool *bad, char *buf, size_t cap);

#endif
