/* document.c - how a command or a run ended, as a document. */
#include "base/document.h"

#include "base/str.h"

/* Length of the UTF-8 sequence at `s`; 0 where there is none. */
static size_t sequence(const unsigned char *s)
{
    size_t n = s[0] < 0x80                   ? 1
               : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
               : s[0] >= 0xE0 && s[0] < 0xF0 ? 3
               : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xF0 && s[1] < 0x90);
    bool beyond = (s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF4 && s[1] > 0x8F);
    return overlong || beyond ? 0 : n;
}

/* Texts hold names from outside, and end where their buffer ended: what is not UTF-8 becomes "?".
 */
static void put_text(json_t *o, const char *key, const char *text)
{
    struct str clean;
    str_init(&clean);
    while (*text) {
        size_t n = sequence((const unsigned char *)text);
        str_add_n(&clean, n ? text : "?", n ? n : 1);
        text += n ? n : 1;
    }
    json_put_str(o, key, clean.n ? clean.data : NULL);
    str_release(&clean);
}

/* A NodeOOMError's message is the whole report, as the founding system has it. */
static void put_message(json_t *o, const struct err *e)
{
    struct str whole;
    str_init(&whole);
    str_printf(&whole, "%s%s%s", e->text, e->type[0] ? "\n\n" : "", e->type[0] ? e->detail : "");
    put_text(o, "message", whole.data);
    str_release(&whole);
}

json_t *document_of_error(const struct err *e)
{
    json_t *o = json_object();
    json_put_str(o, "code", status_code(e->status));
    if (e->type[0])
        put_text(o, "type", e->type);
    put_message(o, e);
    put_text(o, "node_id", e->node);
    put_text(o, "node_type", e->node_type);
    put_text(o, "detail", e->detail);
    put_text(o, "hint", e->hint);
    return o;
}

json_t *document_of_status(enum status st, const struct err *e, json_t *content)
{
    json_t *d = json_object();
    json_put_i64(d, "schema", 1);
    json_put_str(
        d, "status",
        st == ST_OK            ? "succeeded"
        : st == ST_INTERRUPTED ? "interrupted"
                               : "failed");
    json_put(d, "error", st == ST_OK ? json_null() : document_of_error(e));
    if (content && json_object_update(d, content) != 0)
        json_put_str(d, "status", "failed");
    json_decref(content);
    return d;
}
