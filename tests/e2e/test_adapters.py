"""Adapters: train over a frozen base, save and load in PEFT's format, merge; weights in 16 bits and states in 8."""
import json
import os
import struct

import harness

CHAIN = harness.layers(("Flatten", {}), ("Linear", {"in_features": 784, "out_features": 64}), ("ReLU", {}),
                       ("Linear", {"in_features": 64, "out_features": 10}))
IMAGE = {"shape": "2,1,28,28", "dtype": "float32", "value_mode": "random", "seed": 5}


def need_torch():
    try:
        import torch
    except ImportError:
        raise harness.Skip("PyTorch is missing (Debian package python3-torch)")
    return torch


def add(graph, nodes, wires):
    graph["nodes"] += [{"id": i, "type": t, "position": {"x": 0, "y": 0}, "data": {"params": p}}
                       for i, (t, p) in nodes.items()]
    fed = {w[2] for w in wires}
    graph["edges"] += [{"id": "t-" + i, "source": "start", "target": i, "sourceHandle": "trigger", "targetHandle": "",
                        "type": "trigger"} for i in nodes if i not in fed]
    graph["edges"] += [{"id": "a%s%s" % (b, q), "source": a, "sourceHandle": p, "target": b, "targetHandle": q}
                       for a, p, b, q in wires]
    return graph


def adapted(adapter, savers=(), name="adapted", **params):
    """A training graph whose model goes through an adapter; results of the loop are saved and run on an image."""
    graph = harness.training_graph(CHAIN, name, **params)
    for e in graph["edges"]:
        if e["source"] == "model":
            e["source"] = "adapter"
    wires = [("model", "model", "adapter", "model"), ("train", "model", "infer", "model"),
             ("image", "tensor", "infer", "input"), ("infer", "output", "said", "value")]
    nodes = {"adapter": ("snug:Adapter", adapter), "image": ("TensorInput", IMAGE), "infer": ("Inference", {}),
             "said": ("Print", {})}
    for i, saver in enumerate(savers):
        nodes["save%d" % i] = ("ModelSaver", saver)
        wires.append(("train", "model", "save%d" % i, "model"))
    return add(graph, nodes, wires)


def inference(nodes_before, wires_before, source):
    graph = {"name": "infer", "nodes": [{"id": "start", "type": "Start", "position": {"x": 0, "y": 0},
                                         "data": {"params": {}}}], "edges": [], "settings": {"seed": 1}}
    nodes = dict(nodes_before, image=("TensorInput", IMAGE), infer=("Inference", {}), said=("Print", {}))
    wires = wires_before + [(source, "model", "infer", "model"), ("image", "tensor", "infer", "input"),
                            ("infer", "output", "said", "value")]
    return add(graph, nodes, wires)


def numbers(result):
    said = result.doc["results"]["said"]["message"]
    return [float(x.rstrip("]. ")) for x in said[said.rindex("[") + 1:].split(",") if x.strip(" .]")]


def run(snug, graph, *more):
    result = snug.json("run", snug.write("graph.json", graph), *more)
    assert result.rc == 0, result
    return result


def near(a, b, bound=1e-5):
    assert len(a) == len(b) and len(a) >= 16, (a, b)
    for x, y in zip(a, b):
        assert abs(x - y) <= bound * max(1, abs(y)), (a, b)


def saved(snug, name):
    return os.path.join(snug.home, "models", name)


FORMS = [{"rank": 4, "alpha": 8}, {"rank": 4, "alpha": 8, "rslora": True, "targets": "l1"},
         {"rank": 4, "kind": "qlora"}, {"rank": 4, "base": "int8", "double_quant": False}]


# ids: L3 case-T77
def test_merge_and_peft(snug):
    """Merged weights give the outputs with adapters on to 1e-5; PEFT's folder gives them again."""
    harness.need_fashion()
    for form in FORMS:
        result = run(snug, adapted(dict(form, dropout=0.1), [
            {"path": "merged.safetensors", "format": "safetensors", "merge": True}, {"path": "peft", "format": "peft"},
            {"path": "merged.pt", "merge": True}], train__precision="fp32", optimizer__lr=0.01))
        want = numbers(result)
        model = {"model": ("SequentialModel", {"layers": CHAIN})}
        for file in ("merged.safetensors", "merged.pt"):
            load = dict(model, load=("ModelLoader", {"path": file}))
            near(numbers(run(snug, inference(load, [("model", "model", "load", "model")], "load"))), want)
        again = dict(model, adapter=("snug:Adapter", dict(form, adapter="peft")))
        near(numbers(run(snug, inference(again, [("model", "model", "adapter", "model")], "adapter"))), want)
        plain = numbers(run(snug, inference(model, [], "model")))
        assert max(abs(a - b) for a, b in zip(plain, want)) > 1e-2, (plain, want)


