/* outputs_read.c - parts of recorded outputs, as the API gives them. */
#include "record/outputs_int.h"

#include "base/mem.h"

#include <string.h>

enum { TEXT_MAX = 4000, LIST_MAX = 1024, SPAN_MAX = 1 << 16 };

/* ---- slices ---- */

/* What is taken of one dimension: `n` places from `first`, `step` apart. */
struct taken {
    int64_t first, step, n;
    bool single; /* an index: the dimension goes away */
};

static enum status bad_piece(const char *piece, size_t n, struct err *e)
{
    return err_set(
        e, ST_INVALID, "slice: \"%.*s\" is no index and no START:STOP:STEP", (int)(n < 40 ? n : 40),
        piece);
}

static enum status
read_number(const char *text, size_t n, int64_t fallback, int64_t *out, struct err *e)
{
    char word[24];
    str_copy_trimmed(word, sizeof word, text, n);
    *out = fallback;
    if (!word[0])
        return ST_OK;
    return n < sizeof word && str_to_i64(word, out) ? ST_OK : bad_piece(text, n, e);
}

static int64_t clamp(int64_t at, int64_t size)
{
    at = at < 0 ? at + size : at;
    return at < 0 ? 0 : at > size ? size : at;
}

/* Python's meaning; steps above 0 only, as tensors have it. */
static enum status
read_range(const char *text, size_t n, int64_t size, struct taken *out, struct err *e)
{
    const char *first = memchr(text, ':', n), *end = text + n;
    const char *second = memchr(first + 1, ':', (size_t)(end - first - 1));
    int64_t start, stop, step;
    if (second && memchr(second + 1, ':', (size_t)(end - second - 1)))
        return bad_piece(text, n, e);
    TRY(read_number(text, (size_t)(first - text), 0, &start, e));
    TRY(read_number(first + 1, (size_t)((second ? second : end) - first - 1), size, &stop, e));
    step = 1;
    if (second)
        TRY(read_number(second + 1, (size_t)(end - second - 1), 1, &step, e));
    if (step < 1)
        return err_set(e, ST_INVALID, "slice: a step must be 1 or more");
    start = clamp(start, size);
    stop = clamp(stop, size);
    *out = (struct taken){.first = start, .step = step};
    out->n = stop > start ? (stop - start - 1) / step + 1 : 0;
    return ST_OK;
}

static enum status
read_piece(const char *text, size_t n, int dim, int64_t size, struct taken *out, struct err *e)
{
    int64_t at;
    char word[24];
    str_copy_trimmed(word, sizeof word, text, n);
    if (!word[0]) {
        *out = (struct taken){.step = 1, .n = size};
        return ST_OK;
    }
    if (memchr(text, ':', n))
        return read_range(text, n, size, out, e);
    if (n >= sizeof word || !str_to_i64(word, &at))
        return bad_piece(text, n, e);
    if (at < -size || at >= size)
        return err_set(
            e, ST_INVALID, "slice: dimension %d has no index %lld: its size is %lld", dim,
            (long long)at, (long long)size);
    *out = (struct taken){.first = at < 0 ? at + size : at, .step = 1, .n = 1, .single = true};
    return ST_OK;
}

static enum status read_slice(
    const char *slice, const struct output *o, struct taken out[RECORD_RANK_MAX], struct err *e)
{
    for (int i = 0; i < o->rank; i++)
        out[i] = (struct taken){.step = 1, .n = o->shape[i]};
    if (!slice || !slice[0])
        return ST_OK;
    const char *at = slice;
    for (int i = 0;; i++) {
        size_t n = strcspn(at, ",");
        if (i >= o->rank)
            return err_set(
                e, ST_INVALID, "slice: more than the %d dimensions that there are", o->rank);
        TRY(read_piece(at, n, i, o->shape[i], &out[i], e));
        if (!at[n])
            return ST_OK;
        at += n + 1;
    }
}

/* ---- gathering ---- */

/* One line along the last dimension. */
static enum status
load_line(const struct output *o, int64_t from, const struct taken *t, char *to, struct err *e)
{
    int size = record_dtype_bytes(o->dtype);
    int64_t span = (t->n - 1) * t->step + 1;
    if (t->step == 1)
        return output_load(o, from + t->first, t->n, to, e);
    char buf[SPAN_MAX];
    if (span * size <= SPAN_MAX) {
        TRY(output_load(o, from + t->first, span, buf, e));
        for (int64_t i = 0; i < t->n; i++)
            memcpy(to + i * size, buf + i * t->step * size, (size_t)size);
        return ST_OK;
    }
    for (int64_t i = 0; i < t->n; i++)
        TRY(output_load(o, from + t->first + i * t->step, 1, to + i * size, e));
    return ST_OK;
}

