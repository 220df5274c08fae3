/* plan_set.h - the programs of a run over one arena: what outlives them at the bottom, at one
 * offset in all; above it each program's own buffers, planned one program at a time.
 *
 *     arena:  | persistent | temporaries of the program that runs |
 *     offset of a persistent buffer   persistent_offset_bytes[i]
 *     offset of a program's buffer    persistent_bytes + programs[k].plan.offset_bytes[i]
 */
#ifndef MEM_PLAN_SET_H
#define MEM_PLAN_SET_H

#include "mem/plan.h"

struct mem_plan_program {
    const char *name;                      /* for errors: "training, last micro-batch" */
    const struct mem_plan_buffer *buffers; /* temporaries only */
    size_t n;
    struct mem_plan plan; /* result; owned by the set */
};

struct mem_plan_set {
    /* Input, borrowed; `first` and `last` of persistent buffers do not count. */
    const struct mem_plan_buffer *persistent;
    size_t persistent_n;
    struct mem_plan_program *programs;
    size_t programs_n;
    /* Result. */
    int64_t *persistent_offset_bytes;
    int64_t persistent_bytes; /* a multiple of every alignment in the set */
    int64_t peak_bytes;       /* persistent_bytes + the largest peak of a program */
    size_t peak_program;      /* the first program that has it */
};

/* Persistent buffers keep their order (of equal alignment; larger alignments come first). `s`
 * holds the input; errors are those of mem_plan_make, with the program's name. */
enum status mem_plan_set_make(
    struct mem_plan_set *s, const struct mem_plan_options *o, struct err *e) NODISCARD;
/* The validator over all of it. */
enum status mem_plan_set_check(const struct mem_plan_set *s, struct err *e) NODISCARD;
void mem_plan_set_release(struct mem_plan_set *s); /* the results; input stays with the caller */

#endif
