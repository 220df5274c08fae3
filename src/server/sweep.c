/* sweep.c - sweeps: submission, comparison, cancelling (sweep.h). */
#include "server/sweep.h"

#include "server/core_int.h"
#include "server/secret.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what studies use too ---------------------------------------------------------------------
 */

enum status body_keys_check(const json_t *body, const char *const *keys, struct err *e)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, key, value)
    {
        const char *const *k = keys;
        while (*k && !str_eq(*k, key))
            k++;
        if (!*k)
            return err_set(e, ST_UNPROCESSABLE, "the body has no \"%.64s\"", key);
    }
    return ST_OK;
}

enum status objective_check(const json_t *objective, struct err *e)
{
    static const char *const keys[] = {"metric", "direction", NULL};
    if (!json_is_object(objective))
        return err_set(e, ST_UNPROCESSABLE, "objective needs a metric and a direction");
    TRY(body_keys_check(objective, keys, e));
    const char *metric = json_get_str(objective, "metric", ""),
               *direction = json_get_str(objective, "direction", "");
    if (!*metric || strlen(metric) > 128)
        return err_set(e, ST_UNPROCESSABLE, "objective.metric is a text of 1 to 128 characters");
    if (!str_eq(direction, "minimize") && !str_eq(direction, "maximize"))
        return err_set(e, ST_UNPROCESSABLE, "objective.direction is minimize or maximize");
    return ST_OK;
}

enum status variant_options_check(const json_t *options, size_t runs, struct err *e)
{
    if (!options || json_is_null(options))
        return ST_OK;
    if (!json_is_object(options))
        return err_set(e, ST_INVALID, "options must be an object");
    if (json_object_get(options, "seed"))
        return err_set(
            e, ST_INVALID,
            "options.seed would give every run the same seed: "
            "set the seed of the sweep or study");
    char lane[16] = "";
    const char *given = json_get_str(options, "lane", "");
    str_copy_trimmed(lane, sizeof lane, given, strlen(given));
    if (str_eq(lane, "interactive"))
        return err_set(e, ST_INVALID, "these runs cannot use the interactive lane: they wait");
    if (json_get_bool(options, "record_outputs", false) && runs > SWEEP_OUTPUT_RUNS)
        return err_set(
            e, ST_INVALID, "record_outputs keeps the outputs of %d runs, and these are %zu",
            SWEEP_OUTPUT_RUNS, runs);
    return ST_OK;
}

enum status variant_name_check(const json_t *object, const char **out, struct err *e)
{
    const json_t *name = json_object_get(object, "name");
    *out = json_string_value(name);
    if (name && !json_is_null(name) && !*out)
        return err_set(e, ST_UNPROCESSABLE, "name must be a text");
    if (*out && (!**out || json_string_length(name) > 64))
        return err_set(e, ST_INVALID, "name has 1 to 64 characters");
    return ST_OK;
}

void variant_run_name(const char *name, const char *suffix, char out[65])
{
    size_t tail = strlen(suffix) + 2, n = strlen(name);
    if (n + tail > 64)
        n = 64 - tail;
    while (n && ((unsigned char)name[n] & 0xc0) == 0x80)
        n--;
    (void)snprintf(out, 65, "%.*s #%s", (int)n, name, suffix);
}

static json_t *parsed(const char *text)
{
    json_t *out = NULL;
    if (*text && json_parse(text, strlen(text), "row", &out, NULL) != ST_OK)
        return NULL;
    return out;
}

/* A run that goes on: what its series say now. */
static json_t *metrics_now(struct store *s, const struct store_cell *x)
{
    struct arena a;
    const char *text = "";
    json_t *out = NULL;
    arena_init(&a);
    if ((x->run_state == RUN_RUNNING || x->run_state == RUN_STOPPING) &&
        store_metrics_final(s, x->run, &a, &text, NULL) == ST_OK)
        out = parsed(text);
    arena_release(&a);
    return out ? out : json_object();
}

