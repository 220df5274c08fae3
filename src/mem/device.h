/* device.h - the devices a run may use: one list, one reader of device strings, one fallback rule.
 *
 * The list is the CPU, then the CUDA cards: simulated ones where SNUG_SIM_CARDS (or `sim_cards` of
 * config.json) names some, else the NVIDIA cards that NVML sees. Card i is `cuda:i`; the current
 * CUDA device is cuda:0. A card's provider is a table of functions, so that simulated and real
 * cards go through one door.
 *
 * MEMORY ON A CARD
 *   A process holds a card's context from device_attach on, and its segments: both in the card's
 *   account, which all processes of the machine share. Segments are taken through device_source.
 *
 * Requirements D1, D2, D4. Not for several threads at once, but for what a source does.
 */
#ifndef MEM_DEVICE_H
#define MEM_DEVICE_H

#include "base/json.h"
#include "mem/source.h"

#include <stddef.h>

enum { DEVICES_MAX = 65 }; /* the CPU and 64 cards */
enum device_kind { DEVICE_CPU, DEVICE_CUDA };

struct device_memory {
    int64_t total_bytes, free_bytes; /* -1 unknown */
    int64_t others_bytes;            /* held by others than the holders below; -1 unknown */
};
/* A process on a card. held_bytes are its segments, beside the context; -1 unknown. */
struct device_holder {
    int64_t pid, held_bytes, context_bytes;
    bool own;
};
enum { DEVICE_HOLDERS_MAX = 128 };

struct device;
struct nvml_api;
/* What a kind of card does. Only `name` and `memory` must be there. */
struct device_ops {
    const char *name; /* "host", "simulated", "nvml" */
    enum status (*memory)(struct device *d, struct device_memory *out, struct err *e);
    size_t (*holders)(struct device *d, struct device_holder *out, size_t cap);
    /* The context: ST_OOM where the card has no room for it. */
    enum status (*attach)(struct device *d, struct err *e);
    /* A source of segments, without budget; after attach. */
    void (*source)(struct device *d, struct mem_source *out);
    void (*close)(struct device *d); /* everything of this process is given back */
};
struct device {
    enum device_kind kind;
    int index;               /* of its kind */
    char id[16];             /* "cpu", "cuda:0"; in a selection, as the run calls it */
    char machine_id[16];     /* as the machine calls it: `id`, but in a selection */
    char name[96], uuid[80]; /* uuid "": none */
    int compute_capability;  /* 10 * major + minor; 0: the CPU */
    int64_t capacity_bytes;  /* -1 unknown */
    int64_t context_bytes;   /* of one process, counted in the capacity; 0 for the CPU */
    bool simulated, runs;    /* runs: this build computes on it */
    const struct device_ops *ops;
    void *ctx;
};
struct devices {
    struct device list[DEVICES_MAX];
    int n;                 /* list[0] is the CPU */
    int cards_n;           /* CUDA cards, that run or not */
    bool cuda_runs;        /* they run */
    bool selected;         /* devices_select: the cards of a run, renumbered */
    char driver[96];       /* NVIDIA driver version, "" unknown */
    struct nvml_api *nvml; /* mem/nvml.h; NULL: not there */
};

/* Reads configuration and drivers. A malformed description of simulated cards is ST_INVALID and
 * names card and field; unreadable drivers are absent quietly. */
enum status devices_open(struct devices *d, struct err *e) NODISCARD;
void devices_close(struct devices *d);

/* A card of the machine, by its UUID, or where that is "" by its name. */
struct device_pick {
    const char *id, *uuid;
};
/* Leaves the CPU and these cards, which are cuda:0, cuda:1, ... in this order from now on (R6). A
 * pick "cpu" stands for the CPU, which is there anyway. Before anything is attached or taken.
 * ST_NOT_FOUND: a card that is not there; ST_INVALID: one twice. */
enum status
devices_select(struct devices *d, const struct device_pick *picks, int n, struct err *e) NODISCARD;

/* ---- memory ---- */
enum status device_memory(struct device *d, struct device_memory *out, struct err *e) NODISCARD;
size_t device_holders(struct device *d, struct device_holder *out, size_t cap);
/* This process's first use of the card; harmless when it is attached. */
enum status device_attach(struct device *d, struct err *e) NODISCARD;
/* Segments of the device, at most budget_bytes of them (0: as much as there is). */
void device_source(struct device *d, int64_t budget_bytes, struct mem_source *out);

/* ---- device strings ---- */
enum device_ask {
    ASK_AUTO,
    ASK_CPU,
    ASK_CUDA, /* the current card */
    ASK_CUDA_INDEX,
    /* Asks for a card, but addresses none: "cuda:", "cuda:abc", "cuda:0:1", "${CUDA_INDEX}". */
    ASK_CUDA_BROKEN,
    ASK_MPS, /* "mps", "mps:0", "mps:abc" */
    ASK_UNKNOWN
};
enum device_ask device_parse(const char *text, int *index); /* index of ASK_CUDA_INDEX */

/* Who asks, for warnings. Either option ("--device"), or param with the node (or without: a setting
 * of the graph). */
struct device_asker {
    const char *option;
    const char *graph, *node, *type, *param;
};
struct device_choice {
    struct device *device;
    bool fell_back;
    char warning[512]; /* a sentence: what was asked for, what there is, where it runs */
};
/* The device for `text` (D2, D4). ASK_AUTO and ASK_UNKNOWN give `automatic` (NULL: the current card
 * where one runs, else the CPU) without a warning: refuse unknown strings before. */
struct device_choice devices_choose(
    struct devices *d, const char *text, struct device *automatic, const struct device_asker *who);

/* ---- texts (D1) ---- */
/* "CPU", "NVIDIA CUDA #1 · cuda:1 · RTX 3060". */
void device_label(const struct device *d, char *out, size_t cap);
/* " · free 11.4 / 12.0 GiB", "" where unreadable and for the CPU. */
void device_free_label(struct device *d, char *out, size_t cap);
/* What a menu offers: [{"value": "cuda:1", "label": ...}], the CPU first, then "cuda", then with
 * two cards or more each card. with_memory: as settings and toolbar show it. A new reference. */
json_t *devices_menu(struct devices *d, bool with_memory);

#endif
