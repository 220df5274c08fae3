/* scene.c - small worlds for tests of placement (scene.h). */
#include "scene.h"

#include <stdio.h>

void scene_open(struct scene *s, const char *limits)
{
    memset(s, 0, sizeof *s);
    s->p = place_new();
    s->limits = place_limits_new(limits, 1, 2, NULL);
}

void scene_close(struct scene *s)
{
    for (size_t i = 0; i < s->n_classes; i++)
        place_class_give(s->p, s->classes[i]);
    place_check(s->p);
    place_free(s->p);
    place_limits_free(s->limits);
}

struct place_worker *worker(struct scene *s, const char *name)
{
    struct place_worker *w = &s->workers[s->n_workers];
    *w = (struct place_worker){
        .name = name,
        .pool = "",
        .devices = s->devices[s->n_workers++],
        .server = str_eq(name, "local"),
        .connected = true,
        .seen = true,
        .can_cap = true};
    w->same_host = w->server;
    return w;
}

struct place_device *
device(struct scene *s, struct place_worker *w, const char *name, const char *uuid)
{
    struct place_device *d = &s->devices[w - s->workers][w->n_devices++];
    size_t n = strcspn(name, ":");
    *d = (struct place_device){
        .name = name,
        .kind = n == 4                         ? "cuda"
                : strncmp(name, "mps", n) == 0 ? "mps"
                                               : "cpu",
        .uuid = uuid,
        .total_bytes = n == 4 ? 24 * GIB : 0,
        .free_bytes = n == 4 ? 24 * GIB : 0,
        .reported_ns = 1};
    return d;
}

struct place_device *shared(struct place_device *d)
{
    d->shared = true;
    return d;
}

struct place_live *
on(struct scene *s, const char *worker_name, const char *dev, const char *uuid, int64_t budget)
{
    static const char *const ids[] = {
        "a1b2c3d4ffffffffffffffffffffffff", "c3d4e5f6ffffffffffffffffffffffff",
        "11111111ffffffffffffffffffffffff", "22222222ffffffffffffffffffffffff",
        "33333333ffffffffffffffffffffffff", "44444444ffffffffffffffffffffffff",
        "55555555ffffffffffffffffffffffff", "66666666ffffffffffffffffffffffff"};
    struct place_live *l = &s->live[s->n_live];
    *l = (struct place_live){
        .run = (int64_t)s->n_live + 1,
        .run_id = ids[s->n_live % 8],
        .worker = worker_name,
        .devices = {dev},
        .uuids = {uuid},
        .n_devices = 1,
        .budget_bytes = budget,
        .started = true};
    s->n_live++;
    return l;
}

void begin(struct scene *s)
{
    struct place_world w = {
        .workers = s->workers,
        .n_workers = s->n_workers,
        .live = s->live,
        .n_live = s->n_live,
        .limits = s->limits,
        .context_bytes = 768 * (GIB / 1024),
        .reserve_ns = 600 * SECOND,
        .now_ns = s->now_ns};
    place_begin(s->p, &w);
}

struct place_request request(const char *text, int64_t budget)
{
    static char copies[8][128];
    static size_t turn;
    char *copy = copies[turn++ % 8];
    (void)snprintf(copy, 128, "%s", text);
    char *colon = strchr(copy, ':');
    *colon = 0;
    struct place_request r = {.worker = copy, .pool = "", .budget_bytes = budget};
    if (str_eq(copy, "any"))
        r.target = PLACE_ANY;
    if (str_starts(copy, "pool")) {
        r.target = PLACE_POOL;
        r.pool = copy[4] ? copy + 5 : "";
    }
    for (char *rest = NULL, *d = strtok_r(colon + 1, "+", &rest); d; d = strtok_r(NULL, "+", &rest))
        r.devices[r.n_devices++] = d;
    return r;
}

const char *next_as(struct scene *s, const char *text, int64_t budget, int64_t run)
{
    static char said[8][700];
    static size_t turn;
    char *out = said[turn++ % 8];
    struct place_request r = request(text, budget);
    struct place_class *c = s->classes[s->n_classes++] = place_class_get(s->p, &r);
    struct place_result result;
    char *id = s->ids[run % 64];
    (void)snprintf(id, sizeof s->ids[0], "%08lldxx", (long long)run);
    s->run = run;
    out[0] = 0;
    switch (place_next(s->p, c, run, id, &result)) {
    case PLACE_FAILS:
        (void)snprintf(out, 700, "%s", result.text);
        break;
    case PLACE_WAITS:
        break;
    case PLACE_ASSIGNED:
        (void)snprintf(out, 700, "%s", s->workers[result.worker].name);
        for (size_t i = 0; i < result.n_devices; i++) {
            strcat(out, " ");
            strcat(out, s->devices[result.worker][result.devices[i]].name);
        }
        break;
    }
    return out;
}

const char *next(struct scene *s, const char *text, int64_t budget)
{
    return next_as(s, text, budget, s->run < 100 ? 100 : s->run + 1);
}

const char *why(struct scene *s)
{
    static char said[4][900];
    static size_t turn;
    struct str text;
    str_init(&text);
    place_reason(s->p, s->classes[s->n_classes - 1], s->run, &text);
    char *out = said[turn++ % 4];
    (void)snprintf(out, 900, "%s", text.data);
    str_release(&text);
    return out;
}

const char *judge(struct scene *s, const char *text, int64_t budget, enum place_wait wait)
{
    static struct err e[4];
    static size_t turn;
    struct err *x = &e[turn++ % 4];
    struct place_request r = request(text, budget);
    enum status st = place_judge(s->p, &r, wait, x);
    if (st == ST_OK)
        return "";
    CHECK_EQ(st, ST_INVALID);
    return x->text;
}
