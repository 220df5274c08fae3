/* child.c - the process of a run: signals, and for a warm canvas child one run after another. */
#include "child/child.h"

#include "base/env.h"
#include "base/json.h"
#include "base/mem.h"
#include "child/work.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 1 << 20, EXIT_NO_MEMORY = 3, EXIT_STOPPED = 130 };

/* How often Stop was asked for: all that the signal handler can reach. And the folder of the run
 * that goes on, for the handler of exhausted memory. */
static volatile sig_atomic_t stops;
static const char *running_dir;

static void on_stop(int signal_number)
{
    (void)signal_number;
    stops = stops + 1;
    if (stops > 1)
        _exit(EXIT_STOPPED);
}

static bool stop_asked(void *ctx)
{
    (void)ctx;
    return stops > 0;
}

_Noreturn static void on_exhausted(size_t size_bytes)
{
    (void)size_bytes;
    if (running_dir)
        work_result_of_exhausted(running_dir);
    file_whole_drop();
    _exit(EXIT_NO_MEMORY);
}

/* Without SA_RESTART: a warm child's wait for the next run ends too. */
static void catch_signals(void)
{
    struct sigaction act = {.sa_handler = on_stop};
    sigset_t all;
    (void)sigemptyset(&act.sa_mask);
    (void)sigaction(SIGTERM, &act, NULL);
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigemptyset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL); /* what the parent blocked */
    (void)signal(SIGXFSZ, SIG_IGN);             /* a file at its limit is an error of writing */
    (void)signal(SIGPIPE, SIG_IGN);
    mem_on_exhausted(on_exhausted);
    json_set_alloc_funcs(mem_alloc, mem_free);
}

static int run_one(const char *dir, struct run_cache *cache)
{
    struct work w = {.dir = dir, .cache = cache, .stop = stop_asked};
    running_dir = dir;
    int rc = work_run(&w);
    running_dir = NULL;
    return rc;
}

/* ---- warm ---- */

struct warm {
    int fd, idle_ms, rc;
    struct run_cache *cache;
    struct str in; /* bytes without their end of line yet */
    bool over;
};

static json_t *caches_json(const struct run_cache *c)
{
    struct run_cache_stats s = run_cache_stats(c);
    json_t *o = json_object(), *outputs = json_object(), *weights = json_object();
    json_put_i64(outputs, "entries", s.entries);
    json_put_i64(outputs, "max_entries", s.entries_max);
    json_put_i64(outputs, "bytes", s.bytes);
    json_put_i64(outputs, "max_bytes", s.bytes_max);
    json_put_i64(weights, "modules", s.modules);
    json_put(weights, "node_ids", run_cache_modules(c));
    json_put_i64(weights, "max_modules", s.modules_max);
    json_put_i64(weights, "bytes", s.weight_bytes);
    json_put_i64(weights, "max_bytes", s.weight_bytes_max);
    json_put(o, "execution_cache", outputs);
    json_put(o, "node_state_store", weights);
    json_put(o, "devices", json_array()); /* nothing is held on a card between runs */
    return o;
}

/* Takes `line`. A supervisor that is gone ends the child at the next read. */
static void send_line(struct warm *w, json_t *line)
{
    struct str s;
    json_put(line, "caches", caches_json(w->cache));
    char *text = json_text(line, false);
    str_init(&s);
    str_printf(&s, "%s\n", text);
    for (size_t at = 0; at < s.n;) {
        ssize_t n = send(w->fd, s.data + at, s.n - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    str_release(&s);
    mem_free(text);
    json_decref(line);
}

static void warm_run(struct warm *w, const char *dir)
{
    json_t *line = json_object();
    w->rc = run_one(dir, w->cache);
    stops = 0; /* one that came too late is not meant for the next run */
    json_put_str(line, "ended", dir);
    json_put_i64(line, "exit_code", w->rc);
    send_line(w, line);
}

static void evict(struct warm *w, const char *what, const json_t *nodes)
{
    json_t *line = json_object();
    if (strcmp(what, "weights") != 0)
        run_cache_clear_outputs(w->cache);
    if (strcmp(what, "caches") != 0)
        json_put_i64(line, "evicted", run_cache_clear_weights(w->cache, nodes));
    send_line(w, line);
}

static void obey(struct warm *w, const char *text, size_t n)
{
    struct err ignored;
    json_t *line;
    if (json_parse(text, n, "a line", &line, &ignored) != ST_OK)
        return;
    const char *dir = json_get_str(line, "run", NULL), *what = json_get_str(line, "evict", NULL);
    if (dir)
        warm_run(w, dir);
    else if (what)
        evict(w, what, json_object_get(line, "nodes"));
    else if (json_get_bool(line, "exit", false))
        w->over = true;
    json_decref(line);
}

/* Obeys the whole lines that have come. */
static void obey_lines(struct warm *w)
{
    for (char *end; !w->over && (end = memchr(w->in.data, '\n', w->in.n));) {
        size_t n = (size_t)(end - w->in.data);
        char *line = mem_strdup(w->in.data);
        line[n] = 0;
        memmove(w->in.data, end + 1, w->in.n - n); /* with the final NUL */
        w->in.n -= n + 1;
        obey(w, line, n);
        mem_free(line);
    }
    w->over = w->over || w->in.n > LINE_MAX_BYTES;
}

/* Waits for more, at most the idle time; false when the child is to end. */
static bool wait_for_line(struct warm *w)
{
    char buf[4096];
    struct pollfd p = {.fd = w->fd, .events = POLLIN};
    int ready = poll(&p, 1, w->idle_ms);
    if (ready < 0 && errno == EINTR)
        return stops == 0; /* a SIGTERM while nothing runs */
    if (ready <= 0)
        return false;
    ssize_t n = recv(w->fd, buf, sizeof buf, 0);
    if (n < 0 && errno == EINTR)
        return stops == 0;
    if (n <= 0)
        return false;
    str_add_n(&w->in, buf, (size_t)n);
    obey_lines(w);
    return !w->over;
}

static int work_warm(const struct child_options *o)
{
    struct run_cache_limits limits;
    struct err e;
    struct warm w = {
        .fd = o->control_fd, .idle_ms = 1000 * (o->idle_s > 0 ? o->idle_s : CHILD_IDLE_S)};
    if (run_cache_limits_read(&limits, &e) != ST_OK) {
        (void)fprintf(stderr, "level=warn msg=\"%s: 1024 is used\"\n", e.text);
        limits = (struct run_cache_limits){INT64_C(1) << 30, INT64_C(1) << 30};
    }
    w.cache = run_cache_new(&limits);
    str_init(&w.in);
    warm_run(&w, o->dir);
    while (stops == 0 && wait_for_line(&w))
        ;
    str_release(&w.in);
    run_cache_free(w.cache);
    return w.rc;
}

int child_work(const struct child_options *o)
{
    catch_signals();
    return o->control_fd >= 0 ? work_warm(o) : run_one(o->dir, NULL);
}

int child_graph(const char *dir, int control_fd)
{
    return child_work(&(struct child_options){.dir = dir, .control_fd = control_fd});
}
