"""The language models as PyTorch functions of a state dict, written from the papers and from what the
fields of config.json mean; independent of the program under test. Attention is the plain formula over
the whole matrix of scores. All compute in the type of the weights they are given.

  GPT-2    Radford et al. 2019: pre-norm blocks, learned positions, GELU's tanh form; weights [in, out]
  BERT     Devlin et al. 2018: post-norm blocks, token types, GELU, masked-LM head, pooler
  Llama    Touvron et al. 2023: RMS norm, rotary positions (Su et al. 2021), grouped-query attention
           (Ainslie et al. 2023), SiLU-gated MLP; Llama 3's frequencies: Dubey et al. 2024
  Mistral  Jiang et al. 2023: attention to the last `sliding_window` tokens, the query's own included
  Qwen2/3  biases of queries, keys and values; RMS norm of each head of queries and keys
"""
import math

import torch
import torch.nn.functional as F


def attend(q, k, v, causal, scale, window=0, padding=None):
    """q [B, S, H, D], k and v [B, S, G, D]: head h reads group h // (H / G). padding [B, S]: keys that no
    query sees; a query that sees no key gives zeros."""
    b, s, heads, size = q.shape
    group = heads // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bshd,bthd->bhst", q, k) * scale
    i, j = torch.arange(s)[:, None], torch.arange(s)[None]
    seen = torch.ones(s, s, dtype=torch.bool)
    if causal:
        seen &= j <= i
    if window:
        seen &= j > i - window
    if padding is not None:
        seen = seen & ~padding[:, None, None]
    weights = scores.masked_fill(~seen, -1e30).softmax(-1) * seen
    return torch.einsum("bhst,bthd->bshd", weights, v).reshape(b, s, heads * size)


def padding_of(c, tokens):
    """"mask_padding" is the tests' own field: what a tokenizer's attention_mask says of these tokens."""
    return tokens == c.get("pad_token_id", 0) if c.get("mask_padding") else None


def lookup(c, table, tokens):
    """transformers' embedding of every family but GPT-2: pad_token_id is its padding_idx."""
    return F.embedding(tokens, table, padding_idx=c.get("pad_token_id", 0 if c["model_type"] == "bert" else None))


