/* plan_exact_search.c - depth-first search over canonical placements, in one order. */
#include "plan_exact.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* Sets of items, which placements something follows from, are words of bits. */
enum { UNDO_WORDS_MAX = 8 << 20, LISTS_MAX = 4 << 20, CONFLICTS_MAX = 8 };
#define BUMP_GROWTH 1.001
#define BUMP_MAX 1e100

/* State of an item before a change. */
struct before {
    uint32_t item;
    bool refused;
    double low, refused_low;
};

/* An item that remains, and the lowest offset it can have, refusals counted. */
struct listed {
    double effective;
    uint32_t item;
};

struct search {
    struct exact_order *o;
    struct exact_item *items;
    size_t words;
    double *top;         /* by section: what the remaining items reach at least */
    struct listed *list; /* remaining items; by effective offset, then rank */
    size_t list_n;
    struct listed *moved;       /* those that change their place in the list, in order */
    uint32_t *over_from, *over; /* items that live with item i: over[over_from[i]..], by rank */
    uint64_t *why_low, *why_refused, *why_effective; /* by item */
    int32_t *depth;                  /* by item: how many lay before it was placed */
    uint64_t *conflict_shallow;      /* within one step */
    uint64_t *conflict;              /* of the branch that ended last */
    int32_t dirty_from, dirty_until; /* sections where something changed since the last look */
    int32_t stale_from,
        stale_until; /* sections where reasons of refused items must be found again */
    VEC(struct before) undo;
    VEC(uint64_t) undo_words;
    VEC(struct listed) lists; /* lists and tops of the steps above */
    VEC(double) tops;
    double bump; /* weight that a section gains; grows, so that what is recent counts more */
};

static uint64_t *set_of(const struct search *s, uint64_t *sets, uint32_t i)
{
    return sets + (size_t)i * s->words;
}

static void add_set(const struct search *s, uint64_t *to, const uint64_t *from)
{
    for (size_t k = 0; k < s->words; k++)
        to[k] |= from[k];
}

static void add_item(uint64_t *to, uint32_t i)
{
    to[i / 64] |= (uint64_t)1 << (i % 64);
}

static bool has_item(const uint64_t *set, uint32_t i)
{
    return set[i / 64] >> (i % 64) & 1;
}

static bool lives_with(const struct exact_item *a, const struct exact_item *b)
{
    return a->first <= b->last && b->first <= a->last;
}

static double aligned(double x, double align)
{
    return align > 1 ? ceil(x / align) * align : x;
}

/* ---- changes and their undoing ---- */

static void touch(struct search *s, const struct exact_item *x)
{
    s->dirty_from = x->first < s->dirty_from ? x->first : s->dirty_from;
    s->dirty_until = x->last > s->dirty_until ? x->last : s->dirty_until;
}

/* Whether its effective offset or the reason of it may not be as they were. */
static bool is_dirty(const struct search *s, const struct exact_item *x)
{
    return (x->first <= s->dirty_until && s->dirty_from <= x->last) ||
           (x->refused && x->first <= s->stale_until && s->stale_from <= x->last);
}

static void remember(struct search *s, uint32_t i)
{
    const struct exact_item *x = &s->items[i];
    touch(s, x);
    vec_push(&s->undo, ((struct before){i, x->refused, x->low, x->refused_low}));
    const uint64_t *low = set_of(s, s->why_low, i), *refused = set_of(s, s->why_refused, i);
    for (size_t k = 0; k < s->words; k++)
        vec_push(&s->undo_words, low[k]);
    for (size_t k = 0; k < s->words; k++)
        vec_push(&s->undo_words, refused[k]);
}

static void go_back(struct search *s, size_t undo_n)
{
    while (s->undo.n > undo_n) {
        struct before b = s->undo.data[--s->undo.n];
        struct exact_item *x = &s->items[b.item];
        touch(s, x);
        x->refused = b.refused;
        x->low = b.low;
        x->refused_low = b.refused_low;
        s->undo_words.n -= 2 * s->words;
        const uint64_t *saved = s->undo_words.data + s->undo_words.n;
        memcpy(set_of(s, s->why_low, b.item), saved, s->words * sizeof *saved);
        memcpy(set_of(s, s->why_refused, b.item), saved + s->words, s->words * sizeof *saved);
    }
}

