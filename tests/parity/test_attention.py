"""Attention, rotary embedding and RMS norm against PyTorch's formulas written out."""
import math

import torch

from harness import Case



def seen(s, t, causal, window):
    """[S, T]: may query i see key j by its position?"""
    i, j = torch.arange(s)[:, None] + (t - s), torch.arange(t)[None, :]
    if not causal:
        return torch.ones(s, t, dtype=torch.bool)
    return (j <= i) & ((j > i - window) if window else torch.ones(s, t, dtype=torch.bool))


def written_out(q, k, v, bias=None, causal=False, window=0, scale=0, keep=None):
    """softmax(q k^T scale + bias) v of [B, S, H, D] and [B, T, G, D]; rows that see nothing: zeros."""
    each = q.shape[2] // k.shape[2]
    q, k, v = (x.permute(0, 2, 1, 3) for x in (q, k, v))
    k, v = (x.repeat_interleave(each, 1) for x in (k, v))
    scores = (q @ k.transpose(2, 3)).to(torch.promote_types(q.dtype, torch.float32))
    scores = scores * (scale or 1 / math.sqrt(q.shape[3]))
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    scores = scores.masked_fill(~seen(q.shape[2], k.shape[2], causal, window), -math.inf)
    blind = (scores == -math.inf).all(3, keepdim=True)
    p = torch.softmax(scores.masked_fill(blind, 0), 3).masked_fill(blind, 0)
    if keep is not None:
        p = p * keep.to(p.dtype)
    return (p.to(q.dtype) @ v).permute(0, 2, 1, 3)


def sizes(c):
    g, each = int(c.rng.randint(1, 4)), c.pick(1, 1, 2, 3)
    return (int(c.rng.randint(1, 3)), int(c.rng.randint(1, 150)), int(c.rng.randint(1, 150)), g * each, g,
            c.pick(16, 20, 32, 33, 64, 72, 80, 96, 128, 256))


def case(c, b, s, t, h, g, d, bias=None, causal=False, window=0, scale=0, label="", **options):
    inputs = {"q": c.randn(b, s, h, d), "k": c.randn(b, t, g, d), "v": c.randn(b, t, g, d)}
    operands = ["q", "k", "v"]
    if bias is not None:
        inputs["bias"] = bias
        operands.append("bias")
    step = {"fn": "attention", "in": operands, "out": "y", "heads": h, "kv_heads": g, "causal": causal,
            "window": window, "scale": scale}
    return Case(
        "attention", inputs, [step],
        lambda v: written_out(v["q"], v["k"], v["v"], v.get("bias"), causal, window, scale),
        ["q", "k", "v"], fixed=["bias"], label="b %d s %d t %d heads %d/%d d %d causal %s window %d %s" % (
            b, s, t, h, g, d, causal, window, label), **options)


def test_attention(c):
    c.check(case(c, 2, 64, 64, 2, 2, 64, causal=True))
    c.check(case(c, 1, 257, 257, 2, 1, 32, causal=True))
    c.check(case(c, 1, 1, 200, 3, 3, 64, causal=True, label="one query"))
    c.check(case(c, 1, 130, 70, 1, 1, 16, causal=True, label="first queries see nothing"))
    c.check(case(c, 1, 100, 300, 4, 2, 40, scale=0.3))
    c.check(case(c, 1, 200, 200, 2, 2, 64, causal=True, window=30))
    for _ in range(3 * c.rounds):
        causal = c.pick(True, False)
        c.check(case(c, *sizes(c), causal=causal, window=c.pick(0, 0, 5, 50) if causal else 0))


def test_packed(c):
    """Queries, keys and values of one product: as one operand, and as three views of it."""
    for h, g, d, s, causal in [(3, 3, 64, 70, True), (4, 2, 32, 33, True), (2, 1, 20, 100, False)]:
        def reference(v, h=h, g=g, causal=causal):
            q, k, w = v["x"].split([h, g, g], 2)
            return written_out(q, k, w, causal=causal)
        inputs = {"x": c.randn(2, s, h + 2 * g, d)}
        attention = {"fn": "attention", "out": "y", "heads": h, "kv_heads": g, "causal": causal}
        cut = lambda name, start, n: {"fn": "slice", "in": ["x"], "out": name, "dim": 2, "start": start, "length": n}
        views = [cut("q", 0, h), cut("k", h, g), cut("v", h + g, g)]
        one = Case("attention", inputs, [dict(attention, **{"in": ["x"]})], reference, ["x"], label="packed")
        three = Case("attention", inputs, views + [dict(attention, **{"in": ["q", "k", "v"]})], reference, ["x"],
                     label="views")
        c.check(one)
        c.check(three)
        up = c.randn(2, s, h, d)
        a, b = (x.run(c.tool, "f32", up) for x in (one, three))
        for name in a:
            if not torch.equal(a[name], b[name]):
                c.fail("packed and viewed operands give other bits of %s" % name)


