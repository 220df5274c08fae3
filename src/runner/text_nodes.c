/* text_nodes.c - tokenizers, corpora of texts, and the tokens they become. */
#include "runner/text_int.h"

#include "base/env.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

/* Relative to the graph file where it is there, else to a folder of SNUG_HOME. */
static const char *
find_file(struct run *r, const char *name, const char *folder, char *out, size_t cap)
{
    char dir[1024];
    (void)path_join(run_graph_dir(r, dir, sizeof dir), name, out, cap);
    if (name[0] == '/' || file_exists(out))
        return out;
    char home[1024], there[1200];
    (void)path_join(snug_home(), folder, home, sizeof home);
    if (file_exists(path_join(home, name, there, sizeof there)))
        (void)snprintf(out, cap, "%s", there);
    return out;
}

static void set_scalar(struct run *r, size_t node, const char *port, double v)
{
    flow_set(r, node, port, (struct flow){.kind = FLOW_SCALAR, .scalar = v});
}

enum status node_lm_tokenizer(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow_tokenizer *t = ARENA_NEW(&r->memory, struct flow_tokenizer);
    const char *file = graph_param_str(n, "file");
    char path[1200];
    t->node_id = n->id;
    t->encoding = graph_param_str(n, "encoding");
    t->size = tokenizer_encoding_size(t->encoding);
    if (file[0]) {
        t->path = arena_strdup(&r->memory, find_file(r, file, "tokenizers", path, sizeof path));
        TRY(flow_tokenizer_open(r, t, e));
        t->size = tokenizer_size(t->open);
    }
    flow_set(r, node, "tokenizer", (struct flow){.kind = FLOW_TOKENIZER, .tokenizer = t});
    set_scalar(r, node, "vocab_size", (double)t->size);
    return ST_OK;
}

static enum status no_hub(const struct graph_node *n, struct err *e)
{
    (void)err_set(
        e, ST_UNSUPPORTED,
        "parameter 'source': \"%s\" would be downloaded, and snug downloads nothing",
        graph_param_str(n, "dataset_name"));
    err_hint(
        e, "Save the texts to a file, one on each line, set source to local_file and name the file "
           "in local_file.");
    return ST_UNSUPPORTED;
}

enum status node_text_corpus(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow_corpus *c = ARENA_NEW(&r->memory, struct flow_corpus);
    const char *file = graph_param_str(n, "local_file");
    if (!str_eq(graph_param_str(n, "source"), "local_file"))
        return no_hub(n, e);
    if (!file[0])
        return err_set(
            e, ST_INVALID,
            "parameter 'local_file' is empty: name a text file, or a .bin of tokens");
    c->node_id = n->id;
    c->rows_max = graph_param_i64(n, "max_rows");
    c->tokens = str_ends(file, ".bin");
    (void)find_file(r, file, "data", c->path, sizeof c->path);
    int64_t rows = 0, bytes;
    uint64_t key;
    if (c->tokens && c->rows_max)
        return err_set(
            e, ST_INVALID,
            "parameter 'max_rows': a file of tokens has no rows; LMTokenizedDataset has "
            "max_tokens");
    if (c->tokens) {
        struct token_row row;
        TRY(token_file_describe(c->path, &row, e));
    } else {
        TRY(text_count(r, c, &rows, &bytes, &key, e));
    }
    flow_set(r, node, "dataset", (struct flow){.kind = FLOW_CORPUS, .corpus = c});
    set_scalar(r, node, "num_rows", (double)rows);
    return ST_OK;
}

