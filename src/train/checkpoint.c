/* checkpoint.c - a run's whole state in one .pt file that PyTorch loads, and back.
 *
 * FORMAT  a dict with the founding system's keys
 *   epoch                  finished epochs
 *   model_state_dict       OrderedDict, PyTorch's names
 *   optimizer_state_dict   PyTorch's form (optim_state_dict.h)
 *   losses                 float32 tensor, one per finished epoch
 *   initial_lrs            list of the base rate
 *   scheduler_state_dict, scheduler_class, scaler_state_dict   where there is one
 * and ours under "snug":
 *   version, graph_key, seed (string), threads, isa, precision
 *   position {epoch, batch}, counters {total_steps, total_batches, optimizer_steps, skipped}
 *   running {loss_sum, loss_count}, early {...}, val_losses, lr_history
 *   optimizer_params       names, so that state is matched by name
 *   best_state_dict        early stopping's copy, where there is one
 * Written whole; tensors are read straight from and into the arena, never copied.
 */
#include "train/loop_int.h"

#include "base/env.h"
#include "base/log.h"
#include "base/str.h"
#include "base/version.h"
#include "ir/optim_state.h"
#include "nn/ptfile.h"
#include "nn/tensorfile.h"
#include "nn/weights.h"
#include "train/optim_state_dict.h"
#include "train/schedule_dict.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- writing ---- */

static struct pt_value *tensor_of_var(struct train *t, struct arena *a, int var)
{
    int exact = fill_exact(t->parts.vars, var, t->parts.vars->list.n);
    const struct ir_var *v = &t->parts.vars->list.data[exact];
    return pt_tensor_of(a, v->dtype, v->shape.dim, v->shape.rank, exec_var(t->exec, exact));
}

static struct pt_value *state_dict(struct train *t, struct arena *a, const int *copies)
{
    struct pt_value *d = pt_dict(a, PT_DICT_ORDERED);
    for (int i = 0; i < model_state_count(t->parts.model); i++) {
        int var = model_state_var(t->parts.model, i);
        pt_put(
            a, d, t->parts.vars->list.data[var].name,
            tensor_of_var(t, a, copies ? copies[i] : var));
    }
    weights_put_aliases(a, d, t->parts.model, t->parts.vars);
    return d;
}

/* Optimizer state of every parameter, in the order of model.parameters(). */
static struct optim_tensor *list_state(struct train *t, struct arena *a, int *n)
{
    int params = model_param_count_vars(t->parts.model);
    struct optim_tensor *list = ARENA_ARRAY(a, struct optim_tensor, params * UPDATE_STATES_MAX + 1);
    *n = 0;
    for (int i = 0; i < params; i++) {
        int var = model_param_var(t->parts.model, i);
        const struct ir_var *p = &t->parts.vars->list.data[var];
        struct optim_attr own = optim_attr_for(&t->optim.attr, &p->shape, p->dtype, p->name);
        /* Masters are the model's state_dict. */
        for (int k = own.master; (size_t)var < t->steps.update.n && k < optim_state_count(&own);
             k++) {
            int s = t->steps.update.state[var][k];
            if (s == IR_NONE)
                continue;
            const struct ir_var *v = &t->parts.vars->list.data[s];
            list[(*n)++] = (struct optim_tensor){
                i,
                k,
                p->name,
                v->dtype,
                v->shape,
                exec_var(t->exec, s),
                optim_state_name(&own, k),
                v->dtype != DT_U8                          ? OPTIM_STATE_WHOLE
                : optim_state_signed(&own, k - own.master) ? OPTIM_STATE_SIGNED
                                                           : OPTIM_STATE_POSITIVE};
        }
    }
    return list;
}

