/* nodes.h - the table of node types: what each is called, connects and accepts (rows: nodes.def).
 *
 * The table is constant; everything returned here is borrowed from it and lives as long as the
 * program. A type that is not RUNNABLE is known, so that graphs with it can be read, checked and
 * saved, but this version does not execute it.
 *
 * Names: bare ("Conv2d"), or "<plugin>:<Name>". A bare name that is not in the table means the
 * plugin type with that suffix; of several, the alphabetically first.
 */
#ifndef GRAPH_NODES_H
#define GRAPH_NODES_H

#include "base/json.h"
#include "base/str.h"

enum port_type {
    PORT_TENSOR,
    PORT_MODEL,
    PORT_DATASET,
    PORT_DATALOADER,
    PORT_OPTIMIZER,
    PORT_LOSS_FN,
    PORT_SCALAR,
    PORT_STRING,
    PORT_IMAGE,
    PORT_LIST,
    PORT_TRANSFORM,
    PORT_TRIGGER,
    PORT_ANY,
    PORT_TYPE_COUNT
};
const char *port_type_name(enum port_type t); /* "TENSOR" */
/* Whether an output of type `source` may be connected to an input of type `target`. */
bool port_type_fits(enum port_type source, enum port_type target);

struct node_port {
    const char *name; /* NULL ends a list */
    enum port_type type;
    bool optional;
};

enum param_type {
    PARAM_INT,
    PARAM_FLOAT,
    PARAM_STRING,
    PARAM_BOOL,
    PARAM_SELECT,
    PARAM_MODEL_FILE,
    PARAM_IMAGE_FILE,
    PARAM_DATA_FILE,
    PARAM_TENSOR_GRID,
    PARAM_SECRET,
    PARAM_CODE
};
const char *param_type_name(enum param_type t); /* "int" */

enum param_flag {
    PARAM_FLAG_ADVANCED = 1,   /* folded away in the user interface */
    PARAM_FLAG_NOT_IN_KEY = 2, /* influences neither memory nor the choice of data */
    PARAM_FLAG_LATER = 4,      /* this version runs the default only */
    PARAM_FLAG_DEVICE = 8      /* also takes cuda:N and mps:N, and is judged by the device list */
};
struct node_param {
    const char *name; /* NULL ends a list */
    enum param_type type;
    const char *initial; /* the default, as text (JSON text for a tensor grid) */
    double min, max;     /* NaN where there is no bound */
    const char *options; /* "a|b|!c" ("!": known, not run by this version), or NULL */
    const char *when;    /* "name=a|b": shown only then; or NULL */
    unsigned flags;      /* of enum param_flag */
    const char *about;
};

enum node_flag {
    NODE_FLAG_RUNNABLE = 1, /* this version executes it */
    NODE_FLAG_UNCACHED = 2, /* its result is never reused */
    NODE_FLAG_DYNAMIC = 4,  /* ports follow from parameters: use node_port_find */
    NODE_FLAG_OPEN = 8      /* ports are not known: any name of type ANY is accepted */
};
struct node_type {
    const char *name, *category, *provider; /* provider: builtin, custom, plugin:<id> */
    unsigned flags;                         /* of enum node_flag */
    const char *about;
    const struct node_port *inputs, *outputs; /* of default parameters */
    const struct node_param *params;
};

size_t node_type_count(void);
const struct node_type *node_type_at(size_t i);
const struct node_type *node_type_find(const char *name); /* NULL when unknown */
const char *node_type_nearest(const char *name);          /* "did you mean", or NULL */

/* NULL when there is no such parameter. */
const struct node_param *node_param_find(const struct node_type *t, const char *name);
const char *node_param_nearest(const struct node_type *t, const char *name);
/* The default as JSON; a new reference. */
json_t *node_param_initial(const struct node_param *p);
enum param_option { PARAM_OPTION_UNKNOWN, PARAM_OPTION_LATER, PARAM_OPTION_OK };
enum param_option node_param_option(const struct node_param *p, const char *value);
/* Text ("0.1", "true", "Adam") to JSON of the parameter's type: a new reference, or NULL. */
json_t *node_param_parse(const struct node_param *p, const char *text);

/* The port of that name under these parameters (a JSON object, or NULL for the defaults); false
 * when there is none. `port->name` is borrowed from `name`. */
bool node_port_find(
    const struct node_type *t, const json_t *params, bool output, const char *name,
    struct node_port *port);
/* The i-th port under these parameters; false past the end. A generated name is written to buf. */
bool node_port_at(
    const struct node_type *t, const json_t *params, bool output, size_t i, struct node_port *port,
    char buf[32]);

/* For `snug nodes`: the definition as the founding system's GET /api/nodes gives it, plus
 * "runnable"; all of them; and as text, one line a type or a page about one. */
json_t *node_type_json(const struct node_type *t); /* a new reference */
json_t *node_table_json(void);                     /* a new reference: an array */
/* The names of all types, in the table's order (a new reference), and a hash over everything that
 * the table says of each: equal where two programs have the same types; 32 hex digits. */
json_t *node_table_names(void);
void node_table_hash(char out[33]);
void node_table_text(struct str *out);
void node_type_text(const struct node_type *t, struct str *out);

#endif
