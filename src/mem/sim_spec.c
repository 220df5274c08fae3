/* sim_spec.c - reads the description of simulated cards. */
#include "mem/sim.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

static const int64_t context_usual = (int64_t)650 << 20, size_most = (int64_t)1 << 50;

/* One card being read: where errors say they are. */
struct reading {
    const char *what;
    struct sim_spec *s;
    int card; /* from 1 */
    bool has_context, has_others;
    struct err *e;
};

static enum status
fault(const struct reading *r, const char *field, const char *text, const char *why)
{
    (void)err_set(
        r->e, ST_INVALID, "%s: card %d%s%s%s: %s \"%.60s\" %s", r->what, r->card,
        r->s->name[0] ? " (" : "", r->s->name, r->s->name[0] ? ")" : "", field, text, why);
    err_hint(
        r->e, "a card is NAME:SIZE:smXX[:uuid=U][:context=650MiB][:others=3GiB], as in "
              "\"RTX 4090:24GiB:sm89\"");
    return ST_INVALID;
}

/* Printable UTF-8, and nothing that would end a label or a line. */
static bool good_name(const char *s)
{
    json_t *text = json_string(s); /* NULL where it is not UTF-8 */
    if (!text)
        return false;
    json_decref(text);
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p < 32 || *p == 127)
            return false;
    return s[0] != 0 && strlen(s) < sizeof((struct sim_spec *)0)->name;
}

static bool good_uuid(const char *s)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    size_t n = strlen(s);
    return n > 0 && n < sizeof((struct sim_spec *)0)->uuid && s[0] != '.' &&
           strspn(s, allowed) == n;
}

static enum status
read_size(const struct reading *r, const char *field, const char *text, int64_t least, int64_t *out)
{
    if (!str_to_bytes(text, out))
        return fault(r, field, text, "is not a size (24GiB, 650MiB)");
    if (*out < least || *out > size_most)
        return fault(
            r, field, text, least > 0 ? "is not above 0 and below 1 PiB" : "is out of range");
    return ST_OK;
}

static enum status read_capability(const struct reading *r, const char *text)
{
    int64_t v;
    const char *digits = str_starts(text, "sm_")  ? text + 3
                         : str_starts(text, "sm") ? text + 2
                                                  : "";
    size_t n = strspn(digits, "0123456789");
    if (n < 2 || n > 3 || digits[n] || !str_to_i64(digits, &v) || v < 10)
        return fault(r, "compute capability", text, "is not smXX (sm75, sm89)");
    r->s->compute_capability = (int)v;
    return ST_OK;
}

static enum status read_option(struct reading *r, const char *text)
{
    bool uuid = str_starts(text, "uuid="), context = str_starts(text, "context="),
         others = str_starts(text, "others=");
    if ((uuid && r->s->uuid[0]) || (context && r->has_context) || (others && r->has_others))
        return fault(r, "field", text, "is given a second time");
    if (uuid) {
        if (!good_uuid(text + 5))
            return fault(r, "uuid", text + 5, "is not of letters, digits, \"-\", \"_\" and \".\"");
        memcpy(r->s->uuid, text + 5, strlen(text + 5) + 1);
        return ST_OK;
    }
    if (context) {
        r->has_context = true;
        return read_size(r, "context", text + 8, 0, &r->s->context_bytes);
    }
    if (others) {
        r->has_others = true;
        return read_size(r, "others", text + 7, 0, &r->s->others_bytes);
    }
    return fault(r, "field", text, "is not uuid=, context= or others=");
}

static uint64_t mix(uint64_t h, const char *s)
{
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u; /* FNV-1a */
    return h;
}

/* Of the form that NVIDIA gives its cards. */
static void make_uuid(const struct reading *r)
{
    char text[200];
    (void)snprintf(
        text, sizeof text, "%d:%s:%lld:sm%d", r->card, r->s->name, (long long)r->s->capacity_bytes,
        r->s->compute_capability);
    uint64_t a = mix(0xcbf29ce484222325u, text), b = mix(a ^ 0x9e3779b97f4a7c15u, text);
    (void)snprintf(
        r->s->uuid, sizeof r->s->uuid, "GPU-%08x-%04x-%04x-%04x-%012llx", (unsigned)(a >> 32),
        (unsigned)(a >> 16) & 0xffff, (unsigned)a & 0xffff, (unsigned)(b >> 48),
        (unsigned long long)(b & 0xffffffffffffu));
}

static enum status finish(const struct reading *r)
{
    struct sim_spec *s = r->s;
    char size[32], text[32];
    (void)bytes_text(s->capacity_bytes, size, sizeof size);
    if (!r->has_context)
        s->context_bytes =
            context_usual < s->capacity_bytes / 4 ? context_usual : s->capacity_bytes / 4;
    if (s->context_bytes > s->capacity_bytes)
        return fault(
            r, "context", bytes_text(s->context_bytes, text, sizeof text), "is more than the card");
    if (s->others_bytes > s->capacity_bytes)
        return fault(
            r, "others", bytes_text(s->others_bytes, text, sizeof text), "is more than the card");
    if (!s->uuid[0])
        make_uuid(r);
    return ST_OK;
}

/* One card; cuts the text at its colons. */
static enum status read_card(struct reading *r, char *text)
{
    static const char *const field[] = {"name", "size", "compute capability"};
    char *part[16], *rest = text;
    int n = 0;
    for (char *p; n < 16 && (p = rest); n++) {
        rest = strchr(p, ':');
        if (rest)
            *rest++ = 0;
        part[n] = p + strspn(p, " \t\r\n");
        for (size_t k = strlen(part[n]); k && strchr(" \t\r\n", part[n][k - 1]); k--)
            part[n][k - 1] = 0;
    }
    if (!good_name(part[0]))
        return fault(r, field[0], part[0], "is empty, too long, or not printable");
    memcpy(r->s->name, part[0], strlen(part[0]) + 1);
    if (n < 3)
        return fault(r, field[n], "", "is missing");
    TRY(read_size(r, field[1], part[1], 1, &r->s->capacity_bytes));
    TRY(read_capability(r, part[2]));
    for (int i = 3; i < n; i++)
        TRY(read_option(r, part[i]));
    if (rest)
        return fault(r, "field", rest, "is one too many");
    return finish(r);
}

static enum status check_twins(const struct reading *r, const struct sim_spec *all)
{
    for (int i = 0; i < r->card - 1; i++)
        if (strcmp(all[i].uuid, r->s->uuid) == 0)
            return fault(r, "uuid", r->s->uuid, "is another card's, too");
    return ST_OK;
}

enum status sim_specs_parse(
    const char *text, const char *what, struct sim_spec out[SIM_CARDS_MAX], int *n, struct err *e)
{
    char *copy = mem_strdup(text), *rest = copy;
    enum status st = ST_OK;
    *n = 0;
    if (!text[strspn(text, " \t\r\n")])
        rest = NULL;
    for (char *p; st == ST_OK && (p = rest);) {
        rest = strchr(p, ',');
        if (rest)
            *rest++ = 0;
        if (*n == SIM_CARDS_MAX) {
            st = err_set(e, ST_INVALID, "%s: more than %d cards", what, SIM_CARDS_MAX);
            break;
        }
        out[*n] = (struct sim_spec){0};
        struct reading r = {.what = what, .s = &out[*n], .card = *n + 1, .e = e};
        st = read_card(&r, p);
        if (st == ST_OK)
            st = check_twins(&r, out);
        (*n)++;
    }
    mem_free(copy);
    return st;
}
