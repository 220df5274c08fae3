/* agent_devices.c - what a worker offers: devices with their memory, and the machine they are in.
 */
#include "agent/agent_int.h"

#include "base/env.h"
#include "base/str.h"
#include "base/version.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Whether `device` is one of "a,b,c". */
static bool listed(const char *list, const char *device)
{
    size_t n = strlen(device);
    for (const char *at = list; at && *at; at += strcspn(at, ",")) {
        at += strspn(at, ", ");
        size_t length = strcspn(at, ", ");
        if (length == n && memcmp(at, device, n) == 0)
            return true;
        at += length;
    }
    return false;
}

struct device *agent_device(struct agent *a, const char *device)
{
    for (int i = 0; i < a->devices.n; i++)
        if (strcmp(a->devices.list[i].id, device) == 0 && agent_device_offered(a, device))
            return &a->devices.list[i];
    return NULL;
}

bool agent_device_offered(const struct agent *a, const char *device)
{
    for (int i = 0; i < a->devices.n; i++)
        if (strcmp(a->devices.list[i].id, device) == 0)
            return i == 0 || !a->o->devices || listed(a->o->devices, device);
    return false;
}

static json_t *report_of(struct device *d)
{
    struct device_memory m = {.total_bytes = -1, .free_bytes = -1};
    struct err ignored;
    struct device_report r = {
        .device = d->id,
        .kind = d->kind == DEVICE_CPU ? "cpu" : "cuda",
        .name = d->name,
        .uuid = d->uuid,
        .context_bytes = d->context_bytes > 0 ? d->context_bytes : 0,
    };
    if (d->kind == DEVICE_CPU) {
        r.total_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
        r.free_bytes = host_capacity_bytes();
    } else if (device_memory(d, &m, &ignored) == ST_OK) {
        r.total_bytes = m.total_bytes > 0 ? m.total_bytes : 0;
        r.free_bytes = m.free_bytes > 0 ? m.free_bytes : 0;
    }
    return wire_write(&wire_device_report, &r);
}

/* The CPU, then the cards in the order that --devices gives them. */
json_t *agent_device_reports(struct agent *a)
{
    json_t *list = json_array();
    (void)json_array_append_new(list, report_of(&a->devices.list[0]));
    if (!a->o->devices) {
        for (int i = 1; i < a->devices.n; i++)
            (void)json_array_append_new(list, report_of(&a->devices.list[i]));
        return list;
    }
    char name[32];
    for (const char *at = a->o->devices; *at; at += strcspn(at, ",")) {
        at += strspn(at, ", ");
        size_t n = strcspn(at, ", ");
        (void)snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : 0, at);
        struct device *d = agent_device(a, name);
        if (d && d != &a->devices.list[0])
            (void)json_array_append_new(list, report_of(d));
        at += n;
    }
    return list;
}

json_t *agent_environment(void)
{
    struct utsname u;
    json_t *doc = json_object(), *libraries = json_object();
    if (uname(&u) == 0) {
        char os[200];
        (void)snprintf(os, sizeof os, "%.60s %.100s", u.sysname, u.release);
        json_put_str(doc, "os", os);
        json_put_str(doc, "cpu", u.machine);
    }
    json_put_i64(doc, "threads", sysconf(_SC_NPROCESSORS_ONLN));
    json_put_i64(doc, "memory_bytes", (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    json_put_str(libraries, "snug", SNUG_VERSION);
    json_put(doc, "libraries", libraries);
    return doc;
}
