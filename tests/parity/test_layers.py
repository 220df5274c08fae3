"""SequentialModel layers against torch.nn: names and order of the state, starting values, outputs,
running statistics, refusals. Random parameters; whole models are built with the same graph."""
import json
import os
import subprocess
import warnings

import numpy as np
import torch
from torch import nn

from harness import Failure, Skip, norm_error
from optool import DTYPES, ToolError, from_bytes, to_bytes

BOUND = 2e-6
warnings.filterwarnings("ignore", message="Using padding='same' with even kernel")


def run_tool(c, request, x):
    path = os.path.join(os.path.dirname(c.tool.path), "model_tool")
    if not os.path.exists(path):
        raise Skip("model_tool is not built")
    payload = json.dumps(request).encode() + b"\n" + (x if isinstance(x, bytes) else to_bytes(x))
    done = subprocess.run([path], input=payload, capture_output=True)
    if done.returncode != 0:
        raise ToolError("model_tool died: %s" % done.stderr.decode(errors="replace")[-400:])
    line, data = done.stdout.split(b"\n", 1)
    answer, tensors, at = json.loads(line), {}, 0
    if answer["status"] != "ok":
        raise ToolError(answer["error"])
    for row in answer["tensors"]:
        dtype = DTYPES[row["dtype"]]
        n = int(np.prod(row["shape"], dtype=np.int64)) * torch.empty(0, dtype=dtype).element_size()
        tensors[row["name"]] = from_bytes(data[at:at + n], dtype, row["shape"])
        at += n
    return answer, tensors


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *xs):
        return self.function(*xs)


MERGES = {
    "Add": lambda *xs: sum(xs[1:], xs[0]), "Multiply": lambda *xs: torch.stack(xs).prod(0),
    "Mean": lambda *xs: torch.stack(xs).mean(0), "Subtract": lambda a, b: a - b,
}
IGNORING = ("ReLU GELU Sigmoid Tanh LeakyReLU ELU SiLU Mish SELU PReLU Hardswish").split()


def module(kind, params):
    if kind in MERGES:
        return Lambda(MERGES[kind])
    if kind == "Concat":
        return Lambda(lambda *xs: torch.cat(xs, params.get("dim", 1)))
    if kind == "Stack":
        return Lambda(lambda *xs: torch.stack(xs, params.get("dim", 1)))
    if kind == "Reshape":
        sizes = [int(n) for n in params["shape"].split(",")]
        return Lambda(lambda x: x.reshape(x.shape[0], *sizes))
    if kind == "SelectIndex":
        return Lambda(lambda x: x.select(params.get("dim", 1), params.get("index", 0)))
    if kind == "Softmax":
        return nn.Softmax(-1)
    return getattr(nn, kind)(**({} if kind in IGNORING else params))


class Graph(nn.Module):
    """layers: [(id, type, params, [ids of what it reads; "in" is the input])], in an order that runs."""

    def __init__(self, layers):
        super().__init__()
        self.plan = layers
        self.layers = nn.ModuleDict({i: module(kind, params) for i, kind, params, _ in layers})

    def forward(self, x):
        values = {"in": x}
        for i, _, _, sources in self.plan:
            values[i] = self.layers[i](*[values[s] for s in sources])
        return values[self.plan[-1][0]]


def document(layers):
    nodes = [{"id": "in", "type": "Input", "ports": [{"id": "a", "name": "x"}]}]
    edges = []
    for i, kind, params, sources in layers:
        nodes.append({"id": i, "type": kind, "params": params})
        for s in sources:
            edges.append(dict({"source": s, "target": i}, **({"sourceHandle": "a"} if s == "in" else {})))
    nodes.append({"id": "out", "type": "Output", "ports": [{"id": "b", "name": "y"}]})
    edges.append({"source": layers[-1][0], "target": "out", "targetHandle": "b"})
    return json.dumps({"version": 2, "nodes": nodes, "edges": edges})


def check_start(c, title, name, ours, theirs):
    """Two samples of one distribution: range, mean and deviation."""
    if theirs.numel() < 200 or not theirs.is_floating_point():
        return
    ours, theirs = ours.double(), theirs.double()
    spread, n = theirs.std(), theirs.numel()
    if spread == 0:
        if not torch.equal(ours, theirs):
            c.fail("%s: %s does not start at PyTorch's value" % (title, name))
        return
    if (ours.mean() - theirs.mean()).abs() > 8 * spread / n ** 0.5 or \
            (ours.std() / spread - 1).abs() > 8 / n ** 0.5 or \
            ours.abs().max() > 1.3 * theirs.abs().max():
        c.fail("%s: %s starts otherwise: mean %g, deviation %g, largest %g, not %g, %g, %g" % (
            title, name, ours.mean(), ours.std(), ours.abs().max(), theirs.mean(), spread,
            theirs.abs().max()))


