/* exec_int.h - what the files of the executor share; private to src/backends. */
#ifndef BACKENDS_EXEC_INT_H
#define BACKENDS_EXEC_INT_H

#include "backends/copy.h"
#include "backends/exec.h"
#include "mem/plan_set.h"
#include "mem/pool/pool.h"

enum { EXEC_RED_ZONE = 64 };

/* Which storage each value of a program lives in, and each storage's size and lifetime.
 *
 * INVARIANTS
 *  1. of_value[v] is a storage of this program, or IR_NONE when v lies in a variable.
 *  2. A storage that two values share in place holds the second from the operator that defines it;
 *     the first is not read after that operator.
 *  3. Each storage has EXEC_RED_ZONE bytes more than its values need: a kernel that writes past
 *     its operand is seen there.
 *  4. A storage that waits on the host (exec_offload.c) is two: values that have it lie in `again`
 *     from operator `again_from` on. No operator between the two halves touches them. */
struct exec_storages {
    struct mem_plan_buffer *buffers; /* values first, then one workspace per operator that has one,
                                        then what offloading adds */
    int *of_value;                   /* by value */
    int *of_workspace;               /* by operator; IR_NONE: none */
    int *node, *category;            /* by storage: who is charged for it */
    int *again, *again_from;         /* by storage; again IR_NONE: none. NULL: nothing waits */
    size_t n;
};
/* Uses op->workspace_bytes, which must be set. `in_place` off gives every value its own storage. */
void exec_storages_make(const struct ir_program *p, bool in_place, struct exec_storages *out);
void exec_storages_release(struct exec_storages *s);

/* One storage's way to the host or back, or both (exec_offload.c). Operators: IR_NONE where it does
 * not go that way. Out: `out_storage` holds the bytes up to operator out_at, whose end issues the
 * copy; it is waited for at the end of out_done. In: issued before in_at, waited for before in_use.
 */
struct exec_transfer {
    int var;  /* the host's variable; IR_NONE: an activation */
    int host; /* activation: its buffer on the host, by program */
    int op;   /* variable: the operator that uses it */
    int64_t
        piece; /* variable: elements at a time, of which the storage holds two; 0: all at once */
    int64_t bytes;
    int in_storage, in_at, in_use;
    int out_storage, out_at, out_done;
    uint64_t in_ticket, out_ticket; /* of this run; 0: not issued */
};

/* What the executor does about a transfer before or after an operator, in this order. */
enum exec_moment { MOMENT_IN_ISSUE, MOMENT_IN_WAIT, MOMENT_OUT_ISSUE, MOMENT_OUT_WAIT };
struct exec_event {
    int op, transfer;
    enum exec_moment moment;
};

struct exec_transfers {
    VEC(struct exec_transfer) list;
    VEC(struct exec_event) events;    /* sorted by operator and moment */
    VEC(struct mem_plan_buffer) host; /* activations on the host, and when */
    int *first_of_op; /* by operator: the first transfer of a variable it uses; IR_NONE */
    size_t next;      /* event, while the program runs */
    int64_t bytes;    /* of one run, both ways */
};

/* One operator, resolved. `args` point into the arena after exec_map (planned mode). */
struct exec_call {
    const struct kernel *kernel; /* NULL: a view, nothing to run */
    struct kernel_args args;
    int op;
};

struct exec_program {
    struct ir_program *ir;
    struct exec_storages storages;
    struct exec_transfers transfers;
    struct exec_call *calls;   /* one per operator */
    struct mem_block **blocks; /* dynamic mode: by storage */
    void **data;               /* by storage: address while it lives */
    bool seen;                 /* addresses counted: they are the same in every run */
    int64_t *times_ns;         /* by operator, of the timed runs; NULL: not profiled */
    int64_t runs_n;
    int64_t timed_runs; /* -1: the next run warms up */
};

