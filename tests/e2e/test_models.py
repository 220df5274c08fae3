"""Language models as nodes: CausalLMModel, snug:PretrainedLM, and saving back."""
import json
import os
import shutil
import sys

import harness

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "parity"))


def need_torch():
    try:
        import torch
    except ImportError:
        raise harness.Skip("PyTorch is missing (Debian package python3-torch)")
    return torch


def graph(nodes, wires):
    """nodes: {id: (type, params)}; every node without a data input is triggered."""
    fed = {w[2] for w in wires}
    edges = [{"id": "t-%s" % i, "source": "start", "target": i, "sourceHandle": "trigger", "targetHandle": "",
              "type": "trigger"} for i in nodes if i not in fed]
    edges += [{"id": "e%d" % k, "source": a, "sourceHandle": p, "target": b, "targetHandle": q}
              for k, (a, p, b, q) in enumerate(wires)]
    rows = [{"id": "start", "type": "Start", "position": {"x": 0, "y": 0}, "data": {"params": {}}}]
    rows += [{"id": i, "type": t, "position": {"x": 0, "y": 0}, "data": {"params": p}} for i, (t, p) in nodes.items()]
    return {"name": "models", "nodes": rows, "edges": edges}


SMALL = {"vocab_size": 256, "d_model": 64, "n_layers": 2, "n_heads": 4, "d_ff": 128, "max_seq_len": 32}
TOKENS = [[(7 * i + 3 * j) % 256 for j in range(9)] for i in range(2)]


def print_wires(nodes, wires, source, port, name):
    nodes[name] = ("Print", {})
    wires.append((source, port, name, "value"))


def run(snug, nodes, wires, name="graph.json"):
    result = snug.json("run", snug.write(name, graph(nodes, wires)))
    assert result.rc == 0, result
    return result


# ids: N2 case-T78
def test_causal_lm_node(snug):
    torch = need_torch()
    import hf_models
    for tied in (True, False):
        nodes = {"lm": ("CausalLMModel", dict(SMALL, tie_embeddings=tied, init_std=0.3, seed=3)),
                 "tokens": ("TensorInput", {"shape": "2,9", "dtype": "int64", "value_mode": "explicit", "values": TOKENS}),
                 "infer": ("Inference", {}), "save": ("ModelSaver", {"path": "lm.pt"})}
        wires = [("lm", "model", "infer", "model"), ("tokens", "tensor", "infer", "input"),
                 ("infer", "model", "save", "model")]
        print_wires(nodes, wires, "infer", "output", "logits")
        print_wires(nodes, wires, "lm", "param_count", "count")
        result = run(snug, nodes, wires)
        state = torch.load(os.path.join(snug.home, "models", "lm.pt"))
        assert list(state)[-1] == "lm_head.weight", list(state)
        shared = state["lm_head.weight"].data_ptr() == state["tok_emb.weight"].data_ptr()
        assert shared == tied
        count = sum(t.numel() for n, t in state.items() if not (tied and n == "lm_head.weight"))
        assert result.doc["results"]["count"]["message"].endswith("%.6g" % count), result.doc["results"]["count"]
        logits = hf_models.causal_lm({"d_model": 64, "heads": 4, "layers": 2, "tied": tied}, state, torch.tensor(TOKENS))[0]
        said = result.doc["results"]["logits"]["message"]
        numbers = [float(x) for x in said[said.rindex("[") + 1:].split(",")[:16]]
        assert torch.allclose(torch.tensor(numbers), logits.flatten()[:16], rtol=1e-4, atol=1e-4), (said, logits)


