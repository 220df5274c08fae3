"""Seed 001, where a run goes: targets, devices, sets, renumbering; slots and their limits. Real processes, simulated cards."""
import signal
import time

from server_harness import Server, on, small, until

TWO = "A:8GiB:sm86:context=100MiB,B:8GiB:sm86:context=100MiB"
THREE = "A:8GiB:sm86:context=100MiB,B:8GiB:sm86:context=100MiB,C:8GiB:sm86:context=100MiB"


def where(row):
    return row["worker"], row["devices"]


# ids: R7 D3
# seed001: A7 B1 B2 E1
def test_queues_of_devices(snug):
    """One run on a card, two on the CPU, the others in order; queues do not wait on each other."""
    with Server(snug, cards=TWO) as server:
        server.online("local")
        first, open_first = server.hold("1", device="cuda:1")
        waits = [server.gate("w%d" % i, device="cuda:1") for i in range(2)]
        other, open_other = server.gate("o", device="cuda:0")
        assert server.wait(other, "running")["devices"] == ["cuda:0"], "another card does not wait"
        cpu = [server.gate("c%d" % i, device="cpu") for i in range(3)]
        for run, _ in cpu[:2]:
            server.wait(run, "running")
        rows = [server.run(run) for run, _ in waits] + [server.run(cpu[2][0])]
        assert [r["status"] for r in rows] == ["queued"] * 3, rows
        assert [r["queue_position"] for r in rows] == [1, 2, 1], rows
        assert [r["queue_key"] for r in rows] == ["cuda:1", "cuda:1", "cpu"] and all(r["reason"] for r in rows), rows
        assert first[:8] in rows[0]["reason"] or "cuda:1" in rows[0]["reason"], rows[0]
        open_first()
        server.wait(waits[0][0], "running")
        assert server.status(waits[1][0]) == "queued", "in the order of submission"
        for _, let in waits + cpu + [(0, open_other)]:
            let()
        for run, _ in waits + cpu + [(other, 0)]:
            assert server.wait(run)["status"] == "succeeded", server.run(run)


# ids: R4 R6
# seed001: B3 B4 B6 B14 B17
def test_cards_of_a_worker(snug):
    """One card, and a set: the run sees its cards from cuda:0 on in the order given; the facts record it."""
    graph = small()
    with Server(snug) as server:
        server.agent("gpu-box", cards=THREE)
        one = server.wait(server.submit(graph, target=on("gpu-box", "cuda:1")))
        assert one["status"] == "succeeded" and where(one) == ("gpu-box", ["cuda:1"]), one
        assert one["execution_facts"]["visible_devices"] == ["cuda:1"], one["execution_facts"]
        assert one["execution_facts"]["device_aliases"] == {"cuda:0": "cuda:1"}, one["execution_facts"]
        two = server.wait(server.submit(graph, target=on("gpu-box", "cuda:2", "cuda:0")))
        assert two["status"] == "succeeded" and where(two) == ("gpu-box", ["cuda:2", "cuda:0"]), two
        assert two["execution_facts"]["device_aliases"] == {"cuda:0": "cuda:2", "cuda:1": "cuda:0"}, two
        assert [p["device"] for p in two["peaks"] if p["bytes"] > 0] == ["cuda:2"], two["peaks"]
        sees = server.sh("echo [$CUDA_VISIBLE_DEVICES]", target=on("gpu-box", "cuda:2", "cuda:0"))
        server.wait(sees, "succeeded")
        uuids = {d["device"]: d["uuid"] for d in server.worker("gpu-box")["devices"]}
        assert "[%s,%s]" % (uuids["cuda:2"], uuids["cuda:0"]) in server.output(sees), server.output(sees)
        cli = server.json("run", server.file("g.json", graph), "--target", "gpu-box", "--device", "cuda:1")
        assert cli.rc == 0 and cli.doc["devices"] == ["cuda:1"] and cli.doc["worker"] == "gpu-box", cli
        cli = server.json("run", server.file("g.json", graph), "--target", "gpu-box", "--devices", "cuda:2,cuda:0")
        assert cli.rc == 0 and cli.doc["devices"] == ["cuda:2", "cuda:0"], cli


