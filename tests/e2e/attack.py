"""What the attacks share: small data sets on disk, and what every failure must look like."""
import gzip
import json
import os
import random
import struct

import harness

CODES = {1: {"invalid", "not_found", "io", "corrupt", "unsupported", "failed"}, 2: {"usage"},
         3: {"out_of_memory"}, 130: {"interrupted"}}
# Sanitizer builds stop at the first fault; what a dying run leaves allocated is not one.
SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:abort_on_error=0:exitcode=99",
              "UBSAN_OPTIONS": "halt_on_error=1:exitcode=99:print_stacktrace=1"}


class Cases:
    """Many small attacks in one test: all are tried, and all that went wrong are told."""

    def __init__(self, snug):
        self.snug, self.wrong, self.count = snug, [], 0

    def call(self, what, *args, **more):
        """One document on stdout and a known exit status, whatever happens; None otherwise."""
        self.count += 1
        more["env"] = dict(SANITIZERS, **more.get("env", {}))
        try:
            result = self.snug(*args, "--json", **more)
            doc = result.doc
        except (AssertionError, ValueError, UnicodeDecodeError) as why:
            self.wrong.append("%s: %s" % (what, str(why)[:2500]))
            return None
        status = {0: "succeeded", 130: "interrupted"}.get(result.rc, "failed")
        if result.rc not in (0, 1, 2, 3, 130) or doc.get("schema") != 1 or doc.get("status") != status:
            self.wrong.append("%s: %r" % (what, result))
            return None
        if result.rc and doc["error"]["code"] not in CODES[result.rc]:
            self.wrong.append("%s: code %s with exit %d" % (what, doc["error"]["code"], result.rc))
            return None
        return result

    def fails(self, what, *args, rc=(1,), words=(), node=None, **more):
        """A call that must fail; message, detail or hint hold every word (no case), and the node is named."""
        result = self.call(what, *args, **more)
        if result is None:
            return None
        error = result.doc["error"] or {}
        text = json.dumps(error, ensure_ascii=False).lower()
        if result.rc not in rc:
            self.wrong.append("%s: exit %d, not %s: %r" % (what, result.rc, rc, error))
        elif node and error.get("node_id") != node:
            self.wrong.append("%s: names node %r, not %r: %r" % (what, error.get("node_id"), node, error))
        else:
            self.wrong += ["%s: no word %r in %s" % (what, w, text) for w in words if w.lower() not in text]
        return result

    def end(self):
        left = [os.path.join(d, f) for d, _, files in os.walk(self.snug.dir) for f in files if ".part" in f]
        if left:
            self.wrong.append("half-written files are left: %s" % left)
        assert not self.wrong, "%d of %d went wrong:\n%s" % (len(self.wrong), self.count, "\n".join(self.wrong))


def idx_bytes(count, size=28, seed=1, classes=10):
    """Images and labels of a set that can be learned: each class has a bright row of its own."""
    r = random.Random(seed)
    labels = bytes(r.randrange(classes) for _ in range(count))
    images = bytearray(r.randbytes(count * size * size))
    for i, label in enumerate(labels):
        at = i * size * size + (2 * label + 3) % size * size
        images[at:at + size] = b"\xff" * size
    return (struct.pack(">IIII", 0x803, count, size, size) + bytes(images),
            struct.pack(">II", 0x801, count) + labels)


def fashion(snug, count=2000, split="train", compress=False, name="FashionMNIST"):
    """Files of a small FashionMNIST (or MNIST) beside the graph; their folder."""
    folder = os.path.join(snug.dir, "data", name, "raw")
    os.makedirs(folder, exist_ok=True)
    for part, data in zip(("images-idx3", "labels-idx1"), idx_bytes(count, seed=len(split))):
        name = os.path.join(folder, "%s-%s-ubyte" % ({"train": "train", "test": "t10k"}[split], part))
        with (gzip.open(name + ".gz", "wb", 1) if compress else open(name, "wb")) as out:
            out.write(data)
    return folder


def put(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as out:
        out.write(data)
    return path


def get(path):
    with open(path, "rb") as f:
        return f.read()


def add(graph, ident, kind, params=None, *wires):
    """Adds a node; each wire (node, port, node, port)."""
    graph["nodes"].append({"id": ident, "type": kind, "position": {"x": 0, "y": 0}, "data": {"params": params or {}}})
    for a, p, b, q in wires:
        graph["edges"].append({"id": "x%d" % len(graph["edges"]), "source": a, "sourceHandle": p,
                               "target": b, "targetHandle": q})
    return graph


def saving_graph(model=harness.MLP, path="final.safetensors", **params):
    """A training graph whose trained weights are saved under SNUG_HOME/models."""
    graph = harness.training_graph(model, **params)
    return add(graph, "save", "ModelSaver", {"path": path, "format": "safetensors"}, ("train", "model", "save", "model"))


def weights(path):
    """The bytes of every tensor of a safetensors file, without its metadata."""
    data = get(path)
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
            for k, v in header.items()}
