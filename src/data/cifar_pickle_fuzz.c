/* cifar_pickle_fuzz.c - any bytes as a pickled CIFAR batch of one image: an error or data, never a
 * crash. Corpus: tests/corpus/cifar_pickle. */
#include "data/cifar_pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct source *s = NULL;
    uint8_t image[3072], label[1];
    if (source_open_bytes(data, size, "fuzz", &s, &e) != ST_OK)
        return 0;
    if (cifar_pickle_read(s, 1, "labels", image, label, &e) != ST_OK)
        ASSERT(e.text[0] != 0);
    source_close(s);
    return 0;
}
