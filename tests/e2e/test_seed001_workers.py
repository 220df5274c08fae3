"""Seed 001, workers: agents and their processes, states, drain, add, reissue, remove, lost connections. Real processes."""
import os
import signal
import socket
import time

from server_harness import Server, on, processes, send, small, until

CARD = "A:8GiB:sm86:context=100MiB"
TWO = "A:8GiB:sm86:context=100MiB,B:8GiB:sm86:context=100MiB"


# ids: W1
# seed001: D2 D3 D4 D5 D6
def test_agent_beside_the_server(snug):
    """No argument is needed; it has the machine's name; it connects again after the server's restart; stop ends it."""
    with Server(snug, cards=TWO) as server:
        begin = time.time()
        started = server.json("agent", "start")
        assert started.rc == 0, started
        name = socket.gethostname()
        server.online(name)
        assert time.time() - begin < 20, "within seconds"
        assert server.cli("agent", "start").rc == 1, "a second one of the name"
        assert name in server.cli("workers").out
        server.restart()
        server.online(name)
        assert server.wait(server.sh("true", target=on(name, "cuda:0")))["status"] == "succeeded"
        assert server.json("agent", "stop").rc == 0
        until(lambda: not (server.worker(name) or {}).get("connected"), 30, "the worker's absence")
        assert server.json("agent", "stop").rc == 1
        some = server.json("agent", "start", "--name", "gpu-box", "--devices", "cuda:1")
        assert some.rc == 0, some
        row = server.online("gpu-box")
        assert [d["device"] for d in row["devices"]] == ["cpu", "cuda:1"], row["devices"]
        front = server.popen("agent", "start", "--foreground", "--name", "front", "--devices", "cpu")
        row = server.online("front")
        assert [d["device"] for d in row["devices"]] == ["cpu"], row["devices"]
        front.send_signal(signal.SIGTERM)
        front.communicate(timeout=60)
        assert front.returncode == 0


# ids: W2 promise-P13
# seed001: D1
def test_a_crash_ends_one_run(snug):
    """A run that crashes, is killed, or runs out of the host's memory ends alone; server and others go on."""
    with Server(snug, cards=TWO) as server:
        server.online("local")
        stays, let = server.hold("stays", device="cuda:0")
        segv = server.wait(server.sh("kill -SEGV $$", device="cuda:1"))
        assert segv["status"] == "failed" and segv["cause"] == "crashed", segv
        graph = server.submit(small(train__max_steps=1000000), device="cuda:1")
        server.wait(graph, "running")
        until(lambda: any(e["type"] == "node_status" for e in server.events(graph)), 30, "progress")
        victims = [pid for pid, line in processes(server.home).items() if graph in line or graph[:8] in line]
        works = [p for p in victims if open("/proc/%d/stat" % p).read().rsplit(") ", 1)[1].split()[1] in map(str, victims)]
        assert works, processes(server.home)
        for pid in works:
            send(pid, signal.SIGKILL)
        row = server.wait(graph)
        assert row["status"] == "failed" and row["cause"] in ("crashed", "out_of_memory"), row
        assert server.status(stays) == "running" and server.get("/api/health").status == 200
        assert server.wait(server.sh("true", device="cuda:1"))["status"] == "succeeded", "its card is free"
        let()
        assert server.wait(stays)["status"] == "succeeded"


