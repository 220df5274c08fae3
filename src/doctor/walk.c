/* walk.c - ends of lives, curves, the peak, and categories. */
#include "doctor/walk.h"

#include <string.h>

/* ---- ends and curves ---- */

static void find_ends(struct walk *w)
{
    const struct snap_device *d = w->d;
    w->completes = d->actions_n[SNAP_FREE_COMPLETED] > 0;
    for (uint32_t i = 0; i < d->lives_n; i++) {
        const struct snap_life *l = walk_life(w, i);
        w->end[i] = w->completes ? l->free_completed : l->free_requested;
        if (w->end[i] == SNAP_NONE && l->block == SNAP_NONE && d->segments_n > 0) {
            w->end[i] = l->free_requested != SNAP_NONE ? l->free_requested
                        : l->alloc != SNAP_NONE        ? l->alloc
                                                       : d->events_first;
            w->lost = true;
        }
    }
}

static int64_t reserved_change(const struct snap_event *v)
{
    switch ((enum snap_action)v->action) {
    case SNAP_SEGMENT_ALLOC:
    case SNAP_SEGMENT_MAP:
        return v->size;
    case SNAP_SEGMENT_FREE:
    case SNAP_SEGMENT_UNMAP:
        return -v->size;
    case SNAP_ALLOC:
    case SNAP_FREE_REQUESTED:
    case SNAP_FREE_COMPLETED:
    case SNAP_SNAPSHOT:
    case SNAP_OOM:
    case SNAP_ANNOTATE:
    case SNAP_OTHER:
    case SNAP_ACTION_COUNT:
        break;
    }
    return 0;
}

/* By how much an event changes what is live. */
int64_t walk_live_change(const struct walk *w, uint32_t event)
{
    const struct snap_event *v = &w->s->events[event];
    uint32_t life = w->s->event_life[event];
    if (life == SNAP_NONE)
        return 0;
    uint32_t end = w->end[life - w->d->lives_first];
    int64_t bytes = walk_bytes(w, life - w->d->lives_first);
    int64_t change = 0;
    if (v->action == SNAP_ALLOC)
        change += bytes;
    if (end == event)
        change -= bytes;
    return change;
}

int64_t walk_reserved_change(const struct walk *w, uint32_t event)
{
    return reserved_change(&w->s->events[event]);
}

static void find_start(struct walk *w)
{
    const struct snap_device *d = w->d;
    for (uint32_t i = 0; i < d->lives_n; i++)
        if (walk_lives(w, i, SNAP_NONE))
            w->start_bytes += walk_bytes(w, i);
    w->reserved_start_bytes = d->reserved_bytes;
    for (uint32_t i = d->events_first; i < d->events_first + d->events_n; i++)
        w->reserved_start_bytes -= reserved_change(&w->s->events[i]);
    if (w->reserved_start_bytes < 0)
        w->reserved_start_bytes = 0;
}

/* What the device had free; WALK_FREE_MAX stands for figures that no memory has. */
static int64_t free_bytes(const struct snap_event *v)
{
    return v->addr < (uint64_t)WALK_FREE_MAX ? (int64_t)v->addr : WALK_FREE_MAX;
}

static void find_peaks(struct walk *w)
{
    const struct snap_device *d = w->d;
    int64_t live = w->start_bytes, reserved = w->reserved_start_bytes;
    w->peak_bytes = live;
    w->reserved_peak_bytes = reserved;
    w->peak_event = w->reserved_peak_event = w->oom_event = SNAP_NONE;
    for (uint32_t i = d->events_first; i < d->events_first + d->events_n; i++) {
        live += walk_live_change(w, i);
        reserved += walk_reserved_change(w, i);
        if (live > w->peak_bytes) {
            w->peak_bytes = live;
            w->peak_event = i;
        }
        if (reserved > w->reserved_peak_bytes) {
            w->reserved_peak_bytes = reserved;
            w->reserved_peak_event = i;
        }
        if (w->s->events[i].action == SNAP_OOM) {
            w->oom_event = i;
            w->oom_live_bytes = live;
            w->oom_reserved_bytes = reserved;
            w->oom_free_bytes = free_bytes(&w->s->events[i]);
            w->oom_request_bytes = w->s->events[i].size;
        }
    }
    w->end_bytes = live;
    w->reserved_end_bytes = reserved;
}

