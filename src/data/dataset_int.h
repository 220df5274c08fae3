/* dataset_int.h - what the readers of src/data share: the insides of a data set. */
#ifndef DATA_DATASET_INT_H
#define DATA_DATASET_INT_H

#include "data/dataset.h"

struct folder;
struct token_row;

struct dataset {
    struct dataset_info info;
    uint8_t *images, *labels;       /* known sets */
    void *x, *y;                    /* arrays */
    struct folder *folder;          /* image folder */
    const struct token_row *tokens; /* blocks of tokens; borrowed */
};

/* Known sets: fill images, labels, info.count and info.host_bytes; info holds what the table says.
 * `folder` has been found by dataset_find. */
enum status idx_load(struct dataset *d, const char *folder, struct err *e) NODISCARD;
enum status cifar_load(struct dataset *d, const char *folder, struct err *e) NODISCARD;
/* Whether `folder` looks like the place: its first file for this split is there. */
bool idx_present(const struct dataset_info *info, const char *folder);
bool cifar_present(const struct dataset_info *info, const char *folder);

/* Samples by the files' headers alone; 0 where they do not tell. */
int64_t idx_count(const struct dataset_info *info, const char *folder);
int64_t cifar_count(const struct dataset_info *info, const char *folder);

/* Sample `index` of blocks of tokens (shift 0) or its target (shift 1). */
void tokens_write(const struct dataset *d, int64_t index, int64_t shift, int64_t *into);

void folder_free(struct folder *f);
const char *folder_path(const struct folder *f, int64_t index, char *buf, size_t cap);
int folder_class(const struct folder *f, int64_t index);
const char *folder_class_name(const struct folder *f, int class_index);

/* Labels must lie in [0, classes). ST_CORRUPT names file and sample. */
enum status labels_check(
    const uint8_t *labels, int64_t n, int classes, const char *file, struct err *e) NODISCARD;

#endif
