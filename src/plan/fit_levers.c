/* fit_levers.c - which levers a graph has, and what --set takes for each. */
#include "fit_int.h"

#include "base/mem.h"

#include <string.h>

enum numbers { SAME, ROUNDING, OTHER };

struct row {
    enum numbers numbers;
    const char *id, *name, *settings, *allow, *saves, *costs, *keeps, *not_with;
};
enum lever_row {
#define X(ID, ...) ROW_##ID,
#include "train/levers.def"
#undef X
    ROW_COUNT
};
static const struct row rows[] = {
#define X(ID, numbers, name, settings, allow, saves, costs, keeps, not_with)                       \
    {numbers, #ID, name, settings, allow, saves, costs, keeps, not_with},
#include "train/levers.def"
#undef X
};

typedef VEC(const char *) names;

static const char **finish(struct fit *f, names *list)
{
    const char **out = ARENA_ARRAY(&f->memory, const char *, list->n + 1);
    for (size_t i = 0; i < list->n; i++)
        out[i] = list->data[i];
    vec_release(list);
    return out;
}

/* Whether the parameter of this node stands at its default. */
static bool at_default(const struct graph_node *n, const struct node_param *p)
{
    const json_t *given = json_object_get(n->params, p->name);
    json_t *initial = node_param_initial(p);
    bool same = !given || json_equal(given, initial);
    json_decref(initial);
    return same;
}

/* "Type.param=value" for every node of the type that runs. False when this version cannot run it,
 * or a node has chosen something of its own already. */
static bool
add_setting(struct fit *f, const struct graph *g, const char *text, size_t n, names *out)
{
    char type[64], param[64], value[64];
    char *copy = arena_printf(&f->memory, "%.*s", (int)n, text);
    if (sscanf(copy, "%63[^.].%63[^=]=%63s", type, param, value) != 3)
        return false;
    const struct node_type *t = node_type_find(type);
    const struct node_param *p = t ? node_param_find(t, param) : NULL;
    if (!p || (p->flags & PARAM_FLAG_LATER) ||
        (p->type == PARAM_SELECT && node_param_option(p, value) != PARAM_OPTION_OK))
        return false;
    for (size_t i = 0; i < graph_order_count(g); i++) {
        const struct graph_node *x = graph_node_at(g, graph_order_at(g, i));
        if (x->kind != t)
            continue;
        if (!at_default(x, p) && strcmp(type, "Optimizer") != 0)
            return false;
        vec_push(out, arena_printf(&f->memory, "%s.%s=%s", x->id, param, value));
    }
    return out->n > 0;
}

/* The settings up to the next " | " as one level; returns what follows, NULL at the end. */
static const char *
add_level(struct fit *f, const struct graph *g, const char *s, struct fit_lever *l)
{
    names list = {0};
    bool ok = true;
    for (; *s && *s != '|'; s += strspn(s, " ")) {
        size_t n = strcspn(s, " ");
        ok = ok && add_setting(f, g, s, n, &list);
        s += n;
    }
    if (ok && list.n)
        l->settings[l->levels++] = finish(f, &list);
    else
        vec_release(&list);
    return *s ? s + 1 + strspn(s + 1, " ") : NULL;
}

static void
add_plain(struct fit *f, const struct graph *g, const struct row *r, struct fit_lever *l)
{
    for (const char *s = r->settings; s && *s;)
        s = add_level(f, g, s, l);
}

/* Where adapters go: after the model of every training loop, as the file has it. NULL where a model
 * has some already, or stands inside a preset. */
static const struct graph_node *model_of(const struct graph *g, size_t loop, const char **port)
{
    size_t source;
    if (!graph_input(g, loop, "model", &source, port))
        return NULL;
    const struct graph_node *x = graph_node_at(g, source);
    bool plain = x->kind && !x->container && strcmp(x->kind->name, "snug:Adapter") != 0;
    return plain && strlen(x->id) < 200 ? x : NULL;
}

/* Savers of whole weights need the adapters merged into them. */
static void add_merges(struct fit *f, const struct graph *g, names *out)
{
    for (size_t i = 0; i < graph_order_count(g); i++) {
        const struct graph_node *x = graph_node_at(g, graph_order_at(g, i));
        if (x->kind && strcmp(x->kind->name, "ModelSaver") == 0 &&
            node_param_find(x->kind, "merge") && !graph_param_bool(x, "merge"))
            vec_push(out, arena_printf(&f->memory, "%s.merge=true", x->id));
    }
}

/* Adapters with these parameters ("kind=qlora,base=nf4") between models and what trains them. */
static void
add_adapter(struct fit *f, const struct graph *g, const char *params, struct fit_lever *l)
{
    const struct node_type *t = node_type_find("snug:Adapter");
    names list = {0};
    bool ok = t && (t->flags & NODE_FLAG_RUNNABLE);
    for (size_t i = 0; ok && i < graph_order_count(g); i++) {
        const char *port;
        const struct graph_node *x = graph_node_at(g, graph_order_at(g, i));
        if (!x->kind || strcmp(x->kind->name, "TrainingLoop") != 0)
            continue;
        const struct graph_node *model = model_of(g, graph_order_at(g, i), &port);
        ok = model != NULL;
        if (ok)
            vec_push(
                &list,
                arena_printf(
                    &f->memory, FIT_INSERT "%s|%s|snug:Adapter|%s", model->id, port, params));
    }
    if (ok && list.n) {
        add_merges(f, g, &list);
        l->settings[l->levels++] = finish(f, &list);
    } else {
        vec_release(&list);
    }
}

bool fit_batch_statistics(const struct graph *g)
{
    bool found = false;
    for (size_t i = 0; i < graph_order_count(g); i++) {
        const struct graph_node *x = graph_node_at(g, graph_order_at(g, i));
        char *text = json_text(x->params, false);
        found = found || strstr(x->type, "BatchNorm") || strstr(text, "BatchNorm");
        mem_free(text);
    }
    return found;
}

/* The node that cuts a loop's batches; NULL when there is none. */
static const struct graph_node *loader_of(const struct graph *g, size_t loop)
{
    size_t source;
    const char *port;
    if (!graph_input(g, loop, "dataloader", &source, &port))
        return NULL;
    const struct graph_node *x = graph_node_at(g, source);
    return x->kind && node_param_find(x->kind, "batch_size") ? x : NULL;
}

/* The batch of every training loop 2^shift times smaller; accumulated: with as many more of them.
 * False when a batch cannot be cut so. */
static bool add_batch(struct fit *f, const struct graph *g, int shift, bool accumulated, names *out)
{
    int64_t parts = (int64_t)1 << shift;
    for (size_t i = 0; i < graph_order_count(g); i++) {
        size_t node = graph_order_at(g, i);
        const struct graph_node *x = graph_node_at(g, node);
        if (!x->kind || strcmp(x->kind->name, "TrainingLoop") != 0)
            continue;
        const struct graph_node *loader = loader_of(g, node);
        int64_t batch = loader ? graph_param_i64(loader, "batch_size") : 0;
        if (batch < parts || (accumulated && batch % parts))
            return false;
        vec_push(
            out,
            arena_printf(&f->memory, "%s.batch_size=%lld", loader->id, (long long)(batch / parts)));
        if (accumulated)
            vec_push(
                out, arena_printf(
                         &f->memory, "%s.accumulate_steps=%lld", x->id,
                         (long long)(graph_param_i64(x, "accumulate_steps") * parts)));
    }
    return out->n > 0;
}

static void add_batches(struct fit *f, const struct graph *g, bool accumulated, struct fit_lever *l)
{
    for (int shift = 1; l->levels < FIT_LEVELS_MAX; shift++) {
        names list = {0};
        if (!add_batch(f, g, shift, accumulated, &list)) {
            vec_release(&list);
            return;
        }
        l->batch_shift[l->levels] = shift;
        l->settings[l->levels++] = finish(f, &list);
    }
}

/* Adds "ID.batch_size=B / 2^shift" unless it is there; true when that changes something. */
static bool add_smaller(struct fit *f, const struct graph_node *x, int shift, names *out)
{
    int64_t batch = graph_param_i64(x, "batch_size"), parts = (int64_t)1 << shift;
    int64_t less = batch > parts ? batch / parts : 1;
    const char *text = arena_printf(&f->memory, "%s.batch_size=%lld", x->id, (long long)less);
    for (size_t i = 0; i < out->n; i++)
        if (str_eq(out->data[i], text))
            return false;
    if (less < batch)
        vec_push(out, text);
    return 2 * less <= batch >> (shift - 1); /* this step is still a smaller one */
}

/* Batches of validation and evaluation, where nothing is trained on them. */
static void add_eval_batches(struct fit *f, const struct graph *g, struct fit_lever *l)
{
    for (int shift = 1; l->levels < FIT_LEVELS_MAX; shift++) {
        names list = {0};
        bool smaller = false;
        for (size_t i = 0; i < graph_order_count(g); i++) {
            size_t node = graph_order_at(g, i), source = GRAPH_NO_NODE;
            const struct graph_node *x = graph_node_at(g, node), *loader = loader_of(g, node);
            const char *port;
            if (!x->kind)
                continue;
            if (strcmp(x->kind->name, "EvaluateModel") == 0 ||
                strcmp(x->kind->name, "PerplexityEvaluate") == 0)
                smaller |= add_smaller(f, x, shift, &list);
            else if (
                strcmp(x->kind->name, "TrainingLoop") == 0 &&
                graph_input(g, node, "val_dataloader", &source, &port) &&
                graph_node_at(g, source) != loader && graph_node_at(g, source)->kind &&
                node_param_find(graph_node_at(g, source)->kind, "batch_size"))
                smaller |= add_smaller(f, graph_node_at(g, source), shift, &list);
        }
        if (!smaller || list.n == 0) {
            vec_release(&list);
            return;
        }
        l->settings[l->levels++] = finish(f, &list);
    }
}

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    while (list && *list) {
        size_t length = strcspn(list, ",");
        if (length == n && memcmp(list, word, n) == 0)
            return true;
        list += length + (list[length] == ',');
    }
    return false;
}

