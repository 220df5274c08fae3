"""Two scripts that play the editors of the founding system: that of 1.4.2, whose canvas owns its run, and
the newer one, which views runs that the server owns. Shapes are checked field by field."""
import base64
import http.server
import json
import os
import shutil
import signal
import subprocess
import threading
import urllib.parse
import uuid

from attack import idx_bytes
from harness import Skip
from server_harness import Server, until
from websocket import WebSocket

ENDS = ("execution_complete", "execution_error", "execution_stopped")
NODE_STATUSES = {"running", "progress", "completed", "cached", "skipped", "error"}


def tiny_dataset(server, count=64):
    """A FashionMNIST of so many pictures; the folder for `data_dir`."""
    raw = os.path.join(server.dir, "data", "FashionMNIST", "raw")
    os.makedirs(raw, exist_ok=True)
    for name, data in zip(("images-idx3", "labels-idx1"), idx_bytes(count)):
        with open(os.path.join(raw, "train-%s-ubyte" % name), "wb") as out:
            out.write(data)
    return os.path.join(server.dir, "data")


# ---- graphs ------------------------------------------------------------------------------------------


def node(id, kind, **params):
    params.update(params.pop("also", {}))
    return {"id": id, "type": kind, "position": {"x": 0, "y": 0}, "data": {"params": params}}


def edge(source, port, target, to):
    return {"id": "%s.%s-%s.%s" % (source, port, target, to), "source": source, "sourceHandle": port,
            "target": target, "targetHandle": to}


def trigger(target):
    return {"id": "go-" + target, "source": "start", "sourceHandle": "trigger", "target": target,
            "targetHandle": "__trigger", "type": "trigger"}


LAYERS = {
    "version": 2,
    "nodes": [{"id": "in", "type": "Input", "ports": [{"id": "px", "name": "x"}]},
              {"id": "f", "type": "Flatten"},
              {"id": "l1", "type": "Linear", "params": {"in_features": 784, "out_features": 32}},
              {"id": "r", "type": "ReLU"},
              {"id": "l2", "type": "Linear", "params": {"in_features": 32, "out_features": 10}},
              {"id": "out", "type": "Output", "ports": [{"id": "py", "name": "y"}]}],
    "edges": [{"source": "in", "sourceHandle": "px", "target": "f"}, {"source": "f", "target": "l1"},
              {"source": "l1", "target": "r"}, {"source": "r", "target": "l2"},
              {"source": "l2", "target": "out", "targetHandle": "py"}],
}


def training(data_dir, epochs=2):
    """The usual graph of the editor: a model, the preset of training, a plot of the losses."""
    pipeline = {"id": "train", "type": "preset:Training Pipeline", "position": {"x": 1, "y": 1},
                "data": {"params": {}, "internalParams": {
                    "dataset": {"name": "FashionMNIST", "data_dir": data_dir},
                    "dataloader": {"batch_size": 16}, "train_loop": {"epochs": epochs}}}}
    return {
        "nodes": [node("start", "Start"), node("model", "SequentialModel", layers=json.dumps(LAYERS)), pipeline,
                  node("plot", "Visualize", title="losses"), node("show", "Print", label="losses")],
        "edges": [trigger("model"), edge("model", "model", "train", "model"),
                  edge("model", "model", "train", "model_for_opt"), edge("train", "losses", "plot", "data"),
                  edge("train", "losses", "show", "value")],
    }


def small():
    """Runs in a moment; every output is a value."""
    return {"nodes": [node("start", "Start"),
                      node("t", "TensorInput", shape="2,3", value_mode="arange"),
                      node("relu", "Activation"), node("show", "Print", label="it")],
            "edges": [trigger("t"), edge("t", "tensor", "relu", "tensor"), edge("relu", "tensor", "show", "value")]}


# ---- shapes ------------------------------------------------------------------------------------------


def has(document, **types):
    """Every field is there, of one of these types."""
    for name, kind in types.items():
        assert name in document, (name, document)
        assert isinstance(document[name], kind), (name, document)


NONE = type(None)


def check_node(d):
    has(d, node_name=str, category=str, description=str, inputs=list, outputs=list, params=list, provider=str)
    for port in d["inputs"] + d["outputs"]:
        has(port, name=str, data_type=str, description=str, optional=bool)
    for p in d["params"]:
        has(p, name=str, param_type=str, description=str, options=list, min_value=(int, float, NONE),
            max_value=(int, float, NONE), visible_when=(dict, NONE))
        assert "default" in p, p
        assert p["param_type"] in {"int", "float", "string", "bool", "select", "model_file", "image_file",
                                   "tensor_grid", "secret", "data_file", "code"}, p
        if p["param_type"] == "select":
            assert all(isinstance(o, str) for o in p["options"]) and p["options"], p


