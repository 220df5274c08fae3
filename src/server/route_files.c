/* route_files.c - models, images, data files, media: list, upload, download, delete. */
#include "server/files.h"
#include "server/routes.h"
#include "server/server.h"

#include "base/env.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct kind {
    const char *path, *endings;
    size_t dir; /* offset of the folder in struct server_config */
};
static const struct kind kinds[] = {
    {"/api/models", ".pt .pth .safetensors .ckpt .bin", offsetof(struct server_config, models_dir)},
    {"/api/images", ".png .jpg .jpeg .bmp .webp .gif .tif .tiff",
     offsetof(struct server_config, images_dir)},
    {"/api/files", ".csv .tsv .txt .json", offsetof(struct server_config, data_files_dir)},
    {"/api/media", ".png .jpg .jpeg .webp .gif .mp4 .webm",
     offsetof(struct server_config, media_dir)}};

static const struct kind *kind_of(const struct http_request *q)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (str_starts(q->path, kinds[i].path))
            return &kinds[i];
    ASSERT(!"a route of files without a kind");
    return NULL;
}

static const char *dir_of(const struct server *s, const struct kind *k)
{
    return *(char *const *)(const void *)((const char *)s->config + k->dir);
}

void route_files_list(struct server *s, const struct http_request *q, struct http_reply *r)
{
    const struct kind *k = kind_of(q);
    http_json(r, 200, files_list(dir_of(s, k), k->endings));
}

void route_files_upload(struct server *s, const struct http_request *q, struct http_reply *r)
{
    const struct kind *k = kind_of(q);
    struct err e = {0};
    char name[256];
    if (!http_file_name(q->upload.name, name, r))
        return;
    if (!files_has_ending(name, k->endings)) {
        http_error(r, 400, "\"%s\" is not one of %s", name, k->endings);
        return;
    }
    if (files_place(q->upload.path, dir_of(s, k), name, &e) != ST_OK) {
        http_fail(r, &e);
        return;
    }
    json_t *o = json_object();
    json_put_str(o, "filename", name);
    json_put_i64(o, "size", q->upload.bytes);
    http_json(r, 200, o);
}

/* The name as browsers take it: plain characters, and all of it percent-encoded. */
static void add_disposition(struct http_reply *r, const char *name)
{
    char value[480] = "attachment; filename*=UTF-8''";
    size_t at = strlen(value);
    const char *slash = strrchr(name, '/');
    for (const char *c = slash ? slash + 1 : name; *c && at + 4 < sizeof value; c++) {
        bool plain = (*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') ||
                     (*c >= 'A' && *c <= 'Z') || strchr("-._", *c);
        at += (size_t)snprintf(
            value + at, sizeof value - at, plain ? "%c" : "%%%02X", (unsigned char)*c);
    }
    (void)http_add_header(r, "Content-Disposition", value);
}

/* Its real path; false: r says why not. */
static bool
find(struct server *s, const struct http_request *q, char path[1024], struct http_reply *r)
{
    const struct kind *k = kind_of(q);
    struct err e = {0};
    if (files_has_ending(q->param[0], k->endings) &&
        files_find(dir_of(s, k), q->param[0], path, &e) == ST_OK)
        return true;
    http_error(r, 404, "File '%s' not found", q->param[0]);
    return false;
}

void route_files_download(struct server *s, const struct http_request *q, struct http_reply *r)
{
    char path[1024];
    if (!find(s, q, path, r))
        return;
    http_file(r, path, files_type(path));
    if (!str_starts(q->path, "/api/media"))
        add_disposition(r, q->param[0]);
}

void route_files_delete(struct server *s, const struct http_request *q, struct http_reply *r)
{
    char path[1024];
    struct err e = {0};
    if (!find(s, q, path, r))
        return;
    if (unlink(path) != 0) {
        (void)err_errno(&e, "could not remove \"%s\"", q->param[0]);
        http_fail(r, &e);
        return;
    }
    json_t *o = json_object();
    json_put_str(o, "message", "File deleted");
    json_put_str(o, "filename", q->param[0]);
    http_json(r, 200, o);
}
