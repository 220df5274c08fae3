"""Autocast: which operators run low, which in float32, which follow; and its numbers (P3)."""
import torch
import torch.nn.functional as F

from harness import Failure, LOW_BOUND, norm_error
from optool import ToolError

LOW = {"bfloat16": torch.bfloat16, "float16": torch.float16}

# A low value "l" is made by a product; each row adds an operator on it.
# name: (steps after "l", result, wanted type: "low" or "float32", extra inputs)
IMAGE = (2, 16, 6, 6)
RULES = [
    # products run low
    ("linear", [{"fn": "linear", "in": ["flat", "w"], "out": "y"}], "low", {"w": (5, 576)}),
    ("linear on float32", [{"fn": "linear", "in": ["full", "w2"], "out": "y"}], "low", {"w2": (5, 7), "full": (3, 7)}),
    ("matmul", [{"fn": "matmul", "in": ["flat", "m"], "out": "y"}], "low", {"m": (576, 4)}),
    ("conv", [{"fn": "conv", "in": ["l", "k"], "out": "y"}], "low", {"k": (8, 16, 3, 3)}),
    ("conv_transpose", [{"fn": "conv_transpose", "in": ["l", "k"], "out": "y"}], "low", {"k": (16, 8, 3, 3)}),
    # softmax, losses and reductions in float32
    ("softmax", [{"fn": "softmax", "in": ["flat"], "out": "y"}], "float32", {}),
    ("log_softmax", [{"fn": "log_softmax", "in": ["flat"], "out": "y"}], "float32", {}),
    ("sum", [{"fn": "sum", "in": ["l"], "out": "y", "dims": [1, 2]}], "float32", {}),
    ("mean", [{"fn": "mean", "in": ["l"], "out": "y", "dims": [1]}], "float32", {}),
    ("exp", [{"fn": "unary", "op": "exp", "plain": True, "in": ["l"], "out": "y"}], "float32", {}),
    ("pow", [{"fn": "unary", "op": "pow", "a": 2.0, "in": ["l"], "out": "y"}], "float32", {}),
    ("mse", [{"fn": "loss_ew", "kind": "mse", "in": ["l", "full"], "out": "y"}], "float32", {"full": IMAGE}),
    ("layer_norm", [{"fn": "layer_norm", "in": ["l"], "out": "y", "trailing": 1}], "float32", {}),
    ("group_norm", [{"fn": "group_norm", "in": ["l"], "out": "y", "groups": 4}], "float32", {}),
    # the rest follows its inputs
    ("relu", [{"fn": "unary", "op": "relu", "plain": True, "in": ["l"], "out": "y"}], "low", {}),
    ("max_pool", [{"fn": "max_pool", "in": ["l"], "out": "y", "kernel": [2, 2], "stride": [2, 2]}], "low", {}),
    ("avg_pool", [{"fn": "avg_pool", "in": ["l"], "out": "y", "kernel": [2, 2], "stride": [2, 2]}], "low", {}),
    ("add low", [{"fn": "binary", "op": "add", "in": ["l", "l"], "out": "y"}], "low", {}),
    ("add float32", [{"fn": "binary", "op": "add", "in": ["l", "full"], "out": "y"}], "float32", {"full": IMAGE}),
    ("relu of float32", [{"fn": "unary", "op": "relu", "plain": True, "in": ["full"], "out": "y"}], "float32",
     {"full": IMAGE}),
    ("concat mixed", [{"fn": "concat", "in": ["l", "full"], "out": "y", "dim": 1}], "float32", {"full": IMAGE}),
    ("concat low", [{"fn": "concat", "in": ["l", "l"], "out": "y", "dim": 1}], "low", {}),
    ("reshape", [{"fn": "reshape", "in": ["l"], "out": "y", "shape": [32, 36]}], "low", {}),
]


