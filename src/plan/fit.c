/* fit.c - searches sets of levers with the planner as oracle. */
#include "fit_int.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 64 << 20 };

static int count(const struct fit *f, const struct fit_choice *c)
{
    int n = 0;
    for (int i = 0; i < f->levers_n; i++)
        n += c->level[i] > 0;
    return n;
}

/* ---- one plan ---- */

/* "NAME=VALUE,..." as an object, by the types of the node's parameters. */
static json_t *params_of(const struct node_type *t, char *text)
{
    json_t *params = json_object();
    char *next = NULL;
    for (char *one = strtok_r(text, ",", &next); one; one = strtok_r(NULL, ",", &next)) {
        char *value = strchr(one, '=');
        if (!value)
            continue;
        *value++ = 0;
        const struct node_param *p = node_param_find(t, one);
        json_t *v = p ? node_param_parse(p, value) : NULL;
        if (v)
            json_put(params, one, v);
    }
    return params;
}

static enum status insert(json_t *document, const char *setting, struct err *e)
{
    char *text = mem_strdup(setting + strlen(FIT_INSERT)), *next = NULL, id[64];
    const char *source = strtok_r(text, "|", &next), *port = strtok_r(NULL, "|", &next);
    const char *type = strtok_r(NULL, "|", &next);
    char *values = strtok_r(NULL, "|", &next);
    ASSERT(source && port && type && values);
    json_t *params = params_of(node_type_find(type), values);
    enum status st = graph_insert_after(
        document,
        &(struct graph_insertion){
            .source = source,
            .port = port,
            .type = type,
            .id = "adapter",
            .input = "model",
            .output = "model",
            .params = params},
        id, e);
    json_decref(params);
    mem_free(text);
    return st;
}

/* Reads the file, with nodes inserted where `settings` has some. */
static enum status
load(const struct fit *f, const char **settings, struct graph **out, struct err *e)
{
    json_t *document = NULL;
    char *text = NULL;
    enum status st = ST_OK;
    bool inserts = false;
    for (const char **s = settings; *s; s++)
        inserts = inserts || str_starts(*s, FIT_INSERT);
    if (!inserts)
        return graph_load(f->o.path, out, e);
    TRY(json_read_file(f->o.path, FILE_BYTES_MAX, &document, e));
    for (const char **s = settings; *s; s++)
        if (str_starts(*s, FIT_INSERT))
            TRY_OUT(insert(document, *s, e));
    text = json_text(document, false);
    st = graph_parse(text, strlen(text), f->o.path, out, e);
out:
    mem_free(text);
    json_decref(document);
    return st;
}

enum status
fit_graph_with(const struct fit *f, const struct fit_choice *c, struct graph **out, struct err *e)
{
    struct graph *g = NULL;
    struct arena memory;
    arena_init(&memory);
    const char **settings = fit_settings(f, c, &memory);
    enum status st = load(f, settings, &g, e);
    for (size_t i = 0; st == ST_OK && i < f->o.n_sets; i++)
        st = graph_set(g, f->o.sets[i], e);
    for (const char **s = settings; st == ST_OK && *s; s++)
        if (!str_starts(*s, FIT_INSERT))
            st = graph_set(g, *s, e);
    if (st == ST_OK && graph_check(g, GRAPH_RUN) == 0)
        (void)graph_check_runnable(g);
    if (st == ST_OK)
        st = graph_verdict(g, e);
    arena_release(&memory);
    if (st != ST_OK)
        graph_free(g);
    else
        *out = g;
    return st;
}

/* How much smaller the micro-batch of a choice is. */
static int batch_shift(const struct fit *f, const struct fit_choice *c)
{
    int shift = 0;
    for (int i = 0; i < f->levers_n; i++)
        if (c->level[i])
            shift += f->levers[i].batch_shift[c->level[i] - 1];
    return shift;
}

enum status
fit_plan_make(struct fit *f, const struct fit_choice *c, struct fit_plan *out, struct err *e)
{
    struct graph *g = NULL;
    struct run *r = NULL;
    struct run_options o = f->o.run;
    if (f->oom) /* under the limits of that run, with the frugal kernels that they ask for */
        o.rooms = f->oom->room_by_device;
    else
        o.budget_bytes = 0;
    o.quick = true;
    enum status st = fit_graph_with(f, c, &g, e);
    if (st == ST_OK)
        st = run_new(g, &o, NULL, &r, e);
    if (st == ST_OK)
        st = run_plan(r, e);
    if (st == ST_OK) {
        struct run_figures figures = run_figures(r);
        out->valid = true;
        out->peak_bytes = f->oom ? run_peak_at(r, f->oom->place) : figures.peak_bytes;
        out->transfer_bytes = figures.transfer_bytes;
        f->on_card = f->on_card || figures.trains_on_card;
        out->fits = f->oom && run_fits_rooms(r, f->oom);
        out->flops = figures.train_flops * (double)((int64_t)1 << batch_shift(f, c));
        if (!f->least_plan || out->peak_bytes < f->least_bytes) {
            f->least_bytes = out->peak_bytes;
            f->least = *c;
            json_decref(f->least_plan);
            f->least_plan = run_plan_json(r, false);
        }
    }
    run_free(r);
    graph_free(g);
    return st;
}

