/* page.c - what a browser gets until the editor is built in. */
#include "server/http_int.h"

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

void page_reply(struct http_reply *r)
{
    http_text(r, 200, "text/html; charset=utf-8", mem_strdup(page), strlen(page));
    (void)http_add_header(
        r, "Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'");
}
