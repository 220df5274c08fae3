/* growth.c - finds iterations, and what each leaves behind. */
#include "doctor/growth.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)

typedef VEC(uint32_t) moments;

static bool enough(const moments *m)
{
    return m->n >= GROWTH_ITERATIONS_MIN;
}

static uint32_t events_end(const struct walk *w)
{
    return w->d->events_first + w->d->events_n;
}

/* ---- our own snapshots: the step of each origin ---- */

static void by_steps(const struct walk *w, uint32_t from, moments *out)
{
    int64_t step = -1;
    for (uint32_t i = from; i < events_end(w); i++) {
        int64_t now = w->s->origins[w->s->events[i].origin].step;
        if (now <= step || w->s->events[i].action != SNAP_ALLOC)
            continue;
        step = now;
        vec_push(out, i);
    }
}

/* ---- annotations, by time ---- */

static bool is_step(const char *name)
{
    return str_starts(name, "Optimizer.step") || str_starts(name, "ProfilerStep");
}

static int by_time(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void by_annotations(const struct walk *w, uint32_t from, moments *out)
{
    const struct snapshot *s = w->s;
    VEC(int64_t) times = {0};
    for (uint32_t i = 0; i < s->annotations_n; i++) {
        const struct snap_annotation *a = &s->annotations[i];
        bool here = a->device < 0 || a->device == w->device;
        if (here && !a->end && is_step(snap_text(s, a->name)))
            vec_push(&times, a->time_us);
    }
    if (times.n)
        qsort(times.data, times.n, sizeof *times.data, by_time);
    size_t k = 0;
    for (uint32_t i = from; i < events_end(w) && k < times.n; i++) {
        if (s->events[i].time_us == 0 || s->events[i].time_us < times.data[k])
            continue;
        vec_push(out, i);
        while (k < times.n && times.data[k] <= s->events[i].time_us)
            k++;
    }
    vec_release(&times);
}

/* ---- steps of the optimizer ---- */

static void by_optimizer(const struct walk *w, uint32_t from, moments *out)
{
    bool other = true;
    for (uint32_t i = from; i < events_end(w); i++) {
        uint8_t phase = w->labels->of[w->s->events[i].stack].phase;
        if (w->s->events[i].action != SNAP_ALLOC || phase == MOMENT_NONE)
            continue;
        if (phase == MOMENT_OPTIMIZER && other)
            vec_push(out, i);
        other = phase != MOMENT_OPTIMIZER;
    }
}

/* ---- a loop of the user: the outermost frames ---- */

/* The user's frames of a stack that are outside of every module, outermost first, and the first
 * frame within the outermost module. */
enum { CHAIN_MAX = 24 };
struct chain {
    uint32_t frames[CHAIN_MAX], n;
    uint32_t inside; /* LABEL_NONE: no module */
};

static void chain_of(const struct walk *w, uint32_t stack, struct chain *x)
{
    const struct snap_stack *k = &w->s->stacks[stack];
    const uint32_t *ids = snap_stack_frames(w->s, stack);
    bool module = false;
    x->n = 0;
    x->inside = LABEL_NONE;
    for (uint32_t i = k->n; i-- > 0;) {
        uint32_t m = w->labels->marks[ids[i]];
        if (!(m & MARK(PYTHON)))
            continue;
        module = module || (m & (MARK(MODULE) | MARK(FORWARD)));
        if (module && !(m & MARK(MODULE))) {
            x->inside = ids[i];
            return;
        }
        if (!module && !(m & MARK(PACKAGE)) && x->n < CHAIN_MAX)
            x->frames[x->n++] = ids[i];
    }
}

/* Whether `b` is an earlier line of the function of `a`. */
static bool goes_back(const struct walk *w, uint32_t a, uint32_t b)
{
    const struct snap_frame *x = &w->s->frames[a], *y = &w->s->frames[b];
    return x->file == y->file && x->name == y->name && y->line < x->line;
}

/* At which depth the program went back to an earlier line from one chain to the next; -1: nowhere.
 */
static int back_at(const struct walk *w, const struct chain *a, const struct chain *b)
{
    for (uint32_t i = 0; i < a->n && i < b->n; i++)
        if (a->frames[i] != b->frames[i])
            return goes_back(w, a->frames[i], b->frames[i]) ? (int)i : -1;
    return -1;
}

static bool same_chain(const struct chain *a, const struct chain *b)
{
    return a->n == b->n && memcmp(a->frames, b->frames, a->n * sizeof *a->frames) == 0;
}

/* A loop of the user's own: a line outside of every module goes back, at the least depth that this
 * happens often enough at. With `modules`: the lines outside stay, and that in the outermost module
 * goes back: it was called again. Building of modules, the backward pass and the optimizer have
 * loops of their own and are left out. */
static void by_loop(const struct walk *w, uint32_t from, bool modules, moments *out)
{
    VEC(int) depths = {0};
    struct chain last = {.inside = LABEL_NONE}, now;
    uint32_t stack = 0, n[CHAIN_MAX + 1] = {0};
    for (uint32_t i = from; i < events_end(w); i++) {
        const struct snap_event *v = &w->s->events[i];
        const struct stack_label *x = &w->labels->of[v->stack];
        bool counts = v->action == SNAP_ALLOC && v->stack != 0 && v->stack != stack &&
                      x->phase != MOMENT_BACKWARD && x->phase != MOMENT_OPTIMIZER &&
                      !(x->marks & (MARK(BUILD) | MARK(INIT)));
        if (!counts)
            continue;
        stack = v->stack;
        chain_of(w, stack, &now);
        if (now.n == 0)
            continue;
        int depth = back_at(w, &last, &now);
        if (modules)
            depth = same_chain(&last, &now) && last.inside != LABEL_NONE &&
                            now.inside != LABEL_NONE && goes_back(w, last.inside, now.inside)
                        ? CHAIN_MAX
                        : -1;
        if (depth >= 0) {
            vec_push(out, i);
            vec_push(&depths, depth);
            n[depth]++;
        }
        last = now;
    }
    int least = 0;
    while (least < CHAIN_MAX && n[least] < GROWTH_ITERATIONS_MIN)
        least++;
    size_t kept = 0;
    for (size_t i = 0; i < out->n; i++)
        if (depths.data[i] <= least)
            out->data[kept++] = out->data[i];
    out->n = kept;
    vec_release(&depths);
}

/* ---- a period in the sequence of sizes ---- */

struct key_slot {
    uint64_t key;
    uint32_t n, first, last, gap_min, gap_max;
};

/* Places of the table: a power of two above twice the number of allocations, within bounds. */
static size_t key_table(uint32_t allocs)
{
    size_t cap = 1024;
    while (cap < 2 * (size_t)allocs && cap < (size_t)1 << 22)
        cap *= 2;
    return cap;
}

static struct key_slot *key_slot(struct key_slot *slots, size_t cap, uint64_t key, size_t *used)
{
    size_t at = (size_t)(key * 0x9e3779b97f4a7c15u >> 22) & (cap - 1);
    while (slots[at].n && slots[at].key != key)
        at = (at + 1) & (cap - 1);
    if (!slots[at].n) {
        if (4 * (*used + 1) > 3 * cap)
            return NULL;
        (*used)++;
        slots[at].key = key;
    }
    return &slots[at];
}

static uint64_t key_of(const struct walk *w, uint32_t event)
{
    const struct snap_event *v = &w->s->events[event];
    return ((uint64_t)v->stack << 40 ^ (uint64_t)v->size) + 1;
}

/* Which size (and stack) marks an iteration: it comes at equal distances, at least four times, with
 * at least half of the trace between its first and last. Of several: the one that comes least. */
static uint64_t find_marker(const struct walk *w, uint32_t from)
{
    size_t cap = key_table(w->d->actions_n[SNAP_ALLOC]), used = 0;
    struct key_slot *slots = mem_alloc(cap * sizeof *slots);
    uint32_t at = 0, total = 0;
    for (uint32_t i = from; i < events_end(w); i++) {
        if (w->s->events[i].action != SNAP_ALLOC)
            continue;
        struct key_slot *k = key_slot(slots, cap, key_of(w, i), &used);
        total = ++at;
        if (!k)
            continue;
        if (k->n == 0) {
            k->first = at;
        } else {
            uint32_t gap = at - k->last;
            k->gap_min = k->n == 1 || gap < k->gap_min ? gap : k->gap_min;
            k->gap_max = gap > k->gap_max ? gap : k->gap_max;
        }
        k->last = at;
        k->n++;
    }
    uint64_t best = 0;
    uint32_t fewest = UINT32_MAX, earliest = UINT32_MAX;
    for (size_t i = 0; i < cap; i++) {
        const struct key_slot *k = &slots[i];
        bool even = k->n >= 4 && k->gap_min >= 4 && k->gap_max <= k->gap_min + k->gap_min / 10;
        if (!even || 2 * (k->last - k->first) < total)
            continue;
        if (k->n < fewest || (k->n == fewest && k->first < earliest)) {
            best = k->key;
            fewest = k->n;
            earliest = k->first;
        }
    }
    mem_free(slots);
    return best;
}

static void by_period(const struct walk *w, uint32_t from, moments *out)
{
    uint64_t key = find_marker(w, from);
    for (uint32_t i = from; key && i < events_end(w); i++)
        if (w->s->events[i].action == SNAP_ALLOC && key_of(w, i) == key)
            vec_push(out, i);
}

/* ---- one line ---- */

/* Where memory ran out: the place of most of what lives, outside of every module and of the
 * building of one, if it made equal sizes again and again and none was ever freed: each is an
 * iteration. */
static void by_line(const struct walk *w, uint32_t from, moments *out)
{
    enum { TIMES_MIN = 16 };
    struct holders h;
    uint64_t key = 0;
    int64_t bytes = 0;
    if (w->oom_event == SNAP_NONE)
        return;
    holders_at(w, w->oom_event, SNAP_NONE, &h);
    if (h.rows_n && h.rows[0].n >= TIMES_MIN && 10 * h.rows[0].bytes >= 6 * h.live_bytes) {
        const struct stack_label *x = walk_label(w, h.rows[0].largest_life);
        uint32_t alloc = walk_life(w, h.rows[0].largest_life)->alloc;
        bool loop = x->own && x->phase == MOMENT_NONE && !(x->marks & (MARK(INIT) | MARK(BUILD)));
        key = loop && alloc != SNAP_NONE ? key_of(w, alloc) : 0;
        bytes = h.rows[0].largest_bytes * h.rows[0].n == h.rows[0].bytes ? h.rows[0].bytes : 0;
    }
    holders_release(&h);
    for (uint32_t i = from; key && bytes && i < events_end(w); i++) {
        if (w->s->events[i].action != SNAP_ALLOC || key_of(w, i) != key)
            continue;
        if (w->s->event_life[i] == SNAP_NONE ||
            !walk_lives(w, w->s->event_life[i] - w->d->lives_first, w->oom_event)) {
            out->n = 0;
            return;
        }
        vec_push(out, i);
    }
}

/* ---- what is live at each beginning ---- */

/* Just before the event that begins it. */
static void live_at_begins(const struct walk *w, struct growth_report *g, int64_t *swing)
{
    int64_t live = w->start_bytes, low = live, high = live, swing_sum = 0;
    uint32_t k = 0;
    for (uint32_t i = w->d->events_first; i < events_end(w) && k < g->n; i++) {
        if (i == g->begins[k]) {
            g->live_bytes[k++] = live;
            swing_sum += high - low;
            low = high = live;
        }
        live += walk_live_change(w, i);
        low = live < low ? live : low;
        high = live > high ? live : high;
    }
    *swing = k ? swing_sum / k : 0;
}

/* Whether one iteration of the period alone may be one layer of a forward pass: layers have equal
 * sizes, too, and each leaves its activations; an iteration rises and falls by much more. */
static bool swings(const struct growth_report *g, int64_t swing)
{
    return (double)swing >= 3 * g->bytes_per_iteration;
}

/* It rises in most iterations, and still does in the second half: states and caches that appear in
 * the first ones are no growth. */
static void judge(const struct walk *w, struct growth_report *g, int64_t swing)
{
    int64_t diffs_n = 0, up = 0;
    g->first = g->n >= GROWTH_WARM + 3 ? GROWTH_WARM : g->n > 3 ? 1 : 0;
    int64_t *diffs = mem_alloc(((size_t)g->n + 1) * sizeof *diffs);
    for (uint32_t i = g->first; i + 1 < g->n; i++) {
        diffs[diffs_n] = g->live_bytes[i + 1] - g->live_bytes[i];
        up += diffs[diffs_n] > 0;
        diffs_n++;
    }
    if (diffs_n > 0) {
        qsort(diffs, (size_t)diffs_n, sizeof *diffs, by_time);
        g->bytes_per_iteration = (double)diffs[(diffs_n - 1) / 2];
        g->total_bytes = g->live_bytes[g->n - 1] - g->live_bytes[g->first];
    }
    mem_free(diffs);
    uint32_t middle = g->first + (g->n - g->first) / 2;
    int64_t late = diffs_n > 0 ? g->live_bytes[g->n - 1] - g->live_bytes[middle] : 0;
    int64_t least = w->peak_bytes / 100 > MIB ? w->peak_bytes / 100 : MIB;
    g->rising = diffs_n >= 2 && g->bytes_per_iteration > 0 && 10 * up >= 7 * diffs_n &&
                g->total_bytes >= least && 5 * late >= g->total_bytes &&
                (double)g->total_bytes >= 0.5 * g->bytes_per_iteration * (double)diffs_n;
    g->swings = swings(g, swing);
}

/* ---- what grows ---- */

static int by_bytes(const void *a, const void *b)
{
    const struct growth_row *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return (x->category > y->category) - (x->category < y->category);
}

/* Iteration of an event; the begins are sorted and lives come in order, so `*at` only moves on. */
static uint32_t iteration_of(const struct growth_report *g, uint32_t event, uint32_t *at)
{
    while (*at + 1 < g->n && g->begins[*at + 1] <= event)
        (*at)++;
    return *at;
}

/* Places and categories that left something behind in at least a third of the iterations. */
static void pick_rows(const struct walk *w, struct growth_report *g, size_t n, uint32_t counted)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        const struct growth_row *r = &g->rows[i];
        bool once = r->iterations_n < 2 && (r->category == HOLDER_OPTIMIZER || counted > 1);
        if (!r->n || 3 * r->iterations_n < counted || once)
            continue;
        const struct stack_label *x = walk_label(w, r->life);
        g->kept_bytes += r->bytes;
        if ((x->marks & (MARK(MODULE) | MARK(FORWARD))) && x->phase != MOMENT_BACKWARD &&
            x->phase != MOMENT_OPTIMIZER) {
            g->kept_activation_bytes += r->bytes;
            g->kept_places_n++;
        }
        g->rows[kept++] = *r;
    }
    if (kept)
        qsort(g->rows, kept, sizeof *g->rows, by_bytes);
    g->rows = mem_resize(g->rows, (kept + 1) * sizeof *g->rows);
    g->rows_n = (uint32_t)kept;
}

