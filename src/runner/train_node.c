/* train_node.c - TrainingLoop, EvaluateModel, Inference: the nodes that run programs. */
#include "runner/run_int.h"

#include "base/env.h"
#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- devices and precision ---- */

static enum precision precision_of(const struct run *r, const struct graph_node *n)
{
    enum precision p = PRECISION_FP32;
    if (r->what_if.fp32)
        return PRECISION_FP32;
    (void)precision_parse(graph_param_str(n, "precision"), &p);
    return p;
}

static int64_t accumulate_of(const struct run *r, const struct graph_node *n)
{
    int64_t steps = graph_param_i64(n, "accumulate_steps");
    if (r->what_if.no_accumulation)
        return 1;
    return steps;
}

/* P4: what the device can do of it. */
enum precision run_precision(struct run *r, const struct graph_node *n)
{
    char label[160], warning[400];
    const struct run_place *place = run_place_of(r, n);
    run_place_label(place, label, sizeof label);
    struct precision_device d = run_place_precision(place, label);
    enum precision p = precision_on(&d, precision_of(r, n), warning, sizeof warning);
    if (warning[0] && !run_has_said(r, warning))
        run_warn(r, n, "precision_fallback", "%s", warning);
    return p;
}

/* P11: weights trained in bfloat16 may lie outside float16's range. */
static void
warn_range(struct run *r, const struct graph_node *n, const struct fill_ctx *ctx, enum precision p)
{
    size_t count;
    for (size_t i = 0; p == PRECISION_FP16 && i < ctx->model->loads.n; i++) {
        const struct tensorfile_entry *list = tensorfile_list(ctx->files[i], &count);
        for (size_t k = 0; k < count; k++) {
            if (list[k].type != DT_BF16)
                continue;
            run_warn(
                r, n, "fp16_range",
                "\"%s\" holds bfloat16 weights: values above 65504 overflow in fp16; bf16 has "
                "their "
                "range",
                ctx->model->loads.data[i]);
            return;
        }
    }
}

/* ---- training ---- */

bool run_stop_asked(void *ctx)
{
    struct run *r = ctx;
    return r->sink.stop && r->sink.stop(r->sink.ctx);
}

static void pass_event(const json_t *event, void *ctx)
{
    struct run *r = ctx;
    if (str_eq(json_get_str(event, "event", ""), "warning"))
        (void)json_array_append(r->warnings, (json_t *)(uintptr_t)event);
    if (r->sink.event)
        r->sink.event(event, r->sink.ctx);
}

static void run_show(const struct run *r, const struct ir_program *p, const char *pass)
{
    if (r->o.watch && r->planning && !r->what_if.on)
        r->o.watch->program(p, pass, r->o.watch->ctx);
}

static void dump_pass(const struct ir_program *p, const char *pass, void *ctx)
{
    struct run *r = ctx;
    run_show(r, p, pass);
    if (!r->o.dump_after || !r->planning || r->what_if.on ||
        (strcmp(r->o.dump_after, pass) != 0 && strcmp(r->o.dump_after, "all") != 0))
        return;
    struct str text;
    str_init(&text);
    str_printf(&text, "# program %s after %s\n", p->name, pass);
    ir_print(p, &text);
    (void)fputs(text.data, r->o.dump_out ? r->o.dump_out : stdout);
    str_release(&text);
}

static const char *checkpoint_dir(struct run *r)
{
    char dir[1024];
    return arena_strdup(&r->memory, path_join(snug_home(), "models", dir, sizeof dir));
}

/* The graph's name, as part of a file's name. */
static const char *file_name_of(struct run *r)
{
    char *name = arena_strdup(&r->memory, graph_name(r->graph));
    for (char *p = name; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
              *p == '-' || *p == '_'))
            *p = '_';
    return name[0] ? name : "run";
}

static const char *key_of(struct run *r)
{
    char key[33];
    graph_key(r->graph, key);
    return arena_strdup(&r->memory, key);
}

static int option_of(const struct graph_node *n, const char *param, const char *const *options)
{
    const char *value = graph_param_str(n, param);
    for (int i = 0; options[i]; i++)
        if (strcmp(value, options[i]) == 0)
            return i;
    return 0;
}

