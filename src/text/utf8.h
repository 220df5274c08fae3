/* utf8.h - UTF-8: is it valid, one character at a time, repair of what is not. */
#ifndef TEXT_UTF8_H
#define TEXT_UTF8_H

#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes of the longest valid prefix: n when all of it is valid (no surrogates, no long forms). */
size_t utf8_prefix(const char *s, size_t n);
/* Bytes of the character that starts at s; the text must be valid and not empty. */
size_t utf8_length(const char *s);
/* The character at s. */
uint32_t utf8_read(const char *s);
/* Writes c; returns how many bytes. */
size_t utf8_write(uint32_t c, char out[4]);
/* Appends the text with U+FFFD for each byte that is no part of a character. */
void utf8_repair(const char *s, size_t n, struct str *out);

#endif