def test_masks(c):
    for _ in range(2 * c.rounds):
        b, s, t, h, g, d = sizes(c)
        padding = torch.zeros(b, 1, 1, t).double()
        for i in range(b):
            padding[i, ..., t - int(c.rng.randint(0, t + 1)):] = -math.inf
        c.check(case(c, b, s, t, h, g, d, padding, label="padding"))
        c.check(case(c, b, s, t, h, g, d, c.randn(h, s, t), causal=c.pick(True, False), label="bias of heads"))


def test_extremes(c):
    """Scores of hundreds, and no keys at all."""
    big = case(c, 1, 40, 90, 2, 2, 32, modes=("f32",), label="large scores")
    big.inputs["q"] = big.inputs["q"] * 30
    c.check(big)
    none = c.tool.run(
        [("q", torch.randn(1, 5, 2, 16), "param"), ("k", torch.zeros(1, 0, 2, 16), "param"),
         ("v", torch.zeros(1, 0, 2, 16), "param")],
        [{"fn": "attention", "in": ["q", "k", "v"], "out": "y", "heads": 2}], ["y"], backward="y", upstream="q")[0]
    if none["y"].abs().sum() != 0 or none["grad:q"].abs().sum() != 0:
        c.fail("attention to nothing is not zero")
    c.count += 1


def philox(seed, stream, step, n):
    """The first n numbers of (seed, stream, step): Salmon et al., 2011."""
    blocks = (n + 3) // 4
    x = [torch.arange(blocks), torch.zeros(blocks, dtype=torch.int64),
         torch.full((blocks,), step), torch.full((blocks,), stream)]
    k = [seed & 0xffffffff, seed >> 32]
    mask = 0xffffffff

    def product(a, m):  # of 32-bit numbers, without passing 63 bits
        low, high = a * (m & 0xffff), a * (m >> 16)
        total_low = (low + ((high & 0xffff) << 16))
        return (high >> 16) + (total_low >> 32), total_low & mask

    for _ in range(10):
        h0, l0 = product(x[0], 0xD2511F53)
        h1, l1 = product(x[2], 0xCD9E8D57)
        x = [h1 ^ x[1] ^ k[0], l1, h0 ^ x[3] ^ k[1], l0]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return torch.stack(x, 1).flatten()[:n]


def test_dropout(c):
    """The documented numbers, whatever the tiles: same in gradient, recomputation and on two threads."""
    for b, s, t, h, d, causal in [(2, 70, 130, 2, 32, False), (1, 33, 33, 3, 64, True)]:
        p, seed, step, stream = 0.3, 11, 4, 9
        keep = (philox(seed, stream, step, b * h * s * t) >= int(p * 2 ** 32)).double() / (1 - p)
        keep = keep.reshape(b, h, s, t)
        inputs = {"q": c.randn(b, s, h, d), "k": c.randn(b, t, h, d), "v": c.randn(b, t, h, d),
                  "rng": torch.tensor([seed, step])}
        steps = [{"fn": "attention", "in": ["q", "k", "v", None, "rng"], "out": "y", "heads": h, "causal": causal,
                  "dropout": p, "stream": stream}]
        c.check(Case("attention", inputs, steps,
                     lambda v: written_out(v["q"], v["k"], v["v"], causal=causal, keep=keep),
                     ["q", "k", "v"], label="dropout"), views=0)


def angles(positions, dims, theta, start=0, stretch=None):
    f = theta ** (-torch.arange(0, dims, 2).double() / dims)
    if stretch:
        factor, low, high, original = stretch
        turns = original * f / (2 * math.pi)
        smooth = ((turns - low) / (high - low)).clamp(0, 1)
        f = (1 - smooth) * f / factor + smooth * f
    return (torch.arange(positions).double() + start)[:, None] * f


