/* cache.c - outputs and weights that outlive a run. */
#include "runner/cache.h"

#include "base/config.h"
#include "base/env.h"
#include "base/rng.h"
#include "base/str.h"
#include "runner/run_int.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct key {
    uint64_t a, b;
};

struct kept_output {
    char *port;
    enum flow_kind kind;
    struct shape shape;
    enum dtype dtype;
    void *data; /* of a tensor; a text */
    double scalar;
    json_t *json;
    int64_t bytes;
};

struct entry {
    char *node;
    struct key key;
    VEC(struct kept_output) outputs;
    int64_t bytes, used; /* used: a count that rises with every use */
};

struct kept_weight {
    int var;
    void *data;
    size_t bytes;
};

struct module {
    char *node;
    struct key key;
    VEC(struct kept_weight) weights;
    int64_t bytes, used;
};

struct run_cache {
    struct run_cache_limits limits;
    VEC(struct entry) entries;
    VEC(struct module) modules;
    int64_t bytes, weight_bytes, uses;
    bool keeps_weights;
};

/* ---- keys ---- */

static void add_bytes(struct key *k, const void *p, size_t n)
{
    k->a = hash_bytes(p, n, k->a);
    k->b = hash_bytes(p, n, k->b ^ 0x9e3779b97f4a7c15u);
}

static void add_text(struct key *k, const char *text)
{
    add_bytes(k, text, strlen(text) + 1);
}

static void add_params(struct key *k, const struct graph_node *n)
{
    json_t *full = graph_params_full(n);
    char *text = json_dumps(full, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    add_text(k, n->type);
    add_text(k, text ? text : "");
    json_decref(full);
    mem_free(text);
}

static void add_tensor(struct key *k, const struct flow_numbers *t)
{
    int dtype = (int)t->dtype;
    add_bytes(k, &dtype, sizeof dtype);
    for (int i = 0; i < t->shape.rank; i++)
        add_bytes(k, &t->shape.dim[i], sizeof t->shape.dim[i]);
    add_bytes(k, t->data, (size_t)(shape_count(&t->shape) * dtype_size(t->dtype)));
}

/* False: not a value. */
static bool add_value(struct key *k, const struct flow *f)
{
    int kind = (int)f->kind;
    add_bytes(k, &kind, sizeof kind);
    if (f->kind == FLOW_NUMBERS) {
        add_tensor(k, f->numbers);
    } else if (f->kind == FLOW_SCALAR) {
        add_bytes(k, &f->scalar, sizeof f->scalar);
    } else if (f->kind == FLOW_STRING) {
        add_text(k, f->string ? f->string : "");
    } else if (f->kind == FLOW_JSON) {
        char *text = json_dumps(f->json, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
        add_text(k, text ? text : "");
        mem_free(text);
    } else {
        return false;
    }
    return true;
}

/* Types that show or write something each time. */
static bool has_effects(const char *type)
{
    static const char *const types[] = {"Print",           "Visualize",   "ModelSaver",
                                        "CheckpointSaver", "ModelLoader", "CheckpointLoader"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i], type) == 0)
            return true;
    return false;
}

/* Names, sizes and times of the files of a folder, in whatever order they come. */
static bool add_folder(struct key *k, const char *folder)
{
    struct key sum = {5, 6};
    DIR *d = opendir(folder);
    bool there = d != NULL;
    for (struct dirent *f; d && (f = readdir(d));) {
        struct key one = {7, 8};
        char path[1400];
        struct stat s;
        (void)path_join(folder, f->d_name, path, sizeof path);
        if (f->d_name[0] == '.' || stat(path, &s) != 0)
            continue;
        int64_t figures[] = {s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec};
        add_text(&one, f->d_name);
        add_bytes(&one, figures, sizeof figures);
        sum.a += one.a;
        sum.b += one.b;
    }
    if (d)
        (void)closedir(d);
    add_bytes(k, &sum, sizeof sum);
    return there;
}

