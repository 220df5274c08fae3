/* exec_offload_test.c - offloading on a program of eight layers with Adam: lifetimes, bits, bytes.
 */
#include "backends/exec_int.h"

#include "ir/build.h"
#include "ir/optim_state.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 8, ROWS = 512, WIDTH = 48, STEPS = 20 };

struct net {
    struct ir_vars vars;
    struct ir_program *p;
    int weight[LAYERS], n_vars;
};

static int var(struct net *w, const char *what, int layer, enum category category, int of)
{
    struct ir_var v = {
        .name = arena_printf(&w->vars.arena, "%s%d", what, layer),
        .dtype = DT_F32,
        .shape = SHAPE(WIDTH, WIDTH),
        .category = category,
        .trainable = category == CATEGORY_PARAMETERS,
        .of = of,
        .node = IR_NONE};
    return ir_var_new(&w->vars, &v);
}

static void update(struct net *w, int layer, int gradient, int hyper, int ctl)
{
    int in[6] = {ir_var_read(w->p, w->weight[layer])};
    union op_attr attr = {.optim = {.kind = OPTIM_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}};
    CHECK_EQ(optim_state_count(&attr.optim), 2);
    in[1] = ir_var_read(w->p, var(w, "m", layer, CATEGORY_OPTIMIZER_STATE, w->weight[layer]));
    in[2] = ir_var_read(w->p, var(w, "v", layer, CATEGORY_OPTIMIZER_STATE, w->weight[layer]));
    in[3] = ir_contiguous(w->p, gradient);
    in[4] = hyper;
    in[5] = ctl;
    (void)ir_emit(w->p, OP_OPTIMIZER, in, 6, &attr);
}

static void net_open(struct net *w)
{
    struct err e = {0};
    int grads[LAYERS], in[LAYERS + 1];
    cpu_threads_set(1); /* small operators: threads would mostly wait for each other */
    ir_vars_init(&w->vars);
    w->p = ir_program_new("net", &w->vars);
    int x = ir_input(w->p, "x", DT_F32, SHAPE(ROWS, WIDTH));
    for (int i = 0; i < LAYERS; i++) {
        w->weight[i] = var(w, "w", i, CATEGORY_PARAMETERS, IR_NONE);
        x = ir_unary(
            w->p, i % 2 ? OP_TANH : OP_GELU,
            ir_gemm(w->p, x, ir_var_read(w->p, w->weight[i]), IR_NONE, false, false));
    }
    int loss = ir_mean(w->p, ir_binary(w->p, OP_MUL, x, x), 3, false);
    ir_output(w->p, loss, "loss");
    ir_backward(w->p, loss, ir_input(w->p, "seed", DT_F32, shape_scalar()), grads);
    w->p->phase = PHASE_UPDATE;
    int hyper = ir_input(w->p, "hyper", DT_F64, SHAPE(2));
    in[0] = ir_input(w->p, "loss_scale", DT_F32, shape_scalar());
    memcpy(in + 1, grads, sizeof grads);
    union op_attr attr = {.check = {.max_norm = 0}};
    int ctl = ir_emit(w->p, OP_GRAD_CHECK, in, LAYERS + 1, &attr);
    for (int i = 0; i < LAYERS; i++)
        update(w, i, grads[i], hyper, ctl);
    CHECK_OK(ir_verify(w->p, &e), &e);
}

static void net_close(struct net *w)
{
    ir_program_free(w->p);
    ir_vars_release(&w->vars);
}

static struct exec *exec_of(struct net *w, const struct exec_options *o)
{
    struct exec *x;
    struct err e = {0};
    CHECK_OK(exec_new(&w->vars, &w->p, 1, o, &x, &e), &e);
    return x;
}

static void put(struct exec *x, const struct net *w, const char *name, double v, int i)
{
    int at = ir_input_find(w->p, name);
    dtype_store(exec_value(x, 0, at), ir_value_at(w->p, at)->dtype, i, v);
}

