/* bill.c - sizes, bars and tables: where the memory goes, before and after. */
#include "cli/bill.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    BAR_COLUMNS = 20,
    CHART_COLUMNS = 64,
    CHART_ROWS = 6,
    NAME_COLUMNS_MAX = 36,
    LINE_COLUMNS = 100
};

static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};
static const char *const heights[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

const char *bill_size(int64_t bytes, char *buf, size_t cap)
{
    char binary[32];
    double v = (double)bytes;
    (void)bytes_text(bytes, binary, sizeof binary);
    if (bytes < 1000000)
        (void)snprintf(buf, cap, "%s", binary);
    else if (bytes < 1000000000)
        (void)snprintf(buf, cap, "%s (%.1f MB)", binary, v * 1e-6);
    else
        (void)snprintf(buf, cap, "%s (%.2f GB)", binary, v * 1e-9);
    return buf;
}

void bill_bar(struct str *out, double value, double most, int width)
{
    int parts = most > 0 && value > 0 ? (int)lround(value / most * 8 * width) : 0;
    if (parts == 0 && value > 0)
        parts = 1;
    for (; parts >= 8; parts -= 8)
        str_add(out, eighths[8]);
    str_add(out, eighths[parts]);
}

/* The largest value of each column. */
static int fold(const int64_t *value, size_t n, int columns, int64_t *top)
{
    int used = n < (size_t)columns ? (int)n : columns;
    for (int c = 0; c < used; c++) {
        size_t from = n * (size_t)c / (size_t)used, to = n * (size_t)(c + 1) / (size_t)used;
        top[c] = 0;
        for (size_t i = from; i < to; i++)
            if (value[i] > top[c])
                top[c] = value[i];
    }
    return used;
}

void bill_chart(struct str *out, const int64_t *value, size_t n, int columns, int rows)
{
    int64_t *top = mem_alloc((size_t)columns * sizeof *top), most = 0;
    char label[32];
    int used = fold(value, n, columns, top);
    for (int c = 0; c < used; c++)
        if (top[c] > most)
            most = top[c];
    for (int row = rows - 1; row >= 0; row--) {
        str_printf(
            out, "  %11s %s", row == rows - 1 ? bytes_text(most, label, sizeof label) : "",
            row == rows - 1 ? "┤" : "│");
        for (int c = 0; c < used; c++) {
            double level = most ? (double)top[c] / (double)most * rows - row : 0;
            int part = level >= 1 ? 8 : level <= 0 ? 0 : (int)lround(level * 8);
            str_add(out, heights[part]);
        }
        str_add(out, "\n");
    }
    str_add(out, "              └");
    for (int c = 0; c < used; c++)
        str_add(out, "─");
    str_add(out, "\n");
    mem_free(top);
}

/* ---- the bill ---- */

static void heading(const struct bill_options *o, struct str *out, const char *text)
{
    str_printf(out, "\n%s%s%s\n", o->colour ? "\033[1m" : "", text, o->colour ? "\033[0m" : "");
}

/* "word_and_word" to "word and word". */
static void add_words(struct str *out, const char *key, int columns)
{
    int n = 0;
    for (; *key; key++, n++)
        str_add_n(out, *key == '_' ? " " : key, 1);
    for (; n < columns; n++)
        str_add(out, " ");
}

static void row_end(struct str *out, int64_t bytes, int64_t peak)
{
    char size[32];
    double share = peak ? (double)bytes / (double)peak : 0;
    str_printf(out, " %12s %5.1f %%  ", bytes_text(bytes, size, sizeof size), 100 * share);
    bill_bar(out, share, 1, BAR_COLUMNS);
}

static void category_rows(const json_t *plan, struct str *out)
{
    json_t *by = json_object_get(plan, "by_category"), *value;
    int64_t peak = json_get_i64(plan, "peak_bytes", 0);
    const char *key;
    json_object_foreach(by, key, value)
    {
        if (json_integer_value(value) == 0)
            continue;
        str_add(out, "  ");
        add_words(out, key, 18);
        row_end(out, json_integer_value(value), peak);
        str_add(out, "\n");
    }
}

/* "activations 32.1 MiB, workspace 8 MiB": at most two, the largest. */
static void add_largest(struct str *out, json_t *by)
{
    const char *key, *name[2] = {NULL, NULL};
    int64_t bytes[2] = {0, 0};
    char size[32];
    json_t *value;
    json_object_foreach(by, key, value)
    {
        int64_t v = json_integer_value(value);
        int at = v > bytes[0] ? 0 : 1;
        if (v <= bytes[1])
            continue;
        if (at == 0) {
            bytes[1] = bytes[0];
            name[1] = name[0];
        }
        bytes[at] = v;
        name[at] = key;
    }
    for (int i = 0; i < 2 && name[i]; i++) {
        str_add(out, i ? ", " : "");
        add_words(out, name[i], 0);
        str_printf(out, " %s", bytes_text(bytes[i], size, sizeof size));
    }
}

static int name_columns(json_t *rows, size_t n)
{
    int columns = 18;
    for (size_t i = 0; i < n; i++) {
        int length = (int)strlen(json_get_str(json_array_get(rows, i), "node", ""));
        if (length > columns)
            columns = length;
    }
    return columns > NAME_COLUMNS_MAX ? NAME_COLUMNS_MAX : columns;
}

static void node_rows(const json_t *plan, const struct bill_options *o, struct str *out)
{
    json_t *rows = json_object_get(plan, "by_node");
    int64_t peak = json_get_i64(plan, "peak_bytes", 0), rest = 0;
    size_t n = json_array_size(rows), shown = n;
    if (shown > (size_t)o->rows_max)
        shown = (size_t)o->rows_max;
    int columns = name_columns(rows, shown);
    for (size_t i = 0; i < n; i++) {
        json_t *row = json_array_get(rows, i);
        if (i >= shown) {
            rest += json_get_i64(row, "bytes", 0);
            continue;
        }
        str_printf(out, "  %-*.*s", columns, columns, json_get_str(row, "node", ""));
        struct str line;
        str_init(&line);
        row_end(&line, json_get_i64(row, "bytes", 0), peak);
        str_add(out, line.data);
        str_release(&line);
        str_add(out, "  ");
        add_largest(out, json_object_get(row, "by_category"));
        str_add(out, "\n");
    }
    if (n > shown) {
        char label[64];
        (void)snprintf(label, sizeof label, "%zu more", n - shown);
        str_printf(out, "  %-*s", columns, label);
        row_end(out, rest, peak);
        str_add(out, "\n");
    }
}

static void peak_place(const json_t *plan, struct str *out)
{
    const char *program = json_get_str(plan, "peak_program", NULL);
    const char *layer = json_get_str(plan, "peak_layer", "");
    if (!program)
        return;
    str_printf(out, "  at                 program %s", program);
    str_printf(out, ", operator %s", json_get_str(plan, "peak_operator", "?"));
    if (layer[0])
        str_printf(out, ", layer %s", layer);
    str_printf(out, " (node %s)\n", json_get_str(plan, "peak_node", "?"));
}

static void limits(const json_t *plan, const struct bill_options *o, struct str *out)
{
    int64_t peak = json_get_i64(plan, "peak_bytes", 0);
    int64_t host = json_get_i64(plan, "host_bytes_planned", 0);
    char size[64];
    if (o->budget_bytes > 0)
        str_printf(
            out, "  budget             %s: %s\n", bytes_text(o->budget_bytes, size, sizeof size),
            peak <= o->budget_bytes ? "fits" : "does not fit");
    if (o->capacity_bytes > 0 && peak + host > o->capacity_bytes)
        str_printf(
            out, "  this machine       %s can be had: does not fit\n",
            bytes_text(o->capacity_bytes, size, sizeof size));
}

/* A card's lines: what it has to hold beside the plan, and whether it does. */
static void card_rows(const json_t *plan, struct str *out)
{
    size_t i;
    json_t *d;
    char context[32], need[32], all[32], left[32];
    json_array_foreach(json_object_get(plan, "devices"), i, d)
    {
        int64_t has = json_get_i64(d, "free_bytes", -1);
        if (!str_eq(json_get_str(d, "kind", ""), "cuda"))
            continue;
        str_printf(
            out, "  context            %s, of the driver and libraries on %s\n",
            bytes_text(json_get_i64(d, "context_bytes", 0), context, sizeof context),
            json_get_str(d, "id", ""));
        str_printf(
            out, "  %-18s %s: needs %s of %s", json_get_str(d, "id", ""),
            json_get_str(d, "name", ""),
            bytes_text(json_get_i64(d, "need_bytes", 0), need, sizeof need),
            bytes_text(json_get_i64(d, "capacity_bytes", 0), all, sizeof all));
        if (has >= 0)
            str_printf(out, ", %s free now", bytes_text(has, left, sizeof left));
        str_printf(
            out, ": %s\n",
            json_get_bool(d, "fits_now", false)      ? "fits"
            : json_get_bool(d, "fits_at_all", false) ? "does not fit now"
                                                     : "does not fit on this card");
    }
}

/* A text in lines of LINE_COLUMNS, all but the first after `indent` blanks. */
static void add_wrapped(struct str *out, const char *text, int indent)
{
    int column = indent;
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > indent && column + 1 + n > LINE_COLUMNS) {
            str_printf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            str_add(out, " ");
            column++;
        }
        str_add_n(out, text, (size_t)n);
        column += n;
        text += n + (text[n] == ' ');
    }
    str_add(out, "\n");
}

