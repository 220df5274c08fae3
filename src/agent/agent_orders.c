/* agent_orders.c - the thread that connects, waits for orders and does what they say. */
#include "agent/agent_int.h"

#include "base/env.h"
#include "base/log.h"
#include "base/rng.h"
#include "graph/nodes.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
enum { POLL_S = 20, BACKOFF_MS_MAX = 5000, SERVER_GONE_S = 60, UNKNOWN_MAX = 5 };

static void pause_ms(struct agent *a, int64_t ms)
{
    for (; ms > 0 && !a->quit; ms -= 50) {
        struct timespec t = {0, (ms < 50 ? ms : 50) * 1000000L};
        (void)nanosleep(&t, NULL);
    }
}

/* ---- connecting ---- */

static json_t *run_reports(struct agent *a)
{
    json_t *list = json_array();
    for (size_t i = 0; i < a->runs.n; i++) {
        const struct agent_run *r = a->runs.data[i];
        struct run_report report = {
            .run_id = r->id,
            .epoch = r->epoch,
            .state = r->alive || r->waits ? "live" : "ended",
            .sequence = r->sent,
            .devices = r->devices,
            .budget_bytes = r->budget_bytes,
        };
        if (!r->forget)
            (void)json_array_append_new(list, wire_write(&wire_run_report, &report));
    }
    return list;
}

/* ["a", "b"] of "a,b". */
static json_t *labels(const char *text)
{
    json_t *list = json_array();
    while (text && *text) {
        size_t n = strcspn(text, ",");
        if (n)
            (void)json_array_append_new(list, json_stringn(text, n));
        text += n + (text[n] == ',');
    }
    return list;
}

static json_t *hello_of(struct agent *a)
{
    char host[256] = "", hash[33];
    (void)gethostname(host, sizeof host - 1);
    node_table_hash(hash);
    (void)pthread_mutex_lock(&a->lock);
    struct hello h = {
        .protocol = WIRE_PROTOCOL,
        .version = a->o->version,
        .commit = a->o->commit,
        .name = a->known_as,
        .instance = a->instance,
        .boot = (int64_t)(lease_boot() >> 1),
        .sent_ns = clock_ns(),
        .hostname = host,
        .pool = a->o->pool ? a->o->pool : "",
        .secret = a->machine,
        .one_shot = a->o->one_shot,
        .can_cap = true,
        .allow_commands = a->allow_commands,
        .nodes_hash = hash,
        .node_types = node_table_names(),
        .environment = agent_environment(),
        .mounts = labels(a->o->mounts),
        .devices = agent_device_reports(a),
        .runs = run_reports(a),
    };
    (void)pthread_mutex_unlock(&a->lock);
    json_t *doc = wire_write(&wire_hello, &h);
    json_decref(h.node_types);
    json_decref(h.environment);
    json_decref(h.mounts);
    json_decref(h.devices);
    json_decref(h.runs);
    return doc;
}

/* Events behind `stored` are sent anew. */
static void rewind_run(struct agent_run *r, int64_t stored)
{
    journal_read_close(&r->reader);
    r->stored = r->sent = stored;
    r->end_sent = false;
    r->fresh = true;
}

static void obey(struct agent *a, const struct verdict *v)
{
    struct agent_run *r = agent_run_find(a, v->run_id);
    if (!r || r->epoch != v->epoch)
        return;
    rewind_run(r, v->sequence);
    if (str_eq(v->action, "forget")) {
        agent_run_forget(a, r);
    } else if (str_eq(v->action, "stop")) {
        agent_run_kill(a, r, CAUSE_CANCELLED);
    } else if (r->waits) {
        r->starts_again = false;
        agent_run_spawn(a, r);
    }
}

static enum status take_welcome(struct agent *a, const json_t *body, int64_t sent_ns, struct err *e)
{
    struct welcome w;
    size_t i;
    json_t *one;
    TRY(wire_read(&wire_welcome, body, &w, e));
    if (!*w.session || strlen(w.session) >= sizeof a->session)
        return err_set(e, ST_CORRUPT, "the server's welcome has no session");
    (void)pthread_mutex_lock(&a->lock);
    (void)snprintf(a->session, sizeof a->session, "%s", w.session);
    a->heartbeat_s = a->o->heartbeat_s > 0 ? a->o->heartbeat_s
                     : w.heartbeat_s > 0   ? w.heartbeat_s
                                           : 10;
    a->lease_s = w.lease_s;
    a->ever_connected = true;
    lease_renew(&a->lease, 0); /* the server may say a shorter one than the last did */
    agent_heard(a, sent_ns);
    for (size_t k = 0; k < a->runs.n; k++)
        rewind_run(a->runs.data[k], 0);
    json_array_foreach(w.runs, i, one)
    {
        struct verdict v;
        struct err bad;
        if (wire_read(&wire_verdict, one, &v, &bad) == ST_OK)
            obey(a, &v);
    }
    (void)pthread_mutex_unlock(&a->lock);
    agent_kick(a);
    return ST_OK;
}