# ids: R6
# seed001: B15 B16
def test_nodes_on_cards_of_the_set(snug):
    """A node on auto follows the first card, one set to cuda:1 runs on the second; one that the run lacks
    falls back, and the warning names the cards."""
    with Server(snug) as server:
        server.agent("gpu-box", cards=THREE)
        pinned = small(train__device="cuda:1")
        row = server.wait(server.submit(pinned, target=on("gpu-box", "cuda:2", "cuda:0")))
        assert row["status"] == "succeeded", row
        peaks = {p["device"]: p["bytes"] for p in row["peaks"]}
        assert peaks.get("cuda:0", 0) > 0, row["peaks"]
        run = server.submit(pinned, target=on("gpu-box", "cuda:1"))
        assert server.wait(run)["status"] == "succeeded"
        warnings = [e["payload"] for e in server.events(run, "run_warning") if e["payload"]["kind"] == "device_fallback"]
        assert [w["message"] for w in warnings] == [
            "Node train (TrainingLoop) is set to device cuda:1; this run has 1 card (cuda:0 = the worker's cuda:1), "
            "so when it executes, it runs on cuda:0."], warnings


# ids: R4
# seed001: B7 B8
def test_sets_on_this_server(snug):
    """A set takes the slot of each of its cards and runs on the first; a device that is not here is a 400."""
    with Server(snug, cards=TWO) as server:
        server.online("local")
        both, let = server.gate("both", target=on("local", "cuda:1", "cuda:0"))
        row = server.wait(both, "running")
        assert row["devices"] == ["cuda:1", "cuda:0"], row
        others = [server.sh("true", device=d) for d in ("cuda:0", "cuda:1")]
        cpu = server.sh("true", device="cpu")
        assert server.wait(cpu)["status"] == "succeeded"
        assert [server.status(r) for r in others] == ["queued", "queued"]
        let()
        for run in [both] + others:
            assert server.wait(run)["status"] == "succeeded"
        graph = server.wait(server.submit(small(), target=on("local", "cuda:1", "cuda:0")))
        assert graph["status"] == "succeeded", graph
        assert [p["device"] for p in graph["peaks"] if p["bytes"] > 0] == ["cuda:1"], graph["peaks"]
        refused = server.try_submit(command={"argv": ["true"]}, target=on("local", "cuda:0", "cuda:5"))
        assert refused.status == 400, refused
        assert refused.detail == "this server does not offer cuda:5 (it offers cpu, cuda:0, cuda:1)", refused


# ids: D4 R4
# seed001: B8 B9
def test_fallback_without_cards(snug):
    """On a machine without a card cuda runs on the CPU and says so; a set is refused."""
    with Server(snug, env={"SNUG_SIM_CARDS": ""}) as server:
        server.online("local")
        run = server.submit(small(), device="cuda")
        row = server.wait(run)
        assert row["status"] == "succeeded" and row["devices"] == ["cpu"], row
        kinds = [e["payload"]["kind"] for e in server.events(run, "run_warning")]
        assert "device_fallback" in kinds, server.events(run)
        refused = server.try_submit(small(), target=on("local", "cuda:0"))
        assert refused.status == 400 and refused.detail == "this server does not offer cuda:0 (it offers cpu)", refused


# ids: R5
# seed001: B10 B11 A9
def test_named_workers(snug):
    """An unknown worker, or a device it does not offer: 400. One that is offline: the run waits for it."""
    with Server(snug) as server:
        nobody = server.try_submit(command={"argv": ["true"]}, target=on("gpu-box", "cuda:0"))
        assert nobody.status == 400 and "gpu-box" in nobody.detail, nobody
        said = server.cli("run", "--target", "gpu-box", "--device", "cuda:0", "--", "true")
        assert said.rc == 1 and nobody.detail in said.err, said
        agent = server.agent("gpu-box", cards=TWO)
        lacks = server.try_submit(command={"argv": ["true"]}, target=on("gpu-box", "cuda:7"))
        assert lacks.status == 400 and "cuda:7" in lacks.detail and "gpu-box" in lacks.detail, lacks
        agent.kill(signal.SIGTERM)
        until(lambda: not server.worker("gpu-box")["connected"], 30, "the worker's absence")
        run = server.sh("true", target=on("gpu-box", "cuda:0"))
        row = server.run(run)
        assert row["status"] == "queued" and "gpu-box" in row["reason"], row
        agent.start()
        assert server.wait(run)["status"] == "succeeded"


