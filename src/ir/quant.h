/* quant.h - numbers in 8 and 4 bits, block by block: maps, codes and their values.
 *
 * A block of elements is divided by the largest magnitude in it (its absmax, kept in float32), and
 * each quotient becomes the code of the nearest value of a map; of two equally near ones, the one
 * closer to 0. An element is read back as map value times absmax, one float32 product.
 *
 * DYNAMIC TREE, 8 bits (Dettmers, Lewis, Shleifer, Zettlemoyer: "8-bit Optimizers via Block-wise
 * Quantization", ICLR 2022). Decade d = 0..6 holds 2^d values per sign (2^(d+1) in the map without
 * sign): the midpoints of equal parts of [0.1, 1], times 10^(d-6); with 0 and 1 that makes 256.
 * Codes number the values in ascending order. The negative end is the last midpoint, not -1.
 *
 * NF4, 4 bits (Dettmers, Pagnoni, Holtzman, Zettlemoyer: "QLoRA", NeurIPS 2023, appendix E): the 16
 * quantiles of a normal distribution that they list.
 */
#ifndef IR_QUANT_H
#define IR_QUANT_H

#include "ir/attr.h"

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Optimizer states: blocks as in bitsandbytes today (the paper's are 2048: 8 times fewer scales,
 * 0.1% of the state, but an outlier spoils 8 times as many neighbours). Parameters of fewer
 * elements than LEAST keep float32 states, as the paper has it. */
enum { QUANT_STATE_BLOCK = 256, QUANT_STATE_LEAST = 4096 };

/* Weights: blocks of 64 elements; int8 is round(127 x / absmax), NF4 two elements a byte, the first
 * in the upper half. Double quantisation (QLoRA, section 3): scales less their mean in 8 bits,
 * dynamic tree with sign, in blocks of 256. */
enum { QUANT_WEIGHT_BLOCK = 64, QUANT_NESTED_BLOCK = 256 };
extern const float quant_nf4[16];
int64_t quant_code_bytes(enum quant_kind kind, int64_t n);
static inline int64_t quant_blocks(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}
/* Where a quantised weight lies. nested NULL: absmax is float32; else it is codes. */
struct quant_weight {
    enum quant_kind kind;
    int64_t n; /* elements */
    uint8_t *codes;
    void *absmax;
    float *nested, *offset;
};
/* Quantises x[n]; the same numbers give the same bytes. */
void quant_weight_store(const struct quant_weight *w, const float *x);
/* Elements of block b (QUANT_WEIGHT_BLOCK, fewer in the last one) into x; returns how many. */
int quant_weight_block(const struct quant_weight *w, int64_t b, float *x);

/* A map as tables. Signs are apart: code zero + k has the magnitude k, zero - k its negative. */
struct quant_dynamic {
    float value[256];        /* by code, ascending */
    int zero;                /* code of 0 */
    int last, last_negative; /* greatest magnitude on either side */
    float middle[257];       /* by magnitude k: between k and k + 1 */
    /* By the upper 16 bits of a quotient as float32, from QUANT_FIRST_BITS on: how many middles lie
     * below all numbers with these bits; at most one lies among them. */
    uint8_t bucket[23 * 128 + 1];
    /* For kernels without a look-up an element. With c of the 8 borders below a quotient x, its
     * magnitude is the whole part of min(slope[c] x + shift[c], cap[c]); only within QUANT_NEAR of
     * a whole number must the middles decide. By the lowest 5 bits of x's exponent, x >= 2^-31:
     * the one border that may lie among such numbers, or the next, and how many lie below. */
    float border[8], slope[16], shift[16], cap[16], edge[32];
    int32_t below[32];
};
#define QUANT_NEAR 2e-4f
enum { QUANT_FIRST_BITS = (127 - 23) << 7 };
const struct quant_dynamic *quant_dynamic(bool is_signed);

/* The magnitude of a quotient in [0, 1]. */
static inline int quant_dynamic_magnitude(const struct quant_dynamic *m, float size)
{
    uint32_t u;
    memcpy(&u, &size, sizeof u);
    int at = (int)(u >> 16) - QUANT_FIRST_BITS;
    if (at < 0)
        return 0;
    int k = m->bucket[at];
    return k + (size > m->middle[k]);
}

/* The code of a quotient in [-1, 1]; NaN counts as 1. */
static inline uint8_t quant_dynamic_code(const struct quant_dynamic *m, float x)
{
    float size = x < 0 ? -x : x;
    int k = quant_dynamic_magnitude(m, size < 1 ? size : 1);
    if (x < 0)
        return (uint8_t)(m->zero - (k < m->last_negative ? k : m->last_negative));
    return (uint8_t)(m->zero + k);
}

/* One block: codes and the returned absmax. absmax below the least normal number counts as 0. */
float quant_dynamic_block(const struct quant_dynamic *m, const float *x, int64_t n, uint8_t *code);
/* The same for a known greatest magnitude, without a branch an element. Compiled where it is used:
 * for each instruction set. */
static inline float quant_dynamic_codes(
    const struct quant_dynamic *m, const float *x, int64_t n, float most, uint8_t *code)
{
    enum { PART = 64 };
    float inverse = most >= FLT_MIN ? 1 / most : 0, a[PART];
    int32_t k[PART], zero = m->zero, last = m->last_negative; /* codes may alias the map */
    for (int64_t at = 0; at < n; at += PART) {
        int part = n - at < PART ? (int)(n - at) : PART;
        for (int i = 0; i < part; i++) {
            float q = x[at + i] * inverse, size = q < 0 ? -q : q;
            a[i] = size < 1 ? size : 1;
        }
        memcpy(k, a, sizeof *k * (size_t)part);
        for (int i = 0; i < part; i++) {
            int32_t place = (k[i] >> 16) - QUANT_FIRST_BITS;
            k[i] = place < 0 ? 0 : place; /* below the first middle either way */
        }
        for (int i = 0; i < part; i++) {
            int32_t below = m->bucket[k[i]];
            k[i] = below + (a[i] > m->middle[below]);
        }
        for (int i = 0; i < part; i++) {
            int32_t down = k[i] < last ? k[i] : last;
            code[at + i] = (uint8_t)(zero + (x[at + i] < 0 ? -down : k[i]));
        }
    }
    return inverse > 0 ? most : 0;
}

#endif
