/* cmd_devices.c - `snug devices`: what there is to run on. */
#include "backends/backend.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/version.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "mem/device.h"
#include "train/precision.h"

#include <string.h>
#include <unistd.h>

struct machine {
    char name[128]; /* of the processor */
    int cores;
    int64_t total_bytes, available_bytes;
};

/* The text after "key :" of the first line that has it, in a file of /proc. */
static bool proc_value(const char *path, const char *key, char *out, size_t cap)
{
    char line[512];
    FILE *in = fopen(path, "r");
    bool found = false;
    while (in && !found && fgets(line, sizeof line, in)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0)
            continue;
        char *value = colon + 1 + strspn(colon + 1, " \t");
        value[strcspn(value, "\n")] = 0;
        (void)snprintf(out, cap, "%s", value);
        found = true;
    }
    if (in)
        (void)fclose(in);
    return found;
}

/* "123 kB" of /proc/meminfo in bytes; -1 where it cannot be read. */
static int64_t meminfo_bytes(const char *key)
{
    char value[64];
    int64_t kib;
    if (!proc_value("/proc/meminfo", key, value, sizeof value))
        return -1;
    value[strcspn(value, " ")] = 0;
    return str_to_i64(value, &kib) ? 1024 * kib : -1;
}

static struct machine look(void)
{
    struct machine m = {0};
    if (!proc_value("/proc/cpuinfo", "model name", m.name, sizeof m.name))
        (void)snprintf(m.name, sizeof m.name, "processor");
    m.cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    m.total_bytes = meminfo_bytes("MemTotal");
    m.available_bytes = meminfo_bytes("MemAvailable");
    return m;
}

static json_t *cpu_json(const struct machine *m)
{
    json_t *cpu = json_object();
    json_put_str(cpu, "id", "cpu");
    json_put_str(cpu, "kind", "cpu");
    json_put_str(cpu, "label", "CPU");
    json_put_str(cpu, "name", m->name);
    json_put_i64(cpu, "cores", m->cores);
    json_put_i64(cpu, "threads", cpu_threads());
    json_put_str(cpu, "isa", isa_name(cpu_isa()));
    json_put_i64(cpu, "memory_total_bytes", m->total_bytes);
    json_put_i64(cpu, "memory_available_bytes", m->available_bytes);
    json_put_i64(cpu, "capacity_bytes", host_capacity_bytes());
    return cpu;
}

static void put_known(json_t *o, const char *key, int64_t bytes)
{
    json_put(o, key, bytes >= 0 ? json_integer(bytes) : json_null());
}

static json_t *holders_json(struct device *d)
{
    static struct device_holder h[DEVICE_HOLDERS_MAX];
    json_t *list = json_array();
    size_t n = device_holders(d, h, DEVICE_HOLDERS_MAX);
    for (size_t i = 0; i < n; i++) {
        json_t *row = json_object();
        json_put_i64(row, "pid", h[i].pid);
        put_known(row, "held_bytes", h[i].held_bytes);
        put_known(row, "context_bytes", h[i].context_bytes);
        (void)json_array_append_new(list, row);
    }
    return list;
}

static json_t *card_json(struct device *d)
{
    json_t *o = json_object();
    struct device_memory m;
    struct err e = {0};
    char label[160];
    struct precision_device p = precision_cuda(d->id, d->compute_capability);
    device_label(d, label, sizeof label);
    json_put_str(o, "id", d->id);
    json_put_str(o, "kind", "cuda");
    json_put_str(o, "label", label);
    json_put_str(o, "name", d->name);
    json_put_str(o, "uuid", d->uuid);
    json_put_i64(o, "compute_capability", d->compute_capability);
    json_put_bool(o, "bf16", p.bf16);
    json_put_bool(o, "simulated", d->simulated);
    json_put_bool(o, "runs", d->runs);
    if (device_memory(d, &m, &e) != ST_OK) {
        m = (struct device_memory){d->capacity_bytes, -1, -1};
        json_put_str(o, "problem", e.text);
    }
    put_known(o, "memory_total_bytes", m.total_bytes);
    put_known(o, "memory_free_bytes", m.free_bytes);
    put_known(o, "others_bytes", m.others_bytes);
    put_known(o, "context_bytes", d->simulated ? d->context_bytes : -1);
    json_put(o, "holders", holders_json(d));
    return o;
}

static json_t *document(const struct machine *m, struct devices *devices)
{
    json_t *d = json_object(), *list = json_array();
    (void)json_array_append_new(list, cpu_json(m));
    for (int i = 1; i < devices->n; i++)
        (void)json_array_append_new(list, card_json(&devices->list[i]));
    json_put(d, "devices", list);
    json_put(d, "menu", devices_menu(devices, true));
    json_put_str(d, "driver", devices->driver[0] ? devices->driver : NULL);
    json_put(d, "libraries", cpu_libraries_json());
    json_put_str(d, "version", SNUG_VERSION);
    json_put_str(d, "commit", snug_commit());
    return d;
}

