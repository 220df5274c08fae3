/* run_int.h - the objects that flow along edges, and the state of a run; private to src/runner. */
#ifndef RUNNER_RUN_INT_H
#define RUNNER_RUN_INT_H

#include "runner/run.h"

#include "data/tokens.h"
#include "mem/device.h"
#include "mem/history.h"
#include "nn/hf.h"
#include "nn/tensorfile.h"

enum flow_kind {
    FLOW_NONE,
    FLOW_MODEL,
    FLOW_DATASET,
    FLOW_LOADER,
    FLOW_TRANSFORM,
    FLOW_OPTIMIZER,
    FLOW_LOSS,
    FLOW_SCHEDULE,
    FLOW_NUMBERS,
    FLOW_SCALAR,
    FLOW_STRING,
    FLOW_JSON,
    FLOW_TOKENIZER,
    FLOW_CORPUS
};
const char *flow_name(enum flow_kind k);

/* Weights come from initialisation, then from files in the order the graph loads them. */
struct flow_model {
    const char *node_id;
    struct ir_vars vars;
    struct model *model;
    struct exec *home; /* whose arena holds (planning: would hold) the variables; NULL: none yet */
    struct run_place *home_place; /* and on which device */
    size_t home_vars;             /* how many variables there were when it became the home */
    enum dtype home_dtype;        /* and the type of the weights */
    bool owns_home;               /* home was made for an evaluation, not by a training loop */
    struct train *trained;        /* the loop that trained it last: optimizer state for savers */
    const struct flow_optimizer *trained_by; /* the Optimizer node of that loop */
    VEC(const char *) loads;                 /* files to load, with `strict` */
    VEC(bool) strict;
    const char *checkpoint; /* a CheckpointLoader's file: model, optimizer, schedule, scaler */
    struct hf *origin;      /* the folder that its first weights come from; NULL: initialisation */
    const char *adapter;    /* a folder with trained adapters; NULL: they start anew */
    const char *adapter_id; /* the node that named it */
    bool retype;            /* saved back in `dtype`; else each weight as it was */
    enum dtype dtype;
};
struct flow_dataset {
    const char *node_id;
    struct dataset_info info;
    char data_dir[1024], path[1024], split[16]; /* path: image folder */
    bool folder;
    struct transform transform;
    bool has_transform;
    struct dataset *open;           /* opened by the first node that reads it */
    const struct token_row *tokens; /* blocks of tokens, owned by the store; NULL: another kind */
    int64_t seq_len;
    struct flow_dataset *of; /* a transformed view of another; NULL: itself */
};
/* Made once for a run: planning and execution use the same. */
struct tokenizer;
struct text_store;
void text_store_free(struct text_store *s); /* NULL is fine */
struct flow_tokenizer {
    const char *node_id, *path; /* path NULL: an encoding */
    const char *encoding;
    int64_t size;           /* numbers there are */
    struct tokenizer *open; /* NULL until something encodes; owned by the store */
};
/* Texts: a file, or a mix of others. Nothing of it is open. */
enum { CORPUS_PARTS_MAX = 6 };
struct flow_corpus {
    const char *node_id;
    char path[1200]; /* "": a mix */
    int64_t rows_max;
    bool tokens; /* a .bin file */
    const struct flow_corpus *part[CORPUS_PARTS_MAX];
    double weight[CORPUS_PARTS_MAX];
    int n_parts;
    bool interleave;
    uint64_t seed;
};
/* text_nodes.c: the tokenizer itself. */
enum status flow_tokenizer_open(struct run *r, struct flow_tokenizer *t, struct err *e) NODISCARD;

struct flow_loader {
    const char *node_id;
    struct flow_dataset *data;
    struct loader_options options;
    struct loader_plan plan;
    struct loader *open;
};
struct flow_optimizer {
    struct optim_spec spec;
    struct flow_model *model;
};
struct flow_schedule {
    struct schedule *schedule;
};
struct flow_numbers { /* a small tensor on the host */
    struct shape shape;
    enum dtype dtype;
    void *data;
};

