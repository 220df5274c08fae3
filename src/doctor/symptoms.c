/* symptoms.c - runs of our own as records, and the symptoms of logs and records.
 *
 * LIMITS. A document of more than OBJECT_BYTES is skipped. */
#include "doctor/symptoms.h"

#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { OBJECT_BYTES = 64 << 20, CURVE = 10 };

static const char *const names[] = {
#define SYMPTOM(id, name, advice) name,
#include "doctor/symptoms.def"
#undef SYMPTOM
};
static const char *const advices[] = {
#define SYMPTOM(id, name, advice) advice,
#include "doctor/symptoms.def"
#undef SYMPTOM
};

/* ---- objects in a stream ---- */

struct runs_reader {
    struct str object;
    int depth;
    bool in_string, escaped, skip;
    int n;
    struct run_record runs[RUNS_MAX];
};

struct runs_reader *runs_reader_new(void)
{
    struct runs_reader *r = mem_alloc(sizeof *r);
    str_init(&r->object);
    return r;
}

void runs_reader_free(struct runs_reader *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n; i++)
        json_decref(r->runs[i].oom);
    str_release(&r->object);
    mem_free(r);
}

int runs_count(const struct runs_reader *r)
{
    return r->n;
}

const struct run_record *runs_at(const struct runs_reader *r, int i)
{
    return &r->runs[i];
}

/* The run that the next event belongs to; NULL where there are too many. */
static struct run_record *current(struct runs_reader *r)
{
    if (r->n && !r->runs[r->n - 1].done)
        return &r->runs[r->n - 1];
    if (r->n == RUNS_MAX)
        return NULL;
    r->runs[r->n] = (struct run_record){.peak_bytes = -1};
    return &r->runs[r->n++];
}

/* A number, or the strings that stand for what JSON lacks. */
static bool number(const json_t *o, const char *key, double *x)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_string(v)) {
        const char *s = json_string_value(v);
        *x = strcmp(s, "NaN") == 0 ? (double)NAN : (double)INFINITY;
        return strcmp(s, "NaN") == 0 || strstr(s, "Infinity");
    }
    *x = json_number_value(v);
    return json_is_number(v);
}

static void take_loss(struct run_record *run, double x)
{
    if (!isfinite(x)) {
        run->bad_losses++;
    } else if (run->n_losses < RUN_LOSSES) {
        run->losses[run->n_losses++] = x;
    }
}

static void take_scale(struct run_record *run, double x)
{
    if (!(x > 0))
        return;
    run->scale_first = run->scale_first > 0 ? run->scale_first : x;
    run->scale_most = fmax(run->scale_most, x);
    run->scale = x;
}

static void copy_text(char *out, size_t cap, const char *text)
{
    (void)snprintf(out, cap, "%s", text ? text : "");
}

static void take_event(struct run_record *run, const json_t *o)
{
    const char *event = json_get_str(o, "event", "");
    double x;
    if (strcmp(event, "batch") == 0 && number(o, "loss", &x))
        take_loss(run, x);
    if (number(o, "scale", &x))
        take_scale(run, x);
    run->skipped_steps = json_get_i64(o, "skipped_steps", run->skipped_steps);
    const json_t *config = json_object_get(o, "config");
    if (json_get_str(config, "precision", NULL))
        copy_text(run->precision, sizeof run->precision, json_get_str(config, "precision", ""));
}

/* A result document of `run` or `plan`. */
static void take_document(struct run_record *run, const json_t *d)
{
    const json_t *m = json_object_get(d, "metrics"), *e = json_object_get(d, "error");
    const json_t *losses = json_object_get(m, "losses");
    double x;
    run->done = true;
    run->peak_bytes = json_get_i64(d, "peak_bytes_measured", json_get_i64(d, "peak_bytes", -1));
    copy_text(
        run->note, sizeof run->note,
        json_get_str(d, "precision_note", json_get_str(m, "precision_note", "")));
    if (json_get_str(m, "precision", NULL))
        copy_text(run->precision, sizeof run->precision, json_get_str(m, "precision", ""));
    if (number(m, "images_per_s", &x) || number(m, "tokens_per_s", &x))
        run->per_second = isfinite(x) ? x : 0;
    if (number(m, "scale", &x))
        take_scale(run, x);
    run->skipped_steps = json_get_i64(m, "skipped_steps", run->skipped_steps);
    if (run->n_losses == 0)
        for (size_t i = 0; i < json_array_size(losses); i++) {
            const json_t *v = json_array_get(losses, i);
            take_loss(run, json_is_number(v) ? json_number_value(v) : (double)NAN);
        }
    if (json_is_object(e)) {
        run->failed = true;
        run->out_of_memory = strcmp(json_get_str(e, "code", ""), "out_of_memory") == 0;
        copy_text(run->message, sizeof run->message, json_get_str(e, "message", ""));
        run->message[strcspn(run->message, "\n")] = 0;
        run->oom = json_incref(json_object_get(d, "oom"));
        copy_text(run->node, sizeof run->node, json_get_str(e, "node_id", ""));
    }
}

