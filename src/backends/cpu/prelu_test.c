/* prelu_test.c - PRELU and its gradients against plain loops. */
#include "backends/cpu/kernel_test.h"

#include "base/mem.h"

static void check(struct shape s, enum layout l, enum dtype t, int64_t weights)
{
    struct kt k, g;
    kt_init(&k, OP_PRELU, 1);
    kt_init(&g, OP_PRELU_GRAD, 2);
    struct tensor *x = kt_in(&k, t, l, s), *w = kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(weights));
    kt_out(&k, t, l, s);
    kt_run(&k);
    struct tensor *dy = kt_in(&g, t, l, s);
    g.in[g.n_in++] = *x;
    g.in[g.n_in++] = *w;
    kt_out(&g, t, l, s);
    kt_out(&g, DT_F32, LAYOUT_ROW, SHAPE(weights));
    kt_run(&g);
    int64_t n = tensor_count(x), places = 1;
    for (int i = 2; i < s.rank; i++)
        places *= s.dim[i];
    size_t bytes = sizeof(double) * (size_t)n;
    double *y = mem_alloc(bytes), *dx = mem_alloc(bytes), dw[64] = {0};
    for (int64_t i = 0; i < n; i++) {
        int64_t c = weights == 1 ? 0 : i / places % s.dim[1];
        double v = kt_at(x, i), a = kt_at(w, c), d = kt_at(dy, i);
        y[i] = v > 0 ? v : a * v;
        dx[i] = v > 0 ? d : a * d;
        dw[c] += v > 0 ? 0 : v * d;
    }
    CHECK(kt_error(&k.out[0], y) <= kt_tolerance(t));
    CHECK(kt_error(&g.out[0], dx) <= kt_tolerance(t));
    CHECK(kt_error(&g.out[1], dw) <= 1e-5);
    mem_free(y), mem_free(dx);
    g.n_in = 1;
    kt_free(&g);
    kt_free(&k);
}

TEST(prelu, "prelu and its gradients, one weight or one per channel, all layouts and types")
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    for (int t = 0; t < 3; t++)
        for (int per = 0; per < 2; per++) {
            check(SHAPE(3, 19, 5, 7), LAYOUT_ROW, types[t], per ? 19 : 1);
            check(SHAPE(3, 19, 5, 7), LAYOUT_CL, types[t], per ? 19 : 1);
            check(SHAPE(3, 48, 25, 11), LAYOUT_C16, types[t], per ? 48 : 1);
            check(SHAPE(70, 33), LAYOUT_ROW, types[t], per ? 33 : 1);
            check(SHAPE(50), LAYOUT_ROW, types[t], 1);
        }
}
