/* exec.c - compiles programs onto kernels and one arena, and runs them. */
#include "backends/exec_int.h"

#include "base/env.h"
#include "base/str.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- compiling ---- */

static struct tensor view_of(const struct ir_program *p, int v)
{
    const struct ir_value *value = ir_value_at(p, v);
    struct tensor t = {.dtype = value->dtype, .layout = value->layout, .shape = value->shape};
    memcpy(t.stride, value->stride, sizeof t.stride);
    return t;
}

static void name_node(const struct ir_program *p, const struct ir_op *op, struct err *e)
{
    if (op->node != IR_NONE)
        err_node(e, p->vars->nodes.data[op->node], ir_op_row(op->code)->name);
}

static int64_t workspace_limit(const struct exec_options *o)
{
    if (o->workspace_limit_bytes < 0)
        return 0;
    return o->workspace_limit_bytes ? o->workspace_limit_bytes : EXEC_WORKSPACE_LIMIT;
}

/* Finds the kernel of one operator and asks for its workspace. */
static enum status compile_op(struct exec *x, struct exec_program *program, int i, struct err *e)
{
    struct ir_op *op = &program->ir->ops.data[i];
    struct exec_call *call = &program->calls[i];
    struct kernel_args *a = &call->args;
    const struct ir_op_row *row = ir_op_row(op->code);
    call->op = i;
    op->workspace_bytes = 0;
    if (row->flags & OPF_VIEW)
        return ST_OK;
    call->kernel = cpu_kernel(op->code);
    if (!call->kernel)
        return err_set(e, ST_INTERNAL, "no kernel for operator \"%s\"", row->name);
    a->code = op->code;
    a->attr = &op->attr;
    a->n_in = op->n_in;
    a->n_out = op->n_out;
    a->workspace_limit_bytes = workspace_limit(&x->options);
    a->in = ARENA_ARRAY(&x->memory, struct tensor, op->n_in + 1);
    a->out = ARENA_ARRAY(&x->memory, struct tensor, op->n_out + 1);
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != IR_NONE)
            a->in[k] = view_of(program->ir, op->in[k]);
    for (int k = 0; k < op->n_out; k++)
        a->out[k] = view_of(program->ir, op->out[k]);
    if (!call->kernel->prepare)
        return ST_OK;
    enum status st = call->kernel->prepare(a, &a->workspace_bytes, &a->state, e);
    if (st != ST_OK)
        name_node(program->ir, op, e);
    op->workspace_bytes = a->workspace_bytes;
    return st;
}

static enum status compile_program(struct exec *x, int index, struct ir_program *ir, struct err *e)
{
    struct exec_program *program = &x->programs[index];
    program->ir = ir;
    program->calls = ARENA_ARRAY(&x->memory, struct exec_call, ir->ops.n + 1);
    for (int i = 0; i < (int)ir->ops.n; i++)
        TRY(compile_op(x, program, i, e));
    exec_storages_make(ir, true, &program->storages);
    exec_offload_make(x, program);
    program->blocks = ARENA_ARRAY(&x->memory, struct mem_block *, program->storages.n + 1);
    program->data = ARENA_ARRAY(&x->memory, void *, program->storages.n + 1);
    x->plan_programs[index] = (struct mem_plan_program){
        .name = ir->name, .buffers = program->storages.buffers, .n = program->storages.n};
    return ST_OK;
}

static int64_t var_bytes(const struct ir_var *v)
{
    return shape_count(&v->shape) * dtype_size(v->dtype);
}

static void list_vars(struct exec *x)
{
    size_t n = x->vars->list.n;
    if (x->options.lender)
        x->held_bytes = x->options.lender->plan.persistent_bytes;
    x->persistent = ARENA_ARRAY(&x->memory, struct mem_plan_buffer, n + 1);
    x->var_data = ARENA_ARRAY(&x->memory, void *, n + 1);
    x->var_blocks = ARENA_ARRAY(&x->memory, struct mem_block *, n + 1);
    for (size_t i = 0; i < n; i++) {
        const struct ir_var *v = &x->vars->list.data[i];
        x->persistent[i] = (struct mem_plan_buffer){
            .size_bytes = exec_var_on_host(x, (int)i) ? 0 : var_bytes(v), .tag = (int)v->category};
    }
}

