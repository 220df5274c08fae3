/* docgen_wire.c - docs/wire.md from the tables of src/wire; what fields mean from the comments. */
#include "docgen_wire.h"

#include "wire/wire.h"

#include <string.h>

static const char intro[] =
    "# What server, agent and run child say\n"
    "\n"
    "Made by scripts/docs from src/wire; do not edit. It is for whoever writes another agent, or "
    "reads a\n"
    "run folder. How people use workers is in [workers.md](workers.md).\n"
    "\n"
    "Everything is JSON over HTTP(S), and every call goes out from the agent, which therefore "
    "works behind\n"
    "NAT. An agent shows its credential as `Authorization: Bearer snw_...` (one of the server's "
    "own machine\n"
    "the session token).\n"
    "\n"
    "    agent                                       server\n"
    "      POST /api/agent/connect   hello      ->     version, name, credential; runs it still "
    "has\n"
    "                                welcome    <-     session, lease, what becomes of each run\n"
    "      GET  /api/agent/orders?session&after&wait   waits up to 20 s; answers at once when "
    "there are orders\n"
    "      POST /api/agent/report    report     ->     heartbeat every 10 s; events of runs, at "
    "most 512\n"
    "                                reply      <-     what is stored; what is not theirs any "
    "more\n"
    "\n"
    "Each (run, epoch) is started at most once, each event (run, epoch, sequence) applied at most "
    "once. A\n"
    "session that the server does not know is answered with 410: the agent connects again and "
    "reports what\n"
    "it has. Without an answer for `lease_s` an agent kills its runs; the server waits longer "
    "before it\n"
    "calls them interrupted.\n";

static const char *kind_name(enum wire_kind k)
{
    switch (k) {
    case WIRE_TEXT:
        return "text";
    case WIRE_INTEGER:
        return "integer";
    case WIRE_NUMBER:
        return "number";
    case WIRE_FLAG:
        return "true, false";
    case WIRE_DOCUMENT:
        break;
    }
    return "JSON";
}

/* A comment's text in one line; "|" would end a cell. */
static void add_comment(struct str *out, const char *from, size_t n)
{
    bool blank = true;
    for (size_t i = 0; i < n; i++) {
        bool white = from[i] == ' ' || from[i] == '\n' || from[i] == '\t';
        if (white && blank)
            continue;
        str_add(out, from[i] == '|' ? "\\" : "");
        str_add_n(out, white ? " " : &from[i], 1);
        blank = white;
    }
    while (out->n && out->data[out->n - 1] == ' ')
        out->data[--out->n] = 0;
}

/* The comment on the line of FIELD, within the message's block. */
static bool add_meaning(struct str *out, const char *block, const char *field)
{
    char want[80];
    const char *end = strstr(block, "\nEND(");
    (void)snprintf(want, sizeof want, "(%s)", field);
    const char *at = strstr(block, want);
    if (!at || !end || at > end)
        return false;
    at += strlen(want);
    at += strspn(at, " \t");
    const char *close = strncmp(at, "/*", 2) == 0 ? strstr(at, "*/") : NULL;
    if (close)
        add_comment(out, at + 2, (size_t)(close - at - 2));
    return true;
}

static bool add_message(struct str *out, const struct wire_message *m, const char *messages)
{
    char want[80];
    (void)snprintf(want, sizeof want, "MESSAGE(%s,", m->name);
    const char *block = strstr(messages, want);
    if (!block)
        return false;
    str_printf(out, "\n### %s\n\n%s.\n\n|field|kind|meaning|\n|---|---|---|\n", m->name, m->about);
    for (size_t i = 0; i < m->n_fields; i++) {
        str_printf(out, "|%s|%s|", m->fields[i].name, kind_name(m->fields[i].kind));
        if (!add_meaning(out, block, m->fields[i].name))
            return false;
        str_add(out, "|\n");
    }
    return true;
}

static void add_rows(struct str *out)
{
    str_add(out, "\n## Orders\n\n|order|meaning|\n|---|---|\n");
#define ORDER(name, text, about) str_printf(out, "|%s|%s|\n", text, about);
#include "wire/orders.def"
#undef ORDER
    str_add(
        out,
        "\n## Events of a run\n\nPublic events are in the run's log (`GET /api/runs/ID/events`); "
        "the others change its row.\n\n|event|public|meaning|\n|---|---|---|\n");
#define EVENT(name, text, is_public, about)                                                        \
    str_printf(out, "|%s|%s|%s|\n", text, (is_public) ? "yes" : "", about);
#include "wire/events.def"
#undef EVENT
    str_add(out, "\n## Why a run ended\n\n|cause|status|meaning|\n|---|---|---|\n");
#define CAUSE(name, code, status, about) str_printf(out, "|%s|%s|%s|\n", code, status, about);
#include "wire/causes.def"
#undef CAUSE
}

bool docgen_wire(const char *messages, struct str *out)
{
    bool whole = true;
    str_add(out, intro);
    add_rows(out);
    str_add(
        out, "\n## Messages\n\nFields that are absent or null read as \"\", 0, false, null; "
             "unknown fields "
             "are ignored, so that versions can meet.\nSizes are bytes, times seconds unless the "
             "name says "
             "otherwise.\n");
    for (size_t i = 0; i < wire_message_count; i++)
        whole = add_message(out, wire_messages[i], messages) && whole;
    return whole;
}