/* Says why once, not at every try. */
static void say_why(char *said, size_t cap, const struct err *e)
{
    if (strcmp(said, e->text) == 0 || e->status == ST_INTERRUPTED)
        return;
    (void)snprintf(said, cap, "%s", e->text);
    log_warn("not connected: %s", e->text);
}

/* A join token was traded for a credential: it is kept, and used from here on. */
static void take_credential(struct agent *a, const struct client *c, const json_t *reply)
{
    char path[1100];
    struct err e;
    const char *token = json_get_str(reply, "credential", "");
    const char *name = json_get_str(reply, "name", a->name);
    (void)pthread_mutex_lock(&a->lock);
    (void)snprintf(a->known_as, sizeof a->known_as, "%s", name);
    if (*token)
        (void)snprintf(a->secret, sizeof a->secret, "%s", token);
    (void)pthread_mutex_unlock(&a->lock);
    if (!*token || a->o->one_shot)
        return;
    json_t *doc = json_object();
    json_put_str(doc, "server", client_url(c));
    json_put_str(doc, "token", token);
    json_put_str(doc, "name", name);
    char *text = json_text(doc, false);
    (void)agent_path(a->name, "json", path, sizeof path);
    if (file_write(path, text, strlen(text), &e) != ST_OK || chmod(path, 0600) != 0)
        log_warn("the worker's credential is not kept: %s", e.text);
    memset(text, 0, strlen(text));
    mem_free(text);
    json_decref(doc);
}

/* *http: what the server answered, 0 where it did not. */
static enum status connect_once(struct agent *a, struct client *c, int *http, struct err *e)
{
    int64_t sent_ns = clock_ns();
    struct client_reply r = {0};
    json_t *hello = hello_of(a);
    enum status st = client_call(c, "POST", "/api/agent/connect", hello, 15, &r, e);
    json_decref(hello);
    *http = st == ST_OK ? r.status : 0;
    if (st == ST_OK && client_status(r.status) != ST_OK)
        st = client_refusal(c, &r, e);
    if (st == ST_OK) {
        take_credential(a, c, r.json);
        st = take_welcome(a, r.json, sent_ns, e);
    }
    client_reply_release(&r);
    (void)pthread_mutex_lock(&a->lock);
    (void)snprintf(a->url, sizeof a->url, "%s", client_url(c));
    (void)pthread_mutex_unlock(&a->lock);
    if (st == ST_OK)
        log_info("connected to %s as %s", client_url(c), a->known_as);
    return st;
}

/* Nothing to do and nobody to do it for: the built-in worker of a server that is gone. */
static bool nobody_needs(struct agent *a, int64_t since_ns)
{
    (void)pthread_mutex_lock(&a->lock);
    bool needed = !a->o->builtin || agent_runs_alive(a) > 0;
    (void)pthread_mutex_unlock(&a->lock);
    return !needed && clock_ns() - since_ns > SERVER_GONE_S * SECOND;
}

/* Until it is connected, or the agent ends. Returns the client, which is NULL at the end. */
static struct client *connect_agent(struct agent *a, char *said, size_t cap)
{
    int64_t since_ns = clock_ns(), wait_ms = 50;
    struct rng rng;
    int unknown = 0, http = 0;
    rng_init(&rng, (uint64_t)clock_ns() ^ hash_name(a->instance), 1, 0);
    while (!a->quit) {
        struct client *c = NULL;
        struct err e = {0};
        enum status st = agent_client(a, &c, &e);
        if (st == ST_OK)
            st = connect_once(a, c, &http, &e);
        if (st == ST_OK) {
            *said = 0;
            client_close(c); /* with a join token it is not the right one any more */
            return agent_client(a, &c, &e) == ST_OK ? c : NULL;
        }
        client_close(c);
        say_why(said, cap, &e);
        /* A credential that was revoked stays so; the token of a local server changes. */
        unknown = http == 401 && str_starts(a->secret, "sn") ? unknown + 1 : 0;
        if (unknown > UNKNOWN_MAX || nobody_needs(a, since_ns)) {
            a->refused = unknown > UNKNOWN_MAX;
            a->why = e;
            (void)kill(getpid(), SIGTERM);
            return NULL;
        }
        pause_ms(a, wait_ms / 2 + (int64_t)rng_below(&rng, (uint64_t)wait_ms));
        wait_ms = wait_ms * 3 / 2 > BACKOFF_MS_MAX ? BACKOFF_MS_MAX : wait_ms * 3 / 2;
    }
    return NULL;
}

