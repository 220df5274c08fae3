/* finder.h - finds many short words in a text in one pass (Aho and Corasick, 1975). */
#ifndef DOCTOR_FINDER_H
#define DOCTOR_FINDER_H

#include <stddef.h>

/* Words of lower-case ASCII; they are copied. */
struct finder;
struct finder *finder_new(const char *const *words, int n);
void finder_free(struct finder *f);
/* The state after character `c`; 0 is the start. Where it has FINDER_HIT, words end there. */
enum { FINDER_HIT = 1 << 15 };
int finder_step(const struct finder *f, int state, unsigned char c);
/* Every word that ends here: *it = state before the first call, then the number of a word, or -1.
 */
int finder_next(const struct finder *f, int *it);

#endif
