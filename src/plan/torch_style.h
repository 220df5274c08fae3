/* torch_style.h - what eager PyTorch would allocate for one training step of the same graph.
 *
 * Takes a training program as it is after the FORWARD pass (before autocast and gradients, so that
 * it says what the graph says and no lever of ours is in it) and replays it on a tape: batch on the
 * device, forward, loss, backward, optimizer step, at a step after the first, when states exist and
 * the last step's output is still referred to. torch_saves.def says what each operator makes and
 * keeps.
 *
 * On the CPU sizes are exact and habits are those of PyTorch 1.13 (tensor-by-tensor step, oneDNN's
 * reordered copies, plain attention); on CUDA those of PyTorch 2: 512-byte rounding, foreach step,
 * two cuBLAS workspaces and the context as lines of their own, autocast's cache of casts, flash
 * attention unless asked otherwise.
 */
#ifndef PLAN_TORCH_STYLE_H
#define PLAN_TORCH_STYLE_H

#include "ir/program.h"
#include "plan/tape.h"

struct torch_options {
    bool cuda;
    bool autocast; /* to a type of two bytes */
    bool plain_attention;
    bool accumulates; /* gradients of earlier micro-batches exist */
    bool clips;
    int sm; /* compute capability; from 90 on workspaces are 32 MiB */
    int64_t context_bytes;
    struct optim_attr optim;
};
struct torch_estimate {
    struct tape_peak peak, phase[TAPE_PHASE_COUNT];
    int64_t parameters, trainable;
    /* CUDA: what PyTorch's caching allocator, in its default settings, has taken from the card at
     * most when the same tensors come and go (mem/pool); 0 on the CPU. */
    int64_t reserved_bytes;
    int64_t context_bytes, total_bytes; /* total: reserved (CPU: peak) and context */
    char unknown[128];                  /* operators without a row, as text; "" */
};
void torch_options_defaults(struct torch_options *o, bool cuda);
enum status torch_estimate_make(
    const struct ir_program *forward, const struct torch_options *o, struct torch_estimate *out,
    struct err *e) NODISCARD;

#endif
