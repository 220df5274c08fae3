"""The eleven losses of the Loss node, with every parameter."""
import torch
import torch.nn.functional as F

from harness import Case

REDUCTIONS = ("mean", "sum", "none")


def loss_case(c, op, inputs, step, function, reduction, label, params=("x",), fixed=(), modes=None):
    """Scalar losses run in low precision too; unreduced ones have an upstream gradient."""
    scalar = reduction != "none"
    modes = modes or (("f32", "bf16", "f16") if scalar else ("f32",))
    return Case(op, inputs, [dict(step, out="y", reduction=reduction)], function, params, (), fixed,
                scalar=scalar, modes=modes, label="%s %s" % (label, reduction))


def test_cross_entropy(c):
    shapes = [(6, 5), (4, 3, 7), (2, 4, 3, 3), (3, 1), (2, 1000)]
    for shape in shapes:
        for reduction in REDUCTIONS:
            for weighted in (False, True):
                smoothing = c.pick(0.0, 0.1, 0.3)
                target = c.integers(0, shape[1], *(shape[:1] + shape[2:]))
                ignore = c.pick(-100, 0) if shape[1] > 1 else -100
                if ignore == -100 and target.numel() > 2:
                    target.flatten()[1] = -100
                elif ignore == 0:
                    target.flatten()[0] = 1  # at least one label counts
                inputs = {"x": c.randn(*shape, scale=2.0), "t": target}
                if weighted:
                    inputs["w"] = c.rand(shape[1], low=0.2, high=2.0)
                step = {"fn": "cross_entropy", "in": list(inputs), "ignore_index": ignore,
                        "label_smoothing": smoothing}
                c.check(loss_case(
                    c, "CrossEntropyLoss", inputs, step,
                    lambda v: F.cross_entropy(v["x"], v["t"], v.get("w"), reduction=reduction,
                                              ignore_index=ignore, label_smoothing=smoothing),
                    reduction, "%s weight %s ignore %d smoothing %g" % (shape, weighted, ignore, smoothing),
                    fixed={"w"}), views=0.3)


def test_cross_entropy_probabilities(c):
    for shape in [(6, 5), (4, 3, 7), (2, 4, 3, 3)]:
        for reduction in REDUCTIONS:
            for weighted in (False, True):
                for smoothing in (0.0, 0.2):
                    inputs = {"x": c.randn(*shape, scale=2.0), "t": F.softmax(c.randn(*shape), 1)}
                    if weighted:
                        inputs["w"] = c.rand(shape[1], low=0.2, high=2.0)
                    step = {"fn": "cross_entropy", "in": list(inputs), "label_smoothing": smoothing}
                    c.check(loss_case(
                        c, "CrossEntropyLoss", inputs, step,
                        lambda v: F.cross_entropy(v["x"], v["t"].to(v["x"].dtype), v.get("w"),
                                                  reduction=reduction, label_smoothing=smoothing),
                        reduction, "%s probabilities weight %s smoothing %g" % (shape, weighted, smoothing),
                        modes=("f32",)))


# ids: A8 case-T101
def test_label_smoothing_ignores(c):
    """Ignored positions give no smoothing part and no gradient."""
    inputs = [("x", torch.tensor([[2.0, 0.0], [0.0, 5.0]]), "param"), ("t", torch.tensor([0, -100]), "input")]
    found, _ = c.tool.run(inputs, [{"fn": "cross_entropy", "in": ["x", "t"], "out": "y", "ignore_index": -100,
                                    "label_smoothing": 0.2}], ["y"], backward="y")
    c.count += 1
    if abs(found["y"].item() - 0.326928) > 1e-6:
        c.fail("loss is %.6f, not 0.326928" % found["y"].item())
    if found["grad:x"][1].abs().max() != 0:
        c.fail("the ignored position has a gradient")


