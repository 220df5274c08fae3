/* cmd_sweep.c - `snug sweep`: variants of a graph, ranked by a metric. */
#include "cli/commands.h"
#include "cli/variants.h"

static const struct variants_kind sweeps = {"sweep", "/api/sweeps", "sweeps", "sweep_id", true};

static enum status
submit(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return variants_submit(&sweeps, a, c, NULL, d, out, e);
}

static enum status
show(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return variants_show(&sweeps, a, c, d, out, e);
}

static enum status
csv(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return variants_csv(&sweeps, a, c, d, out, e);
}

static enum status
cancel(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return variants_tell(&sweeps, a, c, "cancel", "is asked to stop", d, out, e);
}

static enum status
list(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    (void)a;
    return variants_list(&sweeps, c, d, out, e);
}

int cmd_sweep(const struct args *a)
{
    static const struct remote_word words[] = {
        {"list", 0, "", list},
        {"submit", 1, "GRAPH or FILE", submit},
        {"show", 1, "ID", show},
        {"csv", 1, "ID", csv},
        {"cancel", 1, "ID", cancel}};
    return remote_command(a, words, sizeof words / sizeof *words);
}
