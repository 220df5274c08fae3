/* fault_vfs.c - tests only: the disk in memory that fails when told (fault_vfs.h). */
#include "server/fault_vfs.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

enum { FILES_MAX = 16, SECTOR = 512, SHM_PIECES = 64, SHM_LOCKS = SQLITE_SHM_NLOCK };

struct bytes {
    unsigned char *data;
    int64_t n, cap;
};

struct disk_file {
    char name[256];
    bool there, safe_there;
    struct bytes now, safe;
    unsigned char *dirty; /* a flag a sector of `now` */
    int64_t dirty_cap;
    int shared_locks;
    bool reserved, exclusive;
    void *shm[SHM_PIECES];
    int shm_shared[SHM_LOCKS];
    bool shm_exclusive[SHM_LOCKS];
};

/* An open file. */
struct handle {
    sqlite3_file base;
    struct disk_file *file;
    int lock;
    unsigned shm_shared, shm_exclusive;
    bool delete_at_close;
};

/* The only disk of a test program. */
static struct {
    struct disk_file files[FILES_MAX];
    enum fault fault;
    int64_t first, last, operations;
    bool off, read_only;
    struct rng rng;
    uint64_t time;
} disk;

/* ---- bytes ------------------------------------------------------------------------------------
 */

static void bytes_size(struct bytes *b, int64_t n)
{
    if (n > b->cap) {
        b->cap = 2 * n;
        b->data = mem_resize(b->data, (size_t)b->cap);
    }
    if (n > b->n)
        memset(b->data + b->n, 0, (size_t)(n - b->n));
    b->n = n;
}

static void mark_dirty(struct disk_file *f, int64_t at, int64_t n)
{
    int64_t last = (at + n + SECTOR - 1) / SECTOR;
    if (last > f->dirty_cap) {
        f->dirty = mem_resize(f->dirty, (size_t)(2 * last));
        memset(f->dirty + f->dirty_cap, 0, (size_t)(2 * last - f->dirty_cap));
        f->dirty_cap = 2 * last;
    }
    for (int64_t i = at / SECTOR; i < last; i++)
        f->dirty[i] = 1;
}

static void make_safe(struct disk_file *f)
{
    bytes_size(&f->safe, f->now.n);
    if (f->now.n)
        memcpy(f->safe.data, f->now.data, (size_t)f->now.n);
    if (f->dirty_cap)
        memset(f->dirty, 0, (size_t)f->dirty_cap);
    f->safe_there = true;
}

/* What the disk holds when the power is back. */
static void lose_unsafe(struct disk_file *f)
{
    if (f->there && !f->safe_there && rng_below(&disk.rng, 2)) {
        f->there = false; /* the folder's entry was not safe */
        f->now.n = 0;
    }
    if (!f->there && f->safe_there && rng_below(&disk.rng, 2)) {
        f->there = true; /* nor was its removal */
        bytes_size(&f->now, f->safe.n);
        memcpy(f->now.data, f->safe.data, (size_t)f->safe.n);
    }
    if (!f->there)
        return;
    bool longer = rng_below(&disk.rng, 2) != 0; /* a new length may be safe before the bytes are */
    int64_t n = longer || !f->safe_there ? f->now.n : f->safe.n;
    for (int64_t i = 0; i * SECTOR < f->now.n && i < f->dirty_cap; i++) {
        if (!f->dirty[i] || rng_below(&disk.rng, 2))
            continue;
        for (int64_t at = i * SECTOR; at < (i + 1) * SECTOR && at < f->now.n; at++)
            f->now.data[at] = at < f->safe.n ? f->safe.data[at] : 0;
    }
    bytes_size(&f->now, n);
    make_safe(f);
}

/* ---- faults -----------------------------------------------------------------------------------
 */

/* What the next operation meets. */
static enum fault step(void)
{
    int64_t i = ++disk.operations;
    if (disk.off)
        return FAULT_CUT;
    if (disk.fault == FAULT_NONE || i < disk.first || i > disk.last)
        return FAULT_NONE;
    disk.off = disk.fault == FAULT_CUT;
    return disk.fault;
}

