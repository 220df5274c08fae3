/* graph_estimate.c - plans a graph, watches its programs go by, and makes the three figures of
 * them. */
#include "plan/graph_estimate.h"

#include "base/mem.h"
#include "ir/optim_state.h"
#include "plan/torch_style.h"

#include <stdio.h>
#include <string.h>

enum { LIBRARY_BYTES = 128 << 20, RESERVE_PERCENT = 20 };

/* What the programs of a graph tell. */
struct seen {
    struct torch_estimate cpu, cuda; /* of the training step that needs most */
    int64_t peak, evaluation;        /* bytes: of the plan, of an evaluation's passing results */
    int64_t parameters, trainable, state, casts;
    bool trains;
    char peak_node[128];        /* the node that decides */
    struct ir_program *forward; /* of the training program that is passing by */
    bool autocast;
    enum status st;
    struct err *e;
};

/* ---- activations ---- */

/* Nothing is kept: the fullest moment of results that are still read. */
static int64_t passing(const struct ir_program *p)
{
    int64_t live = 0, most = 0, *last = mem_alloc((p->values.n + 1) * sizeof *last);
    for (size_t i = 0; i < p->ops.n; i++) {
        const struct ir_op *op = &p->ops.data[i];
        for (int k = 0; k < op->n_in; k++)
            if (op->in[k] != IR_NONE)
                last[ir_storage(p, op->in[k])] = (int64_t)i;
        for (int k = 0; k < op->n_out; k++)
            last[ir_storage(p, op->out[k])] = (int64_t)i;
    }
    for (size_t i = 0; i < p->ops.n; i++) {
        for (size_t pass = 0; pass < 2; pass++) {
            for (size_t v = 0; v < p->values.n; v++) {
                const struct ir_value *x = &p->values.data[v];
                bool own = x->kind == VALUE_TEMP && x->base == (int)v;
                if (own && pass == 0 && x->def == (int)i)
                    live += ir_value_bytes(p, (int)v);
                if (own && pass == 1 && last[v] == (int64_t)i)
                    live -= ir_value_bytes(p, (int)v);
            }
            most = live > most ? live : most;
        }
    }
    mem_free(last);
    return most;
}

/* ---- watching ---- */

/* E1's bytes of a trainable parameter: gradient and state. */
static int64_t state_bytes(const struct optim_attr *a)
{
    return 4 + 4 * optim_state_full(a);
}

static const struct optim_attr *optimizer_of(const struct ir_program *p)
{
    for (size_t i = 0; i < p->ops.n; i++)
        if (p->ops.data[i].code == OP_OPTIMIZER)
            return &p->ops.data[i].attr.optim;
    return NULL;
}

static void keep_larger(struct torch_estimate *kept, const struct torch_estimate *x)
{
    if (x->peak.bytes > kept->peak.bytes)
        *kept = *x;
}

static enum status replay(struct seen *s, const struct optim_attr *a, bool accumulates)
{
    for (int i = 0; i < 2; i++) {
        struct torch_options o;
        struct torch_estimate x;
        torch_options_defaults(&o, i == 1);
        o.autocast = s->autocast;
        o.accumulates = accumulates;
        if (a)
            o.optim = *a;
        TRY(torch_estimate_make(s->forward, &o, &x, s->e));
        keep_larger(i ? &s->cuda : &s->cpu, &x);
    }
    return ST_OK;
}

static int64_t product_weights(const struct ir_program *p)
{
    int64_t n = 0;
    for (size_t i = 0; i < p->values.n; i++) {
        const struct ir_value *v = &p->values.data[i];
        bool parameter = v->kind == VALUE_VAR && v->def == IR_NONE &&
                         p->vars->list.data[v->var].category == CATEGORY_PARAMETERS;
        n += parameter ? shape_count(&v->shape) : 0;
    }
    return n;
}

static void step_seen(struct seen *s, const struct ir_program *updated)
{
    const struct optim_attr *a = optimizer_of(updated);
    bool accumulates = !a || strstr(updated->name, "last") != NULL;
    s->trains = true;
    if (a) {
        struct torch_options none;
        torch_options_defaults(&none, false);
        s->state = state_bytes(a);
        s->casts = s->autocast ? 2 * product_weights(s->forward) : 0;
        s->st = replay(s, a, accumulates);
    }
}

static void program_seen(const struct ir_program *p, const char *pass, void *ctx)
{
    struct seen *s = ctx;
    bool train = strncmp(p->name, "train", 5) == 0;
    if (strcmp(pass, "forward") == 0 && train) {
        ir_program_free(s->forward);
        s->forward = ir_program_clone(p, p->name);
        s->autocast = false;
    } else if (strcmp(pass, "autocast") == 0) {
        s->autocast = true;
    } else if (strcmp(pass, "update") == 0 && s->forward && s->st == ST_OK) {
        step_seen(s, p);
    } else if (strcmp(pass, "evaluate") == 0 || (strcmp(pass, "fuse") == 0 && !train)) {
        int64_t bytes = passing(p);
        s->evaluation = bytes > s->evaluation ? bytes : s->evaluation;
    }
}

