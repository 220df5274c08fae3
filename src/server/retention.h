/* retention.h - what runs that retention removed have left on this machine's disk.
 *
 * Gone: SNUG_HOME/runs/<id> (recorded outputs, TensorBoard, log) and the checkpoints that its
 * training loops wrote by themselves; the latter only within models_dir, only where the run was not
 * interrupted, and only files that nobody has written since. A run that a person deletes keeps its
 * files. Files on other machines are their agents' own.
 */
#ifndef SERVER_RETENTION_H
#define SERVER_RETENTION_H

#include "server/config.h"
#include "server/core.h"

struct retention;
struct retention *retention_new(const struct server_config *c);
void retention_free(struct retention *r); /* NULL is fine */
/* Remembers; from any thread, quick. */
void retention_add(struct retention *r, const struct core_pruned *run);
/* Removes what was remembered. */
void retention_work(struct retention *r);

#endif
