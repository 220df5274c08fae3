"""Language models against independent PyTorch implementations (hf_models.py): outputs and gradients of
every family, folders in every form, and folders written back.

TOLERANCE. Relative error of the norm of each result, against float64 on the same float32 weights: 2e-6
for outputs, 1e-5 for gradients. Two blocks of width 32 measured 4e-7 and 2e-6; PyTorch's own float32
run of the same formulas 4e-7 and 3e-6. A result beyond the bound passes only where it is no further
from float64 than twice PyTorch's in the same case."""
import json
import os
import tempfile

import torch

import hf_make
import hf_models
from harness import norm_error
from optool import ToolError, to_bytes
from test_layers import run_tool

OUTPUT_BOUND, GRADIENT_BOUND = 2e-6, 1e-5


def judge(c, title, name, got, exact, torchs, bound, scale=0.0):
    """scale: norm of the largest result beside it, which bounds what rounding leaves of a zero."""
    if exact.norm() <= 1e-3 * (torchs.double() - exact).norm():
        # Zero but for rounding: the bias of keys moves all scores of a query alike, and a single
        # token has nothing to choose from.
        if got.norm() > max(8 * torchs.norm(), 2e-6 * scale):
            c.fail("%s: %s is %.3g, not 0 (PyTorch %.3g)" % (title, name, got.norm(), torchs.norm()))
        return
    error, theirs = norm_error(got, exact), norm_error(torchs, exact)
    c.record("transformer", "f32", error)
    if not error <= max(bound, 2 * theirs):
        c.fail("%s: %s is off by %.3g (PyTorch by %.3g)" % (title, name, error, theirs))


def compare(c, title, found, state, function, tokens, upstream):
    """`found`: the tool's answer. Outputs, and gradients of sum(output 0 * upstream)."""
    runs = []
    for dtype in (torch.float64, torch.float32):
        values = {n: t.to(dtype).clone().requires_grad_(True) for n, t in state.items()}
        outputs = function(values, tokens)
        (outputs[0] * upstream.to(dtype)).sum().backward()
        runs.append((outputs, {n: t.grad for n, t in values.items()}))
    names = [n for n in found if n in ("logits", "last_hidden_state", "pooler_output")]
    if len(names) != len(runs[0][0]):
        return c.fail("%s: outputs %s" % (title, names))
    for i, name in enumerate(names):
        judge(c, title, name, found[name], runs[0][0][i].detach(), runs[1][0][i].detach(), OUTPUT_BOUND)
    scale = max(float(t.norm()) for t in runs[0][1].values() if t is not None)
    for name in state:
        exact, theirs = runs[0][1][name], runs[1][1][name]
        ours = found.get("grad:" + name)
        if (ours is None) != (exact is None):
            c.fail("%s: %s gradient of %s" % (title, "no" if ours is None else "a", name))
        elif ours is not None:
            judge(c, title, "gradient of " + name, ours, exact, theirs, GRADIENT_BOUND, scale)


def ask(c, request, tokens, width):
    """Runs model_tool forward and backward; `width` is that of output 0."""
    upstream = c.randn(*tokens.shape, width).float()
    request = dict(request, shape=list(tokens.shape), backward=True)
    return run_tool(c, request, to_bytes(tokens) + to_bytes(upstream)) + (upstream,)


def check_folder(c, path, config, state, head=True, title="", batch=2, seq=11, tokens=None, **more):
    c.count += 1
    if tokens is None:
        tokens = c.integers(0, config["vocab_size"], batch, seq)
    width = config["vocab_size"] if head else config.get("hidden_size", config.get("n_embd"))
    try:
        answer, found, upstream = ask(c, dict({"hf": path, "head": head}, **more), tokens, width)
    except ToolError as e:
        return c.fail("%s: %s" % (title, e))
    # The state by the model's names: the file's may lack the prefix.
    kind = config["model_type"]
    prefix = {"gpt2": "transformer.", "bert": "bert."}.get(kind, "model.")
    named = {}
    for name in answer["params"]:
        for full in (name, name[len(prefix):], prefix + name, name.replace("LayerNorm.weight", "LayerNorm.gamma"),
                     name.replace("LayerNorm.bias", "LayerNorm.beta")):
            if full in state:
                named[name] = state[full]
                break
        else:
            return c.fail("%s: the file has no %s" % (title, name))
        if not torch.equal(found[name], named[name]):
            return c.fail("%s: %s was read with other values" % (title, name))
    compare(c, title, found, named, lambda s, t: hf_models.FAMILIES[kind](config, s, t, head), tokens, upstream)
    return answer