struct levers run_levers(struct run *r, const struct graph_node *n)
{
    static const char *const checkpointing[] = {"none", "blocks", "selective", "auto", NULL};
    static const char *const states[] = {"float32", "int8", "host", NULL};
    static const char *const masters[] = {"float32", "none", "stochastic", NULL};
    static const char *const dtypes[] = {"float32", "bfloat16", "float16", NULL};
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    struct levers l = {
        .checkpointing = (enum checkpointing)option_of(n, "checkpointing", checkpointing),
        .loss_chunk_tokens = graph_param_i64(n, "loss_chunk_tokens"),
        .update_in_backward = graph_param_bool(n, "update_in_backward"),
        .optimizer_state = (enum optimizer_state)option_of(n, "optimizer_state", states),
        .parameter_dtype = types[option_of(n, "parameter_dtype", dtypes)],
        .master_weights = (enum master_weights)option_of(n, "master_weights", masters),
        .offload_activations = graph_param_bool(n, "offload_activations"),
        .budget_bytes = run_place_of(r, n)->room_bytes};
    if (r->what_if.lever_off)
        lever_switch_off(&l, (enum lever_field)(r->what_if.lever_off - 1));
    if (run_place_of(r, n)->device->kind == DEVICE_CPU) { /* there is no other place */
        if (l.optimizer_state == OPTIM_STATE_HOST)
            l.optimizer_state = OPTIM_STATE_F32;
        l.offload_activations = false;
    }
    return l;
}

static void warn_once(struct run *r, const struct graph_node *n, const char *text)
{
    if (!run_has_said(r, text))
        run_warn(r, n, "offload", "%s", text);
}

/* Offloading that was asked for and has nothing to move. x: the loop's, NULL on the CPU. */
static void warn_idle_offload(struct run *r, const struct graph_node *n, const struct exec *x)
{
    if (strcmp(graph_param_str(n, "optimizer_state"), "host") == 0) {
        if (!x)
            warn_once(
                r, n,
                "optimizer_state host has no effect on the CPU: the state lies in the host's "
                "memory already");
        else if (exec_report(x)->host_state_bytes == 0)
            warn_once(r, n, "optimizer_state host has no effect: this optimizer keeps no state");
    }
    if (graph_param_bool(n, "offload_activations")) {
        if (!x)
            warn_once(
                r, n,
                "offload_activations has no effect on the CPU: they lie in the host's memory "
                "already");
        else if (exec_report(x)->host_activation_bytes == 0)
            warn_once(
                r, n,
                "offload_activations has no effect: no activation of 64 KiB or more waits long "
                "enough for the backward pass");
    }
}

/* What the loop keeps on the host beside data sets and loaders. */
static void account_host(struct run *r, const struct graph_node *n, const struct exec *x)
{
    const struct exec_report *report = exec_report(x);
    run_host_row(r, n->id, "optimizer state", report->host_state_bytes);
    run_host_row(r, n->id, "activations", report->host_activation_bytes);
    if (report->transfer_bytes > r->bill.transfer_bytes)
        r->bill.transfer_bytes = report->transfer_bytes;
}

/* G10: where there is one card for the loop, ddp trains in one process as single does, and says so.
 */
static enum status check_strategy(struct run *r, const struct graph_node *n, struct err *e)
{
    char why[160], text[320];
    int cards = r->o.n_picks > 0 && strcmp(r->o.picks[0].id, "cpu") != 0 ? r->o.n_picks : 0;
    if (strcmp(graph_param_str(n, "strategy"), "ddp") != 0)
        return ST_OK;
    if (cards > 1 && !n->container)
        return err_set(
            e, ST_UNSUPPORTED, "this version cannot train over %d cards with strategy ddp", cards);
    if (n->container)
        (void)snprintf(why, sizeof why, "inside \"%.80s\" a loop has one card", n->container);
    else if (r->o.n_picks > 0)
        (void)snprintf(why, sizeof why, "this run has %s", cards ? "1 card" : "the CPU");
    else
        (void)snprintf(why, sizeof why, "it needs a worker's run on two or more CUDA cards");
    (void)snprintf(
        text, sizeof text,
        "strategy ddp is not available here: %s, so it trains in one process, as single does", why);
    if (!run_has_said(r, text))
        run_warn(r, n, "ddp_not_available", "%s", text);
    return ST_OK;
}

