/* http_guard.c - who may come in: the Host a request addresses, the page it comes from, its token.
 *
 * WHY  A server on this machine can be reached by every page that a browser shows. Three things
 * keep foreign pages out: the Host must be a name of ours (a page whose name was pointed at
 * 127.0.0.1 has its own), a write must carry a token that only our pages can read, and a write or a
 * WebSocket that says where it comes from (Origin, Sec-Fetch-Site) must come from us.
 */
#include "server/auth.h"
#include "server/http_int.h"

#include "base/env.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define TEXT_HOST "Misdirected Request (Host not allowed)"
#define TEXT_TOKEN "Missing or invalid X-CodefyUI-Token header"

/* ---- lists, ",a,b," ---- */

/* Adds the items of "a, b", in lower case. */
static void list_add(struct str *list, const char *items)
{
    while (items && *items) {
        size_t n = strcspn(items, ",");
        char item[300];
        str_copy_trimmed(item, sizeof item, items, n);
        for (char *c = item; *c; c++)
            if (*c >= 'A' && *c <= 'Z')
                *c = (char)(*c - 'A' + 'a');
        if (item[0])
            str_printf(list, "%s,", item);
        items += n + (items[n] == ',');
    }
}

static bool list_has(const struct str *list, const char *item, size_t n)
{
    for (const char *at = list->data + 1; *at;) {
        size_t len = strcspn(at, ",");
        if (len == n && strncasecmp(at, item, n) == 0)
            return true;
        at += len + 1;
    }
    return false;
}

/* ---- hosts ---- */

static void add_address(struct str *list, const struct sockaddr *a)
{
    char text[INET6_ADDRSTRLEN], item[INET6_ADDRSTRLEN + 2];
    const void *bytes = NULL;
    if (a && a->sa_family == AF_INET)
        bytes = &((const struct sockaddr_in *)(const void *)a)->sin_addr;
    else if (a && a->sa_family == AF_INET6)
        bytes = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    if (!bytes || !inet_ntop(a->sa_family, bytes, text, sizeof text))
        return;
    (void)snprintf(item, sizeof item, a->sa_family == AF_INET6 ? "[%s]" : "%s", text);
    list_add(list, item);
}

/* Bound to every address, the machine's own names and addresses are ours. */
static void add_interfaces(struct str *list)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) == 0)
        for (const struct ifaddrs *i = all; i; i = i->ifa_next)
            add_address(list, i->ifa_addr);
    freeifaddrs(all);
    char name[256];
    if (gethostname(name, sizeof name) == 0) {
        name[sizeof name - 1] = '\0';
        list_add(list, name);
    }
}

static bool binds_everything(const char *host)
{
    return str_eq(host, "0.0.0.0") || str_eq(host, "::") || str_eq(host, "[::]");
}

void allowed_init(struct allowed_hosts *a, const struct http_config *c)
{
    str_init(&a->hosts);
    str_init(&a->origins);
    str_add(&a->hosts, ",");
    str_add(&a->origins, ",");
    list_add(&a->hosts, "localhost,127.0.0.1,[::1]");
    if (binds_everything(c->host)) {
        add_interfaces(&a->hosts);
    } else {
        char host[300];
        bool bare_v6 = strchr(c->host, ':') && c->host[0] != '[';
        (void)snprintf(host, sizeof host, bare_v6 ? "[%s]" : "%s", c->host);
        list_add(&a->hosts, host);
    }
    list_add(&a->hosts, c->extra_hosts);
    list_add(&a->origins, c->origins);
}

void allowed_release(struct allowed_hosts *a)
{
    str_release(&a->hosts);
    str_release(&a->origins);
}

/* The length of the name within "name", "name:port", "[v6]:port"; 0: neither. */
static size_t host_name_bytes(const char *host)
{
    size_t n = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    size_t all = strlen(host);
    if (n == 0 || n > all || (host[n] != '\0' && host[n] != ':'))
        return 0;
    for (size_t i = n + 1; i < all; i++)
        if (host[i] < '0' || host[i] > '9')
            return 0;
    return strpbrk(host, ",/@\\ ") ? 0 : n;
}

bool host_is_allowed(const struct allowed_hosts *a, const char *host)
{
    size_t n = host_name_bytes(host);
    return n && (list_has(&a->hosts, host, n) || list_has(&a->hosts, host, strlen(host)));
}

/* ---- origins ---- */

/* Whether the page at `origin` was served by the host that it now asks. */
static bool origin_is_own(const char *origin, const char *host)
{
    const char *rest = strstr(origin, "://");
    return rest && host && strcasecmp(rest + 3, host) == 0;
}

/* Fills x->origin where the answer must name it. */
static bool origin_is_fine(struct exchange *x)
{
    const char *origin = x->head.get(x->head.ctx, "Origin");
    const char *site = x->head.get(x->head.ctx, "Sec-Fetch-Site");
    if (!origin)
        return !site || strcasecmp(site, "cross-site") != 0;
    if (list_has(&x->h->allowed.origins, origin, strlen(origin))) {
        (void)snprintf(x->origin, sizeof x->origin, "%s", origin);
        return true;
    }
    return origin_is_own(origin, x->head.get(x->head.ctx, "Host"));
}

/* ---- tokens ---- */

