"""What a run's own process does, seen through a server: numbers, records, log, Stop, the foreground."""
import json
import os
import signal

import harness
from server_harness import Server, until


def tensors(elements=4, label="made"):
    """A graph without data: a tensor, its softmax, a line of print."""
    node = lambda i, kind, **params: {"id": i, "type": kind, "position": {"x": 0, "y": 0}, "data": {"params": params}}
    wire = lambda a, p, b, q: {"id": a + b, "source": a, "sourceHandle": p, "target": b, "targetHandle": q}
    return {"name": label, "nodes": [
        node("start", "Start"), node("x", "TensorCreate", shape=str(elements), fill="rand"),
        node("soft", "Softmax"), node("mean", "Mean", dim="0"), node("show", "Print", label=label)],
        "edges": [{"id": "t", "source": "start", "target": "x", "sourceHandle": "trigger", "targetHandle": "",
                   "type": "trigger"},
                  wire("x", "tensor", "soft", "tensor"), wire("x", "tensor", "mean", "tensor"),
                  wire("mean", "tensor", "show", "value")]}


def result(server, run):
    return server.run(run)["result"]


# ids: promise-P13
def test_a_co_runner_changes_no_number(snug):
    """The same run alone on a shared card and beside another: equal to the last digit."""
    harness.need_fashion()
    train = harness.training_graph(train__max_steps=30)
    other = harness.training_graph(name="other", train__max_steps=120, loader__batch_size=64)
    with Server(snug, cards="A:2GiB:sm89:context=32MiB", execution_cuda_context_mib=32) as server:
        server.online("local")
        assert server.cli("workers", "share", "local", "cuda:0").rc == 0
        target = {"worker": "local", "devices": ["cuda:0"], "memory_gib": 0.5}
        alone = server.submit(train, target=target, seed=3)
        server.wait(alone, "succeeded")
        beside = server.submit(other, target=target, seed=4)
        again = server.submit(train, target=target, seed=3)
        for run in (again, beside):
            server.wait(run, "succeeded", 90)
        first, second = result(server, alone)["metrics"], result(server, again)["metrics"]
        assert first["final_train_loss"] == second["final_train_loss"], (first, second)
        a, b = server.run(again), server.run(beside)
        assert a["started_at"] < b["finished_at"] and b["started_at"] < a["finished_at"], (a, b)


# ids: S1 S2 R17
def test_recorded_outputs_have_a_limit(snug):
    """Bytes of all runs: the least recently used go first; a run without record_outputs records none."""
    with Server(snug, run_output_store_max_mb=1) as server:
        server.online("local")
        none = server.submit(tensors())
        server.wait(none, "succeeded")
        assert server.get("/api/execution/outputs/" + none).status == 404
        runs = []
        for i in range(3):  # 2 x 100,000 elements: 0.8 MB each
            runs.append(server.submit(tensors(100000), record_outputs=True))
            server.wait(runs[-1], "succeeded")
        assert [server.get("/api/execution/outputs/" + r).status for r in runs] == [404, 404, 200]
        stats = server.get("/api/execution/outputs/%s/x/tensor/stats" % runs[-1]).doc
        assert stats["count"] == 100000 and sum(stats["histogram"]["counts"]) == 100000, stats
        part = server.get("/api/execution/outputs/%s/x/tensor?slice=5:105:10" % runs[-1]).doc
        assert part["full_shape"] == [100000] and part["sliced_shape"] == [10] and len(part["values"]) == 10, part
        store = until(lambda: [s for s in [server.get("/api/health").doc["caches"]["run_output_store"]]
                               if s["runs"] == 1], 30, "the report of the store")[0]
        assert store["max_runs"] == 20 and store["max_bytes"] == 1 << 20 and 8e5 < store["bytes"] < 1 << 20, store


