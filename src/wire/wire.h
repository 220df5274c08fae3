/* wire.h - the messages between server, agent and run child (messages.def), as structs and JSON.
 *
 * A struct read from JSON borrows from the document it was read from: texts and documents live as
 * long as that. A struct that is filled by hand is written with wire_write, which copies.
 *
 *     struct hello h;
 *     TRY(wire_read(&wire_hello, body, &h, e));          checks types; the body stays the caller's
 *     json_t *reply = wire_write(&wire_welcome, &w);      a new reference
 *
 * THE RUN FOLDER  SNUG_HOME/runs/<run id>/, written by the agent's side, is how a run survives its
 * agent: start.json (a start_order; written whole before anything starts), events.jsonl (a
 * run_event a line, appended by one process at a time, sequences without gaps; a torn last line is
 * cut off by whoever appends next), lock (its lock is held by the supervisor: as long as it is, the
 * run's process tree lives), pid (of the supervisor), output.log (stdout and stderr, capped),
 * outputs/ (recorded), tb/<node>/ (TensorBoard). The supervisor is the parent and subreaper of
 * everything the run starts; it writes `ended` after the last process of the tree is gone.
 *
 * WHO MAY CHANGE WHAT  Every event carries (run, epoch, sequence) and is applied once. The server
 * raises a run's epoch with every start it orders; what carries a lower one is answered with
 * "forget". An agent that gets a start of an epoch it has seen says so and does nothing.
 */
#ifndef WIRE_WIRE_H
#define WIRE_WIRE_H

#include "base/json.h"

#include <stddef.h>

enum {
    WIRE_PROTOCOL = 1,
    WIRE_RUN_ID = 32,     /* hex digits of a run's id */
    WIRE_REPORT_MAX = 512 /* events in one report */
};

#define MESSAGE(name, about) struct name {
#define TEXT(field) const char *field;
#define INTEGER(field) int64_t field;
#define NUMBER(field) double field;
#define FLAG(field) _Alignas(8) bool field;
#define DOCUMENT(field) json_t *field;
#define END(name)                                                                                  \
    }                                                                                              \
    ;
#include "wire/messages.def"

/* Every field takes eight bytes: field i of a struct lies at 8 i. */
enum wire_kind { WIRE_TEXT, WIRE_INTEGER, WIRE_NUMBER, WIRE_FLAG, WIRE_DOCUMENT };
struct wire_field {
    const char *name;
    enum wire_kind kind;
};
struct wire_message {
    const char *name, *about;
    const struct wire_field *fields;
    size_t n_fields;
};
#define MESSAGE(name, about) extern const struct wire_message wire_##name;
#include "wire/messages.def"
extern const struct wire_message *const wire_messages[];
extern const size_t wire_message_count;

/* Fills `out` from a JSON object. A field of another type, or a number that is not finite, is
 * ST_INVALID and named. */
enum status
wire_read(const struct wire_message *m, const json_t *from, void *out, struct err *e) NODISCARD;
json_t *wire_write(const struct wire_message *m, const void *from);

enum order_type {
#define ORDER(name, text, about) ORDER_##name,
#include "wire/orders.def"
#undef ORDER
    ORDER_COUNT
};
const char *order_name(enum order_type t);
bool order_find(const char *name, enum order_type *out);

enum event_type {
#define EVENT(name, text, is_public, about) EVENT_##name,
#include "wire/events.def"
#undef EVENT
    EVENT_COUNT
};
const char *event_name(enum event_type t);
bool event_find(const char *name, enum event_type *out);

enum cause {
#define CAUSE(name, code, status, about) CAUSE_##name,
#include "wire/causes.def"
#undef CAUSE
    CAUSE_COUNT
};
const char *cause_code(enum cause c);
const char *cause_status(enum cause c); /* "failed" */
bool cause_find(const char *code, enum cause *out);

/* 32 hex digits. */
bool run_id_is_valid(const char *id);

#endif
