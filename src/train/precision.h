/* precision.h - which precision a device can run, and which suits it (requirements P1, P4, P11). */
#ifndef TRAIN_PRECISION_H
#define TRAIN_PRECISION_H

#include <stdbool.h>
#include <stddef.h>

enum precision { PRECISION_FP32, PRECISION_BF16, PRECISION_FP16 };
const char *precision_name(enum precision p); /* "bf16" */
bool precision_parse(const char *name, enum precision *out);

/* What a device can do. compute_capability: 10 * major + minor of a CUDA card, else 0. */
struct precision_device {
    const char *name; /* "cpu", "cuda:0", "mps" */
    bool bf16, fp16;
    int compute_capability;
};
struct precision_device precision_cpu(void); /* all three */
/* A CUDA card: bfloat16 from Ampere (sm80) on, float16 everywhere. */
struct precision_device precision_cuda(const char *name, int compute_capability);
struct precision_device precision_mps(void); /* float32 only */

/* What runs when `asked` is asked for: itself, or fp32 with a warning in `warning` ("" when there
 * is none). Never a failure. */
enum precision
precision_on(const struct precision_device *d, enum precision asked, char *warning, size_t cap);
/* The low precision that suits the device; PRECISION_FP32 where it has none. */
enum precision precision_advised(const struct precision_device *d);

#endif
