/* core_run.c - a run in memory: made from its row, queued, moved, ended, each with its events. */
#include "server/core_int.h"

#include <math.h>
#include <string.h>

/* ---- memory ---- */

/* Copies a text behind `*at` and moves it on. */
static const char *pack(char **at, const char *text)
{
    size_t n = strlen(text ? text : "") + 1;
    const char *to = memcpy(*at, text ? text : "", n);
    *at += n;
    return to;
}

static int count_cards(const char *wanted)
{
    int n = 0;
    for (const char *at = wanted; (at = strstr(at, "cuda")); at++)
        n++;
    return n;
}

struct run *core_run_new(const struct store_run *row)
{
    struct run *r = mem_alloc(sizeof *r);
    const char *const texts[] = {row->owner,  row->tab,    row->graph_key,
                                 row->target, row->wanted, row->pool};
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        bytes += strlen(texts[i] ? texts[i] : "") + 1;
    char *at = r->texts = mem_alloc(bytes);
    r->owner = pack(&at, row->owner);
    r->tab = pack(&at, row->tab);
    r->graph_key = pack(&at, row->graph_key);
    r->target = pack(&at, row->target);
    r->wanted = pack(&at, row->wanted);
    r->pool = pack(&at, row->pool);
    r->id = row->id;
    snprintf(r->run_id, sizeof r->run_id, "%s", row->run_id);
    r->sweep = row->sweep;
    r->study = row->study;
    r->timeout_s = row->timeout_s;
    r->n_cards = count_cards(r->wanted);
    r->command = str_eq(row->kind, "command");
    r->interactive = str_eq(row->lane, "interactive");
    r->wait = row->wait;
    r->now = (struct run_now){
        .state = row->state,
        .epoch = row->epoch,
        .sequence = row->sequence,
        .cursor = row->last_cursor,
        .budget_bytes = row->budget_bytes,
        .started_us = row->started_us,
        .source = row->budget_source,
        .raised = row->budget_raised,
        .cancel_asked = row->cancel_asked};
    snprintf(
        r->now.budget_run, sizeof r->now.budget_run, "%s", row->budget_run ? row->budget_run : "");
    snprintf(r->now.devices, sizeof r->now.devices, "%s", row->devices ? row->devices : "");
    return r;
}

void core_run_free(struct core *c, struct run *r)
{
    place_class_give(c->place, r->class);
    mem_free(r->uuids);
    mem_free(r->texts);
    mem_free(r->graph_text);
    mem_free(r);
}

/* ---- queue ---- */

void run_request(const struct run *r, char scratch[DEVICES_BYTES], struct place_request *out)
{
    *out = (struct place_request){
        .target = *r->pool                   ? PLACE_POOL
                  : str_eq(r->target, "any") ? PLACE_ANY
                                             : PLACE_NAMED,
        .worker = r->target,
        .pool = str_eq(r->pool, "*") ? "" : r->pool,
        .budget_bytes = r->now.budget_bytes,
        .raised = r->now.raised};
    snprintf(scratch, DEVICES_BYTES, "%s", r->wanted);
    for (char *save, *d = strtok_r(scratch, ",", &save); d && out->n_devices < PLACE_SET_MAX;
         d = strtok_r(NULL, ",", &save))
        out->devices[out->n_devices++] = d;
}

/* Runs whose budget nobody typed are found by their graph when a peak was measured. */
static struct run **bucket(struct core *c, const char *graph_key)
{
    return &c->by_key[hash_name(graph_key) % KEY_BUCKETS];
}

static void key_add(struct core *c, struct run *r)
{
    if (!*r->graph_key || r->now.source == BUDGET_GIVEN || !r->n_cards)
        return;
    struct run **head = bucket(c, r->graph_key);
    r->key_next = *head;
    if (*head)
        (*head)->key_link = &r->key_next;
    r->key_link = head;
    *head = r;
}

static void key_remove(struct run *r)
{
    if (!r->key_link)
        return;
    *r->key_link = r->key_next;
    if (r->key_next)
        r->key_next->key_link = r->key_link;
    r->key_link = NULL;
    r->key_next = NULL;
}

