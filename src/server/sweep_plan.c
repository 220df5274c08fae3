/* sweep_plan.c - compiles a specification into variants (sweep_plan.h). */
#include "server/sweep_plan.h"

#include "base/mem.h"
#include "graph/graph.h"

#include <math.h>
#include <string.h>

/* ---- draws ------------------------------------------------------------------------------------
 */

uint32_t mulberry32(uint32_t *state)
{
    uint32_t t = *state += UINT32_C(0x6d2b79f5);
    t = (t ^ t >> 15) * (t | 1);
    t ^= t + (t ^ t >> 7) * (t | 61);
    return t ^ t >> 14;
}

/* Places whose content is not their own number; an open table, at most half full. */
struct moved {
    uint64_t *place, *content;
    size_t mask;
};

static size_t slot_of(const struct moved *m, uint64_t place)
{
    size_t i = (size_t)(place * UINT64_C(0x9e3779b97f4a7c15) >> 20) & m->mask;
    while (m->place[i] != UINT64_MAX && m->place[i] != place)
        i = (i + 1) & m->mask;
    return i;
}

static uint64_t content_of(const struct moved *m, uint64_t place)
{
    size_t i = slot_of(m, place);
    return m->place[i] == place ? m->content[i] : place;
}

void sweep_draw(uint32_t seed, uint64_t total, size_t n, uint64_t *out)
{
    struct moved m = {0};
    size_t size = 16;
    while (size < 2 * n + 2)
        size *= 2;
    ASSERT(n <= total && total <= (UINT64_C(1) << 32));
    m.mask = size - 1;
    m.place = mem_alloc(size * sizeof *m.place);
    m.content = mem_alloc(size * sizeof *m.content);
    memset(m.place, 0xff, size * sizeof *m.place);
    for (size_t k = 0; k < n; k++) {
        uint64_t left = total - k, place = mulberry32(&seed) % left;
        out[k] = content_of(&m, place);
        uint64_t last = content_of(&m, left - 1);
        size_t i = slot_of(&m, place);
        m.place[i] = place;
        m.content[i] = last;
    }
    mem_free(m.place);
    mem_free(m.content);
}

/* ---- forms ------------------------------------------------------------------------------------
 */

static enum status
known_keys(const json_t *object, const char *what, const char *const *keys, struct err *e)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return err_set(e, ST_UNPROCESSABLE, "%s must be an object", what);
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        const char *const *k = keys;
        while (*k && !str_eq(*k, key))
            k++;
        if (!*k)
            return err_set(e, ST_UNPROCESSABLE, "%s has no \"%.64s\"", what, key);
    }
    return ST_OK;
}

/* A whole number that JSON may have written as 3.0. */
static bool whole(const json_t *v, int64_t *out)
{
    double d = json_number_value(v);
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v) || !isfinite(d) || floor(d) != d || fabs(d) >= 0x1p53)
        return false;
    *out = (int64_t)d;
    return true;
}

static enum status read_seed(const json_t *spec, struct sweep_plan *p, struct err *e)
{
    const json_t *seed = json_object_get(spec, "seed");
    p->has_seed = seed && !json_is_null(seed);
    if (!p->has_seed) {
        if (p->random)
            return err_set(e, ST_INVALID, "a random sweep needs sweep_spec.seed");
        return ST_OK;
    }
    if (!json_is_integer(seed) || json_integer_value(seed) < 0 ||
        json_integer_value(seed) > UINT32_MAX)
        return err_set(e, ST_INVALID, "sweep_spec.seed must be a whole number, 0 to 4294967295");
    p->seed = (uint32_t)json_integer_value(seed);
    return ST_OK;
}

/* ---- domains ----------------------------------------------------------------------------------
 */

