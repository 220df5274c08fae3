/* closed_config_fuzz.c - any bytes as a config.json: a refusal with words, or a model that can be
 * counted and, where it is small, estimated. The first byte says how the run is. */
#include "plan/closed_advice.h"
#include "plan/closed_form.h"

#include "base/err.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void estimate(const struct closed_model *m, uint8_t how)
{
    struct err e = {0};
    struct closed_run r;
    struct closed_estimate x;
    struct closed_lever levers[CLOSED_LEVERS_MAX];
    int n = 0;
    closed_run_defaults(&r);
    if (closed_framework_at(how & 15))
        closed_run_framework(&r, how & 15);
    r.seq = 64;
    r.method = (enum closed_method)((how >> 4) % 3);
    r.checkpointing = how & 64 ? CLOSED_BLOCKS : CLOSED_KEEP;
    r.attention = how & 128 ? CLOSED_PLAIN : CLOSED_FLASH;
    if (closed_estimate_make(m, &r, &x, &e) != ST_OK) {
        ASSERT(e.text[0]);
        return;
    }
    ASSERT(x.peak.bytes >= 0 && x.card_bytes >= x.peak.bytes);
    ASSERT(closed_advise(m, &r, 0, levers, &n, &e) == ST_OK);
    for (int i = 0; i < n; i++)
        ASSERT(levers[i].bytes < x.card_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct closed_model m;
    json_t *c = NULL;
    if (size < 1)
        return 0;
    if (json_parse((const char *)data + 1, size - 1, "config.json", &c, &e) != ST_OK)
        return 0;
    if (closed_model_of(c, NULL, &m, &e) != ST_OK) {
        ASSERT(e.text[0]);
    } else {
        ASSERT(closed_model_parameters(&m) >= 0);
        ASSERT(closed_model_active(&m) <= closed_model_parameters(&m));
        if (m.layers <= 4)
            estimate(&m, data[0]);
    }
    json_decref(c);
    return 0;
}
