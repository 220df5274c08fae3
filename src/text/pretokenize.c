/* pretokenize.c - cuts a normalized text into the pieces that merges do not cross. */
#include "text/tokenizer_int.h"
#include "text/utf8.h"

#include <string.h>

static enum status split(struct tokenizer *t, const struct pre_step *s, struct err *e)
{
    t->more.n = 0;
    for (size_t i = 0; i < t->pieces.n; i++)
        TRY(pattern_split(
            s->pattern, s->behavior, s->invert, t->text.data, t->pieces.data[i], &t->more, e));
    struct spans swap = t->pieces;
    t->pieces = t->more;
    t->more = swap;
    return ST_OK;
}

/* Steps that change the text write all pieces anew, one behind the other. */
static void rewritten(struct tokenizer *t)
{
    struct str swap = t->text;
    t->text = t->other;
    t->other = swap;
}

static void prefix_space(struct tokenizer *t)
{
    str_clear(&t->other);
    for (size_t i = 0; i < t->pieces.n; i++) {
        struct span *p = &t->pieces.data[i];
        const char *text = t->text.data + p->at;
        size_t at = t->other.n;
        if (p->n && text[0] != ' ')
            str_add_n(&t->other, " ", 1);
        str_add_n(&t->other, text, p->n);
        *p = (struct span){at, t->other.n - at};
    }
    rewritten(t);
}

static void metaspace(struct tokenizer *t, const struct pre_step *s, bool first)
{
    size_t mark = strlen(s->text);
    str_clear(&t->other);
    for (size_t i = 0; i < t->pieces.n; i++) {
        struct span *p = &t->pieces.data[i];
        const char *text = t->text.data + p->at;
        size_t at = t->other.n;
        bool marked =
            p->n && (text[0] == ' ' || (p->n >= mark && memcmp(text, s->text, mark) == 0));
        bool wanted = s->scheme == PREFIX_ALWAYS || (s->scheme == PREFIX_FIRST && first && i == 0);
        if (p->n && wanted && !marked)
            str_add(&t->other, s->text);
        for (size_t k = 0; k < p->n; k++) {
            if (text[k] == ' ')
                str_add(&t->other, s->text);
            else
                str_add_n(&t->other, text + k, 1);
        }
        *p = (struct span){at, t->other.n - at};
    }
    rewritten(t);
}

enum status tokenizer_pieces(struct tokenizer *t, bool first, struct err *e)
{
    struct span all = {0, t->text.n};
    t->pieces.n = 0;
    if (all.n)
        vec_push(&t->pieces, all);
    for (size_t i = 0; i < t->pre.n; i++) {
        const struct pre_step *s = &t->pre.data[i];
        switch (s->kind) {
        case PRE_SPLIT:
            TRY(split(t, s, e));
            break;
        case PRE_PREFIX_SPACE:
            prefix_space(t);
            break;
        case PRE_METASPACE:
            metaspace(t, s, first);
            break;
        }
    }
    return ST_OK;
}
