/* hf_int.h - the inside of an imported folder. Private to src/nn. */
#ifndef NN_HF_INT_H
#define NN_HF_INT_H

#include "base/json.h"
#include "base/mem.h"
#include "nn/hf.h"
#include "nn/tensorfile.h"
#include "nn/transformer.h"

struct hf_file {
    const char *name; /* within the folder */
    struct tensorfile *tensors;
};
/* A tensor of the files: where it lies, and which variable it fills. */
struct hf_tensor {
    const char *name; /* the file's */
    const struct tensorfile_entry *entry;
    int file;   /* index into files */
    int var;    /* IR_NONE: not used by the model */
    bool alias; /* a tied head's own tensor */
};

struct hf {
    struct arena arena;
    const char *dir;
    bool head;
    json_t *config;
    char *config_text; /* as in the file */
    size_t config_bytes;
    struct transformer_config c;
    const char *architecture; /* what transformers would call the model as it is here */
    VEC(struct hf_file) files;
    VEC(struct hf_tensor) tensors; /* by name */
    struct str notes;
};

/* Fills h->c and h->architecture from h->config. */
enum status hf_config_read(struct hf *h, struct err *e) NODISCARD;
struct hf_tensor *hf_find(const struct hf *h, const char *name); /* NULL: there is none */

#endif
