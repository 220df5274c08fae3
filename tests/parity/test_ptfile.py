"""Tensor files against PyTorch: we read what torch.save writes, torch.load reads what we write."""
import collections
import json
import os
import pickle
import shutil
import struct
import subprocess
import tempfile
import zlib

import torch

from harness import Skip, same_bits
from optool import NAMES, from_bytes, to_bytes


class Program:
    """ptfile_tool, with a folder for its files."""

    def __init__(self, context):
        self.path = os.path.join(os.path.dirname(context.tool.path), "ptfile_tool")
        if not os.path.exists(self.path):
            raise Skip("ptfile_tool is not built")
        self.folder = tempfile.mkdtemp(prefix="snug-ptfile-")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder)

    def file(self, name):
        return os.path.join(self.folder, name)

    def run(self, *arguments):
        return subprocess.run([self.path, *arguments], capture_output=True, text=True)

    def good(self, *arguments):
        found = self.run(*arguments)
        if found.returncode != 0:
            raise RuntimeError("%s: %s" % (" ".join(arguments[:1]), found.stderr.strip()))
        return found.stdout


def describe(value, storages):
    """The JSON that ptfile_tool dump should print; storages are numbered as they appear."""
    again = lambda v: describe(v, storages)
    if isinstance(value, torch.Tensor):
        key = storages.setdefault(value.storage().data_ptr() or id(value), len(storages))
        return {"tensor": NAMES[value.dtype], "shape": list(value.shape),
                "crc": zlib.crc32(to_bytes(value)), "storage": key}
    if isinstance(value, dict):
        name = {collections.OrderedDict: "OrderedDict", collections.Counter: "Counter"}.get(
            type(value), "dict")
        return {name: [again(x) for item in value.items() for x in item]}
    if isinstance(value, torch.dtype):
        return {"dtype": NAMES[value]}
    if isinstance(value, tuple):
        return {"tuple": [again(v) for v in value]}
    if isinstance(value, list):
        return [again(v) for v in value]
    if isinstance(value, bytes):
        return {"bytes": list(value)}
    if isinstance(value, float) and value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def renumber(value, seen):
    """Storage keys as numbers in the order of their appearance."""
    if isinstance(value, list):
        return [renumber(v, seen) for v in value]
    if isinstance(value, dict):
        if "storage" in value:
            return dict(value, storage=seen.setdefault(value["storage"], len(seen)))
        return {k: renumber(v, seen) for k, v in value.items()}
    return value


def weights_only_works(path):
    """PyTorch 1.13 cannot read floats in this mode, whoever wrote them; no version reads Counter."""
    try:
        torch.load(path, weights_only=True)
        return True
    except pickle.UnpicklingError:
        return False


def check_tree(context, program, value, title, protocol=2):
    """torch.save, our reading, our rewriting, torch.load."""
    context.count += 1
    theirs, ours = program.file("theirs.pt"), program.file("ours.pt")
    torch.save(value, theirs, pickle_protocol=protocol)
    want = describe(value, {})
    if renumber(json.loads(program.good("dump", theirs)), {}) != want:
        context.fail("%s: read otherwise" % title)
    program.good("copy", theirs, ours)
    for weights_only in {False, weights_only_works(theirs)}:
        back = torch.load(ours, weights_only=weights_only)
        if describe(back, {}) != want:
            context.fail("%s: PyTorch reads ours otherwise (weights_only=%s)" % (title, weights_only))
    first = open(ours, "rb").read()
    program.good("copy", ours, ours)
    if open(ours, "rb").read() != first:
        context.fail("%s: written twice, it differs" % title)


def model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(16, 3))


def trained(net, optimizer, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(2, 1, 4, 4)).square().sum().backward()
        optimizer.step()


def test_plain_values(context):
    tree = {
        "none": None, "true": True, "false": False, "zero": 0, "minus": -1, "byte": 255,
        "short": 65535, "int": -2 ** 31, "long": 2 ** 40, "min": -2 ** 63, "max": 2 ** 63 - 1,
        "pi": 3.141592653589793, "tiny": 5e-324, "inf": float("inf"), "nan": float("nan"),
        "text": "grüße \U0001f600", "empty": "", "list": [1, [2, []], ()], "tuple": (1, (2.5,), "x"),
        "ints": {0: "a", 7: "b", -3: "c"}, "size": torch.Size([2, 3]),
        "ordered": collections.OrderedDict(b=1, a=2), "long list": list(range(3000)),
        "same": ["twice"] * 3,
    }
    tree["size"] = tuple(tree["size"])
    with Program(context) as program:
        for protocol in (1, 2, 3, 4, 5):
            check_tree(context, program, tree, "plain values, protocol %d" % protocol, protocol)
        more = {"bytes": bytes(range(256)), "counter": collections.Counter("abca"),
                "dtypes": [torch.float32, torch.bfloat16, torch.int64]}
        for protocol in (2, 3, 4, 5):
            check_tree(context, program, more, "bytes, protocol %d" % protocol, protocol)


