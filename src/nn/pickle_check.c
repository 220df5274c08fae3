/* pickle_check.c - what a tree read from a file must satisfy before anybody walks it. */
#include "nn/pickle_int.h"

#include <stdlib.h>
#include <string.h>

static int key_order(const struct pt_value *x, const struct pt_value *y)
{
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    if (x->kind == PT_INT)
        return x->integer < y->integer ? -1 : x->integer > y->integer;
    return strcmp(x->text.data, y->text.data);
}

static int by_key(const void *a, const void *b)
{
    return key_order(*(struct pt_value *const *)a, *(struct pt_value *const *)b);
}

static enum status key_check(const struct pt_value *key, struct err *e)
{
    char name[64];
    if (key->kind == PT_INT)
        return ST_OK;
    if (key->kind != PT_STRING)
        return err_set(
            e, ST_UNSUPPORTED, "a dict has %s as a key, not a string or an integer",
            pt_kind_name(key->kind));
    if (strlen(key->text.data) != key->text.n)
        return err_set(
            e, ST_CORRUPT, "key \"%s\" has a zero byte in it",
            printable(key->text.data, key->text.n, name, sizeof name));
    return ST_OK;
}

static enum status keys_check(const struct pt_value *dict, struct err *e)
{
    size_t n = dict->dict.n;
    enum status st = ST_OK;
    for (size_t i = 0; i < n; i++)
        TRY(key_check(dict->dict.data[i].key, e));
    if (n < 2)
        return ST_OK;
    struct pt_value **keys = mem_alloc(n * sizeof *keys);
    for (size_t i = 0; i < n; i++)
        keys[i] = dict->dict.data[i].key;
    qsort(keys, n, sizeof *keys, by_key);
    for (size_t i = 1; i < n && st == ST_OK; i++) {
        char name[128];
        if (key_order(keys[i - 1], keys[i]) != 0)
            continue;
        if (keys[i]->kind == PT_INT)
            st = err_set(
                e, ST_CORRUPT, "key %lld appears twice in a dict", (long long)keys[i]->integer);
        else
            st = err_set(
                e, ST_CORRUPT, "key \"%s\" appears twice in a dict",
                printable(keys[i]->text.data, keys[i]->text.n, name, sizeof name));
    }
    mem_free(keys);
    return st;
}

static enum status walk(struct pt_value *v, int level, struct err *e);

/* Checks one member and adds it to its parent's figures. */
static enum status
member(struct pt_value *parent, uint64_t *weight, struct pt_value *v, int level, struct err *e)
{
    TRY(walk(v, level + 1, e));
    *weight += v->weight;
    if (*weight > PT_VALUES_MAX)
        return err_set(e, ST_CORRUPT, "more than %d values", PT_VALUES_MAX);
    if (v->below + 1 > parent->below)
        parent->below = (uint8_t)(v->below + 1);
    return ST_OK;
}

static enum status members(struct pt_value *v, uint64_t *weight, int level, struct err *e)
{
    if (v->kind == PT_LIST || v->kind == PT_TUPLE) {
        for (size_t i = 0; i < v->seq.n; i++)
            TRY(member(v, weight, v->seq.data[i], level, e));
    } else if (v->kind == PT_DICT) {
        TRY(keys_check(v, e));
        for (size_t i = 0; i < v->dict.n; i++) {
            *weight += 1;
            TRY(member(v, weight, v->dict.data[i].value, level, e));
        }
        if (v->dict.attributes)
            TRY(member(v, weight, v->dict.attributes, level, e));
    }
    return ST_OK;
}

/* Each value is walked once; where it appears again, its figures are added. */
static enum status walk(struct pt_value *v, int level, struct err *e)
{
    if (v->open)
        return err_set(e, ST_CORRUPT, "a value contains itself");
    if (level + v->below > PT_DEPTH_MAX)
        return err_set(e, ST_CORRUPT, "values nested deeper than %d levels", PT_DEPTH_MAX);
    if (v->weight > 0)
        return ST_OK;
    if (v->kind == PT_GLOBAL || v->kind == PT_STORAGE)
        return err_set(e, ST_UNSUPPORTED, "%s stands where a value should", pt_kind_name(v->kind));
    uint64_t weight = 1;
    v->open = true;
    TRY(members(v, &weight, level, e));
    v->open = false;
    v->weight = (uint32_t)weight;
    return ST_OK;
}

enum status pt_check(struct pt_value *root, struct err *e)
{
    return walk(root, 0, e);
}

const char *printable(const char *s, size_t n, char *buf, size_t cap)
{
    size_t k = 0;
    for (; k < n && k + 1 < cap; k++)
        buf[k] = s[k] >= ' ' && s[k] < 127 ? s[k] : '?';
    buf[k] = 0;
    if (n > k && cap > 4)
        memcpy(buf + cap - 4, "...", 4);
    return buf;
}
