/* train_test_support.c - builds and runs the small training runs of the tests. */
#include "train/train_test_support.h"

#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- setups ---- */

enum { SAMPLES_MAX = 8192 };

struct trial_setup trial_scalar(const float *c, int64_t n)
{
    static float far_below[SAMPLES_MAX];
    struct trial_setup s = {.layers = SCALAR_LAYERS};
    CHECK(n <= SAMPLES_MAX);
    for (int64_t i = 0; i < SAMPLES_MAX; i++)
        far_below[i] = -1024;
    s.train = (struct trial_data){
        .n = n,
        .batch = 1,
        .rank = 1,
        .shape = {1},
        .x = c,
        .target = DATA_F32,
        .target_rank = 1,
        .target_shape = {1},
        .y = far_below};
    return s;
}

struct trial_setup trial_classifier(const int64_t *labels, int64_t n, int64_t batch)
{
    static const float zeros[SAMPLES_MAX];
    struct trial_setup s = {.layers = CLASSIFIER_LAYERS, .loss = "{'type':'CrossEntropyLoss'}"};
    CHECK(n <= SAMPLES_MAX);
    s.train = (struct trial_data){
        .n = n,
        .batch = batch,
        .rank = 1,
        .shape = {1},
        .x = zeros,
        .target = DATA_I64,
        .y = labels,
        .classes = 2};
    return s;
}

struct trial_setup trial_mlp(int64_t n, int64_t batch)
{
    struct trial_setup s = {
        .layers = "Linear a {'in_features':6,'out_features':8}; ReLU r; Dropout d {'p':0.25};"
                  "Linear b {'in_features':8,'out_features':3}",
        .loss = "{'type':'CrossEntropyLoss'}",
        .optim = "{'type':'SGD','lr':0.125,'momentum':0.5}"};
    s.config.seed = 7;
    s.train = (struct trial_data){
        .n = n, .batch = batch, .rank = 1, .shape = {6}, .target = DATA_I64, .classes = 3};
    return s;
}

struct trial_setup trial_cnn(int64_t n, int64_t batch)
{
    struct trial_setup s = {
        .layers =
            "Conv2d c {'in_channels':2,'out_channels':8,'kernel_size':3,'padding':1};"
            "BatchNorm2d n {'num_features':8}; ReLU r; MaxPool2d p {'kernel_size':2,'stride':2};"
            "Flatten f; Dropout d {'p':0.25}; Linear l {'in_features':128,'out_features':4}",
        .loss = "{'type':'CrossEntropyLoss'}",
        .optim = "{'type':'Adam','lr':0.01}"};
    s.config.seed = 7;
    s.train = (struct trial_data){
        .n = n, .batch = batch, .rank = 3, .shape = {2, 8, 8}, .target = DATA_I64, .classes = 4};
    return s;
}

/* ---- the model's document ---- */

static void add_layer(struct str *nodes, struct str *edges, char *text, char last[64])
{
    char type[64] = "", id[64] = "";
    int used = 0;
    if (sscanf(text, " %63s %63s %n", type, id, &used) < 2)
        test_fail(__FILE__, __LINE__, "not a layer: \"%s\"", text);
    const char *params = text[used] ? text + used : "{}";
    str_printf(nodes, ",{'id':'%s','type':'%s','params':%s}", id, type, params);
    if (last[0])
        str_printf(edges, ",{'source':'%s','target':'%s'}", last, id);
    else
        str_printf(edges, "{'source':'in','sourceHandle':'a','target':'%s'}", id);
    (void)snprintf(last, 64, "%s", id);
}

static void quotes(char *s)
{
    for (; s && *s; s++)
        *s = *s == '\'' ? '"' : *s;
}

static void document(struct str *out, const char *chain)
{
    struct str nodes, edges;
    char last[64] = "", *copy = mem_strdup(chain), *rest = copy;
    str_init(&nodes);
    str_init(&edges);
    for (char *part; (part = strsep(&rest, ";"));)
        add_layer(&nodes, &edges, part, last);
    str_printf(
        out,
        "{'version':2,'nodes':[{'id':'in','type':'Input','ports':[{'id':'a','name':'x'}]}%s,"
        "{'id':'out','type':'Output','ports':[{'id':'b','name':'y'}]}],'edges':[%s,"
        "{'source':'%s','target':'out','targetHandle':'b'}]}",
        nodes.data, edges.data, last);
    str_release(&nodes);
    str_release(&edges);
    mem_free(copy);
}