static void
copy_place(struct cell_facts *f, const char *worker, const char *devices, const char *key)
{
    (void)snprintf(f->worker, sizeof f->worker, "%s", worker);
    (void)snprintf(f->devices, sizeof f->devices, "%s", devices);
    (void)snprintf(f->queue_key, sizeof f->queue_key, "%s", key);
}

static const char *known_status(const char *status)
{
    enum run_state state;
    return run_state_find_ended(status, &state) ? run_state_status(state) : "missing";
}

void cell_facts_read(
    struct store *s, const struct store_cell *x, const char *metric, struct cell_facts *out)
{
    *out = (struct cell_facts){.status = "missing", .objective = (double)NAN};
    bool ended = false;
    if (x->run_state >= 0) {
        ended = run_state_ended((enum run_state)x->run_state);
        out->status = run_state_status((enum run_state)x->run_state);
        out->final_metrics = ended ? parsed(x->final_metrics) : metrics_now(s, x);
        copy_place(out, x->worker, x->devices, x->queue_key);
    } else {
        json_t *kept = parsed(x->kept);
        ended = kept != NULL;
        out->status = known_status(json_get_str(kept, "status", ""));
        out->final_metrics = json_incref(json_object_get(kept, "final_metrics"));
        copy_place(
            out, json_get_str(kept, "worker", ""), json_get_str(kept, "devices", ""),
            json_get_str(kept, "queue_key", ""));
        json_decref(kept);
    }
    const json_t *value = json_object_get(out->final_metrics, metric);
    if (ended && json_is_number(value))
        out->objective = json_number_value(value);
}

void cell_place_json(json_t *row, const struct cell_facts *f)
{
    json_put_str(row, "worker_id", f->worker[0] ? f->worker : NULL);
    json_put(row, "devices", f->devices[0] ? devices_json(f->devices) : json_null());
    json_put_str(row, "queue_key", f->queue_key[0] ? f->queue_key : NULL);
}

void number_csv(struct str *out, double v)
{
    char buf[32];
    if (!isfinite(v))
        return;
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(buf, sizeof buf, "%.*g", digits, v);
        if (strtod(buf, NULL) == v)
            break;
    }
    str_add(out, buf);
}

void value_csv(struct str *out, const json_t *v)
{
    if (json_is_integer(v))
        str_printf(out, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        number_csv(out, json_real_value(v));
    else if (json_is_boolean(v))
        str_add(out, json_is_true(v) ? "true" : "false");
    else if (json_is_string(v))
        csv_cell(out, json_string_value(v));
}

/* ---- submission -------------------------------------------------------------------------------
 */

struct making {
    const struct sweeps *x;
    struct store_sweep row;
    const struct sweep_plan *plan;
    struct core_submission *runs;
};

static enum status write_sweep(void *ctx, const char (*ids)[33], struct err *e)
{
    struct making *m = ctx;
    TRY(store_sweep_add(m->x->store, &m->row, &m->row.id, e));
    for (size_t i = 0; i < m->plan->n; i++) {
        m->runs[i].sweep = m->row.id;
        TRY(store_sweep_variant_add(
            m->x->store, m->row.id, (int32_t)i, m->plan->chosen[i], ids[i], e));
    }
    return ST_OK;
}

/* The options of one run: those of the sweep, with its seed. A new reference. */
static json_t *options_with_seed(const json_t *options, bool seeded, uint32_t seed)
{
    if (!seeded)
        return json_incref((json_t *)(uintptr_t)options);
    json_t *own = json_is_object(options) ? json_copy((json_t *)(uintptr_t)options) : json_object();
    json_put_i64(own, "seed", seed);
    return own;
}

static void variants_release(struct making *m, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        json_decref((json_t *)(uintptr_t)m->runs[i].options);
        json_decref((json_t *)(uintptr_t)m->runs[i].patch);
        mem_free((char *)(uintptr_t)m->runs[i].name);
    }
    mem_free(m->runs);
}

