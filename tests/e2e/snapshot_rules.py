"""What a memory snapshot must be for PyTorch's viewers: the forms of its parts, and a walk through its history.

check(snapshot) raises AssertionError at the first rule that does not hold. read(path) reads a pickle as the viewers do:
without any global.
"""
import pickle

STATES = ("active_allocated", "active_pending_free", "inactive")
ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
           "snapshot", "oom")
SEGMENT_KEYS = {
    "device": int, "address": int, "total_size": int, "allocated_size": int, "active_size": int, "requested_size": int,
    "stream": int, "segment_type": str, "segment_pool_id": tuple, "is_expandable": bool, "frames": list, "blocks": list,
}
BLOCK_KEYS = {"address": int, "size": int, "requested_size": int, "state": str, "frames": list}
SETTINGS_KEYS = ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "garbage_collection_threshold", "expandable_segments",
                 "pinned_num_register_threads", "release_lock_on_cudamalloc", "pinned_use_cuda_host_register",
                 "graph_capture_record_stream_reuse", "roundup_power2_divisions")


class Plain(pickle.Unpickler):
    def find_class(self, module, name):
        raise AssertionError("the pickle names %s.%s" % (module, name))


def read(path):
    with open(path, "rb") as f:
        snapshot = Plain(f).load()
        assert f.read() == b"", "something follows the pickle"
    return snapshot


def check_frames(frames):
    for f in frames:
        assert isinstance(f["filename"], str) and isinstance(f["name"], str) and isinstance(f["line"], int), f


def check_segment(s):
    for key, kind in SEGMENT_KEYS.items():
        assert isinstance(s[key], kind), (key, s[key])
    assert s["segment_type"] in ("small", "large") and len(s["segment_pool_id"]) == 2
    check_frames(s["frames"])
    at = s["address"]
    sums = dict.fromkeys(STATES, 0)
    requested = 0
    for b in s["blocks"]:
        for key, kind in BLOCK_KEYS.items():
            assert isinstance(b[key], kind), (key, b[key])
        check_frames(b["frames"])
        assert b["address"] == at and b["size"] > 0, "blocks follow each other"
        at += b["size"]
        sums[b["state"]] += b["size"]
        requested += b["requested_size"] if b["state"] != "inactive" else 0
        assert b["state"] == "inactive" or 0 < b["requested_size"] <= b["size"]
    assert at == s["address"] + s["total_size"], "blocks fill their segment"
    assert s["allocated_size"] == sums["active_allocated"]
    assert s["active_size"] == sums["active_allocated"] + sums["active_pending_free"]
    assert s["requested_size"] == requested


def check_event(e):
    assert e["action"] in ACTIONS, e
    assert isinstance(e["size"], int) and isinstance(e["stream"], int) and isinstance(e["time_us"], int), e
    assert isinstance(e["device_free" if e["action"] == "oom" else "addr"], int), e
    check_frames(e["frames"])


def walk_back(segments, trace):
    """Undoes the events from the final state backwards, as the viewer does: each must fit what is there."""
    live = {b["address"]: b["requested_size"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated"}
    pending = {b["address"]: b["requested_size"] for s in segments for b in s["blocks"] if b["state"] == "active_pending_free"}
    mapped = {s["address"]: s["total_size"] for s in segments}
    for e in reversed(trace):
        addr, size, action = e.get("addr"), e["size"], e["action"]
        if action == "alloc":
            assert live.pop(addr, None) == size, ("undone alloc", e)
        elif action == "free_requested":
            assert pending.pop(addr, None) == size, ("undone free_requested", e)
            live[addr] = size
        elif action == "free_completed":
            assert addr not in live and addr not in pending, ("undone free_completed", e)
            pending[addr] = size
        elif action == "segment_alloc":
            assert mapped.pop(addr, None) == size, ("undone segment_alloc", e)
        elif action == "segment_free":
            assert addr not in mapped, ("undone segment_free", e)
            mapped[addr] = size
    return live


def pair_allocs(segments, trace):
    """The timeline: what lives when, by event index; frees without an alloc and final blocks without one were first."""
    by_addr, first, spans = {}, 0, []
    for i, e in enumerate(trace):
        if e["action"] == "alloc":
            assert e["addr"] not in by_addr, ("allocated twice", e)
            by_addr[e["addr"]] = i
        elif e["action"] == "free_completed":
            start = by_addr.pop(e["addr"], None)
            first += start is None
            spans.append((start, i, e["size"]))
    final = {b["address"] for s in segments for b in s["blocks"] if b["state"] != "inactive"}
    assert set(by_addr) <= final, "what was allocated and not freed is in the segments"
    return spans, first + len(final - set(by_addr))


def check(snapshot):
    assert isinstance(snapshot, dict)
    for key in ("segments", "device_traces", "allocator_settings", "external_annotations"):
        assert key in snapshot, key
    order = [(s["device"], s["address"]) for s in snapshot["segments"]]
    assert order == sorted(order), "segments are sorted"
    for s in snapshot["segments"]:
        check_segment(s)
    for key in SETTINGS_KEYS:
        assert key in snapshot["allocator_settings"], key
    assert sorted(map(int, snapshot["allocator_settings"]["roundup_power2_divisions"])) == [1 << i for i in range(16)]
    for device, trace in enumerate(snapshot["device_traces"]):
        for e in trace:
            check_event(e)
        times = [e["time_us"] for e in trace]
        assert times == sorted(times), "events are in order of time"
        mine = [s for s in snapshot["segments"] if s["device"] == device]
        walk_back(mine, trace)
        pair_allocs(mine, trace)