def test_tensor_types(context):
    tree = collections.OrderedDict()
    for dtype in NAMES:
        tree[NAMES[dtype]] = (context.randn(3, 4) * 50).abs().to(dtype)
        tree[NAMES[dtype] + ".scalar"] = torch.ones((), dtype=dtype)
        tree[NAMES[dtype] + ".empty"] = torch.zeros(2, 0, 3, dtype=dtype)
    tree["parameter"] = torch.nn.Parameter(torch.randn(2))
    tree["gradient"] = torch.randn(2, requires_grad=True)
    with Program(context) as program:
        for protocol in (2, 3, 4, 5):
            check_tree(context, program, tree, "types, protocol %d" % protocol, protocol)


def test_views(context):
    """case-T80: strides and offsets of views; tensors that share a storage stay tied."""
    base = torch.arange(60.0)
    wide = torch.arange(300 * 1000, dtype=torch.int32).reshape(300, 1000)
    tree = {
        "transposed": torch.arange(6.0).reshape(3, 2).t(), "slice": torch.arange(10.0)[3:7],
        "expanded": torch.tensor([7.0]).expand(4), "rows": base.reshape(6, 10)[1::2, 2:9:3],
        "permuted": base.reshape(3, 4, 5).permute(2, 0, 1), "tied": base, "tied again": base,
        "last": base[59:], "channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded rows": torch.arange(3.0)[:, None].expand(3, 4), "windows": base.unfold(0, 5, 1),
        "wide": wide.t(), "every": wide[::7, 1::3], "none": base[5:5], "bits": wide.bool().t(),
    }
    with Program(context) as program:
        for name, tensor in tree.items():
            check_tree(context, program, {name: tensor}, name)
        check_tree(context, program, tree, "all views")
        for _ in range(10 * context.rounds):
            rank = int(context.rng.randint(1, 5))
            sizes = [int(context.rng.randint(1, 6)) for _ in range(rank)]
            strides = [int(context.rng.randint(0, 9)) for _ in range(rank)]
            whole = torch.randn(400).to(context.pick(torch.float32, torch.float16, torch.float64))
            view = whole.as_strided(sizes, strides, int(context.rng.randint(0, 100)))
            check_tree(context, program, {"view": view, "whole": whole}, "strides %s" % strides)


def test_optimizer_states(context):
    kinds = [lambda p: torch.optim.Adam(p), lambda p: torch.optim.AdamW(p, amsgrad=True),
             lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.RMSprop(p),
             lambda p: torch.optim.Adagrad(p), lambda p: torch.optim.Rprop(p)]
    with Program(context) as program:
        for make in kinds:
            net = model()
            optimizer = make(net.parameters())
            trained(net, optimizer)
            tree = {"epoch": 3, "model_state_dict": net.state_dict(), "losses": [0.5, 0.25],
                    "optimizer_state_dict": optimizer.state_dict(),
                    "scaler_state_dict": {"scale": 65536.0, "_growth_tracker": 2}}
            check_tree(context, program, tree, type(optimizer).__name__)
            back = torch.load(program.file("ours.pt"))
            again = model()
            again.load_state_dict(back["model_state_dict"])
            if back["model_state_dict"]._metadata != net.state_dict()._metadata:
                context.fail("the state dict's metadata is lost")
            other = make(again.parameters())
            other.load_state_dict(back["optimizer_state_dict"])
            torch.manual_seed(1)
            trained(net, optimizer)
            torch.manual_seed(1)
            trained(again, other)
            for a, b in zip(net.parameters(), again.parameters()):
                if not same_bits(a.detach(), b.detach()):
                    context.fail("%s: continues otherwise" % type(optimizer).__name__)


def test_scheduler_states(context):
    from torch.optim import lr_scheduler as s
    makers = [lambda o: s.StepLR(o, 2), lambda o: s.CosineAnnealingLR(o, 5),
              lambda o: s.ExponentialLR(o, 0.9), lambda o: s.ReduceLROnPlateau(o),
              lambda o: s.CosineAnnealingWarmRestarts(o, 4), lambda o: s.MultiStepLR(o, [1, 2])]
    with Program(context) as program:
        for make in makers:
            optimizer = torch.optim.SGD([torch.zeros(1)], 0.1)
            scheduler = make(optimizer)
            check_tree(context, program, scheduler.state_dict(), type(scheduler).__name__)


