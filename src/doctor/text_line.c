/* text_line.c - undoing what terminals, browsers, JSON and loggers do to a line. */
#include "doctor/text_line.h"

#include "base/str.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- escapes ---- */

/* Length of a terminal sequence at s, 0 when there is none. */
static size_t terminal(const char *s, size_t n)
{
    size_t i = 2;
    if (n < 2 || s[0] != 27)
        return 0;
    if (s[1] != '[')
        return 2;
    while (i < n && !isalpha((unsigned char)s[i]) && i < 24)
        i++;
    return i < n ? i + 1 : n;
}

static size_t entity(const char *s, size_t n, char *out)
{
    static const struct {
        const char *name;
        char c;
    } names[] = {{"&gt;", '>'},   {"&lt;", '<'},   {"&amp;", '&'},
                 {"&quot;", '"'}, {"&#39;", '\''}, {"&#x27;", '\''},
                 {"&nbsp;", ' '}, {"&#34;", '"'},  {"&apos;", '\''}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t m = strlen(names[i].name);
        if (n >= m && memcmp(s, names[i].name, m) == 0) {
            *out = names[i].c;
            return m;
        }
    }
    return 0;
}

/* Tags that pages put around copied logs. */
static size_t tag(const char *s, size_t n, char *out)
{
    static const char *const tags[] = {"<br>",    "<br/>", "<br />", "<pre>",  "</pre>", "<code>",
                                       "</code>", "<p>",   "</p>",   "<span>", "</span>"};
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        size_t m = strlen(tags[i]);
        if (n >= m && memcmp(s, tags[i], m) == 0) {
            *out = i < 3 || i == 8 ? '\n' : ' ';
            return m;
        }
    }
    return 0;
}

static size_t drop_controls(char *s, size_t n)
{
    size_t to = 0;
    for (size_t i = 0; i < n;) {
        char c = s[i];
        size_t used = c == 27 ? terminal(s + i, n - i) : 0;
        if (used) {
            i += used;
            continue;
        }
        if (c == '&')
            used = entity(s + i, n - i, &c);
        else if (c == '<')
            used = tag(s + i, n - i, &c);
        i += used ? used : 1;
        if (c == '\r')
            c = '\n'; /* progress bars overwrite their line */
        if ((unsigned char)c >= ' ' || c == '\t' || c == '\n')
            s[to++] = c;
    }
    s[to] = 0;
    return to;
}

/* Whether "\n" in this line are line ends: it looks like JSON or a string literal. */
static bool escaped(const char *s)
{
    const char *p = s + strspn(s, " \t,");
    if (!strstr(s, "\\n"))
        return false;
    return strchr("{[\"'", *p) || strstr(s, "last):\\n") || strstr(s, "\\n  File ") ||
           strstr(s, "memory.\\n") || strstr(s, "b'Traceback") || strstr(s, "\\n\\n");
}

static int hex4(const char *s)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        if (!isxdigit((unsigned char)s[i]))
            return -1;
        char d[2] = {s[i], 0};
        v = 16 * v + (int)strtol(d, NULL, 16);
    }
    return v;
}

static size_t unescape(char *s, size_t n)
{
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == '\\' && i + 1 < n) {
            char k = s[++i];
            int v = k == 'u' && i + 4 < n ? hex4(s + i + 1) : -1;
            if (v >= 0)
                i += 4;
            c = k == 'n' || k == 'r' ? '\n' : k == 't' ? ' ' : v >= ' ' && v < 127 ? (char)v : k;
            if (v >= 0 && (v < ' ' || v > 126))
                continue;
        }
        s[to++] = c;
    }
    s[to] = 0;
    return to;
}

size_t line_plain(char *s, size_t n)
{
    n = drop_controls(s, n);
    for (int deep = 0; deep < 3 && escaped(s); deep++)
        n = unescape(s, n);
    return n;
}

/* ---- prefixes ---- */

static void name_source(struct line_head *h, const char *from, size_t n)
{
    size_t have = strlen(h->source);
    if (have + n + 1 >= sizeof h->source)
        return;
    if (have)
        h->source[have++] = ' ';
    memcpy(h->source + have, from, n);
    h->source[have + n] = 0;
}

