/* lanes.c - picks the inner loops of this process's instruction set. */
#include "backends/cpu/lanes.h"

#if defined(__x86_64__)
#define PICK(table)                                                                                \
    extern const struct table kernel_##table##_portable, kernel_##table##_avx2,                    \
        kernel_##table##_avx512;                                                                   \
    const struct table *table(void)                                                                \
    {                                                                                              \
        static const struct table *const sets[] = {                                                \
            &kernel_##table##_portable, &kernel_##table##_avx2, &kernel_##table##_avx512,          \
            &kernel_##table##_avx512};                                                             \
        return sets[cpu_isa()];                                                                    \
    }
#else
#define PICK(table)                                                                                \
    extern const struct table kernel_##table##_portable;                                           \
    const struct table *table(void)                                                                \
    {                                                                                              \
        return &kernel_##table##_portable;                                                         \
    }
#endif

PICK(lanes_ew)
PICK(lanes_loss)
PICK(lanes_sum)
PICK(lanes_optim)
