/* conv.h - convolutions as the kernels of this folder pass them around, all three directions. */
#ifndef BACKENDS_CPU_CONV_H
#define BACKENDS_CPU_CONV_H

#include "backends/backend.h"

enum conv_way { CONV_FORWARD, CONV_INPUT_GRAD, CONV_WEIGHT_GRAD };

/* x [n, ic, in0, in1], w [oc, ic/groups, k0, k1], y [n, oc, out0, out1]; one-dimensional forms have
 * height 1. Padding and dilation are PyTorch's (dilation 1 is dense). */
struct conv_size {
    int64_t n, groups, ic, oc;
    int64_t in[2], out[2], kernel[2], stride[2], pad_low[2], pad_high[2], dilation[2];
};

#endif
