/* placement_limits.c - SNUG_RUN_QUEUE_MAX_CONCURRENT: how many runs a card takes at a time (R8). */
#include "server/placement_int.h"

#include <string.h>

struct limit {
    char *worker, *device; /* "local": this server */
    int64_t n;
};
struct place_limits {
    VEC(struct limit) entries;
    int64_t gpu, cpu;
};

static int64_t at_least_one(int64_t n)
{
    return n < 1 ? 1 : n;
}

/* "cpu", "cuda:0", "mps:0"; "mps" is mps:0. */
static bool device_is_one(const char *name)
{
    const char *digits = str_starts(name, "cuda:")  ? name + 5
                         : str_starts(name, "mps:") ? name + 4
                                                    : NULL;
    if (!digits)
        return str_eq(name, "cpu") || str_eq(name, "mps");
    size_t n = strlen(digits);
    return n >= 1 && n <= 4 && strspn(digits, "0123456789") == n && (n == 1 || digits[0] != '0');
}

/* One entry without blanks around it, "gpu-box/cuda:1=3"; NULL, or what is wrong with it. */
static const char *entry_read(const char *text, struct limit *out)
{
    char name[512], number[32];
    const char *equals = strrchr(text, '=');
    if (!equals)
        return "has no \"=\"";
    if ((size_t)(equals - text) >= sizeof name)
        return "is too long";
    str_copy_trimmed(name, sizeof name, text, (size_t)(equals - text));
    str_copy_trimmed(number, sizeof number, equals + 1, strlen(equals + 1));
    int64_t n;
    if (!str_to_i64(number, &n))
        return "has no whole number behind \"=\"";
    char *slash = strrchr(name, '/');
    if (slash)
        *slash = 0;
    const char *worker = slash ? name : "local", *device = slash ? slash + 1 : name;
    if (!*worker)
        return "names no worker before \"/\"";
    if (!device_is_one(device))
        return "names no device (cpu, cuda:N, mps:N)";
    *out = (struct limit){
        mem_strdup(worker), mem_strdup(str_eq(device, "mps") ? "mps:0" : device), at_least_one(n)};
    return NULL;
}

static void entry_put(struct place_limits *l, struct limit entry)
{
    for (size_t i = 0; i < l->entries.n; i++) {
        struct limit *x = &l->entries.data[i];
        if (str_eq(x->worker, entry.worker) && str_eq(x->device, entry.device)) {
            x->n = entry.n;
            mem_free(entry.worker);
            mem_free(entry.device);
            return;
        }
    }
    vec_push(&l->entries, entry);
}

static void entry_parse(struct place_limits *l, const char *from, size_t n, struct str *warnings)
{
    char *text = mem_alloc(n + 1);
    str_copy_trimmed(text, n + 1, from, n);
    struct limit entry;
    if (*text) {
        const char *wrong = entry_read(text, &entry);
        if (!wrong)
            entry_put(l, entry);
        else if (warnings)
            str_printf(
                warnings, "run_queue_max_concurrent: \"%.200s\" %s; left out\n", text, wrong);
    }
    mem_free(text);
}

struct place_limits *
place_limits_new(const char *text, int64_t gpu, int64_t cpu, struct str *warnings)
{
    struct place_limits *l = mem_alloc(sizeof *l);
    l->gpu = at_least_one(gpu);
    l->cpu = at_least_one(cpu);
    while (text && *text) {
        size_t n = strcspn(text, ",");
        entry_parse(l, text, n, warnings);
        text += n + (text[n] == ',');
    }
    return l;
}

void place_limits_free(struct place_limits *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->entries.n; i++) {
        mem_free(l->entries.data[i].worker);
        mem_free(l->entries.data[i].device);
    }
    vec_release(&l->entries);
    mem_free(l);
}

bool limits_find(const struct place_limits *l, const char *worker, const char *device, int64_t *out)
{
    for (size_t i = 0; l && i < l->entries.n; i++) {
        const struct limit *x = &l->entries.data[i];
        if (str_eq(x->worker, worker) && str_eq(x->device, device)) {
            *out = x->n;
            return true;
        }
    }
    return false;
}

int64_t limits_default(const struct place_limits *l, const char *kind)
{
    bool cpu = str_eq(kind, "cpu");
    if (!l)
        return cpu ? 2 : 1;
    return cpu ? l->cpu : l->gpu;
}
