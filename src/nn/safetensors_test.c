/* safetensors_test.c - headers that must be refused, and files written and read again. */
#include "nn/safetensors.h"

#include "base/env.h"
#include "base/str.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

static const char *file_in(const char *name)
{
    static char path[512];
    return path_join(test_dir(), name, path, sizeof path);
}

/* A file of this header and `data_bytes` zeros; `length` replaces the header's length unless 0. */
static enum status open_made(
    const char *header, size_t data_bytes, uint64_t length, struct safetensors **f, struct err *e)
{
    struct str s;
    uint64_t n = length ? length : strlen(header);
    str_init(&s);
    str_add_n(&s, (const char *)&n, 8);
    str_add(&s, header);
    for (size_t i = 0; i < data_bytes; i++)
        str_add_n(&s, "", 1);
    CHECK_OK(file_write(file_in("made.safetensors"), s.data, s.n, e), e);
    str_release(&s);
    return safetensors_open(file_in("made.safetensors"), f, e);
}

static void refused(const char *header, size_t data_bytes, const char *why)
{
    struct err e = {0};
    struct safetensors *f = NULL;
    if (open_made(header, data_bytes, 0, &f, &e) == ST_OK)
        test_fail(__FILE__, __LINE__, "accepted: %s", header);
    if (!strstr(e.text, why) || !strstr(e.text, "made.safetensors"))
        test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", e.text, why);
}

static void accepted(const char *header, size_t data_bytes)
{
    struct err e = {0};
    struct safetensors *f = NULL;
    CHECK_OK(open_made(header, data_bytes, 0, &f, &e), &e);
    safetensors_close(f);
}

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
#define B(shape, offsets)                                                                          \
    "\"b\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

TEST(header_valid, "case-T82: well-formed headers load, in any order, with empty tensors")
{
    accepted("{" A "," B("[2]", "[8,16]") "}", 16);
    accepted("{" B("[2]", "[8,16]") "," A "}   ", 16);
    accepted(
        "{" A "," B("[2]", "[8,16]") ",\"z\":{\"dtype\":\"F32\",\"shape\":[0],"
                                     "\"data_offsets\":[16,16]}}",
        16);
    accepted(
        "{" A "," B("[2]", "[8,16]") ",\"z\":{\"dtype\":\"I64\",\"shape\":[3,0],"
                                     "\"data_offsets\":[8,8]}}",
        16);
    accepted("{" B("[]", "[0,4]") ",\"__metadata__\":{\"format\":\"pt\"}}", 4);
    accepted("{}", 0);
}

TEST(
    header_places, "case-T82: overlaps, holes, wrong sizes and bytes of nobody are refused by name")
{
    refused("{" A "," B("[2]", "[4,12]") "}", 12, "\"b\" overlaps \"a\"");
    refused("{" A "," B("[2]", "[0,8]") "}", 8, "\"b\" overlaps \"a\"");
    refused("{" A "," B("[2]", "[12,20]") "}", 20, "4 bytes before tensor \"b\"");
    refused("{" A "," B("[2]", "[8,20]") "}", 20, "\"b\" has 12 bytes, but its shape needs 8");
    refused("{" A "," B("[2]", "[8,16]") "}", 20, "4 bytes after the last tensor (\"b\")");
    refused("{" A "," B("[2]", "[8,16]") "}", 12, "\"b\" lies at bytes 8 to 16, of 12");
    refused("{" B("[2]", "[8,16]") "}", 16, "8 bytes before tensor \"b\"");
    refused("{" B("[2]", "[16,8]") "}", 16, "\"b\" lies at");
    refused("{" B("[2]", "[-8,0]") "}", 16, "\"b\" lies at");
    refused(
        "{" A ",\"z\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}}", 8,
        "\"z\" overlaps");
    refused("{}", 4, "4 bytes after");
}