def listing(text):
    return {x["name"]: x for x in map(json.loads, text.splitlines())}


def test_conversions(context):
    """case-T84: types converted while reading, rounded to nearest even as PyTorch does."""
    values = torch.cat([context.randn(5000), context.randn(500) * 1e-6, context.randn(200) * 1e-41,
                        context.randn(200) * 1e5, torch.tensor([1.01171875, 3.4e38, 65519.0, 65520.0,
                        1 + 2.0 ** -8 + 2.0 ** -20, 0.0, -0.0, float("inf")])])
    tree = {NAMES[d]: values.to(d) for d in (torch.float32, torch.bfloat16, torch.float16, torch.float64)}
    tree["int64"] = torch.arange(-50, 50)
    with Program(context) as program:
        path, safe = program.file("x.pt"), program.file("x.safetensors")
        torch.save(tree, path)
        program.good("safe", path, safe)
        for file in (path, safe):
            for want in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
                context.count += 1
                for name, found in listing(program.good("list", file, NAMES[want])).items():
                    source = tree[name]
                    if source.dtype == torch.float64 and want in (torch.bfloat16, torch.float16):
                        continue  # PyTorch rounds twice here, by way of float32
                    if found["crc"] != zlib.crc32(to_bytes(source.to(want))):
                        context.fail("%s as %s" % (name, NAMES[want]))


def test_safetensors(context):
    """What we write follows the format, and what follows the format is read."""
    names = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64,
             "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}
    tree = {k.lower(): (context.randn(3, 5) * 9).abs().to(d) for k, d in names.items()}
    tree["empty"], tree["scalar"] = torch.zeros(0), torch.tensor(2.5)
    with Program(context) as program:
        path, safe = program.file("x.pt"), program.file("x.safetensors")
        torch.save(tree, path)
        program.good("safe", path, safe)
        data = open(safe, "rb").read()
        n, = struct.unpack("<Q", data[:8])
        header, at = json.loads(data[8:8 + n]), 0
        if header.pop("__metadata__") != {"format": "pt"} or n % 8:
            context.fail("metadata or padding")
        for name, x in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            context.count += 1
            begin, end = x["data_offsets"]
            found = from_bytes(data[8 + n + begin:8 + n + end], names[x["dtype"]], x["shape"])
            if begin != at or not same_bits(found, tree[name]):
                context.fail("%s is written otherwise" % name)
            at = end
        if at != len(data) - 8 - n or set(header) != set(tree):
            context.fail("bytes or names are missing")
        found = listing(program.good("list", safe, "same"))
        for name, tensor in tree.items():
            if found[name]["crc"] != zlib.crc32(to_bytes(tensor)):
                context.fail("%s is read otherwise" % name)


class Other:
    pass


def test_refused(context):
    """Files that would run code, whole models, the old format: an error that says what."""
    cases = [({"x": Other()}, {}, "test_ptfile.Other"), (model(), {}, "torch.nn.modules"),
             ({"x": torch.zeros(1)}, {"_use_new_zipfile_serialization": False}, "old format"),
             ({"x": os.system}, {}, "posix.system"), ({"x": print}, {}, "print"),
             ({"x": {1.5: 1}}, {}, "a float as a key"),
             ({"x": torch.zeros(2, dtype=torch.complex64)}, {}, "ComplexFloatStorage")]
    with Program(context) as program:
        for value, options, text in cases:
            context.count += 1
            path = program.file("refused.pt")
            torch.save(value, path, **options)
            found = program.run("dump", path)
            if found.returncode != 1 or text not in found.stderr:
                context.fail("%s: %d %s" % (text, found.returncode, found.stderr))
        torch.save({"x": torch.randn(100)}, path)
        data = bytearray(open(path, "rb").read())
        at = data.find(b"data/0")
        for k in range(0, len(data), 97):  # cut anywhere, or any byte changed: never a crash
            context.count += 1
            bad = program.file("bad.pt")
            open(bad, "wb").write(data[:k])
            cut = program.run("dump", bad)
            changed = bytearray(data)
            changed[k] ^= 0x55
            open(bad, "wb").write(changed)
            if cut.returncode != 1 or program.run("dump", bad).returncode not in (0, 1):
                context.fail("damage at byte %d of %d" % (k, len(data)))
        changed = bytearray(data)
        changed[at + 150] ^= 1
        open(bad, "wb").write(changed)
        if "CRC" not in program.run("dump", bad).stderr:
            context.fail("a changed weight goes unnoticed")