static void make_variants(struct making *m, const json_t *body, const char *name)
{
    const struct sweep_plan *p = m->plan;
    const json_t *graph = json_object_get(body, "base_graph"),
                 *options = json_object_get(body, "options");
    const char *base = name ? name : json_get_str(graph, "name", "");
    m->runs = mem_alloc(p->n * sizeof *m->runs);
    for (size_t i = 0; i < p->n; i++) {
        char number[24], run_name[65];
        (void)snprintf(number, sizeof number, "%zu", i + 1);
        variant_run_name(*base ? base : "sweep", number, run_name);
        m->runs[i] = (struct core_submission){
            .graph = graph,
            .options = options_with_seed(options, m->row.seed_variants, (uint32_t)(p->seed + i)),
            .patch = sweep_plan_patch(p, p->chosen[i]),
            .name = mem_strdup(run_name),
            .variant = (int)i,
            .repetition = -1};
    }
}

static json_t *reply_of(const struct making *m, const char (*ids)[33], json_t *params)
{
    json_t *reply = json_object(), *variants = json_array();
    for (size_t i = 0; i < m->plan->n; i++) {
        json_t *row = json_object();
        json_put_i64(row, "index", (int64_t)i);
        json_put_i64(row, "domain_index", (int64_t)m->plan->chosen[i]);
        json_put_str(row, "run_id", ids[i]);
        json_put_str(row, "status", run_state_status(RUN_WAITING));
        json_put(
            row, "seed",
            m->row.seed_variants ? json_integer((uint32_t)(m->plan->seed + i)) : json_null());
        json_put(row, "params", sweep_plan_values(m->plan, m->plan->chosen[i]));
        cell_place_json(row, &(struct cell_facts){0});
        (void)json_array_append_new(variants, row);
    }
    json_put_str(reply, "sweep_id", m->row.sweep_id);
    json_put_str(reply, "state", "running");
    json_put_str(reply, "method", m->row.method);
    json_put(reply, "seed", m->row.seed >= 0 ? json_integer(m->row.seed) : json_null());
    json_put_bool(reply, "seed_variants", m->row.seed_variants);
    json_put(reply, "objective", parsed(m->row.objective));
    json_put_i64(reply, "total_combinations", m->row.total);
    json_put(reply, "params", json_incref(params));
    json_put(reply, "variants", variants);
    return reply;
}

static enum status submit_all(
    const struct sweeps *x, const struct actor *who, const json_t *body,
    const struct sweep_plan *plan, struct instant now, json_t **reply, struct err *e)
{
    struct making m = {.x = x, .plan = plan};
    const char *name;
    TRY(variant_name_check(body, &name, e));
    json_t *params = sweep_plan_params(plan);
    char *params_text = json_text(params, false),
         *objective = json_text(json_object_get(body, "objective"), false),
         *options = json_object_get(body, "options")
                        ? json_text(json_object_get(body, "options"), false)
                        : mem_strdup("");
    m.row = (struct store_sweep){
        .name = name ? name : "",
        .owner = who->name,
        .state = SWEEP_RUNNING,
        .method = plan->random ? "random" : "grid",
        .seed = plan->has_seed ? (int64_t)plan->seed : -1,
        .seed_variants = json_get_bool(body, "seed_variants", false),
        .params = params_text,
        .objective = objective,
        .options = options,
        .total = (int64_t)plan->total,
        .created_us = now.wall_us};
    enum status st = secret_id(m.row.sweep_id, e);
    char(*ids)[33] = mem_alloc(plan->n * sizeof *ids);
    make_variants(&m, body, name);
    if (st == ST_OK)
        st = core_submit_all(x->core, who, m.runs, plan->n, write_sweep, &m, now, ids, e);
    if (st == ST_OK)
        *reply = reply_of(&m, (const char(*)[33])ids, params);
    variants_release(&m, plan->n);
    mem_free(ids);
    mem_free(params_text);
    mem_free(objective);
    mem_free(options);
    json_decref(params);
    return st;
}

