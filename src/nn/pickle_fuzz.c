/* pickle_fuzz.c - any bytes as a pickle; what is accepted must survive being written and read. */
#include "nn/pickle.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct known {
    struct arena *a;
    VEC(struct pt_storage *) all;
};

static enum status
find_any(void *ctx, const char *key, size_t size_bytes, struct pt_storage **out, struct err *e)
{
    struct known *k = ctx;
    for (size_t i = 0; i < k->all.n; i++) {
        if (!str_eq(k->all.data[i]->key, key))
            continue;
        *out = k->all.data[i];
        return (*out)->size_bytes == size_bytes ? ST_OK : err_set(e, ST_CORRUPT, "two sizes");
    }
    *out = pt_storage(k->a, NULL, size_bytes);
    (*out)->key = arena_strdup(k->a, key);
    vec_push(&k->all, *out);
    return ST_OK;
}

static int64_t key_of(void *ctx, struct pt_storage *s)
{
    struct known *k = ctx;
    for (size_t i = 0; i < k->all.n; i++) {
        if (k->all.data[i] == s)
            return (int64_t)i;
    }
    ASSERT(!"a storage nobody gave");
    return -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct arena a;
    struct str out;
    struct pt_value *root = NULL, *again = NULL;
    arena_init(&a);
    str_init(&out);
    struct known known = {.a = &a}, twice = {.a = &a};
    struct pickle_source source = {find_any, &known}, second = {find_any, &twice};
    if (pickle_read(data, size, &a, source, &root, &e) == ST_OK &&
        pickle_write(root, key_of, &known, &out, &e) == ST_OK) {
        ASSERT(pickle_read(out.data, out.n, &a, second, &again, &e) == ST_OK);
        ASSERT(again->kind == root->kind && again->weight == root->weight);
    }
    str_release(&out);
    vec_release(&known.all);
    vec_release(&twice.all);
    arena_release(&a);
    return 0;
}
