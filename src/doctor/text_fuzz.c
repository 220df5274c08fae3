/* text_fuzz.c - any bytes as a text for the doctor, fed whole and in pieces: the facts are the
 * same, figures are in order, and a verdict or none comes out. */
#include "doctor/report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_amount(struct amount a)
{
    ASSERT(!amount_known(a) || (a.low <= a.bytes && a.bytes <= a.high));
}

static void check(const struct text_facts *f)
{
    for (size_t i = 0; i < f->messages.n; i++) {
        const struct message *m = &f->messages.data[i].m;
        check_amount(m->request);
        check_amount(m->total);
        check_amount(m->free);
        check_amount(m->reserved);
        check_amount(m->unallocated);
        ASSERT(m->id < MESSAGE_COUNT && m->n_processes <= MESSAGE_PROCESSES);
        ASSERT(f->messages.data[i].line >= 1 && f->messages.data[i].line <= f->lines);
    }
    json_t *d = report_text_document(f, NULL);
    if (d) {
        struct str out;
        str_init(&out);
        report_text(d, &out);
        ASSERT(out.n > 0);
        str_release(&out);
        json_decref(d);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct text_reader *whole = text_reader_new(), *pieces = text_reader_new();
    text_reader_feed(whole, data, size);
    for (size_t at = 0; at < size;) {
        size_t n = 1 + data[at] % 97;
        n = n > size - at ? size - at : n;
        text_reader_feed(pieces, data + at, n);
        at += n;
    }
    const struct text_facts *a = text_reader_end(whole), *b = text_reader_end(pieces);
    ASSERT(a->messages.n == b->messages.n && a->lines == b->lines);
    ASSERT(a->summaries.n == b->summaries.n && a->series.all.n == b->series.all.n);
    check(a);
    text_reader_free(whole);
    text_reader_free(pieces);
    return 0;
}
