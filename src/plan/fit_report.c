/* fit_report.c - ways to fit as a document and as text, and what stands in the way of one. */
#include "fit_int.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static const char *const group_keys[] = {"same_numbers", "other_rounding", "other_numbers"};
static const char *const group_titles[] = {
    "The same numbers, to the bit", "The same mathematics, other rounding", "Other numbers"};

static bool fits_already(const struct fit *f)
{
    return f->plans.data[0].peak_bytes <= f->o.budget_bytes;
}

static size_t is_insert(const char *setting)
{
    return str_starts(setting, FIT_INSERT) ? strlen(FIT_INSERT) : 0;
}

/* "--set NODE.PARAM=V", or "insert TYPE with NAME=VALUE after SOURCE". */
static void add_setting(struct str *out, const char *setting)
{
    if (!is_insert(setting)) {
        str_printf(out, "--set %s", setting);
        return;
    }
    const char *source = setting + is_insert(setting), *port = strchr(source, '|') + 1;
    const char *type = strchr(port, '|') + 1, *params = strchr(type, '|') + 1;
    str_printf(
        out, "insert %.*s with %s after %.*s", (int)(params - 1 - type), type, params,
        (int)(port - 1 - source), source);
}

static json_t *way_json(const struct fit *f, const struct fit_way *w)
{
    json_t *o = json_object(), *sets = json_array(), *inserts = json_array();
    json_t *levers = json_array();
    struct arena memory;
    arena_init(&memory);
    for (const char **s = fit_settings(f, &w->choice, &memory); *s; s++)
        (void)json_array_append_new(
            str_starts(*s, FIT_INSERT) ? inserts : sets, json_string(*s + is_insert(*s)));
    for (int i = 0; i < f->levers_n; i++) {
        if (!w->choice.level[i])
            continue;
        json_t *l = json_object();
        json_put_str(l, "name", f->levers[i].name);
        json_put_str(l, "costs", f->levers[i].costs);
        json_put_str(l, "keeps", f->levers[i].keeps);
        (void)json_array_append_new(levers, l);
    }
    json_put(o, "set", sets);
    json_put(o, "insert", inserts);
    json_put(o, "levers", levers);
    json_put_i64(o, "peak_bytes", w->peak_bytes);
    json_put_i64(o, "saving_bytes", f->plans.data[0].peak_bytes - w->peak_bytes);
    json_put_f64(o, "extra_compute", w->extra_compute);
    json_put_i64(o, "extra_transfer_bytes", w->extra_transfer_bytes);
    arena_release(&memory);
    return o;
}

/* The ways of a group that are shown. */
static size_t ways_of(const struct fit *f, enum fit_group group, const struct fit_way **first)
{
    size_t n = 0;
    *first = NULL;
    for (size_t i = 0; i < f->ways.n; i++) {
        if (f->ways.data[i].group != group)
            continue;
        *first = *first ? *first : &f->ways.data[i];
        n++;
    }
    return n < FIT_WAYS_MAX ? n : FIT_WAYS_MAX;
}

/* A graph without a model that runs has no bill. */
static json_t *least(const struct fit *f, const char *key)
{
    json_t *v = json_object_get(f->least_plan, key);
    return v ? json_incref(v) : json_null();
}

json_t *fit_json(const struct fit *f)
{
    json_t *d = json_object(), *groups = json_array(), *way = json_object();
    json_put_i64(d, "budget_bytes", f->o.budget_bytes);
    json_put_i64(d, "peak_bytes", f->plans.data[0].peak_bytes);
    json_put_bool(d, "fits", fits_already(f));
    for (int g = 0; g < FIT_GROUP_COUNT; g++) {
        const struct fit_way *first;
        size_t n = ways_of(f, (enum fit_group)g, &first);
        json_t *group = json_object(), *ways = json_array();
        json_put_str(group, "group", group_keys[g]);
        for (size_t i = 0; i < n; i++)
            (void)json_array_append_new(ways, way_json(f, &first[i]));
        json_put(group, "ways", ways);
        (void)json_array_append_new(groups, group);
    }
    json_put(d, "groups", groups);
    json_put_i64(d, "least_peak_bytes", f->least_bytes);
    json_put(way, "by_category", least(f, "by_category"));
    json_put(way, "by_node", least(f, "by_node"));
    json_put(d, "least", way);
    json_put_i64(d, "plans", (int64_t)f->plans.n);
    struct str left;
    str_init(&left);
    fit_words_left(f, &left);
    json_put_str(d, "allow_left", left.data);
    str_clear(&left);
    fit_words_idle(f, &left);
    json_put_str(d, "allow_idle", left.data);
    str_release(&left);
    return d;
}

/* ---- text ---- */

