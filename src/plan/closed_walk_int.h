/* closed_walk_int.h - a transformer being walked onto a tape; private to the closed form. */
#ifndef PLAN_CLOSED_WALK_INT_H
#define PLAN_CLOSED_WALK_INT_H

#include "plan/closed_form.h"

struct walk {
    const struct closed_model *m;
    const struct closed_run *r;
    const struct closed_precision_row *p;
    struct closed_precision_row row; /* p, where it is changed */
    struct tape *t;
    int64_t tokens, n_trainable, largest, unit_bytes;
    int casts[8192], n_casts;                          /* autocast's cache: copies of weights */
    int *parameters, n_parameters, cursor, cursor_end; /* trainable ones; cursor: a second run */
    int gathered;                                      /* storage of the unit in hand; -1: none */
    int held;                                          /* scores that the caller keeps */
    bool forgets;           /* the product's input is computed again from what is kept */
    int layer_size, buffer; /* buffer: storage of all gradients; -1: none */
    int64_t moments_late;
};

/* An activation: a value, its elements, the bytes of each. */
struct act {
    int v;
    int64_t n;
    int size;
};

int walk_apply(struct walk *w, struct tape_op op);
void walk_drop(struct walk *w, struct act a);
int64_t walk_bytes(struct act a);
/* Whether the cards share what `stage` of ZeRO shares. */
bool walk_sharded(const struct walk *w, int stage);
/* Frozen weights are loaded in half where the adapters have a type of their own. */
bool walk_half_base(const struct walk *w);

struct weight {
    int v;
    int64_t n;
    bool trainable, quantised;
};
int walk_parameter(struct walk *w, int64_t n, bool trainable);
struct weight walk_weight(struct walk *w, int64_t n); /* of the base model */
/* x [rows, in] times a matrix; x stays the caller's. */
struct act walk_product(
    struct walk *w, struct act x, int64_t in, int64_t out, const struct weight *k,
    enum tape_kind kind);
struct act walk_norm(struct walk *w, struct act x);              /* x stays the caller's */
struct act walk_dropout(struct walk *w, struct act x, double p); /* x is taken */
struct act walk_layer(struct walk *w, struct act x);             /* x is taken */

#endif
