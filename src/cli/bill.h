/* bill.h - the memory bill and the result of a run as text, from the documents of run.h.
 *
 * Sizes are in KiB, MiB, GiB; peaks also in powers of 1000, as they are quoted elsewhere.
 */
#ifndef CLI_BILL_H
#define CLI_BILL_H

#include "base/json.h"
#include "base/str.h"

struct bill_options {
    bool colour;
    bool all_programs;      /* a chart of every program, not only of that with the peak */
    int rows_max;           /* rows of by_node */
    int64_t process_bytes;  /* what the process holds beside the plan; <= 0: not known */
    int64_t budget_bytes;   /* 0: none */
    int64_t capacity_bytes; /* of this machine; <= 0: not known */
};
/* `plan`: run_plan_json with its timelines. */
void bill_text(const json_t *plan, const struct bill_options *o, struct str *out);
/* `document`: run_document, of a run that ended well or was stopped. */
void bill_result_text(const json_t *document, bool colour, struct str *out);

/* "112.34 MiB (117.8 MB)". Returns buf. */
const char *bill_size(int64_t bytes, char *buf, size_t cap);
/* A bar of `value` out of `most`, `width` columns, in eighths of a column. */
void bill_bar(struct str *out, double value, double most, int width);
/* A chart of n values, at most `columns` wide and `rows` high, each line after `indent` blanks. */
void bill_chart(struct str *out, const int64_t *value, size_t n, int columns, int rows);

#endif
