"""Sweeps and studies with real runs: comparison, CSV, restarts of the server, pause and resume."""
import csv
import io

from harness import MLP, need_fashion, training_graph
from server_harness import Server, until

MINIMIZE = {"metric": "train_loss_batch", "direction": "minimize"}


def small(**params):
    need_fashion()
    return training_graph(MLP, **{"train__max_steps": 3, "train__batch_metrics": True, "train__log_interval": 1, **params})


def rates(*values):
    return {"method": "grid", "seed": 3, "params": [{"node_id": "optimizer", "param": "lr", "values": list(values)}]}


def table(reply):
    assert reply.text.startswith("\ufeff") and reply.headers["Content-Type"].startswith("text/csv"), reply
    return list(csv.DictReader(io.StringIO(reply.text[1:])))


# ids: SW1
def test_a_sweep_is_compared(snug):
    """Ranked by the last loss of a batch, best first; the table says the same; a deleted run keeps its place."""
    with Server(snug) as server:
        server.online("local")
        made = server.post("/api/sweeps", {"base_graph": small(), "objective": MINIMIZE, "sweep_spec": rates(0.0001, 0.01, 0.001),
                                           "seed_variants": False, "name": "rates", "options": {"device": "cpu"}})
        assert made.status == 201 and made.doc["total_combinations"] == 3, made
        path = "/api/sweeps/" + made.doc["sweep_id"]
        doc = until(lambda: (d := server.get(path).doc)["state"] == "finished" and d, 90, "the sweep's end")
        assert "objective_warning" not in doc, doc
        losses = [v["objective"] for v in doc["variants"]]
        assert losses == sorted(losses) and [v["rank"] for v in doc["variants"]] == [1, 2, 3], doc
        assert doc["best"]["run_id"] == doc["variants"][0]["run_id"] and doc["counts"]["succeeded"] == 3, doc
        names = {server.run(v["run_id"])["name"] for v in doc["variants"]}
        assert names == {"rates #1", "rates #2", "rates #3"}, names
        rows = table(server.get(path + "?format=csv"))
        assert [r["run_id"] for r in rows] == [v["run_id"] for v in doc["variants"]], rows
        assert [float(r["optimizer.lr"]) for r in rows] == [v["params"][0]["value"] for v in doc["variants"]], rows
        assert server.delete("/api/runs/" + rows[0]["run_id"]).status == 200
        first = server.get(path).doc["variants"][0]
        assert first["run_id"] == rows[0]["run_id"] and not first["run_exists"] and first["rank"] == 1, first


# ids: SW2
def test_a_study_outlives_the_server(snug):
    """Killed twice on its way: every cell has one result, made once; its log has no gap."""
    with Server(snug) as server:
        server.online("local")
        made = server.post("/api/studies", {"base_graph": small(), "objective": MINIMIZE, "sweep_spec": rates(0.01, 0.001),
                                            "repetitions": 2, "seed": 5, "parallel": 1, "options": {"device": "cpu"}})
        assert made.status == 201, made
        path = "/api/studies/" + made.doc["study_id"]
        done = lambda: server.get(path).doc["counts"]["succeeded"]
        for n in (1, 2):
            until(lambda: done() >= n, 90, "run %d of the study" % n)
            server.restart()
        doc = until(lambda: (d := server.get(path).doc)["state"] == "finished" and d, 120, "the study's end")
        cells = [c for v in doc["variants"] for c in v["cells"]]
        assert len(cells) == 4 and all(c["status"] == "succeeded" and c["attempt"] == 1 for c in cells), doc
        assert sorted(c["seed"] for c in cells) == [5, 5, 6, 6] and doc["runs_made"] == 4, doc
        assert server.get("/api/runs").doc["total"] == 4
        events = server.get(path + "/events").doc["events"]
        assert [e["cursor"] for e in events] == list(range(1, len(events) + 1)), events
        kinds = [e["type"] for e in events]
        assert kinds.count("cell_submitted") == 4 and kinds.count("cell_ended") == 4, kinds
        assert kinds[0] == "study_started" and kinds[-1] == "study_finished", kinds
        assert len(table(server.get(path + "?format=csv"))) == 4


# ids: SW2
def test_a_study_pauses_at_a_boundary(snug):
    """What runs ends, what waits is taken back; the next server keeps it paused; resumed, it goes on with the rest."""
    with Server(snug, run_queue_max_concurrent_cpu=1) as server:
        server.online("local")
        made = server.post("/api/studies", {"base_graph": small(train__max_steps=200), "objective": MINIMIZE,
                                            "repetitions": 3, "options": {"device": "cpu"}})
        assert made.status == 201, made
        path = "/api/studies/" + made.doc["study_id"]
        counts = lambda: server.get(path).doc["counts"]
        until(lambda: counts()["running"] == 1, 60, "a run of the study")
        paused = server.post(path + "/pause")
        assert paused.status == 200 and paused.doc["state"] == "paused" and paused.doc["counts"]["pending"] == 2, paused
        until(lambda: counts()["succeeded"] == 1, 90, "the end of what ran")
        server.restart()
        doc = server.get(path).doc
        assert doc["state"] == "paused" and doc["runs_made"] == 1 and doc["counts"]["pending"] == 2, doc
        assert server.post(path + "/resume").doc["state"] == "running"
        doc = until(lambda: (d := server.get(path).doc)["state"] == "finished" and d, 120, "the study's end")
        assert doc["counts"]["succeeded"] == 3 and doc["runs_made"] == 3, doc
        assert server.post(path + "/resume").status == 409