/* ---- phases ---- */

enum { LOOK_BACK = 4096 };

static bool is_allocation(const struct snap_event *v)
{
    return v->action == SNAP_ALLOC || v->action == SNAP_OOM;
}

enum moment walk_phase_at(const struct walk *w, uint32_t event, bool *loss)
{
    *loss = false;
    if (event == SNAP_NONE)
        return MOMENT_NONE;
    for (uint32_t i = 0; i < LOOK_BACK && event - i >= w->d->events_first; i++) {
        const struct snap_event *v = &w->s->events[event - i];
        const struct stack_label *x = &w->labels->of[v->stack];
        if (x->phase != MOMENT_NONE && (v->stack != 0 || is_allocation(v))) {
            *loss = (x->marks & MARK(LOSS)) != 0;
            return (enum moment)x->phase;
        }
        if (event - i == 0)
            break;
    }
    return MOMENT_NONE;
}

/* How many allocations of the backward pass follow each other, those of no phase apart, from event
 * `i` on, in steps of `step` up to `end`. */
static uint64_t backward_run(const struct walk *w, int64_t i, int64_t end, int step)
{
    uint64_t n = 0;
    for (; i != end; i += step) {
        const struct snap_event *v = &w->s->events[i];
        uint8_t phase = w->labels->of[v->stack].phase;
        if (v->action != SNAP_ALLOC || phase == MOMENT_NONE)
            continue;
        if (phase != MOMENT_BACKWARD)
            break;
        n++;
    }
    return n;
}

bool walk_backward_begins(const struct walk *w, uint32_t event)
{
    int64_t first = w->d->events_first, end = first + w->d->events_n;
    if (event == SNAP_NONE)
        return false;
    uint64_t before = backward_run(w, (int64_t)event - 1, first - 1, -1);
    uint64_t after = backward_run(w, event, end, 1);
    return before * 10 < before + after;
}

/* ---- categories ---- */

static const char *const names[] = {
#define X(id, name) name,
    HOLDER_CATEGORIES(X)
#undef X
};

const struct stack_label *walk_label(const struct walk *w, uint32_t life)
{
    const struct snap_life *l = walk_life(w, life);
    uint32_t stack = l->alloc != SNAP_NONE   ? w->s->events[l->alloc].stack
                     : l->block != SNAP_NONE ? w->s->blocks[l->block].stack
                                             : 0;
    return &w->labels->of[stack];
}

uint32_t walk_origin(const struct walk *w, uint32_t life)
{
    const struct snap_life *l = walk_life(w, life);
    uint32_t event = l->alloc != SNAP_NONE            ? l->alloc
                     : l->free_requested != SNAP_NONE ? l->free_requested
                                                      : l->free_completed;
    uint32_t origin = event != SNAP_NONE ? w->s->events[event].origin : 0;
    return origin == 0 && l->block != SNAP_NONE ? w->s->blocks[l->block].origin : origin;
}

uint32_t walk_group(const struct walk *w, uint32_t life)
{
    const uint32_t *of_node = w->labels->of_node;
    uint32_t node = of_node ? w->s->origins[walk_origin(w, life)].node : 0;
    return node && of_node[node] ? of_node[node] - 1 : walk_label(w, life)->group;
}

static int own_category(struct walk *w, const char *name)
{
    for (int i = 0; i < w->categories_n; i++)
        if (strcmp(w->category_names[i], name) == 0)
            return i;
    if (w->categories_n == HOLDER_COUNT_MAX)
        return HOLDER_UNKNOWN;
    w->category_names[w->categories_n] = name;
    return w->categories_n++;
}

/* What the stack of its free says. */
static const struct stack_label *free_label(const struct walk *w, const struct snap_life *l)
{
    static const struct stack_label none = {
        .frame = LABEL_NONE, .outer = LABEL_NONE, .op = LABEL_NONE};
    uint32_t event = l->free_requested != SNAP_NONE ? l->free_requested : l->free_completed;
    return event == SNAP_NONE ? &none : &w->labels->of[w->s->events[event].stack];
}