def check_preset(d):
    has(d, preset_name=str, category=str, description=str, tags=list, nodes=list, edges=list,
        exposed_inputs=list, exposed_outputs=list, exposed_params=list)
    for n in d["nodes"]:
        has(n, id=str, type=str, params=dict)
    for e in d["edges"]:
        has(e, source=str, sourceHandle=str, target=str, targetHandle=str)
    for p in d["exposed_inputs"] + d["exposed_outputs"]:
        has(p, name=str, internal_node=str, internal_port=str, data_type=str, description=str)
        assert p["data_type"], p
    for p in d["exposed_params"]:
        has(p, internal_node=str, param_name=str, display_name=str, group=str, param_def=dict)


def check_summary(s):
    """A line about an output, beside its edge."""
    has(s, type=str)
    if s["type"] == "tensor":
        has(s, shape=list, dtype=str)
    elif s["type"] == "model":
        has(s, params=int, trainable=int)
        assert "class" in s
    elif s["type"] in ("scalar", "string"):
        assert "value" in s, s
    elif s["type"] == "list":
        has(s, length=int)


def check_status_142(f):
    assert set(f) <= {"type", "node_id", "status", "error", "progress", "log", "image", "output_summary"}, f
    has(f, node_id=str, status=str)
    assert f["status"] in NODE_STATUSES, f
    if "progress" in f:
        has(f["progress"], event=str)
    for name in ("error", "log", "image"):
        assert isinstance(f.get(name, ""), str), f
    for summary in f.get("output_summary", {}).values():
        check_summary(summary)


# ---- the editor of 1.4.2 -----------------------------------------------------------------------------


class Editor142:
    """What that editor does, in its order, with the token of the page."""

    def __init__(self, server):
        self.server = server
        self.token = server.get("/api/auth/bootstrap", token="").doc["token"]
        self.tab = str(uuid.uuid4())
        self.socket = WebSocket(server.port, "/ws/execution?token=" + urllib.parse.quote(self.token))

    def get(self, path):
        reply = self.server.get(path, token="")
        assert reply.status == 200, (path, reply)
        return reply.doc

    def post(self, path, body, status=200):
        reply = self.server.post(path, body, token=self.token)
        assert reply.status == status, (path, reply)
        return reply.doc

    def execute(self, graph, **more):
        run = str(uuid.uuid4())
        self.socket.send({
            "action": "execute", "nodes": graph["nodes"], "edges": graph["edges"], "presets": [],
            "run_id": run, "record_outputs": False, "verbose_mode": False, "graph_id": self.tab,
            "weights_persistent": True, "backward_mode": False, "auto_backward": False, "device": "cpu", **more})
        return run


# ids: D1 R16 S3 H1 promise-P15
def test_what_the_editor_reads_at_its_start(snug):
    """Every request of the editor's start has the shape that it expects."""
    with Server(snug, cards="A:8GiB:sm86,B:8GiB:sm86", examples_dir=os.path.join(snug.root, "examples")) as server:
        server.online("local")
        editor = Editor142(server)
        nodes = editor.get("/api/nodes")
        assert len(nodes) >= 131
        for d in nodes:
            check_node(d)
        loop = next(d for d in nodes if d["node_name"] == "TrainingLoop")
        device = next(p for p in loop["params"] if p["name"] == "device")
        assert device["options"] == ["auto", "cpu", "cuda", "cuda:0", "cuda:1"], device
        assert editor.get("/api/nodes/Conv2d")["node_name"] == "Conv2d"
        assert server.get("/api/nodes/None").status == 404
        presets = editor.get("/api/presets")
        for p in presets:
            check_preset(p)
        assert {p["preset_name"] for p in presets} >= {"Simple CNN Classifier", "LSTM Sequence", "Training Pipeline"}
        assert editor.get("/api/presets/" + urllib.parse.quote("Training Pipeline"))["category"] == "Training"
        health = editor.get("/api/health")
        has(health, status=str, nodes_loaded=int, presets_loaded=int, boot_id=str, caches=dict)
        has(health["caches"]["execution_cache"], instances=int, entries=int, bytes=int, max_bytes_each=int)
        has(health["caches"]["run_output_store"], runs=int, max_runs=int, bytes=int, max_bytes=int)
        has(health["caches"]["node_state_store"], modules=int, max_modules=int, bytes=int, max_bytes=int)
        devices = editor.get("/api/system/devices")
        has(devices, default=str, devices=list)
        for d in devices["devices"]:
            has(d, value=str, label=str, available=bool)
            assert "detail" in d, d
        for path in ("models", "images", "custom-nodes", "plugins", "apps", "graph/list", "examples/list"):
            assert isinstance(editor.get("/api/" + path), list), path
        assert len(editor.get("/api/examples/list")) >= 4
        for e in editor.get("/api/examples/list"):
            has(e, name=str, description=str, category=str, path=str, node_count=int, edge_count=int)
            graph = editor.get("/api/examples/load?path=" + urllib.parse.quote(e["path"]))
            has(graph, nodes=list, edges=list)
        assert editor.get("/api/plugins/generation") == {"generation": 0}
        has(editor.post("/api/nodes/reload", {}), builtin=int, custom=int, plugins=int, presets=int, total=int)
        assert editor.post("/api/llm/models", {"provider": "openai"})["models"] == []
        assert "detail" in editor.post("/api/llm/chat", {"provider": "openai", "messages": []}, 501)
        assert server.post("/api/nodes/reload", {}, token="").status == 403


