set(SOURCES wire.c journal.c)
set(TESTS wire_test.c journal_test.c)