static enum status
config_of(struct run *r, const struct graph_node *n, struct train_config *c, struct err *e)
{
    TRY(check_strategy(r, n, e));
    *c = (struct train_config){
        .node_id = n->id,
        .epochs = graph_param_i64(n, "epochs"),
        .max_steps = graph_param_i64(n, "max_steps"),
        .accumulate = accumulate_of(r, n),
        .precision = run_precision(r, n),
        .precision_requested = precision_of(r, n),
        .max_norm = graph_param_f64(n, "grad_clip_norm"),
        .patience = graph_param_i64(n, "early_stopping_patience"),
        .monitor_accuracy = strcmp(graph_param_str(n, "monitor"), "val_accuracy") == 0,
        .checkpoint_every = graph_param_i64(n, "checkpoint_every"),
        .checkpoint_every_steps = graph_param_i64(n, "checkpoint_every_steps"),
        .checkpoint_keep = graph_param_i64(n, "checkpoint_keep"),
        .val_every_steps = graph_param_i64(n, "val_every_steps"),
        .log_interval = graph_param_i64(n, "log_interval"),
        .batch_metrics = graph_param_bool(n, "batch_metrics"),
        .memory_steps = r->o.memory_steps,
        .log_grad_norm = graph_param_bool(n, "log_grad_norm"),
        .log_update_ratio = graph_param_bool(n, "log_update_ratio"),
        .fresh = !r->o.resume,
        .schedule_per_update = strcmp(graph_param_str(n, "scheduler_step"), "optimizer_step") == 0,
        .accumulate_tokens = strcmp(graph_param_str(n, "accumulate_normalize"), "tokens") == 0,
        .bf16_scaler = graph_param_bool(n, "bf16_scaler"),
        .scale_initial = graph_param_f64(n, "grad_scaler_init"),
        .scale_fixed = graph_param_bool(n, "grad_scaler_fixed"),
        .scale_growth_interval = graph_param_i64(n, "grad_scaler_growth_interval"),
        .health_interval = graph_param_i64(n, "health_interval"),
        .seed = (uint64_t)r->seed,
        .budget_bytes = 0,
        .storage = r->o.storage,
        .workspace_limit_bytes = r->frugal ? -1 : 0,
        .device = run_place_of(r, n)->device->id,
        .source = &run_place_of(r, n)->source,
        .graph_key = key_of(r),
        .levers = run_levers(r, n),
        .checkpoint_dir = checkpoint_dir(r),
        .run_name = file_name_of(r)};
    if (!(c->max_norm >= 0) || isinf(c->max_norm))
        return err_set(e, ST_INVALID, "parameter 'grad_clip_norm' is not a norm");
    return ST_OK;
}

/* start_epoch: negative or unreadable is 0, with a warning. */
static void start_epoch(struct run *r, size_t node, struct train_config *c)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow f;
    if (!flow_has(r, node, "start_epoch", &f))
        return;
    if (f.kind == FLOW_SCALAR && f.scalar >= 0 && f.scalar == floor(f.scalar) && f.scalar < 1e15)
        c->start_epoch = (int64_t)f.scalar;
    else if (!r->planning)
        run_warn(r, n, "start_epoch", "input 'start_epoch' is not a count of epochs: 0 is used");
}

static enum status parts_of(
    struct run *r, size_t node, struct train_parts *parts, struct flow_model **model,
    struct flow_loader **train, struct flow_loader **val, struct err *e)
{
    struct flow f;
    *parts = (struct train_parts){0};
    TRY(flow_get(r, node, "model", FLOW_MODEL, &f, e));
    *model = f.model;
    parts->model = f.model->model;
    parts->vars = &f.model->vars;
    TRY(flow_get(r, node, "dataloader", FLOW_LOADER, &f, e));
    *train = f.loader;
    parts->train = &f.loader->plan;
    parts->train_batch = f.loader->options.batch_size;
    TRY(flow_get(r, node, "optimizer", FLOW_OPTIMIZER, &f, e));
    parts->optim = &f.optimizer->spec;
    TRY(flow_get(r, node, "loss_fn", FLOW_LOSS, &f, e));
    parts->loss = f.loss;
    *val = NULL;
    if (flow_has(r, node, "val_dataloader", &f) && f.kind == FLOW_LOADER) {
        struct flow_loader *l = f.loader;
        /* Validation inside an epoch must not move the place in it. */
        if (l == *train)
            TRY(flow_loader_make(r, l->data, l->node_id, &l->options, &l, e));
        *val = l;
        parts->val = &l->plan;
        parts->val_batch = f.loader->options.batch_size;
    }
    if (flow_has(r, node, "lr_scheduler", &f) && f.kind == FLOW_SCHEDULE)
        parts->schedule = f.schedule->schedule;
    return ST_OK;
}