/* Every word of --allow belongs to a lever. */
enum status fit_words_check(const char *allow, struct err *e)
{
    char word[64];
    for (const char *s = allow; s && *s; s += *s == ',') {
        size_t n = strcspn(s, ",");
        bool known = false;
        for (int i = 0; i < ROW_COUNT; i++)
            known = known || (n && strlen(rows[i].allow) == n && memcmp(rows[i].allow, s, n) == 0);
        if (!known) {
            (void)snprintf(word, sizeof word, "%.*s", n < 60 ? (int)n : 60, s);
            return err_set(
                e, ST_USAGE,
                "--allow is a list of bf16, fp16, half, state8, factored, lora, qlora and batch, "
                "separated by commas; \"%s\" is none of them",
                word);
        }
        s += n;
    }
    return ST_OK;
}

enum status fit_levers_find(struct fit *f, const struct graph *g, struct err *e)
{
    bool statistics = fit_batch_statistics(g);
    TRY(fit_words_check(f->o.allow, e));
    for (int i = 0; i < ROW_COUNT; i++) {
        const struct row *r = &rows[i];
        struct fit_lever l = {
            .id = r->id,
            .name = r->name,
            .allow = r->allow,
            .costs = r->costs,
            .keeps = r->keeps,
            .group = (enum fit_group)r->numbers};
        if (i == ROW_CHECKPOINT_AUTO)
            continue; /* it answers to the budget of a run, not of a plan */
        if ((i == ROW_STATE_HOST || i == ROW_OFFLOAD_ACTIVATIONS) && !f->on_card)
            continue; /* without a card all lies on the host already */
        if (i == ROW_SMALLER_BATCH || (i == ROW_MICRO_BATCH && (!statistics || f->oom)))
            add_batches(f, g, i == ROW_MICRO_BATCH, &l);
        else if (i == ROW_EVAL_BATCH)
            add_eval_batches(f, g, &l);
        else if (i == ROW_LORA)
            add_adapter(f, g, "kind=lora", &l);
        else if (i == ROW_QLORA_INT8)
            add_adapter(f, g, "kind=qlora,base=int8", &l);
        else if (i == ROW_QLORA_NF4)
            add_adapter(f, g, "kind=qlora,base=nf4", &l);
        else
            add_plain(f, g, r, &l);
        if (l.levels == 0)
            continue;
        ASSERT(f->levers_n < FIT_LEVERS_MAX);
        f->allowed[f->levers_n] = !*r->allow || has_word(f->o.allow, r->allow);
        f->levers[f->levers_n++] = l;
    }
    return ST_OK;
}