static enum status gather(const struct output *o, const struct taken *t, char *to, struct err *e)
{
    int last = o->rank - 1;
    int64_t at[RECORD_RANK_MAX] = {0}, line = last >= 0 ? t[last].n : 1;
    size_t bytes = (size_t)(line * record_dtype_bytes(o->dtype));
    if (o->rank == 0)
        return output_load(o, 0, 1, to, e);
    for (;;) {
        int64_t from = 0;
        for (int i = 0; i < last; i++)
            from = (from + t[i].first + at[i] * t[i].step) * o->shape[i + 1];
        TRY(load_line(o, from, &t[last], to, e));
        to += bytes;
        int i = last - 1;
        while (i >= 0 && ++at[i] == t[i].n)
            at[i--] = 0;
        if (i < 0)
            return ST_OK;
    }
}

/* ---- answers ---- */

static void put_extremes(json_t *answer, const struct record_tensor *part)
{
    json_t *s = summary_tensor(part);
    static const char *const keys[] = {"min", "max", "mean"};
    for (int i = 0; i < 3; i++)
        if (json_object_get(s, keys[i]))
            json_put(answer, keys[i], json_incref(json_object_get(s, keys[i])));
    json_decref(s);
}

static json_t *
part_json(const struct output *o, const struct taken *t, const char *slice, const char *data)
{
    int64_t shape[RECORD_RANK_MAX];
    char dtype[32];
    struct record_tensor part = {.dtype = o->dtype, .shape = shape, .data = data};
    json_t *a = json_object(), *sliced = json_array();
    for (int i = 0; i < o->rank; i++) {
        if (t[i].single)
            continue;
        shape[part.rank++] = t[i].n;
        (void)json_array_append_new(sliced, json_integer(t[i].n));
    }
    (void)snprintf(dtype, sizeof dtype, "torch.%s", record_dtype_name(o->dtype));
    json_put_str(a, "type", "tensor");
    json_put(a, "full_shape", output_shape_json(o));
    json_put_str(a, "dtype", dtype);
    json_put_str(a, "slice", slice ? slice : "");
    json_put(a, "sliced_shape", sliced);
    json_put(a, "values", record_values(&part));
    json_put_bool(a, "truncated", false);
    put_extremes(a, &part);
    return a;
}

static enum status
read_tensor(const struct output *o, const char *slice, int64_t max, json_t **out, struct err *e)
{
    struct taken t[RECORD_RANK_MAX];
    int64_t n = 1;
    TRY(read_slice(slice, o, t, e));
    for (int i = 0; i < o->rank; i++)
        n = t[i].n && n > INT64_MAX / t[i].n ? INT64_MAX : n * t[i].n;
    if (n > max)
        return err_set(
            e, ST_TOO_LARGE,
            "this part has %lld elements, more than the %lld of max_elements: take a smaller slice",
            (long long)n, (long long)max);
    char *data = mem_try_alloc((size_t)(n * record_dtype_bytes(o->dtype)) + 1);
    if (!data)
        return err_set(e, ST_OOM, "no memory for %lld elements", (long long)n);
    enum status st = n ? gather(o, t, data, e) : ST_OK;
    if (st == ST_OK)
        *out = part_json(o, t, slice, data);
    mem_free(data);
    return st;
}

/* The first `n` bytes of a text, whole characters only. */
static json_t *cut(const json_t *text, size_t n)
{
    size_t all = json_string_length(text);
    const char *s = json_string_value(text);
    if (n >= all)
        return json_stringn(s, all);
    while (n > 0 && ((unsigned char)s[n] & 0xc0) == 0x80)
        n--;
    return json_stringn(s, n);
}

static json_t *value_json(const struct output *o)
{
    json_t *value = json_object_get(o->line, "value"), *a = summary_value(o->kind, value);
    if (json_is_string(value))
        json_put(a, "value", cut(value, TEXT_MAX));
    if (strcmp(o->kind, "dict") == 0 && value)
        json_put(a, "value", json_deep_copy(value)); /* ours: whole, it is at most 1 MiB */
    if (json_is_array(value)) {
        char *text = json_text(value, false);
        json_t *repr = json_string(text);
        json_put(a, "repr", cut(repr, TEXT_MAX));
        json_decref(repr);
        mem_free(text);
        if (json_array_size(value) <= LIST_MAX)
            json_put(a, "values", json_deep_copy(value));
    }
    return a;
}