VARIANTS = [
    ("gpt2", {}), ("gpt2", {"activation_function": "gelu", "n_inner": 40, "tie_word_embeddings": False}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "activation_function": "relu"}),
    ("gpt2", {"scale_attn_weights": False, "activation_function": "silu"}),
    ("llama", {}), ("llama", {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True, "rope_theta": 500000.0,
               "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}),
    ("llama", {"rope_theta": "absent", "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0,
        "high_freq_factor": 2.0, "original_max_position_embeddings": 32}}),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}, "head_dim": 10}),
    ("mistral", {}), ("mistral", {"sliding_window": None, "head_dim": 6}),
    ("qwen2", {}), ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    ("qwen2", {"tie_word_embeddings": False, "use_sliding_window": True, "sliding_window": 4,
               "layer_types": ["sliding_attention", "full_attention"]}),
    ("qwen3", {}), ("qwen3", {"attention_bias": True, "tie_word_embeddings": True, "head_dim": 8}),
    ("bert", {}), ("bert", {"hidden_act": "relu", "tie_word_embeddings": False}),
]


# ids: N4
def test_families(c):
    for i, (kind, changes) in enumerate(VARIANTS):
        with tempfile.TemporaryDirectory() as path:
            config, state = hf_make.make(path, kind, seed=100 + i, **changes)
            config = {k: v for k, v in config.items() if v != "absent"}
            check_folder(c, path, config, state, title="%s %s" % (kind, changes),
                         batch=c.pick(1, 2, 3), seq=c.pick(1, 7, 11, 20))


# ids: N4
def test_padding(c):
    """padding_mask: the pad token is no key, wherever it stands; without it, every token is."""
    for i, (kind, changes) in enumerate([
            ("bert", {}), ("bert", {"pad_token_id": "absent"}), ("bert", {"pad_token_id": 9}),
            ("llama", {"pad_token_id": 0, "num_key_value_heads": 1}), ("mistral", {"pad_token_id": 5}),
            ("qwen3", {"pad_token_id": 96}), ("gpt2", {"pad_token_id": 50})]):
        pad = changes.get("pad_token_id", 0)
        pad = 0 if pad == "absent" else pad
        for head in (True, False):
            with tempfile.TemporaryDirectory() as path:
                config, state = hf_make.make(path, kind, seed=400 + i, head=head, **changes)
                config = {k: v for k, v in config.items() if v != "absent"}
                tokens = c.integers(0, 97, 4, 11)
                tokens[1, 6:] = pad      # at the end
                tokens[2, :3] = pad      # at the start: causal queries there see nothing
                tokens[3, 4] = pad
                title = "%s %s" % (kind, changes)
                check_folder(c, path, dict(config, mask_padding=True), state, head, title + " masked", tokens=tokens,
                             padding_mask=True)
                check_folder(c, path, config, state, head, title, tokens=tokens)


# ids: N4
def test_padding_row(c):
    """transformers' embedding has pad_token_id as padding_idx, but for GPT-2's: the row's lookups give no
    gradient; a tied head still does."""
    for i, (kind, pad, tied) in enumerate([("bert", "absent", True), ("bert", None, False), ("bert", 5, False), ("llama", 5, False),
                                           ("llama", -1, False), ("llama", 5, True), ("mistral", 0, False), ("qwen2", 96, True),
                                           ("qwen3", 3, False), ("gpt2", 5, True)]):
        with tempfile.TemporaryDirectory() as path:
            config, state = hf_make.make(path, kind, seed=500 + i, pad_token_id=pad, tie_word_embeddings=tied)
            config = {k: v for k, v in config.items() if v != "absent"}
            tokens = c.integers(0, 97, 3, 11)
            tokens[:, ::2] = {"absent": 0, None: 0, -1: 96}.get(pad, pad)
            check_folder(c, path, config, state, title="%s, pad_token_id %s" % (kind, pad), tokens=tokens)


# ids: N4
def test_without_head(c):
    for kind in hf_make.CONFIGS:
        for full_file in (False, True):  # a folder of the base class, and one with a head to leave aside
            with tempfile.TemporaryDirectory() as path:
                config, state = hf_make.make(path, kind, head=full_file, prefix=full_file)
                check_folder(c, path, config, state, head=False, title="%s without head" % kind)


