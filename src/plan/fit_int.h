/* fit_int.h - between the files of `snug fit`: levers as a graph has them, plans, ways. */
#ifndef PLAN_FIT_INT_H
#define PLAN_FIT_INT_H

#include "plan/fit.h"

enum { FIT_LEVERS_MAX = 24, FIT_LEVELS_MAX = 12 };

/* A setting that starts with this is no --set but a node to insert: "+SOURCE|PORT|TYPE|NAME=VALUE,
 * ...", with ports "model". */
#define FIT_INSERT "+"

/* A lever of this graph: what --set takes, by how far it is turned; the weakest first. */
struct fit_lever {
    const char *id; /* of its row in levers.def */
    const char *name, *allow, *costs, *keeps;
    enum fit_group group;
    const char **settings[FIT_LEVELS_MAX]; /* each a list that ends with NULL */
    int levels;
    int batch_shift[FIT_LEVELS_MAX]; /* the micro-batch is 2^this smaller */
};

/* How far each lever is turned: 0 is off. */
struct fit_choice {
    signed char level[FIT_LEVERS_MAX];
};

struct fit_plan {
    struct fit_choice choice;
    bool valid; /* the levers go together, and the graph can be planned */
    bool fits;  /* with `oom`: where that run did not */
    int64_t peak_bytes;
    double flops;           /* of a sample, relative to others of this graph */
    int64_t transfer_bytes; /* between device and host, in a micro-batch */
};

struct fit_way {
    struct fit_choice choice;
    enum fit_group group;
    int levers_n;
    int64_t peak_bytes;
    double extra_compute;         /* 0.2: a fifth more arithmetic */
    int64_t extra_transfer_bytes; /* in a micro-batch */
};

struct fit {
    struct fit_options o;
    struct arena memory;
    struct fit_lever levers[FIT_LEVERS_MAX];
    int levers_n;
    bool allowed[FIT_LEVERS_MAX];
    VEC(struct fit_plan) plans; /* all that were made, the graph's own first */
    VEC(struct fit_way) ways;   /* by group, then the cheapest first */
    int64_t least_bytes;
    struct fit_choice least;
    json_t *least_plan; /* the document of the least */
    int plans_left;     /* in this group */
    bool on_card;       /* training runs on a card: there is a host beside it */
    /* The run that this is the advice for; NULL: none. Peaks are those on its device, and a smaller
     * micro-batch is offered beside batch statistics too. */
    const struct run_oom *oom;
};

/* The graph with the user's --set and those of a choice. */
enum status fit_graph_with(
    const struct fit *f, const struct fit_choice *c, struct graph **out, struct err *e) NODISCARD;
/* Plans a choice. */
enum status fit_plan_make(
    struct fit *f, const struct fit_choice *c, struct fit_plan *out, struct err *e) NODISCARD;
/* Whether a layer of the graph looks at the whole batch (BatchNorm). */
bool fit_batch_statistics(const struct graph *g);

/* Every word of --allow belongs to a lever: else ST_USAGE. */
enum status fit_words_check(const char *allow, struct err *e) NODISCARD;
/* Fills f->levers from the graph: only levers that this version runs, and that change something
 * (on_card has to be set). */
enum status fit_levers_find(struct fit *f, const struct graph *g, struct err *e) NODISCARD;
/* Whether two levers set the same parameter of the same node. */
bool fit_levers_clash(const struct fit_lever *a, const struct fit_lever *b);
/* The words that --allow knows, that would offer something here, and were not given: "bf16, half".
 */
void fit_words_left(const struct fit *f, struct str *out);
/* The words that were given and have nothing to offer here. */
void fit_words_idle(const struct fit *f, struct str *out);
/* Every setting of a choice, in the order of the levers: a list in f->memory that ends with NULL.
 */
const char **fit_settings(const struct fit *f, const struct fit_choice *c, struct arena *memory);

#endif
