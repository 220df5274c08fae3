/* loader_test.c - order, resuming, workers, short and empty epochs; the real Fashion-MNIST. */
#include "base/env.h"
#include "base/mem.h"
#include "data/loader.h"

#include "test.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { BATCH = 4, SIDE = 6 };

/* `count` samples: the number itself, and its square as class. */
static struct dataset *numbers(int64_t count)
{
    struct err e = {0};
    struct dataset *d = NULL;
    float *x = mem_alloc((size_t)(count + 1) * sizeof *x);
    int64_t *y = mem_alloc((size_t)(count + 1) * sizeof *y);
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)i;
        y[i] = i * i;
    }
    struct dataset_arrays a = {
        .name = "numbers", .count = count, .type = DATA_F32, .x = x, .target = DATA_I64, .y = y};
    CHECK_OK(dataset_from_arrays(&a, &d, &e), &e);
    mem_free(x);
    mem_free(y);
    return d;
}

static void put_picture(const char *name, int w, int h, uint8_t seed)
{
    struct err e = {0};
    char path[1024], dir[1024];
    uint8_t rgb[64 * 64 * 3];
    for (int i = 0; i < w * h * 3; i++)
        rgb[i] = (uint8_t)(i * 13 + seed * 29);
    path_join(test_dir(), name, path, sizeof path);
    CHECK_OK(dir_make(path_dir(path, dir, sizeof dir), &e), &e);
    CHECK_OK(png_write(path, w, h, rgb, &e), &e);
}

/* 11 pictures of 8 x 7 in two classes. */
static struct dataset *pictures(void)
{
    struct err e = {0};
    struct dataset *d = NULL;
    for (int i = 0; i < 11; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "set/train/%s/%02d.png", i % 2 ? "odd" : "even", i);
        put_picture(name, 8, 7, (uint8_t)i);
    }
    char path[1024];
    path_join(test_dir(), "set", path, sizeof path);
    CHECK_OK(dataset_open_folder(path, "train", &d, &e), &e);
    return d;
}

static struct transform augmented(void)
{
    struct err e = {0};
    struct transform t = {0};
    CHECK_OK(transform_random_crop(&t, SIDE, 2, "reflect", &e), &e);
    CHECK_OK(transform_random_flip(&t, 0.5, &e), &e);
    CHECK_OK(transform_color_jitter(&t, 0.4, 0.4, 0.4, 0.1, &e), &e);
    CHECK_OK(transform_to_tensor(&t, &e), &e);
    return t;
}

static struct loader *
make(const struct dataset *d, const struct transform *t, int64_t workers, bool drop_last)
{
    struct err e = {0};
    struct loader *l = NULL;
    struct loader_options o = {
        .batch_size = BATCH,
        .shuffle = true,
        .drop_last = drop_last,
        .num_workers = workers,
        .prefetch_factor = 2,
        .seed = 7,
        .stream = 5};
    struct loader_plan described;
    CHECK_OK(loader_describe(dataset_get_info(d), t, &o, &described, &e), &e);
    CHECK_OK(loader_new(d, t, &o, &l, &e), &e);
    CHECK_EQ(described.host_bytes, loader_host_bytes(l));
    return l;
}

/* Everything an epoch gives from `first` on, one after the other. */
struct epoch {
    float x[64 * 3 * SIDE * SIDE];
    int64_t y[64], samples, batches, last_count;
};

static void run_epoch(struct loader *l, int64_t epoch, int64_t first, struct epoch *out)
{
    struct err e = {0};
    memset(out, 0, sizeof *out);
    size_t floats = loader_get_plan(l)->x_bytes / sizeof(float);
    CHECK_OK(loader_begin_epoch(l, epoch, first, &e), &e);
    for (int64_t count = 1; count;) {
        float *x = out->x + (size_t)out->samples * floats;
        CHECK_EQ(loader_position(l), first + out->batches);
        CHECK_OK(loader_next(l, x, out->y + out->samples, &count, &e), &e);
        out->samples += count;
        out->batches += count > 0;
        out->last_count = count ? count : out->last_count;
    }
}

