"""Seed 001, running now and queued: lanes, what is kept and recorded, peaks, ddp where it cannot apply. Real processes."""
import signal

from server_harness import Server, on, small, until

CARD = "A:8GiB:sm86:context=100MiB"
TWO = "A:8GiB:sm86:context=100MiB,B:8GiB:sm86:context=100MiB"
LONG = {"train__max_steps": 10000000, "train__epochs": 1000000}


def canvas(server, graph, tab, **more):
    return server.try_submit(graph, lane="interactive", graph_id=tab, **more)


# ids: R1
# seed001: A1 A3
def test_canvas_runs_start_at_once(snug):
    """Two at most, one per tab; over that 503 at once, nothing is queued; never on another worker."""
    with Server(snug, cards=CARD) as server:
        server.online("local")
        server.agent("gpu-box", cards=TWO)
        first = canvas(server, small(**LONG), "one")
        assert first.status in (200, 201), first
        row = server.wait(first.doc["run_id"], "running")
        assert row["worker"] == "local" and row["lane"] == "interactive", row
        again = canvas(server, small(**LONG), "one")
        assert again.status == 503, again
        second = canvas(server, small(**LONG), "two")
        assert server.wait(second.doc["run_id"], "running")["worker"] == "local"
        third = canvas(server, small(**LONG), "three")
        assert third.status == 503, third
        elsewhere = canvas(server, small(), "four", target=on("gpu-box", "cuda:0"))
        assert elsewhere.status in (400, 503), elsewhere
        assert server.get("/api/runs").doc["total"] == 2
        for reply in (first, second):
            assert server.post("/api/runs/%s/cancel" % reply.doc["run_id"]).doc["cancelled"]
            assert server.wait(reply.doc["run_id"])["status"] == "cancelled"
        refused = canvas(server, small(), "five", target=on("gpu-box", "cuda:0"))
        assert refused.status == 400, refused


# ids: R1 R7
# seed001: A2
def test_canvas_runs_skip_the_queue(snug):
    """One beside a queued run on a card of limit 1."""
    with Server(snug, cards=CARD) as server:
        server.online("local")
        held, let = server.hold("held", device="cuda:0")
        waits = server.sh("true", device="cuda:0")
        now = canvas(server, small(), "tab", device="cuda:0")
        row = server.wait(now.doc["run_id"])
        assert row["status"] == "succeeded" and row["devices"] == ["cuda:0"], row
        assert server.status(held) == "running" and server.status(waits) == "queued"
        let()
        server.wait(waits, "succeeded")


def layer_graph():
    """Start -> ones -> Linear -> Softmax: a layer of the canvas with weights."""
    nodes = [("s", "Start", {}), ("x", "TensorCreate", {"shape": "2,3", "fill": "ones"}),
             ("l", "Linear", {"in_features": 3, "out_features": 4}), ("a", "Softmax", {})]
    edges = [("s", "trigger", "x", ""), ("x", "tensor", "l", "tensor"), ("l", "tensor", "a", "tensor")]
    return {"name": "canvas", "nodes": [{"id": i, "type": t, "data": {"params": p}} for i, t, p in nodes],
            "edges": [dict({"id": "e%d" % k, "source": a, "sourceHandle": p, "target": b, "targetHandle": q},
                           **({"type": "trigger"} if p == "trigger" else {}))
                      for k, (a, p, b, q) in enumerate(edges)]}


# ids: R1 R17
# seed001: A4 A5
def test_what_a_tab_keeps(snug):
    """The next canvas run of a tab finds outputs and weights of the last; queued runs start fresh. Outputs
    are recorded by canvas runs, and by queued ones with record_outputs."""
    with Server(snug) as server:
        server.online("local")

        def numbers(run):
            """Statuses of the nodes, and what the layer put out."""
            server.wait(run, "succeeded")
            said = [e["payload"] for e in server.events(run, "node_status")]
            ends = {p["node_id"]: p["status"] for p in said if p["status"] != "running"}
            values = [o["tensor_summary"] for p in said if p["node_id"] == "l" for o in p.get("outputs", [])]
            return ends, values

        tab = [numbers(canvas(server, layer_graph(), "tab", seed=seed, weights_persistent=True).doc["run_id"])
               for seed in (5, 5, 6)]
        assert tab[0][0]["x"] == "completed" and tab[1][0]["x"] == "cached" and tab[1][0]["a"] == "cached", tab
        assert tab[0][1] == tab[1][1] == tab[2][1] and tab[0][1], "weights were kept: %r" % tab
        runs = [server.submit(layer_graph(), seed=seed) for seed in (5, 6)]
        fresh = [numbers(r) for r in runs]
        assert all(ends["x"] == "completed" for ends, _ in fresh), fresh
        assert fresh[0][1] == tab[0][1] and fresh[1][1] != tab[2][1], (fresh, tab)
        recorded = lambda run: server.get("/api/execution/outputs/" + run)
        assert recorded(runs[0]).status == 404 or recorded(runs[0]).doc == [], recorded(runs[0])
        kept = server.submit(layer_graph(), record_outputs=True)
        server.wait(kept, "succeeded")
        assert recorded(kept).status == 200 and recorded(kept).doc, recorded(kept)
        now = canvas(server, layer_graph(), "tab2", record_outputs=True).doc["run_id"]
        server.wait(now, "succeeded")
        assert recorded(now).status == 200 and recorded(now).doc, recorded(now)


