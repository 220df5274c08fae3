#!/usr/bin/python3
"""Writes tests/corpus/snapshot: one small memory snapshot in every form that the reader knows, and
files that it must refuse. The forms are written here by hand (a pickler like the C++ one of PyTorch) or
by Python's pickle; none holds anything but numbers, texts, lists and dictionaries.

    python3 tests/support/make_snapshots.py [FOLDER]
"""
import base64
import copy
import json
import os
import pickle
import struct
import sys

MIB = 1 << 20
BASE = 0x7F0000000000


def frame(name, filename, line):
    return {"name": name, "filename": filename, "line": line}


MAIN = frame("main", "train.py", 12)
STEP = frame("step", "train.py", 40)
GATHER = frame("torch::unwind::unwind()", "??", 0)


def event(action, addr, size, time_us, frames, stream=0):
    return {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": time_us,
            "compile_context": "N/A", "user_metadata": "", "frames": frames}


def block(size, requested, state, frames, address):
    return {"address": address, "size": size, "requested_size": requested, "state": state,
            "frames": frames}


def snapshot():
    """Device 0: a block from before the recording, two allocations of the recording, one of them
    freed, then a request that fails. Device 1: one segment of a private pool, no events."""
    first, second = [GATHER, MAIN], [GATHER, STEP, MAIN]
    trace = [
        event("segment_alloc", BASE + 20 * MIB, 20 * MIB, 1000, first),
        event("alloc", BASE + 20 * MIB, 5 * MIB + 1, 1001, first),
        event("alloc", BASE + 25 * MIB + 512, 3 * MIB, 1002, second),
        event("free_requested", BASE + 20 * MIB, 5 * MIB + 1, 1003, second),
        event("free_completed", BASE + 20 * MIB, 5 * MIB + 1, 1004, second),
        {"action": "oom", "device_free": 7 * MIB, "size": 64 * MIB, "stream": 0, "time_us": 1005,
         "compile_context": "N/A", "user_metadata": "last", "frames": second},
    ]
    segments = [
        {"device": 0, "address": BASE, "total_size": 2 * MIB, "allocated_size": 1024,
         "active_size": 1024, "requested_size": 1000, "stream": 0, "segment_type": "small",
         "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
         "blocks": [block(1024, 1000, "active_allocated", [], BASE),
                    block(2 * MIB - 1024, 0, "inactive", [], BASE + 1024)]},
        {"device": 0, "address": BASE + 20 * MIB, "total_size": 20 * MIB, "allocated_size": 3 * MIB,
         "active_size": 3 * MIB, "requested_size": 3 * MIB, "stream": 0, "segment_type": "large",
         "segment_pool_id": (0, 0), "is_expandable": False, "frames": first,
         "blocks": [block(5 * MIB + 512, 5 * MIB + 1, "inactive", [], BASE + 20 * MIB),
                    block(3 * MIB, 3 * MIB, "active_allocated", second, BASE + 25 * MIB + 512),
                    block(12 * MIB - 512, 0, "inactive", [], BASE + 28 * MIB + 512)]},
        {"device": 1, "address": BASE, "total_size": 2 * MIB, "allocated_size": 0,
         "active_size": 512, "requested_size": 512, "stream": 94, "segment_type": "small",
         "segment_pool_id": (0, 1), "is_expandable": False, "frames": [],
         "blocks": [block(512, 512, "active_pending_free", first, BASE),
                    block(2 * MIB - 512, 0, "inactive", [], BASE + 512)]},
    ]
    roundup = {str(1 << k): (8 if k == 3 else 0) for k in range(16)}
    return {
        "segments": segments,
        "device_traces": [trace, []],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:[8:8]", "max_split_size": -1,
            "garbage_collection_threshold": 0.5, "expandable_segments": False,
            "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False, "roundup_power2_divisions": roundup},
        "external_annotations": [
            {"name": "Optimizer.step#SGD.step", "stage": "START", "device": 0, "time_us": 1003},
            {"name": "Optimizer.step#SGD.step", "stage": "END", "device": 0, "time_us": 1004}],
    }