# ids: P3 case-T26
def test_loss_of_low_logits(c):
    """Cross-entropy of float16 logits under autocast is computed in float32."""
    inputs = [("x", torch.tensor([[12.0, 0.0]], dtype=torch.float16), "param"), ("t", torch.tensor([0]), "input")]
    found, _ = c.tool.run(inputs, [{"fn": "cross_entropy", "in": ["x", "t"], "out": "y"}], ["y"], backward="y",
                          autocast="float16")
    c.count += 2
    if abs(found["y"].item() - 6.144193e-06) > 1e-11:
        c.fail("loss of [12, 0] is %.6e, not 6.144193e-06" % found["y"].item())
    rows = torch.zeros(8192, 50257 // 16)  # loss ln 3141 each; the sum passes float16's range
    inputs = [("x", rows.half(), "param"), ("t", torch.zeros(8192, dtype=torch.int64), "input")]
    found, _ = c.tool.run(inputs, [{"fn": "cross_entropy", "in": ["x", "t"], "out": "y"}], ["y"], autocast="float16")
    want = torch.log(torch.tensor(50257 // 16, dtype=torch.float64)).item()
    if abs(found["y"].item() - want) > 1e-5:
        c.fail("mean loss of 8192 equal rows is %.6f, not %.6f" % (found["y"].item(), want))


def test_nll(c):
    for shape in [(6, 5), (4, 3, 7), (2, 4, 3, 3)]:
        for reduction in REDUCTIONS:
            for weighted in (False, True):
                for ignore in (-100, 1):
                    target = c.integers(0, shape[1], *(shape[:1] + shape[2:]))
                    target.flatten()[0] = 2
                    inputs = {"x": F.log_softmax(c.randn(*shape), 1), "t": target}
                    if weighted:
                        inputs["w"] = c.rand(shape[1], low=0.2, high=2.0)
                    step = {"fn": "nll", "in": list(inputs), "ignore_index": ignore}
                    c.check(loss_case(
                        c, "NLLLoss", inputs, step,
                        lambda v: F.nll_loss(v["x"], v["t"], v.get("w"), reduction=reduction, ignore_index=ignore),
                        reduction, "%s weight %s ignore %d" % (shape, weighted, ignore), fixed={"w"}), views=0.2)


SHAPES = [(6, 5), (3,), (2, 3, 4)]


def regression(c, kind, op, settings, function, target=None, x=None):
    for shape in SHAPES:
        for reduction in REDUCTIONS:
            for constants in settings:
                inputs = {"x": x(shape) if x else c.randn(*shape, scale=1.5),
                          "t": target(shape) if target else c.randn(*shape)}
                step = dict(constants, fn="loss_ew", kind=kind, **{"in": ["x", "t"]})
                c.check(loss_case(c, op, inputs, step,
                                  lambda v: function(v["x"], v["t"], reduction=reduction, **torch_names(kind, constants)),
                                  reduction, "%s %s" % (shape, constants)), views=0.3)


def torch_names(kind, constants):
    """HuberLoss calls beta delta."""
    return {"delta" if kind == "huber" and k == "beta" else k: v for k, v in constants.items()}


def test_mse_and_l1(c):
    regression(c, "mse", "MSELoss", [{}], F.mse_loss)
    regression(c, "l1", "L1Loss", [{}], F.l1_loss)


def test_smooth_l1_and_huber(c):
    regression(c, "smooth_l1", "SmoothL1Loss", [{"beta": 1.0}, {"beta": 0.3}], F.smooth_l1_loss)
    regression(c, "huber", "HuberLoss", [{"beta": 1.0}, {"beta": 0.4}], F.huber_loss)


def test_kldiv(c):
    def log_rows(shape):
        return F.log_softmax(c.randn(*shape), -1)

    def run(constants, target, reductions):
        for shape in SHAPES:
            for reduction in reductions:
                inputs = {"x": log_rows(shape), "t": target(shape)}
                step = dict(constants, fn="loss_ew", kind="kldiv", **{"in": ["x", "t"]})
                c.check(loss_case(
                    c, "KLDivLoss", inputs, step,
                    lambda v: F.kl_div(v["x"], v["t"], reduction=reduction, log_target=constants["log_target"]),
                    reduction, "%s %s" % (shape, constants)))
    every = REDUCTIONS + ("batchmean",)
    run({"log_target": False}, lambda s: F.softmax(c.randn(*s), -1), every)
    run({"log_target": True}, log_rows, every)
    zeros = lambda s: (F.softmax(c.randn(*s), -1) - 0.2).clamp(min=0)  # 0 log 0 is 0
    run({"log_target": False}, zeros, ("mean",))


def test_bce(c):
    for shape in SHAPES:
        for reduction in REDUCTIONS:
            for weighted in (False, True):
                inputs = {"x": c.rand(*shape, low=0.05, high=0.95), "t": c.rand(*shape)}
                if weighted:
                    inputs["w"] = c.rand(shape[-1], low=0.2, high=2.0)
                step = {"fn": "loss_ew", "kind": "bce", "in": list(inputs)}
                c.check(loss_case(
                    c, "BCELoss", inputs, step,
                    lambda v: F.binary_cross_entropy(v["x"], v["t"], v.get("w"), reduction=reduction),
                    reduction, "%s weight %s" % (shape, weighted)))
    x = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64)  # PyTorch clamps the logarithms at -100
    t = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    c.check(loss_case(c, "BCELoss", {"x": x, "t": t}, {"fn": "loss_ew", "kind": "bce", "in": ["x", "t"]},
                      lambda v: F.binary_cross_entropy(v["x"], v["t"]), "mean", "ends", modes=("f32",)), views=0)


def test_bce_logits(c):
    for shape in SHAPES:
        for reduction in REDUCTIONS:
            for weighted in (False, True):
                for positive in (False, True):
                    inputs = {"x": c.randn(*shape, scale=3.0), "t": c.rand(*shape)}
                    if weighted:
                        inputs["w"] = c.rand(shape[-1], low=0.2, high=2.0)
                    if positive:
                        inputs["p"] = c.rand(shape[-1], low=0.5, high=3.0)
                    names = ["x", "t", "w" if weighted else None, "p" if positive else None]
                    step = {"fn": "loss_ew", "kind": "bce_logits", "in": names}
                    c.check(loss_case(
                        c, "BCEWithLogitsLoss", inputs, step,
                        lambda v: F.binary_cross_entropy_with_logits(
                            v["x"], v["t"], v.get("w"), reduction=reduction, pos_weight=v.get("p")),
                        reduction, "%s weight %s pos_weight %s" % (shape, weighted, positive)), views=0.2)
    x = torch.tensor([100.0, -100.0, 1e4, -1e4, 0.0], dtype=torch.float64)
    t = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.5], dtype=torch.float64)
    c.check(loss_case(c, "BCEWithLogitsLoss", {"x": x, "t": t},
                      {"fn": "loss_ew", "kind": "bce_logits", "in": ["x", "t"]},
                      lambda v: F.binary_cross_entropy_with_logits(v["x"], v["t"]), "mean", "large",
                      modes=("f32",)), views=0)


