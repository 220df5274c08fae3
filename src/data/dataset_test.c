/* dataset_test.c - readers against good, damaged and missing files; descriptions; folders. */
#include "base/env.h"
#include "base/mem.h"
#include "base/str.h"
#include "data/cifar_pickle.h"
#include "data/dataset.h"
#include "data/idx.h"

#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* Writes a file below the test's folder, with its folders; gz compresses it. */
static const char *put(const char *name, const void *data, size_t n, bool gz)
{
    static char path[1024];
    struct err e = {0};
    char dir[1024];
    path_join(test_dir(), name, path, sizeof path);
    CHECK_OK(dir_make(path_dir(path, dir, sizeof dir), &e), &e);
    if (!gz) {
        CHECK_OK(file_write(path, data, n, &e), &e);
        return path;
    }
    gzFile out = gzopen(path, "wb");
    CHECK(out && gzwrite(out, data, (unsigned)n) == (int)n);
    CHECK_EQ(gzclose(out), Z_OK);
    return path;
}

/* An IDX file of the given sizes, elements i % 10. */
static struct str idx_bytes(int rank, const uint32_t *size)
{
    struct str s;
    str_init(&s);
    size_t n = 1;
    str_add_n(&s, (const char[4]){0, 0, 8, (char)rank}, 4);
    for (int i = 0; i < rank; i++) {
        uint32_t v = size[i];
        char b[4] = {(char)(v >> 24), (char)(v >> 16), (char)(v >> 8), (char)v};
        str_add_n(&s, b, 4);
        n *= v;
    }
    for (size_t i = 0; i < n; i++) {
        char c = (char)(i % 10);
        str_add_n(&s, &c, 1);
    }
    return s;
}

/* A pair of files for `split` below folder. */
static void
put_pair(const char *folder, const char *stem, uint32_t images, uint32_t labels, bool gz)
{
    char name[256];
    struct str x = idx_bytes(3, (uint32_t[3]){images, 28, 28});
    struct str y = idx_bytes(1, (uint32_t[1]){labels});
    (void)snprintf(name, sizeof name, "%s/%s-images-idx3-ubyte%s", folder, stem, gz ? ".gz" : "");
    put(name, x.data, x.n, gz);
    (void)snprintf(name, sizeof name, "%s/%s-labels-idx1-ubyte%s", folder, stem, gz ? ".gz" : "");
    put(name, y.data, y.n, gz);
    str_release(&x);
    str_release(&y);
}

/* Looks nowhere but in the test's folder. */
static struct dataset_spec here(const char *name, const char *split)
{
    CHECK_EQ(setenv("SNUG_HOME", test_dir(), 1), 0);
    return (struct dataset_spec){
        .name = name,
        .split = split,
        .data_dir = "data",
        .graph_dir = test_dir(),
        .system_dir = "/nonexistent"};
}

static void check_opens(const struct dataset_spec *spec, int64_t count)
{
    struct err e = {0};
    struct dataset *d = NULL;
    CHECK_OK(dataset_open(spec, &d, &e), &e);
    CHECK_EQ(dataset_get_info(d)->count, count);
    CHECK_EQ(dataset_host_bytes(d), count * 785);
    int64_t label = -1;
    dataset_target(d, count - 1, &label);
    CHECK_EQ(label, (count - 1) % 10);
    CHECK_EQ(dataset_pixels(d, 1)[0], 784 % 10);
    dataset_free(d);
}

TEST(finds_layouts, "torchvision's layout, bare files, SNUG_HOME/data and the system folder work")
{
    struct dataset_spec spec = here("FashionMNIST", "train");
    char system[1024];
    put_pair("system/fashion-mnist", "train", 14, 14, true);
    spec.system_dir = path_join(test_dir(), "system", system, sizeof system);
    check_opens(&spec, 14);
    put_pair("data/mnist", "train", 13, 13, false); /* another set's folder is not ours */
    check_opens(&spec, 14);
    put_pair("data", "train", 12, 12, false); /* SNUG_HOME/data is the same folder here */
    check_opens(&spec, 12);
    put_pair("data/FashionMNIST/raw", "train", 11, 11, false);
    check_opens(&spec, 11);
    put_pair("data/FashionMNIST/raw", "t10k", 15, 15, true);
    spec.split = "test";
    check_opens(&spec, 15);
    spec = here("MNIST", "train");
    check_opens(&spec, 13);
}

