/* snapshot_pickle.c - runs the opcodes of a pickle on the stack machine of snapshot_build.c. */
#include "doctor/snapshot_int.h"

#include <string.h>

enum { MEMO_MAX = 1 << 28, LONG_BYTES_MAX = 9 };

struct run {
    struct snap_build *b;
    int protocol;
    const char *name; /* of the opcode */
};

/* How much of the stack the innermost mark leaves. */
static size_t above_mark(const struct snap_build *b)
{
    return b->stack.n - (b->marks.n ? b->marks.data[b->marks.n - 1] : 0);
}

static enum status need_values(struct run *r, size_t n)
{
    if (above_mark(r->b) >= n)
        return ST_OK;
    return snap_fail(r->b, ST_CORRUPT, "%s finds nothing on the stack", r->name);
}

static enum status op_proto(struct run *r, uint64_t arg)
{
    if (arg < 2 || arg > 5)
        return snap_fail(r->b, ST_UNSUPPORTED, "a pickle of protocol %d, not 2 to 5", (int)arg);
    r->protocol = (int)arg;
    return ST_OK;
}

static enum status op_frame(struct run *r, uint64_t arg)
{
    int64_t left = snap_input_left(&r->b->in);
    if (left >= 0 && !r->b->in.base64 && arg > (uint64_t)left)
        return snap_fail(
            r->b, ST_CORRUPT, "FRAME of %llu bytes, but %lld are left: the file is cut off",
            (unsigned long long)arg, (long long)left);
    return ST_OK;
}

static enum status op_mark(struct run *r, uint64_t arg)
{
    (void)arg;
    return snap_mark(r->b);
}

static enum status op_pop(struct run *r, uint64_t arg)
{
    size_t height;
    (void)arg;
    if (r->b->marks.n > 0 && above_mark(r->b) == 0)
        return snap_unmark(r->b, &height); /* Python's POP takes a mark too */
    TRY(need_values(r, 1));
    r->b->stack.n--;
    return ST_OK;
}

static enum status op_pop_mark(struct run *r, uint64_t arg)
{
    size_t height;
    (void)arg;
    TRY(snap_unmark(r->b, &height));
    r->b->stack.n = height;
    return ST_OK;
}

static enum status op_dup(struct run *r, uint64_t arg)
{
    (void)arg;
    TRY(need_values(r, 1));
    return snap_push(r->b, r->b->stack.data[r->b->stack.n - 1]);
}

static enum status op_none(struct run *r, uint64_t arg)
{
    (void)arg;
    return snap_push(r->b, (struct snap_value){.kind = VAL_NONE});
}

static enum status op_true(struct run *r, uint64_t arg)
{
    (void)arg;
    return snap_push(r->b, (struct snap_value){.kind = VAL_BOOL, .i = 1});
}

static enum status op_false(struct run *r, uint64_t arg)
{
    (void)arg;
    return snap_push(r->b, (struct snap_value){.kind = VAL_BOOL, .i = 0});
}

static enum status op_int(struct run *r, uint64_t arg)
{
    return snap_push(r->b, (struct snap_value){.kind = VAL_INT, .i = (int64_t)arg});
}

static enum status op_int_signed(struct run *r, uint64_t arg)
{
    return snap_push(r->b, (struct snap_value){.kind = VAL_INT, .i = (int32_t)arg});
}

/* Two's complement, least byte first. Nine bytes: an unsigned number of 64 bits, kept by its bits
 * (PyTorch writes -1 so). */
static enum status op_long(struct run *r, uint64_t arg)
{
    struct snap_input *in = &r->b->in;
    uint64_t v = 0;
    if (arg > LONG_BYTES_MAX)
        return snap_fail(
            r->b, ST_CORRUPT, "%s of %llu bytes: no number here needs so many", r->name,
            (unsigned long long)arg);
    if (!snap_input_has(in, (size_t)arg))
        return snap_fail(r->b, ST_CORRUPT, "the pickle ends within %s", r->name);
    for (size_t i = 0; i < arg && i < 8; i++)
        v |= (uint64_t)in->at[i] << 8 * i;
    if (arg == 9 && in->at[8] != 0)
        return snap_fail(r->b, ST_CORRUPT, "%s beyond 64 bits", r->name);
    if (arg > 0 && arg < 8 && in->at[arg - 1] & 0x80)
        v |= ~(uint64_t)0 << 8 * arg;
    in->at += arg;
    return op_int(r, v);
}

