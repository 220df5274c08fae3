/* report.h - the doctor's answer about a text, as a document and as text.
 *
 * Document (docs/doctor.md): `kind`, `about`, `confidence`, `borderline`, `rule`, `why`, `also`
 * [{kind, why}], `evidence` (figures that were known, bytes), `where` (traceback), `remedies` [{id,
 * what, why}], `checks` [text], `messages` [{line, rank, device, wording, ..., kind}], `summaries`,
 * `nvidia_smi`, `growth`, `symptoms`, `input`.
 */
#ifndef DOCTOR_REPORT_H
#define DOCTOR_REPORT_H

#include "doctor/symptoms.h"
#include "doctor/verdict.h"

/* NULL where neither an out-of-memory, nor a table, nor a symptom is in the text. `runs`: what our
 * own runs wrote, or NULL. A text with symptoms alone has `kind` null. */
json_t *report_text_document(const struct text_facts *f, const struct runs_reader *runs);
/* Of evidence from elsewhere (a snapshot); never NULL. */
json_t *report_evidence_document(const struct evidence *v, const char *form);
/* The document as a person reads it: verdict first. */
void report_text(const json_t *document, struct str *out);

#endif
