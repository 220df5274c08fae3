set(SOURCES err.c mem.c str.c rng.c log.c env.c json.c document.c config.c shared.c version.c client.c client_call.c process.c process_start.c)
set(TESTS base_test.c client_test.c process_test.c)
set(LIBS PkgConfig::JANSSON PkgConfig::CURL)
execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} rev-parse --short=12 HEAD
    OUTPUT_VARIABLE SNUG_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(SNUG_COMMIT)
    set_source_files_properties(${dir}/version.c PROPERTIES
        COMPILE_DEFINITIONS SNUG_COMMIT="${SNUG_COMMIT}")
endif()