/* ---- E3: why an estimate is rough ---- */

static bool given(const struct graph_node *n, const char *param)
{
    return n->params && json_object_get(n->params, param) != NULL;
}

/* Parameters whose default would be a guess for models that take any size. */
static const struct {
    const char *type, *param;
} sizes[] = {
    {"ResizeTransform", "size"}, {"RandomCrop", "size"}, {"LMTokenizedDataset", "seq_len"}};

static const char *guessed_param(const struct graph_node *n)
{
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (n->kind && strcmp(n->kind->name, sizes[i].type) == 0 && !given(n, sizes[i].param))
            return sizes[i].param;
    return NULL;
}

static bool takes_any_size(const struct graph_node *n)
{
    static const char *const layers[] = {"\"Adaptive", "\"LSTM\"", "\"GRU\"", "\"RNN\""};
    if (!n->kind || strcmp(n->kind->name, "SequentialModel") != 0)
        return false;
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        if (strstr(graph_param_str(n, "layers"), layers[i]))
            return true;
    return false;
}

static bool size_is_guessed(const struct graph *g, struct str *why)
{
    bool any_size = false;
    const struct graph_node *guess = NULL;
    for (size_t i = 0; i < graph_order_count(g); i++) {
        const struct graph_node *n = graph_node_at(g, graph_order_at(g, i));
        any_size = any_size || takes_any_size(n);
        guess = guessed_param(n) ? n : guess;
    }
    if (!any_size || !guess)
        return false;
    str_printf(
        why, "the model takes any input size, and '%s' of node %s (%s) is not given",
        guessed_param(guess), guess->id, guess->type);
    return true;
}

/* ---- the document ---- */

static json_t *static_json(const struct seen *s, const char *reason)
{
    json_t *d = json_object();
    int64_t states = s->trains ? s->trainable * s->state : 0;
    int64_t fixed = 4 * s->parameters + states + s->casts;
    int64_t kept = s->peak - fixed > s->evaluation ? s->peak - fixed : s->evaluation;
    int64_t sum = fixed + kept;
    int64_t reserve = sum * RESERVE_PERCENT / 100, total = sum + reserve + LIBRARY_BYTES;
    json_put_i64(d, "parameters_bytes", 4 * s->parameters);
    json_put_i64(d, "gradients_and_state_bytes", states);
    json_put_i64(d, "bytes_per_trainable_parameter", s->trains ? s->state : 0);
    json_put_i64(d, "cast_copies_bytes", s->casts);
    json_put_i64(d, "activations_bytes", kept);
    json_put_str(d, "activations_of", s->peak_node);
    json_put_i64(d, "reserve_bytes", reserve);
    json_put_i64(d, "library_bytes", LIBRARY_BYTES);
    json_put_bool(d, "rough", reason != NULL);
    json_put_str(d, "reason", reason);
    if (reason) {
        json_put(d, "bytes", json_null());
        json_put_i64(d, "rough_bytes", total);
    } else {
        json_put_i64(d, "bytes", total);
    }
    return d;
}

static json_t *torch_json(const struct torch_estimate *x)
{
    json_t *d = json_object(), *by = json_object(), *phases = json_object();
    for (int k = 0; k < TAPE_KIND_COUNT; k++)
        if (x->peak.by_kind[k])
            json_put_i64(by, tape_kind_name((enum tape_kind)k), x->peak.by_kind[k]);
    for (int i = 0; i < TAPE_PHASE_COUNT; i++)
        json_put_i64(phases, tape_phase_name((enum tape_phase)i), x->phase[i].bytes);
    json_put_i64(d, "peak_bytes", x->peak.bytes);
    json_put_str(d, "phase", tape_phase_name(x->peak.phase));
    json_put_str(d, "operator", x->peak.what ? x->peak.what : "");
    json_put(d, "by_line", by);
    json_put(d, "phases", phases);
    if (x->reserved_bytes)
        json_put_i64(d, "reserved_bytes", x->reserved_bytes);
    json_put_i64(d, "context_bytes", x->context_bytes);
    json_put_i64(d, "total_bytes", x->total_bytes);
    if (x->unknown[0])
        json_put_str(d, "left_out", x->unknown);
    return d;
}

static json_t *plan_json(struct run *r)
{
    json_t *all = run_plan_json(r, false), *d = json_object();
    json_put_i64(d, "peak_bytes", json_get_i64(all, "peak_bytes", 0));
    json_put(d, "by_category", json_incref(json_object_get(all, "by_category")));
    json_decref(all);
    return d;
}

/* Parameters, and the activations of the fullest moment: library workspace has a line of its own.
 */
static void counts_from(struct seen *s, struct run *r)
{
    json_t *all = run_plan_json(r, false);
    s->parameters = json_get_i64(all, "parameters", 0);
    s->trainable = json_get_i64(all, "trainable", 0);
    s->peak = json_get_i64(all, "peak_bytes", 0);
    (void)snprintf(s->peak_node, sizeof s->peak_node, "%s", json_get_str(all, "peak_node", ""));
    json_decref(all);
}

