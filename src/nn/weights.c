/* weights.c - matches and reads a model's state, second names included. */
#include "nn/weights.h"

#include "base/mem.h"
#include "nn/pickle_value.h"

#include <string.h>

enum status weights_match(
    const struct tensorfile *f, const struct model *m, const struct ir_vars *vars, bool stored,
    bool strict, struct tensorfile_match *match, struct err *e)
{
    int n = 0, all = model_state_count(m), aliases = model_alias_count(m), var;
    struct tensor_want *want = mem_alloc(((size_t)(all + aliases) + 1) * sizeof *want);
    for (int i = 0; i < all; i++) {
        const struct ir_var *v = &vars->list.data[var = model_state_var(m, i)];
        if (stored || model_var_in_files(m, var))
            want[n++] = (struct tensor_want){v->name, stored ? v->shape : model_var_shape(m, var)};
    }
    for (int i = 0; i < aliases; i++) {
        const char *name = model_alias(m, i, &var);
        if (tensorfile_find(f, name))
            want[n++] = (struct tensor_want){name, vars->list.data[var].shape};
    }
    enum status st = tensorfile_match(f, want, (size_t)n, strict, match, e);
    mem_free(want);
    return st;
}

bool weights_same_storage(const struct tensorfile_entry *a, const struct tensorfile_entry *b)
{
    return a->pt && b->pt && a->pt->storage == b->pt->storage && a->pt->offset == b->pt->offset &&
           shape_eq(&a->shape, &b->shape) &&
           memcmp(a->pt->strides, b->pt->strides, sizeof *a->pt->strides * (size_t)a->pt->rank) ==
               0;
}

static enum status alias_check(
    struct tensorfile *f, const struct ir_var *v, const char *alias, const void *data, size_t bytes,
    struct err *e)
{
    const struct tensorfile_entry *a = tensorfile_find(f, alias), *b = tensorfile_find(f, v->name);
    if (!a || !b || weights_same_storage(a, b) || !shape_eq(&a->shape, &v->shape))
        return ST_OK;
    void *other = mem_try_alloc(bytes + 1);
    if (!other)
        return err_set(e, ST_OOM, "no host memory to compare \"%.100s\"", alias);
    enum status st = tensorfile_read(f, alias, v->dtype, other, bytes, e);
    if (st == ST_OK && memcmp(other, data, bytes) != 0) {
        st = err_set(
            e, ST_INVALID,
            "\"%s\": \"%s\" and \"%s\" differ, and this model has one tensor for both",
            tensorfile_path(f), alias, v->name);
        err_hint(e, "Give the model a head of its own (tie_embeddings false) to load this file.");
    }
    mem_free(other);
    return st;
}

enum status weights_read(
    struct tensorfile *f, const struct model *m, const struct ir_vars *vars, int var, void *dst,
    struct err *e)
{
    const struct ir_var *v = &vars->list.data[var];
    size_t bytes = (size_t)(shape_count(&v->shape) * dtype_size(v->dtype));
    TRY(tensorfile_read(f, v->name, v->dtype, dst, bytes, e));
    for (int i = 0; i < model_alias_count(m); i++) {
        int of;
        const char *alias = model_alias(m, i, &of);
        if (of == var)
            TRY(alias_check(f, v, alias, dst, bytes, e));
    }
    return ST_OK;
}

void weights_put_aliases(
    struct arena *a, struct pt_value *dict, const struct model *m, const struct ir_vars *vars)
{
    for (int i = 0; i < model_alias_count(m); i++) {
        int var;
        const char *alias = model_alias(m, i, &var);
        const struct pt_value *v = pt_get(dict, vars->list.data[var].name);
        if (v && v->kind == PT_TENSOR)
            pt_put(
                a, dict, alias,
                pt_tensor(
                    a, v->tensor->storage, v->tensor->type, v->tensor->shape, v->tensor->rank, 0));
    }
}
