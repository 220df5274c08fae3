/* what_if.c - plans the same graph without one of its choices: what each saves. */
#include "runner/run_int.h"

#include "base/env.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

/* The bill of the changed graph; peaks are 0 when it cannot be planned. The run's bill stays. */
static struct run_bill bill_with(struct run *r, struct what_if w)
{
    struct run_bill kept = r->bill, changed = {0};
    json_t *plan = r->plan;
    struct err ignored;
    r->bill = (struct run_bill){0};
    r->plan = json_object();
    r->what_if = w;
    r->what_if.on = true;
    if (run_plan_once(r, &ignored) == ST_OK)
        changed = r->bill;
    r->what_if = (struct what_if){0};
    json_decref(r->plan);
    r->plan = plan;
    r->bill = kept;
    return changed;
}

/* What the training loops of the graph choose. */
struct choices {
    bool low, accumulates;
    struct levers levers;
};

static struct choices choices_of(struct run *r)
{
    struct choices c = {0};
    for (size_t i = 0; i < graph_order_count(r->graph); i++) {
        const struct graph_node *n = graph_node_at(r->graph, graph_order_at(r->graph, i));
        const char *type = n->kind ? n->kind->name : "";
        if (strcmp(type, "TrainingLoop") != 0)
            continue;
        c.low = c.low || strcmp(graph_param_str(n, "precision"), "fp32") != 0;
        c.accumulates = c.accumulates || graph_param_i64(n, "accumulate_steps") > 1;
        c.levers = run_levers(r, n);
    }
    return c;
}

/* P12: halved activations are all that autocast saves. */
static void explain_precision(struct run_bill *b)
{
    char saved[32], fixed[32], moving[32];
    int64_t saving = b->float32_peak_bytes - b->train_peak_bytes;
    if (b->float32_peak_bytes == 0 || saving * 5 >= b->float32_peak_bytes)
        return;
    int64_t still = b->train_by_category[CATEGORY_PARAMETERS] +
                    b->train_by_category[CATEGORY_GRADIENTS] +
                    b->train_by_category[CATEGORY_OPTIMIZER_STATE];
    (void)snprintf(
        b->precision_note, sizeof b->precision_note,
        "this precision changes the peak by %s only: weights, gradients and optimizer state stay "
        "float32 (%s of it), only activations halve (%s), and casts of the weights are added; a "
        "smaller batch, checkpointing, sharding, LoRA or half-precision parameters without master "
        "weights lower the rest",
        bytes_text(saving > 0 ? saving : 0, saved, sizeof saved),
        bytes_text(still, fixed, sizeof fixed),
        bytes_text(b->train_by_category[CATEGORY_ACTIVATIONS], moving, sizeof moving));
}

void what_if_savings(struct run *r)
{
    struct choices c = choices_of(r);
    if (c.low)
        r->bill.float32_peak_bytes = bill_with(r, (struct what_if){.fp32 = true}).train_peak_bytes;
    if (c.accumulates)
        r->bill.single_batch_peak_bytes =
            bill_with(r, (struct what_if){.no_accumulation = true}).train_peak_bytes;
    for (int i = 0; i < LEVER_FIELD_COUNT; i++) {
        if (!lever_used(&c.levers, (enum lever_field)i))
            continue;
        struct run_bill without = bill_with(r, (struct what_if){.lever_off = i + 1});
        r->bill.without_lever_bytes[i] = without.train_peak_bytes;
        if (i == LEVER_FIELD_CHECKPOINTING && without.train_flops > 0)
            r->bill.recompute_share = r->bill.train_flops / without.train_flops - 1;
    }
    explain_precision(&r->bill);
}
