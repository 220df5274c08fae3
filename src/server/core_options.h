/* core_options.h - a run's `options` as submitted, checked against core_options.def. */
#ifndef SERVER_CORE_OPTIONS_H
#define SERVER_CORE_OPTIONS_H

#include "base/json.h"

enum { CARD_SET_MAX = 16 }; /* devices of one run */

/* options.target (R4). Texts are borrowed from the document. */
struct run_target {
    const char *worker; /* "local", "any" or a name */
    const char *devices[CARD_SET_MAX];
    int n_devices;        /* 0: none given */
    int64_t memory_bytes; /* per card; 0: none given */
    bool estimate;        /* memory_source: "estimate" */
    bool wait, wait_given;
    const char *pool; /* of one-shot workers; "" any pool; NULL: none */
};
struct run_options {
    struct run_target target;
    const char *device;             /* NULL: not given */
    const char *tab;                /* graph_id; "" */
    const char *resume, *graph_dir; /* "" */
    double timeout_s;
    bool interactive, record_outputs;
};

/* `options` may be NULL. ST_INVALID names the key and what it may be; a closed set. */
enum status
run_options_read(const json_t *options, struct run_options *out, struct err *e) NODISCARD;

/* "cuda:2" -> "cuda" and 2; "cuda" -> "cuda" and -1. False: neither cpu, cuda, cuda:N, mps nor
 * mps:N. */
bool device_name_split(const char *device, char kind[8], int *index);

#endif
