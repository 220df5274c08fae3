set(SOURCES
    aliases.c ws.c ws_frames.c ws_link.c ws_talk.c ws_test_support.c)
set(TESTS
    ws_test.c)
set(FUZZ
    ws_fuzz.c)
set(LIBS PkgConfig::JANSSON PkgConfig::MICROHTTPD PkgConfig::SQLITE PkgConfig::CURL PkgConfig::GNUTLS ${WSLAY_LIBRARY})