# ids: R5
# seed001: B5 B12
def test_any_worker(snug):
    """The first connected worker by name with a free card that does not drain; this server last."""
    with Server(snug, cards="S:8GiB:sm86") as server:
        server.online("local")
        server.agent("beta", cards="B:8GiB:sm86")
        server.agent("alpha", cards="A:8GiB:sm86")
        held = []
        for expected in ("alpha", "beta", "local"):
            run, let = server.gate(expected, target=on("any"), device="cuda")
            row = server.wait(run, "running")
            assert where(row) == (expected, ["cuda:0"]), row
            held.append((run, let))
        waits = server.sh("true", target=on("any"), device="cuda")
        row = server.run(waits)
        assert row["status"] == "queued" and row["reason"], row
        assert server.post("/api/workers/alpha/drain").status == 200
        held[0][1]()
        server.wait(held[0][0], "succeeded")
        assert server.status(waits) == "queued", "a draining worker gets nothing"
        held[1][1]()
        assert server.wait(waits)["worker"] == "beta"
        cli = server.popen("run", "--target", "any", "--device", "cuda", "--json", "--", "true")
        out, _ = cli.communicate(timeout=60)
        assert cli.returncode == 0 and b'"worker": "beta"' in out, out
        held[2][1]()


# ids: R5
# seed001: B13
def test_any_with_sets(snug):
    """Sets of cards, and a card other than cuda:0, go to workers alone; nobody offers it: 400."""
    with Server(snug, cards=TWO) as server:
        server.online("local")
        for devices in (["cuda:0", "cuda:1"], ["cuda:1"]):
            refused = server.try_submit(command={"argv": ["true"]}, target=on("any", *devices))
            assert refused.status == 400, refused
        server.agent("gpu-box", cards=THREE)
        for devices in (["cuda:0", "cuda:1"], ["cuda:1"]):
            row = server.wait(server.sh("true", target=on("any", *devices)))
            assert where(row) == ("gpu-box", devices), row
        refused = server.try_submit(command={"argv": ["true"]}, target=on("any", "cuda:3", "cuda:4"))
        assert refused.status == 400, refused


# ids: R7
# seed001: E2 E3
def test_a_set_does_not_starve(snug):
    """A set takes all its slots at once; at the head it keeps those that become free from single-card runs."""
    with Server(snug, cards=TWO) as server:
        server.online("local")
        zero, let_zero = server.gate("zero", device="cuda:0")
        one, let_one = server.gate("one", device="cuda:1")
        for run in (zero, one):
            server.wait(run, "running")
        both, let_both = server.gate("both", target=on("local", "cuda:0", "cuda:1"))
        stream = [server.sh("true", device="cuda:0") for _ in range(3)]
        let_zero()
        server.wait(zero, "succeeded")
        time.sleep(0.5)
        assert server.status(both) == "queued" and [server.status(r) for r in stream] == ["queued"] * 3
        assert "cuda:1" in server.run(both)["reason"], server.run(both)
        assert server.run(stream[0])["reason"], server.run(stream[0])
        let_one()
        server.wait(both, "running")
        assert [server.status(r) for r in stream] == ["queued"] * 3
        let_both()
        for run in [both] + stream:
            assert server.wait(run)["status"] == "succeeded"
        times = [server.run(r)["started_at"] for r in [both] + stream]
        assert times == sorted(times), times


# ids: R8
# seed001: E4
def test_limits_of_slots(snug):
    """SNUG_RUN_QUEUE_MAX_CONCURRENT: a bare device is this server's, worker/device a worker's."""
    with Server(snug, cards="S:8GiB:sm86", run_queue_max_concurrent="cuda:0=2,gpu-box/cuda:1=3,cpu=1") as server:
        server.online("local")
        server.agent("gpu-box", cards=TWO)
        slots = {(w["name"], d["device"]): d["slots"]["limit"] for w in server.workers().values() for d in w["devices"]}
        assert slots[("local", "cuda:0")] == 2 and slots[("local", "cpu")] == 1, slots
        assert slots[("gpu-box", "cuda:0")] == 1 and slots[("gpu-box", "cuda:1")] == 3, slots
        held = [server.gate("h%d" % i, target=on("gpu-box", "cuda:1")) for i in range(4)]
        for run, _ in held[:3]:
            server.wait(run, "running")
        assert server.status(held[3][0]) == "queued"
        for _, let in held:
            let()
        for run, _ in held:
            server.wait(run, "succeeded")


