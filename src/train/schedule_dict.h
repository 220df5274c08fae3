/* schedule_dict.h - a schedule's part of a checkpoint that JSON cannot say. */
#ifndef TRAIN_SCHEDULE_DICT_H
#define TRAIN_SCHEDULE_DICT_H

#include "nn/pickle_value.h"
#include "train/schedule.h"

/* Completes the dicts of a checkpoint before it is written.
 *   scheduler  schedule_state() as a tree: MultiStepLR's milestones become the Counter of PyTorch,
 *              with whole numbers as keys
 *   optimizer  optim_state_dict_make's: its group gets what PyTorch's schedulers keep there:
 *              initial_lr; for OneCycleLR also max_lr, min_lr, max_momentum, base_momentum, and the
 *              momentum or beta1 of this place of the cycle */
void schedule_complete_dicts(
    struct arena *m, const struct schedule *s, struct pt_value *scheduler,
    struct pt_value *optimizer);

#endif
