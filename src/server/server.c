/* server.c - the server as a whole: what it is made of, in which order it opens, runs and closes.
 *
 * THREADS  The door's (http.c), the WebSockets' (ws.c), the timer below, those of plans and
 * webhooks. The thread that calls server_run waits for the stop and looks after the built-in
 * worker.
 */
#include "server/server.h"

#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/shared.h"
#include "base/version.h"
#include "graph/nodes.h"
#include "mem/device.h"
#include "server/asker.h"
#include "server/auth.h"
#include "server/core.h"
#include "server/feed.h"
#include "server/retention.h"
#include "server/routes.h"
#include "server/server_int.h"
#include "server/ssh.h"
#include "server/store.h"
#include "server/study.h"
#include "server/webhook.h"
#include "server/ws.h"
#include "wire/machine.h"
#include "wire/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STOP_WAIT_S = 8, IDLE_EVERY_S = 1 };

struct instant instant_of_now(void)
{
    return (struct instant){.now_ns = clock_ns(), .wall_us = clock_wall_us()};
}

/* ---- the timer ---- */

static void timer_due(void *ctx, int64_t at_ns)
{
    struct server_inside *x = ctx;
    pthread_mutex_lock(&x->lock);
    if (at_ns < x->due_ns) {
        x->due_ns = at_ns;
        pthread_cond_signal(&x->sooner);
    }
    pthread_mutex_unlock(&x->lock);
}

/* Sleeps until the tick is due; false at the end. */
static bool timer_sleep(struct server_inside *x)
{
    pthread_mutex_lock(&x->lock);
    while (!x->ends) {
        int64_t now_ns = clock_ns();
        if (x->due_ns <= now_ns)
            break;
        struct timespec until = {
            .tv_sec = x->due_ns / 1000000000, .tv_nsec = x->due_ns % 1000000000};
        (void)pthread_cond_timedwait(&x->sooner, &x->lock, &until);
    }
    bool goes_on = !x->ends;
    x->due_ns = INT64_MAX;
    pthread_mutex_unlock(&x->lock);
    return goes_on;
}

static void *timer(void *ctx)
{
    struct server *s = ctx;
    struct server_inside *x = s->inside;
    int64_t idle_ns = 0;
    while (timer_sleep(x)) {
        timer_due(x, core_tick(s->core, instant_of_now()));
        studies_tick(s->studies, instant_of_now());
        int64_t now_ns = clock_ns();
        if (now_ns - idle_ns >= (int64_t)IDLE_EVERY_S * 1000000000) {
            idle_ns = now_ns;
            store_idle(s->store);
            auth_tick(s->auth);
        }
    }
    return NULL;
}

static enum status timer_start(struct server *s, struct err *e)
{
    struct server_inside *x = s->inside;
    int failed = pthread_create(&x->timer, NULL, timer, s);
    if (failed)
        return err_set(e, ST_IO, "could not start a thread: %s", strerror(failed));
    x->timed = true;
    return ST_OK;
}

static void timer_stop(struct server_inside *x)
{
    pthread_mutex_lock(&x->lock);
    x->ends = true;
    pthread_cond_signal(&x->sooner);
    pthread_mutex_unlock(&x->lock);
    if (x->timed)
        pthread_join(x->timer, NULL);
    x->timed = false;
}

/* ---- the core's calls ---- */

static void on_changed(void *ctx, const char *kind, const char *id)
{
    struct server *s = ctx;
    if (s->http && id[0])
        http_wake(s->http, http_topic(kind, id));
    else
        server_changed(s, kind);
}

static void on_ended(void *ctx, const struct core_end *end)
{
    struct server *s = ctx;
    webhook_ended(s->webhook, end->run_id);
    if (end->sweep) {
        struct sweeps sweeps = server_sweeps(s);
        sweep_run_ended(&sweeps, end->sweep, instant_of_now());
        server_changed(s, "sweeps");
    }
    if (end->study && s->studies) {
        studies_note(s->studies, end->study);
        timer_due(s->inside, clock_ns());
    }
}

