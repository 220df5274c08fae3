/* lm_nodes.c - language models: their loss, perplexity, and text that they continue. */
#include "runner/run_int.h"

#include "base/rng.h"
#include "base/str.h"
#include "nn/transformer.h"
#include "runner/text_int.h"
#include "text/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IGNORE_INDEX = -100 };

enum status node_lm_loss(struct run *r, size_t node, struct err *e)
{
    (void)e;
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct loss_spec *l = ARENA_NEW(&r->memory, struct loss_spec);
    l->type = LOSS_TYPE_LM_CROSS_ENTROPY;
    l->attr.ignore_index = graph_param_i64(n, "ignore_index");
    l->attr.label_smoothing = graph_param_f64(n, "label_smoothing");
    l->node_id = n->id;
    vec_push(&r->losses, l);
    flow_set(r, node, "loss_fn", (struct flow){.kind = FLOW_LOSS, .loss = l});
    return ST_OK;
}

/* ---- perplexity ---- */

struct perplexity {
    struct ir_program *programs[2]; /* full batch, short last batch */
    int n, full, last;              /* indices of each */
    int64_t batches;                /* to be looked at */
    struct flow_loader *loader;
    double loss, tokens; /* sum over counted tokens, their count */
};

static enum status build_perplexity(
    struct run *r, const struct graph_node *n, struct flow_model *m, struct flow_dataset *d,
    struct perplexity *v, struct err *e)
{
    struct loader_options o = {.batch_size = graph_param_i64(n, "batch_size")};
    struct loss_spec loss = {
        .type = LOSS_TYPE_LM_CROSS_ENTROPY,
        .attr = {.ignore_index = IGNORE_INDEX},
        .node_id = n->id};
    TRY(flow_loader_make(r, d, n->id, &o, &v->loader, e));
    const struct loader_plan *p = &v->loader->plan;
    if (p->type != DATA_I64 || p->target != DATA_I64 || p->rank != 1 || p->target_rank != 1)
        return err_set(
            e, ST_INVALID,
            "input 'dataset' is no sequence of tokens: LMTokenizedDataset makes them");
    struct step_config c = {.model = m->model, .loss = &loss, .precision = run_precision(r, n)};
    c.levers.loss_chunk_tokens = graph_param_i64(n, "loss_chunk_tokens");
    c.sample.input = SHAPE(p->shape[0]);
    c.sample.target = SHAPE(p->target_shape[0]);
    c.sample.target_dtype = DT_I64;
    c.sample.has_target = true;
    int64_t most = graph_param_i64(n, "max_batches");
    v->batches = most > 0 && most < p->batches ? most : p->batches;
    bool has_short = v->batches == p->batches && p->last_count != o.batch_size;
    if (v->batches > (has_short ? 1 : 0)) {
        TRY(step_eval_make(&m->vars, &c, o.batch_size, &v->programs[v->n], e));
        v->full = v->last = v->n++;
    }
    if (has_short) {
        TRY(step_eval_make(&m->vars, &c, p->last_count, &v->programs[v->n], e));
        v->last = v->n++;
    }
    return ST_OK;
}

static enum status
run_perplexity(struct run *r, struct perplexity *v, struct exec *x, struct err *e)
{
    int64_t count;
    TRY(flow_loader_open(r, v->loader, e));
    TRY(loader_begin_epoch(v->loader->open, 0, 0, e));
    for (int64_t i = 0; i < v->batches; i++) {
        int index = i == v->batches - 1 ? v->last : v->full;
        const struct ir_program *p = v->programs[index];
        TRY(exec_inputs_ready(x, index, e));
        TRY(loader_next(
            v->loader->open, exec_value(x, index, ir_input_find(p, "input")),
            exec_value(x, index, ir_input_find(p, "target")), &count, e));
        TRY(exec_run(x, index, e));
        const float *loss = exec_value(x, index, ir_output_find(p, "loss"));
        const float *weight = exec_value(x, index, ir_output_find(p, "loss_weight"));
        if (*weight > 0) { /* a batch of ignored targets alone has no mean */
            v->loss += (double)*loss * (double)*weight;
            v->tokens += (double)*weight;
        }
        if (run_stop_asked(r))
            return err_set(e, ST_INTERRUPTED, "stopped during evaluation");
    }
    return ST_OK;
}

static void say_perplexity(struct run *r, const struct graph_node *n, double loss, double tokens)
{
    json_t *result = json_object(), *event = json_object();
    json_put_f64(result, "val_loss", loss);
    json_put_f64(result, "perplexity", exp(loss));
    json_put_i64(result, "tokens", (int64_t)tokens);
    json_put(r->results, n->id, result);
    json_put_str(event, "event", "perplexity");
    json_put_str(event, "node_id", n->id);
    (void)json_object_update(event, result);
    run_event(r, event);
}