enum status sweep_create(
    const struct sweeps *x, const struct actor *who, const json_t *body, struct instant now,
    json_t **reply, struct err *e)
{
    static const char *const keys[] = {"base_graph", "sweep_spec",    "objective", "options",
                                       "name",       "seed_variants", NULL};
    const json_t *flag = json_object_get(body, "seed_variants"),
                 *graph = json_object_get(body, "base_graph"),
                 *spec = json_object_get(body, "sweep_spec");
    struct sweep_plan plan;
    TRY(body_keys_check(body, keys, e));
    if (!json_is_object(graph) || !json_is_object(spec))
        return err_set(e, ST_UNPROCESSABLE, "a sweep needs objects base_graph and sweep_spec");
    if (flag && !json_is_null(flag) && !json_is_boolean(flag))
        return err_set(e, ST_UNPROCESSABLE, "seed_variants is true or false");
    TRY(objective_check(json_object_get(body, "objective"), e));
    TRY(variant_options_check(json_object_get(body, "options"), 0, e));
    if (json_is_true(flag) && !json_is_integer(json_object_get(spec, "seed")))
        return err_set(e, ST_INVALID, "seed_variants needs sweep_spec.seed");
    enum status st = sweep_plan_make(spec, graph, &x->limits, &plan, e);
    if (st == ST_OK)
        st = variant_options_check(json_object_get(body, "options"), plan.n, e);
    if (st == ST_OK)
        st = submit_all(x, who, body, &plan, now, reply, e);
    sweep_plan_release(&plan);
    return st;
}

/* ---- state ------------------------------------------------------------------------------------
 */

static const char *state_text(enum sweep_state s)
{
    static const char *const texts[] = {"running", "cancelling", "finished", "failed"};
    return texts[s];
}

/* Running or cancelling ends with the last run. Looked at when a run ends, and by every read, so
 * that a kill between the two costs nothing. */
static enum status
settle(const struct sweeps *x, struct store_sweep *row, struct instant now, struct err *e)
{
    bool lives = false;
    if (row->state != SWEEP_RUNNING && row->state != SWEEP_CANCELLING)
        return ST_OK;
    TRY(store_sweep_lives(x->store, row->id, &lives, e));
    if (lives)
        return ST_OK;
    TRY(store_begin(x->store, e));
    TRY(store_end(
        x->store, store_sweep_state(x->store, row->id, SWEEP_FINISHED, now.wall_us, e), e));
    row->state = SWEEP_FINISHED;
    row->finished_us = now.wall_us;
    return ST_OK;
}

void sweep_run_ended(const struct sweeps *x, int64_t sweep, struct instant now)
{
    char id[33];
    struct arena a;
    struct store_sweep row;
    arena_init(&a);
    if (store_sweep_name(x->store, sweep, id) &&
        store_sweep_get(x->store, id, &a, &row, NULL) == ST_OK) {
        enum status later = settle(x, &row, now, NULL); /* a failure is made good by a read */
        (void)later;
    }
    arena_release(&a);
}

/* ---- comparison -------------------------------------------------------------------------------
 */

struct ranked {
    const struct store_cell *cell;
    struct cell_facts facts;
    int64_t rank; /* 0: none */
    bool maximize;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    bool has_x = !isnan(x->facts.objective), has_y = !isnan(y->facts.objective);
    if (has_x != has_y)
        return has_x ? -1 : 1;
    if (has_x && x->facts.objective < y->facts.objective)
        return x->maximize ? 1 : -1;
    if (has_x && x->facts.objective > y->facts.objective)
        return x->maximize ? -1 : 1;
    return x->cell->variant - y->cell->variant;
}

struct comparison {
    struct arena arena;
    struct store_sweep row;
    struct sweep_plan plan; /* parameters only */
    json_t *objective, *params;
    struct ranked *list;
    size_t n;
};