enum status exec_new(
    struct ir_vars *vars, struct ir_program *const *programs, int n_programs,
    const struct exec_options *options, struct exec **out, struct err *e)
{
    struct exec *x = mem_alloc(sizeof *x);
    enum status st = ST_OK;
    x->vars = vars;
    if (options)
        x->options = *options;
    x->n_programs = n_programs;
    x->programs = ARENA_ARRAY(&x->memory, struct exec_program, n_programs + 1);
    x->plan_programs = ARENA_ARRAY(&x->memory, struct mem_plan_program, n_programs + 1);
    list_vars(x);
    for (int i = 0; i < n_programs; i++)
        TRY_OUT(compile_program(x, i, programs[i], e));
    x->plan = (struct mem_plan_set){
        .persistent = x->persistent,
        .persistent_n = x->options.lender ? 0 : vars->list.n,
        .programs = x->plan_programs,
        .programs_n = (size_t)n_programs};
    TRY_OUT(mem_plan_set_make(&x->plan, NULL, e));
    TRY_OUT(mem_plan_set_check(&x->plan, e));
    TRY_OUT(exec_offload_plan(x, e));
    TRY_OUT(exec_report_make(x, e));
    *out = x;
    return ST_OK;
out:
    exec_free(x);
    return st;
}

void exec_free(struct exec *x)
{
    if (!x)
        return;
    for (int i = 0; i < x->n_programs; i++) {
        struct exec_program *program = &x->programs[i];
        for (size_t k = 0; program->calls && program->ir && k < program->ir->ops.n; k++) {
            struct exec_call *c = &program->calls[k];
            if (c->kernel && c->kernel->release && c->args.state)
                c->kernel->release(c->args.state);
        }
        exec_storages_release(&program->storages);
        exec_offload_release(program);
    }
    exec_offload_unmap(x);
    exec_report_release(x);
    if (x->plan.programs)
        mem_plan_set_release(&x->plan);
    exec_history_close(x);
    mem_pool_free(x->pool);
    if (x->arena)
        mem_source_give_rest(x->source, x->arena, x->taken_bytes, x->taken_held_bytes);
    mem_free(x->stash);
    arena_release(&x->memory);
    mem_free(x);
}

/* ---- mapping ---- */

/* The address of a value for operator `op`, NULL when its storage does not live now (dynamic mode).
 */
static void *address(struct exec *x, struct exec_program *program, int v, int op)
{
    const struct ir_value *value = ir_value_at(program->ir, v);
    const struct ir_value *base = ir_value_at(program->ir, value->base);
    int storage = exec_storage_at(program, v, op);
    char *start = storage == IR_NONE ? x->var_data[base->var] : program->data[storage];
    return start ? start + value->offset * dtype_size(value->dtype) : NULL;
}

/* A present operand of no elements still needs an address to be told from an absent one. */
static _Alignas(64) char nothing[64];

static void point_call(struct exec *x, struct exec_program *program, struct exec_call *call)
{
    const struct ir_op *op = &program->ir->ops.data[call->op];
    struct kernel_args *a = &call->args;
    if (!call->kernel)
        return;
    for (int k = 0; k < op->n_in; k++) {
        if (op->in[k] == IR_NONE)
            continue;
        void *data = address(x, program, op->in[k], call->op);
        a->in[k].data = data ? data : nothing;
    }
    for (int k = 0; k < op->n_out; k++) {
        void *data = address(x, program, op->out[k], call->op);
        a->out[k].data = data ? data : nothing;
    }
    int w = program->storages.of_workspace[call->op];
    a->workspace = w == IR_NONE ? NULL : program->data[w];
}

static enum status map_planned(struct exec *x, struct err *e)
{
    void *p;
    x->taken_bytes = x->plan.peak_bytes > 0 ? x->plan.peak_bytes : MEM_PLAN_ALIGNMENT;
    TRY(mem_source_take(x->source, x->taken_bytes, &p, e));
    x->arena = p;
    x->arena_bytes = x->taken_bytes + x->source->tail_bytes;
    x->taken_held_bytes = x->taken_bytes;
    for (size_t i = 0; i < x->plan.persistent_n; i++)
        if (!exec_var_on_host(x, (int)i))
            x->var_data[i] = x->arena + x->plan.persistent_offset_bytes[i];
    for (int k = 0; k < x->n_programs; k++) {
        struct exec_program *program = &x->programs[k];
        const int64_t *offset = x->plan_programs[k].plan.offset_bytes;
        for (size_t i = 0; i < program->storages.n; i++)
            program->data[i] = x->arena + x->plan.persistent_bytes + offset[i];
        for (size_t i = 0; i < program->ir->ops.n; i++)
            point_call(x, program, &program->calls[i]);
    }
    exec_memory_seen(x, -1);
    exec_history_arena(x);
    return ST_OK;
}