TEST(
    missing_set,
    "a missing set says where it was looked for, where it goes and which package has it")
{
    struct err e = {0};
    struct dataset *d = NULL;
    struct dataset_spec spec = here("FashionMNIST", "train");
    CHECK_EQ(dataset_open(&spec, &d, &e), ST_NOT_FOUND);
    CHECK(strstr(e.text, "FashionMNIST") != NULL);
    CHECK(strstr(e.detail, "/data/FashionMNIST/raw") != NULL);
    CHECK(strstr(e.detail, "/nonexistent/fashion-mnist") != NULL);
    CHECK(strstr(e.hint, "dataset-fashion-mnist") != NULL);
    CHECK(strstr(e.hint, "train-images-idx3-ubyte.gz") != NULL);
    spec.name = "CIFAR10";
    CHECK_EQ(dataset_open(&spec, &d, &e), ST_NOT_FOUND);
    CHECK(strstr(e.hint, "cifar-10-batches-bin") != NULL);
}

TEST(descriptions, "known sets are described without files; unknown and unread ones are named")
{
    struct err e = {0};
    struct dataset_info i;
    CHECK_OK(dataset_describe("CIFAR100", "test", &i, &e), &e);
    CHECK_EQ(i.count, 10000);
    CHECK(i.shape[0] == 3 && i.shape[1] == 32 && i.shape[2] == 32);
    CHECK_EQ(i.classes, 100);
    CHECK_EQ(i.host_bytes, 10000 * 3073);
    CHECK_EQ(dataset_describe("FashonMNIST", "train", &i, &e), ST_INVALID);
    CHECK(strstr(e.hint, "Did you mean FashionMNIST?") != NULL);
    CHECK_EQ(dataset_describe("SVHN", "train", &i, &e), ST_UNSUPPORTED);
    CHECK_EQ(dataset_describe("STL10", "train", &i, &e), ST_UNSUPPORTED);
    CHECK_EQ(dataset_describe("MNIST", "val", &i, &e), ST_INVALID);
    CHECK_EQ(dataset_describe("MNIST", NULL, &i, &e), ST_INVALID);
    CHECK_EQ(dataset_describe(NULL, "train", &i, &e), ST_INVALID);
}

static void check_idx(const void *bytes, size_t n, int rank, enum status want, const char *word)
{
    struct err e = {0};
    struct source *s = NULL;
    struct idx x = {0};
    CHECK_OK(source_open_bytes(bytes, n, "file.idx", &s, &e), &e);
    enum status st = idx_read(s, rank, &x, &e);
    source_close(s);
    idx_release(&x);
    if (st != want || (st != ST_OK && !(strstr(e.text, word) && strstr(e.text, "file.idx"))))
        test_fail(__FILE__, __LINE__, "status %d, \"%s\" lacks \"%s\"", st, e.text, word);
}

