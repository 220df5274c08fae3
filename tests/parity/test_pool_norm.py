"""Pooling and normalisation against PyTorch."""
import torch
import torch.nn.functional as F

from harness import Case


def full(spatial, values, neutral):
    """The engine's form of a setting: [height, width], with the neutral value for 1-d."""
    return list(values) if spatial == 2 else [neutral] + list(values)


def pool_settings(c, spatial, blocked):
    kernel = [int(k) for k in c.rng.randint(1, 5, spatial)]
    stride = [int(s) for s in c.rng.randint(1, 4, spatial)]
    padding = [int(c.rng.randint(0, k // 2 + 1)) for k in kernel]
    size = [k + int(c.rng.randint(0, 9)) for k in kernel]
    channels = c.pick(16, 32) if blocked else int(c.rng.randint(1, 7))
    return int(c.rng.randint(1, 4)), channels, size, kernel, stride, padding


def max_pool_case(c, spatial, n, channels, size, kernel, stride, padding, dilation, ceil):
    step = {"fn": "max_pool", "in": ["x"], "out": "y", "spatial": spatial, "ceil_mode": ceil,
            "kernel": full(spatial, kernel, 1), "stride": full(spatial, stride, 1),
            "pad": full(spatial, padding, 0), "dilation": full(spatial, dilation, 1)}
    pool = F.max_pool2d if spatial == 2 else F.max_pool1d
    return Case(
        "max_pool%dd" % spatial, {"x": c.randn(n, channels, *size)}, [step],
        lambda v: pool(v["x"], kernel, stride, padding, dilation, ceil), ["x"], layouts=True,
        label="x %s kernel %s stride %s pad %s dilation %s ceil %s" % (
            [n, channels] + size, kernel, stride, padding, dilation, ceil))


def test_max_pool(c):
    c.check(max_pool_case(c, 2, 2, 32, [8, 8], [2, 2], [2, 2], [0, 0], [1, 1], False))
    c.check(max_pool_case(c, 2, 2, 16, [9, 9], [3, 3], [2, 2], [1, 1], [1, 1], False))
    c.check(max_pool_case(c, 2, 1, 3, [7, 7], [2, 2], [2, 2], [0, 0], [1, 1], True))
    # Windows that do not overlap and, shifted by the padding, leave the last element out.
    c.check(max_pool_case(c, 1, 3, 16, [6], [3], [3], [1], [1], False))
    c.check(max_pool_case(c, 2, 2, 16, [6, 6], [3, 3], [3, 3], [1, 1], [1, 1], False))
    c.check(avg_pool_case(c, 2, 2, 16, [6, 6], [3, 3], [3, 3], [1, 1], False, True, None))
    c.check(max_pool_case(c, 2, 1, 2, [20, 20], [17, 17], [3, 2], [8, 3], [1, 1], False))
    for i in range(2 * c.rounds):
        for spatial in (2, 1):
            n, channels, size, kernel, stride, padding = pool_settings(c, spatial, i % 2 == 0)
            dilation = [c.pick(1, 1, 2) for _ in kernel]
            size = [s + (d - 1) * (k - 1) for s, d, k in zip(size, dilation, kernel)]
            c.check(max_pool_case(
                c, spatial, n, channels, size, kernel, stride, padding, dilation, c.pick(True, False)))


def test_max_pool_ties_and_nan(c):
    """The first of equal elements wins; NaN wins over numbers."""
    x = c.integers(0, 3, 2, 16, 9, 9).double()
    step = {"fn": "max_pool", "in": ["x"], "out": "y", "kernel": [3, 3], "stride": [2, 2], "pad": [1, 1]}
    reference = lambda v: F.max_pool2d(v["x"], 3, 2, 1)
    c.check(Case("max_pool2d", {"x": x}, [step], reference, ["x"], layouts=True, label="ties"))
    x = c.randn(1, 16, 6, 6)
    x[0, 3, 2, 2] = float("nan")
    x[0, 4, :, :] = -float("inf")
    c.check(Case("max_pool2d", {"x": x}, [step], reference, ["x"], layouts=True, label="NaN",
                 modes=("f32",)))


def avg_pool_case(c, spatial, n, channels, size, kernel, stride, padding, ceil, include, divisor):
    step = {"fn": "avg_pool", "in": ["x"], "out": "y", "spatial": spatial, "ceil_mode": ceil,
            "kernel": full(spatial, kernel, 1), "stride": full(spatial, stride, 1),
            "pad": full(spatial, padding, 0), "exclude_pad": not include, "divisor": divisor or 0}
    if spatial == 2:
        reference = lambda v: F.avg_pool2d(v["x"], kernel, stride, padding, ceil, include, divisor)
    else:
        reference = lambda v: F.avg_pool1d(v["x"], kernel, stride, padding, ceil, include)
    return Case(
        "avg_pool%dd" % spatial, {"x": c.randn(n, channels, *size)}, [step], reference, ["x"],
        layouts=True, label="x %s kernel %s stride %s pad %s ceil %s include pad %s divisor %s" % (
            [n, channels] + size, kernel, stride, padding, ceil, include, divisor))


def test_avg_pool(c):
    c.check(avg_pool_case(c, 2, 2, 16, [8, 8], [2, 2], [2, 2], [0, 0], False, True, None))
    c.check(avg_pool_case(c, 2, 1, 3, [7, 5], [3, 2], [2, 2], [1, 1], True, True, None))
    c.check(avg_pool_case(c, 2, 1, 3, [7, 5], [3, 2], [2, 2], [1, 1], True, False, None))
    c.check(avg_pool_case(c, 2, 1, 3, [6, 6], [3, 3], [2, 2], [1, 1], False, True, 7))
    for i in range(2 * c.rounds):
        for spatial in (2, 1):
            settings = pool_settings(c, spatial, i % 2 == 0)
            divisor = c.pick(None, None, 5) if spatial == 2 else None
            c.check(avg_pool_case(
                c, spatial, *settings, c.pick(True, False), c.pick(True, False), divisor))


def test_adaptive_pool(c):
    sizes = [([8, 8], [1, 1]), ([7, 5], [3, 2]), ([4, 6], [4, 6]), ([3, 3], [5, 7]), ([9, 10], [2, 3])]
    for kind, function in (("avg", F.adaptive_avg_pool2d), ("max", F.adaptive_max_pool2d)):
        for size, output in sizes:
            channels = c.pick(3, 16)
            c.check(Case(
                "adaptive_%s_pool2d" % kind, {"x": c.randn(2, channels, *size)},
                [{"fn": "adaptive_%s_pool" % kind, "in": ["x"], "out": "y", "output": output}],
                lambda v: function(v["x"], output), ["x"], layouts=True,
                label="%d channels %s -> %s" % (channels, size, output)))
    for kind, function in (("avg", F.adaptive_avg_pool1d), ("max", F.adaptive_max_pool1d)):
        for size, output in ((9, 4), (5, 1), (3, 7)):
            c.check(Case(
                "adaptive_%s_pool1d" % kind, {"x": c.randn(2, 3, size)},
                [{"fn": "adaptive_%s_pool" % kind, "in": ["x"], "out": "y", "spatial": 1,
                  "output": [1, output]}],
                lambda v: function(v["x"], output), ["x"], label="%d -> %d" % (size, output)))


def batch_norm_case(c, shape, affine, tracked, training, momentum, cumulative=False):
    channels = shape[1]
    inputs = {"x": c.randn(*shape) * 2 + 1}
    params = ["x"]
    if affine:
        inputs.update(gamma=c.randn(channels), beta=c.randn(channels))
        params += ["gamma", "beta"]
    buffers = []
    if tracked:
        inputs.update(mean=c.randn(channels), var=c.rand(channels, low=0.5, high=2),
                      batches=torch.tensor(3))
        buffers = ["mean", "var", "batches"] if training else []
    step = {"fn": "batch_norm", "out": "y", "training": training, "eps": 1e-5,
            "in": [n if n in inputs else None for n in ("x", "gamma", "beta", "mean", "var", "batches")],
            "momentum": -1.0 if cumulative else momentum}

    def reference(v):
        factor = momentum
        if training and tracked:
            v["batches"] += 1
            factor = 1.0 / float(v["batches"]) if cumulative else momentum
        return F.batch_norm(
            v["x"], v.get("mean"), v.get("var"), v.get("gamma"), v.get("beta"),
            training or not tracked, factor, 1e-5)
    case = Case(
        "batch_norm", inputs, [step], reference, params, buffers, {"gamma", "beta", "mean", "var"},
        layouts=len(shape) == 4,
        label="%s affine %s tracked %s training %s momentum %s" % (
            list(shape), affine, tracked, training, "none" if cumulative else momentum))
    if tracked and not training:
        # Evaluation reads the statistics: they are variables that nothing changes.
        case.buffers = ["mean", "var", "batches"]
    return case


def test_batch_norm(c):
    shapes = [(4, 16, 5, 5), (3, 5, 4, 7), (8, 6), (4, 3, 9), (2, 32, 3, 3)]
    for shape in shapes:
        c.check(batch_norm_case(c, shape, True, True, True, 0.1))
        c.check(batch_norm_case(c, shape, True, True, False, 0.1))
    c.check(batch_norm_case(c, shapes[0], False, True, True, 0.3))
    c.check(batch_norm_case(c, shapes[1], True, False, True, 0.1))
    c.check(batch_norm_case(c, shapes[1], False, False, True, 0.1))
    c.check(batch_norm_case(c, shapes[1], True, True, True, 0.0, cumulative=True))
    for _ in range(c.rounds):
        shape = (int(c.rng.randint(2, 6)), c.pick(1, 3, 16, 17), *[int(n) for n in c.rng.randint(2, 8, 2)])
        c.check(batch_norm_case(c, shape, c.pick(True, False), c.pick(True, False), True, 0.1))


def test_batch_norm_large_mean(c):
    """Statistics do not cancel where the mean is large against the deviation."""
    case = batch_norm_case(c, (8, 16, 6, 6), True, True, True, 0.1)
    case.inputs["x"] = case.inputs["x"].float().double() * 0.5 + 300
    case.modes = ()
    upstream = c.randn(8, 16, 6, 6)
    for layout in ("none", "cl", "c16"):
        found = case.run(c.tool, "f32", upstream, layout=layout)
        want = case.expect("f32", upstream, wide=True)
        for name in found:
            error = (found[name].double() - want[name].double()).norm() / want[name].double().norm()
            if error > 2e-4:  # float32 at 300 resolves 3e-5 of a deviation of 1
                c.fail("layout %s: %s is off by %.3g of its norm" % (layout, name, error))
        c.count += 1


def test_layer_norm(c):
    for shape, trailing in [((4, 7), 1), ((2, 3, 16), 1), ((2, 3, 5, 4), 3), ((2, 3, 5, 4), 2),
                            ((3, 1), 1), ((5, 100), 1), ((2, 3, 257), 1)]:
        for affine in (True, False):
            inner = shape[-trailing:]
            inputs = {"x": c.randn(*shape) + 0.5}
            if affine:
                inputs.update(gamma=c.randn(*inner), beta=c.randn(*inner))
            names = list(inputs)
            eps = 1e-5 if inner != (1,) else 0.1  # one element: the gradient is 1/sqrt(eps) times rounding
            c.check(Case(
                "layer_norm", inputs,
                [{"fn": "layer_norm", "in": names, "out": "y", "trailing": trailing, "eps": eps}],
                lambda v: F.layer_norm(v["x"], inner, v.get("gamma"), v.get("beta"), eps), names,
                fixed={"gamma", "beta"}, label="%s trailing %d affine %s" % (shape, trailing, affine)))


def test_group_norm(c):
    for shape, groups in [((2, 6, 5, 4), 3), ((3, 16, 4, 4), 4), ((2, 32, 3, 5), 32), ((2, 6, 7), 1),
                          ((4, 8), 2), ((2, 32, 4, 4), 1), ((2, 48, 3, 3), 2)]:
        for affine in (True, False):
            inputs = {"x": c.randn(*shape) + 0.5}
            if affine:
                inputs.update(gamma=c.randn(shape[1]), beta=c.randn(shape[1]))
            names = list(inputs)
            c.check(Case(
                "group_norm", inputs,
                [{"fn": "group_norm", "in": names, "out": "y", "groups": groups, "eps": 1e-5}],
                lambda v: F.group_norm(v["x"], groups, v.get("gamma"), v.get("beta"), 1e-5), names,
                fixed={"gamma", "beta"}, layouts=len(shape) == 4,
                label="%s groups %d affine %s" % (shape, groups, affine)))


def test_instance_norm(c):
    for shape in [(2, 3, 5, 4), (3, 16, 4, 4), (2, 5, 9)]:
        for affine in (True, False):
            inputs = {"x": c.randn(*shape) + 0.5}
            if affine:
                inputs.update(gamma=c.randn(shape[1]), beta=c.randn(shape[1]))
            names = list(inputs)
            c.check(Case(
                "instance_norm", inputs,
                [{"fn": "instance_norm", "in": names, "out": "y", "eps": 1e-5}],
                lambda v: F.instance_norm(v["x"], weight=v.get("gamma"), bias=v.get("beta"), eps=1e-5),
                names, fixed={"gamma", "beta"}, layouts=len(shape) == 4,
                label="%s affine %s" % (shape, affine)))
