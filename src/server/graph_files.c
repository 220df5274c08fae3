/* graph_files.c - saved graphs. */
#include "server/graph_files.h"

#include "base/env.h"
#include "base/mem.h"
#include "graph/graph.h"
#include "server/files.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>

enum { GRAPH_BYTES_MAX = 64 << 20 };
#define ENDING ".json"

/* Letters, marks and digits of any script, "-" and "_" stay. */
static bool stays(utf8proc_int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    bool letter = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
    bool number = k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
    return letter || number || c == '-' || c == '_';
}

bool graph_file_of(const char *name, char out[256])
{
    const utf8proc_uint8_t *at = (const utf8proc_uint8_t *)name;
    size_t n = 0;
    utf8proc_int32_t c;
    for (utf8proc_ssize_t took; *at; at += took) {
        took = utf8proc_iterate(at, -1, &c);
        if (took <= 0 || n + (size_t)took + sizeof ENDING > 250)
            return false;
        if (stays(c)) {
            memcpy(out + n, at, (size_t)took);
            n += (size_t)took;
        } else {
            out[n++] = '_';
        }
    }
    memcpy(out + n, ENDING, sizeof ENDING);
    return n > 0;
}

/* The file's name for what may be one: "x.json" and "x" are x.json. */
static bool file_of_address(const char *name, char out[256])
{
    char stem[256];
    size_t n = strlen(name);
    if (n >= sizeof stem)
        return false;
    memcpy(stem, name, n + 1);
    if (str_ends(stem, ENDING))
        stem[n - strlen(ENDING)] = '\0';
    return graph_file_of(stem, out);
}

static enum status no_graph(const char *name, struct err *e)
{
    return err_set(e, ST_NOT_FOUND, "Graph '%s' not found", name);
}

/* Of the graphs that call themselves so, the only one. */
static enum status find_by_name(const char *dir, const char *name, char file[256], struct err *e)
{
    json_t *list = graph_files_list(dir), *row;
    size_t i, n = 0;
    json_array_foreach(list, i, row) if (str_eq(json_get_str(row, "name", ""), name))
    {
        (void)snprintf(file, 256, "%s", json_get_str(row, "file", ""));
        n++;
    }
    json_decref(list);
    if (n > 1)
        return err_set(e, ST_CONFLICT, "%zu graphs have the name '%s': name the file", n, name);
    return n == 1 ? ST_OK : no_graph(name, e);
}

enum status
graph_files_find(const char *dir, const char *name, char path[1024], char file[256], struct err *e)
{
    char own[256];
    struct err none = {0};
    if (!file_of_address(name, own) || files_find(dir, own, path, &none) != ST_OK) {
        TRY(find_by_name(dir, name, own, e));
        TRY(files_find(dir, own, path, e));
    }
    if (file)
        memcpy(file, own, sizeof own);
    return ST_OK;
}

enum status graph_files_load(const char *dir, const char *name, json_t **out, struct err *e)
{
    char path[1024];
    TRY(graph_files_find(dir, name, path, NULL, e));
    return json_read_file(path, GRAPH_BYTES_MAX, out, e);
}

json_t *graph_files_list(const char *dir)
{
    json_t *files = files_list(dir, ENDING), *rows = json_array(), *file;
    size_t i;
    json_array_foreach(files, i, file)
    {
        const char *name = json_get_str(file, "filename", "");
        char path[1024];
        json_t *row, *document = NULL;
        struct err ignored = {0};
        if (strchr(name, '/') || files_find(dir, name, path, &ignored) != ST_OK)
            continue;
        if (json_read_file(path, GRAPH_BYTES_MAX, &document, &ignored) != ST_OK)
            document = NULL;
        char stem[256];
        (void)snprintf(stem, sizeof stem, "%.*s", (int)(strlen(name) - strlen(ENDING)), name);
        row = json_object();
        json_put_str(row, "name", json_get_str(document, "name", stem));
        json_put_str(row, "file", name);
        json_put_f64(row, "modified", json_get_f64(file, "modified", 0));
        (void)json_array_append_new(rows, row);
        json_decref(document);
    }
    json_decref(files);
    return rows;
}

static enum status
write_document(const char *dir, const char *file, const json_t *document, struct err *e)
{
    char path[1400];
    struct stat st;
    TRY(dir_make(dir, e));
    (void)snprintf(path, sizeof path, "%s/%s", dir, file);
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(e, ST_CONFLICT, "\"%s\" is there and is not a file", file);
    char *text = json_text(document, true);
    enum status st2 = file_write(path, text, strlen(text), e);
    mem_free(text);
    return st2;
}

/* The document with blank secrets; a document of another shape is ST_UNPROCESSABLE. */
static enum status clean_document(const json_t *from, json_t **out, struct err *e)
{
    struct graph *g = NULL;
    json_t *copy = json_copy((json_t *)(uintptr_t)from);
    (void)json_object_del(copy, "file");
    (void)json_object_del(copy, "overwrite");
    char *text = json_text(copy, false);
    enum status st = graph_parse(text, strlen(text), "the graph", &g, e);
    if (st == ST_OK)
        *out = graph_document(g);
    else if (e)
        e->status = st = ST_UNPROCESSABLE;
    graph_free(g);
    mem_free(text);
    json_decref(copy);
    return st;
}

enum status graph_files_save(
    const char *dir, const json_t *document, const char *file_wanted, bool overwrite,
    char file[256], struct err *e)
{
    char path[1024];
    json_t *clean = NULL;
    struct err none = {0};
    const char *name = json_get_str(document, "name", "Untitled");
    bool fine = file_wanted ? file_of_address(file_wanted, file) : graph_file_of(name, file);
    if (!fine)
        return err_set(e, ST_INVALID, "the graph needs a name of 1 to 240 bytes");
    if (!overwrite && files_find(dir, file, path, &none) == ST_OK)
        return err_set(e, ST_CONFLICT, "there is a graph \"%s\"", file);
    TRY(clean_document(document, &clean, e));
    enum status st = write_document(dir, file, clean, e);
    json_decref(clean);
    return st;
}

enum status
graph_files_rename(const char *dir, const char *from, const char *to, char file[256], struct err *e)
{
    char path[1024], there[1024], old[256];
    json_t *document = NULL;
    struct err none = {0};
    if (!graph_file_of(to, file))
        return err_set(e, ST_INVALID, "the graph needs a name of 1 to 240 bytes");
    TRY(graph_files_find(dir, from, path, old, e));
    if (!str_eq(old, file) && files_find(dir, file, there, &none) == ST_OK)
        return err_set(e, ST_CONFLICT, "there is a graph \"%s\"", file);
    TRY(json_read_file(path, GRAPH_BYTES_MAX, &document, e));
    json_put_str(document, "name", to);
    enum status st = write_document(dir, file, document, e);
    json_decref(document);
    if (st == ST_OK && !str_eq(old, file) && unlink(path) != 0)
        st = err_errno(e, "could not remove \"%s\"", old);
    return st;
}

enum status graph_files_delete(const char *dir, const char *name, char file[256], struct err *e)
{
    char path[1024];
    TRY(graph_files_find(dir, name, path, file, e));
    return unlink(path) == 0 ? ST_OK : err_errno(e, "could not remove \"%s\"", file);
}
