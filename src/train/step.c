/* step.c - builds the programs of a training run. */
#include "train/step.h"

#include "train/fill.h"

#include "ir/build.h"

#include <string.h>

static const char *const program_names[STEP_PROGRAM_COUNT] = {
    "train.only",       "train.first",      "train.middle", "train.last",
    "train.short.only", "train.short.last", "eval",         "eval.short"};

enum step_program step_program_of(const struct step_config *c, int64_t i)
{
    bool first = i % c->accumulate == 0;
    bool last = i % c->accumulate == c->accumulate - 1 || i == c->batches - 1;
    bool is_short = i == c->batches - 1 && c->last_batch != c->batch;
    if (first && last)
        return is_short ? STEP_SHORT_ONLY : STEP_ONLY;
    if (last)
        return is_short ? STEP_SHORT_LAST : STEP_LAST;
    return first ? STEP_FIRST : STEP_MIDDLE;
}

static enum window window_of(enum step_program k)
{
    switch ((int)k) {
    case STEP_FIRST:
        return WINDOW_FIRST;
    case STEP_MIDDLE:
        return WINDOW_MIDDLE;
    case STEP_LAST:
    case STEP_SHORT_LAST:
        return WINDOW_LAST;
    default:
        return WINDOW_ONLY;
    }
}

static void dump(const struct step_dump *d, const struct ir_program *p, enum pass pass)
{
    if (d && d->after)
        d->after(p, pass_name(pass), d->ctx);
}

static struct shape with_batch(const struct shape *sample, int64_t batch)
{
    struct shape s = {.rank = sample->rank + 1};
    s.dim[0] = batch;
    memcpy(s.dim + 1, sample->dim, sizeof *s.dim * (size_t)sample->rank);
    return s;
}

/* What belongs to the loss carries its node. Without a Loss node, in an evaluation, it is "loss".
 */
static int loss_node(struct ir_vars *vars, const struct step_config *c)
{
    return ir_node_intern(vars, c->loss && c->loss->node_id ? c->loss->node_id : "loss");
}

static int constant_read(struct ir_program *p, int var)
{
    return var == IR_NONE ? IR_NONE : ir_var_read(p, var);
}

/* Every position of every sequence is a sample. */
static int lm_cross_entropy(struct ir_program *p, int logits, int target, const struct loss_attr *a)
{
    if (logits == IR_NONE || target == IR_NONE)
        return IR_NONE;
    const struct shape *s = &ir_value_at(p, logits)->shape, *t = &ir_value_at(p, target)->shape;
    if (s->rank != 3 || t->rank != 2 || s->dim[0] != t->dim[0] || s->dim[1] != t->dim[1] ||
        ir_value_at(p, target)->dtype != DT_I64) {
        char given[64], wanted[64];
        (void)err_set(
            &p->err, ST_INVALID,
            "LMCrossEntropyLoss compares logits [batch, positions, vocabulary] with token numbers "
            "[batch, positions]; the model gives %s, the data set %s",
            shape_text(s, given, sizeof given), shape_text(t, wanted, sizeof wanted));
        err_hint(
            &p->err, "LMTokenizedDataset gives such targets; for classes there is the Loss node");
        return IR_NONE;
    }
    int64_t n = s->dim[0] * s->dim[1], vocab = s->dim[2];
    int rows = ir_reshape(p, logits, SHAPE(n, vocab));
    return ir_cross_entropy(p, rows, ir_reshape(p, target, SHAPE(n)), IR_NONE, a);
}

static int loss_value(
    struct ir_program *p, const struct loss_spec *loss, const struct step_set *set, const int *out,
    int n_out, int target)
{
    int weight = constant_read(p, set->weight_var), pos = constant_read(p, set->pos_weight_var);
    switch (loss->type) {
    case LOSS_TYPE_CROSS_ENTROPY:
        return ir_cross_entropy(p, out[0], target, weight, &loss->attr);
    case LOSS_TYPE_NLL:
        return ir_nll(p, out[0], target, weight, &loss->attr);
    case LOSS_TYPE_LM_CROSS_ENTROPY:
        return lm_cross_entropy(p, out[0], target, &loss->attr);
    case LOSS_TYPE_MARGIN_RANKING:
    case LOSS_TYPE_COSINE_EMBEDDING:
        if (n_out != 2) {
            (void)err_set(
                &p->err, ST_INVALID, "%s compares two outputs of the model, and this model has %d",
                loss_type_name(loss->type), n_out);
            err_hint(&p->err, "give the SequentialModel two Output ports, in the order x1, x2");
            return IR_NONE;
        }
        if (loss->type == LOSS_TYPE_MARGIN_RANKING)
            return ir_margin_ranking(p, out[0], out[1], target, loss->margin, loss->attr.reduction);
        return ir_cosine_embedding(p, out[0], out[1], target, loss->margin, loss->attr.reduction);
    case LOSS_TYPE_MSE:
    case LOSS_TYPE_BCE_LOGITS:
    case LOSS_TYPE_L1:
    case LOSS_TYPE_SMOOTH_L1:
    case LOSS_TYPE_KLDIV:
    case LOSS_TYPE_HUBER:
    case LOSS_TYPE_BCE:
    case LOSS_TYPE_COUNT:
        break;
    }
    return ir_loss_ew(p, out[0], target, weight, pos, &loss->attr);
}

