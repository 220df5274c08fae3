/* secret.c - random tokens, SHA-256, comparing without telling by time. */
#include "server/secret.h"

#include "base/str.h"

#include <errno.h>
#include <gnutls/crypto.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

static const char url_digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

enum status secret_random(void *out, size_t n, struct err *e)
{
    unsigned char *at = out;
    while (n > 0) {
        ssize_t got = getrandom(at, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return err_errno(e, "could not get random numbers");
        at += got, n -= (size_t)got;
    }
    return ST_OK;
}

enum status secret_make(const char *prefix, char out[SECRET_BYTES], struct err *e)
{
    unsigned char bytes[33] = {0};
    TRY(secret_random(bytes, 32, e));
    size_t n = strlen(prefix);
    ASSERT(n + 43 < SECRET_BYTES);
    memcpy(out, prefix, n);
    for (size_t i = 0; i < 33; i += 3) {
        unsigned bits = (unsigned)bytes[i] << 16 | (unsigned)bytes[i + 1] << 8 | bytes[i + 2];
        for (int shift = 18; shift >= 0; shift -= 6)
            out[n++] = url_digits[bits >> shift & 63];
    }
    out[n - 1] = '\0'; /* the 44th digit holds nothing */
    secret_wipe(bytes, sizeof bytes);
    return ST_OK;
}

enum status secret_id(char out[33], struct err *e)
{
    unsigned char bytes[16];
    TRY(secret_random(bytes, sizeof bytes, e));
    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return ST_OK;
}

void secret_hash(const char *token, unsigned char out[SECRET_HASH_BYTES])
{
    int failed = gnutls_hash_fast(GNUTLS_DIG_SHA256, token, strlen(token), out);
    ASSERT(!failed);
}

bool secret_same_bytes(const void *a, const void *b, size_t n)
{
    const volatile unsigned char *p = a, *q = b;
    unsigned differ = 0;
    for (size_t i = 0; i < n; i++)
        differ |= p[i] ^ q[i];
    return differ == 0;
}

bool secret_same(const char *a, const char *b)
{
    size_t n = strlen(a);
    return n == strlen(b) && secret_same_bytes(a, b, n);
}

void secret_wipe(void *p, size_t n)
{
    volatile unsigned char *at = p;
    while (n--)
        *at++ = 0;
}
