/* cmd_devices.c - `snug devices`: what there is to run on. */
#include "backends/backend.h"
#include "base/env.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "train/version.h"

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

static json_t *document(const struct machine *m)
{
    json_t *d = json_object(), *list = json_array(), *cpu = json_object();
    json_put_str(cpu, "id", "cpu");
    json_put_str(cpu, "kind", "cpu");
    json_put_str(cpu, "name", m->name);
    json_put_i64(cpu, "cores", m->cores);
    json_put_i64(cpu, "threads", cpu_threads());
    json_put_str(cpu, "isa", isa_name(cpu_isa()));
    json_put_i64(cpu, "memory_total_bytes", m->total_bytes);
    json_put_i64(cpu, "memory_available_bytes", m->available_bytes);
    json_put_i64(cpu, "capacity_bytes", host_capacity_bytes());
    (void)json_array_append_new(list, cpu);
    json_put(d, "devices", list);
    json_put(d, "libraries", cpu_libraries_json());
    json_put_str(d, "version", SNUG_VERSION);
    json_put_str(d, "commit", snug_commit());
    return d;
}

static void text(const struct machine *m, json_t *libraries, struct str *out)
{
    char total[32], available[32], capacity[32];
    const char *name;
    json_t *version;
    str_printf(out, "cpu    %s\n", m->name);
    str_printf(
        out, "       %d cores, %d threads, kernels for %s\n", m->cores, cpu_threads(),
        isa_name(cpu_isa()));
    str_printf(
        out, "       memory %s, %s available; a run may take %s\n",
        bytes_text(m->total_bytes, total, sizeof total),
        bytes_text(m->available_bytes, available, sizeof available),
        bytes_text(host_capacity_bytes(), capacity, sizeof capacity));
    str_printf(out, "\nsnug %s (%s)", SNUG_VERSION, snug_commit());
    json_object_foreach(libraries, name, version) str_printf(
        out, ", %s %s", name, json_is_string(version) ? json_string_value(version) : "?");
    str_add(out, "\n");
}

int cmd_devices(const struct args *a)
{
    struct machine m = look();
    json_t *d = document(&m);
    if (a->json)
        return answer_end(true, ST_OK, NULL, d);
    struct str out;
    str_init(&out);
    text(&m, json_object_get(d, "libraries"), &out);
    int rc = answer_text(out.data);
    str_release(&out);
    json_decref(d);
    return rc;
}
