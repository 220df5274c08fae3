/* cmd_estimate.c - `snug estimate`: what a run would need: of a transformer given by numbers, or of
 * a graph. */
#include "cli/answer.h"
#include "cli/commands.h"

#include "plan/closed_report.h"
#include "plan/graph_estimate.h"
#include "plan/verify.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers and names from options ---- */

/* "7e9", "7B", "124M". */
static bool read_count(const char *text, double *out)
{
    char number[64];
    size_t n = strlen(text);
    double scale = 1;
    if (n == 0 || n >= sizeof number)
        return false;
    memcpy(number, text, n + 1);
    switch (number[n - 1]) {
    case 'K':
    case 'k':
        scale = 1e3;
        break;
    case 'M':
    case 'm':
        scale = 1e6;
        break;
    case 'B':
    case 'b':
        scale = 1e9;
        break;
    case 'T':
        scale = 1e12;
        break;
    default:
        break;
    }
    if (scale > 1)
        number[n - 1] = 0;
    return str_to_f64(number, out) && isfinite(*out) && (*out *= scale) >= 1 && *out < 1e18;
}

static enum status read_real(
    const struct args *a, enum option_id id, const char *name, double low, double high, double *out,
    struct err *e)
{
    double x;
    const char *text = a->option[id].text;
    if (!text)
        return ST_OK;
    if (!str_to_f64(text, &x) || !(x >= low && x <= high))
        return err_set(
            e, ST_USAGE, "--%s is a number from %g to %g, not \"%s\"", name, low, high, text);
    *out = x;
    return ST_OK;
}

typedef const char *name_at(int i);
static const char *name_of_precision(int i)
{
    return closed_precision_at(i) ? closed_precision_at(i)->name : NULL;
}
static const char *optim_name(int i)
{
    return closed_optim_at(i) ? closed_optim_at(i)->name : NULL;
}
static const char *framework_name(int i)
{
    return closed_framework_at(i) ? closed_framework_at(i)->name : NULL;
}
static const char *card_name(int i)
{
    return closed_card_at(i) ? closed_card_at(i)->name : NULL;
}

/* The place of the option's text among the names; `out` stays where it is not given. */
static enum status read_name(
    const struct args *a, enum option_id id, const char *option, name_at *at, int *out,
    struct err *e)
{
    const char *text = a->option[id].text;
    struct str list;
    if (!text)
        return ST_OK;
    for (int i = 0; at(i); i++)
        if (strcmp(at(i), text) == 0) {
            *out = i;
            return ST_OK;
        }
    str_init(&list);
    for (int i = 0; at(i); i++)
        str_printf(&list, "%s%s", i ? ", " : "", at(i));
    (void)err_set(e, ST_USAGE, "--%s is one of %s, not \"%.60s\"", option, list.data, text);
    str_release(&list);
    return ST_USAGE;
}

/* "rtx 4090" is "RTX4090-24GB": letters and digits only, in one case. */
static void plain_name(const char *text, char *out, size_t n)
{
    size_t used = 0;
    for (; *text && used + 1 < n; text++)
        if (isalnum((unsigned char)*text))
            out[used++] = (char)toupper((unsigned char)*text);
    out[used] = 0;
}

/* "24GB": a card that is sold as that has about 24 GiB, of which the driver leaves 98 in a hundred.
 */
static bool sized_card(const char *text, struct closed_card *own)
{
    double gb;
    size_t n = strlen(text);
    char digits[16];
    if (n < 3 || n >= sizeof digits ||
        (strcmp(text + n - 2, "GB") != 0 && strcmp(text + n - 2, "gb") != 0))
        return false;
    memcpy(digits, text, n + 1);
    digits[n - 2] = 0;
    if (!str_to_f64(digits, &gb) || !(gb >= 1 && gb <= 10000))
        return false;
    *own = (struct closed_card){
        text, (int64_t)(gb * 1e9), (int64_t)(gb * 0.98 * 1024) * (1 << 20), 80};
    return true;
}

