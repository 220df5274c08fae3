/* snapshot.c - how fast a memory snapshot is read and diagnosed: `build/bench/snapshot FILE`. */
#include "base/env.h"
#include "doctor/snapshot_report.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    struct err e = {0};
    struct snapshot *s = NULL;
    if (argc != 2) {
        (void)fputs("usage: snapshot FILE\n", stderr);
        return 2;
    }
    int64_t begin = clock_ns();
    if (snapshot_read_file(argv[1], NULL, &s, &e) != ST_OK) {
        (void)fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    double seconds = (double)(clock_ns() - begin) * 1e-9;
    (void)printf(
        "%lld bytes, %u events, %u segments, %u blocks, %u lives, %u frames, %u stacks, %u texts\n",
        (long long)s->file_bytes, s->events_n, s->segments_n, s->blocks_n, s->lives_n, s->frames_n,
        s->stacks_n, s->texts_n);
    for (int i = 0; i < s->devices_n; i++)
        (void)printf(
            "device %d: reserved %lld, active %lld, requested %lld, largest free block %lld, "
            "%u lives began earlier (%lld bytes), %u events unmatched\n",
            i, (long long)s->devices[i].reserved_bytes, (long long)s->devices[i].active_bytes,
            (long long)s->devices[i].requested_bytes, (long long)s->devices[i].free_block_bytes_max,
            s->devices[i].earlier_n, (long long)s->devices[i].earlier_bytes,
            s->devices[i].unmatched_n);
    for (uint32_t i = 0; i < s->warnings_n && i < SNAP_WARNINGS_MAX; i++)
        (void)printf("warning: %s\n", s->warnings[i]);
    (void)printf(
        "read in %.3f s: %.1f MB/s, %.0f events/s; resident at most %.1f MB\n", seconds,
        (double)s->file_bytes / seconds * 1e-6, s->events_n / seconds,
        (double)process_rss_peak_bytes() * 1e-6);
    struct study x;
    begin = clock_ns();
    study_init(&x, s, NULL);
    json_t *d = snapshot_report_document(&x);
    seconds = (double)(clock_ns() - begin) * 1e-9;
    (void)printf(
        "diagnosed and replayed in %.3f s: %s, %.0f events/s; resident at most %.1f MB\n", seconds,
        json_get_str(d, "kind", ""), s->events_n / seconds,
        (double)process_rss_peak_bytes() * 1e-6);
    json_decref(d);
    study_release(&x);
    snapshot_free(s);
    return 0;
}
