/* env.h - the outside world: clock, files, processes. Nothing else calls the system for these. */
#ifndef BASE_ENV_H
#define BASE_ENV_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

int64_t clock_ns(void);          /* monotonic */
int64_t clock_wall_us(void);     /* since 1970 */
void clock_sleep_ms(int64_t ms); /* at most; a signal ends it earlier */
/* From the system's generator, for names and keys that nobody may guess. */
void random_bytes(void *out, size_t n);

/* Reads a whole regular file; `*data` (plus a NUL after it) is freed by mem_free. Larger than
 * `limit_bytes` is ST_CORRUPT. Files are read, not mapped: mapped pages would count in RSS. */
enum status file_read(
    const char *path, size_t limit_bytes, char **data, size_t *size_bytes, struct err *e) NODISCARD;
/* Writes a file whole: temporary file beside it, fsync, rename, fsync of the folder. A failure or
 * a kill at any byte leaves the old file (or none) and no half-written one under `path`. Where
 * `path` is a device or a pipe it is written directly, and `temporary` is empty. */
struct file_whole {
    FILE *out;
    char path[1024], temporary[1056];
};
enum status file_whole_begin(struct file_whole *f, const char *path, struct err *e) NODISCARD;
enum status file_whole_commit(struct file_whole *f, struct err *e) NODISCARD;
void file_whole_abort(struct file_whole *f); /* harmless after commit */
/* For a program that ends at once: removes the temporary file that is being written, if any. Safe
 * in a signal handler. What kill -9 leaves is removed by the next write into the same folder. */
void file_whole_drop(void);
enum status
file_write(const char *path, const void *data, size_t size_bytes, struct err *e) NODISCARD;
bool file_exists(const char *path);
bool dir_exists(const char *path);
enum status dir_make(const char *path, struct err *e) NODISCARD; /* with parents, mode 0700 */
/* Free bytes on the file system that holds `path` (or its nearest existing parent); -1 unknown. */
int64_t disk_free_bytes(const char *path);
/* NFS, SMB, Ceph, 9P, AFS: where locks of files and shared memory cannot be trusted. Of a path that
 * does not exist, its nearest existing parent. */
bool disk_is_network(const char *path);
int64_t file_size_bytes(const char *path); /* -1: no such file */

/* $SNUG_HOME, else $XDG_DATA_HOME/snug, else ~/.local/share/snug. Static, one a thread. */
const char *snug_home(void);
/* Folder part of `path` with its slash ("" when there is none), into buf. */
const char *path_dir(const char *path, char *buf, size_t cap);
/* `name` when absolute, else dir/name, into buf. */
const char *path_join(const char *dir, const char *name, char *buf, size_t cap);
/* True when relative `name` stays below its folder: not absolute, no "..", no empty part. */
bool path_is_inside(const char *name);

/* From /proc/self/status; -1 where unreadable. */
int64_t process_rss_bytes(void);
int64_t process_rss_peak_bytes(void); /* VmHWM */
void process_rss_peak_reset(void);    /* writes 5 to clear_refs; silent where not allowed */
/* The least of available memory, cgroup limit and RLIMIT_AS, less 256 MiB (requirement O2). */
int64_t host_capacity_bytes(void);

#endif