/* The file of --resume FILE|auto, NULL for none. Nothing found under auto is a fresh start. */
static const char *find_checkpoint(struct run *r, const struct train_config *c)
{
    if (!r->o.resume || r->resume_done)
        return NULL;
    const char *path = r->o.resume;
    char newest[1400];
    if (strcmp(path, "auto") == 0)
        path = checkpoint_newest(c->checkpoint_dir, c->graph_key, newest, sizeof newest) ? newest
                                                                                         : NULL;
    char in_models[1200];
    if (path && path != newest && !file_exists(path) && path_is_inside(path) &&
        file_exists(path_join(c->checkpoint_dir, path, in_models, sizeof in_models)))
        path = in_models;
    r->resume_done = true;
    if (!path) {
        run_warn(r, NULL, "resume", "no checkpoint of this graph yet: the run starts anew");
        return NULL;
    }
    (void)snprintf(r->resumed_from, sizeof r->resumed_from, "%s", path);
    return r->resumed_from;
}

/* The order of the samples is part of what is resumed: loaders take the checkpoint's seed. */
static void
take_seed(struct run *r, const char *path, struct flow_loader *train, struct flow_loader *val)
{
    uint64_t seed;
    if (!checkpoint_seed(path, &seed))
        return;
    if (r->o.has_seed && seed != (uint64_t)r->seed)
        run_warn(
            r, NULL, "resume", "the checkpoint's seed %llu is used, not %lld",
            (unsigned long long)seed, (long long)r->seed);
    r->seed = (int64_t)seed;
    train->options.seed = seed;
    if (val)
        val->options.seed = seed;
}

static enum status start_training(
    struct run *r, size_t node, struct train *t, struct flow_model *m, struct flow_loader *train,
    struct flow_loader *val, const struct train_config *c, struct err *e)
{
    struct fill_ctx ctx;
    const char *from = find_checkpoint(r, c);
    if (from)
        take_seed(r, from, train, val);
    TRY(flow_loader_open(r, train, e));
    if (val)
        TRY(flow_loader_open(r, val, e));
    if (m->home) /* its memory is the new loop's: the weights wait on the host */
        TRY(exec_stash(m->home, e));
    TRY(fill_begin(&ctx, r, m, e));
    warn_range(r, graph_node_at(r->graph, node), &ctx, c->precision);
    /* A second training loop takes the weights from where the first left them. */
    struct train_weights w = {
        .fill = flow_model_fill,
        .ctx = &ctx,
        .from = m->home,
        .from_vars = m->home_vars,
        .from_dtype = m->home_dtype};
    enum status st = train_start(t, train->open, val ? val->open : NULL, &w, e);
    fill_end(&ctx);
    struct flow f;
    if (st == ST_OK && m->trained && flow_has(r, node, "optimizer", &f) &&
        f.optimizer == m->trained_by)
        train_carry(t, m->trained);
    if (st == ST_OK && flow_has(r, node, "optimizer", &f))
        m->trained_by = f.optimizer;
    if (st == ST_OK && m->checkpoint)
        st = train_adopt(t, m->checkpoint, e);
    m->checkpoint = NULL; /* a second loop goes on from the first, not from the file again */
    if (st == ST_OK && flow_has(r, node, "grad_scaler_state", &f) && f.kind == FLOW_JSON)
        st = train_set_scaler(t, f.json, e);
    if (st == ST_OK && from)
        st = train_resume(t, from, e);
    return st;
}

