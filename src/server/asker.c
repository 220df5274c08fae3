/* asker.c - plans and estimates in short-lived children.
 *
 * STATES of a question: waiting -> running -> answered -> taken (gone); an answer that nobody takes
 * for a minute is gone, too. Threads of its own (ASKER_CHILDREN) make the answers.
 */
#include "server/asker.h"

#include "base/env.h"
#include "base/mem.h"
#include "base/process.h"
#include "server/secret.h"
#include "server/server_int.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KEPT_S = 60, ANSWER_BYTES_MAX = 64 << 20, OOM_SCORE = 700, STOP_LOOK_MS = 50 };

struct question {
    struct question *next;
    char ticket[33], command[16], device[32];
    double memory_gib;
    char *graph; /* text */
    json_t *sets;
    enum { WAITING, RUNNING, ANSWERED } state;
    int64_t answered_ns;
    int status;
    json_t *body;
};

struct asker {
    struct server *server;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct question *questions; /* the oldest first */
    int n;
    pthread_t threads[ASKER_CHILDREN];
    int n_threads;
    bool ends;
};

static void question_free(struct question *q)
{
    mem_free(q->graph);
    json_decref(q->sets);
    json_decref(q->body);
    mem_free(q);
}

/* ---- one answer ---- */

static json_t *detail_json(const char *text)
{
    json_t *o = json_object();
    json_put_str(o, "detail", text);
    return o;
}

/* The status of HTTP for a code of status.def. */
static int status_of_code(const char *code)
{
    for (int i = 1; i < ST_COUNT; i++)
        if (str_eq(code, status_code((enum status)i)))
            return status_http((enum status)i);
    return 500;
}

/* What the child said: its document where it has an answer (also that it does not fit), else its
 * error. */
static int answer_of(json_t *document, const char *file, json_t **body)
{
    const json_t *error = json_object_get(document, "error");
    const char *code = json_get_str(error, "code", "");
    const char *message = json_get_str(error, "message", "the child gave no answer");
    size_t n = strlen(file);
    /* The file is ours; its name means nothing to who asks. */
    if (message[0] == '"' && strncmp(message + 1, file, n) == 0 &&
        str_starts(message + 1 + n, "\": "))
        message += n + 4;
    if (str_eq(json_get_str(document, "status", ""), "succeeded") ||
        str_eq(code, "out_of_memory")) {
        *body = json_incref(document);
        return 200;
    }
    *body = detail_json(message);
    json_put_str(*body, "code", code);
    if (json_get_str(error, "hint", NULL))
        json_put_str(*body, "hint", json_get_str(error, "hint", ""));
    if (json_get_str(error, "detail", NULL))
        json_put_str(*body, "more", json_get_str(error, "detail", ""));
    return status_of_code(code);
}

/* The child's command line; texts live in `a`. */
static char **argv_of(const struct question *q, const char *file, struct arena *a)
{
    size_t n = 0, i;
    json_t *set;
    char self[PATH_MAX];
    process_own_program(self);
    char **argv = ARENA_ARRAY(a, char *, 12 + 2 * ASKER_SETS_MAX);
    argv[n++] = arena_strdup(a, self);
    argv[n++] = arena_strdup(a, q->command);
    argv[n++] = arena_strdup(a, file);
    argv[n++] = arena_strdup(a, "--json");
    if (q->device[0])
        argv[n++] = arena_printf(a, "--device=%s", q->device);
    if (q->memory_gib > 0)
        argv[n++] = arena_printf(a, "--memory-gib=%.9g", q->memory_gib);
    json_array_foreach(q->sets, i, set) if (i < ASKER_SETS_MAX) argv[n++] =
        arena_printf(a, "--set=%s", json_string_value(set));
    return argv;
}

static bool asker_ends(struct asker *a)
{
    pthread_mutex_lock(&a->lock);
    bool ends = a->ends;
    pthread_mutex_unlock(&a->lock);
    return ends;
}

/* Waits for the child; false when it took too long, or the server stops, and was killed. */
static bool child_ends(struct asker *a, struct process *child)
{
    int64_t until_ns = clock_ns() + a->server->config->plan_timeout_s * 1000000000;
    struct process_end end;
    while (clock_ns() < until_ns && !asker_ends(a))
        if (process_wait(child, STOP_LOOK_MS, &end))
            return true;
    struct process_tree tree = {.root = *child, .session = *child};
    (void)process_tree_kill(&tree, 2000);
    (void)process_signal(child, SIGKILL);
    (void)process_wait(child, 2000, &end);
    return false;
}

static enum status child_start(
    const struct question *q, const char *file, int out, struct process *child, struct err *e)
{
    struct arena arena;
    arena_init(&arena);
    char **environment = child_environment();
    struct process_spec spec = {
        .argv = argv_of(q, file, &arena),
        .environment = environment,
        .in = -1,
        .out = out,
        .err = -1,
        .session = true,
        .oom_score_adj = OOM_SCORE,
        .file_bytes_max = ANSWER_BYTES_MAX};
    enum status st = process_spawn(&spec, child, e);
    mem_free(environment);
    arena_release(&arena);
    return st;
}