TEST(
    order_is_a_permutation,
    "an epoch gives every sample once, in another order each epoch and seed")
{
    struct dataset *d = numbers(11);
    struct loader *l = make(d, NULL, 0, false);
    static struct epoch a, b;
    run_epoch(l, 0, 0, &a);
    run_epoch(l, 1, 0, &b);
    CHECK(a.samples == 11 && a.batches == 3 && a.last_count == 3);
    int seen[11] = {0};
    for (int i = 0; i < 11; i++) {
        seen[(int)a.x[i]]++;
        CHECK_EQ(a.y[i], (int64_t)a.x[i] * (int64_t)a.x[i]);
    }
    for (int i = 0; i < 11; i++)
        CHECK_EQ(seen[i], 1);
    CHECK(memcmp(a.x, b.x, 11 * sizeof *a.x) != 0);
    loader_free(l);
    dataset_free(d);
}

TEST(drop_last, "drop_last leaves the short batch out, and only that")
{
    struct dataset *d = numbers(11);
    struct loader *all = make(d, NULL, 0, false), *full = make(d, NULL, 2, true);
    static struct epoch a, b;
    run_epoch(all, 3, 0, &a);
    run_epoch(full, 3, 0, &b);
    CHECK(b.samples == 8 && b.batches == 2 && b.last_count == 4);
    CHECK_EQ(loader_get_plan(full)->batches, 2);
    CHECK_EQ(loader_get_plan(full)->last_count, 4);
    CHECK_EQ(loader_get_plan(all)->last_count, 3);
    CHECK(memcmp(a.x, b.x, 8 * sizeof *a.x) == 0);
    loader_free(all);
    loader_free(full);
    dataset_free(d);
}

TEST(workers_change_nothing, "0, 1 and 3 workers give the same batches, augmentation included")
{
    struct dataset *d = pictures();
    struct transform t = augmented();
    static struct epoch want, got;
    struct loader *l = make(d, &t, 0, false);
    run_epoch(l, 2, 0, &want);
    loader_free(l);
    for (int64_t workers = 1; workers <= 3; workers += 2) {
        l = make(d, &t, workers, false);
        for (int64_t epoch = 0; epoch < 4; epoch++)
            run_epoch(l, epoch, 0, &got);
        run_epoch(l, 2, 0, &got);
        CHECK(memcmp(&want, &got, sizeof want) == 0);
        CHECK_EQ(loader_host_bytes(l), loader_get_plan(l)->host_bytes);
        loader_free(l);
    }
    dataset_free(d);
}

TEST(
    workers_draw_their_own,
    "case-T58: equal images prepared by two workers differ, within an epoch and between epochs")
{
    struct err e = {0};
    for (int i = 0; i < 8; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "same/train/a/%d.png", i);
        put_picture(name, 8, 7, 1);
    }
    char path[1024];
    struct dataset *d = NULL;
    CHECK_OK(
        dataset_open_folder(path_join(test_dir(), "same", path, sizeof path), "train", &d, &e), &e);
    struct transform t = augmented();
    struct loader *l = make(d, &t, 2, false);
    static struct epoch a, b;
    run_epoch(l, 0, 0, &a);
    run_epoch(l, 1, 0, &b);
    size_t n = 3 * SIDE * SIDE;
    for (size_t i = 0; i < 8; i++)
        for (size_t k = 0; k < 8; k++) {
            CHECK(i == k || memcmp(a.x + i * n, a.x + k * n, n * sizeof(float)) != 0);
            CHECK(memcmp(a.x + i * n, b.x + k * n, n * sizeof(float)) != 0);
        }
    loader_free(l);
    dataset_free(d);
}

