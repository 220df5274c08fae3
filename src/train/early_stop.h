/* early_stop.h - watches the monitored metric and remembers the best epoch. */
#ifndef TRAIN_EARLY_STOP_H
#define TRAIN_EARLY_STOP_H

#include <stdbool.h>
#include <stdint.h>

struct early_stop {
    int64_t patience;      /* 0: off; the best epoch is still known */
    bool higher_is_better; /* val_accuracy */
    bool has_best;
    double best;
    int64_t best_epoch, counter; /* 1-based epoch; epochs without improvement */
};
enum early_verdict { EARLY_SAME, EARLY_IMPROVED, EARLY_STOP };
/* metric NaN: absent (empty validation set), ignored. Improvement is strict. */
enum early_verdict early_stop_see(struct early_stop *s, int64_t epoch, double metric);

#endif