# ids: W9
# seed001: A6
def test_outputs_stay_on_the_worker(snug):
    """Recorded outputs of a worker's run are read through it, while it is connected."""
    with Server(snug) as server:
        agent = server.agent("gpu-box", cards=CARD)
        run = server.submit(small(), target=on("gpu-box", "cuda:0"), record_outputs=True)
        server.wait(run, "succeeded")
        listed = server.get("/api/execution/outputs/" + run)
        assert listed.status == 200 and "train" in listed.text, listed
        agent.kill(signal.SIGTERM)
        until(lambda: not server.worker("gpu-box")["connected"], 30, "its absence")
        away = server.get("/api/execution/outputs/" + run)
        assert away.status == 503 and "gpu-box" in away.detail, away
        agent.start()
        assert server.get("/api/execution/outputs/" + run).status == 200


# ids: R2
# seed001: A8
def test_one_way_to_submit(snug):
    """snug run and the API make the same run: name, seed, deterministic, record_outputs."""
    with Server(snug) as server:
        server.online("local")
        path = server.file("g.json", small())
        cli = server.json("run", path, "--name", "mine", "--seed", "7", "--deterministic", "--record-outputs", "--detach")
        assert cli.rc == 0, cli
        api = server.submit(small(), name="mine", seed=7, deterministic=True, record_outputs=True)
        rows = [server.wait(r, "succeeded") for r in (cli.doc["run_id"], api)]
        for key in ("seed", "deterministic", "record_outputs"):
            assert rows[0]["options"][key] == rows[1]["options"][key] and rows[0]["options"][key], rows
        assert [r["name"] for r in rows] == ["mine"] * 2 and rows[0]["graph_key"] == rows[1]["graph_key"]
        assert rows[0]["result"]["metrics"]["final_train_loss"] == rows[1]["result"]["metrics"]["final_train_loss"]


# ids: R12
# seed001: H1
def test_peaks_are_exact(snug):
    """A run that ended shows its peak per card: what its allocator held at most, alone or beside others."""
    with Server(snug, cards=TWO) as server:
        server.online("local")
        runs = [server.submit(small(), device=d) for d in ("cuda:0", "cuda:1", "cuda:0")]
        peaks = []
        for run in runs:
            row = server.wait(run, "succeeded")
            assert len(row["peaks"]) == 1 and row["peaks"][0]["device"] == row["devices"][0], row
            used = [d["peak_bytes_measured"] for d in row["result"]["devices"] if d["id"] != "cpu"]
            assert [row["peaks"][0]["bytes"]] == used and used[0] > 0, (row["peaks"], used)
            peaks.append(row["peaks"][0]["bytes"])
        assert len(set(peaks)) == 1, peaks
        shown = server.cli("runs", "show", runs[0])
        assert shown.rc == 0 and "peak memory" in shown.out and "cuda:0" in shown.out, shown


def block(graph):
    """The same graph inside a block, triggered through its interface."""
    inner = [n for n in graph["nodes"] if n["type"] != "Start"]
    start = [n for n in graph["nodes"] if n["type"] == "Start"]
    return dict(graph, nodes=start + [{"id": "b", "type": "subgraph:whole", "position": {"x": 0, "y": 0}, "data": {"params": {}}}],
                edges=[{"id": "t", "source": "start", "target": "b", "sourceHandle": "trigger", "targetHandle": "", "type": "trigger"}],
                subgraphs=[{"id": "whole", "name": "whole", "nodes": inner,
                            "edges": [e for e in graph["edges"] if e.get("type") != "trigger"],
                            "interface": {"inputs": [], "outputs": [], "triggerTargets": ["model"]}}])


# ids: G10
# seed001: I1 I2
def test_ddp_where_it_cannot_apply(snug):
    """One process trains, to the same loss as single, and a warning says so; two cards of a worker are not
    quietly one: that run fails and says why."""
    with Server(snug, cards=TWO) as server:
        server.agent("gpu-box", cards=TWO)
        losses = lambda run: [(e["name"], e["step"], e["value"]) for e in server.get("/api/runs/%s/metrics" % run).doc["points"]]
        graph = lambda strategy: small(train__strategy=strategy, train__batch_metrics=True, train__log_interval=1)
        single = server.submit(graph("single"), seed=3)
        server.wait(single, "succeeded")
        assert losses(single) and not server.events(single, "run_warning"), server.events(single)
        runs = [server.submit(graph("ddp"), seed=3, **more) for more in (
            {}, {"target": on("local", "cuda:0", "cuda:1")}, {"target": on("gpu-box", "cuda:1")},
            {"target": on("gpu-box", "cpu")}, {"lane": "interactive", "graph_id": "tab"})]
        for run in runs:
            server.wait(run, "succeeded")
            warned = [e["payload"] for e in server.events(run, "run_warning")]
            assert [w["kind"] for w in warned] == ["ddp_not_available"] and warned[0]["node_id"] == "train", warned
            assert "trains in one process" in server.output(run), server.output(run)
            assert losses(run) == losses(single), (losses(run), losses(single))
        inside = server.submit(block(graph("ddp")), seed=3, target=on("gpu-box", "cuda:0", "cuda:1"))
        row = server.wait(inside, "succeeded")  # the loop in a block has one card, whatever the run has
        warned = [e["payload"] for e in server.events(inside, "run_warning")]
        assert [w["kind"] for w in warned] == ["ddp_not_available"], warned
        assert row["devices"] == ["cuda:0", "cuda:1"] and losses(inside), row
        two = server.wait(server.submit(graph("ddp"), seed=3, target=on("gpu-box", "cuda:0", "cuda:1")))
        assert two["status"] == "failed" and "cannot train over 2 cards with strategy ddp" in two["error"], two
