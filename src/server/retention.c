/* retention.c - see retention.h. */
#define _GNU_SOURCE /* nftw's flags */
#include "server/retention.h"

#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "wire/wire.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct leftover {
    char *path;
    int64_t ended_us; /* a checkpoint; 0: a run folder */
};
struct retention {
    pthread_mutex_t lock;
    char *runs, *models;
    VEC(struct leftover) list;
};

struct retention *retention_new(const struct server_config *c)
{
    struct retention *r = mem_alloc(sizeof *r);
    char path[PATH_MAX];
    ASSERT(pthread_mutex_init(&r->lock, NULL) == 0);
    r->runs = mem_strdup(path_join(c->home, "runs", path, sizeof path));
    r->models = mem_strdup(c->models_dir);
    return r;
}

void retention_free(struct retention *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->list.n; i++)
        mem_free(r->list.data[i].path);
    vec_release(&r->list);
    pthread_mutex_destroy(&r->lock);
    mem_free(r->runs);
    mem_free(r->models);
    mem_free(r);
}

static void add(struct retention *r, const char *dir, const char *name, int64_t ended_us)
{
    char path[PATH_MAX];
    struct leftover x = {
        .path = mem_strdup(path_join(dir, name, path, sizeof path)), .ended_us = ended_us};
    vec_push(&r->list, x);
}

void retention_add(struct retention *r, const struct core_pruned *run)
{
    if (!r || !run_id_is_valid(run->run_id))
        return;
    ASSERT(pthread_mutex_lock(&r->lock) == 0);
    add(r, r->runs, run->run_id, 0);
    for (size_t i = 0; !run->interrupted && i < run->n_checkpoints; i++)
        add(r, r->models, run->checkpoints[i], run->ended_us > 0 ? run->ended_us : 1);
    ASSERT(pthread_mutex_unlock(&r->lock) == 0);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

/* Whether the file lies below the folder, links followed. */
static bool lies_within(const char *dir, const char *path)
{
    char *real = realpath(path, NULL), *root = realpath(dir, NULL);
    size_t n = root ? strlen(root) : 0;
    bool within = real && root && strncmp(real, root, n) == 0 && real[n] == '/';
    free(real);
    free(root);
    return within;
}

static void remove_checkpoint(const struct retention *r, const struct leftover *x)
{
    struct stat st;
    if (lstat(x->path, &st) != 0 || !S_ISREG(st.st_mode) || !lies_within(r->models, x->path))
        return;
    int64_t written_us = (int64_t)st.st_mtim.tv_sec * 1000000 + st.st_mtim.tv_nsec / 1000;
    if (written_us > x->ended_us + 2000000)
        return; /* a later run has written it */
    if (unlink(x->path) != 0)
        log_warn("%s could not be removed: %s", x->path, strerror(errno));
}

void retention_work(struct retention *r)
{
    ASSERT(pthread_mutex_lock(&r->lock) == 0);
    struct leftover *list = r->list.data;
    size_t n = r->list.n;
    r->list.data = NULL;
    r->list.n = r->list.cap = 0;
    ASSERT(pthread_mutex_unlock(&r->lock) == 0);
    for (size_t i = 0; i < n; i++) {
        if (list[i].ended_us)
            remove_checkpoint(r, &list[i]);
        else if (nftw(list[i].path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
            log_warn("%s could not be removed: %s", list[i].path, strerror(errno));
        mem_free(list[i].path);
    }
    mem_free(list);
}