/* Runs the child over the graph in `file`, its answer in `out_path`. */
static int ask_child(
    struct asker *a, const struct question *q, const char *file, const char *out_path,
    json_t **body)
{
    struct err e = {0};
    struct process child;
    json_t *document = NULL;
    int out = open(out_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    enum status st = out >= 0 ? child_start(q, file, out, &child, &e)
                              : err_errno(&e, "could not write \"%s\"", out_path);
    if (out >= 0)
        (void)close(out);
    if (st != ST_OK) {
        *body = detail_json(e.text);
        return 503;
    }
    if (!child_ends(a, &child)) {
        char text[128];
        (void)snprintf(
            text, sizeof text, "the %s took longer than %lld s", q->command,
            (long long)a->server->config->plan_timeout_s);
        *body = detail_json(asker_ends(a) ? "the server stops" : text);
        return asker_ends(a) ? 503 : 504;
    }
    if (json_read_file(out_path, ANSWER_BYTES_MAX, &document, &e) != ST_OK) {
        *body = detail_json("the child that was asked ended without an answer");
        return 422;
    }
    int status = answer_of(document, file, body);
    json_decref(document);
    return status;
}

static int make_answer(struct asker *a, const struct question *q, json_t **body)
{
    char file[1200], out[1200];
    const char *home = a->server->config->home;
    struct err e = {0};
    int status;
    (void)snprintf(file, sizeof file, "%s/tmp/ask-%s.json", home, q->ticket);
    (void)snprintf(out, sizeof out, "%s/tmp/ask-%s.out", home, q->ticket);
    char folder[1100];
    (void)snprintf(folder, sizeof folder, "%s/tmp", home);
    if (dir_make(folder, &e) != ST_OK ||
        file_write(file, q->graph, strlen(q->graph), &e) != ST_OK) {
        *body = detail_json(e.text);
        status = 503;
    } else {
        status = ask_child(a, q, file, out, body);
    }
    (void)unlink(file);
    (void)unlink(out);
    return status;
}

/* ---- the questions ---- */

static struct question *next_waiting(struct asker *a)
{
    struct question *q = a->questions;
    while (q && q->state != WAITING)
        q = q->next;
    return q;
}

/* Answers that nobody came for. Under the lock. */
static void forget_old(struct asker *a, int64_t now_ns)
{
    for (struct question **at = &a->questions; *at;) {
        struct question *q = *at;
        if (q->state == ANSWERED && now_ns - q->answered_ns > (int64_t)KEPT_S * 1000000000) {
            *at = q->next;
            a->n--;
            question_free(q);
        } else {
            at = &q->next;
        }
    }
}

static void *answering(void *ctx)
{
    struct asker *a = ctx;
    pthread_mutex_lock(&a->lock);
    while (!a->ends) {
        struct question *q = next_waiting(a);
        if (!q) {
            pthread_cond_wait(&a->more, &a->lock);
            continue;
        }
        q->state = RUNNING;
        pthread_mutex_unlock(&a->lock);
        json_t *body = NULL;
        int status = make_answer(a, q, &body);
        char ticket[33];
        memcpy(ticket, q->ticket, sizeof ticket);
        pthread_mutex_lock(&a->lock);
        q->status = status, q->body = body;
        q->answered_ns = clock_ns();
        q->state = ANSWERED;
        pthread_mutex_unlock(&a->lock);
        http_wake(a->server->http, http_topic("asked", ticket));
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

enum status
asker_ask(struct asker *a, const struct asker_question *from, char ticket[33], struct err *e)
{
    struct question *q = mem_alloc(sizeof *q);
    enum status st = secret_id(q->ticket, e);
    (void)snprintf(q->command, sizeof q->command, "%s", from->command);
    (void)snprintf(q->device, sizeof q->device, "%s", from->device ? from->device : "");
    q->memory_gib = from->memory_gib;
    q->graph = json_text(from->graph, false);
    q->sets = from->sets ? json_deep_copy(from->sets) : NULL;
    pthread_mutex_lock(&a->lock);
    forget_old(a, clock_ns());
    if (st == ST_OK && a->n >= ASKER_WAITING_MAX)
        st = err_set(e, ST_FULL, "too many plans and estimates are asked for; try again later");
    if (st == ST_OK) {
        struct question **last = &a->questions;
        while (*last)
            last = &(*last)->next;
        *last = q;
        a->n++;
        memcpy(ticket, q->ticket, sizeof q->ticket);
        pthread_cond_signal(&a->more);
    }
    pthread_mutex_unlock(&a->lock);
    if (st != ST_OK)
        question_free(q);
    return st;
}

bool asker_take(struct asker *a, const char *ticket, int *status, json_t **body)
{
    bool taken = false;
    pthread_mutex_lock(&a->lock);
    for (struct question **at = &a->questions; *at; at = &(*at)->next) {
        struct question *q = *at;
        if (q->state != ANSWERED || !str_eq(q->ticket, ticket))
            continue;
        *status = q->status;
        *body = q->body;
        q->body = NULL;
        *at = q->next;
        a->n--;
        question_free(q);
        taken = true;
        break;
    }
    pthread_mutex_unlock(&a->lock);
    return taken;
}

enum status asker_open(struct server *s, struct asker **out, struct err *e)
{
    struct asker *a = mem_alloc(sizeof *a);
    a->server = s;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->more, NULL);
    for (; a->n_threads < ASKER_CHILDREN; a->n_threads++) {
        int failed = pthread_create(&a->threads[a->n_threads], NULL, answering, a);
        if (failed) {
            asker_close(a);
            return err_set(e, ST_IO, "could not start a thread: %s", strerror(failed));
        }
    }
    *out = a;
    return ST_OK;
}

void asker_close(struct asker *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->ends = true;
    pthread_cond_broadcast(&a->more);
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; i < a->n_threads; i++)
        pthread_join(a->threads[i], NULL);
    for (struct question *q = a->questions, *next; q; q = next) {
        next = q->next;
        question_free(q);
    }
    pthread_cond_destroy(&a->more);
    pthread_mutex_destroy(&a->lock);
    mem_free(a);
}