# ids: P3 P2
def test_operator_classes(c):
    for name, dtype in LOW.items():
        for title, steps, wanted, extra in RULES:
            inputs = [("x", c.randn(2, 3, 6, 6).float(), "param"), ("k0", c.randn(16, 3, 1, 1).float(), "param")]
            inputs += [(n, c.randn(*s).float(), "param") for n, s in extra.items()]
            before = [{"fn": "conv", "in": ["x", "k0"], "out": "l"},
                      {"fn": "flatten", "in": ["l"], "out": "flat", "start": 1}]
            c.count += 1
            try:
                found, _ = c.tool.run(inputs, before + steps, ["l", "y"], autocast=name)
                want = dtype if wanted == "low" else torch.float32
                if found["l"].dtype != dtype:
                    c.fail("%s: a convolution gives %s" % (name, found["l"].dtype))
                if found["y"].dtype != want:
                    c.fail("%s: %s gives %s, not %s" % (name, title, found["y"].dtype, want))
                # Gradients of parameters stay float32.
                tail = steps + [{"fn": "cast", "in": ["y"], "out": "z", "dtype": "float32"},
                                {"fn": "sum", "in": ["z"], "out": "loss", "dims": list(range(found["y"].dim()))}]
                if found["y"].dim() == 0:
                    tail.pop()
                    tail[-1]["out"] = "loss"
                found, _ = c.tool.run(inputs, before + tail, [], backward="loss", autocast=name)
                for n, g in found.items():
                    if g is not None and g.dtype != torch.float32:
                        c.fail("%s: %s: %s is %s" % (name, title, n, g.dtype))
            except ToolError as e:
                c.fail("%s: %s: %s" % (name, title, e))


# ids: P3
def test_batch_norm_class(c):
    """Statistics are formed in float32 from a low input: no overflow, running statistics float32."""
    for name in LOW:
        x = c.randn(4, 8, 5, 5) * 200 + 1000  # squares pass float16's range
        inputs = [("x", x.float(), "param"), ("k", torch.eye(8).reshape(8, 8, 1, 1), "param"),
                  ("gamma", torch.ones(8), "param"), ("beta", torch.zeros(8), "param"),
                  ("mean", torch.zeros(8), "buffer"), ("var", torch.ones(8), "buffer"),
                  ("batches", torch.tensor(0), "buffer")]
        steps = [{"fn": "conv", "in": ["x", "k"], "out": "l"},
                 {"fn": "batch_norm", "in": ["l", "gamma", "beta", "mean", "var", "batches"], "out": "y",
                  "training": True, "momentum": 1.0}]
        found, _ = c.tool.run(inputs, steps, ["y"], ["mean", "var", "batches"], autocast=name)
        c.count += 1
        low = x.to(LOW[name]).double()
        mean, var = low.mean((0, 2, 3)), low.var((0, 2, 3), unbiased=True)
        if norm_error(found["mean"], mean) > 1e-5 or norm_error(found["var"], var) > 1e-4:
            c.fail("%s: running statistics are not float32's of the low input" % name)
        if not torch.isfinite(found["y"].float()).all() or found["batches"].item() != 1:
            c.fail("%s: output or count is wrong" % name)


class Half(torch.autograd.Function):
    """float64 rounded to float16, its gradient too: what autocast does around an operator."""

    @staticmethod
    def forward(_, x):
        return x.half().double()

    @staticmethod
    def backward(_, g):
        return g.half().double()


def network(c, half):
    """A small classifier: steps, inputs and the PyTorch function."""
    r = Half.apply if half else lambda t: t
    inputs = {"x": c.randn(4, 3, 8, 8), "k1": c.randn(16, 3, 3, 3, scale=0.3), "b1": c.randn(16, scale=0.1),
              "k2": c.randn(16, 16, 3, 3, scale=0.1), "w": c.randn(5, 256, scale=0.1), "b": c.randn(5, scale=0.1)}
    target = c.integers(0, 5, 4)
    relu = lambda a, b: {"fn": "unary", "op": "relu", "plain": True, "in": [a], "out": b}
    steps = [{"fn": "conv", "in": ["x", "k1", "b1"], "out": "c1", "pad": [1, 1]}, relu("c1", "r1"),
             {"fn": "conv", "in": ["r1", "k2"], "out": "c2", "pad": [1, 1]},
             {"fn": "binary", "op": "add", "in": ["c2", "r1"], "out": "s"}, relu("s", "r2"),
             {"fn": "max_pool", "in": ["r2"], "out": "p", "kernel": [2, 2], "stride": [2, 2]},
             {"fn": "flatten", "in": ["p"], "out": "f", "start": 1},
             {"fn": "linear", "in": ["f", "w", "b"], "out": "logits"},
             {"fn": "cross_entropy", "in": ["logits", "t"], "out": "loss"}]

    def reference(v):
        v = {n: r(t) for n, t in v.items()}
        r1 = F.relu(r(F.conv2d(v["x"], v["k1"], v["b1"], padding=1)))
        r2 = F.relu(r(r(F.conv2d(r1, v["k2"], padding=1)) + r1))
        logits = r(F.linear(F.max_pool2d(r2, 2).flatten(1), v["w"], v["b"]))
        return F.cross_entropy(logits.float() if logits.dtype != torch.float64 else logits, target)
    return inputs, target, steps, reference


