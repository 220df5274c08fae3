"""Elementwise operators, reductions and softmax against PyTorch."""
import torch
import torch.nn.functional as F

from harness import Case

SHAPES = [(5, 7), (1,), (3, 1, 9), (2, 3, 4, 5), (0, 3), (257,), ()]


def away(x, points, gap=0.05):
    """Moves elements off the points where a derivative jumps."""
    for p in points:
        near = (x - p).abs() < gap
        x = torch.where(near, torch.full_like(x, p + 2 * gap), x)
    return x


UNARY = {
    # name: (PyTorch, sampler of inputs, constants)
    "relu": (F.relu, None, {}),
    "selu": (F.selu, None, {}),
    "sigmoid": (torch.sigmoid, None, {}),
    "tanh": (torch.tanh, None, {}),
    "silu": (F.silu, None, {}),
    "mish": (F.mish, None, {}),
    "hardswish": (F.hardswish, (-3.0, 3.0), {}),
    "exp": (torch.exp, None, {}),
    "log": (torch.log, "positive", {}),
    "sqrt": (torch.sqrt, "positive", {}),
    "reciprocal": (torch.reciprocal, "positive", {}),
    "abs": (torch.abs, (0.0,), {}),
}
UNARY_ATTR = [
    ("leaky_relu", lambda x: F.leaky_relu(x, 0.01), None, {"a": 0.01}),
    ("leaky_relu", lambda x: F.leaky_relu(x, 0.3), None, {"a": 0.3}),
    ("elu", lambda x: F.elu(x, 1.0), None, {"a": 1.0}),
    ("elu", lambda x: F.elu(x, 0.4), None, {"a": 0.4}),
    ("gelu", F.gelu, None, {}),
    ("gelu", lambda x: F.gelu(x, approximate="tanh"), None, {"tanh_form": True}),
    ("clamp", lambda x: x.clamp(-0.5, 0.8), (-0.5, 0.8), {"a": -0.5, "b": 0.8}),
    ("pow", lambda x: x.pow(2.0), None, {"a": 2.0}),
    ("pow", lambda x: x.pow(3.0), None, {"a": 3.0}),
    ("pow", lambda x: x.pow(-0.5), "positive", {"a": -0.5}),
    ("pow", lambda x: x.pow(1.7), "positive", {"a": 1.7}),
]


def sample(c, kind, shape):
    if kind == "positive":
        return c.rand(*shape, low=0.2, high=3.0)
    if shape in ((), (1,)):
        return c.rand(low=0.3, high=2.0)  # one number: not where a derivative vanishes
    x = c.randn(*shape, scale=2.0)
    return away(x, kind) if kind else x


def test_unary(c):
    rows = [(n, f, k, dict(a, plain=True)) for n, (f, k, a) in UNARY.items()] + UNARY_ATTR
    for name, function, kind, constants in rows:
        for shape in SHAPES:
            c.check(Case(
                name, {"x": sample(c, kind, shape)},
                [dict(constants, fn="unary", op=name, out="y", **{"in": ["x"]})],
                lambda v: function(v["x"]), ["x"], label="%s %s" % (shape, constants)), views=0.3)


def test_unary_extremes(c):
    """Large, tiny and special values give PyTorch's results, not overflow."""
    x = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 20.0, -20.0, 90.0, -90.0, 1e4, -1e4, 3.0, -3.0,
                      float("inf"), -float("inf"), float("nan")], dtype=torch.float64)
    for name in ("relu", "selu", "sigmoid", "tanh", "silu", "mish", "exp", "abs", "hardswish"):
        function = UNARY[name][0]
        c.check(Case(name, {"x": x}, [{"fn": "unary", "op": name, "plain": True, "in": ["x"], "out": "y"}],
                     lambda v: function(v["x"]), modes=("f32",), label="extremes"), views=0)
    finite = x[:12]
    for name in ("sigmoid", "tanh", "silu", "mish", "selu"):
        function = UNARY[name][0]
        c.check(Case(name, {"x": finite},
                     [{"fn": "unary", "op": name, "plain": True, "in": ["x"], "out": "y"}],
                     lambda v: function(v["x"]), ["x"], modes=("f32",), label="large"), views=0)
    for tanh_form in (False, True):
        c.check(Case("gelu", {"x": finite},
                     [{"fn": "unary", "op": "gelu", "tanh_form": tanh_form, "in": ["x"], "out": "y"}],
                     lambda v: F.gelu(v["x"], approximate="tanh" if tanh_form else "none"), ["x"],
                     modes=("f32",), label="large"), views=0)