static bool same_place(const char *a, const char *b)
{
    size_t n = strcspn(a, "=");
    return strcspn(b, "=") == n && memcmp(a, b, n) == 0;
}

bool fit_levers_clash(const struct fit_lever *a, const struct fit_lever *b)
{
    for (const char **x = a->settings[0]; *x; x++)
        for (const char **y = b->settings[0]; *y; y++)
            if (same_place(*x, *y))
                return true;
    return false;
}

void fit_words_left(const struct fit *f, struct str *out)
{
    for (int i = 0; i < f->levers_n; i++)
        if (!f->allowed[i] && !has_word(out->data, f->levers[i].allow))
            str_printf(out, "%s%s", out->n ? "," : "", f->levers[i].allow);
}

void fit_words_idle(const struct fit *f, struct str *out)
{
    for (int i = 0; i < ROW_COUNT; i++) {
        bool idle = *rows[i].allow && has_word(f->o.allow, rows[i].allow);
        for (int k = 0; k < f->levers_n; k++)
            idle = idle && strcmp(f->levers[k].allow, rows[i].allow) != 0;
        if (idle && !has_word(out->data, rows[i].allow))
            str_printf(out, "%s%s", out->n ? "," : "", rows[i].allow);
    }
}

/* Two loops over one loader both set its batch size. */
static bool listed(const char *const *list, size_t n, const char *setting)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], setting) == 0)
            return true;
    return false;
}

const char **fit_settings(const struct fit *f, const struct fit_choice *c, struct arena *memory)
{
    size_t n = 0;
    for (int i = 0; i < f->levers_n; i++)
        for (const char **s = c->level[i] ? f->levers[i].settings[c->level[i] - 1] : NULL; s && *s;
             s++)
            n++;
    const char **out = ARENA_ARRAY(memory, const char *, n + 1);
    n = 0;
    for (int i = 0; i < f->levers_n; i++)
        for (const char **s = c->level[i] ? f->levers[i].settings[c->level[i] - 1] : NULL; s && *s;
             s++)
            if (!listed(out, n, *s))
                out[n++] = *s;
    return out;
}
