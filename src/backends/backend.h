/* backend.h - what a device offers the executor: kernels for operators, and memory.
 *
 * Kernels know tensor views, never programs. `prepare` runs once when a program is compiled: it
 * sees shapes, types and layouts (data pointers are NULL), makes what can be made early (JIT
 * primitives, tables) and states the workspace it needs, in bytes. `run` gets real pointers and
 * that workspace, 64-byte aligned, and allocates nothing.
 */
#ifndef BACKENDS_BACKEND_H
#define BACKENDS_BACKEND_H

#include "base/json.h"
#include "ir/program.h"

/* Operands of one call. in[i].data == NULL: that optional operand is absent. */
struct kernel_args {
    enum opcode code;
    const union op_attr *attr;
    struct tensor *in, *out;
    int n_in, n_out;
    void *workspace;
    int64_t workspace_bytes;
    void *state; /* made by prepare; NULL when it makes none */
    /* For prepare: workspace that a kernel may take only to be faster. A limit that is set, not
     * asked of the library; 0: none. */
    int64_t workspace_limit_bytes;
};

struct kernel {
    /* May be NULL: no workspace, no state. Sets *workspace_bytes and *state. */
    enum status (*prepare)(
        const struct kernel_args *a, int64_t *workspace_bytes, void **state, struct err *e);
    enum status (*run)(const struct kernel_args *a, struct err *e);
    void (*release)(void *state); /* may be NULL */
    const char *name;             /* "conv: oneDNN", for tables and profiles */
};

/* The kernel of an operator, NULL when the device has none. */
const struct kernel *cpu_kernel(enum opcode code);

enum isa { ISA_PORTABLE, ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16 };
/* What this process uses: the machine's best, or SNUG_ISA=portable|avx2|avx512. Read once. */
enum isa cpu_isa(void);
const char *isa_name(enum isa i);
json_t *cpu_libraries_json(void); /* {"onednn": "2.6.3", ...}; a new reference */
int cpu_threads(void);            /* of the one pool (libgomp) */
void cpu_threads_set(int n);
/* Called first in main: starts the program again, its threads asleep while they wait (wait.c). */
void cpu_wait_asleep(char **argv);

#endif
