"""Cases, their comparison with PyTorch, and the record of the largest errors.

A case is one small program with its PyTorch equivalent. `Context.check` runs it

  float32   against PyTorch's float32 (relative error of the norm at most 1e-5), then again value by
            value from the allocator, with two threads, with recomputation and fusion, and in each
            physical layout: everything but a change of layout must give the same bits, except
            convolutions' weight gradients when the number of threads changes;
  bfloat16  against PyTorch's own bfloat16 result: within two units in the last place, or 1e-2
            relative to the norm;
  float16   against float64 on the same rounded inputs, result rounded: the same bounds.

Where PyTorch's own result is further from float64 than ours, float64 on the same inputs decides.
"""
import json
import os
import traceback
import zlib

import numpy as np
import torch

from optool import ToolError

F32_BOUND = 1e-5
LOW_BOUND = 1e-2
ULP_BOUND = 2
LOW = {"bf16": torch.bfloat16, "f16": torch.float16}
TORCH_DTYPE = dict(LOW, f32=torch.float32)


class Failure(Exception):
    """A comparison that did not hold."""


def norm_error(got, want):
    """|got - want| / |want|, in float64; infinities and NaN must stand at the same places."""
    got, want = got.double(), want.double()
    if got.shape != want.shape:
        raise Failure("shape %s, not %s" % (list(got.shape), list(want.shape)))
    odd = ~torch.isfinite(want)
    if odd.any() or not torch.isfinite(got).all():
        same = torch.where(torch.isnan(want), torch.isnan(got), got == want)
        if not same[odd | ~torch.isfinite(got)].all():
            return float("inf")
        got, want = got[~odd], want[~odd]
    size = want.norm().item()
    return (got - want).norm().item() / (size if size else 1.0)


def ulp_error(got, want, dtype):
    """Largest distance in units of the last place that `dtype` has at the wanted value."""
    if want.numel() == 0:
        return 0.0
    digits, lowest = (7, -126) if dtype == torch.bfloat16 else (10, -14)
    want = want.double()
    exponent = torch.floor(torch.log2(want.abs().clamp(min=2.0 ** lowest)))
    distance = (got.double() - want).abs() / 2.0 ** (exponent - digits)
    distance = distance.masked_fill(got.double() == want, 0)
    worst = distance.max().item()
    return worst if worst == worst else float("inf")


def close(got, want, mode):
    """(holds, error of the norm)"""
    error = norm_error(got, want)
    if mode == "f32":
        return error <= F32_BOUND, error
    return error <= LOW_BOUND or ulp_error(got, want, LOW[mode]) <= ULP_BOUND, error