static enum status map_dynamic(struct exec *x, struct err *e)
{
    struct mem_pool_conf conf;
    TRY(mem_pool_conf_env(&conf, NULL, e));
    x->pool = mem_pool_open(x->source, &(struct mem_pool_options){.conf = &conf});
    exec_history_pool(x);
    for (size_t i = 0; i < x->plan.persistent_n; i++) {
        const struct ir_var *v = &x->vars->list.data[i];
        if (exec_var_on_host(x, (int)i))
            continue;
        struct mem_tag tag = {
            .what = category_name(v->category),
            .node = v->node == IR_NONE ? v->name : x->vars->nodes.data[v->node]};
        exec_history_var(x, (int)i);
        TRY(mem_pool_alloc(x->pool, var_bytes(v), tag, &x->var_blocks[i], e));
        x->var_data[i] = mem_block_data(x->var_blocks[i]);
        if (x->var_data[i])
            memset(x->var_data[i], 0, (size_t)var_bytes(v));
    }
    return ST_OK;
}

/* Memory of this exec alone. In planned mode the budget is the plan's, a lender's part included. */
static enum status own_source(struct exec *x, struct err *e)
{
    bool planned = x->options.storage == EXEC_PLANNED;
    int64_t budget = x->options.budget_bytes;
    if (budget && planned && x->report.peak_bytes > budget)
        return err_set(
            e, ST_OOM, "the plan needs %lld bytes, more than the %lld allowed",
            (long long)x->report.peak_bytes, (long long)budget);
    mem_source_init_host(&x->own, planned ? 0 : budget);
    x->own.tail_bytes = planned ? EXEC_TAIL_BYTES : 0;
    x->source = &x->own;
    return ST_OK;
}

enum status exec_map(struct exec *x, struct err *e)
{
    x->source = x->options.source;
    if (!x->source)
        TRY(own_source(x, e));
    exec_history_open(x);
    for (size_t i = 0; x->options.lender && i < x->options.lender->plan.persistent_n; i++)
        x->var_data[i] = x->options.lender->var_data[i];
    TRY(exec_offload_map(x, e));
    enum status st = x->options.storage == EXEC_PLANNED ? map_planned(x, e) : map_dynamic(x, e);
    exec_history_failed(x, st);
    return st;
}

/* What lies from `start` on goes back to the system, and is not held any more. */
static void give_pages_from(struct exec *x, int64_t start)
{
    if (!x->arena)
        return;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)x->arena + (uintptr_t)start + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)x->arena + (uintptr_t)x->arena_bytes) / page * page;
    if (to > from)
        (void)madvise((void *)from, to - from, MADV_DONTNEED);
    if (start < x->taken_held_bytes) {
        mem_source_lower(x->source, x->taken_held_bytes - start);
        x->taken_held_bytes = start;
        exec_history_resize(x);
    }
}

static void end_dynamic(struct exec *x, struct exec_program *program, int i)
{
    const struct exec_storages *s = &program->storages;
    bool last = i + 1 >= (int)program->ir->ops.n;
    for (size_t k = 0; k < s->n; k++) {
        bool ends = i < 0 || (s->buffers[k].last == i && !last);
        if (!ends || !program->blocks[k])
            continue;
        mem_pool_give(x->pool, program->blocks[k]);
        program->blocks[k] = NULL;
        program->data[k] = NULL;
    }
}

/* Gives back what an earlier run left for the host to read. */
static void drop_outputs(struct exec *x, int except)
{
    for (int k = 0; k < x->n_programs; k++)
        if (k != except)
            end_dynamic(x, &x->programs[k], -1);
}

void exec_trim(struct exec *x)
{
    exec_offload_trim(x);
    give_pages_from(x, x->plan.persistent_bytes);
    if (!x->pool)
        return;
    drop_outputs(x, -1);
    mem_pool_trim(x->pool);
}

/* Dynamic mode: the variables' blocks. */
static void give_vars(struct exec *x)
{
    if (!x->pool)
        return;
    for (size_t i = 0; i < x->plan.persistent_n; i++) {
        if (x->var_blocks[i])
            mem_pool_give(x->pool, x->var_blocks[i]);
        x->var_blocks[i] = NULL;
    }
    drop_outputs(x, -1);
    mem_pool_trim(x->pool);
}

