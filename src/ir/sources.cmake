set(SOURCES dtype.c tensor.c)
set(TESTS)
