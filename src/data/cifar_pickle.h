/* cifar_pickle.h - the pickled batches of CIFAR's "python version", read without Python.
 *
 * FORMAT: a pickle (protocol 2 and its relatives) of a dictionary with `data` (a numpy array of
 * uint8, n x 3072), a list of integers under `labels` (CIFAR-10) or `fine_labels` (CIFAR-100), and
 * other lists that are skipped. Only the opcodes that such a file needs are understood, and the
 * only functions it may name are numpy's array and dtype: nothing is ever called.
 */
#ifndef DATA_CIFAR_PICKLE_H
#define DATA_CIFAR_PICKLE_H

#include "data/source.h"

/* Exactly n images (3072 bytes each, interleaved) and labels; ST_CORRUPT for anything else. */
enum status cifar_pickle_read(
    struct source *s, int64_t n, const char *labels_key, uint8_t *images, uint8_t *labels,
    struct err *e) NODISCARD;
/* Planes of 1024 bytes (red, green, blue) to interleaved pixels. */
void cifar_interleave(const uint8_t planes[], uint8_t pixels[]);

#endif
