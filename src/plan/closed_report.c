/* closed_report.c - from an estimate to a document, and from the document to text. */
#include "plan/closed_report.h"

#include "plan/closed_advice.h"

#include <math.h>
#include <string.h>

#define GB 1e9
#define GIB 1073741824.0
#define MARGIN 0.2 /* what "safer" leaves free */

/* ---- what fits ---- */

static enum status card_bytes(
    const struct closed_model *m, struct closed_run r, int64_t batch, int zero, int cards,
    int64_t *out, struct err *e)
{
    struct closed_estimate x;
    r.batch = batch;
    r.zero = zero;
    r.cards = cards;
    TRY(closed_estimate_make(m, &r, &x, e));
    *out = x.card_bytes;
    return ST_OK;
}

static enum status largest_batch(
    const struct closed_model *m, const struct closed_run *r, int64_t limit, int64_t *out,
    struct err *e)
{
    int64_t low = 0, high = 1, bytes;
    struct closed_run larger = *r;
    struct err too_large = {0};
    for (;; high *= 2) {
        larger.batch = high;
        if (closed_run_check(m, &larger, &too_large) != ST_OK)
            break;
        TRY(card_bytes(m, *r, high, r->zero, r->cards, &bytes, e));
        if (bytes > limit || high >= 65536)
            break;
        low = high;
    }
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        TRY(card_bytes(m, *r, middle, r->zero, r->cards, &bytes, e));
        *(bytes > limit ? &high : &low) = middle;
    }
    *out = low;
    return ST_OK;
}

static int64_t next_count(int64_t n)
{
    return n < 8 ? n + 1 : n < 64 ? n + 8 : 2 * n;
}

/* Fully sharded: the first count that holds it, and the first that leaves MARGIN. */
static enum status count_cards(
    const struct closed_model *m, const struct closed_run *r, int64_t limit,
    struct closed_cards *out, struct err *e)
{
    int64_t bytes;
    *out = (struct closed_cards){0};
    for (int64_t n = 1; n <= 1024 && out->safer == 0; n = next_count(n)) {
        TRY(card_bytes(m, *r, r->batch, n > 1 ? 3 : r->zero, (int)n, &bytes, e));
        double left = 1 - (double)bytes / (double)limit;
        if (left >= 0 && out->minimum == 0) {
            out->minimum = out->bare = n;
            out->minimum_free = left;
            out->tight = left < 0.1;
        }
        if (left >= MARGIN) {
            out->safer = n;
            out->safer_free = left;
        }
    }
    return ST_OK;
}

enum status closed_fit_make(
    const struct closed_model *m, const struct closed_run *r, const struct closed_card *card,
    struct closed_fit *out, struct err *e)
{
    struct closed_run here = *r;
    int64_t bytes;
    here.sm = card->sm;
    *out = (struct closed_fit){.card = card};
    TRY(card_bytes(m, here, r->batch, r->zero, r->cards, &bytes, e));
    out->free_bytes = card->usable_bytes - bytes;
    out->fits = out->free_bytes >= 0;
    TRY(largest_batch(m, &here, card->usable_bytes, &out->batch_most, e));
    return count_cards(m, &here, card->usable_bytes, &out->n, e);
}

/* ---- the document ---- */

static json_t *peak_json(const struct tape_peak *p)
{
    json_t *o = json_object(), *by = json_object();
    json_put_i64(o, "bytes", p->bytes);
    json_put_str(o, "phase", tape_phase_name(p->phase));
    json_put_i64(o, "layer", p->layer);
    json_put_str(o, "operator", p->what ? p->what : "");
    for (int k = 0; k < TAPE_KIND_COUNT; k++)
        if (p->by_kind[k])
            json_put_i64(by, tape_kind_name((enum tape_kind)k), p->by_kind[k]);
    json_put(o, "by_line", by);
    return o;
}

