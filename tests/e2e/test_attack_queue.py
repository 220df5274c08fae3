"""What users of other queues complained about, in forms that the queue reference's rows do not have: a cancel, a kill, a
card, a name, a disk at the wrong moment. Real processes on simulated cards."""
import os
import random
import signal
import subprocess
import threading
import time

from harness import MLP, Skip, need_fashion, training_graph
from server_harness import ENDED, Server, processes, until

GIB, MIB = 1 << 30, 1 << 20
CARD = "A:8GiB:sm86:context=100MiB:uuid=GPU-a"
TWO = CARD + ",B:8GiB:sm86:context=100MiB:uuid=GPU-b"


def on(worker, *devices, **more):
    return dict({"worker": worker}, **({"devices": list(devices)} if devices else {}), **more)


def card(server, device="cuda:0", worker="gpu-box"):
    return next(d for d in server.worker(worker)["devices"] if d["device"] == device)


def share(server, device="cuda:0", mode="shared", worker="gpu-box"):
    reply = server.api("PUT", "/api/workers/%s/cards/%s" % (worker, device), {"mode": mode})
    assert reply.status == 200, reply


def cancel(server, run):
    return server.post("/api/runs/%s/cancel" % run)


def nothing_left(server, runs):
    """Every run ended, once, and no process of one is there; nothing is booked."""
    for run in runs:
        server.wait(run)
        ends = [e["type"] for e in server.events(run) if e["type"] in (
            "execution_complete", "execution_error", "execution_cancelled", "run_interrupted", "execution_stopped")]
        assert len(ends) <= 1, (run, ends)
    until(lambda: not [p for p, line in processes(server.home).items() if any(r in line for r in runs)], 20,
          lambda: "the end of all processes: %r" % processes(server.home))


# ids: R15 R18
# promise-P9
def test_cancel_meets_everything(snug):
    """A cancel meets a start, an end, a drain and the server's death: one end each, no process stays, slots are free."""
    r = random.Random(int(os.environ.get("SNUG_TEST_SEED", "7")))
    with Server(snug) as server:
        server.agent("gpu-box", cards=TWO)
        runs = []
        for i in range(24):
            run = server.sh(r.choice(["true", "sleep 0.1", "sleep 60", "trap '' TERM; sleep 60 & wait; sleep 60"]),
                            target=on("gpu-box", r.choice(["cuda:0", "cuda:1"])))
            runs.append(run)
            time.sleep(r.choice([0, 0.01, 0.05, 0.15]))
            if i % 3 == 1:
                server.post("/api/workers/gpu-box/drain")
            victims = [run] * 3 + [r.choice(runs)]
            threads = [threading.Thread(target=cancel, args=(server, v)) for v in victims]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            if i % 3 == 1:
                server.post("/api/workers/gpu-box/undrain")
            if i % 8 == 7:
                reply = cancel(server, run)
                assert reply.status == 200, reply
                server.restart()
                server.online("gpu-box")
        for run in runs:
            cancel(server, run)
        nothing_left(server, runs)
        for device in ("cuda:0", "cuda:1"):
            assert server.wait(server.sh("true", target=on("gpu-box", device)))["status"] == "succeeded"


