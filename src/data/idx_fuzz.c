/* idx_fuzz.c - any bytes as an IDX file, plain or gzip: an error or data, never a crash. The first
 * byte chooses the rank. Corpus: tests/corpus/idx. */
#include "data/idx.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct source *s = NULL;
    struct idx x = {0};
    if (size == 0 || source_open_bytes(data + 1, size - 1, "fuzz", &s, &e) != ST_OK)
        return 0;
    if (idx_read(s, 1 + data[0] % IDX_RANK_MAX, &x, &e) == ST_OK)
        idx_release(&x);
    else
        ASSERT(e.text[0] != 0);
    source_close(s);
    return 0;
}