def test_margin_ranking(c):
    for shape in [(7,), (4, 3)]:
        for reduction in REDUCTIONS:
            for margin in (0.0, 0.5):
                inputs = {"a": c.randn(*shape), "b": c.randn(*shape), "t": c.integers(0, 2, *shape).double() * 2 - 1}
                step = {"fn": "margin_ranking", "in": ["a", "b", "t"], "margin": margin}
                c.check(loss_case(
                    c, "MarginRankingLoss", inputs, step,
                    lambda v: F.margin_ranking_loss(v["a"], v["b"], v["t"], margin, reduction=reduction),
                    reduction, "%s margin %g" % (shape, margin), params=("a", "b"), modes=("f32",)))


def test_cosine_embedding(c):
    for shape in [(7, 5), (4, 16)]:
        for reduction in REDUCTIONS:
            for margin in (0.0, 0.4):
                inputs = {"a": c.randn(*shape), "b": c.randn(*shape),
                          "t": c.integers(0, 2, shape[0]).double() * 2 - 1}
                step = {"fn": "cosine_embedding", "in": ["a", "b", "t"], "margin": margin}
                c.check(loss_case(
                    c, "CosineEmbeddingLoss", inputs, step,
                    lambda v: F.cosine_embedding_loss(v["a"], v["b"], v["t"], margin, reduction=reduction),
                    reduction, "%s margin %g" % (shape, margin), params=("a", "b"), modes=("f32",)))
