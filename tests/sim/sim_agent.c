/* sim_agent.c - machines of the simulation: an agent that talks, supervisors whose journals outlive
 * it, a lease that ends what runs. */
#include "sim.h"

#include "wire/wire.h"

#include <string.h>

/* ---- processes and journals ---- */

static void journal(struct sim_process *p, const char *type, json_t *payload)
{
    json_t *line = json_object();
    json_put_str(line, "type", type);
    json_put(line, "payload", payload);
    vec_push(&p->journal, line);
}

static void journal_end(struct sim_process *p, const char *status, const char *cause, json_t *peaks)
{
    json_t *end = json_pack(
        "{s:s,s:s,s:s,s:i}", "status", status, "cause", cause, "error",
        strcmp(status, "failed") == 0 ? "it broke" : "", "exit_code", 0);
    json_put(end, "peaks", peaks ? peaks : json_array());
    journal(p, "ended", end);
    p->ended = true;
}

static void
note_end(struct sim *s, const struct sim_machine *m, const struct sim_process *p, const char *how)
{
    sim_note(
        s, json_pack(
               "{s:s,s:s,s:s,s:I,s:i,s:s}", "e", "gone", "worker", m->name, "run_id", p->run_id,
               "epoch", (json_int_t)p->epoch, "lines", p->lines, "how", how));
}

/* The last process of the tree is gone, and the supervisor has written so. */
static void process_end(
    struct sim *s, struct sim_machine *m, struct sim_process *p, const char *status,
    const char *cause, json_t *peaks)
{
    if (p->alive)
        note_end(s, m, p, cause);
    p->alive = false;
    if (!p->ended)
        journal_end(p, status, cause, peaks);
    else
        json_decref(peaks);
}

static void process_free(struct sim_process *p)
{
    for (size_t i = 0; i < p->journal.n; i++)
        json_decref(p->journal.data[i]);
    vec_release(&p->journal);
    mem_free(p);
}

static void process_forget(struct sim *s, struct sim_machine *m, const char *run_id)
{
    for (size_t i = 0; i < m->processes.n;) {
        struct sim_process *p = m->processes.data[i];
        if (strcmp(p->run_id, run_id) != 0) {
            i++;
            continue;
        }
        if (p->alive)
            note_end(s, m, p, "forgotten");
        process_free(p);
        m->processes.data[i] = m->processes.data[--m->processes.n];
    }
}

void machine_free(struct sim_machine *m)
{
    for (size_t i = 0; i < m->processes.n; i++)
        process_free(m->processes.data[i]);
    vec_release(&m->processes);
}

static int device_card(const struct sim_machine *m, const char *name)
{
    for (int i = 0; i < m->n_devices; i++)
        if (strcmp(m->devices[i].name, name) == 0)
            return m->devices[i].card;
    return -1;
}

static void note_start(struct sim *s, const struct sim_machine *m, const struct sim_process *p)
{
    json_t *cards = json_array();
    for (int i = 0; i < p->n_cards; i++)
        json_array_append_new(
            cards, json_string(p->cards[i] < 0 ? "" : s->hosts[m->host].cards[p->cards[i]].uuid));
    sim_note(
        s, json_pack(
               "{s:s,s:s,s:s,s:I,s:o}", "e", "process", "worker", m->name, "run_id", p->run_id,
               "epoch", (json_int_t)p->epoch, "cards", cards));
}

static void process_begin(
    struct sim *s, struct sim_machine *m, const char *run_id, int64_t epoch, const json_t *body)
{
    struct sim_process *p = mem_alloc(sizeof *p);
    size_t i;
    json_t *d;
    (void)snprintf(p->run_id, sizeof p->run_id, "%s", run_id);
    p->epoch = epoch;
    p->budget_bytes = json_get_i64(body, "budget_bytes", 0);
    p->canvas = strcmp(json_get_str(body, "lane", ""), "interactive") == 0;
    json_array_foreach(json_object_get(body, "devices"), i, d) p->cards[p->n_cards++] =
        device_card(m, json_string_value(d));
    vec_push(&m->processes, p);
    p->next_ns = p->ends_ns = INT64_MAX;
    if (p->budget_bytes > 0 && !m->can_cap && sim_one_in(s, 2)) {
        journal_end(p, "failed", "cannot_cap", NULL);
        return;
    }
    if (sim_one_in(s, 25)) {
        journal_end(p, "failed", "could_not_start", NULL);
        return;
    }
    p->alive = true;
    p->stubborn = sim_one_in(s, 8);
    p->outcome = sim_one_in(s, 4) ? 1 : 0;
    int64_t life = (int64_t)(1 + sim_below(s, sim_one_in(s, 12) ? 400 : 40)) * SIM_SECOND;
    if (s->options.canary == CANARY_IGNORE_LEASE)
        life *= 20; /* so that many are alive when a lease ends */
    p->ends_ns = s->now_ns + life;
    p->next_ns = s->now_ns + life / 4;
    note_start(s, m, p);
    journal(p, "started", json_pack("{s:i}", "pid", 1));
}

