/* graph_estimate.h - the three figures for a graph, each under its name and never mixed
 * (requirement E7):
 *
 *   plan    exact, of this engine (runner/run.h)
 *   static  the founding system's estimate (E1), what a budget field offers: parameters at 4 bytes;
 * for training gradient and optimizer state of each trainable one; under autocast 2 bytes a weight
 * for its cast; activations of one training step at the graph's batch, or of an evaluation at its
 * own, whichever is larger; 20% on the sum; then 128 MiB for libraries torch   what PyTorch would
 * need, on the CPU and on a card (torch_style.h)
 *
 * E3: a graph that cannot be estimated whole gives a rough static estimate with the reason; its
 * "bytes" is null.
 */
#ifndef PLAN_GRAPH_ESTIMATE_H
#define PLAN_GRAPH_ESTIMATE_H

#include "base/str.h"
#include "runner/run.h"

/* New reference: parameters, plan, static, torch. */
enum status
graph_estimate(struct graph *g, const struct run_options *o, json_t **out, struct err *e) NODISCARD;
void graph_estimate_text(const json_t *estimate, struct str *out);

#endif