static void take_object(struct runs_reader *r)
{
    json_t *o = NULL;
    struct err e;
    if (!strstr(r->object.data, "\"event\"") && !strstr(r->object.data, "\"schema\""))
        return;
    if (json_parse(r->object.data, r->object.n, "input", &o, &e) != ST_OK)
        return;
    bool event = json_get_str(o, "event", NULL) != NULL;
    bool document = json_get_i64(o, "schema", 0) == 1 && json_get_str(o, "status", NULL) &&
                    (json_object_get(o, "metrics") || json_object_get(o, "peak_bytes") ||
                     json_is_object(json_object_get(o, "error")));
    struct run_record *run = event || document ? current(r) : NULL;
    if (run && event)
        take_event(run, o);
    else if (run)
        take_document(run, o);
    json_decref(o);
}

static void take_char(struct runs_reader *r, char c)
{
    if (r->depth && !r->skip)
        str_add_n(&r->object, &c, 1);
    if (r->in_string) {
        bool end = c == '"' && !r->escaped;
        r->escaped = c == '\\' && !r->escaped;
        r->in_string = !end;
        if (c == '\n' && r->depth == 1) /* a string over lines is none: it was no JSON */
            r->depth = 0, r->in_string = false;
    } else if (c == '"' && r->depth) {
        r->in_string = true;
    } else if (c == '{') {
        if (r->depth++ == 0) {
            str_clear(&r->object);
            str_add(&r->object, "{");
            r->skip = false;
        }
    } else if (c == '}' && r->depth && --r->depth == 0 && !r->skip) {
        take_object(r);
    }
    if (r->object.n > OBJECT_BYTES || r->depth > 256)
        r->skip = true;
}

void runs_reader_feed(struct runs_reader *r, const void *bytes, size_t n)
{
    const char *p = bytes;
    for (size_t i = 0; i < n; i++)
        if (r->depth || p[i] == '{')
            take_char(r, p[i]);
}

/* ---- symptoms ---- */

static json_t *symptom(json_t *list, enum symptom_id id, int64_t line, const char *figures)
{
    json_t *o = json_object();
    json_put_str(o, "symptom", names[id]);
    json_put_str(o, "figures", figures);
    json_put_str(o, "advice", advices[id]);
    if (line > 0)
        json_put_i64(o, "line", line);
    (void)json_array_append_new(list, o);
    return o;
}

static bool fell(double most, double last)
{
    return most >= 64 && last <= 16 && last > 0;
}

/* The first series of a kind that was not finite; false when there is none. */
static bool not_finite(const struct text_facts *f, enum series_kind kind, json_t *list)
{
    char text[256];
    for (size_t i = 0; i < f->series.all.n; i++) {
        const struct series *s = f->series.all.data[i];
        if (s->kind != kind || !s->not_finite)
            continue;
        (void)snprintf(
            text, sizeof text, "%s is not finite from line %lld on (%lld times)", s->label,
            (long long)s->first_bad_line, (long long)s->not_finite);
        (void)symptom(list, SYMPTOM_NOT_FINITE, s->first_bad_line, text);
        return true;
    }
    return false;
}

/* A scaler halves and doubles: other things that are called scale do not. */
static bool is_scaler(const struct series *s)
{
    int exponent;
    bool powers = s->n >= 2 && s->most <= 4294967296.0;
    for (int i = 0; i < s->kept; i++)
        powers = powers && s->points[i] > 0 && fabs(frexp(s->points[i], &exponent) - 0.5) < 1e-9;
    return powers;
}

static bool falling_scale(const struct text_facts *f, json_t *list)
{
    char text[256];
    for (size_t i = 0; i < f->series.all.n; i++) {
        const struct series *s = f->series.all.data[i];
        if (s->kind != SERIES_SCALE || !fell(s->most, s->last) || !is_scaler(s))
            continue;
        (void)snprintf(
            text, sizeof text, "the scale fell from %g to %g%s", s->most, s->last,
            f->words[WORD_OVERFLOW] ? ", and updates are skipped" : "");
        (void)symptom(list, SYMPTOM_FALLING_SCALE, s->last_line, text);
        return true;
    }
    return false;
}

