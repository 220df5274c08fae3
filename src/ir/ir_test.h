/* ir_test.h - a program to build in, for the tests of ir. */
#ifndef IR_TEST_H
#define IR_TEST_H

#include "base/str.h"
#include "ir/build.h"
#include "test.h"

struct world {
    struct ir_vars vars;
    struct ir_program *p;
};
void world_open(struct world *w);
void world_close(struct world *w);
int world_param(
    struct world *w, const char *name, struct shape s); /* its value: float32, trainable */
int world_buffer(
    struct world *w, const char *name, enum dtype t, struct shape s); /* its variable */
int world_input(struct world *w, struct shape s);                     /* float32 */
/* The shape of a value; fails the test when there is none. */
void check_shape(const struct world *w, int value, struct shape s);
/* The sticky error's text. */
void check_refused(const struct world *w, int value, const char *text);
/* How many operators of a kind the program has. */
int world_count(const struct world *w, enum opcode code);
void check_verifies(const struct world *w);

#endif