# ids: S1 S5
def test_kept_weights_of_all_tabs_have_one_limit(snug):
    """Two tabs with 0.8 MB of weights each under 1 MiB: the tab that ran longest ago gives its up."""
    def layer(tab):
        graph = tensors(500)
        graph["nodes"][2] = {"id": "soft", "type": "Linear", "position": {"x": 0, "y": 0},
                             "data": {"params": {"in_features": 500, "out_features": 400}}}
        return dict(graph=graph, lane="interactive", graph_id=tab, weights_persistent=True)
    with Server(snug, node_state_store_max_mb=1) as server:
        server.online("local")
        store = lambda: server.get("/api/health").doc["caches"]["node_state_store"]
        server.wait(server.submit(**layer("first")), "succeeded")
        until(lambda: store()["modules"] == 1, 30, "the first tab's weights")
        server.wait(server.submit(**layer("second")), "succeeded")
        until(lambda: server.get("/api/health").doc["caches"]["execution_cache"]["instances"] == 2, 30, "two children")
        until(lambda: store()["modules"] == 1 and store()["bytes"] == 4 * (500 * 400 + 400), 30, store)
        ids = server.get("/api/execution/state/list").doc
        assert ids["total"] == 1, ids


# ids: R11
def test_the_log_of_a_graph(snug):
    with Server(snug) as server:
        server.online("local")
        run = server.submit(tensors(label="said"))
        server.wait(run, "succeeded")
        lines = server.output(run).splitlines()
        assert any(line.startswith("[said] ") for line in lines) and lines[-1] == "succeeded", lines
        bad = tensors()
        bad["nodes"][3]["data"]["params"]["dim"] = "7"
        run = server.submit(bad)
        row = server.wait(run, "failed")
        assert "dim" in row["error"] and row["cause"] == "graph_error", row
        states = {e["payload"]["node_id"]: e["payload"]["status"] for e in server.events(run, "node_status")}
        assert states["mean"] == "error", states
        assert server.output(run).splitlines()[-1].startswith("failed: "), server.output(run)


# ids: R11
def test_stop_writes_a_checkpoint_that_resumes(snug):
    """Cancelled within a batch; the next run with resume auto goes on where it stopped."""
    harness.need_fashion()
    graph = harness.training_graph(train__max_steps=0, train__epochs=1000)
    with Server(snug) as server:
        server.online("local")
        run = server.submit(graph, seed=5)
        until(lambda: any(e["payload"]["status"] == "progress" for e in server.events(run, "node_status")), 60,
              "a batch")
        assert server.post("/api/runs/%s/cancel" % run).doc["cancelled"]
        row = server.wait(run, "cancelled")
        assert row["cause"] == "cancelled", row
        saved = [e["payload"] for e in server.events(run, "artifact") if e["payload"]["kind"] == "checkpoint"]
        assert len(saved) == 1 and "/interrupted/" in saved[0]["path"] and saved[0]["node_id"] == "train", saved
        assert server.events(run, "execution_stopped")[-1]["payload"]["reason"] == "cancelled"
        stopped = result(server, run)["metrics"]["total_batches"]
        graph["nodes"][-1]["data"]["params"].update(max_steps=stopped + 3)
        after = server.submit(graph, resume="auto")
        server.wait(after, "succeeded", 90)
        doc = result(server, after)
        assert doc["resumed_from"] == saved[0]["path"] and doc["facts"]["seed"] == 5, doc
        assert doc["metrics"]["total_steps"] == stopped + 3, (stopped, doc["metrics"])


# ids: R7
def test_queued_runs_wait_for_the_foreground(snug):
    """`snug run --local` is on the card: a queued run of an exclusive card waits for its end, and says so."""
    harness.need_fashion()
    with Server(snug, cards="A:2GiB:sm89:context=32MiB") as server:
        server.online("local")
        path = server.file("long.json", json.dumps(harness.training_graph(train__max_steps=0, train__epochs=1000)))
        front = server.popen("run", path, "--local", "--device", "cuda:0", "--json")
        try:
            until(lambda: os.path.isdir(os.path.join(server.home, "slots")) and
                  os.listdir(os.path.join(server.home, "slots")), 60, "the foreground's place")
            run = server.submit(harness.training_graph(train__max_steps=2), device="cuda:0")
            waits = until(lambda: [e for e in server.events(run, "run_warning")
                                   if e["payload"]["kind"] == "waits_for_foreground"], 60, "the wait")[0]
            assert "cuda:0" in waits["payload"]["message"], waits
            assert server.status(run) == "running" and not server.events(run, "metric")
            front.send_signal(signal.SIGINT)
            front.communicate(timeout=60)
            server.wait(run, "succeeded", 90)
        finally:
            front.kill()
            front.wait()