# ids: P2 P3
def test_network_against_torch_autocast(c):
    """Loss and gradients against torch.autocast in bfloat16; float16 against float64."""
    for name, dtype in LOW.items():
        inputs, target, steps, reference = network(c, name == "float16")
        sent = [(n, t.float(), "param") for n, t in inputs.items()] + [("t", target, "input")]
        plain, _ = c.tool.run(sent, steps, ["logits", "loss"], backward="loss", autocast=name)
        values = {n: (t.float() if name == "bfloat16" else t.float().double()).requires_grad_(True)
                  for n, t in inputs.items()}
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "bfloat16"):
            loss = reference(values)
        grads = torch.autograd.grad(loss, list(values.values()))
        c.count += 1
        if plain["logits"].dtype != dtype or plain["loss"].dtype != torch.float32:
            c.fail("%s: logits are %s, the loss %s" % (name, plain["logits"].dtype, plain["loss"].dtype))
        bound = 2e-2 if name == "bfloat16" else LOW_BOUND  # three rounded layers
        if abs(plain["loss"].item() - loss.item()) > bound * abs(loss.item()):
            c.fail("%s: loss %.6f, not %.6f" % (name, plain["loss"].item(), loss.item()))
        for n, g in zip(values, grads):
            error = norm_error(plain["grad:" + n], g)
            c.record("autocast network", "bf16" if name == "bfloat16" else "f16", error)
            if error > 2 * bound:
                c.fail("%s: gradient of %s differs by %.3g" % (name, n, error))
        for layout in ("cl", "c16"):
            for more in ({}, {"fuse": True, "recompute": True}):
                found, _ = c.tool.run(sent, steps, ["logits", "loss"], backward="loss", autocast=name,
                                      layout=layout, **more)
                for n in plain:
                    if norm_error(found[n], plain[n]) > bound:
                        c.fail("%s: layout %s %s: %s differs by %.3g" % (
                            name, layout, more, n, norm_error(found[n], plain[n])))


# ids: P3
def test_fused_forms(c):
    """Weights rounded while they are packed, losses that read low logits, sums that read a low
    operand: the bits of the unfused program. Gradients of parameters leave fused products in
    float32, and are the unfused ones when rounded."""
    linear = lambda x, w, y, bias: {"fn": "linear", "in": [x, w] + ([bias] if bias else []), "out": y}
    for name, low in LOW.items():
        for rows, inner, classes in [(5, 33, 1100), (70, 130, 1031), (33, 64, 40)]:
            inputs = [("x", c.randn(rows, inner).float(), "input"), ("w0", c.randn(inner, inner).float(), "param"),
                      ("b0", c.randn(inner).float(), "param"), ("w1", c.randn(classes, inner).float(), "param"),
                      ("m", c.randn(inner, inner).float(), "param"), ("t", c.integers(0, classes, rows), "input")]
            steps = [linear("x", "w0", "h", "b0"), {"fn": "matmul", "in": ["h", "m"], "out": "g"},
                     {"fn": "binary", "op": "add", "in": ["x", "g"], "out": "r"}, linear("r", "w1", "l", None),
                     {"fn": "cross_entropy", "in": ["l", "t"], "out": "loss"}]
            run = lambda **o: c.tool.run(inputs, steps, ["l", "r", "loss"], backward="loss", autocast=name, **o)[0]
            plain, fused = run(), run(fuse=True)
            c.count += 1
            for value in plain:
                got, want = fused[value], plain[value]
                if value.startswith("grad:"):
                    got, want = got.to(low), want.to(low)
                if got.dtype != want.dtype or not torch.equal(got, want):
                    c.fail("%s, %d x %d x %d: %s has other bits when fused (%.3g)" % (
                        name, rows, inner, classes, value, norm_error(got, want)))