/* JSON's plain values as Python's. */
static struct pt_value *from_json(struct arena *a, const json_t *j)
{
    if (json_is_object(j)) {
        struct pt_value *d = pt_dict(a, PT_DICT_PLAIN);
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)(uintptr_t)j, key, v) pt_put(a, d, key, from_json(a, v));
        return d;
    }
    if (json_is_array(j)) {
        struct pt_value *l = pt_list(a);
        for (size_t i = 0; i < json_array_size(j); i++)
            pt_add(a, l, from_json(a, json_array_get(j, i)));
        return l;
    }
    if (json_is_string(j)) {
        const char *s = json_string_value(j);
        if (strcmp(s, "Infinity") == 0)
            return pt_float(a, (double)INFINITY);
        if (strcmp(s, "-Infinity") == 0)
            return pt_float(a, -(double)INFINITY);
        return strcmp(s, "NaN") == 0 ? pt_float(a, (double)NAN) : pt_string(a, s);
    }
    if (json_is_integer(j))
        return pt_int(a, json_integer_value(j));
    if (json_is_real(j))
        return pt_float(a, json_real_value(j));
    if (json_is_boolean(j))
        return pt_bool(a, json_is_true(j));
    return pt_none(a);
}

static json_t *to_json(const struct pt_value *v)
{
    switch ((int)v->kind) {
    case PT_DICT: {
        json_t *o = json_object();
        for (size_t i = 0; i < v->dict.n; i++) {
            const char *key = pt_to_string(v->dict.data[i].key);
            char number[32];
            int64_t k = 0;
            if (!key && pt_to_int(v->dict.data[i].key, &k)) {
                (void)snprintf(number, sizeof number, "%lld", (long long)k);
                key = number;
            }
            if (key)
                json_put(o, key, to_json(v->dict.data[i].value));
        }
        return o;
    }
    case PT_LIST:
    case PT_TUPLE: {
        json_t *l = json_array();
        for (size_t i = 0; i < v->seq.n; i++)
            (void)json_array_append_new(l, to_json(v->seq.data[i]));
        return l;
    }
    case PT_BOOL:
        return json_boolean(v->truth);
    case PT_INT:
        return json_integer(v->integer);
    case PT_FLOAT:
        return json_f64(v->real);
    case PT_STRING:
        return json_string(v->text.data);
    default:
        return json_null();
    }
}

static struct pt_value *numbers(struct arena *a, const double *v, size_t n)
{
    struct pt_value *l = pt_list(a);
    for (size_t i = 0; i < n; i++)
        pt_add(a, l, pt_float(a, v[i]));
    return l;
}

static struct pt_value *losses_tensor(struct train *t, struct arena *a)
{
    int64_t n = (int64_t)t->series.losses.n;
    float *f = ARENA_ARRAY(a, float, n + 1);
    for (int64_t i = 0; i < n; i++)
        f[i] = (float)t->series.losses.data[i];
    return pt_tensor_of(a, DT_F32, &n, 1, f);
}

