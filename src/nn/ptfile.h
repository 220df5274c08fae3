/* ptfile.h - PyTorch's .pt files: a zip file with a pickle and the bytes of every storage.
 *
 * FORMAT (PyTorch 1.6 and newer; torch/serialization.py and caffe2/serialize/inline_container.cc)
 *   <name>/data.pkl       the values; tensors refer to storages by key
 *   <name>/data/<key>     raw bytes of one storage, little-endian, stored without compression
 *   <name>/version        "3\n"
 *   <name>/byteorder      "little"
 * What we write is read by torch.load of PyTorch 1.13 and newer. With weights_only=True: not where
 * the tree holds a PT_DICT_COUNTER or PT_BYTES (as with PyTorch's own files), and PyTorch 1.13
 * reads no floats in that mode, whoever wrote them; state dicts have none.
 *
 * The older format (one pickle after another, not a zip file) is recognised and refused.
 *
 * Opening reads the pickle only. Tensors are read one at a time from the file into the caller's
 * memory, so that loading needs no second copy. Checksums are compared, also for views.
 * A ptfile serves one thread at a time.
 */
#ifndef NN_PTFILE_H
#define NN_PTFILE_H

#include "base/err.h"
#include "nn/pickle_value.h"

struct ptfile;
enum status ptfile_open(const char *path, struct ptfile **out, struct err *e) NODISCARD;
void ptfile_close(struct ptfile *f); /* also frees the tree; NULL is allowed */
/* The tree, with the invariants of pickle_value.h; lives as long as `f`. */
struct pt_value *ptfile_root(const struct ptfile *f);
const char *ptfile_path(const struct ptfile *f);

/* Reads a tensor of `f` (or one over memory) as contiguous elements of `type`; `dst_bytes` must be
 * exactly their size. See dtype_converts for the types that can be asked for. */
enum status ptfile_read(
    struct ptfile *f, const struct pt_tensor *t, enum dtype type, void *dst, size_t dst_bytes,
    struct err *e) NODISCARD;
/* The same for numbers: a value that is an integer, a float, or a tensor of one element. */
enum status ptfile_read_number(
    struct ptfile *f, const struct pt_value *v, double *out, struct err *e) NODISCARD;
/* Reads the raw bytes of a storage; `dst` has room for its size_bytes. */
enum status
ptfile_read_storage(struct ptfile *f, struct pt_storage *s, void *dst, struct err *e) NODISCARD;

/* Writes the tree whole: a temporary file in the same folder, fsync, rename. Storages must be in
 * memory, which is read while writing and not copied. The same tree gives the same bytes. */
enum status ptfile_write(const char *path, const struct pt_value *root, struct err *e) NODISCARD;

#endif
