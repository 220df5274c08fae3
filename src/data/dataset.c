/* dataset.c - descriptions of data sets, where known sets are looked for, access to samples. */
#include "data/dataset_int.h"

#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

struct known {
    const char *name;
    enum status (*load)(struct dataset *d, const char *folder, struct err *e);
    bool (*present)(const struct dataset_info *info, const char *folder);
    int64_t (*count)(const struct dataset_info *info, const char *folder);
    int64_t train, test;
    int c, h, w, classes;
    const char *folders; /* NUL-separated, ends with an empty one */
    const char *package, *files;
};

static const struct known known_sets[] = {
#define X(name, reader, train, test, c, h, w, classes, folders, package, files)                    \
    {#name, reader##_load, reader##_present, reader##_count, train, test, c, h,                    \
     w,     classes,       folders,          package,        files},
#include "data/datasets.def"
#undef X
};
enum { KNOWN = sizeof known_sets / sizeof known_sets[0] };

size_t data_type_bytes(enum data_type type)
{
    static const size_t bytes[] = {0, 1, 4, 8};
    return bytes[type];
}

const char *data_type_name(enum data_type type)
{
    static const char *const names[] = {"none", "uint8", "float32", "int64"};
    return names[type];
}

static enum status unknown_name(const char *name, struct err *e)
{
    const char *names[KNOWN];
    struct str all;
    str_init(&all);
    for (int i = 0; i < KNOWN; i++) {
        names[i] = known_sets[i].name;
        str_printf(&all, "%s%s", i ? ", " : "", names[i]);
    }
    if (str_eq(name, "SVHN") || str_eq(name, "STL10")) {
        err_set(
            e, ST_UNSUPPORTED,
            "data set \"%s\" cannot be read: its MATLAB and raw files are not "
            "among the formats this program knows",
            name);
        err_hint(
            e, "Unpack it as folders of PNG files and use ImageFolderDataset, or use %s.",
            all.data);
    } else {
        const char *near = str_nearest(name, names, KNOWN);
        err_set(e, ST_INVALID, "there is no data set \"%s\"", name);
        err_hint(
            e, "%s%s%sKnown are %s.", near ? "Did you mean " : "", near ? near : "",
            near ? "? " : "", all.data);
    }
    str_release(&all);
    return e ? e->status : ST_INVALID;
}

static enum status find_known(const char *name, const struct known **out, struct err *e)
{
    for (int i = 0; i < KNOWN; i++) {
        if (str_eq(known_sets[i].name, name)) {
            *out = &known_sets[i];
            return ST_OK;
        }
    }
    return unknown_name(name ? name : "", e);
}

enum status
dataset_describe(const char *name, const char *split, struct dataset_info *out, struct err *e)
{
    const struct known *k = NULL;
    TRY(find_known(name, &k, e));
    bool train = str_eq(split, "train");
    if (!train && !str_eq(split, "test"))
        return err_set(
            e, ST_INVALID, "data set %s has no split \"%s\": train or test", name,
            split ? split : "");
    struct dataset_info info = {
        .count = train ? k->train : k->test,
        .type = DATA_U8,
        .rank = 3,
        .shape = {k->c, k->h, k->w},
        .target = DATA_I64,
        .classes = k->classes,
    };
    (void)snprintf(info.name, sizeof info.name, "%s", name);
    (void)snprintf(info.split, sizeof info.split, "%s", split);
    info.host_bytes = info.count * (1 + (int64_t)k->c * k->h * k->w);
    *out = info;
    return ST_OK;
}

/* The search for a known set: each folder tried goes into `tried`. */
struct search {
    const struct known *known;
    struct dataset_info info;
    struct str tried;
    char *folder;
    size_t cap;
};

static bool search_at(struct search *s, const char *folder)
{
    str_printf(&s->tried, "  %s\n", folder);
    if (!s->known->present(&s->info, folder))
        return false;
    (void)snprintf(s->folder, s->cap, "%s", folder);
    return true;
}

static bool search_below(struct search *s, const char *base)
{
    for (const char *f = s->known->folders; *f; f += strlen(f) + 1) {
        char folder[1024];
        if (search_at(s, path_join(base, f, folder, sizeof folder)))
            return true;
    }
    return false;
}

static bool search_all(struct search *s, const struct dataset_spec *spec)
{
    char base[1024];
    if (spec->data_dir && spec->data_dir[0]) {
        path_join(spec->graph_dir ? spec->graph_dir : "", spec->data_dir, base, sizeof base);
        /* The folder itself comes last: MNIST and Fashion-MNIST have the same file names. */
        if (search_below(s, base) || search_at(s, base))
            return true;
    }
    path_join(snug_home(), "data", base, sizeof base);
    if (search_below(s, base))
        return true;
    return search_below(s, spec->system_dir ? spec->system_dir : "/usr/share/datasets");
}

