/* machine.c - SNUG_HOME/machine.id. */
#include "wire/machine.h"

#include "base/env.h"
#include "base/mem.h"
#include "wire/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Written beside its place, then linked into it: of two that make it at once, the first one's
 * stays. */
static enum status secret_write(const char *path, struct err *e)
{
    unsigned char bytes[16];
    char text[33], beside[1100];
    enum status st;
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return err_errno(e, "could not get random numbers");
    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    TRY(dir_make(snug_home(), e));
    (void)snprintf(beside, sizeof beside, "%s.%.8s", path, text);
    TRY_OUT(file_write(beside, text, 32, e));
    if (chmod(beside, 0600) != 0 || (link(beside, path) != 0 && errno != EEXIST))
        st = err_errno(e, "could not write \"%s\"", path);
out:
    (void)unlink(beside);
    return st;
}

static uint64_t fold(uint64_t hash, const void *data, size_t n)
{
    for (const unsigned char *c = data; n > 0; c++, n--)
        hash = (hash ^ *c) * 0x100000001b3U;
    return hash;
}

/* Which file this is, on which system since when: another one in every copy. */
static uint64_t place_of(const char *path)
{
    uint64_t hash = 0xcbf29ce484222325U;
    struct stat st;
    char *boot = NULL;
    size_t n = 0;
    struct err ignored;
    if (stat(path, &st) == 0) {
        hash = fold(hash, &st.st_dev, sizeof st.st_dev);
        hash = fold(hash, &st.st_ino, sizeof st.st_ino);
    }
    if (file_read("/proc/sys/kernel/random/boot_id", 64, &boot, &n, &ignored) == ST_OK)
        hash = fold(hash, boot, n);
    mem_free(boot);
    return hash;
}

enum status machine_secret(char out[33], struct err *e)
{
    char path[1024], *text = NULL;
    size_t n = 0;
    (void)path_join(snug_home(), "machine.id", path, sizeof path);
    if (!file_exists(path))
        TRY(secret_write(path, e));
    TRY(file_read(path, 4096, &text, &n, e));
    str_copy_trimmed(out, 33, text, n);
    bool fine = run_id_is_valid(out);
    mem_free(text);
    if (!fine)
        return err_set(e, ST_CORRUPT, "\"%s\" does not hold 32 hex digits; remove it", path);
    char half[17];
    memcpy(half, out, 16);
    half[16] = '\0';
    (void)snprintf(
        half, sizeof half, "%016llx",
        strtoull(half, NULL, 16) ^ (unsigned long long)place_of(path));
    memcpy(out, half, 16);
    return ST_OK;
}