/* A known data set as its node gives it, and its files as they are now; false: another kind. */
static bool add_dataset(struct key *k, struct run *r, const struct graph_node *n)
{
    char dir[1024], folder[1100];
    struct err ignored;
    const struct graph_edge *edge;
    size_t node = graph_node_find(r->graph, n->id);
    if (!n->kind || strcmp(n->kind->name, "Dataset") != 0)
        return false;
    for (size_t i = 0; (edge = graph_edge_into(r->graph, node, i)); i++)
        if (!edge->trigger)
            return false; /* transforms are objects */
    struct dataset_spec spec = {
        .name = graph_param_str(n, "name"),
        .split = graph_param_str(n, "split"),
        .data_dir = graph_param_str(n, "data_dir"),
        .graph_dir = run_graph_dir(r, dir, sizeof dir)};
    if (dataset_find(&spec, folder, sizeof folder, &ignored) != ST_OK)
        return false;
    add_params(k, n);
    add_text(k, folder);
    return add_folder(k, folder);
}

/* The node under its inputs as they are now; false: it has no entry. */
static bool key_of(struct run *r, size_t node, struct key *k)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    const struct graph_edge *edge;
    if (!n->kind || (n->kind->flags & NODE_FLAG_UNCACHED) || has_effects(n->kind->name))
        return false;
    *k = (struct key){1, 2};
    add_text(k, n->id);
    add_params(k, n);
    add_text(k, run_place_of(r, n)->device->id);
    add_bytes(k, &r->seed, sizeof r->seed);
    for (size_t i = 0; (edge = graph_edge_into(r->graph, node, i)); i++) {
        struct flow f;
        if (edge->trigger)
            continue;
        add_text(k, edge->target_port);
        if (!flow_has(r, node, edge->target_port, &f))
            return false;
        bool known = f.kind == FLOW_DATASET
                         ? add_dataset(k, r, graph_node_at(r->graph, edge->source))
                         : add_value(k, &f);
        if (!known)
            return false;
    }
    return true;
}

/* Files may have changed since: what reads them is not kept. */
static bool reads_files(const struct graph_node *n)
{
    for (const struct node_param *p = n->kind->params; p && p->name; p++)
        if (p->type == PARAM_MODEL_FILE || p->type == PARAM_IMAGE_FILE ||
            p->type == PARAM_DATA_FILE)
            return true;
    return false;
}

/* ---- entries ---- */

static void release_output(struct kept_output *o)
{
    mem_free(o->port);
    mem_free(o->data);
    json_decref(o->json);
}

static void drop_entry(struct run_cache *c, size_t i)
{
    struct entry *x = &c->entries.data[i];
    c->bytes -= x->bytes;
    for (size_t k = 0; k < x->outputs.n; k++)
        release_output(&x->outputs.data[k]);
    vec_release(&x->outputs);
    mem_free(x->node);
    *x = c->entries.data[--c->entries.n];
}

static size_t find_entry(const struct run_cache *c, const char *node)
{
    size_t i = 0;
    while (i < c->entries.n && strcmp(c->entries.data[i].node, node) != 0)
        i++;
    return i;
}

/* False: not a value, or no memory for it. */
static bool keep_value(const struct flow *f, const char *port, struct kept_output *out)
{
    *out = (struct kept_output){.kind = f->kind};
    if (f->kind == FLOW_NUMBERS) {
        out->shape = f->numbers->shape;
        out->dtype = f->numbers->dtype;
        out->bytes = shape_count(&out->shape) * dtype_size(out->dtype);
        out->data = mem_try_alloc((size_t)out->bytes + 1);
        if (!out->data)
            return false;
        memcpy(out->data, f->numbers->data, (size_t)out->bytes);
    } else if (f->kind == FLOW_SCALAR) {
        out->scalar = f->scalar;
    } else if (f->kind == FLOW_STRING) {
        out->data = mem_strdup(f->string ? f->string : "");
        out->bytes = (int64_t)strlen(out->data) + 1;
    } else if (f->kind == FLOW_JSON) {
        char *text = json_dumps(f->json, JSON_COMPACT | JSON_ENCODE_ANY);
        out->bytes = text ? (int64_t)strlen(text) : 0;
        mem_free(text);
        out->json = json_deep_copy(f->json);
    } else {
        return false;
    }
    out->port = mem_strdup(port);
    return true;
}

