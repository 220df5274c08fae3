/* snapshot_report.h - the doctor's answer about a snapshot, as a document and as text.
 *
 * Document: what report.h gives for any input, and (docs/doctor.md) `snapshot` (devices, settings,
 * what does not add up), `peak`, `holders` (at the out-of-memory, else at the peak), `iterations`,
 * `fragmentation`, `replay`.
 */
#ifndef DOCTOR_SNAPSHOT_REPORT_H
#define DOCTOR_SNAPSHOT_REPORT_H

#include "doctor/study.h"

#include "base/json.h"

/* Works out what a replay proves first, where the verdict is fragmentation. */
json_t *snapshot_report_document(struct study *x);
/* The parts above as a person reads them; nothing where the document has none. */
void snapshot_report_text(const json_t *document, struct str *out);
/* Of one place: `place`, `file`, `line`, `function`, `phase`, `category`, ... */
json_t *snapshot_report_place(const struct study *x, const struct study_device *d, uint32_t life);

#endif