# ids: promise-P15
def test_graphs_and_presets_of_the_editor(snug):
    """Saved, listed, loaded, validated, exported; a preset of the canvas is used without being embedded."""
    with Server(snug) as server:
        editor = Editor142(server)
        graph = dict(small(), name="My graph", description="", presets=[], segmentGroups=[])
        saved = editor.post("/api/graph/save", graph)
        assert saved["message"] == "Graph saved" and "path" in saved, saved
        listed = editor.get("/api/graph/list")
        assert [g["name"] for g in listed] == ["My graph"] and isinstance(listed[0]["file"], str), listed
        loaded = editor.get("/api/graph/load/" + urllib.parse.quote(listed[0]["file"].replace(".json", "")))
        assert [n["id"] for n in loaded["nodes"]] == [n["id"] for n in graph["nodes"]], loaded
        ok = editor.post("/api/graph/validate", {"nodes": graph["nodes"], "edges": graph["edges"]})
        assert ok["valid"] is True and ok["errors"] == [], ok
        bad = editor.post("/api/graph/validate", {"nodes": [node("x", "Nothing")], "edges": []})
        assert bad["valid"] is False and bad["errors"][0] == "Unknown node type: Nothing (node x)", bad
        body = {"name": "Mine", "nodes": [node("c", "Activation"), node("l", "Flatten")],
                "edges": [edge("c", "tensor", "l", "tensor")]}
        check_preset(editor.post("/api/presets/create", body))
        editor.post("/api/presets/create", body, 409)
        editor.post("/api/presets/create", {"name": "None", "nodes": [], "edges": []}, 400)
        assert "Mine" in {p["preset_name"] for p in editor.get("/api/presets")}
        used = {"nodes": [node("start", "Start"), node("t", "TensorInput"), node("p", "preset:Mine"),
                          node("s", "Print")],
                "edges": [trigger("t"), edge("t", "tensor", "p", "node_0_tensor"),
                          edge("p", "node_1_tensor", "s", "value")]}
        ok = editor.post("/api/graph/validate", used)
        assert ok["valid"], ok
        server.online("local")
        with editor.socket as socket:
            editor.execute(used)
            frames = socket.until(*ENDS)
            assert frames[-1]["type"] == "execution_complete", frames


# ids: R1 R6 promise-P15
def test_a_canvas_run_of_1_4_2(snug):
    """The training graph of the editor, cut short: progress, a picture, summaries, its end."""
    with Server(snug) as server:
        server.online("local")
        data = tiny_dataset(server)
        editor = Editor142(server)
        graph = training(data)
        assert editor.post("/api/graph/validate", {"nodes": graph["nodes"], "edges": graph["edges"]})["valid"]
        with editor.socket as socket:
            run = editor.execute(graph)
            frames = socket.until(*ENDS)
            assert frames[-1] == {"type": "execution_complete"}, frames[-1]
            assert frames[0] == {"type": "execution_start", "run_id": run}, frames[0]
            states = [f for f in frames if f["type"] == "node_status"]
            for f in states:
                check_status_142(f)
            assert {f["type"] for f in frames} == {"execution_start", "node_status", "execution_complete"}
            assert {f["node_id"] for f in states} <= {"start", "model", "train", "plot", "show"}, states
            last = {f["node_id"]: f["status"] for f in states if f["status"] != "progress"}
            assert all(last[n] == "completed" for n in ("model", "train", "plot", "show")), last
            progress = [f["progress"] for f in states if f["status"] == "progress" and "progress" in f]
            config = [p for p in progress if p["event"] == "config"][0]["config"]
            has(config, model_class=str, params=int, trainable=int, optimizer=str, lr=float, loss_fn=str,
                epochs=int, device=str, batch_size=int)
            epochs = [p for p in progress if p["event"] == "epoch"]
            assert [p["epoch"] for p in epochs] == [1, 2], epochs
            for p in epochs:
                has(p, total_epochs=int, loss=float, losses=list, lr=float)
            assert len(epochs[-1]["losses"]) == 2
            picture = [f["image"] for f in states if "image" in f]
            assert base64.b64decode(picture[0]).startswith(b"\x89PNG"), picture
            assert any("losses" in f.get("log", "") for f in states if f["node_id"] == "show"), states
            model = [f["output_summary"] for f in states if f["node_id"] == "model" and "output_summary" in f]
            assert model[-1]["model"]["type"] == "model" and model[-1]["model"]["params"] == 25450, model
            shown = [f["output_summary"] for f in states if f["node_id"] == "show" and "output_summary" in f]
            assert shown[-1]["value"]["shape"] == [2] and len(shown[-1]["value"]["values"]) == 2, shown


