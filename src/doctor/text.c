/* text.c - from bytes to lines to facts.
 *
 * STATES of a source. Its squeezed text is kept as far as a message may still need it: the last
 * KEEP characters, or from the anchor of an open message on. A message is open while its text ends
 * within it; the next line of the source continues it, or shows that it was cut off.
 *
 * INVARIANTS. 1. Offsets into squeezed text are below its length. 2. Anchors that lie in a message
 * that was read are part of it. */
#include "doctor/text.h"

#include "doctor/finder.h"
#include "doctor/said.h"
#include "doctor/text_line.h"

#include "base/str.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum {
    LINE_BYTES = 64 << 10, /* longer ones are cut */
    KEEP = 400,
    OPEN_LINES = 48, /* that a message may be wrapped over */
    OPEN_BYTES = 8 << 10,
    HITS = 64,
    NEAR_LINES = 60 /* what stands so near is about the same event */
};

struct source {
    char name[32];
    int rank;
    struct str text; /* squeezed */
    int state;       /* of the finder */
    bool open;
    enum message_id open_id;
    size_t open_at;
    int open_lines;
    int64_t open_line;
    struct trace trace;
    struct summary_reader summary;
    int64_t step, evaluating_line, training_line;
    int64_t late_line; /* of a message whose frames may follow it, deepest first; 0 none */
};

struct hit {
    int word;
    size_t at; /* behind it */
};

struct text_reader {
    struct text_facts facts;
    struct finder *finder;
    struct str line;
    struct source *sources[TEXT_SOURCES];
    int n_sources;
    struct source *last; /* of the line before */
    struct smi_reader smi;
    struct summary stats; /* of memory_stats() printed key by key */
    bool after_return;
};

/* ---- words ---- */

static const struct {
    const char *text;
    enum word word;
} words[] = {
#define WORD(text, what) {text, WORD_##what},
#include "doctor/words.def"
#undef WORD
};
enum { WORDS = sizeof words / sizeof *words };

static struct finder *all_words(void)
{
    const char *list[MESSAGE_COUNT + WORDS];
    for (int i = 0; i < MESSAGE_COUNT; i++)
        list[i] = message_info_of((enum message_id)i)->anchor;
    for (int i = 0; i < WORDS; i++)
        list[MESSAGE_COUNT + i] = words[i].text;
    return finder_new(list, MESSAGE_COUNT + WORDS);
}

struct text_reader *text_reader_new(void)
{
    struct text_reader *r = mem_alloc(sizeof *r);
    r->finder = all_words();
    str_init(&r->line);
    smi_begin(&r->smi, &r->facts.smi);
    summary_unknown(&r->stats, 0);
    return r;
}

void text_reader_free(struct text_reader *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_sources; i++) {
        str_release(&r->sources[i]->text);
        mem_free(r->sources[i]);
    }
    finder_free(r->finder);
    str_release(&r->line);
    vec_release(&r->facts.messages);
    vec_release(&r->facts.summaries);
    series_release(&r->facts.series);
    mem_free(r);
}

static struct source *source_of(struct text_reader *r, const struct line_head *h)
{
    if (r->last && strcmp(r->last->name, h->source) == 0)
        return r->last;
    for (int i = 0; i < r->n_sources; i++)
        if (strcmp(r->sources[i]->name, h->source) == 0)
            return r->last = r->sources[i];
    if (r->n_sources == TEXT_SOURCES)
        return r->last = r->sources[0];
    struct source *s = mem_alloc(sizeof *s);
    (void)snprintf(s->name, sizeof s->name, "%s", h->source);
    s->rank = h->rank;
    s->step = -1;
    str_init(&s->text);
    return r->last = r->sources[r->n_sources++] = s;
}

/* ---- messages ---- */

static bool host(enum message_where w)
{
    return w == WHERE_HOST || w == WHERE_PINNED || w == WHERE_SHARED;
}

static bool same_figures(const struct message *a, const struct message *b)
{
    return a->request.bytes == b->request.bytes && a->allocated.bytes == b->allocated.bytes &&
           a->free.bytes == b->free.bytes && a->reserved.bytes == b->reserved.bytes &&
           a->device == b->device;
}

/* A shortened message gains what its echo prints. */
static void fill_in(struct amount *a, struct amount more)
{
    if (!amount_known(*a))
        *a = more;
}

