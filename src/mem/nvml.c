/* nvml.c - cards, memory and processes as NVIDIA's management library tells them. */
#include "mem/nvml.h"

#include "base/mem.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool nvml_load(const char *path, struct nvml_api *out)
{
    *out = (struct nvml_api){
        .library = dlopen(path ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!out->library)
        return false;
    bool whole = true;
    void *entry;
    /* ISO C has no way from an object pointer to a function pointer but through memory. */
#define X(field, symbol, parameters)                                                               \
    entry = dlsym(out->library, symbol);                                                           \
    memcpy(&out->field, &entry, sizeof entry);                                                     \
    whole = whole && entry;
    NVML_ENTRIES(X)
#undef X
    /* Old drivers have no list of processes in this form: then there is none. */
    whole = whole || (out->init && out->shutdown && out->count && out->handle && out->name &&
                      out->uuid && out->memory && out->capability && out->driver);
    if (!whole)
        nvml_unload(out);
    return whole;
}

void nvml_unload(struct nvml_api *api)
{
    if (api->library)
        (void)dlclose(api->library);
    *api = (struct nvml_api){0};
}

/* A card's context in the list. */
struct card {
    const struct nvml_api *api;
    void *handle;
};

static enum status card_memory(struct device *d, struct device_memory *out, struct err *e)
{
    struct card *c = d->ctx;
    struct nvml_memory m;
    if (c->api->memory(c->handle, &m) != 0)
        return err_set(e, ST_IO, "the driver does not tell the memory of \"%s\"", d->id);
    *out = (struct device_memory){(int64_t)m.total, (int64_t)m.free, -1};
    return ST_OK;
}

static size_t card_holders(struct device *d, struct device_holder *out, size_t cap)
{
    struct card *c = d->ctx;
    struct nvml_process list[DEVICE_HOLDERS_MAX];
    unsigned n = DEVICE_HOLDERS_MAX;
    if (!c->api->processes || c->api->processes(c->handle, &n, list) != 0)
        return 0;
    size_t found = n < cap ? n : cap;
    for (size_t i = 0; i < found; i++)
        out[i] = (struct device_holder){
            .pid = list[i].pid,
            .held_bytes = list[i].used == ~0ull ? -1 : (int64_t)list[i].used,
            .context_bytes = -1,
            .own = list[i].pid == (unsigned)getpid()};
    return found;
}

static void card_close(struct device *d)
{
    mem_free(d->ctx);
    d->ctx = NULL;
}

static const struct device_ops ops = {
    .name = "nvml", .memory = card_memory, .holders = card_holders, .close = card_close};

static bool add_card(const struct nvml_api *api, unsigned i, struct devices *d)
{
    struct device *card = &d->list[d->n];
    struct nvml_memory m;
    void *handle;
    int major = 0, minor = 0;
    *card = (struct device){
        .kind = DEVICE_CUDA, .index = d->cards_n, .capacity_bytes = -1, .ops = &ops};
    if (api->handle(i, &handle) != 0 || api->name(handle, card->name, sizeof card->name) != 0)
        return false;
    card->name[sizeof card->name - 1] = 0;
    (void)snprintf(card->id, sizeof card->id, "cuda:%d", card->index);
    if (api->uuid(handle, card->uuid, sizeof card->uuid) != 0)
        card->uuid[0] = 0;
    if (api->memory(handle, &m) == 0)
        card->capacity_bytes = (int64_t)m.total;
    if (api->capability(handle, &major, &minor) == 0)
        card->compute_capability = 10 * major + minor;
    struct card *c = mem_alloc(sizeof *c);
    *c = (struct card){api, handle};
    card->ctx = c;
    d->n++;
    d->cards_n++;
    return true;
}

int nvml_list(const struct nvml_api *api, struct devices *d)
{
    unsigned n = 0;
    int before = d->cards_n;
    if (api->init() != 0)
        return 0;
    if (api->driver(d->driver, sizeof d->driver) != 0)
        d->driver[0] = 0;
    if (api->count(&n) != 0)
        n = 0;
    for (unsigned i = 0; i < n && d->n < DEVICES_MAX; i++)
        (void)add_card(api, i, d);
    return d->cards_n - before;
}
