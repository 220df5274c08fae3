/* core_submit.c - submission: read without the lock, resolved and judged with it, stored whole.
 *
 * Of n submissions each is read (options, graph, key, snapshot) before the lock is taken. Under the
 * lock every one is resolved (devices, budget) and judged before anything is written, then all are
 * written in one transaction. "Resolve before write": what the row says afterwards is numbers.
 */
#include "graph/graph.h"
#include "server/core_int.h"

#include <string.h>

enum { NAME_LETTERS_MAX = 64, ARGV_MAX = 4096, COMMAND_BYTES_MAX = 1 << 20 };

/* A submission on its way into the store. */
struct prepared {
    const struct core_submission *s;
    struct run_options options;
    struct graph_read graph;
    size_t blob; /* which prepared one holds the snapshot */
    char *options_text, *patch_text, *command_text, *wanted;
    char budget_run[ID_BYTES];
    json_t *fallback; /* payload of the warning, or NULL */
    struct store_run row;
};

static void release(struct prepared *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        graph_read_release(&p[i].graph);
        mem_free(p[i].options_text);
        mem_free(p[i].patch_text);
        mem_free(p[i].command_text);
        mem_free(p[i].wanted);
        json_decref(p[i].fallback);
    }
    mem_free(p);
}

/* ---- reading, without the lock ---- */

enum status core_submission_read(
    const json_t *body, const char *header, struct core_submission *out, struct err *e)
{
    *out = (struct core_submission){.variant = -1, .repetition = -1};
    const json_t *name = json_object_get(body, "name");
    const json_t *key = json_object_get(body, "idempotency_key");
    out->graph = json_object_get(body, "graph");
    out->command = json_object_get(body, "command");
    out->options = json_object_get(body, "options");
    if (!json_is_object(body) || (!out->graph == !out->command))
        return err_set(e, ST_UNPROCESSABLE, "the body must have a graph, or a command");
    if (name && !json_is_null(name) && !json_is_string(name))
        return err_set(e, ST_UNPROCESSABLE, "name must be a text");
    if (key && !json_is_null(key) && !json_is_string(key))
        return err_set(e, ST_UNPROCESSABLE, "idempotency_key must be a text");
    out->name = json_string_value(name);
    out->idempotency_key = json_is_string(key) ? json_string_value(key) : header;
    return ST_OK;
}

static size_t letters(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static enum status check_names(const struct core_submission *s, struct err *e)
{
    if (s->name && letters(s->name) > NAME_LETTERS_MAX)
        return err_set(e, ST_INVALID, "name must have at most %d letters", NAME_LETTERS_MAX);
    for (const char *at = s->name ? s->name : ""; *at; at++)
        if ((unsigned char)*at < 0x20)
            return err_set(e, ST_INVALID, "name must not have control characters");
    if (s->idempotency_key && (!*s->idempotency_key || strlen(s->idempotency_key) > 200))
        return err_set(e, ST_INVALID, "idempotency_key must have 1 to 200 bytes");
    return ST_OK;
}

static bool variable_name_is_valid(const char *name)
{
    if (!*name || (*name >= '0' && *name <= '9'))
        return false;
    for (; *name; name++)
        if (!(*name == '_' || (*name >= '0' && *name <= '9') || (*name >= 'A' && *name <= 'Z') ||
              (*name >= 'a' && *name <= 'z')))
            return false;
    return true;
}

static enum status check_argv(const json_t *argv, struct err *e)
{
    size_t n = json_array_size(argv);
    if (!json_is_array(argv) || n < 1 || n > ARGV_MAX)
        return err_set(e, ST_INVALID, "command.argv must be a list of 1 to %d texts", ARGV_MAX);
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(argv, i)))
            return err_set(e, ST_INVALID, "command.argv[%zu] must be a text", i);
    if (!*json_string_value(json_array_get(argv, 0)))
        return err_set(e, ST_INVALID, "command.argv[0] must be the program to run");
    return ST_OK;
}

