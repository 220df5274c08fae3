/* say.h - a run's own log: lines of plain text on stdout, which the supervisor keeps as output.log.
 */
#ifndef CHILD_SAY_H
#define CHILD_SAY_H

#include "base/json.h"

/* What an event of the runner or of train/loop.h has to say to a reader; batches say nothing. */
void say_event(const json_t *event);
void say_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
