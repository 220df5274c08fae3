/* safetensors_int.h - the header of a safetensors file, read and checked without the file. */
#ifndef NN_SAFETENSORS_INT_H
#define NN_SAFETENSORS_INT_H

#include "base/mem.h"
#include "nn/safetensors.h"

struct safetensors_header {
    VEC(struct safetensor) tensors; /* in the order of the bytes */
    VEC(struct safetensors_meta) meta;
    struct arena arena; /* names and texts */
};
/* `data_bytes` is what follows the header in the file. Release also after a failure. */
enum status safetensors_header_read(
    const char *json, size_t n, uint64_t data_bytes, struct safetensors_header *h,
    struct err *e) NODISCARD;
void safetensors_header_release(struct safetensors_header *h);

#endif
