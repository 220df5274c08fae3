/* agent_report.c - the thread that forwards: events of all runs, answers, heartbeats; and looks
 * after the runs in between. */
#include "agent/agent_int.h"

#include "base/env.h"
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
#define SPACING_NS INT64_C(3000000) /* between two reports: what comes together goes together */
enum {
    SHARE = 128,              /* events of one run in a report, where others wait */
    REPORT_BYTES = 2 << 20,   /* a report is closed behind so much */
    EVENT_BYTES_MAX = 1 << 20 /* a larger event is sent without what makes it large */
};

struct reporter {
    struct agent *a;
    struct client *c;
    char session[65];
    int64_t beat_ns, look_ns, sent_ns,
        hold_ns;   /* next heartbeat, next look, last report, not before */
    size_t turn;   /* which run is read first */
    json_t *state; /* as it was last written */
};

void agent_kick(struct agent *a)
{
    uint64_t one = 1;
    (void)!write(a->kick, &one, sizeof one);
}

/* ---- gathering ---- */

/* A large event by itself would never pass the server's door. */
static json_t *slimmed(const struct run_event *ev, int64_t bytes)
{
    enum event_type type;
    if (!event_find(ev->type, &type) || type != EVENT_ENDED) {
        json_t *note = json_object();
        json_put_i64(note, "left_out_bytes", bytes);
        return note;
    }
    json_t *end = json_copy(ev->payload);
    (void)json_object_del(end, "result");
    (void)json_object_del(end, "facts");
    return end;
}

static json_t *event_message(const struct agent_run *r, const struct run_event *ev, int64_t bytes)
{
    json_t *m = json_object();
    json_put_str(m, "run_id", r->id);
    json_put_i64(m, "epoch", ev->epoch);
    json_put_i64(m, "sequence", ev->sequence);
    json_put_str(m, "type", ev->type);
    json_put(
        m, "payload",
        bytes > EVENT_BYTES_MAX ? slimmed(ev, bytes)
        : ev->payload           ? json_incref(ev->payload)
                                : json_object());
    json_put_i64(m, "time_us", ev->time_us);
    return m;
}

/* The end that is only in memory, once everything of the journal is sent. */
static void add_said_end(struct agent_run *r, json_t *events)
{
    struct run_event ev = {
        .epoch = r->epoch,
        .sequence = r->sent + 1,
        .type = event_name(EVENT_ENDED),
        .payload = r->said_end,
        .time_us = clock_wall_us()};
    if (!r->said_end || r->end_sent)
        return;
    (void)json_array_append_new(events, event_message(r, &ev, 0));
    r->sent++;
    r->end_sent = true;
}

static bool says_its_end(const char *type)
{
    return str_eq(type, event_name(EVENT_EXECUTION_COMPLETE)) ||
           str_eq(type, event_name(EVENT_EXECUTION_ERROR)) ||
           str_eq(type, event_name(EVENT_EXECUTION_STOPPED));
}

/* Adds what is new of one run; returns the bytes. */
static int64_t gather_run(struct agent *a, struct agent_run *r, json_t *events, size_t share)
{
    struct run_event ev;
    struct err ignored;
    json_t *doc;
    int64_t bytes = 0;
    if (r->reader.fd < 0 && journal_read_open(&r->reader, r->dir, &ignored) != ST_OK) {
        r->fresh = false;
        add_said_end(r, events);
        return 0;
    }
    for (size_t n = 0; n < share && bytes < REPORT_BYTES;) {
        int64_t before = r->reader.at;
        if (!journal_next(&r->reader, &doc, &ev, NULL)) {
            r->fresh = false;
            add_said_end(r, events);
            break;
        }
        if (ev.epoch == r->epoch && ev.sequence == r->sent + 1) {
            (void)json_array_append_new(events, event_message(r, &ev, r->reader.at - before));
            r->sent = ev.sequence;
            bool ended = str_eq(ev.type, event_name(EVENT_ENDED));
            r->end_sent = r->end_sent || ended;
            a->caches_news = a->caches_news || ended;
            r->ending = r->ending || says_its_end(ev.type);
            bytes += r->reader.at - before;
            n++;
        }
        json_decref(doc);
    }
    return bytes;
}

static json_t *gather(struct reporter *p)
{
    struct agent *a = p->a;
    json_t *events = json_array();
    int64_t bytes = 0;
    size_t waiting = 0;
    for (size_t i = 0; i < a->runs.n; i++)
        waiting += a->runs.data[i]->fresh;
    for (size_t i = 0; i < a->runs.n && bytes < REPORT_BYTES; i++) {
        struct agent_run *r = a->runs.data[(p->turn + i) % a->runs.n];
        size_t left = WIRE_REPORT_MAX - json_array_size(events);
        if (left <= 1) /* one for an end that is in memory */
            break;
        if (r->fresh && !r->forget)
            bytes += gather_run(a, r, events, waiting > 1 && left > SHARE ? SHARE : left - 1);
    }
    p->turn = a->runs.n ? (p->turn + 1) % a->runs.n : 0;
    return events;
}

