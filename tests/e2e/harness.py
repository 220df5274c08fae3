"""What the tests of the whole program share: calling it, its documents, small graphs."""
import json
import os
import shutil
import signal
import subprocess
import tempfile

FASHION = "/usr/share/datasets/fashion-mnist"


class Skip(Exception):
    """Raised by a test that cannot run here."""


class Result:
    """Exit status and output of one call; `doc` is stdout read as one JSON document."""

    def __init__(self, rc, out, err):
        self.rc, self.out, self.err = rc, out, err

    @property
    def doc(self):
        return json.loads(self.out)

    @property
    def events(self):
        """The JSON lines of stderr."""
        return [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]

    def __repr__(self):
        return "(exit %s, stdout %.600s, stderr %.600s)" % (self.rc, self.out, self.err[-600:])


class Snug:
    """The program with a fresh SNUG_HOME and a folder for files, both removed at the end."""

    def __init__(self, program, root):
        self.program, self.root = os.path.abspath(program), root

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="snug-e2e-")
        self.home = os.path.join(self.dir, "home")
        self.env = dict(os.environ, SNUG_HOME=self.home, NO_COLOR="1", LC_ALL="C.UTF-8")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self, *args, **more):
        env = dict(self.env, **more.pop("env", {}))
        return subprocess.Popen(
            [self.program, *map(str, args)], env=env, cwd=self.dir, stdin=more.pop("stdin", subprocess.DEVNULL),
            stdout=more.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE, **more)

    def __call__(self, *args, timeout=120, **more):
        child = self.start(*args, **more)
        try:
            out, err = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise AssertionError("`snug %s` ran longer than %s s" % (" ".join(map(str, args)), timeout))
        result = Result(child.returncode, (out or b"").decode(), err.decode())
        assert result.rc not in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS), "crash: %r" % result
        return result

    def json(self, *args, **more):
        """Calls with --json; checks what every document has."""
        result = self(*args, "--json", **more)
        doc = result.doc
        assert doc["schema"] == 1, result
        assert doc["status"] == {0: "succeeded", 130: "interrupted"}.get(result.rc, "failed"), result
        if result.rc == 0:
            assert doc["error"] is None, result
        else:
            assert set(doc["error"]) - {"type"} == {"code", "message", "node_id", "node_type", "detail", "hint"}, result
            assert doc["error"]["message"], result
        return result

    def example(self, name):
        return os.path.join(self.root, "examples", name, "graph.json")

    def write(self, name, content):
        path = os.path.join(self.dir, name)
        with open(path, "w") as out:
            out.write(content if isinstance(content, str) else json.dumps(content))
        return path


def need_fashion():
    if not os.path.isdir(FASHION):
        raise Skip("the Debian package dataset-fashion-mnist is missing")


def layers(*rows):
    """A chain of layers: each row (type, {parameters})."""
    nodes = [{"id": "in", "type": "Input", "ports": [{"id": "x", "name": "x"}]}]
    nodes += [{"id": "l%d" % i, "type": t, "params": p} for i, (t, p) in enumerate(rows)]
    nodes.append({"id": "out", "type": "Output", "ports": [{"id": "y", "name": "y"}]})
    edges = []
    for a, b in zip(nodes, nodes[1:]):
        edge = {"source": a["id"], "target": b["id"]}
        if a["id"] == "in":
            edge["sourceHandle"] = "x"
        if b["id"] == "out":
            edge["targetHandle"] = "y"
        edges.append(edge)
    return json.dumps({"version": 2, "nodes": nodes, "edges": edges})


MLP = layers(("Flatten", {}), ("Linear", {"in_features": 784, "out_features": 32}), ("ReLU", {}),
             ("Linear", {"in_features": 32, "out_features": 10}))
CNN = layers(("Conv2d", {"in_channels": 1, "out_channels": 8, "kernel_size": 3, "stride": 2, "padding": 1}),
             ("BatchNorm2d", {"num_features": 8}), ("ReLU", {}), ("Flatten", {}),
             ("Dropout", {"p": 0.1}), ("Linear", {"in_features": 1568, "out_features": 10}))


def training_graph(model=MLP, name="tiny", validate=False, **params):
    """A graph that trains on Fashion-MNIST; keyword arguments "node.param" set parameters."""
    nodes = {
        "start": ("Start", {}),
        "model": ("SequentialModel", {"layers": model}),
        "data": ("Dataset", {"name": "FashionMNIST", "split": "train", "data_dir": "./data"}),
        "loader": ("DataLoader", {"batch_size": 32, "shuffle": True}),
        "optimizer": ("Optimizer", {"type": "Adam", "lr": 0.001}),
        "loss": ("Loss", {"type": "CrossEntropyLoss"}),
        "train": ("TrainingLoop", {"epochs": 1, "max_steps": 20}),
    }
    wires = [("model", "model", "optimizer", "model"), ("model", "model", "train", "model"),
             ("data", "dataset", "loader", "dataset"), ("loader", "dataloader", "train", "dataloader"),
             ("optimizer", "optimizer", "train", "optimizer"), ("loss", "loss_fn", "train", "loss_fn")]
    if validate:
        nodes["test"] = ("Dataset", {"name": "FashionMNIST", "split": "test", "data_dir": "./data"})
        nodes["val"] = ("DataLoader", {"batch_size": 100, "shuffle": False})
        wires += [("test", "dataset", "val", "dataset"), ("val", "dataloader", "train", "val_dataloader")]
    for key, value in params.items():
        node, param = key.split("__")
        nodes[node][1][param] = value
    edges = [{"id": "t", "source": "start", "target": "model", "sourceHandle": "trigger",
              "targetHandle": "", "type": "trigger"}]
    edges += [{"id": "e%d" % i, "source": a, "sourceHandle": p, "target": b, "targetHandle": q}
              for i, (a, p, b, q) in enumerate(wires)]
    return {
        "name": name,
        "nodes": [{"id": i, "type": t, "position": {"x": 0, "y": 0}, "data": {"params": p}}
                  for i, (t, p) in nodes.items()],
        "edges": edges,
        "settings": {"seed": 1},
    }
