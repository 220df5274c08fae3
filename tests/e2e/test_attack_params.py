"""Senseless parameters: every parameter of every node that this version runs, one at a time (half of the
values by chance, all under SNUG_SOAK=1)."""
import json
import os
import random
import resource

import attack
import harness
import nets

SOAK = os.environ.get("SNUG_SOAK") == "1"
SEED = int(os.environ.get("SNUG_TEST_SEED", "1"))
BIG = (1 << 63) - 1
VALUES = {
    "int": [-1, 0, 10 ** 9, 1 << 31, 1 << 40, BIG],
    "float": [-1.5, 0, 1e308, 1e-320, "NaN"],
    "string": ["", "x" * 5000, "1e999, -1", "é\n%s%n\u0001"],
    "select": ["", "x"],
    "bool": ["yes", 2],
}
MORE = {
    "int": [-BIG - 1, 1, 2, 3, 0.5, 1e300, "NaN", None, [], {}, True],
    "float": [-1e308, 1, 1e-45, 10 ** 9, BIG, "inf", None, [], {}, True],
    "string": ["0", "../../x", "/", "NaN", "1,2,3,4,5,6,7,8,9,10,11,12", None, 5, [], {}],
    "select": [None, 0, [], {}, "\n" * 200],
    "bool": [None, [], {}, 0.5],
}


def everything(snug):
    """A graph with every node type that trains or reads pictures."""
    graph = attack.saving_graph(harness.CNN, validate=True, train__max_steps=1, loader__batch_size=8,
                                val__batch_size=8)
    add = attack.add
    chain = [("resize", "ResizeTransform", {"size": 28}), ("crop", "RandomCrop", {"size": 28}),
             ("flip", "RandomHorizontalFlip", {}), ("turn", "RandomRotation", {}), ("colour", "ColorJitter", {}),
             ("augment", "RandAugment", {}), ("tensor", "ToTensorTransform", {}),
             ("norm", "NormalizeTransform", {"preset": "Custom"})]
    last = None
    for ident, kind, params in chain:
        add(graph, ident, kind, params, *([(last, "transform", ident, "transform")] if last else []))
        last = ident
    add(graph, "compose", "ComposeTransform", {}, ("norm", "transform", "compose", "step_1"))
    add(graph, "apply", "Transform", {}, ("data", "dataset", "apply", "dataset"),
        ("compose", "transform", "apply", "transform"))
    [e for e in graph["edges"] if e["target"] == "loader"][0]["source"] = "apply"
    add(graph, "plain", "Transform", {"resize": 28}, ("test", "dataset", "plain", "dataset"))
    add(graph, "schedule", "LRScheduler", {}, ("optimizer", "optimizer", "schedule", "optimizer"),
        ("schedule", "scheduler", "train", "lr_scheduler"))
    add(graph, "evaluate", "EvaluateModel", {}, ("train", "model", "evaluate", "model"),
        ("plain", "dataset", "evaluate", "dataset"))
    add(graph, "batch", "DatasetBatch", {}, ("plain", "dataset", "batch", "dataset"))
    add(graph, "infer", "Inference", {}, ("train", "model", "infer", "model"), ("batch", "images", "infer", "input"))
    add(graph, "print", "Print", {}, ("infer", "output", "print", "value"))
    add(graph, "draw", "Visualize", {}, ("train", "losses", "draw", "data"))
    add(graph, "made", "TensorCreate", {"shape": "2,3"})
    add(graph, "print2", "Print", {}, ("made", "tensor", "print2", "value"))
    add(graph, "typed", "TensorInput", {})
    add(graph, "print3", "Print", {}, ("typed", "tensor", "print3", "value"))
    add(graph, "state", "CheckpointSaver", {"path": "state.pt"}, ("train", "model", "state", "model"),
        ("train", "optimizer", "state", "optimizer"))
    for ident in ("made", "typed"):
        graph["edges"].append({"id": "go-" + ident, "source": "start", "sourceHandle": "trigger", "target": ident,
                               "targetHandle": "", "type": "trigger"})
    return graph


def limit():
    """The machine is protected from what should have been refused."""
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))


