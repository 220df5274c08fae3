/* core_options.c - checks a run's options, a closed set (core_options.def), and its target (R4). */
#include "server/core_options.h"

#include <math.h>
#include <string.h>

enum option_kind {
    OPTION_DEVICE,
    OPTION_TEXT,
    OPTION_FLAG,
    OPTION_WHOLE,
    OPTION_SECONDS,
    OPTION_WORDS,
    OPTION_NODES,
    OPTION_TARGET
};
struct option {
    const char *key;
    enum option_kind kind;
    double min, max;
    const char *about;
};
static const struct option options[] = {
#define OPTION(key, kind, min, max, about) {#key, OPTION_##kind, min, max, about},
#include "server/core_options.def"
#undef OPTION
};
static const char *const option_keys[] = {
#define OPTION(key, kind, min, max, about) #key,
#include "server/core_options.def"
#undef OPTION
};
enum { OPTIONS = sizeof options / sizeof *options };

static const char *const target_keys[] = {"worker", "devices", "memory_gib",
                                          "wait",   "pool",    "memory_source"};
enum { TARGET_KEYS = sizeof target_keys / sizeof *target_keys };
#define MEMORY_GIB_MAX 1048576.0

bool device_name_split(const char *device, char kind[8], int *index)
{
    static const char *const kinds[] = {"cpu", "cuda", "mps"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(kinds[i]);
        if (strncmp(device, kinds[i], n) != 0)
            continue;
        memcpy(kind, kinds[i], n + 1);
        *index = -1;
        if (!device[n])
            return true;
        int64_t number;
        size_t digits = strspn(device + n + 1, "0123456789");
        if (i == 0 || device[n] != ':' || !digits || digits > 4 || device[n + 1 + digits] ||
            !str_to_i64(device + n + 1, &number))
            return false;
        *index = (int)number;
        return true;
    }
    return false;
}

static bool is_word(const char *words, const char *text)
{
    size_t n = strlen(text);
    if (!n || strchr(text, '|'))
        return false;
    for (const char *at = words; (at = strstr(at, text)); at += n)
        if ((at == words || at[-1] == '|') && (at[n] == '|' || !at[n]))
            return true;
    return false;
}

static bool has_control(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return true;
    return false;
}

static bool is_list_of_ids(const json_t *v, double most)
{
    size_t i;
    const json_t *id;
    json_array_foreach(
        v, i, id) if (!json_string_length(id) || json_string_length(id) > 256) return false;
    return json_is_array(v) && (double)json_array_size(v) <= most;
}

static bool value_fits(const struct option *o, const json_t *v)
{
    char kind[8];
    int index;
    const char *text = json_string_value(v);
    switch (o->kind) {
    case OPTION_DEVICE:
        return text && (str_eq(text, "auto") || device_name_split(text, kind, &index));
    case OPTION_TEXT:
        return text && (double)strlen(text) >= o->min && (double)strlen(text) <= o->max &&
               !has_control(text);
    case OPTION_FLAG:
        return json_is_boolean(v);
    case OPTION_WHOLE:
        return json_is_integer(v) && (double)json_integer_value(v) >= o->min &&
               (double)json_integer_value(v) <= o->max;
    case OPTION_SECONDS:
        return json_is_number(v) && json_number_value(v) >= o->min &&
               json_number_value(v) <= o->max;
    case OPTION_WORDS:
        return text && is_word(o->about, text);
    case OPTION_NODES:
        return is_list_of_ids(v, o->max);
    case OPTION_TARGET:
        return json_is_object(v);
    }
    return false;
}

static const struct option *find(const char *key)
{
    for (int i = 0; i < OPTIONS; i++)
        if (str_eq(options[i].key, key))
            return &options[i];
    return NULL;
}

static enum status
unknown_key(const char *what, const char *key, const char *const *known, size_t n, struct err *e)
{
    char shown[65];
    snprintf(shown, sizeof shown, "%s", key);
    enum status st = err_set(e, ST_INVALID, "unknown %s \"%s\"", what, shown);
    const char *near = str_nearest(shown, known, n);
    if (near)
        err_hint(e, "Did you mean \"%s\"?", near);
    return st;
}

static enum status read_devices(const json_t *v, struct run_target *t, struct err *e)
{
    size_t n = json_array_size(v);
    if (!json_is_array(v) || n < 1 || n > CARD_SET_MAX)
        return err_set(
            e, ST_INVALID, "target.devices must be a list of 1 to %d devices", CARD_SET_MAX);
    char first[8] = "";
    for (size_t i = 0; i < n; i++) {
        const char *d = json_string_value(json_array_get(v, i));
        char kind[8];
        int index;
        if (!d || !device_name_split(d, kind, &index))
            return err_set(
                e, ST_INVALID, "target.devices[%zu] must be cpu, cuda, cuda:N, mps or mps:N", i);
        if (index < 0 && !str_eq(kind, "cpu") && n > 1)
            return err_set(
                e, ST_INVALID, "target.devices[%zu] is \"%s\": a set names its cards (%s:N)", i, d,
                kind);
        for (int k = 0; k < t->n_devices; k++)
            if (str_eq(t->devices[k], d))
                return err_set(e, ST_INVALID, "target.devices has \"%s\" twice", d);
        if (i && !str_eq(first, kind))
            return err_set(
                e, ST_INVALID, "target.devices must be of one kind, not %s and %s", first, kind);
        memcpy(first, kind, sizeof first);
        t->devices[t->n_devices++] = d;
    }
    return ST_OK;
}

