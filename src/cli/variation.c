/* variation.c - parameters that vary, from words to JSON. */
#include "cli/variation.h"

#include "base/env.h"
#include "cli/queued.h"

#include <math.h>
#include <string.h>

enum { FILE_BYTES_MAX = 64 << 20, WORD = 256 };

/* ---- NODE.PARAM=VALUES ---- */

/* A word as JSON: a whole number, a number, true, false, else a text. */
static json_t *value_of(const char *text)
{
    int64_t i;
    double f;
    if (str_to_i64(text, &i))
        return json_integer(i);
    if (str_to_f64(text, &f) && isfinite(f))
        return json_real(f);
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
        return json_boolean(text[0] == 't');
    return json_string(text);
}

/* The node of the graph with this id, or the only one of this type. */
static enum status find_node(const char *name, const json_t *graph, const char **id, struct err *e)
{
    const json_t *nodes = json_object_get(graph, "nodes");
    const char *of_type = NULL;
    size_t i, n = 0;
    json_t *node;
    json_array_foreach(nodes, i, node)
    {
        const char *own = json_get_str(node, "id", "");
        if (strcmp(own, name) == 0) {
            *id = own;
            return ST_OK;
        }
        if (strcmp(json_get_str(node, "type", ""), name) == 0 && n++ == 0)
            of_type = own;
    }
    if (n == 1) {
        *id = of_type;
        return ST_OK;
    }
    if (n > 1)
        return err_set(
            e, ST_USAGE, "%zu nodes of the graph are of type \"%s\": name one by its id", n, name);
    return err_set(e, ST_USAGE, "the graph has no node \"%s\"", name);
}

/* "1e-4..1e-2:3:log:int" */
static enum status range_of(const char *text, json_t **out, struct err *e)
{
    char low[WORD], high[WORD], word[WORD];
    double min, max;
    int64_t count;
    const char *dots = strstr(text, ".."), *colon = dots ? strchr(dots, ':') : NULL;
    bool logarithmic = false, whole = false;
    if (!colon)
        return err_set(e, ST_USAGE, "a range is MIN..MAX:COUNT, not \"%.100s\"", text);
    str_copy_trimmed(low, sizeof low, text, (size_t)(dots - text));
    str_copy_trimmed(high, sizeof high, dots + 2, (size_t)(colon - dots - 2));
    size_t n = strcspn(colon + 1, ":");
    str_copy_trimmed(word, sizeof word, colon + 1, n);
    if (!str_to_f64(low, &min) || !str_to_f64(high, &max) || !str_to_i64(word, &count))
        return err_set(e, ST_USAGE, "a range is MIN..MAX:COUNT, not \"%.100s\"", text);
    for (colon += 1 + n; *colon; colon += 1 + n) {
        n = strcspn(colon + 1, ":");
        str_copy_trimmed(word, sizeof word, colon + 1, n);
        if (strcmp(word, "log") == 0)
            logarithmic = true;
        else if (strcmp(word, "int") == 0)
            whole = true;
        else
            return err_set(e, ST_USAGE, "a range ends with log or int, not \"%.100s\"", word);
    }
    *out = json_pack(
        "{s:o, s:o, s:I, s:s, s:s}", "min", value_of(low), "max", value_of(high), "count",
        (json_int_t)count, "scale", logarithmic ? "log" : "linear", "type",
        whole ? "int" : "float");
    return ST_OK;
}

static json_t *list_of(const char *text)
{
    json_t *list = json_array();
    while (*text) {
        char word[WORD];
        size_t n = strcspn(text, ",");
        str_copy_trimmed(word, sizeof word, text, n);
        (void)json_array_append_new(list, value_of(word));
        text += n + (text[n] == ',');
    }
    return list;
}

enum status variation_param(const char *text, const json_t *graph, json_t **out, struct err *e)
{
    char left[WORD], *dot;
    const char *equals = strchr(text, '='), *id = "";
    json_t *row, *range = NULL;
    *out = NULL;
    str_copy_trimmed(left, sizeof left, text, equals ? (size_t)(equals - text) : strlen(text));
    dot = strrchr(left, '.');
    if (!equals || !equals[1] || !dot || dot == left || !dot[1])
        return err_set(e, ST_USAGE, "--param wants NODE.PARAM=VALUES, not \"%.100s\"", text);
    *dot = 0;
    TRY(find_node(left, graph, &id, e));
    if (strstr(equals + 1, ".."))
        TRY(range_of(equals + 1, &range, e));
    row = json_pack("{s:s, s:s}", "node_id", id, "param", dot + 1);
    json_put(row, range ? "range" : "values", range ? range : list_of(equals + 1));
    *out = row;
    return ST_OK;
}