/* The trained weights stay where they are; earlier homes are given up. */
static void move_home(struct flow_model *m, struct train *t, struct run_place *place)
{
    if (m->home && m->owns_home)
        exec_free(m->home);
    else if (m->home)
        exec_empty(m->home);
    flow_model_home(m, train_exec(t), place, false);
    m->trained = t;
}

static void set_results(
    struct run *r, size_t node, struct train *t, const struct flow *model,
    const struct flow *optimizer)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    size_t count;
    json_t *metrics = train_metrics(t);
    const double *losses = train_losses(t, &count);
    flow_set(r, node, "model", *model);
    flow_set(r, node, "optimizer", *optimizer);
    flow_set(r, node, "losses", flow_list(r, losses, count));
    losses = train_val_losses(t, &count);
    flow_set(r, node, "val_losses", flow_list(r, losses, count));
    flow_set(r, node, "metrics", (struct flow){.kind = FLOW_JSON, .json = metrics});
    json_t *scaler = train_scaler_state(t);
    if (scaler) {
        vec_push(&r->documents, scaler);
        flow_set(r, node, "grad_scaler_state", (struct flow){.kind = FLOW_JSON, .json = scaler});
    }
    vec_push(&r->documents, metrics);
    json_decref(r->metrics);
    r->metrics = json_incref(metrics);
    json_put(r->results, n->id, json_incref(metrics));
}

static void keep_profile(struct run *r, const char *node_id, const struct exec *x)
{
    json_t *row = json_object();
    json_put_str(row, "node_id", node_id);
    json_put(row, "programs", exec_profile_json(x));
    if (!r->profile)
        r->profile = json_array();
    (void)json_array_append_new(r->profile, row);
}

static enum status train_for_real(
    struct run *r, size_t node, struct train *t, struct flow_model *m, struct flow_loader *train,
    struct flow_loader *val, const struct train_config *c, struct err *e)
{
    struct run_place *place = run_place_of(r, graph_node_at(r->graph, node));
    TRY(start_training(r, node, t, m, train, val, c, e));
    move_home(m, t, place);
    if (r->o.profile)
        exec_profile_begin(train_exec(t));
    enum status st = train_run(t, e);
    if (r->o.profile)
        keep_profile(r, c->node_id, train_exec(t));
    run_measured(r, place, m, train_exec(t));
    r->offload_measured_bytes += exec_host_measured(train_exec(t));
    exec_trim(train_exec(t));
    return st;
}

enum status node_training_loop(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct train_config c;
    struct train_parts parts;
    struct flow_model *m;
    struct flow_loader *train, *val;
    struct flow model, optimizer;
    TRY(config_of(r, n, &c, e));
    start_epoch(r, node, &c);
    TRY(parts_of(r, node, &parts, &m, &train, &val, e));
    if (c.levers.checkpointing == CHECKPOINT_NONE && model_wants_checkpointing(m->model))
        c.levers.checkpointing = CHECKPOINT_BLOCKS;
    TRY(flow_get(r, node, "model", FLOW_MODEL, &model, e));
    TRY(flow_get(r, node, "optimizer", FLOW_OPTIMIZER, &optimizer, e));
    struct train_sink sink = {pass_event, run_stop_asked, r};
    struct step_dump dump = {dump_pass, r};
    struct train *t;
    TRY(train_new(&c, &parts, &sink, &dump, &t, e));
    vec_push(&r->trains, t);
    if (r->planning) {
        if (train_steps(t)->unchunked)
            r->bill.unchunked = train_steps(t)->unchunked;
        struct run_place *place = run_place_of(r, n);
        run_account(r, n, place, m, train_exec(t), &m->vars, train_steps(t)->programs);
        account_host(r, n, train_exec(t));
        bool card = place->device->kind != DEVICE_CPU;
        r->bill.trains_on_card = r->bill.trains_on_card || card;
        if (!r->what_if.on)
            warn_idle_offload(r, n, card ? train_exec(t) : NULL);
        move_home(m, t, place);
        set_results(r, node, t, &model, &optimizer);
        return ST_OK;
    }
    enum status st = train_for_real(r, node, t, m, train, val, &c, e);
    set_results(r, node, t, &model, &optimizer);
    return st;
}