static void not_found(const struct search *s, struct err *e)
{
    const struct known *k = s->known;
    err_set(e, ST_NOT_FOUND, "the files of data set %s are not on this machine", k->name);
    err_detail(e, "looked in:\n%s", s->tried.data);
    char home[1024];
    path_join(snug_home(), "data", home, sizeof home);
    char folder[1200];
    path_join(home, k->folders, folder, sizeof folder);
    if (k->package)
        err_hint(
            e, "Install the Debian package (sudo apt-get install %s), or put %s into %s.",
            k->package, k->files, folder);
    else
        err_hint(
            e,
            "Put %s into %s, or name its folder in the Dataset node's data_dir. Nothing is "
            "downloaded, and no Debian package has it.",
            k->files, folder);
}

enum status dataset_find(const struct dataset_spec *spec, char *folder, size_t cap, struct err *e)
{
    struct search s = {.folder = folder, .cap = cap};
    TRY(find_known(spec->name, &s.known, e));
    TRY(dataset_describe(spec->name, spec->split, &s.info, e));
    str_init(&s.tried);
    bool found = search_all(&s, spec);
    if (!found)
        not_found(&s, e);
    str_release(&s.tried);
    return found ? ST_OK : ST_NOT_FOUND;
}

void dataset_peek(const struct dataset_spec *spec, struct dataset_info *info)
{
    struct search s = {.folder = info->path, .cap = sizeof info->path};
    struct err ignored;
    if (find_known(spec->name, &s.known, &ignored) != ST_OK)
        return;
    s.info = *info;
    str_init(&s.tried);
    int64_t count = search_all(&s, spec) ? s.known->count(info, info->path) : 0;
    str_release(&s.tried);
    if (count <= 0)
        return;
    info->host_bytes = info->host_bytes / info->count * count;
    info->count = count;
}

enum status dataset_open(const struct dataset_spec *spec, struct dataset **out, struct err *e)
{
    const struct known *k = NULL;
    struct dataset_info info;
    TRY(find_known(spec->name, &k, e));
    TRY(dataset_describe(spec->name, spec->split, &info, e));
    TRY(dataset_find(spec, info.path, sizeof info.path, e));
    struct dataset *d = mem_alloc(sizeof *d);
    d->info = info;
    enum status st = k->load(d, info.path, e);
    if (st != ST_OK) {
        dataset_free(d);
        return st;
    }
    if (d->info.count != info.count)
        log_warn(
            "%s %s in \"%s\" has %lld samples; the published set has %lld", info.name, info.split,
            info.path, (long long)d->info.count, (long long)info.count);
    *out = d;
    return ST_OK;
}

enum status
labels_check(const uint8_t *labels, int64_t n, int classes, const char *file, struct err *e)
{
    for (int64_t i = 0; i < n; i++)
        if (labels[i] >= classes)
            return err_set(
                e, ST_CORRUPT, "\"%s\": label of sample %lld is %d, outside 0 to %d", file,
                (long long)i, labels[i], classes - 1);
    return ST_OK;
}

void dataset_free(struct dataset *d)
{
    if (!d)
        return;
    mem_free(d->images);
    mem_free(d->labels);
    mem_free(d->x);
    mem_free(d->y);
    folder_free(d->folder);
    mem_free(d);
}

const struct dataset_info *dataset_get_info(const struct dataset *d)
{
    return &d->info;
}

int64_t dataset_host_bytes(const struct dataset *d)
{
    return d->info.host_bytes;
}

const char *dataset_class_name(const struct dataset *d, int class_index)
{
    return d->folder ? folder_class_name(d->folder, class_index) : NULL;
}

/* Numbers in one sample of the given shape. */
static int64_t numbers_of(int rank, const int64_t *shape)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= shape[i];
    return n;
}

static size_t sample_bytes(const struct dataset_info *i)
{
    return (size_t)numbers_of(i->rank, i->shape) * data_type_bytes(i->type);
}

size_t dataset_target_bytes(const struct dataset_info *info)
{
    return (size_t)numbers_of(info->target_rank, info->target_shape) *
           data_type_bytes(info->target);
}

const uint8_t *dataset_pixels(const struct dataset *d, int64_t index)
{
    return d->images ? d->images + (size_t)index * sample_bytes(&d->info) : NULL;
}

