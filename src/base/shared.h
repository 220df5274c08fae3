/* shared.h - a small file that several processes share: bytes, and locks that end with their owner.
 *
 * A lock belongs to one `struct shared` (an open file description): closing it, or the end of the
 * process in any way, gives its locks back, whatever its process number was or becomes. Two opens
 * exclude each other also within one process; two threads with one open do not.
 */
#ifndef BASE_SHARED_H
#define BASE_SHARED_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct shared {
    int fd; /* -1: not open */
    char path[1024];
};

/* Opens a regular file for reading and writing; `make`: an empty one (mode 0600) where there is
 * none, else ST_NOT_FOUND. Links are not followed. */
enum status shared_open(struct shared *s, const char *path, bool make, struct err *e) NODISCARD;
void shared_close(struct shared *s);
/* True when `path` is another file by now, or none. */
bool shared_gone(const struct shared *s);

/* The lock of one byte, exclusive. shared_lock waits, at most wait_ms: then ST_IO. */
enum status shared_lock(struct shared *s, int64_t at, int wait_ms, struct err *e) NODISCARD;
bool shared_try(struct shared *s, int64_t at);
void shared_unlock(struct shared *s, int64_t at);
/* Whether another open holds a lock within [at, at + n). */
bool shared_locked(const struct shared *s, int64_t at, int64_t n);

int64_t shared_size(const struct shared *s); /* -1 unknown */
/* Empties the file and makes it size_bytes zeros. */
enum status shared_clear(struct shared *s, int64_t size_bytes, struct err *e) NODISCARD;
/* n bytes exactly; an end before them is ST_CORRUPT. */
enum status
shared_read(const struct shared *s, int64_t at, void *data, size_t n, struct err *e) NODISCARD;
enum status
shared_write(struct shared *s, int64_t at, const void *data, size_t n, struct err *e) NODISCARD;

#endif
