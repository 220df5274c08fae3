/* ptfile_test.c - .pt files written and read again, damaged, and written where they cannot be. */
#include "nn/ptfile.h"

#include "base/env.h"
#include "base/str.h"
#include "nn/tensorfile.h"
#include "test.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *file_in(const char *name)
{
    static char path[512];
    return path_join(test_dir(), name, path, sizeof path);
}

static int files_in_dir(void)
{
    DIR *d = opendir(test_dir());
    int n = 0;
    for (struct dirent *x; d && (x = readdir(d));)
        n += x->d_name[0] != '.';
    if (d)
        (void)closedir(d);
    return n;
}

static struct pt_value *view(
    struct arena *a, struct pt_storage *s, int rank, const int64_t *shape, const int64_t *strides,
    int64_t offset)
{
    struct pt_value *v = pt_tensor(a, s, DT_F32, (const int64_t[8]){0}, rank, 0);
    memcpy(v->tensor->shape, shape, (size_t)rank * sizeof *shape);
    memcpy(v->tensor->strides, strides, (size_t)rank * sizeof *strides);
    v->tensor->offset = offset;
    return v;
}

static void read_f32(struct ptfile *f, const char *name, float *dst, size_t n)
{
    struct err e = {0};
    const struct pt_value *v = pt_get(ptfile_root(f), name);
    CHECK(v && v->kind == PT_TENSOR);
    CHECK_OK(ptfile_read(f, v->tensor, DT_F32, dst, n * sizeof *dst, &e), &e);
}

TEST(
    strides_and_offsets,
    "case-T80: strides, offsets and expanded tensors give their logical values")
{
    struct err e = {0};
    struct arena a = {0};
    struct ptfile *f = NULL;
    float numbers[10], back[20];
    for (int i = 0; i < 10; i++)
        numbers[i] = (float)i;
    struct pt_storage *six = pt_storage(&a, numbers, 6 * 4), *ten = pt_storage(&a, numbers, 10 * 4);
    struct pt_value *root = pt_dict(&a, PT_DICT_ORDERED);
    pt_put(&a, root, "columns", view(&a, six, 2, (int64_t[]){2, 3}, (int64_t[]){1, 2}, 0));
    pt_put(&a, root, "slice", view(&a, ten, 1, (int64_t[]){4}, (int64_t[]){1}, 3));
    pt_put(&a, root, "same", view(&a, ten, 2, (int64_t[]){2, 3}, (int64_t[]){0, 0}, 7));
    pt_put(&a, root, "windows", view(&a, ten, 2, (int64_t[]){4, 3}, (int64_t[]){2, 1}, 0));
    CHECK_OK(ptfile_write(file_in("x.pt"), root, &e), &e);
    CHECK_OK(ptfile_open(file_in("x.pt"), &f, &e), &e);
    read_f32(f, "columns", back, 6);
    CHECK(memcmp(back, (float[]){0, 2, 4, 1, 3, 5}, 6 * 4) == 0);
    read_f32(f, "slice", back, 4);
    CHECK(memcmp(back, (float[]){3, 4, 5, 6}, 4 * 4) == 0);
    read_f32(f, "same", back, 6);
    CHECK(back[0] == 7 && back[5] == 7);
    read_f32(f, "windows", back, 12);
    CHECK(memcmp(back, (float[]){0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8}, 12 * 4) == 0);
    /* Tied tensors stay tied, others apart. */
    const struct pt_value *r = ptfile_root(f);
    CHECK(pt_get(r, "slice")->tensor->storage == pt_get(r, "same")->tensor->storage);
    CHECK(pt_get(r, "slice")->tensor->storage != pt_get(r, "columns")->tensor->storage);
    ptfile_close(f);
    arena_release(&a);
}

TEST(state_keeps_its_type, "float32 state beside half parameters is read as it was written")
{
    struct err e = {0};
    struct arena a = {0};
    struct ptfile *f = NULL;
    float moment = 1e-10f, back = 0;
    uint16_t weight = 0x3c00;
    struct pt_value *root = pt_dict(&a, PT_DICT_PLAIN);
    pt_put(&a, root, "w", pt_tensor_of(&a, DT_F16, (int64_t[]){1}, 1, &weight));
    pt_put(&a, root, "v", pt_tensor_of(&a, DT_F32, (int64_t[]){1}, 1, &moment));
    CHECK_OK(ptfile_write(file_in("x.pt"), root, &e), &e);
    CHECK_OK(ptfile_open(file_in("x.pt"), &f, &e), &e);
    CHECK_EQ(pt_get(ptfile_root(f), "v")->tensor->type, DT_F32);
    read_f32(f, "v", &back, 1);
    CHECK(back == 1e-10f);
    double number;
    CHECK_OK(ptfile_read_number(f, pt_get(ptfile_root(f), "w"), &number, &e), &e);
    CHECK(number == 1.0);
    ptfile_close(f);
    arena_release(&a);
}

static struct pt_value *big_tree(struct arena *a, float *data, int64_t n)
{
    struct pt_value *root = pt_dict(a, PT_DICT_ORDERED);
    for (int64_t i = 0; i < n; i++)
        data[i] = (float)i;
    pt_put(a, root, "w", pt_tensor_of(a, DT_F32, &n, 1, data));
    return root;
}

