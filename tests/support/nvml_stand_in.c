/* nvml_stand_in.c - a libnvidia-ml.so.1 for tests: one or two cards that are not there.
 *
 * Environment: NVML_STAND_IN_CARDS (default 1), NVML_STAND_IN_FAIL=<entry> makes one entry answer
 * an error. Layouts as in mem/nvml.h. */
#include "mem/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY __attribute__((visibility("default")))

#define X(field, symbol, parameters) ENTRY int stand_in_##field parameters __asm__(symbol);
NVML_ENTRIES(X)
#undef X

static int answer(const char *entry)
{
    const char *fail = getenv("NVML_STAND_IN_FAIL");
    return fail && strcmp(fail, entry) == 0 ? 999 : 0;
}

int stand_in_init(void)
{
    return answer("init");
}

int stand_in_shutdown(void)
{
    return answer("shutdown");
}

int stand_in_driver(char *out, unsigned cap)
{
    (void)snprintf(out, cap, "550.54.15");
    return answer("driver");
}

int stand_in_count(unsigned *n)
{
    const char *cards = getenv("NVML_STAND_IN_CARDS");
    *n = cards ? (unsigned)strtoul(cards, NULL, 10) : 1;
    return answer("count");
}

int stand_in_handle(unsigned i, void **handle)
{
    static char card[64];
    *handle = &card[i % 64];
    return answer("handle");
}

int stand_in_name(void *handle, char *out, unsigned cap)
{
    (void)handle;
    (void)snprintf(out, cap, "Stand-in H200");
    return answer("name");
}

int stand_in_uuid(void *handle, char *out, unsigned cap)
{
    (void)snprintf(out, cap, "GPU-stand-in-%d", (int)((uintptr_t)handle % 64));
    return answer("uuid");
}

int stand_in_memory(void *handle, struct nvml_memory *out)
{
    (void)handle;
    *out = (struct nvml_memory){.total = 139ull << 30, .free = 100ull << 30, .used = 39ull << 30};
    return answer("memory");
}

int stand_in_capability(void *handle, int *major, int *minor)
{
    (void)handle;
    *major = 9;
    *minor = 0;
    return answer("capability");
}

int stand_in_processes(void *handle, unsigned *n, struct nvml_process *out)
{
    (void)handle;
    out[0] = (struct nvml_process){.pid = 4711, .used = 39ull << 30};
    *n = 1;
    return answer("processes");
}