def text_everything(ports_of):
    """A graph with every node type of language models and texts, and layers on the canvas."""
    add = attack.add
    small = {"vocab_size": 300, "d_model": 64, "n_layers": 1, "n_heads": 2, "d_ff": 64, "max_seq_len": 32}
    graph = nets.text_graph(small, validate=True, path="lm.pt", train__max_steps=1)
    graph = nets.through_adapter(graph, {"rank": 2})
    saver = next(n for n in graph["nodes"] if n["id"] == "save")["data"]["params"]
    saver.update(format="pytorch", merge=True)
    add(graph, "corpus2", "TextCorpusDataset", {"source": "local_file", "local_file": "train.txt"})
    add(graph, "mix", "DataMixDataset", {}, ("corpus2", "dataset", "mix", "corpus_1"), ("corpus3", "dataset", "mix", "corpus_2"))
    add(graph, "corpus3", "TextCorpusDataset", {"source": "local_file", "local_file": "train.txt"})
    add(graph, "mixed", "LMTokenizedDataset", {"seq_len": 16}, ("mix", "dataset", "mixed", "dataset"),
        ("tokenizer", "tokenizer", "mixed", "tokenizer"))
    add(graph, "look", "PerplexityEvaluate", {"max_batches": 1}, ("train", "model", "look", "model"),
        ("mixed", "dataset", "look", "dataset"))
    add(graph, "say", "TextGenerate", {"max_new_tokens": 3, "prompt": "some"}, ("train", "model", "say", "model"),
        ("tokenizer", "tokenizer", "say", "tokenizer"))
    add(graph, "peft", "ModelSaver", {"path": "peft", "format": "peft"}, ("train", "model", "peft", "model"))
    add(graph, "x", "TensorInput", {"shape": "2,4,8", "dtype": "float32", "value_mode": "random"})
    for i, (kind, params) in enumerate((
            ("LSTM", {"input_size": 8, "hidden_size": 8}), ("GRU", {"input_size": 8, "hidden_size": 8}),
            ("TransformerEncoder", {"d_model": 8, "nhead": 2, "num_layers": 1, "dim_feedforward": 8}),
            ("PositionalEncoding", {"d_model": 8}), ("MoELayer", {"hidden_dim": 8, "expert_hidden_dim": 8}),
            ("LayerNorm", {"normalized_shape": "8"}), ("Linear", {"in_features": 8, "out_features": 8}),
            ("Softmax", {}), ("Permute", {"dims": "0,2,1"}), ("Reshape", {"shape": "2,32"}), ("Unsqueeze", {}), ("Squeeze", {}),
            ("Mean", {}), ("ScalarMultiply", {}), ("Argmax", {}), ("Flatten", {}), ("Dropout", {}), ("Split", {}))):
        ports = ports_of(kind)
        add(graph, "n%d" % i, kind, params, ("x", "tensor", "n%d" % i, ports[0]))
        add(graph, "p%d" % i, "Print", {}, ("n%d" % i, ports[1], "p%d" % i, "value"))
    graph["edges"] = [e for e in graph["edges"] if e.get("type") != "trigger"]
    for n in graph["nodes"]:
        if n["id"] not in {e["target"] for e in graph["edges"]} and n["type"] != "Start":
            graph["edges"].append({"id": "go-" + n["id"], "source": "start", "sourceHandle": "trigger", "target": n["id"],
                                   "targetHandle": "", "type": "trigger"})
    return graph


def test_senseless_parameters_of_language_models(snug):
    nets.tokenizer_file(snug)
    nets.tokens_file(snug)

    def ports(kind):
        node = node_of(snug, kind)
        return node["inputs"][0]["name"], node["outputs"][0]["name"]

    attack_all(snug, text_everything(ports))


def test_senseless_parameters(snug):
    attack.fashion(snug, 40)
    attack.fashion(snug, 24, split="test")
    attack_all(snug, everything(snug))


