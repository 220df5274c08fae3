/* study.h - everything the doctor works out from one snapshot, device by device: the walk, who
 * holds memory at the decisive moment, iterations, layouts, and what a replay proves.
 *
 * The decisive MOMENT of a device is its last out-of-memory, else the peak of live bytes.
 */
#ifndef DOCTOR_STUDY_H
#define DOCTOR_STUDY_H

#include "doctor/evidence.h"
#include "doctor/growth.h"
#include "doctor/layout.h"
#include "doctor/replay.h"

struct study_device {
    int device;
    struct walk walk;
    struct growth_report growth;
    uint32_t moment;
    bool peak_is_moment;
    enum moment phase, peak_phase;
    bool loss, peak_loss, backward_begins;
    struct holders holders;     /* at the moment */
    struct snap_layout at, end; /* at the moment, and of the end */
    double kept_share;          /* growth_kept_share of the moment's iteration */
    bool replayed;
    struct replay_exact exact; /* where `replayed` */
};
/* What a replay of the recording says about allocator settings. */
struct study_proof {
    bool done;
    bool base_fails; /* under the recorded settings, from a clean start */
    int tried_n;
    char setting[256];                     /* what helps; "" where nothing does */
    int64_t needs_bytes, base_needs_bytes; /* the smallest capacities; -1: not worked out */
    bool fits;
};
struct study {
    const struct snapshot *s;
    struct labels labels;
    struct study_device *devices; /* those with segments or events */
    int devices_n;
    int main; /* of `devices`: with the latest out-of-memory, else the fullest; -1: there is none */
    int64_t capacity_bytes; /* of the card, as given or as the snapshot says; 0: not known */
    struct study_proof proof;
};
struct study_options {
    int64_t capacity_bytes; /* 0: not given */
    bool no_replay;         /* neither exact nor under other settings */
};
/* `options` may be NULL. The snapshot must outlive the study. */
void study_init(struct study *x, const struct snapshot *s, const struct study_options *options);
void study_release(struct study *x);
static inline const struct study_device *study_main(const struct study *x)
{
    return x->main >= 0 ? &x->devices[x->main] : NULL;
}
/* Plays the recording of the main device under other settings; only where that may help. */
void study_prove(struct study *x);

/* Starts from evidence_init and ends with evidence_derive. */
void evidence_from_study(const struct study *x, struct evidence *v);

#endif
