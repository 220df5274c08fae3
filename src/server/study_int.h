/* study_int.h - what the files of studies share. */
#ifndef SERVER_STUDY_INT_H
#define SERVER_STUDY_INT_H

#include "base/mem.h"
#include "server/study.h"

#include <pthread.h>

enum { STUDY_CELLS_MAX = 100000, STUDY_PARALLEL_MAX = 1000, STUDY_ATTEMPTS_MAX = 10 };

struct noted {
    int64_t study, after_ns; /* not before */
};
struct studies {
    struct sweeps x;
    struct studies_hooks hooks;
    pthread_mutex_t work;  /* one step or change at a time; taken before the core's and store's */
    pthread_mutex_t notes; /* guards the list alone */
    VEC(struct noted) noted;
    bool resumed; /* the studies of the database have been noted */
};

/* What a study's row says, read. */
struct study_settings {
    int64_t parallel, attempts;
    bool pause_on_failure;
};
struct study_now {
    struct arena arena;
    struct store_study row;
    struct study_settings settings;
    struct sweep_plan plan; /* parameters only */
    json_t *objective, *params, *options;
};
enum status
study_load(struct studies *s, const char *study_id, struct study_now *out, struct err *e) NODISCARD;
enum status
study_load_id(struct studies *s, int64_t study, struct study_now *out, struct err *e) NODISCARD;
void study_now_release(struct study_now *x);
const char *study_state_text(enum study_state s);
uint32_t study_seed(const struct store_study *row, int32_t repetition);

/* Everything that is due for a study. ST_FULL, ST_BUSY, ST_IO: later. With `work` held. */
enum status
study_step(struct studies *s, int64_t study, struct instant now, struct err *e) NODISCARD;
/* Adds an event of {} or of these keys; takes the payload. In a transaction. */
enum status study_tell(
    struct studies *s, int64_t study, const char *type, json_t *payload, struct instant now,
    struct err *e) NODISCARD;
void study_note_at(struct studies *s, int64_t study, int64_t after_ns);
void study_changed(struct studies *s, const char *study_id);

#endif
