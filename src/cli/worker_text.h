/* worker_text.h - workers, their cards and runs as text, from GET /api/workers. */
#ifndef CLI_WORKER_TEXT_H
#define CLI_WORKER_TEXT_H

#include "base/json.h"
#include "base/str.h"

/* A worker: a line of its own, then a line a device with its bar. */
void worker_text(const json_t *worker, bool colour, struct str *out);
/* Every worker of the document, this server's own first; then who was refused. */
void workers_text(const json_t *document, bool colour, struct str *out);

#endif