static void restore(struct run *r, size_t node, const struct kept_output *o)
{
    struct flow f = {.kind = o->kind};
    if (o->kind == FLOW_NUMBERS) {
        f.numbers = ARENA_NEW(&r->memory, struct flow_numbers);
        f.numbers->shape = o->shape;
        f.numbers->dtype = o->dtype;
        f.numbers->data = arena_alloc(&r->memory, (size_t)o->bytes + 1);
        memcpy(f.numbers->data, o->data, (size_t)o->bytes);
    } else if (o->kind == FLOW_SCALAR) {
        f.scalar = o->scalar;
    } else if (o->kind == FLOW_STRING) {
        f.string = arena_strdup(&r->memory, o->data);
    } else {
        f.json = json_deep_copy(o->json);
        vec_push(&r->documents, f.json);
    }
    flow_set(r, node, arena_strdup(&r->memory, o->port), f);
}

bool run_cache_take(struct run *r, size_t node)
{
    struct run_cache *c = r->o.cache;
    struct key k;
    if (!c || r->planning)
        return false;
    size_t i = find_entry(c, graph_node_at(r->graph, node)->id);
    if (i == c->entries.n || !key_of(r, node, &k))
        return false;
    struct entry *x = &c->entries.data[i];
    if (x->key.a != k.a || x->key.b != k.b)
        return false;
    x->used = ++c->uses;
    for (size_t o = 0; o < x->outputs.n; o++)
        restore(r, node, &x->outputs.data[o]);
    return true;
}

/* Least recently used first, until the limits hold. */
static void shrink_outputs(struct run_cache *c)
{
    int64_t most = c->limits.output_bytes_max;
    while (c->entries.n > RUN_CACHE_ENTRIES || (most > 0 && c->bytes > most)) {
        size_t oldest = 0;
        for (size_t i = 1; i < c->entries.n; i++)
            if (c->entries.data[i].used < c->entries.data[oldest].used)
                oldest = i;
        drop_entry(c, oldest);
    }
}

void run_cache_forget(struct run *r, size_t node)
{
    struct run_cache *c = r->o.cache;
    if (!c || r->planning)
        return;
    size_t i = find_entry(c, graph_node_at(r->graph, node)->id);
    if (i < c->entries.n)
        drop_entry(c, i);
}

void run_cache_keep(struct run *r, size_t node)
{
    struct run_cache *c = r->o.cache;
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct entry x = {0};
    bool good = true;
    run_cache_forget(r, node);
    if (!c || r->planning || !key_of(r, node, &x.key) || reads_files(n))
        return;
    for (size_t i = 0; i < r->slots.n && good; i++) {
        struct kept_output o;
        if (r->slots.data[i].node != node)
            continue;
        good = keep_value(&r->slots.data[i].value, r->slots.data[i].port, &o);
        if (good)
            vec_push(&x.outputs, o);
        else
            release_output(&o);
        x.bytes += o.bytes;
    }
    x.node = mem_strdup(n->id);
    x.used = ++c->uses;
    good = good && x.outputs.n > 0;
    c->bytes += x.bytes;
    vec_push(&c->entries, x);
    if (!good || (c->limits.output_bytes_max > 0 && x.bytes > c->limits.output_bytes_max))
        drop_entry(c, c->entries.n - 1);
    shrink_outputs(c);
}

/* ---- weights ---- */

static void drop_module(struct run_cache *c, size_t i)
{
    struct module *m = &c->modules.data[i];
    c->weight_bytes -= m->bytes;
    for (size_t k = 0; k < m->weights.n; k++)
        mem_free(m->weights.data[k].data);
    vec_release(&m->weights);
    mem_free(m->node);
    *m = c->modules.data[--c->modules.n];
}

/* The module of a node with the parameters it has now; one with others is dropped. NULL: none. */
static struct module *module_of(struct run_cache *c, const struct graph_node *n)
{
    struct key k = {3, 4};
    add_params(&k, n);
    for (size_t i = 0; i < c->modules.n; i++) {
        struct module *m = &c->modules.data[i];
        if (strcmp(m->node, n->id) != 0)
            continue;
        if (m->key.a == k.a && m->key.b == k.b)
            return m;
        drop_module(c, i);
        return NULL;
    }
    return NULL;
}

bool run_weights_take(
    struct run *r, const struct graph_node *n, int var, void *data, size_t n_bytes)
{
    struct run_cache *c = r->o.cache;
    struct module *m = c && c->keeps_weights ? module_of(c, n) : NULL;
    for (size_t i = 0; m && i < m->weights.n; i++) {
        const struct kept_weight *w = &m->weights.data[i];
        if (w->var != var || w->bytes != n_bytes)
            continue;
        memcpy(data, w->data, n_bytes);
        m->used = ++c->uses;
        return true;
    }
    return false;
}