enum status variation_objective(const char *text, json_t **out, struct err *e)
{
    bool min = str_starts(text, "min:"), max = str_starts(text, "max:");
    *out = NULL;
    if ((!min && !max) || !text[4])
        return err_set(
            e, ST_USAGE, "--objective wants min:METRIC or max:METRIC, not \"%.100s\"", text);
    *out = json_pack("{s:s, s:s}", "metric", text + 4, "direction", min ? "minimize" : "maximize");
    return ST_OK;
}

/* ---- bodies ---- */

static enum status spec_of(const struct args *a, const json_t *graph, json_t **out, struct err *e)
{
    const struct option_value *v = a->option, *params = &v[OPTION_PARAM];
    json_t *list = json_array(), *spec = json_object(), *row;
    *out = spec;
    json_put(spec, "params", list);
    json_put_str(spec, "method", v[OPTION_SAMPLES].given ? "random" : "grid");
    if (v[OPTION_SAMPLES].given)
        json_put_i64(spec, "samples", v[OPTION_SAMPLES].number);
    if (v[OPTION_SEED].given)
        json_put_i64(spec, "seed", v[OPTION_SEED].number);
    for (size_t i = 0; i < params->list.n; i++) {
        TRY(variation_param(params->list.data[i], graph, &row, e));
        (void)json_array_append_new(list, row);
    }
    return ST_OK;
}

/* A file that is a body; its base_graph may name a graph file beside it. */
static enum status body_from_file(const char *path, json_t *body, struct err *e)
{
    char dir[1024], whole[2048];
    const char *named = json_get_str(body, "base_graph", NULL);
    json_t *graph;
    if (!named)
        return ST_OK;
    (void)path_join(path_dir(path, dir, sizeof dir), named, whole, sizeof whole);
    TRY(json_read_file(whole, FILE_BYTES_MAX, &graph, e));
    json_put(body, "base_graph", graph);
    return ST_OK;
}

static enum status body_from_graph(
    const struct args *a, const struct client *c, const char *path, bool needs_params, json_t *body,
    struct err *e)
{
    const struct option_value *v = a->option;
    json_t *options = NULL, *graph = NULL, *spec = NULL, *objective;
    bool varies = v[OPTION_PARAM].given;
    if ((needs_params && !varies) || !v[OPTION_OBJECTIVE].given)
        return err_set(
            e, ST_USAGE,
            "\"%s\" is a graph: --param and --objective say what varies and what counts", path);
    TRY(queued_options(a, &options, e));
    json_put(body, "options", options);
    (void)json_object_del(options, "seed"); /* it is the spec's */
    TRY(queued_graph(a, path, c, options, &graph, e));
    json_put(body, "base_graph", graph);
    enum status st = varies ? spec_of(a, graph, &spec, e) : ST_OK;
    if (spec)
        json_put(body, "sweep_spec", spec);
    if (st != ST_OK)
        return st;
    TRY(variation_objective(v[OPTION_OBJECTIVE].text, &objective, e));
    json_put(body, "objective", objective);
    if (json_object_size(options) == 0)
        (void)json_object_del(body, "options");
    if (v[OPTION_SEED_VARIANTS].given)
        json_put_bool(body, "seed_variants", true);
    return ST_OK;
}

enum status variation_body(
    const struct args *a, const struct client *c, const char *path, bool needs_params, json_t **out,
    struct err *e)
{
    json_t *file;
    *out = NULL;
    TRY(json_read_file(path, FILE_BYTES_MAX, &file, e));
    bool is_body = json_object_get(file, "base_graph") || json_object_get(file, "sweep_spec");
    json_t *body = is_body ? file : json_object();
    if (!is_body)
        json_decref(file);
    if (is_body && a->option[OPTION_PARAM].given) {
        json_decref(body);
        return err_set(e, ST_USAGE, "\"%s\" says itself what varies: no --param", path);
    }
    enum status st = is_body ? body_from_file(path, body, e)
                             : body_from_graph(a, c, path, needs_params, body, e);
    if (st == ST_OK && a->option[OPTION_NAME].given)
        json_put_str(body, "name", a->option[OPTION_NAME].text);
    if (st == ST_OK)
        *out = body;
    else
        json_decref(body);
    return st;
}