class Case:
    """inputs: {name: float64 or integer tensor}; params: names that get gradients; buffers: names
    of variables that the program may change and that are compared afterwards; fixed: names that
    stay float32 in low precision. reference(values) computes the result from tensors and may
    change buffers in place. The result is the value `out` of the steps. With another number of
    threads, gradients of weight_gradients may have other bits, and in the library's layouts the
    results named in `library` (docs/reproducibility.md)."""

    def __init__(self, op, inputs, steps, reference, params=(), buffers=(), fixed=(), out="y",
                 layouts=False, modes=("f32", "bf16", "f16"), scalar=False, label="",
                 weight_gradients=(), library=(), backward=True):
        self.op, self.inputs, self.steps, self.reference = op, inputs, steps, reference
        self.params, self.buffers, self.fixed = list(params), list(buffers), set(fixed)
        self.out, self.layouts, self.modes = out, layouts, modes
        self.scalar, self.label, self.backward = scalar, label, backward and bool(params)
        self.weight_gradients, self.library = set(weight_gradients), set(library)

    def values(self, mode, wide=False):
        """Inputs rounded to the mode's type; `wide`: the same values as float64."""
        out = {}
        for name, tensor in self.inputs.items():
            if tensor.is_floating_point():
                keep = name in self.fixed or name in self.buffers
                tensor = tensor.to(torch.float32 if keep else TORCH_DTYPE[mode])
                if wide:
                    tensor = tensor.double()
            out[name] = tensor.clone()
        return out

    def expect(self, mode, upstream, wide=False):
        """{"y", "grad:...", buffers} by PyTorch."""
        values = self.values(mode, wide)
        for name in self.params:
            values[name].requires_grad_(True)
        y = self.reference(values)
        found = {self.out: y.detach()}
        if self.backward:
            g = None if self.scalar else upstream.to(TORCH_DTYPE[mode]).to(y.dtype)
            grads = torch.autograd.grad(
                y, [values[name] for name in self.params], g, allow_unused=True)
            found.update(("grad:" + name, g) for name, g in zip(self.params, grads))
        found.update((name, values[name].detach()) for name in self.buffers)
        return found

    def run(self, tool, mode, upstream, **options):
        values = self.values(mode)
        inputs = []
        for name, tensor in values.items():
            kind = ("param" if name in self.params else
                    "buffer" if name in self.buffers else "input")
            inputs.append((name, tensor, kind))
        backward, weight = None, None
        if self.backward:
            backward = self.out
            if not self.scalar:
                weight = "upstream"
                inputs.append((weight, upstream.to(TORCH_DTYPE[mode]), "input"))
        found, _ = tool.run(inputs, self.steps, [self.out], self.buffers, backward, weight,
                            **options)
        return found

    def viewed(self, rng):
        """The same case on views: some operands stored permuted, or with gaps."""
        inputs, before, undo = dict(self.inputs), [], {}
        for name, tensor in self.inputs.items():
            if name in self.buffers or not tensor.is_floating_point() or tensor.dim() < 2:
                continue
            inner = name + ".stored"
            if rng.rand() < 0.5:
                perm = [int(i) for i in rng.permutation(tensor.dim())]
                back = [perm.index(i) for i in range(tensor.dim())]
                inputs[inner] = tensor.permute(perm).contiguous()
                before.append({"fn": "permute", "in": [inner], "out": name, "perm": back})
                undo[name] = (inner, lambda t, back=back: t.permute(back))
            else:
                dim = int(rng.randint(tensor.dim()))
                size = tensor.shape[dim]
                wide = torch.zeros([2 * n + 1 if d == dim else n
                                    for d, n in enumerate(tensor.shape)], dtype=tensor.dtype)
                place = [slice(None)] * dim + [slice(1, 2 * size + 1, 2)]
                wide[place] = tensor
                inputs[inner] = wide
                before.append({"fn": "slice", "in": [inner], "out": name, "dim": dim, "start": 1,
                               "length": size, "step": 2})
                undo[name] = (inner, lambda t, place=tuple(place): t[place])
            del inputs[name]
        names = {name: inner for name, (inner, _) in undo.items()}

        def reference(values):
            values = dict(values)
            for name, (inner, view) in undo.items():
                values[name] = view(values[inner]).contiguous()  # PyTorch's NLL wants it
            return self.reference(values)

        # Buffers changed by the reference are the same tensors in both dictionaries.
        return Case(
            self.op, inputs, before + self.steps, reference,
            [names.get(n, n) for n in self.params], self.buffers,
            {names.get(n, n) for n in self.fixed}, self.out, self.layouts, ("f32",), self.scalar,
            self.label + " (views)", {names.get(n, n) for n in self.weight_gradients},
            backward=self.backward)


