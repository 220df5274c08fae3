/* tensorfile_types.h - element types as tensor files name them, and conversion of whole arrays. */
#ifndef NN_TENSORFILE_TYPES_H
#define NN_TENSORFILE_TYPES_H

#include "ir/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

const char *dtype_storage_class(enum dtype t);    /* "FloatStorage" */
const char *dtype_safetensors_name(enum dtype t); /* "F32" */

/* True for equal types, and from any type to a floating-point one. */
bool dtype_converts(enum dtype to, enum dtype from);
/* Converts n elements with one rounding (to nearest, ties to even); `dst` and `src` are aligned
 * and do not overlap. Only for pairs that dtype_converts allows. */
void dtype_convert(enum dtype to, void *dst, enum dtype from, const void *src, size_t n);

/* Elements of a shape; -1 when a size is negative or they pass 2^59 (bytes then fit in 63 bits). */
int64_t shape_elements(const int64_t *shape, int rank);

#endif