static bool stopped(const struct fit *f)
{
    return f->o.stop && f->o.stop(f->o.ctx);
}

/* The plan of a choice, made once. Levers that do not go together give one that is not valid. */
static struct fit_plan plan_of(struct fit *f, const struct fit_choice *c)
{
    struct err ignored = {0};
    struct fit_plan p = {.choice = *c};
    for (size_t i = 0; i < f->plans.n; i++)
        if (memcmp(&f->plans.data[i].choice, c, sizeof *c) == 0)
            return f->plans.data[i];
    if (f->plans_left <= 0 || stopped(f))
        return p;
    f->plans_left--;
    if (fit_plan_make(f, c, &p, &ignored) != ST_OK)
        p.valid = false;
    vec_push(&f->plans, p);
    if (f->o.progress)
        f->o.progress((int)f->plans.n, f->least_bytes, f->o.ctx);
    return p;
}

static bool fits(const struct fit *f, const struct fit_plan *p)
{
    return p->valid && p->peak_bytes <= f->o.budget_bytes;
}

/* ---- sets of levers ---- */

static bool usable(const struct fit *f, enum fit_group group, int lever)
{
    return f->levers[lever].group <= group && f->allowed[lever];
}

static bool clashes(const struct fit *f, const struct fit_choice *c, int lever)
{
    for (int i = 0; i < f->levers_n; i++)
        if (i != lever && c->level[i] && fit_levers_clash(&f->levers[i], &f->levers[lever]))
            return true;
    return false;
}

/* The sets that save most, the least peak first. */
struct beam {
    struct fit_plan best[FIT_BEAM];
    int n;
};

static void beam_add(struct beam *b, const struct fit_plan *p)
{
    int at = b->n;
    for (int i = 0; i < b->n; i++)
        if (memcmp(&b->best[i].choice, &p->choice, sizeof p->choice) == 0)
            return;
    while (at > 0 && b->best[at - 1].peak_bytes > p->peak_bytes)
        at--;
    if (at == FIT_BEAM)
        return;
    int last = b->n < FIT_BEAM ? b->n++ : FIT_BEAM - 1;
    memmove(b->best + at + 1, b->best + at, (size_t)(last - at) * sizeof *b->best);
    b->best[at] = *p;
}

static void grow(struct fit *f, enum fit_group group, const struct fit_plan *from, struct beam *to)
{
    for (int i = 0; i < f->levers_n; i++) {
        struct fit_choice next = from->choice;
        if (!usable(f, group, i) || next.level[i] || clashes(f, &next, i))
            continue;
        next.level[i] = (signed char)f->levers[i].levels;
        struct fit_plan p = plan_of(f, &next);
        if (p.valid)
            beam_add(to, &p);
    }
}

/* Levers are added one at a time to the sets that save most so far: what saves most alone (a small
 * micro-batch) may stand in the way of what saves most together (updates in the backward pass). The
 * number of levers at which a set fits, or 0. */
static int smallest_size(struct fit *f, enum fit_group group)
{
    struct beam at = {.best = {f->plans.data[0]}, .n = 1};
    for (int n = 1; n <= f->levers_n && at.n; n++) {
        struct beam next = {.n = 0};
        for (int i = 0; i < at.n; i++)
            grow(f, group, &at.best[i], &next);
        if (next.n && next.best[0].peak_bytes <= f->o.budget_bytes)
            return n;
        at = next;
    }
    return 0;
}

/* Whether a way found before is part of the choice. */
static bool contains_way(const struct fit *f, const struct fit_choice *c)
{
    for (size_t k = 0; k < f->ways.n; k++) {
        bool inside = true;
        for (int i = 0; i < f->levers_n; i++)
            inside = inside && (f->ways.data[k].choice.level[i] == 0 || c->level[i] > 0);
        if (inside)
            return true;
    }
    return false;
}

