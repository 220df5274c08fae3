/* attr.h - the constants of an operator, one struct per family. Plain values; 0 is the default. */
#ifndef IR_ATTR_H
#define IR_ATTR_H

#include "ir/tensor.h"

enum act { ACT_NONE, ACT_RELU };
enum reduction { REDUCE_MEAN, REDUCE_SUM, REDUCE_NONE, REDUCE_BATCHMEAN };
enum norm_kind { NORM_BATCH, NORM_LAYER, NORM_GROUP, NORM_RMS };
/* Statistics per row of trailing dimensions, gamma and beta per element of a row. */
static inline bool norm_by_rows(enum norm_kind k)
{
    return k == NORM_LAYER || k == NORM_RMS;
}
enum loss_kind {
    LOSS_MSE,
    LOSS_L1,
    LOSS_SMOOTH_L1,
    LOSS_HUBER,
    LOSS_BCE,
    LOSS_BCE_LOGITS,
    LOSS_KLDIV
};

/* Spatial dimensions: [0] height, [1] width; one-dimensional forms use [1] and leave [0] neutral
 * (kernel 1, stride 1, padding 0, dilation 1), so that a 1-d convolution is a 2-d one of height 1.
 */
struct conv_attr {
    int64_t stride[2], pad_low[2], pad_high[2], dilation[2];
    int64_t groups;
    int spatial;       /* 1 or 2: spatial dimensions of the logical shapes */
    int64_t kernel[2]; /* CONV_WGRAD: its output's spatial size */
    int64_t input[2];  /* CONV_DGRAD: its output's spatial size */
    bool f32_out;      /* fused: the result leaves in float32, whatever the operands are */
};
struct pool_attr {
    int64_t kernel[2], stride[2], pad[2], dilation[2];
    int64_t output[2]; /* adaptive: size of the output; gradients: size of the input */
    int spatial;
    bool ceil_mode, exclude_pad, adaptive;
    int64_t divisor; /* average: divide by this instead, 0 = off */
};
struct norm_attr {
    enum norm_kind kind;
    int64_t groups; /* NORM_GROUP */
    int trailing;   /* NORM_LAYER, NORM_RMS: number of trailing dimensions normalised */
    double eps,
        momentum; /* momentum: of the running statistics, NORM_BATCH; < 0 = cumulative mean */
    enum act act; /* fused: y = act(norm(x) [+ residual]) */
    bool infer;   /* statistics are (running mean, running variance), not (mean, rstd) */
};
struct gemm_attr {
    bool ta, tb;   /* a is [.., K, M]; b is [.., N, K] */
    enum act act;  /* fused after the bias */
    bool f32_out;  /* fused: the result leaves in float32, whatever the operands are */
    bool round[2]; /* fused: this float32 operand, a or b, is rounded to bfloat16 as it is read */
};
struct ew_attr {
    double a,
        b; /* AFFINE: a*x + b; LEAKY_RELU: slope a; ELU: alpha a; CLAMP: [a, b]; POW: exponent a */
    bool tanh_form; /* GELU: the tanh approximation */
};
struct reduce_attr {
    uint32_t dims; /* bit i: reduce over dimension i */
    bool keepdim;
    bool f32_out; /* fused: the result leaves in float32 */
};
struct view_attr {
    struct shape shape;  /* RESHAPE, EXPAND: result; SLICE_GRAD: result */
    int perm[RANK_MAX];  /* PERMUTE */
    int dim;             /* SLICE, CONCAT, SOFTMAX, ARGMAX */
    int64_t start, step; /* SLICE */
    int64_t length;      /* SLICE: elements taken */
    bool keepdim;        /* ARGMAX */
};
struct fill_attr {
    struct shape shape;
    double value;
};
struct cast_attr {
    enum dtype to;
    enum layout layout; /* REORDER */
};
struct dropout_attr {
    double p;
    uint32_t stream; /* one per dropout layer */
};
struct embed_attr {
    int64_t rows;        /* EMBEDDING_GRAD: rows of the table */
    int64_t padding_idx; /* -1 = none: its row gets no gradient */
};
struct loss_attr {
    enum loss_kind kind;
    enum reduction reduction;
    int64_t ignore_index;
    double label_smoothing;
    double beta;     /* SMOOTH_L1: beta; HUBER: delta */
    bool log_target; /* KLDIV */
    bool f32_out;    /* fused: CROSS_ENTROPY's loss leaves in float32, whatever the logits are */
};
/* A product with the head's weight, and its cross-entropy. */
struct linear_loss_attr {
    struct loss_attr loss; /* first: what attr.loss is for the other losses */
    int64_t chunk;         /* tokens at a time */
    bool in_out;           /* weight is [E, V], not [V, E] */
    bool correct;          /* counts hits, as COUNT_CORRECT */
    bool dx, dweight, dbias;
};
enum optim_kind {
    OPTIM_SGD,
    OPTIM_ADAM,
    OPTIM_ADAMW,
    OPTIM_RMSPROP,
    OPTIM_ADAGRAD,
    OPTIM_RADAM,
    OPTIM_NADAM,
    OPTIM_RPROP,
    OPTIM_ASGD,
    OPTIM_ADAFACTOR,
    OPTIM_COUNT
};
/* PyTorch 1.13's parameters: torch.optim.<Name>; Adafactor's are PyTorch 2.5's. */
struct optim_attr {
    enum optim_kind kind;
    double weight_decay, momentum, dampening, beta1, beta2, eps;
    double alpha;                                   /* RMSprop's smoothing; ASGD's power */
    double lr_decay;                                /* Adagrad */
    double momentum_decay;                          /* NAdam */
    double eta_minus, eta_plus, step_min, step_max; /* Rprop */
    double lambd, t0;                               /* ASGD */
    double beta2_decay, eps2, d; /* Adafactor; its eps is eps1, 0 being the type's epsilon */
    bool nesterov, amsgrad, centered, maximize;
    /* How state and parameter are stored (optim_state.h: optim_attr_for). */
    bool int8;   /* states in 8 bits, block by block */
    bool master; /* the first state is the parameter in float32; the parameter is its rounding */
    bool stochastic; /* the parameter is rounded up or down by chance: hyper[3], hyper[4] are halves
                        of the seed, and `stream` is the parameter's */
    bool factored;   /* Adafactor: rank 2 or more */
    uint32_t stream;
};
/* Attention without the S x T matrix. Heads h of the query read head h / (heads / kv_heads) of keys
 * and values. */