def rms(x, weight, eps):
    return weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def frequencies(c, size):
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    theta = rope.get("rope_theta", c.get("rope_theta", 10000.0))
    freq = [theta ** (-2 * i / size) for i in range(size // 2)]
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "linear":
        return [f / rope["factor"] for f in freq]
    if kind == "default":
        return freq
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original, factor, out = rope["original_max_position_embeddings"], rope["factor"], []
    for f in freq:
        length = 2 * math.pi / f
        if length < original / high:
            out.append(f)
        elif length > original / low:
            out.append(f / factor)
        else:
            smooth = (original / length - low) / (high - low)
            out.append((1 - smooth) * f / factor + smooth * f)
    return out


def rotate(x, freq):
    """Pairs are (i, i + D/2)."""
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * torch.tensor(freq, dtype=torch.float64)
    cos, sin = angle.cos().to(x.dtype)[:, None], angle.sin().to(x.dtype)[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def gelu(x, tanh):
    if tanh:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


ACTS = {"gelu": lambda x: gelu(x, False), "gelu_new": lambda x: gelu(x, True), "relu": torch.relu,
        "gelu_pytorch_tanh": lambda x: gelu(x, True), "silu": lambda x: x * torch.sigmoid(x)}


class Weights:
    """Lookup by name, with or without the base model's prefix."""

    def __init__(self, state, prefix):
        self.state, self.prefix = state, prefix

    def __call__(self, name):
        for full in (self.prefix + name, name):
            if full in self.state:
                return self.state[full]
        return None


def norm(x, w, name, eps):
    return F.layer_norm(x, x.shape[-1:], w(name + ".weight"), w(name + ".bias"), eps)


def gpt2(c, state, tokens, head=True):
    w, d, heads = Weights(state, "transformer."), c["n_embd"], c["n_head"]
    eps = c["layer_norm_epsilon"]

    def conv1d(x, name):
        return x @ w(name + ".weight") + w(name + ".bias")
    x = w("wte.weight")[tokens] + w("wpe.weight")[:tokens.shape[1]]
    for i in range(c["n_layer"]):
        p = "h.%d." % i
        qkv = conv1d(norm(x, w, p + "ln_1", eps), p + "attn.c_attn").reshape(*x.shape[:2], 3, heads, d // heads)
        scale = (d // heads) ** -0.5 if c.get("scale_attn_weights", True) else 1.0
        if c.get("scale_attn_by_inverse_layer_idx"):
            scale /= i + 1
        y = attend(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], True, scale, padding=padding_of(c, tokens))
        x = x + conv1d(y, p + "attn.c_proj")
        y = ACTS[c["activation_function"]](conv1d(norm(x, w, p + "ln_2", eps), p + "mlp.c_fc"))
        x = x + conv1d(y, p + "mlp.c_proj")
    x = norm(x, w, "ln_f", eps)
    if not head:
        return [x]
    return [x @ (w("wte.weight") if c.get("tie_word_embeddings", True) else w("lm_head.weight")).T]


def llama(c, state, tokens, head=True):
    w, kind = Weights(state, "model."), c["model_type"]
    heads, eps = c["num_attention_heads"], c["rms_norm_eps"]
    size = c.get("head_dim") or c["hidden_size"] // heads
    freq, (b, s) = frequencies(c, size), tokens.shape

    def linear(x, name):
        return F.linear(x, w(name + ".weight"), w(name + ".bias"))

    def window(i):
        n = c.get("sliding_window") or 0
        if kind == "mistral":
            return n
        if kind == "llama" or not c.get("use_sliding_window"):
            return 0
        types = c.get("layer_types")
        return n if (types[i] == "sliding_attention" if types else i >= c["max_window_layers"]) else 0
    x = lookup(c, w("embed_tokens.weight"), tokens)
    for i in range(c["num_hidden_layers"]):
        p = "layers.%d." % i
        y = rms(x, w(p + "input_layernorm.weight"), eps)
        q, k, v = (linear(y, p + "self_attn.%s_proj" % n).reshape(b, s, -1, size) for n in "qkv")
        if kind == "qwen3":
            q, k = (rms(t, w(p + "self_attn.%s_norm.weight" % n), eps) for t, n in ((q, "q"), (k, "k")))
        y = attend(rotate(q, freq), rotate(k, freq), v, True, size ** -0.5, window(i), padding_of(c, tokens))
        x = x + linear(y, p + "self_attn.o_proj")
        y = rms(x, w(p + "post_attention_layernorm.weight"), eps)
        y = ACTS[c["hidden_act"]](linear(y, p + "mlp.gate_proj")) * linear(y, p + "mlp.up_proj")
        x = x + linear(y, p + "mlp.down_proj")
    x = rms(x, w("norm.weight"), eps)
    if not head:
        return [x]
    return [x @ (w("embed_tokens.weight") if c["tie_word_embeddings"] else w("lm_head.weight")).T]


def bert(c, state, tokens, head=True):
    w, heads, eps = Weights(state, "bert."), c["num_attention_heads"], c["layer_norm_eps"]
    size = c["hidden_size"] // heads

    def linear(x, name):
        return F.linear(x, w(name + ".weight"), w(name + ".bias"))
    e = "embeddings."
    x = lookup(c, w(e + "word_embeddings.weight"), tokens) + w(e + "position_embeddings.weight")[:tokens.shape[1]]
    x = norm(x + w(e + "token_type_embeddings.weight")[0], w, e + "LayerNorm", eps)
    for i in range(c["num_hidden_layers"]):
        p = "encoder.layer.%d." % i
        q, k, v = (linear(x, p + "attention.self." + n).reshape(*x.shape[:2], heads, size)
                   for n in ("query", "key", "value"))
        y = linear(attend(q, k, v, False, size ** -0.5, padding=padding_of(c, tokens)), p + "attention.output.dense")
        x = norm(x + y, w, p + "attention.output.LayerNorm", eps)
        y = linear(ACTS[c["hidden_act"]](linear(x, p + "intermediate.dense")), p + "output.dense")
        x = norm(x + y, w, p + "output.LayerNorm", eps)
    if head:
        y = ACTS[c["hidden_act"]](linear(x, "cls.predictions.transform.dense"))
        y = norm(y, w, "cls.predictions.transform.LayerNorm", eps)
        tied = c.get("tie_word_embeddings", True)
        table = w(e + "word_embeddings.weight") if tied else w("cls.predictions.decoder.weight")
        return [y @ table.T + w("cls.predictions.bias")]
    if w("pooler.dense.weight") is None:
        return [x]
    return [x, torch.tanh(linear(x[:, 0], "pooler.dense"))]


def causal_lm(c, state, tokens):
    """The node CausalLMModel: names tok_emb, blocks.<i>.attn.qkv, ..."""
    d, heads, kv = c["d_model"], c["heads"], c.get("kv_heads", c["heads"])
    size, (b, s), eps = d // heads, tokens.shape, c.get("norm_eps", 1e-5)

    def linear(x, name):
        return F.linear(x, state[name + ".weight"], state.get(name + ".bias"))

    def normed(x, name):
        if c.get("rms_norm"):
            return rms(x, state[name + ".weight"], eps)
        return F.layer_norm(x, (d,), state[name + ".weight"], state[name + ".bias"], eps)
    x = state["tok_emb.weight"][tokens]
    positions = c.get("position_kind", 0)
    if positions == 0:
        x = x + state["pos_emb.weight"][:s]
    if positions == 1:
        table, at = torch.zeros(s, d, dtype=x.dtype), torch.arange(s, dtype=torch.float64)[:, None]
        rate = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        table[:, 0::2], table[:, 1::2] = torch.sin(at * rate).to(x.dtype), torch.cos(at * rate).to(x.dtype)
        x = x + table
    act = [ACTS["gelu"], ACTS["gelu_new"], ACTS["relu"], ACTS["silu"]][c.get("activation", 0)]
    freq = [10000.0 ** (-2 * i / size) for i in range(size // 2)]
    for i in range(c["layers"]):
        p = "blocks.%d." % i
        qkv = linear(normed(x, p + "norm1"), p + "attn.qkv").reshape(b, s, heads + 2 * kv, size)
        q, k, v = qkv.split([heads, kv, kv], 2)
        if c.get("qk_norm"):
            q, k = rms(q, state[p + "attn.q_norm.weight"], eps), rms(k, state[p + "attn.k_norm.weight"], eps)
        if positions == 2:
            q, k = rotate(q, freq), rotate(k, freq)
        x = x + linear(attend(q, k, v, True, size ** -0.5), p + "attn.out_proj")
        x = x + linear(act(linear(normed(x, p + "norm2"), p + "mlp.fc1")), p + "mlp.fc2")
    x = normed(x, "norm_f")
    return [x @ (state["tok_emb.weight"] if c.get("tied", True) else state["lm_head.weight"]).T]


FAMILIES = {"gpt2": gpt2, "llama": llama, "mistral": llama, "qwen2": llama, "qwen3": llama, "bert": bert}