void exec_empty(struct exec *x)
{
    give_pages_from(x, 0);
    give_vars(x);
    if (x->stash || x->pool)
        memset(x->var_data, 0, x->plan.persistent_n * sizeof *x->var_data);
    exec_offload_unmap(x);
    mem_free(x->stash);
    x->stash = NULL;
}

enum status exec_stash(struct exec *x, struct err *e)
{
    size_t n = x->plan.persistent_n;
    if (!x->source || x->stash || n == 0)
        return ST_OK;
    char *stash = mem_try_alloc((size_t)x->plan.persistent_bytes + 1);
    if (!stash)
        return err_set(
            e, ST_OOM, "no host memory for %lld bytes of weights that move",
            (long long)x->plan.persistent_bytes);
    for (size_t i = 0; i < n; i++) {
        if (exec_var_on_host(x, (int)i))
            continue;
        char *to = stash + x->plan.persistent_offset_bytes[i];
        if (x->var_data[i])
            memcpy(to, x->var_data[i], (size_t)var_bytes(&x->vars->list.data[i]));
        x->var_data[i] = to;
    }
    give_pages_from(x, 0);
    give_vars(x);
    x->stash = stash;
    return ST_OK;
}

/* After exec_trim: the temporaries' memory is taken again. */
static enum status hold_again(struct exec *x, struct err *e)
{
    int64_t missing = x->arena ? x->taken_bytes - x->taken_held_bytes : 0;
    if (x->stash)
        return err_set(e, ST_INTERNAL, "an executor without its memory cannot run");
    if (missing == 0)
        return ST_OK;
    if (!mem_source_adopt(x->source, missing))
        return err_set(
            e, ST_OOM, "could not get %lld bytes from device \"%s\" again", (long long)missing,
            x->source->device);
    x->taken_held_bytes = x->taken_bytes;
    exec_history_resize(x);
    return ST_OK;
}

/* ---- running ---- */

static void red_zone_fill(const struct exec_program *program, int storage)
{
    const struct mem_plan_buffer *b = &program->storages.buffers[storage];
    if (b->size_bytes && program->data[storage])
        memset((char *)program->data[storage] + b->size_bytes - EXEC_RED_ZONE, 0xA5, EXEC_RED_ZONE);
}

/* Bytes of the red zone that were written, counted from the end of the operand. */
static int64_t red_zone_touched(const struct exec_program *program, int storage)
{
    const struct mem_plan_buffer *b = &program->storages.buffers[storage];
    if (!b->size_bytes || !program->data[storage])
        return 0;
    const unsigned char *z =
        (unsigned char *)program->data[storage] + b->size_bytes - EXEC_RED_ZONE;
    for (int64_t n = EXEC_RED_ZONE; n > 0; n--)
        if (z[n - 1] != 0xA5)
            return n;
    return 0;
}

static int64_t tensor_extent_bytes(const struct tensor *t)
{
    if (t->layout != LAYOUT_ROW)
        return tensor_count(t) * dtype_size(t->dtype);
    int64_t last = 0;
    for (int i = 0; i < t->shape.rank; i++) {
        if (t->shape.dim[i] == 0)
            return 0;
        last += (t->shape.dim[i] - 1) * t->stride[i];
    }
    return (last + 1) * dtype_size(t->dtype);
}

/* Raises the measured peak to the end of [p, p + bytes) in the arena. The red zone behind a storage
 * belongs to it: that the plan has room for it is known, that nobody else wrote there is checked.
 */
static void see_address(struct exec *x, const void *p, int64_t bytes, bool has_zone)
{
    const char *end = (const char *)p + bytes;
    if (!p || !x->arena || (const char *)p < x->arena || end > x->arena + x->arena_bytes)
        return;
    int64_t high = end - x->arena;
    if (has_zone)
        high += EXEC_RED_ZONE;
    high = (high + MEM_PLAN_ALIGNMENT - 1) / MEM_PLAN_ALIGNMENT * MEM_PLAN_ALIGNMENT;
    if (!has_zone && high > x->measured_var_bytes)
        x->measured_var_bytes = high;
    if (high > x->measured_bytes)
        x->measured_bytes = high;
}

/* Weights that no kernel has read yet are held, too: whoever fills them gets their address here. */
void *exec_var(struct exec *x, int var)
{
    int64_t bytes = var_bytes(&x->vars->list.data[var]);
    see_address(x, x->var_data[var], bytes, false);
    exec_offload_see(x, x->var_data[var], bytes);
    return x->var_data[var];
}