# ids: W3
# seed001: G1 G2 G3
def test_what_is_known_of_a_worker(snug):
    """State, version, environment, node types, heartbeat; memory per device; slots; its runs; as last reported."""
    with Server(snug) as server:
        agent = server.agent("gpu-box", cards=CARD, args=["--mounts", "data,scratch"])
        run, let = server.hold("r", target=on("gpu-box", "cuda:0"))
        w = server.worker("gpu-box")
        assert w["state"] == "online" and w["version_matches"] and w["version"] and w["hostname"], w
        assert w["environment"]["threads"] >= 1 and w["node_types_match"] and w["mounts"] == ["data", "scratch"], w
        assert 0 <= w["heartbeat_age_s"] < 10 and w["last_refusal"] is None, w
        cpu, cuda = w["devices"]
        assert cuda["total_gib"] == 8 and 0 < cuda["free_gib"] <= 8 and cuda["mode"] == "exclusive", cuda
        assert cuda["slots"]["used"] == 1 and cuda["slots"]["limit"] == 1 and not cuda["as_last_reported"], cuda
        assert cpu["slots"] == dict(cpu["slots"], used=0, limit=2) and not cpu["can_share"], cpu
        assert [r["run_id"] for r in w["runs"]] == [run] and w["runs"][0]["devices"] == ["cuda:0"], w["runs"]
        page = server.cli("workers")
        assert page.rc == 0 and "gpu-box" in page.out and run[:8] in page.out and "1/1 exclusive" in page.out, page
        one = server.json("workers", "show", "gpu-box")
        assert one.rc == 0 and one.doc["worker"]["name"] == "gpu-box", one
        let()
        server.wait(run, "succeeded")
        agent.kill(signal.SIGTERM)
        until(lambda: server.worker("gpu-box")["state"] == "disconnected", 30, "disconnected")
        w = server.worker("gpu-box")
        assert w["devices"][1]["as_last_reported"] and w["devices"][1]["total_gib"] == 8, w
        assert "as last reported" in server.cli("workers").out


# ids: W4
# seed001: G4
def test_refused_agents_are_listed(snug):
    """An agent of another version is refused and listed with the reason."""
    with Server(snug) as server:
        joined = server.post("/api/workers", {"name": "old-box"}).doc
        hello = {"protocol": 1, "version": "0.0.1", "commit": "x", "name": "old-box", "instance": "i", "hostname": "old",
                 "devices": [{"device": "cpu", "kind": "cpu"}], "runs": []}
        refused = server.post("/api/agent/connect", hello, token=joined["token"])
        assert refused.status in (400, 403, 409), refused
        listed = server.get("/api/workers").doc["refused"]
        assert [r["name"] for r in listed] == ["old-box"] and "0.0.1" in listed[0]["reason"], listed
        page = server.cli("workers")
        assert "refused: old-box" in page.out and "0.0.1" in page.out, page


# ids: W5
# seed001: G5
def test_drain(snug):
    """Running runs end, no new one is placed; the waiting run says why, any too when all of them drain."""
    with Server(snug, env={"SNUG_SIM_CARDS": ""}) as server:
        server.agent("gpu-box", cards=CARD)
        run, let = server.hold("r", target=on("gpu-box", "cuda:0"))
        drained = server.cli("workers", "drain", "gpu-box")
        assert drained.rc == 0 and "draining" in drained.out, drained
        assert server.worker("gpu-box")["state"] == "draining"
        named = server.sh("true", target=on("gpu-box", "cuda:0"))
        anyone = server.sh("true", target=on("any"), device="cuda")
        let()
        assert server.wait(run)["status"] == "succeeded"
        time.sleep(0.3)
        rows = [server.run(r) for r in (named, anyone)]
        assert all(r["status"] == "queued" and "drain" in r["reason"] for r in rows), rows
        waits = server.cli("runs")
        assert "drain" in waits.out, waits
        assert server.cli("workers", "undrain", "gpu-box").rc == 0
        for r in (named, anyone):
            assert server.wait(r)["status"] == "succeeded"