/* What was made in an iteration before the last but one, and is there when the last one begins. */
static void what_stays(const struct walk *w, struct growth_report *g)
{
    enum { SLOTS_MAX = 4000000 };
    size_t most = (size_t)w->labels->groups_n * (size_t)w->categories_n;
    if (most > SLOTS_MAX)
        return;
    uint32_t *last = mem_alloc((most + 1) * sizeof *last), at = 0, final = g->begins[g->n - 1];
    g->rows = mem_alloc((most + 1) * sizeof *g->rows);
    for (uint32_t i = 0; i < w->d->lives_n; i++) {
        uint32_t alloc = walk_life(w, i)->alloc;
        if (alloc == SNAP_NONE || alloc < g->begins[g->first])
            continue;
        uint32_t k = iteration_of(g, alloc, &at);
        if (k + 2 >= g->n)
            break;
        if (!walk_lives(w, i, final))
            continue;
        uint32_t group = walk_group(w, i);
        size_t slot = (size_t)group * (size_t)w->categories_n + w->category[i];
        struct growth_row *r = &g->rows[slot];
        *r = (struct growth_row){
            .group = group,
            .category = w->category[i],
            .life = i,
            .n = r->n + 1,
            .bytes = r->bytes + walk_bytes(w, i),
            .iterations_n = r->iterations_n + (last[slot] != k + 1)};
        last[slot] = k + 1;
    }
    pick_rows(w, g, most, g->n - 2 - g->first);
    mem_free(last);
}