TEST(header_types, "case-T82: overflowing shapes, unknown types and duplicate names are refused")
{
    refused("{" B("[8589934592,2147483648]", "[0,8]") "}", 8, "\"b\" has too many elements");
    refused("{" B("[4611686018427387904,4]", "[0,0]") "}", 0, "\"b\" has too many elements");
    refused("{" B("[9223372036854775807,0,2]", "[0,0]") "}", 0, "\"b\" has too many elements");
    refused("{" B("[-1]", "[0,0]") "}", 0, "\"b\" has a size");
    refused("{" B("[1.5]", "[0,4]") "}", 4, "\"b\" has a size");
    refused("{" B("[99999999999999999999]", "[0,4]") "}", 4, "header");
    refused(
        "{\"b\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
        "\"b\" has the unknown dtype \"F33\"");
    refused("{\"b\":{\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype");
    refused("{\"b\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "\"b\" has no dtype");
    refused("{\"b\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "\"b\" has no shape");
    refused("{\"b\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "\"b\" has no data_offsets");
    refused(
        "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8, "data_offsets");
    refused("{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8, "\"b\"");
    refused("{\"b\":7}", 0, "\"b\"");
    refused("{" A "," A "}", 8, "duplicate object key near '\"a\"");
    refused("{\"__metadata__\":{\"x\":1}}", 0, "__metadata__");
    refused("[]", 0, "not a JSON object");
    refused("{\"a\":", 0, "header");
    refused("\xff", 0, "header");
}

TEST(header_length, "case-T82: a header longer than the file is refused before it is read")
{
    struct err e = {0};
    struct safetensors *f = NULL;
    const uint64_t lengths[] = {100, UINT64_MAX, UINT64_C(1) << 62, 11};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        CHECK_EQ(open_made("{}", 8, lengths[i], &f, &e), ST_CORRUPT);
        CHECK(strstr(e.text, "more than the file has"));
    }
    CHECK_OK(file_write(file_in("made.safetensors"), "1234567", 7, &e), &e);
    CHECK_EQ(safetensors_open(file_in("made.safetensors"), &f, &e), ST_CORRUPT);
    CHECK_EQ(safetensors_open(file_in("none.safetensors"), &f, &e), ST_NOT_FOUND);
}

TEST(safetensors_round_trip, "what is written is read, tensor by tensor, in any type")
{
    struct err e = {0};
    struct safetensors *f = NULL;
    size_t n;
    uint8_t flags[3] = {1, 0, 1};
    float weight[6] = {1, 2.5f, -3, 4, 5, 1.01171875f}, back[6];
    const struct safetensor t[] = {
        {.name = "flags", .type = DT_BOOL, .rank = 1, .shape = {3}, .data = flags},
        {.name = "w", .type = DT_F32, .rank = 2, .shape = {2, 3}, .data = weight},
        {.name = "empty", .type = DT_F64, .rank = 2, .shape = {0, 5}},
        {.name = "one", .type = DT_F32, .rank = 0, .data = weight + 1},
    };
    const struct safetensors_meta meta[] = {{"format", "pt"}, {"by", "snug"}};
    const char *path = file_in("x.safetensors");
    CHECK_OK(safetensors_write(path, t, 4, meta, 2, &e), &e);
    CHECK_OK(safetensors_open(path, &f, &e), &e);
    CHECK_STR(safetensors_list(f, &n)[0].name, "empty");
    CHECK_EQ(n, 4);
    CHECK_STR(safetensors_metadata(f, &n)[0].value, "snug");
    CHECK_EQ(n, 2);
    CHECK_OK(safetensors_read(f, safetensors_find(f, "w"), DT_F32, back, sizeof back, &e), &e);
    CHECK(memcmp(back, weight, sizeof back) == 0);
    uint16_t half[6];
    CHECK_OK(safetensors_read(f, safetensors_find(f, "w"), DT_BF16, half, sizeof half, &e), &e);
    CHECK_EQ(half[5], 0x3f82);
    CHECK_OK(safetensors_read(f, safetensors_find(f, "flags"), DT_F32, back, 12, &e), &e);
    CHECK(back[0] == 1 && back[1] == 0);
    CHECK_EQ(safetensors_read(f, safetensors_find(f, "w"), DT_I64, back, 48, &e), ST_UNSUPPORTED);
    CHECK(!safetensors_find(f, "nothing"));
    safetensors_close(f);
    const struct safetensor twins[] = {t[1], t[1]};
    CHECK_EQ(safetensors_write(path, twins, 2, NULL, 0, &e), ST_INVALID);
    CHECK(strstr(e.text, "\"w\""));
}
