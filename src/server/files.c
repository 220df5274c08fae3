/* files.c - files that users keep on the server. */
#include "server/files.h"

#include "base/env.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES_MAX = 10000, DEPTH_MAX = 8, COPY_BYTES = 1 << 20 };

static enum status not_there(const char *name, struct err *e)
{
    return err_set(e, ST_NOT_FOUND, "there is no file \"%s\"", name);
}

enum status files_find(const char *dir, const char *name, char path[1024], struct err *e)
{
    char full[2048], real_dir[PATH_MAX], real_file[PATH_MAX];
    struct stat st;
    if (!path_is_inside(name) || strlen(name) > 900)
        return not_there(name, e);
    (void)snprintf(full, sizeof full, "%s/%s", dir, name);
    if (!realpath(dir, real_dir) || !realpath(full, real_file))
        return not_there(name, e);
    size_t n = strlen(real_dir);
    bool inside = strncmp(real_dir, real_file, n) == 0 && (real_file[n] == '/' || n == 1);
    if (!inside || stat(real_file, &st) != 0 || !S_ISREG(st.st_mode) || strlen(real_file) >= 1024)
        return not_there(name, e);
    memcpy(path, real_file, strlen(real_file) + 1);
    return ST_OK;
}

bool files_has_ending(const char *name, const char *endings)
{
    const char *dot = strrchr(name, '.');
    if (!endings)
        return true;
    for (const char *at = endings; dot && *at;) {
        size_t n = strcspn(at, " ");
        if (strlen(dot) == n && strncasecmp(at, dot, n) == 0)
            return true;
        at += n + (at[n] == ' ');
    }
    return false;
}

struct listing {
    json_t *rows;
    const char *endings;
};

static void list_add(struct listing *l, const char *name, const struct stat *st)
{
    json_t *row = json_object(), *text = json_string(name);
    if (!text) { /* a name that is not UTF-8 cannot be asked for */
        json_decref(row);
        return;
    }
    json_put(row, "filename", text);
    json_put_i64(row, "size", (int64_t)st->st_size);
    json_put_f64(row, "modified", (double)st->st_mtim.tv_sec + (double)st->st_mtim.tv_nsec / 1e9);
    (void)json_array_append_new(l->rows, row);
}

/* `prefix` is the folder's name below the first, with its slash. */
static void list_folder(struct listing *l, int folder, const char *prefix, int depth)
{
    DIR *d = folder >= 0 ? fdopendir(folder) : NULL;
    if (!d) {
        if (folder >= 0)
            (void)close(folder);
        return;
    }
    for (const struct dirent *entry; (entry = readdir(d));) {
        char name[1024];
        struct stat st;
        if (entry->d_name[0] == '.' || json_array_size(l->rows) >= FILES_MAX ||
            fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        int n = snprintf(name, sizeof name - 1, "%s%s", prefix, entry->d_name);
        if (n < 0 || (size_t)n >= sizeof name - 1)
            continue;
        if (S_ISREG(st.st_mode) && files_has_ending(name, l->endings))
            list_add(l, name, &st);
        if (S_ISDIR(st.st_mode) && depth < DEPTH_MAX) {
            (void)strcat(name, "/");
            int next =
                openat(dirfd(d), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            list_folder(l, next, name, depth + 1);
        }
    }
    (void)closedir(d);
}

static int by_name(const void *a, const void *b)
{
    const json_t *const *x = a, *const *y = b;
    return strcmp(json_get_str(*x, "filename", ""), json_get_str(*y, "filename", ""));
}

json_t *files_list(const char *dir, const char *endings)
{
    struct listing l = {.rows = json_array(), .endings = endings};
    list_folder(&l, open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), "", 0);
    size_t n = json_array_size(l.rows), i;
    json_t **sorted = mem_alloc((n + 1) * sizeof *sorted), *out = json_array(), *row;
    json_array_foreach(l.rows, i, row) sorted[i] = row;
    qsort(sorted, n, sizeof *sorted, by_name);
    for (i = 0; i < n; i++)
        (void)json_array_append(out, sorted[i]);
    mem_free(sorted);
    json_decref(l.rows);
    return out;
}

/* To another file system: copied beside its place, then renamed. */
static enum status copy_into(const char *from, const char *to, struct err *e)
{
    struct file_whole f;
    enum status st;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    if (in < 0)
        return err_errno(e, "could not open \"%s\"", from);
    st = file_whole_begin(&f, to, e);
    char *buf = st == ST_OK ? mem_alloc(COPY_BYTES) : NULL;
    ssize_t n = 0;
    while (st == ST_OK && (n = read(in, buf, COPY_BYTES)) > 0)
        if (fwrite(buf, 1, (size_t)n, f.out) != (size_t)n)
            st = err_errno(e, "could not write \"%s\"", to);
    if (st == ST_OK && n < 0)
        st = err_errno(e, "could not read \"%s\"", from);
    if (st == ST_OK)
        st = file_whole_commit(&f, e);
    else if (buf)
        file_whole_abort(&f);
    mem_free(buf);
    (void)close(in);
    return st;
}

static void sync_folder(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        (void)close(fd);
    }
}

enum status files_place(const char *from, const char *dir, const char *name, struct err *e)
{
    char to[1400];
    struct stat st;
    TRY(dir_make(dir, e));
    (void)snprintf(to, sizeof to, "%s/%s", dir, name);
    if (lstat(to, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(e, ST_CONFLICT, "\"%s\" is there and is not a file", name);
    if (rename(from, to) == 0) {
        sync_folder(dir);
        return ST_OK;
    }
    if (errno == EXDEV)
        return copy_into(from, to, e);
    return err_errno(e, "could not write \"%s\"", to);
}

const char *files_type(const char *name)
{
    static const struct {
        const char *endings, *type;
    } rows[] = {
        {".png", "image/png"},
        {".jpg .jpeg", "image/jpeg"},
        {".gif", "image/gif"},
        {".webp", "image/webp"},
        {".bmp", "image/bmp"},
        {".tif .tiff", "image/tiff"},
        {".mp4", "video/mp4"},
        {".webm", "video/webm"},
        {".json", "application/json"},
        {".csv", "text/csv; charset=utf-8"},
        {".tsv", "text/tab-separated-values; charset=utf-8"},
        {".txt", "text/plain; charset=utf-8"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (files_has_ending(name, rows[i].endings))
            return rows[i].type;
    return "application/octet-stream";
}
