/* message.h - an out-of-memory message of a text as numbers: every wording of PyTorch since 0.x,
 * and those of what stands around it (rows: messages.def).
 *
 * Messages are read from squeezed text: lower case, without blanks, line ends, control characters
 * and frames of tables, so that a message may be wrapped, indented or interleaved anywhere. What a
 * wording does not print is unknown (-1), and so is what cannot be: 2^64 bytes "in use" (NVML under
 * WSL2 and WDDM), 0 bytes of the own process (containers).
 */
#ifndef DOCTOR_MESSAGE_H
#define DOCTOR_MESSAGE_H

#include "doctor/amount.h"

#include <stddef.h>

enum message_id {
#define MESSAGE(id, anchor, reader, where, strength, about) MESSAGE_##id,
#include "doctor/messages.def"
#undef MESSAGE
    MESSAGE_COUNT
};

enum message_where {
    WHERE_CARD,
    WHERE_UNIFIED,
    WHERE_HOST,
    WHERE_PINNED,
    WHERE_SHARED,
    WHERE_LIMIT
};

/* Which text of PyTorch it is; it says what `reserved` meant. */
enum message_era {
    ERA_NONE,
    ERA_0,        /* 0.x: no numbers */
    ERA_CACHED,   /* 1.0 to 1.3: held but not used */
    ERA_RESERVED, /* 1.4 to 2.0 */
    ERA_NEW       /* 2.1 on: allocated, and reserved but unallocated */
};

enum { MESSAGE_PROCESSES = 16 };

struct message_process {
    int64_t pid;
    struct amount used;
};

struct message_info {
    const char *name, *anchor, *about;
    enum message_where where;
    int strength;
};
const struct message_info *message_info_of(enum message_id id);

/* What the numbers are called is that of PyTorch's newest text. */
struct message {
    enum message_id id;
    enum message_era era;
    char backend[8];       /* "cuda", "hip", "xpu", "npu", "mps", "cpu"; "" unknown */
    int device;            /* -1 unknown */
    struct amount request; /* the segment that was asked of the device, not the tensor */
    struct amount total, free, allowed;
    struct amount allocated;     /* with the free blocks of private pools */
    struct amount private_pools; /* which are this many */
    struct amount unallocated;   /* reserved, less allocated */
    struct amount reserved;      /* as printed, or what follows from the era's other figures */
    struct amount own;           /* of the whole process, as the driver sees it */
    struct amount other_own;     /* MPS: allocations of the process beside PyTorch's */
    struct message_process process[MESSAGE_PROCESSES];
    int n_processes;                  /* "Process N has X in use" */
    int distrusted;                   /* figures that were dropped because they cannot be */
    bool hint_expandable, hint_split; /* the hint that was printed; no evidence of anything */
    bool truncated;                   /* it ends before its last figure */
};

enum message_state {
    MESSAGE_DONE, /* whole, or followed by something else */
    MESSAGE_MORE  /* the text ends within it: call again when more has come */
};
/* Reads the message whose anchor ends at text[at] (so text[at] is the first character behind it).
 * `text` is squeezed and a C string; `used` gets the place behind the message. Always gives the
 * numbers that could be read. */
enum message_state
message_read(enum message_id id, const char *text, size_t at, struct message *out, size_t *used);

#endif
