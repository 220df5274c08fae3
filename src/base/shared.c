/* shared.c - files that processes share, with Linux's locks of open file descriptions. */
#define _GNU_SOURCE /* F_OFD_SETLK */
#include "base/shared.h"

#include "base/env.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum status shared_open(struct shared *s, const char *path, bool make, struct err *e)
{
    struct stat found;
    *s = (struct shared){.fd = -1};
    if (strlen(path) >= sizeof s->path)
        return err_set(e, ST_INVALID, "path \"%.60s...\" is too long", path);
    memcpy(s->path, path, strlen(path) + 1);
    s->fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (make ? O_CREAT : 0), 0600);
    if (s->fd < 0)
        return err_errno(e, "cannot open \"%s\"", path);
    if (fstat(s->fd, &found) == 0 && S_ISREG(found.st_mode))
        return ST_OK;
    shared_close(s);
    return err_set(e, ST_INVALID, "\"%s\" is not a file", path);
}

void shared_close(struct shared *s)
{
    if (s->fd >= 0)
        (void)close(s->fd);
    s->fd = -1;
}

bool shared_gone(const struct shared *s)
{
    struct stat mine, named;
    return fstat(s->fd, &mine) != 0 || stat(s->path, &named) != 0 || mine.st_ino != named.st_ino ||
           mine.st_dev != named.st_dev;
}

static struct flock range(short type, int64_t at, int64_t n)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = n};
}

bool shared_try(struct shared *s, int64_t at)
{
    struct flock f = range(F_WRLCK, at, 1);
    return fcntl(s->fd, F_OFD_SETLK, &f) == 0;
}

enum status shared_lock(struct shared *s, int64_t at, int wait_ms, struct err *e)
{
    int64_t until = clock_ns() + (int64_t)wait_ms * 1000000;
    struct timespec pause = {0, 20000};
    while (!shared_try(s, at)) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return err_errno(e, "cannot lock \"%s\"", s->path);
        if (clock_ns() > until)
            return err_set(
                e, ST_IO, "could not lock \"%s\" for %d s: another process holds it", s->path,
                wait_ms / 1000);
        (void)nanosleep(&pause, NULL);
        if (pause.tv_nsec < 400000)
            pause.tv_nsec += pause.tv_nsec / 2;
    }
    return ST_OK;
}

void shared_unlock(struct shared *s, int64_t at)
{
    struct flock f = range(F_UNLCK, at, 1);
    (void)fcntl(s->fd, F_OFD_SETLK, &f);
}

bool shared_locked(const struct shared *s, int64_t at, int64_t n)
{
    struct flock f = range(F_WRLCK, at, n);
    return fcntl(s->fd, F_OFD_GETLK, &f) == 0 && f.l_type != F_UNLCK;
}

int64_t shared_size(const struct shared *s)
{
    struct stat found;
    return fstat(s->fd, &found) == 0 ? (int64_t)found.st_size : -1;
}

enum status shared_clear(struct shared *s, int64_t size_bytes, struct err *e)
{
    if (ftruncate(s->fd, 0) != 0 || ftruncate(s->fd, (off_t)size_bytes) != 0)
        return err_errno(e, "could not make \"%s\"", s->path);
    return ST_OK;
}

enum status shared_read(const struct shared *s, int64_t at, void *data, size_t n, struct err *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(s->fd, (char *)data + done, n - done, (off_t)(at + (int64_t)done));
        if (got == 0)
            return err_set(e, ST_CORRUPT, "\"%s\" ends too early", s->path);
        if (got < 0 && errno != EINTR)
            return err_errno(e, "could not read \"%s\"", s->path);
        done += got > 0 ? (size_t)got : 0;
    }
    return ST_OK;
}

enum status shared_write(struct shared *s, int64_t at, const void *data, size_t n, struct err *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t put =
            pwrite(s->fd, (const char *)data + done, n - done, (off_t)(at + (int64_t)done));
        if (put < 0 && errno != EINTR)
            return err_errno(e, "could not write \"%s\"", s->path);
        done += put > 0 ? (size_t)put : 0;
    }
    return ST_OK;
}
