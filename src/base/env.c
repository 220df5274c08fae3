/* env.c - clock, files, processes. */
#include "base/env.h"

#include "base/mem.h"
#include "base/str.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

int64_t clock_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void random_bytes(void *out, size_t n)
{
    for (char *at = out; n > 0;) {
        ssize_t got = getrandom(at, n, 0);
        ASSERT(got > 0 || errno == EINTR); /* it does not fail otherwise */
        at += got > 0 ? got : 0;
        n -= got > 0 ? (size_t)got : 0;
    }
}

int64_t clock_wall_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

void clock_sleep_ms(int64_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL);
}

enum status
file_read(const char *path, size_t limit_bytes, char **data, size_t *size_bytes, struct err *e)
{
    enum status st = ST_OK;
    char *buf = NULL;
    FILE *in = fopen(path, "rb");
    if (!in)
        return err_errno(e, "cannot open \"%s\"", path);
    struct stat s;
    if (fstat(fileno(in), &s) != 0) {
        st = err_errno(e, "cannot read \"%s\"", path);
        goto out;
    }
    if (!S_ISREG(s.st_mode)) {
        st = err_set(e, ST_INVALID, "\"%s\" is not a file", path);
        goto out;
    }
    if ((uint64_t)s.st_size > limit_bytes) {
        st = err_set(
            e, ST_CORRUPT, "\"%s\" has %lld bytes, more than the %zu allowed here", path,
            (long long)s.st_size, limit_bytes);
        goto out;
    }
    size_t n = (size_t)s.st_size;
    buf = mem_try_alloc(n + 1);
    if (!buf) {
        st = err_set(e, ST_OOM, "no host memory for the %zu bytes of \"%s\"", n, path);
        goto out;
    }
    if (fread(buf, 1, n, in) != n) {
        st = err_errno(e, "could not read \"%s\"", path);
        goto out;
    }
    buf[n] = 0;
    *data = buf;
    *size_bytes = n;
    buf = NULL;
out:
    mem_free(buf);
    (void)fclose(in);
    return st;
}

/* The temporary file that is being written: all that file_whole_drop, which may run in a signal
 * handler or without memory, can reach. */
static char pending[1056];
static pthread_mutex_t pending_lock = PTHREAD_MUTEX_INITIALIZER; /* between threads that write */

/* NULL: none. Of two files at once the later one counts. */
static void pending_set(const char *temporary)
{
    (void)pthread_mutex_lock(&pending_lock);
    (void)snprintf(pending, sizeof pending, "%s", temporary ? temporary : "");
    (void)pthread_mutex_unlock(&pending_lock);
}

void file_whole_drop(void)
{
    if (pending[0])
        (void)unlink(pending);
}

/* The process number in "<anything><suffix>.<number>.part"; 0 for other names. */
static long part_owner(const char *name, const char *suffix)
{
    size_t n = strlen(name), digits = 0, k = strlen(suffix);
    if (n < 5 || strcmp(name + n - 5, ".part") != 0)
        return 0;
    n -= 5;
    while (digits < n && digits < 10 && name[n - digits - 1] >= '0' && name[n - digits - 1] <= '9')
        digits++;
    n -= digits;
    if (digits == 0 || n < k + 1 || name[n - 1] != '.' || strncmp(name + n - 1 - k, suffix, k) != 0)
        return 0;
    return strtol(name + n, NULL, 10);
}

/* Removes temporary files of processes that were killed while writing files of the same kind into
 * the same folder. Two proofs that the owner is gone: no such process here, and no lock on the
 * file, which a process on another machine would hold. */
