/* build.h - emitters with PyTorch's names, for models, losses and gradient rules.
 *
 * Each appends one or a few operators and returns the value, IR_NONE after an error (sticky in the
 * program). Shapes as in torch.nn.functional. `dim` may be negative. IR_NONE for optional operands.
 */
#ifndef IR_BUILD_H
#define IR_BUILD_H

#include "ir/program.h"

/* Products */
int ir_linear(
    struct ir_program *p, int x, int weight, int bias); /* x [.., I], weight [O, I] -> [.., O] */
int ir_matmul(struct ir_program *p, int a, int b);      /* torch.matmul, ranks >= 1, broadcasting */
int ir_gemm(struct ir_program *p, int a, int b, int bias, bool ta, bool tb);
int ir_conv(struct ir_program *p, int x, int w, int bias, const struct conv_attr *attr);
/* Transposed convolution; weight [I, O/groups, ..]. output_padding per spatial dimension. */
int ir_conv_transpose(
    struct ir_program *p, int x, int w, int bias, const struct conv_attr *attr,
    const int64_t output_padding[2]);
/* Pooling */
int ir_max_pool(struct ir_program *p, int x, const struct pool_attr *attr);
int ir_avg_pool(struct ir_program *p, int x, const struct pool_attr *attr);
int ir_adaptive_avg_pool(struct ir_program *p, int x, int spatial, const int64_t output[2]);
int ir_adaptive_max_pool(struct ir_program *p, int x, int spatial, const int64_t output[2]);
/* Normalisation. Running statistics are variables (IR_NONE: none); training says whose statistics
 * are used. gamma and beta are values. */
int ir_batch_norm(
    struct ir_program *p, int x, int gamma, int beta, int running_mean_var, int running_var_var,
    int batches_var, bool training, double momentum, double eps);
int ir_layer_norm(struct ir_program *p, int x, int gamma, int beta, int trailing, double eps);
int ir_group_norm(struct ir_program *p, int x, int gamma, int beta, int64_t groups, double eps);
int ir_instance_norm(struct ir_program *p, int x, int gamma, int beta, double eps);
/* gamma * x / sqrt(mean(x^2) + eps) over the last dimension */
int ir_rms_norm(struct ir_program *p, int x, int gamma, double eps);
/* Attention. q [B, S, H, D]; k, v [B, T, G, D], H = a->heads, G = a->kv_heads; any strides with the
 * last dimension dense. k = v = IR_NONE: q is packed [B, S, H + 2G, D], the heads of q, then k,
 * then v. bias: added to the scores, float32, broadcastable to [B, H, S, T], -inf where nothing is
 * seen; IR_NONE: none. rng: needed with dropout. -> [B, S, H, D], dense, in q's type. A query that
 * sees nothing gives zeros. torch.nn.functional.scaled_dot_product_attention with heads and
 * sequence swapped. */
int ir_attention(
    struct ir_program *p, int q, int k, int v, int bias, int rng, const struct attention_attr *a);
/* float32 of x's shape: 1 where x (indices) is `value`, else 0. */
int ir_is_value(struct ir_program *p, int x, int64_t value);
/* The bias [B, 1, 1, T] that hides keys from every query: mask [B, T] of any type, other than 0
 * where a key is hidden (torch's key_padding_mask as booleans, or as 0 and -inf). */
int ir_key_bias(struct ir_program *p, int mask);
/* cos and sin, float32 [positions, dims]: dims/2 cosines, then dims/2 sines */
int ir_rope_table(struct ir_program *p, const struct rope_attr *a);
/* x [B, S, N, D], S <= rows of the table; turns the first `dims` features of each head. */
int ir_rope(struct ir_program *p, int x, int table, const struct rope_attr *a);
/* Recurrent layer: x [S, N, I], w_ih [G H, I], w_hh [G H, H], biases [G H] or IR_NONE -> [S, N, H],
 * as torch.nn.LSTM, GRU, RNN from states of 0. One direction of one layer; what the kernel keeps
 * for the gradient: a->keep. */
