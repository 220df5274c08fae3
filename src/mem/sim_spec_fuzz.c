/* sim_spec_fuzz.c - descriptions of simulated cards: whatever is read holds what sim.h says. */
#include "mem/sim.h"

#include "base/mem.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct sim_spec s[SIM_CARDS_MAX];
    struct err e;
    int n;
    char *text = mem_alloc(size + 1);
    memcpy(text, data, size);
    if (sim_specs_parse(text, "text", s, &n, &e) == ST_OK)
        for (int i = 0; i < n; i++) {
            ASSERT(s[i].name[0] && s[i].uuid[0] && !strchr(s[i].uuid, '/'));
            ASSERT(s[i].capacity_bytes > 0 && s[i].context_bytes >= 0 && s[i].others_bytes >= 0);
            ASSERT(s[i].context_bytes <= s[i].capacity_bytes && s[i].compute_capability >= 10);
        }
    mem_free(text);
    return 0;
}
