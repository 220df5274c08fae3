/* tensorfile_types.c - element types as tensor files name them, and conversion of whole arrays. */
#include "nn/tensorfile_types.h"

#include "base/err.h"

#include <string.h>

static const struct {
    const char *storage, *safetensors;
} rows[DT_COUNT] = {
#define X(id, storage, safetensors) [DT_##id] = {storage, safetensors},
#include "nn/tensorfile_types.def"
#undef X
};

const char *dtype_storage_class(enum dtype t)
{
    return rows[t].storage;
}

const char *dtype_safetensors_name(enum dtype t)
{
    return rows[t].safetensors;
}

bool dtype_converts(enum dtype to, enum dtype from)
{
    return to == from || dtype_floating(to);
}

void dtype_convert(enum dtype to, void *dst, enum dtype from, const void *src, size_t n)
{
    ASSERT(dtype_converts(to, from));
    if (to == from) {
        if (n > 0)
            memcpy(dst, src, n * (size_t)dtype_size(to));
    } else if (to == DT_F32 && from == DT_BF16) {
        for (size_t i = 0; i < n; i++)
            ((float *)dst)[i] = f32_from_bf16(((const uint16_t *)src)[i]);
    } else if (to == DT_BF16 && from == DT_F32) {
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)dst)[i] = bf16_from_f32(((const float *)src)[i]);
    } else {
        for (size_t i = 0; i < n; i++)
            dtype_store(dst, to, (int64_t)i, dtype_load(src, from, (int64_t)i));
    }
}

int64_t shape_elements(const int64_t *shape, int rank)
{
    int64_t n = 1;
    bool empty = false;
    for (int d = 0; d < rank; d++) {
        if (shape[d] < 0)
            return -1;
        if (shape[d] == 0) {
            empty = true; /* does not excuse sizes that cannot be multiplied */
            continue;
        }
        if (__builtin_mul_overflow(n, shape[d], &n) || n > INT64_C(1) << 59)
            return -1;
    }
    return empty ? 0 : n;
}
