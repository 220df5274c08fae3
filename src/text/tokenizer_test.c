/* tokenizer_test.c - tokenizer files right and wrong, hostile texts, the trainer. What real files
 * give is compared with their own libraries in tests/e2e/test_tokenizers.py. */
#include "base/env.h"
#include "test.h"
#include "text/pattern.h"
#include "text/tokenizer.h"
#include "text/train.h"
#include "text/utf8.h"

#include <stdio.h>
#include <string.h>

static struct tokenizer *open_text(const char *json)
{
    struct err e = {0};
    struct tokenizer *t;
    CHECK_OK(tokenizer_from_bytes(json, strlen(json), "t.json", &t, &e), &e);
    return t;
}

/* "1 2 3" */
static const char *encoded(struct tokenizer *t, const char *text, bool templated)
{
    static char out[512];
    struct err e = {0};
    struct tokens ids = {0};
    struct encode_options o = {.templated = templated};
    CHECK_OK(tokenizer_encode(t, text, strlen(text), &o, &ids, &e), &e);
    out[0] = 0;
    for (size_t i = 0; i < ids.n; i++)
        (void)snprintf(
            out + strlen(out), sizeof out - strlen(out), "%s%u", i ? " " : "", ids.data[i]);
    vec_release(&ids);
    return out;
}

static const char *decoded(struct tokenizer *t, const uint32_t *ids, size_t n, bool skip)
{
    static char out[512];
    struct err e = {0};
    struct str s;
    str_init(&s);
    CHECK_OK(tokenizer_decode(t, ids, n, skip, &s, &e), &e);
    (void)snprintf(out, sizeof out, "%s", s.data);
    str_release(&s);
    return out;
}

#define MARK "\xe2\x96\x81"
static const char llama[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},"
    "{\"id\":1,\"content\":\"<s>\",\"special\":true}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
    "\"" MARK "\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}]},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<"
    "s>\"}},"
    "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[1]}}},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":\"" MARK "\"},"
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,"
    "\"vocab\":{\"<unk>\":0,\"<s>\":1,\"<0xC3>\":2,\"<0xA9>\":3,\"" MARK
    "\":4,\"a\":5,\"b\":6,\"ab\":7,"
    "\"" MARK "ab\":8,\"" MARK "a\":9},"
    "\"merges\":[\"a b\",[\"" MARK "\",\"ab\"],\"" MARK " a\"]}}";

TEST(llama_style, "prepended mark, merges by rank, bytes for unknown characters, template")
{
    struct tokenizer *t = open_text(llama);
    CHECK_STR(encoded(t, "ab a", true), "1 8 9");
    CHECK_STR(encoded(t, "b", false), "4 6");
    /* Bytes that are tokens stand for a character; others are unknown, neighbours as one. */
    CHECK_STR(encoded(t, "b\xc3\xa9zzb", false), "4 6 2 3 0 6");
    CHECK_STR(encoded(t, "a<s>a", false), "9 1 9");
    uint32_t ids[] = {1, 8, 2, 3, 9};
    CHECK_STR(decoded(t, ids, 5, true), "ab\xc3\xa9 a");
    CHECK_EQ(tokenizer_size(t), 10);
    CHECK_EQ(tokenizer_find(t, "<s>"), 1);
    tokenizer_free(t);
}

TEST(metaspace, "Metaspace prepends at the beginning alone under 'first'")
{
    struct tokenizer *t = open_text(
        "{\"added_tokens\":[{\"id\":4,\"content\":\"!\"}],\"pre_tokenizer\":{\"type\":"
        "\"Metaspace\","
        "\"replacement\":\"_\",\"prepend_scheme\":\"first\"},\"decoder\":{\"type\":\"Metaspace\","
        "\"replacement\":\"_\",\"prepend_scheme\":\"first\"},\"model\":{\"type\":\"BPE\",\"vocab\":"
        "{\"_\":0,\"a\":1,\"_a\":2,\"a_\":3},\"merges\":[\"a _\",\"_ a\"]}}");
    /* Pieces begin with the mark, so "a _" never meets. */
    CHECK_STR(encoded(t, "a a", false), "2 2");
    CHECK_STR(encoded(t, "a!a a", false), "2 4 1 2");
    uint32_t ids[] = {2, 2};
    CHECK_STR(decoded(t, ids, 2, false), "a a");
    tokenizer_free(t);
}