static void add_way(const struct fit *f, const struct fit_way *w, struct str *out)
{
    char size[32];
    int64_t plain = f->plans.data[0].peak_bytes;
    struct arena memory;
    arena_init(&memory);
    str_printf(
        out, "  peak %s, %.1f %% less; arithmetic ", bytes_text(w->peak_bytes, size, sizeof size),
        100 * (double)(plain - w->peak_bytes) / (double)plain);
    if (w->extra_compute > 0)
        str_printf(out, "+%.1f %%", 100 * w->extra_compute);
    else
        str_add(out, "the same");
    if (w->extra_transfer_bytes > 0)
        str_printf(
            out, ", extra transfer %s a step\n",
            bytes_text(w->extra_transfer_bytes, size, sizeof size));
    else
        str_add(out, ", transfers none\n");
    for (const char **s = fit_settings(f, &w->choice, &memory); *s; s++) {
        str_add(out, "    ");
        add_setting(out, *s);
        str_add(out, "\n");
    }
    for (int i = 0; i < f->levers_n; i++)
        if (w->choice.level[i])
            str_printf(out, "      %s costs: %s\n", f->levers[i].name, f->levers[i].costs);
    arena_release(&memory);
}

static void add_group(const struct fit *f, enum fit_group group, struct str *out)
{
    const struct fit_way *first;
    size_t n = ways_of(f, group, &first);
    str_printf(out, "\n%s\n", group_titles[group]);
    for (size_t i = 0; i < n; i++)
        add_way(f, &first[i], out);
    if (n == 0 && group == FIT_OTHER && !f->o.allow)
        str_add(out, "  not looked for: --allow names what may change\n");
    else if (n == 0)
        str_add(out, "  no way\n");
    if (group == FIT_OTHER) {
        struct str idle;
        str_init(&idle);
        fit_words_idle(f, &idle);
        if (idle.n)
            str_printf(out, "  %s: nothing to offer for this graph in this version\n", idle.data);
        str_release(&idle);
    }
}

void fit_text(const struct fit *f, struct str *out)
{
    char peak[32], budget[32];
    str_printf(
        out, "%s: peak %s, budget %s%s\n", graph_path_shown(f->o.path),
        bytes_text(f->plans.data[0].peak_bytes, peak, sizeof peak),
        bytes_text(f->o.budget_bytes, budget, sizeof budget),
        fits_already(f) ? ": fits as it is" : "");
    if (fits_already(f))
        return;
    for (int g = 0; g < FIT_GROUP_COUNT; g++)
        add_group(f, (enum fit_group)g, out);
    str_printf(
        out,
        "\n%zu plans were made. Nothing is applied: -o FILE writes the graph with the first way.\n",
        f->plans.n);
}

/* ---- no way ---- */

/* The largest categories and nodes of the least peak. */
static void add_obstacles(const struct fit *f, struct str *out)
{
    char size[32];
    const char *key;
    json_t *by = json_object_get(f->least_plan, "by_category"), *value, *row;
    size_t i;
    str_add(out, "What holds the least peak:");
    for (int64_t below = INT64_MAX, shown = 0; shown < 4; shown++) {
        const char *most_key = NULL;
        int64_t most = 0;
        json_object_foreach(by, key, value)
        {
            int64_t v = json_integer_value(value);
            if (v > most && v < below) {
                most = v;
                most_key = key;
            }
        }
        if (!most_key)
            break;
        str_printf(
            out, "%s %s %s", shown ? "," : "", most_key, bytes_text(most, size, sizeof size));
        below = most;
    }
    str_add(out, "\nby node:");
    json_array_foreach(json_object_get(f->least_plan, "by_node"), i, row)
    {
        if (i == 4)
            break;
        str_printf(
            out, "%s %s %s", i ? "," : "", json_get_str(row, "node", "?"),
            bytes_text(json_get_i64(row, "bytes", 0), size, sizeof size));
    }
    struct arena memory;
    arena_init(&memory);
    str_add(out, "\nwith");
    const char **sets = fit_settings(f, &f->least, &memory);
    if (!*sets)
        str_add(out, " nothing changed");
    for (; *sets; sets++) {
        str_add(out, " ");
        add_setting(out, *sets);
    }
    arena_release(&memory);
}

enum status fit_verdict(const struct fit *f, struct err *e)
{
    char least[32], budget[32];
    struct str what, left;
    if (fits_already(f) || f->ways.n)
        return ST_OK;
    str_init(&what);
    str_init(&left);
    (void)err_set(
        e, ST_FAILED, "no way into %s was found: the least peak is %s",
        bytes_text(f->o.budget_bytes, budget, sizeof budget),
        bytes_text(f->least_bytes, least, sizeof least));
    add_obstacles(f, &what);
    err_detail(e, "%s", what.data);
    fit_words_left(f, &left);
    if (left.n)
        err_hint(e, "--allow %s lets fit change numbers as well", left.data);
    else
        err_hint(e, "what is left is a smaller model, shorter sequences or smaller images");
    str_release(&what);
    str_release(&left);
    return ST_FAILED;
}
