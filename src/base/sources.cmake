set(SOURCES err.c mem.c str.c rng.c log.c env.c json.c)
set(TESTS base_test.c)
set(LIBS PkgConfig::JANSSON)
