/* presets.c - the presets that ship with the program, in the form a graph file embeds them. */
#include "graph/graph_int.h"

#include <string.h>

#define NODE(id, type, params) "{\"id\":\"" id "\",\"type\":\"" type "\",\"params\":{" params "}}"
#define EDGE(s, sp, t, tp)                                                                         \
    "{\"source\":\"" s "\",\"sourceHandle\":\"" sp "\",\"target\":\"" t                            \
    "\",\"targetHandle\":\"" tp "\"}"
#define PORT(name, node, port)                                                                     \
    "{\"name\":\"" name "\",\"internal_node\":\"" node "\",\"internal_port\":\"" port              \
    "\",\"data_type\":\"\",\"description\":\"\"}"
#define SHOW(node, param, title)                                                                   \
    "{\"internal_node\":\"" node "\",\"param_name\":\"" param "\",\"display_name\":\"" title       \
    "\",\"group\":\"\"}"
#define PRESET(name, category, about, tags, nodes, edges, inputs, outputs, params)                 \
    "{\"preset_name\":\"" name "\",\"category\":\"" category "\",\"description\":\"" about         \
    "\",\"tags\":[" tags "],\"nodes\":[" nodes "],\"edges\":[" edges                               \
    "],\"exposed_inputs\":[" inputs "],\"exposed_outputs\":[" outputs                              \
    "],\"exposed_params\":[" params "]}"

static const char simple_cnn[] = PRESET(
    "Simple CNN Classifier", "CNN", "Two convolutions, each with activation and pooling.",
    "\"beginner\",\"cnn\",\"classification\",\"image\"",
    NODE("conv1", "Conv2d", "\"in_channels\":1,\"out_channels\":32,\"kernel_size\":3,\"stride\":1,\"padding\":1") "," NODE("act1", "Activation", "\"function\":\"relu\"") "," NODE("pool1", "MaxPool2d", "\"kernel_size\":2,\"stride\":2") "," NODE(
        "conv2", "Conv2d",
        "\"in_channels\":32,\"out_channels\":64,\"kernel_size\":3,\"stride\":1,\"padding\":"
        "1") "," NODE("act2", "Activation", "\"function\":\"relu\"") "," NODE("pool2", "MaxPool2d", "\"kernel_size\":2,\"stride\":2"),
    EDGE("conv1", "tensor", "act1", "tensor") "," EDGE("act1", "tensor", "pool1", "tensor") "," EDGE(
        "pool1", "tensor", "conv2",
        "tensor") "," EDGE("conv2", "tensor", "act2", "tensor") "," EDGE("act2", "tensor", "pool2", "tensor"),
    PORT("tensor", "conv1", "tensor"), PORT("tensor", "pool2", "tensor"),
    SHOW("conv1", "in_channels", "Input channels") "," SHOW("conv1", "out_channels", "Channels of layer 1") "," SHOW("act1", "function", "Activation 1") "," SHOW(
        "conv2", "out_channels",
        "Channels of layer 2") "," SHOW("act2", "function", "Activation 2") "," SHOW("pool1", "kernel_size", "Pooling 1") "," SHOW("pool2", "kernel_size", "Pooling 2"));

static const char lstm_sequence[] = PRESET(
    "LSTM Sequence", "RNN", "An LSTM over a sequence, then an activation.",
    "\"intermediate\",\"rnn\",\"lstm\",\"sequence\"",
    NODE(
        "lstm", "LSTM",
        "\"input_size\":128,\"hidden_size\":256,\"num_layers\":1,\"batch_first\":true,"
        "\"bidirectional\":false") "," NODE("act", "Activation", "\"function\":\"tanh\""),
    EDGE("lstm", "output", "act", "tensor"), PORT("tensor", "lstm", "tensor"),
    PORT("output", "act", "tensor") "," PORT("hidden", "lstm", "hidden"),
    SHOW("lstm", "input_size", "Input size") "," SHOW("lstm", "hidden_size", "Hidden size") "," SHOW(
        "lstm", "num_layers",
        "Layers") "," SHOW("lstm", "bidirectional", "Both directions") "," SHOW("act", "function", "Activation"));

static const char training_pipeline[] = PRESET(
    "Training Pipeline", "Training", "Data set, loader, loss, optimizer and training loop.",
    "\"beginner\",\"training\",\"pipeline\"",
    NODE("dataset", "Dataset", "\"name\":\"MNIST\",\"split\":\"train\",\"data_dir\":\"./data\"") "," NODE("dataloader", "DataLoader", "\"batch_size\":32,\"shuffle\":true,\"num_workers\":0") "," NODE(
        "loss", "Loss",
        "\"type\":\"CrossEntropyLoss\"") "," NODE("optimizer", "Optimizer", "\"type\":\"Adam\",\"lr\":0.001,\"weight_decay\":0") "," NODE("train_loop", "TrainingLoop", "\"epochs\":5,\"device\":\"cpu\""),
    EDGE("dataset", "dataset", "dataloader", "dataset") "," EDGE("dataloader", "dataloader", "train_loop", "dataloader") "," EDGE(
        "loss", "loss_fn", "train_loop",
        "loss_fn") "," EDGE("optimizer", "optimizer", "train_loop", "optimizer"),
    PORT("model", "train_loop", "model") "," PORT("model_for_opt", "optimizer", "model"),
    PORT("model", "train_loop", "model") "," PORT("losses", "train_loop", "losses"),
    SHOW("dataset", "name", "Data set") "," SHOW("dataset", "split", "Part") "," SHOW("dataloader", "batch_size", "Batch size") "," SHOW("dataloader", "shuffle", "Shuffle") "," SHOW(
        "loss", "type",
        "Loss") "," SHOW("optimizer", "type", "Optimizer") "," SHOW("optimizer", "lr", "Learning rate") "," SHOW("train_loop", "epochs", "Epochs") "," SHOW("train_loop", "device", "Device"));

json_t *graph_presets_builtin(void)
{
    static const char *const texts[] = {simple_cnn, lstm_sequence, training_pipeline};
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_error_t je;
        json_t *preset = json_loads(texts[i], 0, &je);
        ASSERT(preset != NULL);
        (void)json_array_append_new(list, preset);
    }
    return list;
}