static struct pt_value *own_part(struct train *t, struct arena *a, const struct position *at)
{
    struct pt_value *d = pt_dict(a, PT_DICT_PLAIN), *part;
    char text[32];
    pt_put(a, d, "version", pt_string(a, SNUG_VERSION));
    pt_put(a, d, "commit", pt_string(a, snug_commit()));
    pt_put(a, d, "graph_key", pt_string(a, t->c.graph_key ? t->c.graph_key : ""));
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)t->c.seed);
    pt_put(a, d, "seed", pt_string(a, text));
    pt_put(a, d, "threads", pt_int(a, cpu_threads()));
    pt_put(a, d, "isa", pt_string(a, isa_name(cpu_isa())));
    pt_put(a, d, "precision", pt_string(a, precision_name(t->c.precision)));
    pt_put(a, d, "position", part = pt_dict(a, PT_DICT_PLAIN));
    pt_put(a, part, "epoch", pt_int(a, at->epoch));
    pt_put(a, part, "batch", pt_int(a, at->batch));
    pt_put(a, part, "batches", pt_int(a, t->steps_config.batches));
    pt_put(a, part, "batch_size", pt_int(a, t->parts.train_batch));
    pt_put(a, d, "counters", part = pt_dict(a, PT_DICT_PLAIN));
    pt_put(a, part, "total_steps", pt_int(a, at->updates));
    pt_put(a, part, "total_batches", pt_int(a, at->batches));
    pt_put(a, part, "optimizer_steps", pt_int(a, at->optimizer_steps));
    pt_put(a, part, "skipped_steps", pt_int(a, t->scaler.skipped));
    pt_put(a, part, "last_lr", pt_float(a, t->last_lr));
    pt_put(a, d, "running", part = pt_dict(a, PT_DICT_PLAIN));
    pt_put(a, part, "loss_sum", pt_float(a, at->loss_sum));
    pt_put(a, part, "loss_count", pt_int(a, at->loss_count));
    pt_put(a, d, "early", part = pt_dict(a, PT_DICT_PLAIN));
    pt_put(a, part, "has_best", pt_bool(a, t->early.has_best));
    pt_put(a, part, "best", pt_float(a, t->early.best));
    pt_put(a, part, "best_epoch", pt_int(a, t->early.best_epoch));
    pt_put(a, part, "counter", pt_int(a, t->early.counter));
    pt_put(a, part, "stopped", pt_bool(a, t->stopped_early));
    pt_put(a, d, "losses", numbers(a, t->series.losses.data, t->series.losses.n));
    pt_put(a, d, "val_losses", numbers(a, t->series.val_losses.data, t->series.val_losses.n));
    pt_put(
        a, d, "val_accuracies",
        numbers(a, t->series.val_accuracies.data, t->series.val_accuracies.n));
    pt_put(a, d, "lr_history", numbers(a, t->series.lrs.data, t->series.lrs.n));
    pt_put(a, d, "optimizer_params", part = pt_list(a));
    for (int i = 0; i < model_param_count_vars(t->parts.model); i++)
        pt_add(
            a, part,
            pt_string(a, t->parts.vars->list.data[model_param_var(t->parts.model, i)].name));
    if (t->steps.best_var && t->early.has_best)
        pt_put(a, d, "best_state_dict", state_dict(t, a, t->steps.best_var));
    return d;
}

enum status checkpoint_write(
    struct train *t, const char *path, const struct position *at, int64_t epoch, struct err *e)
{
    struct arena a;
    arena_init(&a);
    struct pt_value *root = pt_dict(&a, PT_DICT_PLAIN), *rates = pt_list(&a);
    int n;
    struct optim_tensor *state = list_state(t, &a, &n);
    pt_put(&a, root, "epoch", pt_int(&a, epoch >= 0 ? epoch : at->epoch));
    pt_put(&a, root, "model_state_dict", state_dict(t, &a, NULL));
    struct pt_value *optimizer = optim_state_dict_make(
        &a, t->parts.optim, model_param_count_vars(t->parts.model), state, n, at->optimizer_steps,
        train_lr(t), t->parts.schedule != NULL);
    pt_put(&a, root, "optimizer_state_dict", optimizer);
    pt_put(&a, root, "losses", losses_tensor(t, &a));
    pt_add(&a, rates, pt_float(&a, t->parts.optim->lr));
    pt_put(&a, root, "initial_lrs", rates);
    if (t->parts.schedule) {
        json_t *j = schedule_state(t->parts.schedule);
        struct pt_value *scheduler = from_json(&a, j);
        schedule_complete_dicts(&a, t->parts.schedule, scheduler, optimizer);
        pt_put(&a, root, "scheduler_state_dict", scheduler);
        pt_put(&a, root, "scheduler_class", pt_string(&a, schedule_class(t->parts.schedule)));
        json_decref(j);
    }
    if (t->scaler.enabled) {
        json_t *j = scaler_state(&t->scaler);
        pt_put(&a, root, "scaler_state_dict", from_json(&a, j));
        json_decref(j);
    }
    pt_put(&a, root, "snug", own_part(t, &a, at));
    char dir[1024];
    enum status st = ST_OK;
    if (path_dir(path, dir, sizeof dir)[0])
        st = dir_make(dir, e);
    if (st == ST_OK)
        st = ptfile_write(path, root, e);
    arena_release(&a);
    return st;
}