# ids: L3
def test_peft_files(snug):
    """Names, shapes and configuration as PEFT reads them; the outputs by the formula from its files."""
    harness.need_fashion()
    run(snug, adapted({"rank": 4, "alpha": 12, "targets": "l1, l3"}, [{"path": "peft", "format": "peft"}]))
    with open(os.path.join(saved(snug, "peft"), "adapter_config.json")) as f:
        config = json.load(f)
    assert config["peft_type"] == "LORA" and config["r"] == 4 and config["lora_alpha"] == 12, config
    assert config["target_modules"] == ["l1", "l3"] and config["fan_in_fan_out"] is False, config
    assert config["bias"] == "none" and config["modules_to_save"] is None, config
    with open(os.path.join(saved(snug, "peft"), "adapter_model.safetensors"), "rb") as f:
        data = f.read()
    header = json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])
    shapes = {k: v["shape"] for k, v in header.items() if k != "__metadata__"}
    assert shapes == {"base_model.model.layers.l1.lora_A.weight": [4, 784],
                      "base_model.model.layers.l1.lora_B.weight": [64, 4],
                      "base_model.model.layers.l3.lora_A.weight": [4, 64],
                      "base_model.model.layers.l3.lora_B.weight": [10, 4]}, shapes
    assert all(v["dtype"] == "F32" for k, v in header.items() if k != "__metadata__"), header


# ids: L3
def test_adapter_errors(snug):
    """What cannot be is said with the node and the parameter, before anything runs."""
    harness.need_fashion()
    cases = [({"targets": "nothing"}, (), "targets"), ({}, [{"path": "x.pt"}], "has adapters"),
             ({"adapter": "missing"}, (), "adapter_config.json")]
    for adapter, savers, text in cases:
        result = snug.json("run", snug.write("graph.json", adapted(dict({"rank": 4}, **adapter), savers)))
        assert result.rc == 1 and text in result.doc["error"]["message"], result
        assert result.doc["error"]["node_id"] in ("adapter", "save0"), result
    os.makedirs(saved(snug, "dora"))
    for change in ({"use_dora": True}, {"bias": "all"}, {"peft_type": "IA3"}, {"rank_pattern": {"l1": 2}}, {"r": "x"}):
        config = dict({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["l1"]}, **change)
        with open(os.path.join(saved(snug, "dora"), "adapter_config.json"), "w") as f:
            json.dump(config, f)
        result = snug.json("run", snug.write("graph.json", adapted({"adapter": "dora"})))
        assert result.rc == 1 and list(change)[0] in result.doc["error"]["message"], result


# ids: L3 L4 P9
def test_memory_of_forms(snug):
    """The plan is what is measured, and each form costs less than the one before."""
    harness.need_fashion()
    wide = harness.layers(("Flatten", {}), ("Linear", {"in_features": 784, "out_features": 1024}), ("ReLU", {}),
                          ("Linear", {"in_features": 1024, "out_features": 10}))
    global CHAIN
    kept, CHAIN = CHAIN, wide
    try:
        peaks = []
        for form in (None, {"rank": 4}, {"rank": 4, "base": "int8"}, {"rank": 4, "kind": "qlora"}):
            graph = adapted(form, train__max_steps=3) if form else harness.training_graph(wide, train__max_steps=3)
            doc = run(snug, graph).doc
            assert doc["peak_bytes_measured"] == doc["peak_bytes_planned"], doc
            peaks.append(doc["by_category"]["parameters"] + doc["by_category"]["optimizer_state"])
        assert peaks == sorted(peaks, reverse=True) and peaks[3] < peaks[0] / 8, peaks
    finally:
        CHAIN = kept


