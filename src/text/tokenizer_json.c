/* tokenizer_json.c - Hugging Face's tokenizer.json: the model, the added tokens, the template. */
#include "text/tokenizer_int.h"

#include "text/utf8.h"

#include <stdio.h>
#include <string.h>

uint32_t byte_level_char(unsigned char byte)
{
    /* Printable bytes stand for themselves, the others in order from U+0100 on. */
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174)
        return byte;
    if (byte <= 32)
        return 256u + byte;
    return byte == 173 ? 256u + 67 : 256u + 33 + (byte - 127u);
}

int byte_level_byte(uint32_t c)
{
    for (int i = 0; c < 256 + 68 && i < 256; i++)
        if (byte_level_char((unsigned char)i) == c)
            return i;
    return -1;
}

static enum status read_vocab(struct tokenizer *t, const json_t *model, struct err *e)
{
    json_t *vocab = json_object_get(model, "vocab");
    const char *text;
    json_t *id;
    if (!json_is_object(vocab))
        return err_set(e, ST_CORRUPT, "\"%s\": \"vocab\" of its model is no object", t->name);
    json_object_foreach(vocab, text, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0)
            return err_set(
                e, ST_CORRUPT, "\"%s\": the number of token \"%.100s\" is none", t->name, text);
        if (text[0] == 0)
            continue; /* nothing can become it */
        enum status st =
            vocab_add(&t->vocab, text, strlen(text), (uint64_t)json_integer_value(id), e);
        if (st != ST_OK) {
            err_prefix(e, "\"%s\": token \"%.100s\"", t->name, text);
            return st;
        }
    }
    return ST_OK;
}

/* "a b", or ["a", "b"]. */
static bool merge_sides(const json_t *m, const char **left, size_t *left_n, const char **right)
{
    if (json_is_array(m) && json_array_size(m) == 2) {
        *left = json_string_value(json_array_get(m, 0));
        *right = json_string_value(json_array_get(m, 1));
        *left_n = *left ? strlen(*left) : 0;
        return *left && *right;
    }
    *left = json_string_value(m);
    const char *space = *left ? strchr(*left, ' ') : NULL;
    if (!space)
        return false;
    *left_n = (size_t)(space - *left);
    *right = space + 1;
    return true;
}

static enum status
add_merge(struct tokenizer *t, const json_t *m, size_t rank, struct str *joined, struct err *e)
{
    const char *left, *right;
    size_t n;
    if (!merge_sides(m, &left, &n, &right))
        return err_set(
            e, ST_CORRUPT, "\"%s\": merge %zu is neither \"a b\" nor two strings", t->name, rank);
    str_clear(joined);
    str_add_n(joined, left, n);
    str_add(joined, right);
    uint32_t a = vocab_find(&t->vocab, left, n);
    uint32_t b = vocab_find(&t->vocab, right, strlen(right));
    uint32_t c = vocab_find(&t->vocab, joined->data, joined->n);
    if (a == TOKEN_NONE || b == TOKEN_NONE || c == TOKEN_NONE)
        return err_set(
            e, ST_CORRUPT,
            "\"%s\": merge %zu (\"%.60s\" and \"%.60s\") has a side or a result that is no token",
            t->name, rank, left, right);
    merges_add(&t->merges, a, b, (uint32_t)rank, c);
    return ST_OK;
}

static enum status read_merges(struct tokenizer *t, const json_t *model, struct err *e)
{
    const json_t *list = json_object_get(model, "merges");
    if (!json_is_array(list))
        return err_set(e, ST_CORRUPT, "\"%s\": \"merges\" of its model is no list", t->name);
    struct str joined;
    enum status st = ST_OK;
    str_init(&joined);
    for (size_t i = 0; i < json_array_size(list) && st == ST_OK; i++)
        st = add_merge(t, json_array_get(list, i), i, &joined, e);
    str_release(&joined);
    return st;
}