static enum status read_range(
    const json_t *range, size_t i, const struct sweep_limits *limits, json_t *out, struct err *e)
{
    static const char *const keys[] = {"min", "max", "count", "scale", "type", NULL};
    TRY(known_keys(range, "a range", keys, e));
    const json_t *low = json_object_get(range, "min"), *high = json_object_get(range, "max");
    const char *scale = json_get_str(range, "scale", ""), *type = json_get_str(range, "type", "");
    double min = json_number_value(low), max = json_number_value(high);
    int64_t count = json_get_i64(range, "count", 0);
    bool is_log = str_eq(scale, "log"), is_int = str_eq(type, "int");
    if (!json_is_number(low) || !json_is_number(high) || !isfinite(min) || !isfinite(max))
        return err_set(e, ST_INVALID, "params[%zu]: a range needs a finite min and max", i);
    if (max < min)
        return err_set(e, ST_INVALID, "params[%zu]: the range's max is below its min", i);
    if (!json_is_integer(json_object_get(range, "count")) || count < 1 || count > limits->domain)
        return err_set(
            e, ST_INVALID, "params[%zu]: a range's count is a whole number, 1 to %lld", i,
            (long long)limits->domain);
    if (!is_log && !str_eq(scale, "linear"))
        return err_set(e, ST_INVALID, "params[%zu]: a range's scale is linear or log", i);
    if (!is_int && !str_eq(type, "float"))
        return err_set(e, ST_INVALID, "params[%zu]: a range's type is int or float", i);
    if (is_log && min <= 0)
        return err_set(e, ST_INVALID, "params[%zu]: a log range begins above 0", i);
    if (is_int &&
        (floor(min) != min || floor(max) != max || fabs(min) > 0x1p53 || fabs(max) > 0x1p53))
        return err_set(e, ST_INVALID, "params[%zu]: a range of int has whole bounds", i);
    double a = is_log ? log10(min) : min, b = is_log ? log10(max) : max, before = 0;
    for (int64_t k = 0; k < count; k++) {
        double at = count > 1 ? a + (b - a) * (double)k / (double)(count - 1) : a;
        double v = k == 0 ? min : k == count - 1 ? max : is_log ? pow(10, at) : at;
        v = is_int ? round(v) : v;
        if (k && v == before)
            continue; /* rising, so a repeated value stands beside itself */
        before = v;
        (void)json_array_append_new(out, is_int ? json_integer((json_int_t)v) : json_real(v));
    }
    return ST_OK;
}

static enum status read_values(
    const json_t *values, size_t i, const struct sweep_limits *limits, json_t *out, struct err *e)
{
    size_t n = json_array_size(values), k;
    json_t *v;
    if (!json_is_array(values) || n < 1 || (int64_t)n > limits->domain)
        return err_set(
            e, ST_INVALID, "params[%zu]: values is a list of 1 to %lld", i,
            (long long)limits->domain);
    json_array_foreach(values, k, v)
    {
        if (!json_is_number(v) && !json_is_boolean(v) && !json_is_string(v))
            return err_set(
                e, ST_INVALID, "params[%zu].values[%zu] is not a number, text, true or false", i,
                k);
        if (json_is_real(v) && !isfinite(json_real_value(v)))
            return err_set(e, ST_INVALID, "params[%zu].values[%zu] is not finite", i, k);
        (void)json_array_append(out, v);
    }
    return ST_OK;
}

/* The value as the parameter takes it: a new reference; NULL: not of its type. */
static json_t *as_param(const struct node_param *p, const json_t *v)
{
    int64_t i;
    if (p->type == PARAM_INT)
        return json_is_number(v) && whole(v, &i) ? json_integer(i) : NULL;
    if (p->type == PARAM_FLOAT)
        return json_is_number(v) ? json_real(json_number_value(v)) : NULL;
    bool fits = p->type == PARAM_BOOL ? json_is_boolean(v) : json_is_string(v);
    return fits ? json_incref((json_t *)(uintptr_t)v) : NULL;
}

static enum status fit_domain(
    const struct node_param *param, const struct sweep_param *at, const char *type,
    const json_t *raw, struct err *e)
{
    struct graph_node node = {.id = at->node_id, .type = type};
    char fault[768];
    size_t i;
    json_t *v;
    json_array_foreach(raw, i, v)
    {
        json_t *value = as_param(param, v);
        if (!value) {
            char *text = json_text(v, false);
            enum status st = err_set(
                e, ST_INVALID, "%s.%s is of type %s: %.100s is not", at->node_id, at->param,
                param_type_name(param->type), text);
            mem_free(text);
            return st;
        }
        (void)json_array_append_new(at->domain, value);
    }
    /* Of one type by now, so that 1 and 1.0 are the same value. */
    json_t *seen = json_object();
    json_array_foreach(at->domain, i, v)
    {
        char *text = json_text(v, false);
        bool repeated = json_object_get(seen, text) != NULL;
        json_put_bool(seen, text, true);
        mem_free(text);
        if (repeated) {
            json_decref(seen);
            return err_set(
                e, ST_INVALID, "%s.%s: value %zu of its list is there twice", at->node_id,
                at->param, i + 1);
        }
    }
    json_decref(seen);
    json_array_foreach(at->domain, i, v) if (
        graph_value_fault(
            &node, param, v, true, fault, sizeof fault)) return err_set(e, ST_INVALID, "%s", fault);
    return ST_OK;
}

/* ---- parameters -------------------------------------------------------------------------------
 */

