/* tokenizer_steps.c - reads normalizer, pre-tokenizer and decoder of a tokenizer.json. */
#include "text/tokenizer_int.h"

#include <string.h>

enum { NESTING_MAX = 8, STEPS_MAX = 64 };

/* A part of the document: its name in errors, the list of a Sequence, the reader of one step. */
struct part {
    const char *name, *list;
    enum status (*read)(struct tokenizer *t, const json_t *step, const char *type, struct err *e);
};

static enum status
unsupported(const struct tokenizer *t, const char *part, const char *type, struct err *e)
{
    return err_set(
        e, ST_UNSUPPORTED, "\"%s\" has a %s of type \"%.60s\", which is not known here", t->name,
        part, type);
}

static enum status
read_part(struct tokenizer *t, const struct part *p, const json_t *step, int depth, struct err *e)
{
    if (!step || json_is_null(step))
        return ST_OK;
    const char *type = json_get_str(step, "type", "");
    if (!str_eq(type, "Sequence"))
        return p->read(t, step, type, e);
    const json_t *list = json_object_get(step, p->list);
    if (depth == NESTING_MAX || json_array_size(list) > STEPS_MAX)
        return err_set(e, ST_CORRUPT, "\"%s\": its %s has too many steps", t->name, p->name);
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(read_part(t, p, json_array_get(list, i), depth + 1, e));
    return ST_OK;
}

/* {"String": "x"} or {"Regex": "x"}. */
static enum status
read_pattern(const struct tokenizer *t, const json_t *step, struct pattern **out, struct err *e)
{
    const json_t *p = json_object_get(step, "pattern");
    const char *literal = json_get_str(p, "String", NULL), *regex = json_get_str(p, "Regex", NULL);
    enum status st = literal ? pattern_new_literal(literal, out, e)
                     : regex ? pattern_new(regex, out, e)
                             : err_set(e, ST_CORRUPT, "a pattern is neither String nor Regex");
    if (st != ST_OK)
        err_prefix(e, "\"%s\"", t->name);
    return st;
}

/* ---- normalizer ---- */

static enum status
read_normalizer(struct tokenizer *t, const json_t *step, const char *type, struct err *e)
{
    static const struct {
        const char *type;
        enum normal_kind kind;
    } kinds[] = {
        {"Prepend", NORMAL_PREPEND},
        {"Replace", NORMAL_REPLACE},
        {"NFC", NORMAL_NFC},
        {"NFD", NORMAL_NFD},
        {"NFKC", NORMAL_NFKC},
        {"NFKD", NORMAL_NFKD},
        {"Lowercase", NORMAL_LOWERCASE},
        {"Strip", NORMAL_STRIP}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!str_eq(type, kinds[i].type))
            continue;
        struct normal_step s = {.kind = kinds[i].kind};
        if (s.kind == NORMAL_REPLACE)
            TRY(read_pattern(t, step, &s.pattern, e));
        s.text =
            mem_strdup(json_get_str(step, s.kind == NORMAL_PREPEND ? "prepend" : "content", ""));
        s.left = json_get_bool(step, "strip_left", true);
        s.right = json_get_bool(step, "strip_right", true);
        vec_push(&t->normal, s);
        return ST_OK;
    }
    return unsupported(t, "normalizer", type, e);
}

/* ---- pre-tokenizer ---- */

static enum status
add_split(struct tokenizer *t, const char *regex, enum split_behavior behavior, struct err *e)
{
    struct pre_step s = {.kind = PRE_SPLIT, .behavior = behavior};
    TRY(pattern_new(regex, &s.pattern, e));
    vec_push(&t->pre, s);
    return ST_OK;
}

