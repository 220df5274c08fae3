/* labels.h - what the stacks of a snapshot say: the user's own line, the phase of the program, the
 * operator.
 *
 * A frame is the user's own if it is Python and lies in no installed package, not in Python's own
 * library and not in a frozen or generated text. Where a stack has none, the innermost Python frame
 * outside of PyTorch is taken, else the operator. Frames of the interpreter, of C++ and of PyTorch
 * are never named as the place.
 *
 * Each distinct frame is looked at once, each distinct stack once.
 */
#ifndef DOCTOR_LABELS_H
#define DOCTOR_LABELS_H

#include "doctor/snapshot.h"
#include "doctor/trace.h"

#include "base/str.h"

enum frame_mark {
    MARK_BACKWARD,
    MARK_ACCUMULATE,
    MARK_OPTIMIZER,
    MARK_STEP,
    MARK_OPTIM_FILE,
    MARK_CLEARS, /* zero_grad */
    MARK_MODULE, /* called as a module */
    MARK_FORWARD,
    MARK_EVALUATION,
    MARK_GENERATE,
    MARK_NO_GRAD,
    MARK_BUILD, /* weights are made, moved or read */
    MARK_INIT,
    MARK_LOADER,
    MARK_CHECKPOINT,
    MARK_LOSS,
    MARK_ATTENTION,
    MARK_SOFTMAX,
    MARK_WORKSPACE,
    MARK_GRAPH_GONE, /* freed with the graph that held it */
    MARK_OP,
    MARK_GRAD_FN,
    MARK_RETAINED,
    MARK_COMPILE,
    MARK_PYTHON,
    MARK_PACKAGE, /* of an installed package or of Python */
    MARK_TORCH,
    MARK_COUNT
};
#define MARK(name) (1u << MARK_##name)

#define LABEL_NONE UINT32_MAX
struct stack_label {
    uint32_t frame; /* of `frames`: the place; LABEL_NONE: none */
    uint32_t outer; /* the outermost frame of the user, LABEL_NONE: none */
    uint32_t op;    /* the frame that names the operator or the gradient function, or LABEL_NONE */
    uint32_t group; /* stacks of one place and phase have one group */
    uint32_t marks; /* of all frames */
    uint8_t phase;  /* enum moment */
    bool own;       /* `frame` is the user's own */
};
struct label_group {
    uint32_t stack; /* the first stack of it */
    uint32_t node;  /* text: of a snapshot of our own, whose node is the place; 0: none */
    uint32_t frame, op;
    uint8_t phase;
    bool loss;
};
struct labels {
    const struct snapshot *s;
    uint32_t *marks;        /* of each frame */
    struct stack_label *of; /* of each stack */
    struct label_group *groups;
    uint32_t groups_n;
    uint32_t *of_node; /* of each text: the group of that node, plus 1; NULL: no nodes are named */
    bool trains;       /* some stack is of a backward pass or of an optimizer */
};

void labels_init(struct labels *l, const struct snapshot *s);
void labels_release(struct labels *l);

/* "model.py:101 forward", the last two parts of the path; "(no stack)". */
void label_place(const struct snapshot *s, uint32_t frame, struct str *out);
/* "mul", "MulBackward0"; nothing where there is none. */
void label_op(const struct snapshot *s, uint32_t op, struct str *out);
/* Place, or the operator where there is no place. */
void label_group_text(const struct labels *l, uint32_t group, struct str *out);
/* "forward", "backward", "optimizer step", "loss", ...; "" where nothing is known. */
const char *label_phase(uint8_t phase, bool loss);

#endif