/* ---- reading ---- */

static enum status read_model(
    struct train *t, struct ptfile *f, const struct pt_value *dict, const int *copies,
    struct err *e)
{
    struct tensorfile *tensors;
    struct tensorfile_match match = {0};
    int n = model_state_count(t->parts.model);
    TRY(tensorfile_from_pt(f, dict, &tensors, e));
    enum status st = weights_match(tensors, t->parts.model, t->parts.vars, true, true, &match, e);
    tensorfile_match_release(&match);
    for (int i = 0; i < n && st == ST_OK; i++) {
        int var = model_state_var(t->parts.model, i);
        int exact = copies ? copies[i] : fill_exact(t->parts.vars, var, t->parts.vars->list.n);
        struct ir_var *v = &t->parts.vars->list.data[var];
        enum dtype own = v->dtype;
        v->dtype = t->parts.vars->list.data[exact].dtype; /* what is read into */
        st = weights_read(tensors, t->parts.model, t->parts.vars, var, exec_var(t->exec, exact), e);
        v->dtype = own;
    }
    if (!copies)
        fill_round(t->parts.model, t->parts.vars, t->exec);
    tensorfile_close(tensors);
    return st;
}

static enum status
read_optimizer(struct train *t, struct ptfile *f, const struct pt_value *root, struct err *e)
{
    const struct pt_value *dict = pt_get(root, "optimizer_state_dict");
    const struct pt_value *names = pt_get(pt_get(root, "snug"), "optimizer_params");
    struct arena a;
    double lr;
    int n, n_names = 0;
    const char **list = NULL;
    if (!dict)
        return ST_OK;
    arena_init(&a);
    if (names && names->kind == PT_LIST) {
        list = ARENA_ARRAY(&a, const char *, names->seq.n + 1);
        for (size_t i = 0; i < names->seq.n; i++) {
            const char *s = pt_to_string(names->seq.data[i]);
            if (!s) {
                list = NULL;
                break;
            }
            list[n_names++] = s;
        }
    }
    struct optim_tensor *state = list_state(t, &a, &n);
    enum status st = optim_state_dict_read(
        f, dict, list, n_names, t->parts.optim, state, n, &t->at.optimizer_steps, &lr, e);
    arena_release(&a);
    return st;
}

static enum status read_schedule(struct train *t, const struct pt_value *root, struct err *e)
{
    const struct pt_value *v = pt_get(root, "scheduler_state_dict");
    const char *class = pt_to_string(pt_get(root, "scheduler_class")), *differs = NULL;
    if (!v || !t->parts.schedule)
        return ST_OK;
    if (class && strcmp(class, schedule_class(t->parts.schedule)) != 0) {
        train_warn(
            t, "scheduler", "the checkpoint has a %s, the graph a %s: the graph's starts anew",
            class, schedule_class(t->parts.schedule));
        return ST_OK;
    }
    json_t *j = to_json(v);
    enum status st = schedule_restore(t->parts.schedule, j, &differs, e);
    json_decref(j);
    if (st == ST_OK && differs)
        train_warn(
            t, "scheduler",
            "%s of the scheduler differ from the checkpoint's: the saved ones are kept", differs);
    t->adopted_schedule = st == ST_OK;
    return st;
}

static enum status read_scaler(struct train *t, const struct pt_value *root, struct err *e)
{
    const struct pt_value *v = pt_get(root, "scaler_state_dict");
    if (!v || !t->scaler.enabled)
        return ST_OK;
    json_t *j = to_json(v);
    enum status st = scaler_restore(&t->scaler, j, e);
    json_decref(j);
    return st;
}

static int64_t int_of(const struct pt_value *dict, const char *key, int64_t fallback)
{
    int64_t v = fallback;
    (void)pt_to_int(pt_get(dict, key), &v);
    return v;
}