class CppPickler:
    """As torch/csrc/jit/serialization/pickler.cpp writes with tag_aggregates off: protocol 2, texts
    memoized, integers of 64 bits as LONG1 of 8 bytes, containers in one batch, also empty ones."""

    def __init__(self):
        self.out = bytearray(b"\x80\x02")
        self.memo = {}

    def number(self, v):
        if 0 <= v < 1 << 8:
            self.out += b"K" + bytes([v])
        elif 0 <= v < 1 << 16:
            self.out += b"M" + struct.pack("<H", v)
        elif -(1 << 31) <= v < 1 << 31:
            self.out += b"J" + struct.pack("<i", v)
        else:
            self.out += b"\x8a\x08" + struct.pack("<q", v)

    def text(self, s):
        if s in self.memo:
            n = self.memo[s]
            self.out += b"h" + bytes([n]) if n < 256 else b"j" + struct.pack("<I", n)
            return
        raw = s.encode()
        self.out += b"X" + struct.pack("<I", len(raw)) + raw
        n = self.memo[s] = len(self.memo)
        self.out += b"q" + bytes([n]) if n < 256 else b"r" + struct.pack("<I", n)

    def value(self, v):
        if v is None:
            self.out += b"N"
        elif isinstance(v, bool):
            self.out += b"\x88" if v else b"\x89"
        elif isinstance(v, int):
            self.number(v)
        elif isinstance(v, float):
            self.out += b"G" + struct.pack(">d", v)
        elif isinstance(v, str):
            self.text(v)
        elif isinstance(v, dict):
            self.out += b"}("
            for k, w in v.items():
                self.value(k)
                self.value(w)
            self.out += b"u"
        elif isinstance(v, tuple):
            self.out += b"("
            for w in v:
                self.value(w)
            self.out += b"t"
        else:
            self.out += b"]("
            for w in v:
                self.value(w)
            self.out += b"e"

    def dump(self, v):
        self.value(v)
        return bytes(self.out + b".")


def page(snap):
    data = pickle.dumps(snap, 4)
    data += b"\x00" * (3 - len(data) % 3)
    text = json.dumps([{"name": "snapshot.pickle", "base64": base64.b64encode(data).decode()}])
    return ("<!DOCTYPE html>\n<html>\n<body>\n<script type=\"module\">\n"
            "add_local_files(%s, 'Active Memory Timeline')\n</script>\n</body>\n" % text).encode()


def plain(snap):
    """Snapshots as JSON can say them: without tuples."""
    return json.loads(json.dumps(snap))


def shared(snap):
    """JSON whose stacks are numbers."""
    snap, stacks = plain(snap), []

    def number(frames):
        if frames not in stacks:
            stacks.append(frames)
        return stacks.index(frames)

    for t in snap["device_traces"]:
        for e in t:
            e["frames"] = number(e["frames"])
            e.update(node="train", category="activation", what="conv1", step=3)
    for s in snap["segments"]:
        s["frames"] = number(s["frames"])
        for b in s["blocks"]:
            b["frames"] = number(b["frames"])
    frames = []
    for s in stacks:
        for i, f in enumerate(s):
            if f not in frames:
                frames.append(f)
            s[i] = frames.index(f)
    snap["snug"] = {"version": "0.1.0", "device": "cpu", "capacity_bytes": 64 * MIB, "frames": frames,
                    "stacks": stacks}
    return snap


def old(snap):
    """As 2.0 wrote it: 9 keys of a segment, frames of blocks in their history, no settings."""
    snap = copy.deepcopy(snap)
    for t in snap["device_traces"]:
        for e in t:
            for k in ("time_us", "compile_context", "user_metadata"):
                del e[k]
    for s in snap["segments"]:
        for k in ("requested_size", "segment_pool_id", "is_expandable"):
            del s[k]
        at = s["address"]
        for b in s["blocks"]:
            size = b.pop("requested_size")
            frames = b.pop("frames")
            b["history"] = [{"addr": at, "real_size": size, "frames": frames}] if size else []
            at += b["size"]
            del b["address"]
    return {"segments": snap["segments"], "device_traces": snap["device_traces"]}


def lenient(snap):
    """Pool ids as lists, keys and events nobody knows, numbers that are -1 as nine bytes."""
    snap = copy.deepcopy(snap)
    for s in snap["segments"]:
        s["segment_pool_id"] = list(s["segment_pool_id"])
        s["something_new"] = {"deep": [[[{"er": (1, 2.5, None, True)}]]]}
    for t in snap["device_traces"]:
        for e in t:
            e["pool_id"] = (0, 0)
            e["forward_frames"] = ["a", "b"]
    snap["host_traces"] = [[event("alloc", 1, 1, 1, [MAIN])]]
    snap["host_segments"] = []
    snap["allocator_settings"]["max_split_size"] = (1 << 64) - 1
    return snap


def good(snap):
    files = {"protocol%d.pickle" % p: pickle.dumps(snap, p) for p in (2, 3, 4, 5)}
    files["cpp.pickle"] = CppPickler().dump(snap)
    files["padded.pickle"] = files["protocol4.pickle"] + b"\x00\x00"
    files["python_pickler.pickle"] = pickle._dumps(snap, 3)
    files["old.pickle"] = pickle.dumps(old(snap), 3)
    files["list.pickle"] = pickle.dumps(snap["segments"], 2)
    files["lenient.pickle"] = pickle.dumps(lenient(snap), 4)
    files["page.html"] = page(snap)
    files["plain.json"] = json.dumps(plain(snap), indent=1).encode()
    files["shared.json"] = json.dumps(shared(snap)).encode()
    return files


def op(code, tail=b""):
    return b"\x80\x04]" + code + tail + b"."


