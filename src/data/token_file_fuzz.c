/* token_file_fuzz.c - any bytes as a .bin token file: an error or numbers, never a crash. Corpus:
 * tests/corpus/token_file. */
#include "data/tokens.h"

#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    struct err e = {0};
    struct token_row t, all;
    (void)snprintf(path, sizeof path, "/tmp/snug-token-fuzz-%ld", (long)getpid());
    FILE *out = fopen(path, "wb");
    if (!out)
        return 0;
    (void)fwrite(data, 1, size, out);
    (void)fclose(out);
    enum status described = token_file_describe(path, &t, &e);
    enum status st = token_file_read(path, 0, &all, &e);
    ASSERT(described == st);
    if (st == ST_OK) {
        ASSERT(all.n == t.n && all.width == t.width);
        ASSERT(all.n == 0 || token_row_at(&all, all.n - 1) <= (uint64_t)all.largest);
        token_row_release(&all);
    }
    (void)unlink(path);
    return 0;
}
