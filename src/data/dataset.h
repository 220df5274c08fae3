/* dataset.h - data sets: what they are without their files, and their samples once opened.
 *
 * Four kinds, one type:
 *   known sets (datasets.def): uint8 images and class labels, read whole into host memory;
 *   image folders: `<path>/<split>/<class>/files`, PNG and JPEG, decoded on access as RGB;
 *   arrays: numbers the caller has (float32 or int64), copied;
 *   tokens: blocks of a long row of token numbers (tokens.h).
 * Nothing here uses the network. A missing file says where it was looked for and where it comes
 * from. An opened data set does not change: any number of threads may read it.
 *
 * Host memory: `host_bytes` of the description is what opening allocates for samples, labels and
 * file names, to the byte; the structs themselves (some KiB) are not counted.
 */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include "base/err.h"
#include "data/image.h"

#include <stddef.h>
#include <stdint.h>

enum { DATA_RANK_MAX = 8 };

enum data_type {
    DATA_NONE, /* no targets */
    DATA_U8,   /* image: H,W,C bytes; a transform makes float32 C,H,W of it */
    DATA_F32,
    DATA_I64
};
size_t data_type_bytes(enum data_type type);
const char *data_type_name(enum data_type type);

/* A description: all that a plan needs. */
struct dataset_info {
    char name[64], split[16];
    char path[1024]; /* where the files are; "" when not opened */
    int64_t count;
    enum data_type type; /* of one sample */
    int rank;
    int64_t shape[DATA_RANK_MAX]; /* of one sample; images: C,H,W */
    bool shape_varies;            /* image folder: `shape` is that of its first file */
    enum data_type target;
    int target_rank; /* 0: one number per sample, as class labels are */
    int64_t target_shape[DATA_RANK_MAX];
    int classes; /* 0: targets are not classes */
    int64_t host_bytes;
};

struct dataset;

/* Description of a known set ("train" or "test"), without touching any file. An unknown name is
 * ST_INVALID with the names there are; sets that exist but are not read here, ST_UNSUPPORTED. */
enum status dataset_describe(
    const char *name, const char *split, struct dataset_info *out, struct err *e) NODISCARD;

/* Where a known set is looked for, in this order:
 *   data_dir (relative to graph_dir), SNUG_HOME/data, system_dir/<dashed name>;
 * below each, the layouts of torchvision and of the sets' own archives (datasets.def). */
struct dataset_spec {
    const char *name, *split;
    const char *data_dir;   /* NULL or "": none */
    const char *graph_dir;  /* NULL: the current folder */
    const char *system_dir; /* NULL: /usr/share/datasets */
};
/* The folder that would be read. ST_NOT_FOUND lists the places that were searched (detail) and
 * says what to put where and which package has it (hint). */
enum status
dataset_find(const struct dataset_spec *spec, char *folder, size_t cap, struct err *e) NODISCARD;
/* Where the files are on this machine and say so in their first bytes (IDX) or by their sizes
 * (CIFAR's binary form), `info` gets their count instead of the published one: a plan must be about
 * the set that will be read. Silent otherwise; what is wrong with the files is told by opening. */
void dataset_peek(const struct dataset_spec *spec, struct dataset_info *info);
enum status
dataset_open(const struct dataset_spec *spec, struct dataset **out, struct err *e) NODISCARD;

/* `split` "train", "val", "test" or "" ((none): classes directly below path). Class folders are
 * sorted by name; so are the files of a class. The first file's header gives `shape`. */
enum status dataset_describe_folder(
    const char *path, const char *split, struct dataset_info *out, struct err *e) NODISCARD;
enum status dataset_open_folder(
    const char *path, const char *split, struct dataset **out, struct err *e) NODISCARD;

/* Numbers the caller has. Everything is copied. */
struct dataset_arrays {
    const char *name;    /* NULL: "arrays" */
    int64_t count;       /* 0 is allowed: an empty validation set */
    enum data_type type; /* DATA_F32 or DATA_I64 */
    int rank;
    const int64_t *shape; /* of one sample */
    const void *x;
    enum data_type target; /* DATA_NONE, DATA_F32 or DATA_I64 */
    int target_rank;
    const int64_t *target_shape;
    const void *y;
    int classes;
};
enum status
dataset_from_arrays(const struct dataset_arrays *a, struct dataset **out, struct err *e) NODISCARD;

void dataset_free(struct dataset *d);
const struct dataset_info *dataset_get_info(const struct dataset *d);
int64_t dataset_host_bytes(const struct dataset *d); /* equals info.host_bytes */
/* Name of a class, or NULL where the set has none (known sets do not name theirs). */
const char *dataset_class_name(const struct dataset *d, int class_index);

/* Samples. index is in [0, count). */
/* The bytes of an image that lies in memory (H,W,C), else NULL: then dataset_image decodes. */
const uint8_t *dataset_pixels(const struct dataset *d, int64_t index);
enum status
dataset_image(const struct dataset *d, int64_t index, struct image *into, struct err *e) NODISCARD;
/* Writes the numbers of sample `index` of arrays or tokens. */
void dataset_write(const struct dataset *d, int64_t index, void *into);
/* The numbers of sample `index` of arrays, where they lie; NULL for images and tokens. */
const void *dataset_numbers(const struct dataset *d, int64_t index);
/* Writes the target: one int64 for classes, else target_shape's numbers. Nothing for DATA_NONE. */
void dataset_target(const struct dataset *d, int64_t index, void *into);
size_t dataset_target_bytes(const struct dataset_info *info); /* of one sample */
/* What the sample is, for errors: a file's path, or "sample 17 of FashionMNIST". */
const char *dataset_sample_name(const struct dataset *d, int64_t index, char *buf, size_t cap);

#endif
