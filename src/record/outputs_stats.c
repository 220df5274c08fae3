/* outputs_stats.c - statistics of recorded outputs: a kilobyte, whatever the tensor's size.
 *
 * One pass over the file gives what must be exact (counts, extremes); a sample what describes the
 * distribution of a large tensor. The sample is the same for the same file: places drawn by a fixed
 * seed, in order. How large is large, and the sample: settings of the server (server/config.def).
 */
#include "record/outputs_int.h"

#include "base/config.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 16, TOP = 10, TEXT_MAX = 120, ROWS_MAX = 200000 };

struct scan {
    int64_t nan_n, inf_n, zero_n, finite_n;
    double low, high; /* of finite elements */
};

/* The elements that the distribution comes from, finite ones only. */
struct sample {
    double *v;
    int64_t n;
};

/* ---- passes ---- */

static enum status each_chunk(
    const struct output *o,
    void (*each)(const struct output *o, const char *data, int64_t n, void *ctx), void *ctx,
    struct err *e)
{
    enum status st = ST_OK;
    char *buf = mem_alloc((size_t)CHUNK * (size_t)record_dtype_bytes(o->dtype));
    for (int64_t at = 0; at < o->count && st == ST_OK; at += CHUNK) {
        int64_t n = o->count - at < CHUNK ? o->count - at : CHUNK;
        st = output_load(o, at, n, buf, e);
        if (st == ST_OK)
            each(o, buf, n, ctx);
    }
    mem_free(buf);
    return st;
}

static void scan_chunk(const struct output *o, const char *data, int64_t n, void *ctx)
{
    struct scan *s = ctx;
    for (int64_t i = 0; i < n; i++) {
        double v = record_load(o->dtype, data, i);
        s->nan_n += isnan(v);
        s->inf_n += isinf(v) != 0;
        s->zero_n += v == 0;
        if (!isfinite(v))
            continue;
        s->low = s->finite_n == 0 || v < s->low ? v : s->low;
        s->high = s->finite_n == 0 || v > s->high ? v : s->high;
        s->finite_n++;
    }
}

static void sample_chunk(const struct output *o, const char *data, int64_t n, void *ctx)
{
    struct sample *s = ctx;
    for (int64_t i = 0; i < n; i++) {
        double v = record_load(o->dtype, data, i);
        if (isfinite(v))
            s->v[s->n++] = v;
    }
}

static int64_t setting(const char *variable, const char *key, int64_t fallback)
{
    struct err odd; /* the server refuses to start with such a one */
    int64_t value;
    return config_count(variable, key, fallback, &value, &odd) == ST_OK && value > 0 ? value
                                                                                     : fallback;
}

/* How many elements to draw from; 0: all are looked at. */
static int64_t sample_size(int64_t count)
{
    if (count <=
        setting("SNUG_STATS_SAMPLE_THRESHOLD", "stats_sample_threshold", OUTPUTS_SAMPLE_ABOVE))
        return 0;
    int64_t n = setting("SNUG_STATS_SAMPLE_SIZE", "stats_sample_size", OUTPUTS_SAMPLE);
    return n < count ? n : 0;
}

/* One place in each of n equal stretches: in order, and without repetition. */
static enum status draw(const struct output *o, int64_t n, struct sample *s, struct err *e)
{
    struct rng r;
    char *buf = mem_alloc((size_t)CHUNK * (size_t)record_dtype_bytes(o->dtype));
    enum status st = ST_OK;
    int64_t loaded = -1;
    rng_init(&r, 0, 0, 0);
    for (int64_t i = 0; i < n && st == ST_OK; i++) {
        double part = (double)o->count / (double)n;
        int64_t at = (int64_t)(((double)i + rng_f64(&r)) * part);
        at = at >= o->count ? o->count - 1 : at;
        int64_t from = at / CHUNK * CHUNK;
        if (from != loaded) {
            int64_t part_n = o->count - from < CHUNK ? o->count - from : CHUNK;
            st = output_load(o, from, part_n, buf, e);
            loaded = from;
        }
        if (st == ST_OK)
            sample_chunk(o, buf + (at - from) * record_dtype_bytes(o->dtype), 1, s);
    }
    mem_free(buf);
    return st;
}

