/* optim_adafactor.h - Adafactor, whose state is not elementwise; called by the kernel of OPTIMIZER.
 */
#ifndef BACKENDS_CPU_OPTIM_ADAFACTOR_H
#define BACKENDS_CPU_OPTIM_ADAFACTOR_H

#include "backends/backend.h"

int64_t optim_adafactor_workspace(const struct kernel_args *a);
enum status optim_adafactor_run(const struct kernel_args *a, struct err *e) NODISCARD;

#endif