TEST(damage_noticed, "a file cut anywhere, or with a changed weight, is an error and never a crash")
{
    struct err e = {0};
    struct arena a = {0};
    struct ptfile *f = NULL;
    static float data[500], back[500];
    char *bytes;
    size_t n;
    CHECK_OK(ptfile_write(file_in("x.pt"), big_tree(&a, data, 500), &e), &e);
    CHECK_OK(file_read(file_in("x.pt"), 1 << 20, &bytes, &n, &e), &e);
    for (size_t cut = 0; cut < n; cut += 7) {
        e.text[0] = 0;
        CHECK_OK(file_write(file_in("cut.pt"), bytes, cut, &e), &e);
        CHECK(ptfile_open(file_in("cut.pt"), &f, &e) != ST_OK);
        CHECK(strstr(e.text, "cut.pt"));
    }
    size_t at = 0;
    while (memcmp(bytes + at, data + 100, 64) != 0)
        at++;
    bytes[at] ^= 1;
    CHECK_OK(file_write(file_in("bad.pt"), bytes, n, &e), &e);
    CHECK_OK(ptfile_open(file_in("bad.pt"), &f, &e), &e);
    struct pt_tensor part = *pt_get(ptfile_root(f), "w")->tensor;
    CHECK_EQ(ptfile_read(f, &part, DT_F32, back, sizeof back, &e), ST_CORRUPT);
    CHECK(strstr(e.text, "CRC"));
    part.shape[0] = 3; /* a view that does not even touch the damage */
    CHECK_EQ(ptfile_read(f, &part, DT_F32, back, 12, &e), ST_CORRUPT);
    ptfile_close(f);
    mem_free(bytes);
    arena_release(&a);
}

TEST(full_disk, "a full disk leaves the old file and nothing half-written")
{
    struct err e = {0};
    struct arena a = {0};
    struct ptfile *f = NULL;
    static float data[100000];
    float back[4];
    CHECK_OK(ptfile_write(file_in("x.pt"), big_tree(&a, data, 4), &e), &e);
    struct pt_value *big = big_tree(&a, data, 100000);
    (void)signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {100000, 100000};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_EQ(ptfile_write(file_in("x.pt"), big, &e), ST_IO);
    CHECK(strstr(e.text, "x.pt") && strstr(e.text, "too large"));
    CHECK_EQ(files_in_dir(), 1);
    CHECK_OK(ptfile_open(file_in("x.pt"), &f, &e), &e);
    read_f32(f, "w", back, 4);
    ptfile_close(f);
    arena_release(&a);
}

TEST(no_such_folder, "a folder that cannot be written to is an error that names the file")
{
    struct err e = {0};
    struct arena a = {0};
    float data[4];
    CHECK(ptfile_write(file_in("none/x.pt"), big_tree(&a, data, 4), &e) != ST_OK);
    CHECK(strstr(e.text, "none/x.pt"));
    CHECK(ptfile_write("/proc/x.pt", big_tree(&a, data, 4), &e) != ST_OK);
    CHECK(strstr(e.text, "/proc/x.pt"));
    CHECK_EQ(files_in_dir(), 0);
    if (geteuid() != 0) {
        CHECK_EQ(chmod(test_dir(), 0500), 0);
        CHECK_EQ(ptfile_write(file_in("x.pt"), big_tree(&a, data, 4), &e), ST_IO);
        CHECK_EQ(chmod(test_dir(), 0700), 0);
    }
    arena_release(&a);
}

TEST(not_pytorch, "other files are refused with what they are")
{
    struct err e = {0};
    struct ptfile *f = NULL;
    CHECK_OK(file_write(file_in("x.pt"), "hello", 5, &e), &e);
    CHECK_EQ(ptfile_open(file_in("x.pt"), &f, &e), ST_CORRUPT);
    CHECK_OK(
        file_write(
            file_in("x.pt"),
            "\x80\2\x8a\nl\xfc\x9c"
            "F\xf9 j\xa8P\x19.\x80\2",
            17, &e),
        &e);
    CHECK_EQ(ptfile_open(file_in("x.pt"), &f, &e), ST_UNSUPPORTED);
    CHECK(strstr(e.text, "old format") && strstr(e.hint, "torch.save"));
    CHECK_EQ(ptfile_open(file_in("none.pt"), &f, &e), ST_NOT_FOUND);
    CHECK(ptfile_open(test_dir(), &f, &e) != ST_OK);
}

TEST(loaded_in_place, "writing and reading 64 MiB need no second copy of them")
{
    enum { MIB = 1 << 20, N = 16 * MIB };
    struct err e = {0};
    struct arena a = {0};
    struct ptfile *f = NULL;
    int64_t half = N / 2;
    float *data = mem_alloc((size_t)N * 4);
    for (int64_t i = 0; i < N; i++)
        data[i] = (float)i;
    struct pt_value *root = pt_dict(&a, PT_DICT_PLAIN);
    pt_put(&a, root, "a", pt_tensor_of(&a, DT_F32, &half, 1, data));
    pt_put(&a, root, "b", pt_tensor_of(&a, DT_F32, (int64_t[]){4096, half / 4096}, 2, data + half));
    root->dict.data[1].value->tensor->shape[0] = half / 4096; /* transposed: read with strides */
    root->dict.data[1].value->tensor->shape[1] = 4096;
    root->dict.data[1].value->tensor->strides[0] = 1;
    root->dict.data[1].value->tensor->strides[1] = half / 4096;
    process_rss_peak_reset();
    int64_t before = process_rss_peak_bytes();
    CHECK_OK(ptfile_write(file_in("x.pt"), root, &e), &e);
    memset(data, 0, (size_t)N * 4);
    CHECK_OK(ptfile_open(file_in("x.pt"), &f, &e), &e);
    read_f32(f, "a", data, (size_t)half);
    read_f32(f, "b", data + half, (size_t)half);
    CHECK(process_rss_peak_bytes() - before < 4 * MIB);
    CHECK(data[half - 1] == (float)(half - 1));
    CHECK(data[half + 1] == (float)(half + half / 4096));
    ptfile_close(f);
    mem_free(data);
    arena_release(&a);
}
