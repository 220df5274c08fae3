#!/usr/bin/python3
"""A caching allocator after PyTorch's rules, written for the tests alone, that records what it does: it
makes snapshots as torch.cuda.memory._dump_snapshot would, for recordings that no public file shows (several
streams, private pools, frees that complete later, max_split_size, rings that overflow, expandable
segments, running out of memory). It shares nothing with src/mem/pool.

    python3 tests/support/alloc_sim.py FOLDER      writes the files that replay_test.c reads
"""
import bisect
import os
import pickle
import random
import sys

MIB = 1 << 20
SMALL, LARGE = True, False


def round_up(n, step):
    return (n + step - 1) // step * step


class OutOfMemory(Exception):
    pass


class Block:
    def __init__(self, addr, size, pool, stream, segment, state="free"):
        self.addr, self.size, self.pool, self.stream, self.segment = addr, size, pool, stream, segment
        self.state, self.requested, self.prev, self.next = state, 0, None, None
        self.frames, self.uses, self.done = [], 0, False

    def key(self):
        return (self.stream, self.size, self.addr)


class Segment:
    def __init__(self, addr, size, page=0):
        self.addr, self.size, self.page, self.frames = addr, size, page, []


class Pool:
    def __init__(self, small, ident=(0, 0)):
        self.small, self.ident, self.free, self.unmapped = small, ident, [], []

    def put(self, b):
        bisect.insort(self.free, (b.key(), b), key=lambda x: x[0])

    def drop(self, b):
        del self.free[bisect.bisect_left(self.free, b.key(), key=lambda x: x[0])]


