/* cifar_pickle.c - a pickle machine that can build CIFAR's dictionary and nothing else.
 *
 * WHY a machine: the order of a dictionary's keys and the use of the memo differ between writers,
 * so the bytes cannot be matched as a pattern.
 * LIMITS: short strings 4096 bytes, stack and memo VALUES_MAX, lists LISTS_MAX.
 */
#include "data/cifar_pickle.h"

#include "base/mem.h"
#include "base/str.h"

#include <string.h>

enum {
    PIXELS = 3072,
    VALUES_MAX = 1 << 18,
    LISTS_MAX = 1024,
    STRING_MAX = 4096,
    MEMO_GAP_MAX = 4096,
    KEY_MAX = 24
};

enum kind { OTHER, MARK, TRUE_, INT, STRING, PIXEL_BLOB, TUPLE, LIST, DICT, GLOBAL, ARRAY };

struct value {
    enum kind kind;
    int64_t a, b;       /* INT: a. TUPLE: its first two integers. LIST: index in a */
    bool pixels, order; /* TUPLE: holds the pixels; and then, of the right shape */
    char text[KEY_MAX]; /* STRING: its beginning */
};

struct list {
    VEC(int32_t) ints;
    bool other; /* something that is no small integer was appended, or too many */
};

struct machine {
    struct source *s;
    int64_t n;
    const char *labels_key;
    uint8_t *images, *labels;
    bool have_pixels, have_data, have_labels, stopped;
    VEC(struct value) stack;
    VEC(struct value) memo;
    VEC(struct list) lists;
    struct err *e;
};

static enum status bad(struct machine *m, const char *what)
{
    return err_set(
        m->e, ST_CORRUPT, "\"%s\" is not a pickled CIFAR batch: %s", source_name(m->s), what);
}

static enum status push(struct machine *m, struct value v)
{
    if (m->stack.n >= VALUES_MAX)
        return bad(m, "too many values");
    vec_push(&m->stack, v);
    return ST_OK;
}

static enum status pop(struct machine *m, struct value *v)
{
    if (m->stack.n == 0)
        return bad(m, "an operation lacks its operand");
    *v = m->stack.data[--m->stack.n];
    return ST_OK;
}

static enum status number(struct machine *m, int bytes, uint64_t *out)
{
    uint8_t b[8] = {0};
    TRY(source_need(m->s, b, (size_t)bytes, "pickle", m->e));
    *out = 0;
    for (int i = bytes; i-- > 0;)
        *out = *out << 8 | b[i];
    return ST_OK;
}

/* The array's bytes, image after image, straight to their place. */
static enum status read_rows(struct machine *m)
{
    uint8_t planes[PIXELS];
    for (int64_t i = 0; i < m->n; i++) {
        TRY(source_need(m->s, planes, PIXELS, "pixels", m->e));
        cifar_interleave(planes, m->images + (size_t)i * PIXELS);
    }
    return ST_OK;
}

/* The same for an array in Fortran order: one pixel of all images after the other. */
static enum status read_columns(struct machine *m)
{
    for (int p = 0; p < PIXELS; p++) {
        size_t at = (size_t)(3 * (p % 1024) + p / 1024);
        uint8_t b[512];
        for (int64_t i = 0; i < m->n;) {
            int64_t k = m->n - i < 512 ? m->n - i : 512;
            TRY(source_need(m->s, b, (size_t)k, "pixels", m->e));
            for (int64_t j = 0; j < k; j++, i++)
                m->images[(size_t)i * PIXELS + at] = b[j];
        }
    }
    return ST_OK;
}

static enum status read_pixels(struct machine *m)
{
    /* numpy's state is (version, shape, dtype, fortran, bytes): the flag is on top now. */
    bool fortran = m->stack.n && m->stack.data[m->stack.n - 1].kind == TRUE_;
    if (m->have_pixels)
        return bad(m, "it has two pixel arrays");
    TRY(fortran ? read_columns(m) : read_rows(m));
    m->have_pixels = true;
    return push(m, (struct value){.kind = PIXEL_BLOB});
}

static enum status string(struct machine *m, int length_bytes)
{
    uint64_t length = 0;
    TRY(number(m, length_bytes, &length));
    if (length == (uint64_t)m->n * PIXELS)
        return read_pixels(m);
    if (length > STRING_MAX)
        return bad(m, "its data is not as many images as belong here");
    char text[STRING_MAX];
    struct value v = {.kind = STRING};
    TRY(source_need(m->s, text, length, "pickle", m->e));
    memcpy(v.text, text, length < KEY_MAX - 1 ? length : KEY_MAX - 1);
    return push(m, v);
}

/* A line up to its newline, cut at cap - 1. */
static enum status line(struct machine *m, char *text, size_t cap)
{
    size_t n = 0;
    for (size_t read = 0; read < STRING_MAX; read++) {
        char c;
        TRY(source_need(m->s, &c, 1, "pickle", m->e));
        if (c == '\n') {
            text[n] = 0;
            return ST_OK;
        }
        if (n + 1 < cap)
            text[n++] = c;
    }
    return bad(m, "a name in it does not end");
}

