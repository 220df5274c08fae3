/* dequant.c - weights stored in few bits as numbers (ir/quant.h): one float32 product an element.
 */
#include "backends/backend.h"
#include "backends/cpu/lanes.h"

enum { BLOCKS_A_PIECE = 128 };

static void piece(const struct quant_weight *w, const struct tensor *y, int64_t b, int64_t end)
{
    float buf[QUANT_WEIGHT_BLOCK];
    for (; b < end; b++) {
        int64_t at = b * QUANT_WEIGHT_BLOCK;
        float *x = y->dtype == DT_F32 ? (float *)y->data + at : buf;
        int n = quant_weight_block(w, b, x);
        if (x == buf)
            lanes_ew()->narrow(x, (uint16_t *)y->data + at, y->dtype, n);
    }
}

static enum status run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    bool nested = a->n_in > 3 && a->in[2].data;
    struct quant_weight w = {
        .kind = a->attr->quant.kind,
        .n = tensor_count(&a->out[0]),
        .codes = a->in[0].data,
        .absmax = a->in[1].data,
        .nested = nested ? a->in[2].data : NULL,
        .offset = nested ? a->in[3].data : NULL};
    int64_t blocks = quant_blocks(w.n, QUANT_WEIGHT_BLOCK);
    int64_t pieces = quant_blocks(blocks, BLOCKS_A_PIECE);
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t end = (p + 1) * BLOCKS_A_PIECE;
        piece(&w, &a->out[0], p * BLOCKS_A_PIECE, end < blocks ? end : blocks);
    }
    return ST_OK;
}

extern const struct kernel kernel_dequant;
const struct kernel kernel_dequant = {.run = run, .name = "dequantise"};