TEST(
    resume_inside_an_epoch,
    "case-T39 case-T49: an epoch begun at batch b gives what the whole one gives from b on")
{
    struct dataset *d = pictures();
    struct transform t = augmented();
    static struct epoch whole, rest;
    for (int64_t workers = 0; workers <= 2; workers += 2) {
        struct loader *l = make(d, &t, workers, false);
        run_epoch(l, 5, 0, &whole);
        for (int64_t b = 0; b <= 3; b++) {
            run_epoch(l, 5, b, &rest);
            size_t skip = (size_t)(b * BATCH < 11 ? b * BATCH : 11), n = 3 * SIDE * SIDE;
            CHECK_EQ(rest.samples, 11 - (int64_t)skip);
            CHECK(memcmp(whole.x + skip * n, rest.x, (11 - skip) * n * sizeof(float)) == 0);
            CHECK(memcmp(whole.y + skip, rest.y, (11 - skip) * sizeof *rest.y) == 0);
        }
        struct err e = {0};
        CHECK_EQ(loader_begin_epoch(l, 5, 4, &e), ST_INVALID);
        CHECK_EQ(loader_begin_epoch(l, 5, -1, &e), ST_INVALID);
        loader_free(l);
    }
    dataset_free(d);
}

TEST(resume_twelve, "case-T39: 20 batches, windows of 4, 3 updates: the loader goes on at batch 12")
{
    struct err e = {0};
    struct dataset *d = numbers(80);
    struct loader *l = make(d, NULL, 0, false);
    int64_t want[BATCH], count = 0, y[BATCH];
    float x[BATCH];
    CHECK_EQ(loader_get_plan(l)->batches, 20);
    CHECK_OK(loader_begin_epoch(l, 0, 3 * 4, &e), &e);
    CHECK_EQ(loader_indices(l, 12, want), BATCH);
    CHECK_OK(loader_next(l, x, y, &count, &e), &e);
    for (int i = 0; i < BATCH; i++)
        CHECK_EQ((int64_t)x[i], want[i]);
    loader_free(l);
    dataset_free(d);
}

TEST(
    validation_does_not_disturb,
    "case-T88: running another loader between and within epochs changes nothing of this one")
{
    struct err e = {0};
    struct dataset *d = pictures();
    struct transform t = augmented(), plain = transform_only_to_tensor();
    static struct epoch want[2], got[2], other;
    struct loader *l = make(d, &t, 2, false);
    for (int64_t k = 0; k < 2; k++)
        run_epoch(l, k, 0, &want[k]);
    loader_free(l);
    l = make(d, &t, 2, false);
    struct loader *validation = make(d, &plain, 1, false);
    for (int64_t k = 0; k < 2; k++) {
        int64_t count = 0;
        CHECK_OK(loader_begin_epoch(validation, k, 0, &e), &e);
        CHECK_OK(loader_next(validation, other.x, other.y, &count, &e), &e);
        run_epoch(l, k, 0, &got[k]);
        CHECK(memcmp(&want[k], &got[k], sizeof want[k]) == 0);
    }
    loader_free(validation);
    loader_free(l);
    dataset_free(d);
}

TEST(
    no_batches,
    "case-T102: 3 samples in batches of 4 without the last are 0 batches, before a start")
{
    struct err e = {0};
    struct dataset *d = numbers(3), *none = numbers(0);
    struct loader_options o = {.batch_size = 4, .drop_last = true, .num_workers = 2};
    struct loader_plan p;
    CHECK_OK(loader_describe(dataset_get_info(d), NULL, &o, &p, &e), &e);
    CHECK_EQ(p.batches, 0);
    CHECK_EQ(p.last_count, 0);
    o.drop_last = false;
    CHECK_OK(loader_describe(dataset_get_info(d), NULL, &o, &p, &e), &e);
    CHECK(p.batches == 1 && p.last_count == 3);
    static struct epoch got;
    struct loader *l = make(none, NULL, 2, false);
    run_epoch(l, 0, 0, &got);
    CHECK(got.batches == 0 && got.samples == 0);
    loader_free(l);
    dataset_free(d);
    dataset_free(none);
}

