set(SOURCES wire.c)
set(TESTS wire_test.c)