/* "0.7, 0.3" */
static enum status read_weights(const char *text, double *weights, int n, struct err *e)
{
    const char *p = text;
    for (int i = 0; i < n; i++) {
        char part[64] = "";
        size_t length = strcspn(p, ",");
        const char *from = p + strspn(p, " ");
        size_t m = from < p + length ? (size_t)(p + length - from) : 0;
        while (m && from[m - 1] == ' ')
            m--;
        if (m && m < sizeof part)
            memcpy(part, from, m);
        bool last = i == n - 1;
        if (!str_to_f64(part, &weights[i]) || !(weights[i] >= 0) || (p[length] == 0) != last)
            return err_set(
                e, ST_INVALID, "parameter 'weights': \"%s\" is not %d numbers from 0", text, n);
        p += length + 1;
    }
    return ST_OK;
}

enum status node_data_mix(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow_corpus *c = ARENA_NEW(&r->memory, struct flow_corpus);
    int64_t rows, bytes;
    uint64_t key;
    c->node_id = n->id;
    c->n_parts = (int)graph_param_i64(n, "sources");
    c->interleave = str_eq(graph_param_str(n, "mode"), "interleave");
    c->seed = (uint64_t)graph_param_i64(n, "seed");
    for (int i = 0; i < c->n_parts; i++)
        c->weight[i] = 1;
    if (c->interleave)
        TRY(read_weights(graph_param_str(n, "weights"), c->weight, c->n_parts, e));
    for (int i = 0; i < c->n_parts; i++) {
        char port[32];
        struct flow in;
        (void)snprintf(port, sizeof port, "corpus_%d", i + 1);
        TRY(flow_get(r, node, port, FLOW_CORPUS, &in, e));
        if (in.corpus->tokens)
            return err_set(
                e, ST_UNSUPPORTED, "input '%s' is a file of tokens; only texts are mixed", port);
        c->part[i] = in.corpus;
    }
    TRY(text_count(r, c, &rows, &bytes, &key, e));
    flow_set(r, node, "dataset", (struct flow){.kind = FLOW_CORPUS, .corpus = c});
    set_scalar(r, node, "num_rows", (double)rows);
    return ST_OK;
}

static enum status wanted(struct run *r, size_t node, struct tokens_wanted *w, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow corpus, tokenizer;
    TRY(flow_get(r, node, "dataset", FLOW_CORPUS, &corpus, e));
    TRY(flow_get(r, node, "tokenizer", FLOW_TOKENIZER, &tokenizer, e));
    *w = (struct tokens_wanted){
        .node = n,
        .corpus = corpus.corpus,
        .tokenizer = tokenizer.tokenizer,
        .seq_len = graph_param_i64(n, "seq_len"),
        .tokens_max = graph_param_i64(n, "max_tokens"),
        .append_end = graph_param_bool(n, "append_eos"),
        .cache = graph_param_bool(n, "cache"),
        .cache_dir = graph_param_str(n, "cache_dir")};
    return ST_OK;
}

enum status node_tokenized(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct tokens_wanted w;
    const struct text_tokens *t;
    TRY(wanted(r, node, &w, e));
    TRY(text_tokens_get(r, &w, &t, e));
    struct flow_dataset *d = ARENA_NEW(&r->memory, struct flow_dataset);
    d->node_id = n->id;
    d->tokens = &t->row;
    d->seq_len = w.seq_len;
    dataset_describe_tokens(n->id, &t->row, w.seq_len, &d->info);
    if (d->info.count == 0)
        return err_set(
            e, ST_INVALID, "the texts give %lld tokens, fewer than one block of seq_len + 1 = %lld",
            (long long)t->row.n, (long long)w.seq_len + 1);
    if (!r->planning && t->row.largest >= w.tokenizer->size && w.tokenizer->size > 0)
        run_warn(
            r, n, "tokens", "\"%s\" has token %lld, and the tokenizer %lld of them", w.corpus->path,
            (long long)t->row.largest, (long long)w.tokenizer->size);
    vec_push(&r->datasets, d);
    flow_set(r, node, "dataset", (struct flow){.kind = FLOW_DATASET, .dataset = d});
    set_scalar(r, node, "total_tokens", (double)t->row.n);
    set_scalar(r, node, "num_blocks", (double)d->info.count);
    return ST_OK;
}
