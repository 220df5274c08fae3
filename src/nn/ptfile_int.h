/* ptfile_int.h - seams of the .pt reader for its fuzz target. */
#ifndef NN_PTFILE_INT_H
#define NN_PTFILE_INT_H

#include "nn/ptfile.h"

#include <zip.h>

/* Takes `zip` over, also on failure. `size_bytes` is the size of the whole zip file. */
enum status ptfile_open_zip(
    zip_t *zip, const char *path, uint64_t size_bytes, struct ptfile **out,
    struct err *e) NODISCARD;

#endif