# ids: R1 promise-P15
def test_the_fashion_example_on_the_canvas(snug):
    """The example of the gallery, on a few pictures in SNUG_HOME/data: it trains, shows, saves; the file is there."""
    with Server(snug, examples_dir=os.path.join(snug.root, "examples")) as server:
        server.online("local")
        tiny_dataset(server)
        raw = os.path.join(server.dir, "data", "FashionMNIST", "raw")
        for part in ("images-idx3", "labels-idx1"):
            shutil.copy(os.path.join(raw, "train-%s-ubyte" % part), os.path.join(raw, "t10k-%s-ubyte" % part))
        shutil.move(os.path.join(server.dir, "data"), os.path.join(server.home, "data"))
        editor = Editor142(server)
        row = next(e for e in editor.get("/api/examples/list") if "fashion-cnn" in e["path"])
        graph = editor.get("/api/examples/load?path=" + urllib.parse.quote(row["path"]))
        assert row["node_count"] == len(graph["nodes"]) and row["edge_count"] == len(graph["edges"]), row
        assert editor.post("/api/graph/validate", {"nodes": graph["nodes"], "edges": graph["edges"]})["valid"]
        with editor.socket as socket:
            editor.execute(graph)
            frames = socket.until(*ENDS)
            assert frames[-1] == {"type": "execution_complete"}, frames[-1]
        states = [f for f in frames if f["type"] == "node_status"]
        for f in states:
            check_status_142(f)
        epochs = [f["progress"] for f in states if f.get("progress", {}).get("event") == "epoch"]
        assert [p["epoch"] for p in epochs] == [1, 2, 3] and all("val_loss" in p for p in epochs), epochs
        said = [f["log"] for f in states if f["node_id"] == "print" and "log" in f]
        assert said[0].startswith("[test accuracy]"), said
        summaries = {f["node_id"]: f["output_summary"] for f in states if "output_summary" in f}
        assert summaries["accuracy"]["accuracy"]["type"] == "scalar", summaries["accuracy"]
        assert summaries["save"]["path"].get("download_path") == "fashion-cnn.pt", summaries["save"]
        assert "fashion-cnn.pt" in [m["filename"] for m in editor.get("/api/models")]
        assert server.get("/api/models/download/fashion-cnn.pt", token="").status == 200


# ids: R1 promise-P15
def test_stop_and_reconnect_of_1_4_2(snug):
    """Stop ends it within a batch; a second execute cancels the first, and so does closing."""
    with Server(snug) as server:
        server.online("local")
        data = tiny_dataset(server)
        editor = Editor142(server)
        with editor.socket as socket:
            editor.execute(training(data, 100000))
            socket.until("execution_start")
            until(lambda: socket.frame().get("progress", {}).get("event") == "epoch", 30, "an epoch")
            socket.send({"action": "stop"})
            assert socket.until(*ENDS)[-1] == {"type": "execution_stopped"}
            until(lambda: len(server.runs("cancelled")) == 1, 30, "the row of the stopped run")
            socket.send({"action": "stop"})  # nothing runs
            assert socket.until(*ENDS)[-1] == {"type": "execution_stopped"}
            one = editor.execute(training(data, 100000))
            assert socket.until("execution_start")[-1]["run_id"] == one
            two = editor.execute(small())
            socket.until("execution_stopped")
            started = socket.until("execution_start")[-1]
            assert started["run_id"] == two, started
            assert socket.until(*ENDS)[-1]["type"] == "execution_complete"
            until(lambda: len(server.runs("cancelled")) == 2, 30, "the row of the replaced run")
            editor.execute(training(data, 100000))
            socket.until("execution_start")
        until(lambda: len(server.runs("cancelled")) == 3, 30, "the run that its closed tab owned")
        editor.socket.connect()
        editor.execute(small())
        assert editor.socket.until(*ENDS)[-1]["type"] == "execution_complete"
        editor.socket.send({"action": "clear_cache"})
        assert editor.socket.until("cache_cleared", "error")[-1] == {"type": "cache_cleared"}
        assert editor.socket.close() == 1000


# ids: H4 promise-P15
def test_errors_of_1_4_2(snug):
    """A bad graph, a bad device, bad messages: said, and the connection goes on."""
    with Server(snug) as server:
        server.online("local")
        editor = Editor142(server)
        with editor.socket as socket:
            broken = small()
            broken["nodes"][1]["data"]["params"] = {"shape": "2,3", "value_mode": "explicit", "values": [[1]]}
            editor.execute(broken)
            frames = socket.until(*ENDS)
            assert frames[-1]["type"] == "execution_error" and frames[-1]["error"], frames
            states = {f["node_id"]: f for f in frames if f["type"] == "node_status"}
            assert states["t"]["status"] == "error" and states["t"]["error"], states
            editor.execute(small(), device="fridge")
            frames = socket.until(*ENDS)
            assert frames[-1]["type"] == "execution_error" and "device" in frames[-1]["error"], frames
            editor.execute({"nodes": [], "edges": []})
            assert socket.until(*ENDS)[-1]["type"] == "execution_error"
            for text in (b"{", b"[]", b"7", b"{}", b'{"action": "fly"}', b'{"action": ["execute"]}'):
                socket.send_raw(1, text)
                frame = socket.frame()
                assert frame["type"] == "error" and isinstance(frame["error"], str), frame
            editor.execute(small())
            assert socket.until(*ENDS)[-1]["type"] == "execution_complete"