/* The same event once more: its traceback counts where the first had none. */
static void echo(struct text_message *kept, const struct text_message *again)
{
    kept->repeats++;
    fill_in(&kept->m.allocated, again->m.allocated);
    fill_in(&kept->m.reserved, again->m.reserved);
    fill_in(&kept->m.total, again->m.total);
    fill_in(&kept->m.free, again->m.free);
    if (kept->m.device < 0)
        kept->m.device = again->m.device;
    if (kept->has_trace || !again->has_trace)
        return;
    kept->has_trace = true;
    kept->user = again->user;
    kept->phase = again->phase;
    kept->phases = again->phases;
    kept->hints = again->hints;
}

/* Whether `m` is an echo of a message that is there; a stronger one takes its place. */
static bool merged(struct text_facts *f, const struct text_message *m)
{
    int strength = message_info_of(m->m.id)->strength;
    for (size_t i = f->messages.n; i-- && f->messages.n - i < 8;) {
        struct text_message *old = &f->messages.data[i];
        int was = message_info_of(old->m.id)->strength;
        bool near = m->line - old->line <= NEAR_LINES && strcmp(m->source, old->source) == 0;
        bool kind =
            host(message_info_of(m->m.id)->where) == host(message_info_of(old->m.id)->where);
        if (strength >= 2 && was >= 2 && same_figures(&m->m, &old->m) && strength == was &&
            strcmp(m->source, old->source) == 0) {
            echo(old, m);
            return true;
        }
        if (!near || !kind || (strength == was && strength >= 2))
            continue;
        if (strength > was) {
            int64_t line = old->line;
            struct text_message weak = *old;
            *old = *m;
            old->line = line;
            echo(old, &weak);
        } else {
            echo(old, m);
        }
        return true;
    }
    return false;
}

static void emit(struct text_reader *r, struct source *s, const struct message *m, int64_t line)
{
    struct text_facts *f = &r->facts;
    if (m->id >= MESSAGE_COUNT)
        return;
    struct text_message t = {.m = *m, .rank = s->rank, .line = line, .step = s->step};
    memcpy(t.source, s->name, sizeof t.source);
    t.evaluating = s->evaluating_line > s->training_line;
    if (s->trace.frames && line - s->trace.line < 400) {
        t.has_trace = true;
        t.user = s->trace.user;
        t.phase = s->trace.phase;
        t.phases = s->trace.phases;
        t.hints = s->trace.hints;
    }
    if (merged(f, &t))
        return;
    f->messages_seen++;
    if (f->messages.n == TEXT_MESSAGES) /* the first half stays, the second slides */
        memmove(
            &f->messages.data[TEXT_MESSAGES / 2], &f->messages.data[TEXT_MESSAGES / 2 + 1],
            (TEXT_MESSAGES / 2 - 1) * sizeof *f->messages.data),
            f->messages.n--;
    vec_push(&f->messages, t);
    s->late_line = t.has_trace ? 0 : line;
}

/* Reads on in the open message; returns where it ends in the text. */
static size_t read_open(struct text_reader *r, struct source *s, bool final)
{
    struct message m;
    size_t used;
    enum message_state st = message_read(s->open_id, s->text.data, s->open_at, &m, &used);
    bool give_up = final || s->open_lines++ >= OPEN_LINES || s->text.n - s->open_at > OPEN_BYTES;
    if (st == MESSAGE_DONE || give_up) {
        s->open = false;
        emit(r, s, &m, s->open_line);
    }
    return m.id < MESSAGE_COUNT ? used : 0; /* it was none: what is in it may be one */
}

static void read_hits(struct text_reader *r, struct source *s, const struct hit *hits, int n)
{
    size_t covered = 0;
    if (s->open)
        covered = read_open(r, s, false);
    for (int i = 0; i < n; i++) {
        size_t length = strlen(message_info_of((enum message_id)hits[i].word)->anchor);
        if (hits[i].at < covered + length)
            continue;
        if (s->open)
            (void)read_open(r, s, true);
        s->open = true;
        s->open_id = (enum message_id)hits[i].word;
        s->open_at = hits[i].at;
        s->open_line = r->facts.lines;
        s->open_lines = 0;
        size_t used = read_open(r, s, false);
        if (message_info_of(s->open_id)->strength > 0 && used > covered)
            covered = used; /* "CUDA out of memory" alone may be the head of a longer one */
    }
}

/* Keeps what a message may still need. */
static void trim(struct source *s)
{
    size_t from = s->text.n > KEEP ? s->text.n - KEEP : 0;
    if (s->open)
        from = s->open_at > KEEP ? s->open_at - KEEP : 0;
    if (from < KEEP)
        return;
    memmove(s->text.data, s->text.data + from, s->text.n - from + 1);
    s->text.n -= from;
    if (s->open)
        s->open_at -= from;
}