/* ---- text ---- */

static void cpu_text(const struct machine *m, struct str *out)
{
    char total[32], available[32], capacity[32];
    str_printf(out, "CPU\n       %s\n", m->name);
    str_printf(
        out, "       %d cores, %d threads, kernels for %s\n", m->cores, cpu_threads(),
        isa_name(cpu_isa()));
    str_printf(
        out, "       memory %s, %s available; a run may take %s\n",
        bytes_text(m->total_bytes, total, sizeof total),
        bytes_text(m->available_bytes, available, sizeof available),
        bytes_text(host_capacity_bytes(), capacity, sizeof capacity));
}

static void holder_rows(const json_t *card, struct str *out)
{
    size_t i;
    json_t *h;
    char held[32], context[32];
    json_array_foreach(json_object_get(card, "holders"), i, h)
    {
        int64_t bytes = json_get_i64(h, "held_bytes", -1),
                own = json_get_i64(h, "context_bytes", -1);
        str_printf(out, "       process %lld holds ", (long long)json_get_i64(h, "pid", 0));
        str_add(out, bytes >= 0 ? bytes_text(bytes, held, sizeof held) : "an unknown amount");
        if (own >= 0)
            str_printf(out, " and a context of %s", bytes_text(own, context, sizeof context));
        str_add(out, "\n");
    }
    int64_t others = json_get_i64(card, "others_bytes", 0);
    if (others > 0)
        str_printf(out, "       others hold %s\n", bytes_text(others, held, sizeof held));
}

static void card_text(const json_t *card, bool holders, struct str *out)
{
    char context[32];
    int cc = (int)json_get_i64(card, "compute_capability", 0);
    str_printf(
        out, "       %s, sm%d, %s", json_get_str(card, "name", ""), cc,
        json_get_bool(card, "bf16", false) ? "bf16 and fp16" : "fp16, no bf16");
    if (json_get_bool(card, "simulated", false))
        str_printf(
            out, "; simulated: computes on the CPU; a context takes %s",
            bytes_text(json_get_i64(card, "context_bytes", 0), context, sizeof context));
    else if (!json_get_bool(card, "runs", false))
        str_add(out, "; this build does not compute on it");
    str_printf(out, "\n       %s\n", json_get_str(card, "uuid", ""));
    const char *problem = json_get_str(card, "problem", NULL);
    if (problem)
        str_printf(out, "       memory cannot be read: %s\n", problem);
    if (holders)
        holder_rows(card, out);
}

/* Every line of the menu, and under each device what there is to know of it. */
static void
text(const struct machine *m, struct devices *devices, json_t *d, bool holders, struct str *out)
{
    const char *name;
    json_t *version, *row;
    json_t *cards = json_object_get(d, "devices");
    size_t i;
    json_array_foreach(json_object_get(d, "menu"), i, row)
    {
        const char *value = json_get_str(row, "value", "");
        bool one = devices->cards_n == 1;
        if (i == 0) {
            cpu_text(m, out);
            continue;
        }
        str_printf(out, "%s%s\n", i == 1 ? "\n" : "", json_get_str(row, "label", ""));
        if (one || i >= 2)
            card_text(json_array_get(cards, one ? 1 : i - 1), holders, out);
        else
            str_printf(out, "       \"%s\" is the current card, cuda:0\n", value);
    }
    str_printf(out, "\nsnug %s (%s)", SNUG_VERSION, snug_commit());
    if (devices->driver[0])
        str_printf(out, ", NVIDIA driver %s", devices->driver);
    json_object_foreach(json_object_get(d, "libraries"), name, version) str_printf(
        out, ", %s %s", name, json_is_string(version) ? json_string_value(version) : "?");
    str_add(out, "\n");
}

int cmd_devices(const struct args *a)
{
    struct machine m = look();
    struct devices *devices = mem_alloc(sizeof *devices);
    struct err e = {0};
    enum status st = devices_open(devices, &e);
    json_t *d = st == ST_OK ? document(&m, devices) : NULL;
    struct str out;
    int rc;
    str_init(&out);
    if (st != ST_OK || a->json) {
        rc = answer_end(a->json, st, &e, d);
    } else {
        text(&m, devices, d, a->option[OPTION_HOLDERS].given, &out);
        rc = answer_text(out.data);
        json_decref(d);
    }
    str_release(&out);
    devices_close(devices);
    mem_free(devices);
    return rc;
}
