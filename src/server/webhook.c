/* webhook.c - notices of ended runs, from a thread of its own over libcurl. */
#include "server/webhook.h"

#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/server_int.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { TRIES = 4, CALL_S = 10, CONNECT_S = 5, CLOSE_MS = 1000 };

struct notice {
    struct notice *next;
    char run_id[33];
    int tries;
    int64_t due_ns;
};

struct webhook {
    struct server *server;
    const char *url;
    char shown[160]; /* scheme and host: what may be logged */
    pthread_mutex_t lock;
    pthread_cond_t more;
    pthread_t thread;
    bool threaded, ends;
    struct notice *first, **last;
    int n;
    int64_t close_ns; /* until when the rest is tried */
};

/* ---- one call ---- */

static size_t ignore_body(char *data, size_t size, size_t n, void *ctx)
{
    (void)data, (void)ctx;
    return size * n;
}

static void copy_field(json_t *to, const json_t *row, const char *key)
{
    json_t *value = json_object_get(row, key);
    json_put(to, key, value ? json_incref(value) : json_null());
}

/* The notice's document; NULL where the run is not there any more. */
static char *notice_text(struct webhook *w, const char *run_id)
{
    static const char *const fields[] = {"name",       "status",     "cause",   "error",
                                         "owner",      "worker",     "devices", "created_at",
                                         "started_at", "finished_at"};
    json_t *row = NULL, *o;
    struct err ignored = {0};
    if (core_run(w->server->core, run_id, &row, &ignored) != ST_OK)
        return NULL;
    o = json_object();
    json_put_str(o, "event", "run_ended");
    json_put_str(o, "run_id", run_id);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        copy_field(o, row, fields[i]);
    json_put_str(o, "server", server_url(w->server));
    char *text = json_text(o, false);
    json_decref(o);
    json_decref(row);
    return text;
}

/* True when the other side took it. */
static bool post(struct webhook *w, const char *text)
{
    long status = 0;
    CURL *c = curl_easy_init();
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (!c || !headers)
        return false;
    (void)curl_easy_setopt(c, CURLOPT_URL, w->url);
    (void)curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)CALL_S);
    (void)curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    (void)curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(c, CURLOPT_POSTFIELDS, text);
    (void)curl_easy_setopt(c, CURLOPT_USERAGENT, "snug");
    (void)curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, ignore_body);
    bool fine = curl_easy_perform(c) == CURLE_OK &&
                curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status) == CURLE_OK &&
                status >= 200 && status < 300;
    curl_slist_free_all(headers);
    curl_easy_cleanup(c);
    return fine;
}

/* ---- the queue ---- */

static void add_last(struct webhook *w, struct notice *x)
{
    x->next = NULL;
    *w->last = x;
    w->last = &x->next;
    w->n++;
}

static struct notice *take_first(struct webhook *w)
{
    struct notice *x = w->first;
    w->first = x->next;
    if (!w->first)
        w->last = &w->first;
    w->n--;
    return x;
}

void webhook_ended(struct webhook *w, const char *run_id)
{
    if (!w)
        return;
    struct notice *x = mem_alloc(sizeof *x), *dropped = NULL;
    (void)snprintf(x->run_id, sizeof x->run_id, "%s", run_id);
    pthread_mutex_lock(&w->lock);
    if (w->n >= WEBHOOK_WAITING_MAX)
        dropped = take_first(w);
    add_last(w, x);
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
    if (dropped)
        log_warn(
            "webhook %s: too many notices wait; run %s was dropped", w->shown, dropped->run_id);
    mem_free(dropped);
}

/* When the earliest is due; under the lock. */
static int64_t earliest_due(const struct webhook *w)
{
    int64_t due_ns = INT64_MAX;
    for (const struct notice *x = w->first; x; x = x->next)
        if (x->due_ns < due_ns)
            due_ns = x->due_ns;
    return due_ns;
}

/* The next one that is due (at the end: any), waiting for it; NULL: the thread ends. */
static struct notice *next_due(struct webhook *w)
{
    struct notice *found = NULL;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        int64_t now_ns = clock_ns(), due_ns = earliest_due(w);
        if (w->ends && (!w->first || now_ns > w->close_ns))
            break;
        if (w->first && (w->ends || due_ns <= now_ns)) {
            found = take_first(w);
            if (found->due_ns <= now_ns || w->ends)
                break;
            add_last(w, found);
            found = NULL;
            continue;
        }
        struct timespec until = {.tv_sec = due_ns / 1000000000, .tv_nsec = due_ns % 1000000000};
        if (due_ns == INT64_MAX)
            pthread_cond_wait(&w->more, &w->lock);
        else
            (void)pthread_cond_timedwait(&w->more, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return found;
}

/* After a failed try. */
static void again(struct webhook *w, struct notice *x)
{
    static const int after_s[TRIES] = {0, 1, 5, 30};
    pthread_mutex_lock(&w->lock);
    bool gives_up = ++x->tries >= TRIES || w->ends;
    if (!gives_up) {
        x->due_ns = clock_ns() + (int64_t)after_s[x->tries] * 1000000000;
        add_last(w, x);
    }
    pthread_mutex_unlock(&w->lock);
    if (gives_up) {
        log_warn("webhook %s: could not tell of run %s", w->shown, x->run_id);
        mem_free(x);
    }
}

static void *telling(void *ctx)
{
    struct webhook *w = ctx;
    struct notice *x;
    while ((x = next_due(w))) {
        char *text = notice_text(w, x->run_id);
        if (!text || post(w, text))
            mem_free(x);
        else
            again(w, x);
        mem_free(text);
    }
    return NULL;
}

/* ---- opening ---- */

enum status webhook_open(struct server *s, struct webhook **out, struct err *e)
{
    const char *url = s->config->webhook_url;
    *out = NULL;
    if (!url[0])
        return ST_OK;
    const char *host = strstr(url, "://");
    if (!(str_starts(url, "http://") || str_starts(url, "https://")) || !host[3])
        return err_set(e, ST_INVALID, "webhook_url must begin with http:// or https://");
    struct webhook *w = mem_alloc(sizeof *w);
    pthread_condattr_t monotonic;
    const char *at = strchr(host + 3, '@');
    const char *from = at && at < host + 3 + strcspn(host + 3, "/?#") ? at + 1 : host + 3;
    (void)snprintf(
        w->shown, sizeof w->shown, "%.*s%.*s", (int)(host + 3 - url), url,
        (int)strcspn(from, "/?#"), from);
    w->server = s;
    w->url = url;
    w->last = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->more, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int failed = pthread_create(&w->thread, NULL, telling, w);
    w->threaded = failed == 0;
    if (failed) {
        webhook_close(w);
        return err_set(e, ST_IO, "could not start a thread: %s", strerror(failed));
    }
    *out = w;
    return ST_OK;
}

void webhook_close(struct webhook *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    w->close_ns = clock_ns() + (int64_t)CLOSE_MS * 1000000;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
    if (w->threaded)
        pthread_join(w->thread, NULL);
    while (w->first)
        mem_free(take_first(w));
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
}