static void put_size(json_t *o, const char *name, int64_t bytes)
{
    json_t *s = json_object();
    json_put_i64(s, "bytes", bytes);
    json_put_f64(s, "gb", round((double)bytes / GB * 1000) / 1000);
    json_put_f64(s, "gib", round((double)bytes / GIB * 1000) / 1000);
    json_put(o, name, s);
}

static json_t *counts_json(const struct closed_cards *n)
{
    json_t *o = json_object();
    json_put_i64(o, "minimum", n->minimum);
    json_put_f64(o, "minimum_free_share", round(n->minimum_free * 1000) / 1000);
    json_put_bool(o, "tight", n->tight);
    json_put_i64(o, "safer", n->safer);
    json_put_f64(o, "safer_free_share", round(n->safer_free * 1000) / 1000);
    return o;
}

static json_t *fit_json(const struct closed_fit *f)
{
    json_t *o = json_object();
    json_put_str(o, "card", f->card->name);
    put_size(o, "usable", f->card->usable_bytes);
    json_put_bool(o, "fits", f->fits);
    json_put_i64(o, "free_bytes", f->free_bytes);
    json_put_i64(o, "batch_most", f->batch_most);
    json_put(o, "sharded", counts_json(&f->n));
    return o;
}

static json_t *model_json(const struct closed_model *m)
{
    json_t *o = json_object();
    json_put_str(o, "family", m->family);
    json_put_i64(o, "layers", m->layers);
    json_put_i64(o, "hidden", m->hidden);
    json_put_i64(o, "heads", m->heads);
    json_put_i64(o, "kv_heads", m->kv_heads);
    json_put_i64(o, "ffn", m->ffn);
    json_put_i64(o, "vocab", m->vocab);
    json_put_bool(o, "tied", m->tied);
    return o;
}

/* Bytes of a trained parameter in every configuration (E5, P9b), with the chosen optimizer. */
static json_t *configurations(const struct closed_model *m, const struct closed_run *r)
{
    json_t *list = json_array();
    const struct closed_optim_row *o = closed_optim_at(r->optimizer);
    for (int i = 0; i < CLOSED_PRECISION_COUNT; i++) {
        const struct closed_precision_row *p = closed_precision_at(i);
        double state = o->states * (o->bytes > 0 ? o->bytes : (double)p->moment);
        double each = p->weight + p->gradient + p->master + state;
        json_t *row = json_object();
        json_put_str(row, "precision", p->name);
        json_put_i64(row, "weight", p->weight);
        json_put_i64(row, "gradient", p->gradient);
        json_put_i64(row, "master", p->master);
        json_put_f64(row, "state", state);
        json_put_f64(row, "bytes_per_parameter", each);
        put_size(row, "all", llround(each * (double)closed_model_parameters(m)));
        json_put_str(row, "about", p->about);
        (void)json_array_append_new(list, row);
    }
    return list;
}

/* ZeRO's stages over the asked cards, from the same sums: what a card holds between the passes. */
static json_t *stages(const struct closed_model *m, const struct closed_run *r)
{
    json_t *list = json_array();
    const struct closed_precision_row *p = closed_precision_at(r->precision);
    const struct closed_optim_row *o = closed_optim_at(r->optimizer);
    double n = (double)r->cards, all = (double)closed_model_parameters(m);
    double state = p->master + o->states * (o->bytes > 0 ? o->bytes : (double)p->moment);
    const struct {
        const char *name;
        double each;
    } row[] = {
        {"ddp", p->weight + p->gradient + state},
        {"zero1", p->weight + p->gradient + state / n},
        {"zero2", p->weight + (p->gradient + state) / n},
        {"zero3", (p->weight + p->gradient + state) / n},
        {"zero2 + optimizer offload", p->weight + p->gradient / n},
        {"zero3 + offload of both", p->gradient / n}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        json_t *s = json_object();
        json_put_str(s, "strategy", row[i].name);
        json_put_f64(s, "bytes_per_parameter", row[i].each);
        put_size(s, "per_card", llround(row[i].each * all));
        (void)json_array_append_new(list, s);
    }
    return list;
}

