/* answer.h - the one answer of a command: on stdout a text, or under --json exactly one document.
 *
 * The document: schema 1, status succeeded|failed|interrupted, error (null, or code, message,
 * node_id, node_type, detail, hint), then what the command gives. Without --json an error is a
 * text on stderr. Both also when host memory is exhausted.
 */
#ifndef CLI_ANSWER_H
#define CLI_ANSWER_H

#include "base/err.h"
#include "base/json.h"

#include <stdio.h>

/* Once, before anything else: what happens when memory is exhausted. */
void answer_begin(bool json);
/* Writes the answer and returns the exit status. `content` (an object, or NULL) is taken; without
 * --json it is not shown: the command has printed its text. `e` counts when st is not ST_OK. */
int answer_end(bool json, enum status st, const struct err *e, json_t *content);
/* The answer of a program that ends here and now, without memory or within a signal handler: writes
 * it, removes what is half-written, exits. No text may need escapes in JSON. */
_Noreturn void answer_now(enum status st, const char *message, const char *detail);
/* Text on stdout, then the exit status; a full disk is an error too. */
int answer_text(const char *text);
int answer_bytes(const char *text, size_t n); /* where the text may hold NUL */

/* Whether `f` gets colours: a terminal, and no NO_COLOR. */
bool colour_on(FILE *f);

#endif
