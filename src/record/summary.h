/* summary.h - one line about a value that a node put out: what pages show beside an edge.
 *
 * Shapes of the founding system (reference 3.1): a tensor {"type": "tensor", "shape", "dtype":
 * "torch.float32", "min", "max", "mean" (floating types; four decimals), "values" where there are
 * at most SUMMARY_VALUES}; {"type": "scalar", "value"}; {"type": "string", "value" (200
 * characters), "download_path" for a file of models/}; {"type": "list", "length", "repr",
 * "values"}; {"type": "model", "class", "params", "trainable"}; others {"type", "repr"}. NaN and
 * infinities are null.
 */
#ifndef RECORD_SUMMARY_H
#define RECORD_SUMMARY_H

#include "base/json.h"

enum { SUMMARY_VALUES = 256, RECORD_RANK_MAX = 16 };

/* Elements that are stored: their names are PyTorch's without "torch.". */
enum record_dtype {
    RECORD_F32,
    RECORD_F64,
    RECORD_F16,
    RECORD_BF16,
    RECORD_I64,
    RECORD_I32,
    RECORD_U8,
    RECORD_BOOL,
    RECORD_DTYPE_COUNT
};
bool record_dtype_find(const char *name, enum record_dtype *out);
const char *record_dtype_name(enum record_dtype t);
int record_dtype_bytes(enum record_dtype t);
bool record_dtype_is_floating(enum record_dtype t);
/* Element i as a double; integers above 2^53 lose their last digits. */
double record_load(enum record_dtype t, const void *data, int64_t i);
/* Element i as JSON: integers exact, true and false, null for what JSON lacks. */
json_t *record_element(enum record_dtype t, const void *data, int64_t i);

struct record_tensor {
    enum record_dtype dtype;
    int rank;
    const int64_t *shape;
    const void *data; /* dense, C order */
};
int64_t record_count(const struct record_tensor *t);
/* The elements nested by the shape; rank 0: the element alone. */
json_t *record_values(const struct record_tensor *t);
json_t *summary_tensor(const struct record_tensor *t);
/* `kind`: scalar, string, list, dict, model, or another kind's name, whose value is {"type",
 * "repr"}. */
json_t *summary_value(const char *kind, const json_t *value);
/* A number as the API gives it: finite, rounded to `decimals`, else null. */
json_t *summary_number(double v, int decimals);

#endif
