"""Seed 001, sharing a card by memory: modes, budgets, the ledger, refusals. Real processes, simulated cards."""
import re
import time

from harness import layers
from server_harness import Server, card, on, share, small, until

GIB, MIB = 1 << 30, 1 << 20
BIG = "A:24GiB:sm89:context=100MiB,B:24GiB:sm89:context=100MiB"
WIDE = layers(("Flatten", {}), ("Linear", {"in_features": 784, "out_features": 2000}), ("ReLU", {}),
              ("Linear", {"in_features": 2000, "out_features": 10}))


def plus_20(peak):
    """What the server makes of a peak: 20 % more, up to a whole MiB."""
    return -(-peak * 12 // (10 * MIB)) * MIB


def held(server, name, gib, device="cuda:0", **more):
    return server.gate(name, target=on("gpu-box", device, memory_gib=gib, **more))


# ids: B1
# seed001: F1 F2 F3
def test_modes_of_cards(snug):
    """Exclusive until shared; the mode outlives reconnects and restarts; the CPU cannot be shared."""
    with Server(snug) as server:
        agent = server.agent("gpu-box", cards=BIG)
        assert [d["mode"] for d in server.worker("gpu-box")["devices"][1:]] == ["exclusive", "exclusive"]
        refused = server.api("PUT", "/api/workers/gpu-box/cards/cpu", {"mode": "shared"})
        assert refused.status == 400, refused
        assert server.cli("workers", "share", "gpu-box", "cuda:1").rc == 0
        agent.kill()
        agent.start()
        assert card(server, "gpu-box", "cuda:1")["mode"] == "shared"
        server.restart()
        server.online("gpu-box")
        assert [d["mode"] for d in server.worker("gpu-box")["devices"][1:]] == ["exclusive", "shared"]
        runs = [held(server, "s%d" % i, 4, "cuda:1") for i in range(2)]
        for run, _ in runs:
            server.wait(run, "running")
        for _, let in runs:
            let()
        for run, _ in runs:
            server.wait(run, "succeeded")
        share(server, "gpu-box", "cuda:1", "exclusive")
        runs = [held(server, "x%d" % i, 4, "cuda:1") for i in range(2)]
        server.wait(runs[0][0], "running")
        time.sleep(0.3)
        assert server.status(runs[1][0]) == "queued", "exclusive again"
        for _, let in runs:
            let()


# ids: B2 B3
# seed001: F4 F5 F6 F7 F22
def test_budgets_are_measured(snug):
    """No budget and no peak: refused. Then the peak of an earlier success plus 20 %, whose run is named, for
    every run of the same graph and no other, on as many cards."""
    with Server(snug) as server:
        server.agent("gpu-box", cards=BIG)
        share(server, "gpu-box", "cuda:0")
        asked = server.try_submit(small(), target=on("gpu-box", "cuda:0"))
        assert asked.status == 400 and re.search("budget|memory_gib", asked.detail), asked
        first = server.wait(server.submit(small(), target=on("gpu-box", "cuda:0", memory_gib=2)))
        assert first["status"] == "succeeded" and first["budget"]["source"] == "given" and first["budget"]["gib"] == 2, first
        peak = first["peaks"][0]["bytes"]
        assert 0 < peak < 2 * GIB, first["peaks"]
        same = small(train__max_steps=5, optimizer__lr=0.01)
        same["nodes"][1]["id"] = "renamed"
        same["settings"]["seed"] = 9
        for e in same["edges"]:
            for end in ("source", "target"):
                e[end] = "renamed" if e[end] == "model" else e[end]
        row = server.wait(server.submit(same, target=on("gpu-box", "cuda:0")))
        assert row["status"] == "succeeded" and row["graph_key"] == first["graph_key"], row
        assert row["budget"]["source"] == "measured" and row["budget"]["run_id"] == first["id"], row["budget"]
        assert row["budget"]["bytes"] == plus_20(peak), (row["budget"], peak)
        shown = server.cli("runs")
        assert "measured, %.8s" % first["id"] in shown.out, shown
        for other in (small(loader__batch_size=64), small(WIDE), small(data__split="test")):
            refused = server.try_submit(other, target=on("gpu-box", "cuda:0"))
            assert refused.status == 400, refused
        share(server, "gpu-box", "cuda:1")
        two = server.try_submit(small(), target=on("gpu-box", "cuda:0", "cuda:1"))
        assert two.status == 400, "a peak on one card says nothing about two: %r" % two


# ids: B4
# seed001: F8 F10
def test_estimates_are_raised(snug):
    """An estimate below a measured peak is replaced by the peak plus 20 %; a typed budget is not."""
    with Server(snug) as server:
        server.agent("gpu-box", cards=BIG)
        share(server, "gpu-box", "cuda:0")
        first = server.wait(server.submit(small(WIDE), target=on("gpu-box", "cuda:0", memory_gib=2)))
        peak = first["peaks"][0]["bytes"]
        low = peak / 2 / GIB
        row = server.wait(server.submit(
            small(WIDE), target=on("gpu-box", "cuda:0", memory_gib=low, memory_source="estimate")))
        assert row["status"] == "succeeded", row
        assert row["budget"]["bytes"] == plus_20(peak) and row["budget"]["raised"], row["budget"]
        high = server.wait(server.submit(
            small(WIDE), target=on("gpu-box", "cuda:0", memory_gib=1, memory_source="estimate")))
        assert high["budget"]["bytes"] == GIB and high["budget"]["source"] == "estimate", high["budget"]
        assert not high["budget"]["raised"], high["budget"]
        typed = server.wait(server.submit(small(WIDE), target=on("gpu-box", "cuda:0", memory_gib=low)))
        assert typed["status"] == "failed" and typed["cause"] == "out_of_memory", typed
        assert typed["budget"]["source"] == "given" and not typed["budget"]["raised"], typed["budget"]


# ids: B4
# seed001: F9 F18
def test_estimates_rise_while_they_wait(snug):
    """A run that waits with an estimate gets the peak of another run of its graph that succeeded meanwhile,
    and says so; larger than every card it may use, it fails with that reason. A typed budget stays."""
    with Server(snug, execution_cuda_context_mib=1) as server:
        server.agent("gpu-box", cards="A:1GiB:sm89:context=1MiB,B:1GiB:sm89:context=1MiB")
        server.agent("tiny", cards="T:24MiB:sm89:context=1MiB")
        share(server, "gpu-box", "cuda:0")
        share(server, "gpu-box", "cuda:1")
        share(server, "tiny", "cuda:0")
        holder, let = held(server, "holder", 1020 / 1024)
        small_holder, let_small = server.gate("small", target=on("tiny", "cuda:0", memory_gib=16 / 1024))
        server.wait(holder, "running")
        server.wait(small_holder, "running")
        ask = lambda worker, **more: server.submit(
            small(WIDE), target=on(worker, "cuda:0", memory_gib=10 / 1024, wait=True, **more))
        waits, never = ask("gpu-box", memory_source="estimate"), ask("tiny", memory_source="estimate")
        typed = ask("gpu-box")
        for run in (waits, never, typed):
            row = server.run(run)
            assert row["status"] == "queued" and "GiB" in row["reason"], row
        measured = server.wait(server.submit(small(WIDE), target=on("gpu-box", "cuda:1", memory_gib=0.5)), "succeeded")
        peak = measured["peaks"][0]["bytes"]
        assert 24 * MIB < peak < 40 * MIB, peak
        failed = server.wait(never)
        assert failed["status"] == "failed" and failed["cause"] == "budget_too_large", failed
        assert "0.030 GiB" in failed["error"] and "in all" in failed["error"] and failed["budget"]["raised"], failed
        row = server.run(waits)
        assert row["status"] == "queued" and row["budget"]["bytes"] == plus_20(peak) and row["budget"]["raised"], row
        assert "raised" in row["reason"] and measured["id"][:8] in row["reason"], row["reason"]
        assert "raised" in server.cli("runs").out
        row = server.run(typed)
        assert row["budget"]["bytes"] == 10 * MIB and not row["budget"]["raised"], row["budget"]
        let()
        let_small()
        assert server.wait(waits)["status"] == "succeeded"
        assert server.wait(typed)["cause"] == "out_of_memory"


# ids: B6
# seed001: F11 F12
def test_over_budget_ends_alone(snug):
    """A run that needs more than its budget runs out of memory alone; the message names the budget's source
    and asks for a larger one; its neighbour goes on. Exit status 3, as in the foreground."""
    with Server(snug) as server:
        server.agent("gpu-box", cards=BIG)
        share(server, "gpu-box", "cuda:0")
        neighbour = server.submit(small(train__max_steps=400), target=on("gpu-box", "cuda:0", memory_gib=2))
        server.wait(neighbour, ("running", "succeeded"))
        graph = server.file("wide.json", small(WIDE))
        result = server.json("run", graph, "--target", "gpu-box", "--device", "cuda:0", "--memory-gib", "0.02")
        assert result.rc == 3 and result.doc["error"]["code"] == "out_of_memory", result
        message = result.doc["error"]["message"] + str(result.doc["error"]["hint"])
        assert "budget" in message and "target.memory_gib" in message, result.doc["error"]
        row = server.run(result.doc["run_id"])
        assert row["status"] == "failed" and row["cause"] == "out_of_memory", row
        text = server.cli("run", graph, "--target", "gpu-box", "--device", "cuda:0", "--memory-gib", "0.02")
        assert text.rc == 3 and "target.memory_gib" in text.err, text
        assert server.wait(neighbour)["status"] == "succeeded"


# ids: B5 B7
# seed001: F13 F14 F15 F18
def test_ledger_and_refusals(snug):
    """Fits if budget + context <= min(free - reserved, total - reserved - running). A named worker refuses
    with both figures and the holders; with wait it waits and says so."""
    with Server(snug) as server:
        server.agent("gpu-box", cards=BIG)
        share(server, "gpu-box", "cuda:1")
        a, let_a = held(server, "a", 8, "cuda:1")
        b, let_b = held(server, "b", 8, "cuda:1")
        for run in (a, b):
            server.wait(run, "running")
        memory = card(server, "gpu-box", "cuda:1")["memory"]
        context = 768 * MIB
        assert memory["running_bytes"] == 2 * (8 * GIB + context) and memory["reserved_bytes"] == 0, memory
        assert memory["total_bytes"] == 24 * GIB, memory
        refused = server.try_submit(command={"argv": ["true"]}, target=on("gpu-box", "cuda:1", memory_gib=12))
        assert refused.status in (400, 409), refused
        found = re.fullmatch(
            r"needs 12\.0 GiB \(\+0\.8 GiB CUDA context\), cuda:1 on gpu-box has (\d+\.\d) GiB free \(runs (\w{8}), (\w{8})\)",
            refused.detail)
        assert found, refused
        assert float(found.group(1)) == 6.5 and {found.group(2), found.group(3)} == {a[:8], b[:8]}, refused
        said = server.cli("run", "--target", "gpu-box", "--device", "cuda:1", "--memory-gib", "12", "--", "true")
        assert said.rc == 1 and refused.detail in said.err, said
        waits = server.submit(command={"argv": ["true"]}, target=on("gpu-box", "cuda:1", memory_gib=12, wait=True))
        row = server.run(waits)
        assert row["status"] == "queued" and "12.0 GiB" in row["reason"], row
        fits = server.wait(server.submit(command={"argv": ["true"]}, target=on("gpu-box", "cuda:1", memory_gib=5.75)))
        assert fits["status"] == "succeeded", "to the byte: 5.75 GiB + 768 MiB are left"
        more = server.try_submit(command={"argv": ["true"]}, target=on("gpu-box", "cuda:1", memory_gib=5.76))
        assert more.status in (400, 409), more
        never = server.try_submit(command={"argv": ["true"]}, target=on("gpu-box", "cuda:1", memory_gib=24, wait=True))
        assert never.status == 400, "larger than the card: %r" % never
        let_a()
        assert server.wait(waits)["status"] == "succeeded"
        let_b()


# ids: B5 W8
# seed001: H2 F13 G2
def test_others_on_the_card(snug):
    """What somebody else takes is seen at the next heartbeat, and counts in free."""
    with Server(snug) as server:
        server.agent("gpu-box", cards=BIG)
        share(server, "gpu-box", "cuda:0")
        assert card(server, "gpu-box", "cuda:0")["free_bytes"] == 24 * GIB
        other = server.popen("run", server.file("g.json", small(WIDE, train__max_steps=100000)), "--local",
                             "--device", "cuda:0", env={"SNUG_SIM_CARDS": BIG, "SNUG_HOME": server.dir + "/else"})
        try:
            free = lambda: card(server, "gpu-box", "cuda:0")["free_bytes"]
            until(lambda: free() < 24 * GIB, 30, free)
            room = card(server, "gpu-box", "cuda:0")["memory"]["room_bytes"]
            assert room <= free() - 768 * MIB, (room, free())
            refused = server.try_submit(command={"argv": ["true"]}, target=on(
                "gpu-box", "cuda:0", memory_gib=(24 * GIB - 768 * MIB) / GIB))
            assert refused.status in (400, 409) and "GiB free" in refused.detail, refused
        finally:
            other.kill()
            other.communicate()


# ids: B7
# seed001: F16
def test_any_waits_for_memory(snug):
    """any waits until a card has room, unless the budget is larger than each, or wait is false."""
    with Server(snug) as server:
        server.agent("gpu-box", cards="A:24GiB:sm89")
        share(server, "gpu-box", "cuda:0")
        holder, let = held(server, "holder", 20)
        server.wait(holder, "running")
        ask = lambda gib, **more: server.try_submit(
            command={"argv": ["true"]}, device="cuda", target=on("any", memory_gib=gib, **more))
        refused = ask(8, wait=False)
        assert refused.status in (400, 409) and "GiB free" in refused.detail, refused
        assert ask(40).status == 400, "larger than every card"
        waits = ask(8)
        assert waits.status in (200, 201), waits
        assert server.status(waits.doc["run_id"]) == "queued"
        let()
        assert server.wait(waits.doc["run_id"])["worker"] == "gpu-box"


# ids: B8
# seed001: F19 F20
def test_runs_without_a_budget(snug):
    """Not sent to a shared card; one that is there when it becomes shared has it alone until it ends; one
    that was queued before gets its graph's default budget."""
    with Server(snug) as server:
        server.agent("gpu-box", cards="A:24GiB:sm89")
        assert server.wait(server.submit(small(), target=on("gpu-box", "cuda:0")))["status"] == "succeeded"
        alone, let = server.hold("alone", target=on("gpu-box", "cuda:0"))
        graph = server.submit(small(), target=on("gpu-box", "cuda:0"))
        never = server.sh("true", target=on("gpu-box", "cuda:0"))
        share(server, "gpu-box", "cuda:0")
        budget, let_budget = held(server, "budget", 4, wait=True)
        time.sleep(0.5)
        assert server.status(budget) == "queued" and server.status(graph) == "queued", "the card is one run's"
        let()
        server.wait(alone, "succeeded")
        server.wait(budget, "running")
        row = server.wait(graph)
        assert row["status"] == "succeeded" and row["budget"]["source"] == "measured", row
        row = server.run(never)
        assert row["status"] == "queued" and "budget" in row["reason"], row
        let_budget()


# ids: B9
# seed001: C5
def test_sweeps_are_judged_whole(snug):
    """One child without a budget, larger than every card, or not fitting under wait: false refuses all."""
    with Server(snug) as server:
        server.agent("gpu-box", cards="A:24GiB:sm89")
        share(server, "gpu-box", "cuda:0")

        def sweep(**target):
            return server.post("/api/sweeps", {
                "base_graph": small(), "objective": {"metric": "train_loss", "direction": "minimize"},
                "sweep_spec": {"method": "grid", "params": [
                    {"node_id": "loader", "param": "batch_size", "values": [16, 32]}]},
                "options": {"target": on("gpu-box", "cuda:0", **target)}})

        assert sweep().status == 400
        assert sweep(memory_gib=40).status == 400
        holder, let = held(server, "holder", 20)
        server.wait(holder, "running")
        assert sweep(memory_gib=8).status in (400, 409)
        assert server.get("/api/runs").doc["total"] == 1
        waits = sweep(memory_gib=8, wait=True)
        assert waits.status == 201, waits
        let()
        for v in waits.doc["variants"]:
            assert server.wait(v["run_id"])["status"] == "succeeded"


# ids: W7 B5
# seed001: F21 G11
def test_budgets_after_a_restart(snug):
    """A run that was taken over counts with its budget before anything new is placed."""
    with Server(snug) as server:
        server.agent("gpu-box", cards="A:24GiB:sm89")
        share(server, "gpu-box", "cuda:0")
        holder, let = held(server, "holder", 20)
        server.wait(holder, "running")
        waits = server.submit(command={"argv": ["true"]}, target=on("gpu-box", "cuda:0", memory_gib=8, wait=True))
        server.restart()
        refused = server.try_submit(command={"argv": ["true"]}, target=on("gpu-box", "cuda:0", memory_gib=8))
        assert refused.status in (400, 409), refused
        server.online("gpu-box")
        memory = card(server, "gpu-box", "cuda:0")["memory"]
        assert memory["running_bytes"] == 20 * GIB + 768 * MIB, memory
        assert server.status(waits) == "queued" and server.status(holder) == "running"
        let()
        assert server.wait(holder)["status"] == "succeeded" and server.wait(waits)["status"] == "succeeded"


# ids: B11 B12
# seed001: F23 F22
def test_cards_of_this_server(snug):
    """The server's own cards can be shared too; status draws the ledger."""
    with Server(snug, cards="A:24GiB:sm89") as server:
        server.online("local")
        assert server.cli("workers", "share", "local", "cuda:0").rc == 0
        runs = [server.gate("r%d" % i, target=on("local", "cuda:0", memory_gib=4)) for i in range(3)]
        for run, _ in runs:
            server.wait(run, "running")
        page = server.cli("status", "--once")
        assert page.rc == 0 and "shared" in page.out and "running %.1f" % (3 * 4.75) in page.out, page
        assert "Running (3)" in page.out and "4.0 GiB" in page.out, page
        doc = server.json("status").doc
        assert doc["workers"]["local"]["devices"][1]["memory"]["running_bytes"] == 3 * (4 * GIB + 768 * MIB)
        for _, let in runs:
            let()


# ids: R9
# seed001: E7
def test_shared_by_all_or_not(snug):
    """A card that two agents offer is shared only where both have it so; then it has one ledger."""
    one = "A:24GiB:sm89:uuid=GPU-one"
    with Server(snug) as server:
        server.agent("ann", cards=one)
        server.agent("bob", cards=one)
        share(server, "ann", "cuda:0")
        assert not card(server, "ann", "cuda:0")["shared"], card(server, "ann", "cuda:0")
        share(server, "bob", "cuda:0")
        assert card(server, "ann", "cuda:0")["shared"] and card(server, "bob", "cuda:0")["shared"]
        run, let = server.hold("r", target=on("ann", "cuda:0", memory_gib=20))
        refused = server.try_submit(command={"argv": ["true"]}, target=on("bob", "cuda:0", memory_gib=8))
        assert refused.status in (400, 409) and run[:8] in refused.detail, refused
        let()
