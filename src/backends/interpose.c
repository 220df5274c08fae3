/* interpose.c - counts what libraries allocate while a kernel runs.
 *
 * The program's own malloc family comes before the C library's when it is linked in, so that every
 * shared library's calls arrive here; they are passed on to glibc's allocator unchanged. Only
 * blocks of EXEC_LIBRARY_LEAST bytes and more count, and only while exec_run watches. With another
 * C library, or under a sanitizer that brings its own malloc, nothing is counted.
 */
#include "backends/exec_int.h"

#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define INTERPOSE 1
#else
#define INTERPOSE 0
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#undef INTERPOSE
#define INTERPOSE 0
#endif
#endif

static atomic_int watching;
static atomic_llong live_bytes, peak_bytes;

void exec_library_watch(bool on)
{
    if (on) {
        atomic_store(&live_bytes, 0);
        atomic_store(&peak_bytes, 0);
    }
    atomic_store(&watching, on);
}

int64_t exec_library_peak_bytes(void)
{
    return atomic_load(&peak_bytes);
}

#if INTERPOSE

extern void *__libc_malloc(size_t);
extern void __libc_free(void *);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

#define EXPORT __attribute__((visibility("default")))

static void *seen(void *p, size_t n)
{
    if (!p || n < EXEC_LIBRARY_LEAST || !atomic_load_explicit(&watching, memory_order_relaxed))
        return p;
    long long live = atomic_fetch_add(&live_bytes, (long long)malloc_usable_size(p)) +
                     (long long)malloc_usable_size(p);
    long long peak = atomic_load(&peak_bytes);
    while (live > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, live))
        ;
    return p;
}

static void gone(void *p)
{
    if (!p || !atomic_load_explicit(&watching, memory_order_relaxed))
        return;
    size_t n = malloc_usable_size(p);
    if (n >= EXEC_LIBRARY_LEAST)
        atomic_fetch_sub(&live_bytes, (long long)n);
}

EXPORT void *malloc(size_t n)
{
    return seen(__libc_malloc(n), n);
}

EXPORT void free(void *p)
{
    gone(p);
    __libc_free(p);
}

EXPORT void *calloc(size_t n, size_t size)
{
    return seen(__libc_calloc(n, size), n * size);
}

EXPORT void *realloc(void *p, size_t n)
{
    gone(p);
    return seen(__libc_realloc(p, n), n);
}

EXPORT void *memalign(size_t alignment, size_t n)
{
    return seen(__libc_memalign(alignment, n), n);
}

EXPORT void *aligned_alloc(size_t alignment, size_t n)
{
    return seen(__libc_memalign(alignment, n), n);
}

EXPORT int posix_memalign(void **out, size_t alignment, size_t n)
{
    if (alignment < sizeof(void *) || (alignment & (alignment - 1)))
        return EINVAL;
    void *p = __libc_memalign(alignment, n);
    if (!p && n)
        return ENOMEM;
    *out = seen(p, n);
    return 0;
}

#endif