void fault_plan(enum fault f, int64_t first, int64_t n)
{
    disk.fault = f;
    disk.first = first;
    disk.last = first + n - 1;
    disk.operations = 0;
}

int64_t fault_operations(void)
{
    return disk.operations;
}

void fault_heal(void)
{
    disk.fault = FAULT_NONE;
}

void fault_read_only(bool on)
{
    disk.read_only = on;
}

static void drop_shared_memory(struct disk_file *f)
{
    for (int i = 0; i < SHM_PIECES; i++) {
        mem_free(f->shm[i]);
        f->shm[i] = NULL;
    }
}

void fault_power_on(void)
{
    for (int i = 0; i < FILES_MAX; i++) {
        struct disk_file *f = &disk.files[i];
        ASSERT(!f->shared_locks && !f->exclusive);
        lose_unsafe(f);
        drop_shared_memory(f);
    }
    disk.off = false;
    disk.fault = FAULT_NONE;
}

/* ---- files ------------------------------------------------------------------------------------
 */

static struct disk_file *find(const char *name, bool make)
{
    struct disk_file *place = NULL;
    for (int i = FILES_MAX - 1; i >= 0; i--) {
        if (str_eq(disk.files[i].name, name))
            return &disk.files[i];
        if (!disk.files[i].name[0])
            place = &disk.files[i];
    }
    if (!make)
        return NULL;
    ASSERT(place && strlen(name) < sizeof place->name);
    (void)snprintf(place->name, sizeof place->name, "%s", name);
    return place;
}

bool fault_flip(const char *name, int64_t at)
{
    struct disk_file *f = find(name, false);
    if (!f || at >= f->now.n)
        return false;
    f->now.data[at] ^= 0xff;
    make_safe(f);
    return true;
}

static int file_close(sqlite3_file *base)
{
    struct handle *h = (struct handle *)base;
    if (h->delete_at_close)
        h->file->there = h->file->safe_there = false;
    return SQLITE_OK;
}

static int file_read(sqlite3_file *base, void *out, int n, sqlite3_int64 at)
{
    struct disk_file *f = ((struct handle *)base)->file;
    if (disk.off)
        return SQLITE_IOERR_READ;
    int64_t have = f->now.n - at;
    have = have < 0 ? 0 : have > n ? n : have;
    if (have)
        memcpy(out, f->now.data + at, (size_t)have);
    if (have < n)
        memset((char *)out + have, 0, (size_t)(n - have));
    return have < n ? SQLITE_IOERR_SHORT_READ : SQLITE_OK;
}

static int file_write(sqlite3_file *base, const void *data, int n, sqlite3_int64 at)
{
    struct disk_file *f = ((struct handle *)base)->file;
    bool was_off = disk.off;
    enum fault met = step();
    int64_t done = n;
    if (met == FAULT_SHORT)
        done = n / 2;
    else if (met == FAULT_CUT && !was_off)
        done = (int64_t)rng_below(&disk.rng, (uint64_t)n + 1); /* torn */
    else if (met != FAULT_NONE)
        done = 0;
    if (done) {
        if (at + done > f->now.n)
            bytes_size(&f->now, at + done);
        memcpy(f->now.data + at, data, (size_t)done);
        mark_dirty(f, at, done);
    }
    if (met == FAULT_FULL || met == FAULT_SHORT)
        return SQLITE_FULL;
    return met == FAULT_NONE ? SQLITE_OK : SQLITE_IOERR_WRITE;
}

static int file_truncate(sqlite3_file *base, sqlite3_int64 n)
{
    enum fault met = step();
    if (met == FAULT_IO || met == FAULT_CUT)
        return SQLITE_IOERR_TRUNCATE;
    struct disk_file *f = ((struct handle *)base)->file;
    mark_dirty(f, n, f->now.n > n ? f->now.n - n : 0);
    bytes_size(&f->now, n);
    return SQLITE_OK;
}

static int file_sync(sqlite3_file *base, int flags)
{
    (void)flags;
    enum fault met = step();
    if (met == FAULT_IO || met == FAULT_CUT)
        return SQLITE_IOERR_FSYNC;
    make_safe(((struct handle *)base)->file);
    return SQLITE_OK;
}

