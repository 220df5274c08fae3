/* emit_test.c - random operators on random operands: a refusal or a sound program, never a crash.
 */
#include "ir/ir_test.h"

#include <string.h>

static uint64_t state;
static int64_t draw(int64_t n)
{
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (int64_t)((state >> 33) % (uint64_t)n);
}

/* Mostly small, sometimes zero, negative or enormous. */
static int64_t number(void)
{
    static const int64_t odd[] = {0,         -1,        7,         1LL << 20, 1LL << 31,
                                  1LL << 45, 1LL << 61, INT64_MAX, INT64_MIN};
    return draw(8) ? 1 + draw(3) : odd[draw(9)];
}

static void pairs(int64_t *to, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = number();
}

static struct shape random_shape(void)
{
    struct shape s = {.rank = (int)draw(6)};
    for (int i = 0; i < s.rank; i++)
        s.dim[i] = draw(40) ? draw(5) : 1LL << (20 + draw(20));
    return s;
}

/* Attributes of the right family; enumerations stay inside their range, numbers do not. */
static union op_attr random_attr(enum opcode code)
{
    union op_attr a = {0};
    if (code == OP_CONV || code == OP_CONV_DGRAD || code == OP_CONV_WGRAD) {
        pairs(a.conv.stride, 2), pairs(a.conv.pad_low, 2), pairs(a.conv.pad_high, 2);
        pairs(a.conv.dilation, 2), pairs(a.conv.kernel, 2), pairs(a.conv.input, 2);
        a.conv.groups = number();
        a.conv.spatial = (int)draw(4);
    } else if (code >= OP_MAX_POOL && code <= OP_AVG_POOL_GRAD) {
        pairs(a.pool.kernel, 2), pairs(a.pool.stride, 2), pairs(a.pool.pad, 2);
        pairs(a.pool.dilation, 2), pairs(a.pool.output, 2);
        a.pool.spatial = (int)draw(4);
        a.pool.ceil_mode = draw(2);
        a.pool.adaptive = draw(2);
        a.pool.divisor = number();
    } else if (code >= OP_BATCH_STATS && code <= OP_NORM_GRAD) {
        a.norm.kind = (enum norm_kind)draw(3);
        a.norm.groups = number();
        a.norm.trailing = (int)draw(7) - 1;
        a.norm.infer = draw(2);
    } else if (code == OP_SUM || code == OP_MEAN) {
        a.reduce.dims = (uint32_t)draw(70);
        a.reduce.keepdim = draw(2);
    } else if (code == OP_CAST || code == OP_REORDER) {
        a.cast.to = (enum dtype)draw(DT_COUNT);
        a.cast.layout = (enum layout)draw(3);
    } else if (code == OP_GEMM) {
        a.gemm.ta = draw(2);
        a.gemm.tb = draw(2);
    } else if (code >= OP_CROSS_ENTROPY && code <= OP_LOSS_EW_GRAD) {
        a.loss.kind = (enum loss_kind)draw(7);
        a.loss.reduction = (enum reduction)draw(4);
        a.loss.beta = (double)draw(3);
    } else if (code == OP_OPTIMIZER) {
        a.optim.kind = (enum optim_kind)draw(OPTIM_COUNT);
    } else if (code >= OP_ARGMAX && code <= OP_FILL) {
        a.view.shape = random_shape();
        a.view.dim = (int)draw(7) - 1;
        a.view.start = number();
        a.view.step = number();
        a.view.length = number();
        for (int i = 0; i < RANK_MAX; i++)
            a.view.perm[i] = (int)draw(5);
        a.view.keepdim = draw(2);
    } else {
        a.ew.a = (double)draw(3);
    }
    return a;
}

static int random_outside(struct world *w)
{
    static const enum dtype types[] = {DT_F32, DT_F32, DT_F32, DT_BF16, DT_I64, DT_BOOL};
    struct ir_var v = {
        .name = "v",
        .dtype = types[draw(6)],
        .shape = random_shape(),
        .trainable = draw(2),
        .of = -1,
        .node = -1};
    return draw(2) ? ir_var_read(w->p, ir_var_new(&w->vars, &v))
                   : ir_input(w->p, "i", v.dtype, v.shape);
}