/* With weights in 16 bits the input is rounded to their type, and all else follows, as in PyTorch's
 * model.to(dtype); losses and what the host reads are float32 again. */
static int follow_weights(struct ir_program *p, const struct step_config *c, int x)
{
    enum dtype low = fill_type(c->model, p->vars);
    return low != DT_F32 && dtype_floating(ir_value_at(p, x)->dtype) ? ir_cast(p, x, low) : x;
}

static int in_float32(struct ir_program *p, int y)
{
    enum dtype t = ir_value_at(p, y)->dtype;
    return t == DT_BF16 || t == DT_F16 ? ir_cast(p, y, DT_F32) : y;
}

static enum status forward(
    struct ir_program *p, const struct step_config *c, const struct step_set *set, int64_t batch,
    bool training, int *loss, struct err *e)
{
    enum { OUTPUTS_MAX = 16 };
    int outputs[OUTPUTS_MAX], n_out = model_output_count(c->model);
    bool noisy = training && model_has_dropout(c->model);
    if (n_out > OUTPUTS_MAX)
        return err_set(
            e, ST_UNSUPPORTED, "the model has %d outputs, at most %d", n_out, OUTPUTS_MAX);
    if (model_input_count(c->model) != 1)
        return err_set(
            e, ST_INVALID, "the model takes %d inputs; a data loader gives one",
            model_input_count(c->model));
    p->phase = PHASE_FORWARD;
    int x = ir_input(p, "input", model_input_dtype(c->model), with_batch(&c->sample.input, batch));
    int rng = noisy ? ir_input(p, "rng", DT_I64, SHAPE(2)) : IR_NONE;
    x = follow_weights(p, c, x);
    TRY(model_forward(c->model, p, &x, 1, training, rng, outputs, e));
    p->phase = PHASE_LOSS;
    for (int i = 0; i < n_out; i++)
        outputs[i] = in_float32(p, outputs[i]);
    p->node = loss_node(p->vars, c);
    *loss = IR_NONE;
    union op_attr counted = {.loss = {.ignore_index = c->loss ? c->loss->attr.ignore_index : -100}};
    if (c->loss) {
        if (!c->sample.has_target)
            return err_set(e, ST_INVALID, "the loss needs targets, and the data set has none");
        int y = ir_input(p, "target", c->sample.target_dtype, with_batch(&c->sample.target, batch));
        *loss = loss_value(p, c->loss, set, outputs, n_out, y);
        TRY(ir_status(p, e));
        if (shape_count(&ir_value_at(p, *loss)->shape) != 1)
            return err_set(
                e, ST_INVALID,
                "the loss has reduction 'none', so it is not one number; training needs 'mean' or "
                "'sum'");
        ir_output(p, *loss, "loss");
        if (!training && loss_weighs_labels(c->loss) && c->sample.target_dtype == DT_I64)
            ir_output(p, ir_out(p, c->loss->type == LOSS_TYPE_NLL ? 1 : 2), "loss_weight");
        if (!training && loss_has_classes(c->loss->type) && c->sample.target_dtype == DT_I64) {
            int in[2] = {outputs[0], y};
            ir_output(p, ir_emit(p, OP_COUNT_CORRECT, in, 2, &counted), "correct");
        }
    } else if (c->sample.has_target && c->sample.target_dtype == DT_I64 && !training) {
        int in[2] = {
            outputs[0], ir_input(p, "target", DT_I64, with_batch(&c->sample.target, batch))};
        ir_output(p, ir_emit(p, OP_COUNT_CORRECT, in, 2, &counted), "correct");
    } else {
        ir_output(p, outputs[0], "output");
    }
    return ir_status(p, e);
}

