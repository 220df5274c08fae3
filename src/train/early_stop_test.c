/* early_stop_test.c - when training ends early, and which epoch was the best. */
#include "train/early_stop.h"

#include "test.h"

#include <math.h>

TEST(early_stop_patience, "early stopping ends after `patience` epochs without strict improvement")
{
    struct early_stop s = {.patience = 2};
    CHECK_EQ(early_stop_see(&s, 1, 1.0), EARLY_IMPROVED);
    CHECK_EQ(early_stop_see(&s, 2, 0.5), EARLY_IMPROVED);
    CHECK_EQ(early_stop_see(&s, 3, 0.5), EARLY_SAME); /* equal is no improvement */
    CHECK_EQ(early_stop_see(&s, 4, 0.6), EARLY_STOP);
    CHECK_EQ(s.best_epoch, 2);
    CHECK(s.best == 0.5);
}

TEST(early_stop_accuracy, "early stopping on accuracy looks for higher values")
{
    struct early_stop s = {.patience = 1, .higher_is_better = true};
    CHECK_EQ(early_stop_see(&s, 1, 0.5), EARLY_IMPROVED);
    CHECK_EQ(early_stop_see(&s, 2, 0.75), EARLY_IMPROVED);
    CHECK_EQ(early_stop_see(&s, 3, 0.7), EARLY_STOP);
    CHECK_EQ(s.best_epoch, 2);
}

TEST(
    early_stop_absent,
    "case-T102: an absent metric is neither the best nor an epoch without improvement")
{
    struct early_stop s = {.patience = 1};
    CHECK_EQ(early_stop_see(&s, 1, (double)NAN), EARLY_SAME);
    CHECK(!s.has_best);
    CHECK_EQ(early_stop_see(&s, 2, 3.0), EARLY_IMPROVED);
    CHECK_EQ(early_stop_see(&s, 3, (double)NAN), EARLY_SAME);
    CHECK_EQ(s.counter, 0);
    CHECK_EQ(early_stop_see(&s, 4, 2.0), EARLY_IMPROVED);
    CHECK_EQ(s.best_epoch, 4);
}

TEST(early_stop_off, "without patience training never ends early, and the best epoch is known")
{
    struct early_stop s = {0};
    CHECK_EQ(early_stop_see(&s, 1, 1.0), EARLY_IMPROVED);
    for (int epoch = 2; epoch < 100; epoch++)
        CHECK_EQ(early_stop_see(&s, epoch, 2.0), EARLY_SAME);
    CHECK_EQ(s.best_epoch, 1);
}
