/* verify.h - a short real run beside the estimates (requirement E6): batch 1, short sequences, two
 * updates, since the first one makes the optimizer's state. Only what a training loop needs is run:
 * nothing is saved, evaluated or generated, and the graph itself stays as it is. */
#ifndef PLAN_VERIFY_H
#define PLAN_VERIFY_H

#include "base/str.h"
#include "runner/run.h"

/* New reference: batch, updates, plan, static and PyTorch-style figures of the short run,
 * measured_bytes, the differences, and "go": whether the static estimate is within 10 GB of what
 * was measured. ST_UNSUPPORTED where the graph's top level has no TrainingLoop. */
enum status graph_verify(
    const struct graph *g, const struct run_options *o, json_t **out, struct err *e) NODISCARD;
void graph_verify_text(const json_t *verified, struct str *out);

#endif