static void note_row(const char *note, struct str *out)
{
    if (!note)
        return;
    str_add(out, "  note               ");
    add_wrapped(out, note, 21);
}

/* What the graph's own choices save at the peak, and why that is little. */
static void saving_rows(const json_t *plan, struct str *out)
{
    const char *name;
    char size[32];
    json_t *value;
    json_object_foreach(json_object_get(plan, "savings"), name, value)
    {
        str_printf(
            out, "  %-18s saves %s at the peak", name,
            bytes_text(json_integer_value(value), size, sizeof size));
        if (str_eq(name, "checkpointing"))
            str_printf(
                out, ", for %.1f%% more arithmetic",
                100 * json_get_f64(plan, "recompute_share", 0));
        str_add(out, "\n");
    }
    note_row(json_get_str(plan, "precision_note", NULL), out);
    note_row(json_get_str(plan, "loss_chunk_note", NULL), out);
}

static void chart_of(json_t *program, struct str *out)
{
    json_t *line = json_object_get(program, "timeline");
    size_t n = json_array_size(line);
    int64_t *value = mem_alloc((n + 1) * sizeof *value);
    for (size_t i = 0; i < n; i++)
        value[i] = json_integer_value(json_array_get(line, i));
    str_printf(
        out, "  %s, %lld operators, in the order they run\n",
        json_get_str(program, "name", "program"),
        (long long)json_get_i64(program, "operators", (int64_t)n));
    bill_chart(out, value, n, CHART_COLUMNS, CHART_ROWS);
    mem_free(value);
}

