"""The nine optimizers with their parameters, 20 updates against torch.optim; clipping; scaling."""
import torch

from harness import F32_BOUND, norm_error
from optool import ToolError

STEPS = 20
SHAPES = {"w": (5, 7), "b": (3,), "v": (33, 2)}

# The engine's names of PyTorch's parameters where they differ.
RENAMED = {"rho": "alpha"}


def engine_constants(kind, o):
    """PyTorch's defaults written out, so that both sides get the same."""
    out = {"kind": kind}
    for name, value in o.items():
        if name == "betas":
            out["beta1"], out["beta2"] = value
        elif name == "etas":
            out["eta_minus"], out["eta_plus"] = value
        elif name == "step_sizes":
            out["step_min"], out["step_max"] = value
        else:
            out[RENAMED.get(name, name)] = value
    return out


DEFAULTS = {
    "sgd": {}, "adam": {"betas": (0.9, 0.999), "eps": 1e-8}, "adamw": {"betas": (0.9, 0.999), "eps": 1e-8,
                                                                        "weight_decay": 1e-2},
    "rmsprop": {"alpha": 0.99, "eps": 1e-8}, "adagrad": {"eps": 1e-10}, "radam": {"betas": (0.9, 0.999), "eps": 1e-8},
    "nadam": {"betas": (0.9, 0.999), "eps": 1e-8, "momentum_decay": 4e-3},
    "rprop": {"etas": (0.5, 1.2), "step_sizes": (1e-6, 50)}, "asgd": {"lambd": 1e-4, "alpha": 0.75, "t0": 1e6},
}
CLASSES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop", "adagrad": "Adagrad",
           "radam": "RAdam", "nadam": "NAdam", "rprop": "Rprop", "asgd": "ASGD"}
SETTINGS = {
    "sgd": [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.8, "dampening": 0.3},
            {"weight_decay": 0.1}, {"momentum": 0.9, "weight_decay": 0.05, "maximize": True}],
    "adam": [{}, {"amsgrad": True}, {"betas": (0.8, 0.95), "eps": 1e-4}, {"weight_decay": 0.1},
             {"amsgrad": True, "weight_decay": 0.01, "maximize": True}],
    "adamw": [{}, {"weight_decay": 0.0}, {"amsgrad": True, "weight_decay": 0.1}, {"betas": (0.7, 0.9)},
              {"maximize": True}],
    "rmsprop": [{}, {"momentum": 0.9}, {"centered": True}, {"centered": True, "momentum": 0.5, "weight_decay": 0.1},
                {"alpha": 0.8, "eps": 1e-3}],
    "adagrad": [{}, {"lr_decay": 0.05}, {"weight_decay": 0.1, "eps": 1e-6}, {"maximize": True}],
    "radam": [{}, {"betas": (0.8, 0.9)}, {"weight_decay": 0.1}, {"eps": 1e-3}],
    "nadam": [{}, {"momentum_decay": 0.1}, {"weight_decay": 0.1, "betas": (0.8, 0.99)}],
    "rprop": [{}, {"etas": (0.3, 1.5)}, {"step_sizes": (1e-3, 0.02)}],
    "asgd": [{}, {"lambd": 0.01, "alpha": 0.5}, {"t0": 5.0}, {"weight_decay": 0.1}],
}


def tensors(c, rates):
    """Weights, gradients of each run, and hyper: rate and number of the update."""
    weights = {n: c.randn(*s).float() for n, s in SHAPES.items()}
    grads = {n: c.randn(STEPS, *s).float() for n, s in SHAPES.items()}
    grads["b"][3] = 0  # Rprop and RMSprop meet a zero gradient
    hyper = torch.tensor([[rate, i + 1] for i, rate in enumerate(rates)], dtype=torch.float64)
    return weights, grads, hyper


def engine(c, weights, grads, hyper, update, scale=1.0, outputs=(), **options):
    """loss = sum over the params of sum(w * g): the gradient of w is g exactly."""
    inputs = [(n, w, "param") for n, w in weights.items()]
    inputs += [("g." + n, g * scale, "each") for n, g in grads.items()]
    inputs += [("hyper", hyper, "late each"), ("loss_scale", torch.tensor(scale), "late")]
    steps, total = [], None
    for n, w in weights.items():
        rank = w.dim()
        steps += [{"fn": "binary", "op": "mul", "in": [n, "g." + n], "out": "p"},
                  {"fn": "sum", "in": ["p"], "out": "s", "dims": list(range(rank))}]
        if total:
            steps.append({"fn": "binary", "op": "add", "in": [total, "s"], "out": "loss"})
        else:
            steps.append({"fn": "affine", "in": ["s"], "out": "loss", "scale": 1.0, "shift": 0.0})
        total = "loss"
    return c.tool.run(inputs, steps, list(outputs), list(weights), backward="loss", runs=STEPS,
                      update=dict(update, lr=hyper[0, 0].item()), **options)[0]