static enum status check_command(const json_t *command, struct err *e)
{
    if (!json_is_object(command))
        return err_set(e, ST_UNPROCESSABLE, "command must be an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)command, key, value) if (
        !str_eq(key, "argv") && !str_eq(key, "working_dir") &&
        !str_eq(
            key,
            "environment")) return err_set(e, ST_INVALID, "unknown key of command \"%.64s\"", key);
    TRY(check_argv(json_object_get(command, "argv"), e));
    const json_t *dir = json_object_get(command, "working_dir");
    if (dir && !json_is_null(dir) && !json_is_string(dir))
        return err_set(e, ST_INVALID, "command.working_dir must be a text");
    const json_t *environment = json_object_get(command, "environment");
    if (environment && !json_is_null(environment) && !json_is_object(environment))
        return err_set(e, ST_INVALID, "command.environment must be an object of texts");
    json_object_foreach((json_t *)(uintptr_t)environment, key, value) if (
        !variable_name_is_valid(key) ||
        !json_is_string(
            value)) return err_set(e, ST_INVALID, "command.environment must be an object of texts, not \"%.64s\"", key);
    return ST_OK;
}

static enum status
read_command(const struct core *c, const struct actor *who, struct prepared *p, struct err *e)
{
    if (!c->config.allow_commands) {
        enum status st = err_set(e, ST_DENIED, "runs of commands are off on this server");
        err_hint(e, "Set allow_commands in config.json, or SNUG_ALLOW_COMMANDS=1.");
        return st;
    }
    if (!who->exec)
        return err_set(
            e, ST_DENIED,
            "runs of commands need the owner's token or a key that was made with "
            "--exec");
    TRY(check_command(p->s->command, e));
    if (p->options.interactive)
        return err_set(e, ST_INVALID, "a command cannot run on the interactive lane");
    p->command_text = json_text(p->s->command, false);
    if (strlen(p->command_text) > COMMAND_BYTES_MAX)
        return err_set(e, ST_TOO_LARGE, "the command has more than %d bytes", COMMAND_BYTES_MAX);
    return ST_OK;
}

/* One of many patched copies of a graph, whose snapshot an earlier one has. */
static enum status read_variant(struct prepared *p, struct graph_family *family, struct err *e)
{
    if (family->document != p->s->graph) {
        graph_family_close(family);
        enum status st = graph_family_open(p->s->graph, family, e);
        if (st != ST_OK) {
            graph_family_close(family);
            return st;
        }
    }
    return graph_family_read(family, p->s->patch, &p->graph, e);
}

static enum status read_one(
    const struct core *c, const struct actor *who, struct prepared *all, size_t i,
    struct graph_family *family, struct err *e)
{
    struct prepared *p = &all[i];
    TRY(check_names(p->s, e));
    TRY(run_options_read(p->s->options, &p->options, e));
    p->options_text = p->s->options && json_is_object(p->s->options)
                          ? json_text(p->s->options, false)
                          : mem_strdup("{}");
    if (p->s->command)
        return read_command(c, who, p, e);
    bool shared = i && all[i - 1].s->graph == p->s->graph;
    p->blob = shared ? all[i - 1].blob : i;
    if (shared && !p->s->patch && !all[i - 1].s->patch) {
        memcpy(p->graph.key, all[i - 1].graph.key, sizeof p->graph.key);
        memcpy(p->graph.device, all[i - 1].graph.device, sizeof p->graph.device);
        memcpy(p->graph.name, all[i - 1].graph.name, sizeof p->graph.name);
        return ST_OK;
    }
    if (p->s->patch)
        p->patch_text = json_text(p->s->patch, false);
    if (shared && p->s->patch)
        return read_variant(p, family, e);
    return graph_read(p->s->graph, p->s->patch, !shared, &p->graph, e);
}

static enum status read_all(
    const struct core *c, const struct actor *who, const struct core_submission *s, size_t n,
    struct prepared **out, struct err *e)
{
    struct prepared *p = mem_alloc((n + !n) * sizeof *p);
    struct graph_family family = {0};
    enum status st = ST_OK;
    size_t done = 0;
    while (st == ST_OK && done < n) {
        p[done].s = &s[done];
        st = read_one(c, who, p, done++, &family, e);
    }
    graph_family_close(&family);
    if (st == ST_OK)
        *out = p;
    else
        release(p, done);
    return st;
}

/* ---- devices, with the lock ---- */

static const struct card *find_device(const struct worker *w, const char *device)
{
    return w ? worker_card((struct worker *)(uintptr_t)w, device) : NULL;
}

static int count_kind(const struct worker *w, const char *kind)
{
    int n = 0;
    for (size_t i = 0; w && i < w->cards.n; i++)
        n += str_eq(w->cards.data[i].kind, kind);
    return n;
}

