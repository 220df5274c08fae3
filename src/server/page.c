/* page.c - what a browser gets: the built page of the folder `web_dir`, else a page of a few lines.
 *
 * A built page is an index.html with files beside it, most of them in assets/ under names that
 * change with their content. Addresses that are no files of it are places within the page: they get
 * index.html. The editor of CodefyUI 1.4.2 is served so, unchanged. */
#include "server/config.h"
#include "server/files.h"
#include "server/http_int.h"
#include "server/server.h"

#include <string.h>

static const char page[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>snug</title>\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n"
    "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:4em auto;padding:0 1em}\n"
    "code{background:#8882;padding:.1em .3em}</style></head><body>\n"
    "<h1>snug</h1>\n<p>The server is running. The editor is not built into this program yet.</p>\n"
    "<p><a href=\"/docs\">The API</a>, <a href=\"/openapi.json\">as OpenAPI</a>, "
    "<a href=\"/api/health\">health</a>. On the command line: <code>snug status</code>, "
    "<code>snug run graph.json</code>, <code>snug runs</code>.</p>\n</body></html>\n";

static void built_in(struct http_reply *r)
{
    http_text(r, 200, "text/html; charset=utf-8", mem_strdup(page), strlen(page));
    (void)http_add_header(
        r, "Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'");
}

/* Browsers take scripts and styles by their type alone. Files that users upload are never served
 * from here. */
static const char *type_of(const char *name)
{
    static const struct {
        const char *endings, *type;
    } rows[] = {
        {".html", "text/html; charset=utf-8"},
        {".js .mjs", "text/javascript; charset=utf-8"},
        {".css", "text/css; charset=utf-8"},
        {".svg", "image/svg+xml"},
        {".ico", "image/x-icon"},
        {".woff2", "font/woff2"},
        {".woff", "font/woff"},
        {".ttf", "font/ttf"},
        {".wasm", "application/wasm"},
        {".map .webmanifest", "application/json"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (files_has_ending(name, rows[i].endings))
            return rows[i].type;
    return files_type(name);
}

/* What has an ending, or lies in assets/, is meant as a file. */
static bool is_file_name(const char *name)
{
    const char *last = strrchr(name, '/');
    return str_starts(name, "assets/") || strchr(last ? last : name, '.') != NULL;
}

void page_reply(const struct server *s, const char *path, struct http_reply *r)
{
    const char *dir = s->config && s->config->web_dir ? s->config->web_dir : "", *name = path + 1;
    char file[1024];
    struct err e;
    if (!*dir) {
        built_in(r);
        return;
    }
    bool found = *name && files_find(dir, name, file, &e) == ST_OK;
    if (!found && is_file_name(name)) {
        http_error(r, 404, "Not Found");
        return;
    }
    if (!found && files_find(dir, name = "index.html", file, &e) != ST_OK) {
        http_error(r, 404, "there is no index.html in the folder web_dir");
        return;
    }
    http_file(r, file, type_of(name));
    (void)http_add_header(
        r, "Cache-Control",
        str_starts(name, "assets/") ? "public, max-age=31536000, immutable" : "no-cache");
}
