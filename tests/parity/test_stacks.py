"""Recurrent, attention and expert layers against torch.nn: names and order of the state, starting values,
outputs, gradients of all weights and of the inputs."""
import json
import math
import os
import subprocess

import torch
from torch import nn

from harness import Skip, norm_error
from optool import DTYPES, ToolError, from_bytes, to_bytes
from test_layers import check_start

BOUND = 1e-5


def run_tool(c, request, tensors):
    path = os.path.join(os.path.dirname(c.tool.path), "model_tool")
    if not os.path.exists(path):
        raise Skip("model_tool is not built")
    payload = json.dumps(request).encode() + b"\n" + b"".join(to_bytes(t) for t in tensors)
    done = subprocess.run([path], input=payload, capture_output=True)
    if done.returncode != 0:
        raise ToolError("model_tool died: %s" % done.stderr.decode(errors="replace")[-400:])
    line, data = done.stdout.split(b"\n", 1)
    answer, found, at = json.loads(line), {}, 0
    if answer["status"] != "ok":
        raise ToolError(answer["error"])
    for row in answer["tensors"]:
        t = torch.empty(row["shape"], dtype=DTYPES[row["dtype"]])
        n = t.numel() * t.element_size()
        found[row["name"]] = from_bytes(data[at:at + n], t.dtype, row["shape"])
        at += n
    return answer, found


class Wrapped(nn.Module):
    """A layer as the model has it: behind the level `wrapper` (None: none)."""

    def __init__(self, wrapper, inner, call):
        super().__init__()
        if wrapper:
            setattr(self, wrapper, inner)
        else:
            self.inner = inner
        self.call, self.wrapper = call, wrapper

    def forward(self, *xs):
        return self.call(getattr(self, self.wrapper or "inner"), *xs)

    def names(self):
        cut = 0 if self.wrapper else len("inner.")
        return {"layers.l." + n[cut:]: p for n, p in self.named_parameters()}


def document(kind, params, inputs):
    ports = [{"id": "p%d" % i, "name": "x%d" % i} for i in range(inputs)]
    return json.dumps({"version": 2, "nodes": [
        {"id": "in", "type": "Input", "ports": ports}, {"id": "l", "type": kind, "params": params},
        {"id": "out", "type": "Output", "ports": [{"id": "q", "name": "y"}]}],
        "edges": [{"source": "in", "sourceHandle": p["id"], "target": "l"} for p in ports] +
                 [{"source": "l", "target": "out", "targetHandle": "q"}]})


def check(c, kind, params, net, xs):
    """net: Wrapped; xs: float32 inputs. Starting values, then everything with the same weights."""
    title = "%s %s %s" % (kind, params, [list(x.shape) for x in xs])
    c.count += 1
    net.train()
    with torch.no_grad():
        shape = net(*xs).shape
    upstream = c.randn(*shape).float()
    request = {"layers": document(kind, params, len(xs)), "shapes": [list(x.shape) for x in xs],
               "training": True, "backward": True, "seed": int(c.rng.randint(1 << 30))}
    try:
        answer, found = run_tool(c, request, list(xs) + [upstream])
    except ToolError as e:
        return c.fail("%s: %s" % (title, e))
    theirs = net.names()
    if answer["params"] != list(theirs):
        return c.fail("%s: parameters %s, not %s" % (title, answer["params"], list(theirs)))
    for name, p in theirs.items():
        if found[name].shape != p.shape:
            return c.fail("%s: %s is %s" % (title, name, list(found[name].shape)))
        check_start(c, title, name, found[name], p.detach())
        p.data = found[name].clone()
    net.double()
    wide = [x.double().requires_grad_(True) for x in xs]
    y = net(*wide)
    grads = torch.autograd.grad(y, list(net.names().values()) + wide, upstream.double(), allow_unused=True)
    pairs = [("y", y.detach())] + list(zip(
        ["grad:" + n for n in theirs] + ["grad:input%d" % i for i in range(len(xs))], grads))
    scale = max(g.norm().item() for _, g in pairs[1:] if g is not None)
    for name, want in pairs:
        if want is None:
            continue
        if name not in found:
            c.fail("%s: there is no %s" % (title, name))
            continue
        error = norm_error(found[name], want)
        if (found[name].double() - want).norm().item() <= 1e-7 * scale:
            continue  # true zeros, such as the gradient of a key's bias
        c.record("layer " + kind, "f32", error)
        if not error <= BOUND:
            c.fail("%s: %s is off by %g" % (title, name, error))
    return found