static void comparison_release(struct comparison *c)
{
    for (size_t i = 0; i < c->n; i++)
        json_decref(c->list[i].facts.final_metrics);
    mem_free(c->list);
    json_decref(c->objective);
    json_decref(c->params);
    sweep_plan_release(&c->plan);
    arena_release(&c->arena);
}

static enum status compare(
    const struct sweeps *x, const char *sweep_id, struct instant now, struct comparison *c,
    struct err *e)
{
    struct store_cell *cells;
    size_t n;
    *c = (struct comparison){0};
    arena_init(&c->arena);
    TRY(store_sweep_get(x->store, sweep_id, &c->arena, &c->row, e));
    TRY(settle(x, &c->row, now, e));
    TRY(store_sweep_variants(x->store, c->row.id, &c->arena, &cells, &n, e));
    c->objective = parsed(c->row.objective);
    c->params = parsed(c->row.params);
    TRY(sweep_plan_read_params(c->params, &c->plan, e));
    const char *metric = json_get_str(c->objective, "metric", "");
    bool maximize = str_eq(json_get_str(c->objective, "direction", ""), "maximize");
    c->list = mem_alloc((n + 1) * sizeof *c->list);
    for (; c->n < n; c->n++) {
        c->list[c->n] = (struct ranked){.cell = &cells[c->n], .maximize = maximize};
        cell_facts_read(x->store, &cells[c->n], metric, &c->list[c->n].facts);
    }
    qsort(c->list, n, sizeof *c->list, by_rank);
    for (size_t i = 0; i < n && !isnan(c->list[i].facts.objective); i++)
        c->list[i].rank = (int64_t)i + 1;
    return ST_OK;
}

static json_t *seed_of(const struct comparison *c, const struct store_cell *x)
{
    if (!c->row.seed_variants || c->row.seed < 0)
        return json_null();
    return json_integer((uint32_t)(c->row.seed + x->variant));
}

static json_t *variant_json(const struct comparison *c, const struct ranked *r)
{
    json_t *row = json_object();
    bool exists = r->cell->run_state >= 0;
    json_put_i64(row, "index", r->cell->variant);
    json_put_i64(row, "domain_index", r->cell->combination);
    json_put_str(row, "run_id", r->cell->run_id);
    json_put_str(row, "status", r->facts.status);
    json_put(row, "params", sweep_plan_values(&c->plan, (uint64_t)r->cell->combination));
    json_put(row, "seed", seed_of(c, r->cell));
    json_put(
        row, "objective", isnan(r->facts.objective) ? json_null() : json_real(r->facts.objective));
    json_put(row, "rank", r->rank ? json_integer(r->rank) : json_null());
    json_put_bool(row, "run_exists", exists);
    if (r->facts.final_metrics)
        json_put(row, "final_metrics", json_incref(r->facts.final_metrics));
    cell_place_json(row, &r->facts);
    return row;
}

static json_t *counts_json(const struct comparison *c)
{
    static const char *const keys[] = {"queued",    "running",     "succeeded", "failed",
                                       "cancelled", "interrupted", "missing"};
    json_t *counts = json_object();
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        int64_t n = 0;
        for (size_t i = 0; i < c->n; i++)
            n += str_eq(c->list[i].facts.status, keys[k]);
        json_put_i64(counts, keys[k], n);
    }
    return counts;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Which series there are, where nobody recorded the objective. */
static void put_warning(const struct comparison *c, json_t *doc)
{
    json_t *names = json_object(), *value;
    const char *key;
    struct str text;
    for (size_t i = 0; i < c->n; i++)
        if (c->list[i].facts.final_metrics)
            (void)json_object_update(names, c->list[i].facts.final_metrics);
    size_t n = json_object_size(names), i = 0;
    const char **sorted = mem_alloc((n + 1) * sizeof *sorted);
    json_object_foreach(names, key, value) sorted[i++] = key;
    qsort(sorted, n, sizeof *sorted, by_text);
    str_init(&text);
    str_printf(&text, "no variant has recorded \"%s\"", json_get_str(c->objective, "metric", ""));
    for (i = 0; i < n; i++)
        str_printf(&text, "%s%s", i ? ", " : "; recorded so far: ", sorted[i]);
    json_put_str(doc, "objective_warning", text.data);
    str_release(&text);
    mem_free(sorted);
    json_decref(names);
}