/* ---- sending ---- */

/* It will be read and sent again from behind what the server has. */
static void again(struct agent_run *r)
{
    journal_read_close(&r->reader);
    r->sent = r->stored;
    r->end_sent = false;
    r->fresh = true;
}

static void take_stored(struct reporter *p, const json_t *sequences)
{
    struct agent *a = p->a;
    for (size_t i = 0; i < a->runs.n; i++) {
        struct agent_run *r = a->runs.data[i];
        const json_t *stored = json_object_get(sequences, r->id);
        if (json_is_integer(stored) && json_integer_value(stored) > r->stored)
            r->stored = json_integer_value(stored);
        if (r->stored < r->sent) {
            again(r);
            p->hold_ns = clock_ns() + SECOND / 5; /* it took some, or none: not in a loop */
        }
        if (r->end_sent && r->stored >= r->sent && !r->over) {
            r->over = true;
            r->alive = r->alive && run_folder_locked(r->dir);
            if (a->o->one_shot)
                (void)kill(getpid(), SIGTERM); /* its one run is told */
        }
    }
}

static void take_reply(struct reporter *p, const json_t *reply)
{
    struct report_reply r;
    struct err e;
    size_t i;
    json_t *one;
    if (wire_read(&wire_report_reply, reply, &r, &e) != ST_OK) {
        log_warn("the server's reply: %s", e.text);
        return;
    }
    take_stored(p, r.sequences);
    json_array_foreach(r.forget, i, one)
    {
        struct agent_run *run =
            json_is_string(one) ? agent_run_find(p->a, json_string_value(one)) : NULL;
        if (run) {
            log_warn("run %.8s is not this worker's any more", run->id);
            agent_run_forget(p->a, run);
        }
    }
}

static void lost(struct reporter *p, json_t *answers)
{
    struct agent *a = p->a;
    for (size_t i = 0; i < a->runs.n; i++)
        if (a->runs.data[i]->sent > a->runs.data[i]->stored)
            again(a->runs.data[i]);
    (void)json_array_extend(a->answers, answers);
    p->hold_ns = clock_ns() + SECOND / 2;
}

static void post(struct reporter *p, const struct report *report)
{
    struct agent *a = p->a;
    struct err e;
    json_t *doc = wire_write(&wire_report, report), *reply = NULL;
    int64_t sent_ns = clock_ns();
    enum status st = p->c ? ST_OK : agent_client(a, &p->c, &e);
    if (st == ST_OK)
        st = client_post(p->c, "/api/agent/report", doc, 15, &reply, &e);
    json_decref(doc);
    (void)pthread_mutex_lock(&a->lock);
    bool same = strcmp(p->session, a->session) == 0;
    if (st == ST_OK && same) {
        agent_heard(a, sent_ns);
        take_reply(p, reply);
    } else if (same) {
        lost(p, report->answers);
        if (st == ST_GONE || st == ST_DENIED)
            a->session[0] = 0;
    }
    (void)pthread_mutex_unlock(&a->lock);
    json_decref(reply);
    if (st != ST_OK) {
        client_close(p->c); /* its port and its token may be others by now */
        p->c = NULL;
        log_warn("a report did not arrive: %s", e.text);
    }
    p->sent_ns = clock_ns();
}

/* ---- the loop ---- */

static bool anything_fresh(const struct agent *a)
{
    for (size_t i = 0; i < a->runs.n; i++)
        if (a->runs.data[i]->fresh && !a->runs.data[i]->forget)
            return true;
    return json_array_size(a->answers) > 0;
}

static void send_report(struct reporter *p)
{
    struct agent *a = p->a;
    int64_t now = clock_ns();
    struct report r = {0};
    (void)pthread_mutex_lock(&a->lock);
    bool beat = now >= p->beat_ns || a->caches_news,
         go = *a->session && (beat || (now >= p->hold_ns && anything_fresh(a)));
    if (strcmp(p->session, a->session) != 0) {
        memcpy(p->session, a->session, sizeof p->session);
        client_close(p->c);
        p->c = NULL;
    }
    if (go) {
        r.events = gather(p);
        r.answers = a->answers;
        a->answers = json_array();
        beat = beat || a->caches_news; /* a run that ended may have recorded outputs */
        go = beat || json_array_size(r.events) > 0 || json_array_size(r.answers) > 0;
    }
    if (go && beat) {
        r.heartbeat = true;
        r.devices = agent_device_reports(a);
        r.caches = agent_warm_caches(a);
        a->caches_news = false;
        p->beat_ns = now + (int64_t)(a->heartbeat_s * (double)SECOND);
    }
    r.session = p->session;
    (void)pthread_mutex_unlock(&a->lock);
    if (go)
        post(p, &r);
    json_decref(r.events);
    json_decref(r.answers);
    json_decref(r.devices);
    json_decref(r.caches);
}

