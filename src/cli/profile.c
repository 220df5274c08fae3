/* profile.c - the profile of a run as text: tables sorted by time. */
#include "cli/profile.h"

#include <string.h>

enum { ROWS_MAX = 16 };

static void row_text(const json_t *row, const char *name, double whole, struct str *out)
{
    double ms = json_get_f64(row, "ms", 0);
    str_printf(
        out, "  %-26s %5lld %10.3f ms %5.1f %%", json_get_str(row, name, ""),
        (long long)json_get_i64(row, "calls", 0), ms, whole > 0 ? 100 * ms / whole : 0);
}

static void operators_text(const json_t *program, double whole, struct str *out)
{
    json_t *row;
    size_t i;
    str_printf(out, "  %-26s %5s %13s\n", "operator", "calls", "per run");
    json_array_foreach(json_object_get(program, "operators"), i, row)
    {
        row_text(row, "operator", whole, out);
        str_printf(out, "  %s\n", json_get_str(row, "kernel", ""));
    }
}

static void nodes_text(const json_t *program, double whole, struct str *out)
{
    json_t *row, *list = json_object_get(program, "nodes");
    size_t i;
    str_printf(out, "\n  %-26s %5s %13s\n", "node", "calls", "per run");
    json_array_foreach(list, i, row)
    {
        if (i == ROWS_MAX) {
            str_printf(out, "  %zu more\n", json_array_size(list) - i);
            break;
        }
        row_text(row, "node", whole, out);
        str_printf(
            out, "  forward %.3f, backward %.3f, update %.3f\n",
            json_get_f64(row, "forward_ms", 0) + json_get_f64(row, "loss_ms", 0),
            json_get_f64(row, "backward_ms", 0), json_get_f64(row, "update_ms", 0));
    }
}

void profile_text(const json_t *document, bool colour, struct str *out)
{
    json_t *loop, *program;
    size_t i, k;
    json_array_foreach(json_object_get(document, "profile"), i, loop)
    {
        json_array_foreach(json_object_get(loop, "programs"), k, program)
        {
            double whole = json_get_f64(program, "ms", 0);
            str_printf(
                out, "\n%sProfile%s of %s, program %s: %.2f ms a run, mean of %lld\n",
                colour ? "\033[1m" : "", colour ? "\033[0m" : "", json_get_str(loop, "node_id", ""),
                json_get_str(program, "program", ""), whole,
                (long long)json_get_i64(program, "runs", 0));
            operators_text(program, whole, out);
            nodes_text(program, whole, out);
        }
    }
}
