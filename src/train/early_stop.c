/* early_stop.c - watches the monitored metric. */
#include "train/early_stop.h"

#include <math.h>

enum early_verdict early_stop_see(struct early_stop *s, int64_t epoch, double metric)
{
    if (isnan(metric))
        return EARLY_SAME;
    bool better = !s->has_best || (s->higher_is_better ? metric > s->best : metric < s->best);
    if (better) {
        s->has_best = true;
        s->best = metric;
        s->best_epoch = epoch;
        s->counter = 0;
        return EARLY_IMPROVED;
    }
    s->counter++;
    return s->patience > 0 && s->counter >= s->patience ? EARLY_STOP : EARLY_SAME;
}
