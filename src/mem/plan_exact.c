/* plan_exact.c - exact search for storage plans: units, sections, and the orders that are tried. */
#include "plan_exact.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ITEMS_MAX = 4096,
    PAIRS_MAX = 4 << 20,   /* of items that live together */
    STEPS_FIRST = 1000000, /* of the shortest search */
    STEPS_PER_PAIR = 80
};
#define UNITS_MAX 9007199254740992.0 /* 2^53 */
#define NOISE 0.3                    /* share by which later orders blur what they sort by */

struct exact {
    size_t n;
    struct exact_item *plain; /* in the caller's order */
    struct exact_order order;
    uint32_t *of_rank; /* the item of each rank */
    double *total;     /* by section: sum of sizes */
    int64_t unit;
    struct rng rng;
};

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Only times at which something ends matter: what is live at any other is also live at the next. */
static int32_t *number_sections(const struct plan_item *items, size_t n, int32_t *sections_n)
{
    int32_t times_n = 0, found = 0;
    for (size_t i = 0; i < n; i++)
        times_n = items[i].last >= times_n ? items[i].last + 1 : times_n;
    int32_t *section = mem_alloc(((size_t)times_n + 1) * sizeof *section);
    for (size_t i = 0; i < n; i++)
        section[items[i].last] = 1;
    for (int32_t t = 0; t < times_n; t++) {
        int32_t ends = section[t];
        section[t] = found;
        found += ends;
    }
    *sections_n = found;
    return section;
}

static void init(struct exact *x, const struct plan_item *items, size_t n)
{
    *x = (struct exact){.n = n};
    for (size_t i = 0; i < n; i++)
        x->unit = gcd(items[i].size_bytes, x->unit);
    int32_t *section = number_sections(items, n, &x->order.sections_n);
    x->order.n = n;
    x->order.items = mem_alloc(n * sizeof *x->order.items);
    x->order.weight = mem_alloc((size_t)x->order.sections_n * sizeof *x->order.weight);
    x->plain = mem_alloc(n * sizeof *x->plain);
    x->total = mem_alloc((size_t)x->order.sections_n * sizeof *x->total);
    x->of_rank = mem_alloc(n * sizeof *x->of_rank);
    rng_init(&x->rng, 0, 0, 0);
    for (size_t i = 0; i < n; i++) {
        struct exact_item *y = &x->plain[i];
        y->size = (double)(items[i].size_bytes / x->unit);
        y->align = (double)(items[i].alignment / gcd(items[i].alignment, x->unit));
        y->first = section[items[i].first];
        y->last = section[items[i].last];
        for (int32_t t = y->first; t <= y->last; t++)
            x->total[t] += y->size;
    }
    mem_free(section);
}

static void release(struct exact *x)
{
    mem_free(x->plain);
    mem_free(x->order.items);
    mem_free(x->order.weight);
    mem_free(x->total);
    mem_free(x->of_rank);
}

/* Whether the search takes it on: its tables fit, and doubles hold every number exactly. */
static bool manageable(const struct exact *x)
{
    double units = 0;
    int64_t pairs = 0;
    for (size_t i = 0; i < x->n; i++)
        units += x->plain[i].size + x->plain[i].align;
    if (x->n > ITEMS_MAX || units >= UNITS_MAX)
        return false;
    for (size_t i = 0; i < x->n; i++)
        for (size_t k = 0; k < i; k++)
            pairs += x->plain[i].first <= x->plain[k].last && x->plain[k].first <= x->plain[i].last;
    return pairs <= PAIRS_MAX;
}

static double most(const double *by_section, const struct exact_item *y)
{
    double v = 0;
    for (int32_t t = y->first; t <= y->last; t++)
        v = by_section[t] > v ? by_section[t] : v;
    return v;
}

/* What an order looks at: width in time, size, area, total of its fullest section, weight of its
 * heaviest section. */
static double trait(const struct exact *x, const struct exact_item *y, char letter)
{
    switch (letter) {
    case 'W':
        return y->last - y->first + 1;
    case 'Z':
        return y->size;
    case 'A':
        return y->size * (y->last - y->first + 1);
    case 'T':
        return most(x->total, y);
    default:
        return most(x->order.weight, y);
    }
}

