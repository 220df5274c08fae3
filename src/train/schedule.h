/* schedule.h - learning-rate schedules: PyTorch's lr_scheduler classes and the warm-up family.
 *
 * A schedule is a value that is stepped per epoch or per update (`scheduler_step`); the rate it
 * gives is the one the next update uses. Numbers are those of torch.optim.lr_scheduler 1.13,
 * stepped the same number of times.
 */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H

#include "base/err.h"
#include "base/json.h"
#include "train/spec.h"

struct schedule;

/* params: the LRScheduler node's, defaults filled in. The optimizer gives base rate and momentum. */
enum status schedule_new(const json_t *params, const struct optim_spec *optim, struct schedule **out,
                         struct err *e) NODISCARD;
void schedule_free(struct schedule *s);
const char *schedule_class(const struct schedule *s); /* "CosineAnnealingLR", for checkpoints */
bool schedule_is_plateau(const struct schedule *s);
double schedule_lr(const struct schedule *s);
/* What the schedule sets beside the rate (OneCycleLR cycles momentum or beta1); false: nothing. */
bool schedule_momentum(const struct schedule *s, double *momentum);
/* One step. metric: for plateau (validation loss, else training loss); NaN: absent, ignored. */
enum status schedule_step(struct schedule *s, double metric, struct err *e) NODISCARD;
/* n steps at once, for a start without saved state; false when it cannot (plateau). */
bool schedule_fast_forward(struct schedule *s, int64_t n);
/* PyTorch's state_dict keys as a JSON object (a new reference), and back. Loading keeps the
 * horizon that was saved; when the node's parameters differ, *differs names them (static text or NULL). */
json_t *schedule_state(const struct schedule *s);
enum status schedule_restore(struct schedule *s, const json_t *state, const char **differs,
                             struct err *e) NODISCARD;

#endif