def test_sign(c):
    x = torch.tensor([-2.0, 0.0, 3.0, -0.0, 1e-20], dtype=torch.float64)
    c.check(Case("sign", {"x": x}, [{"fn": "unary", "op": "sign", "plain": True, "in": ["x"], "out": "y"}],
                 lambda v: torch.sign(v["x"])), views=0)


BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "maximum": torch.maximum, "minimum": torch.minimum,
    "greater": lambda a, b: (a > b).to(a.dtype), "equal": lambda a, b: (a == b).to(a.dtype),
}
PAIRS = [((4, 5), (4, 5)), ((4, 5), (5,)), ((5,), (4, 5)), ((4, 1), (1, 5)), ((2, 3, 4), (3, 1)),
         ((2, 3, 4), ()), ((), (2, 3)), ((1, 1), (3, 4)), ((0, 3), (3,)), ((2, 5, 3, 3), (5, 1, 1)),
         ((3,), (1,)), ((2, 1, 3), (1, 4, 1))]


def test_binary(c):
    for name, function in BINARY.items():
        for a, b in PAIRS:
            x, y = c.randn(*a), c.randn(*b)
            if name == "div":
                y = c.rand(*b, low=0.3, high=2.0) * (c.integers(0, 2, *b) * 2 - 1)
            if name == "equal":
                x, y = x.round(), y.round()
            params = [] if name in ("greater", "equal") else ["a", "b"]
            # The gradient of one number is a sum of rounded terms, which may cancel.
            modes = ("f32",) if () in (a, b) else ("f32", "bf16", "f16")
            c.check(Case(
                name, {"a": x, "b": y}, [{"fn": "binary", "op": name, "in": ["a", "b"], "out": "y"}],
                lambda v: function(v["a"], v["b"]), params, modes=modes, label="%s %s" % (a, b)), views=0.3)


def test_same_operand_twice(c):
    """A value used twice gets the sum of both gradients."""
    for name in ("add", "mul", "sub"):
        function = BINARY[name]
        c.check(Case(name, {"a": c.randn(3, 4)}, [{"fn": "binary", "op": name, "in": ["a", "a"], "out": "y"}],
                     lambda v: function(v["a"], v["a"]), ["a"], label="operand twice"))


def test_affine(c):
    for scale, shift in ((2.5, -1.0), (0.0, 3.0), (-1.0, 0.0), (1 / 3, 0.1)):
        c.check(Case("affine", {"x": c.randn(4, 9)},
                     [{"fn": "affine", "in": ["x"], "out": "y", "scale": scale, "shift": shift}],
                     lambda v: v["x"] * scale + shift, ["x"], label="%g %g" % (scale, shift)))


def test_prelu(c):
    for shape, n in [((4, 6), 1), ((4, 6), 6), ((2, 16, 3, 5), 16), ((2, 3, 4, 4), 1), ((2, 5, 7), 5)]:
        c.check(Case("prelu", {"x": c.randn(*shape), "w": c.rand(n, low=0.1, high=0.6)},
                     [{"fn": "prelu", "in": ["x", "w"], "out": "y"}],
                     lambda v: F.prelu(v["x"], v["w"]), ["x", "w"], label="%s %d" % (shape, n)))


def dims_of(c, rank):
    return sorted(int(d) for d in c.rng.choice(rank, c.rng.randint(1, rank + 1), replace=False))


def test_reductions(c):
    for name, function in (("sum", torch.sum), ("mean", torch.mean)):
        for shape in [(5, 7), (3, 1, 9), (2, 3, 4, 5), (257,), (33, 65), (4, 16, 6, 6)]:
            for _ in range(c.rounds):
                dims, keep = dims_of(c, len(shape)), c.pick(True, False)
                c.check(Case(
                    name, {"x": c.randn(*shape) + 0.7},  # sums that do not cancel
                    [{"fn": name, "in": ["x"], "out": "y", "dims": dims, "keepdim": keep}],
                    lambda v: function(v["x"], dims, keep), ["x"],
                    label="%s over %s keep %s" % (shape, dims, keep)))
    c.check(Case("sum", {"x": c.randn(0, 3)}, [{"fn": "sum", "in": ["x"], "out": "y", "dims": [0]}],
                 lambda v: v["x"].sum(0), ["x"], label="empty"), views=0)


def test_sum_large(c):
    """A long sum keeps float32's accuracy: partial sums, not one running total."""
    x = c.rand(1 << 20)
    c.check(Case("sum", {"x": x}, [{"fn": "sum", "in": ["x"], "out": "y", "dims": [0]}],
                 lambda v: v["x"].sum(), ["x"], modes=("f32",), label="1M elements"), views=0)