# ids: R9
# seed001: E5 E6 E8
def test_one_card_offered_twice(snug):
    """Server and worker of one machine offer the same card: it counts once; the worker takes the server's
    limit; both say that it is the same card."""
    with Server(snug, cards=TWO, run_queue_max_concurrent="cuda:0=2") as server:
        server.online("local")
        server.agent("twin", cards=TWO, same_home=True)
        rows = {w: {d["device"]: d for d in server.worker(w)["devices"]} for w in ("local", "twin")}
        assert rows["local"]["cuda:0"]["uuid"] == rows["twin"]["cuda:0"]["uuid"]
        assert rows["twin"]["cuda:0"]["slots"]["limit"] == 2, rows["twin"]["cuda:0"]
        assert rows["twin"]["cuda:1"]["slots"]["limit"] == 1, rows["twin"]["cuda:1"]
        assert any("local" in x or "server" in x for x in rows["twin"]["cuda:0"]["same_card_as"]), rows["twin"]["cuda:0"]
        assert any("twin" in x for x in rows["local"]["cuda:0"]["same_card_as"]), rows["local"]["cuda:0"]
        here, let_here = server.hold("here", device="cuda:1")
        there, let_there = server.gate("there", target=on("twin", "cuda:1"))
        time.sleep(0.5)
        assert server.status(there) == "queued", "the card is taken, through whichever provider"
        let_here()
        server.wait(there, "running")
        pair = [server.gate("p0", device="cuda:0"), server.gate("p1", target=on("twin", "cuda:0")),
                server.gate("p2", target=on("twin", "cuda:0"))]
        for run, _ in pair[:2]:
            server.wait(run, "running")
        assert server.status(pair[2][0]) == "queued"
        for _, let in pair + [(0, let_there)]:
            let()


# ids: R9
# seed001: E5
def test_the_smallest_limit_holds(snug):
    """Two agents offer one card with different limits: the smaller of those online holds, and it is logged."""
    card = "A:8GiB:sm86:uuid=GPU-one"
    with Server(snug, run_queue_max_concurrent="ann/cuda:0=3,bob/cuda:0=2") as server:
        server.agent("ann", cards=card)
        limit = lambda: server.worker("ann")["devices"][1]["slots"]
        assert limit()["limit"] == 3, limit()
        bob = server.agent("bob", cards=card)
        assert limit()["limit"] == 2 and limit()["own_limit"] == 3 and limit()["limit_by"] == "bob", limit()
        assert "ann" in server.log() and "bob" in server.log(), server.log()
        bob.kill(signal.SIGTERM)
        until(lambda: limit()["limit"] == 3, 60, limit)


# ids: R10
# seed001: C1 C2 C4
def test_sweeps_on_any_worker(snug):
    """Four variants on two one-card agents go two at a time; each says where it ran."""
    with Server(snug) as server:
        for name in ("alpha", "beta"):
            server.agent(name, cards="%s:8GiB:sm86" % name)
        body = {"base_graph": small(train__max_steps=200), "objective": {"metric": "train_loss", "direction": "minimize"},
                "sweep_spec": {"method": "grid", "seed": 3, "params": [
                    {"node_id": "optimizer", "param": "lr", "values": [0.1, 0.01, 0.001, 0.0001]}]},
                "seed_variants": True, "options": {"target": {"worker": "any"}, "device": "cuda"}}
        sweep = server.post("/api/sweeps", body)
        assert sweep.status == 201, sweep
        most, path = 0, "/api/sweeps/" + sweep.doc["sweep_id"]

        def over():
            nonlocal most
            doc = server.get(path).doc
            most = max(most, sum(v["status"] == "running" for v in doc["variants"]))
            return doc["state"] not in ("running", "cancelling") and doc

        doc = until(over, 120, "the sweep's end", every=0.02)
        assert doc["state"] == "finished" and most == 2, (doc["state"], most)
        assert all(v["status"] == "succeeded" and v["devices"] == ["cuda:0"] and v["queue_key"] for v in doc["variants"]), doc
        assert {v["worker_id"] for v in doc["variants"]} == {"alpha", "beta"}, doc
        runs = [server.run(v["run_id"]) for v in doc["variants"]]
        assert all(r["options"]["target"] == {"worker": "any"} for r in runs), runs


# ids: R10
# seed001: C3
def test_a_refused_target_refuses_the_sweep(snug):
    """400 before anything is queued."""
    with Server(snug, cards=TWO) as server:
        body = {"base_graph": small(), "objective": {"metric": "train_loss", "direction": "minimize"},
                "sweep_spec": {"method": "grid", "params": [{"node_id": "optimizer", "param": "lr", "values": [0.1, 0.01]}]},
                "options": {"target": on("nobody", "cuda:0")}}
        alone = server.try_submit(small(), target=on("nobody", "cuda:0"))
        refused = server.post("/api/sweeps", body)
        assert refused.status == 400 and alone.status == 400 and alone.detail in refused.detail, (alone, refused)
        assert server.get("/api/runs").doc["total"] == 0
