/* pickle_test.c - values through a pickle and back; pickles that must be refused. */
#include "nn/pickle.h"

#include "test.h"

#include <math.h>
#include <string.h>

static struct arena memory;

/* A storage of any size for any key, one for each key's first letter. */
static enum status
find_any(void *ctx, const char *key, size_t size_bytes, struct pt_storage **out, struct err *e)
{
    struct pt_storage **known = ctx;
    struct pt_storage **at = &known[(unsigned char)key[0]];
    if (!*at)
        *at = pt_storage(&memory, NULL, size_bytes);
    if ((*at)->size_bytes != size_bytes)
        return err_set(e, ST_CORRUPT, "storage \"%s\" has two sizes", key);
    *out = *at;
    return ST_OK;
}

static enum status read_n(const char *text, size_t n, struct pt_value **root, struct err *e)
{
    static struct pt_storage *known[256];
    struct pickle_source source = {find_any, known};
    return pickle_read(text, n, &memory, source, root, e);
}
#define READ(text, root, e) read_n(text, sizeof(text) - 1, root, e)

static void check_refused(const char *text, size_t n, const char *why)
{
    struct err e = {0};
    struct pt_value *root;
    CHECK(read_n(text, n, &root, &e) != ST_OK);
    if (!strstr(e.text, why))
        test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", e.text, why);
}
#define REFUSED(text, why) check_refused(text, sizeof(text) - 1, why)

static int64_t key_of(void *ctx, struct pt_storage *s)
{
    (void)ctx;
    (void)s;
    return 0;
}