static void set_scalar(struct run *r, size_t node, const char *port, double v)
{
    flow_set(r, node, port, (struct flow){.kind = FLOW_SCALAR, .scalar = v});
}

enum status node_perplexity(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow model, data;
    struct perplexity v = {0};
    struct exec *x = NULL;
    TRY(flow_get(r, node, "model", FLOW_MODEL, &model, e));
    TRY(flow_get(r, node, "dataset", FLOW_DATASET, &data, e));
    enum status st = build_perplexity(r, n, model.model, data.dataset, &v, e);
    run_keep_programs(r, v.programs, v.n);
    if (st == ST_OK)
        st = flow_model_exec(r, n, model.model, v.programs, v.n, &x, e);
    if (st == ST_OK && !r->planning)
        st = run_perplexity(r, &v, x, e);
    flow_model_leave(r, n, model.model, x);
    TRY(st);
    double loss = v.tokens > 0 ? v.loss / v.tokens : (double)NAN;
    set_scalar(r, node, "val_loss", loss);
    set_scalar(r, node, "perplexity", exp(loss));
    set_scalar(r, node, "tokens", v.tokens);
    if (!r->planning)
        say_perplexity(r, n, loss, v.tokens);
    return ST_OK;
}

/* ---- generation ---- */

/* Static programs at a few lengths: a text of n tokens runs the shortest that holds it. What stands
 * behind the text is not seen by a causal model. */
enum { LENGTHS_MAX = 16, LENGTH_LEAST = 16 };
struct generation {
    struct flow_tokenizer *tokenizer;
    struct flow_model *model;
    struct tokens text;
    int64_t prompt_n, new_max, positions, end;
    double temperature, top_p;
    int64_t top_k;
    struct rng rng;
    struct ir_program *programs[LENGTHS_MAX];
    int64_t length[LENGTHS_MAX];
    int n;
    struct candidate {
        float score;
        double share;
        uint32_t id;
    } * candidates;
    int64_t vocab;
};

static enum status read_prompt(struct run *r, size_t node, struct generation *g, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    const char *prompt = graph_param_str(n, "prompt");
    struct flow in;
    if (flow_has(r, node, "prompt", &in) && in.kind == FLOW_STRING)
        prompt = in.string;
    TRY(flow_tokenizer_open(r, g->tokenizer, e));
    g->end = tokenizer_end(g->tokenizer->open);
    TRY(tokenizer_encode(g->tokenizer->open, prompt, strlen(prompt), NULL, &g->text, e));
    if (g->text.n == 0 && g->end >= 0)
        vec_push(&g->text, (uint32_t)g->end);
    if (g->text.n == 0)
        return err_set(e, ST_INVALID, "the prompt is empty, and the tokenizer has no end token");
    g->prompt_n = (int64_t)g->text.n;
    return ST_OK;
}

static enum status read_params(struct run *r, size_t node, struct generation *g, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow model, tokenizer;
    TRY(flow_get(r, node, "model", FLOW_MODEL, &model, e));
    TRY(flow_get(r, node, "tokenizer", FLOW_TOKENIZER, &tokenizer, e));
    g->model = model.model;
    g->tokenizer = tokenizer.tokenizer;
    g->new_max = graph_param_i64(n, "max_new_tokens");
    g->temperature = graph_param_f64(n, "temperature");
    g->top_k = graph_param_i64(n, "top_k");
    g->top_p = graph_param_f64(n, "top_p");
    rng_init(&g->rng, (uint64_t)graph_param_i64(n, "seed"), (uint32_t)hash_name("generate"), 0);
    const struct transformer_config *c = transformer_config_of(g->model->model);
    g->positions = c ? c->positions : 4096;
    return read_prompt(r, node, g, e);
}

/* Lengths from the prompt's on, doubling, up to all that may be needed. */
static enum status make_programs(struct generation *g, struct err *e)
{
    int64_t all = g->prompt_n + g->new_max, length = LENGTH_LEAST;
    if (all > g->positions)
        all = g->positions;
    while (length < g->prompt_n)
        length *= 2;
    for (;; length *= 2) {
        int64_t here = length < all ? length : all;
        if (g->n == LENGTHS_MAX)
            return err_set(e, ST_UNSUPPORTED, "a text of %lld tokens", (long long)all);
        TRY(step_next_token_make(&g->model->vars, g->model->model, here, &g->programs[g->n], e));
        g->length[g->n++] = here;
        if (here == all)
            return ST_OK;
    }
}