static void founding_json(
    const struct closed_model *m, const struct closed_run *r, const struct closed_card *card,
    json_t *d)
{
    struct closed_founding f = closed_founding_make(m, r);
    int64_t size = card ? card->nominal_bytes : 80000000000;
    struct closed_cards n = closed_cards_for(f.total_bytes, size);
    json_t *cards = counts_json(&n);
    json_put_i64(cards, "by_division", n.bare);
    json_put_str(cards, "card", card ? card->name : "80 GB");
    put_size(d, "states", f.states_bytes);
    put_size(d, "layer", f.layer_bytes);
    put_size(d, "activations", f.activations_bytes);
    put_size(d, "total", f.total_bytes);
    json_put(d, "cards", cards);
}

static const char *const usual[] = {"RTX3060-12GB", "RTX4090-24GB", "A100-40GB", "L40S-48GB",
                                    "A100-80GB",    "H100-80GB",    "H200-141GB"};
enum { USUAL_COUNT = sizeof usual / sizeof *usual };

static const struct closed_card *usual_card(int i)
{
    int k = 0;
    while (strcmp(closed_card_at(k)->name, usual[i]) != 0)
        k++;
    return closed_card_at(k);
}

static enum status fits_json(
    const struct closed_model *m, const struct closed_run *r, const struct closed_card *only,
    json_t *d, struct err *e)
{
    json_t *list = json_array();
    json_put(d, "fits", list);
    for (int i = 0; i < (only ? 1 : USUAL_COUNT); i++) {
        struct closed_fit f;
        TRY(closed_fit_make(m, r, only ? only : usual_card(i), &f, e));
        (void)json_array_append_new(list, fit_json(&f));
    }
    return ST_OK;
}

static enum status walk_json(
    const struct closed_model *m, const struct closed_run *r, const struct closed_card *card,
    json_t *d, struct err *e)
{
    struct closed_estimate x;
    json_t *phases = json_array();
    TRY(closed_estimate_make(m, r, &x, e));
    json_put_i64(d, "trainable", x.trainable);
    json_put_f64(d, "bytes_per_parameter", x.bytes_per_parameter);
    json_put(d, "peak", peak_json(&x.peak));
    put_size(d, "allocated", x.peak.bytes);
    put_size(d, "between_steps", x.start_bytes);
    put_size(d, "context", x.context_bytes);
    put_size(d, "per_card", x.card_bytes);
    put_size(d, "total", x.total_bytes);
    put_size(d, "layer", x.layer_bytes);
    put_size(d, "logits", x.logits_bytes);
    if (x.host_bytes)
        put_size(d, "host", x.host_bytes);
    for (int i = 0; i < TAPE_PHASE_COUNT; i++) {
        x.phase[i].phase = (enum tape_phase)i;
        (void)json_array_append_new(phases, peak_json(&x.phase[i]));
    }
    json_put(d, "phases", phases);
    json_put(d, "strategies", stages(m, r));
    return fits_json(m, r, card, d, e);
}

/* The run as it was understood: what no option said is here too. */
static json_t *run_json(const struct closed_run *r)
{
    static const char *const methods[] = {"full", "lora", "qlora"};
    static const char *const keeps[] = {"none", "blocks", "selective", "gelu"};
    static const char *const attentions[] = {"flash", "sdpa", "plain"};
    json_t *o = json_object();
    json_put_str(o, "framework", closed_framework_at(r->framework)->name);
    json_put_str(o, "method", methods[r->method]);
    if (r->method != CLOSED_FULL)
        json_put_i64(o, "rank", r->rank);
    json_put_str(o, "checkpointing", keeps[r->checkpointing]);
    json_put_str(o, "attention", attentions[r->attention]);
    json_put_i64(o, "zero", r->zero);
    json_put_bool(o, "inference", r->inference);
    return o;
}