/* Every lever of a choice that fits, as far back as it goes. */
static void turn_back(struct fit *f, struct fit_choice *c)
{
    for (int i = 0; i < f->levers_n; i++) {
        while (c->level[i] > 1) {
            struct fit_choice less = *c;
            less.level[i]--;
            struct fit_plan p = plan_of(f, &less);
            if (!fits(f, &p))
                break;
            *c = less;
        }
    }
}

static void try_choice(struct fit *f, enum fit_group group, struct fit_choice c)
{
    struct fit_plan p = plan_of(f, &c);
    if (!fits(f, &p))
        return;
    turn_back(f, &c);
    p = plan_of(f, &c);
    double plain = f->plans.data[0].flops;
    double more = plain > 0 && p.flops > plain ? p.flops / plain - 1 : 0;
    vec_push(
        &f->ways, ((struct fit_way){
                      .choice = c,
                      .group = group,
                      .levers_n = count(f, &c),
                      .peak_bytes = p.peak_bytes,
                      .extra_compute = more < 1e-3 ? 0 : more,
                      .extra_transfer_bytes = p.transfer_bytes - f->plans.data[0].transfer_bytes}));
}

/* Every set of `more` further levers from `from` on, one of them at least of the group itself. */
static void
try_sets(struct fit *f, enum fit_group group, struct fit_choice c, int from, int more, bool own)
{
    if (more == 0) {
        if (own && !contains_way(f, &c))
            try_choice(f, group, c);
        return;
    }
    for (int i = from; i < f->levers_n; i++) {
        struct fit_choice next = c;
        if (!usable(f, group, i) || clashes(f, &c, i))
            continue;
        next.level[i] = (signed char)f->levers[i].levels;
        try_sets(f, group, next, i + 1, more - 1, own || f->levers[i].group == group);
    }
}

static int by_cost(const void *a, const void *b)
{
    const struct fit_way *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->extra_transfer_bytes != y->extra_transfer_bytes) /* what moves nothing is first */
        return x->extra_transfer_bytes < y->extra_transfer_bytes ? -1 : 1;
    if (x->extra_compute != y->extra_compute)
        return x->extra_compute < y->extra_compute ? -1 : 1;
    if (x->levers_n != y->levers_n)
        return x->levers_n - y->levers_n;
    return memcmp(&y->choice, &x->choice, sizeof x->choice); /* levers.def's order: T8 */
}

static void search_group(struct fit *f, enum fit_group group)
{
    int most = 0;
    bool any = false;
    for (int i = 0; i < f->levers_n; i++)
        any = any || (f->levers[i].group == group && f->allowed[i]);
    f->plans_left = FIT_PLANS_MAX;
    if (any)
        most = smallest_size(f, group);
    for (int n = 1; n <= most; n++)
        try_sets(f, group, (struct fit_choice){0}, 0, n, false);
}

enum status fit_search(const struct fit_options *o, struct fit **out, struct err *e)
{
    struct fit *f = mem_alloc(sizeof *f);
    struct fit_plan plain = {0};
    struct graph *g = NULL;
    enum status st = ST_OK;
    f->o = *o;
    arena_init(&f->memory);
    TRY_OUT(fit_graph_with(f, &plain.choice, &g, e));
    TRY_OUT(fit_words_check(f->o.allow, e));
    TRY_OUT(fit_plan_make(f, &plain.choice, &plain, e)); /* which says where it runs, too */
    TRY_OUT(fit_levers_find(f, g, e));
    vec_push(&f->plans, plain);
    for (int group = 0; group < FIT_GROUP_COUNT && !fits(f, &f->plans.data[0]); group++)
        search_group(f, (enum fit_group)group);
    if (stopped(f))
        TRY_OUT(err_set(e, ST_INTERRUPTED, "stopped after %zu plans", f->plans.n));
    if (f->ways.n)
        qsort(f->ways.data, f->ways.n, sizeof *f->ways.data, by_cost);
    *out = f;
    f = NULL;
out:
    graph_free(g);
    fit_free(f);
    return st;
}

void fit_free(struct fit *f)
{
    if (!f)
        return;
    json_decref(f->least_plan);
    vec_release(&f->plans);
    vec_release(&f->ways);
    arena_release(&f->memory);
    mem_free(f);
}

enum status fit_write(const struct fit *f, const char *path, struct err *e)
{
    struct graph *g;
    struct fit_choice none = {0};
    TRY(fit_graph_with(f, f->ways.n ? &f->ways.data[0].choice : &none, &g, e));
    enum status st = graph_save(g, path, e);
    graph_free(g);
    return st;
}
