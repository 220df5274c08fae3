/* vec_test.c - conversions and functions of vec.h, against libm and the IR's conversions. */
#include "backends/cpu/vec.h"

#include "test.h"

static double ulps(float got, double want)
{
    if (isnan(want))
        return isnan(got) ? 0 : 1e9;
    if (isinf((float)want))
        return got == (float)want ? 0 : 1e9;
    int e;
    (void)frexp(want, &e);
    double unit = ldexp(1, e - 24 < -149 ? -149 : e - 24);
    return fabs((double)got - want) / unit;
}

typedef double reference(double);

static double worst(vf (*f)(vf), reference *ref, uint32_t step)
{
    double most = 0;
    for (uint64_t u = 0; u < 1ull << 32; u += step) {
        uint32_t bits = (uint32_t)u;
        float x;
        memcpy(&x, &bits, 4);
        double d = ulps(f(vset(x))[0], ref((double)x));
        most = d > most ? d : most;
    }
    return most;
}

static vf exp_of(vf x)
{
    return vexp(x);
}
static vf log_of(vf x)
{
    return vlog(x);
}
static vf tanh_of(vf x)
{
    return vtanh(x);
}
static vf erf_of(vf x)
{
    return verf(x);
}

TEST(vec_functions, "exp, log, tanh and erf are within 2 units in the last place")
{
    uint32_t step = 1999;
    CHECK(worst(exp_of, exp, step) <= 2);
    CHECK(worst(log_of, log, step) <= 2);
    CHECK(worst(tanh_of, tanh, step) <= 2);
    CHECK(worst(erf_of, erf, step) <= 2);
}

TEST(vec_halves, "vectors convert bf16 and f16 as single elements are converted")
{
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t in[VL], out[VL];
        for (int i = 0; i < VL; i++)
            in[i] = (uint16_t)h;
        float want = f32_from_f16((uint16_t)h), got = vload(in, DT_F16, 0)[VL - 1];
        CHECK(memcmp(&got, &want, 4) == 0);
        vstore(out, DT_F16, 0, vset(want));
        CHECK(out[0] == h || isnan(want));
        want = f32_from_bf16((uint16_t)h), got = vload(in, DT_BF16, 0)[0];
        CHECK(memcmp(&got, &want, 4) == 0 || isnan(want));
    }
    for (uint64_t u = 0; u < 1ull << 32; u += 997) {
        uint32_t bits = (uint32_t)u;
        float x;
        memcpy(&x, &bits, 4);
        uint16_t b[VL], f[VL];
        vstore(b, DT_BF16, 0, vset(x));
        vstore(f, DT_F16, 0, vset(x));
        CHECK(b[1] == bf16_from_f32(x));
        CHECK(f[1] == f16_from_f32(x) || isnan(x));
        fstore(f, DT_F16, 2, x);
        CHECK(f[2] == f[1]);
    }
}

TEST(vec_tails, "tails load zeros past their end and store nothing there")
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    for (int k = 0; k < 3; k++) {
        for (int n = 0; n < VL; n++) {
            float room[2 * VL] = {0};
            for (int i = 0; i < 2 * VL; i++)
                fstore(room, types[k], i, (float)(i + 1));
            vf x = vload_n(room, types[k], 1, n);
            for (int i = 0; i < VL; i++)
                CHECK(x[i] == (i < n ? (float)(i + 2) : 0.0f));
            vstore_n(room, types[k], 1, n, vset(-1));
            for (int i = 0; i < 2 * VL; i++)
                CHECK(fload(room, types[k], i) == (i >= 1 && i < n + 1 ? -1.0f : (float)(i + 1)));
        }
    }
}
