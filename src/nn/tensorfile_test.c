/* tensorfile_test.c - conversion on reading, and matching a file with a model. */
#include "nn/tensorfile.h"

#include "base/env.h"
#include "nn/ptfile.h"
#include "nn/safetensors.h"
#include "nn/tensorfile_types.h"
#include "test.h"

#include <math.h>
#include <string.h>

static const char *file_in(const char *name)
{
    static char path[512];
    return path_join(test_dir(), name, path, sizeof path);
}

static float f32_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

TEST(bfloat16_rounds, "case-T84: export to bfloat16 rounds to nearest even and keeps NaN")
{
    struct err e = {0};
    struct arena a = {0};
    struct tensorfile *f = NULL;
    const float values[] = {1.01171875f,  1.00390625f + 0x1p-20f, f32_of(0x7f800001), 3.4e38f,
                            -1.01171875f, f32_of(0xff800001),     0x1p-133f,          -0.0f,
                            1.00390625f};
    enum { N = sizeof values / sizeof *values };
    const uint16_t right[N] = {0x3f82, 0x3f81, 0, 0x7f80, 0xbf82, 0, 0x0001, 0x8000, 0x3f80};
    uint16_t got[N];
    struct pt_value *root = pt_dict(&a, PT_DICT_PLAIN);
    pt_put(&a, root, "x", pt_tensor_of(&a, DT_F32, (int64_t[]){N}, 1, values));
    CHECK_OK(ptfile_write(file_in("x.pt"), root, &e), &e);
    CHECK_OK(tensorfile_open(file_in("x.pt"), &f, &e), &e);
    CHECK_OK(tensorfile_read(f, "x", DT_BF16, got, sizeof got, &e), &e);
    for (int i = 0; i < N; i++) {
        if (isnan(values[i]))
            CHECK(
                isnan(f32_from_bf16(got[i])) &&
                signbit(f32_from_bf16(got[i])) == signbit(values[i]));
        else
            CHECK_EQ(got[i], right[i]);
    }
    tensorfile_close(f);
    arena_release(&a);
}

TEST(one_rounding, "case-T84: float64 becomes a half type in one rounding; ties go to even")
{
    /* By way of float32 the small bit would be lost, and the tie would go down. */
    const double values[] = {1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-11 + 0x1p-40, 65520.0, 65519.999};
    uint16_t got[4];
    dtype_convert(DT_BF16, got, DT_F64, values, 4);
    CHECK_EQ(got[0], 0x3f81);
    dtype_convert(DT_F16, got, DT_F64, values, 4);
    CHECK_EQ(got[1], 0x3c01);
    CHECK_EQ(got[2], 0x7c00);
    CHECK_EQ(got[3], 0x7bff);
    for (unsigned bits = 0; bits < 0x10000; bits++) { /* every half value survives the way back */
        uint16_t x = (uint16_t)bits, back;
        float wide;
        dtype_convert(DT_F32, &wide, DT_F16, &x, 1);
        dtype_convert(DT_F16, &back, DT_F32, &wide, 1);
        CHECK(back == x || isnan(wide));
        dtype_convert(DT_F32, &wide, DT_BF16, &x, 1);
        dtype_convert(DT_BF16, &back, DT_F32, &wide, 1);
        CHECK(back == x || isnan(wide));
    }
}

static const float zeros[64];

/* A safetensors file with float32 tensors of these names; `rows` by 2. */
static struct tensorfile *made(const char *const *names, size_t n, int64_t rows)
{
    struct err e = {0};
    struct safetensor t[8];
    struct tensorfile *f = NULL;
    for (size_t i = 0; i < n; i++)
        t[i] = (struct safetensor){
            .name = names[i], .type = DT_F32, .rank = 2, .shape = {rows, 2}, .data = zeros};
    CHECK_OK(safetensors_write(file_in("m.safetensors"), t, n, NULL, 0, &e), &e);
    CHECK_OK(tensorfile_open(file_in("m.safetensors"), &f, &e), &e);
    return f;
}

static const struct tensor_want model[] = {
    {"a.w", {2, {3, 2}}},
    {"b.w", {2, {3, 2}}},
};

