"""Scenarios that other queues got wrong, with real processes on simulated cards (ids case-*: the queue reference's)."""
import json
import random
import re
import socket
import threading

from harness import MLP, need_fashion, training_graph
from server_harness import ENDED, Server, on, until
from test_seed001_canvas import layer_graph

GIB, MIB = 1 << 30, 1 << 20
CARDS = "A:8GiB:sm86:context=100MiB,B:24GiB:sm89:context=100MiB"


def share(server, device, worker="gpu-box"):
    assert server.api("PUT", "/api/workers/%s/cards/%s" % (worker, device), {"mode": "shared"}).status == 200


def memory(server, device="cuda:0", worker="gpu-box"):
    return next(d for d in server.worker(worker)["devices"] if d["device"] == device)["memory"]


def stamps(path):
    """[(start, end)] of runs that wrote "s TIME" and "e TIME" lines under their id."""
    times = {}
    with open(path) as f:
        for line in f:
            run, word, at = line.split()
            times.setdefault(run, {})[word] = int(at)
    return sorted((t["s"], t.get("e", t["s"])) for t in times.values())


def at_once(times):
    """The most that overlapped."""
    changes = sorted([(s, 1) for s, _ in times] + [(e, -1) for _, e in times])
    most = now = 0
    for _, step in changes:
        now += step
        most = max(most, now)
    return most


def stamped(server, path, seconds, **more):
    return server.sh('say() { echo "$SNUG_RUN_ID $1 $(date +%%s%%N)" >>"%s"; }; trap "say e; exit 1" TERM; say s; sleep %s; say e'
                     % (path, seconds), **more)


# ids: S4
def test_a_restart_empties_the_stores_only(snug):
    """Caches of the canvas are gone with the server's restart; graphs, models and runs are there."""
    need_fashion()
    with Server(snug) as server:
        graph = layer_graph()
        saved = server.post("/api/graph/save", dict(graph, name="kept"))
        assert saved.status == 200, saved
        run = server.submit(graph, lane="interactive", graph_id="tab", weights_persistent=True, record_outputs=True)
        server.wait(run, "succeeded")
        until(lambda: server.get("/api/health").doc["caches"]["execution_cache"]["entries"] > 0, 20, "a cache")
        server.stop()
        server.start()
        server.online("local")
        caches = server.get("/api/health").doc["caches"]
        assert caches["execution_cache"]["entries"] == 0 and caches["node_state_store"]["modules"] == 0, caches
        assert server.status(run) == "succeeded"
        names = [g["name"] for g in server.get("/api/graph/list").doc]
        assert "kept" in names, names


# ids: B5
# ids: case-M3 case-M1
def test_bookings_return_whatever_happens(snug):
    """Random budgets that are cancelled, fail, end: afterwards nothing is booked, and a full budget fits."""
    r = random.Random(5)
    with Server(snug) as server:
        server.agent("gpu-box", cards=CARDS)
        share(server, "cuda:0")
        runs = []
        for i in range(14):
            gib = r.choice([0.5, 1, 2.25, 3])
            runs.append(server.sh(r.choice(["exit 3", "true", "sleep 0.3", "kill -9 $$", "sleep 30"]),
                                  target=on("gpu-box", "cuda:0", memory_gib=gib, wait=True)))
            if r.random() < 0.5:
                server.post("/api/runs/%s/cancel" % r.choice(runs))
            now = memory(server)
            assert 0 <= now["reserved_bytes"] and 0 <= now["running_bytes"] <= 8 * GIB, now
        for run in runs:
            if server.status(run) not in ENDED:
                server.post("/api/runs/%s/cancel" % run)
        for run in runs:
            server.wait(run)
        now = memory(server)
        assert now["reserved_bytes"] == 0 and now["running_bytes"] == 0, now
        whole = server.sh("true", target=on("gpu-box", "cuda:0", memory_gib=7))
        assert server.wait(whole)["status"] == "succeeded"


# ids: R7
# ids: case-M5 case-M25 promise-P4
def test_cards_never_have_too_many_holders(snug):
    """Runs come, are cancelled and deleted by chance; one card takes one, one with a limit takes three, not more."""
    r = random.Random(7)
    with Server(snug, run_queue_max_concurrent="gpu-box/cuda:1=3") as server:
        server.agent("gpu-box", cards=CARDS)
        paths = {d: server.dir + "/" + d.replace(":", "") for d in ("cuda:0", "cuda:1")}
        runs = []
        for i in range(30):
            device = r.choice(list(paths))
            runs.append(stamped(server, paths[device], r.choice([0, 0.1, 0.4]), target=on("gpu-box", device)))
            if r.random() < 0.3:
                server.post("/api/runs/%s/cancel" % r.choice(runs))
            if r.random() < 0.3:
                server.delete("/api/runs/%s" % r.choice(runs))
        known = {row["id"] for row in server.runs()}
        for run in runs:
            if run in known:
                server.wait(run)
        assert at_once(stamps(paths["cuda:0"])) == 1
        assert at_once(stamps(paths["cuda:1"])) <= 3


