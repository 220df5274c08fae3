/* pickle_value.h - the values that PyTorch files hold: a tree of Python's plain types and tensors.
 *
 * Everything lives in the arena of whoever built the tree. A tree that pickle_read or ptfile_open
 * gives has been checked:
 *
 * INVARIANTS
 *  1. no cycles, at most PT_DEPTH_MAX levels, at most PT_VALUES_MAX values when walked as a tree
 *     (a value may appear in several places);
 *  2. keys are strings without NUL or integers, and no key appears twice in a dict;
 *  3. strings are UTF-8 and end in NUL (which `n` does not count);
 *  4. every element of a tensor lies inside its storage; strides are not negative.
 */
#ifndef NN_PICKLE_VALUE_H
#define NN_PICKLE_VALUE_H

#include "base/mem.h"
#include "nn/tensorfile_types.h"

enum { PT_DEPTH_MAX = 64, PT_RANK_MAX = 8, PT_VALUES_MAX = 1 << 22 };

enum pt_kind {
    PT_NONE,
    PT_BOOL,
    PT_INT,
    PT_FLOAT,
    PT_STRING,
    PT_BYTES,
    PT_LIST,
    PT_TUPLE,
    PT_DICT,
    PT_TENSOR,
    PT_DTYPE,  /* a torch.dtype object */
    PT_GLOBAL, /* only while a pickle runs */
    PT_STORAGE /* only while a pickle runs */
};

enum pt_dict_class { PT_DICT_PLAIN, PT_DICT_ORDERED, PT_DICT_COUNTER };

/* Bytes that tensors look into. Tensors that share a storage are tied, here and in PyTorch. */
struct pt_storage {
    size_t size_bytes;
    const void *data; /* in memory; NULL while it is only in the file */
    /* For writing, where data is NULL: gives the bytes when their turn has come, valid until the
     * next call; NULL: there is no memory for them. */
    const void *(*make)(int id, void *ctx);
    int id;
    void *ctx;
    const char *key; /* name in the file; the writer gives its own */
    int64_t entry;   /* index in the zip file, -1 if none */
    bool verified;   /* its checksum has been compared */
    size_t number;   /* scratch of the writer */
};

struct pt_tensor {
    enum dtype type;
    int rank;
    int64_t shape[PT_RANK_MAX], strides[PT_RANK_MAX], offset; /* in elements */
    bool requires_grad;
    struct pt_storage *storage;
};

struct pt_value;
struct pt_item {
    struct pt_value *key, *value;
};

struct pt_value {
    enum pt_kind kind;
    bool open;       /* scratch of pt_check: on the path being walked */
    uint8_t below;   /* levels below this value */
    uint32_t weight; /* values in the tree below, this one included; 0: not seen yet */
    union {
        bool truth;
        int64_t integer;
        double real;
        struct {
            const char *data;
            size_t n;
        } text; /* PT_STRING, PT_BYTES */
        struct {
            struct pt_value **data;
            size_t n, cap;
        } seq; /* PT_LIST, PT_TUPLE */
        struct {
            struct pt_item *data;
            size_t n, cap;
            enum pt_dict_class class;
            struct pt_value *attributes; /* a dict: what Python keeps in __dict__; or NULL */
        } dict;
        struct pt_tensor *tensor;
        enum dtype dtype;
        int global; /* row of pickle_globals.def */
        struct {
            struct pt_storage *of;
            enum dtype type; /* of the class that the pickle named */
        } storage;
    };
};

struct pt_value *pt_none(struct arena *a);
struct pt_value *pt_bool(struct arena *a, bool truth);
struct pt_value *pt_int(struct arena *a, int64_t integer);
struct pt_value *pt_float(struct arena *a, double real);
struct pt_value *pt_string(struct arena *a, const char *text); /* copied */
struct pt_value *pt_string_n(struct arena *a, const char *text, size_t n);
struct pt_value *pt_bytes(struct arena *a, const void *data, size_t n);
struct pt_value *pt_list(struct arena *a);
struct pt_value *pt_tuple(struct arena *a);
struct pt_value *pt_dict(struct arena *a, enum pt_dict_class class);
void pt_add(struct arena *a, struct pt_value *seq, struct pt_value *item);
/* Appends; the caller does not put a key twice. */
void pt_put(struct arena *a, struct pt_value *dict, const char *key, struct pt_value *value);
void pt_put_int(struct arena *a, struct pt_value *dict, int64_t key, struct pt_value *value);
void pt_put_value(
    struct arena *a, struct pt_value *dict, struct pt_value *key, struct pt_value *value);

/* A storage over the caller's memory, which must live as long as the tree is used. */
struct pt_storage *pt_storage(struct arena *a, const void *data, size_t size_bytes);
/* A contiguous tensor at `offset` elements of a storage. */
struct pt_value *pt_tensor(
    struct arena *a, struct pt_storage *s, enum dtype type, const int64_t *shape, int rank,
    int64_t offset);
/* Storage and tensor in one. */
struct pt_value *
pt_tensor_of(struct arena *a, enum dtype type, const int64_t *shape, int rank, const void *data);

/* The value under a key; NULL when there is none, or when `dict` is NULL or no dict. */
const struct pt_value *pt_get(const struct pt_value *dict, const char *key);
const struct pt_value *pt_get_int(const struct pt_value *dict, int64_t key);
/* The plain value; false when `v` is NULL or of another kind. Integers and truths count as reals,
 * a tensor of one element does not (see ptfile_read). */
bool pt_to_int(const struct pt_value *v, int64_t *out);
bool pt_to_float(const struct pt_value *v, double *out);
const char *pt_to_string(const struct pt_value *v); /* NULL when it is none */
const char *pt_kind_name(enum pt_kind kind);        /* "a list" */

int64_t pt_tensor_elements(const struct pt_tensor *t);
bool pt_tensor_contiguous(const struct pt_tensor *t);
/* First and last element of the storage that the tensor touches; only if it has elements. */
int64_t pt_tensor_last(const struct pt_tensor *t);
/* Whether shape, strides and offset stay inside the storage, without overflow (invariant 4). */
bool pt_tensor_fits(const struct pt_tensor *t);

bool utf8_valid(const char *s, size_t n);

#endif
