"""TensorBoard's event files, read by a decoder that knows the formats and nothing of snug (reference 4.5)."""
import math
import os
import struct

import harness


def crc32c(data):
    """CRC-32C by its table, as RFC 3720 describes it."""
    if not crc32c.table:
        for i in range(256):
            for _ in range(8):
                i = (i >> 1) ^ (0x82F63B78 if i & 1 else 0)
            crc32c.table.append(i)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc32c.table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


crc32c.table = []


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The records of a TFRecord file; every check must hold, and nothing may be left."""
    at = 0
    while at < len(data):
        (length,), (check,) = struct.unpack_from("<Q", data, at), struct.unpack_from("<I", data, at + 8)
        assert check == masked(data[at:at + 8]), "length at %d" % at
        body = data[at + 12:at + 12 + length]
        assert len(body) == length, "cut off at %d" % at
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body), "data at %d" % at
        yield body
        at += 16 + length


def fields(data):
    """(number, value) of a message of protocol buffers: int, float (32 and 64 bits) or bytes."""
    def varint(at):
        value = shift = 0
        while True:
            byte = data[at]
            value |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                return value, at
    at = 0
    while at < len(data):
        key, at = varint(at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 2:
            n, at = varint(at)
            value, at = data[at:at + n], at + n
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            raise AssertionError("wire type %d" % kind)
        yield number, value


def events(path):
    """(wall time, step, tag, value) of each scalar; the first record must be the version's."""
    first, found = True, []
    with open(path, "rb") as f:
        for body in records(f.read()):
            event = dict(fields(body))
            assert 1.6e9 < event[1] < 1e10, event
            if first:
                assert event[3] == b"brain.Event:2" and 5 not in event, event
                first = False
                continue
            (number, value), = fields(event[5])
            assert number == 1
            point = dict(fields(value))
            found.append((event[1], event[2], point[1].decode(), point[2]))
    return found


def board(folder):
    names = os.listdir(folder)
    assert len(names) == 1, names
    prefix, sec, rest = names[0][:len("events.out.tfevents")], names[0].split(".")[3], names[0].split(".")
    assert prefix == "events.out.tfevents" and sec.isdigit(), names
    assert rest[-2].isdigit() and len(rest[-1]) == 8 and int(rest[-1], 16) >= 0, names
    return events(os.path.join(folder, names[0]))


def test_crc(snug):
    assert crc32c(b"123456789") == 0xE3069283


def test_series_of_a_loop(snug):
    harness.need_fashion()
    graph = harness.training_graph(
        validate=True, train__max_steps=0, train__epochs=2, train__batch_metrics=True, train__log_interval=1000,
        train__val_every_steps=0, loader__batch_size=600)
    out = os.path.join(snug.dir, "boards")
    result = snug.json("run", snug.write("graph.json", graph), "--tensorboard", out)
    assert result.rc == 0, result
    points = board(os.path.join(out, "train"))
    by = {}
    for _, step, tag, value in points:
        by.setdefault(tag, []).append((step, value))
    metrics = result.doc["metrics"]
    assert [s for s, _ in by["train_loss"]] == [1, 2], by["train_loss"]
    for (_, got), wanted in zip(by["train_loss"], metrics["losses"]):
        assert math.isclose(got, wanted, rel_tol=1e-5), (got, wanted)
    for (_, got), wanted in zip(by["val_loss"], metrics["val_losses"]):
        assert math.isclose(got, wanted, rel_tol=1e-5), (got, wanted)
    assert {"train_loss", "lr", "val_loss", "val_accuracy"} <= set(by), by.keys()
    assert any(e.get("event") == "tensorboard" for e in result.events), result


def test_parameter_of_the_loop(snug):
    harness.need_fashion()
    graph = harness.training_graph(train__max_steps=5, train__batch_metrics=True, train__tensorboard=True)
    result = snug.json("run", snug.write("graph.json", graph))
    assert result.rc == 0, result
    path, = [e["path"] for e in result.events if e.get("event") == "tensorboard"]
    assert path.startswith(os.path.join(snug.home, "tb")) and os.path.dirname(path).endswith("/train"), path
    steps = [step for _, step, tag, _ in events(path) if tag == "train_loss_batch"]
    assert steps == [1, 2, 3, 4, 5], steps
    off = snug.json("run", snug.write("off.json", harness.training_graph(train__max_steps=2)))
    assert not any(e.get("event") == "tensorboard" for e in off.events), off