# ids: R2
# promise-P1
def test_one_key_from_twenty_clients(snug):
    """Twenty clients send one submission with one key at once, and again after a kill: one run, named to all; the key
    with another body is a conflict."""
    with Server(snug) as server:
        body = {"argv": ["/bin/sh", "-c", "echo once >>%s/once" % server.dir]}
        replies = []
        def send():
            replies.append(server.try_submit(command=body, key="k-1"))
        for round_ in range(2):
            threads = [threading.Thread(target=send) for _ in range(20)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            if round_ == 0:
                server.restart()
        assert {x.status // 100 for x in replies} == {2}, replies
        assert len({x.doc["run_id"] for x in replies}) == 1, replies
        server.wait(replies[0].doc["run_id"], "succeeded")
        assert len(server.runs()) == 1
        with open(server.dir + "/once") as f:
            assert f.read() == "once\n"
        other = server.try_submit(command={"argv": ["true"]}, key="k-1")
        assert other.status == 409, other


# ids: B1 B7
def test_exclusive_again_under_three(snug):
    """A card turned exclusive under three runs: they go on, nobody joins them, the next waits for all three."""
    with Server(snug) as server:
        server.agent("gpu-box", cards=CARD)
        share(server)
        runs = [server.gate("s%d" % i, target=on("gpu-box", "cuda:0", memory_gib=1)) for i in range(3)]
        for run, _ in runs:
            server.wait(run, "running")
        share(server, mode="exclusive")
        late = server.sh("true", target=on("gpu-box", "cuda:0"))
        budget = server.sh("true", target=on("gpu-box", "cuda:0", memory_gib=1, wait=True))
        for run, let in runs:
            time.sleep(0.2)
            assert server.status(late) == "queued" and server.status(budget) == "queued"
            assert server.run(late)["reason"]
            let()
            server.wait(run, "succeeded")
        assert server.wait(late)["status"] == "succeeded" and server.wait(budget)["status"] == "succeeded"
        share(server)
        now = card(server)["memory"]
        assert now["running_bytes"] == 0 and now["reserved_bytes"] == 0, now


# ids: W1 R10
def test_an_agent_returns_with_other_cards(snug):
    """With fewer cards, with none, with others under the same names: what waits for a card that is gone says so and is
    not started on another by its old name's accident; when the card returns it runs."""
    with Server(snug) as server:
        agent = server.agent("gpu-box", cards=TWO)
        live, let = server.gate("live", target=on("gpu-box", "cuda:1"))
        server.wait(live, "running")
        waits = server.sh("echo \"on $CUDA_VISIBLE_DEVICES\"", target=on("gpu-box", "cuda:1"))
        agent.kill()
        agent.env["SNUG_SIM_CARDS"] = CARD
        agent.start()
        assert server.status(live) == "running", server.run(live)
        until(lambda: "cuda:1" in (server.run(waits)["reason"] or ""), 10, lambda: repr(server.run(waits)))
        let()
        server.wait(live, "succeeded")
        time.sleep(0.3)
        assert server.status(waits) == "queued"
        refused = server.try_submit(command={"argv": ["true"]}, target=on("gpu-box", "cuda:1"))
        assert refused.status == 400 and "cuda:1" in refused.detail, refused
        agent.kill()
        agent.env["SNUG_SIM_CARDS"] = ""
        agent.start()
        devices = lambda: [d["device"] for d in server.worker("gpu-box")["devices"]]
        until(lambda: devices() == ["cpu"], 10, lambda: repr(devices()))
        server.restart()
        server.online("gpu-box")
        assert server.status(waits) == "queued"
        agent.kill()
        agent.env["SNUG_SIM_CARDS"] = CARD + ",C:4GiB:sm86:context=100MiB:uuid=GPU-c"
        agent.start()
        server.wait(waits, "succeeded")
        assert "on GPU-c" in server.output(waits), server.output(waits)
        assert card(server, "cuda:1")["mode"] == "exclusive"


# ids: W7 W8
# promise-P12
def test_a_name_is_taken_once(snug):
    """A second agent under the credential of one that is connected is refused; the first and its run are unharmed."""
    with Server(snug) as server:
        agent = server.agent("gpu-box", cards=CARD)
        run, let = server.gate("live", target=on("gpu-box", "cuda:0"))
        server.wait(run, "running")
        other = os.path.join(server.dir, "thief")
        os.makedirs(other)
        for name in ("agents", "machine.id"):
            subprocess.run(["cp", "-r", os.path.join(agent.home, name), other], check=True)
        server.homes.append(other)
        second = subprocess.Popen(agent.line, env=dict(agent.env, SNUG_HOME=other), cwd=server.dir, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        time.sleep(3)
        assert server.status(run) == "running"
        assert "another agent is connected" in (server.worker("gpu-box")["last_refusal"] or ""), server.worker("gpu-box")
        second.kill()
        second.communicate()
        assert server.post("/api/workers", {"name": "gpu-box"}).status == 409
        let()
        assert server.wait(run)["status"] == "succeeded"


# ids: SW1 SW2
def test_a_sweep_is_cancelled_under_its_children(snug):
    """A sweep cancelled while its children start, and a study paused, the server killed, the study cancelled: nothing
    starts afterwards, counts add up."""
    need_fashion()
    spec = {"method": "grid", "seed": 3, "params": [
        {"node_id": "optimizer", "param": "lr", "values": [0.1, 0.01, 0.001, 0.0001, 0.2, 0.3, 0.4, 0.5]}]}
    body = {"base_graph": training_graph(MLP, train__max_steps=100000), "sweep_spec": spec,
            "objective": {"metric": "loss", "direction": "minimize"}, "options": {"device": "cpu"}}
    with Server(snug, run_queue_max_concurrent_cpu=4) as server:
        server.online("local")
        for wait in (0, 0.2):
            made = server.post("/api/sweeps", body)
            assert made.status == 201, made
            path = "/api/sweeps/" + made.doc["sweep_id"]
            time.sleep(wait)
            answers = [server.post(path + "/cancel") for _ in range(2)]
            assert [a.status for a in answers] == [200, 200], answers
            doc = until(lambda: (d := server.get(path).doc)["state"] not in ("running", "queued", "active", "cancelling") and d, 40,
                        lambda: repr(server.get(path)))
            assert doc["counts"]["cancelled"] == 8, doc
        made = server.post("/api/studies", dict(body, repetitions=2, parallel=2))
        assert made.status == 201, made
        path = "/api/studies/" + made.doc["study_id"]
        until(lambda: server.runs("running"), 20, "a run of it")
        pause = threading.Thread(target=lambda: server.try_pause(path))
        server.try_pause = lambda p: _ignore(lambda: server.post(p + "/pause"))
        pause.start()
        server.kill()
        pause.join()
        server.start()
        assert server.get(path).status == 200
        assert server.post(path + "/pause").status in (200, 409)
        assert server.post(path + "/cancel").status == 200
        until(lambda: not server.runs("running", "queued"), 40, lambda: repr(server.runs("running", "queued")))
        time.sleep(0.5)
        assert not server.runs("running", "queued")
        assert server.post(path + "/resume").status == 409


def _ignore(call):
    try:
        return call()
    except OSError:
        return None


# ids: R14
def test_a_running_run_is_not_deleted(snug):
    """Deleting a run that waits or runs is refused, a run that ended goes once; what is gone is 404 everywhere."""
    with Server(snug) as server:
        run, let = server.gate("x")
        server.wait(run, "running")
        assert server.delete("/api/runs/" + run).status == 409
        let()
        server.wait(run, "succeeded")
        codes = []
        threads = [threading.Thread(target=lambda: codes.append(server.delete("/api/runs/" + run).status)) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert sorted(codes) == [200] + [404] * 7, codes
        for tail in ("", "/events", "/log", "/metrics", "/artifacts", "/graph"):
            assert server.get("/api/runs/%s%s" % (run, tail)).status == 404, tail
        assert cancel(server, run).status == 404


# ids: R11
# promise-P13
def test_what_a_run_prints(snug):
    """Bytes that are no text, NULs, a line of 5 MB, 60 MB of output beside a quiet run: the log is valid JSON, the other
    run and the server are not held up, the end arrives."""
    with Server(snug, run_queue_max_concurrent_cpu=4) as server:
        server.online("local")
        odd = server.sh("printf 'a\\000b\\377\\376c\\303\\050d\\355\\240\\200e\\n'; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo end")
        mb = 200 if os.environ.get("SNUG_SOAK") else 60
        flood = server.sh("i=0; while [ $i -lt %d ]; do head -c 750000 /dev/urandom | base64 -w 100; i=$((i+1)); done; echo last" % mb)
        quiet = server.sh("for i in 1 2 3; do echo q$i; sleep 0.2; done")
        begin = time.time()
        server.wait(quiet, "succeeded", 20)
        while server.status(flood) not in ENDED:
            at = time.time()
            assert server.get("/api/health", timeout=10).status == 200
            assert time.time() - at < 5
            assert time.time() - begin < 200
            time.sleep(0.2)
        assert server.wait(flood)["status"] == "succeeded" and server.wait(odd)["status"] == "succeeded"
        assert server.output(quiet).split() == ["q1", "q2", "q3"]
        reply = server.get("/api/runs/%s/log" % odd)
        assert reply.status == 200 and "a" in reply.doc["text"], reply
        assert server.json("runs", "logs", odd).rc == 0 or server.cli("runs", "logs", odd).rc == 0
        server.events(flood)
        size = sum(os.path.getsize(os.path.join(server.home, n)) for n in os.listdir(server.home) if n.startswith("snug.db"))
        assert size < 64 << 20, "the database is no place for a flood: %d" % size


# ids: R15
# case-Q15
def test_three_hundred_at_once(snug):
    """300 runs, two of which run, are cancelled by many clients at once: all end cancelled within seconds."""
    with Server(snug) as server:
        server.online("local")
        runs = [server.sh("sleep 60") for _ in range(300)]
        until(lambda: server.runs("running"), 10, "a run")
        codes, r = [], list(runs)
        def work():
            while r:
                try:
                    run = r.pop()
                except IndexError:
                    return
                codes.append(cancel(server, run).status)
        threads = [threading.Thread(target=work) for _ in range(20)]
        begin = time.time()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert set(codes) == {200}, set(codes)
        until(lambda: not server.runs("running", "queued"), 60, "their end")
        assert all(row["status"] == "cancelled" for row in server.runs())
        nothing_left(server, runs[:5])
        assert time.time() - begin < 60


# ids: W2 R15
# promise-P9
def test_a_crowd_that_ignores_sigterm(snug):
    """200 children in sessions of their own that ignore SIGTERM: a cancel ends the whole tree before the card is given on."""
    script = ("import os,signal,time\nfor i in range(200):\n"
              "    if os.fork()==0:\n        os.setsid()\n        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n        os.environ.pop('X',0)\n"
              "        open('%s/pids','a').write('%%d\\n' %% os.getpid())\n        time.sleep(600)\n"
              "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n")
    with Server(snug) as server:
        server.agent("gpu-box", cards=CARD)
        path = server.file("crowd.py", script % server.dir)
        run = server.submit(command={"argv": ["/usr/bin/python3", path]}, target=on("gpu-box", "cuda:0"))
        pids = lambda: [int(x) for x in open(server.dir + "/pids").read().split()] if os.path.exists(server.dir + "/pids") else []
        until(lambda: len(pids()) >= 200, 40, "200 children")
        after = server.sh("for p in $(cat %s/pids); do [ -d /proc/$p ] && echo alive $p; done; echo looked" % server.dir,
                          target=on("gpu-box", "cuda:0"))
        assert cancel(server, run).status == 200
        row = server.wait(run, ENDED, 90)
        assert row["status"] == "cancelled", row
        server.wait(after, "succeeded")
        assert server.output(after).split() == ["looked"], server.output(after)[:300]


# ids: R1
# case-S11
def test_a_full_disk(snug):
    """SNUG_HOME on a disk that is full: a submission is refused and says why, reading goes on, what ran is known, and
    with room again everything works; no run is there that nobody was told of."""
    if os.geteuid() != 0:
        raise Skip("mounts need root")
    with Server(snug, start=False) as server:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=700", "tmpfs", server.home],
                          stderr=subprocess.DEVNULL).returncode:
            raise Skip("no tmpfs can be mounted here")
        try:
            server.start()
            server.online("local")
            live, let = server.gate("live")
            server.wait(live, "running")
            filler = os.path.join(server.home, "filler")
            fd = os.open(filler, os.O_WRONLY | os.O_CREAT)
            try:
                while os.write(fd, b"x" * 4096):
                    pass
            except OSError:
                pass
            os.close(fd)
            told, refused = set(), 0
            for i in range(60):
                reply = server.try_submit(command={"argv": ["true", "x" * 20000]})
                if reply.status // 100 == 2:
                    told.add(reply.doc["run_id"])
                else:
                    refused += 1
                    assert reply.status in (503, 507) and reply.detail, reply
                    assert server.home not in reply.detail, reply.detail
            assert refused, "24 MB were enough"
            assert server.get("/api/health").status == 200
            known = {row["id"] for row in server.runs()}
            assert known == told | {live}, (known, told)
            let()
            time.sleep(2)
            os.unlink(filler)
            server.wait(live, ENDED, 60)
            assert server.wait(live)["status"] == "succeeded", server.run(live)
            for run in told:
                server.wait(run, ENDED, 60)
            assert server.wait(server.sh("true"))["status"] == "succeeded"
            server.restart()
            server.online("local")
            assert server.wait(server.sh("true"))["status"] == "succeeded"
        finally:
            from server_harness import kill_all
            kill_all(server.home)
            subprocess.run(["umount", "-l", server.home])


# ids: R1
def test_few_descriptors(snug):
    """A server with 64 descriptors under 200 connections: it serves again when they are gone, and loses nothing."""
    with Server(snug, start=False) as server:
        import socket
        started = subprocess.run(["prlimit", "--nofile=64:64", snug.program, "start", "--port", "0", "--json"], env=server.env,
                                 cwd=server.dir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        assert started.returncode == 0, (started, server.log())
        server.read_address()
        socks = []
        for _ in range(200):
            try:
                s = socket.create_connection(("127.0.0.1", server.port), timeout=0.5)
                s.sendall(b"GET /api/hea")
                socks.append(s)
            except OSError:
                pass
        time.sleep(1)
        for s in socks:
            s.close()
        until(lambda: _ignore(lambda: server.get("/api/health", timeout=5).status) == 200, 30, "an answer")
        until(lambda: (server.worker("local") or {}).get("state") == "online", 40, lambda: repr(server.workers()) + server.log())
        assert server.wait(server.sh("true"))["status"] == "succeeded"


# ids: R1
def test_a_database_that_cannot_be_written(snug):
    """A database that is damaged, of a later version, or a folder: the start says so in a line, and changes nothing."""
    with Server(snug) as server:
        run = server.sh("true")
        server.wait(run)
        server.stop()
        path = os.path.join(server.home, "snug.db")
        with open(path, "rb") as f:
            good = f.read()
        for bad in (b"no database at all" * 1000, good[:5000], b"\0" * 8192):
            for tail in ("-wal", "-shm"):
                if os.path.exists(path + tail):
                    os.unlink(path + tail)
            with open(path, "wb") as f:
                f.write(bad)
            result = server.json("start", "--port", server.port)
            assert result.rc != 0 and "snug.db" in result.out + result.err + server.log(), result
            with open(path, "rb") as f:
                assert f.read() == bad, "changed"
        with open(path, "wb") as f:
            f.write(good)
        server.start()
        assert server.status(run) == "succeeded"


# ids: R17
def test_clocks_that_jump(snug):
    """A server that starts with the clock ten years ahead, then ten years back: runs live on, order and ids hold."""
    lib = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
    if not os.path.exists(lib):
        raise Skip("faketime is missing")
    with Server(snug, worker_resume_grace_s=20) as server:
        server.agent("gpu-box", cards=CARD)
        live, let = server.gate("live", target=on("gpu-box", "cuda:0"))
        server.wait(live, "running")
        waits = [server.sh("echo %d >>%s/order" % (0, server.dir), target=on("gpu-box", "cuda:0"))]
        for i, jump in enumerate(("+10y", "-10y", "+0")):
            server.kill()
            server.start(env={"LD_PRELOAD": lib, "FAKETIME": jump, "FAKETIME_DONT_FAKE_MONOTONIC": "1"})
            server.online("gpu-box")
            assert server.status(live) == "running", server.run(live)
            waits.append(server.sh("echo %d >>%s/order" % (i + 1, server.dir), target=on("gpu-box", "cuda:0")))
        let()
        assert server.wait(live)["status"] == "succeeded"
        for run in waits:
            assert server.wait(run)["status"] == "succeeded"
        with open(server.dir + "/order") as f:
            assert f.read().split() == ["0", "1", "2", "3"]


# ids: R1
def test_the_program_is_replaced(snug):
    """The program's file is replaced under a server that runs: plans, runs and a new worker are still started."""
    import shutil
    with Server(snug, start=False) as server:
        program = os.path.join(server.dir, "snug")
        shutil.copy(snug.program, program)
        class Copy:
            pass
        server.snug = Copy()
        server.snug.program = program
        server.start()
        server.online("local")
        os.unlink(program)
        shutil.copy("/bin/false", program)
        graph = {"nodes": [{"id": "a", "type": "Linear", "position": {"x": 0, "y": 0}, "data": {"params": {}}}], "edges": []}
        reply = server.post("/api/graph/plan", {"graph": graph})
        assert reply.status in (200, 400), reply
        assert server.wait(server.sh("true"))["status"] == "succeeded"
        worker = [p for p, line in processes(server.home).items() if "--builtin" in line]
        for pid in worker:
            os.kill(pid, signal.SIGKILL)
        until(lambda: [p for p, line in processes(server.home).items() if "--builtin" in line and p not in worker], 20, "a worker")
        assert server.wait(server.sh("true"))["status"] == "succeeded"


# ids: B2 B5
def test_budgets_larger_than_every_card(snug):
    """A waiting run whose measured budget rises past every card fits nowhere: it says so, and does not hold up others."""
    need_fashion()
    with Server(snug, queue_reserve_s=0) as server:
        server.agent("gpu-box", cards="A:2GiB:sm86:context=1MiB:uuid=GPU-a")
        share(server)
        for gib in (float("1e308"), -1, 0, 1e-12, "1", None, [1], True, 2 ** 63, 1e19):
            reply = server.try_submit(command={"argv": ["true"]}, target=on("gpu-box", "cuda:0", memory_gib=gib, wait=True))
            assert reply.status in (200, 400, 422), (gib, reply)
            if reply.status == 200:
                assert gib in (1e-12, None), (gib, reply)
                cancel(server, reply.doc["run_id"])
                server.wait(reply.doc["run_id"])
        big = server.try_submit(command={"argv": ["true"]}, target=on("gpu-box", "cuda:0", memory_gib=4, wait=True))
        assert big.status == 400, big
        small = server.sh("true", target=on("gpu-box", "cuda:0", memory_gib=1))
        assert server.wait(small)["status"] == "succeeded"
