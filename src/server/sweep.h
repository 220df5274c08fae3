/* sweep.h - sweeps: a graph's variants as queued runs, stored whole or not at all, then compared.
 *
 *     POST body  {"base_graph", "sweep_spec" (sweep_plan.h), "objective": {"metric", "direction"},
 *                 "options"?, "name"?, "seed_variants"?}
 *
 * Every variant is a run of the base graph with a patch, named "<name> #<i + 1>", with
 * options.target handed on. With seed_variants its seed is (sweep_spec.seed + i) mod 2^32. All are
 * checked before anything is stored, and stored in the transaction that writes the sweep: a run
 * that would be refused refuses the sweep (B9, R10). Runs wait in their queues like any others, so
 * a sweep goes on after a restart.
 *
 * STATE  running -> (cancelling) -> finished, when the last run has ended. Never "cancelled": a
 * sweep of which some were stopped has results, and each variant says what became of it. Variants
 * are ranked by the last value of the objective, whatever their status; those without one come
 * after, by index. When a run is deleted its variant keeps status and last metrics ("run_exists"
 * false); nothing known: "missing".
 */
#ifndef SERVER_SWEEP_H
#define SERVER_SWEEP_H

#include "base/json.h"
#include "server/core.h"
#include "server/store_sweeps.h"
#include "server/sweep_plan.h"

enum { SWEEP_OUTPUT_RUNS = 20 }; /* recorded runs that are kept */

struct sweeps {
    struct core *core;
    struct store *store;
    struct sweep_limits limits;
};

/* {"sweep_id", "state", "method", "seed", "seed_variants", "objective", "total_combinations",
 * "params", "variants": [{"index", "domain_index", "run_id", "status", "seed", "params",
 * "worker_id", "devices", "queue_key"}]}, in order of submission. ST_INVALID: refused with its
 * reason; ST_UNPROCESSABLE: not of this form; what core_submit_all refuses. */
enum status sweep_create(
    const struct sweeps *x, const struct actor *who, const json_t *body, struct instant now,
    json_t **reply, struct err *e) NODISCARD;
/* The comparison: counts, variants in order of rank, best; "objective_warning" where no variant
 * has recorded it. */
enum status sweep_read(
    const struct sweeps *x, const char *sweep_id, struct instant now, json_t **doc,
    struct err *e) NODISCARD;
/* The same, a row a variant, with a byte order mark; texts that a spreadsheet would compute are
 * quoted off. */
enum status sweep_csv(
    const struct sweeps *x, const char *sweep_id, struct instant now, struct str *out,
    struct err *e) NODISCARD;
/* {"sweeps": [...], "total", "limit", "offset"}, newest first, without variants. */
enum status sweep_list(
    const struct sweeps *x, int64_t limit, int64_t offset, json_t **doc, struct err *e) NODISCARD;
/* {"sweep_id", "state", "cancelled", "already_finished", "variants"} in order of submission. */
enum status sweep_cancel(
    const struct sweeps *x, const char *sweep_id, struct instant now, json_t **reply,
    struct err *e) NODISCARD;
/* A run of it has ended: perhaps it was the last. */
void sweep_run_ended(const struct sweeps *x, int64_t sweep, struct instant now);

/* For studies too: {"metric": 1 to 128 characters, "direction": "minimize" | "maximize"}. */
enum status objective_check(const json_t *objective, struct err *e) NODISCARD;
/* Options that every run of a sweep or study gets: an object without seed and interactive lane. */
enum status variant_options_check(const json_t *options, size_t runs, struct err *e) NODISCARD;
/* The text in `object`, 1 to 64 bytes; *out NULL where it is absent. */
enum status variant_name_check(const json_t *object, const char **out, struct err *e) NODISCARD;
enum status body_keys_check(const json_t *body, const char *const *keys, struct err *e) NODISCARD;
/* "<name> #<suffix>", cut to 64 bytes before the suffix. */
void variant_run_name(const char *name, const char *suffix, char out[65]);
/* What a cell's run tells: status ("missing" when nothing is known), final metrics (a new reference
 * or NULL), where it ran. The texts live in the documents and the cell. */
struct cell_facts {
    const char *status;
    json_t *final_metrics;
    char worker[65], devices[192], queue_key[128];
    double objective; /* NaN: none */
};
void cell_facts_read(
    struct store *s, const struct store_cell *x, const char *metric, struct cell_facts *out);
/* "worker_id", "devices", "queue_key", null where unknown. */
void cell_place_json(json_t *row, const struct cell_facts *f);
void number_csv(struct str *out, double v);       /* shortest; "" for NaN */
void value_csv(struct str *out, const json_t *v); /* a cell, texts quoted off */

#endif