static enum status read_memory(const json_t *target, struct run_target *t, struct err *e)
{
    const json_t *gib = json_object_get(target, "memory_gib");
    const json_t *source = json_object_get(target, "memory_source");
    if (gib) {
        double x = json_number_value(gib);
        if (!json_is_number(gib) || !isfinite(x) || x <= 0 || x > MEMORY_GIB_MAX)
            return err_set(
                e, ST_INVALID, "target.memory_gib must be a number above 0, up to %.0f",
                MEMORY_GIB_MAX);
        t->memory_bytes = (int64_t)ceil(x * 1073741824.0);
    }
    if (source) {
        if (!str_eq(json_string_value(source), "estimate"))
            return err_set(e, ST_INVALID, "target.memory_source must be \"estimate\"");
        if (!gib)
            return err_set(e, ST_INVALID, "target.memory_source needs target.memory_gib");
        t->estimate = true;
    }
    return ST_OK;
}

static enum status read_names(const json_t *target, struct run_target *t, struct err *e)
{
    const json_t *worker = json_object_get(target, "worker");
    const json_t *pool = json_object_get(target, "pool");
    const json_t *wait = json_object_get(target, "wait");
    if (worker) {
        t->worker = json_string_value(worker);
        if (!t->worker || !*t->worker || strlen(t->worker) > 64 || has_control(t->worker))
            return err_set(e, ST_INVALID, "target.worker must be \"local\", \"any\" or a name");
    }
    if (pool) {
        const char *name = json_string_value(pool);
        if (!json_is_true(pool) && (!name || strlen(name) > 64 || has_control(name)))
            return err_set(e, ST_INVALID, "target.pool must be the name of a pool, or true");
        if (worker && !str_eq(t->worker, "any"))
            return err_set(
                e, ST_INVALID, "target.pool goes with the worker \"any\", not with \"%s\"",
                t->worker);
        t->pool = name ? name : "";
        t->worker = "any";
    }
    if (wait) {
        if (!json_is_boolean(wait))
            return err_set(e, ST_INVALID, "target.wait must be true or false");
        t->wait = json_is_true(wait);
        t->wait_given = true;
    }
    return ST_OK;
}

static enum status read_target(const json_t *target, struct run_target *t, struct err *e)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)target, key, value)
    {
        bool known = false;
        for (int i = 0; i < TARGET_KEYS; i++)
            known = known || str_eq(target_keys[i], key);
        if (!known)
            return unknown_key("key of target", key, target_keys, TARGET_KEYS, e);
    }
    TRY(read_names(target, t, e));
    const json_t *devices = json_object_get(target, "devices");
    if (devices)
        TRY(read_devices(devices, t, e));
    return read_memory(target, t, e);
}

/* What goes together. */
static enum status check_lane(const struct run_options *o, struct err *e)
{
    if (o->interactive && !str_eq(o->target.worker, "local"))
        return err_set(
            e, ST_INVALID, "a run of the interactive lane is never sent to a worker (\"%s\")",
            o->target.worker);
    if (o->interactive && o->target.memory_bytes)
        return err_set(e, ST_INVALID, "a run of the interactive lane takes no memory budget");
    if (o->record_outputs && o->target.pool)
        return err_set(
            e, ST_INVALID,
            "record_outputs cannot be used with one-shot workers: they leave after their run");
    return ST_OK;
}

enum status run_options_read(const json_t *document, struct run_options *out, struct err *e)
{
    *out = (struct run_options){
        .target = {.worker = "local"}, .tab = "", .resume = "", .graph_dir = ""};
    if (!document || json_is_null(document))
        return ST_OK;
    if (!json_is_object(document))
        return err_set(e, ST_INVALID, "options must be an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)document, key, value)
    {
        const struct option *o = find(key);
        if (!o)
            return unknown_key("option", key, option_keys, OPTIONS, e);
        if (!value_fits(o, value))
            return err_set(e, ST_INVALID, "option %s must be %s", o->key, o->about);
    }
    out->device = json_get_str(document, "device", NULL);
    out->tab = json_get_str(document, "graph_id", "");
    out->resume = json_get_str(document, "resume", "");
    out->graph_dir = json_get_str(document, "graph_dir", "");
    out->timeout_s = json_get_f64(document, "timeout_s", 0);
    out->interactive = str_eq(json_get_str(document, "lane", "queued"), "interactive");
    out->record_outputs = json_get_bool(document, "record_outputs", false);
    const json_t *target = json_object_get(document, "target");
    if (target)
        TRY(read_target(target, &out->target, e));
    if (json_object_get(document, "changed_nodes") && !out->interactive)
        return err_set(
            e, ST_INVALID,
            "option changed_nodes goes with the interactive lane: only a canvas "
            "keeps outputs from run to run");
    return check_lane(out, e);
}