TEST(sequential, "without shuffle the samples come in the order of the files, in every epoch")
{
    struct err e = {0};
    struct dataset *d = numbers(6);
    struct loader *l = NULL;
    struct loader_options o = {.batch_size = 6};
    CHECK_OK(loader_new(d, NULL, &o, &l, &e), &e);
    CHECK_EQ(loader_host_bytes(l), 0);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        static struct epoch got;
        run_epoch(l, epoch, 0, &got);
        for (int i = 0; i < 6; i++)
            CHECK_NEAR((double)got.x[i], i, 0);
    }
    loader_free(l);
    dataset_free(d);
}

TEST(error_at_its_batch, "a broken file is reported by its own batch, with workers too")
{
    struct err e = {0};
    struct dataset *d = pictures();
    char path[1024];
    path_join(test_dir(), "set/train/odd/05.png", path, sizeof path);
    CHECK_OK(file_write(path, "\x89PNG\r\n\x1a\nbroken", 14, &e), &e);
    struct transform t = augmented();
    static struct epoch got;
    for (int64_t workers = 0; workers <= 3; workers += 3) {
        struct loader *l = NULL;
        struct loader_options o = {.batch_size = 2, .num_workers = workers};
        CHECK_OK(loader_new(d, &t, &o, &l, &e), &e);
        CHECK_OK(loader_begin_epoch(l, 0, 0, &e), &e);
        for (int b = 0; b < 6; b++) {
            int64_t count = 0;
            enum status st = loader_next(l, got.x, got.y, &count, &e);
            /* sorted: even 00 02 04 06 08 10, odd 01 03 05 07 09: sample 8 is in batch 4 */
            CHECK_EQ(st, b == 4 ? ST_CORRUPT : ST_OK);
            CHECK_EQ(count, b == 4 ? 0 : b == 5 ? 1 : 2);
        }
        CHECK(strstr(e.text, "odd/05.png") != NULL);
        loader_free(l);
    }
    dataset_free(d);
}

TEST(
    mixed_sizes, "images of different sizes name the file and both shapes; a resize makes them fit")
{
    struct err e = {0};
    struct dataset *d = pictures();
    struct loader *l = NULL;
    struct transform plain = transform_only_to_tensor(), resized = {0};
    struct loader_options o = {.batch_size = 11};
    static struct epoch got;
    int64_t count = 0;
    static const int sizes[][2] = {{20, 31}, {3, 2}};
    for (int k = 0; k < 2; k++) { /* larger and smaller than the others */
        put_picture("set/train/odd/07.png", sizes[k][0], sizes[k][1], 3);
        CHECK_OK(loader_new(d, &plain, &o, &l, &e), &e);
        CHECK_OK(loader_begin_epoch(l, 0, 0, &e), &e);
        CHECK_EQ(loader_next(l, got.x, got.y, &count, &e), ST_INVALID);
        char want[64];
        (void)snprintf(want, sizeof want, "3,%d,%d where", sizes[k][1], sizes[k][0]);
        CHECK(strstr(e.text, "odd/07.png") && strstr(e.text, want) && strstr(e.text, "3,7,8"));
        CHECK(strstr(e.hint, "ResizeTransform") != NULL);
        loader_free(l);
    }
    CHECK_OK(transform_resize(&resized, 5, "bilinear", &e), &e);
    CHECK_OK(transform_to_tensor(&resized, &e), &e);
    CHECK_OK(loader_new(d, &resized, &o, &l, &e), &e);
    CHECK_OK(loader_begin_epoch(l, 0, 0, &e), &e);
    CHECK_OK(loader_next(l, got.x, got.y, &count, &e), &e);
    CHECK_EQ(count, 11);
    loader_free(l);
    dataset_free(d);
}