static double float_of(const struct pt_value *dict, const char *key, double fallback)
{
    double v = fallback;
    (void)pt_to_float(pt_get(dict, key), &v);
    return v;
}

#define READ_SERIES(list, dict, key)                                                               \
    do {                                                                                           \
        const struct pt_value *l_ = pt_get(dict, key);                                             \
        (list)->n = 0;                                                                             \
        for (size_t i_ = 0; l_ && l_->kind == PT_LIST && i_ < l_->seq.n; i_++) {                   \
            double x_ = (double)NAN;                                                               \
            (void)pt_to_float(l_->seq.data[i_], &x_);                                              \
            vec_push(list, x_);                                                                    \
        }                                                                                          \
    } while (0)

/* Where the run stood. A file of PyTorch's or the founding system's has only `epoch`. */
static enum status
read_position(struct train *t, struct ptfile *f, const struct pt_value *root, struct err *e)
{
    const struct pt_value *own = pt_get(root, "snug"), *at = pt_get(own, "position");
    const struct pt_value *count = pt_get(own, "counters"), *early = pt_get(own, "early");
    if (!own) {
        t->at.epoch = int_of(root, "epoch", 0);
        t->at.batch = 0;
        return ST_OK;
    }
    t->at.epoch = int_of(at, "epoch", 0);
    t->at.batch = int_of(at, "batch", 0);
    int64_t batches = int_of(at, "batches", t->steps_config.batches);
    if (t->at.epoch < 0 || t->at.batch < 0 || t->at.batch > batches)
        return err_set(e, ST_CORRUPT, "the data position is outside the data");
    if (t->at.batch > 0 &&
        (batches != t->steps_config.batches ||
         int_of(at, "batch_size", t->parts.train_batch) != t->parts.train_batch)) {
        train_warn(
            t, "resume",
            "the loader gives %lld batches an epoch, the checkpoint's gave %lld: the "
            "epoch is started again",
            (long long)t->steps_config.batches, (long long)batches);
        t->at.batch = 0;
    }
    int64_t inside = t->at.batch % t->c.accumulate;
    if (inside && t->at.batch < t->steps_config.batches) {
        train_warn(
            t, "resume",
            "the checkpoint stands at batch %lld, inside a window of %lld: the window "
            "is started again",
            (long long)t->at.batch, (long long)t->c.accumulate);
        t->at.batch -= inside;
    }
    t->at.updates = int_of(count, "total_steps", 0);
    t->at.batches = int_of(count, "total_batches", 0);
    t->at.optimizer_steps = int_of(count, "optimizer_steps", t->at.optimizer_steps);
    t->scaler.skipped = int_of(count, "skipped_steps", 0);
    t->last_lr = float_of(count, "last_lr", t->parts.optim->lr);
    t->at.loss_sum = float_of(pt_get(own, "running"), "loss_sum", 0);
    t->at.loss_count = int_of(pt_get(own, "running"), "loss_count", 0);
    if (t->at.updates < 0 || t->at.batches < 0 || t->at.optimizer_steps < 0 ||
        t->scaler.skipped < 0 || t->at.loss_count < 0)
        return err_set(e, ST_CORRUPT, "a counter is negative");
    t->early.has_best = int_of(early, "has_best", 0) != 0 ||
                        (pt_get(early, "has_best") && pt_get(early, "has_best")->kind == PT_BOOL &&
                         pt_get(early, "has_best")->truth);
    t->early.best = float_of(early, "best", 0);
    t->early.best_epoch = int_of(early, "best_epoch", 0);
    t->early.counter = int_of(early, "counter", 0);
    const struct pt_value *stopped = pt_get(early, "stopped");
    t->stopped_early = stopped && stopped->kind == PT_BOOL && stopped->truth;
    READ_SERIES(&t->series.losses, own, "losses");
    READ_SERIES(&t->series.val_losses, own, "val_losses");
    READ_SERIES(&t->series.val_accuracies, own, "val_accuracies");
    READ_SERIES(&t->series.lrs, own, "lr_history");
    int64_t threads = int_of(own, "threads", cpu_threads());
    if (threads != cpu_threads())
        train_warn(
            t, "threads",
            "the checkpoint was made with %lld threads, this run has %d: weight "
            "gradients of convolutions may differ in the last bits",
            (long long)threads, cpu_threads());
    const char *seed = pt_to_string(pt_get(own, "seed"));
    if (seed)
        t->c.seed = strtoull(seed, NULL, 10);
    const char *key = pt_to_string(pt_get(own, "graph_key"));
    if (key && t->c.graph_key && key[0] && strcmp(key, t->c.graph_key) != 0)
        train_warn(
            t, "resume", "the checkpoint was made by another graph (key %.8s, this one has %.8s)",
            key, t->c.graph_key);
    const struct pt_value *best = pt_get(own, "best_state_dict");
    if (best && t->steps.best_var)
        return read_model(t, f, best, t->steps.best_var, e);
    return ST_OK;
}

