/* http_multipart.c - a file out of multipart/form-data (RFC 7578), in pieces of any size.
 *
 * FORMAT  CRLF "--" boundary ends each part; the first has no CRLF before it. A part is header
 * lines, an empty line, bytes. Everything is read by one automaton over a small buffer: what may be
 * the beginning of a delimiter is kept back until it is known.
 * LIMITS  boundary 70 bytes, headers of a part 4096 bytes, 1000 parts.
 */
#include "server/http_int.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { HEADERS_MAX = 4096, PARTS_MAX = 1000, BOUNDARY_MAX = 70 };
enum state { PREAMBLE, AFTER_DELIMITER, HEADERS, BYTES, EPILOGUE };

struct multipart {
    enum state state;
    char delimiter[BOUNDARY_MAX + 5]; /* "\r\n--boundary" */
    size_t delimiter_n, matched;      /* of it, in PREAMBLE and BYTES */
    char headers[HEADERS_MAX + 1];
    size_t headers_n;
    char name[512];
    bool has_name, in_file, complete;
    int parts;
};

/* The value of name=... in a header's parameters: quoted or a word. */
static bool param_find(const char *header, const char *name, char *out, size_t cap)
{
    size_t n = strlen(name);
    for (const char *at = strchr(header, ';'); at; at = strchr(at, ';')) {
        at += 1 + strspn(at + 1, " \t");
        if (strncasecmp(at, name, n) != 0 || at[n] != '=')
            continue;
        const char *from = at + n + 1;
        size_t len, used = 0;
        if (*from != '"') {
            len = strcspn(from, "; \t\r\n");
            if (len >= cap)
                return false;
            memcpy(out, from, len);
            out[len] = '\0';
            return true;
        }
        for (from++; *from && *from != '"'; from++) {
            from += *from == '\\' && (from[1] == '"' || from[1] == '\\');
            if (used + 1 >= cap)
                return false;
            out[used++] = *from;
        }
        out[used] = '\0';
        return *from == '"';
    }
    return false;
}

struct multipart *multipart_new(const char *content_type)
{
    char boundary[BOUNDARY_MAX + 1];
    if (!content_type || strncasecmp(content_type, "multipart/form-data", 19) != 0 ||
        !param_find(content_type, "boundary", boundary, sizeof boundary) || !boundary[0])
        return NULL;
    struct multipart *m = mem_alloc(sizeof *m);
    m->delimiter_n = (size_t)snprintf(m->delimiter, sizeof m->delimiter, "\r\n--%s", boundary);
    m->matched = 2; /* the first delimiter may begin the body */
    return m;
}

void multipart_free(struct multipart *m)
{
    mem_free(m);
}

const char *multipart_name(const struct multipart *m)
{
    return m->has_name ? m->name : NULL;
}

bool multipart_is_complete(const struct multipart *m)
{
    return m->complete;
}

/* A part's headers are whole. */
static void part_begin(struct multipart *m)
{
    m->in_file = false;
    m->headers[m->headers_n] = '\0';
    for (const char *line = m->headers; *line; line += strcspn(line, "\n") + 1) {
        if (strncasecmp(line, "Content-Disposition:", 20) == 0 && !m->has_name) {
            char one[HEADERS_MAX + 1];
            size_t n = strcspn(line, "\r\n");
            memcpy(one, line, n);
            one[n] = '\0';
            if (param_find(one, "filename", m->name, sizeof m->name))
                m->has_name = m->in_file = true;
        }
        if (!strchr(line, '\n'))
            break;
    }
    m->headers_n = 0;
    m->state = BYTES;
    m->matched = 0;
}

static void delimiter_found(struct multipart *m)
{
    m->complete = m->complete || m->in_file;
    m->in_file = false;
    m->matched = m->headers_n = 0;
    m->state = AFTER_DELIMITER;
}

/* Bytes before the next delimiter. Boundaries have no CR, so that a partial match can only begin
 * anew at a CR: what was matched is bytes of the part, then. */
static const char *feed_bytes(
    struct multipart *m, const char *data, size_t n, size_t *used,
    bool (*take)(void *ctx, const char *p, size_t n), void *ctx)
{
    size_t from = 0, i = 0;
    size_t held = m->matched; /* bytes of the delimiter that earlier pieces ended with */
    while (i < n && m->matched < m->delimiter_n) {
        if (data[i] == m->delimiter[m->matched]) {
            m->matched++, i++;
            continue;
        }
        if (held && m->in_file && !take(ctx, m->delimiter, held))
            return "";
        held = 0;
        if (m->matched == 0)
            i++;
        m->matched = 0;
    }
    bool found = m->matched == m->delimiter_n;
    size_t tail = m->matched - held; /* matched within this piece */
    if (m->in_file && i - tail > from && !take(ctx, data + from, i - tail - from))
        return "";
    *used = i;
    if (found)
        delimiter_found(m);
    return NULL;
}

/* "--" ends the form, CRLF begins a part; blanks may stand before. */
static const char *feed_after(struct multipart *m, char c)
{
    if (c == '-' && ++m->matched == 2) {
        m->state = EPILOGUE;
    } else if (c == '\n') {
        if (++m->parts > PARTS_MAX)
            return "the form has too many parts";
        m->state = HEADERS;
        m->headers_n = 0;
    } else if (c != '-' && c != '\r' && c != ' ' && c != '\t') {
        return "the form's boundary is followed by something else";
    }
    return NULL;
}

static const char *feed_header(struct multipart *m, char c)
{
    if (c == '\0' || m->headers_n == HEADERS_MAX)
        return "the headers of a part of the form are malformed or too long";
    m->headers[m->headers_n++] = c;
    const char *h = m->headers;
    size_t n = m->headers_n;
    bool only_end = (n == 2 && memcmp(h, "\r\n", 2) == 0) || (n == 1 && h[0] == '\n');
    if (only_end || (n >= 4 && memcmp(h + n - 4, "\r\n\r\n", 4) == 0) ||
        (n >= 2 && memcmp(h + n - 2, "\n\n", 2) == 0))
        part_begin(m);
    return NULL;
}

const char *multipart_feed(
    struct multipart *m, const char *data, size_t n,
    bool (*take)(void *ctx, const char *p, size_t n), void *ctx)
{
    while (n > 0) {
        size_t used = 1;
        const char *fault = NULL;
        switch (m->state) {
        case PREAMBLE:
        case BYTES:
            fault = feed_bytes(m, data, n, &used, take, ctx);
            break;
        case AFTER_DELIMITER:
            fault = feed_after(m, *data);
            break;
        case HEADERS:
            fault = feed_header(m, *data);
            break;
        case EPILOGUE:
            return NULL;
        }
        if (fault)
            return fault;
        data += used, n -= used;
    }
    return NULL;
}