/* The value of a cookie, into out; false when there is none. */
static bool cookie_find(const char *cookies, const char *name, char *out, size_t cap)
{
    size_t n = strlen(name);
    while (cookies && *cookies) {
        cookies += strspn(cookies, "; ");
        size_t len = strcspn(cookies, ";");
        if (len > n && cookies[n] == '=' && strncmp(cookies, name, n) == 0) {
            str_copy_trimmed(out, cap, cookies + n + 1, len - n - 1);
            return true;
        }
        cookies += len;
    }
    return false;
}

/* The token of the request and whether it came as a bearer's. A cookie counts for reading only:
 * browsers send it without being asked. */
static const char *token_of(struct exchange *x, bool *bearer, char *buf, size_t cap)
{
    const char *t = x->head.get(x->head.ctx, "Authorization");
    *bearer = t && strncasecmp(t, "Bearer ", 7) == 0;
    if (*bearer) {
        str_copy_trimmed(buf, cap, t + 7, strlen(t + 7));
        return buf;
    }
    if ((t = x->head.get(x->head.ctx, "X-CodefyUI-Token")) ||
        (t = x->head.get(x->head.ctx, "X-Snug-Token")))
        return t;
    bool upgrade = x->route && x->route->access == ACCESS_UPGRADE;
    if (upgrade && (t = http_query(&x->q, "token")))
        return t;
    bool reads = x->method == METHOD_GET && !upgrade;
    const char *cookies = reads ? x->head.get(x->head.ctx, "Cookie") : NULL;
    return cookie_find(cookies, "snug_page", buf, cap) ? buf : NULL;
}

/* Whether this actor may use a route of this access. */
static bool may(enum route_access access, const struct actor *a, bool private_reads)
{
    bool user = a->role == ROLE_PAGE || a->role == ROLE_KEY;
    if (a->role == ROLE_OWNER)
        return true;
    switch (access) {
    case ACCESS_OPEN:
        return true;
    case ACCESS_READ:
        return !private_reads || user;
    case ACCESS_WRITE:
    case ACCESS_UPGRADE:
        return user;
    case ACCESS_EXEC:
        return a->role == ROLE_KEY && a->exec;
    case ACCESS_OWNER:
        return false;
    case ACCESS_WORKER:
        return a->role == ROLE_WORKER;
    case ACCESS_ENROLL:
        return a->role == ROLE_WORKER || a->role == ROLE_ENROLL;
    }
    return false;
}

static void refuse_unknown(struct exchange *x, enum route_access access, bool bearer)
{
    if (bearer) {
        exchange_refuse(x, 401, "this key or token is not known here, or was revoked");
        (void)http_add_header(&x->r, "WWW-Authenticate", "Bearer");
    } else if (access == ACCESS_WORKER || access == ACCESS_ENROLL) {
        exchange_refuse(x, 401, "a worker's credential is needed");
        (void)http_add_header(&x->r, "WWW-Authenticate", "Bearer");
    } else {
        exchange_refuse(x, 403, TEXT_TOKEN);
    }
}

static void refuse_known(struct exchange *x, enum route_access access)
{
    static const char *const who[] = {
        [ROLE_PAGE] = "a page",
        [ROLE_OWNER] = "the owner",
        [ROLE_KEY] = "this key",
        [ROLE_WORKER] = "a worker",
        [ROLE_ENROLL] = "a join token"};
    exchange_refuse(
        x, 403, "%s may not use this route (its access is \"%s\")", who[x->q.actor.role],
        access_name(access));
}

/* What access a request needs that has no route: a write without a token learns nothing. */
static enum route_access access_of(const struct exchange *x)
{
    if (x->route)
        return x->route->access;
    return x->method == METHOD_GET || x->is_options ? ACCESS_OPEN : ACCESS_WRITE;
}

static void check_upgrade(struct exchange *x, bool host_ok, bool known)
{
    if (!host_ok)
        x->q.refused = 421;
    else if (!origin_is_fine(x))
        x->q.refused = 403;
    else if (!known)
        x->q.refused = 401;
    else if (!may(ACCESS_UPGRADE, &x->q.actor, false))
        x->q.refused = 403;
}

void guard_check(struct exchange *x)
{
    enum route_access access = access_of(x);
    bool upgrade = access == ACCESS_UPGRADE, bearer, writes;
    const char *host = x->head.get(x->head.ctx, "Host");
    bool host_ok = x->head.count(x->head.ctx, "Host") == 1 && host_is_allowed(&x->h->allowed, host);
    if (!host_ok && !upgrade) {
        exchange_refuse(x, 421, TEXT_HOST);
        return;
    }
    char buf[2 * SECRET_BYTES];
    const char *token = token_of(x, &bearer, buf, sizeof buf);
    if (token)
        auth_who(x->h->server->auth, token, clock_wall_us(), &x->q.actor);
    bool known = x->q.actor.role != ROLE_NOBODY;
    if (upgrade) {
        check_upgrade(x, host_ok, known);
        return;
    }
    writes = x->method != METHOD_GET && !x->is_options;
    x->q.foreign = !origin_is_fine(x);
    if (writes && x->q.foreign)
        exchange_refuse(x, 403, "this page's origin is not allowed");
    else if (!known && bearer && access != ACCESS_OPEN)
        refuse_unknown(x, access, true);
    else if (!may(access, &x->q.actor, x->h->config.private_reads))
        known ? refuse_known(x, access) : refuse_unknown(x, access, bearer);
}
