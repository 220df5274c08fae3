/* copy.c - the copy engine: one thread, one ring of copies, one count of those that are done.
 *
 * INVARIANTS (under the lock)
 *  1. done <= issued <= done + COPY_QUEUE_MAX; copy number t lies in ring[t % COPY_QUEUE_MAX].
 *  2. Copy t is done when t <= done: they run in order. */
#include "backends/copy.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct copy {
    void *to;
    const void *from;
    size_t size_bytes;
};

struct copy_engine {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, less; /* a copy was issued, or the end asked for; a copy is done */
    struct copy ring[COPY_QUEUE_MAX];
    uint64_t issued, done;
    bool ends;
    int64_t delay_ms; /* for tests */
};

static void delay(int64_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    if (ms > 0)
        (void)nanosleep(&t, NULL);
}

static void *work(void *ctx)
{
    struct copy_engine *c = ctx;
    (void)pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->done == c->issued && !c->ends)
            (void)pthread_cond_wait(&c->more, &c->lock);
        if (c->done == c->issued)
            break;
        struct copy next = c->ring[(c->done + 1) % COPY_QUEUE_MAX];
        (void)pthread_mutex_unlock(&c->lock);
        delay(c->delay_ms);
        if (next.size_bytes)
            memcpy(next.to, next.from, next.size_bytes);
        (void)pthread_mutex_lock(&c->lock);
        c->done++;
        (void)pthread_cond_signal(&c->less);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

enum status copy_engine_new(struct copy_engine **out, struct err *e)
{
    struct copy_engine *c = mem_alloc(sizeof *c);
    const char *ms = getenv("SNUG_TEST_COPY_DELAY_MS");
    c->delay_ms = ms ? strtol(ms, NULL, 10) : 0;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->more, NULL);
    (void)pthread_cond_init(&c->less, NULL);
    if (pthread_create(&c->thread, NULL, work, c) != 0) {
        mem_free(c);
        return err_set(e, ST_OOM, "could not start a thread for copies between device and host");
    }
    *out = c;
    return ST_OK;
}

void copy_engine_free(struct copy_engine *c)
{
    if (!c)
        return;
    (void)pthread_mutex_lock(&c->lock);
    c->ends = true;
    (void)pthread_cond_signal(&c->more);
    (void)pthread_mutex_unlock(&c->lock);
    (void)pthread_join(c->thread, NULL);
    (void)pthread_mutex_destroy(&c->lock);
    (void)pthread_cond_destroy(&c->more);
    (void)pthread_cond_destroy(&c->less);
    mem_free(c);
}

uint64_t copy_issue(struct copy_engine *c, void *to, const void *from, size_t size_bytes)
{
    (void)pthread_mutex_lock(&c->lock);
    while (c->issued - c->done == COPY_QUEUE_MAX)
        (void)pthread_cond_wait(&c->less, &c->lock);
    uint64_t ticket = ++c->issued;
    c->ring[ticket % COPY_QUEUE_MAX] = (struct copy){to, from, size_bytes};
    (void)pthread_cond_signal(&c->more);
    (void)pthread_mutex_unlock(&c->lock);
    return ticket;
}

void copy_wait(struct copy_engine *c, uint64_t ticket)
{
    (void)pthread_mutex_lock(&c->lock);
    while (c->done < ticket)
        (void)pthread_cond_wait(&c->less, &c->lock);
    (void)pthread_mutex_unlock(&c->lock);
}

void copy_wait_all(struct copy_engine *c)
{
    copy_wait(c, c->issued);
}
