/* pickle_int.h - the stack machine that runs a pickle; private to pickle_*.c. */
#ifndef NN_PICKLE_INT_H
#define NN_PICKLE_INT_H

#include "nn/pickle.h"

enum pickle_global {
#define X(id, module, name, call) PG_##id,
#include "nn/pickle_globals.def"
#undef X
    PG_STORAGE,                                /* + dtype: a storage class */
    PG_STORAGE_UNTYPED = PG_STORAGE + DT_COUNT /* counts bytes */
};

struct machine {
    const uint8_t *begin, *at, *end;
    struct arena *a;
    struct pickle_source source;
    VEC(struct pt_value *) stack;
    VEC(size_t) marks;           /* heights of the stack */
    VEC(struct pt_value *) memo; /* sparse: NULL where nothing was put */
    size_t pushed;
    size_t encoded_bytes; /* made by calls, which can ask for the same text again and again */
};

/* ST_CORRUPT with the place in the pickle before the text. */
enum status machine_fail(const struct machine *m, struct err *e, const char *fmt, ...) PRINTF(3, 4);

/* The value that a global stands for, or a refusal that names it. */
enum status machine_global(
    struct machine *m, const char *module, size_t module_n, const char *name, size_t name_n,
    struct pt_value **out, struct err *e) NODISCARD;
/* What calling `global` with the tuple `args` gives. */
enum status machine_call(
    struct machine *m, int global, const struct pt_value *args, struct pt_value **out,
    struct err *e) NODISCARD;
/* The storage that a persistent id names. */
enum status machine_storage(
    struct machine *m, const struct pt_value *id, struct pt_value **out, struct err *e) NODISCARD;

/* Invariants 1 and 2 of pickle_value.h, and no value that only a running pickle has. */
enum status pt_check(struct pt_value *root, struct err *e) NODISCARD;

/* A name from a file as printable ASCII, shortened to the buffer. */
const char *printable(const char *s, size_t n, char *buf, size_t cap);

#endif