static int file_size(sqlite3_file *base, sqlite3_int64 *out)
{
    *out = ((struct handle *)base)->file->now.n;
    return SQLITE_OK;
}

static int file_lock(sqlite3_file *base, int want)
{
    struct handle *h = (struct handle *)base;
    struct disk_file *f = h->file;
    if (want <= h->lock)
        return SQLITE_OK;
    int others = f->shared_locks - (h->lock >= SQLITE_LOCK_SHARED);
    if (f->exclusive || (want == SQLITE_LOCK_RESERVED && f->reserved) ||
        (want == SQLITE_LOCK_EXCLUSIVE &&
         (others || (f->reserved && h->lock < SQLITE_LOCK_RESERVED))))
        return SQLITE_BUSY;
    if (h->lock < SQLITE_LOCK_SHARED)
        f->shared_locks++;
    if (want >= SQLITE_LOCK_RESERVED)
        f->reserved = true;
    if (want == SQLITE_LOCK_EXCLUSIVE)
        f->exclusive = true;
    h->lock = want;
    return SQLITE_OK;
}

static int file_unlock(sqlite3_file *base, int to)
{
    struct handle *h = (struct handle *)base;
    if (h->lock <= to)
        return SQLITE_OK;
    if (h->lock >= SQLITE_LOCK_RESERVED)
        h->file->reserved = h->file->exclusive = false;
    if (to == SQLITE_LOCK_NONE)
        h->file->shared_locks--;
    h->lock = to;
    return SQLITE_OK;
}

static int file_reserved(sqlite3_file *base, int *out)
{
    *out = ((struct handle *)base)->file->reserved;
    return SQLITE_OK;
}

static int file_control(sqlite3_file *base, int op, void *arg)
{
    (void)base;
    (void)op;
    (void)arg;
    return SQLITE_NOTFOUND;
}

static int file_sector(sqlite3_file *base)
{
    (void)base;
    return SECTOR;
}

/* As the system's: a write changes no byte outside of it, also when power fails. */
static int file_traits(sqlite3_file *base)
{
    (void)base;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static int shm_map(sqlite3_file *base, int piece, int size, int extend, void volatile **out)
{
    struct disk_file *f = ((struct handle *)base)->file;
    ASSERT(piece < SHM_PIECES);
    if (!f->shm[piece] && extend)
        f->shm[piece] = mem_alloc((size_t)size);
    *out = f->shm[piece];
    return SQLITE_OK;
}

static int shm_lock(sqlite3_file *base, int first, int n, int flags)
{
    struct handle *h = (struct handle *)base;
    struct disk_file *f = h->file;
    bool exclusive = (flags & SQLITE_SHM_EXCLUSIVE) != 0, lock = (flags & SQLITE_SHM_LOCK) != 0;
    for (int i = first; lock && i < first + n; i++)
        if (f->shm_exclusive[i] || (exclusive && f->shm_shared[i]))
            return SQLITE_BUSY;
    for (int i = first; i < first + n; i++) {
        unsigned bit = 1U << i, *mine = exclusive ? &h->shm_exclusive : &h->shm_shared;
        if (((*mine & bit) != 0) == lock)
            continue;
        *mine ^= bit;
        if (exclusive)
            f->shm_exclusive[i] = lock;
        else
            f->shm_shared[i] += lock ? 1 : -1;
    }
    return SQLITE_OK;
}

static void shm_barrier(sqlite3_file *base)
{
    (void)base;
}

static int shm_unmap(sqlite3_file *base, int delete)
{
    struct handle *h = (struct handle *)base;
    for (int i = 0; i < SHM_LOCKS; i++) {
        if (h->shm_exclusive >> i & 1)
            h->file->shm_exclusive[i] = false;
        if (h->shm_shared >> i & 1)
            h->file->shm_shared[i]--;
    }
    h->shm_exclusive = h->shm_shared = 0;
    for (int i = 0; delete &&i < SHM_PIECES; i++) {
        mem_free(h->file->shm[i]);
        h->file->shm[i] = NULL;
    }
    return SQLITE_OK;
}

static const sqlite3_io_methods methods = {
    .iVersion = 2,
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_unlock,
    .xCheckReservedLock = file_reserved,
    .xFileControl = file_control,
    .xSectorSize = file_sector,
    .xDeviceCharacteristics = file_traits,
    .xShmMap = shm_map,
    .xShmLock = shm_lock,
    .xShmBarrier = shm_barrier,
    .xShmUnmap = shm_unmap};

/* ---- the disk ---------------------------------------------------------------------------------
 */

static int
vfs_open(sqlite3_vfs *vfs, sqlite3_filename name, sqlite3_file *base, int flags, int *out_flags)
{
    (void)vfs;
    struct handle *h = (struct handle *)base;
    static int temporary;
    char own[32];
    *h = (struct handle){.delete_at_close = (flags & SQLITE_OPEN_DELETEONCLOSE) != 0};
    if (!name)
        (void)snprintf(own, sizeof own, "temporary-%d", temporary++);
    struct disk_file *f = find(name ? name : own, true);
    if (disk.off || (!f->there && !(flags & SQLITE_OPEN_CREATE)))
        return SQLITE_CANTOPEN;
    if (!f->there) {
        f->there = true;
        bytes_size(&f->now, 0);
    }
    h->file = f;
    h->base.pMethods = &methods;
    if (disk.read_only)
        flags = (flags & ~(SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE)) | SQLITE_OPEN_READONLY;
    if (out_flags)
        *out_flags = flags;
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int sync_folder)
{
    (void)vfs;
    enum fault met = step();
    struct disk_file *f = find(name, false);
    if (met == FAULT_IO || met == FAULT_CUT)
        return SQLITE_IOERR_DELETE;
    if (!f || !f->there)
        return SQLITE_IOERR_DELETE_NOENT;
    f->there = false;
    bytes_size(&f->now, 0);
    if (sync_folder) {
        f->safe_there = false;
        bytes_size(&f->safe, 0);
    }
    return SQLITE_OK;
}

static int vfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *out)
{
    (void)vfs;
    struct disk_file *f = find(name, false);
    *out = f && f->there && (flags != SQLITE_ACCESS_EXISTS || f->now.n > 0);
    return disk.off ? SQLITE_IOERR_ACCESS : SQLITE_OK;
}