static void shrink_weights(struct run_cache *c)
{
    int64_t most = c->limits.weight_bytes_max;
    while (c->modules.n > RUN_CACHE_MODULES || (most > 0 && c->weight_bytes > most)) {
        size_t oldest = 0;
        for (size_t i = 1; i < c->modules.n; i++)
            if (c->modules.data[i].used < c->modules.data[oldest].used)
                oldest = i;
        drop_module(c, oldest);
    }
}

void run_weights_keep(
    struct run *r, const struct graph_node *n, int var, const void *data, size_t n_bytes)
{
    struct run_cache *c = r->o.cache;
    struct kept_weight w = {var, NULL, n_bytes};
    if (!c || !c->keeps_weights || !(w.data = mem_try_alloc(n_bytes + 1)))
        return;
    struct module *m = module_of(c, n);
    if (!m) {
        struct module fresh = {.node = mem_strdup(n->id), .key = {3, 4}};
        add_params(&fresh.key, n);
        vec_push(&c->modules, fresh);
        m = &c->modules.data[c->modules.n - 1];
    }
    memcpy(w.data, data, n_bytes);
    vec_push(&m->weights, w);
    m->bytes += (int64_t)n_bytes;
    m->used = ++c->uses;
    c->weight_bytes += (int64_t)n_bytes;
    shrink_weights(c);
}

/* ---- the cache as a whole ---- */

static enum status read_limit(const char *env, const char *key, int64_t *out, struct err *e)
{
    TRY(config_count(env, key, 1024, out, e));
    *out = *out < INT64_MAX >> 20 ? *out << 20 : INT64_MAX;
    return ST_OK;
}

enum status run_cache_limits_read(struct run_cache_limits *out, struct err *e)
{
    TRY(read_limit(
        "SNUG_EXECUTION_CACHE_MAX_MB", "execution_cache_max_mb", &out->output_bytes_max, e));
    return read_limit(
        "SNUG_NODE_STATE_STORE_MAX_MB", "node_state_store_max_mb", &out->weight_bytes_max, e);
}

struct run_cache *run_cache_new(const struct run_cache_limits *l)
{
    struct run_cache *c = mem_alloc(sizeof *c);
    c->limits = *l;
    return c;
}

void run_cache_clear_outputs(struct run_cache *c)
{
    while (c->entries.n)
        drop_entry(c, c->entries.n - 1);
}

static bool names(const json_t *list, const char *node)
{
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) if (str_eq(json_string_value(v), node)) return true;
    return false;
}

int64_t run_cache_clear_weights(struct run_cache *c, const json_t *nodes)
{
    int64_t gone = 0;
    for (size_t i = c->modules.n; i-- > 0;) {
        if (nodes && !names(nodes, c->modules.data[i].node))
            continue;
        drop_module(c, i);
        gone++;
    }
    return gone;
}

void run_cache_free(struct run_cache *c)
{
    if (!c)
        return;
    run_cache_clear_outputs(c);
    (void)run_cache_clear_weights(c, NULL);
    vec_release(&c->entries);
    vec_release(&c->modules);
    mem_free(c);
}

void run_cache_begin(struct run_cache *c, const json_t *changed, bool keeps_weights)
{
    c->keeps_weights = keeps_weights;
    for (size_t i = c->entries.n; i-- > 0;)
        if (names(changed, c->entries.data[i].node))
            drop_entry(c, i);
}

struct run_cache_stats run_cache_stats(const struct run_cache *c)
{
    return (struct run_cache_stats){
        .entries = (int64_t)c->entries.n,
        .bytes = c->bytes,
        .bytes_max = c->limits.output_bytes_max,
        .entries_max = RUN_CACHE_ENTRIES,
        .modules = (int64_t)c->modules.n,
        .weight_bytes = c->weight_bytes,
        .weight_bytes_max = c->limits.weight_bytes_max,
        .modules_max = RUN_CACHE_MODULES};
}

json_t *run_cache_modules(const struct run_cache *c)
{
    json_t *list = json_array();
    for (size_t i = 0; i < c->modules.n; i++)
        (void)json_array_append_new(list, json_string(c->modules.data[i].node));
    return list;
}