static void charts(const json_t *plan, const struct bill_options *o, struct str *out)
{
    const char *peak = json_get_str(plan, "peak_program", "");
    json_t *program;
    size_t i;
    json_array_foreach(json_object_get(plan, "programs"), i, program)
    {
        bool wanted = o->all_programs || str_eq(json_get_str(program, "name", ""), peak);
        if (wanted && json_array_size(json_object_get(program, "timeline")) > 0)
            chart_of(program, out);
    }
}

static void host_rows(const json_t *plan, const struct bill_options *o, struct str *out)
{
    char size[64];
    json_t *row;
    size_t i;
    str_printf(
        out, "  %-18s %12s\n",
        json_object_get(plan, "offload_bytes_planned") ? "on the host" : "data and loaders",
        bytes_text(json_get_i64(plan, "host_bytes_planned", 0), size, sizeof size));
    json_array_foreach(json_object_get(plan, "host"), i, row) str_printf(
        out, "    %-16s %12s  %s\n", json_get_str(row, "node", ""),
        bytes_text(json_get_i64(row, "bytes", 0), size, sizeof size),
        json_get_str(row, "what", ""));
    if (o->process_bytes > 0)
        str_printf(
            out, "  %-18s %12s  the program, its libraries, thread stacks\n", "not in the plan",
            bytes_text(o->process_bytes, size, sizeof size));
}

void bill_text(const json_t *plan, const struct bill_options *o, struct str *out)
{
    char size[64];
    int64_t peak = json_get_i64(plan, "peak_bytes", 0);
    str_printf(out, "%sMemory bill%s\n", o->colour ? "\033[1m" : "", o->colour ? "\033[0m" : "");
    str_printf(out, "  peak               %s\n", bill_size(peak, size, sizeof size));
    peak_place(plan, out);
    str_printf(
        out, "  lower bound        %s: no plan can need less\n",
        bytes_text(json_get_i64(plan, "lower_bound_bytes", 0), size, sizeof size));
    if (json_get_i64(plan, "parameters", 0) > 0)
        str_printf(
            out, "  parameters         %lld, %lld of them trained\n",
            (long long)json_get_i64(plan, "parameters", 0),
            (long long)json_get_i64(plan, "trainable", 0));
    saving_rows(plan, out);
    limits(plan, o, out);
    card_rows(plan, out);
    heading(o, out, "At the peak, by category");
    category_rows(plan, out);
    heading(o, out, "At the peak, by node");
    node_rows(plan, o, out);
    if (json_object_get(json_array_get(json_object_get(plan, "programs"), 0), "timeline")) {
        heading(o, out, "Over the step");
        charts(plan, o, out);
    }
    heading(o, out, "Beside the plan, in the process");
    host_rows(plan, o, out);
}