/* The ways to find iterations, the first that finds enough. */
static const char *find_iterations(const struct walk *w, uint32_t from, bool tail, moments *out)
{
    static const char *const ways[] = {"steps of the run",       "annotations",
                                       "steps of the optimizer", "a loop of the program",
                                       "calls of the model",     "a period of the sizes",
                                       "a line that comes again"};
    for (int way = tail ? 3 : 0; way < 7; way++) {
        out->n = 0;
        if (way == 0)
            by_steps(w, from, out);
        else if (way == 1)
            by_annotations(w, from, out);
        else if (way == 2)
            by_optimizer(w, from, out);
        else if (way < 5 && w->s->has_stacks)
            by_loop(w, from, way == 4, out);
        else if (way == 5)
            by_period(w, from, out);
        else if (way == 6 && w->s->has_stacks)
            by_line(w, from, out);
        if (enough(out))
            return ways[way];
    }
    return NULL;
}

/* Whether the iterations end long before the trace does: what came then is another loop. */
static bool has_tail(const struct walk *w, const moments *m)
{
    uint32_t longest = 0;
    for (size_t i = 0; i + 1 < m->n; i++) {
        uint32_t n = m->data[i + 1] - m->data[i];
        longest = n > longest ? n : longest;
    }
    return (events_end(w) - m->data[m->n - 1]) / 2 > longest;
}

