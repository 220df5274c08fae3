/* train.h - learns a byte-level BPE from a text and writes it as tokenizer.json.
 *
 * Tokens: the 256 bytes (their values are their numbers), then a merge each, then <|endoftext|>.
 * Text is cut as GPT-2 does. The most frequent pair is merged first; of equals that with the
 * smaller numbers: the file is a function of the text and the options.
 */
#ifndef TEXT_TRAIN_H
#define TEXT_TRAIN_H

#include "base/err.h"
#include "base/json.h"

#include <stddef.h>
#include <stdint.h>

enum { BPE_VOCAB_MIN = 258, BPE_VOCAB_MAX = 1 << 20 };

struct bpe_train_options {
    int64_t vocab;         /* tokens in all, BPE_VOCAB_MIN to BPE_VOCAB_MAX */
    int64_t frequency_min; /* pairs that are rarer are not merged; 0: 2 */
    /* Called now and then: tokens there are of those wanted. NULL: never. */
    void (*progress)(int64_t done, int64_t wanted, void *ctx);
    void *ctx;
};
struct bpe_train_result {
    int64_t tokens, merges, words; /* in the file; distinct pieces of the text */
};
/* The document (a new reference). Fewer merges than wanted when the text has no more pairs. */
enum status bpe_train(
    const char *text, size_t n, const struct bpe_train_options *o, json_t **out,
    struct bpe_train_result *result, struct err *e) NODISCARD;

#endif