enum status outputs_read(
    const char *run_dir, const char *node, const char *port, const char *slice,
    int64_t max_elements, json_t **out, struct err *e)
{
    struct output o;
    json_t *part = NULL;
    if (max_elements < 0 || max_elements > OUTPUTS_ELEMENTS_MAX)
        return err_set(
            e, ST_INVALID, "max_elements: at least 1 and at most %d", OUTPUTS_ELEMENTS_MAX);
    TRY(output_open(run_dir, node, port, &o, e));
    enum status st = ST_OK;
    if (o.fd >= 0)
        st = read_tensor(&o, slice, max_elements ? max_elements : OUTPUTS_ELEMENTS, &part, e);
    else
        part = value_json(&o);
    output_close(&o);
    if (st != ST_OK)
        return st;
    *out = output_answer(run_dir, node, port);
    (void)json_object_update(*out, part);
    json_decref(part);
    return ST_OK;
}

enum status outputs_list(const char *run_dir, json_t **out, struct err *e)
{
    json_t *lines, *line;
    size_t i;
    TRY(output_lines(run_dir, &lines, e));
    *out = json_array();
    json_array_foreach(lines, i, line)
    {
        const char *kind = json_get_str(line, "kind", "");
        json_t *row = json_object(), *shape = json_object_get(line, "shape");
        json_put_str(row, "node_id", json_get_str(line, "node", ""));
        json_put_str(row, "port", json_get_str(line, "port", ""));
        json_put_str(
            row, "type",
            strcmp(kind, "value") == 0 ? json_get_str(json_object_get(line, "value"), "type", kind)
                                       : kind);
        json_put(row, "full_shape", shape ? json_incref(shape) : json_null());
        (void)json_array_append_new(*out, row);
    }
    json_decref(lines);
    return ST_OK;
}

/* ---- steps and gradients ---- */

/* "__step__12__meta" -> 12. */
static bool step_of(const char *port, int64_t *index)
{
    char digits[16];
    size_t n = strlen(port);
    if (!str_starts(port, "__step__") || !str_ends(port, "__meta") || n < 15 ||
        n - 14 >= sizeof digits)
        return false;
    memcpy(digits, port + 8, n - 14);
    digits[n - 14] = 0;
    return str_to_i64(digits, index) && *index >= 0;
}

static void add_step(json_t *list, const char *port, const json_t *line)
{
    int64_t index;
    json_t *row = json_object(), *value = json_object_get(line, "value");
    if (!step_of(port, &index) || !json_is_object(value)) {
        json_decref(row);
        return;
    }
    json_put_i64(row, "index", index);
    (void)json_object_update_missing(row, value);
    size_t at = 0;
    while (at < json_array_size(list) && json_get_i64(json_array_get(list, at), "index", 0) < index)
        at++;
    (void)json_array_insert_new(list, at, row);
}

static const json_t *health_of(const json_t *lines, const char *node, const char *port)
{
    size_t i;
    json_t *line;
    struct str name;
    const json_t *health = NULL;
    str_init(&name);
    str_printf(&name, "%s__meta", port);
    json_array_foreach(lines, i, line) if (
        str_eq(json_get_str(line, "node", ""), node) &&
        str_eq(json_get_str(line, "port", ""), name.data)) health = json_object_get(line, "value");
    str_release(&name);
    return json_is_object(health) ? health : NULL;
}

static void add_gradient(json_t *list, const char *port, const json_t *lines, const char *node)
{
    bool weight = str_starts(port, "__weight_grad__");
    if (str_ends(port, "__meta") || (!weight && !str_ends(port, "__grad")))
        return;
    const json_t *health = health_of(lines, node, port);
    json_t *row = json_object();
    size_t n = strlen(port);
    json_put(
        row, "port",
        weight ? json_string(port + strlen("__weight_grad__")) : json_stringn(port, n - 6));
    json_put_str(row, "kind", weight ? "weight" : "port");
    json_put_bool(row, "has_grad", true);
    json_put(row, "health", health ? json_deep_copy(health) : json_null());
    (void)json_array_append_new(list, row);
}

enum status
outputs_index(const char *run_dir, const char *node, const char *which, json_t **out, struct err *e)
{
    json_t *lines, *line;
    size_t i;
    bool steps = strcmp(which, "__steps_index") == 0;
    TRY(output_lines(run_dir, &lines, e));
    *out = json_array();
    json_array_foreach(lines, i, line)
    {
        const char *port = json_get_str(line, "port", "");
        if (!str_eq(json_get_str(line, "node", ""), node))
            continue;
        if (steps)
            add_step(*out, port, line);
        else
            add_gradient(*out, port, lines, node);
    }
    json_decref(lines);
    return ST_OK;
}