static void process_line(struct sim *s, struct sim_process *p)
{
    char text[64];
    int64_t epoch = p->epoch;
    p->next_ns += 1 + (p->ends_ns - s->now_ns) / 3;
    if (p->lines >= 4) {
        p->next_ns = INT64_MAX;
        return;
    }
    p->lines++;
    if (s->options.canary == CANARY_EVENT_GAP && p->lines == 2) {
        s->planted = true;
        return;
    }
    if (s->options.canary == CANARY_OLD_EVENTS) {
        s->planted = true;
        epoch--;
    }
    (void)snprintf(text, sizeof text, "e%lld n%d", (long long)epoch, p->lines);
    journal(p, "log", json_pack("{s:s}", "text", text));
}

/* What its allocator measured, on the cards that have one. */
static json_t *some_peaks(struct sim *s, const struct sim_machine *m, const struct sim_process *p)
{
    json_t *peaks = json_array();
    for (int i = 0; i < p->n_cards; i++) {
        if (p->cards[i] < 0)
            continue;
        int64_t most = p->budget_bytes > 0 ? p->budget_bytes : 12 * SIM_GIB;
        json_array_append_new(
            peaks, json_pack(
                       "{s:s,s:I}", "device", "cuda:0", "bytes",
                       (json_int_t)(1 + most / 16 * (int64_t)(1 + sim_below(s, 15)))));
    }
    (void)m;
    return peaks;
}

static void process_lives(struct sim *s, struct sim_machine *m, struct sim_process *p)
{
    if (s->now_ns >= p->ends_ns) {
        if (p->stopping)
            process_end(s, m, p, "cancelled", "cancelled", NULL);
        else if (p->outcome)
            process_end(s, m, p, "failed", "graph_error", NULL);
        else
            process_end(s, m, p, "succeeded", "done", some_peaks(s, m, p));
    } else if (s->now_ns >= p->next_ns) {
        process_line(s, p);
    }
}

/* ---- what happens by itself ---- */

static void lease_ends(struct sim *s, struct sim_machine *m)
{
    m->lease_ns = 0;
    if (s->options.canary == CANARY_IGNORE_LEASE) {
        for (size_t i = 0; i < m->processes.n; i++)
            if (m->processes.data[i]->alive) {
                m->processes.data[i]->ends_ns = s->now_ns + 600 * SIM_SECOND;
                s->planted = true;
            }
        return;
    }
    for (size_t i = 0; i < m->processes.n; i++)
        process_end(s, m, m->processes.data[i], "interrupted", "agent_lost", NULL);
}

/* What died with the machine is written down by whoever comes first: here the new agent. */
static void agent_begins(struct sim *s, struct sim_machine *m)
{
    m->up = true;
    m->leaving = false;
    m->generation++;
    m->session[0] = 0;
    m->retry_ns = s->now_ns;
    memset(m->serial, 0, sizeof m->serial);
    for (size_t i = 0; i < m->processes.n; i++)
        if (!m->processes.data[i]->alive)
            process_end(s, m, m->processes.data[i], "interrupted", "child_lost", NULL);
}

void machine_kill_agent(struct sim *s, int machine, int64_t back_ns)
{
    struct sim_machine *m = &s->machines[machine];
    m->up = false;
    m->up_ns = back_ns;
    m->session[0] = 0;
    sim_note(s, json_pack("{s:s,s:s}", "e", "agent_killed", "worker", m->name));
}

