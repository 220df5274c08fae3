/* answer.c - the last words of a command, in both forms. */
#include "cli/answer.h"

#include "base/document.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Set once, read by the handler for exhausted memory, which gets no context. */
static bool json_asked;

bool colour_on(FILE *f)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return !(no && no[0]) && isatty(fileno(f)) && !(term && strcmp(term, "dumb") == 0);
}

/* Allocates nothing and calls only what a signal handler may. */
static void put(int fd, const char *text)
{
    for (size_t n = strlen(text); n;) {
        ssize_t written = write(fd, text, n);
        if (written <= 0)
            return;
        text += written;
        n -= (size_t)written;
    }
}

_Noreturn void answer_now(enum status st, const char *message, const char *detail)
{
    if (json_asked) {
        put(STDOUT_FILENO, "{\n  \"schema\": 1,\n  \"status\": \"");
        put(STDOUT_FILENO, st == ST_INTERRUPTED ? "interrupted" : "failed");
        put(STDOUT_FILENO, "\",\n  \"error\": {\n    \"code\": \"");
        put(STDOUT_FILENO, status_code(st));
        put(STDOUT_FILENO, "\",\n    \"message\": \"");
        put(STDOUT_FILENO, message);
        put(STDOUT_FILENO, "\",\n    \"node_id\": null,\n    \"node_type\": null,\n");
        put(STDOUT_FILENO, detail ? "    \"detail\": \"" : "    \"detail\": null");
        put(STDOUT_FILENO, detail ? detail : "");
        put(STDOUT_FILENO, detail ? "\",\n" : ",\n");
        put(STDOUT_FILENO, "    \"hint\": null\n  }\n}\n");
    }
    put(STDERR_FILENO, st == ST_INTERRUPTED ? "snug: interrupted: " : "snug: error: ");
    put(STDERR_FILENO, message);
    put(STDERR_FILENO, detail ? ": " : "");
    put(STDERR_FILENO, detail ? detail : "");
    put(STDERR_FILENO, "\n");
    file_whole_drop();
    _exit(status_exit(st));
}

_Noreturn static void exhausted(size_t size_bytes)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%zu more bytes could not be had", size_bytes);
    answer_now(ST_OOM, "host memory is exhausted", text);
}

void answer_begin(bool json)
{
    json_asked = json;
    mem_on_exhausted(exhausted);
    json_set_alloc_funcs(mem_alloc, mem_free);
}

/* "  hint: " and the lines of `text`, each indented. */
static void show_lines(const char *label, const char *text)
{
    if (!text[0])
        return;
    (void)fprintf(stderr, "  %s", label);
    while (*text) {
        size_t n = strcspn(text, "\n");
        (void)fprintf(stderr, "%.*s\n", (int)n, text);
        text += n + (text[n] == '\n');
        if (*text)
            (void)fputs("    ", stderr);
    }
}

/* Whether the text itself says "TYPE (NODE)", as reports of several lines do. */
static bool names_node(const struct err *e)
{
    char name[sizeof e->node + sizeof e->node_type + 4];
    (void)snprintf(name, sizeof name, "%s (%s)", e->node_type, e->node);
    return strstr(e->text, name) != NULL;
}

static void show_error(enum status st, const struct err *e)
{
    bool colour = colour_on(stderr);
    const char *red = colour ? "\033[1;31m" : "", *plain = colour ? "\033[0m" : "";
    if (st == ST_INTERRUPTED)
        (void)fprintf(stderr, "snug: interrupted: %s\n", e->text);
    else
        (void)fprintf(stderr, "snug: %serror:%s %s\n", red, plain, e->text);
    if (e->node[0] && !names_node(e))
        (void)fprintf(
            stderr, "  node: %s%s%s%s\n", e->node, e->node_type[0] ? " (" : "", e->node_type,
            e->node_type[0] ? ")" : "");
    show_lines("", e->detail);
    show_lines("hint: ", e->hint);
}

int answer_text(const char *text)
{
    return answer_bytes(text, strlen(text));
}

int answer_bytes(const char *text, size_t n)
{
    struct err e = {0};
    enum status st = ST_OK;
    if (fwrite(text, 1, n, stdout) != n || fflush(stdout) != 0)
        st = err_errno(&e, "could not write to stdout");
    else if (ferror(stdout)) /* an earlier part of the answer is missing */
        st = err_set(&e, ST_IO, "could not write to stdout");
    if (st == ST_OK)
        return status_exit(st);
    show_error(st, &e);
    return status_exit(st);
}

int answer_end(bool json, enum status st, const struct err *e, json_t *content)
{
    int rc = status_exit(st);
    if (json) {
        json_t *d = document_of_status(st, e, content);
        char *text = json_text(d, true);
        int written = answer_text(text);
        written = written ? written : answer_text("\n");
        mem_free(text);
        json_decref(d);
        return rc ? rc : written;
    }
    json_decref(content);
    if (st != ST_OK)
        show_error(st, e);
    else
        rc = answer_text("");
    return rc;
}