def turned(x, table, dims, heads, interleaved):
    """Rotated pairs of the first features of the first heads."""
    cos, sin = (f(table).to(x.dtype)[:x.shape[1], None, :] for f in (torch.cos, torch.sin))
    part = x[:, :, :heads, :dims]
    a, b = (part[..., 0::2], part[..., 1::2]) if interleaved else part.chunk(2, 3)
    ra, rb = a * cos - b * sin, b * cos + a * sin
    part = torch.stack([ra, rb], 4).flatten(3) if interleaved else torch.cat([ra, rb], 3)
    whole = torch.cat([part, x[:, :, :heads, dims:]], 3)
    return torch.cat([whole, x[:, :, heads:]], 2)


def rope_case(c, b, s, n, d, dims, heads, interleaved, start=0, theta=10000.0, stretch=None):
    positions = s + int(c.rng.randint(0, 5))
    table = angles(positions, dims, theta, start, stretch)
    attr = {"positions": positions, "dims": dims, "theta": theta, "start": start}
    if stretch:
        attr.update(zip(("factor", "low_freq_factor", "high_freq_factor", "original_positions"), stretch))
    steps = [dict(attr, fn="rope_table", out="table", **{"in": []}),
             {"fn": "rope", "in": ["x", "table"], "out": "y", "heads": heads, "interleaved": interleaved}]
    return Case("rope", {"x": c.randn(b, s, n, d)}, steps,
                lambda v: turned(v["x"].to(torch.promote_types(v["x"].dtype, torch.float32)), table, dims,
                                 heads or n, interleaved).to(v["x"].dtype), ["x"],
                label="%s dims %d heads %d interleaved %s" % ([b, s, n, d], dims, heads, interleaved))


def test_rope(c):
    c.check(rope_case(c, 2, 40, 6, 64, 64, 4, False))
    c.check(rope_case(c, 1, 17, 3, 80, 32, 0, True))
    for _ in range(2 * c.rounds):
        d, n = 2 * int(c.rng.randint(8, 50)), int(c.rng.randint(1, 6))
        c.check(rope_case(c, 2, int(c.rng.randint(1, 30)), n, d, c.pick(d, d, d // 4 * 2), c.pick(0, n, 1),
                          c.pick(True, False), start=c.pick(0, 1000), theta=c.pick(10000.0, 500000.0)))


def test_rope_stretched(c):
    c.check(rope_case(c, 1, 60, 2, 128, 128, 0, False, theta=500000.0, stretch=(8.0, 1.0, 4.0, 64)))


def test_rms_norm(c):
    for shape in [(3, 64), (2, 5, 33), (4, 7, 256)]:
        eps = c.pick(1e-6, 1e-5)

        def reference(v):
            x = v["x"].to(torch.promote_types(v["x"].dtype, torch.float32))
            y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
            return (v["g"].to(x.dtype) * y).to(v["x"].dtype) if "g" in v else y.to(v["x"].dtype)
        step = {"fn": "rms_norm", "in": ["x", "g"], "out": "y", "eps": eps}
        c.check(Case("rms_norm", {"x": c.randn(*shape) + 0.5, "g": c.randn(shape[-1])}, [step], reference,
                     ["x", "g"], fixed=["g"], label="%s" % (shape,)))
        c.check(Case("rms_norm", {"x": c.randn(*shape)}, [dict(step, **{"in": ["x"]})], reference, ["x"]))


def test_tied_embedding(c):
    """A table that is looked up and multiplied: one gradient, rows added into that of the product."""
    index = c.integers(0, 11, 3, 7)
    for padding in (-1, 4):
        steps = [{"fn": "embedding", "in": ["i", "w"], "out": "x", "padding_idx": padding},
                 {"fn": "linear", "in": ["x", "w"], "out": "y"}]
        c.check(Case(
            "embedding", {"i": index, "w": c.randn(11, 24)}, steps,
            lambda v: torch.nn.functional.linear(
                torch.nn.functional.embedding(v["i"], v["w"], None if padding < 0 else padding), v["w"]),
            ["w"], label="tied"), views=0)
