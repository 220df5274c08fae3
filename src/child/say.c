/* say.c - the log of a run, a line for what people look for. */
#include "child/say.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void say_line(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vprintf(fmt, ap);
    va_end(ap);
    (void)putchar('\n');
    (void)fflush(stdout); /* a run that is killed has said what it said */
}

static void add_figure(struct str *s, const json_t *event, const char *key, const char *label)
{
    const json_t *v = json_object_get(event, key);
    if (json_is_number(v))
        str_printf(s, ", %s %.6g", label, json_number_value(v));
    else if (json_is_string(v))
        str_printf(s, ", %s %s", label, json_string_value(v)); /* NaN, Infinity */
}

static void say_epoch(const json_t *event)
{
    struct str s;
    str_init(&s);
    add_figure(&s, event, "loss", "loss");
    add_figure(&s, event, "val_loss", "validation loss");
    add_figure(&s, event, "val_accuracy", "accuracy");
    add_figure(&s, event, "lr", "rate");
    say_line(
        "%s: epoch %lld of %lld%s", json_get_str(event, "node_id", "?"),
        (long long)json_get_i64(event, "epoch", 0),
        (long long)json_get_i64(event, "total_epochs", 0), s.data);
    str_release(&s);
}

static void say_config(const json_t *event)
{
    const json_t *c = json_object_get(event, "config");
    say_line(
        "%s: %lld parameters with %s, %s, %s, batch %lld, on %s",
        json_get_str(event, "node_id", "?"), (long long)json_get_i64(c, "trainable", 0),
        json_get_str(c, "optimizer", "?"), json_get_str(c, "loss_fn", "?"),
        json_get_str(c, "precision", "?"), (long long)json_get_i64(c, "batch_size", 0),
        json_get_str(c, "device", "?"));
}

static void say_node(const json_t *event)
{
    say_line("%s (%s)", json_get_str(event, "node_id", "?"), json_get_str(event, "type", "?"));
}

static void say_warning(const json_t *event)
{
    say_line("warning: %s", json_get_str(event, "message", ""));
}

static void say_message(const json_t *event)
{
    say_line("%s", json_get_str(event, "message", json_get_str(event, "text", "")));
}

static void say_path(const json_t *event)
{
    say_line("%s: %s", json_get_str(event, "event", ""), json_get_str(event, "path", ""));
}

static void say_evaluation(const json_t *event)
{
    say_line(
        "%s: accuracy %.6g (%lld of %lld)", json_get_str(event, "node_id", "?"),
        json_get_f64(event, "eval_accuracy", 0), (long long)json_get_i64(event, "correct", 0),
        (long long)json_get_i64(event, "total", 0));
}

static void say_perplexity(const json_t *event)
{
    say_line(
        "%s: perplexity %.6g", json_get_str(event, "node_id", "?"),
        json_get_f64(event, "perplexity", 0));
}

void say_event(const json_t *event)
{
    static const struct {
        const char *event;
        void (*say)(const json_t *event);
    } rows[] = {
        {"node", say_node},
        {"config", say_config},
        {"epoch", say_epoch},
        {"warning", say_warning},
        {"log", say_message},
        {"text", say_message},
        {"saved", say_path},
        {"checkpoint", say_path},
        {"evaluation", say_evaluation},
        {"perplexity", say_perplexity}};
    const char *name = json_get_str(event, "event", "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].event, name) == 0)
            rows[i].say(event);
}
