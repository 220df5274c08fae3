/* cmd_run.c - `snug run`: here, with bill, live display and result, or through a server (queued.h).
 */
#include "cli/answer.h"
#include "cli/bill.h"
#include "cli/commands.h"
#include "cli/live.h"
#include "cli/profile.h"
#include "cli/queued.h"

#include "base/env.h"
#include "base/log.h"
#include "child/series.h"
#include "mem/slot.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { NODE_ROWS = 8 };

/* How often Stop was asked for, and whether the answer is being written: all that the signal
 * handler can reach. */
static volatile sig_atomic_t stops, answering;

static void on_stop(int signal_number)
{
    (void)signal_number;
    stops = stops + 1;
    if (stops > 1 && !answering)
        answer_now(ST_INTERRUPTED, "stopped at once: no interrupt checkpoint was written", NULL);
    if (stops > 3) /* nobody reads the answer */
        _exit(status_exit(ST_INTERRUPTED));
}

static bool stop_asked(void *ctx)
{
    (void)ctx;
    return stops > 0;
}

static void catch_signals(void)
{
    struct sigaction act = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    (void)sigemptyset(&act.sa_mask);
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
}

static void
add_facts(struct str *out, const struct graph *g, const struct run *r, const char *device)
{
    json_t *facts = run_facts(r);
    bool card = strcmp(device, "cpu") != 0;
    str_printf(out, "%s (%s)\n", graph_name(g), graph_path(g));
    str_printf(
        out, "snug %s, %s%scpu with %s, %lld threads, seed %lld\n\n",
        json_get_str(facts, "version", ""), card ? device : "", card ? " simulated by the " : "",
        json_get_str(facts, "isa", ""), (long long)json_get_i64(facts, "threads", 0),
        (long long)json_get_i64(facts, "seed", 0));
    json_decref(facts);
}

static void
show_bill(const struct args *a, const struct graph *g, const struct run *r, int64_t process_bytes)
{
    struct bill_options o = {
        .colour = colour_on(stdout),
        .rows_max = NODE_ROWS,
        .process_bytes = process_bytes,
        .budget_bytes = a->option[OPTION_MEMORY_GIB].number,
        .capacity_bytes = host_capacity_bytes(),
    };
    struct str out;
    json_t *plan = run_plan_json(r, true);
    str_init(&out);
    add_facts(&out, g, r, json_get_str(plan, "device", "cpu"));
    bill_text(plan, &o, &out);
    str_add(&out, "\n");
    (void)fputs(out.data, stdout);
    (void)fflush(stdout);
    str_release(&out);
    json_decref(plan);
}

static void show_result(const struct run *r)
{
    struct str out;
    json_t *d = run_document(r);
    str_init(&out);
    bill_result_text(d, colour_on(stdout), &out);
    profile_text(d, colour_on(stdout), &out);
    str_add(&out, json_get_str(d, "memory_summary", ""));
    (void)fputs(out.data, stdout);
    (void)fflush(stdout);
    str_release(&out);
    json_decref(d);
}

/* The plan is an event of its own under --json: a reader need not wait for the end. */
static void tell_plan(struct live *l, const struct run *r)
{
    json_t *event = json_object(), *plan = run_plan_json(r, false);
    json_put_str(event, "event", "plan");
    if (json_object_update(event, plan) != 0)
        json_put_str(event, "message", "the plan could not be copied");
    json_decref(plan);
    live_event(event, l);
    json_decref(event);
}

/* ---- what a run in the foreground has beside its display ---- */

struct foreground {
    struct live live;
    struct boards *boards;         /* TensorBoard; NULL until the graph is known */
    struct slot slot[DEVICES_MAX]; /* places on the devices that it uses */
    int slots_n;
};

static void on_event(const json_t *event, void *ctx)
{
    struct foreground *f = ctx;
    const char *opened = NULL;
    struct err e;
    live_event(event, &f->live);
    if (f->boards && boards_event(f->boards, event, &opened, &e) != ST_OK)
        log_warn("%s", e.text);
    if (!opened)
        return;
    json_t *said = json_pack("{s:s,s:s}", "event", "tensorboard", "path", opened);
    live_event(said, &f->live);
    json_decref(said);
}

