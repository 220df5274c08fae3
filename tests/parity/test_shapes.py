"""Views, joins, casts and lookup against PyTorch."""
import torch
import torch.nn.functional as F

from harness import Case


def one(c, op, shape, step, function, label="", **more):
    step = dict(step, fn=op, out="y", **{"in": ["x"]})
    c.check(Case(op, {"x": c.randn(*shape)}, [step], lambda v: function(v["x"]), ["x"],
                 label="%s %s" % (shape, label), **more))


def test_reshape_and_flatten(c):
    for shape, to in [((4, 6), (3, 8)), ((4, 6), (2, -1)), ((2, 3, 4), (24,)), ((1,), ()), ((), (1, 1)),
                      ((0, 3), (3, 0)), ((2, 3, 4, 5), (6, 20))]:
        one(c, "reshape", shape, {"shape": list(to)}, lambda x: x.reshape(to), str(to))
    for shape, start, end in [((2, 3, 4), 1, -1), ((2, 3, 4, 5), 0, -1), ((2, 3, 4, 5), 1, 2), ((5,), 0, -1)]:
        one(c, "flatten", shape, {"start": start, "end": end}, lambda x: x.flatten(start, end))


def test_permute_and_transpose(c):
    for shape in [(4, 6), (2, 3, 4), (2, 3, 4, 5), (2, 1, 3, 2, 2)]:
        perm = [int(i) for i in c.rng.permutation(len(shape))]
        one(c, "permute", shape, {"perm": perm}, lambda x: x.permute(perm), str(perm))
        a, b = int(c.rng.randint(len(shape))), -1
        one(c, "transpose", shape, {"dim0": a, "dim1": b}, lambda x: x.transpose(a, b))


def test_expand(c):
    for shape, to in [((1, 5), (4, 5)), ((5,), (3, 5)), ((2, 1, 3), (2, 4, 3)), ((), (2, 2)), ((1, 1), (0, 3))]:
        one(c, "expand", shape, {"shape": list(to)}, lambda x: x.expand(to), str(to))


def test_slice_and_select(c):
    for shape, dim, start, length, step in [((5, 7), 1, 2, 3, 1), ((9, 4), 0, 1, 4, 2), ((2, 3, 8), -1, 0, 3, 3),
                                            ((4, 5), 0, 4, 0, 1), ((4,), 0, 0, 4, 1)]:
        index = [slice(None)] * len(shape)
        index[dim] = slice(start, start + (length - 1) * step + 1 if length else start, step)
        one(c, "slice", shape, {"dim": dim, "start": start, "length": length, "step": step},
            lambda x: x[tuple(index)])
    for shape, dim, i in [((5, 7), 1, 6), ((5, 7), 0, 0), ((2, 3, 4), -2, 1), ((3,), 0, 2), ((4, 5), 0, -1)]:
        one(c, "select", shape, {"dim": dim, "index": i}, lambda x: x.select(dim, i))


def test_squeeze_and_unsqueeze(c):
    for shape, dim in [((3, 1, 4), 1), ((1, 2), 0), ((2, 1), -1)]:
        one(c, "squeeze", shape, {"dim": dim}, lambda x: x.squeeze(dim))
    for shape, dim in [((3, 4), 1), ((3, 4), 0), ((3, 4), -1), ((3, 4), 2), ((), 0)]:
        one(c, "unsqueeze", shape, {"dim": dim}, lambda x: x.unsqueeze(dim))


def test_concat_and_stack(c):
    for shapes, dim in [([(2, 3), (2, 5)], 1), ([(2, 3), (1, 3), (4, 3)], 0), ([(2, 3, 4), (2, 3, 4)], -1),
                        ([(2, 0), (2, 3)], 1), ([(3,)], 0), ([(2, 16, 3, 3), (2, 32, 3, 3)], 1)]:
        names = ["x%d" % i for i in range(len(shapes))]
        c.check(Case("concat", {n: c.randn(*s) for n, s in zip(names, shapes)},
                     [{"fn": "concat", "in": names, "out": "y", "dim": dim}],
                     lambda v: torch.cat([v[n] for n in names], dim), names, label=str(shapes)))
    for shape, n, dim in [((2, 3), 3, 0), ((2, 3), 2, 1), ((2, 3), 2, -1), ((), 4, 0)]:
        names = ["x%d" % i for i in range(n)]
        c.check(Case("stack", {name: c.randn(*shape) for name in names},
                     [{"fn": "stack", "in": names, "out": "y", "dim": dim}],
                     lambda v: torch.stack([v[n] for n in names], dim), names, label=str(shape)))


