/* weights.h - a model's state and the tensors of a weights file: second names count too. */
#ifndef NN_WEIGHTS_H
#define NN_WEIGHTS_H

#include "nn/model.h"
#include "nn/tensorfile.h"

struct arena;

/* tensorfile_match with the model's weights, or with `stored` with its state as it is stored
 * (adapters, codes and scales too: checkpoints); where the file has second names (model_alias), they are
 * expected too. `vars` are the model's. */
enum status weights_match(
    const struct tensorfile *f, const struct model *m, const struct ir_vars *vars, bool stored,
    bool strict, struct tensorfile_match *match, struct err *e) NODISCARD;
/* Reads a variable that the file holds into memory of its dtype and shape. Where the file holds it
 * under a second name too, both must be equal (case T78). */
enum status weights_read(
    struct tensorfile *f, const struct model *m, const struct ir_vars *vars, int var, void *dst,
    struct err *e) NODISCARD;
/* One tensor under two names: .pt files may hold one storage for both. */
bool weights_same_storage(const struct tensorfile_entry *a, const struct tensorfile_entry *b);
/* Adds the second names to a state dict, over the same storages, as PyTorch has them. */
void weights_put_aliases(
    struct arena *a, struct pt_value *dict, const struct model *m, const struct ir_vars *vars);

#endif