TEST(pickle_round_trip, "every kind of value survives writing and reading")
{
    struct err e = {0};
    struct str out;
    struct arena a = {0};
    struct pt_value *dict = pt_dict(&a, PT_DICT_ORDERED), *list = pt_list(&a), *root;
    const int64_t ints[] = {0, 255, 256, -1, INT32_MIN, INT64_C(1) << 40, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        pt_add(&a, list, pt_int(&a, ints[i]));
    pt_put(&a, dict, "ints", list);
    pt_put(&a, dict, "pi", pt_float(&a, 3.25));
    pt_put(&a, dict, "nan", pt_float(&a, (double)NAN));
    pt_put(&a, dict, "bytes", pt_bytes(&a, "a\0\xff", 3));
    pt_put(&a, dict, "none", pt_none(&a));
    pt_put_int(&a, dict, 7, pt_bool(&a, true));
    str_init(&out);
    CHECK_OK(pickle_write(dict, key_of, NULL, &out, &e), &e);
    CHECK_OK(read_n(out.data, out.n, &root, &e), &e);
    CHECK_EQ(root->dict.n, 6);
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        CHECK_EQ(pt_get(root, "ints")->seq.data[i]->integer, ints[i]);
    double real;
    CHECK(pt_to_float(pt_get(root, "pi"), &real) && real == 3.25);
    CHECK(pt_to_float(pt_get(root, "nan"), &real) && isnan(real));
    CHECK_EQ(pt_get(root, "bytes")->text.n, 3);
    CHECK(memcmp(pt_get(root, "bytes")->text.data, "a\0\xff", 3) == 0);
    CHECK_EQ(pt_get(root, "none")->kind, PT_NONE);
    CHECK(pt_get_int(root, 7)->truth && !pt_get_int(root, 8) && !pt_get(root, "7"));
    str_release(&out);
    arena_release(&a);
    arena_release(&memory);
}

TEST(pickle_names_refused, "a pickle that names any other function is refused with that name")
{
    REFUSED("cos\nsystem\n(X\x02\0\0\0lstR.", "\"os.system\"");
    REFUSED(
        "\x80\x04\x8c\x08"
        "builtins\x8c\x04"
        "eval\x93.",
        "\"builtins.eval\"");
    REFUSED(
        "\x80\x02"
        "ctorch\nload\n.",
        "\"torch.load\"");
    REFUSED("ctorch._utils\n_rebuild_tensor_v2.__globals__\n.", "__globals__");
    REFUSED(
        "\x80\x02"
        "ccollections\nOrderedDict\n.",
        "a function or class stands");
    REFUSED(
        "\x80\x02"
        "ccollections\nOrderedDict\n)\x81.",
        "opcode 0x81");
    REFUSED("(i__main__\nX\n.", "opcode 0x69");
}

TEST(pickle_damage_refused, "pickles that end early, loop, nest without end or lie about sizes")
{
    REFUSED("", "ends");
    REFUSED("\x80\x02", "ends");
    REFUSED("\x80\x09N.", "protocol 9");
    REFUSED(".", "leaves 0 values");
    REFUSED("NN.", "leaves 2 values");
    REFUSED("0", "stack is too short");
    REFUSED("t.", "mark is missing");
    REFUSED(
        "X\xff\xff\xff\x7f"
        "abc.",
        "ends in the middle");
    REFUSED(
        "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
        "abc.",
        "ends in the middle");
    REFUSED("X\x02\0\0\0\xc0\x80.", "not UTF-8");
    REFUSED("]q\0h\0a.", "contains itself");
    REFUSED("}q\0K\1h\0s.", "contains itself");
    REFUSED("h\5.", "never put");
    REFUSED("Nr\xff\xff\xff\x7f.", "memo entry");
    REFUSED("}(X\1\0\0\0aNX\1\0\0\0aNu.", "key \"a\" appears twice");
    REFUSED("}(K\1NK\1Nu.", "key 1 appears twice");
    REFUSED("}(K\1u.", "key without a value");
    REFUSED("}(NNu.", "None as a key");
    REFUSED("}(X\2\0\0\0a\0Nu.", "zero byte");
    REFUSED("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0.", "more than 64 bits");
    REFUSED("NQ.", "not a storage");
    char deep[300] = {0};
    memset(deep, ']', 100);
    memset(deep + 100, 'a', 99);
    deep[199] = '.';
    check_refused(deep, 200, "nested deeper than 64");
    /* Each list holds the one before it twice: 2^60 values when walked. */
    char bomb[60 * 8 + 2];
    size_t n = 0;
    bomb[n++] = 'N';
    for (int i = 0; i < 60; i++) {
        const char twice[] = {'q', (char)i, '0', ']', '(', 'h', (char)i, 'h', (char)i, 'e'};
        if (n + sizeof twice + 1 > sizeof bomb)
            break;
        memcpy(bomb + n, twice, sizeof twice);
        n += sizeof twice;
    }
    bomb[n++] = '.';
    check_refused(bomb, n, "more than 4194304 values");
}

/* A tensor of float32 over a storage of `numel` elements; offset, shape and stride as opcodes. */
#define TENSOR(numel, rest)                                                                        \
    "\x80\x02"                                                                                     \
    "ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\n"                  \
    "X\1\0\0\0"                                                                                    \
    "kX\3\0\0\0cpu" numel "tQ" rest "\x89"                                                         \
    "ccollections\nOrderedDict\n)RtR."

TEST(pickle_tensor_bounds, "case-T80: a tensor that leaves its storage is refused")
{
    struct err e = {0};
    struct pt_value *root = NULL;
    CHECK_OK(READ(TENSOR("K\6", "K\0K\2K\3\x86K\1K\2\x86"), &root, &e), &e);
    CHECK_EQ(root->tensor->rank, 2);
    CHECK_EQ(root->tensor->strides[1], 2);
    CHECK(!pt_tensor_contiguous(root->tensor));
    REFUSED(TENSOR("K\6", "K\1K\2K\3\x86K\3K\1\x86"), "does not fit");
    REFUSED(TENSOR("K\6", "J\xff\xff\xff\xffK\2\x85K\1\x85"), "does not fit");
    REFUSED(TENSOR("K\6", "K\0K\2\x85J\xff\xff\xff\xff\x85"), "does not fit");
    REFUSED(TENSOR("K\6", "K\0J\xff\xff\xff\xff\x85K\1\x85"), "does not fit");
    REFUSED(TENSOR("K\6", "K\0K\2\x85)"), "1 sizes and 0 strides");
    REFUSED(TENSOR("K\6", "K\0\x8a\x08\0\0\0\0\0\0\0\x40K\2\x86K\0K\0\x86"), "does not fit");
    REFUSED(
        TENSOR("K\6", "K\0K\3\x85\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85"), "does not fit");
    REFUSED(TENSOR("J\xff\xff\xff\xff", "K\0K\2\x85K\1\x85"), "storage of -1");
    arena_release(&memory);
}
