/* verdict.c - the first rule that holds, its second causes and its remedies, with the figures put
 * into their texts. */
#include "doctor/verdict.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)
#define GIB ((int64_t)1 << 30)

/* ---- shorthands of rules.def ---- */

#define KNOWN(a) amount_known(a)
#define CARD (v->has_message && v->where == WHERE_CARD)
#define HOST (v->has_message && v->where == WHERE_HOST)
#define NO_MESSAGE (!v->has_message)
#define WEAK_MESSAGE (v->has_message && v->where == WHERE_CARD && v->strength <= 1)
#define CARD_OR_NONE (!v->has_message || v->where == WHERE_CARD || v->where == WHERE_UNIFIED)
#define ID(name) (v->has_message && v->id == MESSAGE_##name)
#define AT(name) (v->phase == MOMENT_##name)
#define BACKWARD (v->phase == MOMENT_BACKWARD || v->phase == MOMENT_OPTIMIZER)
#define INFERENCE (v->vllm || v->webui || v->phase == MOMENT_GENERATE)
#define GROWS (v->growth.rising)
/* `a` is certainly a known figure, and more than `b`. */
#define MORE(a, b) (KNOWN(a) && KNOWN(b) && (a).bytes > (b).bytes)
#define HALF_OF(a) ((a).bytes / 2)
#define FREE_ENOUGH free_enough(v)
#define FREE_SHORT (KNOWN(v->free) && KNOWN(v->request) && v->free.bytes < v->request.bytes)
#define FITS_ALLOWED                                                                               \
    (KNOWN(v->request) && KNOWN(v->reserved) &&                                                    \
     v->reserved.bytes + v->request.bytes <= v->allowed.bytes)
#define OTHER_COUNTS other_decides(v)
#define OTHER_LARGE other_counts(v)
#define SLACK_COUNTS slack_counts(v)
#define SLACK_LEADS (SLACK_COUNTS && 3 * v->slack.bytes >= v->other.bytes)
#define AT_EVALUATION at_evaluation(v)
#define PIECES_COUNT pieces_count(v)
#define SMI_FULL smi_full(v)
#define TIGHT                                                                                      \
    (KNOWN(v->allocated) && KNOWN(v->request) && KNOWN(v->total) &&                                \
     (double)(v->allocated.bytes + v->request.bytes) >= 0.85 * (double)v->total.bytes)
#define SMI_HIDDEN smi_hidden(v)
#define MOMENT_EARLY (v->iterations == 0)
#define SPLITS_COUNT splits_count(v)

static bool free_enough(const struct evidence *v)
{
    if (!KNOWN(v->free) || !KNOWN(v->request))
        return false;
    int64_t margin = v->request.bytes / 50;
    return v->free.bytes >= v->request.bytes + (margin > 64 * MIB ? margin : 64 * MIB);
}

/* In texts that print no use of processes, context and libraries of the own process are in it. */
static bool other_counts(const struct evidence *v)
{
    bool exact = v->own_printed || v->n_processes > 0;
    double least = exact ? 0.3 * (double)GIB : 1.6 * (double)GIB;
    return KNOWN(v->other) && KNOWN(v->total) && (double)v->other.bytes > least &&
           (double)v->other.bytes > 0.12 * (double)v->total.bytes;
}

/* They are the cause only where the request would fit without them. */
static bool other_decides(const struct evidence *v)
{
    return other_counts(v) && !(KNOWN(v->gap) && v->other.bytes < v->gap.bytes);
}

static bool slack_counts(const struct evidence *v)
{
    return KNOWN(v->slack) && KNOWN(v->gap) && v->slack.bytes >= v->gap.bytes &&
           (double)v->slack.bytes >= 0.04 * (double)v->reserved.bytes && v->slack.bytes >= GIB / 4;
}

