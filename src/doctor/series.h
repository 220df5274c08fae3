/* series.h - figures that a log prints again and again: memory, loss, scale, norm, speed.
 *
 * A series is one label from one source ("rank0", "max mem"). All points are counted, at most
 * SERIES_POINTS evenly spaced ones kept. Memory is in bytes; the unit of figures without one is
 * guessed once per series.
 */
#ifndef DOCTOR_SERIES_H
#define DOCTOR_SERIES_H

#include "base/mem.h"

#include <stdbool.h>
#include <stdint.h>

enum series_kind {
    SERIES_ALLOCATED,
    SERIES_RESERVED,
    SERIES_USED, /* of the card or the process, or not said which */
    SERIES_PEAK,
    SERIES_FREE,
    SERIES_LOSS,
    SERIES_SCALE,
    SERIES_NORM,
    SERIES_SPEED, /* steps a second */
    SERIES_KINDS
};

enum { SERIES_POINTS = 128, SERIES_MAX = 128 };

struct series {
    enum series_kind kind;
    char label[24], source[32];
    int64_t n;          /* points seen */
    int64_t not_finite; /* of them NaN or infinite: not among the points */
    int64_t first_line, last_line, first_bad_line;
    double unit; /* of figures without one; 0 undecided */
    double first, last, least, most;
    int64_t stride; /* every so many points one is kept */
    int kept;
    double points[SERIES_POINTS];
};
struct series_table {
    VEC(struct series *) all;
    size_t points; /* labelled figures so far */
};

/* Whether a line may hold a figure of memory without a word that says so: it ends with a number (as
 * print(torch.cuda.memory_allocated()) gives), or is a row of YOLO's progress. */
bool series_bare(const char *line);
/* Reads every figure of a line. */
void series_line(struct series_table *t, const char *source, const char *line, int64_t number);
void series_add(
    struct series_table *t, const char *source, enum series_kind kind, const char *label, double x,
    int64_t line);
void series_release(struct series_table *t);

/* How a series of memory goes. */
struct series_trend {
    bool rising;      /* it goes up all along, not only at the start */
    double total;     /* last - first, of the lower edge when it swings */
    double per_point; /* of the second half */
    int64_t points;
};
struct series_trend series_trend_of(const struct series *s);
const char *series_kind_name(enum series_kind k);

#endif
