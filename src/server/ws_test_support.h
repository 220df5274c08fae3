/* ws_test_support.h - for tests and the fuzz target: runs that are a list in memory. */
#ifndef SERVER_WS_TEST_SUPPORT_H
#define SERVER_WS_TEST_SUPPORT_H

#include "server/ws_talk.h"

enum { FAKE_RUNS = 8, FAKE_FRAMES = 4096 };

struct fake {
    int n_runs;
    struct fake_run {
        char id[33];
        json_t *events; /* [{cursor, type, payload}] */
        bool cancelled, ended;
        json_t *graph, *options;
        bool replace;
    } run[FAKE_RUNS];
    char alias[129], alias_run[33], cleared[129];
    const char *refuse; /* submissions get this error */
    json_t *frames;     /* what the talk said */
    struct ws_runs runs;
};
void fake_init(struct fake *f);
void fake_release(struct fake *f);
void fake_event(struct fake *f, int run, const char *type, json_t *payload); /* takes payload */
/* For ws_talk_init. */
void fake_send(void *fake, json_t *frame);

#endif