static bool was_freed(const struct snap_life *l)
{
    return l->free_requested != SNAP_NONE || l->free_completed != SNAP_NONE;
}

static enum holder_category of_forward(
    const struct walk *w, const struct snap_life *l, const struct stack_label *a,
    const struct stack_label *f, enum moment freed_in)
{
    bool freed = was_freed(l);
    if (a->marks & MARK(LOSS))
        return HOLDER_LOSS;
    if (a->phase == MOMENT_LOAD)
        return HOLDER_PARAMETERS;
    if ((a->marks & MARK(INIT)) && !(a->marks & MARK(MODULE)))
        return HOLDER_PARAMETERS;
    if (freed && (freed_in == MOMENT_BACKWARD || (f->marks & MARK(GRAPH_GONE))))
        return HOLDER_ACTIVATIONS;
    if (!(a->marks & (MARK(MODULE) | MARK(FORWARD))))
        return HOLDER_UNKNOWN;
    /* Dropped in the function that made it: it was never kept for anything. */
    if (freed && a->frame != LABEL_NONE && f->frame != LABEL_NONE &&
        w->s->frames[a->frame].name == w->s->frames[f->frame].name &&
        w->s->frames[a->frame].file == w->s->frames[f->frame].file)
        return HOLDER_TEMPORARIES;
    return HOLDER_ACTIVATIONS;
}

static enum holder_category category_of(const struct walk *w, uint32_t i, enum moment freed_in)
{
    const struct snap_life *l = walk_life(w, i);
    const struct stack_label *a = walk_label(w, i), *f = free_label(w, l);
    bool freed = was_freed(l);
    bool known = l->alloc != SNAP_NONE || (l->block != SNAP_NONE && a != w->labels->of);
    if (a->marks & MARK(WORKSPACE))
        return HOLDER_WORKSPACE;
    if (!known) {
        if (freed && (f->marks & MARK(CLEARS)))
            return HOLDER_GRADIENTS;
        if (freed && freed_in == MOMENT_BACKWARD)
            return HOLDER_ACTIVATIONS;
        return freed && freed_in == MOMENT_OPTIMIZER ? HOLDER_OPTIMIZER : HOLDER_EARLIER;
    }
    if (a->phase == MOMENT_BACKWARD)
        return freed && freed_in == MOMENT_BACKWARD ? HOLDER_TEMPORARIES : HOLDER_GRADIENTS;
    if (a->phase == MOMENT_OPTIMIZER)
        return freed && freed_in == MOMENT_OPTIMIZER ? HOLDER_TEMPORARIES : HOLDER_OPTIMIZER;
    return of_forward(w, l, a, f, freed_in);
}

/* ---- what was there before, by sizes ---- */

struct size_slot {
    int64_t size;
    uint32_t gradients, earlier, given; /* given: of the earlier ones, seen so far */
};
struct sizes {
    struct size_slot *slots;
    size_t cap, n;
};

static struct size_slot *size_slot(struct sizes *t, int64_t size)
{
    if (2 * (t->n + 1) > t->cap) {
        struct sizes old = *t;
        t->cap = old.cap ? 2 * old.cap : 256;
        t->slots = mem_alloc(t->cap * sizeof *t->slots);
        t->n = 0;
        for (size_t i = 0; i < old.cap; i++)
            if (old.slots[i].size)
                *size_slot(t, old.slots[i].size) = old.slots[i];
        mem_free(old.slots);
    }
    size_t at = (size_t)((uint64_t)size * 0x9e3779b97f4a7c15u >> 24) & (t->cap - 1);
    while (t->slots[at].size && t->slots[at].size != size)
        at = (at + 1) & (t->cap - 1);
    if (!t->slots[at].size) {
        t->slots[at].size = size;
        t->n++;
    }
    return &t->slots[at];
}

/* Gradients are counted where all of them are there: at the first step of the optimizer, or else at
 * the peak. */
