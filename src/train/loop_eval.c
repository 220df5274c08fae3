/* loop_eval.c - validation: every sample (every valid label, where the loss is a mean over labels)
 * once whatever the batch size, no gradients, no random numbers. */
#include "train/loop_int.h"

#include <math.h>

static void *value_of(struct train *t, int index, int v)
{
    return v == IR_NONE ? NULL : exec_value(t->exec, index, v);
}

enum status train_validate(struct train *t, double *loss, double *accuracy, struct err *e)
{
    double sum = 0, weights = 0;
    int64_t correct = 0, counted = 0, count = 0;
    *loss = *accuracy = (double)NAN;
    if (!t->val_loader || t->steps_config.val_batches == 0)
        return ST_OK;
    TRY(loader_begin_epoch(t->val_loader, 0, 0, e));
    for (int64_t i = 0; i < t->steps_config.val_batches; i++) {
        bool is_short = i == t->steps_config.val_batches - 1 &&
                        t->steps_config.val_last_batch != t->steps_config.val_batch;
        int index = train_program(t, is_short ? STEP_EVAL_SHORT : STEP_EVAL);
        const struct ir_program *p = t->steps.programs[index];
        TRY(exec_inputs_ready(t->exec, index, e));
        TRY(loader_next(
            t->val_loader, value_of(t, index, ir_input_find(p, "input")),
            value_of(t, index, ir_input_find(p, "target")), &count, e));
        TRY(exec_run(t->exec, index, e));
        const float *batch_loss = value_of(t, index, ir_output_find(p, "loss"));
        const int64_t *hits = value_of(t, index, ir_output_find(p, "correct"));
        const float *labels = value_of(t, index, ir_output_find(p, "loss_weight"));
        double weight = labels ? (double)*labels : (double)count;
        if (weight > 0) { /* a batch of ignored labels alone has no mean */
            sum += (double)*batch_loss * weight;
            weights += weight;
        }
        if (hits) {
            correct += hits[0];
            counted += hits[1];
        }
        if (t->sink.stop && t->sink.stop(t->sink.ctx))
            return err_set(e, ST_INTERRUPTED, "stopped during validation");
    }
    if (weights > 0)
        *loss = sum / weights;
    if (counted > 0)
        *accuracy = (double)correct / (double)counted;
    return ST_OK;
}
