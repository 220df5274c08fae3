/* remote.h - what the commands that speak to a server share: the client of --server and --key, runs
 * by the first letters of their ids, tables, times. */
#ifndef CLI_REMOTE_H
#define CLI_REMOTE_H

#include "base/client.h"
#include "cli/args.h"

/* With --server, --key and --ca of the command. */
enum status remote_open(const struct args *a, struct client **out, struct err *e) NODISCARD;

/* The id of the one run that `given` names: an id, or its first letters. ST_NOT_FOUND, or
 * ST_CONFLICT with the candidates as detail. */
enum status
remote_run_id(struct client *c, const char *given, char id[33], struct err *e) NODISCARD;
/* The same of the rows {"id"} of a list that a GET gives under `key` ("sweeps"). */
enum status remote_id_of(
    struct client *c, const char *path, const char *key, const char *what, const char *given,
    char id[65], struct err *e) NODISCARD;

/* A command's words: `snug runs show`. The first row is what no word means. */
struct remote_word {
    const char *word;
    int arguments;    /* that it needs after it; -1: one that may be left out */
    const char *what; /* how they are called: "ID", "WORKER CARD" */
    enum status (*run)(
        const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e);
};
/* Opens the client, finds the word, calls it with a document `d` to fill and a text `out` to write,
 * and answers with one of them. */
int remote_command(const struct args *a, const struct remote_word *words, size_t n);

/* A GET whose answer is CSV: all of it as text, and as d's "csv". */
enum status
remote_csv(struct client *c, const char *path, json_t *d, struct str *out, struct err *e) NODISCARD;

/* ---- text ---- */

/* Rows of cells in columns that are as wide as they must be; the last is not padded. Cells are
 * "\t"-separated, rows end with "\n". */
void table_text(const char *rows, struct str *out);
/* What a server's page is answered with: `rows` as a table, the page's members in `d`. Takes both.
 */
void remote_table(struct str *rows, json_t *page, json_t *d, struct str *out);
/* Adds a cell's text: no tabs, line ends or control characters; cut to `most` characters (0: not).
 */
void cell_add(struct str *rows, const char *text, size_t most);
/* "0.4 s", "12 s", "3:20 min", "2:05 h", "4 d". */
void duration_add(struct str *s, double seconds);
/* The seconds from an ISO 8601 time (UTC) to now; negative where it cannot be read. */
double seconds_since(const char *iso);
double seconds_between(const char *from, const char *to);
/* The first 8 letters of an id, or all where it is shorter. */
const char *short_id(const char *id, char buf[9]);
/* "6.0" GiB of bytes. */
double gib_of(int64_t bytes);

#endif