static enum status advice_json(
    const struct closed_model *m, const struct closed_run *r, const struct closed_card *card,
    json_t *d, struct err *e)
{
    struct closed_lever levers[CLOSED_LEVERS_MAX];
    int n;
    int64_t limit = card ? card->usable_bytes : 0;
    TRY(closed_advise(m, r, limit, levers, &n, e));
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        json_t *o = json_object();
        json_put_str(o, "change", levers[i].option);
        json_put_str(o, "about", levers[i].about);
        put_size(o, "alone", levers[i].alone_bytes);
        put_size(o, "with_above", levers[i].bytes);
        if (card)
            json_put_i64(o, "free_bytes", limit - levers[i].bytes);
        (void)json_array_append_new(list, o);
    }
    json_put(d, "advice", list);
    return ST_OK;
}

enum status closed_report(
    const struct closed_model *m, const struct closed_run *r, bool founding,
    const struct closed_card *card, json_t **out, struct err *e)
{
    TRY(closed_run_check(m, r, e));
    json_t *d = json_object();
    enum status st = ST_OK;
    json_put_str(d, "figure", "closed form");
    json_put_str(d, "formula", founding ? "founding" : "walk");
    json_put(d, "model", model_json(m));
    json_put_i64(d, "parameters", closed_model_parameters(m));
    json_put_str(d, "precision", closed_precision_at(r->precision)->name);
    json_put_str(d, "optimizer", closed_optim_at(r->optimizer)->name);
    json_put_i64(d, "batch", r->batch);
    json_put_i64(d, "seq", r->seq);
    json_put_i64(d, "n_cards", r->cards);
    json_put(d, "configurations", configurations(m, r));
    if (founding)
        founding_json(m, r, card, d);
    else
        st = walk_json(m, r, card, d, e);
    json_put(d, "run", run_json(r));
    if (st == ST_OK && !founding)
        st = advice_json(m, r, card, d, e);
    if (st == ST_OK)
        *out = d;
    else
        json_decref(d);
    return st;
}

/* ---- text ---- */

static void size_line(const json_t *d, const char *key, const char *label, struct str *out)
{
    const json_t *s = json_object_get(d, key);
    if (s)
        str_printf(
            out, "  %-34s %10.2f GiB  %10.2f GB\n", label, json_get_f64(s, "gib", 0),
            json_get_f64(s, "gb", 0));
}

static void lines_text(const json_t *peak, struct str *out)
{
    const json_t *by = json_object_get(peak, "by_line");
    for (int k = 0; k < TAPE_KIND_COUNT; k++) {
        int64_t bytes = json_get_i64(by, tape_kind_name((enum tape_kind)k), 0);
        if (bytes >= 1 << 20)
            str_printf(
                out, "    %-32s %10.3f GiB  %10.3f GB\n", tape_kind_name((enum tape_kind)k),
                (double)bytes / GIB, (double)bytes / GB);
    }
}

static void phases_text(const json_t *d, struct str *out)
{
    json_t *p;
    size_t i;
    const char *fullest = json_get_str(json_object_get(d, "peak"), "phase", "");
    str_add(
        out, "\nfullest moment of each phase, a card (the peak is the largest, not their sum)\n");
    json_array_foreach(json_object_get(d, "phases"), i, p)
    {
        const char *name = json_get_str(p, "phase", "");
        int64_t bytes = json_get_i64(p, "bytes", 0);
        str_printf(
            out, "  %-34s %10.2f GiB  %10.2f GB%s\n", name, (double)bytes / GIB, (double)bytes / GB,
            strcmp(name, fullest) == 0 ? "   <- peak" : "");
    }
}