/* The one card whose name has the option's text in it, or one that is given by its size alone. */
static enum status card_of(
    const struct args *a, struct closed_card *own, const struct closed_card **out, struct err *e)
{
    const char *text = a->option[OPTION_CARD].text;
    char asked[64], name[64];
    int found = -1, n = 0;
    *out = NULL;
    if (!text)
        return ST_OK;
    if (sized_card(text, own)) {
        *out = own;
        return ST_OK;
    }
    plain_name(text, asked, sizeof asked);
    for (int i = 0; asked[0] && closed_card_at(i); i++) {
        plain_name(closed_card_at(i)->name, name, sizeof name);
        if (strstr(name, asked)) {
            found = i;
            n++;
        }
    }
    if (n != 1)
        return read_name(a, OPTION_CARD, "card", card_name, &found, e);
    *out = closed_card_at(found);
    return ST_OK;
}

static int64_t number(const struct args *a, enum option_id id, int64_t fallback)
{
    return a->option[id].given ? a->option[id].number : fallback;
}

static int choice(const struct args *a, enum option_id id, const char *const *names, int fallback)
{
    for (int i = 0; a->option[id].text && names[i]; i++)
        if (strcmp(names[i], a->option[id].text) == 0)
            return i;
    return fallback;
}

/* ---- the model ---- */

static enum status model_of(const struct args *a, struct closed_model *m, struct err *e)
{
    static const char *const heads[] = {"lm", "classes", "mlm", "none", NULL};
    double parameters = 0;
    *m = (struct closed_model){0};
    if (a->option[OPTION_HF].given) {
        TRY(closed_model_read(a->option[OPTION_HF].text, a->option[OPTION_FAMILY].text, m, e));
    } else {
        if (a->option[OPTION_FAMILY].given)
            (void)strncpy(m->family, a->option[OPTION_FAMILY].text, sizeof m->family - 1);
        TRY(closed_model_family(m, e));
    }
    if (a->option[OPTION_PARAMS].given) {
        if (!read_count(a->option[OPTION_PARAMS].text, &parameters))
            return err_set(
                e, ST_USAGE, "--params is a number as 7e9, 7B or 124M, not \"%s\"",
                a->option[OPTION_PARAMS].text);
        m->parameters = (int64_t)parameters;
    }
    m->layers = number(a, OPTION_LAYERS, m->layers);
    m->hidden = number(a, OPTION_HIDDEN, m->hidden);
    m->heads = number(a, OPTION_HEADS, m->heads);
    m->kv_heads = number(a, OPTION_KV_HEADS, m->kv_heads);
    m->head_dim = number(a, OPTION_HEAD_DIM, m->head_dim);
    m->ffn = number(a, OPTION_FFN, m->ffn);
    m->vocab = number(a, OPTION_VOCAB, m->vocab);
    m->positions = number(a, OPTION_POSITIONS, m->positions);
    m->experts = number(a, OPTION_EXPERTS, m->experts);
    m->experts_per_token = number(a, OPTION_EXPERTS_PER_TOKEN, m->experts_per_token);
    m->tied = m->tied || a->option[OPTION_TIED].given;
    m->head = (enum closed_head)choice(a, OPTION_HEAD, heads, (int)m->head);
    TRY(read_real(a, OPTION_DROPOUT, "dropout", 0, 0.99, &m->dropout, e));
    enum status st = closed_model_complete(m, e);
    if (st != ST_OK)
        err_hint(
            e, "give a config.json with --hf, or --layers, --hidden, --heads (and --ffn, --vocab, "
               "--kv-heads); a graph is given as GRAPH");
    return st;
}

/* ---- the run ---- */

