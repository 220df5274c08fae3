/* schedule_dict.c - what PyTorch's schedulers keep outside of JSON's reach. */
#include "train/schedule_dict.h"

#include "train/schedule_int.h"

#include <string.h>

static void
put_or_replace(struct arena *m, struct pt_value *dict, const char *key, struct pt_value *value)
{
    for (size_t i = 0; i < dict->dict.n; i++) {
        struct pt_item *item = &dict->dict.data[i];
        if (item->key->kind == PT_STRING && strcmp(item->key->text.data, key) == 0) {
            item->value = value;
            return;
        }
    }
    pt_put(m, dict, key, value);
}

static void put_milestones(struct arena *m, const struct schedule *s, struct pt_value *state)
{
    struct pt_value *counter = pt_dict(m, PT_DICT_COUNTER);
    for (int k = 1; k <= MULTISTEP_COUNT; k++)
        pt_put_int(m, counter, s->p.step_size * k, pt_int(m, 1));
    put_or_replace(m, state, "milestones", counter);
}

static void put_cycle(struct arena *m, const struct schedule *s, struct pt_value *group)
{
    put_or_replace(m, group, "max_lr", pt_float(m, s->p.max_lr));
    put_or_replace(m, group, "min_lr", pt_float(m, s->base_lr / ONECYCLE_FINAL_DIV));
    put_or_replace(m, group, "max_momentum", pt_float(m, ONECYCLE_MOMENTUM_HIGH));
    put_or_replace(m, group, "base_momentum", pt_float(m, ONECYCLE_MOMENTUM_LOW));
    if (!s->use_beta1) {
        put_or_replace(m, group, "momentum", pt_float(m, s->momentum));
        return;
    }
    const struct pt_value *old = pt_get(group, "betas");
    struct pt_value *betas = pt_tuple(m);
    ASSERT(old && old->kind == PT_TUPLE && old->seq.n == 2);
    pt_add(m, betas, pt_float(m, s->momentum));
    pt_add(m, betas, old->seq.data[1]);
    put_or_replace(m, group, "betas", betas);
}

void schedule_complete_dicts(
    struct arena *m, const struct schedule *s, struct pt_value *scheduler,
    struct pt_value *optimizer)
{
    if (scheduler && s->kind == SCHEDULE_multistep)
        put_milestones(m, s, scheduler);
    const struct pt_value *groups = pt_get(optimizer, "param_groups");
    if (!groups || groups->kind != PT_LIST || s->kind == SCHEDULE_plateau)
        return;
    for (size_t i = 0; i < groups->seq.n; i++) {
        struct pt_value *group = groups->seq.data[i];
        put_or_replace(m, group, "initial_lr", pt_float(m, s->base_lr));
        if (s->kind == SCHEDULE_onecycle)
            put_cycle(m, s, group);
    }
}
