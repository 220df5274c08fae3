/* small_ops.c - what each tensor operation of the canvas appends to its program. Failures are the
 * program's sticky error, except where a parameter itself is wrong. */
#include "runner/small.h"

#include "base/str.h"
#include "ir/build.h"

#include <string.h>

enum status
small_list(const struct small *s, const char *param, int64_t *out, int *n, struct err *e)
{
    const char *text = graph_param_str(s->n, param), *at = text;
    bool good = *text != 0;
    for (*n = 0; good && *at; (*n)++) {
        char word[24];
        size_t length = strcspn(at, ","), blank = strspn(at, " ");
        size_t from = blank < length ? blank : length, to = length;
        while (to > from && at[to - 1] == ' ')
            to--;
        good = *n < RANK_MAX && to - from < sizeof word;
        if (!good)
            break;
        memcpy(word, at + from, to - from);
        word[to - from] = 0;
        good = str_to_i64(word, &out[*n]);
        at += length + (at[length] == ',');
    }
    if (good)
        return ST_OK;
    return err_set(
        e, ST_INVALID, "parameter '%s': \"%s\" is not a list of whole numbers", param, text);
}

static int dim_of(const struct small *s)
{
    int64_t d = graph_param_i64(s->n, "dim");
    return d > RANK_MAX ? RANK_MAX : d < -RANK_MAX - 1 ? -RANK_MAX - 1 : (int)d;
}

static struct shape shape_at(const struct small *s, int i)
{
    return ir_value_at(s->p, s->in[i])->shape;
}

enum status emit_add(struct small *s, struct err *e)
{
    double alpha = graph_param_f64(s->n, "alpha");
    (void)e;
    int b = alpha == 1 ? s->in[1] : ir_affine(s->p, s->in[1], alpha, 0);
    s->out[0] = ir_binary(s->p, OP_ADD, s->in[0], b);
    return ST_OK;
}

enum status emit_argmax(struct small *s, struct err *e)
{
    (void)e;
    s->out[0] = ir_argmax(s->p, s->in[0], dim_of(s), graph_param_bool(s->n, "keepdim"));
    return ST_OK;
}

enum status emit_concat(struct small *s, struct err *e)
{
    (void)e;
    s->out[0] = ir_concat(s->p, s->in, 2, dim_of(s));
    return ST_OK;
}

enum status emit_matmul(struct small *s, struct err *e)
{
    (void)e;
    s->out[0] = ir_matmul(s->p, s->in[0], s->in[1]);
    return ST_OK;
}

enum status emit_mean(struct small *s, struct err *e)
{
    int64_t dims[RANK_MAX];
    int n;
    uint32_t bits = 0;
    TRY(small_list(s, "dim", dims, &n, e));
    int rank = shape_at(s, 0).rank, span = rank > 0 ? rank : 1;
    for (int i = 0; i < n; i++) {
        if (dims[i] < -span || dims[i] >= span)
            return err_set(
                e, ST_INVALID, "parameter 'dim': %lld is outside of [%d, %d]", (long long)dims[i],
                -span, span - 1);
        if (rank > 0)
            bits |= 1u << (dims[i] < 0 ? dims[i] + rank : dims[i]);
    }
    s->out[0] = bits ? ir_mean(s->p, s->in[0], bits, graph_param_bool(s->n, "keepdim")) : s->in[0];
    return ST_OK;
}

enum status emit_multiply(struct small *s, struct err *e)
{
    (void)e;
    s->out[0] = ir_binary(s->p, OP_MUL, s->in[0], s->in[1]);
    return ST_OK;
}

enum status emit_permute(struct small *s, struct err *e)
{
    int64_t dims[RANK_MAX];
    int n, perm[RANK_MAX];
    uint32_t seen = 0;
    TRY(small_list(s, "dims", dims, &n, e));
    int rank = shape_at(s, 0).rank;
    for (int i = 0; i < n && i < rank; i++) {
        int64_t d = dims[i] < 0 ? dims[i] + rank : dims[i];
        seen |= d >= 0 && d < rank ? 1u << d : 0;
        perm[i] = (int)d;
    }
    if (n != rank || seen != (1u << rank) - 1)
        return err_set(
            e, ST_INVALID, "parameter 'dims': \"%s\" does not name each of the %d dimensions once",
            graph_param_str(s->n, "dims"), rank);
    s->out[0] = ir_permute(s->p, s->in[0], perm);
    return ST_OK;
}

