/* doctor.h - one door for whatever a program left behind: sees what an input is, reads it, and
 * answers with the document of report.h.
 *
 * Inputs: memory snapshots (snapshot.h), texts of any length (text.h), documents and events of our
 * own runs (symptoms.h).
 */
#ifndef DOCTOR_DOCTOR_H
#define DOCTOR_DOCTOR_H

#include "base/json.h"

/* `path` "-" is the standard input. ST_NOT_FOUND where nothing usable is in it, ST_IO, or what
 * snapshot_read_bytes answers. `*out` is the caller's. */
enum status doctor_diagnose(const char *path, json_t **out, struct err *e) NODISCARD;
/* The same from memory; `what` names it in errors. */
enum status doctor_diagnose_bytes(
    const void *data, size_t size_bytes, const char *what, json_t **out, struct err *e) NODISCARD;

#endif
