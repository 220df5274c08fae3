set(SOURCES wire.c machine.c journal.c)
set(TESTS wire_test.c journal_test.c)
