/* reorder_test.c - every pair of layouts and types, odd sizes. */
#include "backends/cpu/kernel_test.h"

#include <math.h>

static void check(enum layout from, enum layout to, enum dtype t, struct shape s)
{
    struct kt k;
    kt_init(&k, OP_REORDER, (uint32_t)s.dim[1]);
    k.attr.cast.layout = to;
    kt_in(&k, t, from, s);
    kt_out(&k, t, to, s);
    kt_run(&k);
    for (int64_t i = 0; i < shape_count(&s); i++)
        CHECK(kt_at(&k.out[0], i) == kt_at(&k.in[0], i));
    kt_free(&k);
}

TEST(reorder_layouts, "reordering keeps every element, between all layouts, 3 and 4 dimensions")
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    static const int64_t channels[] = {1, 3, 16, 32, 37, 80};
    for (int t = 0; t < 3; t++)
        for (int from = LAYOUT_ROW; from <= LAYOUT_C16; from++)
            for (int to = LAYOUT_ROW; to <= LAYOUT_C16; to++)
                for (int c = 0; c < 6; c++) {
                    if ((from == LAYOUT_C16 || to == LAYOUT_C16) && channels[c] % 16)
                        continue;
                    enum layout f = (enum layout)from, o = (enum layout)to;
                    check(f, o, types[t], SHAPE(3, channels[c], 5, 7));
                    check(f, o, types[t], SHAPE(2, channels[c], 67));
                    check(f, o, types[t], SHAPE(2, channels[c], 1, 1));
                    check(f, o, types[t], SHAPE(1, channels[c], 40, 30));
                    check(f, o, types[t], SHAPE(0, channels[c], 4, 3));
                }
}
