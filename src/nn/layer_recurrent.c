/* layer_recurrent.c - LSTM, GRU and RNN over whole sequences, several layers, both directions.
 *
 * Inside, time comes first, as the operator has it; batch_first turns the input and the result. The
 * further result (layer_run.more) is the last state of each layer and direction, [L D, N, H].
 */
#include "ir/build.h"
#include "nn/layer.h"

#include <stdio.h>

static enum recurrent_kind kind_of(const struct layer *l)
{
    switch (l->type->name[0]) {
    case 'L':
        return RECURRENT_LSTM;
    case 'G':
        return RECURRENT_GRU;
    default:
        return l->params.nonlinearity ? RECURRENT_RELU : RECURRENT_TANH;
    }
}

static int64_t gates_of(enum recurrent_kind k)
{
    return k == RECURRENT_LSTM ? 4 : k == RECURRENT_GRU ? 3 : 1;
}

/* "lstm.weight_ih_l0_reverse" without "weight_ih". */
struct cell_name {
    const char *wrapper;
    char suffix[32];
};

static struct cell_name name_of(const struct layer *l, int64_t level, int direction)
{
    struct cell_name n = {
        .wrapper = l->type->name[0] == 'L'   ? "lstm"
                   : l->type->name[0] == 'G' ? "gru"
                                             : "rnn"};
    (void)snprintf(
        n.suffix, sizeof n.suffix, "_l%lld%s", (long long)level, direction ? "_reverse" : "");
    return n;
}

static enum status declare_cell(const struct layer_check *c, int64_t level, int direction)
{
    const struct layer_params *a = &c->layer->params;
    struct cell_name n = name_of(c->layer, level, direction);
    int64_t units = a->hidden_size, rows = gates_of(kind_of(c->layer)) * units;
    int64_t inputs = level == 0 ? a->input_size : units * (a->bidirectional ? 2 : 1);
    struct init init = init_fan_in(units);
    TRY(layer_declare(c, SHAPE(rows, inputs), init, "%s.weight_ih%s", n.wrapper, n.suffix));
    TRY(layer_declare(c, SHAPE(rows, units), init, "%s.weight_hh%s", n.wrapper, n.suffix));
    if (!a->bias)
        return ST_OK;
    TRY(layer_declare(c, SHAPE(rows), init, "%s.bias_ih%s", n.wrapper, n.suffix));
    return layer_declare(c, SHAPE(rows), init, "%s.bias_hh%s", n.wrapper, n.suffix);
}

enum status check_recurrent(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    TRY(layer_probability(c, a->dropout));
    TRY(layer_stack_check(c, a->num_layers));
    for (int64_t level = 0; level < a->num_layers; level++)
        for (int d = 0; d < (a->bidirectional ? 2 : 1); d++)
            TRY(declare_cell(c, level, d));
    return ST_OK;
}

enum status check_rnn(const struct layer_check *c)
{
    return check_recurrent(c);
}

static int cell(const struct layer_run *r, int x, int64_t level, int direction)
{
    struct cell_name n = name_of(r->layer, level, direction);
    struct recurrent_attr a = {
        .kind = kind_of(r->layer), .reverse = direction == 1, .keep = r->training};
    int b_ih = layer_read(r, "%s.bias_ih%s", n.wrapper, n.suffix);
    int b_hh = layer_read(r, "%s.bias_hh%s", n.wrapper, n.suffix);
    int w_ih = layer_read(r, "%s.weight_ih%s", n.wrapper, n.suffix);
    int w_hh = layer_read(r, "%s.weight_hh%s", n.wrapper, n.suffix);
    return ir_recurrent(r->p, x, w_ih, w_hh, b_ih, b_hh, &a);
}

/* All levels: x [S, N, I] to [S, N, D H]; last[level D + direction]: the last states [N, H]. */
static int levels(const struct layer_run *r, int x, int64_t steps, int *last)
{
    const struct layer_params *a = &r->layer->params;
    int directions = a->bidirectional ? 2 : 1;
    for (int64_t level = 0; level < a->num_layers; level++) {
        int y[2];
        for (int d = 0; d < directions; d++) {
            y[d] = cell(r, x, level, d);
            if (last)
                last[level * directions + d] = ir_select(r->p, y[d], 0, d ? 0 : steps - 1);
        }
        x = directions == 2 ? ir_concat(r->p, y, 2, 2) : y[0];
        char place[32];
        (void)snprintf(place, sizeof place, "l%lld", (long long)level);
        if (level < a->num_layers - 1)
            x = layer_dropout(r, x, a->dropout, place);
    }
    return x;
}

int forward_recurrent(const struct layer_run *r)
{
    const struct layer_params *a = &r->layer->params;
    bool single;
    int x = layer_sequence(r, r->in[0], a->input_size, &single);
    if (x < 0 || r->p->err.status != ST_OK)
        return IR_NONE;
    if (a->batch_first)
        x = ir_contiguous(r->p, ir_transpose(r->p, x, 0, 1));
    int64_t steps = ir_value_at(r->p, x)->shape.dim[0];
    if (steps == 0)
        return layer_fail(r, "expected sequence length to be larger than 0");
    int last[2 * LAYER_STACK_MAX];
    layer_block_begin(r);
    x = levels(r, x, steps, r->more ? last : NULL);
    layer_block_end(r);
    if (r->more) {
        int n = (int)a->num_layers * (a->bidirectional ? 2 : 1);
        r->more[0] = ir_stack(r->p, last, n, 0);
        if (single)
            r->more[0] = ir_squeeze(r->p, r->more[0], 1);
    }
    if (a->batch_first)
        x = ir_transpose(r->p, x, 0, 1);
    return single ? ir_squeeze(r->p, x, a->batch_first ? 0 : 1) : x;
}

int forward_rnn(const struct layer_run *r)
{
    return forward_recurrent(r);
}