static void of_log(const struct text_facts *f, json_t *list)
{
    char text[256];
    bool falls = falling_scale(f, list);
    if (!not_finite(f, SERIES_LOSS, list) && !falls) /* a scaler meets infinite norms by design */
        (void)not_finite(f, SERIES_NORM, list);
    if (f->words[WORD_OVERFLOW] >= 8 && !falls) {
        (void)snprintf(
            text, sizeof text, "%lld updates were skipped for infinite gradients",
            (long long)f->words[WORD_OVERFLOW]);
        (void)symptom(list, SYMPTOM_FALLING_SCALE, f->word_line[WORD_OVERFLOW], text);
    }
}

static void of_run(const struct run_record *run, json_t *list)
{
    char text[1024];
    bool said = strstr(run->message, "not finite") || strstr(run->message, "NaN") ||
                strstr(run->message, "non-finite");
    if (run->bad_losses || (run->failed && said)) {
        (void)snprintf(
            text, sizeof text, "%s%s%s%s",
            run->message[0] ? run->message : "the loss is not finite",
            run->node[0] ? " (node " : "", run->node, run->node[0] ? ")" : "");
        (void)symptom(list, SYMPTOM_NOT_FINITE, 0, text);
    }
    if (fell(fmax(run->scale_most, 65536), run->scale) && run->skipped_steps) {
        (void)snprintf(
            text, sizeof text, "the scale fell to %g; %lld updates were skipped", run->scale,
            (long long)run->skipped_steps);
        (void)symptom(list, SYMPTOM_FALLING_SCALE, 0, text);
    }
    if (run->note[0])
        (void)symptom(list, SYMPTOM_NO_SAVING, 0, run->note);
}

/* About ten places of both curves side by side. */
static json_t *curves(const struct run_record *a, const struct run_record *b)
{
    json_t *rows = json_array();
    int n = a->n_losses < b->n_losses ? a->n_losses : b->n_losses;
    for (int i = 0; i < CURVE && i < n; i++) {
        int at = n <= CURVE ? i : (int)((int64_t)i * (n - 1) / (CURVE - 1));
        json_t *row = json_object();
        json_put_i64(row, "at", at);
        json_put_f64(row, a->precision, a->losses[at]);
        json_put_f64(row, b->precision, b->losses[at]);
        (void)json_array_append_new(rows, row);
    }
    return rows;
}

/* Mean of the last tenth, so that one batch decides nothing. */
static double end_of(const struct run_record *r, int n)
{
    int k = n / 10 > 0 ? n / 10 : 1;
    double sum = 0;
    for (int i = n - k; i < n; i++)
        sum += r->losses[i];
    return sum / k;
}

static void of_pair(const struct run_record *full, const struct run_record *low, json_t *list)
{
    char text[256], a[32], b[32];
    if (full->peak_bytes > 0 && low->peak_bytes > 0 && !low->note[0] &&
        (double)low->peak_bytes > 0.85 * (double)full->peak_bytes) {
        (void)snprintf(
            text, sizeof text, "peak %s in fp32, %s in %s",
            bytes_text(full->peak_bytes, a, sizeof a), bytes_text(low->peak_bytes, b, sizeof b),
            low->precision);
        (void)symptom(list, SYMPTOM_NO_SAVING, 0, text);
    }
    if (full->per_second > 0 && low->per_second > 0 && low->per_second < 0.95 * full->per_second) {
        (void)snprintf(
            text, sizeof text, "%.1f a second in fp32, %.1f in %s", full->per_second,
            low->per_second, low->precision);
        (void)symptom(list, SYMPTOM_SLOWER, 0, text);
    }
    int n = full->n_losses < low->n_losses ? full->n_losses : low->n_losses;
    if (n >= 3 && end_of(low, n) > end_of(full, n) + 0.05 * fabs(end_of(full, n))) {
        (void)snprintf(
            text, sizeof text, "loss at the end %.4g in fp32, %.4g in %s", end_of(full, n),
            end_of(low, n), low->precision);
        json_put(symptom(list, SYMPTOM_WORSE, 0, text), "curves", curves(full, low));
    }
}

json_t *symptoms_json(const struct text_facts *f, const struct runs_reader *r)
{
    json_t *list = json_array();
    if (f && (!r || r->n == 0))
        of_log(f, list);
    for (int i = 0; r && i < r->n; i++)
        of_run(&r->runs[i], list);
    for (int i = 0; r && i < r->n; i++)
        for (int k = 0; k < r->n; k++)
            if (strcmp(r->runs[i].precision, "fp32") == 0 && r->runs[k].precision[0] &&
                strcmp(r->runs[k].precision, "fp32") != 0)
                of_pair(&r->runs[i], &r->runs[k], list);
    return list;
}