static int vfs_path(sqlite3_vfs *vfs, const char *name, int n, char *out)
{
    (void)vfs;
    (void)snprintf(out, (size_t)n, "%s", name);
    return SQLITE_OK;
}

static int vfs_random(sqlite3_vfs *vfs, int n, char *out)
{
    (void)vfs;
    for (int i = 0; i < n; i++)
        out[i] = (char)rng_u32(&disk.rng);
    return n;
}

static int vfs_sleep(sqlite3_vfs *vfs, int us)
{
    (void)vfs;
    return us; /* nobody else could change anything meanwhile */
}

static int vfs_time(sqlite3_vfs *vfs, sqlite3_int64 *out)
{
    (void)vfs;
    *out = (sqlite3_int64)(UINT64_C(212000000000000) + disk.time++);
    return SQLITE_OK;
}

static int vfs_last_error(sqlite3_vfs *vfs, int n, char *out)
{
    (void)vfs;
    if (n)
        *out = '\0';
    return 0;
}

void fault_disk_new(uint64_t seed)
{
    static sqlite3_vfs vfs = {
        .iVersion = 2,
        .szOsFile = sizeof(struct handle),
        .mxPathname = 255,
        .zName = FAULT_VFS,
        .xOpen = vfs_open,
        .xDelete = vfs_delete,
        .xAccess = vfs_access,
        .xFullPathname = vfs_path,
        .xRandomness = vfs_random,
        .xSleep = vfs_sleep,
        .xCurrentTimeInt64 = vfs_time,
        .xGetLastError = vfs_last_error};
    if (!sqlite3_vfs_find(FAULT_VFS))
        (void)sqlite3_vfs_register(&vfs, 0);
    for (int i = 0; i < FILES_MAX; i++) {
        struct disk_file *f = &disk.files[i];
        mem_free(f->now.data);
        mem_free(f->safe.data);
        mem_free(f->dirty);
        drop_shared_memory(f);
    }
    memset(&disk, 0, sizeof disk);
    rng_init(&disk.rng, seed, 1, 0);
}