TEST(idx_damage, "wrong magic, type, rank, counts, lengths and sizes of 2^31: each its own error")
{
    struct str good = idx_bytes(3, (uint32_t[3]){4, 5, 6});
    char b[256];
    size_t n = good.n;
    check_idx(good.data, n, 3, ST_OK, "");
    check_idx(good.data, n, 1, ST_CORRUPT, "3 dimensions where 1");
    for (size_t cut = 0; cut < n; cut++)
        check_idx(good.data, cut, 3, ST_CORRUPT, "");
    memcpy(b, good.data, n);
    b[n] = 0;
    check_idx(b, n + 1, 3, ST_CORRUPT, "longer than its header");
    b[0] = 'P';
    check_idx(b, n, 3, ST_CORRUPT, "not an IDX file");
    b[0] = 0;
    b[2] = 13;
    check_idx(b, n, 3, ST_CORRUPT, "0x0d");
    b[2] = 8;
    b[7] = 0;
    check_idx(b, n, 3, ST_CORRUPT, "no items");
    b[7] = 4;
    b[15] = 0;
    check_idx(b, n, 3, ST_CORRUPT, "no pixels");
    memset(b + 4, 0x80, 12); /* 2^31 and more in each dimension */
    check_idx(b, n, 3, ST_CORRUPT, "promises");
    str_release(&good);
}

static size_t pack(const void *in, size_t n, uint8_t *out, size_t cap)
{
    z_stream z = {0};
    CHECK_EQ(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    union {
        const void *in;
        Bytef *bytes;
    } from = {.in = in};
    z.next_in = from.bytes;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)cap;
    CHECK_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
    CHECK_EQ(deflateEnd(&z), Z_OK);
    return cap - z.avail_out;
}

TEST(gzip_damage, "compressed files cut off at any byte or with a wrong byte are refused")
{
    struct str good = idx_bytes(3, (uint32_t[3]){9, 28, 28});
    uint8_t gz[4096];
    size_t n = pack(good.data, good.n, gz, sizeof gz);
    check_idx(gz, n, 3, ST_OK, "");
    for (size_t cut = 2; cut < n; cut++)
        check_idx(gz, cut, 3, ST_CORRUPT, "");
    int refused = 0;
    for (size_t at = 10; at < n; at++) {
        struct err e = {0};
        struct source *s = NULL;
        struct idx x = {0};
        gz[at] ^= 0x21;
        CHECK_OK(source_open_bytes(gz, n, "file.idx", &s, &e), &e);
        refused += idx_read(s, 3, &x, &e) == ST_CORRUPT;
        source_close(s);
        idx_release(&x);
        gz[at] ^= 0x21;
    }
    CHECK_EQ(refused, n - 10); /* the checksum catches what inflate does not */
    /* two members in one file are one stream */
    size_t first = pack(good.data, 100, gz, sizeof gz);
    size_t second = pack(good.data + 100, good.n - 100, gz + first, sizeof gz - first);
    check_idx(gz, first + second, 3, ST_OK, "");
    str_release(&good);
}

static void refuse_set(const struct dataset_spec *spec, const char *word)
{
    struct err e = {0};
    struct dataset *d = NULL;
    enum status st = dataset_open(spec, &d, &e);
    if (st == ST_OK || !strstr(e.text, word))
        test_fail(__FILE__, __LINE__, "status %d, \"%s\" lacks \"%s\"", st, e.text, word);
}

TEST(mismatched_pair, "images and labels that do not belong together are refused by name")
{
    struct dataset_spec spec = here("MNIST", "train");
    put_pair("data/mnist", "train", 12, 11, false);
    refuse_set(&spec, "train-labels-idx1-ubyte\" has 11 labels for 12 images");
    struct str y = idx_bytes(1, (uint32_t[1]){12});
    y.data[8 + 7] = 10;
    put("data/mnist/train-labels-idx1-ubyte", y.data, y.n, false);
    refuse_set(&spec, "label of sample 7 is 10");
    struct str x = idx_bytes(3, (uint32_t[3]){12, 28, 27});
    put("data/mnist/train-images-idx3-ubyte", x.data, x.n, false);
    refuse_set(&spec, "images of 28 x 27");
    spec.split = "test";
    refuse_set(&spec, "not on this machine");
    put("data/mnist/t10k-images-idx3-ubyte", "", 0, false);
    refuse_set(&spec, "ends inside its IDX header");
    str_release(&x);
    str_release(&y);
}