static enum status find_param(
    const json_t *graph, const struct sweep_param *at, const struct node_param **out,
    const char **type, struct err *e)
{
    const json_t *found = NULL, *nodes = json_object_get(graph, "nodes");
    size_t i;
    json_t *node;
    json_array_foreach(nodes, i, node)
    {
        if (!str_eq(json_get_str(node, "id", NULL), at->node_id))
            continue;
        if (found)
            return err_set(e, ST_INVALID, "two nodes have the id \"%.100s\"", at->node_id);
        found = node;
    }
    if (!found) {
        (void)err_set(e, ST_INVALID, "the graph has no node \"%.100s\"", at->node_id);
        err_hint(e, "Nodes inside a preset or a subgraph cannot vary.");
        return ST_INVALID;
    }
    *type = json_get_str(found, "type", "");
    const struct node_type *kind = node_type_find(*type);
    if (!kind)
        return err_set(
            e, ST_INVALID, "node \"%.100s\" is a preset, a subgraph or of an unknown type: %.100s",
            at->node_id, *type);
    *out = node_param_find(kind, at->param);
    if (!*out) {
        const char *near = node_param_nearest(kind, at->param);
        (void)err_set(
            e, ST_INVALID, "node \"%.100s\" (%s) has no parameter \"%.100s\"", at->node_id, *type,
            at->param);
        if (near)
            err_hint(e, "Did you mean \"%s\"?", near);
        return ST_INVALID;
    }
    enum param_type t = (*out)->type;
    if (t != PARAM_INT && t != PARAM_FLOAT && t != PARAM_BOOL && t != PARAM_STRING &&
        t != PARAM_SELECT)
        return err_set(
            e, ST_INVALID, "%.100s.%s is of type %s, which cannot vary", at->node_id, at->param,
            param_type_name(t));
    return ST_OK;
}

static enum status read_param(
    const json_t *row, size_t i, const json_t *graph, const struct sweep_limits *limits,
    struct sweep_plan *p, struct err *e)
{
    static const char *const keys[] = {"node_id", "param", "values", "range", NULL};
    TRY(known_keys(row, "a parameter of a sweep", keys, e));
    const char *node_id = json_get_str(row, "node_id", NULL),
               *name = json_get_str(row, "param", NULL);
    const json_t *values = json_object_get(row, "values"), *range = json_object_get(row, "range");
    const struct node_param *param = NULL;
    const char *type = "";
    values = json_is_null(values) ? NULL : values;
    range = json_is_null(range) ? NULL : range;
    if (!node_id || !name)
        return err_set(e, ST_UNPROCESSABLE, "params[%zu] needs texts node_id and param", i);
    if (!values == !range)
        return err_set(e, ST_INVALID, "params[%zu] needs values or a range, and not both", i);
    struct sweep_param *at = &p->params[p->n_params++];
    *at = (struct sweep_param){mem_strdup(node_id), mem_strdup(name), json_array()};
    for (size_t k = 0; k + 1 < p->n_params; k++)
        if (str_eq(p->params[k].node_id, node_id) && str_eq(p->params[k].param, name))
            return err_set(e, ST_INVALID, "%.100s.%.100s varies twice", node_id, name);
    json_t *raw = json_array();
    enum status st =
        values ? read_values(values, i, limits, raw, e) : read_range(range, i, limits, raw, e);
    if (st == ST_OK)
        st = find_param(graph, at, &param, &type, e);
    if (st == ST_OK)
        st = fit_domain(param, at, type, raw, e);
    json_decref(raw);
    return st;
}

/* ---- the whole --------------------------------------------------------------------------------
 */

static enum status count_all(struct sweep_plan *p, struct err *e)
{
    p->total = 1;
    for (size_t i = 0; i < p->n_params; i++) {
        p->total *= json_array_size(p->params[i].domain);
        if (p->total > UINT64_C(1) << 32)
            return err_set(e, ST_INVALID, "the sweep has more than 2^32 combinations");
    }
    return ST_OK;
}

static enum status
choose(const json_t *spec, const struct sweep_limits *limits, struct sweep_plan *p, struct err *e)
{
    const json_t *samples = json_object_get(spec, "samples");
    samples = json_is_null(samples) ? NULL : samples;
    if (!p->random && samples)
        return err_set(
            e, ST_INVALID, "sweep_spec.samples belongs to random sweeps: a grid is whole");
    int64_t n = p->random ? json_integer_value(samples) : (int64_t)p->total;
    if (p->random && (!json_is_integer(samples) || n < 1 || n > limits->runs))
        return err_set(
            e, ST_INVALID, "a random sweep needs sweep_spec.samples, a whole number, 1 to %lld",
            (long long)limits->runs);
    if (n > (int64_t)p->total)
        return err_set(
            e, ST_INVALID, "sweep_spec.samples is %lld, but there are %lld combinations",
            (long long)n, (long long)p->total);
    if (n > limits->runs)
        return err_set(
            e, ST_INVALID, "the grid has %lld variants, more than %lld", (long long)n,
            (long long)limits->runs);
    p->n = (size_t)n;
    p->chosen = mem_alloc(p->n * sizeof *p->chosen);
    for (size_t i = 0; i < p->n && !p->random; i++)
        p->chosen[i] = i;
    if (p->random)
        sweep_draw(p->seed, p->total, p->n, p->chosen);
    return ST_OK;
}

