#!/usr/bin/python3
"""The server as a whole, by hand: trivial runs through one agent, a sweep of 10,000 variants, a million events.

    whole.py [--snug build/snug] [--runs 500] [--variants 10000] [--events 1000000]

Prints the machine's load beside every figure.
"""
import argparse
import http.client
import json
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "e2e")]
sys.dont_write_bytecode = True

from server_harness import Server  # noqa: E402


class Program:
    root = ROOT

    def __init__(self, program):
        self.program = os.path.abspath(program)


def load():
    with open("/proc/loadavg") as f:
        return "load " + f.read().split()[0]


def resident(pid):
    with open("/proc/%d/status" % pid) as f:
        return next(int(line.split()[1]) >> 10 for line in f if line.startswith("VmRSS"))


class Caller:
    """One connection, kept open."""

    def __init__(self, server, secret=None):
        self.head = {"Content-Type": "application/json", **(
            {"Authorization": "Bearer " + secret} if secret else {"X-CodefyUI-Token": server.token})}
        self.to = http.client.HTTPConnection("127.0.0.1", server.port)

    def post(self, path, body):
        self.to.request("POST", path, json.dumps(body), self.head)
        reply = self.to.getresponse()
        text = reply.read()
        assert reply.status < 300, (reply.status, text[:400])
        return json.loads(text)


def trivial_runs(snug, count):
    with Server(snug, run_queue_max_concurrent="cpu=32", run_retention_keep_last=-1) as server:
        server.online("local")
        caller, begin = Caller(server), time.time()
        for _ in range(count):
            caller.post("/api/runs", {"command": {"argv": ["/bin/true"]}})
        while server.get("/api/runs?limit=1&status=succeeded").doc["total"] < count:
            assert time.time() - begin < 300
            time.sleep(0.05)
        print("trivial runs through one agent, submitted one by one: %.0f runs/s (%d runs; %s)" % (
            count / (time.time() - begin), count, load()))


def large_sweep(snug, count):
    with open(os.path.join(ROOT, "examples", "fashion-cnn", "graph.json")) as f:
        graph = json.load(f)
    with Server(snug, max_sweep_runs=count, max_sweep_domain=count, builtin_worker=0) as server:
        body = {"base_graph": graph, "objective": {"metric": "train_loss", "direction": "minimize"}, "sweep_spec": {
            "method": "grid", "params": [
                {"node_id": "train", "param": "epochs", "range": {"min": 1, "max": count // 100, "count": count // 100,
                                                                  "scale": "linear", "type": "int"}},
                {"node_id": "train", "param": "log_interval", "range": {"min": 1, "max": 100, "count": 100,
                                                                        "scale": "linear", "type": "int"}}]}}
        caller, begin = Caller(server), time.time()
        reply = caller.post("/api/sweeps", body)
        took = time.time() - begin
        assert len(reply["variants"]) == count
        print("sweep of %d variants, checked and stored whole: %.2f s, its answer read (%s)" % (count, took, load()))


def many_events(snug, count):
    with Server(snug, builtin_worker=0) as server:
        joined = server.post("/api/workers", {"name": "bench"}).doc
        caller = Caller(server, joined["token"])
        with open("/dev/urandom", "rb") as f:
            instance = f.read(16).hex()
        hello = {"protocol": 1, "version": server.get("/api/health").doc["version"], "name": "bench", "instance": instance,
                 "can_cap": True, "allow_commands": True, "devices": [{"device": "cpu", "kind": "cpu", "name": "CPU"}]}
        welcome = caller.post("/api/agent/connect", hello)
        if welcome.get("credential"):
            caller = Caller(server, welcome["credential"])
        session = welcome["session"]
        run = server.sh("true", target={"worker": "bench", "devices": ["cpu"]})
        order = {}
        while not order:
            caller.to.request("GET", "/api/agent/orders?session=%s&after=0&wait=5" % session, headers=caller.head)
            orders = json.loads(caller.to.getresponse().read())["orders"]
            order = next((o for o in orders if o["type"] == "start"), {})
        at, sequence = time.time(), 0

        def send(events):
            nonlocal sequence
            for e in events:
                sequence += 1
                e.update(run_id=run, epoch=order["epoch"], sequence=sequence, time_us=int(time.time() * 1e6))
            caller.post("/api/agent/report", {"session": session, "heartbeat": False, "events": events})

        send([{"type": "started", "payload": {"pid": 1}}, {"type": "execution_start", "payload": {}}])
        figures = []
        for i in range(count // 500):
            send([{"type": "node_status", "payload": {"node_id": "n", "status": "running", "progress": {"step": k}}}
                  for k in range(500)])
            if i % (count // 2000) == 0:
                figures.append(resident(server.pid))
        wal = os.path.getsize(os.path.join(server.home, "snug.db-wal")) >> 20
        print("%d events in %.0f s: the server's memory %d MiB at a quarter, %d at the end; log ahead of the database %d MiB (%s)" % (
            count, time.time() - at, figures[len(figures) // 4], resident(server.pid), wal, load()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--snug", default=os.path.join(ROOT, "build/snug"))
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--variants", type=int, default=10000)
    parser.add_argument("--events", type=int, default=1000000)
    options = parser.parse_args()
    snug = Program(options.snug)
    if options.runs:
        trivial_runs(snug, options.runs)
    if options.variants:
        large_sweep(snug, options.variants)
    if options.events:
        many_events(snug, options.events)


if __name__ == "__main__":
    main()