# ids: S1 S5 promise-P15
def test_the_inspector(snug):
    """Recorded outputs by the editor's own name of the run: list, parts, statistics; then forgotten."""
    with Server(snug) as server:
        server.online("local")
        editor = Editor142(server)
        with editor.socket as socket:
            run = editor.execute(small(), record_outputs=True)
            assert socket.until(*ENDS)[-1]["type"] == "execution_complete"
        path = "/api/execution/outputs/" + run
        listed = editor.get(path)
        for row in listed:
            has(row, node_id=str, port=str, type=str, full_shape=(list, NONE))
        assert {(r["node_id"], r["port"]) for r in listed} >= {("t", "tensor"), ("relu", "tensor")}, listed
        whole = editor.get(path + "/t/tensor")
        assert whole == {"type": "tensor", "run_id": run, "node_id": "t", "port": "tensor", "full_shape": [2, 3],
                         "dtype": "torch.float32", "slice": "", "sliced_shape": [2, 3],
                         "values": [[0, 1, 2], [3, 4, 5]], "truncated": False, "min": 0, "max": 5,
                         "mean": 2.5}, whole
        part = editor.get(path + "/t/tensor?slice=1,:")
        assert part["values"] == [3, 4, 5] and part["sliced_shape"] == [3] and part["slice"] == "1,:", part
        assert server.get(path + "/t/tensor?slice=9").status == 400
        assert server.get(path + "/t/tensor?max_elements=2").status == 413
        assert server.get(path + "/t/nothing").status == 404
        assert server.get("/api/execution/outputs/" + str(uuid.uuid4())).status == 404
        stats = editor.get(path + "/t/tensor/stats")
        assert stats["count"] == 6 and stats["sampled"] is False, stats
        assert editor.get(path + "/t/__steps_index") == [] and editor.get(path + "/t/__grad_index") == []
        stored = until(lambda: [c for c in [editor.get("/api/health")["caches"]["run_output_store"]] if c["runs"]],
                       30, "the report of what is stored")[0]
        assert stored["runs"] == 1 and stored["bytes"] >= 24, stored
        assert server.delete(path, token=editor.token).status == 200
        assert server.get(path).status == 404
        reset = editor.post("/api/execution/state/reset", {"graph_id": editor.tab})
        assert reset["graph_id"] == editor.tab and reset["scope"] == "graph", reset
        has(reset, evicted=int)
        assert editor.post("/api/execution/state/reset", {"graph_id": editor.tab, "node_ids": ["x"]})["scope"] == "nodes"
        has(editor.get("/api/execution/state/list"), total=int)
        assert server.post("/api/execution/state/reset", {}, token=editor.token).status == 422


# ids: W9
def test_outputs_that_a_worker_has(snug):
    """Read through while it is connected; 503 with its name while it is away; there again with it."""
    with Server(snug) as server:
        box = server.agent("box")
        run = server.submit(small(), record_outputs=True, target={"worker": "box"})
        server.wait(run, "succeeded")
        path = "/api/execution/outputs/%s/t/tensor" % run
        assert server.get(path).doc["values"] == [[0, 1, 2], [3, 4, 5]]
        box.kill(signal.SIGTERM)
        until(lambda: server.worker("box")["state"] == "disconnected", 60, "box away")
        away = server.get(path)
        assert away.status == 503 and "box" in away.detail, away
        box.start()
        assert server.get(path).doc["values"] == [[0, 1, 2], [3, 4, 5]]


# ids: S1 S3 S5
def test_second_run_of_a_tab_is_warm(snug):
    """Cached outputs are used again by the next run of the tab, not after clear_cache."""
    with Server(snug) as server:
        server.online("local")
        editor = Editor142(server)

        def states(frames):
            return {f["node_id"]: f["status"] for f in frames if f["type"] == "node_status"}

        with editor.socket as socket:
            editor.execute(small())
            assert states(socket.until(*ENDS))["relu"] == "completed"
            editor.execute(small())
            assert states(socket.until(*ENDS))["relu"] == "cached"
            editor.execute(small(), changed_nodes=["relu"])
            again = states(socket.until(*ENDS))
            assert (again["t"], again["relu"]) == ("cached", "completed"), again
            caches = until(lambda: [c for c in [editor.get("/api/health")["caches"]["execution_cache"]]
                                    if c["entries"]], 30, "the caches' report")[0]
            assert caches["instances"] == 1 and caches["bytes"] > 0, caches
            socket.send({"action": "clear_cache"})
            socket.until("cache_cleared")

            def runs_again():
                editor.execute(small())
                return states(socket.until(*ENDS))["relu"] == "completed"

            until(runs_again, 30, "a run without caches")


# ---- the newer editor --------------------------------------------------------------------------------