enum status emit_reshape(struct small *s, struct err *e)
{
    struct shape to = {0};
    TRY(small_list(s, "shape", to.dim, &to.rank, e));
    s->out[0] = ir_reshape(s->p, s->in[0], to);
    return ST_OK;
}

enum status emit_scale(struct small *s, struct err *e)
{
    (void)e;
    s->out[0] = ir_affine(s->p, s->in[0], graph_param_f64(s->n, "scalar"), 0);
    return ST_OK;
}

enum status emit_softmax(struct small *s, struct err *e)
{
    (void)e;
    s->out[0] = ir_softmax(s->p, s->in[0], dim_of(s));
    return ST_OK;
}

/* torch.chunk gives fewer pieces than asked for where a dimension is short: those ports are empty.
 */
enum status emit_split(struct small *s, struct err *e)
{
    int chunks = (int)graph_param_i64(s->n, "chunks"), dim = dim_of(s), rank = shape_at(s, 0).rank;
    (void)e;
    for (int i = 0; i < chunks && i < SMALL_PORTS_MAX && s->p->err.status == ST_OK; i++) {
        if (i > 0 && dim >= -rank && dim < rank) {
            int64_t size = shape_at(s, 0).dim[dim < 0 ? dim + rank : dim];
            if ((size + chunks - 1) / chunks * i >= size)
                break;
        }
        s->out[i] = ir_chunk(s->p, s->in[0], chunks, dim, i);
    }
    return ST_OK;
}

/* -1 drops every dimension of size 1. */
enum status emit_squeeze(struct small *s, struct err *e)
{
    (void)e;
    if (graph_param_i64(s->n, "dim") != -1) {
        s->out[0] = ir_squeeze(s->p, s->in[0], dim_of(s));
        return ST_OK;
    }
    struct shape from = shape_at(s, 0), to = {0};
    for (int i = 0; i < from.rank; i++)
        if (from.dim[i] != 1)
            to.dim[to.rank++] = from.dim[i];
    s->out[0] = ir_reshape(s->p, s->in[0], to);
    return ST_OK;
}

enum status emit_stack(struct small *s, struct err *e)
{
    (void)e;
    s->out[0] = ir_stack(s->p, s->in, 2, dim_of(s));
    return ST_OK;
}

enum status emit_unsqueeze(struct small *s, struct err *e)
{
    (void)e;
    s->out[0] = ir_unsqueeze(s->p, s->in[0], dim_of(s));
    return ST_OK;
}

/* One step, from the state `hidden` (none: zeros): torch.nn.RNNCell. */
enum status emit_rnn_cell(struct small *s, struct err *e)
{
    json_t *params = json_object();
    const char *nonlinearity = graph_param_str(s->n, "nonlinearity");
    json_put_i64(params, "input_size", graph_param_i64(s->n, "input_size"));
    json_put_i64(params, "hidden_size", graph_param_i64(s->n, "hidden_size"));
    json_put_str(params, "nonlinearity", nonlinearity);
    TRY(small_model(s, "RNN", params, 1, e));
    int v[4]; /* in the order of the state: weights, then biases; of the input, then of the state */
    for (int i = 0; i < 4; i++)
        v[i] = ir_var_read(s->p, model_param_var(s->model, i));
    int x = ir_linear(s->p, s->in[0], v[0], v[2]), h = s->in[1];
    h = h == IR_NONE ? v[3] : ir_linear(s->p, h, v[1], v[3]);
    enum opcode act = str_eq(nonlinearity, "relu") ? OP_RELU : OP_TANH;
    s->out[0] = ir_unary(s->p, act, ir_binary(s->p, OP_ADD, x, h));
    return ST_OK;
}
