/* series.h - what a run's events are as points of series, and as TensorBoard files.
 *
 * SERIES (reference 4.5): train_loss, lr, val_loss, val_accuracy, patience_counter, best_epoch by
 * epoch (absolute, from 1); train_loss_batch, grad_norm, grad_norm_clipped, update_ratio by batch
 * of the whole run; val_loss_step by update; eval_accuracy, perplexity at 0.
 */
#ifndef CHILD_SERIES_H
#define CHILD_SERIES_H

#include "base/json.h"
#include "graph/graph.h"

struct series_point {
    const char *name, *node_id; /* borrowed from the event, static */
    int64_t step;
    double value; /* may be NaN or infinite */
};
enum { SERIES_POINTS_MAX = 8 };
/* The points of an event of train/loop.h or runner; how many, 0 for events of other kinds. */
int series_points(const json_t *event, struct series_point out[SERIES_POINTS_MAX]);

/* Event files of the nodes of a run, each below DIR/NODE/. */
struct boards;
/* all: every node that has series; else those whose parameter `tensorboard` is set. */
struct boards *boards_new(const struct graph *g, const char *dir, bool all);
/* Adds the event's points. Where that opens a file, its path is returned (borrowed until
 * boards_free), else NULL. A folder that cannot be made is an error once, for the node. */
enum status
boards_event(struct boards *b, const json_t *event, const char **opened, struct err *e) NODISCARD;
enum status boards_free(struct boards *b, struct err *e) NODISCARD; /* the first error of writing */

#endif
