/* pattern.c - regular expressions over UTF-8 (PCRE2), and cutting text by them. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include "base/str.h"
#include "text/utf8.h"

#include <pcre2.h>
#include <string.h>

enum { MATCH_STEPS_MAX = 10000000, HEAP_KIB_MAX = 65536, PATTERN_BYTES_MAX = 1 << 16 };
enum { JIT_STACK_FIRST = 32 << 10, JIT_STACK_MAX = 8 << 20 };

struct pattern {
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* \s of PCRE2 also has U+180E, which stopped being white space in Unicode 6.3: \s and \S are
 * spelled out. */
static void spell_out(const char *regex, struct str *out)
{
    bool in_class = false;
    for (const char *p = regex; *p; p++) {
        bool escape = p[0] == '\\' && p[1];
        if (escape && p[1] == 's')
            str_add(out, in_class ? "\\t-\\r\\x{85}\\p{Z}" : "[\\t-\\r\\x{85}\\p{Z}]");
        else if (escape && p[1] == 'S' && !in_class)
            str_add(out, "[^\\t-\\r\\x{85}\\p{Z}]");
        else
            str_add_n(out, p, escape ? 2 : 1);
        if (escape)
            p++;
        else if (*p == '[')
            in_class = true;
        else if (*p == ']')
            in_class = false;
    }
}

static enum status
compile(const char *text, size_t n, uint32_t flags, struct pattern *p, struct err *e)
{
    int code;
    PCRE2_SIZE at;
    /* A literal text takes no other flags. */
    uint32_t all = flags & PCRE2_LITERAL ? flags | PCRE2_UTF
                                         : flags | PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY |
                                               PCRE2_NEVER_BACKSLASH_C;
    p->code = pcre2_compile((PCRE2_SPTR)text, n, all, &code, &at, NULL);
    if (!p->code) {
        PCRE2_UCHAR why[200] = {0};
        (void)pcre2_get_error_message(code, why, sizeof why);
        return err_set(
            e, ST_UNSUPPORTED, "pattern \"%.200s\" cannot be read: %s at byte %zu", text,
            (const char *)why, (size_t)at);
    }
    (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* without it: interpreted */
    p->match = pcre2_match_data_create(1, NULL);
    p->context = pcre2_match_context_create(NULL);
    p->stack = pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_MAX, NULL);
    if (!p->match || !p->context)
        return err_set(e, ST_OOM, "no host memory for a pattern");
    (void)pcre2_set_match_limit(p->context, MATCH_STEPS_MAX);
    (void)pcre2_set_heap_limit(p->context, HEAP_KIB_MAX);
    if (p->stack)
        pcre2_jit_stack_assign(p->context, NULL, p->stack);
    return ST_OK;
}

static enum status
make(const char *text, size_t n, uint32_t flags, struct pattern **out, struct err *e)
{
    if (n == 0 || n > PATTERN_BYTES_MAX)
        return err_set(
            e, ST_UNSUPPORTED, "a pattern has %zu bytes, outside 1 to %d", n, PATTERN_BYTES_MAX);
    struct pattern *p = mem_alloc(sizeof *p);
    enum status st = compile(text, n, flags, p, e);
    if (st != ST_OK) {
        pattern_free(p);
        return st;
    }
    *out = p;
    return ST_OK;
}

enum status pattern_new(const char *regex, struct pattern **out, struct err *e)
{
    struct str spelled;
    str_init(&spelled);
    spell_out(regex, &spelled);
    enum status st = make(spelled.data, spelled.n, 0, out, e);
    str_release(&spelled);
    return st;
}

enum status pattern_new_literal(const char *text, struct pattern **out, struct err *e)
{
    return make(text, strlen(text), PCRE2_LITERAL, out, e);
}

void pattern_free(struct pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    pcre2_match_data_free(p->match);
    pcre2_match_context_free(p->context);
    pcre2_jit_stack_free(p->stack);
    mem_free(p);
}

enum status pattern_find(
    struct pattern *p, const char *text, size_t n, size_t from, struct span *found, struct err *e)
{
    *found = (struct span){n, 0};
    while (from < n) {
        int r = pcre2_match(
            p->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, p->match, p->context);
        if (r == PCRE2_ERROR_NOMATCH)
            return ST_OK;
        if (r < 0) {
            PCRE2_UCHAR why[200] = {0};
            (void)pcre2_get_error_message(r, why, sizeof why);
            return err_set(
                e, ST_UNSUPPORTED, "a pattern gives up on a text of %zu bytes: %s", n,
                (const char *)why);
        }
        const PCRE2_SIZE *v = pcre2_get_ovector_pointer(p->match);
        if (v[1] > v[0] && v[0] >= from) {
            *found = (struct span){v[0], v[1] - v[0]};
            return ST_OK;
        }
        /* An empty match is none (\K may even turn it around). */
        from = v[0] > from ? v[0] : from;
        if (from < n)
            from += utf8_length(text + from);
    }
    return ST_OK;
}

/* Pieces come in order; `mark`: the piece counts as a match. */
struct cutter {
    enum split_behavior behavior;
    struct spans *out;
    bool last_mark, started;
};

static void give(struct cutter *c, size_t at, size_t n, bool mark)
{
    if (n == 0)
        return;
    bool join = false;
    switch (c->behavior) {
    case SPLIT_REMOVED:
        if (mark)
            return;
        break;
    case SPLIT_ISOLATED:
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        join = c->started && mark && !c->last_mark;
        break;
    case SPLIT_MERGED_WITH_NEXT:
        join = c->started && !mark && c->last_mark;
        break;
    case SPLIT_CONTIGUOUS:
        join = c->started && mark == c->last_mark;
        break;
    }
    c->last_mark = mark;
    c->started = true;
    struct span piece = {at, n};
    if (join)
        c->out->data[c->out->n - 1].n += n;
    else
        vec_push(c->out, piece);
}

enum status pattern_split(
    struct pattern *p, enum split_behavior behavior, bool invert, const char *text,
    struct span piece, struct spans *out, struct err *e)
{
    struct cutter c = {.behavior = behavior, .out = out};
    size_t done = 0;
    while (done < piece.n) {
        struct span m;
        TRY(pattern_find(p, text + piece.at, piece.n, done, &m, e));
        give(&c, piece.at + done, m.at - done, invert);
        give(&c, piece.at + m.at, m.n, !invert);
        done = m.at + m.n;
    }
    return ST_OK;
}
