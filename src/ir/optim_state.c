/* optim_state.c - the table of optimizer states. */
#include "ir/optim_state.h"

#include "base/rng.h"
#include "ir/quant.h"

enum start { START_ZERO, START_ONE, START_RATE };
enum form { FORM_FULL, FORM_SCALAR, FORM_ROW, FORM_COL };
enum range { RANGE_NEITHER, RANGE_SIGNED, RANGE_POSITIVE };

struct row {
    enum optim_kind kind;
    bool (*exists)(const struct optim_attr *a);
    const char *name, *codes, *absmax;
    enum form form;
    enum dtype dtype;
    enum start start;
    enum range range;
};

/* One predicate a row, named by its line. */
#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define X(kind, when, ...)                                                                         \
    static bool JOIN(exists_, __LINE__)(const struct optim_attr *a)                                \
    {                                                                                              \
        (void)a;                                                                                   \
        return when;                                                                               \
    }
#include "ir/optim_states.def"
#undef X

static const struct row rows[] = {
#define X(kind, when, name, form, dtype, start, range)                                             \
    {OPTIM_##kind,  JOIN(exists_, __LINE__), name,                                                 \
     name "_codes", name "_absmax",          FORM_##form,                                          \
     DT_##dtype,    START_##start,           RANGE_##range},
#include "ir/optim_states.def"
#undef X
};
enum { ROWS = sizeof rows / sizeof *rows };

/* Row number k of the optimizer; NULL past the last. */
static const struct row *row_of(const struct optim_attr *a, int k)
{
    for (int r = 0; r < ROWS; r++)
        if (rows[r].kind == a->kind && rows[r].exists(a) && k-- == 0)
            return &rows[r];
    return 0;
}

static int row_count(const struct optim_attr *a)
{
    int n = 0;
    while (row_of(a, n))
        n++;
    return n;
}

/* What state i is. */
struct place {
    const struct row *row; /* NULL: the master */
    enum { PLACE_WHOLE, PLACE_CODES, PLACE_ABSMAX } part;
};

static struct place place_at(const struct optim_attr *a, int i)
{
    int n = row_count(a), k = i - a->master;
    struct place p = {0};
    ASSERT(i >= 0 && i < optim_state_count(a));
    if (k < 0)
        return p;
    p.part = !a->int8 ? PLACE_WHOLE : k < n ? PLACE_CODES : PLACE_ABSMAX;
    p.row = row_of(a, p.part == PLACE_ABSMAX ? k - n : k);
    ASSERT(p.row);
    return p;
}

const char *optim_name(enum optim_kind kind)
{
    static const char *const names[OPTIM_COUNT] = {"SGD",     "Adam",     "AdamW", "RMSprop",
                                                   "Adagrad", "RAdam",    "NAdam", "Rprop",
                                                   "ASGD",    "Adafactor"};
    return names[kind];
}

struct optim_attr optim_attr_for(
    const struct optim_attr *a, const struct shape *param, enum dtype type, const char *name)
{
    struct optim_attr own = *a;
    own.int8 = a->int8 && shape_count(param) >= QUANT_STATE_LEAST && row_count(a) > 0;
    own.factored = a->kind == OPTIM_ADAFACTOR && param->rank > 1;
    own.master = a->master && type != DT_F32;
    own.stochastic = a->stochastic && type != DT_F32;
    own.stream = own.stochastic ? (uint32_t)hash_name(name) : 0;
    return own;
}

enum status optim_int8_check(const struct optim_attr *a, struct err *e)
{
    const struct row *r = NULL;
    for (int k = 0; (r = row_of(a, k)); k++) {
        if (r->range != RANGE_NEITHER)
            continue;
        (void)err_set(
            e, ST_UNSUPPORTED, "optimizer_state int8 has no form for \"%s\" of %s", r->name,
            optim_name(a->kind));
        err_hint(
            e, "int8 works with Adam, AdamW (without amsgrad), SGD, RMSprop and Adagrad; Adafactor "
               "is the other optimizer with a small state");
        return ST_UNSUPPORTED;
    }
    return ST_OK;
}

int optim_state_count(const struct optim_attr *a)
{
    return a->master + row_count(a) * (a->int8 ? 2 : 1);
}

const char *optim_state_name(const struct optim_attr *a, int i)
{
    struct place p = place_at(a, i);
    if (!p.row)
        return "master";
    return p.part == PLACE_CODES    ? p.row->codes
           : p.part == PLACE_ABSMAX ? p.row->absmax
                                    : p.row->name;
}

struct shape optim_state_shape(const struct optim_attr *a, int i, const struct shape *param)
{
    struct place p = place_at(a, i);
    struct shape s = *param;
    if (p.row && p.part == PLACE_ABSMAX)
        return SHAPE((shape_count(param) + QUANT_STATE_BLOCK - 1) / QUANT_STATE_BLOCK);
    if (p.row && p.row->form == FORM_SCALAR)
        return shape_scalar();
    if (p.row && p.row->form == FORM_ROW)
        s.dim[s.rank - 1] = 1;
    if (p.row && p.row->form == FORM_COL)
        s.dim[s.rank - 2] = 1;
    return s;
}

enum dtype optim_state_dtype(const struct optim_attr *a, int i)
{
    struct place p = place_at(a, i);
    return !p.row || p.part == PLACE_ABSMAX ? DT_F32 : p.part == PLACE_CODES ? DT_U8 : p.row->dtype;
}

double optim_state_start(const struct optim_attr *a, int i, double rate)
{
    struct place p = place_at(a, i);
    if (!p.row || p.part == PLACE_ABSMAX)
        return 0;
    if (p.part == PLACE_CODES)
        return quant_dynamic(p.row->range == RANGE_SIGNED)->zero;
    return p.row->start == START_RATE ? rate : p.row->start == START_ONE ? 1 : 0;
}

int optim_state_full(const struct optim_attr *a)
{
    int n = 0;
    while (row_of(a, n) && row_of(a, n)->form == FORM_FULL)
        n++;
    return n;
}

bool optim_state_signed(const struct optim_attr *a, int k)
{
    return row_of(a, k)->range == RANGE_SIGNED;
}
