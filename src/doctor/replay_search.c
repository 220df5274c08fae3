/* replay_search.c - settings beside each other, and which of them helps. */
#include "doctor/replay_int.h"

#include <stdio.h>

/* Events that all runs of one setting may play: some seconds. */
enum { WORK_EVENTS = 10000000, ORDERS_N = 5, STEPS_MAX = 14, STEPS_MIN = 3 };

static bool same_conf(const struct mem_pool_conf *a, const struct mem_pool_conf *b)
{
    for (int i = 0; i < MEM_POOL_DIVISIONS_N; i++) {
        /* 0 and 1 are both "none". */
        int64_t x = a->roundup_power2_divisions[i], y = b->roundup_power2_divisions[i];
        if (x != y && (x > 1 || y > 1))
            return false;
    }
    return a->max_split_size_bytes == b->max_split_size_bytes &&
           a->large_segment_bytes == b->large_segment_bytes &&
           a->expandable_segments == b->expandable_segments &&
           a->garbage_collection_threshold == b->garbage_collection_threshold &&
           a->per_process_memory_fraction == b->per_process_memory_fraction;
}

int replay_settings(const struct mem_pool_conf *recorded, struct replay_row *out)
{
    static const struct {
        const char *text, *about;
    } settings[] = {
#define X(text, about) {text, about},
#include "doctor/replay_settings.def"
#undef X
    };
    int n = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct replay_row *r = &out[n];
        struct err e;
        *r = (struct replay_row){.about = settings[i].about};
        (void)snprintf(r->text, sizeof r->text, "%s", settings[i].text);
        mem_pool_conf_init(&r->conf);
        enum status st = mem_pool_conf_parse(&r->conf, r->text, NULL, &e);
        ASSERT(st == ST_OK);
        n += !same_conf(&r->conf, recorded);
    }
    return n;
}

struct replay_question
replay_question_for(const struct snapshot *s, int device, int64_t capacity_bytes)
{
    int64_t events_n = (int64_t)s->devices[device].events_n + s->devices[device].lives_n + 1;
    int64_t runs = WORK_EVENTS / events_n;
    struct replay_question q = {.capacity_bytes = capacity_bytes, .bisect = true};
    q.orders_n = runs >= 2 * ORDERS_N ? ORDERS_N : 1;
    int64_t steps = runs - q.orders_n;
    q.bisect_steps_max = steps > STEPS_MAX ? STEPS_MAX : steps < STEPS_MIN ? STEPS_MIN : (int)steps;
    return q;
}

static bool is_better(const struct replay_outcome *x, const struct replay_outcome *base)
{
    int64_t gain = base->capacity_needed_bytes - x->capacity_needed_bytes;
    if (x->run.oom != base->run.oom)
        return base->run.oom;
    return gain >= REPLAY_MARGIN_BYTES &&
           gain >= base->capacity_needed_bytes / 100 * REPLAY_MARGIN_PERCENT;
}

int replay_recommend(const struct replay_row *rows, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++) {
        bool enough = best > 0 && rows[0].outcome.run.oom && !rows[best].outcome.run.oom;
        if (!enough && is_better(&rows[i].outcome, &rows[best].outcome))
            best = i;
    }
    return best > 0 ? best : -1;
}
