"""Damaged files: graphs, data sets, pictures, weights and checkpoints, cut and changed everywhere."""
import glob
import gzip
import io
import json
import os
import random
import struct
import zipfile

import attack
import harness


def test_malformed_graphs(snug):
    cases = attack.Cases(snug)
    files = sorted(glob.glob(os.path.join(snug.root, "tests/corpus/graph/*.json")))
    assert len(files) >= 40, len(files)
    for path in files:
        name = os.path.basename(path)
        for command in ("validate", "plan", "run"):
            # A fault in a part that Start does not reach is a draft: only `validate` minds.
            draft = command != "validate" and name.startswith("unknown-")
            result = cases.fails("%s %s" % (command, name), command, path, rc=(0, 1) if draft else (1,))
            if result and result.rc and not draft and name not in result.doc["error"]["message"]:
                cases.wrong.append("%s %s: the file is not named: %s" % (command, name, result.doc["error"]))
    cases.end()


def test_layer_documents(snug):
    cases = attack.Cases(snug)
    attack.fashion(snug, 64)
    for path in sorted(glob.glob(os.path.join(snug.root, "tests/corpus/layers/*"))):
        with open(path, "rb") as f:
            text = f.read().decode("utf-8", "replace")
        name = os.path.basename(path)
        r = random.Random(name)
        texts = [text] + [text[:r.randrange(len(text))] for _ in range(4)]
        for _ in range(6):
            at = r.randrange(len(text))
            texts.append(text[:at] + r.choice("0{}[]\",:-9e") + text[at + 1:])
        texts += [text.replace(":", ": 99999999999", 3), text.replace('"Conv2d"', '"Nope"')]
        for i, t in enumerate(texts):
            graph = snug.write("graph.json", harness.training_graph(t, loader__batch_size=2, train__max_steps=1))
            result = cases.call("%s %d" % (name, i), "plan", graph)
            if result and result.rc == 1 and result.doc["error"]["node_id"] not in ("model", "train", "loss"):
                cases.wrong.append("%s %d: node not named: %r" % (name, i, result.doc["error"]))
    cases.end()