int ir_recurrent(
    struct ir_program *p, int x, int w_ih, int w_hh, int b_ih, int b_hh,
    const struct recurrent_attr *a);
/* torch.topk(x, k), largest first; of equal ones the first. The places: ir_out(p, 1). */
int ir_topk(struct ir_program *p, int x, int64_t k);
/* torch.zeros(.., n).scatter_add(-1, index, values), torch.gather(x, -1, index) */
int ir_scatter(struct ir_program *p, int values, int index, int64_t n);
int ir_gather(struct ir_program *p, int x, int index);
/* Elementwise */
int ir_unary(struct ir_program *p, enum opcode code, int x);
int ir_unary_attr(struct ir_program *p, enum opcode code, int x, struct ew_attr attr);
int ir_binary(struct ir_program *p, enum opcode code, int a, int b);
int ir_affine(struct ir_program *p, int x, double scale, double shift);
int ir_prelu(struct ir_program *p, int x, int w);
int ir_dropout(struct ir_program *p, int x, int rng, int mask, double prob, uint32_t stream);
/* Reductions; dims of bit i = dimension i */
int ir_sum(struct ir_program *p, int x, uint32_t dims, bool keepdim);
int ir_mean(struct ir_program *p, int x, uint32_t dims, bool keepdim);
/* Sums a broadcast gradient back to shape s. */
int ir_sum_to(struct ir_program *p, int x, const struct shape *s);
int ir_argmax(struct ir_program *p, int x, int dim, bool keepdim);
int ir_softmax(struct ir_program *p, int x, int dim);
int ir_log_softmax(struct ir_program *p, int x, int dim);
/* Shapes: a view where the strides allow, else CONTIGUOUS first */
int ir_reshape(struct ir_program *p, int x, struct shape s); /* one dimension may be -1 */
int ir_flatten(struct ir_program *p, int x, int start_dim, int end_dim);
int ir_permute(struct ir_program *p, int x, const int *perm);
int ir_transpose(struct ir_program *p, int x, int dim0, int dim1);
int ir_expand(struct ir_program *p, int x, struct shape s);
int ir_slice(struct ir_program *p, int x, int dim, int64_t start, int64_t length, int64_t step);
int ir_select(struct ir_program *p, int x, int dim, int64_t index);
int ir_squeeze(struct ir_program *p, int x, int dim);
int ir_unsqueeze(struct ir_program *p, int x, int dim);
int ir_concat(struct ir_program *p, const int *xs, int n, int dim);
int ir_stack(struct ir_program *p, const int *xs, int n, int dim);
/* Chunk i of torch.chunk(x, chunks, dim). */
int ir_chunk(struct ir_program *p, int x, int chunks, int dim, int i);
int ir_contiguous(struct ir_program *p, int x);          /* x itself when it is */
int ir_cast(struct ir_program *p, int x, enum dtype to); /* x itself when it has the type */
int ir_fill(struct ir_program *p, struct shape s, double value);
int ir_embedding(struct ir_program *p, int index, int table, int64_t padding_idx);
/* Losses, torch.nn.functional's meaning; weights are values or IR_NONE; scalar unless REDUCE_NONE
 */
int ir_cross_entropy(
    struct ir_program *p, int logits, int target, int weight, const struct loss_attr *a);
int ir_nll(struct ir_program *p, int logp, int target, int weight, const struct loss_attr *a);
int ir_loss_ew(
    struct ir_program *p, int x, int target, int weight, int pos_weight, const struct loss_attr *a);
int ir_margin_ranking(struct ir_program *p, int x1, int x2, int y, double margin, enum reduction r);
int ir_cosine_embedding(
    struct ir_program *p, int x1, int x2, int y, double margin, enum reduction r);

#endif
