/* events.h - stored events of a run (wire/events.def), shown as a run in the foreground shows its
 * own. */
#ifndef CLI_EVENTS_H
#define CLI_EVENTS_H

#include "cli/follow.h"

/* Under --json each is a JSON line {"event", "run_id", "cursor", payload...} on stderr. Else
 * progress, figures and warnings through the live display, and what a command prints on stdout. */
void events_show(struct follow *f, const char *type, const json_t *payload);
/* As follow.waits: {"event": "waits", "message", "queue_position", "queue_key", "reason"}. */
void events_show_wait(struct follow *f, const json_t *row);
/* A line of text about an event, for lists: "metric  train_loss 0.53 (step 3)". */
void event_line(const char *type, const json_t *payload, struct str *out);

#endif
