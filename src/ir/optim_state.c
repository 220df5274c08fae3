/* optim_state.c - the table of optimizer states. */
#include "ir/optim_state.h"

#include "base/err.h"

enum start { START_ZERO, START_ONE, START_RATE };

struct row {
    enum optim_kind kind;
    bool (*exists)(const struct optim_attr *a);
    const char *name;
    bool scalar;
    enum dtype dtype;
    enum start start;
};

/* One predicate a row, named by its line. */
#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)
#define X(kind, when, name, scalar, dtype, start)                                                  \
    static bool JOIN(exists_, __LINE__)(const struct optim_attr *a)                                \
    {                                                                                              \
        (void)a;                                                                                   \
        return when;                                                                               \
    }
#include "ir/optim_states.def"
#undef X

static const struct row rows[] = {
#define X(kind, when, name, scalar, dtype, start)                                                  \
    {OPTIM_##kind, JOIN(exists_, __LINE__), name, scalar, DT_##dtype, START_##start},
#include "ir/optim_states.def"
#undef X
};
enum { ROWS = sizeof rows / sizeof *rows };

static const struct row *row_of(const struct optim_attr *a, int i)
{
    for (int r = 0; r < ROWS; r++)
        if (rows[r].kind == a->kind && rows[r].exists(a) && i-- == 0)
            return &rows[r];
    return 0;
}

static const struct row *row_at(const struct optim_attr *a, int i)
{
    const struct row *r = row_of(a, i);
    ASSERT(i >= 0 && r);
    return r;
}

const char *optim_name(enum optim_kind kind)
{
    static const char *const names[OPTIM_COUNT] = {"SGD",   "Adam",  "AdamW", "RMSprop", "Adagrad",
                                                   "RAdam", "NAdam", "Rprop", "ASGD"};
    return names[kind];
}

int optim_state_count(const struct optim_attr *a)
{
    int n = 0;
    while (row_of(a, n))
        n++;
    return n;
}

const char *optim_state_name(const struct optim_attr *a, int i)
{
    return row_at(a, i)->name;
}

struct shape optim_state_shape(const struct optim_attr *a, int i, const struct shape *param)
{
    return row_at(a, i)->scalar ? shape_scalar() : *param;
}

enum dtype optim_state_dtype(const struct optim_attr *a, int i)
{
    return row_at(a, i)->dtype;
}

double optim_state_start(const struct optim_attr *a, int i, double rate)
{
    enum start start = row_at(a, i)->start;
    return start == START_RATE ? rate : start == START_ONE ? 1 : 0;
}
