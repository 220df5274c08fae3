/* document.h - how a command or a run ended, as the document that every one of them gives.
 *
 * {"schema": 1, "status": "succeeded" | "failed" | "interrupted", "error": null or {code, type (a
 * class users know by name, else absent), message, node_id, node_type, detail, hint}, ...content}.
 */
#ifndef BASE_DOCUMENT_H
#define BASE_DOCUMENT_H

#include "base/json.h"

/* Takes `content` (an object, or NULL). `e` counts when st is not ST_OK. A new reference. */
json_t *document_of_status(enum status st, const struct err *e, json_t *content);
/* The value of "error" alone. What is not UTF-8 in its texts becomes "?". */
json_t *document_of_error(const struct err *e);

#endif
