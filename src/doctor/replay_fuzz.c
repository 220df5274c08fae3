/* replay_fuzz.c - whatever the reader accepts must be played to its end, as recorded and under
 * other settings; the inputs are those of snapshot_fuzz. */
#include "doctor/replay.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void play(const struct snapshot *s, int device)
{
    static const char *const settings[] = {"", "expandable_segments:True", "max_split_size_mb:20"};
    struct err e = {0};
    struct mem_pool_conf conf;
    struct replay_exact x;
    struct replay_run run;
    replay_recorded_conf(s, &conf, NULL);
    if (replay_exact(s, device, &conf, &x, &e) == ST_OK)
        ASSERT(x.allocs_wrong_n <= x.allocs_n && x.ooms_wrong_n <= x.ooms_n);
    for (int i = 0; i < 3; i++) {
        struct replay_setting o = {
            .conf = &conf,
            .capacity_bytes = i == 0 ? 0 : (int64_t)64 << 20,
            .order = (enum mem_virtual_order)i,
            .stop_event = SNAP_NONE};
        mem_pool_conf_init(&conf);
        ASSERT(mem_pool_conf_parse(&conf, settings[i], NULL, &e) == ST_OK);
        ASSERT(replay_run(s, device, &o, true, &run, &e) == ST_OK);
        ASSERT(run.allocated_at_peak_bytes <= run.reserved_peak_bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct snapshot *s = NULL;
    struct snapshot_options options = {.memory_bytes = 256 << 20};
    if (snapshot_read_bytes(data, size, "fuzz", &options, &s, &e) != ST_OK)
        return 0;
    for (int d = 0; d < s->devices_n && d < 4; d++)
        play(s, d);
    snapshot_free(s);
    return 0;
}
