/* folder.c - image folders: the list of files by class, decoded on access. */
#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "data/dataset_int.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { DEPTH_MAX = 16 };

/* Names lie in `text` one after the other, each with its NUL. */
struct folder {
    char root[1024];
    char *text;
    uint64_t *name; /* where in text: the classes' names, then the files' paths below root */
    int32_t *classes_of;
    int64_t files;
    int classes;
    int64_t bytes; /* of the three blocks */
};

struct names {
    VEC(char *) list;
};

/* While scanning: what will become the blocks of a folder. */
struct scan {
    const char *root;
    struct names classes, files;
    VEC(int32_t) class_of;
    int64_t ignored; /* files of formats that are not read */
    struct err *e;
};

static void names_release(struct names *n)
{
    for (size_t i = 0; i < n->list.n; i++)
        mem_free(n->list.data[i]);
    vec_release(&n->list);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_sort(struct names *n)
{
    if (n->list.n)
        qsort(n->list.data, n->list.n, sizeof n->list.data[0], by_name);
}

static void names_add(struct names *n, const char *dir, const char *name)
{
    struct str s;
    str_init(&s);
    str_printf(&s, "%s%s%s", dir, dir[0] ? "/" : "", name);
    vec_push(&n->list, str_take(&s));
}

/* Names in root/dir, as dir/name: folders or files. */
static enum status
list_dir(const char *root, const char *dir, bool folders, struct names *out, struct err *e)
{
    char path[PATH_MAX], below[PATH_MAX];
    path_join(root, dir, path, sizeof path);
    DIR *d = opendir(path);
    if (!d)
        return err_errno(e, "cannot read folder \"%s\"", path);
    for (struct dirent *entry; (entry = readdir(d));) {
        if (entry->d_name[0] == '.')
            continue;
        path_join(path, entry->d_name, below, sizeof below);
        if (folders ? dir_exists(below) : file_exists(below))
            names_add(out, dir, entry->d_name);
    }
    (void)closedir(d);
    names_sort(out);
    return ST_OK;
}

static bool has_suffix(const char *name, const char *const *suffixes)
{
    const char *dot = strrchr(name, '.');
    for (; dot && *suffixes; suffixes++)
        if (strcasecmp(dot, *suffixes) == 0)
            return true;
    return false;
}

static enum status add_files(struct scan *s, const char *dir, int class_index)
{
    static const char *const read[] = {".png", ".jpg", ".jpeg", NULL};
    static const char *const unread[] = {".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", NULL};
    struct names files = {0};
    enum status st = list_dir(s->root, dir, false, &files, s->e);
    for (size_t i = 0; st == ST_OK && i < files.list.n; i++) {
        const char *name = files.list.data[i];
        s->ignored += has_suffix(name, unread);
        if (has_suffix(name, read)) {
            names_add(&s->files, "", name);
            vec_push(&s->class_of, class_index);
        }
    }
    names_release(&files);
    return st;
}

/* `dir` and all folders below it, unsorted. */
static enum status collect_dirs(struct scan *s, const char *dir, int depth, struct names *out)
{
    if (depth > DEPTH_MAX)
        return err_set(
            s->e, ST_INVALID, "\"%s/%s\" is nested deeper than %d folders", s->root, dir,
            DEPTH_MAX);
    struct names below = {0};
    names_add(out, "", dir);
    enum status st = list_dir(s->root, dir, true, &below, s->e);
    for (size_t i = 0; st == ST_OK && i < below.list.n; i++)
        st = collect_dirs(s, below.list.data[i], depth + 1, out);
    names_release(&below);
    return st;
}

static enum status scan_class(struct scan *s, int class_index)
{
    const char *name = s->classes.list.data[class_index];
    struct names dirs = {0};
    size_t before = s->files.list.n;
    enum status st = collect_dirs(s, name, 0, &dirs);
    names_sort(&dirs);
    for (size_t i = 0; st == ST_OK && i < dirs.list.n; i++)
        st = add_files(s, dirs.list.data[i], class_index);
    names_release(&dirs);
    if (st == ST_OK && s->files.list.n == before)
        st = err_set(
            s->e, ST_NOT_FOUND, "class folder \"%s/%s\" has no PNG or JPEG file", s->root, name);
    return st;
}

static enum status scan_root(struct scan *s)
{
    if (!dir_exists(s->root)) {
        err_set(s->e, ST_NOT_FOUND, "there is no folder \"%s\"", s->root);
        err_hint(
            s->e, "An image folder is laid out as PATH/SPLIT/CLASS/files, with one folder per "
                  "class.");
        return ST_NOT_FOUND;
    }
    TRY(list_dir(s->root, "", true, &s->classes, s->e));
    if (s->classes.list.n == 0)
        return err_set(s->e, ST_NOT_FOUND, "folder \"%s\" has no class folders", s->root);
    for (size_t i = 0; i < s->classes.list.n; i++)
        TRY(scan_class(s, (int)i));
    if (s->ignored)
        log_warn(
            "\"%s\": %lld image files are neither PNG nor JPEG and are left out", s->root,
            (long long)s->ignored);
    return ST_OK;
}

static size_t text_bytes(const struct names *n)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n->list.n; i++)
        bytes += strlen(n->list.data[i]) + 1;
    return bytes;
}

