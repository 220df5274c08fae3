/* reorder.c - REORDER, and layout conversion for kernels that need another one.
 *
 * ROW is [n][c][s], CL is [n][s][c], C16 is [n][c/16][s][16]: between ROW and the others a group of
 * 16 channels is a transposition of 16 rows of s; between CL and C16 it is a strided copy.
 */
#include "backends/cpu/reorder.h"

#include "backends/cpu/args.h"

enum { GROUP = 16, STRIP = 512 }; /* channels and places of one task */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* to[j * to_row + i] = from[i * from_row + j], i < rows, j < cols. */
VEC_FN void transpose(
    void *to, enum dtype tt, int64_t to_at, int64_t to_row, const void *from, enum dtype tf,
    int64_t from_at, int64_t from_row, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i += VL)
        for (int64_t j = 0; j < cols; j += VL) {
            int high = (int)least(VL, rows - i), wide = (int)least(VL, cols - j);
            vf r[VL];
            for (int k = 0; k < VL; k++) {
                int64_t at = from_at + (i + k) * from_row + j;
                if (k >= high)
                    r[k] = vset(0);
                else
                    r[k] = wide == VL ? vload(from, tf, at) : vload_n(from, tf, at, wide);
            }
            vtranspose(r);
            for (int k = 0; k < wide; k++) {
                int64_t at = to_at + (j + k) * to_row + i;
                if (high == VL)
                    vstore(to, tt, at, r[k]);
                else
                    vstore_n(to, tt, at, high, r[k]);
            }
        }
}

/* to[j * to_row + i] = from[j * from_row + i], i < cols, j < rows. */
VEC_FN void copy_rows(
    void *to, enum dtype tt, int64_t to_at, int64_t to_row, const void *from, enum dtype tf,
    int64_t from_at, int64_t from_row, int64_t rows, int64_t cols)
{
    for (int64_t j = 0; j < rows; j++) {
        int64_t t = to_at + j * to_row, f = from_at + j * from_row, i = 0;
        for (; i + VL <= cols; i += VL)
            vstore(to, tt, t + i, vload(from, tf, f + i));
        if (i < cols) {
            int left = (int)(cols - i);
            vstore_n(to, tt, t + i, left, vload_n(from, tf, f + i, left));
        }
    }
}

/* Where channel c (a multiple of 16) at place s of image n lies, and the distance of places (of
 * channels for ROW). */
static int64_t lay_at(
    enum layout l, int64_t n, int64_t c, int64_t s, int64_t channels, int64_t places, int64_t *row)
{
    if (l == LAYOUT_ROW) {
        *row = places;
        return (n * channels + c) * places + s;
    }
    if (l == LAYOUT_CL) {
        *row = channels;
        return (n * places + s) * channels + c;
    }
    *row = GROUP;
    return (n * channels + c) * places + s * GROUP;
}

static inline ALWAYS_INLINE void copy_part(
    const struct lay *to, enum dtype tt, const struct lay *from, enum dtype tf, int64_t n,
    int64_t c, int64_t s, int64_t channels, int64_t places)
{
    int64_t to_row, from_row;
    int64_t t = lay_at(to->layout, n, c, s, channels, places, &to_row);
    int64_t f = lay_at(from->layout, n, c, s, channels, places, &from_row);
    int64_t high = least(GROUP, channels - c), wide = least(STRIP, places - s);
    bool to_rows = to->layout == LAYOUT_ROW, from_rows = from->layout == LAYOUT_ROW;
    if (to_rows && from_rows)
        copy_rows(to->data, tt, t, to_row, from->data, tf, f, from_row, high, wide);
    else if (from_rows)
        transpose(to->data, tt, t, to_row, from->data, tf, f, from_row, high, wide);
    else if (to_rows)
        transpose(to->data, tt, t, to_row, from->data, tf, f, from_row, wide, high);
    else
        copy_rows(to->data, tt, t, to_row, from->data, tf, f, from_row, wide, high);
}

static void part_run(
    const struct lay *to, const struct lay *from, int64_t n, int64_t c, int64_t s, int64_t channels,
    int64_t places)
{
    DTYPE_CONST(
        to->dtype, TT,
        DTYPE_CONST(from->dtype, TF, copy_part(to, TT, from, TF, n, c, s, channels, places)));
}

void reorder_copy(struct lay to, struct lay from, int64_t n, int64_t c, int64_t s)
{
    if (c == 1 || s == 1) { /* ROW and CL are the same; C16 has whole groups, so s == 1 is too */
        c = c * s;
        s = 1;
        to.layout = from.layout = LAYOUT_CL;
    }
    bool even = to.layout == from.layout;
    if (even) { /* one long row of places */
        s = n * c * s;
        n = c = 1;
        to.layout = from.layout = LAYOUT_ROW;
    }
    int64_t groups = (c + GROUP - 1) / GROUP, strips = (s + STRIP - 1) / STRIP;
    int64_t tasks = n * groups * strips;
#pragma omp parallel for schedule(static) if (n * c * s > 32768)
    for (int64_t i = 0; i < tasks; i++) {
        /* Groups innermost: neighbouring groups of CL share cache lines and pages. */
        int64_t group = i % groups, strip = i / groups % strips, image = i / groups / strips;
        part_run(&to, &from, image, group * GROUP, strip * STRIP, c, s);
    }
}

static struct lay lay_of(const struct tensor *t)
{
    return (struct lay){t->data, t->dtype, t->layout};
}

static enum status reorder_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    const struct tensor *x = &a->in[0];
    int64_t s = 1;
    for (int i = 2; i < x->shape.rank; i++)
        s *= x->shape.dim[i];
    if (tensor_count(x) > 0)
        reorder_copy(lay_of(&a->out[0]), lay_of(x), x->shape.dim[0], x->shape.dim[1], s);
    return ST_OK;
}

const struct kernel KERNEL(reorder) = {NULL, reorder_run, NULL, "reorder: blocks of channels"};