/* Why the item cannot lie below its effective offset. */
static const uint64_t *why_of(struct search *s, uint32_t i)
{
    return set_of(s, s->items[i].refused ? s->why_effective : s->why_low, i);
}

/* Item i lies at its lowest offset; whatever lives with it goes above, because nothing fits below
 * (its choice made sure of that). */
static void place(struct search *s, uint32_t i)
{
    struct exact_item *x = &s->items[i];
    double top = x->low + x->size;
    x->offset = x->low;
    x->placed = true;
    s->depth[i] = (int32_t)(s->o->n - s->list_n);
    touch(s, x);
    for (uint32_t k = s->over_from[i]; k < s->over_from[i + 1]; k++) {
        uint32_t v = s->over[k];
        struct exact_item *y = &s->items[v];
        if (y->placed || y->low >= top)
            continue;
        remember(s, v);
        uint64_t *why = set_of(s, s->why_low, v);
        if (y->size > x->low) /* could not lie below, wherever the others are */
            memset(why, 0, s->words * sizeof *why);
        else
            memmove(why, why_of(s, v), s->words * sizeof *why);
        add_item(why, i);
        y->low = aligned(top, y->align);
        if (y->refused && x->offset < y->refused_low + y->size)
            y->refused = false; /* here is what keeps it from sinking */
    }
    s->o->work += 2 * (s->over_from[i + 1] - s->over_from[i]);
}

/* The branch with item i at its lowest offset failed, and the conflict names it. */
static void refuse(struct search *s, uint32_t i)
{
    struct exact_item *x = &s->items[i];
    remember(s, i);
    x->refused = true;
    x->refused_low = x->low;
    uint64_t *why = set_of(s, s->why_refused, i);
    memcpy(why, s->conflict, s->words * sizeof *why);
    why[i / 64] &= ~((uint64_t)1 << (i % 64));
}

/* ---- inference ---- */

/* The lowest offset of a refused item: above one that is still to come and that keeps it from
 * sinking back to where it was refused. */
static double supported(struct search *s, uint32_t i)
{
    const struct exact_item *x = &s->items[i];
    double ceiling = x->refused_low + x->size, best = HUGE_VAL;
    uint64_t *why = set_of(s, s->why_effective, i);
    memcpy(why, set_of(s, s->why_low, i), s->words * sizeof *why);
    add_set(s, why, set_of(s, s->why_refused, i));
    for (uint32_t k = s->over_from[i]; k < s->over_from[i + 1]; k++) {
        uint32_t v = s->over[k];
        const struct exact_item *y = &s->items[v];
        if (y->placed) {
            add_item(why, v);
            continue;
        }
        if (y->low < ceiling && y->low + y->size < best)
            best = y->low + y->size;
    }
    for (uint32_t k = s->over_from[i]; k < s->over_from[i + 1]; k++) {
        uint32_t v = s->over[k];
        const struct exact_item *y = &s->items[v];
        if (!y->placed && y->size < best)
            add_set(s, why, set_of(s, s->why_low, v));
    }
    s->o->work += 4 * (s->over_from[i + 1] - s->over_from[i]);
    best = aligned(best, x->align);
    return best > x->low ? best : x->low;
}

static bool comes_before(const struct listed *a, const struct listed *b)
{
    return a->effective < b->effective || (a->effective == b->effective && a->item < b->item);
}

/* The effective offset of one item; false when a refused one has no place. */
static bool find_lowest(struct search *s, struct listed *r)
{
    const struct exact_item *x = &s->items[r->item];
    if (!is_dirty(s, x))
        return true;
    r->effective = x->refused ? supported(s, r->item) : x->low;
    if (r->effective < HUGE_VAL)
        return true;
    memcpy(s->conflict, set_of(s, s->why_effective, r->item), s->words * sizeof(uint64_t));
    return false;
}

/* Puts the moved items where they belong between those that stayed: list[0..stayed_n). */
static void merge_moved(struct search *s, size_t stayed_n)
{
    size_t moved_n = s->list_n - stayed_n;
    for (size_t to = s->list_n; moved_n > 0;) {
        bool from_stayed =
            stayed_n > 0 && comes_before(&s->moved[moved_n - 1], &s->list[stayed_n - 1]);
        s->list[--to] = from_stayed ? s->list[--stayed_n] : s->moved[--moved_n];
    }
}