/* ---- evaluation ---- */

enum status flow_model_exec(
    struct run *r, const struct graph_node *n, struct flow_model *m, struct ir_program **programs,
    int n_programs, struct exec **out, struct err *e)
{
    struct run_place *place = run_place_of(r, n);
    struct exec *lender = m->home_place == place ? m->home : NULL; /* elsewhere: copies of them */
    struct exec_options o = {
        .storage = r->o.storage,
        .lender = lender,
        .workspace_limit_bytes = r->frugal ? -1 : 0,
        .source = &place->source};
    TRY(exec_new(&m->vars, programs, n_programs, &o, out, e));
    if (r->planning) {
        run_account(r, n, place, m, *out, &m->vars, programs);
        return ST_OK;
    }
    enum status st = exec_map(*out, e);
    struct fill_ctx ctx;
    if (st == ST_OK && !lender) {
        st = fill_begin(&ctx, r, m, e);
        struct train_weights w = {
            .fill = flow_model_fill,
            .ctx = &ctx,
            .from = m->home,
            .from_vars = m->home_vars,
            .from_dtype = m->home_dtype};
        if (st == ST_OK)
            st = fill_model(m->model, &m->vars, *out, &w, e);
        fill_end(&ctx);
    }
    if (st != ST_OK) {
        exec_free(*out);
        *out = NULL;
    }
    return st;
}

/* Done with an exec of flow_model_exec: it stays as the model's home, or goes. */
void flow_model_leave(
    struct run *r, const struct graph_node *n, struct flow_model *m, struct exec *x)
{
    if (!x)
        return;
    struct run_place *place = run_place_of(r, n);
    if (!r->planning)
        run_measured(r, place, m, x);
    if (!m->home) {
        flow_model_home(m, x, place, true);
        exec_trim(x);
    } else {
        exec_free(x);
    }
}

struct evaluation {
    struct ir_program *programs[2]; /* full batch, short last batch */
    int n, full, last;              /* indices of each */
    struct flow_loader *loader;
};

static enum status build_evaluation(
    struct run *r, const struct graph_node *n, struct flow_model *m, struct flow_dataset *d,
    struct evaluation *v, struct err *e)
{
    struct loader_options o = {.batch_size = graph_param_i64(n, "batch_size")};
    TRY(flow_loader_make(r, d, n->id, &o, &v->loader, e));
    const struct loader_plan *p = &v->loader->plan;
    if (p->target != DATA_I64)
        return err_set(
            e, ST_INVALID, "EvaluateModel counts classes, and the data set's targets are none");
    struct step_config c = {.model = m->model, .precision = run_precision(r, n)};
    c.sample.input.rank = p->rank;
    memcpy(c.sample.input.dim, p->shape, sizeof *p->shape * (size_t)p->rank);
    c.sample.target.rank = p->target_rank;
    memcpy(c.sample.target.dim, p->target_shape, sizeof *p->target_shape * (size_t)p->target_rank);
    c.sample.target_dtype = DT_I64;
    c.sample.has_target = true;
    bool has_short = p->batches > 0 && p->last_count != o.batch_size;
    if (p->batches > (has_short ? 1 : 0)) {
        v->full = v->n;
        TRY(step_eval_make(&m->vars, &c, o.batch_size, &v->programs[v->n], e));
        run_show(r, v->programs[v->n], "evaluate");
        v->n++;
    }
    if (has_short) {
        TRY(step_eval_make(&m->vars, &c, p->last_count, &v->programs[v->n], e));
        run_show(r, v->programs[v->n], "evaluate");
        v->last = v->n++;
    } else {
        v->last = v->full;
    }
    return ST_OK;
}

static enum status run_evaluation(
    struct run *r, struct evaluation *v, struct exec *x, int64_t *correct, int64_t *counted,
    struct err *e)
{
    const struct loader_plan *p = &v->loader->plan;
    int64_t count;
    TRY(flow_loader_open(r, v->loader, e));
    TRY(loader_begin_epoch(v->loader->open, 0, 0, e));
    for (int64_t i = 0; i < p->batches; i++) {
        int index = i == p->batches - 1 ? v->last : v->full;
        const struct ir_program *program = v->programs[index];
        TRY(exec_inputs_ready(x, index, e));
        TRY(loader_next(
            v->loader->open, exec_value(x, index, ir_input_find(program, "input")),
            exec_value(x, index, ir_input_find(program, "target")), &count, e));
        TRY(exec_run(x, index, e));
        const int64_t *hits = exec_value(x, index, ir_output_find(program, "correct"));
        *correct += hits[0];
        *counted += hits[1];
        if (run_stop_asked(r))
            return err_set(e, ST_INTERRUPTED, "stopped during evaluation");
    }
    return ST_OK;
}

