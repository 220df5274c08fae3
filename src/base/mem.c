/* mem.c - host memory for bookkeeping. */
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, cap;
    _Alignas(16) char data[];
};

static void (*exhausted)(size_t);

void mem_on_exhausted(void (*handler)(size_t))
{
    exhausted = handler;
}

/* SNUG_FAIL_ALLOC=N makes the Nth allocation fail, so that tests can walk through them all. */
static int injected_failure(void)
{
    static long left = -1;
    static int asked;
    if (!asked) {
        const char *s = getenv("SNUG_FAIL_ALLOC");
        left = s ? strtol(s, NULL, 10) : 0;
        asked = 1;
    }
    return left > 0 && --left == 0;
}

static void *checked(void *p, size_t size_bytes)
{
    if (p)
        return p;
    if (exhausted)
        exhausted(size_bytes);
    (void)fputs("snug: host memory exhausted\n", stderr);
    _Exit(3);
}

void *mem_alloc(size_t size_bytes)
{
    return checked(injected_failure() ? NULL : calloc(1, size_bytes ? size_bytes : 1), size_bytes);
}

void *mem_resize(void *p, size_t size_bytes)
{
    return checked(injected_failure() ? NULL : realloc(p, size_bytes ? size_bytes : 1), size_bytes);
}

char *mem_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = mem_alloc(n);
    memcpy(copy, s, n);
    return copy;
}

void mem_free(void *p)
{
    free(p);
}

void *mem_try_alloc(size_t size_bytes)
{
    return injected_failure() ? NULL : malloc(size_bytes ? size_bytes : 1);
}

void *mem_try_resize(void *p, size_t size_bytes)
{
    return injected_failure() ? NULL : realloc(p, size_bytes ? size_bytes : 1);
}

void arena_init(struct arena *a)
{
    *a = (struct arena){0};
}

void arena_release(struct arena *a)
{
    for (struct arena_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        mem_free(c);
    }
    *a = (struct arena){0};
}

void *arena_alloc(struct arena *a, size_t size_bytes)
{
    size_t need = (size_bytes + 15) & ~(size_t)15;
    struct arena_chunk *c = a->head;
    if (!c || c->cap - c->used < need) {
        size_t cap = need > 16384 ? need : 16384;
        c = mem_alloc(sizeof *c + cap);
        c->cap = cap;
        c->next = a->head;
        a->head = c;
    }
    void *p = c->data + c->used;
    c->used += need;
    a->used_bytes += need;
    return p;
}

char *arena_strdup(struct arena *a, const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = arena_alloc(a, n);
    memcpy(copy, s, n);
    return copy;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *s = arena_alloc(a, (size_t)(n < 0 ? 0 : n) + 1);
    (void)vsnprintf(s, (size_t)(n < 0 ? 0 : n) + 1, fmt, again);
    va_end(again);
    return s;
}

size_t size_mul(size_t a, size_t b)
{
    size_t r;
    return __builtin_mul_overflow(a, b, &r) ? SIZE_MAX : r;
}
