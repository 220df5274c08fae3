/* live.c - the display of a run. */
#include "cli/live.h"

#include "base/env.h"
#include "base/log.h"
#include "base/str.h"
#include "cli/answer.h"

#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { BAR_COLUMNS = 24, BAR_COLUMNS_MIN = 5 };
static const int64_t plain_gap_ns = 5000000000; /* plain progress lines come at most this often */

/* ---- pieces of lines ---- */

static const char *colour(const struct live *l, const char *code)
{
    return l->colour ? code : "";
}

/* "45 s", "3:20 min", "2:05 h". */
static void add_duration(struct str *s, double seconds)
{
    long long t = (long long)(seconds + 0.5);
    if (t < 60)
        str_printf(s, "%lld s", t);
    else if (t < 3600)
        str_printf(s, "%lld:%02lld min", t / 60, t % 60);
    else
        str_printf(s, "%lld:%02lld h", t / 3600, t / 60 % 60);
}

static void add_number(struct str *s, const json_t *event, const char *key, const char *label)
{
    const json_t *v = json_object_get(event, key);
    if (json_is_number(v))
        str_printf(s, "  %s %.4g", label, json_number_value(v));
    else if (json_is_string(v))
        str_printf(s, "  %s %s", label, json_string_value(v)); /* NaN, Infinity */
}

static void add_percent(struct str *s, const json_t *event, const char *key, const char *label)
{
    const json_t *v = json_object_get(event, key);
    if (json_is_number(v))
        str_printf(s, "  %s %.2f %%", label, 100 * json_number_value(v));
}

static void add_bar(struct str *s, double part, int width)
{
    int full = (int)(part * width);
    for (int i = 0; i < width; i++)
        str_add(s, i < full ? "━" : "─");
    str_add(s, " ");
}

/* "1.2 GiB" without its unit where both have the same. */
static void add_memory(struct str *s, const json_t *event)
{
    char now[32], top[32];
    int64_t rss = json_get_i64(event, "memory_bytes", -1), peak = process_rss_peak_bytes();
    if (rss <= 0)
        return;
    (void)bytes_text(rss, now, sizeof now);
    (void)bytes_text(peak > rss ? peak : rss, top, sizeof top);
    char *unit_now = strchr(now, ' '), *unit_top = strchr(top, ' ');
    if (unit_now && unit_top && strcmp(unit_now, unit_top) == 0)
        *unit_now = 0;
    str_printf(s, "  memory %s/%s", now, top);
}

/* The line of a batch; a bar takes the room that `columns` leaves, and there is none where it is 0.
 */
static void batch_text(struct str *s, const json_t *event, int columns)
{
    int64_t batch = json_get_i64(event, "batch", 0);
    int64_t batches = json_get_i64(event, "total_batches", 0);
    struct str tail;
    str_init(&tail);
    str_printf(&tail, "batch %lld/%lld", (long long)batch, (long long)batches);
    str_printf(&tail, "  %.0f images/s", json_get_f64(event, "images_per_s", 0));
    add_number(&tail, event, "loss", "loss");
    add_memory(&tail, event);
    if (json_is_number(json_object_get(event, "seconds_left"))) {
        str_add(&tail, "  ");
        add_duration(&tail, json_get_f64(event, "seconds_left", 0));
        str_add(&tail, " left");
    }
    str_printf(
        s, "epoch %lld/%lld ", (long long)json_get_i64(event, "epoch", 0),
        (long long)json_get_i64(event, "total_epochs", 0));
    int room = columns - (int)s->n - (int)tail.n - 2;
    if (room >= BAR_COLUMNS_MIN && batches > 0)
        add_bar(s, (double)batch / (double)batches, room < BAR_COLUMNS ? room : BAR_COLUMNS);
    str_add(s, tail.data);
    str_release(&tail);
}

/* ---- writing ---- */

static int columns(void)
{
    struct winsize w;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 8 ? w.ws_col : 80;
}

/* Bytes of the first `count` characters of UTF-8. */
static size_t prefix(const char *s, int count)
{
    size_t n = 0;
    for (int seen = 0; s[n]; n++) {
        if (((unsigned char)s[n] & 0xC0) != 0x80 && ++seen > count)
            break;
    }
    return n;
}

void live_clear(struct live *l)
{
    if (l->open)
        (void)fputs("\r\033[K", l->out);
    l->open = false;
}

static void say(struct live *l, const char *text)
{
    live_clear(l);
    (void)fprintf(l->out, "%s\n", text);
    (void)fflush(l->out);
}

static void rewrite(struct live *l, const char *text)
{
    size_t n = prefix(text, columns() - 1);
    (void)fprintf(l->out, "\r%.*s\033[K", (int)n, text);
    (void)fflush(l->out);
    l->open = true;
}

