/* core_test_support.c - see core_test_support.h. */
#include "server/core_test_support.h"

#include "test.h"

#include <stdlib.h>
#include <string.h>

/* ---- the stage ---- */

static void on_changed(void *ctx, const char *kind, const char *id)
{
    struct stage *s = ctx;
    if (s->n_said + 80 < sizeof s->said)
        s->n_said +=
            (size_t)snprintf(s->said + s->n_said, sizeof s->said - s->n_said, "%s:%s\n", kind, id);
}

static void on_ended(void *ctx, const struct core_end *end)
{
    struct stage *s = ctx;
    if (s->n_said + 120 < sizeof s->said)
        s->n_said += (size_t)snprintf(
            s->said + s->n_said, sizeof s->said - s->n_said, "ended:%s %s %s\n", end->run_id,
            end->status, end->cause);
}

json_t *J(const char *text)
{
    json_t *out;
    struct err e;
    char *copy = mem_strdup(text);
    for (char *at = copy; *at; at++)
        if (*at == '\'')
            *at = '"';
    CHECK_OK(json_parse(copy, strlen(copy), "test", &out, &e), &e);
    mem_free(copy);
    return out;
}

static json_t *device(const char *name, const char *kind, const char *uuid, double gib)
{
    json_t *d = json_object();
    json_put_str(d, "device", name);
    json_put_str(d, "kind", kind);
    json_put_str(d, "name", kind);
    json_put_str(d, "uuid", uuid);
    json_put_i64(d, "total_bytes", (int64_t)(gib * 1073741824.0));
    json_put_i64(d, "free_bytes", (int64_t)(gib * 1073741824.0));
    return d;
}

static json_t *device_list(const char *owner, int cards, double gib)
{
    json_t *list = json_array();
    char name[24], uuid[96];
    json_array_append_new(list, device("cpu", "cpu", "", 0));
    for (int i = 0; i < cards; i++) {
        (void)snprintf(name, sizeof name, "cuda:%d", i);
        (void)snprintf(uuid, sizeof uuid, "%.64s-%d", owner, i);
        json_array_append_new(list, device(name, "cuda", uuid, gib));
    }
    return list;
}

static void open_core(struct stage *s)
{
    CHECK_OK(core_open(s->store, &s->config, &s->hooks, s->now, &s->core, &s->e), &s->e);
}

void stage_open(struct stage *s, int cards)
{
    *s = (struct stage){.now = {1000 * SECOND_NS, INT64_C(1790000000000000)}};
    static int n;
    (void)snprintf(s->path, sizeof s->path, "%s/snug%d.db", test_dir(), ++n);
    s->owner = (struct actor){.role = ROLE_OWNER, .exec = true, .name = "owner"};
    s->person = (struct actor){.role = ROLE_KEY, .name = "ann", .id = "k1"};
    s->worker = (struct actor){.role = ROLE_WORKER, .name = "w", .id = "w1"};
    s->hooks = (struct core_hooks){.ctx = s, .changed = on_changed, .ended = on_ended};
    core_config_init(&s->config);
    s->devices = device_list("own", cards, 24);
    s->config.version = "1.0";
    s->config.nodes_hash = "hash";
    s->config.machine_secret = "machine";
    s->config.devices = s->devices;
    s->config.seed = test_seed();
    CHECK_OK(store_open(s->path, &(struct store_options){.fast = true}, &s->store, &s->e), &s->e);
    open_core(s);
}

void stage_restart(struct stage *s)
{
    core_close(s->core);
    store_close(s->store);
    s->now.now_ns += 5 * SECOND_NS;
    s->config.seed++;
    CHECK_OK(store_open(s->path, &(struct store_options){.fast = true}, &s->store, &s->e), &s->e);
    open_core(s);
    (void)core_tick(s->core, s->now);
}

void stage_close(struct stage *s)
{
    core_check(s->core);
    core_close(s->core);
    store_close(s->store);
    json_decref(s->devices);
}

