/* remote.c - the client of a command, ids by their first letters, tables. */
#define _GNU_SOURCE /* strptime, timegm */
#include "cli/remote.h"

#include "base/env.h"
#include "cli/answer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAGE = 500, CANDIDATES = 8, WORDS_MAX = 32 };

enum status remote_open(const struct args *a, struct client **out, struct err *e)
{
    struct client_options o = {
        .server = a->option[OPTION_SERVER].text,
        .secret = a->option[OPTION_KEY].text,
        .ca = a->option[OPTION_CA].text,
    };
    return client_open(&o, out, e);
}

/* ---- ids ---- */

struct search {
    const char *given;
    size_t n, matches;
    char id[65], seen[64 * CANDIDATES];
};

static void look_at(struct search *s, const json_t *row)
{
    static const char *const keys[] = {"id", "run_id", "sweep_id", "study_id"};
    const char *id = NULL;
    size_t used = strlen(s->seen);
    for (size_t i = 0; !id && i < sizeof keys / sizeof *keys; i++)
        id = json_get_str(row, keys[i], NULL);
    id = id ? id : "";
    if (strncmp(id, s->given, s->n) != 0)
        return;
    if (s->matches++ == 0)
        (void)snprintf(s->id, sizeof s->id, "%s", id);
    if (s->matches <= CANDIDATES)
        (void)snprintf(
            s->seen + used, sizeof s->seen - used, "%s%.36s  %.20s", used ? "\n" : "", id,
            json_get_str(row, "name", ""));
}

static enum status judge(const struct search *s, const char *what, struct err *e)
{
    if (s->matches == 0)
        return err_set(e, ST_NOT_FOUND, "there is no %s \"%.64s\"", what, s->given);
    if (s->matches == 1 || strcmp(s->id, s->given) == 0)
        return ST_OK;
    (void)err_set(e, ST_CONFLICT, "%zu %ss begin with \"%s\"", s->matches, what, s->given);
    err_detail(e, "%s", s->seen);
    err_hint(e, "give more letters");
    return ST_CONFLICT;
}

/* Pages through a list until it is through. */
static enum status
search_list(struct client *c, const char *path, const char *key, struct search *s, struct err *e)
{
    for (int64_t offset = 0;; offset += PAGE) {
        struct client_path p = client_path("/");
        json_t *page, *row;
        size_t i;
        (void)snprintf(p.text, sizeof p.text, "%s", path);
        client_query_i64(&p, "limit", PAGE);
        client_query_i64(&p, "offset", offset);
        TRY(client_get(c, p.text, 0, &page, e));
        const json_t *rows = json_object_get(page, key);
        size_t n = json_array_size(rows);
        json_array_foreach(rows, i, row) look_at(s, row);
        int64_t total = json_get_i64(page, "total", 0);
        json_decref(page);
        if (n < PAGE || offset + PAGE >= total)
            return ST_OK;
    }
}

enum status remote_run_id(struct client *c, const char *given, char id[33], struct err *e)
{
    struct search s = {.given = given, .n = strlen(given)};
    if (s.n == 32 && strspn(given, "0123456789abcdef") == 32) {
        (void)snprintf(id, 33, "%s", given);
        return ST_OK;
    }
    if (s.n < 32)
        TRY(search_list(c, "/api/runs", "runs", &s, e));
    TRY(judge(&s, "run", e));
    (void)snprintf(id, 33, "%.32s", s.id);
    return ST_OK;
}

enum status remote_id_of(
    struct client *c, const char *path, const char *key, const char *what, const char *given,
    char id[65], struct err *e)
{
    struct search s = {.given = given, .n = strlen(given)};
    TRY(search_list(c, path, key, &s, e));
    TRY(judge(&s, what, e));
    (void)snprintf(id, 65, "%s", s.id);
    return ST_OK;
}

/* ---- words ---- */

/* Whether as many arguments follow the word as it wants. */
static enum status check_count(const struct args *a, const struct remote_word *w, struct err *e)
{
    int given = a->n_arguments - 1, most = abs(w->arguments);
    int least = w->arguments > 0 ? w->arguments : 0;
    const char *command = a->command->name;
    if (given > most)
        return err_set(
            e, ST_USAGE, "`snug %s %s` takes %s; \"%s\" is too much", command, w->word,
            most ? w->what : "nothing more", a->argument[most + 1]);
    if (given < least)
        return err_set(e, ST_USAGE, "`snug %s %s` needs %s", command, w->word, w->what);
    return ST_OK;
}

static enum status find_word(
    const struct args *a, const struct remote_word *words, size_t n, const struct remote_word **out,
    struct err *e)
{
    const char *names[WORDS_MAX], *near;
    const char *given = a->n_arguments ? a->argument[0] : words[0].word;
    ASSERT(n <= WORDS_MAX);
    for (size_t i = 0; i < n; i++) {
        names[i] = words[i].word;
        *out = &words[i];
        if (strcmp(given, words[i].word) == 0)
            return a->n_arguments ? check_count(a, &words[i], e) : ST_OK;
    }
    (void)err_set(e, ST_USAGE, "`snug %s` has no word \"%s\"", a->command->name, given);
    near = str_nearest(given, names, n);
    err_hint(
        e, "`snug %s %s`? `snug %s --help` tells them all", a->command->name,
        near ? near : names[0], a->command->name);
    return ST_USAGE;
}