static void make_model(struct trial *t)
{
    struct str text;
    struct err e;
    str_init(&text);
    if (strstr(t->setup.layers, "nodes"))
        str_add(&text, t->setup.layers);
    else
        document(&text, t->setup.layers);
    quotes(text.data);
    CHECK_OK(model_from_layers(text.data, "model", &t->vars, &t->model, &e), &e);
    if (t->setup.adapter)
        CHECK_OK(model_adapt(t->model, t->setup.adapter, &e), &e);
    str_release(&text);
}

static json_t *params(const char *text)
{
    char *copy = mem_strdup(text);
    json_t *j;
    struct err e;
    quotes(copy);
    CHECK_OK(json_parse(copy, strlen(copy), "parameters", &j, &e), &e);
    mem_free(copy);
    return j;
}

static void make_specs(struct trial *t)
{
    const struct trial_setup *s = &t->setup;
    struct err e;
    json_t *loss = params(s->loss ? s->loss : "{'type':'L1Loss'}");
    json_t *optim = params(s->optim ? s->optim : "{'type':'SGD','lr':1}");
    CHECK_OK(loss_spec_make(loss, &t->loss, &e), &e);
    CHECK_OK(optim_spec_make(optim, &t->optim, &e), &e);
    if (s->schedule) {
        json_t *schedule = params(s->schedule);
        CHECK_OK(schedule_new(schedule, &t->optim, &t->schedule, &e), &e);
        schedule_prepare_optim(t->schedule, &t->optim);
        json_decref(schedule);
    }
    json_decref(loss);
    json_decref(optim);
}

/* ---- data ---- */

static int64_t product(const int64_t *dim, int rank)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= dim[i];
    return n;
}

