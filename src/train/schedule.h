/* schedule.h - learning-rate schedules: PyTorch's lr_scheduler classes and the warm-up family.
 *
 * A schedule is a value that is stepped per epoch or per update (`scheduler_step`); the rate it
 * gives is the one the next update uses. Numbers are those of torch.optim.lr_scheduler 1.13,
 * stepped the same number of times.
 *
 * The node's parameters (reference, section 9): ReduceLROnPlateau(factor = gamma),
 * CosineAnnealingWarmRestarts(T_0 = T_max), MultiStepLR(milestones = step_size times 1, 2, 3, 4).
 *
 * THE WARM-UP FAMILY. Index i counts steps from 0, W = warmup_steps, T = total_steps. For i < W the
 * rate is lr * i / W: it rises from zero, so the first step's rate is 0 and that of index W is lr.
 * From W on
 *   warmup_cosine         lr * (1 + cos(pi * (i - W) / max(1, T - W))) / 2
 *   warmup_linear         lr * (T - i) / max(1, T - W)
 *   constant_with_warmup  lr
 * and from T on the first two stay at 0. These are LambdaLR's numbers with those factors.
 *
 * ONECYCLELR cycles the momentum (SGD, RMSprop, also where it was 0) or beta1 (Adam, AdamW, RAdam,
 * NAdam) between 0.95 and 0.85, ignores the optimizer's rate, refuses the other optimizers, and
 * cannot be stepped more than total_steps times: all as in PyTorch.
 */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H

#include "base/err.h"
#include "base/json.h"
#include "train/spec.h"

struct schedule;

/* params: the LRScheduler node's, defaults filled in. The optimizer gives base rate and momentum.
 */
enum status schedule_new(
    const json_t *params, const struct optim_spec *optim, struct schedule **out,
    struct err *e) NODISCARD;
void schedule_free(struct schedule *s);
const char *schedule_class(const struct schedule *s); /* "CosineAnnealingLR", for checkpoints */
bool schedule_is_plateau(const struct schedule *s);
double schedule_lr(const struct schedule *s); /* of the next update: report this one */
/* What the schedule sets beside the rate (OneCycleLR cycles momentum or beta1); false: nothing.
 * momentum may be NULL. */
bool schedule_momentum(const struct schedule *s, double *momentum);
/* One step. metric: for plateau (validation loss, else training loss); NaN: absent, ignored. */
enum status schedule_step(struct schedule *s, double metric, struct err *e) NODISCARD;
/* Sets momentum or beta1 of the first update where the schedule cycles it, so that the programs
 * built from *optim keep the state for it. */
void schedule_prepare_optim(const struct schedule *s, struct optim_spec *optim);
/* Whether n more steps are possible (OneCycleLR ends); to be asked before a run. */
enum status schedule_check_steps(const struct schedule *s, int64_t n, struct err *e) NODISCARD;
/* n steps at once, for a start without saved state; false when it cannot (plateau). */
bool schedule_fast_forward(struct schedule *s, int64_t n);
/* PyTorch's state_dict keys as a JSON object (a new reference), and back. Loading keeps the
 * horizon that was saved; when the node's parameters differ, *differs names them (text that
 * lives as long as s, or NULL). */
json_t *schedule_state(const struct schedule *s);
enum status schedule_restore(
    struct schedule *s, const json_t *state, const char **differs, struct err *e) NODISCARD;

#endif
