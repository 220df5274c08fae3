/* scene.h - small worlds for tests of placement, filled in line by line. */
#ifndef TESTS_SIM_SCENE_H
#define TESTS_SIM_SCENE_H

#include "server/placement.h"
#include "test.h"

#include <string.h>

#define GIB ((int64_t)1 << 30)
#define SECOND ((int64_t)1000000000)

enum { SCENE_WORKERS = 6, SCENE_DEVICES = 5, SCENE_LIVE = 16 };

struct scene {
    struct place *p;
    struct place_limits *limits;
    struct place_device devices[SCENE_WORKERS][SCENE_DEVICES];
    struct place_worker workers[SCENE_WORKERS];
    struct place_live live[SCENE_LIVE];
    size_t n_workers, n_live;
    struct place_class *classes[64];
    size_t n_classes;
    int64_t now_ns, run;
    char ids[64][40];
};
void scene_open(struct scene *s, const char *limits);
void scene_close(struct scene *s);

struct place_worker *worker(struct scene *s, const char *name); /* connected */
/* 24 GiB, all of it free. */
struct place_device *
device(struct scene *s, struct place_worker *w, const char *name, const char *uuid);
struct place_device *shared(struct place_device *d);
/* A run on a card; ids are "a1b2c3d4" and "c3d4e5f6" first, as in the founding page. */
struct place_live *
on(struct scene *s, const char *worker_name, const char *dev, const char *uuid, int64_t budget);
void begin(struct scene *s);

/* "gpu-box:cuda:1", "any:cuda", "pool night:cuda:0+cuda:1" */
struct place_request request(const char *text, int64_t budget);
/* The next waiting run: "gpu-box cuda:1" where it was placed, "" when it waits, else the text. */
const char *next_as(struct scene *s, const char *text, int64_t budget, int64_t run);
const char *next(struct scene *s, const char *text, int64_t budget);
/* Why the last run that was met waits. */
const char *why(struct scene *s);
/* "" when such a run may be queued, else the refusal. */
const char *judge(struct scene *s, const char *text, int64_t budget, enum place_wait wait);

#define CHECK_HAS(text, part)                                                                      \
    do {                                                                                           \
        const char *ch_ = (text);                                                                  \
        if (!strstr(ch_, (part)))                                                                  \
            test_fail(__FILE__, __LINE__, "\"%s\" lacks \"%s\"", ch_, (part));                     \
    } while (0)

#endif
