"""Language models from texts: tokenizer, corpus, blocks, mixes, token files, loss, perplexity, generated text."""
import json
import math
import os
import struct

import harness

WORDS = "in the beginning god created heaven and earth the earth was without form and void darkness upon face deep".split()


def verses(n, shift=0):
    """n different lines of words, the same every time."""
    return "".join(" ".join(WORDS[(i * 7 + k * (1 + i % 3) + shift) % len(WORDS)] for k in range(6 + i % 5)) + ".\n"
                   for i in range(n))


def bigram(vocab, width=16):
    return harness.layers(("Embedding", {"num_embeddings": vocab, "embedding_dim": width}),
                          ("Linear", {"in_features": width, "out_features": vocab}))


def prepared(snug, vocab=300):
    """A text, a tokenizer learned from it; their paths."""
    text = snug.write("train.txt", verses(400))
    snug.write("val.txt", verses(60, 3))
    path = os.path.join(snug.dir, "tokenizer.json")
    learned = snug.json("tokenizer", "train", text, "--vocab", vocab, "-o", path)
    assert learned.rc == 0 and learned.doc["tokens"] == vocab, learned
    return text, path


def graph(nodes, wires, start="model"):
    edges = [{"id": "t", "source": "start", "target": start, "sourceHandle": "trigger", "targetHandle": "",
              "type": "trigger"}]
    edges += [{"id": "e%d" % i, "source": a, "sourceHandle": p, "target": b, "targetHandle": q}
              for i, (a, p, b, q) in enumerate(wires)]
    nodes = dict(nodes, start=("Start", {}))
    return {"name": "text", "settings": {"seed": 1}, "edges": edges,
            "nodes": [{"id": i, "type": t, "position": {"x": 0, "y": 0}, "data": {"params": p}}
                      for i, (t, p) in nodes.items()]}


def language_graph(vocab=300, model=None, corpus="train.txt", tokens=None, **train):
    nodes = {
        "model": model or ("SequentialModel", {"layers": bigram(vocab)}),
        "tokenizer": ("LMTokenizer", {"file": "tokenizer.json"}),
        "corpus": ("TextCorpusDataset", {"source": "local_file", "local_file": corpus}),
        "tokens": ("LMTokenizedDataset", dict({"seq_len": 16}, **(tokens or {}))),
        "loader": ("DataLoader", {"batch_size": 8, "shuffle": True}),
        "optimizer": ("Optimizer", {"type": "Adam", "lr": 0.02}),
        "loss": ("LMCrossEntropyLoss", {}),
        "train": ("TrainingLoop", dict({"epochs": 2}, **train)),
    }
    wires = [("corpus", "dataset", "tokens", "dataset"), ("tokenizer", "tokenizer", "tokens", "tokenizer"),
             ("tokens", "dataset", "loader", "dataset"), ("loader", "dataloader", "train", "dataloader"),
             ("model", "model", "optimizer", "model"), ("model", "model", "train", "model"),
             ("optimizer", "optimizer", "train", "optimizer"), ("loss", "loss_fn", "train", "loss_fn")]
    return nodes, wires


def with_evaluation(nodes, wires):
    nodes.update({
        "val_corpus": ("TextCorpusDataset", {"source": "local_file", "local_file": "val.txt"}),
        "val_tokens": ("LMTokenizedDataset", {"seq_len": 16}),
        "val_loader": ("DataLoader", {"batch_size": 5, "shuffle": False}),
        "perplexity": ("PerplexityEvaluate", {"batch_size": 7, "precision": "fp32"})})
    wires += [("val_corpus", "dataset", "val_tokens", "dataset"), ("tokenizer", "tokenizer", "val_tokens", "tokenizer"),
              ("val_tokens", "dataset", "val_loader", "dataset"), ("val_loader", "dataloader", "train", "val_dataloader"),
              ("train", "model", "perplexity", "model"), ("val_tokens", "dataset", "perplexity", "dataset")]


def run(snug, nodes, wires, *args):
    return snug.json("run", snug.write("graph.json", graph(nodes, wires)), *args)