static void take_changes(struct agent *a)
{
    _Alignas(struct inotify_event) char buf[8192];
    for (;;) {
        ssize_t n = a->inotify >= 0 ? read(a->inotify, buf, sizeof buf) : -1;
        if (n <= 0)
            return;
        for (ssize_t at = 0; at < n;) {
            struct inotify_event ev;
            memcpy(&ev, buf + at, sizeof ev);
            at += (ssize_t)(sizeof ev + ev.len);
            for (size_t i = 0; i < a->runs.n; i++)
                if (a->runs.data[i]->watch == ev.wd || (ev.mask & IN_Q_OVERFLOW))
                    a->runs.data[i]->fresh = true;
        }
    }
}

static bool look_around(struct reporter *p)
{
    struct agent *a = p->a;
    if (clock_ns() < p->look_ns)
        return false;
    agent_runs_look(a);
    for (size_t i = 0; i < a->runs.n; i++) /* what no notice came of */
        a->runs.data[i]->fresh = a->runs.data[i]->fresh || !a->runs.data[i]->over;
    p->look_ns = clock_ns() + SECOND;
    return true;
}

/* For `snug agent status`, when it changed. */
static void write_state(struct reporter *p)
{
    struct agent *a = p->a;
    struct err ignored;
    (void)pthread_mutex_lock(&a->lock);
    json_t *doc = json_object();
    json_put_str(doc, "server", *a->session ? a->url : "");
    json_put_i64(doc, "runs", (int64_t)agent_runs_alive(a));
    (void)pthread_mutex_unlock(&a->lock);
    if (!json_equal(doc, p->state)) {
        char *text = json_text(doc, false);
        (void)!file_write(a->state_path, text, strlen(text), &ignored);
        mem_free(text);
        json_decref(p->state);
        p->state = json_incref(doc);
    }
    json_decref(doc);
}

/* Without a connection nothing can be sent: a heartbeat that is due waits for it. */
static int wait_ms(const struct reporter *p, bool connected, bool fresh)
{
    int64_t now = clock_ns(), next = p->look_ns;
    if (connected && p->beat_ns < next)
        next = p->beat_ns;
    if (fresh)
        next = p->hold_ns > p->sent_ns + SPACING_NS ? p->hold_ns : p->sent_ns + SPACING_NS;
    return next <= now ? 0 : (int)((next - now + 999999) / 1000000);
}

/* True once a second. */
static bool wait_for_changes(struct reporter *p)
{
    enum { FDS = 64 };
    struct agent *a = p->a;
    struct pollfd f[FDS];
    struct warm *warm[FDS];
    nfds_t n = 2;
    uint64_t count;
    f[0] = (struct pollfd){.fd = a->kick, .events = POLLIN};
    (void)pthread_mutex_lock(&a->lock);
    bool connected = *a->session, fresh = connected && anything_fresh(a);
    /* While a report is held back, what would ask for it can wait too. */
    f[1] = (struct pollfd){.fd = fresh ? -1 : a->inotify, .events = POLLIN};
    for (size_t i = 0; i < a->warms.n && n < FDS; i++) {
        warm[n] = a->warms.data[i];
        f[n++] = (struct pollfd){.fd = a->warms.data[i]->fd, .events = POLLIN};
    }
    (void)pthread_mutex_unlock(&a->lock);
    (void)poll(f, n, wait_ms(p, connected, fresh));
    if (f[0].revents)
        (void)!read(a->kick, &count, sizeof count);
    (void)pthread_mutex_lock(&a->lock);
    take_changes(a);
    for (nfds_t i = 2; i < n; i++)
        for (size_t k = 0; f[i].revents && k < a->warms.n; k++)
            if (a->warms.data[k] == warm[i])
                agent_warm_read(a, warm[i]);
    bool looked = look_around(p);
    (void)pthread_mutex_unlock(&a->lock);
    return looked;
}

void *agent_report_thread(void *agent)
{
    struct reporter p = {.a = agent};
    while (!p.a->quit) {
        bool looked = wait_for_changes(&p);
        send_report(&p);
        if (looked)
            write_state(&p);
    }
    json_decref(p.state);
    client_close(p.c);
    return NULL;
}
