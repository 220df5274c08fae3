#!/usr/bin/python3
"""Writes a large memory snapshot, as torch.cuda.memory._dump_snapshot would (Python's pickler, protocol 4): steps
of a training run with deep stacks whose frames are shared through the memo. Opcodes are put together
directly, so two million events take seconds and little memory.

    python3 bench/make_snapshot.py FILE [EVENTS [FRAMES]]        default 2000000 events, 47 frames: 500 MB
"""
import os
import random
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "support"))
import alloc_sim

MIB = 1 << 20
STACKS = 150
SIZES = [random.Random(i).randrange(1, 1500) * 4096 + i * 7 for i in range(40)]


class Writer:
    """Values as CPython writes them: texts, lists and dictionaries are memoized, frames are named."""

    def __init__(self, f):
        self.f, self.n, self.known = f, 0, {}

    def memo(self):
        self.n += 1
        return b"\x94"

    @staticmethod
    def get(n):
        return b"h" + bytes([n]) if n < 256 else b"j" + struct.pack("<I", n)

    @staticmethod
    def number(v):
        if 0 <= v < 0x100:
            return b"K" + bytes([v])
        if 0 <= v < 0x10000:
            return b"M" + struct.pack("<H", v)
        if -0x80000000 <= v < 0x80000000:
            return b"J" + struct.pack("<i", v)
        raw = v.to_bytes(v.bit_length() // 8 + 1, "little")
        return b"\x8a" + bytes([len(raw)]) + raw

    def text(self, s):
        if s in self.known:
            return self.get(self.known[s])
        raw = s.encode()
        self.known[s] = self.n
        return b"\x8c" + bytes([len(raw)]) + raw + self.memo()

    def value(self, v):
        if isinstance(v, str):
            return self.text(v)
        if isinstance(v, bool):
            return b"\x88" if v else b"\x89"
        if isinstance(v, float):
            return b"G" + struct.pack(">d", v)
        if isinstance(v, tuple):
            return b"".join(self.value(x) for x in v) + b"\x86" + self.memo()
        if isinstance(v, list):
            out = [b"]" + self.memo(), b"("]
            out += [self.value(x) for x in v]
            return b"".join(out) + b"e" if v else out[0]
        if isinstance(v, dict):
            out = [b"}" + self.memo(), b"("]
            for k, x in v.items():
                out += [self.text(k), self.value(x)]
            return b"".join(out) + b"u"
        return self.number(v)


def frames_of(rng, n):
    files = ["/home/user/lib/python3.11/site-packages/torch/nn/modules/%s.py" % m
             for m in ("module", "linear", "container", "normalization", "activation")]
    return [{"name": "forward_%d" % i, "filename": rng.choice(files + ["??"]), "line": rng.randrange(2000)}
            for i in range(n)]


def step(a, rng_state):
    """Activations of layers come, some go at once, the rest in reverse; weights' gradients at the end."""
    rng = random.Random(rng_state)
    live = []
    for layer in range(250):
        a.frames = layer % STACKS
        live.append(a.malloc(SIZES[layer * 7 % len(SIZES)]))
        if layer % 3 == 0:
            a.free(live.pop(rng.randrange(len(live))))
    while live:
        a.frames = len(live) % STACKS
        a.free(live.pop())


def events_of(a, most):
    """Steps that begin and end alike take the same addresses again, so one of them is played over."""
    for i in range(3):
        begin = len(a.events)
        step(a, 1)
    again, done = a.events[begin:], len(a.events)
    yield from a.events
    while done < most:
        yield from again
        done += len(again)


def main():
    path = sys.argv[1]
    most = int(sys.argv[2]) if len(sys.argv) > 2 else 2000000
    depth = int(sys.argv[3]) if len(sys.argv) > 3 else 47
    rng = random.Random(1)
    with open(path, "wb", buffering=1 << 20) as f:
        w = Writer(f)
        a = alloc_sim.Allocator()
        f.write(b"\x80\x04}" + w.memo() + b"(" + w.text("device_traces") + b"]" + w.memo() + b"]" + w.memo())
        pool = frames_of(rng, 400)
        stacks = [[rng.randrange(len(pool)) for _ in range(depth)] for _ in range(STACKS)]
        numbers, ready, done, time_us = [None] * len(pool), [None] * STACKS, 0, 1700000000000000
        for e in events_of(a, most):
            if done % 1000 == 0:
                f.write(b"(" if done == 0 else b"e(")
            out = [b"}", w.memo(), b"("]
            for k, v in (("action", e["action"]), ("addr", e["addr"]), ("size", e["size"]), ("stream", 0),
                         ("time_us", time_us), ("compile_context", "N/A"), ("user_metadata", "")):
                out.append(w.text(k))
                out.append(w.value(v))
            out.append(w.text("frames"))
            stack = e["frames"]
            if ready[stack] is None:
                out += [b"]", w.memo(), b"("]
                for i in stacks[stack]:
                    if numbers[i] is None:
                        numbers[i] = w.n
                        out.append(w.value(pool[i]))
                    else:
                        out.append(w.get(numbers[i]))
                out.append(b"e")
                ready[stack] = b"]\x94(" + b"".join(w.get(numbers[i]) for i in stacks[stack]) + b"e"
            else:
                w.n += 1
                out.append(ready[stack])
            out.append(b"u")
            f.write(b"".join(out))
            done += 1
            time_us += 7
        f.write(b"ea")
        segments = a.segment_list()
        for s in segments:
            s["frames"] = []
        for k, v in (("segments", segments), ("allocator_settings", a.settings())):
            f.write(w.text(k) + w.value(v))
        f.write(b"u.")
    print(done, "events,", path)


if __name__ == "__main__":
    main()