def test_concat_same_operand_twice(c):
    c.check(Case("concat", {"x": c.randn(2, 3)}, [{"fn": "concat", "in": ["x", "x"], "out": "y", "dim": 1}],
                 lambda v: torch.cat([v["x"], v["x"]], 1), ["x"]))


def test_chunk(c):
    for shape, chunks, dim in [((6, 4), 3, 0), ((7, 4), 3, 0), ((2, 10), 4, 1), ((5,), 2, -1)]:
        for i in range(len(torch.empty(shape).chunk(chunks, dim))):
            one(c, "chunk", shape, {"chunks": chunks, "dim": dim, "index": i},
                lambda x: x.chunk(chunks, dim)[i], "%d of %d" % (i, chunks))


def test_split_and_join(c):
    """Pieces of one tensor, changed differently and joined: gradients meet in the whole."""
    steps = [{"fn": "chunk", "in": ["x"], "out": "a", "chunks": 3, "dim": 1, "index": 0},
             {"fn": "chunk", "in": ["x"], "out": "b", "chunks": 3, "dim": 1, "index": 1},
             {"fn": "binary", "op": "mul", "in": ["a", "b"], "out": "ab"},
             {"fn": "concat", "in": ["ab", "a", "x"], "out": "y", "dim": 1}]

    def reference(v):
        a, b, _ = v["x"].chunk(3, 1)
        return torch.cat([a * b, a, v["x"]], 1)
    c.check(Case("chunk", {"x": c.randn(4, 9)}, steps, reference, ["x"], label="split and join"))


def test_contiguous(c):
    steps = [{"fn": "transpose", "in": ["x"], "out": "t", "dim0": 0, "dim1": 2},
             {"fn": "contiguous", "in": ["t"], "out": "y"}]
    c.check(Case("contiguous", {"x": c.randn(3, 4, 5)}, steps, lambda v: v["x"].transpose(0, 2), ["x"]))


def test_cast(c):
    """Down and up again: the gradient takes the same way; rounding is to nearest even."""
    values = torch.cat([c.randn(1000, scale=100.0), c.randn(1000, scale=1e-6), torch.tensor(
        [1.01171875, 1.00390625 + 2.0 ** -20, 3.4e38, -3.4e38, 65504.0, 65519.9, 65520.0, 6e-8, 3e-8,
         2.0 ** -25, 0.0, -0.0, float("inf"), float("nan")], dtype=torch.float64)])
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        x = values.float()
        found, _ = c.tool.run([("x", x, "input")], [{"fn": "cast", "in": ["x"], "out": "y", "dtype": name}], ["y"])
        c.count += 1
        want = x.to(dtype)
        got = found["y"]
        if got.dtype != dtype:
            c.fail("cast to %s gives %s" % (name, got.dtype))
        elif not ((got == want) | (got.isnan() & want.isnan())).all():
            c.fail("cast to %s rounds differently" % name)
        steps = [{"fn": "cast", "in": ["x"], "out": "low", "dtype": name},
                 {"fn": "cast", "in": ["low"], "out": "y", "dtype": "float32"}]
        c.check(Case("cast", {"x": c.randn(7, 5)}, steps, lambda v: v["x"].to(dtype).float(), ["x"],
                     modes=("f32",), label=name))


def test_fill(c):
    for shape in [(), (3,), (2, 5)]:
        c.check(Case("fill", {"x": c.randn(*shape)},
                     [{"fn": "fill", "out": "f", "in": [], "shape": list(shape), "value": 2.5},
                      {"fn": "binary", "op": "mul", "in": ["x", "f"], "out": "y"}],
                     lambda v: v["x"] * 2.5, ["x"], modes=("f32",), label=str(shape)))


def test_embedding(c):
    for rows, width, shape, padding in [(10, 4, (7,), -1), (10, 4, (3, 5), 2), (1, 3, (4,), -1),
                                        (50, 16, (2, 3, 4), -1), (5, 3, (0,), -1), (7, 33, (64,), 0)]:
        c.check(Case(
            "embedding", {"i": c.integers(0, rows, *shape), "table": c.randn(rows, width)},
            [{"fn": "embedding", "in": ["i", "table"], "out": "y", "padding_idx": padding}],
            lambda v: F.embedding(v["i"], v["table"], None if padding < 0 else padding), ["table"],
            label="%dx%d %s padding %d" % (rows, width, shape, padding)))