def reference(kind, weights, grads, rates, settings, dtype=torch.float32):
    params = {n: w.to(dtype).clone().requires_grad_(True) for n, w in weights.items()}
    optimizer = getattr(torch.optim, CLASSES[kind])(list(params.values()), lr=rates[0], foreach=False, **settings)
    for i, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for n, p in params.items():
            p.grad = grads[n][i].to(dtype).clone()
        optimizer.step()
    return {n: p.detach() for n, p in params.items()}


def check_optimizer(c, kind):
    for settings in SETTINGS[kind]:
        # Rprop and ASGD keep step sizes of their own: a changing rate is a case of its own.
        for changing in (False, True):
            rates = [0.05 * (0.9 ** i if changing else 1) for i in range(STEPS)]
            if kind == "rprop" and changing:
                continue  # PyTorch reads Rprop's rate at the first update only
            weights, grads, hyper = tensors(c, rates)
            update = engine_constants(kind, dict(DEFAULTS[kind], **settings))
            title = "%s %s%s" % (CLASSES[kind], settings, " changing rate" if changing else "")
            c.count += 1
            try:
                found = engine(c, weights, grads, hyper, update)
                scaled = engine(c, weights, grads, hyper, update, scale=1024.0, threads=2, dynamic=True)
            except ToolError as e:
                c.fail("%s: %s" % (title, e))
                continue
            want = reference(kind, weights, grads, rates, settings)
            for n in weights:
                error = norm_error(found[n], want[n])
                c.record(CLASSES[kind], "f32", error)
                if error > F32_BOUND:
                    c.fail("%s: %s differs by %.3g of its norm" % (title, n, error))
                if not torch.equal(found[n], scaled[n]):
                    c.fail("%s: %s depends on a loss scale of 1024" % (title, n))


def test_sgd(c):
    check_optimizer(c, "sgd")


def test_adam(c):
    check_optimizer(c, "adam")


def test_adamw(c):
    check_optimizer(c, "adamw")


def test_rmsprop(c):
    check_optimizer(c, "rmsprop")


def test_adagrad(c):
    check_optimizer(c, "adagrad")


def test_radam(c):
    check_optimizer(c, "radam")


def test_nadam(c):
    check_optimizer(c, "nadam")


def test_rprop(c):
    check_optimizer(c, "rprop")


def test_asgd(c):
    check_optimizer(c, "asgd")


def adafactor(weight, grads, rates, beta2_decay=-0.8, eps1=2.0 ** -23, eps2=1e-3, d=1.0, weight_decay=0.0,
              maximize=False):
    """torch.optim.Adafactor as PyTorch 2.5 documents it, in double precision."""
    w, row, col, full = weight.double().clone(), 0.0, 0.0, 0.0
    for i, lr in enumerate(rates):
        g, t = grads[i].double() * (-1 if maximize else 1), i + 1
        keep = 1 - t ** beta2_decay
        alpha = max(eps2, (w * w).mean().sqrt().item()) * min(lr, t ** -0.5)
        w = w * (1 - lr * weight_decay)
        if g.dim() > 1:
            row = keep * row + (1 - keep) * (g * g).mean(-1, keepdim=True)
            col = keep * col + (1 - keep) * (g * g).mean(-2, keepdim=True)
            v = row * col / row.mean(-2, keepdim=True).clamp(min=eps1)
        else:
            full = keep * full + (1 - keep) * g * g
            v = full
        u = g / v.clamp(min=eps1 ** 2).sqrt()
        w = w - alpha / max(1.0, (u * u).mean().sqrt().item() / d) * u
    return w


# ids: L4
def test_adafactor(c):
    """Vectors, matrices and stacks of matrices, 20 updates, against the formula in double precision."""
    shapes = {"w": (5, 70), "b": (3,), "v": (2, 33, 7), "long": (9001,), "wide": (3, 9001)}
    for settings in ({}, {"beta2_decay": -0.5}, {"d": 2.0, "weight_decay": 0.1}, {"eps1": 1e-3, "eps2": 0.5},
                     {"maximize": True}):
        rates = [0.05 * 0.9 ** i for i in range(STEPS)]
        weights = {n: c.randn(*s).float() for n, s in shapes.items()}
        grads = {n: c.randn(STEPS, *s).float() for n, s in shapes.items()}
        hyper = torch.tensor([[rate, i + 1] for i, rate in enumerate(rates)], dtype=torch.float64)
        update = dict(settings, kind="adafactor", eps=settings.get("eps1", 0.0))
        update.pop("eps1", None)
        found = engine(c, weights, grads, hyper, update)
        again = engine(c, weights, grads, hyper, update, threads=2, dynamic=True)
        c.count += 1
        for n in weights:
            want = adafactor(weights[n], grads[n], rates, **settings)
            error = norm_error(found[n], want.float())
            c.record("Adafactor", "f32", error)
            if error > F32_BOUND:
                c.fail("%s: %s differs by %.3g of its norm" % (settings, n, error))
            if not torch.equal(found[n], again[n]):
                c.fail("%s: %s depends on the threads" % (settings, n))