/* Numbers without a pattern that a layer could follow, the same on every machine. */
static float made_up(int64_t i)
{
    uint64_t h = (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9u;
    return (float)((int64_t)(h >> 40) % 2048 - 1024) / 512;
}

static struct dataset *make_set(const struct trial_data *d)
{
    int64_t n = d->n * product(d->shape, d->rank),
            m = d->n * product(d->target_shape, d->target_rank);
    float *x = mem_alloc((size_t)(n + 1) * sizeof *x), *f = mem_alloc((size_t)(m + 1) * sizeof *f);
    int64_t *labels = mem_alloc((size_t)(m + 1) * sizeof *labels);
    struct dataset *out;
    struct err e;
    for (int64_t i = 0; i < n; i++)
        x[i] = made_up(i);
    for (int64_t i = 0; i < m; i++) {
        f[i] = made_up(i + 7);
        labels[i] = d->classes ? (i * 7 + i / 3) % d->classes : 0;
    }
    const void *y = d->target == DATA_I64 ? (const void *)labels : (const void *)f;
    struct dataset_arrays a = {
        .count = d->n,
        .type = DATA_F32,
        .rank = d->rank,
        .shape = d->shape,
        .x = d->x ? d->x : x,
        .target = d->target,
        .target_rank = d->target_rank,
        .target_shape = d->target_shape,
        .y = d->y ? d->y : y,
        .classes = d->classes};
    CHECK_OK(dataset_from_arrays(&a, &out, &e), &e);
    mem_free(x);
    mem_free(f);
    mem_free(labels);
    return out;
}

static void make_loader(
    const struct trial *t, const struct trial_data *d, uint32_t stream, struct dataset **set,
    struct loader **loader)
{
    struct err e;
    struct loader_options o = {
        .batch_size = d->batch,
        .shuffle = d->shuffle,
        .drop_last = d->drop_last,
        .seed = t->setup.config.seed,
        .stream = stream};
    *set = make_set(d);
    CHECK_OK(loader_new(*set, NULL, &o, loader, &e), &e);
}

/* ---- a run ---- */

static void take_event(const json_t *event, void *ctx)
{
    struct trial *t = ctx;
    (void)json_array_append(t->events, (json_t *)(uintptr_t)event);
}

static bool stop_asked(void *ctx)
{
    struct trial *t = ctx;
    t->polls++;
    return t->stop_after && t->polls >= t->stop_after;
}

enum status trial_plan(struct trial *t, const struct trial_setup *s, struct err *e)
{
    *t = (struct trial){.setup = *s, .events = json_array()};
    struct train_config *c = &t->setup.config;
    c->epochs = c->epochs ? c->epochs : 1;
    c->accumulate = c->accumulate ? c->accumulate : 1;
    c->node_id = c->node_id ? c->node_id : "loop";
    ir_vars_init(&t->vars);
    make_model(t);
    make_specs(t);
    make_loader(t, &s->train, 1, &t->train_set, &t->train_loader);
    struct train_parts p = {
        .model = t->model,
        .vars = &t->vars,
        .loss = &t->loss,
        .optim = &t->optim,
        .schedule = t->schedule,
        .train = loader_get_plan(t->train_loader),
        .train_batch = s->train.batch};
    if (s->val.batch) {
        make_loader(t, &s->val, 2, &t->val_set, &t->val_loader);
        p.val = loader_get_plan(t->val_loader);
        p.val_batch = s->val.batch;
    }
    struct train_sink sink = {take_event, stop_asked, t};
    enum status st = train_new(c, &p, &sink, NULL, &t->train, e);
    if (st != ST_OK)
        trial_close(t);
    return st;
}

static enum status fill(int var, void *data, void *ctx, struct err *e)
{
    struct trial *t = ctx;
    (void)e;
    model_init_var(t->model, var, data, t->setup.config.seed);
    if (strcmp(t->setup.layers, SCALAR_LAYERS) == 0)
        *(float *)data = 0;
    if (strcmp(t->setup.layers, CLASSIFIER_LAYERS) == 0)
        ((float *)data)[0] = ((float *)data)[1] = 0;
    return ST_OK;
}

void trial_open(struct trial *t, const struct trial_setup *s)
{
    struct err e;
    CHECK_OK(trial_plan(t, s, &e), &e);
    if (s->scale_forced != 0)
        t->train->scaler = scaler_new(s->scale_forced, true, 2000);
    struct train_weights w = {.fill = fill, .ctx = t};
    CHECK_OK(train_start(t->train, t->train_loader, t->val_loader, &w, &e), &e);
}

enum status trial_go(struct trial *t, struct err *e)
{
    return train_run(t->train, e);
}

void trial_run(struct trial *t)
{
    struct err e;
    CHECK_OK(trial_go(t, &e), &e);
}

void trial_run_to(struct trial *t, int64_t n)
{
    struct err e;
    t->stop_after = t->polls + n;
    CHECK_EQ(trial_go(t, &e), ST_INTERRUPTED);
    t->stop_after = 0;
}

void trial_save(struct trial *t, char path[512], const char *name)
{
    struct err e;
    (void)snprintf(path, 512, "%s/%s.pt", test_dir(), name);
    CHECK_OK(train_save(t->train, path, -1, &e), &e);
}

void trial_resume(struct trial *t, const char *path)
{
    struct err e;
    CHECK_OK(train_resume(t->train, path, &e), &e);
}

void trial_close(struct trial *t)
{
    train_free(t->train);
    loader_free(t->train_loader);
    loader_free(t->val_loader);
    dataset_free(t->train_set);
    dataset_free(t->val_set);
    schedule_free(t->schedule);
    loss_spec_release(&t->loss);
    model_free(t->model);
    ir_vars_release(&t->vars);
    json_decref(t->events);
    *t = (struct trial){0};
}

double trial_scalar_weight(const struct trial_setup *s)
{
    struct trial t;
    trial_open(&t, s);
    trial_run(&t);
    double w = trial_w(&t);
    trial_close(&t);
    return w;
}

/* ---- looking at it ---- */

float *trial_var(struct trial *t, const char *name)
{
    int v = ir_var_find(&t->vars, name);
    if (v == IR_NONE)
        test_fail(__FILE__, __LINE__, "no variable \"%s\"", name);
    CHECK_EQ(t->vars.list.data[v].dtype, DT_F32);
    return exec_var(train_exec(t->train), v);
}

double trial_w(struct trial *t)
{
    return (double)*trial_var(t, SCALAR_W);
}

double trial_metric(struct trial *t, const char *key)
{
    json_t *m = train_metrics(t->train);
    double v = json_get_f64(m, key, (double)NAN);
    json_decref(m);
    return v;
}

const json_t *trial_last(struct trial *t, const char *event)
{
    for (size_t i = json_array_size(t->events); i-- > 0;) {
        const json_t *j = json_array_get(t->events, i);
        if (strcmp(json_get_str(j, "event", ""), event) == 0)
            return j;
    }
    return NULL;
}

int trial_count(struct trial *t, const char *event)
{
    int n = 0;
    for (size_t i = 0; i < json_array_size(t->events); i++)
        n += strcmp(json_get_str(json_array_get(t->events, i), "event", ""), event) == 0;
    return n;
}

bool trial_warned(struct trial *t, const char *kind)
{
    for (size_t i = 0; i < json_array_size(t->events); i++)
        if (strcmp(json_get_str(json_array_get(t->events, i), "kind", ""), kind) == 0)
            return true;
    return false;
}

static bool same_var(struct trial *a, struct trial *b, size_t i)
{
    const struct ir_var *v = &a->vars.list.data[i];
    int other = ir_var_find(&b->vars, v->name);
    if (v->category == CATEGORY_GRADIENTS)
        return true; /* written anew by the first micro-batch of a window */
    if (other == IR_NONE)
        test_fail(__FILE__, __LINE__, "only one run has \"%s\"", v->name);
    return memcmp(
               exec_var(train_exec(a->train), (int)i), exec_var(train_exec(b->train), other),
               (size_t)(shape_count(&v->shape) * dtype_size(v->dtype))) == 0;
}

bool trial_same_weights(struct trial *a, struct trial *b)
{
    for (int i = 0; i < model_state_count(a->model); i++)
        if (!same_var(a, b, (size_t)model_state_var(a->model, i)))
            return false;
    return true;
}

static void
check_same_numbers(const char *what, const double *a, size_t n, const double *b, size_t m)
{
    if (n != m)
        test_fail(__FILE__, __LINE__, "%s: %zu numbers and %zu", what, n, m);
    for (size_t i = 0; i < n; i++)
        if (!(a[i] == b[i] || (isnan(a[i]) && isnan(b[i]))))
            test_fail(__FILE__, __LINE__, "%s[%zu]: %.17g and %.17g", what, i, a[i], b[i]);
}

void trial_check_same(struct trial *a, struct trial *b)
{
    const struct train *x = a->train, *y = b->train;
    for (size_t i = 0; i < a->vars.list.n; i++)
        if (!same_var(a, b, i))
            test_fail(__FILE__, __LINE__, "\"%s\" differs", a->vars.list.data[i].name);
    CHECK_EQ(x->at.epoch, y->at.epoch);
    CHECK_EQ(x->at.batch, y->at.batch);
    CHECK_EQ(x->at.updates, y->at.updates);
    CHECK_EQ(x->at.batches, y->at.batches);
    CHECK_EQ(x->at.optimizer_steps, y->at.optimizer_steps);
    CHECK_EQ(x->scaler.growth_tracker, y->scaler.growth_tracker);
    CHECK_EQ(x->scaler.skipped, y->scaler.skipped);
    CHECK_EQ(x->early.counter, y->early.counter);
    CHECK_EQ(x->early.best_epoch, y->early.best_epoch);
    const double p[] = {train_lr(x), x->scaler.scale, x->at.loss_sum, x->early.best};
    const double q[] = {train_lr(y), y->scaler.scale, y->at.loss_sum, y->early.best};
    check_same_numbers("rate, scale, loss so far, best", p, 4, q, 4);
    check_same_numbers(
        "losses", x->series.losses.data, x->series.losses.n, y->series.losses.data,
        y->series.losses.n);
    check_same_numbers(
        "val_losses", x->series.val_losses.data, x->series.val_losses.n, y->series.val_losses.data,
        y->series.val_losses.n);
    check_same_numbers(
        "lr_history", x->series.lrs.data, x->series.lrs.n, y->series.lrs.data, y->series.lrs.n);
}

int trial_weight(struct ir_program *p, const char *name, struct shape s, bool trainable)
{
    struct ir_var v = {
        .name = name,
        .dtype = DT_F32,
        .shape = s,
        .trainable = trainable,
        .of = IR_NONE,
        .node = IR_NONE};
    return ir_var_read(p, ir_var_new(p->vars, &v));
}