void growth_find(const struct walk *w, struct growth_report *out)
{
    moments m = {0}, tail = {0};
    int64_t swing = 0;
    *out = (struct growth_report){0};
    out->by = find_iterations(w, w->d->events_first, false, &m);
    out->by_optimizer = out->by && !str_starts(out->by, "a ") && !str_starts(out->by, "calls");
    if (out->by && has_tail(w, &m)) {
        const char *by = find_iterations(w, m.data[m.n - 1] + 1, true, &tail);
        if (by) {
            out->by = by;
            out->by_optimizer = false;
            vec_release(&m);
            m = tail;
            tail = (moments){0};
        }
    }
    vec_release(&tail);
    if (!out->by) {
        vec_release(&m);
        return;
    }
    out->begins = m.data;
    out->n = (uint32_t)m.n;
    out->live_bytes = mem_alloc(((size_t)out->n + 1) * sizeof *out->live_bytes);
    live_at_begins(w, out, &swing);
    judge(w, out, swing);
    if (str_starts(out->by, "a period") && !out->swings)
        out->rising = false;
    if (str_starts(out->by, "a period") && w->s->has_stacks && !out->rising) {
        growth_release(out); /* layers, most likely */
        return;
    }
    what_stays(w, out);
}

void growth_release(struct growth_report *g)
{
    mem_free(g->begins);
    mem_free(g->live_bytes);
    mem_free(g->rows);
    *g = (struct growth_report){0};
}

