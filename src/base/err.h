/* err.h - what a fallible function answers: a status, and the text that explains it.
 *
 * Every fallible function returns `enum status` and takes `struct err *e` last. On success `e` is
 * untouched. `struct err` has a fixed size and never allocates, so it works when memory is gone.
 * Text: lower case, no full stop, subject in quotes; "could not" if a retry may help, "cannot" if
 * not. Hint: a sentence that says what to do next.
 *
 *     if (n > LIMIT)
 *         return err_set(e, ST_INVALID, "layer \"%s\" has %d ports, more than %d", id, n, LIMIT);
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdbool.h>

enum status {
#define X(name, exit_status, code, http) ST_##name,
#include "base/status.def"
#undef X
    ST_COUNT
};

struct err {
    enum status status;
    char text[768];    /* one line */
    char detail[4096]; /* more lines: figures, holders, what was tried */
    char hint[1024];   /* what to do next */
    char node[128];    /* id of the graph node it belongs to, or "" */
    char node_type[64];
    char type[32]; /* a class of errors that users know by name ("NodeOOMError"), or "" */
};

#define NODISCARD __attribute__((warn_unused_result))
#define PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))

/* Fills `e` (which may be NULL) and returns `status`. */
enum status err_set(struct err *e, enum status status, const char *fmt, ...) PRINTF(3, 4);
/* err_set with ": <strerror(errno)>" at the end; ST_IO, or ST_NOT_FOUND for ENOENT. */
enum status err_errno(struct err *e, const char *fmt, ...) PRINTF(2, 3);
/* The rest change an error that has been set. */
void err_hint(struct err *e, const char *fmt, ...) PRINTF(2, 3);
void err_detail(struct err *e, const char *fmt, ...) PRINTF(2, 3);
/* Puts "<fmt>: " before the text. */
void err_prefix(struct err *e, const char *fmt, ...) PRINTF(2, 3);
/* Sets the node unless an inner call has. */
void err_node(struct err *e, const char *id, const char *type);

int status_exit(enum status s);         /* exit status of the program */
int status_http(enum status s);         /* status of an HTTP answer */
const char *status_code(enum status s); /* "invalid", for JSON documents */

/* Returns from the enclosing function when `call` fails. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        enum status try_st_ = (call);                                                              \
        if (try_st_ != ST_OK)                                                                      \
            return try_st_;                                                                        \
    } while (0)
/* The same, but goes to `out:`; the function has a variable `enum status st`. */
#define TRY_OUT(call)                                                                              \
    do {                                                                                           \
        st = (call);                                                                               \
        if (st != ST_OK)                                                                           \
            goto out;                                                                              \
    } while (0)

/* Our own invariants; on in release. Outside input is never asserted. */
#define ASSERT(cond) ((cond) ? (void)0 : assert_fail(#cond, __FILE__, __LINE__))
_Noreturn void assert_fail(const char *cond, const char *file, int line);

#endif