/* What a snapshot shows: free blocks make up for what was missing, and none of them is enough. */
static bool pieces_count(const struct evidence *v)
{
    return KNOWN(v->free_sum) && KNOWN(v->largest_free) && KNOWN(v->gap) && v->gap.bytes > 0 &&
           KNOWN(v->request) && v->largest_free.bytes < v->request.bytes &&
           v->free_sum.bytes >= v->gap.bytes && 25 * v->free_sum.bytes >= v->reserved.bytes;
}

static bool at_evaluation(const struct evidence *v)
{
    if (BACKWARD || v->phase == MOMENT_LOADER)
        return false;
    return (v->phases >> MOMENT_EVALUATION & 1) ||
           ((!v->has_trace || v->phases <= 1) && v->evaluating);
}

static bool smi_full(const struct evidence *v)
{
    if (!KNOWN(v->smi_used) || !KNOWN(v->smi_total))
        return false;
    return (double)v->smi_used.bytes >= 0.85 * (double)v->smi_total.bytes;
}

/* Processes are listed, the card does nothing, and much of it is nobody's. */
static bool smi_hidden(const struct evidence *v)
{
    if (!KNOWN(v->smi_used) || !KNOWN(v->smi_total) || v->smi_utilisation < 0 ||
        v->smi_utilisation > 5 || v->windows)
        return false;
    int64_t rest = v->smi_used.bytes - (KNOWN(v->smi_explained) ? v->smi_explained.bytes : 0);
    return rest >= 2 * GIB && rest >= v->smi_total.bytes / 5;
}

static bool splits_count(const struct evidence *v)
{
    return KNOWN(v->inactive_split) && KNOWN(v->reserved) && (v->ooms > 0 || v->retries > 0) &&
           10 * v->inactive_split.bytes >= v->reserved.bytes && 4 * v->inactive_split.bytes >= GIB;
}

/* ---- the tables ---- */

typedef bool condition(const struct evidence *v);
#define RULE(id, kind, confidence, cond, words, meaning, remedies)                                 \
    static bool rule_##id(const struct evidence *v)                                                \
    {                                                                                              \
        return cond;                                                                               \
    }
#define ALSO(id, kind, cond, why)                                                                  \
    static bool also_##id(const struct evidence *v)                                                \
    {                                                                                              \
        return cond;                                                                               \
    }
#include "doctor/rules.def"
#undef RULE
#undef ALSO
#define REMEDY(id, cond, what, why)                                                                \
    static bool applies_##id(const struct evidence *v)                                             \
    {                                                                                              \
        (void)v;                                                                                   \
        return cond;                                                                               \
    }
#include "doctor/remedies.def"
#undef REMEDY