/* ---- events ---- */

static void on_batch(struct live *l, const json_t *event)
{
    int64_t now = clock_ns();
    if (!l->terminal && now - l->plain_ns < plain_gap_ns)
        return;
    l->plain_ns = now;
    struct str s;
    str_init(&s);
    batch_text(&s, event, l->terminal ? columns() : 0);
    if (l->terminal)
        rewrite(l, s.data);
    else
        say(l, s.data);
    str_release(&s);
}

static void on_epoch(struct live *l, const json_t *event)
{
    struct str s;
    int64_t now = clock_ns();
    str_init(&s);
    str_printf(
        &s, "%sepoch %lld/%lld done%s", colour(l, "\033[1m"),
        (long long)json_get_i64(event, "epoch", 0),
        (long long)json_get_i64(event, "total_epochs", 0), colour(l, "\033[0m"));
    add_number(&s, event, "loss", "loss");
    add_number(&s, event, "val_loss", "val loss");
    add_percent(&s, event, "val_accuracy", "val accuracy");
    add_number(&s, event, "lr", "lr");
    str_add(&s, "  ");
    add_duration(&s, (double)(now - l->epoch_ns) * 1e-9);
    l->epoch_ns = now;
    say(l, s.data);
    str_release(&s);
}

static void on_config(struct live *l, const json_t *event)
{
    const json_t *c = json_object_get(event, "config");
    struct str s;
    l->epoch_ns = clock_ns();
    str_init(&s);
    str_printf(
        &s, "training %lld parameters with %s, %s, %s", (long long)json_get_i64(c, "trainable", 0),
        json_get_str(c, "optimizer", "?"), json_get_str(c, "loss_fn", "?"),
        json_get_str(c, "precision", "?"));
    str_printf(&s, ", batch %lld", (long long)json_get_i64(c, "batch_size", 0));
    if (json_get_i64(c, "accumulate_steps", 1) > 1)
        str_printf(
            &s, " x %lld = %lld", (long long)json_get_i64(c, "accumulate_steps", 1),
            (long long)json_get_i64(c, "effective_batch_size", 0));
    str_printf(&s, ", on %s", json_get_str(c, "device", "cpu"));
    say(l, s.data);
    str_release(&s);
}

static void on_warning(struct live *l, const json_t *event)
{
    const char *text = json_get_str(event, "message", ""),
               *node = json_get_str(event, "node_id", "");
    struct str s;
    for (size_t i = 0; i < l->said.n; i++)
        if (strcmp(l->said.data[i], text) == 0)
            return;
    vec_push(&l->said, mem_strdup(text));
    str_init(&s);
    str_printf(&s, "%swarning:%s %s", colour(l, "\033[1;33m"), colour(l, "\033[0m"), text);
    if (node[0] && !strstr(text, node))
        str_printf(&s, " (node %s)", node);
    say(l, s.data);
    str_release(&s);
}

static void on_path(struct live *l, const json_t *event)
{
    struct str s;
    str_init(&s);
    str_printf(&s, "%s: %s", json_get_str(event, "event", ""), json_get_str(event, "path", ""));
    say(l, s.data);
    str_release(&s);
}

/* --memory-steps: what an update needed, or where it failed. */
static void on_memory(struct live *l, const json_t *event)
{
    char live[32], peak[32], reserved[32], line[400];
    const char *failed = json_get_str(event, "failed_at", NULL);
    (void)snprintf(
        line, sizeof line, "step %lld: live %s, at most %s; reserved %s%s%.200s",
        (long long)json_get_i64(event, "step", 0),
        bytes_text(json_get_i64(event, "live_bytes", 0), live, sizeof live),
        bytes_text(json_get_i64(event, "live_bytes_peak", 0), peak, sizeof peak),
        bytes_text(json_get_i64(event, "reserved_bytes", 0), reserved, sizeof reserved),
        failed ? "; failed at " : "", failed ? failed : "");
    say(l, line);
}

/* A queued run's place and reason; rewritten, since it changes, where the line is wide enough. */
static void on_waits(struct live *l, const json_t *event)
{
    const char *text = json_get_str(event, "message", "");
    if (l->terminal && strlen(text) < (size_t)columns())
        rewrite(l, text);
    else
        say(l, text);
}

static void on_log(struct live *l, const json_t *event)
{
    say(l, json_get_str(event, "message", ""));
}

static void on_evaluation(struct live *l, const json_t *event)
{
    struct str s;
    str_init(&s);
    str_printf(&s, "evaluated by %s:", json_get_str(event, "node_id", "?"));
    add_percent(&s, event, "eval_accuracy", "accuracy");
    str_printf(
        &s, "  (%lld of %lld)", (long long)json_get_i64(event, "correct", 0),
        (long long)json_get_i64(event, "total", 0));
    say(l, s.data);
    str_release(&s);
}