/* The accelerator that "auto" means, or the CPU. */
static const char *best_kind(const struct worker *w)
{
    return count_kind(w, "cuda") ? "cuda" : count_kind(w, "mps") ? "mps" : "cpu";
}

/* The first device of a kind; for CUDA that is the current card. */
static const char *first_of_kind(const struct worker *w, const char *kind)
{
    for (size_t i = 0; w && i < w->cards.n; i++)
        if (str_eq(w->cards.data[i].kind, kind))
            return w->cards.data[i].device;
    return NULL;
}

static json_t *fallback_warning(const struct worker *w, const char *asked, const char *used)
{
    json_t *payload = json_object();
    struct str text;
    str_init(&text);
    int cards = count_kind(w, "cuda");
    if (str_starts(asked, "cuda") && cards)
        str_printf(
            &text, "the run asks for device %s; this server has %d CUDA card%s: it runs on %s",
            asked, cards, cards == 1 ? "" : "s", used);
    else
        str_printf(
            &text, "the run asks for device %s, which this server does not have: it runs on %s",
            asked, used);
    json_put_str(payload, "kind", "device_fallback");
    json_put_str(payload, "message", text.data);
    json_put_str(payload, "requested", asked);
    json_put_str(payload, "device", used);
    str_release(&text);
    return payload;
}

/* One device of this server, falling back where it does not have it (D2, D4). */
static const char *own_device(const struct worker *w, const char *asked, json_t **warning)
{
    if (str_eq(asked, "auto"))
        asked = best_kind(w);
    if (find_device(w, asked))
        return asked;
    const char *kind = str_starts(asked, "mps") ? "mps" : str_eq(asked, "cpu") ? "cpu" : "cuda";
    const char *used = first_of_kind(w, kind);
    if (!used)
        used = "cpu";
    if (!str_eq(asked, kind) || str_eq(used, "cpu"))
        if (!str_eq(asked, "cpu"))
            *warning = fallback_warning(w, asked, used);
    return used;
}

/* What "auto" asks for under `any`: the best kind that anybody offers. */
static const char *best_kind_of_all(const struct core *c)
{
    const char *best = "cpu";
    for (size_t i = 0; i < c->workers.n; i++) {
        const struct worker *w = c->workers.data[i];
        if (!w->seen)
            continue;
        if (str_eq(best_kind(w), "cuda"))
            return "cuda";
        if (str_eq(best_kind(w), "mps"))
            best = "mps";
    }
    return best;
}

/* Under `any` a device that the graph's settings name stands for its kind, one that the options
 * name for itself (but cuda:0, the card that every worker has). */
static const char *any_device(const struct core *c, const struct prepared *p, char kind[8])
{
    const char *asked = p->options.device ? p->options.device : p->graph.device;
    int index;
    if (!*asked)
        return "cpu";
    if (str_eq(asked, "auto"))
        return best_kind_of_all(c);
    if (!device_name_split(asked, kind, &index))
        return str_starts(asked, "mps") ? "mps" : "cuda";
    return p->options.device && index > 0 ? asked : kind;
}

static void resolve_devices(struct core *c, struct prepared *p)
{
    const struct run_target *t = &p->options.target;
    const struct worker *own = worker_by_name(c, "local");
    const char *asked = p->options.device ? p->options.device : p->graph.device;
    char kind[8];
    if (!*asked)
        asked = "cpu";
    if (t->n_devices) {
        struct str list;
        str_init(&list);
        bool current = t->n_devices == 1 && str_eq(t->worker, "local") &&
                       !str_eq(t->devices[0], "cpu") && !strchr(t->devices[0], ':');
        const char *first = current ? first_of_kind(own, t->devices[0]) : NULL;
        for (int i = 0; i < t->n_devices; i++)
            str_printf(&list, "%s%s", i ? "," : "", first ? first : t->devices[i]);
        p->wanted = str_take(&list);
    } else if (str_eq(t->worker, "local")) {
        p->wanted = mem_strdup(own_device(own, asked, &p->fallback));
    } else if (str_eq(t->worker, "any")) {
        p->wanted = mem_strdup(any_device(c, p, kind));
    } else {
        int index;
        if (str_eq(asked, "auto"))
            asked = best_kind(worker_by_name(c, t->worker));
        else if (!device_name_split(asked, kind, &index))
            asked = str_starts(asked, "mps") ? "mps" : "cuda";
        p->wanted = mem_strdup(asked);
    }
}