struct flow {
    enum flow_kind kind;
    union {
        struct flow_model *model;
        struct flow_dataset *dataset;
        struct flow_loader *loader;
        struct transform *transform;
        struct flow_optimizer *optimizer;
        struct loss_spec *loss;
        struct flow_schedule *schedule;
        struct flow_numbers *numbers;
        double scalar;
        const char *string;
        json_t *json; /* owned by the run's list */
        struct flow_tokenizer *tokenizer;
        struct flow_corpus *corpus;
    };
};

/* One output of one node. */
struct flow_slot {
    size_t node;
    const char *port;
    struct flow value;
};

/* The same graph with some choices changed: for savings (what_if.c). */
struct what_if {
    bool on, fp32;
    bool no_accumulation;
    int lever_off; /* enum lever_field + 1; 0: none */
};

/* A device that nodes of the run use. */
struct run_place {
    struct device *device;
    bool used, begun;         /* begun: on the device, `source` may be taken from */
    struct mem_source source; /* of all that the run holds there; capped by --memory-gib */
    int64_t
        room_bytes; /* what the plan may count on, as it was when the run was made; 0: no limit */
    int64_t peak_measured_bytes;
};

/* What planning finds. */
struct run_bill {
    int64_t peak_by_device[DEVICES_MAX];
    const struct graph_node *peak_node_by_device[DEVICES_MAX];
    int64_t peak_bytes, lower_bound_bytes, host_bytes; /* device; host: data sets, loaders */
    int64_t parameters, trainable;
    int64_t by_category[CATEGORY_COUNT];
    int64_t train_peak_bytes; /* of the training loops alone */
    int64_t train_by_category[CATEGORY_COUNT];
    /* The same without one choice; 0 where the graph does not make it. */
    int64_t float32_peak_bytes, single_batch_peak_bytes;
    int64_t without_lever_bytes[LEVER_FIELD_COUNT]; /* by lever: train_peak_bytes with it off; 0:
                                                       not used */
    bool trains_on_card;
    int64_t offload_bytes;  /* of host_bytes: what training loops keep there for their devices */
    int64_t transfer_bytes; /* between device and host in a micro-batch, both ways: the most */
    double train_flops; /* arithmetic of a micro-batch of the training loop with the largest peak */
    double recompute_share;   /* what checkpointing adds to it: 0.2 is a fifth */
    char precision_note[512]; /* P12: why precision saves little here; "" when it saves */
    const char *unchunked;    /* why loss_chunk_tokens has no effect (train/step.h); NULL */
};

struct run {
    struct graph *graph;
    struct run_options o;
    struct run_sink sink;
    struct arena memory;
    struct devices *devices;
    struct run_place *places, *place; /* by device; place: the run's own */
    bool frugal;                      /* the least workspace: kernels' faster ways would not fit */
    bool planning,
        planned; /* planning: nodes build and plan, but touch no data; then all is reset */
    int64_t seed;
    VEC(struct flow_slot) slots;
    VEC(struct flow_model *) models;
    VEC(struct flow_dataset *) datasets;
    VEC(struct flow_loader *) loaders;
    VEC(struct loss_spec *) losses;
    VEC(struct flow_schedule *) schedules;
    VEC(struct train *) trains;
    VEC(struct ir_program *) programs;
    VEC(json_t *) documents;
    struct run_oom oom;
    bool oom_set;
    struct what_if what_if; /* while planning another graph than the user's */
    struct run_bill bill;
    json_t *plan;    /* by the node with the largest peak */
    json_t *results; /* by node id: what nodes have to show */
    json_t *metrics; /* of the last training loop */
    json_t *warnings;
    json_t *profile;     /* of each training loop; NULL: not asked for */
    int64_t merge_bytes; /* host: the largest weight that a saver merges; 0: none does */
    const char *merge_node;
    json_t *offloaded; /* while planning: rows of the bill for what loops keep on the host */
    int64_t offload_measured_bytes;
    int64_t peak_measured_bytes, rss_baseline_bytes, started_ns;
    bool resume_done;
    char resumed_from[1400];
    struct mem_history *history; /* empty where --memory-history is not given */
    json_t *history_result;      /* the event that told of its file */
    char memory_device[64];      /* of the executor with the largest peak, and its figures */
    struct exec_memory memory_figures;
    struct mem_pool_stats memory_stats;
    struct text_store *texts; /* tokenizers and tokens; NULL until one is used */
    bool *failed;             /* of the executing pass, by node: it failed, or was skipped */
};