class Context:
    """What a test function gets."""

    def __init__(self, tool, seed, rounds, name):
        self.tool, self.rounds, self.name = tool, rounds, name
        self.rng = np.random.RandomState((seed + zlib.crc32(name.encode())) % 2 ** 32)
        self.failures, self.records, self.count = [], {}, 0

    # -- random material
    def randn(self, *shape, scale=1.0):
        return torch.from_numpy(np.asarray(self.rng.randn(*shape) * scale, np.float64))

    def rand(self, *shape, low=0.0, high=1.0):
        return torch.from_numpy(np.asarray(self.rng.uniform(low, high, shape), np.float64))

    def integers(self, low, high, *shape):
        return torch.from_numpy(np.asarray(self.rng.randint(low, high, shape), np.int64))

    def pick(self, *choices):
        return choices[self.rng.randint(len(choices))]

    # -- results
    def fail(self, text):
        self.failures.append(text)

    def record(self, op, mode, error):
        key = (op, mode)
        self.records[key] = max(self.records.get(key, 0.0), error)

    def check(self, case, views=0.5):
        """All comparisons of one case; failures are collected, not raised."""
        with torch.no_grad():
            shape = case.reference(case.values("f32")).shape
        upstream = self.randn(*shape) if not case.scalar else None
        for mode in case.modes:
            self.attempt(case, mode, upstream)
        if views and self.rng.rand() < views and "f32" in case.modes:
            self.attempt(case.viewed(self.rng), "f32", upstream, plain=True)

    def attempt(self, case, mode, upstream, plain=False, again=False):
        self.count += 1
        title = "%s %s%s" % (case.op, mode, " [" + case.label.strip() + "]" if case.label else "")
        try:
            if mode == "f32":
                self.check_f32(case, upstream, plain)
            else:
                self.compare(case, case.run(self.tool, mode, upstream), mode, upstream)
        except (Failure, ToolError) as e:
            if case.op == "network" and not again and isinstance(e, Failure):
                # A ReLU's or maximum's input may lie within rounding of the kink, where the two
                # sides have other gradients: another input decides.
                case.inputs["x"] = case.inputs["x"] * 1.01
                return self.attempt(case, mode, upstream, plain, again=True)
            self.fail("%s: %s" % (title, e))

    def compare(self, case, found, mode, upstream, what=""):
        """Every tensor against PyTorch."""
        wide = None
        want = None
        if mode != "f16":
            try:
                want = case.expect(mode, upstream)
            except RuntimeError as e:  # PyTorch lacks the operator in this type
                if mode == "f32":
                    raise Failure("PyTorch: %s" % e)
        for name in found:
            if wide is None and want is None:
                wide = case.expect(mode, upstream, wide=True)
            reference = (want or wide)[name]
            got = found[name]
            if got is None or reference is None:
                zero = got if got is not None else reference
                if zero is not None and zero.double().abs().sum() != 0:
                    raise Failure("%s%s: one side has no gradient" % (what, name))
                continue
            holds, error = close(got, reference.to(got.dtype), mode)
            if not holds and name.startswith("grad:"):
                # What is left of a sum that cancels (a bias in front of a batch norm, whose true
                # gradient is 0) is rounding: measured against the largest gradient of the case.
                wide = wide or case.expect(mode, upstream, wide=True)
                scale = max(g.norm().item() for n, g in wide.items() if n.startswith("grad:") and g is not None)
                size = wide[name].norm().item()
                if size <= 1e-6 * scale and got.double().norm() <= 1e-4 * scale:
                    continue
                # So is a broadcast operand's gradient when its terms nearly cancel: each term carries
                # the rounding of its own size, a tenth of the bound of the largest gradient.
                sums = got.numel() < max(g.numel() for n, g in wide.items() if n.startswith("grad:") and g is not None)
                bound = F32_BOUND if mode == "f32" else 1e-2
                away = (got.double() - wide[name].double()).norm().item()
                if (case.op == "network" or sums) and away <= 0.1 * bound * scale:
                    continue
            if not holds and want is not None:
                # Where PyTorch itself is further from float64 than we are, it cannot judge.
                wide = wide or case.expect(mode, upstream, wide=True)
                own = norm_error(reference, wide[name])
                again, exact = close(got, wide[name].to(got.dtype), mode)
                if (again and own > F32_BOUND) or norm_error(got, wide[name]) <= own:
                    holds, error = True, exact
            if not holds:
                where = (got.double() - reference.double()).abs().flatten()
                i = int(where.argmax()) if where.numel() else 0
                raise Failure("%s%s differs by %.3g of its norm (element %d is %.9g, not %.9g)" % (
                    what, name, error, i, got.flatten()[i].item(), reference.flatten()[i].item()))
            self.record(case.op, mode, error)

    def same_bits(self, a, b, what, but=()):
        for name in a:
            if (a[name] is None) != (b[name] is None):
                raise Failure("%s: %s exists only in one form" % (what, name))
            if a[name] is None:
                continue
            if name in but:
                if norm_error(b[name], a[name]) > F32_BOUND:
                    raise Failure("%s: %s differs" % (what, name))
            elif not same_bits(a[name], b[name]):
                raise Failure("%s: %s has other bits (%.3g of its norm)" % (
                    what, name, norm_error(b[name], a[name])))

    def check_f32(self, case, upstream, plain):
        weights = {"grad:" + name for name in case.weight_gradients}
        for layout in ["none", "cl", "c16"] if case.layouts and not plain else ["none"]:
            what = "" if layout == "none" else "layout %s: " % layout
            base = case.run(self.tool, "f32", upstream, layout=layout)
            self.compare(case, base, "f32", upstream, what)
            if plain:
                return
            run = lambda **o: case.run(self.tool, "f32", upstream, layout=layout, **o)
            self.same_bits(base, run(fuse=True), what + "fuse")
            self.same_bits(base, run(recompute=True), what + "recompute")
            self.same_bits(base, run(fuse=True, recompute=True), what + "fuse and recompute")
            self.same_bits(base, run(dynamic=True), what + "dynamic storage")
            free = weights | (case.library if layout != "none" else set())
            self.same_bits(base, run(threads=2), what + "two threads", free)


def same_bits(a, b):
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    kind = kinds[a.element_size()]
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def run_test(function, tool, seed, rounds):
    """(context, text of an unexpected exception or None)"""
    context = Context(tool, seed, rounds, function.__name__)
    torch.manual_seed(seed)
    try:
        function(context)
    except Skip as e:
        return context, e
    except Exception:
        context.fail(traceback.format_exc())
    return context, None


class Skip(Exception):
    """The test cannot run here; the text says why."""


def write_table(path, rows):
    """docs-ready: operator -> tests -> largest error by type."""
    table = {}
    for test, records in rows:
        for (op, mode), error in records.items():
            table.setdefault(op, {}).setdefault(test, {})[mode] = error
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    temporary = path + ".new"
    with open(temporary, "w") as f:
        json.dump({"schema": 1, "operators": table}, f, indent=1, sort_keys=True)
        f.write("\n")
    os.replace(temporary, path)
