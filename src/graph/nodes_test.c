/* nodes_test.c - the table of node types is sound, complete and shown right. */
#include "graph/nodes.h"

#include "base/mem.h"
#include "test.h"

#include <math.h>
#include <string.h>

TEST(table_is_sound, "N2: every row has a valid default within its bounds and unique names")
{
    for (size_t i = 0; i < node_type_count(); i++) {
        const struct node_type *t = node_type_at(i);
        CHECK(*t->about && *t->category && *t->provider);
        for (size_t k = 0; k < i; k++)
            CHECK(strcmp(node_type_at(k)->name, t->name) != 0);
        for (const struct node_param *p = t->params; p->name; p++) {
            json_t *v = node_param_parse(p, p->initial);
            if (!v)
                test_fail(
                    __FILE__, __LINE__, "%s.%s has the default %s", t->name, p->name, p->initial);
            if (json_is_number(v) && p->type != PARAM_TENSOR_GRID) {
                CHECK(isnan(p->min) || json_number_value(v) >= p->min);
                CHECK(isnan(p->max) || json_number_value(v) <= p->max);
            }
            if (p->type == PARAM_SELECT)
                CHECK(node_param_option(p, p->initial) == PARAM_OPTION_OK);
            if (p->when) {
                char name[64] = "";
                memcpy(name, p->when, strcspn(p->when, "="));
                CHECK(node_param_find(t, name) != NULL);
            }
            CHECK(node_param_find(t, p->name) == p); /* no second of the same name */
            json_decref(v);
        }
    }
}

TEST(table_is_complete, "N2: the types that this version runs are marked, the others are known")
{
    static const char *const run[] = {
        "Start",
        "SequentialModel",
        "CausalLMModel",
        "snug:PretrainedLM",
        "snug:Adapter",
        "LMCrossEntropyLoss",
        "LMTokenizer",
        "TextCorpusDataset",
        "LMTokenizedDataset",
        "DataMixDataset",
        "PerplexityEvaluate",
        "TextGenerate",
        "Dataset",
        "DataLoader",
        "Transform",
        "ResizeTransform",
        "ToTensorTransform",
        "NormalizeTransform",
        "RandomCrop",
        "RandomHorizontalFlip",
        "RandomRotation",
        "ColorJitter",
        "RandAugment",
        "ComposeTransform",
        "ImageFolderDataset",
        "Optimizer",
        "Loss",
        "LRScheduler",
        "TrainingLoop",
        "EvaluateModel",
        "ModelSaver",
        "ModelLoader",
        "CheckpointSaver",
        "CheckpointLoader",
        "Inference",
        "Activation",
        "AdaptiveAvgPool2d",
        "AvgPool2d",
        "MaxPool2d",
        "BatchNorm1d",
        "BatchNorm2d",
        "GroupNorm",
        "InstanceNorm2d",
        "LayerNorm",
        "Conv1d",
        "Conv2d",
        "ConvTranspose2d",
        "Dropout",
        "Embedding",
        "Flatten",
        "Linear",
        "LSTM",
        "GRU",
        "MultiHeadAttention",
        "TransformerEncoder",
        "TransformerDecoder",
        "MoELayer",
        "PositionalEncoding",
        "RNNCell",
        "Add",
        "Argmax",
        "Concat",
        "MatMul",
        "Mean",
        "Multiply",
        "Permute",
        "Reshape",
        "ScalarMultiply",
        "Softmax",
        "Split",
        "Squeeze",
        "Stack",
        "Unsqueeze",
        "AttentionMask",
        "Print",
        "Visualize",
        "TensorInput",
        "TensorCreate",
        "DatasetBatch",
        "GraphInput",
        "GraphOutput"};
    size_t n_run = 0;
    for (size_t i = 0; i < node_type_count(); i++)
        n_run += (node_type_at(i)->flags & NODE_FLAG_RUNNABLE) != 0;
    CHECK_EQ(n_run, sizeof run / sizeof *run);
    for (size_t i = 0; i < n_run; i++)
        CHECK(node_type_find(run[i])->flags & NODE_FLAG_RUNNABLE);
    CHECK(node_type_count() >= 150);
    CHECK(!(node_type_find("PythonScript")->flags & NODE_FLAG_RUNNABLE));
}

TEST(
    lookup_falls_back,
    "N2: a bare name finds the plugin type with that suffix, the first of several")
{
    CHECK_STR(node_type_find("Edu-SelfAttention")->name, "deep:Edu-SelfAttention");
    CHECK_STR(node_type_find("edu:Classifier")->name, "edu:Classifier");
    CHECK(node_type_find("deep:Classifier") == NULL);
    CHECK(node_type_find("") == NULL);
    CHECK_STR(node_type_nearest("Trainingloop"), "TrainingLoop");
}

TEST(port_types_fit, "N1: which output may feed which input")
{
    for (int a = 0; a < PORT_TYPE_COUNT; a++) {
        for (int b = 0; b < PORT_TYPE_COUNT; b++) {
            bool trigger = a == PORT_TRIGGER || b == PORT_TRIGGER;
            bool right = a == b || (!trigger && (a == PORT_ANY || b == PORT_ANY)) ||
                         (a == PORT_IMAGE && b == PORT_TENSOR);
            CHECK_EQ(port_type_fits((enum port_type)a, (enum port_type)b), right);
        }
    }
    CHECK(!port_type_fits(PORT_DATASET, PORT_DATALOADER));
    CHECK(!port_type_fits(PORT_TENSOR, PORT_IMAGE));
}