static void fits_text(const json_t *d, struct str *out)
{
    json_t *f;
    size_t i;
    str_add(
        out,
        "\nwhat holds it          as asked      largest batch   fully sharded: least   with 20% "
        "free\n");
    json_array_foreach(json_object_get(d, "fits"), i, f)
    {
        const json_t *n = json_object_get(f, "sharded");
        double left = (double)json_get_i64(f, "free_bytes", 0) / GIB;
        str_printf(
            out, "  %-18s %s %7.1f GiB %10lld %16lld%s %14lld\n", json_get_str(f, "card", ""),
            left >= 0 ? "free " : "short", left >= 0 ? left : -left,
            (long long)json_get_i64(f, "batch_most", 0), (long long)json_get_i64(n, "minimum", 0),
            json_get_bool(n, "tight", false) ? " (tight)" : "        ",
            (long long)json_get_i64(n, "safer", 0));
    }
    str_add(
        out, "  0: more than 1024 cards, or not by sharding. Counts assume full sharding (ZeRO-3, "
             "FSDP) and\n"
             "  the same batch on every card; under ddp each card needs the whole bill.\n");
}

static void founding_text(const json_t *d, struct str *out)
{
    const json_t *n = json_object_get(d, "cards");
    size_line(d, "states", "weights, gradients, state", out);
    size_line(d, "layer", "one layer's activations", out);
    size_line(d, "activations", "activations", out);
    size_line(d, "total", "total", out);
    str_printf(
        out,
        "\ncards (%s), fully sharded: %lld to start (%.0f%% free%s), %lld safer (%.0f%% free); by "
        "plain\n"
        "division %lld. Cards come in 1, 2, 4, 8. Under ddp each card needs the whole bill.\n",
        json_get_str(n, "card", ""), (long long)json_get_i64(n, "minimum", 0),
        100 * json_get_f64(n, "minimum_free_share", 0),
        json_get_bool(n, "tight", false) ? ": tight" : "", (long long)json_get_i64(n, "safer", 0),
        100 * json_get_f64(n, "safer_free_share", 0), (long long)json_get_i64(n, "by_division", 0));
}

static void configurations_text(const json_t *d, struct str *out)
{
    json_t *c;
    size_t i;
    str_add(
        out, "\nbytes a trained parameter   weight  gradient  master  state   sum   if all are "
             "trained\n");
    json_array_foreach(json_object_get(d, "configurations"), i, c)
    {
        const json_t *all = json_object_get(c, "all");
        str_printf(
            out, "  %-24s %7lld %9lld %7lld %6.2f %5.4g   %.2f GiB = %.2f GB\n",
            json_get_str(c, "precision", ""), (long long)json_get_i64(c, "weight", 0),
            (long long)json_get_i64(c, "gradient", 0), (long long)json_get_i64(c, "master", 0),
            json_get_f64(c, "state", 0), json_get_f64(c, "bytes_per_parameter", 0),
            json_get_f64(all, "gib", 0), json_get_f64(all, "gb", 0));
    }
}

static void size_text(int64_t bytes, struct str *out)
{
    str_printf(out, "%.2f GiB (%.2f GB)", (double)bytes / GIB, (double)bytes / GB);
}

static int64_t size_of(const json_t *d, const char *key)
{
    return json_get_i64(json_object_get(d, key), "bytes", 0);
}

static void assumed_text(const json_t *d, struct str *out)
{
    const json_t *r = json_object_get(d, "run");
    if (json_get_bool(r, "inference", false))
        str_add(out, "assumed: a forward pass only");
    else
        str_printf(
            out, "assumed: %s training as %s does it, checkpointing %s",
            json_get_str(r, "method", ""), json_get_str(r, "framework", ""),
            json_get_str(r, "checkpointing", ""));
    str_printf(out, ", %s attention", json_get_str(r, "attention", ""));
    if (json_object_get(r, "rank"))
        str_printf(
            out, "; rank %lld, %.4g million trained", (long long)json_get_i64(r, "rank", 0),
            (double)json_get_i64(d, "trainable", 0) / 1e6);
    int64_t n = json_get_i64(d, "n_cards", 1), zero = json_get_i64(r, "zero", 0);
    if (n > 1 && zero)
        str_printf(out, "; ZeRO-%lld over %lld cards", (long long)zero, (long long)n);
    else if (n > 1)
        str_printf(out, "; ddp over %lld cards", (long long)n);
    str_add(out, "\n\n");
}

