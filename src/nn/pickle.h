/* pickle.h - reading and writing Python pickles, safely: only plain values and tensors.
 *
 * A pickle is a program for a stack machine that may name any Python function. This reader runs
 * only the opcodes of pickle_ops.def, and knows only the functions and classes of
 * pickle_globals.def, PyTorch's storage classes and its dtypes. Any other name is refused, and the
 * error says which. Nothing is called, imported or allocated because the file says so: values are
 * bounded by the bytes of the pickle, tensors stay in their storages.
 *
 * Source: Python's Lib/pickletools.py (protocols 0 to 5), PyTorch's torch/serialization.py.
 *
 * LIMITS: PICKLE_BYTES_MAX bytes, PT_VALUES_MAX values, PT_DEPTH_MAX levels, PT_RANK_MAX
 * dimensions, integers of 64 bits, keys that are strings or integers.
 */
#ifndef NN_PICKLE_H
#define NN_PICKLE_H

#include "base/err.h"
#include "base/str.h"
#include "nn/pickle_value.h"

enum { PICKLE_BYTES_MAX = 64 << 20 };

/* Who knows the storages that a pickle names. `find` answers a storage of exactly `size_bytes`, the
 * same one each time for the same key. */
struct pickle_source {
    enum status (*find)(
        void *ctx, const char *key, size_t size_bytes, struct pt_storage **out, struct err *e);
    void *ctx;
};

/* The tree lives in `a`, keeps the invariants of pickle_value.h, and does not refer to `data`. */
enum status pickle_read(
    const void *data, size_t n, struct arena *a, struct pickle_source source,
    struct pt_value **root, struct err *e) NODISCARD;

/* Appends the pickle (protocol 2, only opcodes that PyTorch's weights_only reader knows) of a tree.
 * `storage_key` numbers the storages: the same one gets the same number. Fails on cycles, more than
 * PT_DEPTH_MAX levels, or a tensor outside its storage. */
enum status pickle_write(
    const struct pt_value *root, int64_t (*storage_key)(void *ctx, struct pt_storage *s), void *ctx,
    struct str *out, struct err *e) NODISCARD;

#endif
