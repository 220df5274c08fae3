/* cmd_nodes.c - `snug nodes`: the table of node types. */
#include "base/mem.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "mem/device.h"

static enum status find(const char *name, const struct node_type **t, struct err *e)
{
    *t = node_type_find(name);
    if (*t)
        return ST_OK;
    const char *near = node_type_nearest(name);
    (void)err_set(e, ST_NOT_FOUND, "there is no node type \"%s\"", name);
    if (near)
        err_hint(e, "did you mean %s? `snug nodes` lists them all", near);
    else
        err_hint(e, "`snug nodes` lists them all");
    return ST_NOT_FOUND;
}

/* D1: what a parameter `device` offers on this machine; null where cards cannot be told. */
static json_t *device_menu(void)
{
    struct devices *devices = mem_alloc(sizeof *devices);
    struct err ignored = {0};
    json_t *menu = json_null();
    if (devices_open(devices, &ignored) == ST_OK) {
        menu = devices_menu(devices, false);
        devices_close(devices);
    }
    mem_free(devices);
    return menu;
}

int cmd_nodes(const struct args *a)
{
    struct err e = {0};
    const struct node_type *t = NULL;
    json_t *d = json_object();
    struct str out;
    str_init(&out);
    enum status st = a->n_arguments ? find(a->argument[0], &t, &e) : ST_OK;
    if (t) {
        json_put(d, "node", node_type_json(t));
        node_type_text(t, &out);
    } else if (st == ST_OK) {
        json_put(d, "nodes", node_table_json());
        node_table_text(&out);
    }
    int rc = 0;
    if (!a->json && st == ST_OK) {
        rc = answer_text(out.data);
        json_decref(d);
    } else {
        if (st == ST_OK)
            json_put(d, "device_menu", device_menu());
        rc = answer_end(a->json, st, &e, d);
    }
    str_release(&out);
    return rc;
}
