"""Matrix products and convolutions against PyTorch."""
import torch
import torch.nn.functional as F

from harness import Case


def test_linear(c):
    shapes = [((5, 7), 3), ((1, 1), 1), ((2, 3, 17), 33), ((64, 100), 10), ((0, 4), 3), ((6,), 5)]
    for _ in range(c.rounds):
        lead = [int(n) for n in c.rng.randint(1, 9, c.rng.randint(1, 4))]
        shapes.append((tuple(lead + [int(c.rng.randint(1, 70))]), int(c.rng.randint(1, 70))))
    for shape, out in shapes:
        for bias in (True, False):
            inputs = {"x": c.randn(*shape), "w": c.randn(out, shape[-1], scale=shape[-1] ** -0.5)}
            if bias:
                inputs["b"] = c.randn(out)
            names = list(inputs)
            c.check(Case(
                "linear", inputs, [{"fn": "linear", "in": names, "out": "y"}],
                lambda v: F.linear(v["x"], v["w"], v.get("b")), names,
                label="%s -> %d bias %s" % (shape, out, bias)))


def test_matmul(c):
    shapes = [((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 3)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)),
              ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((5, 1, 4), (4,)), ((4,), (3, 4, 2)),
              ((3, 0), (0, 2)), ((0, 3), (3, 2)), ((65, 129), (129, 33))]
    for _ in range(c.rounds):
        m, k, n, b = [int(i) for i in c.rng.randint(1, 40, 4)]
        shapes += [((m, k), (k, n)), ((b, m, k), (1, k, n))]
    for a, b in shapes:
        c.check(Case(
            "matmul", {"a": c.randn(*a), "b": c.randn(*b)},
            [{"fn": "matmul", "in": ["a", "b"], "out": "y"}],
            lambda v: torch.matmul(v["a"], v["b"]), ["a", "b"], label="%s x %s" % (a, b)))


def test_gemm(c):
    for ta in (False, True):
        for tb in (False, True):
            for bias in (False, True):
                m, k, n = [int(i) for i in c.rng.randint(1, 50, 3)]
                inputs = {"a": c.randn(*((k, m) if ta else (m, k))),
                          "b": c.randn(*((n, k) if tb else (k, n)))}
                if bias:
                    inputs["bias"] = c.randn(n)
                names = list(inputs)

                def reference(v, ta=ta, tb=tb):
                    y = (v["a"].t() if ta else v["a"]) @ (v["b"].t() if tb else v["b"])
                    return y + v["bias"] if "bias" in v else y
                c.check(Case(
                    "gemm", inputs,
                    [{"fn": "gemm", "in": names, "out": "y", "ta": ta, "tb": tb}], reference, names,
                    label="%dx%dx%d ta %s tb %s bias %s" % (m, k, n, ta, tb, bias)))


def few_rows(shape):
    """Where the library's blocks follow the number of threads: docs/reproducibility.md."""
    return shape[0] <= 2 or len(shape) == 3 or shape[2] == 1


def conv_case(c, spatial, n, groups, cin, cout, size, kernel, stride, padding, dilation, bias):
    """cin and cout are per group; the lists hold one number a spatial dimension."""
    scale = (cin * kernel[0] * kernel[-1]) ** -0.5
    inputs = {"x": c.randn(n, cin * groups, *size),
              "w": c.randn(cout * groups, cin, *kernel, scale=scale)}
    if bias:
        inputs["b"] = c.randn(cout * groups)
    names = list(inputs)
    full = lambda v, neutral: list(v) if spatial == 2 else [neutral] + list(v)
    step = {"fn": "conv", "in": names, "out": "y", "spatial": spatial, "groups": groups,
            "stride": full(stride, 1), "pad": full(padding, 0), "dilation": full(dilation, 1)}
    convolve = F.conv2d if spatial == 2 else F.conv1d
    return Case(
        "conv%dd" % spatial, inputs, [step],
        lambda v: convolve(v["x"], v["w"], v.get("b"), stride, padding, dilation, groups), names,
        layouts=True, weight_gradients=["w", "b"],
        library=["y"] if few_rows(inputs["x"].shape) else [],
        label="x %s w %s stride %s pad %s dilation %s groups %d" % (
            list(inputs["x"].shape), list(inputs["w"].shape), stride, padding, dilation, groups))


def random_conv(c, spatial, blocked):
    """Settings that fit: the input is at least as large as the dilated kernel."""
    kernel = [int(k) for k in c.rng.randint(1, 5, spatial)]
    dilation = [int(d) for d in c.rng.randint(1, 3, spatial)]
    stride = [int(s) for s in c.rng.randint(1, 4, spatial)]
    padding = [int(c.rng.randint(0, k)) for k in kernel]
    size = [max(1, d * (k - 1) + 1 - 2 * p) + int(c.rng.randint(0, 9))
            for k, d, p in zip(kernel, dilation, padding)]
    groups = c.pick(1, 1, 2, 3)
    cin, cout = (16, c.pick(16, 32)) if blocked else (int(c.rng.randint(1, 7)), int(c.rng.randint(1, 9)))
    return (spatial, int(c.rng.randint(1, 4)), groups, cin, cout, size, kernel, stride, padding,
            dilation, c.pick(True, False))