def check(c, layers, x, training=False):
    title = "%s x %s%s" % ([(k, p) for _, k, p, _ in layers][:3], list(x.shape),
                           " training" if training else "")
    c.count += 1
    net = Graph(layers)
    net.train(training)
    request = {"layers": document(layers), "shape": list(x.shape), "training": training,
               "seed": int(c.rng.randint(1 << 30))}
    try:
        answer, found = run_tool(c, request, x)
    except ToolError as e:
        return c.fail("%s: %s" % (title, e))
    theirs = net.state_dict()
    ours = {k: v for k, v in found.items() if k in theirs}
    names = [k for k in found if k != "y" and not k.startswith("after:")]
    if names != list(theirs):
        return c.fail("%s: state %s, not %s" % (title, names, list(theirs)))
    if answer["params"] != [n for n, _ in net.named_parameters()]:
        return c.fail("%s: parameters %s" % (title, answer["params"]))
    if answer["parameters"] != sum(p.numel() for p in net.parameters()):
        return c.fail("%s: %d parameters" % (title, answer["parameters"]))
    for name in theirs:
        if ours[name].dtype != theirs[name].dtype or ours[name].shape != theirs[name].shape:
            return c.fail("%s: %s is %s" % (title, name, list(ours[name].shape)))
        check_start(c, title, name, ours[name], theirs[name])
    net.load_state_dict(ours)
    net.double()
    with torch.no_grad():
        want = net(x.double() if x.is_floating_point() else x)
    pairs = [("y", found["y"], want)]
    pairs += [(n, found["after:" + n], t) for n, t in net.named_buffers()]
    for name, got, wanted in pairs:
        try:
            error = norm_error(got, wanted)
        except Failure as e:
            c.fail("%s: %s: %s" % (title, name, e))
            continue
        c.record("layer " + layers[0][1], "f32", error)
        if not error <= BOUND:
            c.fail("%s: %s is off by %g" % (title, name, error))


def one(kind, params, sources=1):
    return [("l", kind, params, ["in"] * sources)]


def f32(c, *shape):
    return c.randn(*shape).float()


def some(c, n, low, high):
    """A number, or a list of n."""
    return [int(v) for v in c.rng.randint(low, high, n)] if c.rng.rand() < 0.5 else int(c.rng.randint(low, high))


def listed(value, n):
    return list(value) if isinstance(value, list) else [value] * n


def test_convolutions(c):
    for i in range(4 * c.rounds):
        n = c.pick(1, 2)
        groups = c.pick(1, 1, 2)
        params = {"in_channels": groups * int(c.rng.randint(1, 9)), "groups": groups,
                  "out_channels": groups * int(c.rng.randint(1, 9)),
                  "kernel_size": some(c, n, 1, 5), "dilation": some(c, n, 1, 3),
                  "bias": bool(c.pick(True, False))}
        if i % 3 == 0:
            params["padding"] = c.pick("same", "valid")
        else:
            params.update(stride=some(c, n, 1, 4), padding=some(c, n, 0, 3))
        size = [d * (k - 1) + 1 + int(c.rng.randint(0, 9))
                for k, d in zip(listed(params["kernel_size"], n), listed(params["dilation"], n))]
        check(c, one("Conv%dd" % n, params), f32(c, 3, params["in_channels"], *size))


def test_transposed_convolutions(c):
    for _ in range(3 * c.rounds):
        n, groups = c.pick(1, 2), c.pick(1, 1, 2)
        params = {"in_channels": groups * int(c.rng.randint(1, 9)), "groups": groups,
                  "out_channels": groups * int(c.rng.randint(1, 9)),
                  "kernel_size": some(c, n, 2, 5), "stride": some(c, n, 1, 4),
                  "padding": some(c, n, 0, 2), "dilation": some(c, n, 1, 3)}
        params["output_padding"] = [int(c.rng.randint(0, s)) for s in listed(params["stride"], n)]
        check(c, one("ConvTranspose%dd" % n, params),
              f32(c, 2, params["in_channels"], *[int(v) for v in c.rng.randint(2, 8, n)]))