static void on_perplexity(struct live *l, const json_t *event)
{
    char line[256];
    (void)snprintf(
        line, sizeof line, "%.100s: loss %.4f, perplexity %.2f  (%lld tokens)",
        json_get_str(event, "node_id", "?"), json_get_f64(event, "val_loss", 0),
        json_get_f64(event, "perplexity", 0), (long long)json_get_i64(event, "tokens", 0));
    say(l, line);
}

/* Control characters, which a model may write as well, are shown and not obeyed. */
static void on_text(struct live *l, const json_t *event)
{
    const json_t *value = json_object_get(event, "text");
    const char *text = json_string_value(value);
    struct str s;
    str_init(&s);
    for (size_t i = 0; i < json_string_length(value); i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
            str_add(&s, "\xef\xbf\xbd"); /* U+FFFD */
        else
            str_add_n(&s, &text[i], 1);
    }
    say(l, s.data);
    str_release(&s);
}

static void on_tokenize(struct live *l, const json_t *event)
{
    char line[256];
    (void)snprintf(
        line, sizeof line, "%.100s: tokens of %lld of %lld MB of text",
        json_get_str(event, "node_id", "?"),
        (long long)(json_get_i64(event, "bytes_done", 0) / 1000000),
        (long long)(json_get_i64(event, "bytes", 0) / 1000000));
    say(l, line);
}

static void on_val_step(struct live *l, const json_t *event)
{
    struct str s;
    str_init(&s);
    str_printf(&s, "step %lld", (long long)json_get_i64(event, "step", 0));
    add_number(&s, event, "val_loss_step", "val loss");
    add_percent(&s, event, "val_accuracy_step", "val accuracy");
    say(l, s.data);
    str_release(&s);
}

/* P10: the state of mixed precision, every so many updates. */
static void on_health(struct live *l, const json_t *event)
{
    struct str s;
    str_init(&s);
    str_add(&s, "mixed precision:");
    add_number(&s, event, "loss", "loss");
    add_number(&s, event, "max_grad_norm", "largest gradient norm");
    if (json_get_f64(event, "scale", 0) > 0)
        str_printf(&s, "  scale %g", json_get_f64(event, "scale", 0));
    if (json_get_i64(event, "skipped_steps", 0) > 0)
        add_number(&s, event, "skipped_steps", "updates skipped");
    if (json_get_str(event, "message", NULL))
        str_printf(&s, "  %s", json_get_str(event, "message", ""));
    say(l, s.data);
    str_release(&s);
}

static const struct {
    const char *event;
    void (*show)(struct live *l, const json_t *event);
} rows[] = {
    {"batch", on_batch},
    {"epoch", on_epoch},
    {"config", on_config},
    {"warning", on_warning},
    {"saved", on_path},
    {"checkpoint", on_path},
    {"tensorboard", on_path},
    {"memory_history", on_path},
    {"memory", on_memory},
    {"evaluation", on_evaluation},
    {"val_step", on_val_step},
    {"perplexity", on_perplexity},
    {"text", on_text},
    {"tokenize", on_tokenize},
    {"log", on_log},
    {"waits", on_waits},
    {"precision_health", on_health},
};

void live_event(const json_t *event, void *ctx)
{
    struct live *l = ctx;
    const char *name = json_get_str(event, "event", "");
    if (l->json) {
        char *text = json_text(event, false);
        (void)fprintf(l->out, "%s\n", text);
        (void)fflush(l->out);
        mem_free(text);
        return;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].event, name) == 0)
            rows[i].show(l, event);
}

/* Lines of the log, while the display owns stderr. */
static void on_log_line(enum log_level level, const char *text, void *ctx)
{
    json_t *event = json_object();
    json_put_str(event, "event", level >= LOG_WARN ? "warning" : "log");
    json_put_str(event, "kind", "log");
    json_put_str(event, "message", text);
    live_event(event, ctx);
    if (level >= LOG_WARN)
        (void)json_array_append(((struct live *)ctx)->logged, event);
    json_decref(event);
}

void live_begin(struct live *l, bool json)
{
    const char *term = getenv("TERM");
    *l = (struct live){.out = stderr, .json = json, .logged = json_array()};
    l->terminal = !json && isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0);
    l->colour = l->terminal && colour_on(stderr);
    l->plain_ns = l->epoch_ns = clock_ns();
    log_sink_set(on_log_line, l);
}

void live_end(struct live *l)
{
    live_clear(l);
    log_sink_set(NULL, NULL);
    for (size_t i = 0; i < l->said.n; i++)
        mem_free(l->said.data[i]);
    vec_release(&l->said);
    json_decref(l->logged);
    l->logged = NULL;
    (void)fflush(l->out);
}
