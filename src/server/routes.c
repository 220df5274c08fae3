/* routes.c - the search for a request's row, and the names of the columns. */
#include "server/http_int.h"

#include "base/mem.h"

#include <string.h>
#include <utf8proc.h>

static const char *const method_names[METHOD_COUNT] = {"GET", "POST", "PUT", "PATCH", "DELETE"};
static const char *const access_names[] = {"open",  "read",   "write",  "exec",
                                           "owner", "worker", "enroll", "upgrade"};

const char *method_name(enum route_method m)
{
    return method_names[m];
}

const char *access_name(enum route_access a)
{
    return access_names[a];
}

bool method_find(const char *name, enum route_method *out)
{
    if (str_eq(name, "HEAD"))
        name = "GET";
    for (int i = 0; i < METHOD_COUNT; i++)
        if (str_eq(name, method_names[i])) {
            *out = (enum route_method)i;
            return true;
        }
    return false;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool percent_decode(const char *from, size_t n, bool plus, char *out, size_t cap)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        char c = from[i];
        if (c == '%') {
            if (n - i < 3)
                return false;
            int a = hex_digit(from[i + 1]), b = hex_digit(from[i + 2]);
            if (a < 0 || b < 0)
                return false;
            c = (char)(a * 16 + b);
            i += 2;
        } else if (plus && c == '+') {
            c = ' ';
        }
        if (c == '\0' || at + 1 >= cap)
            return false;
        out[at++] = c;
    }
    out[at] = '\0';
    return text_is_utf8(out, at);
}

bool text_is_utf8(const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        utf8proc_int32_t point;
        utf8proc_ssize_t took = utf8proc_iterate(
            (const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &point);
        if (took <= 0)
            return false;
        at += (size_t)took;
    }
    return true;
}

/* One pattern against one path, both beginning with '/'. `fixed` gets a bit for each part, the
 * first one highest, set where the pattern's part is a word. */
struct parts {
    const char *at[ROUTE_PARAMS];
    size_t n[ROUTE_PARAMS];
    size_t count;
    uint32_t fixed;
};

static bool pattern_matches(const char *pattern, const char *path, struct parts *out)
{
    *out = (struct parts){0};
    uint32_t bit = UINT32_C(1) << 31;
    while (*pattern == '/' && *path == '/') {
        pattern++, path++;
        size_t word = strcspn(pattern, "/"), part = strcspn(path, "/");
        if (*pattern == '{') {
            bool rest = word > 4 && memcmp(pattern + word - 4, "...}", 4) == 0;
            if (rest)
                part = strlen(path);
            if (part == 0)
                return false;
            ASSERT(out->count < ROUTE_PARAMS);
            out->at[out->count] = path;
            out->n[out->count++] = part;
        } else {
            if (word != part || memcmp(pattern, path, word) != 0)
                return false;
            out->fixed |= bit;
        }
        pattern += word, path += part, bit >>= 1;
    }
    return *pattern == '\0' && *path == '\0';
}

/* Decodes the parts into the match. */
static bool parts_decode(const struct parts *p, struct route_match *out)
{
    size_t at = 0;
    for (size_t i = 0; i < p->count; i++) {
        if (!percent_decode(p->at[i], p->n[i], false, out->text + at, sizeof out->text - at))
            return false;
        out->param[i] = out->text + at;
        at += strlen(out->text + at) + 1;
    }
    return true;
}

bool route_find(
    const struct route *rows, size_t n_rows, const char *path, enum route_method method,
    struct route_match *out)
{
    out->route = NULL, out->methods = 0, out->text[0] = '\0';
    memset(out->param, 0, sizeof out->param);
    size_t n = strlen(path);
    char decoded[ROUTE_PATH_BYTES_MAX];
    if (n >= ROUTE_PATH_BYTES_MAX || !percent_decode(path, n, false, decoded, sizeof decoded))
        return false;
    struct parts best = {0};
    for (size_t i = 0; i < n_rows; i++) {
        struct parts p;
        if (!pattern_matches(rows[i].path, path, &p))
            continue;
        out->methods |= 1U << rows[i].method;
        if (rows[i].method == method && (!out->route || p.fixed > best.fixed)) {
            out->route = &rows[i];
            best = p;
        }
    }
    return !out->route || parts_decode(&best, out);
}
