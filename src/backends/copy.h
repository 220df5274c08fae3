/* copy.h - the copy engine: copies between device and host that run beside the kernels, in order.
 *
 *     copy_issue -> a ticket ... kernels run ... copy_wait(ticket): the bytes are there
 *
 * One thread works off a queue, as a card's copy stream does: a copy begins when those before it
 * are done. Until a ticket was waited for nobody may write what it reads, nor read or write what it
 * writes. One caller: copy_issue and copy_wait are not for several threads.
 *
 * SNUG_TEST_COPY_DELAY_MS makes every copy that much later: a wait that is missing shows (tests).
 */
#ifndef BACKENDS_COPY_H
#define BACKENDS_COPY_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct copy_engine;
enum { COPY_QUEUE_MAX = 256 }; /* copies that wait; issuing one more waits for the first */

/* ST_OOM: the system gave no thread. */
enum status copy_engine_new(struct copy_engine **out, struct err *e) NODISCARD;
/* After the last copy. NULL is fine. */
void copy_engine_free(struct copy_engine *c);

/* Tickets count from 1 in the order of issue. */
uint64_t copy_issue(struct copy_engine *c, void *to, const void *from, size_t size_bytes);
void copy_wait(struct copy_engine *c, uint64_t ticket); /* 0: returns at once */
void copy_wait_all(struct copy_engine *c);

#endif
