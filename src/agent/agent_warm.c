/* agent_warm.c - warm canvas children, a tab each: given runs, asked for memory, sent away. */
#define _GNU_SOURCE
#include "agent/agent_int.h"

#include "base/config.h"
#include "base/env.h"
#include "base/log.h"
#include "record/outputs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void send_line(const struct warm *w, json_t *line)
{
    char *text = json_text(line, false);
    struct str s;
    str_init(&s);
    str_add(&s, text);
    if (!str_ends(s.data, "\n"))
        str_add(&s, "\n");
    if (w->fd >= 0)
        (void)!send(w->fd, s.data, s.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    str_release(&s);
    mem_free(text);
    json_decref(line);
}

static void warm_drop(struct agent *a, size_t i)
{
    struct warm *w = a->warms.data[i];
    if (w->fd >= 0)
        (void)close(w->fd);
    json_decref(w->devices);
    json_decref(w->caches);
    str_release(&w->lines);
    mem_free(w);
    a->warms.data[i] = a->warms.data[--a->warms.n];
}

static bool same_place(const struct warm *w, const struct run_folder *f)
{
    return w->budget_bytes == f->o.budget_bytes && json_equal(w->devices, f->o.devices);
}

/* Whoever sees a run's last words may ask for the next before the child is idle. */
static bool is_free(struct agent *a, const struct warm *w)
{
    const struct agent_run *r = *w->run_id ? agent_run_find(a, w->run_id) : NULL;
    return !*w->run_id || (r && r->ending);
}

/* The tab's idle child; one that runs, or has other devices, is let go after what it does. */
static struct warm *idle_child(struct agent *a, const struct run_folder *f)
{
    for (size_t i = 0; i < a->warms.n;) {
        struct warm *w = a->warms.data[i];
        if (strcmp(w->tab, f->o.tab) != 0) {
            i++;
            continue;
        }
        if (is_free(a, w) && same_place(w, f))
            return w;
        warm_drop(a, i); /* the end of its control stream sends it away */
    }
    return NULL;
}

bool agent_warm_take(
    struct agent *a, const struct run_folder *f, int *theirs, struct process *supervisor)
{
    int pair[2];
    struct warm *w = idle_child(a, f);
    *theirs = -1;
    if (w) {
        json_t *line = json_object();
        json_put_str(line, "run", f->dir);
        (void)snprintf(w->run_id, sizeof w->run_id, "%s", f->o.run_id);
        w->used_ns = clock_ns();
        send_line(w, line);
        *supervisor = w->supervisor;
        return true;
    }
    if (strlen(f->o.tab) >= sizeof w->tab ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return false; /* it runs, and is not kept */
    w = mem_alloc(sizeof *w);
    (void)snprintf(w->tab, sizeof w->tab, "%s", f->o.tab);
    (void)snprintf(w->run_id, sizeof w->run_id, "%s", f->o.run_id);
    w->devices = f->o.devices ? json_deep_copy(f->o.devices) : NULL;
    w->budget_bytes = f->o.budget_bytes;
    w->used_ns = clock_ns();
    w->fd = pair[0];
    str_init(&w->lines);
    vec_push(&a->warms, w);
    *theirs = pair[1];
    return false;
}

void agent_warm_started(struct agent *a, const char *run_id, const struct process *supervisor)
{
    for (size_t i = 0; i < a->warms.n; i++)
        if (strcmp(a->warms.data[i]->run_id, run_id) == 0)
            a->warms.data[i]->supervisor = *supervisor;
}

void agent_warm_ended(struct agent *a, const char *run_id)
{
    for (size_t i = 0; i < a->warms.n; i++)
        if (strcmp(a->warms.data[i]->run_id, run_id) == 0)
            a->warms.data[i]->run_id[0] = 0;
}

/* ---- limits of all children together (S1, S5) ---- */

enum { MODULES_MAX = 200, STATE_MIB = 1024 };

static int64_t kept(const struct warm *w, const char *figure)
{
    return json_get_i64(json_object_get(w->caches, "node_state_store"), figure, 0);
}

/* The idle child with kept weights that got its last run longest ago; NULL: none. */
static struct warm *longest_idle(const struct agent *a)
{
    struct warm *oldest = NULL;
    for (size_t i = 0; i < a->warms.n; i++) {
        struct warm *w = a->warms.data[i];
        if (!*w->run_id && kept(w, "modules") > 0 && (!oldest || w->used_ns < oldest->used_ns))
            oldest = w;
    }
    return oldest;
}

/* A child holds itself to the limits; all together are held to them here. */
static void shrink_weights(struct agent *a)
{
    int64_t mib, bytes = 0, modules = 0;
    struct err ignored;
    struct warm *w;
    (void)!config_count(
        "SNUG_NODE_STATE_STORE_MAX_MB", "node_state_store_max_mb", STATE_MIB, &mib, &ignored);
    for (size_t i = 0; i < a->warms.n; i++) {
        bytes += kept(a->warms.data[i], "bytes");
        modules += kept(a->warms.data[i], "modules");
    }
    while ((modules > MODULES_MAX || (mib > 0 && bytes > mib << 20)) && (w = longest_idle(a))) {
        json_t *line = json_object();
        bytes -= kept(w, "bytes");
        modules -= kept(w, "modules");
        json_put_str(line, "evict", "weights");
        (void)json_object_del(w->caches, "node_state_store"); /* until it says what is left */
        send_line(w, line);
    }
}

static void take_line(struct agent *a, struct warm *w, const char *text, size_t n)
{
    struct err ignored;
    json_t *doc = NULL;
    if (json_parse(text, n, "line", &doc, &ignored) == ST_OK && json_object_get(doc, "caches")) {
        json_decref(w->caches);
        w->caches = json_incref(json_object_get(doc, "caches"));
        a->caches_news = true;
    }
    const char *ended = json_get_str(doc, "ended", NULL);
    if (ended && *w->run_id && str_ends(ended, w->run_id))
        w->run_id[0] = 0;
    json_decref(doc);
    shrink_weights(a);
}

void agent_warm_read(struct agent *a, struct warm *w)
{
    char buf[4096];
    ssize_t n = recv(w->fd, buf, sizeof buf, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || w->lines.n > (1 << 20)) {
        for (size_t i = 0; i < a->warms.n; i++)
            if (a->warms.data[i] == w)
                warm_drop(a, i);
        return;
    }
    str_add_n(&w->lines, buf, (size_t)n);
    for (char *end; (end = memchr(w->lines.data, '\n', w->lines.n)) != NULL;) {
        size_t length = (size_t)(end - w->lines.data);
        take_line(a, w, w->lines.data, length);
        memmove(w->lines.data, end + 1, w->lines.n - length);
        w->lines.n -= length + 1;
    }
}

void agent_warm_evict(struct agent *a, const json_t *body)
{
    struct eviction v;
    struct err e;
    if (wire_read(&wire_eviction, body, &v, &e) != ST_OK) {
        log_warn("order evict: %s", e.text);
        return;
    }
    for (size_t i = 0; i < a->warms.n; i++) {
        struct warm *w = a->warms.data[i];
        if (strcmp(w->tab, v.tab) != 0)
            continue;
        json_t *line = json_object();
        if (str_eq(v.what, "child")) {
            json_put_bool(line, "exit", true);
        } else {
            json_put_str(line, "evict", v.what);
            if (v.nodes)
                json_put(line, "nodes", json_incref(v.nodes));
        }
        send_line(w, line);
    }
}

void agent_warms_close(struct agent *a)
{
    while (a->warms.n)
        warm_drop(a, 0);
    vec_release(&a->warms);
}

/* Of agents that share a SNUG_HOME, and so its runs, one counts what is recorded there. */
static bool counts_outputs(const struct agent *a)
{
    char path[1024];
    return a->o->builtin || !file_exists(path_join(snug_home(), "server.json", path, sizeof path));
}

static json_t *outputs_stored(void)
{
    char runs[1024];
    int64_t n, bytes;
    json_t *store = json_object(), *one = json_object();
    outputs_count(path_join(snug_home(), "runs", runs, sizeof runs), &n, &bytes);
    json_put_i64(store, "runs", n);
    json_put_i64(store, "bytes", bytes);
    json_put(one, "run_output_store", store);
    return one;
}

json_t *agent_warm_caches(const struct agent *a)
{
    json_t *list = json_array();
    for (size_t i = 0; i < a->warms.n; i++) {
        const struct warm *w = a->warms.data[i];
        json_t *one = w->caches ? json_copy(w->caches) : json_object();
        json_put_str(one, "tab", w->tab);
        json_put_bool(one, "idle", !*w->run_id);
        (void)json_array_append_new(list, one);
    }
    if (counts_outputs(a))
        (void)json_array_append_new(list, outputs_stored());
    return list;
}