/* Debuggers print the message first and its frames below, the deepest on top. */
static void late_frames(struct text_reader *r, struct source *s)
{
    struct text_facts *f = &r->facts;
    if (!s->late_line || s->trace.marked || f->lines - s->late_line > 200)
        return;
    for (size_t i = f->messages.n; i-- > 0;) {
        struct text_message *t = &f->messages.data[i];
        if (t->line != s->late_line || strcmp(t->source, s->name) != 0)
            continue;
        if (!t->user.file[0] || (t->user.line == s->trace.user.line && !t->user.code[0]))
            t->user = s->trace.user;
        t->has_trace = true;
        t->phases |= s->trace.phases;
        t->hints |= s->trace.hints;
        if (t->phase <= MOMENT_FORWARD)
            t->phase = s->trace.phase;
        return;
    }
}

/* ---- a line ---- */

static void note_words(struct text_reader *r, struct source *s, uint64_t mask)
{
    struct text_facts *f = &r->facts;
    for (int w = 0; w < WORD_COUNT; w++)
        if (mask >> w & 1) {
            f->words[w]++;
            f->word_line[w] = f->lines;
        }
    if (mask >> WORD_EVALUATING & 1)
        s->evaluating_line = f->lines;
    if (mask >> WORD_TRAINING & 1)
        s->training_line = f->lines;
}

/* "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" that is set, not advised. */
static void note_conf(struct text_facts *f, const char *line)
{
    const char *at = strstr(line, "ALLOC_CONF");
    if (!at || strstr(line, "try setting") || strstr(line, "Try setting") ||
        strstr(line, "Memory Management and"))
        return;
    at += strlen("ALLOC_CONF");
    at += strspn(at, "'\"] :=");
    size_t n = strcspn(at, " '\"\\;");
    if (n && n < sizeof f->conf && memchr(at, ':', n)) {
        memcpy(f->conf, at, n);
        f->conf[n] = 0;
    }
}

static void squeeze(
    struct text_reader *r, struct source *s, const char *line, struct hit *hits, int *n,
    uint64_t *mask)
{
    const unsigned char *p = (const unsigned char *)line;
    char out[512];
    size_t used = 0, base = s->text.n;
    while (*p) {
        int c = line_squeeze(&p), word;
        if (!c)
            continue;
        if (used == sizeof out) {
            str_add_n(&s->text, out, used);
            base += used;
            used = 0;
        }
        out[used++] = (char)c;
        int it = s->state = finder_step(r->finder, s->state, (unsigned char)c);
        while (s->state & FINDER_HIT && (word = finder_next(r->finder, &it)) >= 0) {
            if (word >= MESSAGE_COUNT)
                *mask |= (uint64_t)1 << words[word - MESSAGE_COUNT].word;
            else if (*n < HITS)
                hits[(*n)++] = (struct hit){word, base + used};
        }
    }
    str_add_n(&s->text, out, used);
}

/* "Killed" by the shell, "MemoryError" of Python: whole lines. */
static void whole_line(struct text_reader *r, struct source *s, const char *line)
{
    struct message m;
    size_t used, n = strlen(line);
    while (n && isspace((unsigned char)line[n - 1]))
        n--;
    bool killed = said_killed(line);
    bool python = str_starts(line, "MemoryError") && (n == 11 || line[11] == ':');
    if (!killed && !python)
        return;
    (void)message_read(killed ? MESSAGE_SIGKILL : MESSAGE_BAD_ALLOC, "", 0, &m, &used);
    emit(r, s, &m, r->facts.lines);
}

static void tables(struct text_reader *r, struct source *s, const char *line, const char *whole)
{
    struct text_facts *f = &r->facts;
    for (int again = 0; again < 2; again++) {
        bool done;
        (void)summary_line(&s->summary, line, f->lines, &done);
        if (!done)
            break;
        if (f->summaries.n == TEXT_SUMMARIES)
            memmove(
                &f->summaries.data[0], &f->summaries.data[1],
                (TEXT_SUMMARIES - 1) * sizeof *f->summaries.data),
                f->summaries.n--;
        vec_push(&f->summaries, s->summary.table);
        s->summary = (struct summary_reader){0};
    }
    /* A first column of times is no prefix. */
    bool csv = isdigit((unsigned char)*whole) && strstr(whole, " MiB");
    (void)smi_line(&r->smi, csv ? whole : line, f->lines);
}

