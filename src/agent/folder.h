/* folder.h - run folders on the worker's disk (wire/wire.h says what is in one): accept, read, end,
 * forget.
 *
 * start.json is the server's start_order with two members of ours: "worker", the agent that
 * accepted it (several agents share a SNUG_HOME), and "lease", the agent's lease file.
 *
 * FORMAT of a lease file: two decimal numbers in 20 digits each, a blank between, a line feed:
 * until when (clock_ns) the server trusts the agent, and the boot of the machine (a hash). Written
 * in place, 42 bytes.
 */
#ifndef AGENT_FOLDER_H
#define AGENT_FOLDER_H

#include "base/process.h"
#include "wire/journal.h"
#include "wire/wire.h"

enum { RUN_FOLDER_MARK = 1100 };

struct run_folder {
    char dir[1024];
    json_t *doc;          /* start.json; NULL: not read */
    struct start_order o; /* borrows from doc */
    const char *worker, *lease;
};
/* ST_NOT_FOUND: no start.json (done.json: forgotten). */
enum status run_folder_read(struct run_folder *f, const char *dir, struct err *e) NODISCARD;
void run_folder_release(struct run_folder *f);
/* Path of a file within, into buf. */
const char *run_folder_path(const char *dir, const char *name, char *buf, size_t cap);

enum run_folder_seen {
    FOLDER_NEW,  /* accepted: start it */
    FOLDER_SEEN, /* this epoch, or a later one, was accepted before: success without effect */
};
/* Accepts a start: makes the folder and start.json, on the disk when it returns. The journal is
 * there (empty) too. What an earlier attempt left (stop, result.json) is removed; nothing of it may
 * live. */
enum status run_folder_accept(
    const char *dir, const json_t *order, const char *worker, const char *lease,
    enum run_folder_seen *seen, struct err *e) NODISCARD;
/* start.json becomes done.json, the journal goes. Outputs and log stay. */
enum status run_folder_forget(const char *dir, struct err *e) NODISCARD;
/* Removes the folder with everything in it. */
enum status run_folder_remove(const char *dir, struct err *e) NODISCARD;

/* Whether a supervisor holds the folder's lock. */
bool run_folder_locked(const char *dir);
/* The supervisor by its pid file; pid 0 where there is none, or it is another process by now. */
struct process run_folder_supervisor(const char *dir);
/* Everything that belongs to the run by session or by environment. `variable` is room for the mark.
 */
struct process_tree run_folder_tree(const char *dir, char variable[RUN_FOLDER_MARK]);
/* Why it is asked to stop: DIR/stop, before the signal. The first one stays. */
enum status run_folder_stop_write(const char *dir, enum cause why, struct err *e) NODISCARD;
/* False: nobody asked. */
bool run_folder_stop_read(const char *dir, enum cause *why);

/* A run_end as a document: status and text of the cause. `text` NULL: the cause's own. */
json_t *
run_folder_end(enum cause why, const char *text, const char *hint, int exit_code, int signal);
/* Takes the lock, kills what is left of the tree, and appends `ended` where it is missing: for a
 * run whose supervisor is gone. ST_BUSY: a supervisor lives, or the tree does not die. */
enum status run_folder_bury(
    const struct run_folder *f, enum cause why, const char *text, struct err *e) NODISCARD;

/* ---- leases ---- */
struct lease {
    int fd; /* -1: none */
};
enum status lease_open(struct lease *l, const char *path, bool write, struct err *e) NODISCARD;
void lease_close(struct lease *l);
void lease_renew(const struct lease *l, int64_t until_ns);
/* 0: no lease was ever given, or it is of another boot; then nothing is decided by it. */
/* Names this boot of the machine: monotonic times mean something within one only. Never 0. */
uint64_t lease_boot(void);
int64_t lease_until_ns(const struct lease *l);

#endif
