/* hf.h - language models in Hugging Face's folders: config.json beside weights and tokenizer.
 *
 * FORMAT (transformers, "Sharing and loading models"): the weights are, in this order of
 * preference, model.safetensors model.safetensors.index.json   {"metadata": {...}, "weight_map":
 * {tensor: file}}, and its files pytorch_model.bin pytorch_model.bin.index.json Families by
 * "model_type": gpt2, llama, mistral, qwen2, qwen3, bert. What config.json may say, and what each
 * field does here: hf_fields.def. Fields that would change numbers in a way this version cannot
 * compute are errors; unknown fields are named in hf_notes.
 *
 * NAMES  The model's variables have the names of transformers' class ("model.layers.0..." under a
 * head, without the prefix else). The file's may lack or have the prefix, and may call a
 * LayerNorm's weight and bias gamma and beta; saving writes the file's own names, types and shapes.
 *
 * Opening reads config.json, the index and the headers. Tensors are read one at a time.
 */
#ifndef NN_HF_H
#define NN_HF_H

#include "base/str.h"
#include "nn/model.h"

struct hf;
/* head: the language model's, or hidden states alone. ST_CORRUPT, ST_INVALID or ST_UNSUPPORTED
 * name the file and the field. */
enum status hf_open(const char *dir, bool head, struct hf **out, struct err *e) NODISCARD;
void hf_close(struct hf *h); /* NULL is fine */
const char *hf_dir(const struct hf *h);
/* Before hf_model: attention leaves out tokens equal to config.json's pad_token_id (without it 0
 * for bert, as transformers has it). ST_INVALID where it is not there, or also ends texts
 * (eos_token_id): the model would not see those ends. */
enum status hf_mask_padding(struct hf *h, struct err *e) NODISCARD;
/* Declares the model and finds each of its tensors in the files: nothing missing, nothing beside,
 * and every shape right. h must outlive its use below; one model per hf. */
enum status hf_model(
    struct hf *h, const char *node_id, struct ir_vars *vars, struct model **out,
    struct err *e) NODISCARD;
/* What a person should know: fields without effect, tensors without use; "" when nothing. */
const char *hf_notes(const struct hf *h);

/* Reads the weights of a variable of the model (of its dtype and shape). ST_INVALID for values that
 * are not finite, and where a tied head's tensor differs from the embedding (case T78). */
enum status
hf_read(struct hf *h, const struct model *m, int var, void *dst, struct err *e) NODISCARD;

/* Writes a folder that transformers loads: the weights as safetensors, split into files of at most
 * shard_bytes where there are more; config.json; the tokenizer's files. */
struct hf_save_options {
    const char *dir;
    bool retype; /* all weights in `dtype`; else each as it was in the file */
    enum dtype dtype;
    int64_t shard_bytes;
    /* The variable's values and their type; NULL: `make` gives them when they are written. */
    const void *(*data)(int var, enum dtype *type, void *ctx);
    const void *(*make)(int var, void *ctx); /* valid until the next call; may be NULL */
    void *ctx;
};
enum status hf_save(
    const struct hf *h, const struct model *m, const struct hf_save_options *o,
    struct err *e) NODISCARD;

#endif