static void put_time(json_t *doc, const char *key, int64_t us)
{
    char buf[40];
    json_put_str(doc, key, us ? iso_time(us, buf) : NULL);
}

static json_t *head_json(const struct store_sweep *row)
{
    json_t *doc = json_object();
    json_put_str(doc, "sweep_id", row->sweep_id);
    json_put_str(doc, "name", *row->name ? row->name : NULL);
    json_put_str(doc, "owner", *row->owner ? row->owner : NULL);
    json_put_str(doc, "state", state_text(row->state));
    json_put_str(doc, "method", row->method);
    json_put(doc, "seed", row->seed >= 0 ? json_integer(row->seed) : json_null());
    json_put_bool(doc, "seed_variants", row->seed_variants);
    json_put(doc, "objective", parsed(row->objective));
    json_put_i64(doc, "total_combinations", row->total);
    put_time(doc, "created_at", row->created_us);
    put_time(doc, "finished_at", row->finished_us);
    json_put(doc, "error", json_null());
    return doc;
}

static json_t *comparison_json(const struct comparison *c)
{
    json_t *doc = head_json(&c->row), *variants = json_array();
    for (size_t i = 0; i < c->n; i++)
        (void)json_array_append_new(variants, variant_json(c, &c->list[i]));
    json_put(doc, "counts", counts_json(c));
    json_put(doc, "params", json_incref(c->params));
    json_put(doc, "variants", variants);
    json_put(doc, "best", json_null());
    if (c->n && c->list[0].rank) {
        json_t *best = json_object();
        json_put_i64(best, "index", c->list[0].cell->variant);
        json_put_str(best, "run_id", c->list[0].cell->run_id);
        json_put_f64(best, "objective", c->list[0].facts.objective);
        json_put(doc, "best", best);
    } else {
        put_warning(c, doc);
    }
    return doc;
}

enum status sweep_read(
    const struct sweeps *x, const char *sweep_id, struct instant now, json_t **doc, struct err *e)
{
    struct comparison c;
    enum status st = compare(x, sweep_id, now, &c, e);
    if (st == ST_OK)
        *doc = comparison_json(&c);
    comparison_release(&c);
    return st;
}

static void csv_head(const struct comparison *c, struct str *out)
{
    str_add(out, "\xef\xbb\xbfrank,variant_index,domain_index,run_id,status,objective");
    for (size_t i = 0; i < c->plan.n_params; i++) {
        struct str name;
        str_init(&name);
        str_printf(&name, "%s.%s", c->plan.params[i].node_id, c->plan.params[i].param);
        str_add(out, ",");
        csv_cell(out, name.data);
        str_release(&name);
    }
    str_add(out, "\n");
}

enum status sweep_csv(
    const struct sweeps *x, const char *sweep_id, struct instant now, struct str *out,
    struct err *e)
{
    struct comparison c;
    enum status st = compare(x, sweep_id, now, &c, e);
    if (st == ST_OK)
        csv_head(&c, out);
    for (size_t i = 0; st == ST_OK && i < c.n; i++) {
        const struct ranked *r = &c.list[i];
        json_t *values = sweep_plan_values(&c.plan, (uint64_t)r->cell->combination), *v;
        size_t k;
        if (r->rank)
            str_printf(out, "%lld", (long long)r->rank);
        str_printf(
            out, ",%d,%lld,%s,%s,", r->cell->variant, (long long)r->cell->combination,
            r->cell->run_id, r->facts.status);
        number_csv(out, r->facts.objective);
        json_array_foreach(values, k, v)
        {
            str_add(out, ",");
            value_csv(out, json_object_get(v, "value"));
        }
        str_add(out, "\n");
        json_decref(values);
    }
    comparison_release(&c);
    return st;
}