void stage_pass(struct stage *s, double seconds)
{
    int64_t until = s->now.now_ns + (int64_t)(seconds * 1e9);
    do {
        int64_t step = until - s->now.now_ns < SECOND_NS ? until - s->now.now_ns : SECOND_NS;
        s->now.now_ns += step;
        s->now.wall_us += step / 1000;
        (void)core_tick(s->core, s->now);
        core_check(s->core);
    } while (s->now.now_ns < until);
}

/* ---- runs ---- */

json_t *small_graph(int units)
{
    json_t *g = J("{'name':'small','nodes':[{'id':'start','type':'Start','data':{'params':{}}},"
                  "{'id':'l','type':'DataLoader','data':{'params':{}}},"
                  "{'id':'d','type':'Dataset','data':{'params':{'name':'MNIST'}}}],"
                  "'edges':[{'id':'t','source':'start','target':'d','type':'trigger',"
                  "'sourceHandle':'trigger','targetHandle':'trigger'},"
                  "{'id':'u','source':'d','target':'l','sourceHandle':'dataset',"
                  "'targetHandle':'dataset'}]}");
    json_t *d = json_array_get(json_object_get(g, "nodes"), 1);
    json_object_set_new(
        json_object_get(json_object_get(d, "data"), "params"), "batch_size", json_integer(units));
    return g;
}

const char *submit_graph(struct stage *s, int units, const char *options)
{
    static char ids[8][33];
    static int at;
    char *id = ids[at++ % 8];
    json_t *graph = small_graph(units), *opts = options ? J(options) : NULL, *reply;
    struct core_submission x = {.graph = graph, .options = opts, .variant = -1, .repetition = -1};
    s->e = (struct err){0};
    enum status st = core_submit(s->core, &s->person, &x, s->now, &reply, &s->e);
    json_decref(graph);
    json_decref(opts);
    if (st != ST_OK)
        return NULL;
    (void)snprintf(id, 33, "%s", json_get_str(reply, "run_id", ""));
    json_decref(reply);
    (void)core_tick(s->core, s->now);
    core_check(s->core);
    return id;
}

const char *submit(struct stage *s, const char *options)
{
    return submit_graph(s, 1, options);
}

json_t *row_of(struct stage *s, const char *run)
{
    json_t *row;
    CHECK_OK(core_run(s->core, run, &row, &s->e), &s->e);
    return row;
}

const char *field(struct stage *s, const char *run, const char *path)
{
    static char texts[8][2048];
    static int at;
    char *out = texts[at++ % 8], keys[128];
    json_t *row = row_of(s, run);
    const json_t *v = row;
    (void)snprintf(keys, sizeof keys, "%s", path);
    for (char *save, *k = strtok_r(keys, ".", &save); k; k = strtok_r(NULL, ".", &save))
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(k)) : json_object_get(v, k);
    out[0] = 0;
    if (json_is_string(v)) {
        (void)snprintf(out, 2048, "%s", json_string_value(v));
    } else if (v && !json_is_null(v)) {
        char *text = json_text(v, false);
        (void)snprintf(out, 2048, "%s", text);
        mem_free(text);
    }
    json_decref(row);
    return out;
}

/* ---- agents ---- */

void puppet_open(struct puppet *f, struct stage *s, const char *name, int cards, double gib)
{
    *f = (struct puppet){.s = s, .who = s->owner};
    (void)snprintf(f->name, sizeof f->name, "%s", name);
    (void)snprintf(f->instance, sizeof f->instance, "i-%s", name);
    bool own = strcmp(name, "local") == 0;
    f->hello = J("{'protocol':1,'version':'1.0','can_cap':true,'nodes_hash':'hash','runs':[]}");
    json_put_str(f->hello, "name", name);
    json_put_str(f->hello, "hostname", own ? "here" : name);
    json_put_str(f->hello, "secret", own ? "machine" : "");
    json_put(f->hello, "devices", device_list(own ? "own" : name, cards, gib));
}

bool puppet_connect(struct puppet *f)
{
    json_decref(f->welcome);
    f->welcome = NULL;
    json_put_str(f->hello, "instance", f->instance);
    f->s->e = (struct err){0};
    if (core_agent_connect(f->s->core, &f->who, f->hello, f->s->now, &f->welcome, &f->s->e) !=
        ST_OK)
        return false;
    (void)snprintf(f->session, sizeof f->session, "%s", json_get_str(f->welcome, "session", ""));
    f->after = 0;
    (void)core_tick(f->s->core, f->s->now);
    core_check(f->s->core);
    return true;
}