def f32(c, *shape):
    return c.randn(*shape).float()


def sizes(c, params, features):
    """[S, N, F] by batch_first, or one sequence [S, F]."""
    steps, rows = int(c.rng.randint(1, 9)), int(c.rng.randint(1, 7))
    if c.rng.rand() < 0.2:
        return [steps, features]
    return [rows, steps, features] if params.get("batch_first") else [steps, rows, features]


def test_recurrent(c):
    for kind in ("LSTM", "GRU", "RNN"):
        for i in range(4 * c.rounds):
            params = {"input_size": int(c.rng.randint(1, 20)), "hidden_size": int(c.rng.randint(1, 40))}
            for name, values in (("num_layers", (1, 2, 3)), ("bias", (True, False)), ("dropout", (0.0,)),
                                 ("batch_first", (True, False)), ("bidirectional", (True, False))):
                if c.rng.rand() < 0.7:
                    params[name] = c.pick(*values)
            if kind == "RNN" and i % 2:
                params["nonlinearity"] = c.pick("tanh", "relu")
            net = Wrapped(kind.lower(), getattr(nn, kind)(**params), lambda m, x: m(x)[0])
            check(c, kind, params, net, [f32(c, *sizes(c, params, params["input_size"]))])


def heads(c):
    """Enough features that a norm over them is not one of signs alone."""
    n = int(c.pick(1, 2, 4))
    return n, n * int(c.pick(4, 8, 12) if n > 1 else c.pick(8, 12))


def test_attention(c):
    for i in range(4 * c.rounds):
        n, embed = heads(c)
        params = {"embed_dim": embed, "num_heads": n}
        if i % 2:
            params["bias"] = c.pick(True, False)
            params["batch_first"] = bool(c.pick(True, False))
        torch_params = dict({"batch_first": True}, **params)
        inner = nn.MultiheadAttention(**torch_params)
        x = f32(c, *sizes(c, torch_params, embed))
        if i % 3 == 0:
            params["causal"] = True
            steps = x.shape[-2 if torch_params["batch_first"] or x.dim() == 2 else 0]
            mask = torch.ones(steps, steps, dtype=torch.bool).triu(1)
            check(c, "MultiHeadAttention", params,
                  Wrapped("attn", inner, lambda m, x: m(x, x, x, attn_mask=mask, need_weights=False)[0]), [x])
            continue
        check(c, "MultiHeadAttention", params, Wrapped("attn", inner, lambda m, x: m(x, x, x)[0]), [x])
    for _ in range(c.rounds):  # query, key, value of their own
        n, embed = heads(c)
        inner = nn.MultiheadAttention(embed, n, batch_first=True)
        check(c, "MultiHeadAttention", {"embed_dim": embed, "num_heads": n},
              Wrapped("attn", inner, lambda m, q, k, v: m(q, k, v)[0]),
              [f32(c, 3, 5, embed), f32(c, 3, 7, embed), f32(c, 3, 7, embed)])


def stack_params(c):
    n, embed = heads(c)
    params = {"d_model": embed, "nhead": n, "dim_feedforward": int(c.rng.randint(1, 40)), "dropout": 0.0}
    for name, values in (("num_layers", (1, 2, 3)), ("activation", ("relu", "gelu")),
                         ("norm_first", (True, False)), ("layer_norm_eps", (1e-5, 1e-2))):
        if c.rng.rand() < 0.6:
            params[name] = c.pick(*values)
    return params