/* ---- judging ---- */

static void fill_row(struct core *c, const struct actor *who, struct prepared *p)
{
    const struct core_submission *s = p->s;
    const struct run_options *o = &p->options;
    p->row = (struct store_run){
        .state = RUN_WAITING,
        .name = s->name ? s->name : p->graph.name,
        .owner = who->name,
        .kind = s->command ? "command" : "graph",
        .lane = o->interactive ? "interactive" : "queued",
        .tab = o->tab,
        .options = p->options_text,
        .patch = p->patch_text,
        .graph_key = p->graph.key,
        .graph_dir = o->graph_dir,
        .command = p->command_text,
        .target = o->target.worker,
        .wanted = p->wanted,
        .pool = !o->target.pool   ? ""
                : *o->target.pool ? o->target.pool
                                  : "*",
        .wait = o->target.wait_given ? o->target.wait : str_eq(o->target.worker, "any"),
        .resume = o->resume,
        .timeout_s = o->timeout_s,
        .git_commit = "",
        .plugin_pins = "",
        .idempotency_key = s->idempotency_key,
        .sweep = s->sweep,
        .study = s->study,
        .variant = s->variant,
        .repetition = s->repetition,
        .created_us = c->now.wall_us};
    make_id(c, p->row.run_id);
}

static enum status judge(struct core *c, struct prepared *p, struct err *e)
{
    char scratch[DEVICES_BYTES];
    struct run asks = {.target = p->row.target, .wanted = p->row.wanted, .pool = p->row.pool};
    struct place_request q;
    run_request(&asks, scratch, &q);
    TRY(budget_at_submission(c, &p->options, &p->row, &q, p->budget_run, e));
    const struct run_target *t = &p->options.target;
    enum place_wait wait = !t->wait_given ? PLACE_WAIT_DEFAULT
                           : t->wait      ? PLACE_WAIT_YES
                                          : PLACE_WAIT_NO;
    const struct worker *w = worker_by_name(c, p->row.target);
    if (w && w->disabled)
        return err_set(e, ST_INVALID, "worker \"%s\" is disabled", w->name);
    core_world_fresh(c, q.budget_bytes > 0 && wait != PLACE_WAIT_YES);
    return place_judge(c->place, &q, wait, e);
}

/* Canvas runs: at most two, one a tab; the tab's run before goes first where that is asked for. */
static enum status check_canvas(struct core *c, const struct prepared *p, struct err *e)
{
    int n = 0, limit = c->config.interactive_max < 1 ? 1 : c->config.interactive_max;
    bool same = false;
    for (size_t i = 0; i < c->live.n + c->canvas.n; i++) {
        const struct run *r = i < c->live.n ? c->live.data[i] : c->canvas.data[i - c->live.n];
        if (!r->interactive)
            continue;
        bool mine = *p->row.tab && str_eq(r->tab, p->row.tab);
        same = same || mine;
        n += !(mine && p->s->replace);
    }
    if (same && !p->s->replace)
        return err_set(e, ST_BUSY, "this tab has a run already");
    if (n >= limit)
        return err_set(
            e, ST_BUSY, "%d canvas run%s at a time, and %d %s running", limit,
            limit == 1 ? "" : "s", n, n == 1 ? "is" : "are");
    if (!worker_by_name(c, "local"))
        return err_set(e, ST_BUSY, "this server has no worker of its own");
    return ST_OK;
}

static enum status
check_all(struct core *c, const struct actor *who, struct prepared *p, size_t n, struct err *e)
{
    if (c->stopped)
        return err_set(e, ST_BUSY, "the server is about to stop");
    size_t waiting = c->waiting.n - c->gaps;
    if ((int64_t)(waiting + n) > c->config.queue_max)
        return err_set(
            e, ST_FULL, "the queue is full: %zu runs wait, and it takes %lld", waiting,
            (long long)c->config.queue_max);
    size_t canvas = 0;
    for (size_t i = 0; i < n; i++) {
        resolve_devices(c, &p[i]);
        fill_row(c, who, &p[i]);
        canvas += p[i].options.interactive;
        if (canvas > 1)
            return err_set(e, ST_INVALID, "one run of the interactive lane at a time");
        TRY(p[i].options.interactive ? check_canvas(c, &p[i], e) : judge(c, &p[i], e));
    }
    return ST_OK;
}

