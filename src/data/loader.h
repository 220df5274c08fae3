/* loader.h - batches of a data set, in the order of an epoch, ready for the network.
 *
 *     loader_begin_epoch(l, epoch, first_batch)          first_batch > 0 resumes inside an epoch
 *     while (loader_next(l, x, y, &count, e) == ST_OK && count > 0) ...
 *
 * Order and contents depend on (seed, stream, epoch) alone: not on the number of workers, not on
 * what other loaders did. Epoch E's order is a Fisher-Yates permutation drawn from base/rng.h, and
 * a sample's transform draws by its index, so batch b is the same whether the epoch began at 0 or
 * at b. Workers are threads that prepare batches ahead into a ring of num_workers x
 * prefetch_factor buffers; with none, batches are made in loader_next, in place.
 *
 * One thread uses a loader at a time. An error met while a batch was prepared ahead is returned
 * by the loader_next of that batch.
 */
#ifndef DATA_LOADER_H
#define DATA_LOADER_H

#include "data/dataset.h"
#include "data/transform.h"

struct loader_options {
    int64_t batch_size;
    bool shuffle, drop_last;
    int64_t num_workers, prefetch_factor; /* 0: 2 */
    uint64_t seed;
    uint32_t stream; /* e.g. (uint32_t)hash_name("dataloader:<node id>") */
};

/* What a loader is, known before it is made. */
struct loader_plan {
    int rank;
    int64_t shape[DATA_RANK_MAX]; /* of one sample as the network sees it: images C,H,W */
    enum data_type type, target;  /* of x (DATA_F32 or DATA_I64) and of y */
    int target_rank;              /* of one target */
    int64_t target_shape[DATA_RANK_MAX];
    int64_t batches;         /* per epoch; 0 when the data set is empty or all is dropped */
    int64_t last_count;      /* samples of the last batch */
    size_t x_bytes, y_bytes; /* of one sample */
    int64_t host_bytes;      /* what loader_new allocates */
};
/* `t` is NULL for data sets of numbers. Touches no data, so `plan` can ask it. Image folders: the
 * decoders' own memory and images larger than the first one are not in host_bytes. */
enum status loader_describe(
    const struct dataset_info *info, const struct transform *t, const struct loader_options *o,
    struct loader_plan *out, struct err *e) NODISCARD;

struct loader;
/* `d` must outlive the loader. */
enum status loader_new(
    const struct dataset *d, const struct transform *t, const struct loader_options *o,
    struct loader **out, struct err *e) NODISCARD;
void loader_free(struct loader *l); /* at any time: workers are stopped */
const struct loader_plan *loader_get_plan(const struct loader *l);
int64_t loader_host_bytes(struct loader *l); /* allocated now */

/* Batches per epoch of `count` samples. */
int64_t loader_batches(int64_t count, int64_t batch_size, bool drop_last);

/* Starts an epoch at batch first_batch (0 to batches; at batches it is over at once). What was
 * prepared of another epoch is dropped. */
enum status
loader_begin_epoch(struct loader *l, int64_t epoch, int64_t first_batch, struct err *e) NODISCARD;
/* The next batch, into the caller's memory: x has room for batch_size samples of x_bytes, y for
 * as many targets (NULL when there are none). *count is less than batch_size in a short last batch
 * and 0 when the epoch is over. */
enum status
loader_next(struct loader *l, void *x, void *y, int64_t *count, struct err *e) NODISCARD;
/* Batch that loader_next gives next. */
int64_t loader_position(const struct loader *l);
/* Sample indices of batch b of the current epoch, into out (batch_size); returns how many. */
int64_t loader_indices(const struct loader *l, int64_t batch, int64_t *out);

#endif