/* Maps and trains; the weights after each step, one after another. */
static float *train(struct exec *x, struct net *w)
{
    struct err e = {0};
    size_t each = (size_t)LAYERS * WIDTH * WIDTH;
    float *seen = mem_alloc(STEPS * each * sizeof *seen);
    CHECK_OK(exec_map(x, &e), &e);
    for (int i = 0; i < LAYERS; i++)
        for (int k = 0; k < WIDTH * WIDTH; k++)
            ((float *)exec_var(x, w->weight[i]))[k] = (float)sin(i + 0.37 * k) / 4;
    for (int s = 0; s < STEPS; s++) {
        CHECK_OK(exec_inputs_ready(x, 0, &e), &e);
        float *input = exec_value(x, 0, ir_input_find(w->p, "x"));
        for (int k = 0; k < ROWS * WIDTH; k++)
            input[k] = (float)((s + 7 * k) % 101) / 50 - 1;
        put(x, w, "seed", 1, 0);
        put(x, w, "loss_scale", 1, 0);
        put(x, w, "hyper", 0.01, 0);
        put(x, w, "hyper", s + 1, 1);
        CHECK_OK(exec_run(x, 0, &e), &e);
        for (int i = 0; i < LAYERS; i++)
            memcpy(
                seen + (size_t)s * each + (size_t)i * WIDTH * WIDTH, exec_var(x, w->weight[i]),
                WIDTH * WIDTH * sizeof *seen);
    }
    return seen;
}

static bool same(const float *a, const float *b)
{
    return memcmp(a, b, (size_t)STEPS * LAYERS * WIDTH * WIDTH * sizeof *a) == 0;
}

static const struct exec_options both = {.state_on_host = true, .offload_activations = true};

static bool touches(const struct exec_program *p, int op, int storage)
{
    const struct ir_op *o = &p->ir->ops.data[op];
    bool found = false;
    for (int k = 0; k < o->n_in; k++)
        found = found || (o->in[k] != IR_NONE && exec_storage_at(p, o->in[k], op) == storage);
    for (int k = 0; k < o->n_out; k++)
        found = found || exec_storage_at(p, o->out[k], op) == storage;
    return found && p->calls[op].kernel;
}

/* INVARIANTS 1 and 2 of exec_offload.c. */
static void check_transfer(const struct exec_program *p, const struct exec_transfer *t)
{
    const struct mem_plan_buffer *b = p->storages.buffers;
    int n = (int)p->ir->ops.n;
    if (t->out_at != IR_NONE) {
        CHECK(t->out_done >= t->out_at && b[t->out_storage].last >= t->out_done);
        for (int i = t->out_at + 1; i < n; i++)
            CHECK(!touches(p, i, t->out_storage));
    }
    CHECK(t->in_at <= t->in_use && b[t->in_storage].first <= t->in_at);
    for (int i = 0; i < t->in_use; i++)
        CHECK(!touches(p, i, t->in_storage));
    if (t->var == IR_NONE) {
        const struct mem_plan_buffer *host = &p->transfers.host.data[t->host];
        CHECK(t->out_done < t->in_at && host->first <= t->out_at && host->last >= t->in_use);
        CHECK_EQ(host->size_bytes, t->bytes);
    }
}

TEST(offload_lifetimes, "L4: storages live as long as copies of them may be in flight")
{
    struct net w;
    net_open(&w);
    struct exec *x = exec_of(&w, &both);
    const struct exec_program *p = &x->programs[0];
    int states = 0, activations = 0;
    for (size_t i = 0; i < p->transfers.list.n; i++) {
        check_transfer(p, &p->transfers.list.data[i]);
        states += p->transfers.list.data[i].var != IR_NONE;
        activations += p->transfers.list.data[i].var == IR_NONE;
    }
    CHECK_EQ(states, 2 * LAYERS);
    CHECK(activations >= LAYERS - 2);
    for (int i = 0; i < (int)w.p->ops.n; i++) /* every operand lies where it lives */
        for (int k = 0; k < w.p->ops.data[i].n_in; k++) {
            int v = w.p->ops.data[i].in[k];
            int s = v == IR_NONE ? IR_NONE : exec_storage_at(p, v, i);
            CHECK(
                s == IR_NONE || !p->calls[i].kernel ||
                (p->storages.buffers[s].first <= i && p->storages.buffers[s].last >= i));
        }
    exec_free(x);
    net_close(&w);
}