void machine_crash(struct sim *s, int machine, int64_t back_ns)
{
    struct sim_machine *m = &s->machines[machine];
    for (size_t i = 0; i < m->processes.n; i++) {
        struct sim_process *p = m->processes.data[i];
        if (p->alive)
            note_end(s, m, p, "crash");
        p->alive = false;
        p->next_ns = p->ends_ns = INT64_MAX;
    }
    machine_kill_agent(s, machine, back_ns);
}

static bool has_news(const struct sim_machine *m)
{
    for (size_t i = 0; i < m->processes.n; i++)
        if ((int64_t)m->processes.data[i]->journal.n > m->processes.data[i]->acked)
            return true;
    return false;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t machine_next_ns(const struct sim *s, int machine)
{
    const struct sim_machine *m = &s->machines[machine];
    int64_t at = INT64_MAX;
    bool alive = false;
    for (size_t i = 0; i < m->processes.n; i++) {
        const struct sim_process *p = m->processes.data[i];
        if (!p->alive)
            continue;
        alive = true;
        at = earlier(at, earlier(p->next_ns, p->ends_ns));
    }
    if (alive && m->lease_ns)
        at = earlier(at, m->lease_ns);
    if (!m->up)
        return earlier(at, m->up_ns);
    if (!*m->session)
        return m->serial[CALL_CONNECT] ? at : earlier(at, m->retry_ns);
    if (!m->serial[CALL_ORDERS])
        at = earlier(at, m->retry_ns);
    if (!m->serial[CALL_REPORT])
        at = earlier(at, has_news(m) ? m->retry_ns : later(m->retry_ns, m->heartbeat_ns));
    return at;
}

void machine_lives(struct sim *s, int machine)
{
    struct sim_machine *m = &s->machines[machine];
    if (!m->up && s->now_ns >= m->up_ns)
        agent_begins(s, m);
    if (m->lease_ns && s->now_ns >= m->lease_ns)
        lease_ends(s, m);
    for (size_t i = 0; i < m->processes.n; i++)
        if (m->processes.data[i]->alive)
            process_lives(s, m, m->processes.data[i]);
    machine_step(s, machine);
}

/* ---- calls ---- */

json_t *machine_devices(struct sim *s, const struct sim_machine *m)
{
    json_t *list = json_array();
    for (int i = 0; i < m->n_devices; i++) {
        int k = m->devices[i].card;
        const struct sim_card *c = k < 0 ? NULL : &s->hosts[m->host].cards[k];
        int64_t used = c ? c->foreign_bytes : 0;
        for (int j = 0; c && j < s->n_machines; j++)
            for (size_t q = 0; q < s->machines[j].processes.n; q++) {
                const struct sim_process *p = s->machines[j].processes.data[q];
                for (int n = 0; s->machines[j].host == m->host && p->alive && n < p->n_cards; n++)
                    if (p->cards[n] == k)
                        used += p->budget_bytes > 0 ? p->budget_bytes : 2 * SIM_GIB;
            }
        int64_t total = c ? c->total_bytes : 0;
        json_array_append_new(
            list,
            json_pack(
                "{s:s,s:s,s:s,s:s,s:I,s:I}", "device", m->devices[i].name, "kind",
                c ? "cuda" : "cpu", "name", "card", "uuid", c ? c->uuid : "", "total_bytes",
                (json_int_t)total, "free_bytes", (json_int_t)(used < total ? total - used : 0)));
    }
    return list;
}

static int64_t small_delay(struct sim *s)
{
    return s->quiet || !sim_one_in(s, 40) ? (int64_t)sim_below(s, 30000000)
                                          : (int64_t)sim_below(s, 25) * SIM_SECOND;
}

static void call(struct sim *s, int machine, enum sim_call kind, json_t *body)
{
    struct sim_machine *m = &s->machines[machine];
    struct sim_item x = {
        .at_ns = s->now_ns + small_delay(s),
        .kind = ITEM_REQUEST,
        .call = kind,
        .machine = machine,
        .generation = m->generation,
        .serial = m->serial[kind] = ++s->serial,
        .sent_ns = s->now_ns,
        .body = body};
    sim_item(s, x);
    if (!s->quiet && (kind == CALL_REPORT || kind == CALL_ORDERS) && sim_one_in(s, 40)) {
        x.at_ns = s->now_ns + (int64_t)sim_below(s, 25) * SIM_SECOND;
        x.again = true;
        json_incref(body);
        sim_item(s, x);
    }
    sim_item(
        s, (struct sim_item){
               .at_ns = s->now_ns + 30 * SIM_SECOND,
               .kind = ITEM_TIMEOUT,
               .call = kind,
               .machine = machine,
               .generation = m->generation,
               .serial = x.serial});
}

static void call_connect(struct sim *s, int machine)
{
    struct sim_machine *m = &s->machines[machine];
    char instance[64];
    json_t *runs = json_array();
    for (size_t i = 0; i < m->processes.n; i++) {
        const struct sim_process *p = m->processes.data[i];
        json_array_append_new(
            runs, json_pack(
                      "{s:s,s:I,s:s,s:I}", "run_id", p->run_id, "epoch", (json_int_t)p->epoch,
                      "state", p->ended ? "ended" : "live", "sequence", (json_int_t)p->journal.n));
    }
    (void)snprintf(instance, sizeof instance, "%s-%d", m->name, m->generation);
    call(
        s, machine, CALL_CONNECT,
        json_pack(
            "{s:i,s:i,s:I,s:s,s:s,s:s,s:s,s:s,s:s,s:b,s:b,s:s,s:o,s:o}", "protocol", WIRE_PROTOCOL,
            "boot", machine + 1, "sent_ns", (json_int_t)s->now_ns, "version", "1.0", "name",
            m->name, "instance", instance, "hostname", m->name, "pool", m->pool, "secret",
            m->same_host ? "machine" : m->name, "one_shot", m->one_shot, "can_cap", m->can_cap,
            "nodes_hash", "hash", "devices", machine_devices(s, m), "runs", runs));
}

static void call_report(struct sim *s, int machine)
{
    struct sim_machine *m = &s->machines[machine];
    json_t *events = json_array();
    bool beat = s->now_ns >= m->heartbeat_ns;
    for (size_t i = 0; i < m->processes.n; i++) {
        const struct sim_process *p = m->processes.data[i];
        for (int64_t k = p->acked; k < (int64_t)p->journal.n; k++) {
            if (json_array_size(events) == WIRE_REPORT_MAX)
                break;
            json_t *ev = json_copy(p->journal.data[k]);
            json_put_str(ev, "run_id", p->run_id);
            json_put_i64(ev, "epoch", p->epoch);
            json_put_i64(ev, "sequence", k + 1);
            json_put_i64(ev, "time_us", s->wall_us);
            json_array_append_new(events, ev);
        }
    }
    json_t *body =
        json_pack("{s:s,s:o,s:b}", "session", m->session, "events", events, "heartbeat", beat);
    if (beat) {
        json_put(body, "devices", machine_devices(s, m));
        m->heartbeat_ns = s->now_ns + 10 * SIM_SECOND;
    }
    call(s, machine, CALL_REPORT, body);
}

void machine_step(struct sim *s, int machine)
{
    struct sim_machine *m = &s->machines[machine];
    if (!m->up || s->now_ns < m->retry_ns)
        return;
    if (!*m->session) {
        if (!m->serial[CALL_CONNECT])
            call_connect(s, machine);
        return;
    }
    if (!m->serial[CALL_ORDERS])
        call(
            s, machine, CALL_ORDERS,
            json_pack("{s:s,s:I}", "session", m->session, "after", (json_int_t)m->after));
    if (!m->serial[CALL_REPORT] && (has_news(m) || s->now_ns >= m->heartbeat_ns))
        call_report(s, machine);
    bool done = !m->processes.n;
    if (m->leaving && done && !m->serial[CALL_LEAVE])
        call(s, machine, CALL_LEAVE, json_pack("{s:s}", "session", m->session));
}

/* ---- answers ---- */

static struct sim_process *find(struct sim_machine *m, const char *run_id, int64_t epoch)
{
    for (size_t i = 0; i < m->processes.n; i++)
        if (strcmp(m->processes.data[i]->run_id, run_id) == 0 &&
            m->processes.data[i]->epoch == epoch)
            return m->processes.data[i];
    return NULL;
}

static void take_welcome(struct sim *s, struct sim_machine *m, const json_t *welcome)
{
    size_t i;
    json_t *v;
    (void)snprintf(m->session, sizeof m->session, "%s", json_get_str(welcome, "session", ""));
    m->after = 0;
    m->lease_s = json_get_f64(welcome, "lease_s", 0);
    m->heartbeat_ns = s->now_ns + 10 * SIM_SECOND;
    json_array_foreach(json_object_get(welcome, "runs"), i, v)
    {
        const char *run_id = json_get_str(v, "run_id", ""), *action = json_get_str(v, "action", "");
        struct sim_process *p = find(m, run_id, json_get_i64(v, "epoch", 0));
        if (strcmp(action, "forget") == 0)
            process_forget(s, m, run_id);
        else if (p)
            p->acked = json_get_i64(v, "sequence", 0);
    }
}

static void take_order(struct sim *s, struct sim_machine *m, const json_t *order)
{
    const char *type = json_get_str(order, "type", ""), *run_id = json_get_str(order, "run_id", "");
    int64_t epoch = json_get_i64(order, "epoch", 0);
    struct sim_process *p = find(m, run_id, epoch);
    if (strcmp(type, "start") == 0) {
        if (p && s->options.canary == CANARY_START_TWICE) {
            s->planted = true;
            p = NULL;
        }
        if (!p)
            process_begin(s, m, run_id, epoch, json_object_get(order, "body"));
        m->leaving = m->leaving || m->one_shot;
    } else if (strcmp(type, "stop") == 0 && p && p->alive && !p->stubborn) {
        p->stopping = true;
        p->ends_ns = earlier(p->ends_ns, s->now_ns + (int64_t)sim_below(s, 8) * SIM_SECOND);
    } else if (strcmp(type, "kill") == 0 && p) {
        process_end(s, m, p, "cancelled", "cancelled", NULL);
    } else if (strcmp(type, "forget") == 0) {
        process_forget(s, m, run_id);
    } else if (strcmp(type, "exit") == 0) {
        for (size_t i = 0; i < m->processes.n; i++)
            process_end(s, m, m->processes.data[i], "interrupted", "agent_stopped", NULL);
        m->leaving = true;
    }
}

static void take_orders(struct sim *s, struct sim_machine *m, const json_t *reply)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(reply, "orders"), i, one)
    {
        int64_t number = json_get_i64(one, "number", 0);
        if (number <= m->after && s->options.canary != CANARY_START_TWICE)
            continue;
        m->after = number;
        take_order(s, m, one);
        if (s->options.canary == CANARY_START_TWICE && sim_one_in(s, 10))
            take_order(s, m, one); /* as a careless agent does with an order that comes again */
    }
}

