/* symptoms.h - trouble beside an out-of-memory: a loss that is not finite, a scale that falls,
 * mixed precision that saves nothing, is slower or converges worse (requirement T9).
 *
 * Read from logs (series of loss and scale) and from what `snug run --json` writes: result
 * documents and event lines, several in one input (one run in fp32 and one in bf16 are compared).
 */
#ifndef DOCTOR_SYMPTOMS_H
#define DOCTOR_SYMPTOMS_H

#include "doctor/text.h"

#include "base/json.h"

enum symptom_id {
#define SYMPTOM(id, name, advice) SYMPTOM_##id,
#include "doctor/symptoms.def"
#undef SYMPTOM
    SYMPTOM_COUNT
};

enum { RUNS_MAX = 8, RUN_LOSSES = 512 };

/* What one run wrote. */
struct run_record {
    char precision[8];  /* "" unknown */
    char note[512];     /* precision_note */
    int64_t peak_bytes; /* -1 unknown */
    double per_second;  /* images or tokens; 0 unknown */
    int64_t skipped_steps;
    double scale, scale_first, scale_most; /* 0 unknown */
    int n_losses;
    double losses[RUN_LOSSES]; /* of batches, else of epochs */
    int64_t bad_losses;
    bool out_of_memory, failed;
    char message[512], node[128]; /* first line of the error */
    json_t *oom;                  /* of the document: docs/oom.md; NULL. The reader's own */
    bool done;                    /* its result document was seen */
};

/* Finds JSON objects in a stream of bytes: documents and event lines. */
struct runs_reader;
struct runs_reader *runs_reader_new(void);
void runs_reader_feed(struct runs_reader *r, const void *bytes, size_t n);
int runs_count(const struct runs_reader *r);
const struct run_record *runs_at(const struct runs_reader *r, int i);
void runs_reader_free(struct runs_reader *r);

/* [{symptom, figures, advice, line}], and for two curves `curves`; a new array, empty when all is
 * well. Either may be NULL. */
json_t *symptoms_json(const struct text_facts *f, const struct runs_reader *r);

#endif