# ids: case-T78
def test_tied_weights_load(snug):
    """A file with both names loads where they agree, and is refused where they do not."""
    torch = need_torch()
    run(snug, {"lm": ("CausalLMModel", SMALL), "save": ("ModelSaver", {"path": "a.pt"})}, [("lm", "model", "save", "model")])
    path = os.path.join(snug.home, "models", "a.pt")
    load = ({"lm": ("CausalLMModel", dict(SMALL, seed=9)), "load": ("ModelLoader", {"path": "a.pt"}),
             "save": ("ModelSaver", {"path": "b.pt"})},
            [("lm", "model", "load", "model"), ("load", "model", "save", "model")])
    state = torch.load(path)
    for form in ("shared", "copies", "one name"):
        if form == "copies":
            state["lm_head.weight"] = state["tok_emb.weight"].clone()
        if form == "one name":
            del state["lm_head.weight"]
        torch.save(state, path)
        run(snug, *load)
        again = torch.load(os.path.join(snug.home, "models", "b.pt"))
        assert all(torch.equal(again[n], t) for n, t in state.items()), form
    state["lm_head.weight"] = 2 * state["tok_emb.weight"]
    torch.save(state, path)
    result = snug.json("run", snug.write("g.json", graph(*load)))
    assert result.rc == 1 and "lm_head.weight" in result.doc["error"]["message"], result
    load[0]["lm"][1]["tie_embeddings"] = False
    run(snug, *load)
    again = torch.load(os.path.join(snug.home, "models", "b.pt"))
    assert torch.equal(again["lm_head.weight"], 2 * again["tok_emb.weight"])


def test_start_with_any_threads(snug):
    """Starting values are drawn in parallel, and are the same bytes."""
    nodes = {"lm": ("CausalLMModel", dict(SMALL, vocab_size=5000)), "save": ("ModelSaver", {"path": "t.pt"})}
    path = snug.write("g.json", graph(nodes, [("lm", "model", "save", "model")]))
    found = []
    for threads in (1, 2, 3):
        assert snug.json("run", path, "--threads", threads).rc == 0
        found.append(open(os.path.join(snug.home, "models", "t.pt"), "rb").read())
    assert found[0] == found[1] == found[2]


def test_causal_lm_refusals(snug):
    for changes, word in (({"n_heads": 5}, "'n_heads' (5) must divide 'd_model' (64)"),
                          ({"n_kv_heads": 3}, "'n_kv_heads' (3) must divide 'n_heads' (4)"),
                          ({"d_model": 68, "n_heads": 4, "positional": "rope"}, "even size"),
                          ({"init_std": -1}, "init_std")):
        nodes = {"lm": ("CausalLMModel", dict(SMALL, **changes)), "save": ("ModelSaver", {})}
        result = snug.json("plan", snug.write("g.json", graph(nodes, [("lm", "model", "save", "model")])))
        assert result.rc == 1 and word in result.doc["error"]["message"], (changes, result)
        assert result.doc["error"]["node_id"] == "lm", result


def pretrained(save, **params):
    return graph({"lm": ("snug:PretrainedLM", params), "save": ("ModelSaver", save)}, [("lm", "model", "save", "model")])


# ids: N4
def test_pretrained_saved_back(snug):
    """A folder beside the graph, or in the models folder, comes back the same; other forms load elsewhere."""
    torch = need_torch()
    import hf_make
    config, state = hf_make.make(os.path.join(snug.dir, "tiny"), "qwen2", dtype="bfloat16", shards=2)
    save = {"format": "huggingface", "path": "out/tiny"}
    result = snug.json("run", snug.write("g.json", pretrained(save, path="tiny")))
    assert result.rc == 0, result
    to = os.path.join(snug.home, "models", "out", "tiny")
    assert result.doc["results"]["save"]["path"] == to
    before, after = hf_make.read_folder(os.path.join(snug.dir, "tiny")), hf_make.read_folder(to)
    assert set(before) == set(after) and all(torch.equal(after[n], t) for n, t in before.items())
    assert open(os.path.join(to, "config.json")).read() == open(os.path.join(snug.dir, "tiny", "config.json")).read()
    # From the models folder, into another type and several files.
    save = {"format": "huggingface", "path": "half", "max_shard_size": "20KB"}
    result = snug.json("run", snug.write("g.json", pretrained(save, path="out/tiny", dtype="float16")))
    assert result.rc == 0, result
    half = hf_make.read_folder(os.path.join(snug.home, "models", "half"))
    assert all(torch.equal(half[n], t.half()) for n, t in state.items())
    assert os.path.exists(os.path.join(snug.home, "models", "half", "model.safetensors.index.json"))
    result = snug.json("run", snug.write("g.json", pretrained({"path": "w.pt"}, path="tiny")))
    flat = torch.load(os.path.join(snug.home, "models", "w.pt"))
    assert torch.equal(flat["model.norm.weight"], state["model.norm.weight"]) and "lm_head.weight" in flat
    other = graph({"lm": ("CausalLMModel", SMALL), "save": ("ModelSaver", save)}, [("lm", "model", "save", "model")])
    result = snug.json("plan", snug.write("g.json", other))
    assert result.rc == 1 and "snug:PretrainedLM" in result.doc["error"]["message"], result
    result = snug.json("plan", snug.write("g.json", pretrained(dict(save, max_shard_size="much"), path="tiny")))
    assert result.rc == 1 and "max_shard_size" in result.doc["error"]["message"], result