static enum status targets_of(const struct args *a, unsigned *out, struct err *e)
{
    static const struct {
        const char *name;
        unsigned bits;
    } names[] = {
        {"q", CLOSED_Q},
        {"k", CLOSED_K},
        {"v", CLOSED_V},
        {"o", CLOSED_O},
        {"gate", CLOSED_GATE},
        {"up", CLOSED_UP},
        {"down", CLOSED_DOWN},
        {"attention", CLOSED_ATTENTION},
        {"qkv", CLOSED_Q | CLOSED_K | CLOSED_V},
        {"all-linear", CLOSED_ALL_LINEAR}};
    const char *s = a->option[OPTION_TARGETS].text;
    if (!s)
        return ST_OK;
    *out = 0;
    while (*s) {
        size_t n = strcspn(s, ","), i = 0;
        while (i < sizeof names / sizeof *names &&
               (strlen(names[i].name) != n || strncmp(names[i].name, s, n) != 0))
            i++;
        if (i == sizeof names / sizeof *names)
            return err_set(
                e, ST_USAGE,
                "--targets names q, k, v, o, gate, up, down, qkv, attention or all-linear, not "
                "\"%.*s\"",
                (int)(n > 40 ? 40 : n), s);
        *out |= names[i].bits;
        s += n + (s[n] == ',');
    }
    return ST_OK;
}

static enum status habits(const struct args *a, struct closed_run *r, struct err *e)
{
    static const char *const losses[] = {"plain",          "shifted",     "upcast",  "upcast-fused",
                                         "fused",          "float-fused", "chunked", "chunk128",
                                         "chunked-output", NULL};
    static const char *const steps[] = {"single", "foreach", "fused", NULL};
    int framework = 0;
    TRY(read_name(a, OPTION_FRAMEWORK, "framework", framework_name, &framework, e));
    closed_run_framework(r, framework);
    r->loss = (enum closed_loss)choice(a, OPTION_LOSS, losses, (int)r->loss);
    r->step = (enum closed_step)choice(a, OPTION_STEP, steps, (int)r->step);
    if (a->option[OPTION_FUSED_LAYERS].given)
        r->fused_norm = r->fused_mlp = true;
    if (a->option[OPTION_HOLD_GRADIENTS].given)
        r->habits |= CLOSED_GRADIENT_BUFFER;
    if (a->option[OPTION_HOLD_LOGITS].given)
        r->holds_logits = 2;
    if (a->option[OPTION_QUANT_INPUTS].given)
        r->habits |= CLOSED_QUANT_INPUTS;
    return ST_OK;
}

static enum status
run_of(const struct args *a, struct closed_run *r, const struct closed_card *card, struct err *e)
{
    static const char *const methods[] = {"full", "lora", "qlora", NULL};
    static const char *const keeps[] = {"none", "blocks", "selective", "gelu", NULL};
    static const char *const attentions[] = {"flash", "sdpa", "plain", NULL};
    static const char *const stages[] = {"0", "1", "2", "3", NULL};
    static const char *const offloads[] = {"none", "optimizer", "params", NULL};
    closed_run_defaults(r);
    TRY(habits(a, r, e));
    r->batch = number(a, OPTION_BATCH, r->batch);
    r->seq = number(a, OPTION_SEQ, r->seq);
    r->rank = number(a, OPTION_RANK, r->rank);
    int64_t cards = number(a, OPTION_CARDS, 1);
    if (cards < 1 || cards > 100000)
        return err_set(e, ST_USAGE, "--cards is a number from 1 to 100000");
    r->cards = (int)cards;
    int64_t context_mib = number(a, OPTION_CONTEXT_MIB, r->context_bytes >> 20);
    if (context_mib > 1 << 20)
        return err_set(e, ST_USAGE, "--context-mib is a number from 0 to %d", 1 << 20);
    r->context_bytes = context_mib << 20;
    TRY(read_name(a, OPTION_PRECISION, "precision", name_of_precision, &r->precision, e));
    TRY(read_name(a, OPTION_OPTIMIZER, "optimizer", optim_name, &r->optimizer, e));
    if (card)
        r->sm = card->sm;
    TRY(targets_of(a, &r->targets, e));
    TRY(read_real(a, OPTION_LORA_DROPOUT, "lora-dropout", 0, 0.99, &r->lora_dropout, e));
    TRY(read_real(a, OPTION_QUANT_BITS, "quant-bits", 1, 16, &r->quant_bits, e));
    r->method = (enum closed_method)choice(a, OPTION_METHOD, methods, CLOSED_FULL);
    r->checkpointing =
        (enum closed_checkpointing)choice(a, OPTION_CHECKPOINTING, keeps, CLOSED_KEEP);
    r->attention = (enum closed_attention)choice(a, OPTION_ATTENTION, attentions, CLOSED_FLASH);
    r->zero = choice(a, OPTION_ZERO, stages, 0);
    int offload = choice(a, OPTION_OFFLOAD, offloads, 0);
    r->offload_optimizer = offload >= 1;
    r->offload_params = offload == 2;
    r->train_embeddings = a->option[OPTION_TRAIN_EMBEDDINGS].given;
    r->update_in_backward = a->option[OPTION_UPDATE_IN_BACKWARD].given;
    r->first_step = a->option[OPTION_FIRST_STEP].given;
    r->inference = a->option[OPTION_INFERENCE].given;
    return ST_OK;
}

