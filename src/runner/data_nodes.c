/* data_nodes.c - data sets, transforms, loaders, and small tensors made by hand. */
#include "runner/run_int.h"

#include "base/env.h"
#include "base/rng.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

/* ---- data sets ---- */

static struct flow_dataset *dataset_new(struct run *r, const struct graph_node *n)
{
    struct flow_dataset *d = ARENA_NEW(&r->memory, struct flow_dataset);
    d->node_id = n->id;
    vec_push(&r->datasets, d);
    return d;
}

/* Training data takes train_transform, else eval_transform; test data eval_transform only. */
static void take_transform(struct run *r, size_t node, struct flow_dataset *d, bool training)
{
    struct flow f;
    if ((training && flow_has(r, node, "train_transform", &f) && f.kind == FLOW_TRANSFORM) ||
        (flow_has(r, node, "eval_transform", &f) && f.kind == FLOW_TRANSFORM)) {
        d->transform = *f.transform;
        d->has_transform = true;
    }
}

/* Where the files of a known set are looked for; `dir` keeps the folder of the graph. */
static struct dataset_spec
spec_of(struct run *r, const struct flow_dataset *d, char *dir, size_t cap)
{
    return (struct dataset_spec){
        .name = d->info.name,
        .split = d->split,
        .data_dir = d->data_dir,
        .graph_dir = run_graph_dir(r, dir, cap)};
}

enum status node_dataset(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow_dataset *d = dataset_new(r, n);
    const char *name = graph_param_str(n, "name"), *split = graph_param_str(n, "split");
    TRY(dataset_describe(name, split, &d->info, e));
    (void)snprintf(d->split, sizeof d->split, "%s", split);
    (void)snprintf(d->data_dir, sizeof d->data_dir, "%s", graph_param_str(n, "data_dir"));
    char dir[1024];
    struct dataset_spec spec = spec_of(r, d, dir, sizeof dir);
    dataset_peek(&spec, &d->info);
    d->transform = transform_default();
    d->has_transform = true;
    take_transform(r, node, d, strcmp(split, "train") == 0);
    flow_set(r, node, "dataset", (struct flow){.kind = FLOW_DATASET, .dataset = d});
    return ST_OK;
}

/* The names of an image folder's classes, in the order of their numbers. */
static enum status set_classes(struct run *r, size_t node, struct flow_dataset *d, struct err *e)
{
    TRY(flow_dataset_open(r, d, e));
    json_t *names = json_array();
    for (int i = 0; i < dataset_get_info(d->open)->classes; i++)
        (void)json_array_append_new(names, json_string(dataset_class_name(d->open, i)));
    vec_push(&r->documents, names);
    flow_set(r, node, "classes", (struct flow){.kind = FLOW_JSON, .json = names});
    return ST_OK;
}

enum status node_image_folder(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow_dataset *d = dataset_new(r, n);
    char dir[1024], data[1024];
    const char *path = graph_param_str(n, "path"), *split = graph_param_str(n, "split");
    if (!path[0])
        return err_set(
            e, ST_INVALID, "parameter 'path' is empty: name the folder of your pictures");
    /* Relative to the graph file, else to the data folder. */
    (void)path_join(run_graph_dir(r, dir, sizeof dir), path, d->path, sizeof d->path);
    if (!dir_exists(d->path))
        (void)path_join(
            path_join(snug_home(), "data", data, sizeof data), path, d->path, sizeof d->path);
    (void)snprintf(d->split, sizeof d->split, "%s", strcmp(split, "(none)") == 0 ? "" : split);
    d->folder = true;
    TRY(dataset_describe_folder(d->path, d->split, &d->info, e));
    d->transform = transform_only_to_tensor();
    d->has_transform = true;
    take_transform(r, node, d, strcmp(split, "train") == 0);
    flow_set(r, node, "dataset", (struct flow){.kind = FLOW_DATASET, .dataset = d});
    return r->planning ? ST_OK : set_classes(r, node, d, e);
}

enum status node_transform(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow in, transform;
    TRY(flow_get(r, node, "dataset", FLOW_DATASET, &in, e));
    struct flow_dataset *d = ARENA_NEW(&r->memory, struct flow_dataset);
    *d = *in.dataset;
    d->of = in.dataset->of ? in.dataset->of : in.dataset;
    d->transform = (struct transform){0};
    if (flow_has(r, node, "transform", &transform) && transform.kind == FLOW_TRANSFORM)
        d->transform = *transform.transform;
    else
        TRY(transform_classic(
            &d->transform, graph_param_i64(n, "resize"), graph_param_bool(n, "to_tensor"),
            graph_param_bool(n, "normalize"), e));
    d->has_transform = true;
    flow_set(r, node, "dataset", (struct flow){.kind = FLOW_DATASET, .dataset = d});
    return ST_OK;
}