def attacks(torch, hf_make):
    """(kind, what make() changes, what is done to the folder, words of the error)"""
    llama, rope = dict(hf_make.LLAMA), {"rope_type": "yarn", "factor": 4.0}

    def text(config):
        return lambda d: open(os.path.join(d, "config.json"), "w").write(config)

    def without(name):
        return lambda d: os.remove(os.path.join(d, name))

    def cut(name, n):
        return lambda d: os.truncate(os.path.join(d, name), n)

    def index(change):
        def edit(d):
            path = os.path.join(d, "model.safetensors.index.json")
            doc = json.load(open(path))
            change(doc)
            json.dump(doc, open(path, "w"))
        return edit

    def first(doc, value):
        doc["weight_map"][sorted(doc["weight_map"])[0]] = value

    def tensors(change):
        def edit(d):
            found, _ = hf_make.read_safetensors(os.path.join(d, "model.safetensors"))
            change(found)
            hf_make.write_safetensors(os.path.join(d, "model.safetensors"), found)
        return edit
    key, nan = "model.layers.1.mlp.up_proj.weight", torch.full((32,), float("nan"))
    nothing = lambda d: None  # noqa: E731
    return [
        ("llama", {}, text("{"), "config.json"), ("llama", {}, text(""), "config.json"),
        ("llama", {}, text("[1]"), "not a JSON object"), ("llama", {}, text("{}"), "model_type"),
        ("llama", {}, text("[" * 100000), "config.json"), ("llama", {}, without("config.json"), "config.json"),
        ("llama", {}, text('{"model_type":"llama","model_type":"gpt2"}'), "config.json"),
        ("llama", {"hidden_size": -32}, nothing, "hidden_size"),
        ("llama", {"hidden_size": 32.5}, nothing, "hidden_size"),
        ("llama", {"hidden_size": "32"}, nothing, "hidden_size"),
        ("llama", {"hidden_size": 10 ** 18}, nothing, "hidden_size"),
        ("llama", {"num_hidden_layers": 10 ** 9, "make_layers": 2}, nothing, "layers"),
        ("llama", {"vocab_size": 2 ** 31 - 1, "make_vocab": 97}, nothing, "embed_tokens"),
        ("llama", {"num_attention_heads": 0, "make_heads": 4}, nothing, "num_attention_heads"),
        ("llama", {"num_key_value_heads": 3}, nothing, "kv_heads"),
        ("llama", {"rms_norm_eps": -1}, nothing, "rms_norm_eps"), ("llama", {"rms_norm_eps": "1e-6"}, nothing, "rms_norm_eps"),
        ("llama", {"hidden_act": "swiglu"}, nothing, "swiglu"), ("llama", {"rope_scaling": rope}, nothing, "yarn"),
        ("llama", {"rope_scaling": 5}, nothing, "rope_scaling"),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, nothing, "low_freq_factor"),
        ("llama", {"num_local_experts": 8}, nothing, "num_local_experts"),
        ("llama", {"quantization_config": {"bits": 4}}, nothing, "quantization_config"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, nothing, "LlamaForSequenceClassification"),
        ("llama", {"intermediate_size": 57, "make_ff": 56}, nothing, "mlp.gate_proj.weight"),
        ("llama", {"model_type": "mixtral", "make_type": "llama"}, nothing, "mixtral"),
        ("bert", {"position_embedding_type": "relative_key"}, nothing, "position_embedding_type"),
        ("gpt2", {"embd_pdrop": 1.5}, nothing, "embd_pdrop"),
        ("llama", {}, without("model.safetensors"), "no weights"),
        ("llama", {}, cut("model.safetensors", 100), "model.safetensors"),
        ("llama", {}, cut("model.safetensors", 5000), "model.safetensors"),
        ("llama", {}, tensors(lambda t: t.pop(key)), key),
        ("llama", {}, tensors(lambda t: t.update({key: t[key].T.contiguous()})), key),
        ("llama", {}, tensors(lambda t: t.update({key: t[key].to(torch.int8)})), "I8"),
        ("llama", {}, tensors(lambda t: t.update({key: t[key].to(torch.int64)})), "int64"),
        ("llama", {}, tensors(lambda t: t.update({"model.extra.weight": t[key]})), "model.extra.weight"),
        ("llama", {}, tensors(lambda t: t.update({"model.norm.weight": nan})), "model.norm.weight"),
        ("llama", {"shards": 3}, without("model-00002-of-00003.safetensors"), "model-00002-of-00003"),
        ("llama", {"shards": 3}, index(lambda d: first(d, "../secret.safetensors")), "in no file"),
        ("llama", {"shards": 3}, index(lambda d: first(d, "/etc/passwd")), "in no file"),
        ("llama", {"shards": 3}, index(lambda d: first(d, 7)), "in no file"),
        ("llama", {"shards": 3}, index(lambda d: first(d, "model-00002-of-00003.safetensors")), "holds no tensor"),
        ("llama", {"shards": 3}, index(lambda d: d.update(weight_map=[])), "weight_map"),
        ("llama", {"form": "bin"}, cut("pytorch_model.bin", 3000), "pytorch_model.bin"),
    ]


