/* cifar.c - CIFAR-10 and CIFAR-100: the binary version and the "python version" of the archives.
 *
 * FORMAT (binary): records of 1 (CIFAR-10) or 2 (CIFAR-100: coarse, fine) label bytes and 3072
 * pixels, the red plane, the green, the blue, 32 x 32 each, in rows. The python version is a
 * pickle with the same pixels (cifar_pickle.h).
 * Source: https://www.cs.toronto.edu/~kriz/cifar.html
 */
#include "base/env.h"
#include "base/mem.h"
#include "base/str.h"
#include "data/cifar_pickle.h"
#include "data/dataset_int.h"
#include "data/source.h"

#include <stdio.h>
#include <string.h>

enum { PLANE = 32 * 32, PIXELS = 3 * PLANE, FILES_MAX = 5 };

struct files {
    int n;
    bool pickled;
    char path[FILES_MAX][1024];
    int64_t count[FILES_MAX];
};

/* Names of the files of the split, without folder; false when the index is past the last. */
static bool file_name(const struct dataset_info *info, bool pickled, int i, char *name, size_t cap)
{
    bool train = str_eq(info->split, "train"), ten = info->classes == 10;
    if (i >= (train && ten ? 5 : 1))
        return false;
    const char *suffix = pickled ? "" : ".bin";
    if (train && ten)
        (void)snprintf(name, cap, "data_batch_%d%s", i + 1, suffix);
    else
        (void)snprintf(name, cap, "%s%s%s", info->split, ten ? "_batch" : "", suffix);
    return true;
}

static bool first_file(const struct dataset_info *info, const char *folder, bool pickled)
{
    char name[64], path[1024];
    return file_name(info, pickled, 0, name, sizeof name) &&
           file_exists(path_join(folder, name, path, sizeof path));
}

bool cifar_present(const struct dataset_info *info, const char *folder)
{
    return first_file(info, folder, false) || first_file(info, folder, true);
}

static void list_files(const struct dataset_info *info, const char *folder, struct files *f)
{
    char name[64];
    f->pickled = !first_file(info, folder, false);
    for (f->n = 0; file_name(info, f->pickled, f->n, name, sizeof name); f->n++)
        path_join(folder, name, f->path[f->n], sizeof f->path[0]);
}

/* Records of each binary file, from its size: nothing is allocated for records that are not there.
 */
static enum status count_records(struct files *f, size_t record, int64_t *total, struct err *e)
{
    *total = 0;
    for (int i = 0; i < f->n; i++) {
        struct source *s = NULL;
        TRY(source_open(f->path[i], &s, e));
        uint64_t bytes = source_most_bytes(s);
        source_close(s);
        if (bytes == 0 || bytes % record)
            return err_set(
                e, ST_CORRUPT, "\"%s\" has %llu bytes: not records of %zu bytes", f->path[i],
                (unsigned long long)bytes, record);
        f->count[i] = (int64_t)(bytes / record);
        *total += f->count[i];
    }
    return ST_OK;
}

/* The published counts, for pickles: five equal batches, or one. */
static void count_published(const struct dataset_info *info, struct files *f, int64_t *total)
{
    *total = info->count;
    for (int i = 0; i < f->n; i++)
        f->count[i] = info->count / f->n;
}

int64_t cifar_count(const struct dataset_info *info, const char *folder)
{
    struct files f = {0};
    struct err ignored;
    int64_t total;
    list_files(info, folder, &f);
    if (f.pickled ||
        count_records(&f, PIXELS + (info->classes == 10 ? 1 : 2), &total, &ignored) != ST_OK)
        return 0;
    return total;
}

void cifar_interleave(const uint8_t planes[], uint8_t pixels[])
{
    for (int i = 0; i < PLANE; i++)
        for (int c = 0; c < 3; c++)
            pixels[3 * i + c] = planes[c * PLANE + i];
}

static enum status
read_binary(const char *path, int64_t n, bool ten, uint8_t *images, uint8_t *labels, struct err *e)
{
    struct source *s = NULL;
    uint8_t record[2 + PIXELS];
    size_t label_bytes = ten ? 1 : 2;
    TRY(source_open(path, &s, e));
    enum status st = ST_OK;
    for (int64_t i = 0; i < n && st == ST_OK; i++) {
        st = source_need(s, record, label_bytes + PIXELS, "records", e);
        if (st != ST_OK)
            break;
        labels[i] = record[label_bytes - 1];
        cifar_interleave(record + label_bytes, images + (size_t)i * PIXELS);
    }
    source_close(s);
    return st;
}

static enum status
read_pickled(const char *path, int64_t n, bool ten, uint8_t *images, uint8_t *labels, struct err *e)
{
    struct source *s = NULL;
    TRY(source_open(path, &s, e));
    enum status st = cifar_pickle_read(s, n, ten ? "labels" : "fine_labels", images, labels, e);
    source_close(s);
    return st;
}

enum status cifar_load(struct dataset *d, const char *folder, struct err *e)
{
    struct files f = {0};
    bool ten = d->info.classes == 10;
    int64_t total = 0, at = 0;
    list_files(&d->info, folder, &f);
    if (f.pickled)
        count_published(&d->info, &f, &total);
    else
        TRY(count_records(&f, PIXELS + (ten ? 1 : 2), &total, e));
    d->images = mem_try_alloc(size_mul((size_t)total, PIXELS));
    d->labels = mem_try_alloc((size_t)total);
    if (!d->images || !d->labels)
        return err_set(
            e, ST_OOM, "no host memory for the %lld images of %s", (long long)total, d->info.name);
    for (int i = 0; i < f.n; i++) {
        uint8_t *images = d->images + (size_t)at * PIXELS, *labels = d->labels + at;
        TRY((f.pickled ? read_pickled : read_binary)(
            f.path[i], f.count[i], ten, images, labels, e));
        TRY(labels_check(labels, f.count[i], d->info.classes, f.path[i], e));
        at += f.count[i];
    }
    d->info.count = total;
    d->info.host_bytes = total * (PIXELS + 1);
    return ST_OK;
}
