/* corpus_test.c - rows of files, mixes, and the tokens they become. */
#include "base/env.h"
#include "test.h"
#include "text/corpus.h"

#include <stdio.h>
#include <string.h>

static const char *write_file(const char *name, const char *text)
{
    static char path[2][1200];
    static int k;
    struct err e = {0};
    k = !k;
    (void)snprintf(path[k], sizeof path[k], "%s/%s", test_dir(), name);
    CHECK_OK(file_write(path[k], text, strlen(text), &e), &e);
    return path[k];
}

static struct tokenizer *letters(void)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":9,\"content\":\"</s>\"}],\"model\":{\"type\":\"BPE\",\"vocab\":"
        "{\"a\":0,\"b\":1,\"c\":2},\"merges\":[]}}";
    struct err e = {0};
    struct tokenizer *t;
    CHECK_OK(tokenizer_from_bytes(json, sizeof json - 1, "t.json", &t, &e), &e);
    return t;
}

static const char *tokens_of(const struct corpus *c, struct tokenizer *t, bool end, int64_t most)
{
    static char out[256];
    struct err e = {0};
    struct token_row row;
    struct tokenize_options o = {.append_end = end, .tokens_max = most};
    CHECK_OK(corpus_tokenize(c, t, &o, &row, NULL, &e), &e);
    CHECK_EQ(row.width, 2);
    out[0] = 0;
    for (int64_t i = 0; i < row.n; i++)
        (void)snprintf(out + strlen(out), sizeof out - strlen(out), "%u", token_row_at(&row, i));
    token_row_release(&row);
    return out;
}

TEST(corpus_rows, "a line is a text; end token, most rows, most tokens")
{
    struct err e = {0};
    struct corpus *c, *two;
    struct tokenizer *t = letters();
    const char *path = write_file("a.txt", "ab\n\n \t\ncc\r\na");
    CHECK_OK(corpus_open(path, 0, &c, &e), &e);
    CHECK_OK(corpus_open(path, 2, &two, &e), &e);
    CHECK_EQ(corpus_rows(c), 3);
    CHECK_EQ(corpus_bytes(c), 5);
    CHECK_STR(tokens_of(c, t, true, 0), "01922909");
    CHECK_STR(tokens_of(c, t, false, 4), "0122");
    CHECK_STR(tokens_of(two, t, false, 0), "0122");
    CHECK(corpus_key(c) != corpus_key(two));
    corpus_free(c);
    corpus_free(two);
    tokenizer_free(t);
}

TEST(corpus_mixes, "a mix is in order, or drawn by weight, the same for a seed")
{
    struct err e = {0};
    struct corpus *a, *b, *mix, *again;
    struct tokenizer *t = letters();
    CHECK_OK(corpus_open(write_file("a.txt", "a\na\na\na\na\na\na\na\n"), 0, &a, &e), &e);
    CHECK_OK(corpus_open(write_file("b.txt", "b\nb\nb\nb\n"), 0, &b, &e), &e);
    const struct corpus *const parts[] = {a, b};
    double weights[] = {0.75, 0.25}, none[] = {0, 0};
    CHECK_OK(corpus_mix(parts, weights, 2, false, 0, &mix, &e), &e);
    CHECK_STR(tokens_of(mix, t, false, 0), "000000001111");
    corpus_free(mix);
    CHECK_OK(corpus_mix(parts, weights, 2, true, 7, &mix, &e), &e);
    CHECK_OK(corpus_mix(parts, weights, 2, true, 7, &again, &e), &e);
    CHECK(corpus_rows(mix) >= 4 && corpus_rows(mix) <= 12);
    CHECK(corpus_key(mix) == corpus_key(again));
    CHECK_EQ(corpus_mix(parts, none, 2, true, 7, &again, &e), ST_INVALID);
    corpus_free(mix);
    corpus_free(again);
    corpus_free(a);
    corpus_free(b);
    tokenizer_free(t);
}

TEST(corpus_wrong, "text that is not UTF-8 names its file and line")
{
    struct err e = {0};
    struct corpus *c;
    struct token_row row;
    struct tokenize_options o = {0};
    struct tokenizer *t = letters();
    CHECK_OK(corpus_open(write_file("a.txt", "ab\n\nc\xff\n"), 0, &c, &e), &e);
    CHECK_EQ(corpus_tokenize(c, t, &o, &row, NULL, &e), ST_INVALID);
    CHECK(strstr(e.text, "a.txt\", line 3") && strstr(e.text, "byte 1"));
    corpus_free(c);
    tokenizer_free(t);
    CHECK_EQ(corpus_open("/nowhere/x.txt", 0, &c, &e), ST_NOT_FOUND);
}