static void take_reply(struct sim *s, struct sim_machine *m, const json_t *reply)
{
    size_t i;
    json_t *one;
    for (i = 0; i < m->processes.n; i++) {
        struct sim_process *p = m->processes.data[i];
        json_t *last = json_object_get(json_object_get(reply, "sequences"), p->run_id);
        if (last)
            p->acked = json_integer_value(last);
    }
    json_array_foreach(json_object_get(reply, "forget"), i, one)
        process_forget(s, m, json_string_value(one));
}

/* What is on its way for the old session is not looked at: the next hello says what is here, so
 * nothing may begin behind its back. */
void machine_disconnect(struct sim_machine *m)
{
    m->session[0] = 0;
    m->serial[CALL_ORDERS] = m->serial[CALL_REPORT] = m->serial[CALL_LEAVE] = 0;
}

void machine_answer(struct sim *s, const struct sim_item *x)
{
    struct sim_machine *m = &s->machines[x->machine];
    m->serial[x->call] = 0;
    if (x->status != ST_OK) {
        if (x->status == ST_GONE || x->call == CALL_ORDERS)
            machine_disconnect(m);
        m->retry_ns =
            s->now_ns + (x->status == ST_GONE ? 0 : (int64_t)(1 + sim_below(s, 4)) * SIM_SECOND);
        machine_step(s, x->machine);
        return;
    }
    if (x->call == CALL_CONNECT)
        take_welcome(s, m, x->body);
    /* The lease runs from when the question was sent: the answer may have been on its way. */
    m->lease_ns = later(m->lease_ns, x->sent_ns + (int64_t)(m->lease_s * 1e9));
    if (x->call == CALL_ORDERS)
        take_orders(s, m, x->body);
    else if (x->call == CALL_REPORT)
        take_reply(s, m, x->body);
    else if (x->call == CALL_LEAVE) {
        m->up = false;
        m->up_ns = INT64_MAX;
        m->session[0] = 0;
        return;
    }
    machine_step(s, x->machine);
}