def logits(snug, model, rows):
    nodes = {"lm": model, "infer": ("Inference", {}),
             "tokens": ("TensorInput", {"shape": "%d,%d" % (len(rows), len(rows[0])), "dtype": "int64",
                                        "value_mode": "explicit", "values": rows})}
    wires = [("lm", "model", "infer", "model"), ("tokens", "tensor", "infer", "input")]
    print_wires(nodes, wires, "infer", "output", "logits")
    said = run(snug, nodes, wires).doc["results"]["logits"]["message"]
    return [float(x) for x in said[said.rindex("[") + 1:].rstrip("]").split(",")[:16]]


def near(a, b):
    return all(abs(x - y) < 1e-3 * (1 + abs(y)) for x, y in zip(a, b))


# ids: N4
def test_padding_mask(snug):
    """A text with padding behind it gives what it gives alone, where the padding is masked."""
    need_torch()
    import hf_make
    text = [5, 17, 80, 3, 9, 41]
    for kind, pad in (("bert", 0), ("llama", 6)):
        folder = os.path.join(snug.dir, kind)
        hf_make.make(folder, kind, seed=7, **({"pad_token_id": pad} if pad else {}))
        model = ("snug:PretrainedLM", {"path": folder})
        masked = ("snug:PretrainedLM", {"path": folder, "padding_mask": True})
        alone = logits(snug, model, [text])
        assert near(logits(snug, masked, [text + 3 * [pad]]), alone), kind
        front = [[pad] + text[1:]]
        assert near(logits(snug, model, [text + 3 * [pad]]), alone) == (kind == "llama"), kind
        assert not near(logits(snug, masked, front), logits(snug, model, front)), kind
    hf_make.make(folder, "gpt2", pad_token_id=2)
    result = snug.json("run", snug.write("g.json", graph({"lm": masked}, [])))
    assert result.rc == 1 and "eos_token_id" in result.doc["error"]["message"], result
    assert result.doc["error"]["node_id"] == "lm", result


def test_padding_costs_a_number_per_token(snug):
    """The mask is never as large as the scores: 4 bytes for each token, whatever the heads and queries."""
    need_torch()
    import hf_make
    folder, peaks = os.path.join(snug.dir, "long"), []
    hf_make.make(folder, "bert", max_position_embeddings=512)
    for masked in (False, True):
        nodes = {"lm": ("snug:PretrainedLM", {"path": folder, "padding_mask": masked}), "infer": ("Inference", {}),
                 "tokens": ("TensorInput", {"shape": "4,512", "dtype": "int64", "value_mode": "zeros"})}
        wires = [("lm", "model", "infer", "model"), ("tokens", "tensor", "infer", "input")]
        result = snug.json("plan", snug.write("g.json", graph(nodes, wires)))
        assert result.rc == 0, result
        peaks.append(result.doc["peak_bytes"])
    assert 0 <= peaks[1] - peaks[0] <= 3 * 4 * 512 * 4, peaks


def test_padding_in_layers(snug):
    """One input of tokens and a PaddingMask: the classifier does not see the padding."""
    layers = {"version": 2, "nodes": [
        {"id": "in", "type": "Input", "ports": [{"id": "a", "name": "x"}]},
        {"id": "e", "type": "Embedding", "params": {"num_embeddings": 99, "embedding_dim": 16}},
        {"id": "m", "type": "PaddingMask", "params": {"padding_idx": 98}},
        {"id": "t", "type": "TransformerEncoder",
         "params": {"d_model": 16, "nhead": 2, "num_layers": 2, "dim_feedforward": 32}},
        {"id": "s", "type": "SelectIndex"},
        {"id": "l", "type": "Linear", "params": {"in_features": 16, "out_features": 16}},
        {"id": "out", "type": "Output", "ports": [{"id": "b", "name": "y"}]}], "edges": [
        {"source": "in", "sourceHandle": "a", "target": "e"}, {"source": "in", "sourceHandle": "a", "target": "m"},
        {"source": "e", "target": "t"}, {"source": "m", "target": "t"}, {"source": "t", "target": "s"},
        {"source": "s", "target": "l"}, {"source": "l", "target": "out", "targetHandle": "b"}]}
    model = ("SequentialModel", {"layers": json.dumps(layers)})
    text = [5, 17, 80, 3]
    assert near(logits(snug, model, [text + 5 * [98]]), logits(snug, model, [text]))
    assert not near(logits(snug, model, [text + 5 * [97]]), logits(snug, model, [text]))


# ids: H4 N4
def test_folders_attacked(snug):
    torch = need_torch()
    import hf_make
    names = {"layers": "num_hidden_layers", "vocab": "vocab_size", "heads": "num_attention_heads",
             "ff": "intermediate_size", "type": "model_type"}
    folder = os.path.join(snug.dir, "m")
    for kind, changes, damage, words in attacks(torch, hf_make):
        shutil.rmtree(folder, ignore_errors=True)
        # make_x: the weights have this size, and the config says what `changes` says.
        honest = {names[k[5:]]: v for k, v in changes.items() if k.startswith("make_")}
        said = {k: v for k, v in changes.items() if not k.startswith("make_")}
        try:
            config, _ = hf_make.make(folder, kind, **dict(said, **honest))
        except (RuntimeError, TypeError, ValueError, ZeroDivisionError, AttributeError, KeyError):
            config, _ = hf_make.make(folder, kind)
        config.update({k: v for k, v in said.items() if k not in ("shards", "form")})
        with open(os.path.join(folder, "config.json"), "w") as out:
            json.dump(config, out)
        damage(folder)
        path = snug.write("g.json", pretrained({}, path="m"))
        if words == "model.norm.weight":  # a plan reads headers only
            assert snug.json("plan", path).rc == 0
        result = snug.json("run", path, timeout=20)
        error = result.doc["error"]
        text = "" if result.rc == 0 else " ".join(error[k] or "" for k in ("message", "hint", "detail"))
        assert result.rc == 1 and words in text, (kind, changes, words, result)
        assert error["node_id"] in ("lm", "save"), result


# ---- training ----

LICENCE = "/usr/share/common-licenses/GPL-3"


def need_text(snug):
    """A real text, and a tokenizer of 320 tokens learned from it."""
    if not os.path.exists(LICENCE):
        raise harness.Skip("%s is missing" % LICENCE)
    shutil.copy(LICENCE, os.path.join(snug.dir, "text.txt"))
    learned = snug.json("tokenizer", "train", os.path.join(snug.dir, "text.txt"), "--vocab", 320, "-o",
                        os.path.join(snug.dir, "tokenizer.json"))
    assert learned.rc == 0, learned


def training(model, save=None, **loop):
    """model: (type, params). 40 updates of 8 sequences of 32 tokens, unless `loop` says otherwise."""
    nodes = {
        "model": model, "tokenizer": ("LMTokenizer", {"file": "tokenizer.json"}),
        "corpus": ("TextCorpusDataset", {"source": "local_file", "local_file": "text.txt"}),
        "tokens": ("LMTokenizedDataset", {"seq_len": 32}), "loader": ("DataLoader", {"batch_size": 8, "shuffle": True}),
        "optimizer": ("Optimizer", {"type": "AdamW", "lr": 0.003}), "loss": ("LMCrossEntropyLoss", {}),
        "train": ("TrainingLoop", dict({"epochs": 2, "max_steps": 40}, **loop)),
        "perplexity": ("PerplexityEvaluate", {"max_batches": 20, "precision": "fp32"})}
    wires = [("corpus", "dataset", "tokens", "dataset"), ("tokenizer", "tokenizer", "tokens", "tokenizer"),
             ("tokens", "dataset", "loader", "dataset"), ("loader", "dataloader", "train", "dataloader"),
             ("model", "model", "optimizer", "model"), ("model", "model", "train", "model"),
             ("optimizer", "optimizer", "train", "optimizer"), ("loss", "loss_fn", "train", "loss_fn"),
             ("train", "model", "perplexity", "model"), ("tokens", "dataset", "perplexity", "dataset")]
    if save:
        nodes["save"] = ("ModelSaver", save)
        wires.append(("train", "model", "save", "model"))
    return nodes, wires


def measured(result):
    assert result.rc == 0, result
    assert result.doc["peak_bytes_planned"] == result.doc["peak_bytes_measured"], result.doc
    return result.doc["results"]["perplexity"]["val_loss"]


def loss_before(snug, model):
    """The loss of the model as it is, by training it at rate 0."""
    nodes, wires = training(model, max_steps=1)
    nodes["optimizer"] = ("Optimizer", {"type": "SGD", "lr": 0.0})
    return measured(run(snug, nodes, wires))


# ids: N4
def test_fine_tune_imported(snug):
    """A full fine-tune lowers the loss on a real text, for every family; what is saved back is what was trained."""
    torch = need_torch()
    import hf_make
    need_text(snug)
    for kind in ("gpt2", "llama", "mistral", "qwen2", "qwen3", "bert"):
        config, state = hf_make.make(os.path.join(snug.dir, kind), kind, vocab_size=320)
        model = ("snug:PretrainedLM", {"path": kind})
        before = loss_before(snug, model)
        after = measured(run(snug, *training(model, {"format": "huggingface", "path": "tuned-" + kind})))
        assert after < before - 0.5, (kind, before, after)
        tuned = hf_make.read_folder(os.path.join(snug.home, "models", "tuned-" + kind))
        assert set(tuned) == set(state), kind
        assert all(not torch.equal(tuned[n], t) for n, t in state.items() if "key.bias" not in n), kind
        again = loss_before(snug, ("snug:PretrainedLM", {"path": "tuned-" + kind}))
        assert abs(again - after) < 1e-6, (kind, after, again)