static enum status op_float(struct run *r, uint64_t arg)
{
    struct snap_value v = {.kind = VAL_FLOAT};
    uint64_t bits = __builtin_bswap64(arg); /* big-endian in the file */
    memcpy(&v.f, &bits, sizeof v.f);
    return snap_push(r->b, v);
}

static enum status op_text(struct run *r, uint64_t arg)
{
    struct snap_input *in = &r->b->in;
    if (arg > SNAP_TEXT_MAX)
        return snap_fail(
            r->b, ST_CORRUPT, "%s of %llu bytes, more than the %d allowed here", r->name,
            (unsigned long long)arg, SNAP_TEXT_MAX);
    if (!snap_input_has(in, (size_t)arg))
        return snap_fail(r->b, ST_CORRUPT, "the pickle ends within %s", r->name);
    TRY(snap_push_text(r->b, in->at, (size_t)arg));
    in->at += arg;
    return ST_OK;
}

static enum status op_empty_list(struct run *r, uint64_t arg)
{
    (void)arg;
    return snap_push_object(r->b, OBJ_LIST);
}

static enum status op_empty_dict(struct run *r, uint64_t arg)
{
    (void)arg;
    return snap_push_object(r->b, OBJ_DICT);
}

static enum status op_append(struct run *r, uint64_t arg)
{
    (void)arg;
    TRY(need_values(r, 2));
    return snap_appends(r->b, r->b->stack.n - 1);
}

static enum status op_appends(struct run *r, uint64_t arg)
{
    size_t height;
    (void)arg;
    TRY(snap_unmark(r->b, &height));
    return snap_appends(r->b, height);
}

static enum status op_list(struct run *r, uint64_t arg)
{
    size_t height;
    (void)arg;
    TRY(snap_unmark(r->b, &height));
    return snap_list(r->b, height);
}

static enum status op_tuple1(struct run *r, uint64_t arg)
{
    (void)arg;
    TRY(need_values(r, 1));
    return snap_list(r->b, r->b->stack.n - 1);
}

static enum status op_tuple2(struct run *r, uint64_t arg)
{
    (void)arg;
    TRY(need_values(r, 2));
    return snap_list(r->b, r->b->stack.n - 2);
}

static enum status op_tuple3(struct run *r, uint64_t arg)
{
    (void)arg;
    TRY(need_values(r, 3));
    return snap_list(r->b, r->b->stack.n - 3);
}

static enum status op_setitem(struct run *r, uint64_t arg)
{
    (void)arg;
    TRY(need_values(r, 3));
    return snap_setitems(r->b, r->b->stack.n - 2);
}

static enum status op_setitems(struct run *r, uint64_t arg)
{
    size_t height;
    (void)arg;
    TRY(snap_unmark(r->b, &height));
    return snap_setitems(r->b, height);
}

static enum status op_dict(struct run *r, uint64_t arg)
{
    struct snap_build *b = r->b;
    size_t height;
    (void)arg;
    TRY(snap_unmark(b, &height));
    TRY(snap_push_object(b, OBJ_DICT));
    struct snap_value dict = b->stack.data[b->stack.n - 1];
    memmove(
        b->stack.data + height + 1, b->stack.data + height,
        (b->stack.n - 1 - height) * sizeof *b->stack.data);
    b->stack.data[height] = dict;
    return snap_setitems(b, height + 1);
}

/* Numbers of the memo count up in every pickler; gaps appear only where unused ones were left out,
 * so a number is never above the bytes before it. */
