/* tokenizer_fuzz.c - any bytes as a tokenizer file (a JSON document, else ranks of gpt2 whose
 * number of lines need not fit); what opens encodes and decodes. Corpus: tests/corpus/tokenizer. */
#include "text/tokenizer.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(struct tokenizer *t)
{
    static const char text[] =
        "Hello  it's 12345\n\xe2\x96\x81 \xc3\xa9\xcc\x81<|endoftext|></s> \xf0\x9f\x8e\x89";
    struct err e = {0};
    struct encode_options o = {.special = SPECIAL_FOUND, .templated = true};
    struct tokens ids = {0};
    struct str back;
    str_init(&back);
    if (tokenizer_encode(t, text, sizeof text - 1, &o, &ids, &e) == ST_OK &&
        tokenizer_decode(t, ids.data, ids.n, false, &back, &e) != ST_OK)
        ASSERT(e.text[0] != 0);
    for (size_t i = 0; i < ids.n; i++)
        ASSERT(ids.data[i] < TOKENIZER_SIZE_MAX);
    (void)tokenizer_end(t);
    vec_release(&ids);
    str_release(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct tokenizer *t = NULL;
    const union {
        const uint8_t *bytes;
        const char *text;
    } in = {.bytes = data};
    if (tokenizer_from_bytes(in.text, size, "gpt2.tiktoken", &t, &e) == ST_OK) {
        use(t);
        tokenizer_free(t);
    } else {
        ASSERT(e.text[0] != 0);
    }
    return 0;
}
