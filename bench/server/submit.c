/* submit.c - durable submissions through HTTP while many runs wait. Run by hand.
 *
 *     submit [WAITING [CONNECTIONS [SECONDS]]]      100000 8 10
 *
 * Needs a server of this SNUG_HOME without a worker (SNUG_BUILTIN_WORKER=0 snug start), so that
 * what is submitted waits. Fills the queue to WAITING runs, then measures: each answer means that
 * the run is on the disk.
 */
#include "base/client.h"
#include "base/env.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

struct submitter {
    atomic_llong *left; /* runs to submit; negative: until stop_ns */
    int64_t stop_ns, n, cap;
    double *late_ms;
    pthread_t thread;
};

static void die(const char *what, const struct err *e)
{
    (void)fprintf(stderr, "submit: %s: %s\n", what, e->text);
    exit(1);
}

static json_t *body_new(void)
{
    json_t *graph = json_pack(
        "{s:[{s:s,s:s},{s:s,s:s,s:{s:{s:s}}}],s:[{s:s,s:s,s:s,s:s,s:s,s:s}]}", "nodes", "id", "s",
        "type", "Start", "id", "p", "type", "TensorCreate", "data", "params", "shape", "2", "edges",
        "id", "e", "source", "s", "sourceHandle", "trigger", "target", "p", "targetHandle", "",
        "type", "trigger");
    return json_pack(
        "{s:o,s:s,s:{s:s}}", "graph", graph, "name", "bench", "options", "device", "cpu");
}

static void *submitting(void *ctx)
{
    struct submitter *s = ctx;
    struct err e = {0};
    struct client *c;
    json_t *body = body_new();
    if (client_open(&(struct client_options){0}, &c, &e) != ST_OK)
        die("no server", &e);
    while (s->left ? atomic_fetch_sub(s->left, 1) > 0 : clock_ns() < s->stop_ns) {
        int64_t from_ns = clock_ns();
        if (client_post(c, "/api/runs", body, 60, NULL, &e) != ST_OK)
            die("refused", &e);
        if (s->n < s->cap)
            s->late_ms[s->n] = (double)(clock_ns() - from_ns) / 1e6;
        s->n++;
    }
    client_close(c);
    json_decref(body);
    return NULL;
}

static void all(struct submitter *list, int n)
{
    for (int i = 0; i < n; i++)
        if (pthread_create(&list[i].thread, NULL, submitting, &list[i]) != 0)
            exit(1);
    for (int i = 0; i < n; i++)
        pthread_join(list[i].thread, NULL);
}

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static int64_t waiting_now(void)
{
    struct err e = {0};
    struct client *c;
    json_t *page = NULL;
    if (client_open(&(struct client_options){0}, &c, &e) != ST_OK ||
        client_get(c, "/api/runs?status=queued&limit=1", 60, &page, &e) != ST_OK)
        die("no server", &e);
    int64_t n = json_get_i64(page, "total", 0);
    json_decref(page);
    client_close(c);
    return n;
}

int main(int argc, char **argv)
{
    int64_t waiting = argc > 1 ? atoll(argv[1]) : 100000, n = 0;
    int connections = argc > 2 ? atoi(argv[2]) : 8, seconds = argc > 3 ? atoi(argv[3]) : 10;
    struct submitter *list = mem_alloc((size_t)connections * sizeof *list);
    atomic_llong left = waiting - waiting_now();
    int64_t fill = atomic_load(&left), from_ns = clock_ns();
    for (int i = 0; i < connections; i++)
        list[i].left = &left;
    all(list, connections);
    if (fill > 0)
        (void)printf(
            "filled with %lld runs: %.0f a second\n", (long long)fill,
            (double)fill / ((double)(clock_ns() - from_ns) / 1e9));
    enum { CAP = 1 << 20 };
    double *late_ms = mem_alloc((size_t)connections * CAP * sizeof *late_ms);
    from_ns = clock_ns();
    for (int i = 0; i < connections; i++)
        list[i] = (struct submitter){
            .stop_ns = from_ns + (int64_t)seconds * 1000000000,
            .cap = CAP,
            .late_ms = late_ms + (size_t)i * CAP};
    all(list, connections);
    double took = (double)(clock_ns() - from_ns) / 1e9;
    for (int i = 0; i < connections; i++)
        for (int64_t k = 0; k < list[i].n && k < CAP; k++)
            late_ms[n++] = list[i].late_ms[k];
    qsort(late_ms, (size_t)n, sizeof *late_ms, by_size);
    (void)printf(
        "%lld waiting, %d connections: %.0f submissions a second, p50 %.2f ms, p99 %.2f ms, worst "
        "%.2f ms\n",
        (long long)waiting, connections, (double)n / took, n ? late_ms[n / 2] : 0,
        n ? late_ms[n * 99 / 100] : 0, n ? late_ms[n - 1] : 0);
    return 0;
}
