/* tensorfile.h - named tensors of a file, whatever its format: a state dict in a .pt file, or a
 * safetensors file; and matching them with what a model wants.
 *
 * In a .pt file the state dict is the root, or the member "model_state_dict", "state_dict" or
 * "model" of it (checkpoints). Members that are not tensors are left out; see tensorfile_skipped.
 */
#ifndef NN_TENSORFILE_H
#define NN_TENSORFILE_H

#include "base/err.h"
#include "base/str.h"
#include "ir/tensor.h"

struct ptfile;
struct pt_value;
struct pt_tensor;
struct safetensor;

struct tensorfile_entry {
    const char *name;
    enum dtype type; /* in the file */
    struct shape shape;
    const struct pt_tensor *pt; /* one of the two */
    const struct safetensor *safe;
};

struct tensorfile;
/* Knows the format by the file's first bytes. */
enum status tensorfile_open(const char *path, struct tensorfile **out, struct err *e) NODISCARD;
/* A dict of tensors of an open .pt file, which must stay open. */
enum status tensorfile_from_pt(
    struct ptfile *f, const struct pt_value *dict, struct tensorfile **out,
    struct err *e) NODISCARD;
void tensorfile_close(struct tensorfile *f); /* NULL is allowed */

/* In the order of the file. */
const struct tensorfile_entry *tensorfile_list(const struct tensorfile *f, size_t *n);
const struct tensorfile_entry *tensorfile_find(const struct tensorfile *f, const char *name);
const char *tensorfile_path(const struct tensorfile *f);
size_t tensorfile_skipped(const struct tensorfile *f); /* members that are not tensors */

/* Reads a tensor into the caller's memory as contiguous elements of `type` (round to nearest, ties
 * to even), straight from the file. `dst_bytes` must be exactly its size. */
enum status tensorfile_read(
    struct tensorfile *f, const char *name, enum dtype type, void *dst, size_t dst_bytes,
    struct err *e) NODISCARD;

/* What a model wants: a name and a shape. */
struct tensor_want {
    const char *name;
    struct shape shape;
};
/* Names point into the file or the wants. */
struct tensorfile_match {
    size_t n_matched;
    const char **missing, **unexpected, **mismatched;
    size_t n_missing, n_unexpected, n_mismatched;
};
/* Compares and reports. Strict: anything missing, unexpected or of another shape is an error.
 * Otherwise it is reported, and the caller loads what matches; but when the model wants tensors
 * and none matches, that is an error too. The text of an error lists names. */
enum status tensorfile_match(
    const struct tensorfile *f, const struct tensor_want *want, size_t n, bool strict,
    struct tensorfile_match *m, struct err *e) NODISCARD;
void tensorfile_match_release(struct tensorfile_match *m); /* also after an error */
/* "missing: a.w, b.w; unexpected: model.a.w" with at most a handful of names each. */
void tensorfile_match_text(const struct tensorfile_match *m, struct str *out);

#endif
