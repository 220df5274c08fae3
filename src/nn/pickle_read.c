/* pickle_read.c - runs a pickle on a stack machine that can only build plain values and tensors. */
#include "nn/pickle_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum status machine_fail(const struct machine *m, struct err *e, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(
        e, ST_CORRUPT, "the pickle is damaged near byte %zu: %s", (size_t)(m->at - m->begin), text);
}

/* Bytes of the pickle, or failure where it ends. */
static enum status take(struct machine *m, uint64_t n, const uint8_t **out, struct err *e)
{
    *out = m->at;
    if (n > (uint64_t)(m->end - m->at))
        return machine_fail(m, e, "it ends in the middle of a value");
    m->at += n;
    return ST_OK;
}

static enum status take_number(struct machine *m, int bytes, uint64_t *out, struct err *e)
{
    const uint8_t *p;
    *out = 0;
    TRY(take(m, (uint64_t)bytes, &p, e));
    for (int i = 0; i < bytes; i++)
        *out |= (uint64_t)p[i] << (8 * i);
    return ST_OK;
}

/* A text argument: up to the end of the line, which is consumed. */
static enum status take_line(struct machine *m, const char **line, size_t *n, struct err *e)
{
    const uint8_t *stop = memchr(m->at, '\n', (size_t)(m->end - m->at));
    *line = (const char *)m->at;
    *n = 0;
    if (!stop)
        return machine_fail(m, e, "it ends in the middle of a line");
    *n = (size_t)(stop - m->at);
    m->at = stop + 1;
    return ST_OK;
}

static enum status push(struct machine *m, struct pt_value *v, struct err *e)
{
    if (++m->pushed > PT_VALUES_MAX)
        return machine_fail(m, e, "more than %d values", PT_VALUES_MAX);
    vec_push(&m->stack, v);
    return ST_OK;
}

/* Values above the last mark. */
static size_t height(const struct machine *m)
{
    return m->stack.n - (m->marks.n > 0 ? m->marks.data[m->marks.n - 1] : 0);
}

static enum status need(struct machine *m, size_t n, struct err *e)
{
    return height(m) >= n ? ST_OK : machine_fail(m, e, "the stack is too short");
}

static struct pt_value *pop(struct machine *m)
{
    return m->stack.data[--m->stack.n];
}

static struct pt_value *top(const struct machine *m)
{
    return m->stack.data[m->stack.n - 1];
}

/* Takes the values above the last mark off the stack; they stay readable until the next push. */
static enum status pop_mark(struct machine *m, struct pt_value ***items, size_t *n, struct err *e)
{
    *items = m->stack.data;
    *n = 0;
    if (m->marks.n == 0)
        return machine_fail(m, e, "a mark is missing");
    *n = height(m);
    m->stack.n -= *n;
    m->marks.n--;
    *items = *n > 0 ? m->stack.data + m->stack.n : NULL;
    return ST_OK;
}

static enum status op_proto(struct machine *m, int bytes, struct err *e)
{
    uint64_t version;
    TRY(take_number(m, bytes, &version, e));
    if (version > 5)
        return machine_fail(m, e, "protocol %d is not known", (int)version);
    return ST_OK;
}

static enum status op_frame(struct machine *m, int bytes, struct err *e)
{
    uint64_t n;
    TRY(take_number(m, bytes, &n, e));
    if (n > (uint64_t)(m->end - m->at))
        return machine_fail(m, e, "a frame is longer than the file");
    return ST_OK;
}

static enum status op_mark(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    (void)e;
    vec_push(&m->marks, m->stack.n);
    return ST_OK;
}

static enum status op_pop(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    if (height(m) > 0)
        m->stack.n--;
    else if (m->marks.n > 0)
        m->marks.n--;
    else
        return need(m, 1, e);
    return ST_OK;
}

static enum status op_pop_mark(struct machine *m, int bytes, struct err *e)
{
    struct pt_value **items;
    size_t n;
    (void)bytes;
    return pop_mark(m, &items, &n, e);
}

static enum status op_dup(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    TRY(need(m, 1, e));
    return push(m, top(m), e);
}

static enum status op_none(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    return push(m, pt_none(m->a), e);
}

static enum status op_true(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    return push(m, pt_bool(m->a, true), e);
}

static enum status op_false(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    return push(m, pt_bool(m->a, false), e);
}

static enum status line_number(struct machine *m, char buf[64], struct err *e)
{
    const char *line;
    size_t n;
    TRY(take_line(m, &line, &n, e));
    if (n >= 64)
        return err_set(e, ST_UNSUPPORTED, "holds a number of %zu digits", n);
    memcpy(buf, line, n);
    buf[n] = 0;
    return ST_OK;
}

