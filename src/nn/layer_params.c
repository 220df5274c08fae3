/* layer_params.c - reads a layer's "params" into struct layer_params, by the rows of layers.def.
 *
 * Kinds. Spatial ones take a number, or a list with one number per spatial dimension.
 *   SIZE       a whole number from 1 on              DIMS       spatial, from 1 on
 *   INT        a whole number                        OPT_DIMS   the same, or null
 *   OPT_INT    a whole number or null                PADS       spatial, from 0 on
 *   FLOAT      a finite number from 0 on             PADDING    PADS, "same" or "valid"
 *   OPT_FLOAT  a finite number from 0 on, or null    OUTPUT     DIMS, null for the input's size
 *   BOOL       true or false                         SHAPE      a number or a list, from 1 on
 *   SHAPE_TEXT "a,b,..." or a list, one may be -1    ZEROS      the text "zeros"
 *   FALSE      false: the rest is not in this version
 *   NONE       null: the rest is not in this version
 *   IGNORED    any value, without effect             ANY        as IGNORED, under any name
 */
#include "base/mem.h"
#include "base/str.h"
#include "nn/layer.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Larger numbers would only overflow the arithmetic of shapes. */
static const int64_t number_max = (int64_t)1 << 40;

struct reader {
    const struct layer *layer;
    const char *name; /* of the parameter */
    struct err *e;
};

enum kind {
    KIND_SIZE, KIND_INT, KIND_OPT_INT, KIND_FLOAT, KIND_OPT_FLOAT, KIND_BOOL, KIND_DIMS,
    KIND_OPT_DIMS, KIND_PADS, KIND_PADDING, KIND_OUTPUT, KIND_SHAPE, KIND_SHAPE_TEXT, KIND_ZEROS,
    KIND_FALSE, KIND_NONE, KIND_IGNORED, KIND_ANY
};

/* Parameters that are not stored have no field: these stand in for them. */
struct fields {
    struct layer_params p;
    char padding_mode, device, dtype, return_indices, inplace, max_norm, norm_type,
        scale_grad_by_freq, sparse, any;
};
#define OFFSET(name) _Generic(&((struct fields *)0)->name, default : offsetof(struct fields, name))

static const struct {
    struct layer_param row;
    enum kind kind;
} rows[] = {
#define PARAM(family, name, kind, fallback) {{#family, #name, #kind, fallback}, KIND_##kind},
#include "nn/layers.def"
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };
