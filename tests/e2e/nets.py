"""Random networks over sequences, random language models, and random levers over them: graphs for the attacks."""
import os
import struct

import attack
import harness

OPTIMIZERS = ["Adam", "SGD", "AdamW", "RMSprop", "Adagrad", "RAdam", "NAdam", "Rprop", "ASGD", "Adafactor"]
EIGHT_BITS = ["Adam", "SGD", "AdamW", "RMSprop", "Adagrad"]


def sequence_layers(r):
    """Rows of a picture (28 steps of 28 numbers) through recurrent layers, attention, experts; ten classes."""
    steps, n = r.choice([(28, 28), (16, 49), (7, 112), (1, 784)])
    rows = [("Reshape", {"shape": "%d,%d" % (steps, n)})]
    for _ in range(r.randint(1, 5)):
        heads = r.choice([h for h in (1, 2, 4, 7) if n % h == 0])
        kind = r.choice(["LSTM", "GRU", "RNN", "MultiHeadAttention", "TransformerEncoder", "TransformerDecoder", "RMSNorm",
                         "LayerNorm", "SwiGLU", "PositionalEncoding", "MoE", "Linear", "Dropout", "GELU"])
        params = {
            "MultiHeadAttention": {"embed_dim": n, "num_heads": heads, "dropout": r.choice([0, 0.1]),
                                   "causal": r.random() < 0.5, "bias": r.random() < 0.5},
            "RMSNorm": {"normalized_shape": n}, "LayerNorm": {"normalized_shape": n}, "GELU": {},
            "SwiGLU": {"in_features": n, "hidden_features": r.randint(1, 60), "bias": r.random() < 0.5},
            "PositionalEncoding": {"d_model": n, "max_len": steps + r.randint(0, 3), "dropout": r.choice([0, 0.2]),
                                   "mode": r.choice(["sinusoidal", "learnable"])},
            "MoE": {"hidden_dim": n, "expert_hidden_dim": r.randint(1, 40), "num_experts": r.randint(2, 4),
                    "top_k": r.randint(1, 2), "activation": r.choice(["relu", "gelu", "silu"])},
            "Dropout": {"p": 0.2}}.get(kind)
        if kind in ("LSTM", "GRU", "RNN"):
            hidden, both = r.randint(1, 40), r.random() < 0.3
            params = {"input_size": n, "hidden_size": hidden, "num_layers": r.choice([1, 1, 2, 3]), "bidirectional": both,
                      "batch_first": r.random() < 0.8, "dropout": r.choice([0, 0, 0.1]), "bias": r.random() < 0.7}
            n = hidden * (1 + both)
        elif kind.startswith("Transformer"):
            params = {"d_model": n, "nhead": heads, "num_layers": r.choice([1, 2, 3]), "dim_feedforward": r.randint(1, 50),
                      "dropout": r.choice([0, 0.1]), "activation": r.choice(["relu", "gelu"]),
                      "norm_first": r.random() < 0.5, "causal": r.random() < 0.5}
        elif kind == "Linear":
            params = {"in_features": n, "out_features": r.choice([8, 16, 28, 33])}
            n = params["out_features"]
        if kind == "PositionalEncoding" and n % 2:
            continue
        rows.append((kind, params))
    last = [("SelectIndex", {"index": r.choice([-1, 0])})] if r.random() < 0.7 else [("Flatten", {})]
    n = n if last[0][0] == "SelectIndex" else n * steps
    return harness.layers(*rows, *last, ("Linear", {"in_features": n, "out_features": 10}))


def causal_lm(r):
    """Parameters of a small CausalLMModel."""
    heads = r.choice([1, 2, 4, 8])
    return {"vocab_size": r.choice([256, 300, 511]), "d_model": 64, "n_layers": r.randint(1, 4), "n_heads": heads,
            "n_kv_heads": r.choice([0, 1, heads]), "d_ff": r.choice([64, 100, 256]), "max_seq_len": 48,
            "tie_embeddings": r.random() < 0.6, "positional": r.choice(["learned", "sinusoidal", "rope"]),
            "norm": r.choice(["layernorm", "rmsnorm"]), "activation": r.choice(["gelu", "relu", "silu"]),
            "dropout": r.choice([0, 0.1]), "gradient_checkpointing": r.random() < 0.15, "qk_norm": r.random() < 0.3,
            "bias": r.random() < 0.6}