/* Does it fit: one sentence a card that was asked about. */
static void verdict_text(const json_t *d, struct str *out)
{
    json_t *f;
    size_t i;
    const json_t *peak = json_object_get(d, "peak");
    str_add(out, "needs ");
    size_text(size_of(d, "per_card"), out);
    str_printf(
        out, " on %s; fullest in the %s\n",
        json_get_i64(d, "n_cards", 1) > 1 ? "each card" : "one card",
        json_get_str(peak, "phase", ""));
    json_array_foreach(json_object_get(d, "fits"), i, f)
    {
        int64_t left = json_get_i64(f, "free_bytes", 0);
        str_printf(
            out, "  %-18s %-13s", json_get_str(f, "card", ""), left >= 0 ? "fits" : "does not fit");
        str_add(out, " has ");
        size_text(size_of(f, "usable"), out);
        str_add(out, left >= 0 ? ", free " : ", short of ");
        size_text(left >= 0 ? left : -left, out);
        str_add(out, "\n");
    }
}

static void advice_text(const json_t *d, struct str *out)
{
    json_t *x;
    size_t i;
    const json_t *list = json_object_get(d, "advice");
    const json_t *cards = json_object_get(d, "fits");
    bool one = json_array_size(cards) == 1, fits = false;
    bool fits_smallest = json_get_bool(json_array_get(cards, 0), "fits", false);
    if (json_array_size(list) == 0 || fits_smallest)
        return;
    str_printf(
        out, "\n%s (mildest first; each with those above it)\n",
        one ? "what would make it fit" : "what would lower it");
    json_array_foreach(list, i, x)
    {
        int64_t bytes = size_of(x, "with_above"), left = json_get_i64(x, "free_bytes", -1);
        fits = one && left >= 0;
        str_printf(
            out, "  %-24s %8.2f GiB %8.2f GB%s  (alone %.2f GiB)  %s\n",
            json_get_str(x, "change", ""), (double)bytes / GIB, (double)bytes / GB,
            fits ? "  fits" : "      ", (double)size_of(x, "alone") / GIB,
            json_get_str(x, "about", ""));
    }
    if (one && !fits)
        str_add(out, "  none of these makes it fit: a smaller model, or more cards (below)\n");
}

void closed_report_text(const json_t *d, struct str *out)
{
    bool founding = strcmp(json_get_str(d, "formula", ""), "founding") == 0;
    const json_t *m = json_object_get(d, "model"), *peak = json_object_get(d, "peak");
    double parameters = (double)json_get_i64(d, "parameters", 0);
    str_printf(
        out, "closed form (%s): %s, %.4g %s parameters, batch %lld x %lld tokens, %s, %s\n\n",
        founding ? "founding formula" : "operators walked", json_get_str(m, "family", ""),
        parameters / (parameters < 1e9 ? 1e6 : 1e9), parameters < 1e9 ? "million" : "billion",
        (long long)json_get_i64(d, "batch", 0), (long long)json_get_i64(d, "seq", 0),
        json_get_str(d, "precision", ""), json_get_str(d, "optimizer", ""));
    if (founding) {
        founding_text(d, out);
        configurations_text(d, out);
        return;
    }
    assumed_text(d, out);
    verdict_text(d, out);
    advice_text(d, out);
    str_printf(
        out, "\nthe fullest moment of a card: in the %s, at \"%s\"\n",
        json_get_str(peak, "phase", ""), json_get_str(peak, "operator", ""));
    lines_text(peak, out);
    size_line(d, "allocated", "allocated by PyTorch", out);
    size_line(d, "context", "context (outside its counter)", out);
    size_line(d, "per_card", "a card", out);
    if (json_get_i64(d, "n_cards", 1) > 1)
        size_line(d, "total", "all cards", out);
    size_line(d, "host", "on the host, a card", out);
    phases_text(d, out);
    fits_text(d, out);
    configurations_text(d, out);
}