static enum status
behavior_of(const struct tokenizer *t, const json_t *step, enum split_behavior *out, struct err *e)
{
    static const char *const names[] = {
        "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = json_get_str(step, "behavior", "Isolated");
    for (int i = 0; i < 5; i++) {
        if (str_eq(name, names[i])) {
            *out = (enum split_behavior)i;
            return ST_OK;
        }
    }
    return err_set(e, ST_CORRUPT, "\"%s\": no such split behavior: \"%.60s\"", t->name, name);
}

static enum status read_split(struct tokenizer *t, const json_t *step, struct err *e)
{
    struct pre_step s = {.kind = PRE_SPLIT, .invert = json_get_bool(step, "invert", false)};
    TRY(behavior_of(t, step, &s.behavior, e));
    TRY(read_pattern(t, step, &s.pattern, e));
    vec_push(&t->pre, s);
    return ST_OK;
}

static enum status read_byte_level(struct tokenizer *t, const json_t *step, struct err *e)
{
    struct pre_step space = {.kind = PRE_PREFIX_SPACE};
    if (json_get_bool(step, "add_prefix_space", true))
        vec_push(&t->pre, space);
    if (json_get_bool(step, "use_regex", true))
        TRY(add_split(t, PATTERN_GPT2, SPLIT_ISOLATED, e));
    t->byte_level = true;
    return ST_OK;
}

/* The older form of the file says add_prefix_space instead of prepend_scheme. */
static enum prefix_scheme scheme_of(const json_t *step)
{
    const char *name = json_get_str(
        step, "prepend_scheme", json_get_bool(step, "add_prefix_space", true) ? "always" : "never");
    return str_eq(name, "first")   ? PREFIX_FIRST
           : str_eq(name, "never") ? PREFIX_NEVER
                                   : PREFIX_ALWAYS;
}

static enum status read_metaspace(struct tokenizer *t, const json_t *step, struct err *e)
{
    const char *mark = json_get_str(step, "replacement", "\xe2\x96\x81");
    if (!mark[0] || strlen(mark) > 4)
        return err_set(
            e, ST_CORRUPT, "\"%s\": the replacement of Metaspace is not one character", t->name);
    struct pre_step s = {
        .kind = PRE_METASPACE, .text = mem_strdup(mark), .scheme = scheme_of(step)};
    vec_push(&t->pre, s);
    if (!json_get_bool(step, "split", true))
        return ST_OK;
    struct pre_step cut = {.kind = PRE_SPLIT, .behavior = SPLIT_MERGED_WITH_NEXT};
    TRY(pattern_new_literal(mark, &cut.pattern, e));
    vec_push(&t->pre, cut);
    return ST_OK;
}

static enum status read_punctuation(struct tokenizer *t, const json_t *step, struct err *e)
{
    enum split_behavior behavior;
    TRY(behavior_of(t, step, &behavior, e));
    return add_split(t, "[\\p{P}$+<=>^`|~]", behavior, e);
}

/* Runs of word characters and runs of others stay; white space goes. */
static enum status read_words(struct tokenizer *t, struct err *e)
{
    struct pre_step s = {.kind = PRE_SPLIT, .behavior = SPLIT_REMOVED, .invert = true};
    TRY(pattern_new("\\w+|[^\\w\\s]+", &s.pattern, e));
    vec_push(&t->pre, s);
    return ST_OK;
}

static enum status
read_pre_tokenizer(struct tokenizer *t, const json_t *step, const char *type, struct err *e)
{
    if (t->byte_level)
        return err_set(
            e, ST_UNSUPPORTED, "\"%s\" has a pre-tokenizer (%.60s) after ByteLevel", t->name, type);
    if (str_eq(type, "ByteLevel"))
        return read_byte_level(t, step, e);
    if (str_eq(type, "Split"))
        return read_split(t, step, e);
    if (str_eq(type, "Metaspace"))
        return read_metaspace(t, step, e);
    if (str_eq(type, "Digits"))
        return add_split(
            t, json_get_bool(step, "individual_digits", false) ? "\\p{N}" : "\\p{N}+",
            SPLIT_ISOLATED, e);
    if (str_eq(type, "Punctuation"))
        return read_punctuation(t, step, e);
    if (str_eq(type, "Whitespace"))
        return read_words(t, e);
    if (str_eq(type, "WhitespaceSplit"))
        return add_split(t, "\\s", SPLIT_REMOVED, e);
    return unsupported(t, "pre-tokenizer", type, e);
}

/* ---- decoder ---- */

static enum status
read_decoder(struct tokenizer *t, const json_t *step, const char *type, struct err *e)
{
    static const struct {
        const char *type;
        enum decode_kind kind;
    } kinds[] = {
        {"Replace", DECODE_REPLACE},
        {"ByteFallback", DECODE_BYTE_FALLBACK},
        {"Fuse", DECODE_FUSE},
        {"Strip", DECODE_STRIP},
        {"ByteLevel", DECODE_BYTE_LEVEL},
        {"Metaspace", DECODE_METASPACE}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!str_eq(type, kinds[i].type))
            continue;
        struct decode_step s = {.kind = kinds[i].kind};
        const char *from = json_get_str(json_object_get(step, "pattern"), "String", NULL);
        if (s.kind == DECODE_REPLACE && (!from || !from[0]))
            return err_set(e, ST_UNSUPPORTED, "\"%s\": its decoder replaces by a pattern", t->name);
        if (s.kind == DECODE_METASPACE)
            from = json_get_str(step, "replacement", "\xe2\x96\x81");
        if (s.kind == DECODE_STRIP)
            from = json_get_str(step, "content", " ");
        s.from = mem_strdup(from ? from : "");
        s.text = mem_strdup(json_get_str(step, "content", ""));
        s.start = json_get_i64(step, "start", 0);
        s.stop = json_get_i64(step, "stop", 0);
        s.strip_first = scheme_of(step) != PREFIX_NEVER;
        vec_push(&t->decode, s);
        return ST_OK;
    }
    return unsupported(t, "decoder", type, e);
}

enum status tokenizer_read_steps(struct tokenizer *t, const json_t *doc, struct err *e)
{
    static const struct part normalizer = {"normalizer", "normalizers", read_normalizer};
    static const struct part pre = {"pre-tokenizer", "pretokenizers", read_pre_tokenizer};
    static const struct part decoder = {"decoder", "decoders", read_decoder};
    TRY(read_part(t, &normalizer, json_object_get(doc, "normalizer"), 0, e));
    TRY(read_part(t, &pre, json_object_get(doc, "pre_tokenizer"), 0, e));
    return read_part(t, &decoder, json_object_get(doc, "decoder"), 0, e);
}