static void copy_names(const struct names *n, struct folder *f, size_t first, uint64_t *at)
{
    for (size_t i = 0; i < n->list.n; i++) {
        size_t bytes = strlen(n->list.data[i]) + 1;
        f->name[first + i] = *at;
        memcpy(f->text + *at, n->list.data[i], bytes);
        *at += bytes;
    }
}

static enum status pack(const struct scan *s, struct folder *f, struct err *e)
{
    size_t classes = s->classes.list.n, files = s->files.list.n;
    size_t text = text_bytes(&s->classes) + text_bytes(&s->files);
    size_t name = (classes + files) * sizeof *f->name, of = files * sizeof *f->classes_of;
    f->text = mem_try_alloc(text);
    f->name = mem_try_alloc(name);
    f->classes_of = mem_try_alloc(of);
    if (!f->text || !f->name || !f->classes_of)
        return err_set(e, ST_OOM, "no host memory for the names of %zu files", files);
    uint64_t at = 0;
    copy_names(&s->classes, f, 0, &at);
    copy_names(&s->files, f, classes, &at);
    memcpy(f->classes_of, s->class_of.data, of);
    f->files = (int64_t)files;
    f->classes = (int)classes;
    f->bytes = (int64_t)(text + name + of);
    (void)snprintf(f->root, sizeof f->root, "%s", s->root);
    return ST_OK;
}

static enum status folder_scan(const char *root, struct folder **out, struct err *e)
{
    struct scan s = {.root = root, .e = e};
    struct folder *f = mem_alloc(sizeof *f);
    enum status st = scan_root(&s);
    if (st == ST_OK)
        st = pack(&s, f, e);
    names_release(&s.classes);
    names_release(&s.files);
    vec_release(&s.class_of);
    if (st == ST_OK)
        *out = f;
    else
        folder_free(f);
    return st;
}

void folder_free(struct folder *f)
{
    if (!f)
        return;
    mem_free(f->text);
    mem_free(f->name);
    mem_free(f->classes_of);
    mem_free(f);
}

const char *folder_path(const struct folder *f, int64_t index, char *buf, size_t cap)
{
    return path_join(f->root, f->text + f->name[f->classes + index], buf, cap);
}

int folder_class(const struct folder *f, int64_t index)
{
    return f->classes_of[index];
}

const char *folder_class_name(const struct folder *f, int class_index)
{
    bool known = class_index >= 0 && class_index < f->classes;
    return known ? f->text + f->name[class_index] : NULL;
}

static enum status
describe(const struct folder *f, const char *split, struct dataset_info *out, struct err *e)
{
    char path[PATH_MAX];
    int w = 0, h = 0;
    TRY(image_read_size(folder_path(f, 0, path, sizeof path), &w, &h, e));
    *out = (struct dataset_info){
        .count = f->files,
        .type = DATA_U8,
        .rank = 3,
        .shape = {3, h, w},
        .shape_varies = true,
        .target = DATA_I64,
        .classes = f->classes,
        .host_bytes = f->bytes,
    };
    (void)snprintf(out->name, sizeof out->name, "ImageFolder");
    (void)snprintf(out->split, sizeof out->split, "%s", split);
    (void)snprintf(out->path, sizeof out->path, "%s", f->root);
    return ST_OK;
}

enum status
dataset_open_folder(const char *path, const char *split, struct dataset **out, struct err *e)
{
    char root[1024];
    const char *below = split && !str_eq(split, "(none)") ? split : "";
    if (below[0] && !path_is_inside(below))
        return err_set(e, ST_INVALID, "split \"%s\" is not the name of a folder", below);
    if (!path || !path[0])
        return err_set(e, ST_INVALID, "the image folder's path is empty");
    if (strlen(path) + strlen(below) + 2 > sizeof root)
        return err_set(e, ST_INVALID, "path \"%.60s...\" is too long", path);
    if (below[0])
        path_join(path, below, root, sizeof root);
    else
        (void)snprintf(root, sizeof root, "%s", path);
    struct dataset *d = mem_alloc(sizeof *d);
    enum status st = folder_scan(root, &d->folder, e);
    if (st == ST_OK)
        st = describe(d->folder, below, &d->info, e);
    if (st == ST_OK)
        *out = d;
    else
        dataset_free(d);
    return st;
}

enum status dataset_describe_folder(
    const char *path, const char *split, struct dataset_info *out, struct err *e)
{
    struct dataset *d = NULL;
    TRY(dataset_open_folder(path, split, &d, e));
    *out = d->info;
    dataset_free(d);
    return ST_OK;
}