/* A state that comes in pieces is larger than what an operator has of it. */
static void see_operand(
    struct exec *x, const struct exec_program *program, int v, int op, const struct tensor *t)
{
    int storage = exec_storage_at(program, v, op);
    int64_t bytes = tensor_extent_bytes(t);
    if (storage != IR_NONE && program->storages.of_value[v] == IR_NONE)
        bytes = program->storages.buffers[storage].size_bytes - EXEC_RED_ZONE;
    see_address(x, t->data, bytes, storage != IR_NONE);
}

static void see_call(struct exec *x, struct exec_program *program, const struct exec_call *call)
{
    const struct ir_op *op = &program->ir->ops.data[call->op];
    const struct kernel_args *a = &call->args;
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != IR_NONE)
            see_operand(x, program, op->in[k], call->op, &a->in[k]);
    for (int k = 0; k < op->n_out; k++)
        see_operand(x, program, op->out[k], call->op, &a->out[k]);
    see_address(x, a->workspace, a->workspace_bytes, true);
}

static void fill_zones(const struct exec_program *program, const struct ir_op *op)
{
    int i = (int)(op - program->ir->ops.data);
    for (int k = 0; k < op->n_out; k++) {
        int storage = exec_storage_at(program, op->out[k], i);
        if (storage != IR_NONE)
            red_zone_fill(program, storage);
    }
    int w = program->storages.of_workspace[i];
    if (w != IR_NONE)
        red_zone_fill(program, w);
}

/* What a kernel wrote past its operands adds to the measured peak: then it differs from the plan.
 */
static void check_zones(struct exec *x, const struct exec_program *program, const struct ir_op *op)
{
    int64_t over = 0, n;
    int i = (int)(op - program->ir->ops.data);
    for (int k = 0; k < op->n_out; k++) {
        int storage = exec_storage_at(program, op->out[k], i);
        if (storage == IR_NONE)
            continue;
        n = red_zone_touched(program, storage);
        over = n > over ? n : over;
    }
    int w = program->storages.of_workspace[i];
    n = w == IR_NONE ? 0 : red_zone_touched(program, w);
    over = n > over ? n : over;
    if (over > x->overrun_bytes)
        x->overrun_bytes = over;
}

static enum status run_call(struct exec *x, struct exec_program *program, int i, struct err *e)
{
    struct exec_call *call = &program->calls[i];
    const struct ir_op *op = &program->ir->ops.data[i];
    if (!call->kernel)
        return ST_OK;
    fill_zones(program, op);
    enum status st = exec_offload_run(x, program, i, e);
    check_zones(x, program, op);
    if (st != ST_OK)
        name_node(program->ir, op, e);
    return st;
}

/* Dynamic mode: gets the storages that begin at operator i, points its call at them. */
static enum status begin_dynamic(struct exec *x, struct exec_program *program, int i, struct err *e)
{
    const struct exec_storages *s = &program->storages;
    const struct ir_op *op = i < (int)program->ir->ops.n ? &program->ir->ops.data[i] : NULL;
    for (size_t k = 0; k < s->n; k++) {
        if (s->buffers[k].first != i || program->blocks[k])
            continue;
        struct mem_tag tag = {
            .what = category_name((enum category)s->category[k]),
            .node = s->node[k] == IR_NONE ? NULL : x->vars->nodes.data[s->node[k]]};
        enum status st =
            mem_pool_alloc(x->pool, s->buffers[k].size_bytes, tag, &program->blocks[k], e);
        if (st != ST_OK && op)
            name_node(program->ir, op, e);
        TRY(st);
        program->data[k] = mem_block_data(program->blocks[k]);
    }
    if (op)
        point_call(x, program, &program->calls[i]);
    return ST_OK;
}

static struct exec_program *program_at(struct exec *x, int index)
{
    ASSERT(index >= 0 && index < x->n_programs);
    return &x->programs[index];
}