/* A CIFAR pixel: plane c, position i of image k. */
static uint8_t pixel(int k, int c, int i)
{
    return (uint8_t)(k * 31 + c * 101 + i * 7);
}

static void cifar_record(struct str *s, int k, int label_bytes)
{
    char b[2] = {(char)(label_bytes == 1 ? k % 10 : 3), (char)(k * 9)};
    str_add_n(s, b, (size_t)label_bytes);
    for (int i = 0; i < 3072; i++) {
        char p = (char)pixel(k, i / 1024, i % 1024);
        str_add_n(s, &p, 1);
    }
}

static void check_cifar(const struct dataset *d, int k, int64_t want)
{
    int64_t label = -1;
    dataset_target(d, k, &label);
    CHECK_EQ(label, want);
    for (int i = 0; i < 1024; i += 77)
        for (int c = 0; c < 3; c++)
            CHECK_EQ(dataset_pixels(d, k)[3 * i + c], pixel(k, c, i));
}

TEST(cifar_binary, "records become interleaved pixels and labels, over all five files")
{
    struct err e = {0};
    struct dataset *d = NULL;
    struct dataset_spec spec = here("CIFAR10", "train");
    for (int f = 0; f < 5; f++) {
        char name[96];
        struct str s;
        str_init(&s);
        cifar_record(&s, 2 * f, 1);
        cifar_record(&s, 2 * f + 1, 1);
        (void)snprintf(name, sizeof name, "data/cifar-10-batches-bin/data_batch_%d.bin", f + 1);
        put(name, s.data, s.n, false);
        str_release(&s);
    }
    CHECK_OK(dataset_open(&spec, &d, &e), &e);
    CHECK_EQ(dataset_get_info(d)->count, 10);
    CHECK_EQ(dataset_host_bytes(d), 10 * 3073);
    for (int k = 0; k < 10; k++)
        check_cifar(d, k, k);
    dataset_free(d);
    put("data/cifar-10-batches-bin/data_batch_3.bin", "short", 5, false);
    refuse_set(&spec, "data_batch_3.bin\" has 5 bytes");
}

TEST(cifar100_binary, "the fine label counts, and one outside 0 to 99 is refused")
{
    struct err e = {0};
    struct dataset *d = NULL;
    struct dataset_spec spec = here("CIFAR100", "test");
    struct str s;
    str_init(&s);
    for (int k = 0; k < 3; k++)
        cifar_record(&s, k, 2);
    put("data/cifar-100-binary/test.bin", s.data, s.n, false);
    CHECK_OK(dataset_open(&spec, &d, &e), &e);
    for (int k = 0; k < 3; k++)
        check_cifar(d, k, 9 * k);
    dataset_free(d);
    s.data[1] = 100;
    put("data/cifar-100-binary/test.bin", s.data, s.n, false);
    refuse_set(&spec, "label of sample 0 is 100");
    str_release(&s);
}

/* Batches pickled by Python, of 6 images (tests/parity/make_cifar_corpus.py). */
static const char *const pickles[] = {
    "batch2.pickle", "batch4.pickle", "fortran.pickle", "hundred.pickle", "python2.pickle"};

static enum status read_pickle(
    const uint8_t *bytes, size_t n, bool hundred, uint8_t *images, uint8_t *labels, struct err *e)
{
    struct source *s = NULL;
    TRY(source_open_bytes(bytes, n, "batch", &s, e));
    enum status st = cifar_pickle_read(s, 6, hundred ? "fine_labels" : "labels", images, labels, e);
    source_close(s);
    return st;
}

