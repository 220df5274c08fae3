/* str.h - strings that grow, and the few string helpers the C library lacks. */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `data` is always a C string, also when empty. Owner: whoever called str_init. */
struct str {
    char *data;
    size_t n, cap;
};
void str_init(struct str *s);
void str_release(struct str *s);
void str_clear(struct str *s);
void str_add(struct str *s, const char *text);
void str_add_n(struct str *s, const char *text, size_t n);
void str_printf(struct str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *str_take(struct str *s); /* the caller frees it with mem_free; s is empty again */

bool str_eq(const char *a, const char *b); /* NULL equals only NULL */
bool str_ends(const char *s, const char *suffix);
bool str_starts(const char *s, const char *prefix);
/* The first n bytes of `from` without the blanks around them, cut to fit `out`. */
void str_copy_trimmed(char *out, size_t cap, const char *from, size_t n);
int base64_digit(char c); /* 0 to 63; -1: none of base64's */
/* The nearest of n names to `word` by edit distance, or NULL when none is near: "did you mean". */
const char *str_nearest(const char *word, const char *const *names, size_t n);

/* The whole of `s` as a number; false when it is not one. Hex and locale are not read. */
bool str_to_i64(const char *s, int64_t *out);
bool str_to_f64(const char *s, double *out);
/* "1.5GiB", "300MB", "4096": bytes. KiB MiB GiB TiB are powers of 1024, KB MB GB TB of 1000. */
bool str_to_bytes(const char *s, int64_t *out);
/* "1.25 GiB", "312 KiB", "17 B". Returns buf. */
const char *bytes_text(int64_t bytes, char *buf, size_t cap);

#endif