/* ---- the result ---- */

static void accuracy_rows(const json_t *document, struct str *out)
{
    const char *id;
    json_t *result;
    json_object_foreach(json_object_get(document, "results"), id, result)
    {
        if (!json_is_number(json_object_get(result, "accuracy")))
            continue;
        str_printf(out, "  test accuracy      %.2f %%", 100 * json_get_f64(result, "accuracy", 0));
        if (json_get_i64(result, "total", 0) > 0)
            str_printf(
                out, "  (%lld of %lld, node %s)", (long long)json_get_i64(result, "correct", 0),
                (long long)json_get_i64(result, "total", 0), id);
        str_add(out, "\n");
    }
}

static void file_rows(const json_t *document, struct str *out)
{
    const char *id, *path;
    json_t *result;
    json_object_foreach(json_object_get(document, "results"), id, result)
    {
        path = json_get_str(result, "path", NULL);
        if (path)
            str_printf(out, "  %-18s %s\n", id, path);
    }
    path = json_get_str(json_object_get(document, "metrics"), "interrupt_checkpoint", NULL);
    if (path)
        str_printf(out, "  %-18s %s\n", "to go on from", path);
}

static void metric_rows(const json_t *document, struct str *out)
{
    json_t *m = json_object_get(document, "metrics");
    if (!json_is_object(m))
        return;
    json_t *loss = json_object_get(m, "final_train_loss"),
           *val = json_object_get(m, "final_val_loss");
    if (json_is_number(loss))
        str_printf(out, "  last train loss    %.4f\n", json_number_value(loss));
    if (json_is_number(val))
        str_printf(out, "  last val loss      %.4f\n", json_number_value(val));
    if (json_get_i64(m, "skipped_steps", 0) > 0)
        str_printf(
            out, "  updates skipped    %lld (inf or NaN gradients under fp16)\n",
            (long long)json_get_i64(m, "skipped_steps", 0));
    double rate = json_get_f64(m, "images_per_s", 0);
    if (rate > 0)
        str_printf(out, "  speed              %.0f images/s\n", rate);
}

static void growth_row(const json_t *document, int64_t planned, struct str *out)
{
    char grown[32], wanted[32];
    json_t *growth = json_object_get(document, "rss_growth_bytes");
    if (!json_is_integer(growth) || planned <= 0)
        return;
    int64_t bytes = json_integer_value(growth);
    str_printf(
        out, "  process grew by    %s; planned with data and loaders %s (%+.1f %%)\n",
        bytes_text(bytes, grown, sizeof grown), bytes_text(planned, wanted, sizeof wanted),
        100 * ((double)bytes / (double)planned - 1));
}

void bill_result_text(const json_t *document, bool colour, struct str *out)
{
    char size[64];
    int64_t planned = json_get_i64(document, "peak_bytes_planned", 0);
    int64_t measured = json_get_i64(document, "peak_bytes_measured", 0);
    const char *on = colour ? "\033[1m" : "", *off = colour ? "\033[0m" : "";
    str_printf(out, "%sResult%s\n", on, off);
    accuracy_rows(document, out);
    metric_rows(document, out);
    if (json_get_f64(document, "seconds", 0) > 0)
        str_printf(out, "  time               %.1f s\n", json_get_f64(document, "seconds", 0));
    file_rows(document, out);
    str_printf(out, "\n%sMemory%s\n", on, off);
    str_printf(out, "  predicted peak     %s\n", bill_size(planned, size, sizeof size));
    str_printf(out, "  measured peak      %s\n", bill_size(measured, size, sizeof size));
    str_printf(out, "  difference         %lld bytes\n", (long long)(measured - planned));
    growth_row(document, planned + json_get_i64(document, "host_bytes_planned", 0), out);
}