TEST(
    renamed_prefix,
    "case-T85: a file whose names all have another prefix is an error, never a success")
{
    struct err e = {0};
    struct tensorfile_match m;
    struct tensorfile *f = made((const char *[]){"model.a.w", "model.b.w"}, 2, 3);
    for (int strict = 0; strict < 2; strict++) {
        CHECK_EQ(tensorfile_match(f, model, 2, strict, &m, &e), ST_INVALID);
        CHECK(strstr(e.text, "0 of 2") && strstr(e.text, "m.safetensors"));
        CHECK(strstr(e.text, "missing: a.w, b.w") && strstr(e.text, "model.a.w, model.b.w"));
        CHECK(strstr(e.hint, "begin with \"model.\""));
        CHECK(m.n_missing == 2 && m.n_unexpected == 2 && m.n_matched == 0);
        tensorfile_match_release(&m);
    }
    tensorfile_close(f);
}

TEST(some_missing, "case-T85: a missing tensor is reported by name, and an error when strict")
{
    struct err e = {0};
    struct tensorfile_match m;
    struct str text;
    struct tensorfile *f = made((const char *[]){"a.w"}, 1, 3);
    CHECK_OK(tensorfile_match(f, model, 2, false, &m, &e), &e);
    str_init(&text);
    tensorfile_match_text(&m, &text);
    CHECK_STR(text.data, "missing: b.w");
    CHECK_EQ(m.n_matched, 1);
    tensorfile_match_release(&m);
    CHECK_EQ(tensorfile_match(f, model, 2, true, &m, &e), ST_INVALID);
    CHECK(strstr(e.text, "1 of 2") && strstr(e.text, "missing: b.w"));
    tensorfile_match_release(&m);
    tensorfile_close(f);
    str_release(&text);
}

TEST(other_shape, "case-T85: a tensor of another shape does not count as loaded")
{
    struct err e = {0};
    struct tensorfile_match m;
    struct tensorfile *f = made((const char *[]){"a.w"}, 1, 4);
    CHECK_EQ(tensorfile_match(f, model, 1, false, &m, &e), ST_INVALID);
    CHECK(strstr(e.text, "of another shape: a.w"));
    CHECK(strstr(e.hint, "[4, 2]") && strstr(e.hint, "[3, 2]"));
    CHECK(m.n_mismatched == 1 && strcmp(m.mismatched[0], "a.w") == 0);
    tensorfile_match_release(&m);
    tensorfile_close(f);
}

TEST(checkpoint_view, "the state dict is found inside a checkpoint; other members are counted")
{
    struct err e = {0};
    struct arena a = {0};
    struct tensorfile *f = NULL;
    size_t n;
    struct pt_value *root = pt_dict(&a, PT_DICT_PLAIN), *state = pt_dict(&a, PT_DICT_ORDERED);
    pt_put(&a, state, "a.w", pt_tensor_of(&a, DT_F32, (int64_t[]){3, 2}, 2, zeros));
    pt_put(&a, state, "version", pt_int(&a, 1));
    pt_put(&a, root, "epoch", pt_int(&a, 3));
    pt_put(&a, root, "model_state_dict", state);
    CHECK_OK(ptfile_write(file_in("x.pt"), root, &e), &e);
    CHECK_OK(tensorfile_open(file_in("x.pt"), &f, &e), &e);
    CHECK_STR(tensorfile_list(f, &n)[0].name, "a.w");
    CHECK_EQ(n, 1);
    CHECK_EQ(tensorfile_skipped(f), 1);
    float back[6];
    CHECK_EQ(tensorfile_read(f, "b.w", DT_F32, back, sizeof back, &e), ST_NOT_FOUND);
    tensorfile_close(f);
    struct pt_value *none = pt_dict(&a, PT_DICT_PLAIN);
    pt_put(&a, none, "epoch", pt_int(&a, 3));
    CHECK_OK(ptfile_write(file_in("x.pt"), none, &e), &e);
    CHECK_EQ(tensorfile_open(file_in("x.pt"), &f, &e), ST_CORRUPT);
    CHECK(f == NULL); /* callers close what they have, after an error too */
    CHECK(strstr(e.text, "no state dict"));
    arena_release(&a);
}
