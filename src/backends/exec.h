/* exec.h - compiles a set of programs over one arena, and runs them.
 *
 * A run is a set of programs (training micro-batches, evaluation, short batches) that share
 * variables. Compiling asks every operator's kernel for its workspace, folds views and in-place
 * operators into storages, plans each program's temporaries above the variables, and reports the
 * peak; nothing is allocated until exec_map.
 *
 *     exec_new -> (exec_report: the memory bill) -> exec_map -> exec_run ... -> exec_free
 *
 * The measured peak is never taken from the plan: it is the high water of the addresses that were
 * handed to kernels (and of bytes they touched past them), plus what libraries allocated meanwhile.
 */
#ifndef BACKENDS_EXEC_H
#define BACKENDS_EXEC_H

#include "backends/backend.h"
#include "mem/source.h"

struct exec;

enum { EXEC_WORKSPACE_LIMIT = 160 << 20, EXEC_TAIL_BYTES = 4096, EXEC_STATE_PIECE = 2 << 20 };
enum exec_storage { EXEC_PLANNED, EXEC_DYNAMIC };
struct exec_options {
    enum exec_storage storage;
    int64_t budget_bytes; /* 0 = none: exec_map fails with ST_OOM above it */
    /* Workspace that one operator may take only to be faster (Winograd's convolutions). 0: the
     * default, EXEC_WORKSPACE_LIMIT; < 0: none. */
    int64_t workspace_limit_bytes;
    /* Use the variables where this exec holds them (same ir_vars); its bytes count in the peak. */
    struct exec *lender;
    /* Where the arena or the pool's segments come from, and what caps them: the device's, shared by
     * all execs that a run has there. Borrowed. With EXEC_PLANNED its tail_bytes are
     * EXEC_TAIL_BYTES. NULL: host memory of this exec alone. */
    struct mem_source *source;
    /* Levers of a card (L4). What lies on the host is no part of the peak; exec_report has it.
     * state_on_host: variables of category optimizer_state lie on the host, and on the device only
     * around the operator that uses them. offload_activations: what the forward pass leaves for
     * the backward pass waits there. Numbers are the same to the bit. */
    bool state_on_host, offload_activations;
    /* State of a parameter with more elements than this comes so many at a time, where the
     * optimizer treats each element alone. 0: EXEC_STATE_PIECE. */
    int64_t state_piece;
};

/* `programs` stay owned by the caller and outlive the exec. Programs must have passed all passes.
 */
enum status exec_new(
    struct ir_vars *vars, struct ir_program *const *programs, int n_programs,
    const struct exec_options *options, struct exec **out, struct err *e) NODISCARD;
void exec_free(struct exec *x);
/* Maps the arena (zeroed, huge pages advised). */
enum status exec_map(struct exec *x, struct err *e) NODISCARD;

/* Gives the temporaries' memory back; variables stay. For execs that lend. A later exec_run takes
 * it again. */
void exec_trim(struct exec *x);

/* Gives all memory back, the variables' too. For execs that nobody reads any more. */
void exec_empty(struct exec *x);

/* Moves the variables to host memory and gives all of the device's back: exec_var is right as
 * before, and nothing can run. For weights that wait until another exec has taken its memory. */
enum status exec_stash(struct exec *x, struct err *e) NODISCARD;

/* Before the host writes inputs of a program: in dynamic mode they get their storage here. */
enum status exec_inputs_ready(struct exec *x, int program, struct err *e) NODISCARD;
/* Where a variable, or an input or output of program `i`, lies. Valid after exec_map; inputs after
 * exec_inputs_ready, outputs after a run of that program and before the next run of any. */
void *exec_var(struct exec *x, int var);
void *exec_value(struct exec *x, int program, int value);
struct tensor exec_tensor(struct exec *x, int program, int value);
enum status exec_run(struct exec *x, int program, struct err *e) NODISCARD;
/* The step that runs from here on, for the history of the device (mem/history.h). */
void exec_step(struct exec *x, int64_t step);
/* Runs program `i` again with a look at every result: the first operator whose floating output is
 * not finite, or IR_NONE. Requirement P10. Mutating operators of the update phase are not run. */
int exec_first_nonfinite(struct exec *x, int program, struct err *e);

/* Times every operator from here on; each program's first run warms up and is not counted. */
void exec_profile_begin(struct exec *x);
/* Programs that ran since, each with its rows, slowest first; a new reference:
 * [{"program", "runs", "ms", "operators": [..], "nodes": [..], "calls": [..]}]; ms are per run. */
json_t *exec_profile_json(const struct exec *x);

int64_t exec_peak_planned(const struct exec *x);
int64_t exec_peak_measured(const struct exec *x);
/* What stays held after exec_trim: planned, and the high water of the variables' addresses. */
int64_t exec_kept_planned(const struct exec *x);
int64_t exec_kept_measured(const struct exec *x);
/* What lies on the host: planned, and the high water of its addresses. 0 without offloading. */
int64_t exec_host_planned(const struct exec *x);
int64_t exec_host_measured(const struct exec *x);

/* ---- at any moment ---- */
/* Live: what is in use; reserved: what is held of the device. A lender's variables count in both.
 * Peaks since the start, or since exec_memory_reset. In planned mode what lives after a run are the
 * variables and the outputs. */
struct exec_memory {
    int64_t live_bytes, live_bytes_peak, reserved_bytes, reserved_bytes_peak;
};
void exec_memory(const struct exec *x, struct exec_memory *out);
void exec_memory_reset(struct exec *x); /* peak = now */
/* Whether the last request that its source refused was its allocator's. */
bool exec_was_refused(const struct exec *x);
/* {"live_bytes", .., "reserved_minus_live_bytes"}: a new reference. */
json_t *exec_memory_json(const struct exec_memory *m);
/* The same as the statistics of a pool, for its summary table. In planned mode every buffer that a
 * run placed counts as an allocation. */
struct mem_pool_stats;
void exec_memory_stats(const struct exec *x, struct mem_pool_stats *out);

/* ---- the memory bill ---- */
struct exec_holder { /* one row of by_node at the peak */
    int node;        /* index into vars->nodes; IR_NONE: none */
    int64_t by_category[CATEGORY_COUNT], total_bytes;
};
struct exec_report {
    int64_t peak_bytes, lower_bound_bytes, persistent_bytes;
    int64_t by_category[CATEGORY_COUNT]; /* at the peak; sums to peak_bytes */
    int peak_program, peak_op;           /* where the peak is */
    struct exec_holder *holders;         /* sorted, largest first */
    int n_holders;
    int64_t persistent_by_category[CATEGORY_COUNT];
    int64_t *program_peak_bytes; /* per program, variables included */
    int n_programs;
    /* On the host: variables, and the most that activations of one program add to them. */
    int64_t host_state_bytes, host_activation_bytes;
    int64_t transfer_bytes; /* between device and host, both ways: the most in one program's run */
};
/* Valid until exec_free. */
const struct exec_report *exec_report(const struct exec *x);
/* Bytes live after each operator of program i (variables included): n = its operator count. */
const int64_t *exec_timeline(const struct exec *x, int program, int *n);

/* One stretch of the arena that a program uses for some of its operators. */
struct exec_buffer {
    int64_t offset_bytes, size_bytes; /* from the arena's start; rounded as the plan rounds */
    int first, last;                  /* operators, both included */
    int node, category;
};
/* Buffer i of a program; false past the end. */
bool exec_buffer_at(const struct exec *x, int program, int i, struct exec_buffer *out);
/* Which of the planner's strategies laid the program out: "largest first, best fit". */
const char *exec_strategy(const struct exec *x, int program);

#endif
