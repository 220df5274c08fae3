/* client.c - which server, with what secret; one request and its reply, over libcurl.
 *
 * What a request may do is closed: HTTP and HTTPS alone, no redirects (a secret goes to the named
 * server and nowhere else), no netrc, no cookies, no proxy from the environment of other programs.
 */
#include "base/client.h"

#include "base/client_int.h"
#include "base/config.h"
#include "base/env.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { REPLY_BYTES_MAX = 64 << 20, FILE_BYTES_MAX = 1 << 16, CONNECT_S = 10 };

/* ---- which server ---- */

/* server.json of this SNUG_HOME; ST_NOT_FOUND where there is none or its process is gone. */
static enum status local_server(json_t **out, struct err *e)
{
    char path[1100];
    (void)path_join(snug_home(), "server.json", path, sizeof path);
    *out = NULL;
    if (file_exists(path)) {
        TRY(json_read_file(path, FILE_BYTES_MAX, out, e));
        pid_t pid = (pid_t)json_get_i64(*out, "pid", 0);
        if (json_get_str(*out, "url", NULL) && (pid <= 0 || kill(pid, 0) == 0 || errno == EPERM))
            return ST_OK;
        json_decref(*out);
        *out = NULL;
    }
    (void)err_set(e, ST_NOT_FOUND, "no server runs under \"%s\"", snug_home());
    err_hint(e, "`snug start` starts one; --server URL (or SNUG_SERVER) names another");
    return ST_NOT_FOUND;
}

static enum status read_token(char **out, struct err *e)
{
    char path[1100];
    size_t n;
    (void)path_join(snug_home(), "session.token", path, sizeof path);
    TRY(file_read(path, FILE_BYTES_MAX, out, &n, e));
    (*out)[strcspn(*out, " \r\n")] = 0;
    return ST_OK;
}

/* The value given, else the setting; NULL where neither is there or it is empty. */
static enum status
choose(const char *given, const char *env, const char *key, char **out, struct err *e)
{
    *out = NULL;
    if (given)
        *out = mem_strdup(given);
    else
        TRY(config_text(env, key, out, e));
    if (*out && !(*out)[0]) {
        mem_free(*out);
        *out = NULL;
    }
    return ST_OK;
}

/* http or https, a host, nothing else than a path; no name and password. Cuts ending slashes. */
static enum status check_url(char *url, struct err *e)
{
    const char *host = str_starts(url, "http://")    ? url + 7
                       : str_starts(url, "https://") ? url + 8
                                                     : NULL;
    size_t n = strlen(url);
    if (host && strchr(host, '@')) /* not shown: it may hold a password */
        return err_set(e, ST_INVALID, "the server's URL holds a name or a password: use a key");
    if (!host || !host[0] || host[0] == '/' || strpbrk(url, " \t\r\n\"<>?#"))
        return err_set(
            e, ST_INVALID, "\"%.200s\" is not the URL of a server (http://HOST:PORT)", url);
    while (n > 8 && url[n - 1] == '/')
        url[--n] = 0;
    return ST_OK;
}

/* This machine, by the names that never leave it. */
static bool is_loopback(const char *url)
{
    const char *host = strstr(url, "://") + 3;
    size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/");
    return (n == 9 && strncasecmp(host, "localhost", 9) == 0) ||
           (n == 5 && strncmp(host, "[::1]", 5) == 0) || strncmp(host, "127.", 4) == 0;
}

/* Secrets go into a header: printable characters alone. */
static enum status check_secret(const char *secret, struct err *e)
{
    for (const char *p = secret; p && *p; p++)
        if (*p <= ' ' || *p > '~')
            return err_set(e, ST_INVALID, "the key holds characters that no key has");
    return ST_OK;
}

/* The address by itself; what the local server adds comes after. */
static enum status find_server(struct client *c, const struct client_options *o, struct err *e)
{
    json_t *local = NULL;
    enum status st;
    if (!o->own)
        TRY(choose(o->server, "SNUG_SERVER", "server", &c->url, e));
    st = local_server(&local, c->url ? NULL : e);
    if (!c->url && st != ST_OK)
        return st;
    if (!c->url)
        c->url = mem_strdup(json_get_str(local, "url", ""));
    st = check_url(c->url, e);
    if (st == ST_OK && local && str_eq(c->url, json_get_str(local, "url", NULL))) {
        const char *certificate = json_get_str(local, "certificate", NULL);
        c->local = true;
        c->certificate = certificate ? mem_strdup(certificate) : NULL;
    }
    json_decref(local);
    return st;
}

static enum status find_secret(struct client *c, const struct client_options *o, struct err *e)
{
    if (!o->own)
        TRY(choose(o->secret, "SNUG_KEY", "key", &c->secret, e));
    if (!c->secret && c->local)
        TRY(read_token(&c->secret, e));
    return check_secret(c->secret, e);
}

bool client_local_runs(void)
{
    char *named = NULL;
    json_t *local = NULL;
    struct err e;
    bool elsewhere = choose(NULL, "SNUG_SERVER", "server", &named, &e) != ST_OK || named;
    bool runs = !elsewhere && local_server(&local, &e) == ST_OK;
    json_decref(local);
    mem_free(named);
    return runs;
}

/* ---- libcurl ---- */

static void start_library(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

static int on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t d, curl_off_t f)
{
    struct client *c = ctx;
    (void)a, (void)b, (void)d, (void)f;
    c->stopped = c->stop && c->stop(c->stop_ctx);
    return c->stopped ? 1 : 0;
}

