/* linear.h - every product of activations with a weight of a model goes through here, so that what
 * changes weights (adapters) has one place. Private to src/nn.
 */
#ifndef NN_LINEAR_H
#define NN_LINEAR_H

#include "nn/model.h"

struct linear {
    int weight_var, bias_var; /* bias: IR_NONE for none */
    bool in_out;              /* weight is [in, out] (GPT-2's files), not [out, in] */
    bool training;
    int rng; /* noise of adapters' dropout; IR_NONE when not training */
};
/* x [.., in] -> [.., out]; IR_NONE after an error of the program. */
int nn_linear(const struct model *m, struct ir_program *p, int x, const struct linear *l);

#endif
