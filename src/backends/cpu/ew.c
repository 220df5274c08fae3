/* ew.c - drives elementwise kernels: blocks of float32, spread over threads in fixed pieces. */
#include "backends/cpu/ew.h"

#include "backends/cpu/nd.h"

static bool wide_type(enum dtype t)
{
    return t == DT_F64 || t == DT_I64 || t == DT_I32;
}

static void piece(const struct ew_call *c, const struct nd *v, int n_in, int64_t i, int64_t end)
{
    _Alignas(64) float buf[EW_INPUTS + 1][ND_BLOCK];
    for (; i < end; i += ND_BLOCK) {
        int n = end - i < ND_BLOCK ? (int)(end - i) : ND_BLOCK;
        const float *x[EW_INPUTS];
        for (int k = 0; k < n_in; k++)
            x[k] = nd_read(&v[k + 1], i, n, buf[k]);
        float *y = nd_target(&v[0], i, buf[EW_INPUTS]);
        c->block(c, x, y, n);
        nd_write(&v[0], i, n, y);
    }
}

static void
piece_wide(const struct ew_call *c, const struct nd *v, int n_in, int64_t i, int64_t end)
{
    double buf[EW_INPUTS + 1][ND_BLOCK];
    for (; i < end; i += ND_BLOCK) {
        int n = end - i < ND_BLOCK ? (int)(end - i) : ND_BLOCK;
        const double *x[EW_INPUTS];
        for (int k = 0; k < n_in; k++) {
            nd_read_f64(&v[k + 1], i, n, buf[k]);
            x[k] = buf[k];
        }
        c->wide(c, x, buf[EW_INPUTS], n);
        nd_write_f64(&v[0], i, n, buf[EW_INPUTS]);
    }
}

enum status ew_run(
    const struct ew_call *c, const struct tensor *out, const struct tensor *const *in, int n_in,
    struct err *e)
{
    const struct tensor *t[EW_INPUTS + 1] = {out};
    bool wide = wide_type(out->dtype);
    for (int k = 0; k < n_in; k++) {
        t[k + 1] = in[k];
        wide = wide || wide_type(in[k]->dtype);
    }
    if (wide && !c->wide)
        return err_set(
            e, ST_UNSUPPORTED, "no kernel for elements of type %s", dtype_name(out->dtype));
    int64_t count = tensor_count(out);
    if (count <= 0)
        return ST_OK;
    struct nd v[EW_INPUTS + 1];
    nd_align(v, t, n_in + 1, &out->shape);
    int64_t pieces = (count + ND_PIECE - 1) / ND_PIECE;
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t end = (p + 1) * ND_PIECE < count ? (p + 1) * ND_PIECE : count;
        (wide ? piece_wide : piece)(c, v, n_in, p * ND_PIECE, end);
    }
    return ST_OK;
}
