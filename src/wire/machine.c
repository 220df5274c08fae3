/* machine.c - SNUG_HOME/machine.id. */
#include "wire/machine.h"

#include "base/env.h"
#include "base/mem.h"
#include "wire/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static enum status secret_write(const char *path, struct err *e)
{
    unsigned char bytes[16];
    char text[33];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return err_errno(e, "could not get random numbers");
    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    TRY(dir_make(snug_home(), e));
    return file_write(path, text, 32, e);
}

/* Of two that make it at once the later wins; both read again, so they agree in the end. */
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
    return fine ? ST_OK
                : err_set(e, ST_CORRUPT, "\"%s\" does not hold 32 hex digits; remove it", path);
}