struct exec {
    struct ir_vars *vars;
    struct exec_options options;
    struct exec_program *programs;
    int n_programs;
    struct mem_plan_buffer *persistent;
    struct mem_plan_set plan;
    struct mem_plan_program *plan_programs;
    struct mem_source own;         /* without options.source */
    struct mem_source *source;     /* NULL before exec_map */
    struct mem_pool *pool;         /* dynamic mode */
    struct mem_block **var_blocks; /* dynamic mode */
    struct exec_history *history;  /* NULL: nobody records */
    char *arena;                   /* planned mode: start of the mapping */
    int64_t arena_bytes;           /* with the source's tail */
    int64_t taken_bytes;           /* of the source, and how much of it is still held: exec_trim */
    int64_t taken_held_bytes;
    char *stash; /* exec_stash: the variables on the host */
    /* Offloading: variables that lie on the host, then the activations of the program that runs. */
    struct mem_plan_buffer *host_persistent;
    struct mem_plan_set host_plan;
    struct mem_plan_program *host_programs;
    struct mem_source host_source;
    char *host;
    int64_t measured_host_bytes; /* high water of its addresses that were used */
    struct copy_engine *copies;  /* NULL: nothing moves */
    void **var_data;
    int64_t held_bytes;                                       /* the lender's variables */
    int64_t live_bytes, live_bytes_peak, reserved_bytes_peak; /* planned mode: exec_memory */
    int64_t measured_var_bytes;                               /* high water of variables alone */
    int64_t measured_bytes; /* high water of the addresses that kernels were handed */
    int64_t overrun_bytes;  /* most bytes a kernel wrote past an operand */
    int64_t library_bytes_peak;
    struct exec_report report;
    int64_t **timelines; /* by program */
    struct arena memory;
};

void exec_memory_seen(struct exec *x, int program); /* planned mode: it ran */
/* Storage of a value while operator `op` runs; IR_NONE: it lies in a variable. */
int exec_storage_at(const struct exec_program *program, int v, int op);
/* Whether a variable lies on the host, and comes to the device only while an operator uses it. */
bool exec_var_on_host(const struct exec *x, int var);
/* After exec_storages_make: what goes to the host, as storages with the lifetimes that leaves. */
void exec_offload_make(struct exec *x, struct exec_program *program);
void exec_offload_release(struct exec_program *program);
enum status exec_offload_plan(struct exec *x, struct err *e) NODISCARD;
enum status exec_offload_map(struct exec *x, struct err *e) NODISCARD;
void exec_offload_trim(struct exec *x);
void exec_offload_unmap(struct exec *x);
/* Around operator i: issues and waits. begin with i = 0 starts a run; drain ends it, also early. */
void exec_offload_begin(struct exec *x, struct exec_program *program, int i);
void exec_offload_end(struct exec *x, struct exec_program *program, int i);
void exec_offload_drain(struct exec *x, struct exec_program *program);
/* Runs the kernel of operator i, piece by piece where its state comes so. */
enum status
exec_offload_run(struct exec *x, struct exec_program *program, int i, struct err *e) NODISCARD;
/* Host bytes that somebody was given the address of count in the measured figure. */
void exec_offload_see(struct exec *x, const void *p, int64_t bytes);

void exec_profile_add(struct exec_program *p, int op, int64_t ns);
enum status exec_report_make(struct exec *x, struct err *e) NODISCARD;
void exec_report_release(struct exec *x);

/* exec_history.c: does nothing where the source has no history. */
void exec_history_open(struct exec *x);         /* after the source is known */
void exec_history_pool(struct exec *x);         /* dynamic mode: the pool is there */
void exec_history_var(struct exec *x, int var); /* before a variable gets its block */
void exec_history_host(struct exec *x);
void exec_history_failed(struct exec *x, enum status st);
void exec_history_arena(struct exec *x);            /* planned mode: the arena is mapped */
void exec_history_resize(struct exec *x);           /* more or less of the arena is held */
void exec_history_close(struct exec *x);            /* before all is given back */
void exec_history_run(struct exec *x, int program); /* a run begins */
void exec_history_begin(struct exec *x, int program, int op);
void exec_history_end(struct exec *x, int program, int op);

/* Allocations made by libraries while a kernel runs (interpose.c). Blocks below
 * EXEC_LIBRARY_LEAST bytes are bookkeeping of the library's calls and are not counted. */
enum { EXEC_LIBRARY_LEAST = 4096 };
void exec_library_watch(bool on);
int64_t exec_library_peak_bytes(void); /* since the last exec_library_watch(true) */

#endif