/* Reading and writing ports. A missing or wrong object is an error naming node and port. */
enum status flow_get(
    struct run *r, size_t node, const char *port, enum flow_kind kind, struct flow *out,
    struct err *e) NODISCARD;
bool flow_has(struct run *r, size_t node, const char *port, struct flow *out);
void flow_set(struct run *r, size_t node, const char *port, struct flow value);

/* The executor of a node type; NULL: nothing to do (Start). */
struct node_exec {
    const char *type;
    enum status (*run)(struct run *r, size_t node, struct err *e);
};
const struct node_exec *node_exec_find(const char *type);
#define X(type, function) enum status function(struct run *r, size_t node, struct err *e);
#include "runner/node_exec.def"
#undef X

/* The levers of a TrainingLoop, as the user or a what-if chose them. */
struct levers run_levers(struct run *r, const struct graph_node *n);
/* While planning: folds one compiled exec into the run's bill. `m`: the model that it runs, NULL:
 * none; what other models keep on the same device meanwhile counts in the peak. */
void run_account(
    struct run *r, const struct graph_node *n, struct run_place *place, const struct flow_model *m,
    const struct exec *x, const struct ir_vars *vars, struct ir_program *const *programs);
/* While planning: memory of the host that a node's exec takes; 0 bytes: no row. */
void run_host_row(struct run *r, const char *node, const char *what, int64_t bytes);
/* One planning pass over the graph; every object it made is gone afterwards. */
enum status run_plan_once(struct run *r, struct err *e) NODISCARD;
/* A node failed for want of memory: keeps the figures of the moment. */
void run_note_oom(struct run *r, const struct graph_node *n);
/* Fills the bill's what-if peaks and the precision note. */
void what_if_savings(struct run *r);
/* Programs that live as long as the run. */
void run_keep_programs(struct run *r, struct ir_program *const *programs, int n);
struct flow flow_list(struct run *r, const double *v, size_t n);
/* The measured peak of an exec on a device; others' models there are added, as in run_account. */
void run_measured(
    struct run *r, struct run_place *place, const struct flow_model *m, struct exec *x);