# ids: B6
# ids: case-M7
def test_each_run_gets_its_own_budget(snug):
    """Runs that start at once on one shared card are told their own budgets, not each other's."""
    with Server(snug) as server:
        server.agent("gpu-box", cards=CARDS)
        share(server, "cuda:1")
        wanted = {}
        for gib in (1, 2, 3, 4.5, 1.25, 2.5):
            run = server.sh('echo "budget $SNUG_BUDGET_BYTES of $SNUG_RUN_ID"', target=on(
                "gpu-box", "cuda:1", memory_gib=gib, wait=True))
            wanted[run] = int(gib * GIB)
        for run, bytes_ in wanted.items():
            server.wait(run, "succeeded")
            assert "budget %d of %s\n" % (bytes_, run) in server.output(run), (bytes_, server.output(run))


# ids: B5 R12
# ids: case-M9
def test_allocator_and_context_are_told_apart(snug):
    """What a run costs is its budget and the context, both shown; the peak is the allocator's alone."""
    need_fashion()
    with Server(snug) as server:
        server.agent("gpu-box", cards=CARDS)
        share(server, "cuda:0")
        run, let = server.hold("held", target=on("gpu-box", "cuda:0", memory_gib=2))
        assert memory(server)["running_bytes"] == 2 * GIB + 768 * MIB, memory(server)
        refused = server.try_submit(training_graph(MLP), target=on("gpu-box", "cuda:0", memory_gib=6))
        assert refused.status == 400 and "needs 6.0 GiB (+0.8 GiB CUDA context), cuda:0 on gpu-box has " in refused.detail, refused
        let()
        server.wait(run, "succeeded")
        row = server.wait(server.submit(
            training_graph(MLP, train__max_steps=2), target=on("gpu-box", "cuda:0", memory_gib=1)), "succeeded")
        assert 0 < row["peaks"][0]["bytes"] < 100 * MIB, "the allocator's, without a context of 100 MiB: %r" % row["peaks"]


# ids: B6
# ids: case-M21 case-M29
def test_a_small_budget_on_a_large_card(snug):
    """The plan sees the budget, not the card: too small ends before the start and names the budget; the smallest
    that is enough by the plan is enough."""
    need_fashion()
    graph = training_graph(MLP, train__max_steps=2)
    with Server(snug) as server:
        server.agent("gpu-box", cards=CARDS)
        share(server, "cuda:1")
        peak = server.wait(server.submit(graph, target=on("gpu-box", "cuda:1", memory_gib=4)), "succeeded")["peaks"][0]["bytes"]
        # A budget is kept as whole bytes; one that is a byte short is refused by the run, the peak itself is enough.
        low = server.wait(server.submit(graph, target=on("gpu-box", "cuda:1", memory_gib=(peak - MIB / 4) / GIB)))
        assert low["status"] == "failed" and low["cause"] == "out_of_memory", low
        assert "is the one given with the run: declare a larger target.memory_gib" in low["error"], low["error"]
        enough = server.wait(server.submit(graph, target=on("gpu-box", "cuda:1", memory_gib=peak / GIB)))
        assert enough["status"] == "succeeded" and enough["peaks"][0]["bytes"] == peak, enough


# ids: R6
# ids: case-Q9
def test_a_node_cannot_reach_another_card(snug):
    """A node that names a card of the machine, not of its run, runs on the run's own card and says so."""
    need_fashion()
    with Server(snug) as server:
        server.agent("gpu-box", cards=CARDS)
        row = server.wait(server.submit(
            training_graph(MLP, train__max_steps=2, train__device="cuda:1"), target=on("gpu-box", "cuda:0")), "succeeded")
        assert [p["device"] for p in row["peaks"] if p["bytes"]] == ["cuda:0"], row["peaks"]
        warned = [e["payload"] for e in server.events(row["id"], "run_warning")]
        text = ("Node train (TrainingLoop) is set to device cuda:1; this run has 1 card (cuda:0 = the worker's cuda:0), "
                "so when it executes, it runs on cuda:0.")
        assert any(w["kind"] == "device_fallback" and text in json.dumps(w) for w in warned), warned
        seen = server.sh("echo \"sees [$CUDA_VISIBLE_DEVICES]\"", target=on("gpu-box", "cuda:1"))
        server.wait(seen, "succeeded")
        uuid = next(d["uuid"] for d in server.worker("gpu-box")["devices"] if d["device"] == "cuda:1")
        assert "sees [%s]" % uuid in server.output(seen), server.output(seen)