TEST(cifar_pickled, "batches as Python 2 and 3 pickle them are read, in either array order")
{
    for (int f = 0; f < 5; f++) {
        struct err e = {0};
        uint8_t images[6 * 3072], labels[6];
        char path[1024], *bytes = NULL;
        size_t n = 0;
        (void)snprintf(
            path, sizeof path, "%s/tests/corpus/data/cifar/%s", SNUG_SOURCE_DIR, pickles[f]);
        CHECK_OK(file_read(path, 1 << 20, &bytes, &n, &e), &e);
        const uint8_t *b = (const uint8_t *)bytes;
        CHECK_OK(read_pickle(b, n, f == 3, images, labels, &e), &e);
        for (int k = 0; k < 6; k++) {
            CHECK_EQ(labels[k], f == 3 ? 9 * k : k);
            for (int i = 0; i < 3072; i++)
                CHECK_EQ(images[k * 3072 + i % 1024 * 3 + i / 1024], pixel(k, i / 1024, i % 1024));
        }
        mem_free(bytes);
    }
}

TEST(pickle_damage, "a pickle cut off or changed at any byte outside its pixels never crashes")
{
    for (int f = 0; f < 5; f++) {
        struct err e = {0};
        uint8_t images[6 * 3072], labels[6];
        char path[1024], *bytes = NULL;
        size_t n = 0;
        (void)snprintf(
            path, sizeof path, "%s/tests/corpus/data/cifar/%s", SNUG_SOURCE_DIR, pickles[f]);
        CHECK_OK(file_read(path, 1 << 20, &bytes, &n, &e), &e);
        uint8_t *b = (uint8_t *)bytes;
        for (size_t at = 0; at<n; at += at> 400 && at + 400 < n ? 97 : 1) {
            CHECK_EQ(read_pickle(b, at, f == 3, images, labels, &e), ST_CORRUPT);
            for (int bit = 0; bit < 8; bit += 2) {
                b[at] ^= (uint8_t)(1 << bit);
                (void)!read_pickle(b, n, f == 3, images, labels, &e);
                b[at] ^= (uint8_t)(1 << bit);
            }
        }
        mem_free(bytes);
    }
}

TEST(pickle_calls_nothing, "a pickle that names another function is refused")
{
    static const char evil[] = "\x80\x02"
                               "cos\nsystem\n(U\x04"
                               "truetR.";
    struct err e = {0};
    uint8_t images[6 * 3072], labels[6];
    const uint8_t *b = (const uint8_t *)evil;
    CHECK_EQ(read_pickle(b, sizeof evil - 1, false, images, labels, &e), ST_CORRUPT);
    CHECK(strstr(e.text, "wants to call") != NULL);
}

static void put_picture(const char *name, int w, int h, uint8_t red)
{
    struct err e = {0};
    uint8_t rgb[64 * 64 * 3] = {0};
    for (int i = 0; i < w * h; i++)
        rgb[3 * i] = red;
    CHECK_OK(png_write(put(name, "", 0, false), w, h, rgb, &e), &e);
}

TEST(image_folder, "classes and files are sorted, other files are left out, images decode as RGB")
{
    struct err e = {0};
    struct dataset *d = NULL;
    struct dataset_info i;
    put_picture("set/train/dog/b.png", 6, 5, 30);
    put_picture("set/train/dog/a.PNG", 6, 5, 20);
    put_picture("set/train/cat/z.png", 6, 5, 10);
    put_picture("set/train/dog/a/deep.png", 6, 5, 40);
    put("set/train/dog/notes.txt", "x", 1, false);
    put("set/train/readme.txt", "x", 1, false);
    char path[1024], name[2048];
    path_join(test_dir(), "set", path, sizeof path);
    CHECK_OK(dataset_open_folder(path, "train", &d, &e), &e);
    CHECK_OK(dataset_describe_folder(path, "train", &i, &e), &e);
    CHECK_EQ(i.host_bytes, dataset_host_bytes(d));
    CHECK(i.count == 4 && i.classes == 2 && i.shape_varies);
    CHECK(i.shape[0] == 3 && i.shape[1] == 5 && i.shape[2] == 6);
    CHECK_STR(dataset_class_name(d, 0), "cat");
    CHECK_STR(dataset_class_name(d, 1), "dog");
    CHECK(dataset_class_name(d, 2) == NULL);
    static const uint8_t red[] = {10, 20, 30, 40};
    struct image im = {0};
    for (int k = 0; k < 4; k++) {
        int64_t label = -1;
        dataset_target(d, k, &label);
        CHECK_EQ(label, k > 0);
        CHECK_OK(dataset_image(d, k, &im, &e), &e);
        CHECK_EQ(im.px[0], red[k]);
    }
    CHECK(str_ends(dataset_sample_name(d, 3, name, sizeof name), "train/dog/a/deep.png"));
    image_release(&im);
    dataset_free(d);
}