enum status sweep_plan_make(
    const json_t *spec, const json_t *graph, const struct sweep_limits *limits,
    struct sweep_plan *out, struct err *e)
{
    static const char *const keys[] = {"method", "params", "seed", "samples", NULL};
    *out = (struct sweep_plan){0};
    TRY(known_keys(spec, "sweep_spec", keys, e));
    const char *method = json_get_str(spec, "method", "");
    const json_t *params = json_object_get(spec, "params");
    size_t i, n = json_array_size(params);
    json_t *row;
    out->random = str_eq(method, "random");
    if (!out->random && !str_eq(method, "grid"))
        return err_set(e, ST_INVALID, "sweep_spec.method is grid or random");
    if (!json_is_array(params) || n < 1 || (int64_t)n > limits->params || n > SWEEP_PARAMS_MAX)
        return err_set(
            e, ST_INVALID, "sweep_spec.params is a list of 1 to %lld",
            (long long)(limits->params < SWEEP_PARAMS_MAX ? limits->params : SWEEP_PARAMS_MAX));
    TRY(read_seed(spec, out, e));
    json_array_foreach(params, i, row) TRY(read_param(row, i, graph, limits, out, e));
    TRY(count_all(out, e));
    return choose(spec, limits, out, e);
}

void sweep_plan_release(struct sweep_plan *p)
{
    for (size_t i = 0; i < p->n_params; i++) {
        mem_free(p->params[i].node_id);
        mem_free(p->params[i].param);
        json_decref(p->params[i].domain);
    }
    mem_free(p->chosen);
    *p = (struct sweep_plan){0};
}

/* The value of every parameter; the last one counts fastest. */
static void
digits(const struct sweep_plan *p, uint64_t combination, json_t *values[SWEEP_PARAMS_MAX])
{
    for (size_t i = p->n_params; i-- > 0;) {
        size_t n = json_array_size(p->params[i].domain);
        values[i] = json_array_get(p->params[i].domain, (size_t)(combination % n));
        combination /= n;
    }
}

json_t *sweep_plan_patch(const struct sweep_plan *p, uint64_t combination)
{
    json_t *patch = json_object(), *values[SWEEP_PARAMS_MAX];
    digits(p, combination, values);
    for (size_t i = 0; i < p->n_params; i++) {
        json_t *node = json_object_get(patch, p->params[i].node_id);
        if (!node) {
            node = json_object();
            json_put(patch, p->params[i].node_id, node);
        }
        json_put(node, p->params[i].param, json_incref(values[i]));
    }
    return patch;
}

json_t *sweep_plan_values(const struct sweep_plan *p, uint64_t combination)
{
    json_t *list = json_array(), *values[SWEEP_PARAMS_MAX];
    digits(p, combination, values);
    for (size_t i = 0; i < p->n_params; i++) {
        json_t *row = json_object();
        json_put_str(row, "node_id", p->params[i].node_id);
        json_put_str(row, "param", p->params[i].param);
        json_put(row, "value", json_incref(values[i]));
        (void)json_array_append_new(list, row);
    }
    return list;
}

json_t *sweep_plan_params(const struct sweep_plan *p)
{
    json_t *list = json_array();
    for (size_t i = 0; i < p->n_params; i++) {
        json_t *row = json_object();
        json_put_str(row, "node_id", p->params[i].node_id);
        json_put_str(row, "param", p->params[i].param);
        json_put(row, "domain", json_incref(p->params[i].domain));
        (void)json_array_append_new(list, row);
    }
    return list;
}

enum status sweep_plan_read_params(const json_t *params, struct sweep_plan *out, struct err *e)
{
    size_t i;
    json_t *row;
    *out = (struct sweep_plan){.total = 1};
    json_array_foreach(params, i, row)
    {
        json_t *domain = json_object_get(row, "domain");
        if (i >= SWEEP_PARAMS_MAX || json_array_size(domain) < 1)
            return err_set(e, ST_IO, "could not read the database: a sweep's row is damaged");
        out->params[out->n_params++] = (struct sweep_param){
            mem_strdup(json_get_str(row, "node_id", "")),
            mem_strdup(json_get_str(row, "param", "")), json_incref(domain)};
        out->total *= json_array_size(domain);
    }
    return ST_OK;
}