int remote_command(const struct args *a, const struct remote_word *words, size_t n)
{
    struct err e = {0};
    const struct remote_word *w;
    struct client *c = NULL;
    struct str out;
    json_t *d = json_object();
    int rc;
    str_init(&out);
    enum status st = find_word(a, words, n, &w, &e);
    if (st == ST_OK)
        st = remote_open(a, &c, &e);
    if (st == ST_OK)
        st = w->run(a, c, d, &out, &e);
    client_close(c);
    if (st != ST_OK || a->json) {
        if (!a->json)
            (void)fputs(out.data, stdout);
        rc = answer_end(a->json, st, &e, d);
    } else {
        rc = answer_bytes(out.data, out.n);
        json_decref(d);
    }
    str_release(&out);
    return rc;
}

enum status
remote_csv(struct client *c, const char *path, json_t *d, struct str *out, struct err *e)
{
    struct client_reply r;
    TRY(client_call(c, "GET", path, NULL, 60, &r, e));
    enum status st = client_status(r.status) == ST_OK ? ST_OK : client_refusal(c, &r, e);
    if (st == ST_OK) {
        str_add_n(out, r.data, r.data_bytes);
        json_put_str(d, "csv", r.data);
    }
    client_reply_release(&r);
    return st;
}

/* ---- text ---- */

enum { COLUMNS_MAX = 16 };

static int characters(const char *s, size_t n)
{
    int count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
}

void table_text(const char *rows, struct str *out)
{
    int width[COLUMNS_MAX] = {0};
    for (const char *p = rows, *end; *p; p = end + (*end == '\n')) {
        end = p + strcspn(p, "\n");
        for (int column = 0; p < end && column < COLUMNS_MAX; column++) {
            size_t n = strcspn(p, "\t\n");
            int w = characters(p, n);
            width[column] = w > width[column] ? w : width[column];
            p += n + (p[n] == '\t');
        }
    }
    for (const char *p = rows, *end; *p; p = end + (*end == '\n')) {
        end = p + strcspn(p, "\n");
        for (int column = 0; p < end && column < COLUMNS_MAX; column++) {
            size_t n = strcspn(p, "\t\n");
            int pad = p[n] == '\t' ? width[column] - characters(p, n) + 2 : 0;
            str_add_n(out, p, n);
            for (; pad > 0; pad--)
                str_add(out, " ");
            p += n + (p[n] == '\t');
        }
        str_add(out, "\n");
    }
}

void remote_table(struct str *rows, json_t *page, json_t *d, struct str *out)
{
    table_text(rows->data, out);
    str_release(rows);
    (void)json_object_update(d, page);
    json_decref(page);
}

void cell_add(struct str *rows, const char *text, size_t most)
{
    size_t shown = 0;
    for (; *text; text++) {
        unsigned char ch = (unsigned char)*text;
        if ((ch & 0xC0) != 0x80 && most && ++shown > most) {
            str_add(rows, "…");
            return;
        }
        str_add_n(rows, ch < 0x20 || ch == 0x7f ? " " : text, 1);
    }
}

void duration_add(struct str *s, double seconds)
{
    long long t = (long long)(seconds + 0.5);
    if (seconds < 9.95)
        str_printf(s, "%.1f s", seconds > 0 ? seconds : 0);
    else if (t < 60)
        str_printf(s, "%lld s", t);
    else if (t < 3600)
        str_printf(s, "%lld:%02lld min", t / 60, t % 60);
    else if (t < 48 * 3600)
        str_printf(s, "%lld:%02lld h", t / 3600, t / 60 % 60);
    else
        str_printf(s, "%lld d", t / 86400);
}

/* Seconds since 1970 of "2026-11-30T01:02:03.456Z" (or with +00:00); negative: cannot be read. */
static double iso_seconds(const char *iso)
{
    struct tm t = {0};
    double fraction = 0;
    const char *rest = iso ? strptime(iso, "%Y-%m-%dT%H:%M:%S", &t) : NULL;
    if (!rest)
        return -1;
    if (*rest == '.') {
        char digits[16];
        (void)snprintf(
            digits, sizeof digits, "0%.*s", (int)(1 + strspn(rest + 1, "0123456789")), rest);
        if (!str_to_f64(digits, &fraction))
            fraction = 0;
    }
    return (double)timegm(&t) + fraction;
}

double seconds_between(const char *from, const char *to)
{
    double a = iso_seconds(from), b = iso_seconds(to);
    return a < 0 || b < 0 ? -1 : b > a ? b - a : 0;
}

double seconds_since(const char *iso)
{
    double then = iso_seconds(iso), now = (double)clock_wall_us() * 1e-6;
    return then < 0 ? -1 : now > then ? now - then : 0;
}

const char *short_id(const char *id, char buf[9])
{
    (void)snprintf(buf, 9, "%.8s", id);
    return buf;
}

double gib_of(int64_t bytes)
{
    return (double)bytes / 1073741824.0;
}