TEST(stopped_anywhere, "a loader can be freed or begun anew at any moment of its workers' work")
{
    struct err e = {0};
    struct dataset *d = pictures();
    struct transform t = augmented();
    static struct epoch want, got;
    struct loader *plain = make(d, &t, 0, false);
    run_epoch(plain, 9, 0, &want);
    for (int i = 0; i < 40; i++) {
        struct loader *l = make(d, &t, 3, false);
        int64_t count = 0;
        for (int k = 0; k < i % 5; k++) {
            CHECK_OK(loader_begin_epoch(l, k, k % 3, &e), &e);
            if (k % 2)
                CHECK_OK(loader_next(l, got.x, got.y, &count, &e), &e);
            struct timespec pause = {.tv_nsec = i * 10000};
            (void)nanosleep(&pause, NULL);
        }
        if (i % 8 == 7) {
            run_epoch(l, 9, 0, &got);
            CHECK(memcmp(&want, &got, sizeof want) == 0);
        }
        loader_free(l);
    }
    loader_free(plain);
    dataset_free(d);
}

TEST(options_checked, "batch_size, num_workers and prefetch_factor out of range are named")
{
    struct err e = {0};
    struct dataset *d = numbers(3);
    struct loader_plan p;
    const struct dataset_info *i = dataset_get_info(d);
    struct loader_options o = {.batch_size = 0};
    CHECK_EQ(loader_describe(i, NULL, &o, &p, &e), ST_INVALID);
    CHECK(strstr(e.text, "batch_size") != NULL);
    o = (struct loader_options){.batch_size = 1, .num_workers = -1};
    CHECK_EQ(loader_describe(i, NULL, &o, &p, &e), ST_INVALID);
    CHECK(strstr(e.text, "num_workers") != NULL);
    o = (struct loader_options){.batch_size = 1, .prefetch_factor = -1};
    CHECK_EQ(loader_describe(i, NULL, &o, &p, &e), ST_INVALID);
    CHECK(strstr(e.text, "prefetch_factor") != NULL);
    o = (struct loader_options){.batch_size = INT64_MAX, .num_workers = 1};
    CHECK_EQ(loader_describe(i, NULL, &o, &p, &e), ST_OOM);
    o = (struct loader_options){.batch_size = 1};
    struct transform t = transform_default();
    CHECK_EQ(loader_describe(i, &t, &o, &p, &e), ST_INVALID);
    CHECK(strstr(e.text, "not images") != NULL);
    dataset_free(d);
}

TEST(
    fashion_mnist, "the installed Fashion-MNIST gives 469 batches, all classes alike, as described")
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
    struct loader_plan plan;
    struct loader *l = NULL;
    CHECK_OK(loader_describe(&described, NULL, &o, &plan, &e), &e);
    CHECK_OK(loader_new(d, NULL, &o, &l, &e), &e);
    CHECK_EQ(plan.host_bytes, loader_host_bytes(l));
    CHECK_EQ(plan.batches, 469);
    float *x = mem_alloc(plan.x_bytes * 128);
    int64_t y[128], count = 0, per_class[10] = {0};
    CHECK_OK(loader_begin_epoch(l, 0, 0, &e), &e);
    double sum = 0, n = 0;
    do {
        CHECK_OK(loader_next(l, x, y, &count, &e), &e);
        for (int64_t i = 0; i < count; i++)
            per_class[y[i]]++;
        for (int64_t i = 0; i < count * 784; i++, n++)
            sum += (double)x[i];
    } while (count);
    CHECK_NEAR(n, 60000.0 * 784, 0);
    CHECK_NEAR(sum / n, 2 * 0.2860405 - 1, 1e-5); /* the set's known mean, normalised */
    for (int i = 0; i < 10; i++)
        CHECK_EQ(per_class[i], 6000);
    mem_free(x);
    loader_free(l);
    dataset_free(d);
}
