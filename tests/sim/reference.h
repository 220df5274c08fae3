/* reference.h - the placement rules once more, slow and plain: what placement.c is compared with.
 *
 * No classes, no shared verdicts, no tables: every run is judged against every candidate by
 * counting through lists, at its own turn. Written from the rules in placement.h, not from its
 * code.
 */
#ifndef TESTS_SIM_REFERENCE_H
#define TESTS_SIM_REFERENCE_H

#include "server/placement.h"

enum ref_why {
    REF_ROOM, /* it fits */
    REF_EVICT,
    REF_MEMORY,
    REF_ALONE,
    REF_SLOT,
    REF_KEPT,
    REF_CLOSED,
    REF_UNREPORTED,
    REF_ADOPTING,
    REF_SPENT,
    REF_DRAINING,
    REF_OFFLINE,
    REF_DISABLED,
    REF_NO_BUDGET,
    REF_TOO_LARGE,
    REF_NO_TOTAL,
    REF_CANNOT_CAP,
    REF_NOBODY /* no worker that offers it */
};

struct ref_run {
    const struct place_request *request;
    int64_t run;
    const char *run_id;
};
struct ref_answer {
    enum place_outcome outcome;
    size_t worker, devices[PLACE_SET_MAX], n_devices;
    bool by_memory, too_large;
    enum ref_why why; /* of a run that waits, as things stand after the pass */
    size_t at_worker, at_device;
};
/* Who was first to wait for memory in which queue, and since when: kept between passes. */
struct ref_first {
    char key[256];
    int64_t run, since_ns;
};
struct ref_heads {
    struct ref_first of[256];
    size_t n;
};

/* `evict` gets a flag for each of world.live. */
void ref_pass(
    const struct place_world *w, const char *limits, int64_t gpu, int64_t cpu,
    const struct ref_run *runs, size_t n, struct ref_heads *heads, struct ref_answer *out,
    bool *evict);

/* A recount of one card. */
struct ref_card {
    bool shared, cuda, alone; /* alone: a run without budget is on it */
    int64_t limit, used, total_bytes, free_bytes, reserved_bytes, running_bytes;
    long id; /* the same for all devices that are this card, within a world */
};
bool ref_card(
    const struct place_world *w, const char *limits, int64_t gpu, int64_t cpu, const char *worker,
    const char *device, struct ref_card *out);

/* Words that a reason has when that is why. */
const char *ref_words(enum ref_why why);

#endif