def test_trains_and_evaluates(snug):
    """Loss falls; perplexity is exp of the mean loss over all tokens, as the loop's own validation finds it."""
    prepared(snug)
    nodes, wires = language_graph()
    with_evaluation(nodes, wires)
    done = run(snug, nodes, wires)
    assert done.rc == 0, done
    metrics, found = done.doc["metrics"], done.doc["results"]["perplexity"]
    assert metrics["final_train_loss"] < 3.0 < math.log(300), metrics
    assert abs(found["val_loss"] - metrics["final_val_loss"]) < 1e-5, (found, metrics)
    assert abs(found["perplexity"] - math.exp(found["val_loss"])) < 1e-6 * found["perplexity"], found
    assert found["tokens"] % 16 == 0 and found["tokens"] > 0, found
    assert done.doc["peak_bytes_planned"] == done.doc["peak_bytes_measured"], done.doc
    # A limit of batches, bf16, and no accuracy where there are no classes.
    nodes["perplexity"] = ("PerplexityEvaluate", {"batch_size": 2, "max_batches": 3})
    less = run(snug, nodes, wires)
    assert less.doc["results"]["perplexity"]["tokens"] == 2 * 3 * 16, less.doc["results"]
    assert "final_val_accuracy" not in less.doc["metrics"], less.doc["metrics"]


def torch_or_skip():
    try:
        import torch
    except ImportError:
        raise harness.Skip("the Debian package python3-torch is missing")
    torch.set_num_threads(1)
    return torch


def test_loss_equals_torch(snug):
    """Three updates with ignored positions and label smoothing: PyTorch's cross entropy over all positions."""
    torch = torch_or_skip()
    prepared(snug)
    numbers = [(i * i + 3 * i) % 300 for i in range(17 * 6)]
    with open(os.path.join(snug.dir, "t.bin"), "wb") as out:
        out.write(struct.pack("<%dH" % len(numbers), *numbers))
    nodes, wires = language_graph(corpus="t.bin", epochs=3)
    nodes["loader"] = ("DataLoader", {"batch_size": 6, "shuffle": False})
    nodes["optimizer"] = ("Optimizer", {"type": "SGD", "lr": 0.5})
    nodes["loss"] = ("LMCrossEntropyLoss", {"ignore_index": numbers[5], "label_smoothing": 0.1})
    nodes["save"] = ("ModelSaver", {"path": "after.pt"})
    wires += [("train", "model", "save", "model")]
    first = {"model": nodes["model"], "save": ("ModelSaver", {"path": "before.pt"})}
    assert run(snug, first, [("model", "model", "save", "model")]).rc == 0
    done = run(snug, nodes, wires)
    assert done.rc == 0, done
    before, after = (torch.load(os.path.join(snug.home, "models", name)) for name in ("before.pt", "after.pt"))
    table, weight, bias = (torch.nn.Parameter(before[k].clone()) for k in before)
    rows = torch.tensor(numbers).view(6, 17)
    losses = []
    for _ in range(3):
        logits = torch.nn.functional.linear(table[rows[:, :-1]], weight, bias)
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, 300), rows[:, 1:].reshape(-1), ignore_index=numbers[5], label_smoothing=0.1)
        losses.append(loss.item())
        for p, g in zip((table, weight, bias), torch.autograd.grad(loss, (table, weight, bias))):
            p.data -= 0.5 * g
    for p, k in zip((table, weight, bias), after):
        assert (p.data - after[k]).abs().max() < 2e-6, k
    assert abs(done.doc["metrics"]["final_train_loss"] - losses[-1]) < 1e-5, (done.doc["metrics"], losses)