def attach(server, run, cursor=0, token=None):
    token = token or server.get("/api/auth/bootstrap", token="").doc["token"]
    socket = WebSocket(server.port, "/ws/execution?token=" + token).connect()
    socket.send({"action": "attach", "run_id": run, "cursor": cursor})
    frame = socket.frame()
    assert set(frame) == {"type", "run_id", "cursor", "status"} and frame["type"] == "attached", frame
    assert frame["run_id"] == run and frame["cursor"] == cursor, frame
    return socket


# ids: R11 promise-P12 promise-P15
def test_views_of_a_run(snug):
    """execute attaches; closing leaves the run alone; attach replays without gaps; two viewers see the same."""
    with Server(snug) as server:
        server.online("local")
        data = tiny_dataset(server)
        token = server.get("/api/auth/bootstrap", token="").doc["token"]
        with WebSocket(server.port, "/ws/execution?token=" + token) as socket:
            graph = training(data, 30)
            socket.send({"action": "execute", **graph, "presets": [], "subgraphs": [], "settings": {"device": "cpu"},
                         "graph_id": "g", "seed": 7, "deterministic": True})
            first = socket.frame()
            assert first["type"] == "attached" and first["cursor"] == 0, first
            run = first["run_id"]
            socket.until("node_status")
        one = attach(server, run)
        frames = one.until("metric")
        assert [f["cursor"] for f in frames] == list(range(1, len(frames) + 1)), frames
        two = attach(server, run, 2)
        seen_one, seen_two = frames + one.until(*ENDS), two.until(*ENDS)
        assert seen_one[-1]["type"] == "execution_complete", seen_one[-1]
        assert seen_one[2:] == seen_two
        assert [f["cursor"] for f in seen_one] == list(range(1, len(seen_one) + 1))
        stored = server.events(run)
        assert [(e["cursor"], e["type"]) for e in stored] == [(f["cursor"], f["type"]) for f in seen_one]
        for event, frame in zip(stored, seen_one):
            assert frame == {**event["payload"], "type": event["type"], "run_id": run, "cursor": event["cursor"]}
        entries = [o for f in seen_one if f["type"] == "node_status" for o in f.get("outputs", [])]
        kinds = {o["output_kind"] for o in entries}
        assert kinds >= {"progress", "image", "text", "tensor_summary"}, kinds
        for o in entries:
            assert o["output_kind"] in o or o.get("elided"), o
        server.wait(run, "succeeded")
        assert server.run(run)["options"]["lane"] == "interactive"
        one.send({"action": "attach", "run_id": "0" * 32})
        assert one.frame()["type"] == "error"
        one.close(), two.close()


# ids: promise-P15
def test_cancel_and_detach_of_the_newer_editor(snug):
    """cancel is acknowledged and idempotent; detach stops the frames; execute leaves the run before alone."""
    with Server(snug) as server:
        server.online("local")
        data = tiny_dataset(server)
        token = server.get("/api/auth/bootstrap", token="").doc["token"]
        with WebSocket(server.port, "/ws/execution?token=" + token) as socket:
            socket.send({"action": "cancel"})
            assert socket.frame() == {"type": "execution_stopped", "reason": "not_running"}
            socket.send({"action": "execute", **training(data, 100000), "subgraphs": [], "graph_id": "one"})
            run = socket.until("attached")[-1]["run_id"]
            socket.until("node_status")
            socket.send({"action": "detach"})
            assert socket.until("detached")[-1] == {"type": "detached", "run_id": run}
            socket.send({"action": "execute", **small(), "subgraphs": [], "graph_id": "two"})
            other = socket.frame()
            assert other["type"] == "attached" and other["run_id"] != run, other
            frames = socket.until(*ENDS)
            assert frames[-1]["type"] == "execution_complete" and all(f["run_id"] == other["run_id"] for f in frames)
            assert server.status(run) == "running"
            socket.send({"action": "cancel", "run_id": run})
            ack = socket.until("cancel_ack")[-1]
            assert set(ack) == {"type", "run_id", "status", "cancelled"} and ack["cancelled"] is True, ack
            server.wait(run, "cancelled")
            socket.send({"action": "stop", "run_id": run})
            assert socket.until("cancel_ack")[-1]["cancelled"] is False
            stopped = server.events(run)[-1]
            assert stopped["type"] == "execution_stopped" and stopped["payload"]["reason"] == "cancelled", stopped


# ids: R11 promise-P12
def test_a_view_over_a_restart_of_the_server(snug):
    """kill -9 of the server in the middle: attach again with the last cursor, and nothing is missing."""
    with Server(snug) as server:
        server.online("local")
        data = tiny_dataset(server)
        run = server.submit(dict(training(data, 40)))
        socket = attach(server, run)
        seen = socket.until("metric")
        server.restart()
        assert socket.frame() is None or True
        socket = attach(server, run, seen[-1]["cursor"])
        rest = socket.until(*ENDS)
        assert rest[-1]["type"] == "execution_complete", rest[-1]
        cursors = [f["cursor"] for f in seen + rest]
        assert cursors == list(range(1, len(cursors) + 1)), cursors


# ---- who may, and what is refused --------------------------------------------------------------------