static void remove_leftovers(const char *path)
{
    char dir[1024], file[1400];
    const char *slash = strrchr(path, '/'), *suffix = strrchr(slash ? slash : path, '.');
    DIR *d = suffix ? opendir(path_dir(path, dir, sizeof dir)[0] ? dir : ".") : NULL;
    for (struct dirent *entry; d && (entry = readdir(d));) {
        long owner = part_owner(entry->d_name, suffix);
        if (owner <= 0 || kill((pid_t)owner, 0) == 0 || errno != ESRCH)
            continue;
        int fd = open(
            path_join(dir, entry->d_name, file, sizeof file), O_RDWR | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            (void)unlink(file);
        (void)close(fd);
    }
    if (d)
        (void)closedir(d);
}

/* A device, a pipe or a socket is written itself: a rename would put a file in its place. */
static bool is_special(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && !S_ISREG(s.st_mode) && !S_ISDIR(s.st_mode);
}

enum status file_whole_begin(struct file_whole *f, const char *path, struct err *e)
{
    *f = (struct file_whole){0};
    if (strlen(path) >= sizeof f->path)
        return err_set(e, ST_INVALID, "path \"%.60s...\" is too long", path);
    (void)snprintf(f->path, sizeof f->path, "%s", path);
    if (is_special(path)) {
        f->out = fopen(path, "wb");
        return f->out ? ST_OK : err_errno(e, "cannot write \"%s\"", path);
    }
    (void)snprintf(f->temporary, sizeof f->temporary, "%s.%ld.part", path, (long)getpid());
    remove_leftovers(path);
    pending_set(f->temporary);
    f->out = fopen(f->temporary, "wb");
    if (!f->out) {
        pending_set(NULL);
        return err_errno(e, "cannot write \"%s\"", path);
    }
    (void)flock(fileno(f->out), LOCK_EX | LOCK_NB);
    return ST_OK;
}

static void sync_folder(const char *path)
{
    char dir[1024];
    int fd = open(path_dir(path, dir, sizeof dir)[0] ? dir : ".", O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return;
    (void)fsync(fd);
    (void)close(fd);
}

enum status file_whole_commit(struct file_whole *f, struct err *e)
{
    FILE *out = f->out;
    f->out = NULL;
    bool special = !f->temporary[0];
    bool bad = fflush(out) != 0 || ferror(out) || (!special && fsync(fileno(out)) != 0);
    int code = errno;
    bad = fclose(out) != 0 || bad;
    errno = code;
    if (special)
        return bad ? err_errno(e, "could not write \"%s\"", f->path) : ST_OK;
    if (bad || rename(f->temporary, f->path) != 0) {
        enum status st = err_errno(e, "could not write \"%s\"", f->path);
        (void)unlink(f->temporary);
        pending_set(NULL);
        return st;
    }
    pending_set(NULL);
    sync_folder(f->path);
    return ST_OK;
}

void file_whole_abort(struct file_whole *f)
{
    if (!f->out)
        return;
    (void)fclose(f->out);
    if (f->temporary[0])
        (void)unlink(f->temporary);
    pending_set(NULL);
    f->out = NULL;
}

enum status file_write(const char *path, const void *data, size_t size_bytes, struct err *e)
{
    struct file_whole f;
    TRY(file_whole_begin(&f, path, e));
    if (fwrite(data, 1, size_bytes, f.out) != size_bytes) {
        enum status st = err_errno(e, "could not write \"%s\"", path);
        file_whole_abort(&f);
        return st;
    }
    return file_whole_commit(&f, e);
}

bool file_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode);
}

bool dir_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

enum status dir_make(const char *path, struct err *e)
{
    char part[PATH_MAX];
    if (strlen(path) >= sizeof part)
        return err_set(e, ST_INVALID, "path \"%.60s...\" is too long", path);
    (void)snprintf(part, sizeof part, "%s", path);
    for (char *p = part + 1;; p++) {
        if (*p && *p != '/')
            continue;
        char end = *p;
        *p = 0;
        if (mkdir(part, 0700) != 0 && errno != EEXIST)
            return err_errno(e, "cannot make folder \"%s\"", part);
        if (!end)
            break;
        *p = end;
    }
    if (!dir_exists(path))
        return err_set(e, ST_IO, "\"%s\" is in the way: not a folder", path);
    return ST_OK;
}

/* The file system of `path`, or of its nearest existing parent. */
static bool disk_find(const char *path, struct statfs *s)
{
    char part[PATH_MAX];
    (void)snprintf(part, sizeof part, "%s", path);
    while (statfs(part[0] ? part : ".", s) != 0) {
        char *slash = strrchr(part, '/');
        if (!part[0])
            return false;
        if (slash == part && part[1])
            part[1] = 0;
        else if (slash && slash != part)
            *slash = 0;
        else
            part[0] = 0;
    }
    return true;
}

int64_t disk_free_bytes(const char *path)
{
    struct statfs s;
    return disk_find(path, &s) ? (int64_t)s.f_bavail * (int64_t)s.f_frsize : -1;
}

bool disk_is_network(const char *path)
{
    static const uint32_t kinds[] = {
        0x6969,     /* NFS */
        0x517b,     /* SMB */
        0xff534d42, /* CIFS */
        0xfe534d42, /* SMB2 */
        0x00c36400, /* Ceph */
        0x01021997, /* 9P */
        0x5346414f, /* AFS */
        0x0bd00bd0  /* Lustre */
    };
    struct statfs s;
    if (!disk_find(path, &s))
        return false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if ((uint32_t)s.f_type == kinds[i])
            return true;
    return false;
}