enum status flow_dataset_open(struct run *r, struct flow_dataset *d, struct err *e)
{
    struct flow_dataset *own = d->of ? d->of : d;
    char dir[1024];
    if (!own->open && own->folder)
        TRY(dataset_open_folder(own->path, own->split, &own->open, e));
    if (!own->open && own->tokens)
        TRY(dataset_from_tokens(own->info.name, own->tokens, own->seq_len, &own->open, e));
    if (!own->open) {
        struct dataset_spec spec = spec_of(r, own, dir, sizeof dir);
        enum status st = dataset_open(&spec, &own->open, e);
        if (st != ST_OK)
            err_node(e, own->node_id, "Dataset");
        TRY(st);
    }
    /* The programs were built for the planned count: its last batch, its number of batches. */
    int64_t count = dataset_get_info(own->open)->count;
    if (count != own->info.count) {
        (void)err_set(
            e, ST_CORRUPT, "data set %s has %lld samples where %lld were planned for",
            own->info.name, (long long)count, (long long)own->info.count);
        err_hint(
            e, "its files in \"%s\" changed since the start, or are not whole",
            dataset_get_info(own->open)->path);
        err_node(e, own->node_id, own->folder ? "ImageFolderDataset" : "Dataset");
        return ST_CORRUPT;
    }
    d->open = own->open;
    return ST_OK;
}

/* ---- transforms: each node appends one step to what comes in ---- */

static enum status begin(struct run *r, size_t node, struct transform **out)
{
    struct flow f;
    *out = ARENA_NEW(&r->memory, struct transform);
    if (flow_has(r, node, "transform", &f) && f.kind == FLOW_TRANSFORM)
        **out = *f.transform;
    flow_set(r, node, "transform", (struct flow){.kind = FLOW_TRANSFORM, .transform = *out});
    return ST_OK;
}

enum status node_resize(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct transform *t;
    TRY(begin(r, node, &t));
    return transform_resize(t, graph_param_i64(n, "size"), graph_param_str(n, "interpolation"), e);
}

enum status node_to_tensor(struct run *r, size_t node, struct err *e)
{
    struct transform *t;
    TRY(begin(r, node, &t));
    return transform_to_tensor(t, e);
}

enum status node_normalize(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct transform *t;
    TRY(begin(r, node, &t));
    return transform_normalize(
        t, graph_param_str(n, "preset"), graph_param_str(n, "mean"), graph_param_str(n, "std"), e);
}

enum status node_random_crop(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct transform *t;
    TRY(begin(r, node, &t));
    return transform_random_crop(
        t, graph_param_i64(n, "size"), graph_param_i64(n, "padding"),
        graph_param_str(n, "padding_mode"), e);
}

enum status node_random_flip(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct transform *t;
    TRY(begin(r, node, &t));
    return transform_random_flip(t, graph_param_f64(n, "p"), e);
}

enum status node_random_rotation(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct transform *t;
    TRY(begin(r, node, &t));
    return transform_random_rotation(
        t, graph_param_f64(n, "degrees"), graph_param_bool(n, "expand"), graph_param_f64(n, "fill"),
        e);
}

enum status node_color_jitter(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct transform *t;
    TRY(begin(r, node, &t));
    return transform_color_jitter(
        t, graph_param_f64(n, "brightness"), graph_param_f64(n, "contrast"),
        graph_param_f64(n, "saturation"), graph_param_f64(n, "hue"), e);
}

enum status node_randaugment(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct transform *t;
    TRY(begin(r, node, &t));
    return transform_randaugment(
        t, graph_param_i64(n, "num_ops"), graph_param_i64(n, "magnitude"),
        graph_param_i64(n, "num_magnitude_bins"), e);
}

