"""Hugging Face folders with random weights: config.json and safetensors (or .bin), written here.

`make(dir, kind, ...)` draws every weight, writes the folder as transformers lays it out, and answers
{name: float32 tensor} as the files hold it. Run as a program: hf_make.py KIND DIR [key=value ...].
"""
import json
import os
import struct
import sys

import torch

NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64",
         torch.uint8: "U8", torch.int8: "I8"}
WORDS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TYPES = {v: k for k, v in NAMES.items()}


def raw(t):
    t = t.detach().contiguous()
    return (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy().tobytes()


def write_safetensors(path, tensors, metadata=None):
    header, at, body = {}, 0, []
    if metadata:
        header["__metadata__"] = metadata
    for name, t in tensors.items():
        data = raw(t)
        header[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape),
                        "data_offsets": [at, at + len(data)]}
        at += len(data)
        body.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + b"".join(body))


def read_safetensors(path):
    """({name: tensor}, metadata)"""
    with open(path, "rb") as file:
        n, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(n))
        body = file.read()
    metadata, tensors = header.pop("__metadata__", {}), {}
    for name, row in header.items():
        begin, end = row["data_offsets"]
        dtype = TYPES[row["dtype"]]
        part = bytearray(body[begin:end]) or bytearray(8)
        t = torch.frombuffer(part, dtype=dtype)
        tensors[name] = t.reshape(row["shape"]) if end > begin else torch.empty(row["shape"], dtype=dtype)
    return tensors, metadata


def read_folder(path):
    """Every tensor of a folder, by its index where it has one."""
    index = os.path.join(path, "model.safetensors.index.json")
    if not os.path.exists(index):
        return read_safetensors(os.path.join(path, "model.safetensors"))[0]
    with open(index) as file:
        listed = json.load(file)["weight_map"]
    files = {f: read_safetensors(os.path.join(path, f))[0] for f in set(listed.values())}
    return {name: files[f][name] for name, f in listed.items()}


BASE = {"vocab_size": 97, "transformers_version": "4.40.0", "bos_token_id": 1, "eos_token_id": 2}
LLAMA = dict(BASE, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, hidden_act="silu", rms_norm_eps=1e-6,
             rope_theta=10000.0, tie_word_embeddings=False)
CONFIGS = {
    "gpt2": dict(BASE, model_type="gpt2", architectures=["GPT2LMHeadModel"], n_embd=32, n_layer=2,
                 n_head=4, n_positions=64, n_ctx=64, activation_function="gelu_new",
                 layer_norm_epsilon=1e-5, embd_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1,
                 summary_type="cls_index", task_specific_params={"text-generation": {"max_length": 50}}),
    "llama": dict(LLAMA, model_type="llama", architectures=["LlamaForCausalLM"], attention_bias=False,
                  mlp_bias=False, pretraining_tp=1, use_cache=True),
    "mistral": dict(LLAMA, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=5),
    "qwen2": dict(LLAMA, model_type="qwen2", architectures=["Qwen2ForCausalLM"], tie_word_embeddings=True,
                  use_sliding_window=False, sliding_window=8, max_window_layers=1),
    "qwen3": dict(LLAMA, model_type="qwen3", architectures=["Qwen3ForCausalLM"], head_dim=12,
                  attention_bias=False, use_sliding_window=False, sliding_window=None, max_window_layers=2),
    "bert": dict(BASE, model_type="bert", architectures=["BertForMaskedLM"], hidden_size=32,
                 num_hidden_layers=2, num_attention_heads=4, intermediate_size=56, hidden_act="gelu",
                 max_position_embeddings=64, type_vocab_size=2, layer_norm_eps=1e-12,
                 hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, pad_token_id=0,
                 position_embedding_type="absolute"),
}


