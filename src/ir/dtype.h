/* dtype.h - element types, and conversion between them (round to nearest, ties to even). */
#ifndef IR_DTYPE_H
#define IR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
#define X(name, torch, brief, size, floating) DT_##name,
#include "ir/dtypes.def"
#undef X
    DT_COUNT
};

int dtype_size(enum dtype t);          /* bytes of one element */
const char *dtype_name(enum dtype t);  /* "float32" */
const char *dtype_short(enum dtype t); /* "f32" */
bool dtype_floating(enum dtype t);
bool dtype_parse(const char *name, enum dtype *out); /* either name; false when unknown */

/* One element. NaN stays NaN (quiet); bf16 and f16 overflow to infinity by rounding. */
uint16_t bf16_from_f32(float x);
float f32_from_bf16(uint16_t x);
uint16_t f16_from_f32(float x);
float f32_from_f16(uint16_t x);
uint16_t f16_from_f64(double x); /* one rounding, not two */
uint16_t bf16_from_f64(double x);
double dtype_load(const void *p, enum dtype t, int64_t index);
void dtype_store(void *p, enum dtype t, int64_t index, double value); /* one rounding */

#endif
