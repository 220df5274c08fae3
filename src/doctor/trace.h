/* trace.h - Python tracebacks in a text: the last frame of the user's own code, and what the
 * program was doing: Python's own form, IPython's, and the framed one of Rich.
 */
#ifndef DOCTOR_TRACE_H
#define DOCTOR_TRACE_H

#include <stdbool.h>
#include <stdint.h>

/* What frames say about the moment: MOMENT(ID, name). Several may hold (a recomputed forward within
 * backward); the deepest one that is not FORWARD is the phase. */
enum moment {
    MOMENT_NONE,
    MOMENT_FORWARD,
    MOMENT_BACKWARD,
    MOMENT_OPTIMIZER,
    MOMENT_EVALUATION,
    MOMENT_GENERATE,
    MOMENT_LOADER,
    MOMENT_LOAD, /* weights are put on the device */
    MOMENT_RESUME,
    MOMENT_COMPILE, /* CUDA graphs are captured, code is compiled */
    MOMENT_COUNT
};
const char *moment_name(enum moment p); /* "backward"; NULL for MOMENT_NONE */

enum trace_hint {
    HINT_NO_GRAD = 1,       /* a frame shows that gradients are off */
    HINT_KEEPS_RESULTS = 2, /* results are put together on the device (torch.cat, nested_concat) */
    HINT_ATTENTION = 4,     /* scores of attention, a matrix of positions by positions */
    HINT_LOGITS = 8,        /* a loss over a vocabulary, or a cast of logits */
    HINT_SUMS_LOSS = 16,    /* `total += loss` without item() */
    HINT_APPENDS = 32,      /* `.append(loss)` of something with a graph */
    HINT_RETAIN_GRAPH = 64, /* retain_graph=True */
    HINT_CHECKPOINT = 128,  /* activations are recomputed already */
    HINT_AUTOCAST = 256,    /* mixed precision is on */
    HINT_TRAINER = 512,     /* a framework's own loop, which turns gradients off by itself */
    HINT_KEEPS_HIDDEN = 1024, /* hidden states or attention maps are kept */
    HINT_CONTEXT = 8192,      /* the first call of all, which makes the context */
    HINT_STATE_ON_DEVICE =
        2048 /* a checkpoint is read onto the device (torch.load, no map_location) */
};

struct frame {
    char file[160], function[64], code[160];
    int line;
};
/* One traceback as far as it has come; zero it at the start. */
struct trace {
    bool marked;       /* it began with "Traceback"; else frames may come deepest first */
    bool open;         /* the last line belonged to it */
    int frames;        /* seen */
    struct frame last; /* of anyone */
    struct frame user; /* the last that is not of an installed package; file "" when none */
    unsigned phases;   /* 1 << enum moment, of all frames */
    enum moment phase;
    unsigned hints;
    int64_t line; /* of the text, where it began */
};

/* Looks at one line (without its prefix); true when it belongs to a traceback. */
bool trace_line(struct trace *t, const char *line, int64_t number);
/* Hints of a line that may be source code, in a traceback or anywhere. */
unsigned trace_code_hints(const char *code);

#endif
