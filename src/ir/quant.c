/* quant.c - the maps of 8 and 4 bits. */
#include "ir/quant.h"

#include "base/err.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

static struct quant_dynamic maps[2];

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
}

static void make_both(void)
{
    make(&maps[0], false);
    make(&maps[1], true);
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
