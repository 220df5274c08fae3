/* optim_form.h - how weights and optimizer state are stored: from levers to the optimizer's
 * attributes (ir/optim_state.h), and what cannot be. */
#ifndef TRAIN_OPTIM_FORM_H
#define TRAIN_OPTIM_FORM_H

#include "base/err.h"
#include "ir/attr.h"
#include "train/levers.h"
#include "train/precision.h"

/* Errors name the lever and what it cannot be combined with. */
enum status optim_form(
    const struct levers *l, enum precision precision, struct optim_attr *a,
    struct err *e) NODISCARD;

#endif
