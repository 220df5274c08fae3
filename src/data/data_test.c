/* data_test.c - data sets end to end: the real Fashion-MNIST where it is installed. */
#include "base/mem.h"
#include "data/loader.h"

#include "test.h"

#include <string.h>

TEST(fashion_mnist_loads_and_batches, "the installed Fashion-MNIST gives 469 training batches")
{
    struct err e = {0};
    struct dataset *d = NULL;
    struct dataset_spec spec = {.name = "FashionMNIST", .split = "train"};
    if (dataset_open(&spec, &d, &e) == ST_NOT_FOUND)
        test_skip("dataset-fashion-mnist is not installed");
    CHECK(d != NULL);
    struct dataset_info described;
    CHECK_OK(dataset_describe("FashionMNIST", "train", &described, &e), &e);
    CHECK_EQ(described.host_bytes, dataset_host_bytes(d));
    struct loader_options o = {.batch_size = 128, .shuffle = true, .num_workers = 2, .seed = 1};
    struct loader *l = NULL;
    CHECK_OK(loader_new(d, NULL, &o, &l, &e), &e);
    CHECK_EQ(loader_get_plan(l)->batches, 469);
    float *x = mem_alloc(loader_get_plan(l)->x_bytes * 128);
    int64_t y[128], count = 0, seen = 0, per_class[10] = {0};
    CHECK_OK(loader_begin_epoch(l, 0, 0, &e), &e);
    do {
        CHECK_OK(loader_next(l, x, y, &count, &e), &e);
        for (int64_t i = 0; i < count; i++)
            per_class[y[i]]++;
        seen += count;
    } while (count);
    CHECK_EQ(seen, 60000);
    for (int i = 0; i < 10; i++)
        CHECK_EQ(per_class[i], 6000);
    mem_free(x);
    loader_free(l);
    dataset_free(d);
}
