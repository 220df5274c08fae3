set(SOURCES child.c work.c events.c entries.c series.c say.c)
set(TESTS child_test.c)