struct sorted {
    double key[3];
    uint32_t item;
};

static int by_keys(const void *a, const void *b)
{
    const struct sorted *x = a, *y = b;
    for (int k = 0; k < 3; k++)
        if (x->key[k] != y->key[k])
            return x->key[k] > y->key[k] ? -1 : 1;
    return (x->item > y->item) - (x->item < y->item);
}

/* Ranks the items by three traits, largest first. */
static void rank_items(struct exact *x, const char *letters, double noise)
{
    struct sorted *s = mem_alloc(x->n * sizeof *s);
    for (size_t i = 0; i < x->n; i++) {
        s[i].item = (uint32_t)i;
        for (int k = 0; k < 3; k++)
            s[i].key[k] =
                trait(x, &x->plain[i], letters[k]) * (1 + noise * (rng_f64(&x->rng) - 0.5));
    }
    qsort(s, x->n, sizeof *s, by_keys);
    for (size_t i = 0; i < x->n; i++) {
        x->of_rank[i] = s[i].item;
        x->order.items[i] = x->plain[s[i].item];
    }
    mem_free(s);
}

static void write_offsets(const struct exact *x, int64_t *offset_bytes)
{
    for (size_t i = 0; i < x->n; i++)
        offset_bytes[x->of_rank[i]] = (int64_t)x->order.items[i].offset * x->unit;
}

/* 1 1 2 1 1 2 4 1 1 2 ...: lengths that suit searches whose luck varies. */
static int64_t luby(int64_t i)
{
    int64_t power = 1;
    while (power - 1 < i)
        power *= 2;
    return power - 1 == i ? power / 2 : luby(i - power / 2 + 1);
}

/* An order by traits, and the rule that takes items. Long-lived items first serve most problems,
 * by the tightest section; the others are for what these miss. */
static const struct attempt {
    const char *letters;
    enum exact_rule rule;
} attempts[] = {{"TWA", RULE_TIGHT}, {"WAT", RULE_TIGHT}, {"AWT", RULE_HEAVY}, {"HWA", RULE_HEAVY},
                {"WAT", RULE_HEAVY}, {"HWA", RULE_TIGHT}, {"AWT", RULE_TIGHT}, {"TWA", RULE_HEAVY},
                {"TAW", RULE_HEAVY}, {"WAT", RULE_RANK},  {"HTA", RULE_TIGHT}, {"TZW", RULE_HEAVY}};
enum { ATTEMPTS = sizeof attempts / sizeof *attempts };

/* How long the attempts of a round are: many times what one way down takes. */
static int64_t steps_of(const struct exact *x, int64_t round)
{
    int64_t steps = STEPS_PER_PAIR * (int64_t)(x->n * x->n);
    return (steps > STEPS_FIRST ? steps : STEPS_FIRST) * luby(round + 1);
}

enum exact_result plan_exact(
    const struct plan_item *items, size_t n, int64_t capacity_bytes, int64_t work_max,
    int64_t *work, int64_t *offset_bytes)
{
    struct exact x;
    enum exact_result r = EXACT_LIMIT;
    init(&x, items, n);
    x.order.capacity = floor((double)(capacity_bytes / x.unit));
    int64_t end = *work + work_max;
    bool can = manageable(&x);
    if (!can)
        *work = end;
    for (int64_t k = 0; can && r == EXACT_LIMIT && *work < end; k++) {
        int64_t round = k / ATTEMPTS, steps = steps_of(&x, round);
        rank_items(&x, attempts[k % ATTEMPTS].letters, round == 0 ? 0 : NOISE);
        x.order.rule = attempts[k % ATTEMPTS].rule;
        x.order.work = 0;
        x.order.work_max = steps < end - *work ? steps : end - *work;
        r = exact_search(&x.order);
        *work += x.order.work;
    }
    if (r == EXACT_FITS)
        write_offsets(&x, offset_bytes);
    release(&x);
    return r;
}