def cuts(data):
    """Every kind of place to cut a gzip file: header, blocks, checksum, length."""
    n = len(data)
    return [0, 1, 2, 3, 9, 10, 11, 40, n // 3, n // 2, n - 100, n - 9, n - 8, n - 5, n - 4, n - 1]


def test_damaged_idx(snug):
    cases = attack.Cases(snug)
    if os.path.exists("/usr/share/datasets/MNIST") or os.path.exists("/usr/share/datasets/mnist"):
        raise harness.Skip("MNIST is installed, where a missing file would be found")
    folder = attack.fashion(snug, 300, compress=True, name="MNIST")
    graph = snug.write("graph.json", harness.training_graph(train__max_steps=1, data__name="MNIST"))
    images, labels = (os.path.join(folder, "train-%s-ubyte.gz" % p) for p in ("images-idx3", "labels-idx1"))
    good = {images: attack.get(images), labels: attack.get(labels)}
    plain = {path: gzip.decompress(data) for path, data in good.items()}
    assert cases.call("whole", "run", graph).rc == 0

    def bad(what, path, data, *words):
        attack.put(path, data)
        cases.fails(what, "run", graph, node="data", words=(os.path.basename(path),) + words)
        attack.put(path, good[path])

    for path in good:
        for n in cuts(good[path]):
            bad("%s cut at %d" % (os.path.basename(path), n), path, good[path][:n])
        for at in (0, 1, 2, 3, 12, 60, len(good[path]) // 2, len(good[path]) - 6, len(good[path]) - 2):
            data = bytearray(good[path])
            data[at] ^= 0x55
            attack.put(path, bytes(data))
            cases.call("%s changed at %d" % (os.path.basename(path), at), "run", graph)
            attack.put(path, good[path])
        head = plain[path]
        bad("magic", path, b"\1" + head[1:], "idx")
        bad("element type", path, head[:2] + b"\x0d" + head[3:], "type")
        bad("rank", path, head[:3] + b"\7" + head[4:], "dimensions")
        bad("2^32 - 1 items", path, head[:4] + b"\xff\xff\xff\xff" + head[8:])
        bad("no items", path, head[:4] + b"\0\0\0\0" + head[8:], "no items")
        bad("one item more than there is", path, gzip.compress(head[:4] + struct.pack(">I", 301) + head[8:], 1))
        bad("one item fewer", path, gzip.compress(head[:4] + struct.pack(">I", 299) + head[8:], 1), "longer")
        for n in (0, 3, 7, 8, 15, 17, len(head) - 1):
            if n < len(head):
                bad("plain, cut at %d" % n, path, head[:n])
    bad("count mismatch", labels, gzip.compress(attack.idx_bytes(299)[1], 1), "299", "300")
    bad("label 10", labels, gzip.compress(plain[labels][:-1] + b"\x0a", 1), "label", "10")
    bad("27 x 28 pixels", images, gzip.compress(attack.idx_bytes(300, 27)[0], 1), "27")
    bad("all sizes 2^32 - 1", images, plain[images][:4] + b"\xff" * 12 + plain[images][16:])
    for path in good:
        os.remove(path)
        cases.fails("without " + path, "run", graph, node="data")
        os.mkdir(path)
        cases.fails("folder in place of " + path, "run", graph, node="data")
        os.rmdir(path)
        os.symlink(path, path)
        cases.fails("link to itself", "run", graph, node="data")
        os.remove(path)
        os.mkfifo(path)
        cases.fails("pipe in place of " + path, "run", graph, node="data", timeout=20)
        os.remove(path)
        attack.put(path, good[path])
    cases.end()


def test_damaged_cifar(snug):
    cases = attack.Cases(snug)
    folder = os.path.join(snug.dir, "data", "cifar-10-batches-bin")
    r = random.Random(3)
    batch = b"".join(bytes([r.randrange(10)]) + r.randbytes(3072) for _ in range(20))
    files = [os.path.join(folder, "data_batch_%d.bin" % i) for i in range(1, 6)]
    for path in files:
        attack.put(path, batch)
    model = harness.layers(("Flatten", {}), ("Linear", {"in_features": 3072, "out_features": 10}))
    graph = snug.write("graph.json", harness.training_graph(model, data__name="CIFAR10", train__max_steps=1))
    first = cases.call("whole", "run", graph)
    if first and first.rc:
        cases.wrong.append("a small CIFAR10 does not run: %r" % first)
    for n in (0, 1, 3072, 3073 * 7 + 5, len(batch) - 1):
        attack.put(files[2], batch[:n])
        cases.fails("cut at %d" % n, "run", graph, node="data", words=("data_batch_3",))
    attack.put(files[2], batch[:3073] + b"\x0a" + batch[3074:])
    cases.fails("label 10", "run", graph, node="data", words=("data_batch_3", "label"))
    os.remove(files[2])
    cases.fails("a file is missing", "run", graph, node="data", words=("data_batch_3",))
    for path in files:
        if os.path.exists(path):
            os.remove(path)
    # Python's own form of the set: a pickle, which must not run anything.
    folder = os.path.join(snug.dir, "data", "cifar-10-batches-py")
    for kind, data in pickles().items():
        for i in range(1, 6):
            attack.put(os.path.join(folder, "data_batch_%d" % i), data)
        cases.fails("pickle: " + kind, "run", graph, node="data")
        assert not os.path.exists(os.path.join(snug.dir, "owned")), kind
    cases.end()


# A list of two lists of two lists ..., 2^60 in all where each is followed.
DOUBLING = b"]q\0" + b"".join(b"0]q%c(h%ch%ce" % (i, i - 1, i - 1) for i in range(1, 60))


def pickles():
    """Pickles that are not weights: code, bombs, cut and senseless ones."""
    code = b"cos\nsystem\n(S'touch owned'\ntR."
    bomb = b"\x80\x02]q\x00" + b"(" + b"h\x00" * 20000 + b"e."
    nest = b"\x80\x02" + b"(" * 50000 + b"t" * 50000 + b"."
    doubling = b"\x80\x02" + DOUBLING + b"."
    return {"system": code, "reduce": b"\x80\x02cbuiltins\neval\nX\x01\0\0\01\x85R.", "list of itself": bomb,
            "nested": nest, "doubling": doubling, "empty": b"", "no stop": b"\x80\x02}", "stop": b".",
            "long length": b"\x80\x02X\xff\xff\xff\x7fabc.", "frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff.",
            "negative": b"\x80\x02T\xff\xff\xff\xffabc.", "memo": b"\x80\x02h\xff.", "big integer": b"\x80\x02\x8b\xff\xff\xff\x7f."}


def test_image_folders(snug):
    cases = attack.Cases(snug)
    pictures = os.path.join(snug.root, "tests/corpus/image")
    png, jpg = attack.get(os.path.join(pictures, "rgb.png")), attack.get(os.path.join(pictures, "rgb.jpg"))
    root = os.path.join(snug.dir, "pictures")

    def folder_graph(path="pictures"):
        graph = harness.training_graph(
            harness.layers(("AdaptiveAvgPool2d", {"output_size": 1}), ("Flatten", {}),
                           ("Linear", {"in_features": 3, "out_features": 2})),
            loader__batch_size=4, train__max_steps=1)
        node = [n for n in graph["nodes"] if n["id"] == "data"][0]
        node["type"], node["data"]["params"] = "ImageFolderDataset", {"path": path, "split": "(none)"}
        attack.add(graph, "fit", "Transform", {"resize": 16, "to_tensor": True, "normalize": False},
                   ("data", "dataset", "fit", "dataset"))
        graph["edges"] = [e for e in graph["edges"] if e["target"] != "loader"]
        graph["edges"].append({"id": "f", "source": "fit", "sourceHandle": "dataset", "target": "loader",
                               "targetHandle": "dataset"})
        return snug.write("graph.json", graph)

    graph = folder_graph()
    cases.fails("no folder", "run", graph, words=("pictures",), node="data")
    os.mkdir(root)
    cases.fails("no class", "run", graph, words=("pictures",), node="data")
    attack.put(os.path.join(root, "one", "a.txt"), b"text")
    cases.fails("a class without pictures", "run", graph, words=("one",), node="data")
    attack.put(os.path.join(root, "one", "a.png"), png)
    cases.call("one class", "run", graph)
    for i in range(4):
        attack.put(os.path.join(root, "two", "b%d.jpg" % i), jpg)
    good = cases.call("two classes", "run", graph)
    if good and good.rc:
        cases.wrong.append("two classes do not run: %r" % good)
    victim = os.path.join(root, "one", "a.png")
    for kind, data in (("png", png), ("jpg", jpg)):
        os.remove(victim)
        victim = os.path.join(root, "one", "a." + kind)
        for n in (0, 1, 7, 8, 20, 30, len(data) // 2, len(data) - 20):
            attack.put(victim, data[:n])
            cases.fails("%s cut at %d" % (kind, n), "run", graph, words=("a." + kind,))
        r = random.Random(kind)
        for _ in range(12):
            changed = bytearray(data)
            for _ in range(3):
                changed[r.randrange(len(data))] = r.randrange(256)
            attack.put(victim, bytes(changed))
            cases.call("%s changed" % kind, "run", graph)
        attack.put(victim, b"GIF89a" + data[6:])
        cases.fails("a GIF named " + kind, "run", graph, words=("a." + kind,))
    huge = bytearray(png)
    huge[16:24] = struct.pack(">II", 0x7fffffff, 0x7fffffff)
    attack.put(victim, bytes(huge))
    cases.fails("2^31 - 1 pixels wide", "run", graph, rc=(1, 3), words=("a.jpg",))
    for path in ("", "\u0001", "x" * 5000, "pictures/one/a.jpg", "/proc/self/mem", "/dev/zero"):
        cases.fails("path %.20r" % path, "run", folder_graph(path), node="data")
    cases.end()


def trained(snug):
    """A checkpoint, weights as .pt and .safetensors of a short run; the paths."""
    attack.fashion(snug, 64)
    graph = attack.saving_graph(train__max_steps=2, train__checkpoint_every_steps=1, loader__batch_size=8)
    attack.add(graph, "pt", "ModelSaver", {"path": "final.pt"}, ("train", "model", "pt", "model"))
    result = snug.json("run", snug.write("train.json", graph), env=attack.SANITIZERS)
    assert result.rc == 0, result
    models = os.path.join(snug.home, "models")
    (checkpoint,) = glob.glob(os.path.join(models, "periodic", "*2.pt"))
    return checkpoint, os.path.join(models, "final.pt"), os.path.join(models, "final.safetensors")


def loading_graph(snug, kind, path):
    graph = harness.training_graph(train__max_steps=1, loader__batch_size=8)
    if kind == "model":
        attack.add(graph, "load", "ModelLoader", {"path": path}, ("model", "model", "load", "model"))
    else:
        attack.add(graph, "load", "CheckpointLoader", {"path": path}, ("model", "model", "load", "model"),
                   ("optimizer", "optimizer", "load", "optimizer"))
    for edge in graph["edges"]:
        if edge["target"] == "train" and edge["targetHandle"] in ("model", "optimizer"):
            if edge["targetHandle"] == "model" or kind != "model":
                edge["source"] = "load"
    return snug.write("load-%s.json" % kind, graph)


def damages(data, r, several):
    """(what, bytes): cuts and changes over the whole file, more where the structure is."""
    n = len(data)
    for at in [0, 1, 4, 8, 30, n // 4, n // 2, n - 30, n - 22, n - 4, n - 1]:
        yield "cut at %d" % at, data[:at]
    for _ in range(several):
        at = r.choice([r.randrange(n), r.randrange(min(n, 600)), n - 1 - r.randrange(min(n, 900))])
        changed = bytearray(data)
        changed[at] ^= 1 << r.randrange(8)
        yield "bit at %d" % at, bytes(changed)
    yield "longer", data + b"more"
    yield "zeros", bytes(n)
    yield "not a file of this kind", b"hello" * 100


def test_damaged_weights(snug):
    cases = attack.Cases(snug)
    checkpoint, pt, safe = trained(snug)
    r = random.Random(5)
    for kind, source in (("model", pt), ("model", safe), ("checkpoint", checkpoint)):
        bad = os.path.join(os.path.dirname(safe), "bad" + os.path.splitext(source)[1])
        graph = loading_graph(snug, kind, os.path.basename(bad))
        good = attack.get(source)
        attack.put(bad, good)
        assert cases.call("whole " + source, "run", graph).rc == 0
        for what, data in damages(good, r, 12):
            attack.put(bad, data)
            # A bit in a name of the zip's directory or in padding may be harmless, or a bit of a weight in
            # safetensors, which has no checksum: such a file may load, a cut one never.
            rc = (0, 1) if what.startswith("bit") or what == "longer" else (1,)
            cases.fails("%s %s" % (os.path.basename(source), what), "run", graph, rc=rc,
                        words=() if 0 in rc else ("bad",))
        os.remove(bad)
        cases.fails("missing", "run", graph, words=("bad",))
        os.mkdir(bad)
        cases.fails("folder", "run", graph, words=("bad",))
        os.rmdir(bad)
    cases.end()


def test_resume_from_damaged(snug):
    cases = attack.Cases(snug)
    checkpoint, pt, safe = trained(snug)
    graph = os.path.join(snug.dir, "train.json")
    good, r = attack.get(checkpoint), random.Random(6)
    bad = os.path.join(snug.dir, "bad.pt")
    for what, data in damages(good, r, 12):
        attack.put(bad, data)
        rc = (0, 1) if what.startswith("bit") or what == "longer" else (1,)
        cases.fails(what, "run", graph, "--resume", bad, rc=rc, words=() if 0 in rc else ("bad.pt",))
    for path in (pt, safe, snug.dir, os.path.join(snug.dir, "none.pt"), "/dev/null", "/proc/self/mem"):
        cases.fails("resume from " + path, "run", graph, "--resume", path, words=(os.path.basename(path),))
    # auto: the newest is damaged, an older one is whole.
    attack.put(checkpoint, good[:len(good) // 2])
    result = cases.call("auto", "run", graph, "--resume", "auto")
    if result and result.rc == 0 and not result.doc.get("resumed_from", "").endswith("1.pt"):
        cases.wrong.append("auto took %r" % result.doc.get("resumed_from"))
    cases.end()


def test_resume_of_another_run(snug):
    cases = attack.Cases(snug)
    checkpoint, _, _ = trained(snug)
    wide = harness.layers(("Flatten", {}), ("Linear", {"in_features": 784, "out_features": 33}), ("ReLU", {}),
                          ("Linear", {"in_features": 33, "out_features": 10}))
    deep = harness.layers(("Flatten", {}), ("Linear", {"in_features": 784, "out_features": 32}), ("ReLU", {}),
                          ("Linear", {"in_features": 32, "out_features": 32}),
                          ("Linear", {"in_features": 32, "out_features": 10}))
    for what, params in (("wider", {"model": wide}), ("deeper", {"model": deep})):
        graph = snug.write("other.json", harness.training_graph(train__max_steps=3, loader__batch_size=8, **params))
        cases.fails(what, "run", graph, "--resume", checkpoint, words=(os.path.basename(checkpoint), "32"))
        load = loading_graph(snug, "checkpoint", checkpoint)
        with open(load) as f:
            doc = json.load(f)
        [n for n in doc["nodes"] if n["id"] == "model"][0]["data"]["params"]["layers"] = params["model"]
        cases.fails(what + ", loaded", "run", snug.write("other.json", doc), words=(os.path.basename(checkpoint),))
    for key, value in (("optimizer__type", "SGD"), ("loader__batch_size", 16), ("train__accumulate_steps", 3),
                       ("train__precision", "fp16")):
        graph = snug.write("other.json", attack.saving_graph(train__max_steps=3, **{key: value}))
        cases.call("another " + key, "run", graph, "--resume", checkpoint)
    cases.end()


def test_hostile_state(snug):
    """A real checkpoint with one entry replaced by what it should not be."""
    cases = attack.Cases(snug)
    attack.fashion(snug, 64)
    graph = harness.training_graph(train__max_steps=2, train__checkpoint_every_steps=1, loader__batch_size=8,
                                   train__precision="fp16", train__accumulate_steps=2)
    attack.add(graph, "schedule", "LRScheduler", {"type": "StepLR"}, ("optimizer", "optimizer", "schedule", "optimizer"),
               ("schedule", "scheduler", "train", "lr_scheduler"))
    path = snug.write("graph.json", graph)
    assert cases.call("whole", "run", path).rc == 0
    (checkpoint,) = glob.glob(os.path.join(snug.home, "models", "periodic", "*1.pt"))
    with zipfile.ZipFile(checkpoint) as z:
        files = {name: z.read(name) for name in z.namelist()}
    (name,) = [n for n in files if n.endswith("data.pkl")]
    assert files[name].endswith(b".")
    values = {"doubling": DOUBLING, "a list of itself": b"]q\0h\0a", "none": b"N", "text": b"X\x01\0\0\0a",
              "nan": b"G\x7f\xf8\0\0\0\0\0\0", "-1": b"J\xff\xff\xff\xff", "2^62": b"\x8a\x08\0\0\0\0\0\0\0@",
              "empty": b"}", "2^200": b"\x8a\x1a" + b"\0" * 25 + b"\1"}
    keys = ["epoch", "model_state_dict", "optimizer_state_dict", "scheduler_state_dict", "scaler_state_dict", "losses",
            "initial_lrs", "snug"]

    def text(key):
        return b"X" + struct.pack("<I", len(key)) + key.encode()

    def entry(key, value):
        return text(key) + value + b"s"

    def replaced(pickle, key, addition):
        """The entry gets another name, and the addition takes its place."""
        assert text(key) in pickle, key
        return pickle.replace(text(key), text("z" * len(key)), 1)[:-1] + addition + b"."

    hostile = {"%s: %s" % (k, v): (k, values[v]) for k in keys for v in values}
    inner = {"scheduler_state_dict": ("last_epoch", "base_lrs", "_step_count", "step_size", "gamma", "_last_lr"),
             "scaler_state_dict": ("scale", "growth_factor", "growth_interval", "_growth_tracker"),
             "optimizer_state_dict": ("state", "param_groups"),
             "snug": ("position", "counters", "running", "early", "seed", "losses", "optimizer_params", "threads")}
    parts = {"position": ("epoch", "batch", "batches", "batch_size"), "running": ("loss_sum", "loss_count"),
             "counters": ("total_steps", "total_batches", "optimizer_steps", "skipped_steps", "last_lr"),
             "early": ("best", "best_epoch", "counter", "has_best", "stopped")}
    for kind, value in values.items():
        for key, names in inner.items():
            for k in names:
                hostile["%s.%s: %s" % (key, k, kind)] = (key, b"}" + entry(k, value))
        for part, names in parts.items():
            own = b"}" + entry(part, b"}" + b"".join(entry(k, value) for k in names))
            hostile["snug.%s: {%s}" % (part, kind)] = ("snug", own)
    bad = os.path.join(snug.dir, "bad.pt")
    some = sorted(hostile) if os.environ.get("SNUG_SOAK") == "1" else (
        ["snug.position: {-1}", "snug.counters: {-1}"] + random.Random(7).sample(sorted(hostile), 70))
    for what in some:
        key, value = hostile[what]
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as z:
            for n, data in files.items():
                z.writestr(n, replaced(data, key, entry(key, value)) if n == name else data)
        attack.put(bad, out.getvalue())
        result = cases.call(what, "run", path, "--resume", bad, timeout=30)
        if result and result.rc == 0 and what in ("snug.position: {-1}", "snug.counters: {-1}"):
            cases.wrong.append(what + ": accepted")
    cases.end()


def zip_of(pickle, storages=()):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("a/data.pkl", pickle)
        for key, data in storages:
            z.writestr("a/data/" + key, data)
        z.writestr("a/version", "3\n")
    return out.getvalue()


def tensor_pickle(shape, stride, offset=0, elements=4, kind="FloatStorage"):
    """{'losses': tensor} with any geometry over a storage '0'."""
    def integer(v):
        return b"\x8a\x09" + v.to_bytes(9, "little", signed=True)
    return (b"\x80\x02}q\x00X\x06\0\0\0lossesctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n" +
            kind.encode() + b"\nX\x01\0\0\0" + b"0X\x03\0\0\0cpu" + integer(elements) + b"tQ" + integer(offset) +
            b"(" + b"".join(map(integer, shape)) + b"t(" + b"".join(map(integer, stride)) +
            b"t\x89ccollections\nOrderedDict\n)RtRs.")


def test_hostile_pickles(snug):
    cases = attack.Cases(snug)
    trained(snug)
    bad = os.path.join(snug.home, "models", "bad.pt")
    four = [("0", bytes(16))]
    files = {"bare " + k: v for k, v in pickles().items()}
    files.update({"zip " + k: zip_of(v) for k, v in pickles().items()})
    big = 1 << 62
    for shape, stride, offset, elements in (
            ([big], [0], 0, 4), ([big, 4], [0, 0], 0, 4), ([1 << 40], [0], 0, 4), ([5], [1], 0, 4), ([4], [1], 1, 4),
            ([4], [-1], 3, 4), ([-4], [1], 0, 4), ([4], [1], -1, 4), ([2], [big], 0, 4), ([4], [1], 0, big),
            ([4], [1], 0, -4), ([4], [1], 0, 5), ([0, big], [1, 1], 0, 4), ([1] * 70, [1] * 70, 0, 4)):
        name = "tensor %s stride %s offset %s of %s" % (str(shape)[:40], str(stride)[:40], offset, elements)
        files[name] = zip_of(tensor_pickle(shape, stride, offset, elements), four)
    files["no storage"] = zip_of(tensor_pickle([4], [1]))
    files["compressed bomb"] = bomb()
    for kind in ("model", "checkpoint"):
        graph = loading_graph(snug, kind, "bad.pt")
        for name, data in files.items():
            attack.put(bad, data)
            rc = (1, 3) if "tensor" in name else (1,)
            cases.fails("%s, %s" % (kind, name), "run", graph, rc=rc, words=("bad.pt",), timeout=30)
            assert not os.path.exists(os.path.join(snug.dir, "owned")), name
    cases.end()


def bomb():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("a/data.pkl", b"\x80\x02" + b"N0" * 20000000 + b"}.")
    return out.getvalue()


def test_hostile_safetensors(snug):
    cases = attack.Cases(snug)
    trained(snug)
    bad = os.path.join(snug.home, "models", "bad.safetensors")
    graph = loading_graph(snug, "model", "bad.safetensors")

    def file_of(header, body=b"", length=None):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(text) if length is None else length) + text + body

    def tensor(**more):
        return {"1.weight": dict({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, **more)}

    files = {
        "length 2^64 - 1": file_of(b"{}", length=(1 << 64) - 1), "length past the end": file_of(b"{}", length=100),
        "no JSON": file_of(b"{]"), "an array": file_of([]), "deep": file_of(b"[" * 100000), "empty": file_of({}),
        "dtype": file_of(tensor(dtype="F33"), bytes(8)), "offsets swapped": file_of(tensor(data_offsets=[8, 0]), bytes(8)),
        "offsets past the end": file_of(tensor(data_offsets=[0, 80]), bytes(8)),
        "negative offset": file_of(tensor(data_offsets=[-8, 0]), bytes(8)),
        "huge offsets": file_of(tensor(data_offsets=[(1 << 63) - 8, (1 << 63) - 1]), bytes(8)),
        "negative size": file_of(tensor(shape=[-2]), bytes(8)), "size": file_of(tensor(shape=[3]), bytes(8)),
        "shape overflows": file_of(tensor(shape=[1 << 32, 1 << 32, 1 << 2]), bytes(8)),
        "rank 100": file_of(tensor(shape=[1] * 99 + [2]), bytes(8)), "shape text": file_of(tensor(shape="2"), bytes(8)),
        "fraction": file_of(tensor(shape=[2.5]), bytes(8)), "no offsets": file_of({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
        "overlap": file_of(dict(tensor(), b=tensor()["1.weight"]), bytes(8)), "gap": file_of(tensor(), bytes(16)),
        "twice": file_of(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
        "wrong names": file_of(tensor(), bytes(8)), "metadata": file_of({"__metadata__": 5}),
    }
    for name, data in files.items():
        attack.put(bad, data)
        cases.fails(name, "run", graph, words=("bad.safetensors",))
    cases.end()