/* Effective offsets, and the list in their order. When it fails the list is of no use. */
static bool find_effective(struct search *s)
{
    size_t stayed_n = 0, moved_n = 0;
    for (size_t k = 0; k < s->list_n; k++) {
        struct listed x = s->list[k];
        if (!find_lowest(s, &x))
            return false;
        if (x.effective == s->list[k].effective) {
            s->list[stayed_n++] = x;
            continue;
        }
        size_t to = moved_n++;
        for (; to > 0 && comes_before(&x, &s->moved[to - 1]); to--)
            s->moved[to] = s->moved[to - 1];
        s->moved[to] = x;
        s->o->work += 2 + (int64_t)(moved_n - to) / 2;
    }
    s->o->work += 2 * (int64_t)s->list_n;
    merge_moved(s, stayed_n);
    return true;
}

static void raise_tops(double *restrict top, int32_t n, double low, double size)
{
    for (int32_t t = 0; t < n; t++)
        top[t] = (top[t] > low ? top[t] : low) + size;
}

/* Weights in proportion to a bump of 1. */
static void settle_weights(struct search *s)
{
    for (int32_t t = 0; t < s->o->sections_n; t++)
        s->o->weight[t] /= s->bump;
    s->bump = 1;
}

/* Why section t is too full: the items that stand on one another without a gap at its end. Those
 * that it would be too full without are left out. */
static void explain(struct search *s, int32_t t)
{
    double top = 0, begin = 0;
    size_t from = 0;
    for (size_t k = 0; k < s->list_n; k++) {
        const struct exact_item *x = &s->items[s->list[k].item];
        if (x->first > t || x->last < t)
            continue;
        if (s->list[k].effective > top) {
            begin = top = s->list[k].effective;
            from = k;
        }
        top += x->size;
    }
    memset(s->conflict, 0, s->words * sizeof(uint64_t));
    if (begin == 0)
        return;
    double spare = top - s->o->capacity;
    for (size_t k = s->list_n; k-- > from;) {
        uint32_t i = s->list[k].item;
        if (s->items[i].first > t || s->items[i].last < t)
            continue;
        if (s->items[i].size < spare)
            spare -= s->items[i].size;
        else
            add_set(s, s->conflict, why_of(s, i));
    }
    s->o->work += 4 * (int64_t)s->list_n;
}

/* Section by section, what the items reach one after another at the lowest each can take. Only
 * where something changed. */
static void find_tops(struct search *s, int32_t from, int32_t until)
{
    memset(s->top + from, 0, (size_t)(until - from + 1) * sizeof *s->top);
    for (size_t k = 0; k < s->list_n; k++) {
        const struct exact_item *x = &s->items[s->list[k].item];
        int32_t first = x->first > from ? x->first : from;
        int32_t last = x->last < until ? x->last : until;
        if (first > last)
            continue;
        raise_tops(s->top + first, last - first + 1, s->list[k].effective, x->size);
        s->o->work += (last - first) / 2 + 4;
    }
    s->o->work += until - from;
}

/* How late the last placement of a conflict came; -1 where it has none. */
static int32_t conflict_depth(const struct search *s)
{
    int32_t depth = -1;
    for (size_t k = 0; k < s->words; k++) {
        for (uint64_t w = s->conflict[k]; w; w &= w - 1) {
            int32_t d = s->depth[k * 64 + (size_t)__builtin_ctzll(w)];
            depth = d > depth ? d : depth;
        }
    }
    return depth;
}

/* Of the sections that are too full, that whose conflict goes back furthest; leaves the conflict.
 */
static int32_t choose_conflict(struct search *s, int32_t from, int32_t until)
{
    int32_t chosen = from, shallow = INT32_MAX, seen = 0;
    for (int32_t t = from; t <= until && seen < CONFLICTS_MAX; t++) {
        if (s->top[t] <= s->o->capacity)
            continue;
        seen++;
        explain(s, t);
        int32_t depth = conflict_depth(s);
        if (depth >= shallow)
            continue;
        shallow = depth;
        chosen = t;
        memcpy(s->conflict_shallow, s->conflict, s->words * sizeof(uint64_t));
    }
    memcpy(s->conflict, s->conflict_shallow, s->words * sizeof(uint64_t));
    return chosen;
}

