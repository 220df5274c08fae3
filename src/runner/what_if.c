/* what_if.c - plans the same graph with other choices: what they save, and what would fit.
 *
 * Advice is in requirement O1's order, cheapest first; what is in force already is left out, and
 * each item comes with the peak it leads to (O4). Nothing is ever applied (O3).
 */
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
    bool trains, low, accumulates, batch_norm;
    struct levers levers;
    int64_t least_batch; /* smallest batch_size of a loader; 0: no loader */
};

static struct choices choices_of(struct run *r)
{
    struct choices c = {0};
    for (size_t i = 0; i < graph_order_count(r->graph); i++) {
        const struct graph_node *n = graph_node_at(r->graph, graph_order_at(r->graph, i));
        const char *type = n->kind ? n->kind->name : "";
        if (strcmp(type, "DataLoader") == 0) {
            int64_t batch = graph_param_i64(n, "batch_size");
            c.least_batch = c.least_batch && c.least_batch < batch ? c.least_batch : batch;
        }
        if (strcmp(type, "SequentialModel") == 0)
            c.batch_norm =
                c.batch_norm || strstr(graph_param_str(n, "layers"), "BatchNorm") != NULL;
        if (strcmp(type, "TrainingLoop") != 0)
            continue;
        c.trains = true;
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

/* With peaks the changed graph is planned; without, where the host has no room left even for that,
 * the item is only named. */
static void
add_item(struct run *r, struct str *s, int *n, const char *text, struct what_if w, bool peaks)
{
    char peak[32];
    if (!peaks) {
        str_printf(s, "%s%d. %s", *n ? "\n" : "", *n + 1, text);
        (*n)++;
        return;
    }
    int64_t bytes = bill_with(r, w).peak_bytes;
    if (bytes == 0 || bytes >= r->bill.peak_bytes)
        return; /* does not help here */
    str_printf(
        s, "%s%d. %s: peak %s", *n ? "\n" : "", *n + 1, text, bytes_text(bytes, peak, sizeof peak));
    (*n)++;
}

static void advise(struct run *r, struct str *s, bool peaks)
{
    struct choices c = choices_of(r);
    char text[256];
    int n = 0;
    if (c.least_batch > 1) {
        (void)snprintf(
            text, sizeof text, "batch_size on the DataLoader halved (%lld)",
            (long long)(c.least_batch / 2));
        add_item(r, s, &n, text, (struct what_if){.batch_divisor = 2}, peaks);
    }
    if (c.trains && !c.low)
        add_item(
            r, s, &n, "precision bf16 on the TrainingLoop", (struct what_if){.bf16 = true}, peaks);
    if (c.trains && c.least_batch > 1) {
        (void)snprintf(
            text, sizeof text, "accumulate_steps doubled and batch_size halved (%lld)%s",
            (long long)(c.least_batch / 2),
            c.batch_norm ? " (batch norm sees the smaller batch: the numbers change)" : "");
        add_item(
            r, s, &n, text, (struct what_if){.batch_divisor = 2, .accumulate_factor = 2}, peaks);
    }
    if (c.trains && c.levers.checkpointing == CHECKPOINT_NONE) {
        add_item(
            r, s, &n, "checkpointing selective on the TrainingLoop (same numbers)",
            (struct what_if){.checkpointing = CHECKPOINT_SELECTIVE}, peaks);
        add_item(
            r, s, &n, "checkpointing blocks on the TrainingLoop (same numbers, 15 to 30% slower)",
            (struct what_if){.checkpointing = CHECKPOINT_BLOCKS}, peaks);
    }
    if (c.trains && !c.low && c.least_batch > 1)
        add_item(
            r, s, &n, "both, bf16 and half the batch",
            (struct what_if){.batch_divisor = 2, .bf16 = true}, peaks);
    if (c.trains)
        str_printf(
            s, "%s%d. LoRA or QLoRA (snug:Adapter) for a model that is trained already",
            n ? "\n" : "", n + 1);
    n += c.trains;
    str_printf(s, "%s%d. a smaller model or image", n ? "\n" : "", n + 1);
}

/* The plan is above a limit: what was needed, what there is, and the advice. */
static enum status
refuse(struct run *r, const char *figures, int64_t limit, const char *text, struct err *e)
{
    struct str what;
    str_init(&what);
    str_printf(&what, "%s\nWhat to try, cheapest first:\n", figures);
    advise(r, &what, limit > 0);
    (void)err_set(e, ST_OOM, "%s", text);
    err_detail(e, "%s", what.data);
    err_hint(
        e, "nothing has been started or changed; `snug plan GRAPH --set NODE.PARAM=V` shows the "
           "bill of a change");
    str_release(&what);
    return ST_OOM;
}

enum status run_check_budget(struct run *r, int64_t budget_bytes, struct err *e)
{
    char need[32], has[32], text[256], figures[256];
    int64_t peak = r->bill.peak_bytes, limit = budget_bytes;
    if (budget_bytes == 0 || (budget_bytes > 0 && peak <= budget_bytes))
        return ST_OK;
    if (budget_bytes < 0) {
        limit = host_capacity_bytes();
        if (run_host_need_bytes(r) <= limit)
            return ST_OK;
    }
    (void)snprintf(
        figures, sizeof figures, "peak %lld bytes, limit %lld bytes, data and loaders %lld bytes",
        (long long)peak, (long long)limit, (long long)r->bill.host_bytes);
    (void)snprintf(
        text, sizeof text, "the plan needs %s, and %s has %s", bytes_text(peak, need, sizeof need),
        budget_bytes > 0 ? "the budget of --memory-gib" : "this machine",
        bytes_text(limit, has, sizeof has));
    return refuse(r, figures, limit, text, e);
}

static enum status refuse_card(struct run *r, const struct run_fit *f, struct err *e)
{
    char need[32], context[32], all[32], left[32], text[400], figures[400];
    const struct device *d = f->device;
    (void)bytes_text(f->peak_bytes, need, sizeof need);
    (void)bytes_text(f->context_bytes, context, sizeof context);
    (void)bytes_text(f->capacity_bytes, all, sizeof all);
    (void)bytes_text(f->free_bytes, left, sizeof left);
    (void)snprintf(
        figures, sizeof figures,
        "peak %lld bytes, context %lld bytes, card %lld bytes, free now %lld bytes (%s)",
        (long long)f->peak_bytes, (long long)f->context_bytes, (long long)f->capacity_bytes,
        (long long)f->free_bytes, d->uuid);
    (void)snprintf(
        text, sizeof text, "the plan needs %s and %s for the context, and %s (%s) has %s%s%s%s",
        need, context, d->id, d->name, f->fits_at_all ? left : all,
        f->fits_at_all ? " free of its " : "", f->fits_at_all ? all : "",
        f->fits_at_all ? ": `snug devices` shows who holds the rest" : "");
    int64_t limit = (f->fits_at_all ? f->free_bytes : f->capacity_bytes) - f->context_bytes;
    return refuse(r, figures, limit, text, e);
}

enum status run_check_cards(struct run *r, struct err *e)
{
    struct run_fit f;
    for (int i = 0; i < r->devices->n; i++)
        if (run_fit_at(r, i, &f) && !f.fits_now)
            return refuse_card(r, &f, e);
    return ST_OK;
}