# ids: W6
# seed001: G6 G7
def test_add_and_reissue(snug):
    """add gives a join command, which works; on 127.0.0.1 it says that others come through ssh. reissue makes
    the old credential worth nothing; same-machine workers have none to renew."""
    with Server(snug, cards=CARD) as server:
        added = server.json("workers", "add", "gpu-box")
        assert added.rc == 0 and "SSH" in added.doc["note"].upper(), added
        words = added.doc["command"].split()
        assert words[:3] == ["snug", "agent", "start"] and "--token" in words, words
        text = server.cli("workers", "add", "other-box")
        assert text.rc == 0 and "snug agent start --server" in text.out, text
        home = os.path.join(server.dir, "joined")
        os.makedirs(home, mode=0o700)
        server.homes.append(home)
        joined = server.cli(*words[1:], env={"SNUG_HOME": home})
        assert joined.rc == 0, joined
        server.online("gpu-box")
        credential = os.path.join(home, "agents", "gpu-box.json")
        until(lambda: os.path.exists(credential), 10, "the credential")
        assert os.stat(credential).st_mode & 0o077 == 0
        renewed = server.json("workers", "reissue", "gpu-box")
        assert renewed.rc == 0 and "snw_" in renewed.doc["command"], renewed
        until(lambda: server.worker("gpu-box")["state"] != "online", 90, "the old credential's end")
        local = server.json("workers", "reissue", "local")
        assert local.rc == 1 and local.doc["error"]["code"] == "conflict", local
        twice = server.json("workers", "add", "gpu-box")
        assert twice.rc == 1 and "gpu-box" in twice.doc["error"]["message"], twice


# ids: W6
# seed001: G8 G9
def test_remove(snug):
    """The first try says what would happen; --yes revokes, disconnects, fails what waits for it alone."""
    with Server(snug) as server:
        agent = server.agent("gpu-box", cards=CARD)
        run, let = server.hold("r", target=on("gpu-box", "cuda:0"))
        waits = server.sh("true", target=on("gpu-box", "cuda:0"))
        first = server.json("workers", "remove", "gpu-box")
        assert first.rc == 1 and "1 run" in first.doc["error"]["message"] and "--yes" in first.doc["error"]["hint"], first
        assert server.status(run) == "running" and server.worker("gpu-box")
        second = server.json("workers", "remove", "gpu-box", "--yes")
        assert second.rc == 0, second
        row = server.wait(waits)
        assert row["status"] == "failed" and row["cause"] == "worker_removed", row
        assert server.wait(run)["status"] in ("interrupted", "cancelled", "failed"), server.run(run)
        assert "gpu-box" not in server.workers()
        until(lambda: agent.child.poll() is not None, 60, "the agent's end")
        agent.start(wait=False)
        until(lambda: agent.child.poll() is not None or "not known" in agent.text() or "revoked" in agent.text(), 30,
              "the refusal")
        assert "gpu-box" not in server.workers()
        let()


# ids: W7 promise-P10
# seed001: G10
def test_a_connection_lost_for_a_while(snug):
    """Less than the grace: the run goes on and all its events arrive. Longer: it ends as interrupted, and the
    agent itself has ended it by then."""
    with Server(snug, worker_resume_grace_s=15) as server:
        agent = server.agent("gpu-box", cards=CARD)
        run = server.sh("for i in 1 2 3 4 5 6; do echo line $i; sleep 0.5; done", target=on("gpu-box", "cuda:0"))
        server.wait(run, "running")
        agent.kill(signal.SIGSTOP)
        time.sleep(3)
        agent.kill(signal.SIGCONT)
        row = server.wait(run)
        assert row["status"] == "succeeded", row
        assert server.output(run).split("\n")[:-1] == ["line %d" % i for i in range(1, 7)]
        long, let = server.hold("long", target=on("gpu-box", "cuda:0"))
        agent.kill(signal.SIGSTOP)
        row = server.wait(long, "interrupted", seconds=90)
        assert row["cause"] == "agent_lost", row
        agent.kill(signal.SIGCONT)
        server.online("gpu-box", 60)
        until(lambda: not any("sleep" in c or "gate-long" in c for c in processes(agent.home).values()), 30,
              lambda: "the end of what ran: %r" % processes(agent.home))
        assert server.run(long)["status"] == "interrupted", "an end does not change"
        assert server.wait(server.sh("true", target=on("gpu-box", "cuda:0")))["status"] == "succeeded"