static void refuse_folder(const char *below, const char *split, enum status want, const char *word)
{
    struct err e = {0};
    struct dataset *d = NULL;
    char path[1024];
    path_join(test_dir(), below, path, sizeof path);
    CHECK_EQ(dataset_open_folder(path, split, &d, &e), want);
    if (!strstr(e.text, word))
        test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", e.text, word);
}

TEST(image_folder_errors, "missing folders, classes without images and broken files are named")
{
    struct err e = {0};
    refuse_folder("none", "train", ST_NOT_FOUND, "there is no folder");
    CHECK_EQ(dataset_open_folder("", "train", NULL, &e), ST_INVALID);
    put("flat/train/a.png", "x", 1, false);
    refuse_folder("flat", "train", ST_NOT_FOUND, "no class folders");
    refuse_folder("flat", "../flat", ST_INVALID, "not the name of a folder");
    put("empty/train/cat/a.txt", "x", 1, false);
    refuse_folder("empty", "train", ST_NOT_FOUND, "train/cat\" has no PNG or JPEG");
    put("broken/train/cat/a.png", "not a picture", 13, false);
    refuse_folder("broken", "train", ST_UNSUPPORTED, "train/cat/a.png\" is neither PNG nor JPEG");
    put_picture("plain/cat/a.png", 4, 4, 1);
    char path[1024];
    struct dataset *d = NULL;
    path_join(test_dir(), "plain", path, sizeof path);
    CHECK_OK(dataset_open_folder(path, "(none)", &d, &e), &e);
    CHECK_EQ(dataset_get_info(d)->count, 1);
    dataset_free(d);
}

TEST(arrays, "float targets, no targets and no samples are data sets too; nonsense is not")
{
    struct err e = {0};
    struct dataset *d = NULL;
    float x[6] = {1, 2, 3, 4, 5, 6}, y[4] = {7, 8, 9, 10}, got[2];
    struct dataset_arrays a = {
        .count = 2,
        .type = DATA_F32,
        .rank = 1,
        .shape = (int64_t[1]){3},
        .x = x,
        .target = DATA_F32,
        .target_rank = 1,
        .target_shape = (int64_t[1]){2},
        .y = y};
    CHECK_OK(dataset_from_arrays(&a, &d, &e), &e);
    CHECK_EQ(dataset_host_bytes(d), 40);
    dataset_target(d, 1, got);
    CHECK_NEAR((double)got[1], 10, 0);
    const float *numbers = dataset_numbers(d, 1);
    CHECK_NEAR((double)numbers[2], 6, 0);
    dataset_free(d);
    a.target = DATA_NONE;
    CHECK_OK(dataset_from_arrays(&a, &d, &e), &e);
    CHECK_EQ(dataset_host_bytes(d), 24);
    dataset_free(d);
    a.count = 0;
    CHECK_OK(dataset_from_arrays(&a, &d, &e), &e);
    dataset_free(d);
    a.shape = (int64_t[1]){0};
    CHECK_EQ(dataset_from_arrays(&a, &d, &e), ST_INVALID);
    a.type = DATA_U8;
    CHECK_EQ(dataset_from_arrays(&a, &d, &e), ST_INVALID);
    a.type = DATA_F32;
    a.count = INT64_MAX;
    a.shape = (int64_t[1]){INT64_MAX};
    CHECK_EQ(dataset_from_arrays(&a, &d, &e), ST_OOM);
}
