"""Operators over sequences against torch.nn: recurrent layers, places of largest values."""
import torch

from harness import Case


def cell(kind, units, bias, values):
    """One layer of one direction with the given weights."""
    names = ["w_ih", "w_hh"] + (["b_ih", "b_hh"] if bias else [])
    weights = [values[n] for n in names]
    kinds = {"lstm": torch._VF.lstm, "gru": torch._VF.gru, "tanh": torch._VF.rnn_tanh, "relu": torch._VF.rnn_relu}
    x = values["x"]
    h = torch.zeros(1, x.shape[1], units, dtype=x.dtype)
    start = (h, h) if kind == "lstm" else h
    return kinds[kind](x, start, weights, bias, 1, 0.0, True, False, False)[0]


def recurrent(c, kind, steps, rows, inputs, units, bias, reverse):
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    scale = units ** -0.5
    values = {"x": c.randn(steps, rows, inputs), "w_ih": c.randn(gates * units, inputs, scale=scale),
              "w_hh": c.randn(gates * units, units, scale=scale)}
    if bias:
        values.update(b_ih=c.randn(gates * units), b_hh=c.randn(gates * units))

    def reference(v):
        v = dict(v, x=v["x"].flip(0)) if reverse else v
        y = cell(kind, units, bias, v)
        return y.flip(0) if reverse else y

    operands = ["x", "w_ih", "w_hh"] + (["b_ih", "b_hh"] if bias else [])
    # A step's rounding goes into the next one: PyTorch's low types round other things in between.
    return Case(
        "recurrent", values, [{"fn": "recurrent", "in": operands, "out": "y", "kind": kind,
                               "reverse": reverse, "keep": True}],
        reference, params=list(values), modes=("f32",), label="%s %d x %d, %d to %d%s%s" % (
            kind, steps, rows, inputs, units, " bias" if bias else "", " reversed" if reverse else ""))


def test_recurrent(c):
    for kind in ("lstm", "gru", "tanh", "relu"):
        for _ in range(c.rounds):
            c.check(recurrent(c, kind, int(c.rng.randint(1, 9)), int(c.rng.randint(1, 28)),
                              int(c.rng.randint(1, 20)), int(c.rng.randint(1, 40)),
                              bool(c.pick(True, False)), bool(c.pick(True, False))))
        c.check(recurrent(c, kind, 3, 9, 16, 96, True, False))
        c.check(recurrent(c, kind, 1, 5, 7, 6, True, False))
        c.check(recurrent(c, kind, 4, 0, 7, 6, True, False))


def low(c, case, mode):
    """Low types are judged by float64 on the same inputs: nothing else defines what happens between steps."""
    c.count += 1
    upstream = c.randn(*case.reference(case.values("f32")).shape)
    found, want = case.run(c.tool, mode, upstream), case.expect(mode, upstream, wide=True)
    for name, got in found.items():
        error = ((got.double() - want[name].double()).norm() / want[name].double().norm()).item()
        c.record("recurrent", mode, error)
        if not error <= 3e-2:
            c.fail("%s %s: %s differs by %.3g" % (case.label, mode, name, error))


def test_recurrent_low_types(c):
    for kind in ("lstm", "gru", "tanh"):
        for mode in ("bf16", "f16"):
            low(c, recurrent(c, kind, 6, 9, 12, 34, True, bool(c.pick(True, False))), mode)


def test_recurrent_once(c):
    """Without what the gradient needs: the same result."""
    for kind in ("lstm", "gru", "tanh"):
        case = recurrent(c, kind, 5, 7, 12, 18, True, False)
        case.backward, case.params = False, []
        case.steps[0]["keep"] = False
        c.check(case, views=0)


def test_places(c):
    """topk, scatter_add and gather along the last dimension."""
    for _ in range(4 * c.rounds):
        shape = [int(v) for v in c.rng.randint(1, 6, int(c.rng.randint(0, 3)))] + [int(c.rng.randint(1, 30))]
        k = int(c.rng.randint(0, shape[-1] + 1))
        c.check(Case("topk", {"x": c.randn(*shape)}, [{"fn": "topk", "in": ["x"], "out": ["y", "i"], "k": k}],
                     lambda v: torch.topk(v["x"], k, -1)[0], params=["x"], label="%s, %d" % (shape, k)))
        index = c.integers(0, shape[-1], *(shape[:-1] + [max(k, 1)]))
        c.check(Case("gather", {"x": c.randn(*shape), "i": index},
                     [{"fn": "gather", "in": ["x", "i"], "out": "y"}],
                     lambda v: torch.gather(v["x"], -1, v["i"]), params=["x"], label=str(shape)), views=0)
        c.check(Case("scatter", {"v": c.randn(*index.shape), "i": index},
                     [{"fn": "scatter", "in": ["v", "i"], "out": "y", "n": shape[-1]}],
                     lambda v: torch.zeros(shape, dtype=v["v"].dtype).scatter_add(-1, v["i"], v["v"]),
                     params=["v"], modes=("f32",), label=str(shape)), views=0)
    x = torch.tensor([[1.0, float("nan"), 3.0, 3.0], [2.0, 2.0, 2.0, 1.0]])
    found, _ = c.tool.run([("x", x, "input")], [{"fn": "topk", "in": ["x"], "out": ["y", "i"], "k": 3}], ["i"])
    c.count += 1
    if found["i"].tolist() != [[1, 2, 3], [0, 1, 2]]:
        c.fail("places of NaN and of equal values: %s" % found["i"].tolist())
