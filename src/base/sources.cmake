set(SOURCES err.c mem.c str.c rng.c log.c env.c json.c config.c shared.c)
set(TESTS base_test.c)
set(LIBS PkgConfig::JANSSON)