static void split_earlier(struct walk *w)
{
    struct sizes t = {0};
    const struct snap_device *d = w->d;
    uint32_t moment = w->first_step != SNAP_NONE ? w->first_step : w->peak_event;
    bool gradients = false;
    for (uint32_t i = 0; i < d->lives_n; i++) {
        int64_t size = walk_round(walk_life(w, i)->size);
        if (size == 0)
            continue;
        if (w->category[i] == HOLDER_GRADIENTS && walk_lives(w, i, moment)) {
            size_slot(&t, size)->gradients++;
            gradients = true;
        } else if (w->category[i] == HOLDER_EARLIER && w->end[i] == SNAP_NONE) {
            size_slot(&t, size)->earlier++;
        }
    }
    for (uint32_t i = 0; i < d->lives_n && gradients; i++) {
        int64_t size = walk_round(walk_life(w, i)->size);
        if (w->category[i] != HOLDER_EARLIER || w->end[i] != SNAP_NONE || size == 0)
            continue;
        struct size_slot *k = size_slot(&t, size);
        if (k->given < k->gradients)
            w->category[i] = HOLDER_PARAMETERS;
        else if (k->given < 3 * k->gradients && w->steps_n > 0)
            w->category[i] = HOLDER_OPTIMIZER;
        k->given++;
    }
    mem_free(t.slots);
}

/* Steps of the optimizer: each begins after something else happened. */
static void count_step(struct walk *w, uint32_t event, enum moment phase, bool *other)
{
    if (phase == MOMENT_OPTIMIZER && *other) {
        w->steps_n++;
        w->first_step = w->first_step == SNAP_NONE ? event : w->first_step;
        *other = false;
    } else if (phase != MOMENT_OPTIMIZER && phase != MOMENT_NONE) {
        *other = true;
    }
}

static bool frees_have_stacks(const struct walk *w)
{
    const struct snap_device *d = w->d;
    for (uint32_t i = d->events_first; i < d->events_first + d->events_n; i++)
        if (w->s->events[i].action == SNAP_FREE_REQUESTED && w->s->events[i].stack != 0)
            return true;
    return false;
}

/* What is freed is judged at its free. One without a stack: the backward pass, where other frees
 * have stacks; else what the program was doing by the last event that has one. */
static void judge_freed(struct walk *w)
{
    const struct snap_device *d = w->d;
    const struct snapshot *s = w->s;
    bool stacks = frees_have_stacks(w), other = true;
    enum moment now = MOMENT_NONE;
    for (uint32_t i = d->events_first; i < d->events_first + d->events_n; i++) {
        const struct snap_event *v = &s->events[i];
        uint32_t life = s->event_life[i];
        enum moment phase = (enum moment)w->labels->of[v->stack].phase;
        if (v->action == SNAP_ALLOC)
            count_step(w, i, phase, &other);
        if (phase != MOMENT_NONE && (v->stack != 0 || v->action == SNAP_ALLOC || stacks))
            now = phase;
        if (life == SNAP_NONE || v->action == SNAP_ALLOC)
            continue;
        uint32_t asked = s->lives[life].free_requested;
        if (asked == i || asked == SNAP_NONE)
            w->category[life - d->lives_first] =
                (uint8_t)category_of(w, life - d->lives_first, v->stack != 0 ? phase : now);
    }
}

static void find_categories(struct walk *w)
{
    judge_freed(w);
    for (uint32_t i = 0; i < w->d->lives_n; i++) {
        const struct snap_life *l = walk_life(w, i);
        const char *own = snap_text(w->s, w->s->origins[walk_origin(w, i)].category);
        if (own[0])
            w->category[i] = (uint8_t)own_category(w, own);
        else if (!was_freed(l))
            w->category[i] = (uint8_t)category_of(w, i, MOMENT_NONE);
    }
}

void walk_init(struct walk *w, const struct labels *l, int device)
{
    *w = (struct walk){
        .s = l->s,
        .labels = l,
        .device = device,
        .d = &l->s->devices[device],
        .categories_n = HOLDER_FIXED_COUNT,
        .first_step = SNAP_NONE};
    memcpy(w->category_names, names, sizeof names);
    w->end = mem_alloc(((size_t)w->d->lives_n + 1) * sizeof *w->end);
    w->category = mem_alloc((size_t)w->d->lives_n + 1);
    find_ends(w);
    find_start(w);
    find_peaks(w);
    find_categories(w);
    split_earlier(w);
}

void walk_release(struct walk *w)
{
    mem_free(w->end);
    mem_free(w->category);
    w->end = NULL;
    w->category = NULL;
}
