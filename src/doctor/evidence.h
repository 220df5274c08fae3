/* evidence.h - every number that the rules of the doctor look at, from whatever input there is: one
 * message, several over time, memory summaries, nvidia-smi, figures of a log, a snapshot.
 *
 * Amounts are unknown where no input says them. What follows from others is derived by
 * evidence_derive, by the arithmetic of PyTorch's own numbers:
 *     reserved  = as printed, allocated + cached (1.0 to 1.3), allocated + unallocated (2.1 on)
 *     slack     = reserved - allocated: free blocks that the allocator could not give back, since
 *                 the message is written after it gave back what it could
 *     gap       = request - free: what was missing
 *     own       = "this process has"; else the one "Process N" line within [reserved, reserved +
 *                 1.5 GiB], which is the own process in a container
 *     other     = the other "Process N" lines; without any total - free - own, or, where no use of
 *                 processes is printed, total - free - reserved (then context and libraries of the
 *                 own process, 0.3 to 1.5 GiB, are in it)
 */
#ifndef DOCTOR_EVIDENCE_H
#define DOCTOR_EVIDENCE_H

#include "doctor/text.h"

struct growth {
    bool rising;
    enum series_kind kind; /* of what */
    char label[24], source[32];
    int64_t points;
    double first, last, per_point; /* bytes */
    bool from_messages, from_snapshot, from_smi;
};

struct evidence {
    /* the message that is judged */
    bool has_message;
    enum message_id id;
    enum message_where where;
    enum message_era era;
    int strength; /* of the wording; -1 without a message */
    int device, rank;
    char backend[8];
    int64_t line, step, repeats;
    bool truncated, distrusted_request, hint_expandable, hint_split;
    struct amount request, total, free, allowed, allocated, private_pools, reserved, own;
    bool own_printed, own_from_process;
    int n_processes;
    struct amount processes; /* sum of the other "Process N" lines */
    int64_t messages;        /* in all */

    /* derived */
    struct amount slack, gap, other;

    /* where it happened */
    bool has_trace, evaluating;
    struct frame user;
    enum moment phase;
    unsigned phases, hints;

    /* over time */
    struct growth growth;
    bool allocated_flat;        /* a series of allocated memory that does not grow */
    struct amount flat_level;   /* of it */
    struct amount peak;         /* largest peak that a log or table gives */
    struct amount series_slack; /* last reserved - allocated that a log prints */
    bool reserved_grows;
    int64_t iterations; /* steps seen before the message; 0 unknown */

    /* a memory summary */
    bool has_summary;
    int64_t ooms, retries;
    struct amount inactive_split; /* bytes in free pieces of segments that are in use */

    /* nvidia-smi */
    bool has_smi;
    struct amount smi_used, smi_total; /* of the card */
    struct amount smi_largest;         /* use of its largest process */
    struct amount smi_explained;       /* by its processes */
    int smi_processes;                 /* with a known use, on it */
    int smi_utilisation;               /* percent; -1 unknown */
    char smi_name[64];                 /* of the largest process */

    /* a snapshot (src/doctor's snapshot analysis fills these) */
    bool has_snapshot;
    struct amount largest_free, free_sum; /* free blocks at the out-of-memory */
    struct amount grows_by;               /* per iteration */
    char grows_at[160];                   /* frame that grows most */
    bool graph_retained;                  /* a forward pass's tensors outlive their step */
    bool has_history;                     /* it has events */
    bool own_snapshot;                    /* of a run of ours */
    /* a replay of it under other settings */
    bool replayed, replay_fits;
    int replay_tried;
    char replay_setting[256]; /* what helps; "" where nothing does */
    struct amount replay_needs, replay_base_needs;

    /* a document of our own run that ended out of memory */
    bool own_run, own_budget, own_planned;
    char own_message[512];

    /* in force already */
    bool expandable, max_split, async, half, checkpointing, batch_one, quantised, lora, sharded;
    bool said_grows; /* the text says in words that memory grows */
    bool turing; /* a card without bfloat16 is named */
    bool no_grad, resumed, webui, vllm, notebook, windows, fraction, overflow;
    char conf[256];
};

void evidence_init(struct evidence *v);
/* From a text; `message` is the place of the message to judge, or SIZE_MAX: the strongest of the
 * first ones. Ends with evidence_derive. */
void evidence_from_text(const struct text_facts *f, size_t message, struct evidence *v);
/* The message that evidence_from_text would take; SIZE_MAX when there is none. */
size_t evidence_main_message(const struct text_facts *f);
void evidence_derive(struct evidence *v);

#endif