enum status exec_run(struct exec *x, int index, struct err *e)
{
    struct exec_program *program = program_at(x, index);
    bool dynamic = x->options.storage == EXEC_DYNAMIC;
    enum status st = hold_again(x, e);
    exec_history_run(x, index);
    exec_library_watch(true);
    for (int i = 0; i < (int)program->ir->ops.n && st == ST_OK; i++) {
        if (x->history)
            exec_history_begin(x, index, i);
        if (dynamic)
            st = begin_dynamic(x, program, i, e);
        int64_t from = program->times_ns ? clock_ns() : 0;
        if (st == ST_OK) {
            exec_offload_begin(x, program, i);
            st = run_call(x, program, i, e);
        }
        if (st == ST_OK)
            exec_offload_end(x, program, i);
        else
            exec_offload_drain(x, program);
        if (program->times_ns)
            exec_profile_add(program, i, clock_ns() - from);
        if (dynamic)
            end_dynamic(x, program, i);
        else if (!program->seen && program->calls[i].kernel)
            see_call(x, program, &program->calls[i]);
        if (x->history)
            exec_history_end(x, index, i);
    }
    exec_library_watch(false);
    exec_offload_drain(x, program);
    program->seen = st == ST_OK;
    program->timed_runs++;
    exec_memory_seen(x, index);
    if (exec_library_peak_bytes() > x->library_bytes_peak)
        x->library_bytes_peak = exec_library_peak_bytes();
    exec_history_failed(x, st);
    if (st != ST_OK && dynamic)
        end_dynamic(x, program, -1);
    return st;
}

static bool all_finite(const struct tensor *t)
{
    if (!dtype_floating(t->dtype))
        return true;
    int64_t n = tensor_extent_bytes(t) / dtype_size(t->dtype);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(dtype_load(t->data, t->dtype, i)))
            return false;
    return true;
}

int exec_first_nonfinite(struct exec *x, int index, struct err *e)
{
    struct exec_program *program = program_at(x, index);
    bool dynamic = x->options.storage == EXEC_DYNAMIC;
    int found = IR_NONE;
    for (int i = 0; i < (int)program->ir->ops.n && found == IR_NONE; i++) {
        const struct ir_op *op = &program->ir->ops.data[i];
        bool skipped = op->phase == PHASE_UPDATE; /* they may lie within the backward pass */
        if (dynamic && (!skipped || x->copies) && begin_dynamic(x, program, i, e) != ST_OK)
            break;
        exec_offload_begin(x, program, i); /* state of a skipped operator goes back as it came */
        if (!skipped && run_call(x, program, i, e) != ST_OK)
            break;
        for (int k = 0; k < op->n_out && program->calls[i].kernel && !skipped; k++)
            if (!all_finite(&program->calls[i].args.out[k]))
                found = i;
        exec_offload_end(x, program, i);
        if (dynamic)
            end_dynamic(x, program, i);
    }
    exec_offload_drain(x, program);
    if (dynamic)
        end_dynamic(x, program, -1);
    return found;
}

/* ---- reading ---- */

enum status exec_inputs_ready(struct exec *x, int index, struct err *e)
{
    struct exec_program *program = program_at(x, index);
    const struct ir_program *p = program->ir;
    if (x->options.storage != EXEC_DYNAMIC)
        return ST_OK;
    drop_outputs(x, index);
    exec_history_host(x);
    for (int v = 0; v < (int)p->values.n; v++) {
        int k = program->storages.of_value[v];
        if (ir_value_at(p, v)->kind != VALUE_INPUT || k == IR_NONE || program->blocks[k])
            continue;
        struct mem_tag tag = {.what = category_name((enum category)program->storages.category[k])};
        int64_t bytes = program->storages.buffers[k].size_bytes;
        enum status st = mem_pool_alloc(x->pool, bytes, tag, &program->blocks[k], e);
        exec_history_failed(x, st);
        TRY(st);
        program->data[k] = mem_block_data(program->blocks[k]);
    }
    return ST_OK;
}

void *exec_value(struct exec *x, int index, int v)
{
    return address(x, program_at(x, index), v, 0); /* what the host reads and writes stays */
}

struct tensor exec_tensor(struct exec *x, int index, int v)
{
    struct tensor t = view_of(x->programs[index].ir, v);
    t.data = exec_value(x, index, v);
    return t;
}

int64_t exec_peak_planned(const struct exec *x)
{
    return x->report.peak_bytes;
}

int64_t exec_peak_measured(const struct exec *x)
{
    if (x->options.storage == EXEC_DYNAMIC) {
        struct mem_pool_stats s;
        mem_pool_stats(x->pool, &s);
        return s.allocated_bytes[MEM_STAT_ALL].peak + x->overrun_bytes + x->library_bytes_peak;
    }
    int64_t lent = x->options.lender ? x->options.lender->measured_var_bytes : 0;
    return lent + x->measured_bytes + x->overrun_bytes + x->library_bytes_peak;
}

int64_t exec_kept_planned(const struct exec *x)
{
    return x->held_bytes + x->plan.persistent_bytes;
}

int64_t exec_kept_measured(const struct exec *x)
{
    return x->measured_var_bytes;
}
