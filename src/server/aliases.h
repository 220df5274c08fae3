/* aliases.h - names that editors gave to their own runs, for a while.
 *
 * The editor of 1.4.2 makes up an id for each run and asks for the run's outputs by it. The newest
 * ALIASES_MAX are known, for as long as the server lives. Any thread may call.
 */
#ifndef SERVER_ALIASES_H
#define SERVER_ALIASES_H

#include <pthread.h>

enum { ALIASES_MAX = 1024 };

struct aliases {
    pthread_mutex_t lock;
    unsigned long n; /* ever added */
    struct alias {
        char theirs[129], run_id[33];
    } * ring;
};
void aliases_init(struct aliases *a);
void aliases_release(struct aliases *a);
void aliases_add(struct aliases *a, const char *theirs, const char *run_id);
/* The run's id, or the name itself where it is no alias; into out, which is returned. */
const char *aliases_find(struct aliases *a, const char *name, char out[129]);

#endif