def hostile():
    refused = {
        "global": b"cos\nsystem\n", "stack_global": b"\x8c\x02os\x8c\x06system\x93",
        "reduce": b"(tR", "build": b"}b", "inst": b"(ios\nsystem\n", "obj": b"(o", "newobj": b")\x81",
        "newobj_ex": b")}\x92", "persid": b"P1\n", "binpersid": b"Q", "ext1": b"\x82\x01",
        "ext2": b"\x83\x01\x00", "ext4": b"\x84\x01\x00\x00\x00", "next_buffer": b"\x97",
        "readonly_buffer": b"\x98"}
    files = {"refused_%s.pickle" % k: op(v) for k, v in refused.items()}
    segments = b"}\x94(\x8c\x08segments\x94"
    files["memo_get.pickle"] = op(b"h\x07")
    files["memo_put.pickle"] = op(b"r\xff\xff\xff\x0f")
    files["memo_gap.pickle"] = op(b"q\x05h\x03")
    files["frame.pickle"] = b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f]."
    files["frame_cut.pickle"] = b"\x80\x04\x95\x40\x00\x00\x00\x00\x00\x00\x00]."
    files["long9.pickle"] = op(b"\x8a\x09" + b"\xff" * 8 + b"\x00" + b"a")
    files["long9_wide.pickle"] = op(b"\x8a\x09" + b"\xff" * 9)
    files["long255.pickle"] = op(b"\x8a\xff" + b"\x01" * 255)
    files["long4.pickle"] = op(b"\x8b\xff\xff\xff\x7f")
    files["text.pickle"] = op(b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff")
    files["text_cut.pickle"] = op(b"X\xff\xff\x00\x00abc")
    files["marks.pickle"] = b"\x80\x02" + b"(" * 5000 + b"."
    files["unmarked.pickle"] = op(b"e")
    files["below_mark.pickle"] = op(b"(}NNs")
    files["append_below.pickle"] = op(b"(Na")
    files["odd_pairs.pickle"] = op(b"}(N" + b"u")
    files["self.pickle"] = b"\x80\x04]\x94h\x00a."
    files["two.pickle"] = b"\x80\x04]]."
    files["nothing.pickle"] = b"\x80\x04."
    files["number.pickle"] = b"\x80\x04K\x01."
    files["protocol1.pickle"] = b"\x80\x01]."
    files["protocol0.pickle"] = b"(lp0\n."
    files["protocol9.pickle"] = b"\x80\x09]."
    files["cut.pickle"] = pickle.dumps(snapshot(), 4)[:-40]
    files["other.pickle"] = pickle.dumps({"weights": [1.0] * 20, "epoch": 3}, 4)
    one, two = event("alloc", 512, 512, 1, []), []
    files["no_event.pickle"] = pickle.dumps({"segments": [], "device_traces": [[1, 2]]}, 4)
    files["no_list.pickle"] = pickle.dumps({"segments": [], "device_traces": [3]}, 4)
    trace = [one] * 50
    files["same_trace.pickle"] = pickle.dumps({"segments": [], "device_traces": [trace] * 500}, 4)
    seg = snapshot()["segments"][0]
    files["same_block.pickle"] = pickle.dumps(
        {"segments": [seg, dict(seg)], "device_traces": []}, 4)
    files["negative.pickle"] = pickle.dumps(
        {"segments": [], "device_traces": [[dict(one, size=1 << 61, action="alloc", addr=-512)]]}, 4)
    sizes = [dict(one, size=1 << 56) for _ in range(70)]
    files["sizes.pickle"] = pickle.dumps({"segments": [], "device_traces": [sizes]}, 4)
    files["device.pickle"] = pickle.dumps({"segments": [dict(seg, device=1 << 40)]}, 4)
    files["frames_number.pickle"] = pickle.dumps(
        {"segments": [], "device_traces": [[dict(one, frames=7)]]}, 4)
    files["no_frame.pickle"] = pickle.dumps(
        {"segments": [], "device_traces": [[dict(one, frames=["x"])]]}, 4)
    files["key_list.pickle"] = op(b"}(]N" + b"u")
    files["empty.pickle"] = b""
    files["page_without.html"] = b"<html><body>nothing</body></html>"
    files["page_cut.html"] = page(snapshot())[:400]
    for name, text in {
            "depth": "[" * 5000, "open": '{"segments": [', "comma": '{"segments": [,]}',
            "colon": '{"segments" []}', "tail": '{"segments": []} x', "escape": '{"\\q": 1}',
            "surrogate": '{"\\ud800": 1, "segments": []}', "words": "[tru]", "key": "{1: 2}",
            "number": '{"segments": [1e999999, ' + "9" * 100 + "]}", "text": '{"segments',
            "control": '{"a\nb": 1}', "trailing": '{"segments": [1,]}'}.items():
        files["json_%s.json" % name] = text.encode()
    return files


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(
        os.path.dirname(__file__), "..", "corpus", "snapshot")
    os.makedirs(folder, exist_ok=True)
    for name, data in {**good(snapshot()), **hostile()}.items():
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)


if __name__ == "__main__":
    main()