def test_conv(c):
    fixed = [
        (2, 2, 1, 1, 8, [9, 9], [3, 3], [1, 1], [1, 1], [1, 1], True),     # first layer of a network
        (2, 2, 1, 16, 32, [8, 8], [3, 3], [1, 1], [1, 1], [1, 1], False),
        (2, 3, 1, 32, 16, [7, 5], [1, 1], [1, 1], [0, 0], [1, 1], False),  # pointwise
        (2, 2, 1, 16, 32, [9, 9], [1, 1], [2, 2], [0, 0], [1, 1], False),  # a shortcut
        (2, 1, 32, 1, 1, [7, 7], [3, 3], [1, 1], [1, 1], [1, 1], True),    # depthwise
        (2, 1, 1, 3, 5, [1, 11], [1, 5], [1, 3], [0, 2], [1, 2], True),
        (2, 1, 1, 3, 16, [15, 15], [7, 7], [2, 2], [3, 3], [1, 1], False),
        (1, 2, 1, 3, 4, [17], [5], [2], [2], [1], True),
        (1, 2, 2, 16, 16, [13], [3], [1], [2], [2], False),
    ]
    for settings in fixed:
        c.check(conv_case(c, *settings))
    for i in range(2 * c.rounds):
        c.check(conv_case(c, *random_conv(c, 2, i % 2 == 0)))
        c.check(conv_case(c, *random_conv(c, 1, False)))


def test_conv_empty_batch(c):
    c.check(conv_case(c, 2, 0, 1, 3, 4, [5, 5], [3, 3], [1, 1], [1, 1], [1, 1], True), views=0)


def transpose_case(c, spatial, n, groups, cin, cout, size, kernel, stride, padding, dilation, extra, bias):
    scale = (cin * kernel[0] * kernel[-1]) ** -0.5
    inputs = {"x": c.randn(n, cin * groups, *size),
              "w": c.randn(cin * groups, cout, *kernel, scale=scale)}
    if bias:
        inputs["b"] = c.randn(cout * groups)
    names = list(inputs)
    full = lambda v, neutral: list(v) if spatial == 2 else [neutral] + list(v)
    step = {"fn": "conv_transpose", "in": names, "out": "y", "spatial": spatial, "groups": groups,
            "stride": full(stride, 1), "pad": full(padding, 0), "dilation": full(dilation, 1),
            "output_padding": full(extra, 0)}
    convolve = F.conv_transpose2d if spatial == 2 else F.conv_transpose1d
    return Case(
        "conv_transpose%dd" % spatial, inputs, [step],
        lambda v: convolve(v["x"], v["w"], v.get("b"), stride, padding, extra, groups, dilation),
        names, layouts=True, weight_gradients=["w", "b"],
        library=["grad:x"] if few_rows(inputs["x"].shape) else [],
        label="x %s w %s stride %s pad %s extra %s dilation %s groups %d" % (
            list(inputs["x"].shape), list(inputs["w"].shape), stride, padding, extra, dilation, groups))


def random_transpose(c, spatial, blocked):
    kernel = [int(k) for k in c.rng.randint(1, 5, spatial)]
    dilation = [int(d) for d in c.rng.randint(1, 3, spatial)]
    stride = [int(s) for s in c.rng.randint(1, 4, spatial)]
    padding = [int(c.rng.randint(0, k)) for k in kernel]
    # Output padding is less than the stride or the dilation.
    extra = [int(c.rng.randint(0, max(s, d))) for s, d in zip(stride, dilation)]
    size = [int(c.rng.randint(4, 9)) for _ in kernel]
    groups = c.pick(1, 1, 2)
    cin, cout = (16, 16) if blocked else (int(c.rng.randint(1, 6)), int(c.rng.randint(1, 6)))
    return (spatial, int(c.rng.randint(1, 4)), groups, cin, cout, size, kernel, stride, padding,
            dilation, extra, c.pick(True, False))


def test_conv_transpose(c):
    fixed = [(2, 2, 1, 32, 16, [4, 4], [2, 2], [2, 2], [0, 0], [1, 1], [0, 0], True),
             (2, 1, 1, 3, 2, [5, 4], [3, 3], [2, 2], [1, 1], [1, 1], [1, 1], True),
             (2, 1, 2, 2, 3, [3, 4], [3, 2], [3, 2], [1, 0], [1, 2], [2, 1], False),
             (1, 2, 1, 3, 4, [7], [4], [2], [1], [1], [1], True)]
    for settings in fixed:
        c.check(transpose_case(c, *settings))
    for i in range(c.rounds):
        c.check(transpose_case(c, *random_transpose(c, 2, i % 2 == 0)))
        c.check(transpose_case(c, *random_transpose(c, 1, False)))