struct attention_attr {
    int64_t heads, kv_heads; /* kv_heads divides heads */
    double scale;            /* of the scores; 0: 1 / sqrt(head size) */
    bool causal;             /* query i sees keys j <= i + T - S */
    int64_t window;          /* with causal: only the last `window` keys up to itself; 0: all */
    double dropout;          /* of the probabilities, drawn from (rng, stream, element) */
    uint32_t stream;
};
/* Rotary position embedding: frequency i of a head is theta^(-2i/dims), position s from `start`. */
struct rope_attr {
    int64_t positions, dims; /* ROPE_TABLE: rows, rotated features of a head (even) */
    int64_t start;
    double theta;
    /* Llama 3's stretching of low frequencies: factor 0 is none. */
    double factor, low_freq_factor, high_freq_factor;
    int64_t original_positions;
    int64_t heads;    /* ROPE: leading heads that turn; the others are copied. 0: all */
    bool interleaved; /* pairs are (0, 1), (2, 3), ... instead of (i, i + dims / 2) */
    bool inverse;     /* turns back: the gradient */
};
enum recurrent_kind { RECURRENT_LSTM, RECURRENT_GRU, RECURRENT_TANH, RECURRENT_RELU };
/* A recurrent layer over a whole sequence, starting from zeros. Gates in PyTorch's order: i, f, g,
 * o; r, z, n; one. */
struct recurrent_attr {
    enum recurrent_kind kind;
    bool reverse; /* from the last step to the first */
    bool keep;    /* keeps what the gradient needs; false: only the last cell state */
};
/* Weights in few bits, block by block (quant.h). */
enum quant_kind { QUANT_NONE, QUANT_INT8, QUANT_NF4 };
struct quant_attr {
    enum quant_kind kind;
    struct shape shape; /* of the weight */
    enum dtype to;
};
struct grad_check_attr {
    double max_norm;      /* 0 = no clipping */
    bool allow_nonfinite; /* true with a gradient scaler: skip the update, the run goes on */
};

union op_attr {
    struct linear_loss_attr linear_loss;
    struct conv_attr conv;
    struct pool_attr pool;
    struct norm_attr norm;
    struct gemm_attr gemm;
    struct ew_attr ew;
    struct reduce_attr reduce;
    struct view_attr view;
    struct fill_attr fill;
    struct cast_attr cast;
    struct dropout_attr dropout;
    struct embed_attr embed;
    struct loss_attr loss;
    struct optim_attr optim;
    struct attention_attr attention;
    struct rope_attr rope;
    struct recurrent_attr recurrent;
    struct grad_check_attr check;
    struct quant_attr quant;
};

#endif