/* Forward and loss in the precision asked for. */
static enum status autocast(
    struct ir_program *p, const struct step_config *c, const struct step_dump *d, struct err *e)
{
    dump(d, p, PASS_FORWARD);
    if (c->precision == PRECISION_FP32)
        return ST_OK;
    TRY(pass_autocast(p, c->precision == PRECISION_BF16 ? DT_BF16 : DT_F16, e));
    dump(d, p, PASS_AUTOCAST);
    return ST_OK;
}

/* Head and cross-entropy in chunks of tokens; seed: IR_NONE in evaluation. */
static enum status chunk_loss(
    struct ir_program *p, const struct step_config *c, const struct step_dump *d, int loss,
    int seed, const char **why, struct err *e)
{
    struct loss_chunk_options o = {
        .tokens = c->levers.loss_chunk_tokens, .loss = loss, .seed = seed};
    *why = NULL;
    if (o.tokens == 0 || loss == IR_NONE)
        return ST_OK;
    TRY(pass_loss_chunk(p, &o, why, e));
    dump(d, p, PASS_LOSS_CHUNK);
    return ST_OK;
}

static struct layout_options layouts(void)
{
    return (struct layout_options){.enabled = true, .blocked = true};
}

/* What every program goes through after the passes that give it its meaning. */
static enum status lower(struct ir_program *p, const struct step_dump *d, struct err *e)
{
    struct layout_options o = layouts();
    ir_dead_code(p);
    TRY(pass_layout(p, &o, e));
    dump(d, p, PASS_LAYOUT);
    TRY(pass_fuse(p, e));
    dump(d, p, PASS_FUSE);
    return ir_verify(p, e);
}

static struct checkpoint_options checkpoint_of(const struct step_config *c)
{
    switch (c->levers.checkpointing) {
    case CHECKPOINT_BLOCKS:
        return (struct checkpoint_options){.count = CHECKPOINT_ALL};
    case CHECKPOINT_SELECTIVE:
        return (struct checkpoint_options){.wide = true};
    case CHECKPOINT_AUTO:
        return c->checkpoint;
    case CHECKPOINT_NONE:
        break;
    }
    return (struct checkpoint_options){0};
}

/* What the backward pass computes again instead of keeping it. */
static enum status recompute(
    struct ir_program *p, const struct step_config *c, const struct step_dump *d,
    struct step_set *set, struct err *e)
{
    struct checkpoint_options o = checkpoint_of(c);
    if (c->levers.checkpointing != CHECKPOINT_NONE) {
        TRY(pass_checkpoint(p, &o, &set->segments, e));
        dump(d, p, PASS_CHECKPOINT);
    }
    TRY(pass_recompute(p, o.wide, e));
    dump(d, p, PASS_RECOMPUTE);
    return ST_OK;
}

static enum status build_train(
    const struct step_config *c, enum step_program kind, const struct step_dump *d,
    struct step_set *set, struct err *e)
{
    struct ir_program *p = set->programs[set->index[kind]];
    bool is_short = kind == STEP_SHORT_ONLY || kind == STEP_SHORT_LAST;
    int loss = IR_NONE;
    TRY(forward(p, c, set, is_short ? c->last_batch : c->batch, true, &loss, e));
    TRY(autocast(p, c, d, e));
    size_t n_vars = p->vars->list.n;
    int *grads = mem_alloc((n_vars + 1) * sizeof *grads);
    enum status st = ST_OK;
    p->node = IR_NONE;
    int seed = ir_input(p, "loss_seed", DT_F32, shape_scalar());
    TRY_OUT(chunk_loss(p, c, d, loss, seed, &set->unchunked, e));
    ir_backward(p, loss, seed, grads);
    TRY_OUT(ir_status(p, e));
    dump(d, p, PASS_GRADIENTS);
    if (!set->update.accumulator)
        update_vars_make(p->vars, &c->optim->attr, c->accumulate > 1, grads, n_vars, &set->update);
    TRY_OUT(recompute(p, c, d, set, e));
    struct update_options o = {
        .window = window_of(kind),
        .optim = c->optim->attr,
        .max_norm = c->max_norm,
        .allow_nonfinite = c->scaler,
        .log_update_ratio = c->log_update_ratio,
        .cycles_momentum = c->cycles_momentum,
        .early = c->levers.update_in_backward};
    TRY_OUT(pass_update(p, &o, grads, &set->update, e));
    dump(d, p, PASS_UPDATE);
    TRY_OUT(lower(p, d, e));
out:
    mem_free(grads);
    return st;
}