/* --tensorboard DIR: every loop; without it those whose parameter says so. */
static void open_boards(struct foreground *f, const struct args *a, const struct graph *g)
{
    char dir[1200];
    const char *asked = a->option[OPTION_TENSORBOARD].text;
    if (!asked)
        (void)snprintf(
            dir, sizeof dir, "%s/tb/%lld-%ld", snug_home(), (long long)(clock_wall_us() / 1000000),
            (long)getpid());
    f->boards = boards_new(g, asked ? asked : dir, asked != NULL);
}

static void close_boards(struct foreground *f)
{
    struct err e;
    if (boards_free(f->boards, &e) != ST_OK)
        log_warn("%s", e.text);
    f->boards = NULL;
}

/* Queued runs of this SNUG_HOME wait meanwhile. A place that cannot be had stops nobody. */
static void hold_slots(struct foreground *f, const struct run *r)
{
    struct run_device d;
    struct err e;
    for (int i = 0; run_device_at(r, i, &d); i++) {
        if (!d.used)
            continue;
        if (slot_hold(&f->slot[f->slots_n], slot_name(d.device), &e) == ST_OK)
            f->slots_n++;
        else
            log_warn("queued runs cannot see this one: %s", e.text);
    }
}

static void release_slots(struct foreground *f)
{
    for (int i = 0; i < f->slots_n; i++)
        slot_release(&f->slot[i]);
}

static enum status
execute(const struct args *a, struct graph *g, struct run *r, struct foreground *f, struct err *e)
{
    int64_t process_bytes = process_rss_bytes();
    TRY(run_plan(r, e));
    if (a->json)
        tell_plan(&f->live, r);
    else
        show_bill(a, g, r, process_bytes);
    hold_slots(f, r);
    open_boards(f, a, g);
    enum status st = run_execute(r, e);
    close_boards(f);
    release_slots(f);
    return st;
}

static json_t *document_of(const struct run *r, json_t *logged)
{
    json_t *d = run_document(r);
    (void)json_array_extend(json_object_get(d, "warnings"), logged);
    return d;
}

/* Options that say something only beside another one. */
static enum status check_options(const struct args *a, struct err *e)
{
    if (a->option[OPTION_MEMORY_HISTORY_MAX].given && !a->option[OPTION_MEMORY_HISTORY].given)
        return err_set(e, ST_USAGE, "--memory-history-max needs --memory-history FILE");
    return ST_OK;
}

static int run_here(const struct args *a)
{
    struct err e = {0};
    struct graph *g = NULL;
    struct run *r = NULL;
    struct foreground f = {0};
    struct run_options o = run_options_of(a);
    o.prepares_data = true;
    struct run_sink sink = {.event = on_event, .stop = stop_asked, .ctx = &f};
    catch_signals();
    live_begin(&f.live, a->json);
    enum status st = check_options(a, &e);
    if (st == ST_OK)
        st = graph_of(a, &g, &e);
    if (st == ST_OK)
        st = run_new(g, &o, &sink, &r, &e);
    if (st == ST_OK)
        st = execute(a, g, r, &f, &e);
    json_t *logged = json_incref(f.live.logged);
    live_end(&f.live);
    answering = 1;
    if (!a->json && (st == ST_OK || st == ST_INTERRUPTED))
        show_result(r);
    json_t *d = a->json && r ? document_of(r, logged) : NULL;
    if (st == ST_OOM && r)
        explain_oom(a, r, d, &e);
    int rc = answer_end(a->json, st, &e, d);
    json_decref(logged);
    run_free(r);
    graph_free(g);
    return rc;
}

int cmd_run(const struct args *a)
{
    struct err e = {0};
    bool queued;
    enum status st = queued_wanted(a, &queued, &e);
    if (st != ST_OK)
        return answer_end(a->json, st, &e, NULL);
    return queued ? queued_run(a) : run_here(a);
}