class Device:
    """Gives addresses in no order, sometimes one that was freed; has so many bytes for us."""

    def __init__(self, capacity, rng):
        self.capacity, self.held, self.rng = capacity, 0, rng
        self.spots, self.next = {}, 0x7F0000000000 + rng.randrange(1 << 20) * 2 * MIB

    def take(self, size):
        if self.held + size > self.capacity:
            return None
        self.held += size
        spots = self.spots.get(size)
        if spots and self.rng.random() < 0.5:
            return spots.pop(self.rng.randrange(len(spots)))
        self.next -= size + self.rng.choice((0, 0, 2, 6, 64)) * MIB
        self.next = self.next // (2 * MIB) * (2 * MIB)
        return self.next

    def give(self, addr, size):
        self.held -= size
        self.spots.setdefault(size, []).append(addr)

    def reserve(self):
        self.next = (self.next - self.capacity * 9 // 8 - 256 * MIB) // (2 * MIB) * (2 * MIB)
        return self.next


class Allocator:
    def __init__(self, capacity=1 << 40, expandable=False, max_split=None, divisions=0, seed=0,
                 conf=""):
        self.rng = random.Random(seed)
        self.device = Device(capacity, self.rng)
        self.expandable, self.max_split, self.divisions, self.conf = expandable, max_split, divisions, conf
        self.pools = {((0, 0), s): Pool(s) for s in (SMALL, LARGE)}
        self.segments, self.queues, self.events = [], {}, []
        self.reserved, self.time, self.frames = 0, 1000, []
        self.private_uses, self.tells_pool = {}, False

    # -- recording

    def tell(self, action, addr, size, stream, ident=(0, 0), **more):
        self.time += 1
        e = {"action": action, "addr": addr, "size": size, "stream": stream, "time_us": self.time,
             "frames": self.frames}
        if self.tells_pool:
            e["pool_id"] = ident
        e.update(more)
        self.events.append(e)

    # -- sizes

    def round(self, n):
        if n < 512:
            return 512
        d = self.divisions
        if d > 1 and n > 512 * d:
            if n & (n - 1) == 0:
                return n
            p = 1 << (n.bit_length() - 1)
            step = p // d
            return round_up(n, step) if step else 2 * p
        return round_up(n, 512)

    @staticmethod
    def segment_size(n):
        return 2 * MIB if n <= MIB else 20 * MIB if n < 10 * MIB else round_up(n, 2 * MIB)

    # -- search

    def find(self, pool, stream, n):
        free = pool.free
        i = bisect.bisect_left(free, (stream, n, 0), key=lambda x: x[0])
        if i == len(free) or free[i][1].stream != stream:
            return None
        if self.expandable and free[i][1].segment.page:
            def reach(b):
                return b.size + (b.next.size if b.next and b.next.state == "unmapped" else 0)
            while (i + 1 < len(free) and free[i + 1][1].stream == stream and
                   reach(free[i + 1][1]) < reach(free[i][1])):
                i += 1
        b = free[i][1]
        m = self.max_split
        if m and ((n < m <= b.size) or (n >= m and b.size >= n + 20 * MIB)):
            return None
        del free[i]
        return b

    # -- segments

    def take_segment(self, pool, stream, n):
        if self.expandable:
            return self.expand(pool, stream, n)
        size = self.segment_size(n)
        addr = self.device.take(size)
        if addr is None:
            return None
        s = Segment(addr, size)
        s.frames = self.frames
        b = Block(addr, size, pool, stream, s)
        s.first = b
        self.segments.append(s)
        self.reserved += size
        self.tell("segment_alloc", addr, size, stream, pool.ident)
        return b

    def give_segment(self, b):
        self.tell("segment_free", b.addr, b.size, b.stream, b.pool.ident)
        self.segments.remove(b.segment)
        b.pool.drop(b)
        self.device.give(b.addr, b.size)
        self.reserved -= b.size

    @staticmethod
    def cut(b, size):
        rest = Block(b.addr + size, b.size - size, b.pool, b.stream, b.segment, b.state)
        b.size = size
        rest.prev, rest.next, b.next = b, b.next, rest
        if rest.next:
            rest.next.prev = rest
        return rest

    def join(self, b):
        """Merges with neighbours of the same kind, which leave their set."""
        for n in (b.prev, b.next):
            if n is None or n.state != b.state:
                continue
            if b.state == "free":
                n.pool.drop(n)
            else:
                n.pool.unmapped.remove(n)
            if n is b.prev:
                b.addr, b.prev = n.addr, n.prev
                if b.prev:
                    b.prev.next = b
            else:
                b.next = n.next
                if b.next:
                    b.next.prev = b
            b.size += n.size
            if n.segment.first is n:
                n.segment.first = b
        return b

    def expand(self, pool, stream, n):
        place = None
        for u in sorted((u for u in pool.unmapped if u.stream == stream), key=lambda u: u.addr):
            at = u.prev if u.prev and u.prev.state == "free" else u
            have, c = 0, at
            while c and c.state in ("free", "unmapped") and have < n:
                have, c = have + c.size, c.next
            if have >= n:
                place = at
                break
        page = 2 * MIB if pool.small else 20 * MIB
        if place is None:
            size = round_up(self.device.capacity * 9 // 8, page)
            s = Segment(self.device.reserve(), size, page)
            place = s.first = Block(s.addr, size, pool, stream, s, "unmapped")
            self.segments.append(s)
            pool.unmapped.append(place)
        b = place
        if b.state == "unmapped":
            b = self.map(b, min(b.size, n))
        while b and b.size < n:
            b = self.map(b.next, min(b.next.size, n - b.size))
        if b:
            pool.drop(b)
        return b

    def map(self, b, n):
        n = round_up(n, b.segment.page)
        if self.device.held + n > self.device.capacity:
            return None
        self.device.held += n
        b.pool.unmapped.remove(b)
        if n < b.size:
            b.pool.unmapped.append(self.cut(b, n))
        addr = b.addr
        b.state = "free"
        b = self.join(b)
        b.pool.put(b)
        self.reserved += n
        self.tell("segment_map", addr, n, b.stream, b.pool.ident)
        return b

    def unmap(self, b):
        base, page = b.segment.addr, b.segment.page
        first = base + round_up(b.addr - base, page)
        last = base + (b.addr + b.size - base) // page * page
        if first >= last:
            return
        b.pool.drop(b)
        if b.addr + b.size > last:
            rest = self.cut(b, last - b.addr)
            b.pool.put(rest)
        if first > b.addr:
            rest = self.cut(b, first - b.addr)
            b.pool.put(b)
            b = rest
        self.device.held -= b.size
        self.reserved -= b.size
        addr, size = b.addr, b.size
        b.state = "unmapped"
        b = self.join(b)
        b.pool.unmapped.append(b)
        self.tell("segment_unmap", addr, size, b.stream, b.pool.ident)
        if not b.prev and not b.next:
            b.pool.unmapped.remove(b)
            self.segments.remove(b.segment)

    # -- flush

    def release(self, pool):
        pages = []
        for _, b in list(pool.free):
            if b.segment.page:
                pages.append(b)
            elif not b.prev and not b.next:
                self.give_segment(b)
        for b in pages:
            self.unmap(b)

    def empty_cache(self):
        for q in self.queues.values():
            for b in q:
                self.complete(b)
            q.clear()
        for small in (LARGE, SMALL):
            self.release(self.pools[(0, 0), small])
        for ident in sorted(k for k, uses in self.private_uses.items() if uses == 0):
            for small in (SMALL, LARGE):
                self.release(self.pools[ident, small])

    def release_available(self, n, stream):
        if not self.max_split:
            return False
        pool = self.pools[(0, 0), LARGE]
        key = max(n, self.max_split)
        i = bisect.bisect_left(pool.free, (stream, key, 0), key=lambda x: x[0])

        def whole(b):
            return not b.prev and not b.next
        if i < len(pool.free) and pool.free[i][1].stream == stream:
            if whole(pool.free[i][1]):
                self.give_segment(pool.free[i][1])
            return True
        total = 0
        while total < key:
            big = [b for _, b in pool.free
                   if b.stream == stream and b.size >= self.max_split and whole(b)]
            if not big:
                return False
            b = big[-1]
            total += b.size
            self.give_segment(b)
        return True

    # -- requests

    def pool(self, n, ident):
        return self.pools.setdefault((ident, n <= MIB), Pool(n <= MIB, ident))

    def malloc(self, size, stream=0, ident=(0, 0)):
        self.process_events()
        n = self.round(size)
        pool = self.pool(n, ident)
        self.private_uses.setdefault(ident, 1) if ident != (0, 0) else None
        b = self.find(pool, stream, n) or self.take_segment(pool, stream, n)
        if not b and self.release_available(n, stream):
            b = self.take_segment(pool, stream, n)
        if not b:
            self.empty_cache()
            b = self.take_segment(pool, stream, n)
        if not b:
            free = self.device.capacity - self.device.held
            self.tell("oom", 0, n, stream, ident, device_free=free)
            del self.events[-1]["addr"]
            raise OutOfMemory
        rest = b.size - n
        if (rest >= 512 if pool.small or b.segment.page else
                rest > MIB and (not self.max_split or n < self.max_split)):
            b.pool.put(self.cut(b, n))
        b.state, b.requested, b.frames = "live", size, self.frames
        self.tell("alloc", b.addr, size, stream, ident)
        return b

    def free(self, b, uses=0):
        self.tell("free_requested", b.addr, b.requested, b.stream, b.pool.ident)
        if uses:
            b.state = "pending"
            b.uses, b.done = uses, False
            self.queues.setdefault(uses, []).append(b)
        else:
            self.complete(b)

    def complete(self, b):
        self.tell("free_completed", b.addr, b.requested, b.stream, b.pool.ident)
        b.state, b.requested = "free", b.requested
        b = self.join(b)
        b.pool.put(b)

    def process_events(self):
        for q in self.queues.values():
            while q and q[0].done:
                self.complete(q.pop(0))

    # -- the end

    def blocks(self):
        """Ranges without a gap, each with its blocks, by address."""
        ranges = []
        for s in self.segments:
            b, open_range = s.first, None
            while b:
                if b.state == "unmapped":
                    open_range = None
                elif open_range is None:
                    open_range = [b]
                    ranges.append((s, open_range))
                else:
                    open_range.append(b)
                b = b.next
        return sorted(ranges, key=lambda r: r[1][0].addr)

    def segment_list(self, number=0):
        states = {"free": "inactive", "live": "active_allocated", "pending": "active_pending_free"}
        out = []
        for s, blocks in self.blocks():
            p = blocks[0].pool
            rows = [{"address": b.addr, "size": b.size, "requested_size": b.requested,
                     "state": states[b.state], "frames": b.frames if b.state != "free" else []}
                    for b in blocks]
            active = [r for r in rows if r["state"] != "inactive"]
            out.append({
                "device": number, "address": blocks[0].addr, "total_size": sum(b.size for b in blocks),
                "allocated_size": sum(r["size"] for r in rows if r["state"] == "active_allocated"),
                "active_size": sum(r["size"] for r in active),
                "requested_size": sum(r["requested_size"] for r in active),
                "stream": blocks[0].stream, "segment_type": "small" if p.small else "large",
                "segment_pool_id": p.ident, "is_expandable": bool(s.page), "frames": s.frames,
                "blocks": rows})
        return out

    def settings(self):
        table = {str(1 << k): self.divisions for k in range(16)}
        return {"PYTORCH_CUDA_ALLOC_CONF": self.conf, "max_split_size": self.max_split or -1,
                "garbage_collection_threshold": 0.0, "expandable_segments": self.expandable,
                "pinned_num_register_threads": 1, "release_lock_on_cudamalloc": False,
                "pinned_use_cuda_host_register": False, "roundup_power2_divisions": table}


def snapshot(devices, last=None):
    """`last`: so many events of each device are in the ring."""
    segments = []
    for i, a in enumerate(devices):
        segments += a.segment_list(i)
    return {"segments": segments,
            "device_traces": [a.events[-last:] if last else a.events for a in devices],
            "allocator_settings": devices[0].settings(), "external_annotations": []}


def frames_of(rng):
    made = [{"name": "f%d" % i, "filename": "train.py" if i < 20 else "model.py", "line": 10 + i}
            for i in range(40)]
    return [rng.sample(made, rng.randrange(2, 12)) for _ in range(30)]


def work(a, steps, streams=(0,), pending=0.0, private=0.0, flush=0.0, largest=200, live_max=300,
         pool_ids=False):
    """Requests of sizes that come again, as training steps have them; some frees complete late."""
    rng, live, waiting = a.rng, [], []
    a.tells_pool = pool_ids
    stacks = frames_of(rng)
    sizes = [rng.choice((rng.randrange(1, 4096), rng.randrange(1, MIB), rng.randrange(MIB, 10 * MIB),
                         rng.randrange(10 * MIB, largest * MIB))) for _ in range(60)]
    ooms = 0
    for step in range(steps):
        a.frames = rng.choice(stacks)
        r = rng.random()
        for b in waiting:
            b.done = b.done or rng.random() < 0.2
        waiting = [b for b in waiting if b.state == "pending"]
        if r < flush:
            a.empty_cache()
        elif live and (len(live) > live_max or r < 0.47):
            b = live.pop(rng.randrange(len(live)))
            uses = 1000 + rng.randrange(3) if rng.random() < pending else 0
            a.free(b, uses)
            if uses:
                waiting.append(b)
        else:
            ident = (0, 1 + rng.randrange(2)) if rng.random() < private else (0, 0)
            try:
                live.append(a.malloc(rng.choice(sizes), rng.choice(streams), ident))
            except OutOfMemory:
                ooms += 1
                for b in rng.sample(live, len(live) // 2):
                    live.remove(b)
                    a.free(b)
        if pool_ids and step == steps * 3 // 4: # nobody captures into them any more
            for ident in a.private_uses:
                a.private_uses[ident] = 0
    return ooms


def cases():
    yield "plain", [dict(seed=1)], dict(flush=0.01), None
    yield "ring", [dict(seed=2)], dict(flush=0.01), 900
    yield "streams", [dict(seed=3)], dict(streams=(0, 94, 7), flush=0.01), 1200
    yield "pending", [dict(seed=4)], dict(streams=(0, 7), pending=0.3, flush=0.005), 1500
    yield "private", [dict(seed=5)], dict(private=0.3, flush=0.01), 1500
    yield "pool_ids", [dict(seed=17)], dict(private=0.3, flush=0.01, pool_ids=True), 1500
    yield "roundup", [dict(seed=6, divisions=4, conf="roundup_power2_divisions:4")], dict(flush=0.01), 1500
    yield "oom", [dict(seed=7, capacity=2500 * MIB)], dict(), None
    yield "oom_ring", [dict(seed=8, capacity=2500 * MIB)], dict(), 700
    split = dict(max_split=64 * MIB, conf="max_split_size_mb:64")
    yield "split", [dict(seed=9, **split)], dict(flush=0.01), 1500
    yield "split_oom", [dict(seed=10, capacity=3000 * MIB, **split)], dict(), 1500
    grow = dict(expandable=True, conf="expandable_segments:True")
    yield "expandable", [dict(seed=11, **grow)], dict(flush=0.01), None
    yield "expandable_ring", [dict(seed=12, **grow)], dict(flush=0.01, streams=(0, 7)), 900
    yield "expandable_oom", [dict(seed=13, capacity=2500 * MIB, **grow)], dict(), 1200
    yield "devices", [dict(seed=14, capacity=3000 * MIB, **grow), dict(seed=15, capacity=1 << 40, **grow),
                      dict(seed=16, capacity=2000 * MIB, **grow)], dict(streams=(0, 3), pending=0.1), 1000


def main():
    folder = sys.argv[1]
    for name, makers, how, last in cases():
        devices = [Allocator(**m) for m in makers]
        ooms = [work(a, 1600, **how) for a in devices]
        with open(os.path.join(folder, name + ".pickle"), "wb") as f:
            pickle.dump(snapshot(devices, last), f, 4)
        print(name, [len(a.events) for a in devices], "ooms", ooms,
              [a.reserved // MIB for a in devices])


if __name__ == "__main__":
    main()