/* What holds for every request of the client. */
static void set_always(struct client *c)
{
    CURL *h = c->curl;
    (void)curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(h, CURLOPT_FOLLOWLOCATION, 0L);
    (void)curl_easy_setopt(h, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    (void)curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    (void)curl_easy_setopt(h, CURLOPT_ERRORBUFFER, c->said);
    (void)curl_easy_setopt(h, CURLOPT_USERAGENT, "snug");
    (void)curl_easy_setopt(h, CURLOPT_TCP_KEEPALIVE, 1L);
    (void)curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_progress);
    (void)curl_easy_setopt(h, CURLOPT_XFERINFODATA, c);
    (void)curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    (void)curl_easy_setopt(h, CURLOPT_PROXY, c->proxy && !is_loopback(c->url) ? c->proxy : "");
    if (c->certificate || c->ca)
        (void)curl_easy_setopt(h, CURLOPT_CAINFO, c->ca ? c->ca : c->certificate);
    /* The own server's certificate is trusted by its file; it names the host, not the loopback. */
    if (c->local && !c->ca && c->certificate && is_loopback(c->url))
        (void)curl_easy_setopt(h, CURLOPT_SSL_VERIFYHOST, 0L);
}

static enum status set_headers(struct client *c)
{
    struct str line;
    bool bearer = c->secret && (str_starts(c->secret, "snk_") || str_starts(c->secret, "snw_") ||
                                str_starts(c->secret, "snj_"));
    c->headers = curl_slist_append(NULL, "Expect:");
    if (!c->secret)
        return ST_OK;
    str_init(&line);
    str_printf(&line, bearer ? "Authorization: Bearer %s" : "X-Snug-Token: %s", c->secret);
    c->headers = curl_slist_append(c->headers, line.data);
    memset(line.data, 0, line.n);
    str_release(&line);
    return ST_OK;
}

enum status client_open(const struct client_options *o, struct client **out, struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct client *c = mem_alloc(sizeof *c);
    enum status st;
    *out = NULL;
    (void)pthread_once(&once, start_library);
    c->stop = o->stop;
    c->stop_ctx = o->ctx;
    c->reply_bytes_max = o->reply_bytes_max > 0 ? o->reply_bytes_max : REPLY_BYTES_MAX;
    TRY_OUT(find_server(c, o, e));
    TRY_OUT(find_secret(c, o, e));
    TRY_OUT(choose(o->ca, "SNUG_CA", "ca", &c->ca, e));
    TRY_OUT(choose(NULL, "SNUG_PROXY", "proxy", &c->proxy, e));
    c->curl = curl_easy_init();
    if (!c->curl)
        TRY_OUT(err_set(e, ST_OOM, "could not make an HTTP client"));
    set_always(c);
    TRY_OUT(set_headers(c));
    *out = c;
    return ST_OK;
out:
    client_close(c);
    return st;
}

void client_close(struct client *c)
{
    if (!c)
        return;
    if (c->curl)
        curl_easy_cleanup(c->curl);
    curl_slist_free_all(c->headers);
    if (c->secret)
        memset(c->secret, 0, strlen(c->secret));
    mem_free(c->secret);
    mem_free(c->url);
    mem_free(c->ca);
    mem_free(c->certificate);
    mem_free(c->proxy);
    mem_free(c);
}

const char *client_url(const struct client *c)
{
    return c->url;
}

bool client_is_local(const struct client *c)
{
    return c->local;
}

/* ---- paths ---- */

static void path_cut(struct client_path *p)
{
    p->cut = true;
    p->text[0] = 0;
}

static void path_add(struct client_path *p, const char *text, bool encode)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t n = strlen(p->text);
    for (; *text && !p->cut; text++) {
        unsigned char ch = (unsigned char)*text;
        bool plain = !encode || (ch >= '0' && ch <= '9') ||
                     ((ch | 32) >= 'a' && (ch | 32) <= 'z') || strchr("-._~", ch);
        if (n + 4 > sizeof p->text) {
            path_cut(p);
            return;
        }
        if (plain) {
            p->text[n++] = (char)ch;
        } else {
            p->text[n++] = '%';
            p->text[n++] = hex[ch >> 4];
            p->text[n++] = hex[ch & 15];
        }
        p->text[n] = 0;
    }
}

/* "." and ".." as a segment would be resolved away: they are no name of anything. */
static void path_add_segment(struct client_path *p, const char *text)
{
    if (!text[0] || strcmp(text, ".") == 0 || strcmp(text, "..") == 0)
        path_cut(p);
    path_add(p, text, true);
}

struct client_path client_path(const char *fmt, ...)
{
    struct client_path p = {.text = ""};
    char piece[2] = "", number[32];
    va_list args;
    va_start(args, fmt);
    for (; *fmt; fmt++) {
        if (strncmp(fmt, "%s", 2) == 0) {
            path_add_segment(&p, va_arg(args, const char *));
            fmt += 1;
        } else if (strncmp(fmt, "%lld", 4) == 0) {
            (void)snprintf(number, sizeof number, "%lld", va_arg(args, long long));
            path_add(&p, number, false);
            fmt += 3;
        } else {
            piece[0] = *fmt;
            path_add(&p, piece, false);
        }
    }
    va_end(args);
    return p;
}

void client_query(struct client_path *p, const char *name, const char *value)
{
    if (!value)
        return;
    path_add(p, strchr(p->text, '?') ? "&" : "?", false);
    path_add(p, name, true);
    path_add(p, "=", false);
    path_add(p, value, true);
}

void client_query_i64(struct client_path *p, const char *name, int64_t value)
{
    char number[32];
    (void)snprintf(number, sizeof number, "%lld", (long long)value);
    client_query(p, name, number);
}