static void on_pruned(void *ctx, const struct core_pruned *run)
{
    retention_add(((struct server *)ctx)->inside->retention, run);
}

static bool on_sweep_name(void *ctx, int64_t sweep, char id[33])
{
    return store_sweep_name(((struct server *)ctx)->store, sweep, id);
}

static bool on_study_name(void *ctx, int64_t study, char id[33])
{
    return store_study_name(((struct server *)ctx)->store, study, id);
}

static void on_study_changed(void *ctx, const char *study_id)
{
    struct server *s = ctx;
    if (s->http)
        http_wake(s->http, http_topic("study", study_id));
    server_changed(s, "studies");
}

static void on_due(void *ctx, int64_t at_ns)
{
    struct server *s = ctx;
    timer_due(s->inside, at_ns);
}

/* ---- settings of the core ---- */

/* What this machine has, as an agent would report it. */
static json_t *device_reports(struct devices *d)
{
    json_t *list = json_array();
    for (int i = 0; i < d->n; i++) {
        struct device_memory m = {0};
        struct err ignored = {0};
        bool known = device_memory(&d->list[i], &m, &ignored) == ST_OK;
        struct device_report r = {
            .device = d->list[i].id,
            .kind = d->list[i].kind == DEVICE_CPU ? "cpu" : "cuda",
            .name = d->list[i].name,
            .uuid = d->list[i].uuid,
            .total_bytes = known && m.total_bytes > 0 ? m.total_bytes : 0,
            .free_bytes = known && m.free_bytes > 0 ? m.free_bytes : 0,
            .context_bytes = d->list[i].context_bytes};
        (void)json_array_append_new(list, wire_write(&wire_device_report, &r));
    }
    return list;
}

static bool is_loopback(const char *host)
{
    return str_starts(host, "127.") || str_eq(host, "localhost") || str_eq(host, "::1") ||
           str_eq(host, "[::1]");
}

static enum status core_settings(struct server *s, struct core_config *c, struct err *e)
{
    struct server_inside *x = s->inside;
    const struct server_config *from = s->config;
    core_config_init(c);
    TRY(machine_secret(x->machine, e));
    TRY(secret_random(&c->seed, sizeof c->seed, e));
    node_table_hash(x->nodes_hash);
    c->version = SNUG_VERSION;
    c->commit = snug_commit();
    c->nodes_hash = x->nodes_hash;
    c->node_types = x->node_types;
    c->machine_secret = x->machine;
    c->local_url = x->url;
    c->loopback_only = is_loopback(from->host);
    c->allow_commands = from->allow_commands;
    c->devices = x->device_reports;
    c->limits = from->run_queue_max_concurrent;
    c->limit_gpu = (int)from->run_queue_max_concurrent_gpu;
    c->limit_cpu = (int)from->run_queue_max_concurrent_cpu;
    c->interactive_max = (int)from->run_interactive_max_concurrent;
    c->queue_max = from->queue_max;
    c->reserve_s = (double)from->queue_reserve_s;
    c->pass_clock = clock_ns;
    c->grace_s = (double)from->worker_resume_grace_s;
    c->context_bytes = from->execution_cuda_context_mib << 20;
    c->payload_cap_bytes = from->run_event_payload_cap_bytes;
    c->response_cap_bytes = from->run_events_response_cap_bytes;
    c->keep_last = from->run_retention_keep_last;
    return ST_OK;
}

/* ---- opening ---- */

static void read_address(struct server *s)
{
    struct server_inside *x = s->inside;
    const char *host = s->config->host;
    bool every = str_eq(host, "0.0.0.0") || str_eq(host, "::") || str_eq(host, "[::]");
    bool bare_v6 = strchr(host, ':') && host[0] != '[';
    (void)snprintf(
        x->url, sizeof x->url, "%s://%s%s%s:%d", s->config->tls_certificate[0] ? "https" : "http",
        bare_v6 && !every ? "[" : "", every ? "127.0.0.1" : host, bare_v6 && !every ? "]" : "",
        http_port(s->http));
}