void run_event(struct run *r, json_t *event); /* takes the reference */
/* A node wrote a file: its result and an event. */
void run_saved(struct run *r, const struct graph_node *n, const char *path);
void run_warn(struct run *r, const struct graph_node *n, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The node's own place for files: models/ of SNUG_HOME joined with a relative name that stays
 * inside. */
enum status run_model_path(const char *name, char *out, size_t cap, struct err *e) NODISCARD;
const char *run_graph_dir(struct run *r, char *buf, size_t cap);

/* cache.c: outputs of earlier runs, and weights of layers of the canvas. */
/* While executing: true, with the outputs set, where an earlier run had the same. */
bool run_cache_take(struct run *r, size_t node);
void run_cache_keep(struct run *r, size_t node);   /* after it ran well */
void run_cache_forget(struct run *r, size_t node); /* O3 */
/* The weights of a layer: false where there are none of this size. */
bool run_weights_take(
    struct run *r, const struct graph_node *n, int var, void *data, size_t n_bytes);
void run_weights_keep(
    struct run *r, const struct graph_node *n, int var, const void *data, size_t n_bytes);

/* data_nodes.c */
/* A tensor of zeros; NULL, with ST_INVALID in e, when it is too large to lie on the host. */
struct flow_numbers *
flow_numbers_new(struct run *r, const struct shape *s, enum dtype t, struct err *e);
enum status flow_dataset_open(struct run *r, struct flow_dataset *d, struct err *e) NODISCARD;
enum status flow_loader_open(struct run *r, struct flow_loader *l, struct err *e) NODISCARD;
enum status flow_loader_make(
    struct run *r, struct flow_dataset *d, const char *node_id, const struct loader_options *o,
    struct flow_loader **out, struct err *e) NODISCARD;
/* model_nodes.c */
/* An empty model of a node, which lives as long as the run. */
struct flow_model *flow_model_new(struct run *r, const struct graph_node *n);
/* Filling the variables of a model: open its files, fill each variable, close. */
struct fill_ctx {
    struct run *run;
    struct flow_model *model;
    struct tensorfile **files;  /* one per model->loads */
    struct tensorfile *adapter; /* of model->adapter; NULL: none */
};
enum status
fill_begin(struct fill_ctx *c, struct run *r, struct flow_model *m, struct err *e) NODISCARD;
enum status
flow_model_fill(int var, void *data, void *ctx, struct err *e) NODISCARD; /* ctx: struct fill_ctx */
/* x holds the model's weights from now on. */
void flow_model_home(struct flow_model *m, struct exec *x, struct run_place *place, bool owned);
void fill_end(struct fill_ctx *c);
/* Loads the newest file into weights that are in an arena already. */
enum status flow_model_refill(struct run *r, struct flow_model *m, struct err *e) NODISCARD;
/* An executor for one program over the model's variables, run outside of training: borrows the
 * variables where they are, else becomes their home. */
enum status flow_model_exec(
    struct run *r, const struct graph_node *n, struct flow_model *m, struct ir_program **programs,
    int n_programs, struct exec **out, struct err *e) NODISCARD;

/* train_node.c: what nodes that run a model share. */
/* The node's `precision`, as far as its device has it. */
enum precision run_precision(struct run *r, const struct graph_node *n);
bool run_stop_asked(void *ctx); /* ctx: struct run */
/* Done with an exec of flow_model_exec: it stays as the model's home, or goes. */
void flow_model_leave(
    struct run *r, const struct graph_node *n, struct flow_model *m, struct exec *x);

/* memory.c */
enum status run_memory_check(const struct run *r, struct err *e) NODISCARD; /* of the options */
void run_memory_open(struct run *r);
void run_memory_place(struct run *r, struct run_place *p); /* it may be taken from now */
/* Writes the snapshot: of now, or of the moment when memory ran out. */
enum status run_memory_write(struct run *r, struct err *e) NODISCARD;
void run_memory_close(struct run *r);
void run_memory_measured(struct run *r, const struct run_place *place, struct exec *x);
json_t *run_memory_json(const struct run *r);
char *run_memory_summary(const struct run *r); /* freed with mem_free */

/* place.c */
/* The devices there are, and the run's. ST_USAGE, ST_INVALID: what was asked for, what is
 * described.
 */
enum status run_places_open(struct run *r, struct err *e) NODISCARD;
void run_places_close(struct run *r);
/* Where a node runs: its parameter `device`, or the run's. Says so, once, where it asks for another
 * (D2, D4). */
struct run_place *run_place_of(struct run *r, const struct graph_node *n);
/* Before the executing pass: contexts on the devices that planning found used. ST_OOM. */
enum status run_places_begin(struct run *r, struct err *e) NODISCARD;
bool run_has_said(const struct run *r, const char *text); /* a warning of this text */
void run_place_label(const struct run_place *p, char *out, size_t cap);
struct precision_device run_place_precision(const struct run_place *p, const char *label);
int64_t run_host_need_bytes(const struct run *r);
json_t *run_devices_plan_json(const struct run *r); /* "devices" of a plan, of a result */
json_t *run_devices_json(const struct run *r);

#endif
