/* diff.h - what changed between two snapshots: figures, and holders by place, phase and category.
 */
#ifndef DOCTOR_DIFF_H
#define DOCTOR_DIFF_H

#include "doctor/study.h"

#include "base/json.h"

/* `kind` null; `a` and `b` (figures of the main device), `changes` of each figure, `settings`,
 * `categories`, `places`: {place, category, phase, change: new, gone, grown or shrunk, a_bytes,
 * b_bytes, a_blocks, b_blocks}, the largest change first. Places are equal if file, line,
 * function, phase and category are. */
json_t *diff_document(const struct study *a, const struct study *b);
void diff_text(const json_t *document, struct str *out);

/* Reads both. */
enum status diff_files(const char *a, const char *b, json_t **out, struct err *e) NODISCARD;

#endif
