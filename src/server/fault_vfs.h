/* fault_vfs.h - tests only: a disk in memory under SQLite that fails when told, and loses power.
 *
 * Every write, sync, truncation and deletion is an operation with a number. A file has the bytes
 * that programs see and the bytes that are safe; a sync makes the former the latter. At a power cut
 * each sector of 512 bytes written since the last sync is kept or lost by the seed, and a write
 * that was under way may be torn.
 */
#ifndef SERVER_FAULT_VFS_H
#define SERVER_FAULT_VFS_H

#include <stdbool.h>
#include <stdint.h>

enum fault {
    FAULT_NONE,
    FAULT_FULL,  /* writes: no space */
    FAULT_SHORT, /* writes: half of it, then no space */
    FAULT_IO,    /* everything: input/output error */
    FAULT_CUT,   /* power: this operation and all later ones fail, until fault_power_on */
    FAULT_COUNT
};

#define FAULT_VFS "fault"

/* An empty disk without faults; registers the VFS at the first call. */
void fault_disk_new(uint64_t seed);
/* Operations first .. first + n - 1 (counted from now, the next is 1) meet the fault. */
void fault_plan(enum fault f, int64_t first, int64_t n);
int64_t fault_operations(void); /* since fault_plan or fault_disk_new */
void fault_heal(void);
/* After a cut: what was not safe is gone, locks too. Every connection must be closed by then. */
void fault_power_on(void);
void fault_read_only(bool on); /* opens give read-only files */
/* Turns one byte of a file over; false when it is not that long. */
bool fault_flip(const char *name, int64_t at);

#endif