/* Its place is where its submission puts it, also when it comes back from an agent. */
static void into_queue(struct core *c, struct run *r)
{
    struct slot own = {.run = r, .class = r->class, .id = r->id};
    vec_push(&c->waiting, own);
    size_t i = c->waiting.n - 1;
    while (i && (!c->waiting.data[i - 1].run || c->waiting.data[i - 1].id > r->id)) {
        struct slot before = c->waiting.data[i - 1];
        c->waiting.data[i] = before;
        if (before.run)
            before.run->at = i;
        i--;
    }
    c->waiting.data[i] = own;
    r->at = i;
}

void run_enqueue(struct core *c, struct run *r)
{
    char scratch[DEVICES_BYTES];
    struct place_request q;
    if (r->interactive) {
        r->at = c->canvas.n;
        vec_push(&c->canvas, r);
        return;
    }
    run_request(r, scratch, &q);
    r->class = place_class_get(c->place, &q);
    into_queue(c, r);
    key_add(c, r);
}

void run_dequeue(struct core *c, struct run *r)
{
    if (r->interactive) {
        ASSERT(c->canvas.data[r->at] == r);
        c->canvas.data[r->at] = c->canvas.data[--c->canvas.n];
        c->canvas.data[r->at]->at = r->at;
        return;
    }
    ASSERT(r->class && c->waiting.data[r->at].run == r);
    place_class_give(c->place, r->class);
    r->class = NULL;
    key_remove(r);
    c->waiting.data[r->at].run = NULL;
    c->gaps++;
    if (c->gaps < 64 || c->gaps < c->waiting.n / 2)
        return;
    size_t n = 0;
    for (size_t i = 0; i < c->waiting.n; i++)
        if (c->waiting.data[i].run) {
            c->waiting.data[n] = c->waiting.data[i];
            c->waiting.data[n].run->at = n;
            n++;
        }
    c->waiting.n = n;
    c->gaps = 0;
}

void run_reclass(struct core *c, struct run *r)
{
    char scratch[DEVICES_BYTES];
    struct place_request q;
    run_request(r, scratch, &q);
    struct place_class *old = r->class;
    r->class = c->waiting.data[r->at].class = place_class_get(c->place, &q);
    place_class_give(c->place, old);
    core_dirty(c);
}

/* Of a card that the agent offers no more, as its hello was noted to hold it (core_agent.c). */
static const char *held_uuid(const struct worker *w, const char *device)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(w->hello, "held"), i, one)
    {
        if (str_eq(json_get_str(one, "device", ""), device))
            return json_get_str(one, "uuid", "");
    }
    return "";
}

/* Its cards stay the ones that it was given, whatever its agent offers later. */
static void keep_uuids(struct run *r)
{
    char list[DEVICES_BYTES];
    size_t n = 0;
    r->uuids = mem_alloc(PLACE_SET_MAX * sizeof *r->uuids);
    snprintf(list, sizeof list, "%s", r->now.devices);
    for (char *save, *d = strtok_r(list, ",", &save); d && n < PLACE_SET_MAX;
         d = strtok_r(NULL, ",", &save)) {
        const struct card *card = worker_card(r->now.worker, d);
        snprintf(r->uuids[n++], NAME_BYTES, "%s", card ? card->uuid : held_uuid(r->now.worker, d));
    }
}

void run_live_add(struct core *c, struct run *r)
{
    keep_uuids(r);
    r->at = c->live.n;
    r->in_live = true;
    vec_push(&c->live, r);
}

void run_live_remove(struct core *c, struct run *r)
{
    ASSERT(c->live.data[r->at] == r);
    c->live.data[r->at] = c->live.data[--c->live.n];
    c->live.data[r->at]->at = r->at;
    r->in_live = false;
    mem_free(r->uuids);
    r->uuids = NULL;
}

/* ---- events ---- */

enum status core_run_event(
    struct core *c, struct run *r, const char *type, json_t *payload, int64_t time_us,
    struct err *e)
{
    run_touch(c, r);
    json_t *capped = payload_capped(payload, c->config.payload_cap_bytes);
    char *text = json_text(capped, false);
    enum status st = store_event_add(
        c->store, r->id,
        &(struct store_event){
            .cursor = r->now.cursor + 1, .type = type, .payload = text, .time_us = time_us},
        e);
    if (st == ST_OK)
        r->now.cursor++;
    mem_free(text);
    json_decref(capped);
    json_decref(payload);
    c->figures.events++;
    note(c, "run", r->run_id);
    return st;
}