static int better(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static uint32_t best_of(const float *scores, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (scores[i] > scores[best])
            best = i;
    return (uint32_t)best;
}

/* temperature, then top_k, then top_p, then a draw by probability. */
static uint32_t draw_token(struct generation *g, const float *scores)
{
    struct candidate *c = g->candidates;
    int64_t n = g->vocab;
    if (!(g->temperature > 0))
        return best_of(scores, n);
    for (int64_t i = 0; i < n; i++)
        c[i] = (struct candidate){.score = scores[i], .id = (uint32_t)i};
    qsort(c, (size_t)n, sizeof *c, better);
    if (g->top_k > 0 && g->top_k < n)
        n = g->top_k;
    double all = 0, kept = 0;
    for (int64_t i = 0; i < n; i++)
        all += c[i].share = exp(((double)c[i].score - (double)c[0].score) / g->temperature);
    int64_t m = 0;
    bool cuts = g->top_p > 0 && g->top_p < 1;
    while (m < n && (m == 0 || !cuts || kept < g->top_p * all))
        kept += c[m++].share;
    double at = rng_f64(&g->rng) * kept;
    for (int64_t i = 0; i < m - 1; i++) {
        if (at < c[i].share)
            return c[i].id;
        at -= c[i].share;
    }
    return c[m - 1].id;
}

/* Scores of the token after the text (of its last part, where it is longer than the model sees). */
static enum status
next_scores(struct generation *g, struct exec *x, const float **out, struct err *e)
{
    int64_t n = (int64_t)g->text.n, longest = g->length[g->n - 1];
    int64_t from = n > longest ? n - longest : 0;
    int k = 0;
    while (g->length[k] < n - from)
        k++;
    const struct ir_program *p = g->programs[k];
    TRY(exec_inputs_ready(x, k, e));
    int64_t *input = exec_value(x, k, ir_input_find(p, "input"));
    int64_t *position = exec_value(x, k, ir_input_find(p, "position"));
    for (int64_t i = 0; i < g->length[k]; i++)
        input[i] = i < n - from ? (int64_t)g->text.data[from + i] : 0;
    *position = n - from - 1;
    TRY(exec_run(x, k, e));
    int output = ir_output_find(p, "logits");
    *out = exec_value(x, k, output);
    g->vocab = ir_value_at(p, output)->shape.dim[1];
    return ST_OK;
}

static enum status generate(struct run *r, struct generation *g, struct exec *x, struct err *e)
{
    for (int64_t i = 0; i < g->new_max; i++) {
        const float *scores;
        TRY(next_scores(g, x, &scores, e));
        if (!g->candidates) {
            g->candidates = mem_try_alloc((size_t)g->vocab * sizeof *g->candidates);
            if (!g->candidates)
                return err_set(e, ST_OOM, "no host memory for %lld scores", (long long)g->vocab);
        }
        /* Rows that the tokenizer has no token for are never right. */
        if (g->vocab > g->tokenizer->size)
            g->vocab = g->tokenizer->size;
        uint32_t id = draw_token(g, scores);
        if ((int64_t)id == g->end)
            return ST_OK;
        vec_push(&g->text, id);
        if (run_stop_asked(r))
            return err_set(e, ST_INTERRUPTED, "stopped while a text was written");
    }
    return ST_OK;
}

static enum status say_text(struct run *r, size_t node, const struct generation *g, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct str bytes, text;
    str_init(&bytes);
    str_init(&text);
    enum status st = tokenizer_decode(g->tokenizer->open, g->text.data, g->text.n, true, &bytes, e);
    utf8_repair(bytes.data, bytes.n, &text);
    int64_t made = (int64_t)g->text.n - g->prompt_n;
    const char *kept = arena_strdup(&r->memory, text.data);
    flow_set(r, node, "text", (struct flow){.kind = FLOW_STRING, .string = kept});
    set_scalar(r, node, "token_count", (double)made);
    if (!r->planning && st == ST_OK) {
        json_t *result = json_object(), *event = json_object();
        json_put(result, "text", json_stringn(text.data, text.n));
        json_put_i64(result, "token_count", made);
        json_put(r->results, n->id, result);
        json_put_str(event, "event", "text");
        json_put_str(event, "node_id", n->id);
        (void)json_object_update(event, result);
        run_event(r, event);
    }
    str_release(&bytes);
    str_release(&text);
    return st;
}

enum status node_text_generate(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct generation g = {0};
    struct exec *x = NULL;
    enum status st = read_params(r, node, &g, e);
    if (st == ST_OK)
        st = make_programs(&g, e);
    run_keep_programs(r, g.programs, g.n);
    if (st == ST_OK)
        st = flow_model_exec(r, n, g.model, g.programs, g.n, &x, e);
    if (st == ST_OK && !r->planning)
        st = generate(r, &g, x, e);
    if (g.model)
        flow_model_leave(r, n, g.model, x);
    if (st == ST_OK)
        st = say_text(r, node, &g, e);
    mem_free(g.candidates);
    vec_release(&g.text);
    return st;
}
