/* secret.h - tokens: made from the system's random numbers, hashed, compared in constant time. */
#ifndef SERVER_SECRET_H
#define SERVER_SECRET_H

#include "base/err.h"

#include <stddef.h>

enum {
    SECRET_BYTES = 64, /* a token as text, with its NUL: prefix and 43 characters of base64url */
    SECRET_HASH_BYTES = 32 /* SHA-256 */
};

enum status secret_random(void *out, size_t n, struct err *e) NODISCARD; /* the system's */
/* prefix ("snk_", or "") and 32 random bytes as base64url. */
enum status secret_make(const char *prefix, char out[SECRET_BYTES], struct err *e) NODISCARD;
enum status secret_id(char out[33], struct err *e) NODISCARD; /* 32 random hex digits */
void secret_hash(const char *token, unsigned char out[SECRET_HASH_BYTES]);
/* The time taken depends on the lengths only. */
bool secret_same(const char *a, const char *b);
bool secret_same_bytes(const void *a, const void *b, size_t n);
void secret_wipe(void *p, size_t n); /* zeros that the compiler does not leave out */

#endif
