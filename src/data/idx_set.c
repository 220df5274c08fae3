/* idx_set.c - MNIST and its relatives as data sets: images and labels from two IDX files. */
#include "base/env.h"
#include "base/mem.h"
#include "base/str.h"
#include "data/dataset_int.h"
#include "data/idx.h"

#include <stdio.h>

/* Path of the file when it is there under one of its usual names. */
static bool
file_of(const struct dataset_info *info, const char *folder, const char *part, char path[1024])
{
    const char *stem = str_eq(info->split, "train") ? "train" : "t10k";
    int rank = str_eq(part, "images") ? 3 : 1;
    static const char separator[] = {'-', '-', '.'};
    static const char *const suffix[] = {"", ".gz", ""};
    for (int i = 0; i < 3; i++) {
        char name[96];
        (void)snprintf(
            name, sizeof name, "%s-%s%cidx%d-ubyte%s", stem, part, separator[i], rank, suffix[i]);
        if (file_exists(path_join(folder, name, path, 1024)))
            return true;
    }
    return false;
}

bool idx_present(const struct dataset_info *info, const char *folder)
{
    char path[1024];
    return file_of(info, folder, "images", path);
}

int64_t idx_count(const struct dataset_info *info, const char *folder)
{
    char path[1024];
    struct source *s = NULL;
    struct err ignored;
    uint32_t count = 0;
    if (!file_of(info, folder, "images", path) || source_open(path, &s, &ignored) != ST_OK)
        return 0;
    enum status st = idx_read_count(s, 3, &count, &ignored);
    source_close(s);
    return st == ST_OK ? count : 0;
}

static enum status read_file(const char *path, int rank, struct idx *out, struct err *e)
{
    struct source *s = NULL;
    TRY(source_open(path, &s, e));
    enum status st = idx_read(s, rank, out, e);
    source_close(s);
    return st;
}

static enum status read_images(struct dataset *d, const char *folder, struct err *e)
{
    char path[1024];
    if (!file_of(&d->info, folder, "images", path))
        return err_set(e, ST_NOT_FOUND, "there is no images file in \"%s\"", folder);
    struct idx x;
    TRY(read_file(path, 3, &x, e));
    d->images = x.data;
    d->info.count = x.size[0];
    if (x.size[1] == d->info.shape[1] && x.size[2] == d->info.shape[2])
        return ST_OK;
    return err_set(
        e, ST_CORRUPT, "\"%s\" has images of %u x %u where %s has %d x %d", path, x.size[1],
        x.size[2], d->info.name, (int)d->info.shape[1], (int)d->info.shape[2]);
}

static enum status read_labels(struct dataset *d, const char *folder, struct err *e)
{
    char path[1024];
    if (!file_of(&d->info, folder, "labels", path))
        return err_set(
            e, ST_NOT_FOUND, "\"%s\" has the images of %s but not the labels of its %s split",
            folder, d->info.name, d->info.split);
    struct idx x;
    TRY(read_file(path, 1, &x, e));
    d->labels = x.data;
    if (x.size[0] != d->info.count)
        return err_set(
            e, ST_CORRUPT, "\"%s\" has %u labels for %lld images", path, x.size[0],
            (long long)d->info.count);
    return labels_check(d->labels, d->info.count, d->info.classes, path, e);
}

enum status idx_load(struct dataset *d, const char *folder, struct err *e)
{
    TRY(read_images(d, folder, e));
    TRY(read_labels(d, folder, e));
    d->info.host_bytes = d->info.count * (1 + d->info.shape[1] * d->info.shape[2]);
    return ST_OK;
}
