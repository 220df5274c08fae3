/* sweep_plan.h - the variants of a sweep: from a specification and a graph to an ordered list.
 *
 * Pure: the same input gives the same variants, on every machine. A specification is
 *
 *     {"method": "grid" | "random", "seed"?, "samples"? (random only, required there),
 *      "params": [{"node_id", "param", "values": [...] | "range": {"min", "max", "count",
 *                  "scale": "linear" | "log", "type": "int" | "float"}}]}
 *
 * ORDER  A combination is a number written in the parameters' domains as digits, the last parameter
 * the lowest. A grid takes all, counting up. Random takes `samples` different ones: for draw k of
 * mulberry32(seed), the place (draw mod (total - k)) of what is left; what was last there moves
 * into the gap. The order is that of the draws.
 *
 * REFUSED, ST_INVALID: what cannot be set (no such node or parameter, two nodes of one id, inside a
 * preset or subgraph, a secret), values of the wrong type or out of bounds, repeated or not finite,
 * more variants, parameters or values than the limits. ST_UNPROCESSABLE: not of this form at all,
 * unknown keys. Nothing is cut to fit.
 */
#ifndef SERVER_SWEEP_PLAN_H
#define SERVER_SWEEP_PLAN_H

#include "base/json.h"

#include <stddef.h>
#include <stdint.h>

struct sweep_limits {
    int64_t runs, params, domain; /* SNUG_MAX_SWEEP_RUNS, _PARAMS, _DOMAIN */
};

enum { SWEEP_PARAMS_MAX = 64 };
struct sweep_param {
    char *node_id, *param;
    json_t *domain; /* values as the node takes them */
};
struct sweep_plan {
    bool random;
    bool has_seed;
    uint32_t seed;
    uint64_t total; /* combinations */
    struct sweep_param params[SWEEP_PARAMS_MAX];
    size_t n_params;
    uint64_t *chosen; /* the combination of each variant */
    size_t n;
};

/* `graph`: the document as submitted. Released with sweep_plan_release, also after a failure. */
enum status sweep_plan_make(
    const json_t *spec, const json_t *graph, const struct sweep_limits *limits,
    struct sweep_plan *out, struct err *e) NODISCARD;
void sweep_plan_release(struct sweep_plan *p);

/* New references: {"NODE": {"PARAM": value}} of a combination, and the same as
 * [{"node_id", "param", "value"}]; the parameters as [{"node_id", "param", "domain"}]. */
json_t *sweep_plan_patch(const struct sweep_plan *p, uint64_t combination);
json_t *sweep_plan_values(const struct sweep_plan *p, uint64_t combination);
json_t *sweep_plan_params(const struct sweep_plan *p);
/* Reads what sweep_plan_params wrote; variants are not filled in. */
enum status
sweep_plan_read_params(const json_t *params, struct sweep_plan *out, struct err *e) NODISCARD;

/* mulberry32: the next 32 bits of a state. */
uint32_t mulberry32(uint32_t *state);
/* n different numbers below total (n <= total), in the order of the draws. */
void sweep_draw(uint32_t seed, uint64_t total, size_t n, uint64_t *out);

#endif