static void rank_in(struct line_head *h, const char *s, size_t n)
{
    for (size_t i = 0; i + 4 < n; i++)
        if (strncmp(s + i, "rank", 4) == 0 || strncmp(s + i, "Rank", 4) == 0 ||
            strncmp(s + i, "RANK", 4) == 0) {
            size_t d = i + 4 + strspn(s + i + 4, " =_:");
            if (d < n && isdigit((unsigned char)s[d]))
                h->rank = (int)strtol(s + d, NULL, 10) & 0xFFFFF;
        }
}

/* "[rank0]:", "[default3]:", "[1,0]<stderr>:", "[Rank 2]". */
static size_t bracket(const char *s, struct line_head *h)
{
    const char *end = strchr(s, ']');
    if (*s != '[' || !end || end - s > 40)
        return 0;
    size_t n = (size_t)(end - s) - 1;
    const char *in = s + 1;
    bool rank = str_starts(in, "rank") || str_starts(in, "Rank") || str_starts(in, "RANK");
    bool launcher = str_starts(in, "default") && isdigit((unsigned char)in[7]);
    bool mpi = isdigit((unsigned char)*in) && strspn(in, "0123456789,") == n &&
               memchr(in, ',', n) && str_starts(end + 1, "<std");
    bool stamp = isdigit((unsigned char)*in) && strspn(in, "0123456789-:.,T +/Z") == n && n >= 8;
    bool place = memchr(in, ':', n) && strstr(in, ".py:") && strstr(in, ".py:") < end;
    bool level = (n == 4 && str_starts(in, "INFO")) || (n == 5 && str_starts(in, "ERROR")) ||
                 (n == 7 && str_starts(in, "WARNING"));
    if (!rank && !launcher && !mpi && !stamp && !place && !level)
        return 0;
    if (rank || launcher || mpi)
        name_source(h, in, n);
    if (rank)
        rank_in(h, in, n);
    else if (launcher)
        h->rank = (int)strtol(in + 7, NULL, 10) & 0xFFFFF;
    else if (mpi)
        h->rank = (int)strtol(strchr(in, ',') + 1, NULL, 10) & 0xFFFFF;
    s = end + 1;
    if (mpi)
        s += strcspn(s, ">") + (strchr(s, '>') != NULL);
    s += *s == ':';
    return (size_t)(s - in) + 1 + (*s == ' ');
}

/* "(VllmWorker rank=1 pid=7)", "(EngineCore_0 pid=9)", "(train_fn pid=3, ip=10.0.0.1)". */
static size_t process_of(const char *s, struct line_head *h)
{
    const char *end = strchr(s, ')');
    if (*s != '(' || !end || end - s > 64)
        return 0;
    const char *pid = strstr(s, "pid=");
    if (!pid || pid > end)
        return 0;
    size_t n = 0;
    while (n < 20 && pid[n] && strchr("pid=0123456789", pid[n]))
        n++;
    name_source(h, pid, n);
    rank_in(h, s, (size_t)(end - s));
    end++;
    end += *end == ':';
    return (size_t)(end - s) + (*end == ' ');
}

/* "ERROR 04-01 23:46:56 ", "2024-05-01 10:00:00,123 - ERROR - ", "E0401 10:00:00.1 9 x.cc:3] ",
 * "2024-05-01T10:00:00.1Z stderr F ". */
static size_t stamp(const char *s)
{
    static const char *const levels[] = {"ERROR", "INFO", "WARNING", "CRITICAL",
                                         "DEBUG", "WARN", "FATAL"};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        size_t n = strlen(levels[i]);
        if (str_starts(s, levels[i]) && (s[n] == ' ' || s[n] == ':')) {
            n += strspn(s + n, " :-|");
            return n;
        }
    }
    if (strchr("EWIF", *s) && *s && isdigit((unsigned char)s[1]) && isdigit((unsigned char)s[4])) {
        const char *end = strstr(s, "] ");
        return end && end - s < 60 ? (size_t)(end - s) + 2 : 0;
    }
    size_t n = strspn(s, "0123456789-:.,TZ+ /");
    while (n && s[n - 1] == ' ' && n > 1 && s[n - 2] == ' ')
        n--;
    if (n >= 8 && isdigit((unsigned char)s[0]) && memchr(s, ':', n) && s[n - 1] == ' ') {
        if (str_starts(s + n, "stderr F ") || str_starts(s + n, "stdout F "))
            n += 9;
        n += strspn(s + n, "-| ") > 0 && strchr("-|", s[n]) ? strspn(s + n, "-| ") : 0;
        return n;
    }
    return 0;
}

