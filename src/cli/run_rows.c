/* run_rows.c - runs as rows of a table. */
#include "cli/run_rows.h"

#include "cli/remote.h"

#include <string.h>

enum { NAME_MOST = 28, ERROR_MOST = 60 };

void run_rows_head(struct str *rows)
{
    str_add(rows, "ID\tNAME\tSTATUS\tWHERE\tBUDGET\tTIME\tOWNER\tWHY\n");
}

void run_where(struct str *rows, const json_t *row)
{
    const json_t *devices = json_object_get(row, "devices");
    const char *worker = json_get_str(row, "worker", NULL);
    size_t i;
    json_t *d;
    if (!worker && json_array_size(devices) == 0) {
        str_add(rows, json_get_str(row, "queue_key", "-"));
        return;
    }
    str_add(rows, worker ? worker : "-");
    json_array_foreach(devices, i, d)
        str_printf(rows, "%s%s", i ? "," : " ", json_is_string(d) ? json_string_value(d) : "?");
}

/* "6.0 (est.)", with where it came from (R18). */
void run_budget(struct str *rows, const json_t *row)
{
    const json_t *budget = json_object_get(row, "budget");
    const char *source = json_get_str(budget, "source", "");
    if (!json_is_object(budget)) {
        str_add(rows, "-");
        return;
    }
    char small[32];
    double gib = json_get_f64(budget, "gib", 0);
    if (gib < 0.95)
        str_add(rows, bytes_text(json_get_i64(budget, "bytes", 0), small, sizeof small));
    else
        str_printf(rows, "%.1f GiB", gib);
    if (strcmp(source, "estimate") == 0)
        str_add(rows, " (est.)");
    else if (strcmp(source, "measured") == 0)
        str_printf(rows, " (measured, %.8s)", json_get_str(budget, "run_id", "?"));
    if (json_get_bool(budget, "raised", false))
        str_add(rows, " raised");
}

static void add_time(struct str *rows, const json_t *row)
{
    const char *started = json_get_str(row, "started_at", NULL);
    const char *finished = json_get_str(row, "finished_at", NULL);
    double s = started && finished ? seconds_between(started, finished)
               : started           ? seconds_since(started)
               : finished          ? -1
                                   : seconds_since(json_get_str(row, "created_at", NULL));
    if (s >= 0)
        duration_add(rows, s);
    else
        str_add(rows, "-");
}

void run_row(struct str *rows, const json_t *row)
{
    char id[9];
    const char *status = json_get_str(row, "status", "?");
    int64_t place = json_get_i64(row, "queue_position", 0);
    str_printf(rows, "%s\t", short_id(json_get_str(row, "id", ""), id));
    cell_add(rows, json_get_str(row, "name", "-"), NAME_MOST);
    str_printf(rows, "\t%s", status);
    if (place > 0)
        str_printf(rows, " #%lld", (long long)place);
    str_add(rows, "\t");
    run_where(rows, row);
    str_add(rows, "\t");
    run_budget(rows, row);
    str_add(rows, "\t");
    add_time(rows, row);
    str_add(rows, "\t");
    cell_add(rows, json_get_str(row, "owner", "-"), NAME_MOST);
    str_add(rows, "\t");
    /* Why a run waits is said whole; an error may be a page, which `runs show` has. */
    bool waits = strcmp(status, "queued") == 0;
    const char *why = json_get_str(row, waits ? "reason" : "error", "");
    cell_add(rows, why ? why : "", waits ? 0 : ERROR_MOST);
    str_add(rows, "\n");
}
