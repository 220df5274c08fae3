/* series.c - events as points, points as TensorBoard files. */
#include "child/series.h"

#include "base/env.h"
#include "base/mem.h"
#include "record/tensorboard.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- points ---- */

/* Which members of which event are points, and by what they are counted. */
static const struct {
    const char *event, *member, *series, *step; /* step NULL: 0 */
} rows[] = {
    {"epoch", "loss", "train_loss", "epoch"},
    {"epoch", "lr", "lr", "epoch"},
    {"epoch", "val_loss", "val_loss", "epoch"},
    {"epoch", "val_accuracy", "val_accuracy", "epoch"},
    {"epoch", "patience_counter", "patience_counter", "epoch"},
    {"epoch", "best_epoch", "best_epoch", "epoch"},
    {"batch", "loss", "train_loss_batch", "global_batch"},
    {"batch", "grad_norm", "grad_norm", "global_batch"},
    {"batch", "grad_norm_clipped", "grad_norm_clipped", "global_batch"},
    {"batch", "update_ratio", "update_ratio", "global_batch"},
    {"val_step", "val_loss_step", "val_loss_step", "step"},
    {"evaluation", "eval_accuracy", "eval_accuracy", NULL},
    {"perplexity", "perplexity", "perplexity", NULL},
};

/* Numbers that JSON lacks are texts. */
static bool number(const json_t *v, double *out)
{
    const char *text = json_string_value(v);
    if (json_is_number(v))
        *out = json_number_value(v);
    else if (str_eq(text, "NaN"))
        *out = (double)NAN;
    else if (str_eq(text, "Infinity"))
        *out = (double)INFINITY;
    else if (str_eq(text, "-Infinity"))
        *out = -(double)INFINITY;
    else
        return false;
    return true;
}

int series_points(const json_t *event, struct series_point out[SERIES_POINTS_MAX])
{
    const char *name = json_get_str(event, "event", "");
    int n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && n < SERIES_POINTS_MAX; i++) {
        double v;
        if (strcmp(rows[i].event, name) != 0 || !number(json_object_get(event, rows[i].member), &v))
            continue;
        if (strcmp(rows[i].series, "train_loss_batch") == 0 &&
            !json_get_bool(event, "logged", false))
            continue; /* news for the display only */
        out[n++] = (struct series_point){
            .name = rows[i].series,
            .node_id = json_get_str(event, "node_id", ""),
            .step = rows[i].step ? json_get_i64(event, rows[i].step, 0) : 0,
            .value = v};
    }
    return n;
}

/* ---- TensorBoard ---- */

struct board {
    char *node;
    struct tensorboard *file; /* NULL: could not be opened, which has been said */
};

struct boards {
    char dir[1100];
    VEC(struct board) list;
    VEC(char *) wanted; /* ids; none and all: every node */
    bool all;
};

struct boards *boards_new(const struct graph *g, const char *dir, bool all)
{
    struct boards *b = mem_alloc(sizeof *b);
    (void)snprintf(b->dir, sizeof b->dir, "%s", dir);
    b->all = all;
    for (size_t i = 0; i < graph_order_count(g); i++) {
        const struct graph_node *n = graph_node_at(g, graph_order_at(g, i));
        if (n->kind && node_param_find(n->kind, "tensorboard") &&
            graph_param_bool(n, "tensorboard"))
            vec_push(&b->wanted, mem_strdup(n->id));
    }
    return b;
}

static bool is_wanted(const struct boards *b, const char *node)
{
    for (size_t i = 0; i < b->wanted.n; i++)
        if (strcmp(b->wanted.data[i], node) == 0)
            return true;
    return b->all;
}

/* A node's id as the name of a folder: its "/" and what else a name may not have become "_". */
static void folder_of(const struct boards *b, const char *node, char *out, size_t cap)
{
    char name[256];
    size_t n = 0;
    for (; node[n] && n + 1 < sizeof name; n++) {
        unsigned char c = (unsigned char)node[n];
        name[n] = c == '/' || c < 0x20 || (c == '.' && n == 0) ? '_' : (char)c;
    }
    name[n] = 0;
    (void)path_join(b->dir, n ? name : "_", out, cap);
}

static enum status open_board(
    struct boards *b, const char *node, struct board **out, const char **opened, struct err *e)
{
    char dir[1400];
    struct board fresh = {.node = mem_strdup(node)};
    folder_of(b, node, dir, sizeof dir);
    enum status st = tensorboard_open(&fresh.file, dir, e);
    vec_push(&b->list, fresh);
    *out = &b->list.data[b->list.n - 1];
    if (st == ST_OK)
        *opened = tensorboard_path(fresh.file);
    return st;
}

static struct board *find_board(struct boards *b, const char *node)
{
    for (size_t i = 0; i < b->list.n; i++)
        if (strcmp(b->list.data[i].node, node) == 0)
            return &b->list.data[i];
    return NULL;
}

enum status boards_event(struct boards *b, const json_t *event, const char **opened, struct err *e)
{
    struct series_point p[SERIES_POINTS_MAX];
    int n = series_points(event, p);
    *opened = NULL;
    if (n == 0 || !is_wanted(b, p[0].node_id))
        return ST_OK;
    struct board *board = find_board(b, p[0].node_id);
    if (!board)
        TRY(open_board(b, p[0].node_id, &board, opened, e));
    for (int i = 0; board->file && i < n; i++)
        tensorboard_scalar(board->file, p[i].name, p[i].step, p[i].value);
    return ST_OK;
}

enum status boards_free(struct boards *b, struct err *e)
{
    enum status st = ST_OK;
    struct err later;
    if (!b)
        return ST_OK;
    for (size_t i = 0; i < b->list.n; i++) {
        enum status closed = tensorboard_close(b->list.data[i].file, st == ST_OK ? e : &later);
        st = st == ST_OK ? closed : st;
        mem_free(b->list.data[i].node);
    }
    for (size_t i = 0; i < b->wanted.n; i++)
        mem_free(b->wanted.data[i]);
    vec_release(&b->list);
    vec_release(&b->wanted);
    mem_free(b);
    return st;
}