uint32_t growth_iteration(const struct growth_report *g, uint32_t moment)
{
    uint32_t begin = SNAP_NONE;
    for (uint32_t i = 0; g->by && moment != SNAP_NONE && i < g->n && g->begins[i] <= moment; i++)
        begin = g->begins[i];
    return begin;
}

/* ---- evaluations ---- */

enum { PASS_ALLOCS_MIN = 8 };

static bool is_forward(const struct stack_label *x)
{
    return x->phase == MOMENT_FORWARD || x->phase == MOMENT_EVALUATION ||
           x->phase == MOMENT_GENERATE;
}

double growth_kept_share(const struct walk *w, uint32_t begin, uint32_t moment)
{
    uint32_t made = 0, kept = 0, last = moment == SNAP_NONE ? 0 : moment + 1;
    uint32_t first = begin == SNAP_NONE ? w->d->events_first : begin;
    for (uint32_t i = last; i-- > first;) {
        const struct snap_event *v = &w->s->events[i];
        const struct stack_label *x = &w->labels->of[v->stack];
        if (v->action != SNAP_ALLOC || w->s->event_life[i] == SNAP_NONE)
            continue;
        if (x->phase == MOMENT_BACKWARD || x->phase == MOMENT_OPTIMIZER)
            break;
        if (!is_forward(x) || !(x->marks & (MARK(MODULE) | MARK(FORWARD))))
            continue;
        made++;
        kept += walk_lives(w, w->s->event_life[i] - w->d->lives_first, moment);
    }
    return made < PASS_ALLOCS_MIN ? -1 : (double)kept / made;
}