static enum status closed(const struct args *a, json_t **out, struct err *e)
{
    struct closed_model m;
    struct closed_run r;
    struct closed_card own;
    const struct closed_card *card;
    TRY(model_of(a, &m, e));
    TRY(card_of(a, &own, &card, e));
    TRY(run_of(a, &r, card, e));
    TRY(closed_model_split(&m, number(a, OPTION_TP, 1), e));
    bool founding =
        a->option[OPTION_FORMULA].text && strcmp(a->option[OPTION_FORMULA].text, "founding") == 0;
    return closed_report(&m, &r, founding, card, out, e);
}

static enum status of_graph(const struct args *a, json_t **out, struct err *e)
{
    struct graph *g = NULL;
    struct run_options o = run_options_of(a);
    TRY(graph_of(a, &g, e));
    json_t *verified = NULL;
    enum status st = graph_estimate(g, &o, out, e);
    if (st == ST_OK && a->option[OPTION_VERIFY].given) {
        st = graph_verify(g, &o, &verified, e);
        if (st == ST_OK)
            json_put(*out, "verified", verified);
        else
            json_decref(*out);
    }
    graph_free(g);
    return st;
}

/* An option of the other kind of estimate would change nothing: better to say so than to ignore it.
 */
static enum status options_check(const struct args *a, bool graph, struct err *e)
{
    static const char *const names[] = {
#define OPTION(id, name, value, kind, choices, about) name,
#include "cli/options.def"
#undef OPTION
    };
    for (int i = 0; i < OPTION_COUNT; i++) {
        bool both = i == OPTION_JSON || i == OPTION_HELP;
        bool of_graph = i == OPTION_DEVICE || i == OPTION_MEMORY_GIB || i == OPTION_SEED ||
                        i == OPTION_SET || i == OPTION_THREADS || i == OPTION_VERIFY;
        if (!a->option[i].given || both || of_graph == graph)
            continue;
        (void)err_set(
            e, ST_USAGE,
            graph ? "--%s describes a model without a graph, and GRAPH is given"
                  : "--%s goes with GRAPH",
            names[i]);
        if (graph)
            err_hint(
                e, "change the graph with --set NODE.PARAM=V, as --set DataLoader.batch_size=4");
        return ST_USAGE;
    }
    return ST_OK;
}

int cmd_estimate(const struct args *a)
{
    struct err e = {0};
    struct str out;
    json_t *d = NULL;
    int rc = 0;
    bool graph = a->n_arguments > 0;
    str_init(&out);
    enum status st = options_check(a, graph, &e);
    if (st == ST_OK)
        st = graph ? of_graph(a, &d, &e) : closed(a, &d, &e);
    if (st == ST_OK && !a->json) {
        if (graph)
            graph_estimate_text(d, &out);
        if (json_object_get(d, "verified"))
            graph_verify_text(json_object_get(d, "verified"), &out);
        if (!graph)
            closed_report_text(d, &out);
        rc = answer_text(out.data);
        json_decref(d);
        d = NULL;
    }
    int end = answer_end(a->json, st, &e, d);
    str_release(&out);
    return end ? end : rc;
}