# ids: W5 R18
# ids: case-Q17 promise-P14
def test_nothing_waits_without_a_reason(snug):
    """Drained, away, taken, reserved: every waiting run says why, and the reason changes with the cause."""
    with Server(snug) as server:
        agent = server.agent("gpu-box", cards=CARDS)
        first, let = server.hold("first", target=on("gpu-box", "cuda:0"))
        second = server.sh("true", target=on("gpu-box", "cuda:0"))
        until(lambda: first[:8] in (server.run(second)["reason"] or ""), 10, lambda: "the holder in %r" % server.run(second))
        server.post("/api/workers/gpu-box/drain")
        until(lambda: "drain" in (server.run(second)["reason"] or ""), 10, lambda: "draining in %r" % server.run(second))
        let()
        server.wait(first, "succeeded")
        assert server.status(second) == "queued"
        server.post("/api/workers/gpu-box/undrain")
        assert server.wait(second)["status"] == "succeeded"
        agent.kill()
        third = server.sh("true", target=on("gpu-box", "cuda:0"))
        # Ordered before the silence was noticed, or waiting after it: both are said.
        away = re.compile("no contact with worker|gpu-box is not connected")
        until(lambda: away.search(server.run(third)["reason"] or ""), 40, lambda: "away in %r" % server.run(third))
        agent.start()
        assert server.wait(third)["status"] == "succeeded"


# ids: W7
# ids: case-F7
def test_registering_again_and_again(snug):
    """An agent that dies and returns with a live run, many times: one worker, one start, one end."""
    with Server(snug) as server:
        agent = server.agent("gpu-box", cards=CARDS)
        log = server.dir + "/starts"
        run, let = server.hold("live", target=on("gpu-box", "cuda:0"))
        for _ in range(4):
            agent.kill()
            agent.start()
            assert server.status(run) == "running"
        assert [w for w in server.workers() if w != "local"] == ["gpu-box"]
        let()
        assert server.wait(run)["status"] == "succeeded"
        assert [e["type"] for e in server.events(run)].count("execution_start") <= 1, log


# ids: W7
# ids: case-F15 promise-P3
def test_the_state_after_a_late_return(snug):
    """Away for longer than the grace: interrupted, and it stays so when the agent is back; the card is free."""
    with Server(snug, worker_resume_grace_s=2) as server:
        agent = server.agent("gpu-box", cards=CARDS)
        run, let = server.hold("late", target=on("gpu-box", "cuda:0"))
        agent.kill()
        row = server.wait(run, "interrupted", 20)
        assert row["cause"] == "agent_lost", row
        agent.start()
        again = server.run(run)
        assert (again["status"], again["finished_at"]) == ("interrupted", row["finished_at"]), again
        let()
        assert server.wait(server.sh("true", target=on("gpu-box", "cuda:0")))["status"] == "succeeded"
        assert server.status(run) == "interrupted"


def stream(server, path, last=None):
    """A socket on an event stream, its head read."""
    s = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    more = "Last-Event-ID: %s\r\n" % last if last else ""
    s.sendall(("GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nX-Snug-Token: %s\r\n%s\r\n" % (path, server.port, server.token, more)).encode())
    f = s.makefile("rb")
    assert b" 200 " in f.readline()
    while f.readline().strip():
        pass
    return s, f


def ids_of(f, out):
    """Ids of the events up to the stream's own last one, "end"."""
    for line in f:
        if line.startswith(b"id:"):
            out.append(int(line[3:]))
        if line.startswith(b"event:") and line[6:].strip() == b"end":
            return


# ids: R11
# ids: case-S13 promise-P15
def test_every_client_gets_every_event(snug):
    """Several clients of one stream, one that never reads among them: each gets all, in order; who lost the
    connection goes on after the last id it saw."""
    with Server(snug) as server:
        run, let = server.hold("talk")
        path = "/api/runs/%s/events/stream" % run
        stalled = stream(server, path)
        clients, got = [stream(server, path) for _ in range(5)], [[] for _ in range(5)]
        threads = [threading.Thread(target=ids_of, args=(c[1], g), daemon=True) for c, g in zip(clients, got)]
        for t in threads:
            t.start()
        let()
        server.wait(run, "succeeded")
        wanted = [e["cursor"] for e in server.events(run)]
        for t in threads:
            t.join(20)
        assert all(g == wanted for g in got), (wanted, got)
        again, rest = stream(server, path, last=wanted[0]), []
        ids_of(again[1], rest)
        assert rest == wanted[1:], (wanted, rest)
        for s, _ in clients + [stalled, again]:
            s.close()