def test_poolings(c):
    for _ in range(4 * c.rounds):
        n = c.pick(1, 2)
        kernel = some(c, n, 1, 5)
        params = {"kernel_size": kernel, "ceil_mode": bool(c.pick(True, False))}
        if c.rng.rand() < 0.5:
            params["stride"] = c.pick(None, some(c, n, 1, 4))
        params["padding"] = [int(c.rng.randint(0, k // 2 + 1)) for k in listed(kernel, n)]
        x = f32(c, 2, 3, *[int(v) for v in c.rng.randint(9, 14, n)])
        kind = c.pick("MaxPool", "AvgPool")
        if kind == "MaxPool":
            params["dilation"] = c.pick(1, 2)
        else:
            params["count_include_pad"] = bool(c.pick(True, False))
            if n == 2 and c.rng.rand() < 0.3:
                params["divisor_override"] = 3
            if n == 1:  # PyTorch 1.13 takes no list of one here
                params.update(padding=params["padding"][0])
        check(c, one("%s%dd" % (kind, n), params), x)
    for kind in ("AdaptiveAvgPool", "AdaptiveMaxPool"):
        check(c, one(kind + "2d", {"output_size": [3, None]}), f32(c, 2, 3, 7, 5))
        check(c, one(kind + "2d", {"output_size": 2}), f32(c, 2, 3, 7, 5))
        check(c, one(kind + "1d", {"output_size": 3}), f32(c, 2, 3, 7))


def test_normalisations(c):
    for training in (False, True):
        for params in ({}, {"affine": False}, {"momentum": None, "eps": 1e-2},
                       {"momentum": 0.3, "track_running_stats": True}, {"track_running_stats": False}):
            params = dict(params, num_features=5)
            check(c, one("BatchNorm2d", params), f32(c, 4, 5, 3, 2), training)
            check(c, one("BatchNorm1d", params), f32(c, 4, 5), training)
            check(c, one("BatchNorm1d", params), f32(c, 4, 5, 3), training)
    check(c, one("InstanceNorm2d", {"num_features": 5}), f32(c, 4, 5, 3, 2))
    check(c, one("InstanceNorm2d", {"num_features": 5, "affine": True, "eps": 0.1}), f32(c, 4, 5, 3, 2))
    check(c, one("LayerNorm", {"normalized_shape": 7}), f32(c, 4, 5, 7))
    check(c, one("LayerNorm", {"normalized_shape": [5, 7], "eps": 0.1}), f32(c, 4, 5, 7))
    check(c, one("LayerNorm", {"normalized_shape": [7], "elementwise_affine": False}), f32(c, 4, 7))
    check(c, one("GroupNorm", {"num_groups": 2, "num_channels": 6}), f32(c, 4, 6, 3, 2))
    check(c, one("GroupNorm", {"num_groups": 3, "num_channels": 6, "affine": False}), f32(c, 4, 6))


def test_products_and_tables(c):
    check(c, one("Linear", {"in_features": 40, "out_features": 30}), f32(c, 4, 40))
    check(c, one("Linear", {"in_features": 40, "out_features": 3, "bias": False}), f32(c, 4, 2, 40))
    check(c, one("Embedding", {"num_embeddings": 50, "embedding_dim": 20}), c.integers(0, 50, 4, 6))
    check(c, one("Embedding", {"num_embeddings": 50, "embedding_dim": 20, "padding_idx": -3}),
          c.integers(40, 50, 4, 6))


def test_views(c):
    x = f32(c, 3, 4, 6, 2)
    for kind, params in (("Flatten", {}), ("Flatten", {"start_dim": -2}),
                         ("Flatten", {"start_dim": 0, "end_dim": 1}), ("Reshape", {"shape": "6,-1"}),
                         ("Reshape", {"shape": " 2, 24"}), ("SelectIndex", {}),
                         ("SelectIndex", {"dim": -2, "index": -1})):
        check(c, [("r", "ReLU", {}, ["in"]), ("l", kind, params, ["r"]), ("s", "Tanh", {}, ["l"])], x)


def test_activations(c):
    for kind in IGNORING + ["Softmax"]:
        check(c, one(kind, {}), f32(c, 3, 4, 6))


def test_merges(c):
    for kind in list(MERGES) + ["Concat", "Stack"]:
        for dim in ((1, -1) if kind in ("Concat", "Stack") else (1,)):
            params = {"dim": dim} if dim != 1 else {}
            pair = [("a", "Tanh", {}, ["in"]), ("b", "ReLU", {}, ["in"])]
            check(c, pair + [("m", kind, params, ["b", "a"])], f32(c, 3, 4, 6))
            if kind != "Subtract":
                check(c, pair + [("m", kind, params, ["b", "in", "a"])], f32(c, 3, 4, 6))


def residual(i, source, width):
    conv = {"in_channels": width, "out_channels": width, "kernel_size": 3, "padding": 1, "bias": False}
    return [(i + "a", "Conv2d", conv, [source]), (i + "b", "BatchNorm2d", {"num_features": width}, [i + "a"]),
            (i + "c", "ReLU", {}, [i + "b"]), (i + "d", "Conv2d", conv, [i + "c"]),
            (i + "e", "BatchNorm2d", {"num_features": width}, [i + "d"]),
            (i + "f", "Add", {}, [i + "e", source]), (i + "g", "ReLU", {}, [i + "f"])]


def test_residual_network(c):
    layers = [("stem", "Conv2d", {"in_channels": 3, "out_channels": 8, "kernel_size": 3}, ["in"])]
    layers += residual("x", "stem", 8) + residual("y", "xg", 8)
    layers += [("pool", "AdaptiveAvgPool2d", {"output_size": 1}, ["yg"]), ("flat", "Flatten", {}, ["pool"]),
               ("head", "Linear", {"in_features": 8, "out_features": 10}, ["flat"])]
    for training in (False, True):
        check(c, layers, f32(c, 4, 3, 9, 9), training)