/* False, with the conflict, when nothing fits any more. */
static bool sections_fit(struct search *s)
{
    int32_t from = s->dirty_from, until = s->dirty_until;
    bool fit = true;
    find_tops(s, from, until);
    for (int32_t t = from; t <= until; t++)
        fit = fit && s->top[t] <= s->o->capacity;
    if (fit) {
        s->dirty_from = s->stale_from = INT32_MAX;
        s->dirty_until = s->stale_until = -1;
        return true;
    }
    s->o->weight[choose_conflict(s, from, until)] += s->bump;
    s->bump *= BUMP_GROWTH;
    if (s->bump > BUMP_MAX)
        settle_weights(s);
    return false;
}

/* ---- the choice ---- */

/* How much section t asks to be dealt with. */
static double urgency(const struct search *s, int32_t t)
{
    double slack = (s->o->capacity - s->top[t]) / s->o->capacity;
    return (s->bump + s->o->weight[t]) / (slack + 0.02);
}

static int32_t choose_section(const struct search *s)
{
    int32_t best = 0;
    double best_score = -1;
    for (int32_t t = 0; t < s->o->sections_n; t++) {
        double score = s->top[t] > 0 ? urgency(s, t) : -1;
        if (score > best_score) {
            best_score = score;
            best = t;
        }
    }
    return best;
}

/* Of the items at the lowest offset, that whose sections are the heaviest or most urgent. */
static uint32_t choose_lowest(struct search *s)
{
    uint32_t best = s->list[0].item;
    double best_key = -1, lowest = s->list[0].effective;
    if (s->o->rule == RULE_RANK)
        return best;
    for (size_t k = 0; k < s->list_n && s->list[k].effective == lowest; k++) {
        const struct exact_item *x = &s->items[s->list[k].item];
        double key = 0;
        for (int32_t t = x->first; t <= x->last; t++) {
            double v = s->o->rule == RULE_HEAVY ? s->o->weight[t] : urgency(s, t);
            key = v > key ? v : key;
        }
        s->o->work += x->last - x->first + 4;
        if (key > best_key) {
            best_key = key;
            best = s->list[k].item;
        }
    }
    return best;
}

/* An item below which nothing that lives with it can go: from the lowest in the section downwards.
 */
static uint32_t choose_item(struct search *s)
{
    if (s->o->rule != RULE_LOCAL)
        return choose_lowest(s);
    int32_t t = choose_section(s);
    size_t k = 0;
    while (s->items[s->list[k].item].first > t || s->items[s->list[k].item].last < t)
        k++;
    uint32_t i = s->list[k].item;
    for (size_t below = 0; below < k; below++) {
        uint32_t v = s->list[below].item;
        s->o->work++;
        if (v == i || !lives_with(&s->items[v], &s->items[i]))
            continue;
        if (s->items[i].refused ||
            s->list[below].effective + s->items[v].size <= s->list[k].effective) {
            i = v;
            k = below; /* it lies lower: look from the bottom again */
            below = (size_t)-1;
        }
    }
    return i;
}

/* List and tops as they are go on a stack, to come back when the step is undone: most of it need
 * not be found again then. */
static void leave_list(struct search *s, uint32_t i)
{
    size_t k = 0;
    for (size_t from = 0; from < s->list_n; from++)
        vec_push(&s->lists, s->list[from]);
    for (int32_t t = 0; t < s->o->sections_n; t++)
        vec_push(&s->tops, s->top[t]);
    s->o->work += (int64_t)s->list_n + s->o->sections_n / 2;
    while (s->list[k].item != i)
        k++;
    memmove(s->list + k, s->list + k + 1, (s->list_n - k - 1) * sizeof *s->list);
    s->list_n--;
}

