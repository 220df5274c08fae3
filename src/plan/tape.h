/* tape.h - one training step as eager PyTorch runs it, replayed as allocations and frees.
 *
 * The caller applies the operators of the forward pass in order, each with what autograd saves for
 * it; tape_backward then runs the recorded nodes from the last to the first. Nothing is computed:
 * only storages come and go, and the tape keeps the highest sum, by kind, by phase and by layer.
 *
 *     struct tape *t = tape_new(512);
 *     int w = tape_parameter(t, n * 4, true), x = tape_value(t, bytes, TAPE_INPUTS, false);
 *     int y = tape_apply(t, &(struct tape_op){.what = "linear", .in = {x, w}, .n_in = 2, ...});
 *     tape_backward(t, loss);
 *     tape_peak(t)->bytes ...
 *     tape_free(t);
 *
 * INVARIANTS
 *  1. A storage lives while something refers to it: the caller's variable, a saved tensor, a
 *     gradient on its way, or another value that is a view of it.
 *  2. As in PyTorch's engine: a node's incoming gradient is freed when its results exist, then what
 *     it saved; a second gradient of a value is added in place where the first is nobody else's.
 *  3. Values are never reused; value -1 stands for "no operand".
 */
#ifndef PLAN_TAPE_H
#define PLAN_TAPE_H

#include <stdbool.h>
#include <stdint.h>

enum tape_kind {
#define KIND(id, name, about) TAPE_##id,
#include "plan/tape_kinds.def"
#undef KIND
    TAPE_KIND_COUNT
};
const char *tape_kind_name(enum tape_kind k);
const char *tape_kind_about(enum tape_kind k);

enum tape_phase {
#define PHASE(id, name) TAPE_PHASE_##id,
#include "plan/tape_phases.def"
#undef PHASE
    TAPE_PHASE_COUNT
};
const char *tape_phase_name(enum tape_phase p);

/* The fullest moment, of the whole step or of a phase. */
struct tape_peak {
    int64_t bytes, by_kind[TAPE_KIND_COUNT];
    enum tape_phase phase;
    int layer;        /* -1: outside the layers */
    const char *what; /* the operator */
};

struct tape;
/* Sizes are rounded up to a multiple of `round_bytes`: 512 as PyTorch's CUDA allocator, 1 for the
 * CPU. */
struct tape *tape_new(int64_t round_bytes);
void tape_free(struct tape *t);

/* ---- storages: for what no operator makes ---- */
int tape_storage(struct tape *t, int64_t bytes, enum tape_kind k); /* referred to once */
void tape_ref(struct tape *t, int storage);
void tape_unref(struct tape *t, int storage);
/* Comes and goes at once, on top of what is there. */
void tape_flash(struct tape *t, int64_t bytes, enum tape_kind k);

/* ---- values ---- */
int tape_value(struct tape *t, int64_t bytes, enum tape_kind k, bool needs_grad);
/* A leaf whose storage is counted elsewhere; its gradient of `grad_bytes` stays until
 * tape_drop_grad. */
int tape_parameter(struct tape *t, int64_t grad_bytes, bool trainable);
bool tape_needs_grad(const struct tape *t, int value);
int tape_storage_of(const struct tape *t, int value); /* -1: none */
/* The caller's variable goes out of scope. */
void tape_drop(struct tape *t, int value);
/* From now on a leaf's gradient is used and freed as soon as it is whole. */
void tape_consume_grads(struct tape *t, bool on);
void tape_drop_grad(struct tape *t, int value);
int64_t tape_grad_held(const struct tape *t, int value); /* bytes of its gradient now; 0: none */

/* ---- operators ---- */
enum { TAPE_IN_MAX = 8 };
struct tape_op {
    const char *what;
    int in[TAPE_IN_MAX], n_in;
    unsigned save_in, alias_in; /* bit i: input i is saved; its gradient is the incoming one */
    bool save_out;
    bool overwrite_in;         /* the gradient of input 0 is written over input 0, which is saved */
    bool view;                 /* the result shares input 0's storage */
    bool in_place;             /* the same, and input 0 is gone: relu_ */
    enum tape_kind kind;       /* of the result; TAPE_WEIGHTS (0) means TAPE_WORKING */
    int64_t bytes;             /* of the result */
    int64_t grad_bytes;        /* of the result's gradient; 0: `bytes` */
    int64_t keep_bytes;        /* other tensors saved: masks, statistics, half-way results */
    int64_t forward_temporary; /* beside result and kept, inside the operator */
    int64_t backward_temporary;
    int64_t grad_temporary; /* lives with the gradients it makes, until the node ends */
    bool gradual;           /* what is saved goes step by step while the gradients grow */
};
int tape_apply(struct tape *t, const struct tape_op *op);
/* x as `n` views of one part each; the backward pass joins the parts' gradients into a new one. */
enum { TAPE_PARTS_MAX = 4 };
void tape_split(struct tape *t, int x, const int64_t *part_bytes, int n, int *parts);
/* `block` run without being recorded; only x is kept, and the backward pass runs it again. */
typedef int tape_block(struct tape *t, int x, int layer, void *ctx);
int tape_checkpoint(struct tape *t, tape_block *block, int x, int layer, void *ctx);
/* Called when the backward pass comes by: sharded units gather and reduce there. */
typedef void tape_call(struct tape *t, int layer, void *ctx);
void tape_hook(struct tape *t, tape_call *call, int layer, void *ctx);
/* Keeps `storage` alive until the node of `value` has run. */
void tape_save_with(struct tape *t, int value, int storage);
bool tape_recomputing(const struct tape *t);
bool tape_recording(const struct tape *t);
void tape_record(struct tape *t, bool on); /* torch.no_grad() */

/* A second gradient of a value makes a new sum (PyTorch before 2.0) instead of being added in
 * place. */
void tape_sum_anew(struct tape *t, bool on);
/* Called for every allocation (bytes > 0) and free (< 0) of a storage. */
typedef void tape_watch(int storage, int64_t bytes, const char *what, void *ctx);
void tape_set_watch(struct tape *t, tape_watch *watch, void *ctx);

void tape_enter(struct tape *t, enum tape_phase p, int layer);
void tape_backward(struct tape *t, int loss);

int64_t tape_live(const struct tape *t);
/* Forgets peaks: the step that counts begins. */
void tape_reset_peak(struct tape *t);
const struct tape_peak *tape_peak(const struct tape *t);
const struct tape_peak *tape_phase_peak(const struct tape *t, enum tape_phase p);

#endif