/* "12", "12L", and the truth values "00" and "01". */
static enum status op_int_text(struct machine *m, int bytes, struct err *e)
{
    char text[64];
    int64_t value;
    (void)bytes;
    TRY(line_number(m, text, e));
    if (str_eq(text, "00") || str_eq(text, "01"))
        return push(m, pt_bool(m->a, text[1] == '1'), e);
    size_t n = strlen(text);
    if (n > 0 && text[n - 1] == 'L')
        text[n - 1] = 0;
    if (!str_to_i64(text, &value))
        return machine_fail(m, e, "an integer that is none or too large");
    return push(m, pt_int(m->a, value), e);
}

static enum status op_int(struct machine *m, int bytes, struct err *e)
{
    uint64_t value;
    TRY(take_number(m, bytes, &value, e));
    return push(m, pt_int(m->a, (int64_t)value), e);
}

static enum status op_int_signed(struct machine *m, int bytes, struct err *e)
{
    uint64_t value;
    TRY(take_number(m, bytes, &value, e));
    return push(m, pt_int(m->a, (int32_t)(uint32_t)value), e);
}

/* Little-endian two's complement of any length. */
static enum status op_long(struct machine *m, int bytes, struct err *e)
{
    uint64_t n, value = 0;
    const uint8_t *p;
    TRY(take_number(m, bytes, &n, e));
    TRY(take(m, n, &p, e));
    uint8_t fill = n > 0 && (p[n - 1] & 0x80) ? 0xff : 0;
    for (int i = 0; i < 8; i++)
        value |= (uint64_t)((uint64_t)i < n ? p[i] : fill) << (8 * i);
    bool wide = n > 8 && (value >> 63 ? 0xff : 0) != fill;
    for (uint64_t i = 8; i < n && !wide; i++)
        wide = p[i] != fill;
    if (wide)
        return err_set(e, ST_UNSUPPORTED, "holds an integer of more than 64 bits");
    return push(m, pt_int(m->a, (int64_t)value), e);
}

static enum status op_float_text(struct machine *m, int bytes, struct err *e)
{
    char text[64];
    double value;
    (void)bytes;
    TRY(line_number(m, text, e));
    if (!str_to_f64(text, &value))
        return machine_fail(m, e, "a float that is none");
    return push(m, pt_float(m->a, value), e);
}

static enum status op_float(struct machine *m, int bytes, struct err *e)
{
    const uint8_t *p;
    uint64_t bits = 0;
    double value;
    (void)bytes;
    TRY(take(m, 8, &p, e));
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | p[i];
    memcpy(&value, &bits, sizeof value);
    return push(m, pt_float(m->a, value), e);
}

static enum status take_text(struct machine *m, int bytes, const char **s, size_t *n, struct err *e)
{
    const uint8_t *p = m->at;
    uint64_t length;
    *s = NULL;
    *n = 0;
    TRY(take_number(m, bytes, &length, e));
    TRY(take(m, length, &p, e));
    *s = (const char *)p;
    *n = (size_t)length;
    return ST_OK;
}

static enum status op_unicode(struct machine *m, int bytes, struct err *e)
{
    const char *s;
    size_t n;
    TRY(take_text(m, bytes, &s, &n, e));
    if (!utf8_valid(s, n))
        return machine_fail(m, e, "a string that is not UTF-8");
    return push(m, pt_string_n(m->a, s, n), e);
}

/* Python 2's strings are text where they can be. */
static enum status op_string(struct machine *m, int bytes, struct err *e)
{
    const char *s;
    size_t n;
    TRY(take_text(m, bytes, &s, &n, e));
    return push(m, utf8_valid(s, n) ? pt_string_n(m->a, s, n) : pt_bytes(m->a, s, n), e);
}

static enum status op_bytes(struct machine *m, int bytes, struct err *e)
{
    const char *s;
    size_t n;
    TRY(take_text(m, bytes, &s, &n, e));
    return push(m, pt_bytes(m->a, s, n), e);
}

static void add_all(struct machine *m, struct pt_value *seq, struct pt_value **items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        pt_add(m->a, seq, items[i]);
}

static enum status op_empty_list(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    return push(m, pt_list(m->a), e);
}

static enum status op_list(struct machine *m, int bytes, struct err *e)
{
    struct pt_value **items, *list = pt_list(m->a);
    size_t n;
    (void)bytes;
    TRY(pop_mark(m, &items, &n, e));
    add_all(m, list, items, n);
    return push(m, list, e);
}