def test_sum_to(c):
    for shape, to in [((4, 5), (1, 5)), ((4, 5), (5,)), ((2, 3, 4), (3, 1)), ((2, 3), (1, 1)), ((2, 3), ())]:
        c.check(Case("sum_to", {"x": c.randn(*shape)},
                     [{"fn": "sum_to", "in": ["x"], "out": "y", "shape": list(to)}],
                     lambda v: v["x"].sum_to_size(to), ["x"], label="%s -> %s" % (shape, to)))


def test_argmax(c):
    for shape, dim in [((5, 7), 1), ((5, 7), 0), ((2, 3, 4, 5), 1), ((9,), 0), ((2, 3), -1)]:
        for keep in (True, False):
            x = c.randn(*shape).round() if keep else c.randn(*shape)  # rounded: ties
            c.check(Case("argmax", {"x": x},
                         [{"fn": "argmax", "in": ["x"], "out": "y", "dim": dim, "keepdim": keep}],
                         lambda v: v["x"].argmax(dim, keep), label="%s %d" % (shape, dim)))


def test_count_correct(c):
    for shape in [(6, 4), (3, 5, 2), (2, 3, 4, 4)]:
        target_shape = shape[:1] + shape[2:]
        target = c.integers(0, shape[1], *target_shape)
        target.flatten()[0] = -100

        def reference(v):
            counted = v["t"] != -100
            right = (v["x"].argmax(1) == v["t"]) & counted
            return torch.stack([right.sum(), counted.sum()])
        c.check(Case("count_correct", {"x": c.randn(*shape), "t": target},
                     [{"fn": "count_correct", "in": ["x", "t"], "out": "y"}], reference,
                     label=str(shape)))


def test_softmax(c):
    for name, function in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
        for shape, dim in [((5, 7), -1), ((5, 7), 0), ((2, 3, 4, 5), 1), ((3, 1), 1), ((2, 1000), 1),
                           ((0, 4), 1), ((2, 3, 4), 2)]:
            c.check(Case(name, {"x": c.randn(*shape, scale=3.0)},
                         [{"fn": name, "in": ["x"], "out": "y", "dim": dim}],
                         lambda v: function(v["x"], dim), ["x"], label="%s dim %d" % (shape, dim)))
        x = c.randn(4, 6) + torch.tensor([0.0, 80.0, -90.0, 1000.0]).double()[:, None]
        c.check(Case(name, {"x": x}, [{"fn": name, "in": ["x"], "out": "y", "dim": 1}],
                     lambda v: function(v["x"], 1), ["x"], modes=("f32",), label="shifted"))


def test_dropout(c):
    """With a mask injected, PyTorch's formula; without, scale, rate and repeatability."""
    for shape in [(5, 7), (2, 3, 4, 5)]:
        for p in (0.0, 0.25, 0.5):
            mask = (c.rand(*shape) >= p).to(torch.uint8)
            c.check(Case(
                "dropout", {"x": c.randn(*shape), "rng": torch.tensor([7, 3]), "mask": mask},
                [{"fn": "dropout", "in": ["x", "rng", "mask"], "out": "y", "p": p}],
                lambda v: v["x"] * v["mask"].to(v["x"].dtype) / (1 - p), ["x"],
                label="%s p %g" % (shape, p)), views=0)
    steps = [{"fn": "dropout", "in": ["x", "rng"], "out": "y", "p": 0.3, "stream": 5}]
    inputs = lambda seed, step: [("x", torch.ones(200, 300), "param"),
                                 ("rng", torch.tensor([seed, step]), "input")]
    draw = lambda seed, step, **o: c.tool.run(inputs(seed, step), steps, ["y"], backward="y", upstream="x", **o)[0]
    first = draw(7, 1)
    kept = first["y"] != 0
    share = kept.float().mean().item()
    if abs(share - 0.7) > 0.01:
        c.fail("dropout keeps a share of %.4f, not 0.7" % share)
    if (first["y"][kept] - 1 / 0.7).abs().max() > 1e-6:
        c.fail("dropout does not scale what it keeps by 1/(1-p)")
    for other, differs in ((draw(7, 1), False), (draw(8, 1), True), (draw(7, 2), True),
                           (draw(7, 1, recompute=True, fuse=True, threads=2), False)):
        if torch.equal(first["y"], other["y"]) == differs:
            c.fail("dropout's mask must follow seed and step, and nothing else")
    c.count += 5
