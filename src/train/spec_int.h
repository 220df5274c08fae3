/* spec_int.h - reading node parameters for spec_optim.c, spec_loss.c and the schedules.
 *
 * An absent parameter keeps what *out holds. A value that cannot be used is ST_INVALID and names
 * the parameter; NaN and infinities are never usable. */
#ifndef TRAIN_SPEC_INT_H
#define TRAIN_SPEC_INT_H

#include "base/err.h"
#include "base/json.h"

enum status spec_f64(const json_t *params, const char *name, double *out, struct err *e) NODISCARD;
enum status spec_i64(const json_t *params, const char *name, int64_t *out, struct err *e) NODISCARD;
enum status spec_bool(const json_t *params, const char *name, bool *out, struct err *e) NODISCARD;
/* "0.2, 0.8" (brackets around it are allowed) or an array of numbers. *n 0 and *out NULL when there
 * are none; else freed by mem_free. */
enum status
spec_list(const json_t *params, const char *name, double **out, int *n, struct err *e) NODISCARD;
/* The value as it is shown in errors: "0.9", "true", "'0.9, 0.99'". Returns buf. */
const char *spec_show(const json_t *params, const char *name, char *buf, size_t cap);

#endif
