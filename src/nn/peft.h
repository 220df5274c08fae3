/* peft.h - adapters in the file format of PEFT (huggingface/peft, 0.4 and newer).
 *
 * FORMAT  a folder with
 *   adapter_config.json        peft_type LORA, r, lora_alpha, lora_dropout, target_modules,
 *                              fan_in_fan_out, bias, use_rslora, base_model_name_or_path, ...
 *   adapter_model.safetensors  "base_model.model.<module>.lora_A.weight" [r, in] and
 *                              "base_model.model.<module>.lora_B.weight" [out, r]
 * Read: LORA without what would change the numbers and we do not do (bias, DoRA, ranks by module,
 * modules to save): those are ST_UNSUPPORTED and named.
 */
#ifndef NN_PEFT_H
#define NN_PEFT_H

#include "nn/adapter.h"
#include "nn/tensorfile.h"

/* rank, alpha, dropout, targets and rslora of the folder; the rest of *out is left as it is.
 * `targets` lives in the arena. */
enum status peft_config_read(
    const char *dir, struct arena *a, struct adapter_config *out, struct err *e) NODISCARD;
/* The weights, checked against the model's adapters: all of them, none more, the same shapes. */
enum status
peft_open(const char *dir, const struct model *m, struct tensorfile **out, struct err *e) NODISCARD;
/* Reads an adapter's variable into memory of its dtype and shape. */
enum status
peft_read(struct tensorfile *f, const struct model *m, int var, void *dst, struct err *e) NODISCARD;
/* Writes the folder. `base` is base_model_name_or_path; NULL: null. */
enum status peft_save(
    const char *dir, const struct model *m, const char *base, const struct model_values *values,
    struct err *e) NODISCARD;

#endif
