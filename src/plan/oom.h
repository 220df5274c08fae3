/* oom.h - NodeOOMError: what to do about a run that does not fit, cheapest first.
 *
 * TEXT (requirement O1). "Node TYPE (id) ran out of memory on DEVICE."; "What to try, cheapest
 * first:", one change a line, each with the peak that the planner computes for the changed graph
 * and whether that fits; on a card "CUDA memory on cuda:0: ..." in GiB; "Original error: ...".
 * Changes that are in force already, or that lower nothing here, are not offered. The order is the
 * founding system's: batch size, precision, accumulation, checkpointing, the optimizer's state,
 * adapters, a smaller model.
 *
 * Nothing is ever applied, and no run is tried again (O3).
 */
#ifndef PLAN_OOM_H
#define PLAN_OOM_H

#include "base/json.h"
#include "plan/fit.h"

/* Makes the ST_OOM of `r` in `e` a NodeOOMError: text, detail, hint, type. `o` names the graph and
 * what the user set, as for fit_search; budget and allow are not looked at. Returns the document: a
 * new reference, NULL where `r` did not run out of memory (e stays as it is):
 * {node_id, node_type, device, before_start, storage, need_bytes, room_bytes, budget_bytes,
 *  memory: {live_bytes, reserved_bytes, peak_bytes, capacity_bytes, free_bytes, context_bytes},
 *  advice: [{change, lever, settings, set: [..] or null, numbers, peak_bytes, sufficient or null}],
 *  original} */
json_t *oom_explain(const struct fit_options *o, const struct run *r, struct err *e);

#endif