enum status node_evaluate(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow model, data;
    struct evaluation v = {0};
    struct exec *x = NULL;
    int64_t correct = 0, counted = 0;
    TRY(flow_get(r, node, "model", FLOW_MODEL, &model, e));
    TRY(flow_get(r, node, "dataset", FLOW_DATASET, &data, e));
    enum status st = build_evaluation(r, n, model.model, data.dataset, &v, e);
    run_keep_programs(r, v.programs, v.n);
    if (st == ST_OK)
        st = flow_model_exec(r, n, model.model, v.programs, v.n, &x, e);
    if (st == ST_OK && !r->planning)
        st = run_evaluation(r, &v, x, &correct, &counted, e);
    flow_model_leave(r, n, model.model, x);
    TRY(st);
    double accuracy = counted ? (double)correct / (double)counted : 0;
    flow_set(r, node, "accuracy", (struct flow){.kind = FLOW_SCALAR, .scalar = accuracy});
    flow_set(r, node, "correct", (struct flow){.kind = FLOW_SCALAR, .scalar = (double)correct});
    flow_set(r, node, "total", (struct flow){.kind = FLOW_SCALAR, .scalar = (double)counted});
    if (r->planning)
        return ST_OK;
    json_t *result = json_object(), *event = json_object();
    json_put_f64(result, "accuracy", accuracy);
    json_put_i64(result, "correct", correct);
    json_put_i64(result, "total", counted);
    json_put(r->results, n->id, result);
    json_put_str(event, "event", "evaluation");
    json_put_str(event, "node_id", n->id);
    json_put_f64(event, "eval_accuracy", accuracy);
    json_put_i64(event, "correct", correct);
    json_put_i64(event, "total", counted);
    run_event(r, event);
    return ST_OK;
}

/* ---- inference ---- */

enum status node_inference(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow model, in;
    struct ir_program *p = NULL;
    struct exec *x = NULL;
    TRY(flow_get(r, node, "model", FLOW_MODEL, &model, e));
    TRY(flow_get(r, node, "input", FLOW_NUMBERS, &in, e));
    TRY(step_forward_make(
        &model.model->vars, model.model->model, in.numbers->shape, PRECISION_FP32, &p, e));
    run_keep_programs(r, &p, 1);
    run_show(r, p, "evaluate");
    int input = ir_input_find(p, "input"), output = ir_output_find(p, "output");
    enum status st = flow_model_exec(r, n, model.model, &p, 1, &x, e);
    struct flow_numbers *out = ARENA_NEW(&r->memory, struct flow_numbers);
    out->shape = ir_value_at(p, output)->shape;
    out->dtype = ir_value_at(p, output)->dtype;
    int64_t count = shape_count(&out->shape), given = shape_count(&in.numbers->shape);
    out->data = ARENA_ARRAY(&r->memory, char, count *dtype_size(out->dtype) + 1);
    if (st == ST_OK && !r->planning)
        st = exec_inputs_ready(x, 0, e);
    if (st == ST_OK && !r->planning) {
        void *to = exec_value(x, 0, input);
        for (int64_t i = 0; i < given; i++)
            dtype_store(
                to, ir_value_at(p, input)->dtype, i,
                dtype_load(in.numbers->data, in.numbers->dtype, i));
        st = exec_run(x, 0, e);
        if (st == ST_OK)
            memcpy(out->data, exec_value(x, 0, output), (size_t)(count * dtype_size(out->dtype)));
    }
    flow_model_leave(r, n, model.model, x);
    flow_set(r, node, "output", (struct flow){.kind = FLOW_NUMBERS, .numbers = out});
    flow_set(r, node, "model", model);
    return st;
}