# ids: W7 promise-P11
# seed001: G11
def test_runs_are_taken_over(snug):
    """kill -9 of the server, of the agent, of both: runs go on, nothing is lost and nothing starts twice."""
    with Server(snug) as server:
        agent = server.agent("gpu-box", cards=TWO)
        mark = os.path.join(server.dir, "starts")
        gates = []
        for i, device in enumerate(("cuda:0", "cuda:1")):
            path = os.path.join(server.dir, "gate-%d" % i)
            run = server.sh("echo %d >>'%s'; while [ ! -e '%s' ]; do sleep 0.05; done; echo end" % (i, mark, path),
                            target=on("gpu-box", device))
            server.wait(run, "running")
            gates.append((run, path))
        waits = server.sh("echo 2 >>'%s'" % mark, target=on("gpu-box", "cuda:0"))
        server.restart()
        server.online("gpu-box")
        assert [server.status(r) for r, _ in gates] == ["running"] * 2 and server.status(waits) == "queued"
        agent.kill()
        agent.start()
        assert [server.status(r) for r, _ in gates] == ["running"] * 2
        server.kill()
        agent.kill()
        server.start()
        agent.start()
        assert [server.status(r) for r, _ in gates] == ["running"] * 2
        for run, path in gates:
            open(path, "w").close()
            assert server.wait(run)["status"] == "succeeded"
            assert server.output(run) == "end\n"
        assert server.wait(waits)["status"] == "succeeded"
        assert sorted(open(mark).read().split()) == ["0", "1", "2"], "each started once"


# ids: R15
# seed001: B18 A10 F17
def test_one_shot_workers(snug):
    """They take one run and leave, and are not listed then; a pool's run waits for one of it; recording is off."""
    with Server(snug) as server:
        refused = server.try_submit(small(), target=on("any", pool="night"), record_outputs=True)
        assert refused.status == 400 and "record" in refused.detail, refused
        run = server.sh("echo there", target=on("any", pool="night"))
        assert server.status(run) == "queued" and server.run(run)["reason"], server.run(run)
        joined = server.post("/api/workers", {"pool": "night", "name": ""}).doc
        homes = []
        for i in range(2):
            home = os.path.join(server.dir, "shot%d" % i)
            os.makedirs(home, mode=0o700)
            server.homes.append(home)
            homes.append(server.popen("agent", "start", "--foreground", "--one-shot", "--pool", "night", "--server",
                                      server.url, env={"SNUG_HOME": home, "SNUG_JOIN_TOKEN": joined["token"]}))
            if i == 0:
                row = server.wait(run)
                assert row["status"] == "succeeded", row
                out, err = homes[0].communicate(timeout=60)
                assert homes[0].returncode == 0, err
                until(lambda: row["worker"] not in server.workers(), 20, lambda: server.workers())
                break


# seed001: G9
def test_disable_and_enable(snug):
    """disable sends a worker away until enable; with runs it wants to be asked twice."""
    with Server(snug) as server:
        agent = server.agent("gpu-box", cards=CARD)
        run, let = server.hold("r", target=on("gpu-box", "cuda:0"))
        first = server.json("workers", "disable", "gpu-box")
        assert first.rc == 1 and "--yes" in first.doc["error"]["hint"], first
        let()
        server.wait(run, "succeeded")
        assert server.cli("workers", "disable", "gpu-box").rc == 0
        assert server.worker("gpu-box")["state"] == "disabled"
        until(lambda: agent.child.poll() is not None, 60, "it left")
        assert server.cli("workers", "enable", "gpu-box").rc == 0
        agent.start()
        assert server.wait(server.sh("true", target=on("gpu-box", "cuda:0")))["status"] == "succeeded"