static enum status build_eval(
    const struct step_config *c, struct ir_program *p, int64_t batch, const struct step_set *set,
    const struct step_dump *d, struct err *e)
{
    int loss = IR_NONE;
    const char *why;
    TRY(forward(p, c, set, batch, false, &loss, e));
    TRY(autocast(p, c, d, e));
    TRY(chunk_loss(p, c, d, loss, IR_NONE, &why, e));
    return lower(p, d, e);
}

static int constant(struct ir_vars *vars, const struct step_config *c, const char *name, int n)
{
    struct ir_var v = {
        .name = name,
        .dtype = DT_F32,
        .shape = SHAPE(n),
        .category = CATEGORY_BUFFERS,
        .of = IR_NONE,
        .node = loss_node(vars, c)};
    return ir_var_new(vars, &v);
}

static void declare(struct ir_vars *vars, const struct step_config *c, struct step_set *out)
{
    out->weight_var = out->pos_weight_var = IR_NONE;
    if (c->loss && c->loss->weight)
        out->weight_var = constant(vars, c, "loss.weight", c->loss->weight_n);
    if (c->loss && c->loss->pos_weight)
        out->pos_weight_var = constant(vars, c, "loss.pos_weight", c->loss->pos_weight_n);
}

static void declare_best(struct ir_vars *vars, const struct step_config *c, struct step_set *out)
{
    int n = model_state_count(c->model);
    out->best_var = mem_alloc(((size_t)n + 1) * sizeof *out->best_var);
    for (int i = 0; i < n; i++) {
        int var = model_state_var(c->model, i);
        struct ir_var v = vars->list.data[var];
        v.dtype = vars->list.data[fill_exact(vars, var, vars->list.n)].dtype;
        v.name = arena_printf(&vars->arena, "best:%s", v.name);
        v.category = CATEGORY_BUFFERS;
        v.trainable = false;
        out->best_var[i] = ir_var_new(vars, &v);
    }
}

/* parameter_dtype: activations and products follow the weights' type. */
static void types_set(struct ir_vars *vars, const struct step_config *c)
{
    for (int i = 0; i < model_param_count_vars(c->model); i++) {
        struct ir_var *v = &vars->list.data[model_param_var(c->model, i)];
        if (dtype_floating(v->dtype))
            v->dtype = c->levers.parameter_dtype;
    }
}

/* How many batches of an epoch run, at most; all of them: the epoch ends. Later epochs begin with
 * the same batches, so the first one has every program of the run. */
static int64_t batches_reached(const struct step_config *c)
{
    int64_t windows = (c->batches - 1) / c->accumulate + 1;
    bool cut = c->windows_max > 0 && c->windows_max < windows;
    return cut ? c->windows_max * c->accumulate : c->batches;
}

void step_reach(const struct step_config *c, bool reached[STEP_PROGRAM_COUNT])
{
    int64_t end = batches_reached(c);
    /* Every place that a batch can have is that of one of these. */
    const int64_t places[] = {0, 1, c->accumulate - 1, end - 1};
    ASSERT(c->batches > 0);
    memset(reached, 0, STEP_PROGRAM_COUNT * sizeof *reached);
    for (int i = 0; i < 4; i++)
        if (places[i] < end)
            reached[step_program_of(c, places[i])] = true;
    bool inside = c->val_every > 0 && c->val_every <= c->windows_max;
    if (c->val_batches > 0 && (end == c->batches || inside)) {
        reached[STEP_EVAL] = c->val_batches > 1 || c->val_last_batch == c->val_batch;
        reached[STEP_EVAL_SHORT] = c->val_last_batch != c->val_batch;
    }
}

enum status step_set_make(
    struct ir_vars *vars, const struct step_config *c, const struct step_dump *d,
    struct step_set *out, struct err *e)
{
    bool need[STEP_PROGRAM_COUNT];
    enum status st = ST_OK;
    *out = (struct step_set){.vars = vars};
    if (c->batches <= 0)
        return err_set(e, ST_INVALID, "0 batches per epoch: the data loader would give nothing");
    TRY(step_check(c, e));
    step_reach(c, need);
    types_set(vars, c);
    declare(vars, c, out);
    for (int k = 0; k < STEP_PROGRAM_COUNT; k++) {
        out->index[k] = IR_NONE;
        if (!need[k])
            continue;
        out->index[k] = out->n++;
        out->programs[out->index[k]] = ir_program_new(program_names[k], vars);
        if (k == STEP_EVAL || k == STEP_EVAL_SHORT)
            TRY_OUT(build_eval(
                c, out->programs[out->index[k]], k == STEP_EVAL ? c->val_batch : c->val_last_batch,
                out, d, e));
        else
            TRY_OUT(build_train(c, (enum step_program)k, d, out, e));
    }
    if (c->keep_best)
        declare_best(vars, c, out);
    return ST_OK;
out:
    step_set_release(out);
    return st;
}

