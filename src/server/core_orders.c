/* core_orders.c - orders handed out: what a start says, read from the store without the lock. */
#include "server/core_int.h"

#include <string.h>

/* What a start needs, copied under the lock; the documents are made without it. */
struct handout {
    struct order_item item; /* body: a reference of its own */
    struct start_order start;
    struct run_now now;
    json_t *devices, *uuids;
    char *graph_text;
};

static void copy_start(struct core *c, struct handout *x, struct run *r)
{
    x->now = r->now;
    x->devices = devices_json(r->now.devices);
    x->uuids = json_array();
    size_t i;
    json_t *d;
    json_array_foreach(x->devices, i, d)
    {
        const struct card *card = worker_card(r->now.worker, json_string_value(d));
        json_array_append_new(x->uuids, json_string(card ? card->uuid : ""));
    }
    x->graph_text = r->graph_text ? mem_strdup(r->graph_text) : NULL;
    r->handed = true;
    (void)c;
}

const char *budget_source_text(enum budget_source s)
{
    static const char *const texts[] = {"", "given", "measured", "estimate"};
    return texts[s];
}

static json_t *parse_or_null(const char *text)
{
    json_t *out = NULL;
    struct err ignored;
    if (text && *text && json_parse(text, strlen(text), "document", &out, &ignored) == ST_OK)
        return out;
    return NULL;
}

static enum status write_start(struct core *c, const struct handout *x, json_t **out, struct err *e)
{
    struct arena a;
    struct store_run row;
    json_t *graph = NULL, *command = NULL, *options = NULL;
    arena_init(&a);
    enum status st = store_run_by_id(c->store, x->item.run, &a, &row, e);
    if (st == ST_OK && row.graph_id)
        st = graph_of_run(c, &row, x->graph_text, &graph, e);
    if (st == ST_OK) {
        command = parse_or_null(row.command);
        options = parse_or_null(row.options);
        struct start_order s = {
            .run_id = row.run_id,
            .epoch = x->item.epoch,
            .kind = row.kind,
            .name = row.name,
            .owner = row.owner,
            .lane = row.lane,
            .tab = row.tab,
            .graph = graph,
            .graph_dir = row.graph_dir,
            .graph_key = row.graph_key,
            .options = options,
            .argv = json_object_get(command, "argv"),
            .working_dir = json_get_str(command, "working_dir", ""),
            .environment = json_object_get(command, "environment"),
            .devices = x->devices,
            .uuids = x->uuids,
            .budget_bytes = x->now.budget_bytes,
            .budget_source = budget_source_text(x->now.source),
            .budget_run = x->now.budget_run,
            .timeout_s = row.timeout_s,
            .resume = row.resume};
        *out = wire_write(&wire_start_order, &s);
    }
    json_decref(graph);
    json_decref(command);
    json_decref(options);
    arena_release(&a);
    return st;
}

static enum status
write_orders(struct core *c, struct handout *x, size_t n, json_t *list, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        json_t *body = x[i].item.body;
        if (x[i].item.type == ORDER_START)
            TRY(write_start(c, &x[i], &body, e));
        json_array_append_new(
            list, wire_write(
                      &wire_order, &(struct order){
                                       .number = x[i].item.number,
                                       .type = order_name(x[i].item.type),
                                       .run_id = x[i].item.run_id,
                                       .epoch = x[i].item.epoch,
                                       .request = x[i].item.request,
                                       .body = body}));
        if (body != x[i].item.body)
            json_decref(body);
    }
    return ST_OK;
}

/* Takes what is to go out, at most so many at once. */
static size_t
take_orders(struct core *c, struct worker *w, int64_t after, struct handout *out, size_t max)
{
    size_t kept = 0, n = 0;
    for (size_t i = 0; i < w->orders.n; i++) {
        struct order_item *o = &w->orders.data[i];
        if (o->number <= after) {
            json_decref(o->body);
            continue;
        }
        if (n < max) {
            struct run *r = o->type == ORDER_START ? run_map_get(&c->runs, o->run_id) : NULL;
            out[n] = (struct handout){.item = *o};
            json_incref(out[n].item.body);
            if (r)
                copy_start(c, &out[n], r);
            n++;
        }
        w->orders.data[kept++] = *o;
    }
    w->orders.n = kept;
    return n;
}

enum status core_agent_orders(
    struct core *c, const struct actor *who, const char *session, int64_t after, struct instant now,
    json_t **orders, struct err *e)
{
    enum { MAX = 64 };
    struct worker *w;
    struct handout *x = mem_alloc(MAX * sizeof *x);
    size_t n = 0;
    core_enter(c, now);
    enum status st = session_find(c, who, session, &w, e);
    if (st == ST_OK)
        n = take_orders(c, w, after, x, MAX);
    core_leave(c);
    json_t *list = json_array();
    if (st == ST_OK)
        st = write_orders(c, x, n, list, e);
    for (size_t i = 0; i < n; i++) {
        json_decref(x[i].item.body);
        json_decref(x[i].devices);
        json_decref(x[i].uuids);
        mem_free(x[i].graph_text);
    }
    mem_free(x);
    if (st != ST_OK) {
        json_decref(list);
        return st;
    }
    *orders = json_object();
    json_put(*orders, "orders", list);
    return ST_OK;
}