static void return_to_list(struct search *s)
{
    s->lists.n -= ++s->list_n;
    memcpy(s->list, s->lists.data + s->lists.n, s->list_n * sizeof *s->list);
    s->tops.n -= (size_t)s->o->sections_n;
    memcpy(s->top, s->tops.data + s->tops.n, (size_t)s->o->sections_n * sizeof *s->top);
    s->stale_from = s->dirty_from < s->stale_from ? s->dirty_from : s->stale_from;
    s->stale_until = s->dirty_until > s->stale_until ? s->dirty_until : s->stale_until;
    s->dirty_from = INT32_MAX;
    s->dirty_until = -1;
}

/* What undoing needs stays within some 200 MiB. */
static bool has_room(const struct search *s)
{
    return s->undo_words.n <= UNDO_WORDS_MAX && s->lists.n <= LISTS_MAX &&
           s->tops.n <= UNDO_WORDS_MAX;
}

/* Places what remains. On EXACT_CANNOT everything is as before, and the conflict says why. */
static enum exact_result solve(struct search *s)
{
    size_t undo_n = s->undo.n;
    for (;;) {
        if (s->list_n == 0)
            return EXACT_FITS;
        if (s->o->work > s->o->work_max || !has_room(s))
            return EXACT_LIMIT;
        if (!find_effective(s) || !sections_fit(s))
            break;
        uint32_t i = choose_item(s);
        size_t undo_here = s->undo.n;
        place(s, i);
        leave_list(s, i);
        enum exact_result r = solve(s);
        if (r != EXACT_CANNOT)
            return r;
        go_back(s, undo_here);
        s->items[i].placed = false;
        touch(s, &s->items[i]);
        return_to_list(s);
        if (!has_item(s->conflict, i))
            break; /* its place was not the reason */
        refuse(s, i);
    }
    go_back(s, undo_n);
    return EXACT_CANNOT;
}

/* Who lives with whom. */
static void find_overlaps(struct search *s)
{
    size_t n = s->o->n;
    VEC(uint32_t) over = {0};
    s->over_from = mem_alloc((n + 1) * sizeof *s->over_from);
    for (size_t i = 0; i < n; i++) {
        s->over_from[i] = (uint32_t)over.n;
        for (size_t k = 0; k < n; k++)
            if (k != i && lives_with(&s->items[i], &s->items[k]))
                vec_push(&over, (uint32_t)k);
    }
    s->over_from[n] = (uint32_t)over.n;
    s->over = over.data;
}

enum exact_result exact_search(struct exact_order *o)
{
    struct search s = {.o = o, .items = o->items, .words = (o->n + 63) / 64, .bump = 1};
    s.top = mem_alloc((size_t)o->sections_n * sizeof *s.top);
    s.list = mem_alloc(o->n * sizeof *s.list);
    s.moved = mem_alloc(o->n * sizeof *s.moved);
    s.why_low = mem_alloc(o->n * s.words * sizeof(uint64_t));
    s.why_refused = mem_alloc(o->n * s.words * sizeof(uint64_t));
    s.why_effective = mem_alloc(o->n * s.words * sizeof(uint64_t));
    s.conflict = mem_alloc(s.words * sizeof(uint64_t));
    s.conflict_shallow = mem_alloc(s.words * sizeof(uint64_t));
    s.depth = mem_alloc(o->n * sizeof *s.depth);
    find_overlaps(&s);
    for (size_t i = 0; i < o->n; i++) {
        o->items[i].low = o->items[i].offset = 0;
        o->items[i].placed = o->items[i].refused = false;
        s.list[s.list_n++] = (struct listed){0, (uint32_t)i};
    }
    s.dirty_until = o->sections_n - 1;
    s.stale_from = INT32_MAX;
    s.stale_until = -1;
    enum exact_result r = solve(&s);
    settle_weights(&s);
    mem_free(s.top);
    mem_free(s.list);
    mem_free(s.moved);
    mem_free(s.why_low);
    mem_free(s.why_refused);
    mem_free(s.why_effective);
    mem_free(s.conflict);
    mem_free(s.conflict_shallow);
    mem_free(s.depth);
    mem_free(s.over_from);
    mem_free(s.over);
    vec_release(&s.undo);
    vec_release(&s.undo_words);
    vec_release(&s.lists);
    vec_release(&s.tops);
    return r;
}