# ids: H1 H4
def test_doors_of_the_socket(snug):
    """Host and origin 4003, token 4401, size 1009, frames without a mask 1002; others go on."""
    with Server(snug, ws_max_message_bytes=20000) as server:
        token = server.get("/api/auth/bootstrap", token="").doc["token"]
        good = "/ws/execution?token=" + token
        with WebSocket(server.port, good) as other:
            assert WebSocket(server.port, "/ws/execution").connect().closed() == 4401
            assert WebSocket(server.port, "/ws/execution?token=x").connect().closed() == 4401
            assert WebSocket(server.port, good, host="evil.example").connect().closed() == 4003
            assert WebSocket(server.port, good, ["Origin: http://evil.example"]).connect().closed() == 4003
            by_header = WebSocket(server.port, "/ws/execution", ["X-CodefyUI-Token: " + token]).connect()
            by_header.send({"action": "stop"})
            assert by_header.frame()["type"] == "execution_stopped"
            big = WebSocket(server.port, good).connect()
            big.send({"action": "execute", "nodes": ["x" * 30000]})
            assert big.closed() == 1009
            for data, code in (((1, b"{}", True, False), 1002), ((2, b"{}"), 1003), ((1, b"\xff\xfe"), 1007),
                               ((3, b""), 1002)):
                odd = WebSocket(server.port, good).connect()
                odd.send_raw(*data)
                assert odd.closed() == code, (data, odd.code)
            other.send_raw(1, b'{"action":', fin=False)
            other.send_raw(9, b"are you there")
            other.send_raw(0, b'"stop"}')
            assert other.frame_raw() == (10, b"are you there")
            assert other.frame()["type"] == "execution_stopped"
        plain = server.get("/ws/execution")
        assert plain.status == 426, plain


# ---- graphs as functions -----------------------------------------------------------------------------

KEYS = {"status", "run_id", "graph", "app", "version", "device", "outputs", "error", "timing"}


def function(**more):
    return {"name": "Echo", "description": "", "nodes": [
        node("start", "Start"), node("m", "GraphInput", name="message", also={"type": "string"}),
        node("x", "GraphInput", name="x", required=False, default="{}", also={"type": "json"}),
        node("p", "Print"), node("r", "Activation"), node("a", "GraphOutput", name="echo"),
        node("b", "GraphOutput", name="y"), *more.get("nodes", [])],
        "edges": [trigger("m"), trigger("x"), edge("m", "value", "p", "value"), edge("p", "value", "a", "value"),
                  edge("x", "value", "r", "tensor"), edge("r", "tensor", "b", "value"), *more.get("edges", [])]}


# ids: promise-P4 H4
def test_graph_as_a_function(snug):
    """Declared inputs in, declared outputs out; the envelope always has nine keys."""
    with Server(snug) as server:
        server.online("local")
        editor = Editor142(server)
        editor.post("/api/graph/save", function())
        contract = editor.get("/api/graph/contract/Echo")
        assert contract["problems"] == [] and [i["name"] for i in contract["inputs"]] == ["message", "x"], contract
        assert [(o["name"], o["type"]) for o in contract["outputs"]] == [("echo", "ANY"), ("y", "TENSOR")], contract
        tensor = {"__type__": "tensor", "shape": [2, 2], "dtype": "torch.float32", "values": [[1, -2], [3, 4]]}

        def call(name, body, status=200, raw=None):
            reply = server.api("POST", "/api/graph/run/" + name, body, token=editor.token, raw=raw)
            assert reply.status == status, reply
            assert set(reply.doc) == KEYS and reply.doc["run_id"] and reply.doc["graph"] == name, reply
            assert (reply.doc["error"] is None) == (status == 200), reply
            if reply.doc["error"]:
                assert set(reply.doc["error"]) == {"code", "message", "node_id", "details"}, reply
            return reply.doc

        said = call("Echo", {"inputs": {"message": "hi", "x": tensor}})
        assert said["outputs"]["echo"] == "hi" and said["device"] == "cpu" and said["status"] == "ok", said
        assert said["outputs"]["y"] == dict(tensor, values=[[1, 0], [3, 4]]), said
        assert said["timing"]["total_s"] > 0, said
        assert call("Nothing", {}, 404)["error"]["code"] == "graph_not_found"
        wrong = call("Echo", {"inputs": {"message": 7, "other": 1}}, 422)["error"]
        assert wrong["code"] == "invalid_input" and len(wrong["details"]) == 2, wrong
        assert call("Echo", None, 422, raw=b"{")["error"]["code"] == "invalid_input"
        assert call("Echo", {"timeout_s": 0}, 422)["error"]["code"] == "invalid_input"
        assert call("Echo", {"inputs": {"message": "a", "x": "no tensor"}}, 500)["error"]["code"] == "execution_error"
        lonely = function(nodes=[node("z", "GraphInput", name="z")], edges=[edge("z", "value", "q", "value")])
        lonely["name"] = "Lonely"
        editor.post("/api/graph/save", lonely)
        assert call("Lonely", {}, 409)["error"]["code"] == "untriggered_input"
        data = tiny_dataset(server)
        slow = training(data, 100000)
        slow["nodes"] += [node("o", "GraphOutput", name="losses")]
        slow["edges"] += [edge("train", "losses", "o", "value")]
        editor.post("/api/graph/save", dict(slow, name="Slow"))
        assert call("Slow", {"timeout_s": 2}, 500)["error"]["code"] == "timeout"
        fast = training(data, 1)
        fast["nodes"] += slow["nodes"][-1:]
        fast["edges"] += slow["edges"][-1:]
        editor.post("/api/graph/save", dict(fast, name="Fast"))
        assert call("Fast", {})["outputs"]["losses"]["shape"] == [1]


