/* outputs.c - recorded outputs: the writer, the index, and the store as a whole. */
#include "record/outputs_int.h"

#include "base/env.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { INDEX_BYTES_MAX = 256 << 20 };

/* ---- writing ---- */

struct outputs {
    char dir[1100];
    int index; /* file descriptor */
    int64_t files, ports, bytes;
};

static void folder_of(const char *run_dir, char *out, size_t cap)
{
    (void)path_join(run_dir, "outputs", out, cap);
}

enum status outputs_begin(struct outputs **out, const char *run_dir, struct err *e)
{
    char path[1200];
    struct outputs *o = mem_alloc(sizeof *o);
    (void)outputs_drop(run_dir);
    folder_of(run_dir, o->dir, sizeof o->dir);
    (void)path_join(o->dir, "index.jsonl", path, sizeof path);
    enum status st = dir_make(o->dir, e);
    o->index =
        st == ST_OK ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (st == ST_OK && o->index < 0)
        st = err_errno(e, "could not make \"%s\"", path);
    if (st != ST_OK) {
        mem_free(o);
        return st;
    }
    *out = o;
    return ST_OK;
}

void outputs_end(struct outputs *o)
{
    if (!o)
        return;
    (void)close(o->index);
    mem_free(o);
}

int64_t outputs_bytes(const struct outputs *o)
{
    return o->bytes;
}

