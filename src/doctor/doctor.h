/* doctor.h - one door for whatever a program left behind: sees what an input is, reads it, and
 * answers with the document of report.h.
 *
 * Inputs: memory snapshots (snapshot.h), texts of any length (text.h), documents and events of our
 * own runs (symptoms.h).
 */
#ifndef DOCTOR_DOCTOR_H
#define DOCTOR_DOCTOR_H

#include "base/json.h"

struct study;
struct doctor_options {
    int64_t capacity_bytes; /* of the card, where a snapshot does not say it; 0: not given */
    /* Called with the study of a snapshot while it exists; an error ends the diagnosis. */
    enum status (*on_study)(
        void *ctx, const struct study *x, const json_t *document, struct err *e);
    void *ctx;
};

/* `path` "-" is the standard input. ST_NOT_FOUND where nothing usable is in it, ST_IO, or what
 * snapshot_read_bytes answers. `options` may be NULL. `*out` is the caller's. */
enum status doctor_diagnose(
    const char *path, const struct doctor_options *options, json_t **out, struct err *e) NODISCARD;
/* The same from memory; `what` names it in errors. */
enum status doctor_diagnose_bytes(
    const void *data, size_t size_bytes, const char *what, json_t **out, struct err *e) NODISCARD;

#endif
