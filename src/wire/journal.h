/* journal.h - a run's events on disk: runs/<id>/events.jsonl, one run_event a line.
 *
 *     struct journal j;
 *     TRY(journal_open(&j, dir, epoch, e));      cuts a torn last line off, finds where to go on
 *     TRY(journal_append(&j, EVENT_LOG, payload, e));
 *     journal_close(&j);
 *
 * A line is written by one write and is whole or, where the machine or the disk stopped it, torn:
 * without its line feed. Sequences have no gaps within an epoch. A line that could not be written
 * (disk full) is cut off again, so that the next attempt makes no torn one in the middle.
 *
 * One process at a time appends: the supervisor before and after the work, the work of a graph in
 * between. Readers read meanwhile; what has no line feed yet is not there yet.
 */
#ifndef WIRE_JOURNAL_H
#define WIRE_JOURNAL_H

#include "wire/wire.h"

enum { JOURNAL_LINE_MAX = 16 << 20 }; /* bytes of one event */

struct journal {
    int fd;                  /* -1: not open */
    int64_t epoch, sequence; /* sequence of the last line of this epoch; 0: none */
    bool started, ended;     /* lines of these types are there */
};
/* Opens DIR/events.jsonl, making it where there is none. Lines of a lower epoch are allowed before
 * those of `epoch`; a higher one at the end is ST_CONFLICT. What is no whole event at the end (a
 * torn line, zeros after a loss of power) is cut off. */
enum status
journal_open(struct journal *j, const char *dir, int64_t epoch, struct err *e) NODISCARD;
void journal_close(struct journal *j);
/* Appends an event; takes `payload` (an object, or NULL for {}). */
enum status
journal_append(struct journal *j, enum event_type type, json_t *payload, struct err *e) NODISCARD;

/* A reader that follows a journal. `at` is the offset behind the last line that was taken. */
struct journal_reader {
    int fd; /* -1: not open */
    int64_t at;
    char *buf;
    size_t n, cap, used;
};
/* ST_NOT_FOUND as long as there is no journal. */
enum status journal_read_open(struct journal_reader *r, const char *dir, struct err *e) NODISCARD;
void journal_read_close(struct journal_reader *r);
/* Goes on behind the line that ended at `at` (an earlier value of r->at; 0: from the start). */
void journal_read_seek(struct journal_reader *r, int64_t at);
/* The next whole line as a document (a new reference) and as a run_event that borrows from it;
 * false: nothing more now. A line that is no event is skipped and counted in `*bad` (may be NULL).
 */
bool journal_next(struct journal_reader *r, json_t **doc, struct run_event *out, int *bad);

#endif