static const struct {
    const char *json, *says;
} wrong[] = {
    {"{}", "no \"model\""},
    {"{\"model\":{\"type\":\"WordPiece\"}}", "WordPiece"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "given twice"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999},\"merges\":[]}}", "not below"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "merge 0"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[7]}}", "merge 0"},
    {"{\"normalizer\":{\"type\":\"Precompiled\"},\"model\":{\"type\":\"BPE\",\"vocab\":{},"
     "\"merges\":[]}}",
     "Precompiled"},
    {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"}},\"model\":{\"type\":"
     "\"BPE\","
     "\"vocab\":{},\"merges\":[]}}",
     "cannot be read"},
    {"{\"model\":", "not valid JSON"},
    {"SGk= 0\nSGk= 1\n", "same text"},
    {"SGk=\n", "line 1 is not"},
    {"S!k= 0\n", "line 1 is not"},
    {"SGk= 0\n", "1 tokens where gpt2 has 50256"}};

TEST(wrong_files, "a wrong file is an error that names the file and what is wrong")
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct err e = {0};
        struct tokenizer *t;
        const char *name = wrong[i].json[0] == '{' ? "wrong.json" : "gpt2.tiktoken";
        CHECK(tokenizer_from_bytes(wrong[i].json, strlen(wrong[i].json), name, &t, &e) != ST_OK);
        if (!strstr(e.text, wrong[i].says) || !strstr(e.text, name))
            test_fail(__FILE__, __LINE__, "%s: %s", wrong[i].json, e.text);
    }
}

TEST(not_there, "an encoding without its file says how it gets there")
{
    struct err e = {0};
    struct tokenizer *t;
    CHECK_EQ(tokenizer_open_encoding("cl100k_bas", &t, &e), ST_INVALID);
    CHECK(strstr(e.hint, "Did you mean cl100k_base?"));
    CHECK_EQ(tokenizer_encoding_size("cl100k_base"), 100277);
    CHECK_EQ(tokenizer_encoding_size("none"), 0);
}

static const char sentences[] = "In the beginning God created the heaven and the earth. And the "
                                "earth was without form, and void; "
                                "and darkness was upon the face of the deep. And the Spirit of God "
                                "moved upon the face of the waters.\n";

static struct tokenizer *trained(int64_t vocab, struct bpe_train_result *r)
{
    struct err e = {0};
    json_t *doc;
    struct bpe_train_options o = {.vocab = vocab};
    CHECK_OK(bpe_train(sentences, sizeof sentences - 1, &o, &doc, r, &e), &e);
    char *text = json_text(doc, false);
    struct tokenizer *t = open_text(text);
    json_decref(doc);
    mem_free(text);
    return t;
}

TEST(training, "what is learned opens, shortens its text, gives it back, and is the same again")
{
    struct bpe_train_result r, again;
    struct err e = {0};
    struct tokenizer *t = trained(280, &r), *u = trained(280, &again);
    struct tokens ids = {0};
    struct str back;
    str_init(&back);
    CHECK_EQ(r.tokens, 280);
    CHECK_EQ(tokenizer_size(t), 280);
    CHECK_EQ(tokenizer_end(t), 279);
    CHECK(tokenizer_key(t) == tokenizer_key(u));
    CHECK_OK(tokenizer_encode(t, sentences, sizeof sentences - 1, NULL, &ids, &e), &e);
    CHECK(ids.n < sizeof sentences * 6 / 10);
    CHECK_OK(tokenizer_decode(t, ids.data, ids.n, false, &back, &e), &e);
    CHECK_STR(back.data, sentences);
    /* The first merge is the most frequent pair. */
    CHECK(
        tokenizer_find(t, "he") == 256 || tokenizer_find(t, "th") == 256 ||
        tokenizer_find(t, "\xc4\xa0t") == 256);
    tokenizer_free(t);
    tokenizer_free(u);
    vec_release(&ids);
    str_release(&back);
}

