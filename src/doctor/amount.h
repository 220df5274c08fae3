/* amount.h - a size as a text prints it: its bytes, and the interval that rounding leaves open.
 *
 * PyTorch's format_size (c10/cuda/CUDACachingAllocator.cpp): up to and including 1024 "N bytes", to
 * 1 MiB KiB, to 1 GiB MiB, else GiB, with two decimals. So "1.39 GiB" is 1.385 to 1.395 GiB, and a
 * card of exactly 1 GiB prints "1024.00 MiB". KB, MB, GB mean 1024 in most programs and 1000 in
 * some: the interval holds both. A bare K, M, G is read as 1024 too.
 */
#ifndef DOCTOR_AMOUNT_H
#define DOCTOR_AMOUNT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* bytes, low, high are all -1 where it is unknown; else 0 <= low <= bytes <= high. */
struct amount {
    int64_t bytes, low, high;
};

extern const struct amount amount_unknown;
bool amount_known(struct amount a);
struct amount amount_exact(int64_t bytes); /* negative: unknown */
/* Unknown where a part is; differences are not below 0 in `low` only where they must be. */
struct amount amount_add(struct amount a, struct amount b);
struct amount amount_sub(struct amount a, struct amount b); /* may be negative: read with care */

enum amount_end {
    AMOUNT_NONE,  /* no number here */
    AMOUNT_WHOLE, /* number and unit were read */
    AMOUNT_BARE,  /* a number whose unit is missing; `out` is it times `bare_unit` */
    AMOUNT_SHORT  /* the text ends within it */
};
/* Reads a size at `*s` (lower or upper case, blanks between number and unit allowed) and moves `*s`
 * behind it. `bare_unit` 0: a number without unit is AMOUNT_NONE. Figures no memory can have (2^56
 * and more: NVML's "not available") are unknown. */
enum amount_end amount_read(const char **s, int64_t bare_unit, struct amount *out);

#endif
