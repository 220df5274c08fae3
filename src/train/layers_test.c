/* layers_test.c - training with layers over sequences: they learn, in every precision; the measured
 * peak is the planned one; levers that promise the same bits keep them, and so do threads. */
#include "train/train_test_support.h"

#include <stdio.h>

static const char *const nets[] = {
    "LSTM r {'input_size':6,'hidden_size':20,'num_layers':2,'bidirectional':true,'dropout':0.1,"
    "'batch_first':true}; SelectIndex s {'index':-1}; Linear l {'in_features':40,'out_features':3}",
    "GRU r {'input_size':6,'hidden_size':20,'num_layers':2,'batch_first':true};"
    "SelectIndex s {'index':-1}; Linear l {'in_features':20,'out_features':3}",
    "RNN r {'input_size':6,'hidden_size':20,'batch_first':true};"
    "SelectIndex s {'index':-1}; Linear l {'in_features':20,'out_features':3}",
    "Linear e {'in_features':6,'out_features':16}; PositionalEncoding p {'d_model':16};"
    "TransformerEncoder t {'d_model':16,'nhead':4,'num_layers':3,'dim_feedforward':24};"
    "SelectIndex s {'index':0}; Linear l {'in_features':16,'out_features':3}",
    "Linear e {'in_features':6,'out_features':16};"
    "TransformerDecoder t {'d_model':16,'nhead':2,'num_layers':2,'dim_feedforward':24,"
    "'norm_first':true,'activation':'gelu'};"
    "SelectIndex s {'index':0}; Linear l {'in_features':16,'out_features':3}",
    "Linear e {'in_features':6,'out_features':16}; MultiHeadAttention a {'embed_dim':16,"
    "'num_heads':4,'dropout':0.1,'causal':true}; RMSNorm n {'normalized_shape':16};"
    "MoE m {'hidden_dim':16,'expert_hidden_dim':12,'num_experts':3,'top_k':2};"
    "SwiGLU g {'in_features':16,'hidden_features':20};"
    "SelectIndex s {'index':-1}; Linear l {'in_features':16,'out_features':3}",
    /* Steps whose first number is positive are padding. */
    "{'version':2,'nodes':[{'id':'in','type':'Input','ports':[{'id':'a','name':'x'}]},"
    "{'id':'e','type':'Linear','params':{'in_features':6,'out_features':16}},"
    "{'id':'f','type':'SelectIndex','params':{'dim':2}},{'id':'m','type':'ReLU'},"
    "{'id':'t','type':'TransformerEncoder','params':{'d_model':16,'nhead':4,'num_layers':3,"
    "'dim_feedforward':24}},"
    "{'id':'a','type':'MultiHeadAttention','params':{'embed_dim':16,'num_heads':4,'kv_heads':2,"
    "'rotary':true,'dropout':0.1}},"
    "{'id':'s','type':'SelectIndex'},"
    "{'id':'l','type':'Linear','params':{'in_features':16,'out_features':3}},"
    "{'id':'out','type':'Output','ports':[{'id':'b','name':'y'}]}],'edges':["
    "{'source':'in','sourceHandle':'a','target':'e'},{'source':'in','sourceHandle':'a','target':'f'"
    "},"
    "{'source':'f','target':'m'},{'source':'e','target':'t'},{'source':'m','target':'t'},"
    "{'source':'t','target':'a'},{'source':'m','target':'a'},{'source':'a','target':'s'},"
    "{'source':'s','target':'l'},{'source':'l','target':'out','targetHandle':'b'}]}"};
enum { NETS = sizeof nets / sizeof nets[0] };

/* Made-up sequences of 7 steps of 6 numbers, in 3 classes. */
static struct trial_setup setup(int net)
{
    struct trial_setup s = trial_mlp(60, 12);
    s.layers = nets[net];
    s.optim = "{'type':'Adam','lr':0.01}";
    s.train.rank = 2;
    s.train.shape[0] = 7;
    s.train.shape[1] = 6;
    s.config.epochs = 1;
    return s;
}

static int64_t run(struct trial *t, const struct trial_setup *s)
{
    trial_open(t, s);
    trial_run(t);
    CHECK_EQ(exec_peak_measured(train_exec(t->train)), exec_peak_planned(train_exec(t->train)));
    return exec_peak_planned(train_exec(t->train));
}

TEST(sequence_layers_learn, "layers over sequences learn made-up classes in fp32, bf16 and fp16")
{
    cpu_threads_set(1); /* little to share out */
    for (int net = 0; net < NETS; net++) {
        for (int precision = 0; precision < 3; precision++) {
            struct trial_setup s = setup(net);
            struct trial t;
            s.config.epochs = 12;
            s.config.precision = (enum precision)precision;
            (void)run(&t, &s);
            size_t n;
            const double *losses = train_losses(t.train, &n);
            double first = losses[0], last = losses[n - 1];
            if (!(last < 0.9 * first))
                test_fail(
                    __FILE__, __LINE__, "net %d in precision %d: from %g to %g", net, precision,
                    first, last);
            trial_close(&t);
        }
    }
}

TEST(
    sequence_layers_checkpointed,
    "L1: layers over sequences under checkpointing: the same bits, dropout included, and a peak "
    "that is not higher")
{
    cpu_threads_set(1);
    for (int net = 0; net < NETS; net++) {
        struct trial_setup s = setup(net);
        struct trial plain, blocks, selective;
        int64_t most = run(&plain, &s);
        s.config.levers.checkpointing = CHECKPOINT_BLOCKS;
        CHECK(run(&blocks, &s) <= most);
        s.config.levers.checkpointing = CHECKPOINT_SELECTIVE;
        CHECK(run(&selective, &s) <= most);
        trial_check_same(&plain, &blocks);
        trial_check_same(&plain, &selective);
        trial_close(&plain);
        trial_close(&blocks);
        trial_close(&selective);
    }
}

TEST(sequence_layers_threads, "the bits of layers over sequences do not depend on threads")
{
    for (int net = 0; net < NETS; net++) {
        struct trial_setup s = setup(net);
        struct trial one, three;
        s.train.batch = 30;
        cpu_threads_set(1);
        (void)run(&one, &s);
        cpu_threads_set(3);
        (void)run(&three, &s);
        CHECK(trial_same_weights(&one, &three));
        trial_close(&one);
        trial_close(&three);
    }
}
