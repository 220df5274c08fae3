/* core_map.c - live runs by their id: linear probing, removed slots keep a mark. */
#include "server/core_map.h"

#include "base/mem.h"
#include "server/core_int.h"

#include <string.h>

static struct run removed_mark;
#define REMOVED (&removed_mark)

static size_t first_slot(const struct run_map *m, const char *run_id)
{
    return (size_t)hash_name(run_id) & (m->cap - 1);
}

void run_map_release(struct run_map *m)
{
    mem_free(m->slots);
    *m = (struct run_map){0};
}

static void insert(struct run_map *m, struct run *r)
{
    size_t i = first_slot(m, r->run_id);
    while (m->slots[i])
        i = (i + 1) & (m->cap - 1);
    m->slots[i] = r;
    m->n++;
    m->used++;
}

/* At most half full, marks included, so that a probe ends. */
static void grow(struct run_map *m)
{
    struct run_map old = *m;
    *m = (struct run_map){.cap = 64};
    while (m->cap < 4 * (old.n + 1))
        m->cap *= 2;
    m->slots = mem_alloc(m->cap * sizeof(struct run *));
    for (size_t i = 0; i < old.cap; i++)
        if (old.slots[i] && old.slots[i] != REMOVED)
            insert(m, old.slots[i]);
    mem_free(old.slots);
}

void run_map_put(struct run_map *m, struct run *r)
{
    if (2 * (m->used + 1) > m->cap)
        grow(m);
    insert(m, r);
}

static size_t find(const struct run_map *m, const char *run_id)
{
    if (!m->cap)
        return SIZE_MAX;
    for (size_t i = first_slot(m, run_id); m->slots[i]; i = (i + 1) & (m->cap - 1))
        if (m->slots[i] != REMOVED && strcmp(m->slots[i]->run_id, run_id) == 0)
            return i;
    return SIZE_MAX;
}

struct run *run_map_get(const struct run_map *m, const char *run_id)
{
    size_t i = find(m, run_id);
    return i == SIZE_MAX ? NULL : m->slots[i];
}

void run_map_remove(struct run_map *m, struct run *r)
{
    size_t i = find(m, r->run_id);
    ASSERT(i != SIZE_MAX && m->slots[i] == r);
    m->slots[i] = REMOVED;
    m->n--;
}