def adapted(model, adapter, saves, **loop):
    """training() with an adapter between model and loop; each of `saves` is (type, params). Says 16 logits."""
    nodes, wires = training(model, **loop)
    wires = [("adapter",) + w[1:] if w[0] == "model" else w for w in wires] + [("model", "model", "adapter", "model")]
    nodes.update({"adapter": ("snug:Adapter", adapter), "infer": ("Inference", {}),
                  "input": ("TensorInput", {"shape": "2,9", "dtype": "int64", "value_mode": "explicit", "values": TOKENS})})
    wires += [("train", "model", "infer", "model"), ("input", "tensor", "infer", "input")]
    print_wires(nodes, wires, "infer", "output", "said")
    for i, save in enumerate(saves):
        nodes["save%d" % i] = save
        wires.append(("train", "model", "save%d" % i, "model"))
        if save[0] == "CheckpointSaver":
            wires.append(("train", "optimizer", "save%d" % i, "optimizer"))
    return nodes, wires


def said_logits(result):
    said = result.doc["results"]["said"]["message"]
    return [float(x.strip(" ].")) for x in said[said.rindex("[") + 1:].split(",") if x.strip(" ].")]


def base_of(torch, snug, name):
    """Everything of a checkpoint's model that is not an adapter."""
    state = torch.load(os.path.join(snug.home, "models", name))["model_state_dict"]
    return {n: t for n, t in state.items() if "lora_" not in n}


# ids: N4 L3 case-T77
def test_adapters_tune_imported(snug):
    """LoRA and QLoRA lower the loss on a real text; the base keeps its bits; merged weights give the outputs."""
    torch = need_torch()
    import hf_make
    need_text(snug)
    for kind in ("gpt2", "llama"):
        for form in ({"kind": "lora"}, {"kind": "qlora"}, {"kind": "lora", "base": "int8"}):
            name = kind + form["kind"] + form.get("base", "")
            hf_make.make(os.path.join(snug.dir, name), kind, vocab_size=320)
            model, adapter = ("snug:PretrainedLM", {"path": name}), dict(form, rank=8, alpha=16)
            nodes, wires = adapted(model, adapter, [("CheckpointSaver", {"path": name + "-0.pt"})], max_steps=1)
            nodes["optimizer"] = ("Optimizer", {"type": "SGD", "lr": 0.0})
            before = measured(run(snug, nodes, wires))
            nodes, wires = adapted(model, adapter, [
                ("CheckpointSaver", {"path": name + "-1.pt"}),
                ("ModelSaver", {"format": "huggingface", "path": name + "-merged", "merge": True})])
            nodes["optimizer"] = ("Optimizer", {"type": "AdamW", "lr": 0.01})
            trained = run(snug, nodes, wires)
            after = measured(trained)
            assert after < before - 0.1, (name, before, after)
            first, last = base_of(torch, snug, name + "-0.pt"), base_of(torch, snug, name + "-1.pt")
            assert first and set(first) == set(last), set(first) ^ set(last)
            for n, t in first.items():
                same = t.numpy().tobytes() == last[n].numpy().tobytes()
                assert t.dtype == last[n].dtype and same, (name, n)
            assert any(t.dtype == torch.uint8 for t in first.values()) == (name[-4:] != "lora" or "qlora" in name), name
            merged = ("snug:PretrainedLM", {"path": name + "-merged"})
            assert abs(loss_before(snug, merged) - after) < 1e-5 * after, name
            want = said_logits(trained)
            nodes = {"model": merged, "input": ("TensorInput", {"shape": "2,9", "dtype": "int64", "value_mode": "explicit",
                                                                "values": TOKENS}), "infer": ("Inference", {})}
            wires = [("model", "model", "infer", "model"), ("input", "tensor", "infer", "input")]
            print_wires(nodes, wires, "infer", "output", "said")
            found = said_logits(run(snug, nodes, wires))
            assert len(want) >= 16 and len(want) == len(found), (want, found)
            assert all(abs(a - b) <= 1e-5 * max(1, abs(a)) for a, b in zip(want, found)), (name, want, found)