def stack(params, decoder):
    own = {k: v for k, v in params.items() if k != "num_layers"}
    one = (nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer)(batch_first=True, **own)
    return (nn.TransformerDecoder if decoder else nn.TransformerEncoder)(one, params.get("num_layers", 1))


def same_layers(c, found, kind):
    """PyTorch copies one layer: all start equal."""
    for name, value in (found or {}).items():
        first = name.replace(".layers.1.", ".layers.0.")
        if not name.startswith("grad:") and not torch.equal(value, found[first]):
            c.fail("%s: %s and %s start otherwise" % (kind, name, first))


def test_encoder(c):
    for _ in range(3 * c.rounds):
        params = stack_params(c)
        found = check(c, "TransformerEncoder", params, Wrapped("encoder", stack(params, False), lambda m, x: m(x)),
                      [f32(c, *sizes(c, {"batch_first": True}, params["d_model"]))])
        same_layers(c, found, "TransformerEncoder")


def test_decoder(c):
    for i in range(3 * c.rounds):
        params = stack_params(c)
        net = stack(params, True)
        x = f32(c, *sizes(c, {"batch_first": True}, params["d_model"]))
        if i % 2:
            check(c, "TransformerDecoder", params, Wrapped("decoder", net, lambda m, x: m(x, memory=x)), [x])
        else:
            memory = f32(c, *(list(x.shape[:-2]) + [6, params["d_model"]]))
            check(c, "TransformerDecoder", params, Wrapped("decoder", net, lambda m, x, y: m(x, y)), [x, memory])


def padding(c, rows, steps):
    """True where ignored; each row keeps at least one key."""
    mask = torch.from_numpy(c.rng.rand(rows, steps) < 0.4)
    mask[torch.arange(rows), torch.from_numpy(c.rng.randint(0, steps, rows))] = False
    return mask


def as_numbers(c, mask):
    """1 and 0, or torch's additive form."""
    return mask.float() if c.rng.rand() < 0.7 else torch.zeros(mask.shape).masked_fill(mask, -math.inf)


class Masked(Wrapped):
    """check() hands every input over as float64; masks are made booleans again."""

    def __init__(self, wrapper, inner, call, masks):
        super().__init__(wrapper, inner, call)
        self.masks = masks

    def forward(self, *xs):
        n = len(xs) - self.masks
        return super().forward(*xs[:n], *[m != 0 for m in xs[n:]])


def test_padding_masks(c):
    """key_padding_mask of attention, encoders and decoders, at every query and in every gradient."""
    for i in range(3 * c.rounds):
        n, embed = heads(c)
        rows, steps, keys = int(c.rng.randint(1, 6)), int(c.rng.randint(1, 9)), int(c.rng.randint(1, 9))
        first = bool(i % 4)
        params = {"embed_dim": embed, "num_heads": n, "batch_first": first}
        inner = nn.MultiheadAttention(**params)

        def x(length):
            return f32(c, *((rows, length) if first else (length, rows)), embed)
        check(c, "MultiHeadAttention", params,
              Masked("attn", inner, lambda m, q, mask: m(q, q, q, key_padding_mask=mask)[0], 1),
              [x(steps), as_numbers(c, padding(c, rows, steps))])
        check(c, "MultiHeadAttention", params,
              Masked("attn", inner.float(), lambda m, q, k, v, mask: m(q, k, v, key_padding_mask=mask)[0], 1),
              [x(steps), x(keys), x(keys), as_numbers(c, padding(c, rows, keys))])
        params = stack_params(c)
        wide = params["d_model"]
        check(c, "TransformerEncoder", params,
              Masked("encoder", stack(params, False), lambda m, x, mask: m(x, src_key_padding_mask=mask), 1),
              [f32(c, rows, steps, wide), as_numbers(c, padding(c, rows, steps))])
        net = stack(params, True)
        xs = [f32(c, rows, steps, wide), f32(c, rows, keys, wide), as_numbers(c, padding(c, rows, keys))]
        check(c, "TransformerDecoder", params,
              Masked("decoder", net, lambda m, x, y, mask: m(x, y, memory_key_padding_mask=mask), 1), xs)
        check(c, "TransformerDecoder", params,
              Masked("decoder", net.float(), lambda m, x, y, mask, own: m(
                  x, y, memory_key_padding_mask=mask, tgt_key_padding_mask=own), 2),
              xs + [as_numbers(c, padding(c, rows, steps))])


def test_padding_causal(c):
    """A causal encoder over sequences padded at the end; rows where all keys are padding give bias alone."""
    for _ in range(c.rounds):
        params = dict(stack_params(c), causal=True)
        rows, steps = int(c.rng.randint(2, 6)), int(c.rng.randint(2, 9))
        hidden = torch.arange(steps) >= torch.from_numpy(c.rng.randint(1, steps + 1, rows))[:, None]
        later = torch.ones(steps, steps, dtype=torch.bool).triu(1)
        own = {k: v for k, v in params.items() if k != "causal"}
        check(c, "TransformerEncoder", params,
              Masked("encoder", stack(own, False), lambda m, x, mask: m(x, mask=later, src_key_padding_mask=mask), 1),
              [f32(c, rows, steps, params["d_model"]), hidden.float()])
    n, embed = heads(c)
    inner = nn.MultiheadAttention(embed, n, batch_first=True)

    def attend(m, x, mask):
        y = m(x[1:], x[1:], x[1:], key_padding_mask=mask[1:])[0]
        return torch.cat([m.out_proj.bias.expand(1, *y.shape[1:]), y])
    check(c, "MultiHeadAttention", {"embed_dim": embed, "num_heads": n}, Masked("attn", inner, attend, 1),
          [f32(c, 3, 5, embed), torch.cat([torch.ones(1, 5), padding(c, 2, 5).float()])])


class Grouped(nn.Module):
    """Attention by hand: query head h reads key head h // (H / G); rotary pairs are (i, i + D/2)."""

    def __init__(self, embed, heads, groups, rotary):
        super().__init__()
        self.n, self.g, self.size, self.rotary = heads, groups, embed // heads, rotary
        rows = embed + 2 * groups * self.size
        self.in_proj_weight = nn.Parameter(torch.empty(rows, embed))
        nn.init.xavier_uniform_(self.in_proj_weight)
        self.in_proj_bias = nn.Parameter(torch.zeros(rows))
        self.out_proj = nn.Linear(embed, embed)
        nn.init.zeros_(self.out_proj.bias)

    def turn(self, x):
        if not self.rotary:
            return x
        half = self.size // 2
        rate = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * rate
        cos, sin = angle.cos().to(x.dtype)[:, None], angle.sin().to(x.dtype)[:, None]
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, query, key, value, mask=None):
        cuts = [self.n * self.size, self.g * self.size, self.g * self.size]
        parts = [nn.functional.linear(x, w, b).reshape(*x.shape[:2], -1, self.size) for x, w, b in zip(
            (query, key, value), self.in_proj_weight.split(cuts), self.in_proj_bias.split(cuts))]
        q, k, v = self.turn(parts[0]), self.turn(parts[1]), parts[2]
        k, v = (t.repeat_interleave(self.n // self.g, 2) for t in (k, v))
        scores = torch.einsum("bshd,bthd->bhst", q, k) / math.sqrt(self.size)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None], -math.inf)
        return self.out_proj(torch.einsum("bhst,bthd->bshd", scores.softmax(-1), v).flatten(2))