int64_t file_size_bytes(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 ? (int64_t)s.st_size : -1;
}

const char *snug_home(void)
{
    static _Thread_local char path[PATH_MAX];
    const char *home = getenv("SNUG_HOME"), *xdg = getenv("XDG_DATA_HOME"), *user = getenv("HOME");
    if (home && *home)
        (void)snprintf(path, sizeof path, "%s", home);
    else if (xdg && *xdg)
        (void)snprintf(path, sizeof path, "%s/snug", xdg);
    else
        (void)snprintf(path, sizeof path, "%s/.local/share/snug", user && *user ? user : "/tmp");
    return path;
}

const char *path_dir(const char *path, char *buf, size_t cap)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 0;
    if (n >= cap)
        n = 0;
    memcpy(buf, path, n);
    buf[n] = 0;
    return buf;
}

const char *path_join(const char *dir, const char *name, char *buf, size_t cap)
{
    size_t n = strlen(dir);
    if (name[0] == '/' || n == 0)
        (void)snprintf(buf, cap, "%s", name);
    else
        (void)snprintf(buf, cap, "%s%s%s", dir, dir[n - 1] == '/' ? "" : "/", name);
    return buf;
}

bool path_is_inside(const char *name)
{
    if (!name[0] || name[0] == '/')
        return false;
    for (const char *p = name; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p += n;
        if (*p == '/')
            p++;
    }
    return true;
}

/* A "<key>  <number> kB" line of a /proc file, in bytes; -1 when there is none. */
static int64_t proc_kib(const char *file, const char *key)
{
    FILE *in = fopen(file, "r");
    if (!in)
        return -1;
    char line[256];
    int64_t value = -1;
    size_t n = strlen(key);
    while (fgets(line, sizeof line, in)) {
        if (strncmp(line, key, n) == 0) {
            value = (int64_t)strtoll(line + n, NULL, 10) * 1024;
            break;
        }
    }
    (void)fclose(in);
    return value;
}

int64_t process_rss_bytes(void)
{
    return proc_kib("/proc/self/status", "VmRSS:");
}

int64_t process_rss_peak_bytes(void)
{
    return proc_kib("/proc/self/status", "VmHWM:");
}

void process_rss_peak_reset(void)
{
    FILE *out = fopen("/proc/self/clear_refs", "w");
    if (!out)
        return;
    (void)fputs("5", out);
    (void)fclose(out);
}

static int64_t file_number(const char *path)
{
    FILE *in = fopen(path, "r");
    char line[64];
    int64_t value = -1;
    if (!in)
        return -1;
    if (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        if (!str_to_i64(line, &value))
            value = -1;
    }
    (void)fclose(in);
    return value;
}

/* What this process's own cgroup still allows; INT64_MAX when there is no limit. */
static int64_t cgroup_free_bytes(void)
{
    FILE *in = fopen("/proc/self/cgroup", "r");
    char line[512], path[700];
    int64_t left = INT64_MAX;
    if (!in)
        return left;
    while (fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        char *own = strrchr(line, ':');
        if (!own)
            continue;
        bool v2 = str_starts(line, "0::");
        if (!v2 && !strstr(line, ":memory:"))
            continue;
        (void)snprintf(
            path, sizeof path,
            v2 ? "/sys/fs/cgroup%s/memory.max" : "/sys/fs/cgroup/memory%s/memory.limit_in_bytes",
            own + 1);
        int64_t limit = file_number(path);
        (void)snprintf(
            path, sizeof path,
            v2 ? "/sys/fs/cgroup%s/memory.current"
               : "/sys/fs/cgroup/memory%s/memory.usage_in_bytes",
            own + 1);
        int64_t used = file_number(path);
        if (limit >= 0 && used >= 0 && limit - used < left)
            left = limit - used;
    }
    (void)fclose(in);
    return left;
}

int64_t host_capacity_bytes(void)
{
    int64_t least = proc_kib("/proc/meminfo", "MemAvailable:");
    if (least < 0)
        least = INT64_MAX;
    int64_t group = cgroup_free_bytes();
    if (group < least)
        least = group;
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        int64_t mapped = proc_kib("/proc/self/status", "VmSize:");
        int64_t left = (int64_t)limit.rlim_cur - (mapped > 0 ? mapped : 0);
        if (left < least)
            least = left;
    }
    least -= (int64_t)256 << 20;
    return least > 0 ? least : 0;
}