# ids: A3 P7
def test_clipping(c):
    """clip_grad_norm_ over all parameters, after the loss scale is taken out."""
    for scale in (1.0, 4096.0):
        for max_norm in (0.5, 5.0, 1e6):
            rates = [0.1] * STEPS
            weights, grads, hyper = tensors(c, rates)
            params = {n: w.clone().requires_grad_(True) for n, w in weights.items()}
            optimizer = torch.optim.SGD(list(params.values()), lr=0.1)
            for i in range(STEPS):
                for n, p in params.items():
                    p.grad = grads[n][i].clone()
                norm = torch.nn.utils.clip_grad_norm_(list(params.values()), max_norm)
                optimizer.step()
            found = engine(c, weights, grads, hyper, {"kind": "sgd", "max_norm": max_norm}, scale, ["ctl"])
            c.count += 1
            for n, p in params.items():
                error = norm_error(found[n], p.detach())
                c.record("clipping", "f32", error)
                if error > F32_BOUND:
                    c.fail("norm %g scale %g: %s differs by %.3g" % (max_norm, scale, n, error))
            if abs(found["ctl"][3].item() - norm.item()) > 1e-5 * norm.item():
                c.fail("norm before clipping is %g, not %g" % (found["ctl"][3].item(), norm.item()))


# ids: A3 case-T20
def test_clipping_large(c):
    """The norm is formed without overflow: 100 gradients of 1e20 clip to 0.1 each."""
    weights = {"w": torch.zeros(100)}
    grads = {"w": torch.full((STEPS, 100), 1e20)}
    hyper = torch.tensor([[1.0, i + 1] for i in range(STEPS)], dtype=torch.float64)
    found = engine(c, weights, grads, hyper, {"kind": "sgd", "max_norm": 1.0})
    c.count += 1
    if (found["w"] + 0.1 * STEPS).abs().max() > 1e-4:
        c.fail("weight is %g, not %g" % (found["w"][0].item(), -0.1 * STEPS))


# ids: P7 case-T10 case-T20
def test_skipped_updates(c):
    """An update with an infinite or NaN gradient changes nothing: weights, moments, decay."""
    for kind in DEFAULTS:
        for bad in (float("inf"), float("nan")):
            rates = [0.05] * STEPS
            weights, grads, _ = tensors(c, rates)
            broken = {n: g.clone() for n, g in grads.items()}
            broken["w"][4, 2, 3] = bad
            broken["b"][11, 0] = bad
            keep = [i for i in range(STEPS) if i not in (4, 11)]
            number = [1 + sum(1 for k in keep if k < i) for i in range(STEPS)]
            hyper = torch.tensor([[0.05, n] for n in number], dtype=torch.float64)
            update = engine_constants(kind, DEFAULTS[kind])
            found = engine(c, weights, broken, hyper, dict(update, allow_nonfinite=True), 2.0)
            good = {n: g[keep] for n, g in grads.items()}
            want = reference(kind, weights, good, rates[:len(keep)], {})
            c.count += 1
            for n in weights:
                error = norm_error(found[n], want[n])
                if not error <= F32_BOUND:
                    c.fail("%s with %g: %s differs by %.3g" % (CLASSES[kind], bad, n, error))


def test_update_ratio(c):
    """The logged ratio is |lr * gradient| / |w|, both over all parameters."""
    rates = [0.1] * STEPS
    weights, grads, hyper = tensors(c, rates)
    zero = {n: torch.zeros_like(g) for n, g in grads.items()}
    for n in zero:
        zero[n][-1] = grads[n][-1]  # only the last update moves, so the weights are known
    found = engine(c, weights, zero, hyper, {"kind": "sgd", "log_update_ratio": True}, outputs=["update_ratio"])
    square = lambda ts: sum((t.double() ** 2).sum().item() for t in ts) ** 0.5
    want = square(0.1 * grads[n][-1] for n in grads) / square(weights.values())
    c.count += 1
    if abs(found["update_ratio"].item() - want) > 1e-5 * want:
        c.fail("update ratio is %g, not %g" % (found["update_ratio"].item(), want))
