/* verdict.h - which kind of out-of-memory it was, why, and what helps (rows: rules.def,
 * remedies.def). */
#ifndef DOCTOR_VERDICT_H
#define DOCTOR_VERDICT_H

#include "doctor/evidence.h"

#include "base/json.h"
#include "base/str.h"

#define OOM_KINDS(X)                                                                               \
    X(CAPACITY, "capacity", "live tensors fill the memory")                                        \
    X(FRAGMENTATION, "fragmentation", "free memory lies in pieces that are too small")             \
    X(GROWTH, "growth", "memory rises from step to step")                                          \
    X(EVALUATION_GRAPH, "evaluation_graph", "an evaluation keeps what only training needs")        \
    X(OTHER_PROCESS, "other_process", "the memory is held outside this program's allocator")       \
    X(SINGLE_REQUEST, "single_request", "one request that cannot fit")                             \
    X(OWN_LIMIT, "own_limit", "a limit that this program was given")                               \
    X(ENVIRONMENT, "environment", "something outside the card's memory refused")                   \
    X(OVERSUBSCRIPTION, "oversubscription", "the card was exceeded into the host's memory")        \
    X(UNKNOWN, "unknown", "the input does not say")

enum oom_kind {
#define X(id, name, about) OOM_##id,
    OOM_KINDS(X)
#undef X
        OOM_KIND_COUNT
};
const char *oom_kind_name(enum oom_kind k);
const char *oom_kind_about(enum oom_kind k);

enum confidence { CONFIDENCE_LOW, CONFIDENCE_MEDIUM, CONFIDENCE_HIGH };
const char *confidence_name(enum confidence c);

enum { VERDICT_ALSO = 4, VERDICT_REMEDIES = 16 };
struct verdict_also {
    enum oom_kind kind;
    char why[256];
};
struct verdict_remedy {
    const char *id, *what;
    char why[320];
};
struct verdict {
    const char *rule; /* its name in rules.def; NULL: nothing to judge */
    const char *condition;
    enum oom_kind kind;
    enum confidence confidence;
    bool borderline; /* within the rounding of the printed figures another rule would hold */
    char why[640];
    int n_also, n_remedies;
    struct verdict_also also[VERDICT_ALSO];
    struct verdict_remedy remedies[VERDICT_REMEDIES];
};

/* False where the evidence holds nothing that a rule is about. */
bool verdict_of(const struct evidence *v, struct verdict *out);

/* The rules, for docs: i-th row or false. */
struct verdict_rule {
    const char *name, *condition, *meaning, *remedies;
    enum oom_kind kind;
    enum confidence confidence;
    bool is_also;
};
bool verdict_rule_at(int i, struct verdict_rule *out);

#endif