enum status run_seen(struct core *c, struct run *r, struct err *e)
{
    return store_run_seen(c->store, r->id, r->now.sequence, r->now.cursor, e);
}

/* After a restart nobody remembers whether the log has its last event. */
static enum status know_whether_closed(struct core *c, struct run *r, struct err *e)
{
    if (!r->closed_unknown)
        return ST_OK;
    r->closed_unknown = false;
    if (!r->now.cursor || r->now.closed)
        return ST_OK;
    struct arena a;
    arena_init(&a);
    struct store_event *last;
    size_t n;
    enum status st =
        store_events_read(c->store, r->id, r->now.cursor - 1, 1, INT64_MAX, &a, &last, &n, e);
    if (st == ST_OK && n)
        r->now.closed = str_starts(last->type, "execution_") &&
                        !str_eq(last->type, event_name(EVENT_EXECUTION_START));
    arena_release(&a);
    return st;
}

/* The last public event, where the run's own process did not write it. */
static enum status
close_log(struct core *c, struct run *r, const struct run_outcome *o, struct err *e)
{
    TRY(know_whether_closed(c, r, e));
    if (r->now.closed)
        return ST_OK;
    json_t *payload = json_object();
    enum event_type type = EVENT_EXECUTION_COMPLETE;
    if (o->state == RUN_FAILED) {
        type = EVENT_EXECUTION_ERROR;
        json_put_str(payload, "error", o->error);
        json_put_str(payload, "code", cause_code(o->cause));
    } else if (o->state != RUN_SUCCEEDED) {
        type = EVENT_EXECUTION_STOPPED;
        json_put_str(payload, "reason", run_state_status(o->state));
    }
    TRY(core_run_event(c, r, event_name(type), payload, c->now.wall_us, e));
    r->now.closed = true;
    return ST_OK;
}

/* ---- ends ---- */

static char *document_text(const json_t *value)
{
    return value && !json_is_null(value) ? json_text(value, false) : NULL;
}

enum status run_finish(struct core *c, struct run *r, const struct run_outcome *o, struct err *e)
{
    run_touch(c, r);
    TRY(close_log(c, r, o, e));
    TRY(run_seen(c, r, e));
    struct store_end end = {
        .state = o->state,
        .cause = cause_code(o->cause),
        .error = o->error,
        .exit_code = -1,
        .time_us = c->now.wall_us};
    char *peaks = NULL, *facts = NULL, *detail = NULL, *result = NULL;
    if (o->end) {
        end.exit_code = o->end->exit_code;
        end.signal_number = o->end->signal;
        end.peaks = peaks = document_text(o->end->peaks);
        end.facts = facts = document_text(o->end->facts);
        end.detail = detail = document_text(o->end->detail);
        end.result = result = document_text(o->end->result);
    }
    enum status st = store_run_finish(c->store, r->id, r->now.epoch, &end, e);
    mem_free(peaks);
    mem_free(facts);
    mem_free(detail);
    mem_free(result);
    TRY(st);
    r->now.state = o->state;
    struct ending ending = {.run = r, .state = o->state, .cause = o->cause};
    vec_push(&c->endings, ending);
    note(c, "run", r->run_id); /* its log may be closed already: who waits learns the status */
    return ST_OK;
}

enum status run_stop(struct core *c, struct run *r, bool cancelled, struct err *e)
{
    struct run_outcome gone = {
        .state = cancelled ? RUN_CANCELLED : RUN_INTERRUPTED,
        .cause = cancelled ? CAUSE_CANCELLED : CAUSE_SERVER_STOPPED,
        .error = cancelled ? "" : "the server was stopped"};
    if (r->now.state == RUN_WAITING || (r->now.state == RUN_ASSIGNED && !r->handed))
        return run_finish(c, r, &gone, e);
    run_touch(c, r);
    if (cancelled && !r->now.cancel_asked) {
        TRY(store_run_cancel_asked(c->store, r->id, e));
        r->now.cancel_asked = true;
    }
    if (r->now.state != RUN_STOPPING) {
        TRY(store_run_stopping(c->store, r->id, r->now.epoch, e));
        r->now.state = RUN_STOPPING;
        r->kill_ns = c->now.now_ns + (int64_t)(c->config.stop_s * 1e9);
        order_later(c, ORDER_STOP, r);
    }
    note(c, "run", r->run_id);
    c->note_runs = true;
    return ST_OK;
}
