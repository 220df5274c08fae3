/* cmd_study.c - `snug study`: variants times repetitions, which survive restarts. */
#include "cli/commands.h"
#include "cli/events.h"
#include "cli/variants.h"

static const struct variants_kind studies = {"study", "/api/studies", "studies", "study_id", false};

/* What a study has beyond a sweep. */
static enum status adjust(const struct args *a, json_t *body, struct err *e)
{
    const struct option_value *v = a->option;
    (void)e;
    if (v[OPTION_REPETITIONS].given)
        json_put_i64(body, "repetitions", v[OPTION_REPETITIONS].number);
    if (v[OPTION_RUNS_MAX].given)
        json_put_i64(body, "runs_max", v[OPTION_RUNS_MAX].number);
    if (v[OPTION_SEED].given)
        json_put_i64(body, "seed", v[OPTION_SEED].number);
    return ST_OK;
}

static enum status
submit(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return variants_submit(&studies, a, c, adjust, d, out, e);
}

static enum status
show(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return variants_show(&studies, a, c, d, out, e);
}

static enum status
csv(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return variants_csv(&studies, a, c, d, out, e);
}

/* All events, page by page; `all` gets them. */
static enum status events_read(struct client *c, const char *id, json_t *all, struct err *e)
{
    int64_t cursor = 0;
    for (;;) {
        json_t *page = NULL;
        struct client_path p = client_path("/api/studies/%s/events", id);
        client_query_i64(&p, "limit", 2000);
        client_query_i64(&p, "cursor", cursor);
        TRY(client_get(c, p.text, 60, &page, e));
        json_t *events = json_object_get(page, "events");
        size_t n = json_array_size(events);
        int64_t last = json_get_i64(json_array_get(events, n - 1), "cursor", cursor);
        (void)json_array_extend(all, events);
        json_decref(page);
        if (n == 0 || last <= cursor)
            return ST_OK;
        cursor = last;
    }
}

static enum status
events(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    char id[65];
    json_t *page, *list, *event;
    size_t i;
    struct str rows;
    TRY(remote_id_of(c, studies.path, studies.list, studies.what, a->argument[1], id, e));
    list = json_array();
    enum status st = events_read(c, id, list, e);
    page = json_pack("{s:s, s:o}", "study_id", id, "events", list);
    if (st != ST_OK) {
        json_decref(page);
        return st;
    }
    str_init(&rows);
    json_array_foreach(list, i, event)
    {
        str_printf(
            &rows, "%lld\t%s\t", (long long)json_get_i64(event, "cursor", 0),
            json_get_str(event, "ts", ""));
        event_line(json_get_str(event, "type", ""), json_object_get(event, "payload"), &rows);
    }
    remote_table(&rows, page, d, out);
    return ST_OK;
}

static enum status
pause_study(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return variants_tell(
        &studies, a, c, "pause", "pauses: what runs goes on to its end", d, out, e);
}

static enum status
resume(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return variants_tell(&studies, a, c, "resume", "goes on", d, out, e);
}

static enum status
cancel(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return variants_tell(&studies, a, c, "cancel", "is asked to stop", d, out, e);
}

static enum status
list(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    (void)a;
    return variants_list(&studies, c, d, out, e);
}

int cmd_study(const struct args *a)
{
    static const struct remote_word words[] = {
        {"list", 0, "", list},       {"submit", 1, "GRAPH or FILE", submit},
        {"show", 1, "ID", show},     {"csv", 1, "ID", csv},
        {"events", 1, "ID", events}, {"pause", 1, "ID", pause_study},
        {"resume", 1, "ID", resume}, {"cancel", 1, "ID", cancel}};
    return remote_command(a, words, sizeof words / sizeof *words);
}
