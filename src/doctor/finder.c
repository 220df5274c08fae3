/* finder.c - a trie of words with failure links, completed to an automaton.
 *
 * INVARIANTS. 1. Once complete, next has a state for every character: no loop per character. It
 * carries FINDER_HIT where words end, so that most characters look at one cell only. 2. `fail` is
 * nearer to the start, so that walking `report` ends. LIMITS: FINDER_HIT states, that is 32768
 * characters of words. */
#include "doctor/finder.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdint.h>
#include <string.h>

enum { LETTERS = 128, NONE = 0xFFFF };
struct state {
    uint16_t next[LETTERS];
    uint16_t fail,
        report;   /* report: nearest state on the way of failures at which a word ends, or 0 */
    int32_t word; /* the one that ends here, or -1 */
};
struct finder {
    struct state *states;
    int n, cap;
};

static int state_new(struct finder *f)
{
    if (f->n == f->cap) {
        f->cap = f->cap ? 2 * f->cap : 256;
        f->states = mem_resize(f->states, (size_t)f->cap * sizeof *f->states);
    }
    ASSERT(f->n < FINDER_HIT);
    struct state *s = &f->states[f->n];
    for (int c = 0; c < LETTERS; c++)
        s->next[c] = NONE;
    s->fail = s->report = 0;
    s->word = -1;
    return f->n++;
}

static void insert(struct finder *f, const char *word, int number)
{
    int at = 0;
    for (; *word; word++) {
        int c = *word & 127;
        if (f->states[at].next[c] == NONE) {
            int fresh = state_new(f);
            f->states[at].next[c] = (uint16_t)fresh;
        }
        at = f->states[at].next[c];
    }
    ASSERT(f->states[at].word < 0); /* two rows with one text */
    f->states[at].word = number;
}

/* Breadth first, so that the failure state of a state is complete before it. */
static void complete(struct finder *f)
{
    int *queue = mem_alloc((size_t)f->n * sizeof *queue), head = 0, tail = 0;
    for (int c = 0; c < LETTERS; c++) {
        uint16_t *to = &f->states[0].next[c];
        if (*to == NONE)
            *to = 0;
        else
            queue[tail++] = *to;
    }
    while (head < tail) {
        struct state *s = &f->states[queue[head++]];
        const struct state *back = &f->states[s->fail];
        s->report = back->word >= 0 ? s->fail : back->report;
        for (int c = 0; c < LETTERS; c++) {
            if (s->next[c] == NONE) {
                s->next[c] = back->next[c];
            } else {
                f->states[s->next[c]].fail = back->next[c];
                queue[tail++] = s->next[c];
            }
        }
    }
    mem_free(queue);
}

static void mark_hits(struct finder *f)
{
    for (int i = 0; i < f->n; i++)
        for (int c = 0; c < LETTERS; c++) {
            const struct state *to = &f->states[f->states[i].next[c] & (FINDER_HIT - 1)];
            if (to->word >= 0 || to->report)
                f->states[i].next[c] |= FINDER_HIT;
        }
}

struct finder *finder_new(const char *const *words, int n)
{
    struct finder *f = mem_alloc(sizeof *f);
    (void)state_new(f);
    for (int i = 0; i < n; i++)
        insert(f, words[i], i);
    complete(f);
    mark_hits(f);
    return f;
}

void finder_free(struct finder *f)
{
    if (!f)
        return;
    mem_free(f->states);
    mem_free(f);
}

int finder_step(const struct finder *f, int state, unsigned char c)
{
    return c < LETTERS ? f->states[state & (FINDER_HIT - 1)].next[c] : 0;
}

int finder_next(const struct finder *f, int *it)
{
    int at = *it & (FINDER_HIT - 1);
    if (f->states[at].word < 0)
        at = f->states[at].report;
    if (at == 0)
        return -1;
    *it = f->states[at].report;
    return f->states[at].word;
}