static enum status write_all(int fd, const void *data, size_t n, const char *path, struct err *e)
{
    const char *at = data;
    while (n) {
        ssize_t w = write(fd, at, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return err_errno(e, "could not write \"%s\"", path);
        at += w;
        n -= (size_t)w;
    }
    return ST_OK;
}

/* Takes `line`. */
static enum status append(struct outputs *o, json_t *line, struct err *e)
{
    struct str text;
    char *one = json_text(line, false);
    str_init(&text);
    str_printf(&text, "%s\n", one);
    enum status st = write_all(o->index, text.data, text.n, o->dir, e);
    o->bytes += (int64_t)text.n;
    str_release(&text);
    mem_free(one);
    json_decref(line);
    return st;
}

static enum status room(struct outputs *o, struct err *e)
{
    if (o->ports++ >= OUTPUTS_PORTS_MAX)
        return err_set(e, ST_TOO_LARGE, "a run records at most %d outputs", OUTPUTS_PORTS_MAX);
    return ST_OK;
}

static json_t *line_of(const char *node, const char *port, const char *kind)
{
    json_t *line = json_object();
    json_put_str(line, "node", node);
    json_put_str(line, "port", port);
    json_put_str(line, "kind", kind);
    return line;
}

enum status outputs_put_tensor(
    struct outputs *o, const char *node, const char *port, const struct record_tensor *t,
    struct err *e)
{
    char name[32], path[1200];
    size_t bytes = (size_t)(record_count(t) * record_dtype_bytes(t->dtype));
    TRY(room(o, e));
    (void)snprintf(name, sizeof name, "%lld.bin", (long long)o->files++);
    (void)path_join(o->dir, name, path, sizeof path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_errno(e, "could not make \"%s\"", path);
    enum status st = write_all(fd, t->data, bytes, path, e);
    if (close(fd) != 0 && st == ST_OK)
        st = err_errno(e, "could not write \"%s\"", path);
    if (st != ST_OK) {
        (void)unlink(path);
        return st;
    }
    o->bytes += (int64_t)bytes;
    json_t *line = line_of(node, port, "tensor"), *shape = json_array();
    for (int i = 0; i < t->rank; i++)
        (void)json_array_append_new(shape, json_integer(t->shape[i]));
    json_put_str(line, "file", name);
    json_put_str(line, "dtype", record_dtype_name(t->dtype));
    json_put(line, "shape", shape);
    return append(o, line, e);
}

enum status outputs_put_value(
    struct outputs *o, const char *node, const char *port, const char *kind, json_t *value,
    struct err *e)
{
    enum status st = room(o, e);
    char *text = json_text(value, false), size[80];
    size_t n = strlen(text);
    mem_free(text);
    if (st != ST_OK) {
        json_decref(value);
        return st;
    }
    json_t *line = line_of(node, port, n > OUTPUTS_VALUE_MAX ? "value" : kind);
    if (n > OUTPUTS_VALUE_MAX) {
        json_decref(value);
        value = json_object();
        (void)snprintf(size, sizeof size, "not recorded: %zu bytes, more than 1 MiB", n);
        json_put_str(value, "type", kind);
        json_put_str(value, "repr", size);
    }
    json_put(line, "value", value);
    return append(o, line, e);
}

/* ---- the index ---- */

static bool same(const json_t *line, const char *node, const char *port)
{
    return str_eq(json_get_str(line, "node", NULL), node) &&
           str_eq(json_get_str(line, "port", NULL), port);
}

/* Calls `each` with every whole line that is one. */
static enum status
walk(const char *run_dir, void (*each)(json_t *line, void *ctx), void *ctx, struct err *e)
{
    char dir[1100], path[1200], *text;
    size_t n;
    folder_of(run_dir, dir, sizeof dir);
    (void)path_join(dir, "index.jsonl", path, sizeof path);
    if (!file_exists(path)) {
        (void)err_set(e, ST_NOT_FOUND, "this run has no recorded outputs");
        err_hint(e, "switch on Record outputs (option record_outputs) and run the graph again");
        return ST_NOT_FOUND;
    }
    TRY(file_read(path, INDEX_BYTES_MAX, &text, &n, e));
    for (char *at = text, *end; (end = memchr(at, '\n', n - (size_t)(at - text))); at = end + 1) {
        json_t *line;
        struct err ignored;
        if (json_parse(at, (size_t)(end - at), "a line", &line, &ignored) != ST_OK)
            continue;
        if (json_is_object(line) && json_get_str(line, "node", NULL) &&
            json_get_str(line, "port", NULL) && json_get_str(line, "kind", NULL))
            each(line, ctx);
        json_decref(line);
    }
    mem_free(text);
    return ST_OK;
}

struct found {
    const char *node, *port;
    json_t *line;
};

static void find_port(json_t *line, void *ctx)
{
    struct found *f = ctx;
    if (!same(line, f->node, f->port))
        return;
    json_decref(f->line);
    f->line = json_incref(line);
}

/* The place of a port keeps its first line's, the value is the last one's. */
struct collected {
    json_t *list, *places; /* "node\nport" -> index */
};

static void collect(json_t *line, void *ctx)
{
    struct collected *c = ctx;
    struct str key;
    str_init(&key);
    str_printf(&key, "%s\n%s", json_get_str(line, "node", ""), json_get_str(line, "port", ""));
    int64_t at = json_get_i64(c->places, key.data, -1);
    if (at >= 0) {
        (void)json_array_set(c->list, (size_t)at, line);
    } else {
        json_put_i64(c->places, key.data, (int64_t)json_array_size(c->list));
        (void)json_array_append(c->list, line);
    }
    str_release(&key);
}

enum status output_lines(const char *run_dir, json_t **out, struct err *e)
{
    struct collected c = {json_array(), json_object()};
    enum status st = walk(run_dir, collect, &c, e);
    json_decref(c.places);
    if (st == ST_OK)
        *out = c.list;
    else
        json_decref(c.list);
    return st;
}

static enum status damaged(const char *port, struct err *e)
{
    return err_set(e, ST_CORRUPT, "the record of output \"%s\" is damaged", port);
}

/* Shape and type of a tensor, and its file, which must be as long as they say. */
static enum status
open_tensor(const char *run_dir, const char *port, struct output *o, struct err *e)
{
    char dir[1100], path[1200];
    struct stat s;
    const char *name = json_get_str(o->line, "file", "");
    const json_t *shape = json_object_get(o->line, "shape");
    o->count = 1;
    o->rank = (int)json_array_size(shape);
    if (!record_dtype_find(json_get_str(o->line, "dtype", ""), &o->dtype) ||
        o->rank > RECORD_RANK_MAX || !path_is_inside(name) || strchr(name, '/'))
        return damaged(port, e);
    for (int i = 0; i < o->rank; i++) {
        int64_t d = json_integer_value(json_array_get(shape, (size_t)i));
        if (d < 0 || (d > 0 && o->count > INT64_MAX / 16 / d))
            return damaged(port, e);
        o->shape[i] = d;
        o->count *= d;
    }
    folder_of(run_dir, dir, sizeof dir);
    (void)path_join(dir, name, path, sizeof path);
    o->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (o->fd < 0)
        return err_errno(e, "could not read the recorded output \"%s\"", port);
    if (fstat(o->fd, &s) != 0 || s.st_size != o->count * record_dtype_bytes(o->dtype))
        return damaged(port, e);
    return ST_OK;
}

enum status output_open(
    const char *run_dir, const char *node, const char *port, struct output *out, struct err *e)
{
    struct found f = {node, port, NULL};
    *out = (struct output){.fd = -1};
    enum status st = walk(run_dir, find_port, &f, e);
    if (st == ST_OK && !f.line)
        st = err_set(e, ST_NOT_FOUND, "output \"%s\" of node \"%s\" is not recorded", port, node);
    if (st != ST_OK) {
        json_decref(f.line);
        return st;
    }
    out->line = f.line;
    out->kind = json_get_str(f.line, "kind", "");
    if (strcmp(out->kind, "tensor") == 0)
        st = open_tensor(run_dir, port, out, e);
    if (st != ST_OK)
        output_close(out);
    else
        output_touch(run_dir);
    return st;
}

void output_close(struct output *o)
{
    if (o->fd >= 0)
        (void)close(o->fd);
    json_decref(o->line);
    *o = (struct output){.fd = -1};
}

enum status output_load(const struct output *o, int64_t from, int64_t n, void *to, struct err *e)
{
    size_t size = (size_t)record_dtype_bytes(o->dtype), left = (size_t)n * size;
    off_t at = (off_t)from * (off_t)size;
    char *p = to;
    while (left) {
        ssize_t got = pread(o->fd, p, left, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return err_errno(e, "could not read a recorded output");
        p += got;
        at += got;
        left -= (size_t)got;
    }
    return ST_OK;
}

void output_touch(const char *run_dir)
{
    char dir[1100], path[1200];
    folder_of(run_dir, dir, sizeof dir);
    (void)path_join(dir, "index.jsonl", path, sizeof path);
    (void)utimensat(AT_FDCWD, path, NULL, 0);
}

json_t *output_shape_json(const struct output *o)
{
    json_t *shape = json_array();
    for (int i = 0; i < o->rank; i++)
        (void)json_array_append_new(shape, json_integer(o->shape[i]));
    return shape;
}

json_t *output_answer(const char *run_dir, const char *node, const char *port)
{
    const char *slash = strrchr(run_dir, '/');
    json_t *o = json_object();
    json_put_str(o, "run_id", slash ? slash + 1 : run_dir);
    json_put_str(o, "node_id", node);
    json_put_str(o, "port", port);
    return o;
}

/* ---- the store ---- */

bool outputs_drop(const char *run_dir)
{
    char dir[1100], path[1400];
    folder_of(run_dir, dir, sizeof dir);
    DIR *d = opendir(dir);
    if (!d)
        return false;
    for (struct dirent *f; (f = readdir(d));) {
        if (f->d_name[0] == '.')
            continue;
        (void)path_join(dir, f->d_name, path, sizeof path);
        (void)unlink(path);
    }
    (void)closedir(d);
    return rmdir(dir) == 0;
}

struct kept {
    char name[256];
    int64_t bytes, used_ns;
};

static int64_t folder_bytes(const char *dir)
{
    char path[1400];
    struct stat s;
    int64_t sum = 0;
    DIR *d = opendir(dir);
    for (struct dirent *f; d && (f = readdir(d));) {
        (void)path_join(dir, f->d_name, path, sizeof path);
        if (lstat(path, &s) == 0 && S_ISREG(s.st_mode))
            sum += s.st_size;
    }
    if (d)
        (void)closedir(d);
    return sum;
}

static int by_use(const void *a, const void *b)
{
    const struct kept *x = a, *y = b;
    return x->used_ns < y->used_ns ? -1 : x->used_ns > y->used_ns;
}

/* Runs with recorded outputs, the one used longest ago first; mem_free. */
static struct kept *list_kept(const char *runs_dir, size_t *n)
{
    VEC(struct kept) list = {0};
    DIR *d = opendir(runs_dir);
    for (struct dirent *f; d && (f = readdir(d));) {
        char run[1100], dir[1200], path[1300];
        struct stat s;
        if (f->d_name[0] == '.')
            continue;
        (void)path_join(runs_dir, f->d_name, run, sizeof run);
        folder_of(run, dir, sizeof dir);
        (void)path_join(dir, "index.jsonl", path, sizeof path);
        if (stat(path, &s) != 0)
            continue;
        struct kept k = {
            .bytes = folder_bytes(dir),
            .used_ns = (int64_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec};
        (void)snprintf(k.name, sizeof k.name, "%s", f->d_name);
        vec_push(&list, k);
    }
    if (d)
        (void)closedir(d);
    if (list.n)
        qsort(list.data, list.n, sizeof *list.data, by_use);
    *n = list.n;
    return list.data;
}

void outputs_count(const char *runs_dir, int64_t *runs, int64_t *bytes)
{
    size_t n;
    struct kept *list = list_kept(runs_dir, &n);
    *runs = (int64_t)n;
    *bytes = 0;
    for (size_t i = 0; i < n; i++)
        *bytes += list[i].bytes;
    mem_free(list);
}

int outputs_evict(const char *runs_dir, int64_t runs_max, int64_t bytes_max, const char *keep)
{
    size_t n;
    int gone = 0;
    struct kept *list = list_kept(runs_dir, &n);
    int64_t runs = (int64_t)n, bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += list[i].bytes;
    for (size_t i = 0; i < n; i++) {
        char run[1100];
        bool fits = (runs_max <= 0 || runs <= runs_max) && (bytes_max <= 0 || bytes <= bytes_max);
        if (fits)
            break;
        if (str_eq(list[i].name, keep))
            continue;
        (void)path_join(runs_dir, list[i].name, run, sizeof run);
        if (!outputs_drop(run))
            continue;
        runs--;
        bytes -= list[i].bytes;
        gone++;
    }
    mem_free(list);
    return gone;
}