static void take_line(struct text_reader *r, const char *line)
{
    struct line_head head;
    struct hit hits[HITS];
    int n = 0;
    uint64_t mask = 0;
    struct text_facts *f = &r->facts;
    f->lines++;
    const char *rest = line_head_read(line, &head);
    struct source *s = source_of(r, &head);
    bool table = *rest == '|' || *rest == '+';
    squeeze(r, s, rest, hits, &n, &mask);
    bool traced = trace_line(&s->trace, rest, f->lines);
    if (n || s->open)
        read_hits(r, s, hits, n);
    trim(s);
    if (traced && s->late_line && s->late_line < f->lines)
        late_frames(r, s);
    if (mask >> WORD_KILLED & 1 || (unsigned char)*rest >= 0x80 || (*rest && strchr("MGTU", *rest)))
        whole_line(r, s, rest);
    if (table || s->summary.open || mask >> WORD_SMI & 1 || smi_reading(&r->smi))
        tables(r, s, rest, line);
    long long step = traced || table ? -1 : line_step(rest);
    if (step >= 0) {
        s->step = step;
        f->steps++;
    }
    if (mask >> WORD_FIGURE & 1 && !traced && !table && said_growth(rest))
        mask |= (uint64_t)1 << WORD_SAID_GROWS;
    enum said_moment moment = traced || table ? SAID_NOTHING : said_moment(rest);
    if (moment == SAID_EVALUATION && (s->training_line || f->steps || (*rest | 32) != 't'))
        mask |= (uint64_t)1 << WORD_EVALUATING;
    else if (moment == SAID_TRAINING && !(mask >> WORD_EVALUATING & 1))
        mask |= (uint64_t)1 << WORD_TRAINING;
    if (mask)
        note_words(r, s, mask);
    if (mask >> WORD_STATS & 1 && summary_stats_line(&r->stats, rest) && !r->stats.line)
        r->stats.line = f->lines;
    if (mask >> WORD_CONF & 1)
        note_conf(f, rest);
    if (mask >> WORD_CODE & 1 && !traced) {
        f->code_hints |= trace_code_hints(rest);
        f->code_line = f->lines;
    }
    if ((mask >> WORD_FIGURE & 1 || series_bare(rest)) && !traced && !table && n == 0 && !s->open)
        series_line(&f->series, s->name, rest, f->lines);
}

static void end_line(struct text_reader *r)
{
    char *p = r->line.data;
    (void)line_plain(p, r->line.n);
    bool json = *p == '{';
    while (p) {
        char *end = strchr(p, '\n');
        if (end)
            *end = 0;
        /* A return at the end of a line is its end, no line of its own. */
        bool rest = json && (strncmp(p, "\",", 2) == 0 || strncmp(p, "\"}", 2) == 0);
        if ((*p || !end || p == r->line.data) && !rest)
            take_line(r, p);
        p = end && end[1] ? end + 1 : NULL;
    }
    str_clear(&r->line);
}

void text_reader_feed(struct text_reader *r, const void *bytes, size_t n)
{
    const char *p = bytes;
    r->facts.bytes += (int64_t)n;
    while (n) {
        const char *end = memchr(p, '\n', n);
        size_t part = end ? (size_t)(end - p) : n;
        size_t room = LINE_BYTES - r->line.n;
        bool cut = part > room;
        part = cut ? room : part;
        str_add_n(&r->line, p, part);
        p += part + (!cut && end);
        n -= part + (!cut && end);
        if (cut || end)
            end_line(r);
    }
}

/* An out-of-memory without numbers says nothing beside one that has some. */
static void drop_weak(struct text_facts *f)
{
    size_t to = 0;
    for (size_t i = 0; i < f->messages.n; i++) {
        const struct message_info *a = message_info_of(f->messages.data[i].m.id);
        bool weak = false;
        for (size_t k = 0; k < f->messages.n && a->strength == 0; k++) {
            const struct message_info *b = message_info_of(f->messages.data[k].m.id);
            weak = weak || (b->strength > 0 && host(a->where) == host(b->where));
        }
        if (!weak)
            f->messages.data[to++] = f->messages.data[i];
    }
    f->messages.n = to;
}

const struct text_facts *text_reader_end(struct text_reader *r)
{
    if (r->line.n)
        end_line(r);
    for (int i = 0; i < r->n_sources; i++) {
        struct source *s = r->sources[i];
        if (s->open)
            (void)read_open(r, s, true);
        if (s->summary.open && s->summary.table.rows > 0 && r->facts.summaries.n < TEXT_SUMMARIES)
            vec_push(&r->facts.summaries, s->summary.table);
    }
    if (r->stats.rows > 0 && r->facts.summaries.n < TEXT_SUMMARIES)
        vec_push(&r->facts.summaries, r->stats);
    r->stats.rows = 0;
    drop_weak(&r->facts);
    return &r->facts;
}