# ids: L6
def test_chunks_without_effect(snug):
    """Where chunks of the loss change nothing, the plan says so already, and the run warns."""
    harness.need_fashion()
    rows = [("Flatten", {}), ("Linear", {"in_features": 784, "out_features": 10}), ("ReLU", {})]
    for layers, said in ((harness.layers(*rows), True), (harness.layers(*rows[:2]), False)):
        path = snug.write("g.json", harness.training_graph(layers, train__loss_chunk_tokens=8, train__max_steps=2))
        plan = snug.json("plan", path)
        assert plan.rc == 0, plan
        assert ("no effect" in plan.doc.get("loss_chunk_note", "")) == said, plan.doc
        assert ("loss_chunk_tokens has no effect" in " ".join(snug("plan", path).out.split())) == said
        result = snug.json("run", path)
        assert (sum(w["kind"] == "loss_chunk_tokens" for w in result.doc["warnings"]) == 1) == said, result.doc["warnings"]


TINY = dict(SMALL, vocab_size=320, max_seq_len=64)


# ids: N2
def test_causal_lm_trains(snug):
    """Every switch of CausalLMModel trains, in float32 and bf16, planned as measured."""
    need_text(snug)
    variants = [{}, {"positional": "rope", "norm": "rmsnorm", "n_kv_heads": 2, "qk_norm": True, "bias": False},
                {"positional": "sinusoidal", "activation": "silu", "tie_embeddings": False, "dropout": 0.1}]
    for changes in variants:
        for precision in ("fp32", "bf16"):
            model = ("CausalLMModel", dict(TINY, **changes))
            after = measured(run(snug, *training(model, precision=precision)))
            assert after < 5.0, (changes, precision, after)  # ln 320 is 5.8


# ids: N2 L1
def test_gradient_checkpointing(snug):
    """The model's own switch: the same weights to the bit, dropout included, and a smaller peak."""
    torch = need_torch()
    need_text(snug)
    peaks, states = [], []
    for on in (False, True):
        model = ("CausalLMModel", dict(TINY, n_layers=6, dropout=0.1, gradient_checkpointing=on))
        result = run(snug, *training(model, {"path": "on.pt"}, max_steps=6))
        measured(result)
        peaks.append(result.doc["peak_bytes_planned"])
        states.append(torch.load(os.path.join(snug.home, "models", "on.pt")))
    assert all(torch.equal(states[1][n], t) for n, t in states[0].items())
    assert peaks[1] < 0.8 * peaks[0], peaks


# ids: case-T78
def test_tied_head_resumes(snug):
    """A checkpoint of a tied model holds both names, stays tied, and goes on where it stood."""
    torch = need_torch()
    need_text(snug)
    model = ("CausalLMModel", TINY)
    whole = measured(run(snug, *training(model, {"path": "whole.pt"}, max_steps=12)))
    nodes, wires = training(model, {"path": "half.pt"}, max_steps=6, checkpoint_every_steps=6)
    measured(run(snug, nodes, wires))
    nodes["train"][1]["max_steps"] = 12
    nodes["save"][1]["path"] = "resumed.pt"
    path = snug.write("g.json", graph(nodes, wires))
    found = [os.path.join(d, f) for d, _, files in os.walk(os.path.join(snug.home, "models", "periodic")) for f in files]
    state = torch.load(found[0])["model_state_dict"]
    assert state["lm_head.weight"].data_ptr() == state["tok_emb.weight"].data_ptr()
    result = snug.json("run", path, "--resume", found[0])
    assert measured(result) == whole, result
    a, b = (torch.load(os.path.join(snug.home, "models", n + ".pt")) for n in ("whole", "resumed"))
    assert all(torch.equal(b[n], t) for n, t in a.items())
