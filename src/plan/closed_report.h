/* closed_report.h - the closed form's answer as a document and as text: the bill of a card, of all
 * cards, what fits, and on how many cards. */
#ifndef PLAN_CLOSED_REPORT_H
#define PLAN_CLOSED_REPORT_H

#include "base/str.h"
#include "plan/closed_form.h"

/* Cards that hold the run when weights, gradients and state are fully sharded (ZeRO-3) and each
 * card computes its own batch. 0: more than 1024. */
struct closed_fit {
    const struct closed_card *card;
    bool fits;          /* the run as asked for, on one of its cards */
    int64_t free_bytes; /* of that card; negative: missing */
    int64_t batch_most; /* the largest batch a card takes as asked; 0: not even 1 */
    struct closed_cards n;
};
enum status closed_fit_make(
    const struct closed_model *m, const struct closed_run *r, const struct closed_card *card,
    struct closed_fit *out, struct err *e) NODISCARD;

/* `card`: NULL for the sizes people ask about. New reference. */
enum status closed_report(
    const struct closed_model *m, const struct closed_run *r, bool founding,
    const struct closed_card *card, json_t **out, struct err *e) NODISCARD;
void closed_report_text(const json_t *report, struct str *out);

#endif