def levers(r, adapter):
    """Parameters of a TrainingLoop and the optimizer's type, as they can be combined."""
    p = {"checkpointing": r.choice(["none", "none", "blocks", "selective", "auto"]),
         "loss_chunk_tokens": r.choice([0, 0, 1, 7, 24, 64, 1 << 40])}
    kind = r.choice(OPTIMIZERS)
    if r.random() < 0.35:
        p["parameter_dtype"] = r.choice(["bfloat16", "float16"])
        p["master_weights"] = r.choice(["float32", "none", "stochastic"])
    half = p.get("parameter_dtype")
    p["precision"] = r.choice(["fp32", "fp32", {"bfloat16": "bf16", "float16": "fp16"}.get(half, r.choice(["bf16", "fp16"]))])
    if kind in EIGHT_BITS and r.random() < 0.4:
        p["optimizer_state"] = "int8"
    if half != "float16" and p["precision"] != "fp16" and r.random() < 0.4:
        p["update_in_backward"] = True
    else:
        p.update(accumulate_steps=r.choice([1, 1, 2, 3]), grad_clip_norm=r.choice([0, 0, 1.0]),
                 log_update_ratio=r.random() < 0.2)
    return p, kind


def adapter(r):
    kind = r.choice(["lora", "lora", "qlora"])
    return {"kind": kind, "rank": r.randint(1, 9), "dropout": r.choice([0, 0.1]), "rslora": r.random() < 0.3,
            "base": r.choice(["none", "int8", "nf4"]) if kind == "lora" else "none", "double_quant": r.random() < 0.5}


def through_adapter(graph, params):
    """Puts an adapter between the model and everything that takes it."""
    for e in graph["edges"]:
        if e["source"] == "model":
            e["source"] = "adapter"
    return attack.add(graph, "adapter", "snug:Adapter", params, ("model", "model", "adapter", "model"))


def with_levers(r, graph, share=0.25):
    """Sets random levers, an adapter among them at times; what the saver needs for it."""
    by = {n["id"]: n["data"]["params"] for n in graph["nodes"]}
    adapted = r.random() < share
    params, kind = levers(r, adapted)
    by["train"].update(params)
    by["optimizer"].update(type=kind, lr=1e-3)
    if adapted:
        through_adapter(graph, adapter(r))
        by["save"]["merge"] = True
    return graph


def sequence_graph(r):
    graph = attack.saving_graph(
        sequence_layers(r), loader__batch_size=r.choice([1, 2, 3, 5, 8, 13]), loader__drop_last=r.random() < 0.3,
        train__max_steps=0, train__epochs=1, validate=r.random() < 0.3)
    return with_levers(r, graph)


def tokens_file(snug, count=450, name="tokens.bin"):
    numbers = [(i * i * 7 + 3 * i + i // 5) % 256 for i in range(count)]
    return attack.put(os.path.join(snug.dir, name), struct.pack("<%dH" % count, *numbers))


def tokenizer_file(snug, name="tokenizer.json"):
    """Once for each test: a tokenizer of 256 bytes and little more."""
    path = os.path.join(snug.dir, name)
    if not os.path.exists(path):
        text = snug.write("train.txt", "".join("some words of a text, line %d\n" % i for i in range(200)))
        made = snug.json("tokenizer", "train", text, "--vocab", "260", "-o", path)
        assert made.rc == 0, made
    return path


def text_graph(model, seq=16, batch=4, validate=False, path="final.safetensors", **params):
    """A graph that trains a CausalLMModel on tokens.bin; keyword arguments as of harness.training_graph."""
    graph = harness.training_graph("", loader__batch_size=batch, optimizer__lr=1e-3, **params)
    graph["nodes"] = [n for n in graph["nodes"] if n["id"] not in ("model", "data", "loss")]
    graph["edges"] = [e for e in graph["edges"] if e["source"] != "data"]
    attack.add(graph, "model", "CausalLMModel", model)
    attack.add(graph, "loss", "LMCrossEntropyLoss")
    attack.add(graph, "tokenizer", "LMTokenizer", {"file": "tokenizer.json"})
    attack.add(graph, "corpus", "TextCorpusDataset", {"source": "local_file", "local_file": "tokens.bin"})
    attack.add(graph, "tokens", "LMTokenizedDataset", {"seq_len": seq}, ("corpus", "dataset", "tokens", "dataset"),
               ("tokenizer", "tokenizer", "tokens", "tokenizer"), ("tokens", "dataset", "loader", "dataset"))
    if validate:
        attack.add(graph, "val", "DataLoader", {"batch_size": 5, "shuffle": False}, ("tokens", "dataset", "val", "dataset"),
                   ("val", "dataloader", "train", "val_dataloader"))
    return attack.add(graph, "save", "ModelSaver", {"path": path, "format": "safetensors"}, ("train", "model", "save", "model"))


def random_text_graph(r):
    seq = r.choice([16, 17, 31, 48])
    graph = text_graph(causal_lm(r), seq, r.choice([1, 2, 3, 5, 8]), r.random() < 0.3, train__max_steps=0,
                       train__epochs=1)
    return with_levers(r, graph)
