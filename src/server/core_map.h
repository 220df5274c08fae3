/* core_map.h - live runs by their id: open addressing over the first 64 bits of the id. */
#ifndef SERVER_CORE_MAP_H
#define SERVER_CORE_MAP_H

#include <stddef.h>

struct run;
struct run_map {
    struct run **slots;
    size_t n, used, cap; /* entries; with those removed; a power of two */
};
void run_map_release(struct run_map *m);
void run_map_put(struct run_map *m, struct run *r);                   /* its id is not there yet */
struct run *run_map_get(const struct run_map *m, const char *run_id); /* NULL when absent */
void run_map_remove(struct run_map *m, struct run *r);

#endif