void step_set_release(struct step_set *s)
{
    for (int i = 0; i < s->n; i++)
        ir_program_free(s->programs[i]);
    update_vars_release(&s->update);
    mem_free(s->best_var);
    *s = (struct step_set){0};
}

static enum status make_alone(
    struct ir_vars *vars, const struct step_config *c, const char *name, int64_t batch,
    struct ir_program **out, struct err *e)
{
    struct step_set none = {.weight_var = IR_NONE, .pos_weight_var = IR_NONE};
    struct ir_program *p = ir_program_new(name, vars);
    enum status st = build_eval(c, p, batch, &none, NULL, e);
    if (st == ST_OK)
        *out = p;
    else
        ir_program_free(p);
    return st;
}

enum status step_eval_make(
    struct ir_vars *vars, const struct step_config *c, int64_t batch, struct ir_program **out,
    struct err *e)
{
    return make_alone(vars, c, "evaluate", batch, out, e);
}

enum status step_lower(struct ir_program *p, struct err *e)
{
    return lower(p, NULL, e);
}

enum status step_forward_make(
    struct ir_vars *vars, const struct model *m, struct shape input, enum precision precision,
    struct ir_program **out, struct err *e)
{
    struct step_config c = {.model = m, .precision = precision};
    if (input.rank < 1)
        return err_set(e, ST_INVALID, "the input has no batch dimension");
    c.sample.input.rank = input.rank - 1;
    memcpy(c.sample.input.dim, input.dim + 1, sizeof *input.dim * (size_t)(input.rank - 1));
    return make_alone(vars, &c, "forward", input.dim[0], out, e);
}

/* Row `position` of a value [1, rows, width]: [1, width]. */
static int row_at(struct ir_program *p, int value, int position)
{
    const struct shape *s = &ir_value_at(p, value)->shape;
    int64_t rows = s->dim[1], width = s->dim[2];
    return ir_embedding(p, position, ir_reshape(p, value, SHAPE(rows, width)), -1);
}

/* The scores of one position. Where a product makes them, its operand is cut down to the position
 * and the product of all positions is left without use. */
static int scores_at(struct ir_program *p, int logits, int position)
{
    int def = ir_value_at(p, logits)->def;
    const struct ir_op *op = def == IR_NONE ? NULL : &p->ops.data[def];
    bool head = op && op->code == OP_GEMM && !op->attr.gemm.ta && op->n_in <= 3 &&
                ir_value_at(p, op->in[0])->shape.rank == 3 &&
                ir_value_at(p, op->in[1])->shape.rank == 2;
    if (!head)
        return row_at(p, logits, position);
    int in[3] = {IR_NONE, IR_NONE, IR_NONE}, n_in = op->n_in;
    union op_attr attr = op->attr;
    p->node = op->node;
    memcpy(in, op->in, sizeof *in * (size_t)n_in);
    in[0] = row_at(p, in[0], position);
    return ir_emit(p, OP_GEMM, in, n_in, &attr);
}

static enum status
build_next_token(struct ir_program *p, const struct model *m, int64_t length, struct err *e)
{
    int out;
    if (model_input_count(m) != 1 || model_output_count(m) != 1 || model_input_dtype(m) != DT_I64)
        return err_set(
            e, ST_INVALID, "the model is no language model: one row of tokens in, scores out");
    p->phase = PHASE_FORWARD;
    int x = ir_input(p, "input", DT_I64, SHAPE(1, length));
    TRY(model_forward(m, p, &x, 1, false, IR_NONE, &out, e));
    const struct shape *s = &ir_value_at(p, out)->shape;
    if (s->rank != 3 || s->dim[0] != 1 || s->dim[1] != length) {
        char text[64];
        return err_set(
            e, ST_INVALID, "the model gives %s where scores [1, %lld, vocabulary] are needed",
            shape_text(s, text, sizeof text), (long long)length);
    }
    int position = ir_input(p, "position", DT_I64, SHAPE(1));
    ir_output(p, scores_at(p, out, position), "logits");
    TRY(ir_status(p, e));
    return lower(p, NULL, e);
}

enum status step_next_token_make(
    struct ir_vars *vars, const struct model *m, int64_t length, struct ir_program **out,
    struct err *e)
{
    struct ir_program *p = ir_program_new("next_token", vars);
    enum status st = build_next_token(p, m, length, e);
    if (st == ST_OK)
        *out = p;
    else
        ir_program_free(p);
    return st;
}
