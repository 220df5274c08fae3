/* plan_problem.h - storage problems as files: the CSV format that MiniMalloc publishes its
 * problems in.
 *
 * FORMAT. A header that names the columns, then one buffer a line:
 *     id,lower,upper,size        in any order; columns "alignment" and "offset" may be there too
 * id is any text without a comma, different in every line; lower is the first time at which the
 * buffer is live and upper the first at which it is not any more (0 <= lower < upper); size is
 * from 0. Numbers are decimal. Without an alignment column every offset is allowed. A column
 * "offset" is not read. Lines may end in CR LF; empty lines are skipped. An answer has the columns
 * of the problem as read and "offset" at the end.
 *
 * LIMITS: 64 MiB, 1,000,000 buffers, ids of 256 bytes.
 */
#ifndef MEM_PLAN_PROBLEM_H
#define MEM_PLAN_PROBLEM_H

#include "base/mem.h"
#include "base/str.h"
#include "mem/plan.h"

struct mem_problem {
    struct arena arena;
    const char **ids;
    struct mem_plan_buffer *buffers; /* `last` is upper - 1 */
    size_t n;
    bool has_alignment;
};

/* `name` stands for the file in errors, which say the line and the column: ST_INVALID. Released
 * with mem_problem_release, also after a failure. */
enum status mem_problem_parse(
    const char *text, size_t n, const char *name, struct mem_problem *out, struct err *e) NODISCARD;
enum status mem_problem_read(const char *path, struct mem_problem *out, struct err *e) NODISCARD;
void mem_problem_release(struct mem_problem *p);
/* The problem with the offsets of `plan`. */
void mem_problem_text(const struct mem_problem *p, const struct mem_plan *plan, struct str *out);

#endif
