/* study_fuzz.c - any bytes as a snapshot, studied: figures add up, document, text, page and a
 * comparison with itself come out. */
#include "doctor/diff.h"
#include "doctor/report.h"
#include "doctor/snapshot_page.h"
#include "doctor/snapshot_report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_layout(const struct snap_layout *x)
{
    ASSERT(x->live_bytes + x->free_bytes == x->reserved_bytes);
    ASSERT(x->split_bytes + x->whole_bytes == x->free_bytes);
    ASSERT(x->largest_free_bytes <= x->free_bytes);
}

static void check_device(const struct study_device *d)
{
    const struct walk *w = &d->walk;
    int64_t sum = 0;
    ASSERT(w->start_bytes <= w->peak_bytes && w->end_bytes <= w->peak_bytes);
    for (uint32_t i = 0; i < d->holders.rows_n; i++)
        sum += d->holders.rows[i].bytes;
    ASSERT(sum == d->holders.live_bytes);
    ASSERT(d->growth.rows_n == 0 || d->growth.by);
    check_layout(&d->at);
    check_layout(&d->end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct snapshot *s = NULL;
    struct snapshot_options options = {.memory_bytes = 256 << 20};
    struct study x;
    struct str out;
    if (snapshot_read_bytes(data, size, "fuzz", &options, &s, &e) != ST_OK)
        return 0;
    study_init(&x, s, NULL);
    for (int i = 0; i < x.devices_n; i++)
        check_device(&x.devices[i]);
    json_t *d = snapshot_report_document(&x);
    str_init(&out);
    report_text(d, &out);
    snapshot_page(&x, d, "fuzz", &out);
    ASSERT(out.n > 0);
    str_release(&out);
    json_decref(d);
    json_decref(diff_document(&x, &x));
    study_release(&x);
    snapshot_free(s);
    return 0;
}
