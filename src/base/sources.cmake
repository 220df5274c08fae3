set(SOURCES err.c mem.c str.c rng.c log.c env.c json.c config.c shared.c client.c client_call.c process.c process_start.c)
set(TESTS base_test.c client_test.c)
set(LIBS PkgConfig::JANSSON PkgConfig::CURL)