def shapes(c, head=True):
    """{name: shape} as transformers names them; "linear:" marks what is drawn as a weight matrix."""
    kind, out = c["model_type"], {}
    if kind == "gpt2":
        d, ff = c["n_embd"], c.get("n_inner") or 4 * c["n_embd"]
        out.update({"transformer.wte.weight": (c["vocab_size"], d), "transformer.wpe.weight": (c["n_positions"], d)})
        for i in range(c["n_layer"]):
            p = "transformer.h.%d." % i
            for part, shape in (("ln_1", (d,)), ("attn.c_attn", (d, 3 * d)), ("attn.c_proj", (d, d)),
                                ("ln_2", (d,)), ("mlp.c_fc", (d, ff)), ("mlp.c_proj", (ff, d))):
                out[p + part + ".weight"], out[p + part + ".bias"] = shape, shape[-1:]
        out.update({"transformer.ln_f.weight": (d,), "transformer.ln_f.bias": (d,)})
        if head and not c.get("tie_word_embeddings", True):
            out["lm_head.weight"] = (c["vocab_size"], d)
    elif kind == "bert":
        d, ff = c["hidden_size"], c["intermediate_size"]
        e = "bert.embeddings."
        out.update({e + "word_embeddings.weight": (c["vocab_size"], d),
                    e + "position_embeddings.weight": (c["max_position_embeddings"], d),
                    e + "token_type_embeddings.weight": (c["type_vocab_size"], d),
                    e + "LayerNorm.weight": (d,), e + "LayerNorm.bias": (d,)})
        for i in range(c["num_hidden_layers"]):
            p = "bert.encoder.layer.%d." % i
            for part, shape in (("attention.self.query", (d, d)), ("attention.self.key", (d, d)),
                                ("attention.self.value", (d, d)), ("attention.output.dense", (d, d)),
                                ("attention.output.LayerNorm", (d,)), ("intermediate.dense", (ff, d)),
                                ("output.dense", (d, ff)), ("output.LayerNorm", (d,))):
                out[p + part + ".weight"], out[p + part + ".bias"] = shape, shape[:1]
        if head:
            p = "cls.predictions."
            out.update({p + "bias": (c["vocab_size"],), p + "transform.dense.weight": (d, d),
                        p + "transform.dense.bias": (d,), p + "transform.LayerNorm.weight": (d,),
                        p + "transform.LayerNorm.bias": (d,)})
            if not c.get("tie_word_embeddings", True):
                out[p + "decoder.weight"] = (c["vocab_size"], d)
        else:
            out.update({"bert.pooler.dense.weight": (d, d), "bert.pooler.dense.bias": (d,)})
    else:
        d, ff, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
        kv, size = c.get("num_key_value_heads", heads), c.get("head_dim") or d // heads
        bias = kind == "qwen2" or (kind != "mistral" and c.get("attention_bias"))
        out["model.embed_tokens.weight"] = (c["vocab_size"], d)
        for i in range(c["num_hidden_layers"]):
            p = "model.layers.%d." % i
            for part, rows in (("q", heads), ("k", kv), ("v", kv)):
                out[p + "self_attn.%s_proj.weight" % part] = (rows * size, d)
                if bias:
                    out[p + "self_attn.%s_proj.bias" % part] = (rows * size,)
            out[p + "self_attn.o_proj.weight"] = (d, heads * size)
            if bias and kind in ("llama", "qwen3"):
                out[p + "self_attn.o_proj.bias"] = (d,)
            if kind == "qwen3":
                out.update({p + "self_attn.q_norm.weight": (size,), p + "self_attn.k_norm.weight": (size,)})
            for part, shape in (("gate", (ff, d)), ("up", (ff, d)), ("down", (d, ff))):
                out[p + "mlp.%s_proj.weight" % part] = shape
                if kind == "llama" and c.get("mlp_bias"):
                    out[p + "mlp.%s_proj.bias" % part] = shape[:1]
            out.update({p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,)})
        out["model.norm.weight"] = (d,)
        if head and not c.get("tie_word_embeddings", False):
            out["lm_head.weight"] = (c["vocab_size"], d)
    return out


def draw(name, shape, generator):
    """Norms near 1, biases not 0, matrices of the size that keeps activations near 1."""
    x = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return 1 + 0.2 * x if name.endswith("weight") else 0.2 * x
    table = "embed" in name or ".wte" in name or ".wpe" in name
    return x * (0.7 if table else shape[-1] ** -0.5)


def make(path, kind, seed=1, dtype="float32", head=True, prefix=True, form="safetensors", shards=1,
         extra=None, **changes):
    config = dict(CONFIGS[kind], torch_dtype=dtype)
    config.update(changes)
    generator = torch.Generator().manual_seed(seed)
    tensors = {n: draw(n, s, generator).to(WORDS[dtype]) for n, s in shapes(config, head).items()}
    if not head:
        config["architectures"] = {"gpt2": ["GPT2Model"], "bert": ["BertModel"]}.get(
            kind, [config["architectures"][0].replace("ForCausalLM", "Model")])
    if not prefix:
        cut = {"gpt2": "transformer.", "bert": "bert."}.get(kind, "model.")
        tensors = {n[len(cut):] if n.startswith(cut) else n: t for n, t in tensors.items()}
    tensors.update(extra or {})
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, "config.json"), "w") as out:
        json.dump({k: v for k, v in config.items() if v != "absent"}, out, indent=2)
        out.write("\n")
    write_weights(path, tensors, form, shards)
    return config, {n: t.float() for n, t in tensors.items()}


def write_weights(path, tensors, form="safetensors", shards=1):
    safe = form == "safetensors"
    stem, end = ("model", "safetensors") if safe else ("pytorch_model", "bin")

    def put(name, part):
        full = os.path.join(path, name)
        if safe:
            write_safetensors(full, part, {"format": "pt"})
        else:
            torch.save(part, full)
    if shards == 1:
        return put("%s.%s" % (stem, end), tensors)
    names, listed = list(tensors), {}
    for i in range(shards):
        file = "%s-%05d-of-%05d.%s" % (stem, i + 1, shards, end)
        part = names[i * len(names) // shards:(i + 1) * len(names) // shards]
        put(file, {n: tensors[n] for n in part})
        listed.update((n, file) for n in part)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    with open(os.path.join(path, "%s.%s.index.json" % (stem, end)), "w") as out:
        json.dump({"metadata": {"total_size": total}, "weight_map": listed}, out, indent=2)


if __name__ == "__main__":
    options = {}
    for word in sys.argv[3:]:
        key, value = word.split("=", 1)
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    make(sys.argv[2], sys.argv[1], **options)
