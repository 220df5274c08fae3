/* utf8.c - UTF-8: is it valid, one character at a time, repair of what is not. */
#include "text/utf8.h"

/* Bytes of the valid character at s, 0 when there is none (Unicode standard, table 3-7). */
static size_t character(const unsigned char *s, size_t n)
{
    unsigned char a = s[0];
    if (a < 0x80)
        return 1;
    size_t length = a < 0xc2 ? 0 : a < 0xe0 ? 2 : a < 0xf0 ? 3 : a < 0xf5 ? 4 : 0;
    if (length == 0 || n < length)
        return 0;
    unsigned char low = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80;
    unsigned char high = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;
    if (s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

size_t utf8_prefix(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t i = 0;
    while (i < n) {
        size_t length = character(u + i, n - i);
        if (length == 0)
            return i;
        i += length;
    }
    return n;
}

size_t utf8_length(const char *s)
{
    unsigned char a = (unsigned char)*s;
    return a < 0x80 ? 1 : a < 0xe0 ? 2 : a < 0xf0 ? 3 : 4;
}

uint32_t utf8_read(const char *s)
{
    static const unsigned char mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    size_t n = utf8_length(s);
    uint32_t c = (unsigned char)s[0] & mask[n];
    for (size_t i = 1; i < n; i++)
        c = c << 6 | ((unsigned char)s[i] & 0x3f);
    return c;
}

size_t utf8_write(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(lead[n] | c);
    return n;
}

void utf8_repair(const char *s, size_t n, struct str *out)
{
    while (n) {
        size_t good = utf8_prefix(s, n);
        str_add_n(out, s, good);
        s += good;
        n -= good;
        if (n) {
            str_add_n(out, "\xef\xbf\xbd", 3);
            s++;
            n--;
        }
    }
}
