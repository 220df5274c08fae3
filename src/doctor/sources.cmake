set(SOURCES snapshot.c snapshot_input.c snapshot_build.c snapshot_rows.c snapshot_pickle.c snapshot_json.c snapshot_finish.c snapshot_lives.c snapshot_check.c snapshot_read.c replay_conf.c replay_start.c replay_ranges.c replay_exact.c replay_run.c replay_search.c)
set(TESTS snapshot_test.c replay_test.c)
set(FUZZ snapshot_fuzz.c replay_fuzz.c)
list(APPEND SOURCES
    amount.c finder.c message.c trace.c summary.c smi.c series.c text_line.c said.c text.c
    labels.c walk.c holders.c growth.c layout.c study.c snapshot_report.c snapshot_text.c timeline.c snapshot_page.c diff.c
    evidence.c evidence_snapshot.c verdict.c symptoms.c report.c doctor.c)
list(APPEND TESTS text_test.c corpus_test.c study_test.c)
list(APPEND FUZZ text_fuzz.c study_fuzz.c)
snug_embed(snapshot_page_html ${dir}/snapshot_page.html ${CMAKE_BINARY_DIR}/gen/doctor/snapshot_page_html.c)
set(GENERATED ${CMAKE_BINARY_DIR}/gen/doctor/snapshot_page_html.c)