static enum status global(struct machine *m, const char *module, const char *name)
{
    bool numpy = str_starts(module, "numpy") &&
                 (str_eq(name, "_reconstruct") || str_eq(name, "ndarray") || str_eq(name, "dtype"));
    if (!numpy)
        return bad(m, "it wants to call something that is no numpy array");
    return push(m, (struct value){.kind = GLOBAL});
}

static enum status op_global(struct machine *m, bool from_stack)
{
    char module[64], name[64];
    if (from_stack) {
        struct value a, b;
        TRY(pop(m, &b));
        TRY(pop(m, &a));
        return global(m, a.text, b.text);
    }
    TRY(line(m, module, sizeof module));
    TRY(line(m, name, sizeof name));
    return global(m, module, name);
}

/* Index of the value above the topmost mark; the mark is removed by cutting the stack there. */
static enum status find_mark(struct machine *m, size_t *first)
{
    for (size_t i = m->stack.n; i-- > 0;) {
        if (m->stack.data[i].kind == MARK) {
            *first = i + 1;
            return ST_OK;
        }
    }
    return bad(m, "a mark is missing");
}

/* Replaces the values from `first` by one tuple; `drop` more go below it (the mark). */
static enum status tuple(struct machine *m, size_t first, size_t drop)
{
    struct value t = {.kind = TUPLE, .a = -1, .b = -1};
    int ints = 0;
    for (size_t i = first; i < m->stack.n; i++) {
        const struct value *v = &m->stack.data[i];
        if (v->kind == INT && ints++ < 2)
            *(t.a == -1 ? &t.a : &t.b) = v->a;
        t.pixels = t.pixels || v->kind == PIXEL_BLOB;
        t.order = t.order || (v->kind == TUPLE && v->a == m->n && v->b == PIXELS);
    }
    m->stack.n = first - drop;
    return push(m, t);
}

static enum status op_tuple(struct machine *m, size_t n)
{
    if (m->stack.n < n)
        return bad(m, "an operation lacks its operand");
    return tuple(m, m->stack.n - n, 0);
}

static enum status op_tuple_mark(struct machine *m)
{
    size_t first = 0;
    TRY(find_mark(m, &first));
    return tuple(m, first, 1);
}

static enum status op_list(struct machine *m)
{
    if (m->lists.n >= LISTS_MAX)
        return bad(m, "too many lists");
    struct list l = {.other = false};
    vec_push(&m->lists, l);
    return push(m, (struct value){.kind = LIST, .a = (int64_t)m->lists.n - 1});
}

static enum status append(struct machine *m, size_t first, size_t drop)
{
    if (first <= drop)
        return bad(m, "an operation lacks its operand");
    const struct value *target = &m->stack.data[first - drop - 1];
    if (target->kind != LIST)
        return bad(m, "something is appended to what is no list");
    struct list *l = &m->lists.data[target->a];
    for (size_t i = first; i < m->stack.n; i++) {
        const struct value *v = &m->stack.data[i];
        if (v->kind != INT || v->a < 0 || v->a > 255 || l->ints.n >= (size_t)m->n)
            l->other = true;
        else
            vec_push(&l->ints, (int32_t)v->a);
    }
    m->stack.n = first - drop;
    return ST_OK;
}

static enum status set_labels(struct machine *m, const struct value *v)
{
    if (v->kind != LIST)
        return bad(m, "its labels are no list");
    const struct list *l = &m->lists.data[v->a];
    if (l->other || l->ints.n != (size_t)m->n)
        return bad(m, "its labels are not as many small integers as there are images");
    for (size_t i = 0; i < l->ints.n; i++)
        m->labels[i] = (uint8_t)l->ints.data[i];
    m->have_labels = true;
    return ST_OK;
}

static enum status set_item(struct machine *m, const struct value *key, const struct value *v)
{
    if (key->kind != STRING)
        return ST_OK;
    if (str_eq(key->text, m->labels_key))
        return set_labels(m, v);
    if (!str_eq(key->text, "data"))
        return ST_OK;
    if (v->kind != ARRAY)
        return bad(m, "its data is not an array of n x 3072 bytes");
    m->have_data = true;
    return ST_OK;
}

static enum status set_items(struct machine *m, size_t first, size_t drop)
{
    if (first <= drop || m->stack.data[first - drop - 1].kind != DICT ||
        (m->stack.n - first) % 2 != 0)
        return bad(m, "its dictionary is malformed");
    for (size_t i = first; i < m->stack.n; i += 2)
        TRY(set_item(m, &m->stack.data[i], &m->stack.data[i + 1]));
    m->stack.n = first - drop;
    return ST_OK;
}

static enum status op_at_mark(
    struct machine *m, enum status (*operation)(struct machine *m, size_t first, size_t drop))
{
    size_t first = 0;
    TRY(find_mark(m, &first));
    return operation(m, first, 1);
}