TEST(training_limits, "a text too short for the vocabulary; sizes out of range")
{
    struct bpe_train_result r;
    struct err e = {0};
    json_t *doc;
    struct tokenizer *t = trained(100000, &r);
    CHECK(r.tokens < 400 && r.tokens == tokenizer_size(t));
    tokenizer_free(t);
    struct bpe_train_options o = {.vocab = 10};
    CHECK_EQ(bpe_train("ab", 2, &o, &doc, &r, &e), ST_INVALID);
    o.vocab = 300;
    CHECK_EQ(bpe_train("a\xff", 2, &o, &doc, &r, &e), ST_INVALID);
    CHECK(strstr(e.text, "byte 1"));
}

/* One word of a million letters, of white space, of marks: no text takes more than moments. */
TEST_WITHIN(
    hostile_texts, 20, "long words and runs of blanks take time in proportion to their length")
{
    enum { N = 1000000 };
    static const char *const units[] = {"the", " ",        "\n",  "a", "\xc3\xa9",
                                        "'",   "\xcc\x81", " \n", "A", "1"};
    struct bpe_train_result r;
    struct err e = {0};
    struct tokenizer *t = trained(330, &r);
    char *text = mem_alloc(N + 4);
    for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
        size_t n = strlen(units[k]), at = 0;
        struct tokens ids = {0};
        for (; at + n <= N; at += n)
            memcpy(text + at, units[k], n);
        int64_t began = clock_ns();
        CHECK_OK(tokenizer_encode(t, text, at, NULL, &ids, &e), &e);
        CHECK((clock_ns() - began) / 1000000 < 10000);
        CHECK(ids.n > 0);
        vec_release(&ids);
    }
    mem_free(text);
    tokenizer_free(t);
}

TEST(patterns, "a pattern that explodes ends with an error; each way to split does as it says")
{
    struct err e = {0};
    struct pattern *p;
    struct spans out = {0};
    struct span m;
    char text[64];
    memset(text, 'a', 60);
    CHECK_OK(pattern_new("(a+)+b", &p, &e), &e);
    enum status st = pattern_find(p, text, 60, 0, &m, &e);
    CHECK(st == ST_UNSUPPORTED || (st == ST_OK && m.n == 0));
    pattern_free(p);
    CHECK_OK(pattern_new_literal("-", &p, &e), &e);
    static const struct {
        enum split_behavior behavior;
        const char *pieces;
    } ways[] = {
        {SPLIT_REMOVED, "a|b|c"},
        {SPLIT_ISOLATED, "a|-|b|-|-|c"},
        {SPLIT_MERGED_WITH_PREVIOUS, "a-|b-|-|c"},
        {SPLIT_MERGED_WITH_NEXT, "a|-b|-|-c"},
        {SPLIT_CONTIGUOUS, "a|-|b|--|c"}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct str got;
        str_init(&got);
        out.n = 0;
        CHECK_OK(
            pattern_split(p, ways[i].behavior, false, "a-b--c", (struct span){0, 6}, &out, &e), &e);
        for (size_t k = 0; k < out.n; k++)
            str_printf(&got, "%s%.*s", k ? "|" : "", (int)out.data[k].n, &"a-b--c"[out.data[k].at]);
        CHECK_STR(got.data, ways[i].pieces);
        str_release(&got);
    }
    vec_release(&out);
    pattern_free(p);
}

TEST(utf8, "what is not UTF-8 is found at its first byte, and repaired byte by byte")
{
    CHECK_EQ(utf8_prefix("a\xc3\xa9", 3), 3);
    CHECK_EQ(utf8_prefix("a\xc3", 2), 1);
    CHECK_EQ(utf8_prefix("\xc0\x80", 2), 0);
    CHECK_EQ(utf8_prefix("\xed\xa0\x80", 3), 0);
    CHECK_EQ(utf8_prefix("\xf4\x90\x80\x80", 4), 0);
    struct str s;
    str_init(&s);
    utf8_repair("a\xffz", 3, &s);
    CHECK_STR(s.data, "a\xef\xbf\xbdz");
    str_release(&s);
}