def test_grouped_and_rotary(c):
    for i in range(4 * c.rounds):
        groups, each, size = int(c.pick(1, 2, 3)), int(c.pick(1, 2, 4)), int(c.pick(4, 6, 16))
        n = groups * each
        rotary = bool(i % 2)
        params = {"embed_dim": n * size, "num_heads": n, "kv_heads": groups, "rotary": rotary}
        net = Grouped(n * size, n, groups, rotary)
        rows, steps, keys = int(c.rng.randint(1, 5)), int(c.rng.randint(1, 9)), int(c.rng.randint(1, 9))
        x = [f32(c, rows, steps, n * size)]
        if i % 4 < 2:
            check(c, "MultiHeadAttention", params, Wrapped("attn", net, lambda m, x: m(x, x, x)), x)
        else:
            check(c, "MultiHeadAttention", params, Masked("attn", net, lambda m, q, k, v, mask: m(q, k, v, mask), 1),
                  x + [f32(c, rows, keys, n * size), f32(c, rows, keys, n * size), as_numbers(c, padding(c, rows, keys))])


def test_padding_of_tokens(c):
    """One input of tokens: the embedding's own, and its mask by PaddingMask."""
    nodes = [{"id": "in", "type": "Input", "ports": [{"id": "a", "name": "x"}]},
             {"id": "e", "type": "Embedding", "params": {"num_embeddings": 11, "embedding_dim": 16}},
             {"id": "m", "type": "PaddingMask", "params": {"padding_idx": 4}},
             {"id": "t", "type": "TransformerEncoder",
              "params": {"d_model": 16, "nhead": 2, "dim_feedforward": 24, "dropout": 0.0}},
             {"id": "out", "type": "Output", "ports": [{"id": "b", "name": "y"}, {"id": "c", "name": "mask"}]}]
    wires = [("in", "e"), ("in", "m"), ("e", "t"), ("m", "t"), ("t", "out", "b"), ("m", "out", "c")]
    edges = [dict({"source": w[0], "target": w[1]}, **({"sourceHandle": "a"} if w[0] == "in" else {}),
                  **({"targetHandle": w[2]} if w[2:] else {})) for w in wires]
    text = json.dumps({"version": 2, "nodes": nodes, "edges": edges})
    tokens = c.integers(0, 11, 5, 7)
    tokens[:, 2] = 1
    tokens[1:, 5:] = 4
    c.count += 1
    upstream = f32(c, 5, 7, 16)
    try:
        answer, found = run_tool(c, {"layers": text, "shape": [5, 7], "training": True, "backward": True}, [tokens, upstream])
    except ToolError as e:
        return c.fail(str(e))
    if answer["input"] != "int64" or not torch.equal(found["mask"], (tokens == 4).float()):
        c.fail("the mask of %s is %s" % (tokens.tolist(), found["mask"].tolist()))
    table = nn.Embedding(11, 16)
    net = stack({"d_model": 16, "nhead": 2, "dim_feedforward": 24, "dropout": 0.0}, False)
    table.weight.data = found["layers.e.weight"].clone()
    for name, p in net.named_parameters():
        p.data = found["layers.t.encoder." + name].clone()
    net.double(), table.double()
    y = net(table(tokens), src_key_padding_mask=tokens == 4)
    grads = torch.autograd.grad(y, [table.weight] + list(net.parameters()), upstream.double())
    names = ["layers.e.weight"] + ["layers.t.encoder." + n for n, _ in net.named_parameters()]
    for name, want in [("y", y.detach())] + [("grad:" + n, g) for n, g in zip(names, grads)]:
        if norm_error(found[name], want) > BOUND:
            c.fail("%s is off by %g" % (name, norm_error(found[name], want)))


def test_defaults(c):
    """The reference's: post-norm, ReLU, 2048 features inside, one layer, dropout 0.1."""
    x = f32(c, 2, 3, 16)
    for kind, decoder in (("TransformerEncoder", False), ("TransformerDecoder", True)):
        net = stack({"d_model": 16, "nhead": 4, "dropout": 0.0}, decoder)
        call = (lambda m, x: m(x, memory=x)) if decoder else (lambda m, x: m(x))
        check(c, kind, {"d_model": 16, "nhead": 4, "dropout": 0.0}, Wrapped(kind[11:].lower(), net, call), [x])
    with_noise = {"layers": document("TransformerEncoder", {"d_model": 16, "nhead": 4}, 1),
                  "shapes": [[2, 3, 16]], "training": True, "seed": 1}
    plain = {"layers": document("TransformerEncoder", {"d_model": 16, "nhead": 4, "dropout": 0.0}, 1),
             "shapes": [[2, 3, 16]], "training": True, "seed": 1}
    c.count += 1
    a, b = (run_tool(c, r, [x])[1]["y"] for r in (with_noise, plain))
    if torch.equal(a, b):
        c.fail("a TransformerEncoder has no dropout by default")