def attack_all(snug, graph):
    cases = attack.Cases(snug)
    guard = {} if b"__asan_init" in attack.get(snug.program) else {"preexec_fn": limit}
    first = cases.call("as it is", "run", snug.write("graph.json", graph), **guard)
    assert first and first.rc == 0, first or cases.wrong
    kinds, r = {}, random.Random(SEED)
    for node in graph["nodes"]:
        kinds.setdefault(node["type"], snug.json("nodes", node["type"]).doc)
    for node in graph["nodes"]:
        for param in params_of(kinds[node["type"]]):
            name, kind = param["name"], param["param_type"].lower()
            kind = {"model_file": "string", "tensor_grid": "string", "data_file": "string"}.get(kind, kind)
            if node["type"] == "SequentialModel":
                continue
            params = node["data"]["params"]
            kept = params.get(name)
            values = VALUES[kind] + MORE[kind] if SOAK else r.sample(VALUES[kind], (len(VALUES[kind]) + 1) // 2)
            for value in values:
                params[name] = value
                what = "%s.%s = %.40s" % (node["id"], name, json.dumps(value))
                result = cases.call(what, "run", snug.write("graph.json", graph), timeout=30, **guard)
                named = result and result.rc == 1 and result.doc["error"]["node_id"]
                if result and result.rc == 1 and not named:
                    cases.wrong.append("%s: no node named: %r" % (what, result.doc["error"]))
            if kept is None:
                del params[name]
            else:
                params[name] = kept
    cases.end()


def node_of(snug, kind):
    doc = snug.json("nodes", kind).doc
    return (doc.get("nodes") or [doc.get("node") or doc])[0]


def params_of(doc):
    nodes = doc.get("nodes") or [doc.get("node") or doc]
    return nodes[0]["params"]


def test_giant_layers(snug):
    cases = attack.Cases(snug)
    attack.fashion(snug, 40)
    for size in (10 ** 9, 1 << 31, 1 << 40, BIG, BIG // 784, -1, 0):
        for what, rows in (
                ("Linear out", [("Flatten", {}), ("Linear", {"in_features": 784, "out_features": size})]),
                ("Linear in", [("Flatten", {}), ("Linear", {"in_features": size, "out_features": 10})]),
                ("Conv2d out", [("Conv2d", {"in_channels": 1, "out_channels": size, "kernel_size": 3}), ("Flatten", {})]),
                ("Conv2d kernel", [("Conv2d", {"in_channels": 1, "out_channels": 1, "kernel_size": size}), ("Flatten", {})]),
                ("Conv2d padding", [("Conv2d", {"in_channels": 1, "out_channels": 1, "kernel_size": 3, "padding": size}), ("Flatten", {})]),
                ("Conv2d stride", [("Conv2d", {"in_channels": 1, "out_channels": 1, "kernel_size": 3, "stride": size}), ("Flatten", {})]),
                ("MaxPool2d", [("MaxPool2d", {"kernel_size": size, "stride": size, "padding": size}), ("Flatten", {})]),
                ("AdaptiveAvgPool2d", [("AdaptiveAvgPool2d", {"output_size": size}), ("Flatten", {})]),
                ("BatchNorm2d", [("BatchNorm2d", {"num_features": size}), ("Flatten", {})]),
                ("Upsample", [("Upsample", {"scale_factor": size}), ("Flatten", {})]),
                ("ConvTranspose2d", [("ConvTranspose2d", {"in_channels": 1, "out_channels": 1, "kernel_size": 3, "stride": size}), ("Flatten", {})])):
            graph = snug.write("graph.json", harness.training_graph(harness.layers(*rows), loader__batch_size=4,
                                                                    train__max_steps=1))
            for command in ("plan", "run"):
                result = cases.call("%s %s %d" % (command, what, size), command, graph, "--memory-gib", 1, timeout=30)
                if result and result.rc == 1 and not result.doc["error"]["node_id"]:
                    cases.wrong.append("%s %d: no node named: %r" % (what, size, result.doc["error"]))
                if result and result.rc == 0 and size >= 10 ** 9 and what in ("Linear out", "Linear in", "Conv2d out"):
                    cases.wrong.append("%s %d: accepted" % (what, size))
    cases.end()


def test_giant_numbers_of_training(snug):
    """What is senseless but not wrong runs as far as max_steps lets it."""
    cases = attack.Cases(snug)
    attack.fashion(snug, 40)
    for params in ({"epochs": 10 ** 18}, {"accumulate_steps": 10 ** 5}, {"checkpoint_every_steps": BIG},
                   {"val_every_steps": BIG}, {"early_stopping_patience": BIG}, {"max_steps": BIG, "epochs": 1},
                   {"grad_clip_norm": 1e300}, {"accumulate_steps": BIG, "max_steps": 0, "epochs": 1}):
        more = {"train__" + k: v for k, v in dict({"max_steps": 2}, **params).items()}
        graph = snug.write("graph.json", harness.training_graph(loader__batch_size=8, **more))
        result = cases.call("%r" % params, "run", graph, timeout=60)
        if result and result.rc:
            cases.wrong.append("%r: %r" % (params, result))
    for size in (1 << 40, BIG):
        graph = snug.write("graph.json", harness.training_graph(loader__batch_size=size))
        result = cases.call("batch_size %d" % size, "run", graph)
        if result and result.rc == 0 and result.doc["metrics"]["total_steps"] != 1:
            cases.wrong.append("batch_size %d: %r" % (size, result.doc["metrics"]))
        graph = snug.write("graph.json", harness.training_graph(loader__batch_size=size, loader__drop_last=True))
        cases.fails("batch_size %d, drop_last" % size, "run", graph, words=("drop_last",), rc=(1, 3))
    graph = snug.write("graph.json", harness.training_graph(loader__batch_size=0))
    cases.fails("batch_size 0", "run", graph, node="loader", words=("batch_size",))
    graph = snug.write("graph.json", harness.training_graph(loader__batch_size=41, loader__drop_last=True))
    cases.fails("drop_last leaves nothing", "run", graph, words=("drop_last",))
    # Rates that are numbers but lead nowhere: the run says so, or goes on with what it has.
    for lr in (1e38, 1e30, 0):
        graph = snug.write("graph.json", harness.training_graph(optimizer__lr=lr, optimizer__type="SGD"))
        cases.call("lr %g" % lr, "run", graph)
    for text in ("nan", "inf", "-inf", "1e999", "-1", "0x10", "", "1,5"):
        graph = snug.write("graph.json", harness.training_graph())
        cases.call("--set lr=" + text, "run", graph, "--set", "optimizer.lr=" + text)
        result = cases.call("--memory-gib " + text, "run", graph, "--memory-gib", text)
        if result and result.rc != 2:
            cases.wrong.append("--memory-gib %s: exit %d" % (text, result.rc))
    cases.end()