# ids: N4 case-T84
def test_forms(c):
    """Types, names without prefix, shards, .bin, old names of LayerNorm, buffers of older files."""
    for kind in ("gpt2", "llama", "bert"):
        for form, shards, dtype, prefix in (
                ("safetensors", 3, "bfloat16", True), ("bin", 1, "float16", False), ("bin", 2, "bfloat16", True),
                ("safetensors", 1, "float16", False)):
            with tempfile.TemporaryDirectory() as path:
                config, state = hf_make.make(path, kind, dtype=dtype, form=form, shards=shards, prefix=prefix)
                check_folder(c, path, config, state, title="%s %s x%d %s" % (kind, form, shards, dtype))
    with tempfile.TemporaryDirectory() as path:
        extra = {"h.0.attn.bias": torch.ones(1, 1, 64, 64, dtype=torch.uint8), "h.0.attn.masked_bias": torch.tensor(-1e4)}
        config, state = hf_make.make(path, "gpt2", prefix=False, extra=extra)
        answer = check_folder(c, path, config, state, title="gpt2 with buffers")
        if answer and answer["notes"]:
            c.fail("buffers of GPT-2 are noted: %s" % answer["notes"])
    with tempfile.TemporaryDirectory() as path:
        config, state = hf_make.make(path, "bert")
        state = {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
                 for n, t in state.items()}
        state.update({"cls.seq_relationship.weight": torch.ones(2, 32), "bert.pooler.dense.bias": torch.ones(32),
                      "cls.predictions.decoder.bias": state["cls.predictions.bias"]})
        hf_make.write_weights(path, state)
        answer = check_folder(c, path, config, state, title="bert with gamma, beta")
        if answer and "cls.seq_relationship.weight" not in answer["notes"]:
            c.fail("unused tensors of BERT are not noted: %s" % answer["notes"])


CAUSAL = dict(vocab=97, d_model=32, layers=2, heads=4, d_ff=56, positions=40)
CAUSAL_VARIANTS = [
    {}, {"tied": False}, {"position_kind": 1}, {"position_kind": 2}, {"rms_norm": True, "norm_eps": 1e-6},
    {"activation": 2}, {"activation": 3, "kv_heads": 2}, {"kv_heads": 1, "position_kind": 2, "qk_norm": True},
    {"bias": False, "qk_norm": True, "rms_norm": True}]


# ids: N4
def test_causal_lm(c):
    for changes in CAUSAL_VARIANTS:
        fields = dict(CAUSAL, **changes)
        tokens = c.integers(0, 97, 2, 13)
        c.count += 1
        _, first = run_tool(c, {"transformer": fields, "shape": [2, 13]}, to_bytes(tokens))
        generator = torch.Generator().manual_seed(5)
        state = {n: hf_make.draw(n.replace("_emb", "_embed"), t.shape, generator) for n, t in first.items()
                 if n != "logits" and not n.startswith("after:")}
        with tempfile.TemporaryDirectory() as path:
            file = os.path.join(path, "state.safetensors")
            hf_make.write_safetensors(file, state)
            _, found, upstream = ask(c, {"transformer": fields, "state": file}, tokens, 97)
        compare(c, "CausalLMModel %s" % changes, found, state,
                lambda s, t: hf_models.causal_lm(fields, s, t), tokens, upstream)


def saved(c, path, to, config, **more):
    tokens = c.integers(0, config["vocab_size"], 1, 3)
    c.count += 1
    run_tool(c, dict({"hf": path, "save": to, "shape": [1, 3]}, **more), to_bytes(tokens))
    with open(os.path.join(to, "config.json"), "rb") as file:
        return file.read(), hf_make.read_folder(to)


