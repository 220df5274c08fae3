/* text.h - a text of any length, line by line: what it says about memory, in bounded memory.
 *
 * Logs of several ranks may be interleaved, wrapped, escaped for HTML or JSON, with CRLF, NUL
 * bytes, terminal colours, and prefixes of loggers ("[rank0]: ", "(EngineCore_0 pid=7) ERROR 04-01
 * ...",
 * "[1,0]<stderr>:"). A source is what a prefix names; messages and tracebacks are put together per
 * source.
 *
 *     struct text_reader *r = text_reader_new();
 *     text_reader_feed(r, bytes, n);        any number of times, cut anywhere
 *     const struct text_facts *f = text_reader_end(r);
 *     ...
 *     text_reader_free(r);                  the facts go with it
 *
 * LIMITS: lines are cut at LINE_MAX_BYTES; TEXT_SOURCES sources; TEXT_MESSAGES messages (the first
 * half and the last are kept), TEXT_SUMMARIES tables. Memory stays below about 30 MB.
 */
#ifndef DOCTOR_TEXT_H
#define DOCTOR_TEXT_H

#include "doctor/message.h"
#include "doctor/series.h"
#include "doctor/smi.h"
#include "doctor/summary.h"
#include "doctor/trace.h"

#include "base/mem.h"

enum { TEXT_SOURCES = 128, TEXT_MESSAGES = 128, TEXT_SUMMARIES = 32 };

enum word {
    WORD_EVALUATING,
    WORD_TRAINING,
    WORD_RESUMED,
    WORD_BATCH_ONE,
    WORD_HALF,
    WORD_CHECKPOINTING,
    WORD_QUANTISED,
    WORD_LORA,
    WORD_SHARDED,
    WORD_VOLATILE,
    WORD_SAID_GROWS,
    WORD_WINDOWS,
    WORD_WEBUI,
    WORD_VLLM,
    WORD_NOTEBOOK,
    WORD_FRACTION,
    WORD_VISIBLE_DEVICES,
    WORD_OVERFLOW,
    WORD_PINNING,
    WORD_KILLED,
    WORD_SMI,
    WORD_STATS,
    WORD_TURING,
    WORD_FIGURE,
    WORD_CONF,
    WORD_CODE,
    WORD_COUNT
};

/* A message, and where it stands. */
struct text_message {
    struct message m;
    char source[32]; /* prefix it came with; "" none */
    int rank;        /* -1 unknown */
    int64_t line;    /* from 1 */
    int64_t repeats; /* the same again, by handlers and loggers */
    int64_t step;    /* the last step or batch that the source had printed; -1 */
    bool evaluating; /* the last words of the source were of validation */
    bool has_trace;
    struct frame user; /* of its traceback */
    enum moment phase;
    unsigned phases, hints; /* enum trace_hint */
};

struct text_facts {
    VEC(struct text_message) messages;
    int64_t messages_seen; /* different ones, also those that were not kept */
    VEC(struct summary) summaries;
    struct smi smi;
    struct series_table series;
    int64_t words[WORD_COUNT];     /* lines with such a word */
    int64_t word_line[WORD_COUNT]; /* the last of them */
    unsigned code_hints;           /* enum trace_hint, of code outside tracebacks */
    int64_t code_line;
    char conf[256]; /* value of an allocator variable that the text sets; "" */
    int64_t steps;  /* lines that name a step */
    int64_t lines, bytes;
};

struct text_reader;
struct text_reader *text_reader_new(void);
void text_reader_feed(struct text_reader *r, const void *bytes, size_t n);
const struct text_facts *text_reader_end(struct text_reader *r);
void text_reader_free(struct text_reader *r);

#endif
