/* cmd_fit.c - `snug fit`: what it would take to bring a graph below a budget. */
#include "cli/answer.h"
#include "cli/commands.h"

#include "base/env.h"
#include "plan/fit.h"

#include <unistd.h>

enum { PROGRESS_MS = 1000 };

struct fitting {
    struct fit *fit;
    bool json;
    int64_t shown_ns; /* when progress was shown last */
};

/* A line each second on stderr: an event under --json. */
static void progress(int plans, int64_t least_bytes, void *ctx)
{
    struct fitting *x = ctx;
    char size[32];
    int64_t now = clock_ns();
    if (now - x->shown_ns < (int64_t)PROGRESS_MS * 1000000)
        return;
    x->shown_ns = now;
    if (x->json)
        (void)fprintf(
            stderr, "{\"event\":\"fit\",\"plans\":%d,\"least_peak_bytes\":%lld}\n", plans,
            (long long)least_bytes);
    else
        (void)fprintf(
            stderr, "snug: %d plans, least peak %s\n", plans,
            bytes_text(least_bytes, size, sizeof size));
}

static enum status search(const struct args *a, struct fitting *x, struct err *e)
{
    int64_t budget = 0;
    const char *text = a->option[OPTION_BUDGET].text;
    if (!text)
        return err_set(e, ST_USAGE, "`snug fit` needs --budget SIZE: --budget 8GiB");
    if (!str_to_bytes(text, &budget) || budget <= 0)
        return err_set(
            e, ST_USAGE, "--budget is a size above 0 (8GiB, 500MB, 4096), not \"%.60s\"", text);
    struct fit_options o = {
        .path = a->argument[0],
        .sets = a->option[OPTION_SET].list.data,
        .n_sets = a->option[OPTION_SET].list.n,
        .budget_bytes = budget,
        .allow = a->option[OPTION_ALLOW].text,
        .run = run_options_of(a),
        .progress = progress,
        .ctx = x};
    x->shown_ns = clock_ns();
    TRY(fit_search(&o, &x->fit, e));
    TRY(fit_verdict(x->fit, e));
    if (a->option[OPTION_OUTPUT].given)
        return fit_write(x->fit, a->option[OPTION_OUTPUT].text, e);
    return ST_OK;
}

int cmd_fit(const struct args *a)
{
    struct err e = {0};
    struct fitting x = {.json = a->json};
    struct str out;
    json_t *d = NULL;
    int rc = 0;
    str_init(&out);
    enum status st = search(a, &x, &e);
    if (x.fit && a->json) {
        d = fit_json(x.fit);
        if (a->option[OPTION_OUTPUT].given)
            json_put_str(d, "output", st == ST_OK ? a->option[OPTION_OUTPUT].text : NULL);
    } else if (x.fit) {
        fit_text(x.fit, &out);
        rc = answer_text(out.data);
    }
    int end = answer_end(a->json, st, &e, d);
    fit_free(x.fit);
    str_release(&out);
    return end ? end : rc;
}
