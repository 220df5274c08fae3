/* nodes_show.c - the table of node types as JSON and as text. */
#include "graph/nodes.h"

#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static json_t *bound_json(double bound, enum param_type type)
{
    if (isnan(bound))
        return json_null();
    return type == PARAM_INT ? json_integer((json_int_t)bound) : json_real(bound);
}

/* "a|!b" to ["a", "b"]. */
static json_t *options_json(const char *options)
{
    json_t *list = json_array();
    while (options && *options) {
        size_t n = strcspn(options, "|");
        size_t skip = *options == '!';
        (void)json_array_append_new(list, json_stringn(options + skip, n - skip));
        options += n + (options[n] == '|');
    }
    return list;
}

/* "name=a" to {"name": "a"}, "name=a|b" to {"name": ["a", "b"]}; null where always shown. */
static json_t *when_json(const char *when)
{
    if (!when)
        return json_null();
    const char *equals = strchr(when, '=');
    char name[64];
    (void)snprintf(name, sizeof name, "%.*s", (int)(equals - when), when);
    json_t *o = json_object();
    json_put(o, name, strchr(equals, '|') ? options_json(equals + 1) : json_string(equals + 1));
    return o;
}

static json_t *param_json(const struct node_param *p)
{
    json_t *o = json_object();
    json_put_str(o, "name", p->name);
    json_put_str(o, "param_type", param_type_name(p->type));
    json_put(o, "default", node_param_initial(p));
    json_put_str(o, "description", p->about);
    json_put(o, "options", options_json(p->options));
    json_put(o, "min_value", bound_json(p->min, p->type));
    json_put(o, "max_value", bound_json(p->max, p->type));
    json_put(o, "visible_when", when_json(p->when));
    json_put_bool(o, "advanced", p->flags & PARAM_FLAG_ADVANCED);
    return o;
}

static json_t *ports_json(const struct node_port *ports, bool outputs)
{
    json_t *list = json_array();
    for (; ports->name; ports++) {
        json_t *o = json_object();
        json_put_str(o, "name", ports->name);
        json_put_str(o, "data_type", port_type_name(ports->type));
        json_put_str(o, "description", "");
        if (!outputs)
            json_put_bool(o, "optional", ports->optional);
        (void)json_array_append_new(list, o);
    }
    return list;
}

json_t *node_type_json(const struct node_type *t)
{
    json_t *params = json_array(), *o = json_object();
    for (const struct node_param *p = t->params; p->name; p++)
        (void)json_array_append_new(params, param_json(p));
    json_put_str(o, "node_name", t->name);
    json_put_str(o, "category", t->category);
    json_put_str(o, "description", t->about);
    json_put(o, "inputs", ports_json(t->inputs, false));
    json_put(o, "outputs", ports_json(t->outputs, true));
    json_put(o, "params", params);
    json_put_str(o, "provider", t->provider);
    json_put_bool(o, "runnable", t->flags & NODE_FLAG_RUNNABLE);
    return o;
}

json_t *node_table_json(void)
{
    json_t *list = json_array();
    for (size_t i = 0; i < node_type_count(); i++)
        (void)json_array_append_new(list, node_type_json(node_type_at(i)));
    return list;
}

json_t *node_table_names(void)
{
    json_t *list = json_array();
    for (size_t i = 0; i < node_type_count(); i++)
        (void)json_array_append_new(list, json_string(node_type_at(i)->name));
    return list;
}

void node_table_hash(char out[33])
{
    json_t *table = node_table_json();
    char *text = json_text(table, false);
    size_t n = strlen(text);
    uint64_t low = hash_bytes(text, n, 1), high = hash_bytes(text, n, 2);
    (void)snprintf(out, 33, "%016llx%016llx", (unsigned long long)high, (unsigned long long)low);
    mem_free(text);
    json_decref(table);
}

void node_table_text(struct str *out)
{
    for (int runnable = 1; runnable >= 0; runnable--) {
        str_add(out, runnable ? "Run by this version:\n" : "\nKnown, not run by this version:\n");
        for (size_t i = 0; i < node_type_count(); i++) {
            const struct node_type *t = node_type_at(i);
            if (!(t->flags & NODE_FLAG_RUNNABLE) == !runnable)
                str_printf(out, "  %-28s %s\n", t->name, t->about);
        }
    }
}

static void ports_text(const char *title, const struct node_port *ports, struct str *out)
{
    str_printf(out, "  %s:%s", title, ports->name ? "" : " none");
    for (; ports->name; ports++)
        str_printf(
            out, " %s:%s%s", ports->name, port_type_name(ports->type), ports->optional ? "?" : "");
    str_add(out, "\n");
}

/* Shows at most 40 characters of a default: a layer graph would fill the screen. */
static void param_text(const struct node_param *p, struct str *out)
{
    bool is_long = strlen(p->initial) > 40;
    str_printf(
        out, "  %-28s %-12s %.40s%s", p->name, param_type_name(p->type),
        *p->initial ? p->initial : "\"\"", is_long ? "..." : "");
    if (!isnan(p->min))
        str_printf(out, ", at least %g", p->min);
    if (!isnan(p->max))
        str_printf(out, ", at most %g", p->max);
    str_printf(out, "\n      %s\n", p->about);
    if (p->options) {
        str_add(out, "      one of: ");
        for (const char *o = p->options; *o; o++) {
            if (*o == '!')
                continue;
            str_add_n(out, *o == '|' ? ", " : o, *o == '|' ? 2 : 1);
        }
        str_add(out, "\n");
    }
    if (p->flags & PARAM_FLAG_LATER || (p->options && strchr(p->options, '!')))
        str_add(out, "      this version does not run every value\n");
}

void node_type_text(const struct node_type *t, struct str *out)
{
    bool runnable = t->flags & NODE_FLAG_RUNNABLE;
    str_printf(
        out, "%s (%s): %s%s\n", t->name, t->category, t->about,
        runnable ? "" : " Known, but not run by this version.");
    ports_text("inputs", t->inputs, out);
    ports_text("outputs", t->outputs, out);
    for (const struct node_param *p = t->params; p->name; p++)
        param_text(p, out);
}
