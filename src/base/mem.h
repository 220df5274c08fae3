/* mem.h - host memory for bookkeeping: never NULL, and lifetimes as arenas.
 *
 * Small allocations do not fail towards the caller: when the host has no memory left, the handler
 * that the command line registered says so and ends the process (exit status 3), which is all that
 * a half-built graph could do anyway. Anything whose size follows from user input (data sets,
 * loader buffers, checkpoint tensors) uses mem_try_alloc and answers ST_OOM.
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t size_bytes);           /* zeroed */
void *mem_resize(void *p, size_t size_bytes); /* new bytes are undefined */
char *mem_strdup(const char *s);
void mem_free(void *p);
void *mem_try_alloc(size_t size_bytes); /* undefined contents; NULL when there is none */
void *mem_try_resize(void *p, size_t size_bytes); /* NULL when there is none; `p` is as before */
void mem_on_exhausted(void (*handler)(size_t size_bytes)); /* must not return */

/* An arena frees everything at once. Owner: whoever called arena_init. */
struct arena_chunk;
struct arena {
    struct arena_chunk *head;
    size_t used_bytes; /* handed out in all */
};
void arena_init(struct arena *a);
void arena_release(struct arena *a);
void *arena_alloc(struct arena *a, size_t size_bytes); /* zeroed, aligned to 16 */
char *arena_strdup(struct arena *a, const char *s);
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define ARENA_NEW(a, type) ((type *)arena_alloc((a), sizeof(type)))
#define ARENA_ARRAY(a, type, n) ((type *)arena_alloc((a), sizeof(type) * (size_t)(n)))

/* A growing array: struct { T *data; size_t n, cap; }. Release with vec_release. */
#define VEC(T)                                                                                     \
    struct {                                                                                       \
        T *data;                                                                                   \
        size_t n, cap;                                                                             \
    }
#define vec_push(v, x)                                                                             \
    do {                                                                                           \
        if ((v)->n == (v)->cap) {                                                                  \
            (v)->cap = (v)->cap ? 2 * (v)->cap : 8;                                                \
            (v)->data = mem_resize((v)->data, (v)->cap * sizeof *(v)->data);                       \
        }                                                                                          \
        (v)->data[(v)->n++] = (x);                                                                 \
    } while (0)
#define vec_release(v) (mem_free((v)->data), (v)->data = NULL, (v)->n = (v)->cap = 0)

/* a * b, or SIZE_MAX when it does not fit. */
size_t size_mul(size_t a, size_t b);

#endif