enum status
sweep_list(const struct sweeps *x, int64_t limit, int64_t offset, json_t **doc, struct err *e)
{
    struct arena a;
    struct store_sweep *rows;
    size_t n = 0;
    int64_t total = 0;
    arena_init(&a);
    enum status st = store_sweeps_list(x->store, limit, offset, &a, &rows, &n, &total, e);
    if (st == ST_OK) {
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++)
            (void)json_array_append_new(list, head_json(&rows[i]));
        *doc = json_object();
        json_put(*doc, "sweeps", list);
        json_put_i64(*doc, "total", total);
        json_put_i64(*doc, "limit", limit);
        json_put_i64(*doc, "offset", offset);
    }
    arena_release(&a);
    return st;
}

/* ---- cancelling -------------------------------------------------------------------------------
 */

static enum status cancel_one(
    const struct sweeps *x, const struct store_cell *cell, struct instant now, json_t *out,
    bool *cancelled, struct err *e)
{
    json_t *answer = NULL, *row = json_object();
    struct cell_facts facts;
    enum status st = ST_OK;
    *cancelled = false;
    cell_facts_read(x->store, cell, "", &facts);
    json_put_i64(row, "index", cell->variant);
    json_put_str(row, "run_id", cell->run_id);
    json_put_str(row, "status", facts.status);
    if (cell->run_state >= 0 && !run_state_ended((enum run_state)cell->run_state))
        st = core_cancel(x->core, cell->run_id, now, &answer, e);
    if (st == ST_NOT_FOUND) /* deleted since */
        st = ST_OK;
    if (answer) {
        *cancelled = json_get_bool(answer, "cancelled", false);
        json_put_str(row, "status", json_get_str(answer, "status", facts.status));
    }
    json_put_bool(row, "cancelled", *cancelled);
    (void)json_array_append_new(out, row);
    json_decref(facts.final_metrics);
    json_decref(answer);
    return st;
}

static enum status cancel_all(
    const struct sweeps *x, struct store_sweep *row, struct arena *a, struct instant now,
    json_t *reply, struct err *e)
{
    struct store_cell *cells;
    size_t n;
    int64_t cancelled = 0, finished = 0;
    bool lives = false;
    json_t *variants = json_array();
    json_put(reply, "variants", variants);
    TRY(settle(x, row, now, e));
    TRY(store_sweep_lives(x->store, row->id, &lives, e));
    if (lives && row->state == SWEEP_RUNNING) {
        TRY(store_begin(x->store, e));
        TRY(store_end(x->store, store_sweep_state(x->store, row->id, SWEEP_CANCELLING, 0, e), e));
        row->state = SWEEP_CANCELLING;
    }
    TRY(store_sweep_variants(x->store, row->id, a, &cells, &n, e));
    for (size_t i = 0; i < n; i++) {
        bool did;
        TRY(cancel_one(x, &cells[i], now, variants, &did, e));
        cancelled += did;
        finished +=
            !did && (cells[i].run_state < 0 || run_state_ended((enum run_state)cells[i].run_state));
    }
    TRY(settle(x, row, now, e));
    json_put_str(reply, "sweep_id", row->sweep_id);
    json_put_str(reply, "state", state_text(row->state));
    json_put_i64(reply, "cancelled", cancelled);
    json_put_i64(reply, "already_finished", finished);
    return ST_OK;
}

enum status sweep_cancel(
    const struct sweeps *x, const char *sweep_id, struct instant now, json_t **reply, struct err *e)
{
    struct arena a;
    struct store_sweep row;
    arena_init(&a);
    json_t *doc = json_object();
    enum status st = store_sweep_get(x->store, sweep_id, &a, &row, e);
    if (st == ST_OK)
        st = cancel_all(x, &row, &a, now, doc, e);
    if (st == ST_OK)
        *reply = doc;
    else
        json_decref(doc);
    arena_release(&a);
    return st;
}