static enum status op_reduce(struct machine *m)
{
    struct value arguments, callee;
    TRY(pop(m, &arguments));
    TRY(pop(m, &callee));
    if (callee.kind != GLOBAL || arguments.kind != TUPLE)
        return bad(m, "it wants to call something that is no numpy array");
    return push(m, (struct value){.kind = OTHER});
}

static enum status op_build(struct machine *m)
{
    struct value state;
    TRY(pop(m, &state));
    if (m->stack.n == 0)
        return bad(m, "an operation lacks its operand");
    if (state.kind == TUPLE && state.pixels && state.order)
        m->stack.data[m->stack.n - 1].kind = ARRAY;
    return ST_OK;
}

static enum status op_put(struct machine *m, uint64_t index)
{
    /* Writers count upwards, so a far index is no memo but a way to ask for memory. */
    if (m->stack.n == 0 || index >= VALUES_MAX || index > m->memo.n + MEMO_GAP_MAX)
        return bad(m, "its memo is malformed");
    while (m->memo.n <= index)
        vec_push(&m->memo, (struct value){.kind = OTHER});
    m->memo.data[index] = m->stack.data[m->stack.n - 1];
    return ST_OK;
}

static enum status op_get(struct machine *m, uint64_t index)
{
    if (index >= m->memo.n)
        return bad(m, "its memo is malformed");
    return push(m, m->memo.data[index]);
}

static enum status op_int(struct machine *m, int bytes)
{
    uint64_t v = 0;
    TRY(number(m, bytes, &v));
    int64_t i = bytes == 4 ? (int64_t)(int32_t)(uint32_t)v : (int64_t)v;
    return push(m, (struct value){.kind = INT, .a = i});
}

static enum status op_memo(struct machine *m, int bytes, bool put)
{
    uint64_t index = 0;
    TRY(number(m, bytes, &index));
    return put ? op_put(m, index) : op_get(m, index);
}

static enum status op_skip(struct machine *m, int bytes)
{
    uint64_t ignored;
    return number(m, bytes, &ignored);
}

static enum status operate(struct machine *m, uint8_t op)
{
    switch (op) {
    case 0x80:
        return op_skip(m, 1); /* PROTO */
    case 0x95:
        return op_skip(m, 8); /* FRAME */
    case '.':
        m->stopped = true;
        return ST_OK;
    case '(':
        return push(m, (struct value){.kind = MARK});
    case '}':
        return push(m, (struct value){.kind = DICT});
    case ']':
        return op_list(m);
    case ')':
        return push(m, (struct value){.kind = TUPLE, .a = -1, .b = -1});
    case 'N':
    case 0x89:
        return push(m, (struct value){.kind = OTHER});
    case 0x88:
        return push(m, (struct value){.kind = TRUE_});
    case 'K':
        return op_int(m, 1);
    case 'M':
        return op_int(m, 2);
    case 'J':
        return op_int(m, 4);
    case 'U':
    case 'C':
    case 0x8c:
        return string(m, 1);
    case 'T':
    case 'B':
    case 'X':
        return string(m, 4);
    case 0x8e:
    case 0x8d:
        return string(m, 8);
    case 'c':
        return op_global(m, false);
    case 0x93:
        return op_global(m, true);
    case 0x85:
        return op_tuple(m, 1);
    case 0x86:
        return op_tuple(m, 2);
    case 0x87:
        return op_tuple(m, 3);
    case 't':
        return op_tuple_mark(m);
    case 'a':
        return append(m, m->stack.n ? m->stack.n - 1 : 0, 0);
    case 'e':
        return op_at_mark(m, append);
    case 's':
        return set_items(m, m->stack.n > 2 ? m->stack.n - 2 : 0, 0);
    case 'u':
        return op_at_mark(m, set_items);
    case 'R':
        return op_reduce(m);
    case 'b':
        return op_build(m);
    case 'q':
        return op_memo(m, 1, true);
    case 'r':
        return op_memo(m, 4, true);
    case 0x94:
        return op_put(m, m->memo.n); /* MEMOIZE */
    case 'h':
        return op_memo(m, 1, false);
    case 'j':
        return op_memo(m, 4, false);
    default:
        return bad(m, "it uses an operation that such a file does not need");
    }
}

static enum status run(struct machine *m)
{
    while (!m->stopped) {
        uint8_t op = 0;
        TRY(source_need(m->s, &op, 1, "pickle", m->e));
        TRY(operate(m, op));
    }
    if (!m->have_data || !m->have_pixels)
        return bad(m, "it has no data");
    return m->have_labels ? ST_OK : bad(m, "it has no labels");
}

enum status cifar_pickle_read(
    struct source *s, int64_t n, const char *labels_key, uint8_t *images, uint8_t *labels,
    struct err *e)
{
    struct machine m = {
        .s = s, .n = n, .labels_key = labels_key, .images = images, .labels = labels, .e = e};
    enum status st = run(&m);
    for (size_t i = 0; i < m.lists.n; i++)
        vec_release(&m.lists.data[i].ints);
    vec_release(&m.lists);
    vec_release(&m.memo);
    vec_release(&m.stack);
    return st;
}
