"""Random small networks: what layout, fusion and recomputation meet, against PyTorch."""
import torch
import torch.nn.functional as F

from harness import Case


class Builder:
    """Grows a program and its PyTorch equivalent together; values are named t0, t1, ..."""

    def __init__(self, c, batch, channels, size):
        self.c, self.inputs, self.steps, self.fns = c, {"x": c.randn(batch, channels, size, size)}, [], []
        self.params, self.buffers, self.weights = ["x"], [], []
        self.n, self.kinds = 0, []

    def new(self):
        self.n += 1
        return "t%d" % self.n

    def param(self, *shape, scale=1.0, low=None):
        name = "p%d" % len(self.inputs)
        self.inputs[name] = self.c.rand(*shape, low=low, high=1.5) if low else self.c.randn(*shape, scale=scale)
        self.params.append(name)
        return name

    def add(self, step, fn):
        """fn(values) computes the step's result from the values so far."""
        out = self.new()
        self.steps.append(dict(step, out=out))
        self.fns.append((out, fn))
        self.kinds.append(step.get("op", step["fn"]))
        return out

    def conv(self, x, cin, cout, k, stride=1, groups=1):
        w = self.param(cout, cin // groups, k, k, scale=(cin // groups * k * k) ** -0.5)
        b = self.param(cout) if self.c.pick(True, False) else None
        self.weights += [w] + ([b] if b else [])
        return self.add(
            {"fn": "conv", "in": [x, w, b], "stride": [stride, stride], "pad": [k // 2, k // 2], "groups": groups},
            lambda v: F.conv2d(v[x], v[w], v[b] if b else None, stride, k // 2, 1, groups))

    def batch_norm(self, x, channels):
        gamma, beta = self.param(channels, low=0.5), self.param(channels, scale=0.5)
        mean, var, batches = ["%s%d" % (n, len(self.inputs)) for n in ("mean", "var", "batches")]
        self.inputs.update({mean: self.c.randn(channels), var: self.c.rand(channels, low=0.5, high=2),
                            batches: torch.tensor(0)})
        self.buffers += [mean, var, batches]

        def fn(v):
            v[batches] += 1
            return F.batch_norm(v[x], v[mean], v[var], v[gamma], v[beta], True, 0.1, 1e-5)
        return self.add({"fn": "batch_norm", "in": [x, gamma, beta, mean, var, batches], "training": True}, fn)

    def group_norm(self, x, channels):
        gamma, beta = self.param(channels, low=0.5), self.param(channels, scale=0.5)
        groups = self.c.pick(1, 4, 8)
        return self.add({"fn": "group_norm", "in": [x, gamma, beta], "groups": groups},
                        lambda v: F.group_norm(v[x], groups, v[gamma], v[beta]))

    def unary(self, x):
        op, fn, more = self.c.pick(
            ("relu", F.relu, {"plain": True}), ("relu", F.relu, {"plain": True}),
            ("silu", F.silu, {"plain": True}), ("sigmoid", torch.sigmoid, {"plain": True}),
            ("gelu", F.gelu, {}), ("leaky_relu", lambda t: F.leaky_relu(t, 0.1), {"a": 0.1}),
            ("elu", F.elu, {"a": 1.0}), ("hardswish", F.hardswish, {"plain": True}))
        return self.add(dict(more, fn="unary", op=op, **{"in": [x]}), lambda v: fn(v[x]))

    def binary(self, x, y):
        op, fn = self.c.pick(("add", torch.add), ("mul", torch.mul), ("sub", torch.sub), ("maximum", torch.maximum))
        return self.add({"fn": "binary", "op": op, "in": [x, y]}, lambda v: fn(v[x], v[y]))

    def relu(self, x):
        return self.add({"fn": "unary", "op": "relu", "plain": True, "in": [x]}, lambda v: F.relu(v[x]))

    def plus(self, x, y):
        return self.add({"fn": "binary", "op": "add", "in": [x, y]}, lambda v: v[x] + v[y])

    def pool(self, x):
        if self.c.pick(True, False):
            return self.add({"fn": "max_pool", "in": [x], "kernel": [3, 3], "stride": [2, 2], "pad": [1, 1]},
                            lambda v: F.max_pool2d(v[x], 3, 2, 1))
        return self.add({"fn": "avg_pool", "in": [x], "kernel": [2, 2], "stride": [2, 2], "ceil_mode": True},
                        lambda v: F.avg_pool2d(v[x], 2, 2, ceil_mode=True))

    def concat(self, x, y):
        return self.add({"fn": "concat", "in": [x, y], "dim": 1}, lambda v: torch.cat([v[x], v[y]], 1))

    def prelu(self, x, channels):
        w = self.param(self.c.pick(1, channels), low=0.1)
        return self.add({"fn": "prelu", "in": [x, w]}, lambda v: F.prelu(v[x], v[w]))

    def channel_scale(self, x, channels):
        w = self.param(channels, 1, 1)
        return self.add({"fn": "binary", "op": "mul", "in": [x, w]}, lambda v: v[x] * v[w])

    def head(self, x, channels, classes):
        if self.c.pick(True, False):
            p = self.add({"fn": "adaptive_avg_pool", "in": [x], "output": [1, 1]},
                         lambda v: F.adaptive_avg_pool2d(v[x], 1))
        else:
            p = self.add({"fn": "mean", "in": [x], "dims": [2, 3], "keepdim": True},
                         lambda v: v[x].mean((2, 3), True))
        f = self.add({"fn": "flatten", "in": [p], "start": 1}, lambda v: v[p].flatten(1))
        w, b = self.param(classes, channels, scale=channels ** -0.5), self.param(classes)
        y = self.add({"fn": "linear", "in": [f, w, b]}, lambda v: F.linear(v[f], v[w], v[b]))
        target = self.c.integers(0, classes, self.inputs["x"].shape[0])
        self.inputs["target"] = target
        return self.add({"fn": "cross_entropy", "in": [y, "target"]}, lambda v: F.cross_entropy(v[y], v["target"]))

    def case(self, out, op, scalar=True, modes=("f32",)):
        def reference(values):
            values = dict(values)
            for name, fn in self.fns:
                values[name] = fn(values)
            return values[out]
        return Case(op, self.inputs, self.steps, reference, self.params, self.buffers, out=out, layouts=True,
                    scalar=scalar, modes=modes, weight_gradients=self.weights, label=" ".join(self.kinds))


# ids: P3
def test_between_convolutions(c):
    """Each operator that knows a layout, between two convolutions, where the layout reaches it."""
    names = ["unary", "binary", "pool", "batch_norm", "group_norm", "prelu", "channel_scale", "concat", "plus"]
    for name in names * max(1, c.rounds // 2):
        for channels in (16, 5 if name != "group_norm" else 8):
            b = Builder(c, 2, 3, 7)
            x = b.conv("x", 3, channels, 3)
            y = b.conv(x, channels, channels, 3) if name in ("binary", "concat", "plus") else None
            if name in ("unary", "pool"):
                z = getattr(b, name)(x)
            elif name in ("binary", "concat", "plus"):
                z = getattr(b, name)(x, y)
            else:
                z = getattr(b, name)(x, channels)
            out = b.conv(z, channels * (2 if name == "concat" else 1), 16, 1)
            c.check(b.case(out, "network", scalar=False), views=0)


# ids: P3
def test_residual_blocks(c):
    """Convolution, norm, residual, ReLU: every form that fusion knows, and near misses."""
    for _ in range(c.rounds):
        for channels in (16, 6):
            b = Builder(c, 3, 3, 8)
            x = b.relu(b.batch_norm(b.conv("x", 3, channels, 3), channels))
            y = b.relu(b.batch_norm(b.conv(x, channels, channels, 3), channels))
            y = b.batch_norm(b.conv(y, channels, channels, 3), channels)
            x = b.relu(b.plus(y, x))                      # identity shortcut
            y = b.batch_norm(b.conv(x, channels, 2 * channels, 3, stride=2), 2 * channels)
            s = b.batch_norm(b.conv(x, channels, 2 * channels, 1, stride=2), 2 * channels)
            x = b.relu(b.plus(y, s))                      # two norms meet
            y = b.batch_norm(x, 2 * channels)             # norm without a convolution before it
            z = b.plus(b.relu(y), y)                      # the norm's result is used twice
            c.check(b.case(b.head(z, 2 * channels, 4), "network"), views=0)


# ids: P3
def test_random_networks(c):
    for _ in range(2 * c.rounds):
        channels = c.pick(16, 32, 5, 12)
        b = Builder(c, int(c.rng.randint(1, 4)), c.pick(1, 3, 16), int(c.rng.randint(6, 11)))
        x = b.conv("x", b.inputs["x"].shape[1], channels, 3)
        for _ in range(c.rng.randint(3, 8)):
            kind = c.pick("conv", "conv", "norm", "norm", "unary", "unary", "residual", "pool", "prelu", "depthwise",
                          "concat", "scale")
            if kind == "conv":
                x = b.conv(x, channels, channels, c.pick(1, 3))
            elif kind == "norm":
                few = b.inputs["x"].shape[0] < 2
                x = b.group_norm(x, channels) if channels % 8 == 0 and (few or c.pick(True, False)) \
                    else b.batch_norm(x, channels)
            elif kind == "unary":
                x = b.unary(x)
            elif kind == "residual":
                x = b.binary(x, b.conv(x, channels, channels, 3))
            elif kind == "pool" and b.kinds.count("max_pool") + b.kinds.count("avg_pool") < 2:
                x = b.pool(x)
            elif kind == "prelu":
                x = b.prelu(x, channels)
            elif kind == "depthwise":
                x = b.conv(x, channels, channels, 3, groups=channels)
            elif kind == "concat" and channels < 64:
                x = b.concat(x, b.unary(x))
                channels *= 2
            elif kind == "scale":
                x = b.channel_scale(x, channels)
        if b.kinds and b.kinds[-1] == "batch_norm":
            x = b.relu(x)  # the mean of a batch norm's result is a constant: no gradient to compare
        c.check(b.case(b.head(x, channels, 5), "network"), views=0)


# ids: P3
def test_random_mlps(c):
    for _ in range(2 * c.rounds):
        n, width = int(c.rng.randint(1, 33)), int(c.rng.randint(3, 65))
        b = Builder(c, 1, 1, 1)
        b.inputs["x"] = c.randn(n, width)
        x, classes = "x", 4
        for _ in range(c.rng.randint(1, 4)):
            out = int(c.rng.randint(3, 65))
            w, bias = b.param(out, width, scale=width ** -0.5), b.param(out)
            x = b.add({"fn": "linear", "in": [x, w, bias]}, lambda v, x=x, w=w, bias=bias: F.linear(v[x], v[w], v[bias]))
            width = out
            if c.pick(True, False):
                gamma, beta = b.param(width, low=0.5), b.param(width)
                x = b.add({"fn": "layer_norm", "in": [x, gamma, beta], "trailing": 1},
                          lambda v, x=x, g=gamma, s=beta: F.layer_norm(v[x], v[g].shape, v[g], v[s]))
            x = b.unary(x)
        w = b.param(classes, width, scale=width ** -0.5)
        x = b.add({"fn": "linear", "in": [x, w]}, lambda v, x=x, w=w: F.linear(v[x], v[w]))
        b.inputs["target"] = c.integers(0, classes, n)
        out = b.add({"fn": "cross_entropy", "in": [x, "target"]},
                    lambda v, x=x: F.cross_entropy(v[x], v["target"]))
        case = b.case(out, "network")
        case.layouts = False
        c.check(case, views=0)
