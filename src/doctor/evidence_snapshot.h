/* evidence_snapshot.h - a snapshot's part of the evidence: the last out-of-memory it recorded. */
#ifndef DOCTOR_EVIDENCE_SNAPSHOT_H
#define DOCTOR_EVIDENCE_SNAPSHOT_H

#include "doctor/evidence.h"
#include "doctor/snapshot.h"

/* Starts from evidence_init and ends with evidence_derive. Figures are those at the event: the
 * state at the end of the snapshot, less what happened after it. */
void evidence_from_snapshot(const struct snapshot *s, struct evidence *v);

#endif