static enum status take_lock(struct server *s, struct err *e)
{
    char path[1024];
    struct server_inside *x = s->inside;
    TRY(dir_make(s->config->home, e));
    (void)path_join(s->config->home, "server.lock", path, sizeof path);
    TRY(shared_open(&x->lock_file, path, true, e));
    if (shared_try(&x->lock_file, 0))
        return ST_OK;
    (void)err_set(e, ST_CONFLICT, "a server runs already under \"%s\"", s->config->home);
    err_hint(e, "`snug status` shows it, `snug stop` stops it");
    return ST_CONFLICT;
}

static struct http_config door_config(struct server *s)
{
    struct server_inside *x = s->inside;
    const struct server_config *c = s->config;
    (void)path_join(c->home, "tmp", x->spool, sizeof x->spool);
    return (struct http_config){
        .routes = routes,
        .routes_n = route_count,
        .host = c->host,
        .port = (int)c->port,
        .certificate = c->tls_certificate[0] ? c->tls_certificate : NULL,
        .private_key = c->tls_key[0] ? c->tls_key : NULL,
        .extra_hosts = c->extra_allowed_hosts,
        .origins = c->cors_origins,
        .private_reads = c->private_reads,
        .spool = x->spool,
        .body_max_bytes = c->max_run_body_bytes,
        .upload_max_bytes = c->max_upload_size,
        .connections_max = (int)c->max_connections,
        .per_address_max = (int)c->max_connections_per_address};
}

static enum status open_door(struct server *s, struct err *e)
{
    struct http_config h = door_config(s);
    return http_open(s, &h, &s->http, e);
}

static enum status open_core(struct server *s, struct err *e)
{
    struct core_config c;
    struct server_inside *x = s->inside;
    const struct core_hooks hooks = {
        .ctx = s,
        .changed = on_changed,
        .ended = on_ended,
        .pruned = on_pruned,
        .sweep_name = on_sweep_name,
        .study_name = on_study_name,
        .due = on_due};
    TRY(devices_open(&x->devices, e));
    x->devices_open = true;
    x->device_reports = device_reports(&x->devices);
    x->node_types = node_table_names();
    TRY(core_settings(s, &c, e));
    x->retention = retention_new(s->config);
    TRY(core_open(s->store, &c, &hooks, instant_of_now(), &s->core, e));
    struct sweeps sweeps = server_sweeps(s);
    s->studies =
        studies_new(&sweeps, &(struct studies_hooks){.ctx = s, .changed = on_study_changed});
    return ST_OK;
}

static enum status write_card(struct server *s, struct err *e)
{
    struct server_inside *x = s->inside;
    json_t *card = json_object();
    json_put_str(card, "url", x->url);
    json_put_i64(card, "port", http_port(s->http));
    json_put_i64(card, "pid", (int64_t)getpid());
    json_put_str(card, "boot_id", s->boot_id);
    json_put_str(card, "version", SNUG_VERSION);
    json_put_bool(card, "tls", s->config->tls_certificate[0] != '\0');
    if (s->config->tls_certificate[0])
        json_put_str(card, "certificate", s->config->tls_certificate);
    char *text = json_text(card, true);
    (void)path_join(s->config->home, "server.json", x->card, sizeof x->card);
    enum status st = file_write(x->card, text, strlen(text), e);
    mem_free(text);
    json_decref(card);
    return st;
}