static enum status append(struct machine *m, struct pt_value **items, size_t n, struct err *e)
{
    TRY(need(m, 1, e));
    if (top(m)->kind != PT_LIST)
        return machine_fail(m, e, "an append to %s", pt_kind_name(top(m)->kind));
    add_all(m, top(m), items, n);
    return ST_OK;
}

static enum status op_append(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    TRY(need(m, 2, e));
    struct pt_value *item = pop(m);
    return append(m, &item, 1, e);
}

static enum status op_appends(struct machine *m, int bytes, struct err *e)
{
    struct pt_value **items;
    size_t n;
    (void)bytes;
    TRY(pop_mark(m, &items, &n, e));
    return append(m, items, n, e);
}

static enum status tuple_of(struct machine *m, struct pt_value **items, size_t n, struct err *e)
{
    struct pt_value *tuple = pt_tuple(m->a);
    add_all(m, tuple, items, n);
    return push(m, tuple, e);
}

static enum status tuple_top(struct machine *m, size_t n, struct err *e)
{
    TRY(need(m, n, e));
    m->stack.n -= n;
    return tuple_of(m, m->stack.data + m->stack.n, n, e);
}

static enum status op_empty_tuple(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    return push(m, pt_tuple(m->a), e);
}

static enum status op_tuple(struct machine *m, int bytes, struct err *e)
{
    struct pt_value **items;
    size_t n;
    (void)bytes;
    TRY(pop_mark(m, &items, &n, e));
    return tuple_of(m, items, n, e);
}

static enum status op_tuple1(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    return tuple_top(m, 1, e);
}

static enum status op_tuple2(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    return tuple_top(m, 2, e);
}

static enum status op_tuple3(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    return tuple_top(m, 3, e);
}

static enum status op_empty_dict(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    return push(m, pt_dict(m->a, PT_DICT_PLAIN), e);
}

/* Keys are checked at the end (pt_check): looking for twins at each would cost the square. */
static enum status
put_all(struct machine *m, struct pt_value *dict, struct pt_value **items, size_t n, struct err *e)
{
    if (dict->kind != PT_DICT)
        return machine_fail(m, e, "an item put into %s", pt_kind_name(dict->kind));
    if (n % 2 != 0)
        return machine_fail(m, e, "a key without a value");
    for (size_t i = 0; i < n; i += 2)
        pt_put_value(m->a, dict, items[i], items[i + 1]);
    return ST_OK;
}

static enum status op_dict(struct machine *m, int bytes, struct err *e)
{
    struct pt_value **items, *dict = pt_dict(m->a, PT_DICT_PLAIN);
    size_t n;
    (void)bytes;
    TRY(pop_mark(m, &items, &n, e));
    TRY(put_all(m, dict, items, n, e));
    return push(m, dict, e);
}

static enum status op_setitem(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    TRY(need(m, 3, e));
    m->stack.n -= 2;
    return put_all(m, top(m), m->stack.data + m->stack.n, 2, e);
}

static enum status op_setitems(struct machine *m, int bytes, struct err *e)
{
    struct pt_value **items;
    size_t n;
    (void)bytes;
    TRY(pop_mark(m, &items, &n, e));
    TRY(need(m, 1, e));
    return put_all(m, top(m), items, n, e);
}

static enum status op_global(struct machine *m, int bytes, struct err *e)
{
    const char *module, *name;
    size_t module_n, name_n;
    struct pt_value *v;
    (void)bytes;
    TRY(take_line(m, &module, &module_n, e));
    TRY(take_line(m, &name, &name_n, e));
    TRY(machine_global(m, module, module_n, name, name_n, &v, e));
    return push(m, v, e);
}

static enum status op_stack_global(struct machine *m, int bytes, struct err *e)
{
    struct pt_value *v;
    (void)bytes;
    TRY(need(m, 2, e));
    const struct pt_value *name = pop(m), *module = pop(m);
    if (name->kind != PT_STRING || module->kind != PT_STRING)
        return machine_fail(m, e, "a name that is not a string");
    TRY(machine_global(m, module->text.data, module->text.n, name->text.data, name->text.n, &v, e));
    return push(m, v, e);
}

static enum status op_reduce(struct machine *m, int bytes, struct err *e)
{
    struct pt_value *v;
    (void)bytes;
    TRY(need(m, 2, e));
    const struct pt_value *args = pop(m), *callee = pop(m);
    if (callee->kind != PT_GLOBAL || args->kind != PT_TUPLE)
        return machine_fail(m, e, "a call of %s", pt_kind_name(callee->kind));
    TRY(machine_call(m, callee->global, args, &v, e));
    return push(m, v, e);
}

