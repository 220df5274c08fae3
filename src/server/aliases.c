/* aliases.c - see aliases.h. */
#include "server/aliases.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

void aliases_init(struct aliases *a)
{
    (void)pthread_mutex_init(&a->lock, NULL);
    a->n = 0;
    a->ring = mem_alloc(ALIASES_MAX * sizeof *a->ring);
}

void aliases_release(struct aliases *a)
{
    mem_free(a->ring);
    (void)pthread_mutex_destroy(&a->lock);
}

void aliases_add(struct aliases *a, const char *theirs, const char *run_id)
{
    (void)pthread_mutex_lock(&a->lock);
    struct alias *row = &a->ring[a->n++ % ALIASES_MAX];
    (void)snprintf(row->theirs, sizeof row->theirs, "%s", theirs);
    (void)snprintf(row->run_id, sizeof row->run_id, "%s", run_id);
    (void)pthread_mutex_unlock(&a->lock);
}

/* From the newest back: a name that was used again means its last run. */
const char *aliases_find(struct aliases *a, const char *name, char out[129])
{
    (void)snprintf(out, 129, "%s", name);
    (void)pthread_mutex_lock(&a->lock);
    for (unsigned long back = 1; back <= ALIASES_MAX && back <= a->n; back++) {
        const struct alias *row = &a->ring[(a->n - back) % ALIASES_MAX];
        if (strcmp(row->theirs, name) == 0) {
            (void)snprintf(out, 129, "%s", row->run_id);
            break;
        }
    }
    (void)pthread_mutex_unlock(&a->lock);
    return out;
}