/* ---- orders ---- */

static void do_order(struct agent *a, const struct order *o)
{
    enum order_type type;
    enum cause why = CAUSE_CANCELLED;
    struct agent_run *r = agent_run_find(a, o->run_id);
    if (!order_find(o->type, &type)) {
        log_warn("the server orders \"%.40s\", which this agent does not know", o->type);
        return;
    }
    (void)!cause_find(json_get_str(o->body, "cause", ""), &why);
    if (r && r->epoch != o->epoch && type != ORDER_START && type != ORDER_READ)
        r = NULL; /* of another attempt */
    switch (type) {
    case ORDER_START:
        agent_run_start(a, o);
        break;
    case ORDER_STOP:
        agent_run_stop(a, o->run_id, o->epoch, why);
        break;
    case ORDER_KILL:
        if (r)
            agent_run_kill(a, r, why);
        break;
    case ORDER_FORGET:
        if (r)
            agent_run_forget(a, r);
        break;
    case ORDER_READ:
        (void)json_array_append_new(a->answers, agent_answer(a, o));
        break;
    case ORDER_EVICT:
        agent_warm_evict(a, o->body);
        break;
    case ORDER_EXIT:
        log_info("the server sends this worker away");
        a->exit_cause = CAUSE_SERVER_STOPPED;
        (void)kill(getpid(), SIGTERM);
        break;
    case ORDER_COUNT:
        break;
    }
}

static int64_t do_orders(struct agent *a, json_t *list, int64_t after)
{
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one)
    {
        struct order o;
        struct err e;
        if (wire_read(&wire_order, one, &o, &e) != ST_OK) {
            log_warn("an order cannot be read: %s", e.text);
            continue;
        }
        if (o.number <= after) /* it was given before */
            continue;
        (void)pthread_mutex_lock(&a->lock);
        do_order(a, &o);
        (void)pthread_mutex_unlock(&a->lock);
        after = o.number;
    }
    if (i > 0)
        agent_kick(a);
    return after;
}

/* Orders of one session, until it is over. */
static void follow_session(struct agent *a, struct client *c)
{
    int64_t after = 0;
    char session[65];
    (void)pthread_mutex_lock(&a->lock);
    memcpy(session, a->session, sizeof session);
    (void)pthread_mutex_unlock(&a->lock);
    while (!a->quit) {
        struct err e;
        json_t *reply = NULL;
        int64_t sent_ns = clock_ns();
        struct client_path p = client_path("/api/agent/orders");
        client_query(&p, "session", session);
        client_query_i64(&p, "after", after);
        client_query_i64(&p, "wait", POLL_S);
        enum status st = client_get(c, p.text, POLL_S + 15, &reply, &e);
        (void)pthread_mutex_lock(&a->lock);
        bool same = strcmp(session, a->session) == 0;
        if (st == ST_OK && same)
            agent_heard(a, sent_ns);
        else if (same)
            a->session[0] = 0;
        (void)pthread_mutex_unlock(&a->lock);
        if (st == ST_OK && same)
            after = do_orders(a, json_object_get(reply, "orders"), after);
        json_decref(reply);
        if (st != ST_OK || !same) {
            if (st != ST_OK && st != ST_INTERRUPTED && !a->leaving)
                log_warn("the connection is lost: %s", e.text);
            return;
        }
    }
}

void *agent_orders_thread(void *agent)
{
    struct agent *a = agent;
    char said[800] = "";
    while (!a->quit) {
        struct client *c = connect_agent(a, said, sizeof said);
        if (c)
            follow_session(a, c);
        client_close(c);
    }
    return NULL;
}
