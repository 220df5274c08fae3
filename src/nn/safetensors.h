/* safetensors.h - the safetensors format: a JSON header and the bytes of every tensor.
 *
 * FORMAT (github.com/huggingface/safetensors, README "Format")
 *   0      8 bytes   n, length of the header, little-endian
 *   8      n bytes   JSON object: name -> {"dtype": "F32", "shape": [2, 3], "data_offsets": [b,
 * e]}, and "__metadata__" -> object of strings; may end in spaces 8 + n  bytes     tensors,
 * row-major, little-endian; offsets count from here
 *
 * A file is refused, with the tensor's name, unless the tensors cover every byte after the header
 * exactly once, each has a dtype we know and the size its shape says, and no name appears twice.
 * The header may list them in any order. Nothing is allocated from a size before the file has been
 * seen to hold it.
 */
#ifndef NN_SAFETENSORS_H
#define NN_SAFETENSORS_H

#include "base/err.h"
#include "ir/dtype.h"

#include <stddef.h>
#include <stdint.h>

enum { SAFETENSORS_HEADER_MAX = 100 << 20, SAFETENSORS_RANK_MAX = 8 };

struct safetensor {
    const char *name;
    enum dtype type;
    int rank;
    int64_t shape[SAFETENSORS_RANK_MAX];
    size_t size_bytes;
    uint64_t begin;   /* from the end of the header */
    const void *data; /* for writing; NULL: make gives it when its turn has come */
    /* The bytes, valid until the next call; NULL: there is no memory for them. */
    const void *(*make)(int id, void *ctx);
    int id;
    void *ctx;
    bool converted; /* for writing: data has type `held`, and is rounded to `type` on the way */
    enum dtype held;
};
struct safetensors_meta {
    const char *key, *value;
};

struct safetensors;
enum status safetensors_open(const char *path, struct safetensors **out, struct err *e) NODISCARD;
void safetensors_close(struct safetensors *f); /* NULL is allowed */
const char *safetensors_path(const struct safetensors *f);
/* In the order of the bytes. */
const struct safetensor *safetensors_list(const struct safetensors *f, size_t *n);
const struct safetensor *safetensors_find(const struct safetensors *f, const char *name);
/* In the order of the keys. */
const struct safetensors_meta *safetensors_metadata(const struct safetensors *f, size_t *n);
/* Reads a tensor of the list as elements of `type`; `dst_bytes` must be exactly their size. */
enum status safetensors_read(
    struct safetensors *f, const struct safetensor *t, enum dtype type, void *dst, size_t dst_bytes,
    struct err *e) NODISCARD;

/* Writes whole (temporary file, fsync, rename), straight from the memory of the tensors; `begin`
 * and `size_bytes` are not looked at. Tensors of large elements come first, so that all are
 * aligned; the same input gives the same bytes. */
enum status safetensors_write(
    const char *path, const struct safetensor *tensors, size_t n,
    const struct safetensors_meta *meta, size_t n_meta, struct err *e) NODISCARD;

#endif