# ids: P9 L4
def test_half_and_int8(snug):
    """Half weights and 8-bit states through the whole program: trained, saved as float32 masters, evaluated."""
    torch = need_torch()
    harness.need_fashion()
    graph = harness.training_graph(CHAIN, train__parameter_dtype="bfloat16", train__optimizer_state="int8",
                                   train__max_steps=100)
    add(graph, {"data2": ("Dataset", {"name": "FashionMNIST", "split": "test", "data_dir": "./data"}),
                "eval": ("EvaluateModel", {}), "save": ("ModelSaver", {"path": "half.pt"})},
        [("train", "model", "eval", "model"), ("data2", "dataset", "eval", "dataset"),
         ("train", "model", "save", "model")])
    result = run(snug, graph)
    assert result.doc["results"]["eval"]["accuracy"] > 0.6, result.doc["results"]
    state = torch.load(saved(snug, "half.pt"))
    w = state["layers.l1.weight"]
    assert w.dtype == torch.float32, w.dtype
    assert (w != w.to(torch.bfloat16).float()).float().mean() > 0.5
    graph = harness.training_graph(CHAIN, train__parameter_dtype="bfloat16", train__master_weights="none")
    result = run(snug, graph)
    assert any(w["kind"] == "master_weights" for w in result.doc["warnings"]), result.doc["warnings"]


TOKENS = [[(7 * i + 3 * j) % 60 for j in range(9)] for i in range(2)]


def lm_graph(nodes, wires, source):
    graph = {"name": "lm", "nodes": [{"id": "start", "type": "Start", "position": {"x": 0, "y": 0},
                                      "data": {"params": {}}}], "edges": []}
    tokens = {"shape": "2,9", "dtype": "int64", "value_mode": "explicit", "values": TOKENS}
    nodes = dict(nodes, tokens=("TensorInput", tokens), infer=("Inference", {}), said=("Print", {}))
    wires = wires + [(source, "model", "infer", "model"), ("tokens", "tensor", "infer", "input"),
                     ("infer", "output", "said", "value")]
    return add(graph, nodes, wires)


# ids: L3 case-T77 case-T78
def test_language_models(snug):
    """PEFT's folders over imported GPT-2 and Llama: outputs by the formula; merged folders load in its place; ties hold."""
    torch = need_torch()
    import sys
    sys.path.insert(0, os.path.join(snug.root, "tests", "parity"))
    import hf_make
    import hf_models
    names = {"gpt2": ["c_attn", "c_proj"], "llama": ["q_proj", "down_proj"]}
    for kind, base in (("gpt2", "none"), ("llama", "none"), ("gpt2", "nf4"), ("llama", "int8")):
        folder = kind + base
        config, state = hf_make.make(os.path.join(snug.dir, folder), kind)
        torch.manual_seed(3)
        weights = {}
        for name, w in state.items():
            module = name[:-len(".weight")]
            if not name.endswith(".weight") or module.split(".")[-1] not in names[kind]:
                continue
            inner, outer = w.shape if kind == "gpt2" else w.shape[::-1]
            weights["base_model.model.%s.lora_A.weight" % module] = torch.randn(4, inner) / inner ** 0.5
            weights["base_model.model.%s.lora_B.weight" % module] = torch.randn(outer, 4) * 0.2
        os.makedirs(saved(snug, folder))
        hf_make.write_safetensors(os.path.join(saved(snug, folder), "adapter_model.safetensors"), weights)
        with open(os.path.join(saved(snug, folder), "adapter_config.json"), "w") as f:
            json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": names[kind], "bias": "none",
                       "fan_in_fan_out": kind == "gpt2", "lora_dropout": 0.0}, f)
        nodes = {"lm": ("snug:PretrainedLM", {"path": folder}),
                 "adapter": ("snug:Adapter", {"adapter": folder, "base": base}),
                 "save": ("ModelSaver", {"format": "huggingface", "path": folder + "-merged", "merge": True})}
        wires = [("lm", "model", "adapter", "model"), ("infer", "model", "save", "model")]
        on = numbers(run(snug, lm_graph(nodes, wires, "adapter")))
        merged = hf_make.read_folder(saved(snug, folder + "-merged"))
        assert set(merged) == set(state), set(merged) ^ set(state)
        model = getattr(hf_models, kind)
        near(on, model(config, {n: t.float() for n, t in merged.items()}, torch.tensor(TOKENS))[0].flatten()[:16].tolist(), 1e-4)
        if base == "none":
            for name in weights:
                if ".lora_A." not in name:
                    continue
                target = name[len("base_model.model."):].replace(".lora_A", "")
                delta = 2.0 * weights[name.replace("lora_A", "lora_B")] @ weights[name]
                state[target] = state[target] + (delta.T if kind == "gpt2" else delta)
            near(on, model(config, state, torch.tensor(TOKENS))[0].flatten()[:16].tolist(), 1e-4)
        again = {"lm": ("snug:PretrainedLM", {"path": folder + "-merged"})}
        near(numbers(run(snug, lm_graph(again, [], "lm"))), on)