void puppet_close(struct puppet *f)
{
    json_decref(f->hello);
    json_decref(f->welcome);
}

json_t *puppet_orders(struct puppet *f)
{
    json_t *reply, *list;
    CHECK_OK(
        core_agent_orders(f->s->core, &f->who, f->session, f->after, f->s->now, &reply, &f->s->e),
        &f->s->e);
    list = json_incref(json_object_get(reply, "orders"));
    json_decref(reply);
    size_t n = json_array_size(list);
    if (n)
        f->after = json_get_i64(json_array_get(list, n - 1), "number", 0);
    return list;
}

json_t *puppet_order(struct puppet *f, const char *type)
{
    json_t *reply, *one, *found = NULL;
    size_t i;
    CHECK_OK(
        core_agent_orders(f->s->core, &f->who, f->session, f->after, f->s->now, &reply, &f->s->e),
        &f->s->e);
    json_array_foreach(json_object_get(reply, "orders"), i, one)
    {
        f->after = json_get_i64(one, "number", 0);
        if (strcmp(json_get_str(one, "type", ""), type) == 0) {
            found = json_incref(one);
            break;
        }
    }
    json_decref(reply);
    return found;
}

bool puppet_event(
    struct puppet *f, const char *run, int64_t epoch, int64_t sequence, const char *type,
    const char *payload)
{
    json_t *report = json_object(), *events = json_array(), *ev = json_object(), *reply;
    json_put_str(ev, "run_id", run);
    json_put_i64(ev, "epoch", epoch);
    json_put_i64(ev, "sequence", sequence);
    json_put_str(ev, "type", type);
    json_put(ev, "payload", J(payload));
    json_put_i64(ev, "time_us", f->s->now.wall_us);
    json_array_append_new(events, ev);
    json_put_str(report, "session", f->session);
    json_put(report, "events", events);
    CHECK_OK(core_agent_report(f->s->core, &f->who, report, f->s->now, &reply, &f->s->e), &f->s->e);
    bool kept = json_array_size(json_object_get(reply, "forget")) == 0;
    json_decref(report);
    json_decref(reply);
    (void)core_tick(f->s->core, f->s->now);
    core_check(f->s->core);
    return kept;
}

int64_t puppet_start(struct puppet *f, const char *run)
{
    json_t *list = puppet_orders(f), *one;
    int64_t epoch = 0;
    size_t i;
    json_array_foreach(list, i, one)
    {
        if (strcmp(json_get_str(one, "type", ""), "start") == 0 &&
            strcmp(json_get_str(one, "run_id", ""), run) == 0)
            epoch = json_get_i64(one, "epoch", 0);
    }
    json_decref(list);
    if (epoch)
        CHECK(puppet_event(f, run, epoch, 1, "started", "{'pid':1}"));
    return epoch;
}

void puppet_end(struct puppet *f, const char *run, int64_t epoch, const char *status)
{
    char payload[256];
    const char *cause = strcmp(status, "succeeded") == 0 ? "done"
                        : strcmp(status, "failed") == 0  ? "graph_error"
                                                         : "cancelled";
    (void)snprintf(
        payload, sizeof payload, "{'status':'%s','cause':'%s','error':'%s','exit_code':0}", status,
        cause, strcmp(status, "failed") == 0 ? "it broke" : "");
    CHECK(puppet_event(f, run, epoch, 2, "ended", payload));
}

void puppet_heartbeat(struct puppet *f)
{
    json_t *report = json_object(), *reply;
    json_put_str(report, "session", f->session);
    json_put_bool(report, "heartbeat", true);
    json_object_set(report, "devices", json_object_get(f->hello, "devices"));
    CHECK_OK(core_agent_report(f->s->core, &f->who, report, f->s->now, &reply, &f->s->e), &f->s->e);
    json_decref(report);
    json_decref(reply);
    (void)core_tick(f->s->core, f->s->now);
}
