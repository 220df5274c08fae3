set(SOURCES snapshot.c snapshot_input.c snapshot_build.c snapshot_rows.c snapshot_pickle.c snapshot_json.c snapshot_finish.c snapshot_lives.c snapshot_check.c snapshot_read.c)
set(TESTS snapshot_test.c)
set(FUZZ snapshot_fuzz.c)
