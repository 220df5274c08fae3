/* http_wake.c - topics: who waits for what, and who is called when it is woken or the time is up.
 *
 * WHY  A route looks at the world, sees nothing new and waits. What changes between looking and
 * waiting must not be lost: every wake has a number, a slot of a small table keeps the last number
 * of the topics that hash to it, and a wait that begins names the number from before the look. Two
 * topics in one slot cost a look too many, never one too few.
 *
 * INVARIANTS
 *  1 A waiter is linked in a bucket for each topic and in the list of all, or in none.
 *  2 fire is called under the lock, once for each waits_add that returned true, unless
 *    waits_remove came first.
 */
#include "server/http_int.h"

#include "base/env.h"
#include "base/rng.h"

#include <errno.h>
#include <string.h>
#include <time.h>

uint64_t http_topic(const char *kind, const char *id)
{
    uint64_t h = hash_bytes(id, strlen(id), hash_name(kind));
    return h ? h : 1;
}

static struct wait_link **bucket(struct waits *w, uint64_t topic)
{
    return &w->buckets[topic % TOPIC_SLOTS];
}

static void link_in(struct waits *w, struct waiter *x)
{
    for (int i = 0; i < 2; i++) {
        struct wait_link *l = &x->link[i];
        if (!l->topic)
            continue;
        l->owner = x;
        l->at = bucket(w, l->topic);
        l->next = *l->at;
        if (l->next)
            l->next->at = &l->next;
        *l->at = l;
    }
    x->at_all = &w->all;
    x->next_all = w->all;
    if (x->next_all)
        x->next_all->at_all = &x->next_all;
    w->all = x;
    x->linked = true;
}

static void link_out(struct waiter *x)
{
    for (int i = 0; i < 2; i++) {
        struct wait_link *l = &x->link[i];
        if (!l->topic)
            continue;
        *l->at = l->next;
        if (l->next)
            l->next->at = l->at;
    }
    *x->at_all = x->next_all;
    if (x->next_all)
        x->next_all->at_all = x->at_all;
    x->linked = false;
}

uint64_t waits_now(struct waits *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t now = w->sequence;
    pthread_mutex_unlock(&w->lock);
    return now;
}

static bool woken_since(const struct waits *w, uint64_t topic, uint64_t since)
{
    return topic && w->last[topic % TOPIC_SLOTS] > since;
}

bool waits_woken(struct waits *w, uint64_t topic, uint64_t since)
{
    pthread_mutex_lock(&w->lock);
    bool woken = woken_since(w, topic, since);
    pthread_mutex_unlock(&w->lock);
    return woken;
}

bool waits_add(struct waits *w, struct waiter *x, uint64_t since, void (*parked)(void *ctx))
{
    pthread_mutex_lock(&w->lock);
    ASSERT(!x->linked);
    x->woken = woken_since(w, x->link[0].topic, since) || woken_since(w, x->link[1].topic, since);
    x->expired = !x->woken && w->closing;
    bool wait = !x->woken && !x->expired;
    if (wait) {
        bool sooner = !w->all || x->until_ns < w->earliest_ns;
        link_in(w, x);
        if (sooner) {
            w->earliest_ns = x->until_ns;
            pthread_cond_signal(&w->changed);
        }
        parked(x->ctx);
    }
    pthread_mutex_unlock(&w->lock);
    return wait;
}

void waits_remove(struct waits *w, struct waiter *x)
{
    pthread_mutex_lock(&w->lock);
    if (x->linked)
        link_out(x);
    pthread_mutex_unlock(&w->lock);
}

void http_wake(struct http *h, uint64_t topic)
{
    struct waits *w = &h->waits;
    pthread_mutex_lock(&w->lock);
    w->last[topic % TOPIC_SLOTS] = ++w->sequence;
    for (struct wait_link *l = *bucket(w, topic); l;) {
        struct waiter *x = l->owner;
        bool mine = l->topic == topic;
        l = l->next;
        /* Both links of one waiter may lie in this bucket, one after the other. */
        if (mine && l && l->owner == x)
            l = l->next;
        if (mine) {
            link_out(x);
            x->woken = true;
            x->fire(x->ctx);
        }
    }
    if (w->listener)
        w->listener(w->listener_ctx, topic);
    pthread_mutex_unlock(&w->lock);
}

void http_on_wake(struct http *h, void (*fn)(void *ctx, uint64_t topic), void *ctx)
{
    pthread_mutex_lock(&h->waits.lock);
    h->waits.listener = fn;
    h->waits.listener_ctx = ctx;
    pthread_mutex_unlock(&h->waits.lock);
}

/* Fires whose time is up (everyone's is when the door closes); returns the earliest that is left.
 */
static int64_t expire(struct waits *w, int64_t now_ns)
{
    int64_t earliest = INT64_MAX;
    for (struct waiter *x = w->all; x;) {
        struct waiter *next = x->next_all;
        if (w->closing || x->until_ns <= now_ns) {
            link_out(x);
            x->expired = true;
            x->fire(x->ctx);
        } else if (x->until_ns < earliest) {
            earliest = x->until_ns;
        }
        x = next;
    }
    return earliest;
}

static struct timespec timespec_of(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

static void *watch(void *arg)
{
    struct waits *w = arg;
    int64_t tick_ns = clock_ns() + 1000000000;
    pthread_mutex_lock(&w->lock);
    while (!w->closing) {
        int64_t now_ns = clock_ns();
        w->earliest_ns = expire(w, now_ns);
        if (now_ns >= tick_ns) {
            tick_ns = now_ns + 1000000000;
            pthread_mutex_unlock(&w->lock);
            w->tick(w->tick_ctx);
            pthread_mutex_lock(&w->lock);
            continue;
        }
        int64_t until_ns = w->earliest_ns < tick_ns ? w->earliest_ns : tick_ns;
        struct timespec until = timespec_of(until_ns);
        pthread_cond_timedwait(&w->changed, &w->lock, &until);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

void waits_init(struct waits *w, void (*tick)(void *ctx), void *ctx, bool threaded)
{
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    w->tick = tick, w->tick_ctx = ctx;
    w->threaded = threaded && pthread_create(&w->thread, NULL, watch, w) == 0;
}

void waits_stop(struct waits *w)
{
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    expire(w, 0);
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (w->threaded)
        pthread_join(w->thread, NULL);
    w->threaded = false;
}

void waits_release(struct waits *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}