/* State dicts keep their `_metadata` as an attribute. */
static enum status op_build(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    TRY(need(m, 2, e));
    struct pt_value *state = pop(m), *dict = top(m);
    if (dict->kind != PT_DICT || dict->dict.class == PT_DICT_PLAIN || state->kind != PT_DICT)
        return machine_fail(m, e, "attributes set on %s", pt_kind_name(dict->kind));
    dict->dict.attributes = state;
    return ST_OK;
}

static enum status op_persistent(struct machine *m, int bytes, struct err *e)
{
    struct pt_value *v;
    (void)bytes;
    TRY(need(m, 1, e));
    TRY(machine_storage(m, pop(m), &v, e));
    return push(m, v, e);
}

/* Every put takes two bytes or more, so honest numbers stay below the size of the pickle. */
static enum status put_memo(struct machine *m, uint64_t i, struct err *e)
{
    TRY(need(m, 1, e));
    if (i >= (uint64_t)(m->end - m->begin) || i >= PT_VALUES_MAX)
        return machine_fail(m, e, "memo entry %llu", (unsigned long long)i);
    while (m->memo.n <= i)
        vec_push(&m->memo, NULL);
    m->memo.data[i] = top(m);
    return ST_OK;
}

static enum status get_memo(struct machine *m, uint64_t i, struct err *e)
{
    if (i >= m->memo.n || !m->memo.data[i])
        return machine_fail(m, e, "memo entry %llu was never put", (unsigned long long)i);
    return push(m, m->memo.data[i], e);
}

static enum status op_put(struct machine *m, int bytes, struct err *e)
{
    uint64_t i;
    TRY(take_number(m, bytes, &i, e));
    return put_memo(m, i, e);
}

static enum status op_get(struct machine *m, int bytes, struct err *e)
{
    uint64_t i;
    TRY(take_number(m, bytes, &i, e));
    return get_memo(m, i, e);
}

static enum status line_index(struct machine *m, uint64_t *i, struct err *e)
{
    char text[64];
    int64_t value;
    TRY(line_number(m, text, e));
    if (!str_to_i64(text, &value) || value < 0)
        return machine_fail(m, e, "a memo entry that is no number");
    *i = (uint64_t)value;
    return ST_OK;
}

static enum status op_put_text(struct machine *m, int bytes, struct err *e)
{
    uint64_t i;
    (void)bytes;
    TRY(line_index(m, &i, e));
    return put_memo(m, i, e);
}

static enum status op_get_text(struct machine *m, int bytes, struct err *e)
{
    uint64_t i;
    (void)bytes;
    TRY(line_index(m, &i, e));
    return get_memo(m, i, e);
}

static enum status op_memoize(struct machine *m, int bytes, struct err *e)
{
    (void)bytes;
    return put_memo(m, m->memo.n, e);
}

static enum status step(struct machine *m, uint8_t code, struct err *e)
{
    static const struct {
        enum status (*run)(struct machine *, int, struct err *);
        int bytes;
    } ops[256] = {
#define X(name, code, function, bytes) [(uint8_t) code] = {function, bytes},
#include "nn/pickle_ops.def"
#undef X
    };
    if (!ops[code].run)
        return err_set(
            e, ST_UNSUPPORTED, "the pickle uses opcode 0x%02x at byte %zu, which no tensor needs",
            code, (size_t)(m->at - m->begin) - 1);
    return ops[code].run(m, ops[code].bytes, e);
}

static enum status run(struct machine *m, struct pt_value **root, struct err *e)
{
    enum { STOP = '.' };
    for (;;) {
        const uint8_t *code;
        TRY(take(m, 1, &code, e));
        if (*code == STOP)
            break;
        TRY(step(m, *code, e));
    }
    if (m->stack.n != 1 || m->marks.n != 0)
        return machine_fail(m, e, "it leaves %zu values, not one", m->stack.n);
    *root = top(m);
    return pt_check(*root, e);
}

enum status pickle_read(
    const void *data, size_t n, struct arena *a, struct pickle_source source,
    struct pt_value **root, struct err *e)
{
    if (n > PICKLE_BYTES_MAX)
        return err_set(
            e, ST_UNSUPPORTED, "the pickle has %zu bytes, more than %d", n, PICKLE_BYTES_MAX);
    struct machine m = {.begin = data, .at = data, .a = a, .source = source};
    m.end = m.begin + n;
    enum status st = run(&m, root, e);
    vec_release(&m.stack);
    vec_release(&m.marks);
    vec_release(&m.memo);
    return st;
}