struct counts {
    int64_t low, n[OUTPUTS_BINS];
};

static void count_chunk(const struct output *o, const char *data, int64_t n, void *ctx)
{
    struct counts *c = ctx;
    for (int64_t i = 0; i < n; i++)
        c->n[(int64_t)record_load(o->dtype, data, i) - c->low]++;
}

/* ---- what comes of them ---- */

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *whole(const struct output *o, double v)
{
    return record_dtype_is_floating(o->dtype) ? number(v) : json_integer((json_int_t)v);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Linear between neighbours, as numpy.quantile. */
static double quantile(const struct sample *s, double q)
{
    double at = q * (double)(s->n - 1);
    int64_t low = (int64_t)floor(at), high = low + 1 < s->n ? low + 1 : low;
    double part = at - (double)low;
    return s->v[low] * (1 - part) + s->v[high] * part;
}

static json_t *quantiles(const struct sample *s)
{
    static const int percent[] = {1, 5, 25, 50, 75, 95, 99};
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof percent / sizeof *percent; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "p%d", percent[i]);
        json_put(o, name, number(quantile(s, percent[i] / 100.0)));
    }
    return o;
}

static void put_moments(json_t *d, const struct sample *s)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < s->n; i++)
        sum += s->v[i];
    double mean = sum / (double)s->n;
    for (int64_t i = 0; i < s->n; i++)
        squares += (s->v[i] - mean) * (s->v[i] - mean);
    json_put(d, "mean", number(mean));
    json_put(d, "std", number(sqrt(squares / (double)s->n)));
}

static json_t *histogram(const struct sample *s, double low, double high)
{
    int bins = high > low ? OUTPUTS_BINS : 1;
    int64_t n[OUTPUTS_BINS] = {0};
    double width = (high - low) / bins;
    json_t *o = json_object(), *edges = json_array(), *counts = json_array();
    for (int64_t i = 0; i < s->n; i++) {
        int64_t b = bins > 1 ? (int64_t)((s->v[i] - low) / width) : 0;
        n[b < 0 ? 0 : b >= bins ? bins - 1 : b]++;
    }
    for (int i = 0; i <= bins; i++)
        (void)json_array_append_new(edges, number(i == bins ? high : low + i * width));
    for (int i = 0; i < bins; i++)
        (void)json_array_append_new(counts, json_integer(n[i]));
    json_put_i64(o, "bins", bins);
    json_put(o, "edges", edges);
    json_put(o, "counts", counts);
    return o;
}

static void add_count(json_t *list, const struct output *o, int64_t value, int64_t count)
{
    json_t *row = json_object();
    json_put(
        row, "value", o->dtype == RECORD_BOOL ? json_boolean(value != 0) : json_integer(value));
    json_put_i64(row, "count", count);
    (void)json_array_append_new(list, row);
}

/* Few values that lie apart: from the sorted whole. NULL: too many. */
static json_t *count_sorted(const struct output *o, const struct sample *s)
{
    json_t *list = json_array();
    for (int64_t i = 0, k; i < s->n; i = k) {
        for (k = i; k < s->n && s->v[k] == s->v[i]; k++)
            ;
        if (json_array_size(list) == OUTPUTS_BINS) {
            json_decref(list);
            return NULL;
        }
        add_count(list, o, (int64_t)s->v[i], k - i);
    }
    return list;
}

/* *list NULL: not whole numbers, or too many different ones. */
static enum status value_counts(
    const struct output *o, const struct scan *c, const struct sample *s, bool sampled,
    json_t **list, struct err *e)
{
    *list = NULL;
    if (record_dtype_is_floating(o->dtype))
        return ST_OK;
    if (c->high - c->low >= OUTPUTS_BINS) {
        *list = sampled ? NULL : count_sorted(o, s);
        return ST_OK;
    }
    struct counts n = {.low = (int64_t)c->low};
    TRY(each_chunk(o, count_chunk, &n, e));
    *list = json_array();
    for (int i = 0; i < OUTPUTS_BINS; i++)
        if (n.n[i])
            add_count(*list, o, n.low + i, n.n[i]);
    return ST_OK;
}