static enum status op_put(struct run *r, uint64_t arg)
{
    struct snap_build *b = r->b;
    TRY(need_values(r, 1));
    if (arg >= MEMO_MAX || (int64_t)arg > snap_input_offset(&b->in))
        return snap_fail(
            b, ST_CORRUPT, "%s %llu: no memo is so large here", r->name, (unsigned long long)arg);
    if (arg >= b->memo.n) {
        SNAP_ROOM(b, &b->memo, arg + 1 - b->memo.n);
        memset(b->memo.data + b->memo.n, 0, (arg + 1 - b->memo.n) * sizeof *b->memo.data);
        for (size_t i = b->memo.n; i <= arg; i++)
            b->memo.data[i].kind = UINT32_MAX;
        b->memo.n = arg + 1;
    }
    b->memo.data[arg] = b->stack.data[b->stack.n - 1];
    return ST_OK;
}

static enum status op_memoize(struct run *r, uint64_t arg)
{
    struct snap_build *b = r->b;
    (void)arg;
    TRY(need_values(r, 1));
    if (b->memo.n == MEMO_MAX)
        return snap_fail(b, ST_CORRUPT, "more than %d entries of the memo", MEMO_MAX);
    SNAP_ROOM(b, &b->memo, 1);
    b->memo.data[b->memo.n++] = b->stack.data[b->stack.n - 1];
    return ST_OK;
}

static enum status op_get(struct run *r, uint64_t arg)
{
    struct snap_build *b = r->b;
    if (arg >= b->memo.n || b->memo.data[arg].kind == UINT32_MAX)
        return snap_fail(
            b, ST_CORRUPT, "%s %llu: nothing was memoized there", r->name, (unsigned long long)arg);
    return snap_push(b, b->memo.data[arg]);
}

struct opcode {
    const char *name;
    enum status (*run)(struct run *r, uint64_t arg);
    uint8_t arg_bytes;
};
static const struct opcode opcodes[256] = {
#define X(name, code, function, arg_bytes) [(uint8_t)(code)] = {#name, function, arg_bytes},
#define REFUSED(name, code) [(uint8_t)(code)] = {#name, NULL, 0},
#include "doctor/snapshot_ops.def"
#undef X
#undef REFUSED
};

static enum status refuse(struct snap_build *b, uint8_t code)
{
    const char *name = opcodes[code].name;
    b->in.at--;
    if (!name)
        return snap_fail(b, ST_CORRUPT, "0x%02x is no opcode of a pickle", code);
    (void)snap_fail(
        b, ST_UNSUPPORTED,
        "opcode %s is refused: a memory snapshot holds only numbers, texts, lists and dictionaries",
        name);
    err_hint(
        b->e, "This pickle holds objects of Python. Snapshots are what "
              "torch.cuda.memory._dump_snapshot writes.");
    return ST_UNSUPPORTED;
}

static enum status step(struct run *r, uint8_t code)
{
    const struct opcode *op = &opcodes[code];
    struct snap_input *in = &r->b->in;
    uint64_t arg = 0;
    if (!op->run)
        return refuse(r->b, code);
    r->name = op->name;
    if (!snap_input_has(in, op->arg_bytes))
        return snap_fail(r->b, ST_CORRUPT, "the pickle ends within %s", op->name);
    for (size_t i = 0; i < op->arg_bytes; i++)
        arg |= (uint64_t)in->at[i] << 8 * i;
    in->at += op->arg_bytes;
    return op->run(r, arg);
}

enum status snap_read_pickle(struct snap_build *b, int *protocol)
{
    struct run r = {.b = b};
    for (;;) {
        if (!snap_input_has(&b->in, 1))
            return snap_fail(b, ST_CORRUPT, "the pickle ends without STOP: the file is cut off");
        uint8_t code = *b->in.at++;
        if (code == '.')
            break;
        TRY(step(&r, code));
    }
    *protocol = r.protocol;
    if (b->stack.n != 1 || b->marks.n != 0)
        return snap_fail(b, ST_CORRUPT, "%zu values are left at STOP, not one", b->stack.n);
    return ST_OK;
}
