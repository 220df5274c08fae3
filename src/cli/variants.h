/* variants.h - what `snug sweep` and `snug study` have in common: submitting, waiting, ranking. */
#ifndef CLI_VARIANTS_H
#define CLI_VARIANTS_H

#include "cli/remote.h"

struct variants_kind {
    const char *what; /* "sweep" */
    const char *path; /* "/api/sweeps" */
    const char *list; /* "sweeps" */
    const char *id;   /* "sweep_id" */
    bool needs_params;
};
/* The body goes to the server; without --detach it waits for the end and shows the ranking.
 * `adjust` (may be NULL) changes the body before it goes. */
enum status variants_submit(
    const struct variants_kind *k, const struct args *a, struct client *c,
    enum status (*adjust)(const struct args *a, json_t *body, struct err *e), json_t *d,
    struct str *out, struct err *e) NODISCARD;
enum status variants_show(
    const struct variants_kind *k, const struct args *a, struct client *c, json_t *d,
    struct str *out, struct err *e) NODISCARD;
enum status variants_csv(
    const struct variants_kind *k, const struct args *a, struct client *c, json_t *d,
    struct str *out, struct err *e) NODISCARD;
enum status variants_list(
    const struct variants_kind *k, struct client *c, json_t *d, struct str *out,
    struct err *e) NODISCARD;
/* POST PATH/ID/WORD; `said` ends the line "study 9e77 ...". */
enum status variants_tell(
    const struct variants_kind *k, const struct args *a, struct client *c, const char *word,
    const char *said, json_t *d, struct str *out, struct err *e) NODISCARD;

#endif