enum status node_compose(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct transform *t = ARENA_NEW(&r->memory, struct transform);
    for (int64_t i = 1; i <= graph_param_i64(n, "steps"); i++) {
        char port[32];
        struct flow f;
        (void)snprintf(port, sizeof port, "step_%lld", (long long)i);
        if (flow_has(r, node, port, &f) && f.kind == FLOW_TRANSFORM)
            TRY(transform_append(t, f.transform, e));
    }
    flow_set(r, node, "transform", (struct flow){.kind = FLOW_TRANSFORM, .transform = t});
    return ST_OK;
}

/* ---- loaders ---- */

enum status flow_loader_make(
    struct run *r, struct flow_dataset *d, const char *node_id, const struct loader_options *o,
    struct flow_loader **out, struct err *e)
{
    struct flow_loader *l = ARENA_NEW(&r->memory, struct flow_loader);
    l->node_id = node_id;
    l->data = d;
    l->options = *o;
    char label[256];
    (void)snprintf(label, sizeof label, "dataloader:%s", node_id);
    l->options.seed = (uint64_t)r->seed;
    l->options.stream = (uint32_t)hash_name(label);
    TRY(loader_describe(
        &d->info, d->has_transform ? &d->transform : NULL, &l->options, &l->plan, e));
    vec_push(&r->loaders, l);
    *out = l;
    return ST_OK;
}

enum status flow_loader_open(struct run *r, struct flow_loader *l, struct err *e)
{
    if (l->open)
        return ST_OK;
    TRY(flow_dataset_open(r, l->data, e));
    const struct transform *t = l->data->has_transform ? &l->data->transform : NULL;
    return loader_new(l->data->open, t, &l->options, &l->open, e);
}

enum status node_data_loader(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow in;
    struct flow_loader *l;
    TRY(flow_get(r, node, "dataset", FLOW_DATASET, &in, e));
    struct loader_options o = {
        .batch_size = graph_param_i64(n, "batch_size"),
        .shuffle = graph_param_bool(n, "shuffle"),
        .drop_last = graph_param_bool(n, "drop_last"),
        .num_workers = graph_param_i64(n, "num_workers"),
        .prefetch_factor = graph_param_i64(n, "prefetch_factor")};
    if (graph_param_bool(n, "persistent_workers") && o.num_workers == 0)
        return err_set(e, ST_INVALID, "parameter 'persistent_workers' needs num_workers above 0");
    TRY(flow_loader_make(r, in.dataset, n->id, &o, &l, e));
    flow_set(r, node, "dataloader", (struct flow){.kind = FLOW_LOADER, .loader = l});
    return ST_OK;
}

/* ---- small tensors ---- */

struct flow_numbers *
flow_numbers_new(struct run *r, const struct shape *s, enum dtype t, struct err *e)
{
    int64_t n = shape_count(s);
    if (n < 0 || n > (int64_t)1 << 31) {
        (void)err_set(e, ST_INVALID, "a tensor of this shape is too large to make by hand");
        return NULL;
    }
    struct flow_numbers *v = ARENA_NEW(&r->memory, struct flow_numbers);
    v->shape = *s;
    v->dtype = t;
    v->data = ARENA_ARRAY(&r->memory, char, n *dtype_size(t));
    return v;
}

/* "1,3,224,224" */
static enum status shape_read(const char *text, struct shape *s, struct err *e)
{
    *s = (struct shape){0};
    const char *p = text;
    while (*p) {
        char part[32];
        size_t n = strcspn(p, ",");
        const char *from = p;
        size_t m = n;
        while (m && *from == ' ')
            from++, m--;
        while (m && from[m - 1] == ' ')
            m--;
        int64_t v;
        if (m >= sizeof part || s->rank == RANK_MAX)
            return err_set(e, ST_INVALID, "parameter 'shape': \"%s\" is not a list of sizes", text);
        memcpy(part, from, m);
        part[m] = 0;
        if (!str_to_i64(part, &v) || v < 0)
            return err_set(e, ST_INVALID, "parameter 'shape': \"%s\" is not a list of sizes", text);
        s->dim[s->rank++] = v;
        p += n + (p[n] == ',');
    }
    return ST_OK;
}

static void fill_by_rule(struct flow_numbers *v, const char *rule, double value, uint64_t seed)
{
    struct rng g;
    rng_init(&g, seed, 0x7e45, 0);
    int64_t n = shape_count(&v->shape);
    for (int64_t i = 0; i < n; i++) {
        double x = 0;
        if (strcmp(rule, "ones") == 0)
            x = 1;
        else if (strcmp(rule, "arange") == 0)
            x = (double)i;
        else if (strcmp(rule, "full") == 0)
            x = value;
        else if (strcmp(rule, "rand") == 0)
            x = rng_f64(&g);
        else if (strcmp(rule, "random") == 0 || strcmp(rule, "randn") == 0)
            x = rng_normal(&g);
        dtype_store(v->data, v->dtype, i, x);
    }
}

