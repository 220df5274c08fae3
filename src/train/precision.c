/* precision.c - which precision a device can run, and which suits it. */
#include "train/precision.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = {"fp32", "bf16", "fp16"};

enum { AMPERE = 80, VOLTA = 70 };

const char *precision_name(enum precision p)
{
    return names[p];
}

bool precision_parse(const char *name, enum precision *out)
{
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (enum precision)i;
            return true;
        }
    }
    return false;
}

struct precision_device precision_cpu(void)
{
    return (struct precision_device){"cpu", true, true, 0};
}

struct precision_device precision_cuda(const char *name, int compute_capability)
{
    return (struct precision_device){name, compute_capability >= AMPERE, true, compute_capability};
}

struct precision_device precision_mps(void)
{
    return (struct precision_device){"mps", false, false, 0};
}

enum precision precision_advised(const struct precision_device *d)
{
    if (d->compute_capability == 0)
        return d->bf16 ? PRECISION_BF16 : PRECISION_FP32;
    if (d->bf16)
        return PRECISION_BF16;
    return d->compute_capability >= VOLTA ? PRECISION_FP16 : PRECISION_FP32;
}

enum precision
precision_on(const struct precision_device *d, enum precision asked, char *warning, size_t cap)
{
    bool can = asked == PRECISION_FP32 || (asked == PRECISION_BF16 ? d->bf16 : d->fp16);
    if (cap)
        warning[0] = 0;
    if (can)
        return asked;
    enum precision better = precision_advised(d);
    (void)snprintf(
        warning, cap, "%s cannot run %s: the run is in fp32%s", d->name, names[asked],
        better == PRECISION_FP16 ? "; on this card fp16 with its gradient scaler is the choice"
                                 : "");
    return PRECISION_FP32;
}