enum status checkpoint_read(struct train *t, const char *path, bool position, struct err *e)
{
    struct ptfile *f;
    TRY(ptfile_open(path, &f, e));
    const struct pt_value *root = ptfile_root(f), *model = pt_get(root, "model_state_dict");
    enum status st = ST_OK;
    if (!model)
        st = err_set(
            e, ST_CORRUPT, "\"%s\" is not a checkpoint: it has no 'model_state_dict'", path);
    if (st == ST_OK)
        st = read_model(t, f, model, NULL, e);
    if (st == ST_OK)
        st = read_optimizer(t, f, root, e);
    if (st == ST_OK)
        st = read_schedule(t, root, e);
    if (st == ST_OK)
        st = read_scaler(t, root, e);
    if (st == ST_OK && position)
        st = read_position(t, f, root, e);
    if (st != ST_OK)
        err_prefix(e, "checkpoint \"%s\"", path);
    ptfile_close(f);
    return st;
}

/* ---- periodic files ---- */

int64_t checkpoint_bytes(const struct train *t)
{
    int64_t sum = 1 << 16;
    for (size_t i = 0; i < t->parts.vars->list.n; i++) {
        const struct ir_var *v = &t->parts.vars->list.data[i];
        if (v->category != CATEGORY_GRADIENTS)
            sum += shape_count(&v->shape) * dtype_size(v->dtype);
    }
    return sum;
}

struct found {
    char name[320];
    int64_t order;
};

static int newest_first(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    return x->order < y->order ? 1 : x->order > y->order ? -1 : strcmp(y->name, x->name);
}

/* Keeps the newest `keep` files of this run and node in `dir`. */
static void prune(const char *dir, const char *prefix, int64_t keep)
{
    VEC(struct found) list = {0};
    DIR *d = opendir(dir);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        if (!str_starts(entry->d_name, prefix) || !str_ends(entry->d_name, ".pt"))
            continue;
        struct found f = {.order = strtoll(entry->d_name + strlen(prefix), NULL, 10)};
        (void)snprintf(f.name, sizeof f.name, "%s", entry->d_name);
        vec_push(&list, f);
    }
    if (d)
        (void)closedir(d);
    if (list.n)
        qsort(list.data, list.n, sizeof *list.data, newest_first);
    for (size_t i = (size_t)keep; i < list.n; i++) {
        char path[1400];
        if (unlink(path_join(dir, list.data[i].name, path, sizeof path)) != 0)
            log_warn("could not remove the old checkpoint \"%s\"", path);
    }
    vec_release(&list);
}