/* "rank0: ", "3: " of srun, "> " of mails. */
static size_t label(const char *s, struct line_head *h)
{
    if (s[0] == '>' && s[1] == ' ')
        return 2;
    size_t d = strspn(s, "0123456789");
    if (d && d <= 4 && s[d] == ':' && s[d + 1] == ' ') {
        name_source(h, s, d);
        h->rank = (int)strtol(s, NULL, 10);
        return d + 2;
    }
    if (str_starts(s, "rank") || str_starts(s, "Rank ")) {
        size_t from = 4 + (s[4] == ' ');
        size_t n = strspn(s + from, "0123456789");
        if (n && n < 6 && s[from + n] == ':') {
            name_source(h, s, from + n);
            h->rank = (int)strtol(s + from, NULL, 10);
            return from + n + 1 + (s[from + n + 1] == ' ');
        }
    }
    return 0;
}

/* A line of JSON, its escapes undone: where its text begins. */
static const char *json_text_of(const char *s)
{
    static const char *const keys[] = {"\"log\":\"",      "\"log\": \"", "\"message\":\"",
                                       "\"message\": \"", "\"msg\":\"",  "\"msg\": \"",
                                       "\"text\":\"",     "\"text\": \""};
    for (size_t i = 0; *s == '{' && i < sizeof keys / sizeof *keys; i++) {
        const char *at = strstr(s, keys[i]);
        if (at && at - s < 400)
            return at + strlen(keys[i]);
    }
    return s;
}

const char *line_head_read(const char *s, struct line_head *head)
{
    *head = (struct line_head){.rank = -1};
    s = json_text_of(s);
    for (int i = 0; i < 6; i++) {
        size_t n = bracket(s, head);
        n = n ? n : process_of(s, head);
        n = n ? n : stamp(s);
        n = n ? n : label(s, head);
        if (!n)
            break;
        s += n;
    }
    return s;
}

/* ---- squeezed text ---- */

int line_squeeze(const unsigned char **s)
{
    unsigned char c = **s;
    if (c == 0xE2 && ((*s)[1] == 0x94 || (*s)[1] == 0x95 || (*s)[1] == 0x96) && (*s)[2]) {
        *s += 3; /* lines of a frame, U+2500 to U+259F */
        return 0;
    }
    if (c == 0xE2 && (*s)[1] == 0x80 && ((*s)[2] == 0x99 || (*s)[2] == 0x98)) {
        *s += 3; /* curly apostrophes */
        return '\'';
    }
    (*s)++;
    if (c <= ' ' || c == 0x7F)
        return 0;
    return tolower(c);
}

/* ---- steps ---- */

long long line_step(const char *s)
{
    static const char *const words[] = {"step",      "iter",      "batch",      "Step",
                                        "Iter",      "Batch",     "epoch",      "Epoch",
                                        "iteration", "Iteration", "global_step"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *at = strstr(s, words[i]);
        if (!at)
            continue;
        at += strlen(words[i]);
        at += strspn(at, " :=[#'\"(");
        if (isdigit((unsigned char)*at)) {
            long long n = strtoll(at, NULL, 10);
            return n;
        }
    }
    const char *slash =
        strstr(s, "it/s") ? strchr(s, '/') : NULL; /* "12/500 [00:10<..., 3.1it/s" */
    while (slash && slash > s && isdigit((unsigned char)slash[-1]))
        slash--;
    return slash && isdigit((unsigned char)*slash) ? strtoll(slash, NULL, 10) : -1;
}
