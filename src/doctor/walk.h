/* walk.h - the events of one device in order: what was live and reserved when, where the peak is,
 * and what each allocation was.
 *
 * Live bytes are those of the block where the segments of the end have it, else what was asked for,
 * rounded up to 512 bytes; a block that could not be split was larger by up to 1 MiB then. What was
 * allocated before the recording is known from what frees it, or from the blocks of the end. A life
 * whose end was not recorded, and which the segments of the end do not have, counts for nothing.
 *
 * A MOMENT is an index of `events`: the state after that event; SNAP_NONE: before the first one.
 *
 * CATEGORIES. Snapshots of our own say them. Else they are worked out from the stacks and from what
 * frees a block: allocated in the backward pass and kept beyond it: gradients; in the optimizer's
 * step: its state; in a forward pass and freed by the backward pass: activations; of a loss or a
 * log-softmax: logits and loss. What was there before is split by sizes: as many blocks of a size
 * as there are gradients of it are weights, up to twice as many more the optimizer's state.
 */
#ifndef DOCTOR_WALK_H
#define DOCTOR_WALK_H

#include "doctor/labels.h"

#define HOLDER_CATEGORIES(X)                                                                       \
    X(PARAMETERS, "parameters")                                                                    \
    X(GRADIENTS, "gradients")                                                                      \
    X(OPTIMIZER, "optimizer state")                                                                \
    X(ACTIVATIONS, "activations")                                                                  \
    X(LOSS, "logits and loss")                                                                     \
    X(TEMPORARIES, "temporaries")                                                                  \
    X(WORKSPACE, "workspace")                                                                      \
    X(EARLIER, "from before the recording")                                                        \
    X(UNKNOWN, "unknown")
enum holder_category {
#define X(id, name) HOLDER_##id,
    HOLDER_CATEGORIES(X)
#undef X
        HOLDER_FIXED_COUNT,
    HOLDER_COUNT_MAX = 32 /* those of a snapshot of our own behind them */
};

#define WALK_FREE_MAX ((int64_t)1 << 56) /* no memory is as large */

struct walk {
    const struct snapshot *s;
    const struct labels *labels;
    const struct snap_device *d;
    int device;
    uint32_t *end;     /* of each life of the device: the event that ends it; SNAP_NONE: lives on */
    uint8_t *category; /* the same */
    const char *category_names[HOLDER_COUNT_MAX];
    int categories_n;
    bool completes;                             /* free_completed ends a life */
    bool lost;                                  /* some end is not recorded */
    int64_t start_bytes, peak_bytes, end_bytes; /* live */
    uint32_t peak_event;                        /* the first with the most; SNAP_NONE: the start */
    int64_t reserved_start_bytes, reserved_peak_bytes, reserved_end_bytes;
    uint32_t reserved_peak_event;
    /* The last failed request. */
    uint32_t oom_event; /* SNAP_NONE: none */
    int64_t oom_live_bytes, oom_reserved_bytes, oom_free_bytes, oom_request_bytes;
    /* Steps of the optimizer, by stacks. */
    uint32_t steps_n;
    uint32_t first_step; /* event where the first begins; SNAP_NONE */
};

void walk_init(struct walk *w, const struct labels *l, int device);
void walk_release(struct walk *w);

static inline int64_t walk_round(int64_t bytes)
{
    return bytes <= 0 ? 0 : (bytes + 511) / 512 * 512;
}
static inline const struct snap_life *walk_life(const struct walk *w, uint32_t i)
{
    return &w->s->lives[w->d->lives_first + i];
}
/* What it takes of a segment. */
static inline int64_t walk_bytes(const struct walk *w, uint32_t i)
{
    const struct snap_life *l = walk_life(w, i);
    return l->block != SNAP_NONE ? w->s->blocks[l->block].size : walk_round(l->size);
}
/* Whether the i-th life of the device is there at a moment. */
static inline bool walk_lives(const struct walk *w, uint32_t i, uint32_t moment)
{
    uint32_t alloc = walk_life(w, i)->alloc, end = w->end[i];
    bool begun = alloc == SNAP_NONE || (moment != SNAP_NONE && alloc <= moment);
    return begun && (end == SNAP_NONE || moment == SNAP_NONE || end > moment);
}
/* By how much an event changes what is live, and what is reserved. */
int64_t walk_live_change(const struct walk *w, uint32_t event);
int64_t walk_reserved_change(const struct walk *w, uint32_t event);
/* What a life's allocation was labelled; of its block where the allocation was not recorded. */
const struct stack_label *walk_label(const struct walk *w, uint32_t life);
/* The group of its node where that is known, else of its label. */
uint32_t walk_group(const struct walk *w, uint32_t life);
/* Who asked for it, in snapshots of our own; 0: not known. An index of `origins`. */
uint32_t walk_origin(const struct walk *w, uint32_t life);
/* The phase of the program at an event, of that or of the nearest one before that has a stack. */
enum moment walk_phase_at(const struct walk *w, uint32_t event, bool *loss);
/* Whether the backward pass had just begun there: less than a tenth of it lies before. */
bool walk_backward_begins(const struct walk *w, uint32_t event);

/* ---- Who holds what at a moment ---- */

struct holder {
    uint32_t group;
    uint8_t category;
    uint32_t largest_life; /* of the device's lives */
    int64_t bytes, largest_bytes;
    uint32_t n;
};
struct holder_size {
    int64_t size_bytes, bytes;
    uint32_t n;
};
struct holders {
    uint32_t moment;
    int64_t live_bytes;
    uint32_t live_n;
    int64_t by_category[HOLDER_COUNT_MAX];
    uint32_t by_category_n[HOLDER_COUNT_MAX];
    struct holder *rows; /* by place, phase and category; most bytes first */
    uint32_t rows_n;
    struct holder_size *sizes; /* most bytes first */
    uint32_t sizes_n;
    /* By age: before the recording, earlier iterations (all but the one of the moment), this one.
     */
    int64_t age_earlier_bytes, age_former_bytes, age_current_bytes;
    uint32_t largest_life; /* LABEL_NONE: nothing lives */
};
/* `iteration_begin`: the event where the moment's iteration begins; SNAP_NONE: not known. */
void holders_at(
    const struct walk *w, uint32_t moment, uint32_t iteration_begin, struct holders *out);
void holders_release(struct holders *h);

#endif
