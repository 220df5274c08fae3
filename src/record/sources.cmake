set(SOURCES summary.c outputs.c outputs_read.c outputs_stats.c tensorboard.c)
set(TESTS outputs_test.c tensorboard_test.c)
set(FUZZ outputs_fuzz.c)
