/* quant.c - the maps of 8 and 4 bits. */
#include "ir/quant.h"

#include "base/err.h"
#include "base/mem.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

static struct quant_dynamic maps[2];
static float pairs[256][2]; /* NF4: by byte, both its values */

/* Magnitudes in ascending order: 0, the midpoints of every decade, 1. */
static int magnitudes(bool is_signed, double *out)
{
    int n = 0;
    out[n++] = 0;
    for (int decade = 0; decade < 7; decade++) {
        int parts = 1 << (decade + !is_signed);
        for (int i = 0; i < parts; i++)
            out[n++] = pow(10, decade - 6) * (0.1 + 0.9 * (i + 0.5) / parts);
    }
    out[n++] = 1;
    return n;
}

static float number_of(uint32_t upper_bits)
{
    uint32_t u = upper_bits << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void make_decades(struct quant_dynamic *m, bool is_signed)
{
    int first = 1; /* magnitude of the decade */
    m->border[0] = m->middle[0];
    m->shift[0] = m->cap[0] = 0.5f;
    for (int decade = 0; decade < 7; decade++) {
        int parts = 1 << (decade + !is_signed), c = decade + 1;
        m->slope[c] = (float)(pow(10, 6 - decade) * parts / 0.9);
        m->shift[c] = (float)(first - parts / 9.0);
        m->cap[c] = (float)(first + parts - 0.5);
        first += parts;
        m->border[c] = m->middle[first - 1];
    }
    m->shift[8] = m->cap[8] = (float)m->last + 0.5f;
    for (int i = 0; i < 32; i++) {
        int c = 0;
        while (c < 8 && m->border[c] < ldexpf(1, i - 31))
            c++;
        m->below[i] = c;
        m->edge[i] = c < 8 ? m->border[c] : INFINITY;
    }
    ASSERT(first == m->last);
}

static void make(struct quant_dynamic *m, bool is_signed)
{
    double size[257];
    int n = magnitudes(is_signed, size);
    m->last = n - 1;
    m->last_negative = is_signed ? n - 2 : 0;
    m->zero = m->last_negative;
    ASSERT(m->zero + n == 256);
    for (int k = 0; k < n; k++) {
        m->value[m->zero + k] = (float)size[k];
        if (k <= m->last_negative)
            m->value[m->zero - k] = k ? (float)-size[k] : 0;
        m->middle[k] = k + 1 < n ? (float)((size[k] + size[k + 1]) / 2) : INFINITY;
    }
    int k = 0;
    for (uint32_t i = 0; i < sizeof m->bucket; i++) {
        while (m->middle[k] < number_of(QUANT_FIRST_BITS + i))
            k++;
        m->bucket[i] = (uint8_t)k;
        ASSERT(k == m->last || m->middle[k + 1] >= number_of(QUANT_FIRST_BITS + i + 1));
    }
    make_decades(m, is_signed);
}

static void make_both(void)
{
    make(&maps[0], false);
    make(&maps[1], true);
    for (int i = 0; i < 256; i++) {
        pairs[i][0] = quant_nf4[i >> 4];
        pairs[i][1] = quant_nf4[i & 15];
    }
}

const struct quant_dynamic *quant_dynamic(bool is_signed)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, make_both);
    return &maps[is_signed];
}

float quant_dynamic_block(const struct quant_dynamic *m, const float *x, int64_t n, uint8_t *code)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return quant_dynamic_codes(m, x, n, most, code);
}

/* ---- weights ---- */

const float quant_nf4[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f};

int64_t quant_code_bytes(enum quant_kind kind, int64_t n)
{
    return kind == QUANT_NF4 ? (n + 1) / 2 : n;
}

/* How many middles between neighbours lie below x. */
static int nf4_code(float x)
{
    int low = 0, high = 15;
    while (low < high) {
        int k = (low + high) / 2;
        if (x > (quant_nf4[k] + quant_nf4[k + 1]) / 2)
            low = k + 1;
        else
            high = k;
    }
    return low;
}

static float absmax_of(const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most >= FLT_MIN ? most : 0;
}

static void store_block(const struct quant_weight *w, int64_t at, int n, const float *x, float most)
{
    float inverse = most > 0 ? 1 / most : 0;
    for (int i = 0; i < n; i++) {
        int64_t k = at + i;
        float q = x[i] * inverse;
        if (w->kind == QUANT_INT8) {
            w->codes[k] = (uint8_t)(int8_t)lrintf(127 * q);
            continue;
        }
        int code = nf4_code(q);
        w->codes[k / 2] = (uint8_t)(k % 2 ? (w->codes[k / 2] & 0xf0) | code : code << 4);
    }
}

/* Scales in 8 bits: less their mean, blocks of QUANT_NESTED_BLOCK. */
static void store_scales(const struct quant_weight *w, float *scale, int64_t blocks)
{
    double sum = 0;
    for (int64_t b = 0; b < blocks; b++)
        sum += (double)scale[b];
    *w->offset = blocks ? (float)(sum / (double)blocks) : 0;
    for (int64_t b = 0; b < blocks; b++)
        scale[b] -= *w->offset;
    for (int64_t b = 0; b < blocks; b += QUANT_NESTED_BLOCK) {
        int64_t n = blocks - b < QUANT_NESTED_BLOCK ? blocks - b : QUANT_NESTED_BLOCK;
        w->nested[b / QUANT_NESTED_BLOCK] =
            quant_dynamic_block(quant_dynamic(true), scale + b, n, (uint8_t *)w->absmax + b);
    }
}

void quant_weight_store(const struct quant_weight *w, const float *x)
{
    int64_t blocks = quant_blocks(w->n, QUANT_WEIGHT_BLOCK);
    float *scale = w->nested ? mem_alloc((size_t)(blocks + 1) * sizeof *scale) : w->absmax;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t at = b * QUANT_WEIGHT_BLOCK;
        int n = w->n - at < QUANT_WEIGHT_BLOCK ? (int)(w->n - at) : QUANT_WEIGHT_BLOCK;
        scale[b] = absmax_of(x + at, n);
        store_block(w, at, n, x + at, scale[b]);
    }
    if (!w->nested)
        return;
    store_scales(w, scale, blocks);
    mem_free(scale);
}

int quant_weight_block(const struct quant_weight *w, int64_t b, float *x)
{
    int64_t at = b * QUANT_WEIGHT_BLOCK;
    int n = w->n - at < QUANT_WEIGHT_BLOCK ? (int)(w->n - at) : QUANT_WEIGHT_BLOCK;
    const struct quant_dynamic *map = quant_dynamic(true); /* makes the tables */
    float scale = w->nested ? map->value[((const uint8_t *)w->absmax)[b]] *
                                      w->nested[b / QUANT_NESTED_BLOCK] +
                                  *w->offset
                            : ((const float *)w->absmax)[b];
    if (w->kind == QUANT_INT8) {
        scale /= 127;
        for (int i = 0; i < n; i++)
            x[i] = (float)(int8_t)w->codes[at + i] * scale;
        return n;
    }
    /* Two elements at a time: a block begins with a whole byte. */
    const uint8_t *codes = w->codes + at / 2;
    for (int i = 0; i + 1 < n; i += 2)
        memcpy(x + i, pairs[codes[i / 2]], sizeof pairs[0]);
    if (n % 2)
        x[n - 1] = quant_nf4[codes[n / 2] >> 4];
    for (int i = 0; i < n; i++)
        x[i] *= scale;
    return n;
}