TEST(
    ports_follow_params,
    "N1: Split, ComposeTransform and DataMixDataset have as many ports as asked")
{
    const struct node_type *split = node_type_find("Split");
    struct node_port port;
    json_t *params = json_pack("{s:i}", "chunks", 5);
    CHECK(node_port_find(split, params, true, "chunk_4", &port));
    CHECK(!node_port_find(split, params, true, "chunk_5", &port));
    CHECK(!node_port_find(split, NULL, true, "chunk_2", &port));
    json_put_i64(params, "chunks", 1000000);
    CHECK(node_port_find(split, params, true, "chunk_31", &port));
    CHECK(!node_port_find(split, params, true, "chunk_32", &port));
    json_put_str(params, "chunks", "many"); /* not a number: the default */
    CHECK(node_port_find(split, params, true, "chunk_1", &port));
    json_put_i64(params, "steps", 3);
    CHECK(node_port_find(node_type_find("ComposeTransform"), params, false, "step_3", &port));
    CHECK(port.optional && port.type == PORT_TRANSFORM);
    CHECK(!node_port_find(node_type_find("ComposeTransform"), params, false, "step_0", &port));
    CHECK(node_port_find(node_type_find("DataMixDataset"), params, false, "corpus_2", &port));
    CHECK(!port.optional);
    json_decref(params);
}

TEST(
    training_loop_row,
    "P1 A1 N2: precision and accumulation are advanced parameters with their defaults")
{
    const struct node_type *t = node_type_find("TrainingLoop");
    const struct node_param *precision = node_param_find(t, "precision");
    const struct node_param *accumulate = node_param_find(t, "accumulate_steps");
    CHECK_STR(precision->initial, "fp32");
    CHECK_STR(precision->options, "fp32|bf16|fp16");
    CHECK_STR(accumulate->initial, "1");
    CHECK(precision->flags & PARAM_FLAG_ADVANCED && accumulate->flags & PARAM_FLAG_ADVANCED);
    struct node_port port;
    CHECK(node_port_find(t, NULL, false, "grad_scaler_state", &port) && port.optional);
    CHECK(node_port_find(t, NULL, true, "grad_scaler_state", &port));
    CHECK(node_param_option(node_param_find(t, "device"), "cuda:3") == PARAM_OPTION_OK);
    CHECK(node_param_option(node_param_find(t, "strategy"), "zero1") == PARAM_OPTION_LATER);
}

TEST(values_parse, "N2: text becomes a value of the parameter's type or nothing")
{
    const struct node_type *t = node_type_find("TrainingLoop");
    const struct node_param *epochs = node_param_find(t, "epochs");
    const struct node_param *clip = node_param_find(t, "grad_clip_norm");
    json_t *v = node_param_parse(epochs, "1e2");
    CHECK_EQ(json_integer_value(v), 100);
    json_decref(v);
    CHECK(!node_param_parse(epochs, "2.5") && !node_param_parse(epochs, ""));
    CHECK(!node_param_parse(epochs, "99999999999999999999"));
    v = node_param_parse(clip, "1e-3");
    CHECK_NEAR(json_real_value(v), 1e-3, 0);
    json_decref(v);
    CHECK(!node_param_parse(clip, "nan") && !node_param_parse(clip, "inf"));
    CHECK(!node_param_parse(node_param_find(t, "batch_metrics"), "yes"));
}

TEST(shown_as_json_and_text, "N2: the table as the API gives it, and as a person reads it")
{
    json_t *table = node_table_json();
    CHECK_EQ(json_array_size(table), node_type_count());
    size_t i;
    json_t *one, *loop = NULL;
    json_array_foreach(table, i, one)
    {
        if (str_eq(json_get_str(one, "node_name", ""), "LRScheduler"))
            loop = one;
    }
    json_t *gamma = json_array_get(json_object_get(loop, "params"), 2);
    CHECK_STR(json_get_str(gamma, "name", ""), "gamma");
    CHECK_STR(json_get_str(gamma, "param_type", ""), "float");
    CHECK_EQ(json_array_size(json_object_get(json_object_get(gamma, "visible_when"), "type")), 4);
    CHECK(json_is_null(json_object_get(gamma, "min_value")));
    char *text = json_text(table, true);
    CHECK(strstr(text, "\"!") == NULL);
    mem_free(text);
    json_decref(table);
    struct str out;
    str_init(&out);
    node_table_text(&out);
    CHECK(strstr(out.data, "TrainingLoop") && strstr(out.data, "not run by this version"));
    str_clear(&out);
    node_type_text(node_type_find("Dataset"), &out);
    CHECK(strstr(out.data, "CIFAR10, FashionMNIST") && !strstr(out.data, "!SVHN"));
    str_release(&out);
}

TEST(table_has_a_hash, "W3: the table's hash is the same each time, its names are all there")
{
    char a[33], b[33];
    node_table_hash(a);
    node_table_hash(b);
    CHECK_STR(a, b);
    CHECK_EQ(strlen(a), 32);
    json_t *names = node_table_names();
    CHECK_EQ(json_array_size(names), node_type_count());
    json_decref(names);
}
