/* vars.c - the variables and provenance names that the programs of a run share. */
#include "ir/program.h"

#include "base/str.h"

#include <string.h>

void ir_vars_init(struct ir_vars *v)
{
    memset(v, 0, sizeof *v);
    arena_init(&v->arena);
}

void ir_vars_release(struct ir_vars *v)
{
    vec_release(&v->list);
    vec_release(&v->nodes);
    arena_release(&v->arena);
}

int ir_var_new(struct ir_vars *v, const struct ir_var *var)
{
    struct ir_var copy = *var;
    copy.name = arena_strdup(&v->arena, var->name ? var->name : "");
    vec_push(&v->list, copy);
    return (int)v->list.n - 1;
}

int ir_var_find(const struct ir_vars *v, const char *name)
{
    for (size_t i = 0; i < v->list.n; i++)
        if (str_eq(v->list.data[i].name, name))
            return (int)i;
    return IR_NONE;
}

int ir_node_intern(struct ir_vars *v, const char *name)
{
    for (size_t i = 0; i < v->nodes.n; i++)
        if (str_eq(v->nodes.data[i], name))
            return (int)i;
    const char *copy = arena_strdup(&v->arena, name);
    vec_push(&v->nodes, copy);
    return (int)v->nodes.n - 1;
}