static const struct {
    const char *name;
    enum oom_kind kind;
    enum confidence confidence;
    condition *holds;
    const char *words, *meaning, *remedies;
} rules[] = {
#define RULE(id, kind, confidence, cond, words, meaning, remedies)                                 \
    {#id, OOM_##kind, CONFIDENCE_##confidence, rule_##id, words, meaning, remedies},
#define ALSO(id, kind, cond, why)
#include "doctor/rules.def"
#undef RULE
#undef ALSO
};
static const struct {
    const char *name;
    enum oom_kind kind;
    condition *holds;
    const char *why;
} alsos[] = {
#define RULE(id, kind, confidence, cond, words, meaning, remedies)
#define ALSO(id, kind, cond, why) {#id, OOM_##kind, also_##id, why},
#include "doctor/rules.def"
#undef RULE
#undef ALSO
};
static const struct {
    const char *id;
    condition *applies;
    const char *what, *why;
} remedies[] = {
#define REMEDY(id, cond, what, why) {#id, applies_##id, what, why},
#include "doctor/remedies.def"
#undef REMEDY
};
enum {
    RULES = sizeof rules / sizeof *rules,
    ALSOS = sizeof alsos / sizeof *alsos,
    REMEDIES = sizeof remedies / sizeof *remedies
};

static const char *const kind_names[] = {
#define X(id, name, about) name,
    OOM_KINDS(X)
#undef X
};
static const char *const kind_abouts[] = {
#define X(id, name, about) about,
    OOM_KINDS(X)
#undef X
};
const char *oom_kind_name(enum oom_kind k)
{
    return kind_names[k];
}
const char *oom_kind_about(enum oom_kind k)
{
    return kind_abouts[k];
}
const char *confidence_name(enum confidence c)
{
    static const char *const names[] = {"low", "medium", "high"};
    return names[c];
}

/* ---- figures in texts ---- */

static void put_bytes(struct str *out, struct amount a)
{
    char buf[32];
    if (!KNOWN(a))
        str_add(out, "an unknown amount");
    else
        str_add(out, bytes_text(a.bytes < 0 ? 0 : a.bytes, buf, sizeof buf));
}

static void put_growth(const struct evidence *v, struct str *out)
{
    char first[32], last[32], each[32];
    const struct growth *g = &v->growth;
    double step = fabs(g->per_point);
    str_printf(
        out, "%s (%s) went from %s to %s over %lld figures",
        g->from_messages ? "Allocated at each error" : "Memory", g->label,
        bytes_text((int64_t)g->first, first, sizeof first),
        bytes_text((int64_t)g->last, last, sizeof last), (long long)g->points);
    if (step >= 1024)
        str_printf(out, ", lately %s each", bytes_text((int64_t)step, each, sizeof each));
}

static void put_where(const struct evidence *v, struct str *out)
{
    if (v->has_trace && v->user.file[0])
        str_printf(out, " (%s:%d)", v->user.file, v->user.line);
}

static void put_code(const struct evidence *v, struct str *out)
{
    if (v->hints & HINT_SUMS_LOSS)
        str_add(out, "a loss is summed without item()");
    else if (v->hints & HINT_APPENDS)
        str_add(out, "tensors are appended to a list");
    else
        str_add(out, "hidden states or attention maps are collected");
}

static void put_note(const struct evidence *v, const char *name, size_t n, struct str *out)
{
    if (n == 10 && strncmp(name, "slack_note", n) == 0) {
        if (KNOWN(v->slack) && v->slack.bytes >= 0) {
            str_add(out, ", and only ");
            put_bytes(out, v->slack);
            str_add(out, " are reserved and free");
        }
    } else if (n == 8 && strncmp(name, "gap_note", n) == 0) {
        if (KNOWN(v->gap) && v->gap.bytes > 0) {
            str_add(out, ", and ");
            put_bytes(out, v->gap);
            str_add(out, " were missing");
        }
    } else if (n == 13 && strncmp(name, "backward_note", n) == 0) {
        if (v->phase == MOMENT_BACKWARD)
            str_add(out, ", of which the backward pass holds most at its start");
    } else if (n == 14 && strncmp(name, "optimizer_note", n) == 0) {
        if (v->phase == MOMENT_OPTIMIZER)
            str_add(out, "; it failed in the optimizer's step, where that state first appears");
    } else if (n == 12 && strncmp(name, "request_note", n) == 0) {
        if (KNOWN(v->request)) {
            put_bytes(out, v->request);
            str_add(out, " in one piece");
            if (KNOWN(v->total) && v->request.bytes > v->total.bytes)
                str_printf(
                    out, " is %.1f times the card",
                    (double)v->request.bytes / (double)v->total.bytes);
            else
                str_add(out, " is more than a training step needs");
        } else {
            str_add(out, "the size that was asked is no size");
        }
    } else if (n == 10 && strncmp(name, "other_note", n) == 0) {
        if (KNOWN(v->other) && v->other.bytes > 0) {
            put_bytes(out, v->other);
            str_add(out, " are held outside this allocator, which its own tools cannot show");
        } else {
            str_add(out, "memory of others is invisible to the allocator's own tools");
        }
    } else if (n == 12 && strncmp(name, "retries_note", n) == 0) {
        if (v->retries > 0)
            str_printf(out, " (after %lld emptied caches and retries)", (long long)v->retries);
    } else if (n == 7 && strncmp(name, "smi_who", n) == 0) {
        if (v->smi_name[0])
            str_printf(out, ", most of it by %s", v->smi_name);
    }
}

/* What a snapshot adds. False: not one of these names. */
static bool put_snapshot_note(const struct evidence *v, const char *name, size_t n, struct str *out)
{
    if (n == 8 && strncmp(name, "grows_at", n) == 0) {
        str_add(out, v->grows_at);
    } else if (n == 10 && strncmp(name, "graph_note", n) == 0) {
        if (v->graph_retained)
            str_add(out, " and in other layers: whole graphs of former iterations are kept");
    } else if (n == 10 && strncmp(name, "grows_note", n) == 0) {
        if (GROWS) {
            str_add(out, "; ");
            put_bytes(out, v->grows_by);
            str_add(out, " more with each batch");
        }
    } else if (n == 10 && strncmp(name, "could_have", n) == 0) {
        put_bytes(out, amount_add(v->reserved, v->free));
    } else if (n == 7 && strncmp(name, "setting", n) == 0) {
        str_add(out, v->replay_setting);
    } else if (n == 5 && strncmp(name, "proof", n) == 0) {
        if (KNOWN(v->replay_needs) && KNOWN(v->replay_base_needs)) {
            put_bytes(out, v->replay_needs);
            str_add(out, " are enough then, instead of ");
            put_bytes(out, v->replay_base_needs);
        } else {
            str_add(out, "the same requests pass in what the card had");
        }
    } else if (n == 7 && strncmp(name, "nearest", n) == 0) {
        if (!v->has_history)
            str_add(out, ", and no events: it is the state of one moment");
        else if (4 * v->inactive_split.bytes >= v->reserved.bytes)
            str_add(out, "; nearest is fragmentation, by the free pieces beside live blocks");
        else
            str_add(out, "; nearest is capacity, at the peak");
    } else {
        return false;
    }
    return true;
}

static const struct {
    const char *name;
    size_t offset;
} amounts[] = {
#define A(field)                                                                                   \
    {                                                                                              \
#field, offsetof(struct evidence, field)                                                   \
    }
    A(request),        A(total),        A(free),     A(allowed),     A(allocated),
    A(reserved),       A(slack),        A(gap),      A(other),       A(own),
    A(peak),           A(flat_level),   A(smi_used), A(smi_total),   A(smi_largest),
    A(inactive_split), A(series_slack), A(free_sum), A(largest_free)
#undef A
};

static void put_name(const struct evidence *v, const char *name, size_t n, struct str *out)
{
    for (size_t i = 0; i < sizeof amounts / sizeof *amounts; i++)
        if (strlen(amounts[i].name) == n && strncmp(amounts[i].name, name, n) == 0) {
            struct amount a;
            memcpy(&a, (const char *)v + amounts[i].offset, sizeof a);
            put_bytes(out, a);
            return;
        }
    if (put_snapshot_note(v, name, n, out))
        return;
    if (n == 4 && strncmp(name, "over", n) == 0)
        put_bytes(out, amount_sub(v->reserved, v->total));
    else if (n == 4 && strncmp(name, "used", n) == 0)
        put_bytes(out, amount_sub(v->total, v->free));
    else if (n == 11 && strncmp(name, "growth_text", n) == 0)
        put_growth(v, out);
    else if (n == 5 && strncmp(name, "where", n) == 0)
        put_where(v, out);
    else if (n == 4 && strncmp(name, "code", n) == 0)
        put_code(v, out);
    else if (n == 5 && strncmp(name, "about", n) == 0)
        str_add(out, message_info_of(v->id)->about);
    else if (n == 11 && strncmp(name, "own_message", n) == 0)
        str_add(out, v->own_message);
    else if (n == 9 && strncmp(name, "smi_count", n) == 0)
        str_printf(out, "%d", v->smi_processes);
    else if (n == 8 && strncmp(name, "smi_name", n) == 0)
        str_add(out, v->smi_name[0] ? v->smi_name : "unnamed");
    else
        put_note(v, name, n, out);
}

static void fill(const struct evidence *v, const char *text, char *out, size_t cap)
{
    struct str s;
    str_init(&s);
    while (*text) {
        size_t n = strcspn(text, "{");
        str_add_n(&s, text, n);
        text += n;
        if (*text == '{') {
            size_t m = strcspn(text, "}");
            put_name(v, text + 1, m - 1, &s);
            text += m + 1;
        }
    }
    (void)snprintf(out, cap, "%s", s.data);
    str_release(&s);
}

/* ---- the verdict ---- */

static int first_rule(const struct evidence *v)
{
    for (int i = 0; i < RULES; i++)
        if (rules[i].holds(v))
            return i;
    return -1;
}

static void also(struct verdict *out, enum oom_kind kind, const char *why)
{
    if (kind == out->kind || out->n_also == VERDICT_ALSO)
        return;
    for (int i = 0; i < out->n_also; i++)
        if (out->also[i].kind == kind)
            return;
    struct verdict_also *a = &out->also[out->n_also++];
    a->kind = kind;
    (void)snprintf(a->why, sizeof a->why, "%s", why);
}

/* Figures are rounded: does another rule hold at an end of their intervals? */
static void borderline(const struct evidence *v, struct verdict *out)
{
    for (int corner = 0; corner < 4; corner++) {
        struct evidence w = *v;
        bool up = corner & 1, right = corner & 2;
        w.slack.bytes = up ? w.slack.high : w.slack.low;
        w.gap.bytes = up ? w.gap.low : w.gap.high;
        w.other.bytes = right ? w.other.high : w.other.low;
        int r = first_rule(&w);
        if (r >= 0 && rules[r].kind != out->kind) {
            out->borderline = true;
            out->confidence = CONFIDENCE_LOW;
            also(out, rules[r].kind, "within the rounding of the printed figures");
        }
    }
}

static void advise(const struct evidence *v, const char *list, struct verdict *out)
{
    while (*list) {
        size_t n = strcspn(list, " ");
        for (int i = 0; i < REMEDIES; i++) {
            if (strlen(remedies[i].id) != n || strncmp(remedies[i].id, list, n) != 0)
                continue;
            if (!remedies[i].applies(v) || out->n_remedies == VERDICT_REMEDIES)
                break;
            for (int k = 0; k < out->n_remedies; k++)
                if (strcmp(out->remedies[k].id, remedies[i].id) == 0)
                    goto next;
            struct verdict_remedy *r = &out->remedies[out->n_remedies++];
            r->id = remedies[i].id;
            r->what = remedies[i].what;
            fill(v, remedies[i].why, r->why, sizeof r->why);
        }
    next:
        list += n + (list[n] == ' ');
    }
}

bool verdict_of(const struct evidence *v, struct verdict *out)
{
    *out = (struct verdict){.kind = OOM_UNKNOWN};
    int r = first_rule(v);
    if (r < 0)
        return false;
    out->rule = rules[r].name;
    out->condition = rules[r].words;
    out->kind = rules[r].kind;
    out->confidence = rules[r].confidence;
    fill(v, rules[r].meaning, out->why, sizeof out->why);
    for (int i = 0; i < ALSOS; i++)
        if (alsos[i].holds(v)) {
            char why[256];
            fill(v, alsos[i].why, why, sizeof why);
            also(out, alsos[i].kind, why);
        }
    borderline(v, out);
    advise(v, rules[r].remedies, out);
    return true;
}

bool verdict_rule_at(int i, struct verdict_rule *out)
{
    if (i < 0 || i >= RULES + ALSOS)
        return false;
    if (i < RULES)
        *out = (struct verdict_rule){
            rules[i].name,       rules[i].words, rules[i].meaning, rules[i].remedies, rules[i].kind,
            rules[i].confidence, false};
    else
        *out = (struct verdict_rule){alsos[i - RULES].name, alsos[i - RULES].why, "",  "",
                                     alsos[i - RULES].kind, CONFIDENCE_MEDIUM,    true};
    return true;
}