/* ---- storing ---- */

/* One whose log is closed is about to end: a signal would only take its warm child away. */
static enum status stop_tab(struct core *c, const char *tab, struct err *e)
{
    for (size_t i = 0; i < c->live.n + c->canvas.n; i++) {
        struct run *r = i < c->live.n ? c->live.data[i] : c->canvas.data[i - c->live.n];
        if (r->interactive && *tab && str_eq(r->tab, tab) && !r->now.closed)
            TRY(run_stop(c, r, true, e));
    }
    return ST_OK;
}

static enum status store_one(struct core *c, struct prepared *all, size_t i, struct err *e)
{
    struct prepared *p = &all[i];
    if (!p->s->command) {
        if (p->blob == i)
            TRY(store_graph_put(c->store, &p->graph.blob, &p->row.graph_id, e));
        else
            p->row.graph_id = all[p->blob].row.graph_id;
    }
    p->row.sweep = p->s->sweep; /* the sweep's own row is there by now */
    p->row.study = p->s->study;
    TRY(store_run_add(c->store, &p->row, &p->row.id, e));
    if (!p->fallback)
        return ST_OK;
    char *text = json_text(p->fallback, false);
    enum status st = store_event_add(
        c->store, p->row.id,
        &(struct store_event){
            .cursor = 1,
            .type = event_name(EVENT_RUN_WARNING),
            .payload = text,
            .time_us = c->now.wall_us},
        e);
    mem_free(text);
    TRY(st);
    p->row.last_cursor = 1;
    return store_run_seen(c->store, p->row.id, 0, 1, e);
}

static void into_memory(struct core *c, struct prepared *p)
{
    struct run *r = core_run_new(&p->row);
    r->graph_text = p->graph.secret_text;
    p->graph.secret_text = NULL;
    if (r->interactive) {
        r->start_ns = c->now.now_ns + 15 * SECOND_NS;
        core_dirty(c);
    }
    run_map_put(&c->runs, r);
    run_enqueue(c, r);
    c->figures.submitted++;
}

static enum status store_all(
    struct core *c, struct prepared *p, size_t n,
    enum status (*within)(void *ctx, const char (*ids)[33], struct err *e), void *ctx,
    char (*ids)[33], struct err *e)
{
    for (size_t i = 0; i < n; i++)
        memcpy(ids[i], p[i].row.run_id, ID_BYTES);
    TRY(tx_begin(c, e));
    enum status st = within ? within(ctx, (const char(*)[33])ids, e) : ST_OK;
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        if (p[i].options.interactive && p[i].s->replace)
            st = stop_tab(c, p[i].row.tab, e);
        if (st == ST_OK)
            st = store_one(c, p, i, e);
    }
    TRY(tx_end(c, st, e));
    for (size_t i = 0; i < n; i++)
        into_memory(c, &p[i]);
    c->note_runs = true;
    return ST_OK;
}

/* ---- the functions of core.h ---- */

enum status core_submit_all(
    struct core *c, const struct actor *who, const struct core_submission *s, size_t n,
    enum status (*within)(void *ctx, const char (*ids)[33], struct err *e), void *ctx,
    struct instant now, char (*ids)[33], struct err *e)
{
    struct prepared *p;
    TRY(read_all(c, who, s, n, &p, e));
    core_enter(c, now);
    enum status st = check_all(c, who, p, n, e);
    if (st == ST_OK)
        st = store_all(c, p, n, within, ctx, ids, e);
    core_leave(c);
    release(p, n);
    return st;
}

enum status core_submit_check(
    struct core *c, const struct actor *who, const struct core_submission *s, size_t n,
    struct instant now, struct err *e)
{
    struct prepared *p;
    TRY(read_all(c, who, s, n, &p, e));
    core_enter(c, now);
    enum status st = check_all(c, who, p, n, e);
    core_leave(c);
    release(p, n);
    return st;
}

