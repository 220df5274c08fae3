/* source.h - bytes of a file or of memory in order, decompressed where they are gzip. */
#ifndef DATA_SOURCE_H
#define DATA_SOURCE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct source;

/* `path` must be a regular file. Gzip is recognised by its first two bytes, not by the name. */
enum status source_open(const char *path, struct source **out, struct err *e) NODISCARD;
/* Reads from the caller's bytes, which must outlive the source; `name` stands in errors. */
enum status source_open_bytes(
    const void *bytes, size_t n, const char *name, struct source **out, struct err *e) NODISCARD;
void source_close(struct source *s);

/* Up to n bytes; fewer only at the end. Damaged or cut off gzip is ST_CORRUPT. */
enum status
source_read(struct source *s, void *into, size_t n, size_t *got, struct err *e) NODISCARD;
/* Exactly n bytes of `what`, else ST_CORRUPT "ends inside its <what>". */
enum status
source_need(struct source *s, void *into, size_t n, const char *what, struct err *e) NODISCARD;
/* ST_CORRUPT unless the end has been reached. For gzip this also checks the checksum. */
enum status source_end(struct source *s, struct err *e) NODISCARD;
/* No source of this size can give more bytes than this in all: what a header promises is held
 * against it before anything is allocated. (Deflate makes at most 1032 bytes out of one.) */
uint64_t source_most_bytes(const struct source *s);
const char *source_name(const struct source *s);

#endif