TEST(
    offload_bits,
    "L4 case-T73: the same weights after each step, in less; planned is measured on both sides")
{
    struct net w, other, third;
    net_open(&w);
    net_open(&other);
    net_open(&third);
    struct exec *plain = exec_of(&w, NULL);
    float *expected = train(plain, &w);
    struct exec_options dynamic = both;
    dynamic.storage = EXEC_DYNAMIC;
    (void)setenv("SNUG_TEST_COPY_DELAY_MS", "1", 1);
    struct exec *x = exec_of(&other, &both), *y = exec_of(&third, &dynamic);
    float *found = train(x, &other), *again = train(y, &third);
    CHECK(same(found, expected));
    CHECK(same(again, expected));
    CHECK_EQ(exec_peak_measured(x), exec_peak_planned(x));
    CHECK_EQ(exec_host_measured(x), exec_host_planned(x));
    CHECK_EQ(exec_report(x)->host_state_bytes, 2 * LAYERS * WIDTH * WIDTH * 4);
    CHECK(exec_report(x)->host_activation_bytes >= (LAYERS - 2) * ROWS * WIDTH * 4);
    CHECK(exec_peak_planned(x) < exec_peak_planned(plain) - exec_report(x)->host_state_bytes);
    CHECK_EQ(exec_host_planned(plain) + exec_host_measured(plain), 0);
    mem_free(expected);
    mem_free(found);
    mem_free(again);
    exec_free(plain);
    exec_free(x);
    exec_free(y);
    net_close(&w);
    net_close(&other);
    net_close(&third);
}

TEST(
    offload_pieces,
    "L4 case-T73: a large parameter's state comes in pieces, and the bits are the same")
{
    struct net w, other;
    net_open(&w);
    struct exec *plain = exec_of(&w, NULL);
    float *expected = train(plain, &w);
    for (int i = 0; i < 4; i++) { /* pieces that end anywhere, both ways of storage */
        (void)setenv("SNUG_TEST_COPY_DELAY_MS", i == 0 ? "1" : "0", 1);
        struct exec_options o = both;
        o.state_piece = i / 2 ? 1152 : 777;
        o.storage = i % 2 ? EXEC_DYNAMIC : EXEC_PLANNED;
        net_open(&other);
        struct exec *x = exec_of(&other, &o);
        const struct exec_transfers *t = &x->programs[0].transfers;
        CHECK_EQ(t->list.data[t->list.n - 1].piece, o.state_piece);
        float *found = train(x, &other);
        CHECK(same(found, expected));
        CHECK_EQ(exec_host_measured(x), exec_host_planned(x));
        if (o.storage == EXEC_PLANNED)
            CHECK_EQ(exec_peak_measured(x), exec_peak_planned(x));
        mem_free(found);
        exec_free(x);
        net_close(&other);
    }
    mem_free(expected);
    exec_free(plain);
    net_close(&w);
}

/* Takes the waits of one kind away. */
static void break_waits(struct exec *x, enum exec_moment moment)
{
    struct exec_transfers *t = &x->programs[0].transfers;
    size_t n = 0;
    for (size_t i = 0; i < t->events.n; i++)
        if (t->events.data[i].moment != moment)
            t->events.data[n++] = t->events.data[i];
    CHECK(n < t->events.n);
    t->events.n = n;
}

/* A canary: what the test above would miss without its slow copies. */
TEST(offload_broken_wait, "case-T73: without a wait, slow copies give other weights")
{
#if defined(__SANITIZE_THREAD__)
    test_skip("a race on purpose");
#endif
    struct net w, other;
    net_open(&w);
    net_open(&other);
    struct exec *plain = exec_of(&w, NULL);
    float *expected = train(plain, &w);
    (void)setenv("SNUG_TEST_COPY_DELAY_MS", "2", 1);
    struct exec *x = exec_of(&other, &both);
    break_waits(x, MOMENT_IN_WAIT);
    float *found = train(x, &other);
    CHECK(!same(found, expected));
    mem_free(expected);
    mem_free(found);
    exec_free(plain);
    exec_free(x);
    net_close(&w);
    net_close(&other);
}

TEST(
    offload_stash,
    "L4: state on the host stays when the variables move, and goes with the exec's memory")
{
    struct err e = {0};
    struct net w;
    net_open(&w);
    struct exec *x = exec_of(&w, &both);
    mem_free(train(x, &w));
    int m = ir_var_find(&w.vars, "m3");
    float before = ((float *)exec_var(x, m))[5];
    CHECK(before != 0);
    exec_trim(x);
    CHECK(((float *)exec_var(x, m))[5] == before);
    CHECK_OK(exec_run(x, 0, &e), &e); /* takes its memory again; its inputs are gone: any numbers */
    memcpy(&before, (float *)exec_var(x, m) + 5, sizeof before);
    CHECK_OK(exec_stash(x, &e), &e);
    CHECK(memcmp((float *)exec_var(x, m) + 5, &before, sizeof before) == 0);
    exec_empty(x);
    CHECK(exec_var(x, m) == NULL);
    exec_free(x);
    net_close(&w);
}
