/* kernels.c - looks a kernel up by operator and by the instruction set of this process. */
#include "backends/backend.h"

#include <stddef.h>

#if defined(__x86_64__)
#define SETS 3
#define ISA(code, name)                                                                            \
    extern const struct kernel kernel_##name##_portable, kernel_##name##_avx2,                     \
        kernel_##name##_avx512;
#else
#define SETS 1
#define ISA(code, name) extern const struct kernel kernel_##name##_portable;
#endif
#define ONE(code, name) extern const struct kernel kernel_##name;
#include "backends/cpu/kernels.def"
#undef ISA
#undef ONE

static const struct kernel *const table[OP_COUNT + 1][SETS] = {
#if defined(__x86_64__)
#define ISA(code, name)                                                                            \
    [OP_##code] = {&kernel_##name##_portable, &kernel_##name##_avx2, &kernel_##name##_avx512},
#define ONE(code, name) [OP_##code] = {&kernel_##name, &kernel_##name, &kernel_##name},
#else
#define ISA(code, name) [OP_##code] = {&kernel_##name##_portable},
#define ONE(code, name) [OP_##code] = {&kernel_##name},
#endif
#include "backends/cpu/kernels.def"
#undef ISA
#undef ONE
    [OP_COUNT] = {NULL}};

const struct kernel *cpu_kernel(enum opcode code)
{
    int set = cpu_isa() > ISA_AVX512 ? ISA_AVX512 : (int)cpu_isa();
    return table[code][set < SETS ? set : SETS - 1];
}
