/* dnnl.h - convolutions by oneDNN. The only door to that library: oneDNN 2.6 or 3.x.
 *
 * Weights are always dense [oc, ic/groups, k0, k1] outside; inside they are reordered to the form
 * the library likes best, in the workspace, as are activations whose layout it has no fast code
 * for. Scratch memory is the caller's too. Results do not depend on the number of threads, except
 * weight gradients, which the library sums per thread: the same thread count gives the same bits.
 *
 * Built without the library (SNUG_DNNL=0), or with SNUG_ISA=portable, nothing is offered.
 */
#ifndef BACKENDS_CPU_DNNL_H
#define BACKENDS_CPU_DNNL_H

#include "backends/cpu/conv.h"

/* Types are f32, or bf16 where onednn_has_bf16(); x and w have one type, y may be f32 beside bf16.
 * In the gradients, the types of what is read and written. */
struct onednn_conv_spec {
    enum conv_way way;
    struct conv_size size;
    enum dtype x, w, y, bias;
    enum layout x_layout, y_layout;
    bool has_bias;        /* CONV_FORWARD only */
    int64_t limit_bytes;  /* scratch memory that Winograd's way may take; 0: direct always */
    bool library_weights; /* w lies in the library's own form: what a convolution alone takes */
};

struct onednn_conv;
bool onednn_has_bf16(void);
/* NULL when the library does not offer it: the caller has its own way then. */
struct onednn_conv *onednn_conv_new(const struct onednn_conv_spec *spec);
void onednn_conv_free(struct onednn_conv *c);
int64_t onednn_conv_workspace_bytes(const struct onednn_conv *c);
/* Of w with library_weights. */
int64_t onednn_conv_weights_bytes(const struct onednn_conv *c);
/* "brgconv:avx512_core_bf16" and the like. */

struct onednn_conv_data {
    void *x, *w, *y;
    const void *bias;
    void *workspace; /* 64-byte aligned */
};
enum status
onednn_conv_run(struct onednn_conv *c, const struct onednn_conv_data *d, struct err *e) NODISCARD;

/* "2.6.3", or "none"; into buf. */
const char *onednn_version(char *buf, size_t cap);

#endif
