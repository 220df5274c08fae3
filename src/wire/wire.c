/* wire.c - reading and writing messages by their tables. */
#include "wire/wire.h"

#include <math.h>
#include <string.h>

#define MESSAGE(message, about) static const struct wire_field fields_of_##message[] = {
#define TEXT(field) {#field, WIRE_TEXT},
#define INTEGER(field) {#field, WIRE_INTEGER},
#define NUMBER(field) {#field, WIRE_NUMBER},
#define FLAG(field) {#field, WIRE_FLAG},
#define DOCUMENT(field) {#field, WIRE_DOCUMENT},
#define END(message)                                                                               \
    }                                                                                              \
    ;                                                                                              \
    _Static_assert(                                                                                \
        sizeof(struct message) == 8 * sizeof fields_of_##message / sizeof *fields_of_##message,    \
        "a field takes eight bytes");
#include "wire/messages.def"

#define MESSAGE(message, about_text)                                                               \
    const struct wire_message wire_##message = {                                                   \
        .name = #message,                                                                          \
        .about = about_text,                                                                       \
        .fields = fields_of_##message,                                                             \
        .n_fields = sizeof fields_of_##message / sizeof *fields_of_##message};
#include "wire/messages.def"

const struct wire_message *const wire_messages[] = {
#define MESSAGE(message, about) &wire_##message,
#include "wire/messages.def"
};
const size_t wire_message_count = sizeof wire_messages / sizeof *wire_messages;

static enum status
wrong(const struct wire_message *m, const char *field, const char *wanted, struct err *e)
{
    return err_set(e, ST_INVALID, "field \"%s\" of \"%s\" must be %s", field, m->name, wanted);
}

static enum status read_field(
    const struct wire_message *m, const struct wire_field *f, json_t *v, void *at, struct err *e)
{
    bool absent = !v || json_is_null(v);
    switch (f->kind) {
    case WIRE_TEXT:
        if (!absent && !json_is_string(v))
            return wrong(m, f->name, "a text", e);
        *(const char **)at = absent ? "" : json_string_value(v);
        break;
    case WIRE_INTEGER:
        if (!absent && !json_is_integer(v))
            return wrong(m, f->name, "a whole number", e);
        *(int64_t *)at = absent ? 0 : (int64_t)json_integer_value(v);
        break;
    case WIRE_NUMBER:
        if (!absent && (!json_is_number(v) || !isfinite(json_number_value(v))))
            return wrong(m, f->name, "a number", e);
        *(double *)at = absent ? 0.0 : json_number_value(v);
        break;
    case WIRE_FLAG:
        if (!absent && !json_is_boolean(v))
            return wrong(m, f->name, "true or false", e);
        *(bool *)at = !absent && json_is_true(v);
        break;
    case WIRE_DOCUMENT:
        *(json_t **)at = absent ? NULL : v;
        break;
    }
    return ST_OK;
}

enum status wire_read(const struct wire_message *m, const json_t *from, void *out, struct err *e)
{
    if (!json_is_object(from))
        return err_set(e, ST_INVALID, "\"%s\" must be an object", m->name);
    memset(out, 0, 8 * m->n_fields);
    for (size_t i = 0; i < m->n_fields; i++)
        TRY(read_field(
            m, &m->fields[i], json_object_get(from, m->fields[i].name), (char *)out + 8 * i, e));
    return ST_OK;
}

json_t *wire_write(const struct wire_message *m, const void *from)
{
    json_t *to = json_object();
    for (size_t i = 0; i < m->n_fields; i++) {
        const char *name = m->fields[i].name;
        const void *at = (const char *)from + 8 * i;
        switch (m->fields[i].kind) {
        case WIRE_TEXT:
            json_put_str(to, name, *(const char *const *)at ? *(const char *const *)at : "");
            break;
        case WIRE_INTEGER:
            json_put_i64(to, name, *(const int64_t *)at);
            break;
        case WIRE_NUMBER:
            json_put(to, name, json_real(*(const double *)at));
            break;
        case WIRE_FLAG:
            json_put_bool(to, name, *(const bool *)at);
            break;
        case WIRE_DOCUMENT:
            json_put(
                to, name, *(json_t *const *)at ? json_incref(*(json_t *const *)at) : json_null());
            break;
        }
    }
    return to;
}

/* Its place in the list; -1: none. */
static int find(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

static const char *const order_names[] = {
#define ORDER(name, text, about) text,
#include "wire/orders.def"
#undef ORDER
};
const char *order_name(enum order_type t)
{
    return order_names[t];
}
bool order_find(const char *name, enum order_type *out)
{
    int i = find(order_names, ORDER_COUNT, name);
    if (i >= 0)
        *out = (enum order_type)i;
    return i >= 0;
}

static const char *const event_names[] = {
#define EVENT(name, text, is_public, about) text,
#include "wire/events.def"
#undef EVENT
};
const char *event_name(enum event_type t)
{
    return event_names[t];
}
bool event_find(const char *name, enum event_type *out)
{
    int i = find(event_names, EVENT_COUNT, name);
    if (i >= 0)
        *out = (enum event_type)i;
    return i >= 0;
}

static const char *const cause_codes[] = {
#define CAUSE(name, code, status, about) code,
#include "wire/causes.def"
#undef CAUSE
};
static const char *const cause_statuses[] = {
#define CAUSE(name, code, status, about) status,
#include "wire/causes.def"
#undef CAUSE
};
const char *cause_code(enum cause c)
{
    return cause_codes[c];
}
const char *cause_status(enum cause c)
{
    return cause_statuses[c];
}
bool cause_find(const char *code, enum cause *out)
{
    int i = find(cause_codes, CAUSE_COUNT, code);
    if (i >= 0)
        *out = (enum cause)i;
    return i >= 0;
}

bool run_id_is_valid(const char *id)
{
    return strlen(id) == WIRE_RUN_ID && strspn(id, "0123456789abcdef") == WIRE_RUN_ID;
}
