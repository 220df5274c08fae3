/* safetensors_fuzz.c - any bytes as the header of a safetensors file; the first byte is how many
 * bytes of tensors follow it. */
#include "nn/safetensors_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct safetensors_header h;
    uint64_t at = 0;
    if (size < 1)
        return 0;
    if (safetensors_header_read((const char *)data + 1, size - 1, data[0], &h, &e) == ST_OK) {
        for (size_t i = 0; i < h.tensors.n; i++) {
            ASSERT(h.tensors.data[i].begin == at);
            at += h.tensors.data[i].size_bytes;
        }
        ASSERT(at == data[0]);
    }
    safetensors_header_release(&h);
    return 0;
}