/* The run that an earlier call with this key made: the same answer, when it asked for the same. */
static enum status repeated(
    struct core *c, const struct actor *who, const struct prepared *p, json_t **reply,
    struct err *e)
{
    int64_t id = 0;
    struct arena a;
    struct store_run row;
    if (!p->s->idempotency_key)
        return ST_OK;
    TRY(store_run_by_key(c->store, who->name, p->s->idempotency_key, &id, e));
    if (!id)
        return ST_OK;
    arena_init(&a);
    enum status st = store_run_by_id(c->store, id, &a, &row, e);
    if (st == ST_OK) {
        bool same = str_eq(row.options, p->options_text) &&
                    str_eq(row.command, p->command_text ? p->command_text : "") &&
                    str_eq(row.graph_key, p->graph.key);
        if (same) {
            *reply = json_object();
            json_put_str(*reply, "run_id", row.run_id);
            json_put_str(*reply, "status", run_state_status(row.state));
            json_put_bool(*reply, "repeated", true);
        } else {
            st = err_set(
                e, ST_CONFLICT, "idempotency_key was used before, for another run (%s)",
                row.run_id);
        }
    }
    arena_release(&a);
    return st;
}

enum status core_submit(
    struct core *c, const struct actor *who, const struct core_submission *s, struct instant now,
    json_t **reply, struct err *e)
{
    struct prepared *p;
    char id[1][33];
    *reply = NULL;
    TRY(read_all(c, who, s, 1, &p, e));
    core_enter(c, now);
    enum status st = repeated(c, who, p, reply, e);
    if (st == ST_OK && !*reply) {
        st = check_all(c, who, p, 1, e);
        if (st == ST_OK)
            st = store_all(c, p, 1, NULL, NULL, id, e);
        if (st == ST_OK) {
            *reply = json_object();
            json_put_str(*reply, "run_id", id[0]);
            json_put_str(*reply, "status", "queued");
        }
    }
    core_leave(c);
    release(p, 1);
    return st;
}

/* ---- cancel, delete ---- */

static enum status cancel_live(struct core *c, struct run *r, json_t *reply, struct err *e)
{
    TRY(tx_begin(c, e));
    TRY(tx_end(c, run_stop(c, r, true, e), e));
    /* A run that has not started is gone by now; its memory is until core_leave. */
    json_put_str(reply, "status", run_state_status(r->now.state));
    json_put_bool(reply, "cancelled", true);
    return ST_OK;
}

static enum status
stored_status(struct core *c, const char *run_id, char status[16], int64_t *id, struct err *e)
{
    struct arena a;
    struct store_run row;
    arena_init(&a);
    enum status st = store_run_get(c->store, run_id, &a, &row, e);
    if (st == ST_OK) {
        snprintf(status, 16, "%s", run_state_status(row.state));
        if (id)
            *id = row.id;
    }
    arena_release(&a);
    return st;
}

enum status
core_cancel(struct core *c, const char *run_id, struct instant now, json_t **reply, struct err *e)
{
    enum status st;
    char status[16];
    json_t *out = json_object();
    json_put_str(out, "run_id", run_id);
    core_enter(c, now);
    struct run *r = run_map_get(&c->runs, run_id);
    if (r) {
        st = cancel_live(c, r, out, e);
    } else {
        st = stored_status(c, run_id, status, NULL, e);
        json_put_str(out, "status", st == ST_OK ? status : "");
        json_put_bool(out, "cancelled", false);
    }
    core_leave(c);
    if (st == ST_OK)
        *reply = out;
    else
        json_decref(out);
    return st;
}

enum status core_delete(struct core *c, const char *run_id, json_t **reply, struct err *e)
{
    enum status st = ST_OK;
    char status[16];
    int64_t id = 0;
    core_enter_read(c);
    struct run *r = run_map_get(&c->runs, run_id);
    if (r) {
        st = err_set(e, ST_CONFLICT, "run is %s: cancel it first", run_state_status(r->now.state));
    } else {
        st = stored_status(c, run_id, status, &id, e);
        if (st == ST_OK && (st = store_begin(c->store, e)) == ST_OK)
            st = store_end(c->store, store_run_delete(c->store, id, e), e);
        c->note_runs = true;
    }
    core_leave(c);
    if (st != ST_OK)
        return st;
    *reply = json_object();
    json_put_str(*reply, "run_id", run_id);
    json_put_bool(*reply, "deleted", true);
    return ST_OK;
}

enum status core_run_status(struct core *c, const char *run_id, char status[16], struct err *e)
{
    core_enter_read(c);
    struct run *r = run_map_get(&c->runs, run_id);
    if (r)
        snprintf(status, 16, "%s", run_state_status(r->now.state));
    core_leave(c);
    return r ? ST_OK : stored_status(c, run_id, status, NULL, e);
}