enum status dataset_image(const struct dataset *d, int64_t index, struct image *into, struct err *e)
{
    const int64_t *s = d->info.shape;
    if (d->folder) {
        char path[2048];
        return image_read(folder_path(d->folder, index, path, sizeof path), into, e);
    }
    ASSERT(d->images);
    TRY(image_reserve(into, (int)s[2], (int)s[1], (int)s[0], e));
    memcpy(into->px, dataset_pixels(d, index), image_bytes(into));
    return ST_OK;
}

const void *dataset_numbers(const struct dataset *d, int64_t index)
{
    return d->x ? (const char *)d->x + (size_t)index * sample_bytes(&d->info) : NULL;
}

void dataset_write(const struct dataset *d, int64_t index, void *into)
{
    if (d->tokens)
        tokens_write(d, index, 0, into);
    else
        memcpy(into, dataset_numbers(d, index), sample_bytes(&d->info));
}

void dataset_target(const struct dataset *d, int64_t index, void *into)
{
    if (d->info.target == DATA_NONE)
        return;
    if (d->tokens) {
        tokens_write(d, index, 1, into);
        return;
    }
    if (d->y) {
        size_t n = dataset_target_bytes(&d->info);
        memcpy(into, (const char *)d->y + (size_t)index * n, n);
        return;
    }
    int64_t label = d->folder ? folder_class(d->folder, index) : d->labels[index];
    memcpy(into, &label, sizeof label);
}

const char *dataset_sample_name(const struct dataset *d, int64_t index, char *buf, size_t cap)
{
    if (d->folder)
        return folder_path(d->folder, index, buf, cap);
    (void)snprintf(buf, cap, "sample %lld of %s", (long long)index, d->info.name);
    return buf;
}

/* Bytes of `count` samples; ST_INVALID for shapes that are not, ST_OOM beyond 64 bits. */
static enum status arrays_bytes(
    const char *name, int64_t count, enum data_type type, int rank, const int64_t *shape,
    size_t *bytes, struct err *e)
{
    if (rank < 0 || rank > DATA_RANK_MAX || count < 0)
        return err_set(
            e, ST_INVALID, "data set \"%s\": %lld samples of rank %d", name, (long long)count,
            rank);
    size_t n = size_mul((size_t)count, data_type_bytes(type));
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 1)
            return err_set(
                e, ST_INVALID, "data set \"%s\": size %lld in a sample's shape", name,
                (long long)shape[i]);
        n = size_mul(n, (size_t)shape[i]);
    }
    if (n > INT64_MAX / 2)
        return err_set(e, ST_OOM, "data set \"%s\" is larger than any memory", name);
    *bytes = n;
    return ST_OK;
}

static enum status copy_block(const void *from, size_t n, void **out, struct err *e)
{
    *out = mem_try_alloc(n ? n : 1);
    if (!*out)
        return err_set(e, ST_OOM, "no host memory for %zu bytes of data", n);
    if (n)
        memcpy(*out, from, n);
    return ST_OK;
}

static enum status arrays_types(const struct dataset_arrays *a, const char *name, struct err *e)
{
    bool x = a->type == DATA_F32 || a->type == DATA_I64;
    bool y = a->target != DATA_U8;
    if (x && y)
        return ST_OK;
    return err_set(
        e, ST_INVALID, "data set \"%s\": samples are %s and targets %s; float32 and int64 are read",
        name, data_type_name(a->type), data_type_name(a->target));
}

enum status dataset_from_arrays(const struct dataset_arrays *a, struct dataset **out, struct err *e)
{
    const char *name = a->name ? a->name : "arrays";
    size_t x = 0, y = 0;
    TRY(arrays_types(a, name, e));
    TRY(arrays_bytes(name, a->count, a->type, a->rank, a->shape, &x, e));
    TRY(arrays_bytes(name, a->count, a->target, a->target_rank, a->target_shape, &y, e));
    struct dataset *d = mem_alloc(sizeof *d);
    d->info = (struct dataset_info){
        .count = a->count,
        .type = a->type,
        .rank = a->rank,
        .target = a->target,
        .target_rank = a->target_rank,
        .classes = a->classes,
        .host_bytes = (int64_t)(x + y),
    };
    (void)snprintf(d->info.name, sizeof d->info.name, "%s", name);
    for (int i = 0; i < a->rank; i++)
        d->info.shape[i] = a->shape[i];
    for (int i = 0; i < a->target_rank; i++)
        d->info.target_shape[i] = a->target_shape[i];
    enum status st = copy_block(a->x, x, &d->x, e);
    if (st == ST_OK && a->target != DATA_NONE)
        st = copy_block(a->y, y, &d->y, e);
    if (st != ST_OK) {
        dataset_free(d);
        return st;
    }
    *out = d;
    return ST_OK;
}