# ids: L3 A7
def test_checkpoint_nodes(snug):
    """CheckpointSaver and CheckpointLoader carry adapters and a base in 4 bits; a run goes on, or only answers."""
    harness.need_fashion()
    graph = adapted({"rank": 4, "kind": "qlora"}, optimizer__lr=0.01)
    add(graph, {"keep": ("CheckpointSaver", {"path": "c.pt"})},
        [("train", "model", "keep", "model"), ("train", "optimizer", "keep", "optimizer")])
    want = numbers(run(snug, graph))
    nodes = {"model": ("SequentialModel", {"layers": CHAIN}), "adapter": ("snug:Adapter", {"rank": 4, "kind": "qlora"}),
             "opt": ("Optimizer", {"lr": 0.01}), "load": ("CheckpointLoader", {"path": "c.pt"})}
    wires = [("model", "model", "adapter", "model"), ("adapter", "model", "opt", "model"),
             ("adapter", "model", "load", "model"), ("opt", "optimizer", "load", "optimizer")]
    near(numbers(run(snug, inference(nodes, wires, "load"))), want)


# ids: P9
def test_half_against_pytorch(snug):
    """Five updates in bfloat16 with float32 masters against model.to(torch.bfloat16) with masters beside it."""
    torch = need_torch()
    import gzip
    harness.need_fashion()
    updates, batch, rate = 3, 32, 0.01
    start = harness.training_graph(CHAIN)
    start["nodes"] = [n for n in start["nodes"] if n["id"] in ("start", "model")]
    start["edges"] = [e for e in start["edges"] if e["id"] == "t"]
    add(start, {"save": ("ModelSaver", {"path": "start.pt"})}, [("model", "model", "save", "model")])
    run(snug, start)
    graph = harness.training_graph(CHAIN, train__parameter_dtype="bfloat16", train__max_steps=updates,
                                   optimizer__type="SGD", optimizer__lr=rate, loader__shuffle=False,
                                   loader__batch_size=batch)
    add(graph, {"save": ("ModelSaver", {"path": "end.pt"})}, [("train", "model", "save", "model")])
    run(snug, graph)
    master = torch.load(saved(snug, "start.pt"))
    found, first = torch.load(saved(snug, "end.pt")), {n: t.clone() for n, t in master.items()}
    with gzip.open(os.path.join(harness.FASHION, "train-images-idx3-ubyte.gz")) as f:
        images = torch.frombuffer(bytearray(f.read(16 + updates * batch * 784)[16:]), dtype=torch.uint8)
    with gzip.open(os.path.join(harness.FASHION, "train-labels-idx1-ubyte.gz")) as f:
        labels = torch.frombuffer(bytearray(f.read(8 + updates * batch)[8:]), dtype=torch.uint8).long()
    images = images.reshape(-1, 784).float() / 255 * 2 - 1
    for i in range(updates):
        w = {n: t.bfloat16().requires_grad_(True) for n, t in master.items()}
        x = images[i * batch:(i + 1) * batch].bfloat16()
        x = torch.relu(x @ w["layers.l1.weight"].T + w["layers.l1.bias"])
        x = x @ w["layers.l3.weight"].T + w["layers.l3.bias"]
        torch.nn.functional.cross_entropy(x.float(), labels[i * batch:(i + 1) * batch]).backward()
        master = {n: t - rate * w[n].grad.float() for n, t in master.items()}
    for n, t in master.items():
        moved = (t - first[n]).norm()
        assert (found[n] - t).norm() < 0.02 * moved, (n, (found[n] - t).norm() / moved)
        assert found[n].dtype == torch.float32