static enum status
put_distribution(const struct output *o, const struct scan *c, json_t *d, struct err *e)
{
    int64_t drawn = sample_size(o->count);
    bool sampled = drawn > 0;
    struct sample s = {0};
    json_t *counts = NULL;
    size_t most = (size_t)(sampled ? drawn : o->count);
    s.v = mem_try_alloc(size_mul(most, sizeof *s.v));
    if (!s.v)
        return err_set(e, ST_OOM, "no memory for statistics of %zu elements", most);
    enum status st = sampled ? draw(o, drawn, &s, e) : each_chunk(o, sample_chunk, &s, e);
    json_put_bool(d, "sampled", sampled);
    if (sampled)
        json_put_i64(d, "sample_size", s.n);
    if (st == ST_OK && s.n) {
        put_moments(d, &s);
        qsort(s.v, (size_t)s.n, sizeof *s.v, by_value);
        json_put(d, "quantiles", quantiles(&s));
        st = value_counts(o, c, &s, sampled, &counts, e);
    }
    if (st == ST_OK && counts)
        json_put(d, "value_counts", counts);
    else if (st == ST_OK && s.n)
        json_put(d, "histogram", histogram(&s, c->low, c->high));
    mem_free(s.v);
    return st;
}

static json_t *empty_statistics(const struct output *o)
{
    static const char *const nulls[] = {"sample_size", "mean",      "std",       "min",
                                        "max",         "zero_frac", "histogram", "value_counts"};
    char dtype[32];
    json_t *d = json_object();
    (void)snprintf(dtype, sizeof dtype, "torch.%s", record_dtype_name(o->dtype));
    json_put_str(d, "kind", "tensor");
    json_put(d, "shape", output_shape_json(o));
    json_put_str(d, "dtype", dtype);
    json_put_str(d, "device", "cpu");
    json_put_i64(d, "count", o->count);
    json_put_bool(d, "sampled", false);
    for (size_t i = 0; i < sizeof nulls / sizeof *nulls; i++)
        json_put(d, nulls[i], json_null());
    json_put(d, "quantiles", json_object());
    json_put_i64(d, "nan_count", 0);
    json_put_i64(d, "inf_count", 0);
    return d;
}

static enum status tensor_stats(const struct output *o, json_t *d, struct err *e)
{
    struct scan c = {0};
    if (o->count == 0) {
        json_put_f64(d, "zero_frac", 0);
        return ST_OK;
    }
    TRY(each_chunk(o, scan_chunk, &c, e));
    json_put_i64(d, "nan_count", c.nan_n);
    json_put_i64(d, "inf_count", c.inf_n);
    json_put_f64(d, "zero_frac", (double)c.zero_n / (double)o->count);
    if (c.finite_n == 0)
        return ST_OK;
    json_put(d, "min", whole(o, c.low));
    json_put(d, "max", whole(o, c.high));
    return put_distribution(o, &c, d, e);
}

/* ---- lists of plain values: a table of one column ---- */

static json_t *cut_value(const json_t *v)
{
    if (json_is_string(v) && json_string_length(v) > TEXT_MAX) {
        size_t n = TEXT_MAX;
        while (n > 0 && ((unsigned char)json_string_value(v)[n] & 0xc0) == 0x80)
            n--;
        return json_stringn(json_string_value(v), n);
    }
    return json_deep_copy(v);
}

struct tally {
    const char *text; /* the value as JSON; borrowed from the table's keys */
    int64_t count;
    size_t first;
};

static int by_count(const void *a, const void *b)
{
    const struct tally *x = a, *y = b;
    if (x->count != y->count)
        return x->count > y->count ? -1 : 1;
    return strcmp(x->text, y->text);
}