class SwiGLU(nn.Module):
    def __init__(self, width, hidden, out, bias):
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias)
        self.up_proj = nn.Linear(width, hidden, bias)
        self.down_proj = nn.Linear(hidden, out, bias)

    def forward(self, x):
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self.weight


class Positions(nn.Module):
    """The usual table of sines and cosines, or a learned one."""

    def __init__(self, width, learned, max_len):
        super().__init__()
        if learned:
            self.pe = nn.Parameter(torch.randn(max_len, width) * 0.02)
            return
        at = torch.arange(max_len, dtype=torch.float64)[:, None]
        step = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
        self.pe = torch.zeros(max_len, width, dtype=torch.float64)
        self.pe[:, 0::2], self.pe[:, 1::2] = torch.sin(at * step), torch.cos(at * step)

    def forward(self, x):
        return x + self.pe[:x.shape[-2]]


def test_small_layers(c):
    call = lambda m, x: m(x)
    for _ in range(2 * c.rounds):
        width, hidden = int(c.rng.randint(2, 20)), int(c.rng.randint(1, 20))
        params = {"in_features": width, "hidden_features": hidden}
        if c.rng.rand() < 0.5:
            params.update(bias=True, out_features=int(c.rng.randint(1, 9)))
        net = SwiGLU(width, hidden, params.get("out_features", width), params.get("bias", False))
        check(c, "SwiGLU", params, Wrapped(None, net, call), [f32(c, 3, 4, width)])
        params = {"normalized_shape": width}
        if c.rng.rand() < 0.5:
            params["eps"] = 1e-2
        check(c, "RMSNorm", params, Wrapped(None, RMSNorm(width, params.get("eps", 2.0 ** -23)), call),
              [f32(c, 3, 4, width)])
        params = {"d_model": 2 * width, "max_len": 60}
        if c.rng.rand() < 0.5:
            params["mode"] = "learnable"
        check(c, "PositionalEncoding", params, Wrapped(None, Positions(2 * width, "mode" in params, 60), call),
              [f32(c, 3, int(c.rng.randint(1, 60)), 2 * width)])


class Experts(nn.Module):
    """A router's softmax, its k largest made to sum to 1, and every expert on its own tokens."""

    def __init__(self, experts, k, width, hidden, act):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, hidden), act(), nn.Linear(hidden, width)) for _ in range(experts)])
        self.k = k

    def forward(self, x):
        weights, index = torch.softmax(self.router(x), -1).topk(self.k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            row, place = (index.flatten(0, -2) == i).nonzero(as_tuple=True)
            part = torch.zeros_like(x.flatten(0, -2)).index_add(
                0, row, expert(x.flatten(0, -2)[row]) * weights.flatten(0, -2)[row, place][:, None])
            y = y + part.reshape(x.shape)
        return y


def test_experts(c):
    for _ in range(2 * c.rounds):
        n, width, hidden = int(c.rng.randint(1, 7)), int(c.rng.randint(1, 20)), int(c.rng.randint(1, 20))
        params = {"num_experts": n, "top_k": int(c.rng.randint(1, n + 1)), "hidden_dim": width,
                  "expert_hidden_dim": hidden}
        act = c.pick(("relu", nn.ReLU), ("gelu", nn.GELU), ("silu", nn.SiLU))
        if act[0] != "relu":
            params["activation"] = act[0]
        check(c, "MoE", params, Wrapped(None, Experts(n, params["top_k"], width, hidden, act[1]), lambda m, x: m(x)),
              [f32(c, 3, 4, width)])