/* One emission; a refusal is cleared. Returns whether it was taken. */
static bool emit_one(struct world *w)
{
    enum opcode code = (enum opcode)draw(OP_COUNT);
    const struct ir_op_row *row = ir_op_row(code);
    int in[16], n = row->n_in_max < 0 ? row->n_in_min + (int)draw(3) : row->n_in_max;
    int newest = (int)w->p->values.n;
    for (int i = 0; i < n; i++) {
        in[i] = draw(3) ? newest - 1 - (int)draw(newest < 8 ? newest : 8) : (int)draw(newest);
        /* Old versions of variables are not read: take the newest. */
        const struct ir_value *base = &w->p->values.data[w->p->values.data[in[i]].base];
        if (base->kind == VALUE_VAR)
            in[i] = ir_var_read(w->p, base->var);
        if (w->p->values.data[in[i]].layout != LAYOUT_ROW)
            in[i] = 0;
        if (i >= row->n_in_min && draw(2))
            in[i] = IR_NONE;
    }
    union op_attr attr = random_attr(code);
    int y = ir_emit(w->p, code, in, n, &attr);
    if (y == IR_NONE) {
        CHECK(w->p->err.status == ST_INVALID || w->p->err.status == ST_INTERNAL);
        CHECK(w->p->err.text[0] != '\0');
        w->p->err = (struct err){0};
    }
    return y != IR_NONE;
}

/* The gradients of everything that can be added up. Returns how many variables got one. */
static int differentiate(struct world *w)
{
    int loss = ir_fill(w->p, shape_scalar(), 0), n = (int)w->p->values.n;
    for (int i = 0; i < n && loss != IR_NONE; i++) {
        struct ir_value v = w->p->values.data[i];
        const struct ir_value *base = &w->p->values.data[v.base];
        if (!dtype_floating(v.dtype) || v.layout != LAYOUT_ROW ||
            (v.kind == VALUE_TEMP && v.def == IR_NONE))
            continue;
        if (base->kind == VALUE_VAR && ir_var_read(w->p, base->var) != v.base)
            continue;
        int sum = ir_sum(w->p, i, (1U << v.shape.rank) - 1, false);
        loss = ir_binary(w->p, OP_ADD, loss, ir_cast(w->p, sum, DT_F32));
    }
    int *grad = mem_alloc(sizeof *grad * (w->vars.list.n + 1)), reached = 0;
    ir_backward(w->p, loss, ir_input(w->p, "seed", DT_F32, shape_scalar()), grad);
    for (size_t i = 0; i < w->vars.list.n && w->p->err.status == ST_OK; i++)
        reached += grad[i] != IR_NONE;
    mem_free(grad);
    return reached;
}

TEST(
    random_emissions,
    "any operator on any operands is refused with a text or leaves a sound program")
{
    int taken = 0, reached = 0, refused = 0;
    state = test_seed();
    for (int round = 0; round < 300; round++) {
        struct world w;
        world_open(&w);
        (void)ir_input(w.p, "x", DT_F32, SHAPE(2, 4, 3, 3));
        for (int i = 0; i < 4; i++)
            if (random_outside(&w) == IR_NONE)
                w.p->err = (struct err){0};
        for (int i = 0; i < 120; i++)
            taken += emit_one(&w);
        check_verifies(&w);
        struct str s;
        str_init(&s);
        ir_print(w.p, &s);
        str_release(&s);
        ir_dead_code(w.p);
        check_verifies(&w);
        bool updated = false; /* gradients would read what an update has overwritten */
        for (size_t i = 0; i < w.p->ops.n; i++)
            updated = updated || ir_op_mutated(&w.p->ops.data[i]) > 0;
        reached += updated ? 0 : differentiate(&w);
        if (w.p->err.status == ST_OK)
            check_verifies(&w);
        refused += w.p->err.status != ST_OK;
        world_close(&w);
    }
    CHECK(taken > 2000 && reached > 100 && refused < 250);
}