# ids: H3 promise-P15
def test_a_built_page_is_served(snug):
    """web_dir: index.html for places within the page, files by their type, nothing outside the folder."""
    folder = os.path.join(snug.dir, "dist")
    os.makedirs(os.path.join(folder, "assets"))
    for name, text in (("index.html", "<p>page</p>"), ("assets/a-1.js", "1"), ("assets/a-1.css", "p{}"),
                       ("logo.svg", "<svg/>")):
        with open(os.path.join(folder, name), "w") as out:
            out.write(text)
    os.symlink("/etc/passwd", os.path.join(folder, "assets", "out.txt"))
    with Server(snug, web_dir=folder) as server:
        for path in ("/", "/index.html", "/some/place"):
            reply = server.get(path, token="")
            assert (reply.status, reply.text) == (200, "<p>page</p>"), reply
            assert reply.headers["Content-Type"].startswith("text/html"), reply.headers
            assert reply.headers["Cache-Control"] == "no-cache", reply.headers
        script = server.get("/assets/a-1.js", token="")
        assert script.text == "1" and script.headers["Content-Type"].startswith("text/javascript"), script.headers
        assert "immutable" in script.headers["Cache-Control"], script.headers
        assert server.get("/assets/a-1.css").headers["Content-Type"].startswith("text/css")
        assert server.get("/logo.svg").headers["Content-Type"] == "image/svg+xml"
        for path in ("/assets/none.js", "/assets/out.txt", "/assets/../../x.js", "/..%2f..%2fetc/passwd.x", "/none.png",
                     "/api/none"):
            assert server.get(path).status in (400, 404), path


# ---- in a browser ------------------------------------------------------------------------------------

PAGE = """<!doctype html><title>canvas</title><script>
const server = %(server)s, graph = %(graph)s, frames = [];
function done(what) { fetch('/done', {method: 'POST', body: JSON.stringify({what, frames})}); }
(async () => {
  const token = (await (await fetch(server + '/api/auth/bootstrap')).json()).token;
  const nodes = await (await fetch(server + '/api/nodes')).json();
  const check = await (await fetch(server + '/api/graph/validate', {method: 'POST', body: JSON.stringify(graph),
    headers: {'Content-Type': 'application/json', 'X-CodefyUI-Token': token}})).json();
  const socket = new WebSocket(server.replace('http', 'ws') + '/ws/execution?token=' + encodeURIComponent(token));
  socket.onmessage = m => {
    const f = JSON.parse(m.data);
    frames.push(f);
    if (/^execution_(complete|error|stopped)$/.test(f.type)) {
      const image = frames.filter(x => x.image).map(x => x.image)[0];
      const shown = new Image();
      shown.onload = () => done({nodes: nodes.length, valid: check.valid, picture: [shown.width, shown.height]});
      shown.onerror = () => done({error: 'the picture cannot be shown'});
      shown.src = 'data:image/png;base64,' + image;
    }
  };
  socket.onclose = m => done({error: 'closed with ' + m.code});
  socket.onopen = () => socket.send(JSON.stringify({action: 'execute', ...graph, presets: [], run_id: crypto.randomUUID(),
    graph_id: 'tab', device: 'cpu', weights_persistent: true}));
})().catch(e => done({error: String(e)}));
</script>"""


class Pages(http.server.BaseHTTPRequestHandler):
    """The page, and what it posts when it is done."""

    def do_GET(self):
        body = self.server.page.encode()
        self.send_response(200 if self.path == "/" else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.server.said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


# ids: H1 promise-P15
def test_a_page_in_a_browser(snug):
    """A page of another origin that is allowed: reads, validates, runs on the canvas, shows the picture."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        raise Skip("no chromium")
    pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    origin = "http://localhost:%d" % pages.server_port
    with Server(snug, cors_origins=origin) as server:
        server.online("local")
        graph = training(tiny_dataset(server))
        pages.page = PAGE % {"server": json.dumps(server.url.replace("127.0.0.1", "localhost")), "graph": json.dumps(graph)}
        pages.said = None
        child = subprocess.Popen(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-proxy-server",
             "--user-data-dir=" + os.path.join(server.dir, "browser"), origin + "/"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            said = until(lambda: pages.said, 120, "what the page has to say")
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            pages.shutdown()
        assert said["what"].get("valid") is True and said["what"]["nodes"] >= 131, said
        assert said["what"]["picture"][0] > 100, said["what"]
        assert said["frames"][-1] == {"type": "execution_complete"}, said["frames"][-1]
