/* optool.h - the two halves of optool: steps of a request (optool_steps.c), and running it
 * (optool.c). */
#ifndef TESTS_OPTOOL_H
#define TESTS_OPTOOL_H

#include "base/json.h"
#include "ir/build.h"

enum { STEP_OPERANDS_MAX = 64 };

/* One step of a request: {"fn": name, "in": [names or null], "out": name or [names], ...constants}.
 */
struct step {
    struct ir_program *p;
    const json_t *spec;
    int in[STEP_OPERANDS_MAX];
    int n_in;
};

/* Emits the step and returns its first result (others: ir_out); IR_NONE after an error. Where the
 * request itself is wrong, `e` says so and the status is not ST_OK. */
enum status step_emit(struct step *s, int *result, struct err *e) NODISCARD;

/* An optimizer's constants. */
struct optim_attr step_optim(const struct step *s);

#endif