static json_t *top_values(const json_t *list, size_t rows, json_t *column)
{
    json_t *table = json_object(), *top = json_array(), *value;
    const char *key;
    VEC(struct tally) tallies = {0};
    for (size_t i = 0; i < rows; i++) {
        char *text = json_text(json_array_get(list, i), false);
        int64_t at = json_get_i64(table, text, -1);
        if (at < 0 && !json_is_null(json_array_get(list, i))) {
            json_put_i64(table, text, (int64_t)tallies.n);
            struct tally t = {NULL, 1, i};
            vec_push(&tallies, t);
        } else if (at >= 0) {
            tallies.data[at].count++;
        }
        mem_free(text);
    }
    json_object_foreach(table, key, value) tallies.data[json_integer_value(value)].text = key;
    if (tallies.n)
        qsort(tallies.data, tallies.n, sizeof *tallies.data, by_count);
    for (size_t i = 0; i < tallies.n && i < TOP; i++) {
        json_t *row = json_object();
        json_put(row, "value", cut_value(json_array_get(list, tallies.data[i].first)));
        json_put_i64(row, "count", tallies.data[i].count);
        (void)json_array_append_new(top, row);
    }
    json_put_i64(column, "unique", (int64_t)tallies.n);
    vec_release(&tallies);
    json_decref(table);
    return top;
}

static json_t *list_column(const json_t *list, size_t rows)
{
    json_t *c = json_object();
    double sum = 0, low = 0, high = 0;
    int64_t numbers = 0, texts = 0, bools = 0, reals = 0, missing = 0;
    for (size_t i = 0; i < rows; i++) {
        const json_t *v = json_array_get(list, i);
        missing += json_is_null(v);
        texts += json_is_string(v);
        bools += json_is_boolean(v);
        reals += json_is_real(v);
        if (!json_is_number(v))
            continue;
        double x = json_number_value(v);
        low = numbers == 0 || x < low ? x : low;
        high = numbers == 0 || x > high ? x : high;
        sum += x;
        numbers++;
    }
    int64_t present = (int64_t)rows - missing;
    bool numeric = present > 0 && numbers == present;
    json_put_str(c, "name", "values");
    json_put_str(
        c, "dtype",
        present == 0       ? "empty"
        : numeric          ? reals ? "float" : "int"
        : texts == present ? "str"
        : bools == present ? "bool"
                           : "mixed");
    json_put_i64(c, "count", present);
    json_put_i64(c, "missing", missing);
    json_put(c, "top", top_values(list, rows, c));
    json_put(c, "mean", numeric ? json_real(sum / (double)numbers) : json_null());
    json_put(c, "min", numeric ? json_real(low) : json_null());
    json_put(c, "max", numeric ? json_real(high) : json_null());
    return c;
}

static json_t *list_stats(const json_t *list)
{
    size_t rows = json_array_size(list), scanned = rows < ROWS_MAX ? rows : ROWS_MAX;
    json_t *d = json_object(), *columns = json_array();
    json_put_str(d, "kind", "tabular");
    json_put_i64(d, "rows", (int64_t)rows);
    json_put_i64(d, "column_count", 1);
    json_put_bool(d, "columns_truncated", false);
    json_put_bool(d, "sampled", scanned < rows);
    json_put(d, "sample_size", scanned < rows ? json_integer((json_int_t)scanned) : json_null());
    (void)json_array_append_new(columns, list_column(list, scanned));
    json_put(d, "columns", columns);
    return d;
}

enum status
outputs_stats(const char *run_dir, const char *node, const char *port, json_t **out, struct err *e)
{
    struct output o;
    json_t *d;
    enum status st = ST_OK;
    TRY(output_open(run_dir, node, port, &o, e));
    const json_t *value = json_object_get(o.line, "value");
    if (o.fd >= 0) {
        d = empty_statistics(&o);
        st = tensor_stats(&o, d, e);
    } else if (json_is_array(value)) {
        d = list_stats(value);
    } else {
        d = json_object();
        json_put_str(d, "kind", "unsupported");
        json_put_str(d, "type", json_get_str(value, "type", o.kind));
    }
    output_close(&o);
    if (st == ST_OK) {
        *out = output_answer(run_dir, node, port);
        (void)json_object_update(*out, d);
    }
    json_decref(d);
    return st;
}
