/* isa.c - the instruction set and the thread pool (OpenMP's) that kernels use. */
#include "backends/backend.h"

#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static const char *const names[] = {"portable", "avx2", "avx512", "avx512_bf16"};

const char *isa_name(enum isa i)
{
    return names[i];
}

static enum isa isa_of_machine(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return ISA_PORTABLE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return ISA_AVX2;
    return __builtin_cpu_supports("avx512bf16") ? ISA_AVX512_BF16 : ISA_AVX512;
#else
    return ISA_PORTABLE;
#endif
}

/* SNUG_ISA lowers the choice, never raises it; "avx512" leaves bf16 instructions on. */
static enum isa isa_choose(void)
{
    enum isa best = isa_of_machine();
    const char *want = getenv("SNUG_ISA");
    if (!want)
        return best;
    if (strcmp(want, "portable") == 0)
        return ISA_PORTABLE;
    if (strcmp(want, "avx2") == 0 && best > ISA_AVX2)
        return ISA_AVX2;
    return best;
}

enum isa cpu_isa(void)
{
    static int chosen = -1; /* every thread would write the same value */
    int c = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    if (c < 0) {
        c = (int)isa_choose();
        __atomic_store_n(&chosen, c, __ATOMIC_RELAXED);
    }
    return (enum isa)c;
}

int cpu_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

void cpu_threads_set(int n)
{
#ifdef _OPENMP
    omp_set_num_threads(n < 1 ? 1 : n);
#else
    (void)n;
#endif
}
