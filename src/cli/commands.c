/* commands.c - what several commands share: from options to the runner's words. */
#include "cli/commands.h"

#include "plan/oom.h"

#include <string.h>

struct run_options run_options_of(const struct args *a)
{
    const struct option_value *v = a->option;
    struct run_options o = {
        .device = v[OPTION_DEVICE].text,
        .has_seed = v[OPTION_SEED].given,
        .seed = v[OPTION_SEED].number,
        .budget_bytes = v[OPTION_MEMORY_GIB].number,
        .storage = EXEC_PLANNED,
        .threads = v[OPTION_THREADS].number > 4096 ? 4096 : (int)v[OPTION_THREADS].number,
        .resume = v[OPTION_RESUME].text,
        .dump_after = v[OPTION_DUMP_AFTER].text,
        .profile = v[OPTION_PROFILE].given,
        .memory_history = v[OPTION_MEMORY_HISTORY].text,
        .memory_history_max = v[OPTION_MEMORY_HISTORY_MAX].number,
        .memory_steps = v[OPTION_MEMORY_STEPS].given,
        .memory_summary = v[OPTION_MEMORY_SUMMARY].given,
    };
    if (v[OPTION_MEMORY].given && strcmp(v[OPTION_MEMORY].text, "dynamic") == 0)
        o.storage = EXEC_DYNAMIC;
    return o;
}

enum status graph_of(const struct args *a, struct graph **out, struct err *e)
{
    return graph_prepare(
        a->argument[0], a->option[OPTION_SET].list.data, a->option[OPTION_SET].list.n, out, e);
}

void explain_oom(const struct args *a, const struct run *r, json_t *d, struct err *e)
{
    struct fit_options o = {
        .path = a->argument[0],
        .sets = a->option[OPTION_SET].list.data,
        .n_sets = a->option[OPTION_SET].list.n,
        .run = run_options_of(a)};
    o.run.dump_after = NULL; /* of the run itself, not of what would help */
    json_t *oom = oom_explain(&o, r, e);
    if (d && oom)
        json_put(d, "oom", json_incref(oom));
    json_decref(oom);
}
