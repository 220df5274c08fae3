/* secret.h - tokens: made from the system's random numbers, hashed, compared in constant time. */
#ifndef SERVER_SECRET_H
#define SERVER_SECRET_H

#include "base/err.h"

#include <stddef.h>

enum {
    SECRET_BYTES = 64, /* a token as text, with its NUL: prefix and 43 characters of base64url */
    SECRET_HASH_BYTES = 65 /* SHA-256 as 64 hex digits and NUL */
};

/* prefix ("snk_", or "") and 32 random bytes as base64url. */
enum status secret_make(const char *prefix, char out[SECRET_BYTES], struct err *e) NODISCARD;
void secret_hash(const char *token, char out[SECRET_HASH_BYTES]);
/* The time taken depends on the lengths only. */
bool secret_same(const char *a, const char *b);
void secret_wipe(void *p, size_t n); /* zeros that the compiler does not leave out */

#endif