enum status checkpoint_periodic(struct train *t, bool by_steps, struct err *e)
{
    char dir[1100], prefix[300], path[1500];
    if (!t->c.checkpoint_dir)
        return ST_OK;
    (void)path_join(t->c.checkpoint_dir, "periodic", dir, sizeof dir);
    (void)snprintf(
        prefix, sizeof prefix, "%s-%s-%s", t->c.run_name ? t->c.run_name : "run", t->c.node_id,
        by_steps ? "s" : "e");
    (void)snprintf(
        path, sizeof path, "%s/%s%lld.pt", dir, prefix,
        (long long)(by_steps ? t->at.updates : t->at.epoch));
    TRY(checkpoint_write(t, path, &t->at, -1, e));
    json_t *event = json_object();
    json_put_str(event, "event", "checkpoint");
    json_put_str(event, "node_id", t->c.node_id);
    json_put_str(event, "path", path);
    json_put_i64(event, "step", t->at.updates);
    train_event(t, event);
    if (t->c.checkpoint_keep > 0)
        prune(dir, prefix, t->c.checkpoint_keep);
    return ST_OK;
}

enum status checkpoint_interrupt(struct train *t, struct err *e)
{
    (void)snprintf(
        t->interrupt_checkpoint, sizeof t->interrupt_checkpoint,
        "%s/interrupted/%s-%s-e%lldb%lld.pt", t->c.checkpoint_dir,
        t->c.run_name ? t->c.run_name : "run", t->c.node_id, (long long)t->at.epoch,
        (long long)t->at.batch);
    TRY(checkpoint_write(t, t->interrupt_checkpoint, &t->at, -1, e));
    json_t *event = json_object();
    json_put_str(event, "event", "checkpoint");
    json_put_str(event, "node_id", t->c.node_id);
    json_put_str(event, "path", t->interrupt_checkpoint);
    json_put_i64(event, "step", t->at.updates);
    json_put_str(event, "reason", "interrupted");
    train_event(t, event);
    return ST_OK;
}

/* ---- finding ---- */

static bool has_key(const char *path, const char *graph_key)
{
    struct ptfile *f;
    struct err ignored;
    if (ptfile_open(path, &f, &ignored) != ST_OK)
        return false; /* damaged or foreign: an older whole one is better */
    const char *key = pt_to_string(pt_get(pt_get(ptfile_root(f), "snug"), "graph_key"));
    bool same = key && strcmp(key, graph_key) == 0;
    ptfile_close(f);
    return same;
}

bool checkpoint_seed(const char *path, uint64_t *seed)
{
    struct ptfile *f;
    struct err ignored;
    if (ptfile_open(path, &f, &ignored) != ST_OK)
        return false;
    const char *text = pt_to_string(pt_get(pt_get(ptfile_root(f), "snug"), "seed"));
    if (text)
        *seed = strtoull(text, NULL, 10);
    ptfile_close(f);
    return text != NULL;
}

bool checkpoint_newest(const char *dir, const char *graph_key, char *path, size_t cap)
{
    static const char *const folders[] = {"periodic", "interrupted"};
    VEC(struct found) list = {0};
    for (int i = 0; i < 2; i++) {
        char folder[1100], file[1400];
        (void)path_join(dir, folders[i], folder, sizeof folder);
        DIR *d = opendir(folder);
        for (struct dirent *entry; d && (entry = readdir(d));) {
            struct stat s;
            struct found f;
            if (!str_ends(entry->d_name, ".pt") ||
                stat(path_join(folder, entry->d_name, file, sizeof file), &s) != 0)
                continue;
            f.order = (int64_t)s.st_mtim.tv_sec * 1000000000 + s.st_mtim.tv_nsec;
            (void)snprintf(f.name, sizeof f.name, "%s/%s", folders[i], entry->d_name);
            vec_push(&list, f);
        }
        if (d)
            (void)closedir(d);
    }
    bool found = false;
    if (list.n)
        qsort(list.data, list.n, sizeof *list.data, newest_first);
    for (size_t i = 0; i < list.n && !found; i++)
        found = has_key(path_join(dir, list.data[i].name, path, cap), graph_key);
    vec_release(&list);
    return found;
}