/* Nested lists, flattened in order. */
static bool fill_from(const json_t *list, struct flow_numbers *v, int64_t *at)
{
    if (json_is_number(list) || json_is_boolean(list)) {
        if (*at >= shape_count(&v->shape))
            return false;
        double x = json_is_number(list) ? json_number_value(list) : json_is_true(list);
        dtype_store(v->data, v->dtype, (*at)++, x);
        return true;
    }
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!fill_from(json_array_get(list, i), v, at))
            return false;
    return json_is_array(list);
}

enum status node_tensor_input(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct shape s;
    enum dtype t = DT_F32;
    TRY(shape_read(graph_param_str(n, "shape"), &s, e));
    (void)dtype_parse(graph_param_str(n, "dtype"), &t);
    struct flow_numbers *v = flow_numbers_new(r, &s, t, e);
    if (!v)
        return ST_INVALID;
    const char *mode = graph_param_str(n, "value_mode");
    if (strcmp(mode, "explicit") == 0) {
        int64_t at = 0;
        if (!fill_from(graph_param_json(n, "values"), v, &at) || at != shape_count(&s))
            return err_set(
                e, ST_INVALID, "parameter 'values' does not hold the %lld numbers of 'shape'",
                (long long)shape_count(&s));
    } else {
        fill_by_rule(v, mode, 0, (uint64_t)graph_param_i64(n, "seed"));
    }
    flow_set(r, node, "tensor", (struct flow){.kind = FLOW_NUMBERS, .numbers = v});
    return ST_OK;
}

enum status node_tensor_create(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct shape s;
    TRY(shape_read(graph_param_str(n, "shape"), &s, e));
    struct flow_numbers *v = flow_numbers_new(r, &s, DT_F32, e);
    if (!v)
        return ST_INVALID;
    fill_by_rule(
        v, graph_param_str(n, "fill"), graph_param_f64(n, "value"),
        (uint64_t)r->seed ^ hash_name(n->id));
    flow_set(r, node, "tensor", (struct flow){.kind = FLOW_NUMBERS, .numbers = v});
    return ST_OK;
}

enum status node_dataset_batch(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow in;
    TRY(flow_get(r, node, "dataset", FLOW_DATASET, &in, e));
    int64_t batch = graph_param_i64(n, "batch_size"), start = graph_param_i64(n, "start_index");
    struct loader_plan plan;
    struct loader_options o = {.batch_size = 1};
    const struct transform *t = in.dataset->has_transform ? &in.dataset->transform : NULL;
    TRY(loader_describe(&in.dataset->info, t, &o, &plan, e));
    struct shape s = {.rank = plan.rank + 1, .dim = {batch}}, labels = SHAPE(batch);
    for (int i = 0; i < plan.rank; i++)
        s.dim[i + 1] = plan.shape[i];
    struct flow_numbers *x = flow_numbers_new(r, &s, plan.type == DATA_I64 ? DT_I64 : DT_F32, e);
    struct flow_numbers *y = flow_numbers_new(r, &labels, DT_I64, e);
    if (!x || !y)
        return ST_INVALID;
    flow_set(r, node, "images", (struct flow){.kind = FLOW_NUMBERS, .numbers = x});
    flow_set(r, node, "labels", (struct flow){.kind = FLOW_NUMBERS, .numbers = y});
    if (r->planning)
        return ST_OK;
    TRY(flow_dataset_open(r, in.dataset, e));
    if (in.dataset->info.count == 0)
        return err_set(e, ST_INVALID, "the data set has no samples");
    struct loader *l;
    TRY(loader_new(in.dataset->open, t, &o, &l, e));
    enum status st = ST_OK;
    char *at = x->data;
    for (int64_t i = 0; i < batch && st == ST_OK; i++) {
        int64_t count;
        st = loader_begin_epoch(l, 0, (start + i) % in.dataset->info.count, e);
        if (st == ST_OK)
            st = loader_next(
                l, at + (size_t)i * plan.x_bytes, plan.y_bytes == 8 ? (int64_t *)y->data + i : NULL,
                &count, e);
    }
    loader_free(l);
    return st;
}
