/* optim_state_dict.h - the optimizer's state as PyTorch's state_dict, and back.
 *
 * FORMAT (torch.optim.Optimizer.state_dict, PyTorch 1.13)
 *   state          {i: {key: value}} for parameter i of model.parameters(): the tensors under the
 *                  names of ir/optim_states.def, and "step", the number of updates, as a float32
 *                  scalar tensor (RMSprop, Rprop: an integer; SGD: none). Empty before the first
 *                  update, as PyTorch makes states then (Adagrad's at once).
 *   param_groups   [{lr, ..., params: [0, 1, ...]}], one group; "initial_lr" with a schedule.
 *   snug_int8      only with states in 8 bits, which are kept under keys of their own, so that
 *                  nobody takes codes for values: "exp_avg_codes" (uint8, the parameter's shape)
 *                  and "exp_avg_absmax" (float32, one per block). {method, block, maps: {"exp_avg":
 *                  float32[256]}}: element i is maps["exp_avg"][codes[i]] * absmax[i / block].
 * torch.optim.X.load_state_dict accepts what we make and goes on with the same numbers; we read
 * what PyTorch makes, with the key sets of older and newer versions: only what is needed is looked
 * at.
 */
#ifndef TRAIN_OPTIM_STATE_DICT_H
#define TRAIN_OPTIM_STATE_DICT_H

#include "nn/ptfile.h"
#include "train/spec.h"

/* One state of one parameter. The memory is the caller's. */
struct optim_tensor {
    int param; /* index among model.parameters() */
    int state; /* index of ir/optim_state.h */
    const char *param_name;
    enum dtype dtype;
    struct shape shape;
    void *data;
    const char *key; /* in the file; NULL: the name of ir/optim_state.h */
    enum { OPTIM_STATE_WHOLE, OPTIM_STATE_SIGNED, OPTIM_STATE_POSITIVE } map; /* of "x_codes" */
};

/* Nothing is copied: tensors[i].data is read when the tree is written. lr: the present rate. */
struct pt_value *optim_state_dict_make(
    struct arena *a, const struct optim_spec *s, int n_params, const struct optim_tensor *tensors,
    int n_tensors, int64_t steps, double lr, bool has_schedule);

/* Reads into tensors[i].data. Parameters are matched by name where the saved names are known
 * (saved_names: of the file's parameters in its order, or NULL; some files have names for indices),
 * else by position, with a check of the shapes. A missing entry or another shape is an error that
 * names parameter and key; momentum_buffer None reads as zeros; a dict without any state (before
 * the first update) leaves the tensors as they are and gives 0 steps. PyTorch's SGD does not count:
 * 1 where there is a momentum. */
enum status optim_state_dict_read(
    struct ptfile *f, const struct pt_value *dict, const char *const *saved_names,
    int n_saved_names, const struct optim_spec *s, const struct optim_tensor *tensors,
    int n_tensors, int64_t *steps, double *lr, struct err *e) NODISCARD;

#endif