static void inside_init(struct server *s)
{
    struct server_inside *x = s->inside = mem_alloc(sizeof *x);
    pthread_condattr_t monotonic;
    x->lock_file.fd = -1;
    pthread_mutex_init(&x->lock, NULL);
    pthread_mutex_init(&x->devices_lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&x->sooner, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* What answers requests: without network, processes, threads of the server's own. */
static enum status open_parts(struct server *s, struct err *e)
{
    TRY(open_core(s, e));
    s->feed = feed_new(s);
    return ws_open(s, s->config->ws_max_message_bytes, &s->ws, e);
}

static struct server *server_new(const struct server_config *c)
{
    struct server *s = mem_alloc(sizeof *s);
    s->config = c;
    s->started_us = clock_wall_us();
    inside_init(s);
    return s;
}

enum status server_open(const struct server_config *c, struct server **out, struct err *e)
{
    struct server *s = server_new(c);
    enum status st;
    TRY_OUT(take_lock(s, e));
    TRY_OUT(secret_id(s->boot_id, e));
    TRY_OUT(store_open(c->db_path, NULL, &s->store, e));
    TRY_OUT(open_door(s, e));
    read_address(s);
    TRY_OUT(auth_open(s->store, c->home, &s->auth, e));
    TRY_OUT(open_parts(s, e));
    TRY_OUT(webhook_open(s, &s->webhook, e));
    TRY_OUT(asker_open(s, &s->asker, e));
    TRY_OUT(timer_start(s, e));
    TRY_OUT(http_start(s->http, e));
    TRY_OUT(write_card(s, e));
    *out = s;
out:
    if (st != ST_OK)
        server_close(s);
    return st;
}

enum status server_open_bare(const struct server_config *c, struct server **out, struct err *e)
{
    struct server *s = server_new(c);
    const struct store_options fast = {.fast = true};
    enum status st;
    TRY_OUT(secret_id(s->boot_id, e));
    TRY_OUT(store_open(":memory:", &fast, &s->store, e));
    struct http_config h = door_config(s);
    s->http = http_bare(s, &h);
    TRY_OUT(auth_open(s->store, NULL, &s->auth, e));
    TRY_OUT(open_parts(s, e));
    *out = s;
out:
    if (st != ST_OK)
        server_close(s);
    return st;
}

const char *server_url(const struct server *s)
{
    return s->inside->url;
}

/* ---- running ---- */

enum status server_run(struct server *s, const volatile sig_atomic_t *stop, struct err *e)
{
    (void)e;
    while (!*stop) {
        builtin_watch(s);
        ssh_watch(s);
        retention_work(s->inside->retention);
        (void)nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
    return ST_OK;
}

/* Runs are asked to stop, and their agents have a while to say that they have. */
static void wind_down(struct server *s)
{
    core_stop(s->core, instant_of_now());
    int64_t until_ns = clock_ns() + (int64_t)STOP_WAIT_S * 1000000000;
    while (core_live_count(s->core) > 0 && clock_ns() < until_ns)
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
}

static void inside_release(struct server *s)
{
    struct server_inside *x = s->inside;
    if (x->devices_open)
        devices_close(&x->devices);
    retention_free(x->retention);
    json_decref(x->device_reports);
    json_decref(x->node_types);
    if (x->lock_file.fd >= 0)
        shared_close(&x->lock_file);
    pthread_cond_destroy(&x->sooner);
    pthread_mutex_destroy(&x->devices_lock);
    pthread_mutex_destroy(&x->lock);
    mem_free(x);
}

void server_close(struct server *s)
{
    if (!s)
        return;
    struct server_inside *x = s->inside;
    if (x->card[0]) {
        wind_down(s);
        (void)unlink(x->card);
    }
    builtin_stop(s);
    ssh_close(s);
    timer_stop(x);
    http_stop(s->http);
    ws_close(s->ws);
    asker_close(s->asker);
    http_close(s->http);
    s->http = NULL; /* what the core still says finds nobody */
    feed_free(s->feed);
    webhook_close(s->webhook);
    core_close(s->core);
    studies_free(s->studies);
    auth_close(s->auth);
    store_close(s->store);
    inside_release(s);
    mem_free(s);
}