enum status
graph_estimate(struct graph *g, const struct run_options *asked, json_t **out, struct err *e)
{
    struct run_options o = *asked;
    struct err failed = {0};
    struct seen s = {.e = e};
    struct run_watch watch = {program_seen, &s};
    struct run *r = NULL;
    struct str why;
    o.watch = &watch;
    o.quick = true;
    TRY(run_new(g, &o, NULL, &r, e));
    str_init(&why);
    enum status st = run_plan(r, &failed);
    bool planned = st == ST_OK;
    counts_from(&s, r);
    if (!planned)
        str_printf(&why, "%s%s%s", failed.node, failed.node[0] ? ": " : "", failed.text);
    bool rough = !planned || size_is_guessed(g, &why);
    json_t *d = json_object(), *torch = json_object();
    json_put_i64(d, "parameters", s.parameters);
    json_put_i64(d, "trainable", s.trainable);
    json_put(d, "plan", planned ? plan_json(r) : json_null());
    json_put(d, "static", static_json(&s, rough ? why.data : NULL));
    if (s.trains) {
        json_put(torch, "cpu", torch_json(&s.cpu));
        json_put(torch, "cuda", torch_json(&s.cuda));
    }
    json_put(d, "torch", torch);
    ir_program_free(s.forward);
    run_free(r);
    str_release(&why);
    st = s.st != ST_OK ? s.st : !planned && s.parameters == 0 ? failed.status : ST_OK;
    if (st == ST_OK) {
        *out = d;
        return ST_OK;
    }
    if (s.st == ST_OK)
        *e = failed;
    json_decref(d);
    return st;
}

/* ---- text ---- */

static void line(struct str *out, const char *label, int64_t bytes)
{
    str_printf(
        out, "    %-34s %9.3f GiB  %9.3f GB\n", label, (double)bytes / 1073741824.0,
        (double)bytes / 1e9);
}

static void static_text(const json_t *d, struct str *out)
{
    static const char *const rows[][2] = {
        {"parameters_bytes", "parameters, 4 bytes each"},
        {"gradients_and_state_bytes", "gradients and optimizer state"},
        {"cast_copies_bytes", "casts of weights"},
        {"activations_bytes", "activations of one step"},
        {"reserve_bytes", "20% on the sum"},
        {"library_bytes", "libraries"}};
    const char *reason = json_get_str(d, "reason", NULL);
    str_printf(
        out, "\nstatic estimate (what a memory budget would offer)%s%s\n",
        reason ? ": rough, " : "", reason ? reason : "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        line(out, rows[i][1], json_get_i64(d, rows[i][0], 0));
    line(out, "sum", json_get_i64(d, "bytes", json_get_i64(d, "rough_bytes", 0)));
}

static void torch_text(const json_t *d, const char *title, struct str *out)
{
    if (!d)
        return;
    str_printf(
        out, "\nPyTorch-style estimate, %s: fullest in the %s, at \"%s\"\n", title,
        json_get_str(d, "phase", ""), json_get_str(d, "operator", ""));
    const json_t *by = json_object_get(d, "by_line");
    for (int k = 0; k < TAPE_KIND_COUNT; k++) {
        int64_t bytes = json_get_i64(by, tape_kind_name((enum tape_kind)k), 0);
        if (bytes)
            line(out, tape_kind_name((enum tape_kind)k), bytes);
    }
    line(out, "allocated", json_get_i64(d, "peak_bytes", 0));
    if (json_get_i64(d, "reserved_bytes", 0))
        line(out, "reserved by the caching allocator", json_get_i64(d, "reserved_bytes", 0));
    if (json_get_i64(d, "context_bytes", 0)) {
        line(out, "context (outside its counter)", json_get_i64(d, "context_bytes", 0));
        line(out, "on the card", json_get_i64(d, "total_bytes", 0));
    }
    if (json_get_str(d, "left_out", NULL))
        str_printf(out, "    left out: %s\n", json_get_str(d, "left_out", ""));
}

void graph_estimate_text(const json_t *d, struct str *out)
{
    const json_t *plan = json_object_get(d, "plan"), *torch = json_object_get(d, "torch");
    str_printf(
        out, "%lld parameters, %lld trained\n", (long long)json_get_i64(d, "parameters", 0),
        (long long)json_get_i64(d, "trainable", 0));
    if (json_is_object(plan)) {
        str_add(out, "\nplan (exact, this engine; see `snug plan`)\n");
        line(out, "peak", json_get_i64(plan, "peak_bytes", 0));
    }
    static_text(json_object_get(d, "static"), out);
    torch_text(json_object_get(torch, "cuda"), "on a card", out);
    torch_text(json_object_get(torch, "cpu"), "on the CPU", out);
    str_add(out, "\nThree figures for three questions; they are not comparable line by line.\n");
}