# ids: N4 case-T84
def test_round_trip(c):
    """Import and export: the same tensors to the byte, the same config.json, the tokenizer's files."""
    for kind in hf_make.CONFIGS:
        for dtype, prefix, shards in (("float32", True, 1), ("bfloat16", False, 3), ("float16", True, 1)):
            with tempfile.TemporaryDirectory() as path:
                source, to = os.path.join(path, "from"), os.path.join(path, "to")
                config, _ = hf_make.make(source, kind, dtype=dtype, prefix=prefix, shards=shards)
                with open(os.path.join(source, "tokenizer.json"), "w") as out:
                    out.write('{"model": {}}')
                text, tensors = saved(c, source, to, config)
                before = hf_make.read_folder(source)
                title = "%s %s" % (kind, dtype)
                if set(tensors) != set(before):
                    c.fail("%s: tensors %s" % (title, sorted(set(tensors) ^ set(before))))
                elif any(hf_make.raw(tensors[n]) != hf_make.raw(t) or tensors[n].dtype != t.dtype for n, t in before.items()):
                    c.fail("%s: other bytes" % title)
                with open(os.path.join(source, "config.json"), "rb") as file:
                    if file.read() != text:
                        c.fail("%s: config.json changed" % title)
                if not os.path.exists(os.path.join(to, "tokenizer.json")):
                    c.fail("%s: the tokenizer is not there" % title)


# ids: N4
def test_export_choices(c):
    """Another type, shards of a size, the base model alone, a head that is tied in the config and in the file."""
    with tempfile.TemporaryDirectory() as path:
        source, to = os.path.join(path, "from"), os.path.join(path, "to")
        config, state = hf_make.make(source, "llama")
        text, tensors = saved(c, source, to, config, dtype="bfloat16", shard_bytes=9000)
        index = json.load(open(os.path.join(to, "model.safetensors.index.json")))
        sizes = {}
        for name, t in tensors.items():
            file = index["weight_map"][name]
            sizes.setdefault(file, []).append(t.numel() * 2)
            if t.dtype != torch.bfloat16 or not torch.equal(t, state[name].bfloat16()):
                c.fail("%s is not the bfloat16 of the weight" % name)
        if any(sum(v) > 9000 and len(v) > 1 for v in sizes.values()) or len(sizes) < 4:
            c.fail("shards of %s bytes" % sizes)
        if sorted(sizes) != ["model-%05d-of-%05d.safetensors" % (i + 1, len(sizes)) for i in range(len(sizes))]:
            c.fail("shards are called %s" % sorted(sizes))
        if index["metadata"]["total_size"] != sum(map(sum, sizes.values())):
            c.fail("total_size %s" % index["metadata"])
        if dict(json.loads(text), torch_dtype="float32") != config or json.loads(text)["torch_dtype"] != "bfloat16":
            c.fail("config.json: more than torch_dtype changed: %s" % text.decode())
    for kind, base in (("llama", "LlamaModel"), ("bert", "BertModel")):
        with tempfile.TemporaryDirectory() as path:
            source, to = os.path.join(path, "from"), os.path.join(path, "to")
            config, state = hf_make.make(source, kind)
            text, tensors = saved(c, source, to, config, head=False)
            if json.loads(text)["architectures"] != [base]:
                c.fail("%s without head: %s" % (kind, json.loads(text)["architectures"]))
            if any(n.startswith(("lm_head", "cls.")) for n in tensors):
                c.fail("%s without head: %s" % (kind, sorted(tensors)))


# ids: case-T78 N4
def test_tied_heads(c):
    """A head of its own stays one; equal copies of a tied tensor are one; different ones are refused."""
    with tempfile.TemporaryDirectory() as path:
        for kind, tied_name in (("llama", "model.embed_tokens.weight"), ("gpt2", "transformer.wte.weight")):
            source, to = os.path.join(path, kind), os.path.join(path, kind + "-to")
            config, state = hf_make.make(source, kind, tie_word_embeddings=True)
            state["lm_head.weight"] = state[tied_name].clone()
            hf_make.write_weights(source, state)
            _, tensors = saved(c, source, to, config)
            if not torch.equal(tensors["lm_head.weight"], tensors[tied_name]):
                c.fail("%s: copies of the tied tensor differ" % kind)
            state["lm_head.weight"] = 2 * state[tied_name]
            hf_make.write_weights(source, state)
            try:
                saved(c, source, to, config)
                c.fail("%s: a head that differs from the embedding was dropped without a word" % kind)
            except ToolError as e:
                if "differs from" not in str(e):
                    c.fail("%s: %s" % (kind, e))
            config["tie_word_embeddings"] = False
            with open(os.path.join(source, "config.json"), "w") as out:
                json.dump(config, out)
            _, tensors = saved(c, source, os.path.join(path, kind + "-apart"), config)
            if not torch.equal(tensors["lm_head.weight"], 2 * tensors[tied_name]):
                c.fail("%s: the head of its own was lost" % kind)
            check_folder(c, source, config, state, title="%s with a head of its own" % kind)