def test_token_files(snug):
    """The same tokens as llm.c's file, as nanoGPT's and with 32 bits: the same run."""
    prepared(snug)
    numbers = [(i * 31 + i // 7) % 300 for i in range(17 * 40)]
    narrow, wide = struct.pack("<%dH" % len(numbers), *numbers), struct.pack("<%dI" % len(numbers), *numbers)
    files = {"nano.bin": narrow,
             "llmc.bin": struct.pack("<256i", 20240520, 1, len(numbers), *[0] * 253) + narrow,
             "llama3.bin": struct.pack("<256i", 20240801, 7, len(numbers), *[0] * 253) + wide}
    losses = []
    for name, content in files.items():
        with open(os.path.join(snug.dir, name), "wb") as out:
            out.write(content)
        nodes, wires = language_graph(corpus=name, epochs=1)
        done = run(snug, nodes, wires)
        assert done.rc == 0, done
        losses.append(done.doc["metrics"]["final_train_loss"])
        plan = snug.json("plan", os.path.join(snug.dir, "graph.json")).doc
        held = next(row for row in plan["host"] if row["node"] == "tokens")
        assert held["bytes"] == len(numbers) * (4 if name == "llama3.bin" else 2), plan["host"]
    assert losses[0] == losses[1] == losses[2], losses
    with open(os.path.join(snug.dir, "short.bin"), "wb") as out:
        out.write(files["llmc.bin"][:-3])
    bad = run(snug, *language_graph(corpus="short.bin"))
    assert bad.rc == 1 and "short.bin" in bad.doc["error"]["message"], bad
    assert bad.doc["error"]["node_id"] == "corpus", bad


def test_tokens_are_kept(snug):
    """The second run reads the tokens of the first; another text, tokenizer or choice has tokens of its own."""
    prepared(snug)
    folder = os.path.join(snug.home, "cache", "tokens")
    nodes, wires = language_graph(epochs=1)
    first = run(snug, nodes, wires)
    kept = os.listdir(folder)
    assert len(kept) == 1, kept
    before = os.stat(os.path.join(folder, kept[0])).st_mtime_ns
    again = run(snug, nodes, wires)
    assert os.listdir(folder) == kept and os.stat(os.path.join(folder, kept[0])).st_mtime_ns == before
    assert again.doc["metrics"]["final_train_loss"] == first.doc["metrics"]["final_train_loss"]
    with open(os.path.join(folder, kept[0]), "r+b") as out:  # damaged: made anew
        out.truncate(1500)
    third = run(snug, nodes, wires)
    assert third.doc["metrics"]["final_train_loss"] == first.doc["metrics"]["final_train_loss"]
    run(snug, *language_graph(tokens={"append_eos": False}, epochs=1))
    run(snug, *language_graph(tokens={"max_tokens": 400}, epochs=1))
    snug.write("train.txt", verses(400, 1))
    run(snug, nodes, wires)
    assert len(os.listdir(folder)) == 4
    run(snug, *language_graph(tokens={"cache": False, "max_tokens": 500}, epochs=1))
    assert len(os.listdir(folder)) == 4


def test_mix(snug):
    """Rows are drawn by weight, the same for a seed; one behind the other with concat."""
    prepared(snug)
    nodes, wires = language_graph(epochs=1)
    nodes.update({"other": ("TextCorpusDataset", {"source": "local_file", "local_file": "val.txt"}),
                  "mix": ("DataMixDataset", {"sources": 2, "weights": "0.8, 0.2", "seed": 3})})
    wires = [w for w in wires if w[:2] != ("corpus", "dataset")]
    wires += [("corpus", "dataset", "mix", "corpus_1"), ("other", "dataset", "mix", "corpus_2"),
              ("mix", "dataset", "tokens", "dataset")]

    def tokens(**params):
        nodes["mix"][1].update(params)
        result = run(snug, nodes, wires)
        assert result.rc == 0, result
        plan = snug.json("plan", os.path.join(snug.dir, "graph.json")).doc
        return next(r["bytes"] for r in plan["host"] if r["node"] == "tokens"), result.doc["metrics"]["final_train_loss"]

    drawn, other = tokens(), tokens(seed=4)
    assert drawn == tokens(seed=3) and drawn[1] != other[1], (drawn, other)
    assert drawn[0] < tokens(mode="concat")[0]
    nodes["mix"][1].update(weights="0.8", mode="interleave")
    bad = run(snug, nodes, wires)
    assert bad.rc == 1 and "'weights'" in bad.doc["error"]["message"] and bad.doc["error"]["node_id"] == "mix", bad


def test_generates(snug):
    """A text for a seed; the best tokens at temperature 0; a prompt that is longer than the model sees."""
    prepared(snug)
    model = ("CausalLMModel", {"vocab_size": 300, "d_model": 64, "n_layers": 1, "n_heads": 2, "d_ff": 64,
                               "max_seq_len": 32})
    nodes, wires = language_graph(model=model, epochs=6)
    nodes["optimizer"][1]["lr"] = 0.01
    prompts = {"a": {"seed": 5}, "b": {"seed": 5}, "c": {"seed": 6}, "greedy": {"temperature": 0},
               "one": {"top_k": 1, "seed": 9}, "narrow": {"top_p": 1e-6, "top_k": 0},
               "long": {"temperature": 0, "prompt": " ".join(WORDS * 4)}}
    for name, params in prompts.items():
        nodes[name] = ("TextGenerate", dict({"prompt": "in the", "max_new_tokens": 24}, **params))
        wires += [("train", "model", name, "model"), ("tokenizer", "tokenizer", name, "tokenizer")]
    nodes["show"] = ("Print", {})
    wires += [("greedy", "text", "show", "value")]
    done = run(snug, nodes, wires)
    assert done.rc == 0, done
    text = {name: done.doc["results"][name]["text"] for name in prompts}
    assert all(t.startswith("in the") for k, t in text.items() if k != "long"), text
    assert text["a"] == text["b"] != text["c"], text
    assert text["greedy"] == text["one"] == text["narrow"], text
    assert all(0 < done.doc["results"][k]["token_count"] <= 24 for k in prompts), done.doc["results"]
    assert text["long"].startswith(" ".join(WORDS * 4)), text
    words = set(WORDS) | {w + "." for w in WORDS}
    made = text["greedy"].split()
    assert len(made) > 3 and sum(w in words for w in made) >= len(made) - 1, text
    assert done.doc["peak_bytes_planned"] == done.doc["peak_bytes_measured"], done.doc


def test_zero_bytes(snug):
    """U+0000 is a character like any other, where tokens become text as well."""
    train = snug.write("train.txt", "some words of a text\n" * 50)
    assert snug("tokenizer", "train", train, "--vocab", 260, "-o", "zero.json").rc == 0
    text = "a\0b\n\0\nc\n"
    numbers = snug("tokenizer", "encode", snug.write("zero.txt", text), "--tokenizer", "zero.json")
    assert numbers.out.split("\n")[1] == "0", numbers
    back = snug("tokenizer", "decode", snug.write("numbers.txt", numbers.out), "--tokenizer", "zero.json")
    assert back.out == text, back


def test_options_of_other_actions(snug):
    """An option that an action of `snug tokenizer` would ignore is refused."""
    text = snug.write("text.txt", "some words\n")
    for line, word in ((["encode", text, "-o", "x"], "--output"), (["decode", text, "--vocab", 300], "--vocab"),
                       (["train", text, "--tokenizer", "gpt2"], "--tokenizer"), (["decode", text, "--template"], "--template"),
                       (["train", text, "--whole"], "--whole")):
        r = snug.json("tokenizer", *line)
        assert r.rc == 2 and word in r.doc["error"]["message"], r


def test_wrong_inputs(snug):
    """What cannot be is an error that names the node and the parameter, and says what to do."""
    prepared(snug)

    def fails(change, node, *words):
        nodes, wires = language_graph()
        change(nodes, wires)
        result = run(snug, nodes, wires)
        error = result.doc["error"]
        assert result.rc == 1 and error["node_id"] == node, result
        for word in words:
            assert word in error["message"] + (error["hint"] or ""), (word, error)

    def params(node, **values):
        return lambda nodes, wires: nodes[node][1].update(values)

    fails(params("corpus", source="huggingface"), "corpus", "'source'", "local_file")
    fails(params("corpus", local_file=""), "corpus", "'local_file'")
    fails(params("corpus", local_file="none.txt"), "corpus", "none.txt")
    fails(params("tokenizer", file=""), "tokenizer", "gpt2.tiktoken", "scripts/tokenizers")
    fails(params("tokenizer", file="train.txt"), "tokenizer", "train.txt", "line 1")
    fails(params("corpus", max_rows=1), "tokens", "fewer than one block")
    fails(lambda n, w: n.update(loss=("Loss", {"type": "MSELoss"})), "loss")
    snug.write("bytes.txt", "ok\n")
    with open(os.path.join(snug.dir, "bytes.txt"), "ab") as out:
        out.write(b"\xff\xfe\n" * 20)
    fails(params("corpus", local_file="bytes.txt"), "tokens", "bytes.txt", "line 2")

    def corpus_to_loader(nodes, wires):
        wires[2] = ("corpus", "dataset", "loader", "dataset")
    fails(corpus_to_loader, "loader", "corpus of texts")

    def small_table(nodes, wires):
        nodes["model"] = ("SequentialModel", {"layers": bigram(100)})
    fails(small_table, "model/l0", "100 rows")


def test_example(snug):
    """examples/gpt-mini: prepared, planned to its stated size, and a short part of it runs."""
    import shutil
    import subprocess
    if not shutil.which("bible"):
        raise harness.Skip("the Debian package bible-kjv is missing")
    subprocess.run(["sh", os.path.join(snug.root, "examples/gpt-mini/prepare"), snug.program], env=snug.env,
                   stdout=subprocess.DEVNULL, check=True)
    path = snug.example("gpt-mini")
    plan = snug.json("plan", path).doc
    assert plan["parameters"] == 5853184, plan["parameters"]
    short = snug.json("run", path, "--set", "train.max_steps=2", "--set", "train_loader.batch_size=2", "--set", "val_text.max_rows=20",
                      "--set", "text.max_new_tokens=4")
    assert short.rc == 0, short
    assert 7 < short.doc["metrics"]["final_train_loss"] < 9, short.doc["metrics"]
    assert short.doc["results"]["text"]["text"].startswith("And the LORD said unto"), short.doc["results"]
