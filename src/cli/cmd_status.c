/* cmd_status.c - `snug status`: the server, its workers, what runs, what waits and why. */
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/remote.h"
#include "cli/run_rows.h"
#include "cli/worker_text.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum { ROWS = 40, RENEW_MS = 1000 };

/* ---- what there is ---- */

static enum status
read_page(struct client *c, const char *status, int64_t offset, json_t **page, struct err *e)
{
    struct client_path p = client_path("/api/runs");
    client_query(&p, "status", status);
    client_query_i64(&p, "limit", ROWS);
    client_query_i64(&p, "offset", offset);
    return client_get(c, p.text, 0, page, e);
}

/* The ROWS oldest, oldest first: in the order of their turns. The API has the newest first. */
static enum status read_runs(struct client *c, const char *status, json_t *d, struct err *e)
{
    json_t *page, *run, *oldest_first = json_array();
    size_t i;
    enum status st = read_page(c, status, 0, &page, e);
    int64_t total = st == ST_OK ? json_get_i64(page, "total", 0) : 0;
    if (total > ROWS) {
        json_decref(page);
        st = read_page(c, status, total - ROWS, &page, e);
    }
    if (st != ST_OK) {
        json_decref(oldest_first);
        return st;
    }
    json_array_foreach(json_object_get(page, "runs"), i, run)(void)
        json_array_insert(oldest_first, 0, run);
    json_put(page, "runs", oldest_first);
    json_put(d, status, page);
    return ST_OK;
}

static enum status read_all(struct client *c, json_t *d, struct err *e)
{
    json_t *health = NULL, *workers = NULL;
    json_put_str(d, "url", client_url(c));
    TRY(client_get(c, "/api/health", 0, &health, e));
    json_put(d, "health", health);
    TRY(client_get(c, "/api/workers", 0, &workers, e));
    json_put(d, "workers", workers);
    TRY(read_runs(c, "running", d, e));
    return read_runs(c, "queued", d, e);
}

/* ---- the page ---- */

static void
add_list(const json_t *page, const char *title, const char *none, bool colour, struct str *out)
{
    const json_t *runs = json_object_get(page, "runs");
    int64_t total = json_get_i64(page, "total", 0);
    struct str rows;
    size_t i;
    json_t *row;
    if (json_array_size(runs) == 0) {
        str_printf(out, "\n%s\n", none);
        return;
    }
    str_init(&rows);
    str_printf(
        out, "\n%s%s%s (%lld)\n", colour ? "\033[1m" : "", title, colour ? "\033[0m" : "",
        (long long)total);
    run_rows_head(&rows);
    json_array_foreach(runs, i, row) run_row(&rows, row);
    table_text(rows.data, out);
    if (total > (int64_t)i)
        str_printf(out, "%lld more\n", (long long)(total - (int64_t)i));
    str_release(&rows);
}

static void page_text(const json_t *d, bool colour, struct str *out)
{
    const json_t *health = json_object_get(d, "health");
    str_printf(
        out, "snug %s at %s\n", json_get_str(health, "version", "?"), json_get_str(d, "url", "?"));
    workers_text(json_object_get(d, "workers"), colour, out);
    add_list(json_object_get(d, "running"), "Running", "Nothing runs.", colour, out);
    add_list(json_object_get(d, "queued"), "Waiting", "Nothing waits.", colour, out);
}

/* ---- a page that renews itself ---- */

static volatile sig_atomic_t stop_asked;

static void on_stop(int signal_number)
{
    (void)signal_number;
    stop_asked = 1;
}

/* How many lines of a terminal a line of text takes: colours take no room. */
static int lines_taken(const char *text, size_t n, int columns)
{
    int shown = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\033')
            i += strcspn(text + i, "m");
        else
            shown += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    return shown > columns ? (shown + columns - 1) / columns : 1;
}

/* Lines that fit the terminal, each ended so that nothing of an older page stays. */
static void draw(const char *text)
{
    struct winsize w = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0;
    int lines = known && w.ws_row > 2 ? w.ws_row - 1 : 24;
    int columns = known && w.ws_col > 0 ? w.ws_col : 80;
    (void)fputs("\033[H", stdout);
    while (*text) {
        size_t n = strcspn(text, "\n");
        lines -= lines_taken(text, n, columns);
        if (lines < 0)
            break;
        (void)printf("%.*s\033[K\n", (int)n, text);
        text += n + (text[n] == '\n');
    }
    (void)fputs("\033[J", stdout);
    (void)fflush(stdout);
}

/* A second, or q. */
static void rest(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    char key = 0;
    if (poll(&p, 1, RENEW_MS) == 1 && (p.revents & POLLIN) && read(STDIN_FILENO, &key, 1) == 1)
        stop_asked = key == 'q' || key == 3 || key == 27;
}

static void show_page(struct client *c, struct str *out)
{
    json_t *d = json_object();
    struct err e = {0};
    str_clear(out);
    if (read_all(c, d, &e) == ST_OK)
        page_text(d, true, out);
    else
        str_printf(out, "%s\n", e.text);
    str_add(out, "\nq leaves\n");
    draw(out->data);
    json_decref(d);
}

static int show_live(const struct args *a, struct client *c)
{
    struct sigaction act = {.sa_handler = on_stop};
    struct termios before, raw;
    struct str out;
    struct err e = {0};
    bool keys = tcgetattr(STDIN_FILENO, &before) == 0;
    (void)sigemptyset(&act.sa_mask);
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
    if (keys) {
        raw = before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    (void)fputs("\033[?1049h\033[?25l", stdout);
    str_init(&out);
    while (!stop_asked) {
        show_page(c, &out);
        rest();
    }
    (void)fputs("\033[?25h\033[?1049l", stdout);
    (void)fflush(stdout);
    if (keys)
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &before);
    str_release(&out);
    return answer_end(a->json, ST_OK, &e, NULL);
}

int cmd_status(const struct args *a)
{
    struct err e = {0};
    struct client *c = NULL;
    struct str out;
    json_t *d;
    int rc;
    bool live =
        !a->json && !a->option[OPTION_ONCE].given && isatty(STDOUT_FILENO) && isatty(STDIN_FILENO);
    enum status st = remote_open(a, &c, &e);
    if (st == ST_OK && live) {
        rc = show_live(a, c);
        client_close(c);
        return rc;
    }
    d = json_object();
    str_init(&out);
    if (st == ST_OK)
        st = read_all(c, d, &e);
    if (st != ST_OK || a->json) {
        rc = answer_end(a->json, st, &e, d);
    } else {
        page_text(d, colour_on(stdout), &out);
        rc = answer_text(out.data);
        json_decref(d);
    }
    str_release(&out);
    client_close(c);
    return rc;
}
