/* core_ssh.c - workers that the server reaches through ssh, as the core keeps them. */
#include "server/core_int.h"

#include <string.h>

enum status core_ssh_add(
    struct core *c, const char *name, const char *host, const char *devices, struct instant now,
    struct err *e)
{
    struct worker *w = NULL;
    char id[ID_BYTES];
    if (strlen(host) + strlen(devices) + 2 > sizeof w->ssh_host)
        return err_set(e, ST_INVALID, "host and devices are too long");
    TRY(core_worker_add(c, name, "", now, id, e));
    core_enter(c, now);
    w = worker_by_name(c, name);
    enum status st = w ? tx_begin(c, e) : err_set(e, ST_NOT_FOUND, "the worker is gone");
    if (st == ST_OK) {
        /* One text: an alias has no blanks. */
        (void)snprintf(w->kind, sizeof w->kind, "ssh");
        (void)snprintf(
            w->ssh_host, sizeof w->ssh_host, "%s%s%s", host, *devices ? " " : "", devices);
        st = tx_end(c, worker_store(c, w, e), e);
    }
    core_leave(c);
    return st;
}

json_t *core_ssh_workers(struct core *c)
{
    json_t *list = json_array();
    core_enter_read(c);
    for (size_t i = 0; i < c->workers.n; i++) {
        const struct worker *w = c->workers.data[i];
        if (!str_eq(w->kind, "ssh"))
            continue;
        size_t n = strcspn(w->ssh_host, " ");
        json_t *one = json_object();
        json_put_str(one, "name", w->name);
        json_put_str(one, "worker_id", w->worker_id);
        json_put(one, "host", json_stringn(w->ssh_host, n));
        json_put_str(one, "devices", w->ssh_host[n] ? w->ssh_host + n + 1 : "");
        json_put_bool(one, "disabled", w->disabled);
        (void)json_array_append_new(list, one);
    }
    core_leave(c);
    return list;
}