static enum status read_model(struct tokenizer *t, const json_t *model, struct err *e)
{
    const char *type = json_get_str(model, "type", json_object_get(model, "merges") ? "BPE" : "");
    if (!str_eq(type, "BPE"))
        return err_set(
            e, ST_UNSUPPORTED, "\"%s\" is a tokenizer of type \"%s\"; BPE is read", t->name, type);
    if (json_is_number(json_object_get(model, "dropout")) && json_get_f64(model, "dropout", 0) != 0)
        return err_set(e, ST_UNSUPPORTED, "\"%s\" asks for BPE dropout, which is random", t->name);
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++)
        if (json_get_str(model, affixes[i], "")[0])
            return err_set(e, ST_UNSUPPORTED, "\"%s\" uses \"%s\"", t->name, affixes[i]);
    t->fuse_unk = json_get_bool(model, "fuse_unk", false);
    t->byte_fallback = json_get_bool(model, "byte_fallback", false);
    t->ignore_merges = json_get_bool(model, "ignore_merges", false);
    TRY(read_vocab(t, model, e));
    const char *unk = json_get_str(model, "unk_token", NULL);
    if (unk)
        t->unk = vocab_find(&t->vocab, unk, strlen(unk));
    return read_merges(t, model, e);
}

static enum status read_added(struct tokenizer *t, const json_t *doc, struct err *e)
{
    const json_t *list = json_object_get(doc, "added_tokens");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *a = json_array_get(list, i);
        const char *text = json_get_str(a, "content", NULL);
        int64_t id = json_get_i64(a, "id", -1);
        if (!text || id < 0 || id >= TOKEN_ID_MAX)
            return err_set(
                e, ST_CORRUPT, "\"%s\": added token %zu has no \"content\" or no usable \"id\"",
                t->name, i);
        union {
            const char *in;
            char *out;
        } copied = {.in = text};
        struct added_token token = {
            .text = copied.out,
            .n = strlen(text),
            .id = (uint32_t)id,
            .special = json_get_bool(a, "special", false),
            .normalized = json_get_bool(a, "normalized", false),
            .single_word = json_get_bool(a, "single_word", false),
            .left = json_get_bool(a, "lstrip", false),
            .right = json_get_bool(a, "rstrip", false)};
        TRY(tokenizer_add_special(t, token, e));
    }
    return ST_OK;
}

/* TemplateProcessing: what stands before and after the sequence of a single text. */
static enum status read_template(struct tokenizer *t, const json_t *p, struct err *e)
{
    const json_t *parts = json_object_get(p, "single");
    struct tokens *into = &t->prefix;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const json_t *special = json_object_get(part, "SpecialToken");
        if (json_object_get(part, "Sequence")) {
            into = &t->suffix;
            continue;
        }
        const char *name = json_get_str(special, "id", "");
        const json_t *row = json_object_get(json_object_get(p, "special_tokens"), name);
        const json_t *ids = json_object_get(row, "ids");
        for (size_t k = 0; k < json_array_size(ids); k++) {
            json_int_t id = json_integer_value(json_array_get(ids, k));
            if (id < 0 || id >= TOKEN_ID_MAX)
                return err_set(
                    e, ST_CORRUPT, "\"%s\": its template has token number %lld", t->name,
                    (long long)id);
            vec_push(into, (uint32_t)id);
        }
    }
    return ST_OK;
}

static enum status read_processor(struct tokenizer *t, const json_t *p, struct err *e)
{
    const char *type = json_get_str(p, "type", "");
    if (str_eq(type, "TemplateProcessing"))
        return read_template(t, p, e);
    const json_t *list = json_object_get(p, "processors");
    for (size_t i = 0; str_eq(type, "Sequence") && i < json_array_size(list); i++) {
        const json_t *inner = json_array_get(list, i);
        if (str_eq(json_get_str(inner, "type", ""), "TemplateProcessing"))
            TRY(read_template(t, inner, e));
    }
    return ST_OK; /* ByteLevel changes offsets alone */
}

static void find_bytes(struct tokenizer *t)
{
    for (int i = 0; i < 256; i++) {
        char text[8];
        size_t n;
        if (t->byte_level)
            n = utf8_write(byte_level_char((unsigned char)i), text);
        else
            n = (size_t)snprintf(text, sizeof text, "<0x%02X>", i);
        t->byte_id[i] = vocab_find(&t->vocab, text, n);
    }
}

enum status tokenizer_read_json(struct tokenizer *t, const json_t *doc, struct err *e)
{
    const json_t *model = json_object_get(doc, "model");
    if (!json_is_object(model))
        return err_set(e, ST_CORRUPT, "\"%s\" has no \"model\": it is no tokenizer.json", t->name);
    TRY(read_model(t, model, e));
    TRY(tokenizer_read_steps(t, doc, e));
    find_bytes(t);
    TRY(read_added(t, doc, e));
    return read_processor(t, json_object_get(doc, "post_processor"), e);
}
