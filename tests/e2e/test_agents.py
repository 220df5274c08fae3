"""Workers as processes: joining, restarts and kills of every part, one-shots, ssh, PyTorch's start-up hook."""
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import time

from harness import Skip, need_fashion, training_graph
from server_harness import Server, gone, processes, send, until

COUNT = "echo x >>'%s'; "


def lines(path):
    try:
        with open(path) as f:
            return f.read().count("\n")
    except OSError:
        return 0


def supervisors(home):
    """{run: pid} by the pid files of live runs."""
    found, runs = {}, os.path.join(home, "runs")
    for run in os.listdir(runs) if os.path.isdir(runs) else []:
        try:
            with open(os.path.join(runs, run, "pid")) as f:
                pid = int(f.read().split()[0])
        except OSError:
            continue
        if not gone(pid):
            found[run] = pid
    return found


def of_run(run):
    """Live processes that have this run in their environment."""
    want, found = ("SNUG_RUN_ID=%s" % run).encode(), []
    for name in os.listdir("/proc"):
        try:
            with open("/proc/%s/environ" % name, "rb") as f, open("/proc/%s/stat" % name) as s:
                if want in f.read().split(b"\0") and s.read().rsplit(") ", 1)[1][0] != "Z":
                    found.append(int(name))
        except (OSError, IndexError):
            continue
    return found


def command_lines():
    """Of every process of this machine."""
    text = []
    for name in os.listdir("/proc"):
        try:
            with open("/proc/%s/cmdline" % name, "rb") as f:
                text.append(f.read().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(text)


def secrets_below(place):
    """Files with a whole credential of a worker in them."""
    found = []
    for folder, _, files in os.walk(place):
        for name in files:
            try:
                with open(os.path.join(folder, name), "rb") as f:
                    if re.search(rb"snw_[A-Za-z0-9_-]{43}", f.read()):
                        found.append(os.path.join(folder, name))
            except FileNotFoundError:
                continue
    return found


# ids: W1
def test_in_the_background(snug):
    """start without arguments, in the background, beside a server; status and stop; a taken name."""
    with Server(snug) as server:
        alone = server.cli("agent", "start", env={"SNUG_HOME": os.path.join(server.dir, "nothing")})
        assert alone.rc == 1 and "no server" in alone.err, alone
        first = server.json("agent", "start", "--name", "box")
        assert first.rc == 0 and first.doc["connected"] and first.doc["server"] == server.url, first
        server.online("box")
        again = server.json("agent", "start", "--name", "box")
        assert again.rc == 1 and again.doc["error"]["code"] == "conflict", again
        states = {a["name"]: a for a in server.json("agent", "status").doc["agents"]}
        assert states["box"]["pid"] == first.doc["pid"] and states["box"]["server"] == server.url, states
        assert states["local"]["runs"], states
        run = server.sh("echo on box", target={"worker": "box"})
        server.wait(run, "succeeded")
        assert server.output(run) == "on box\n"
        stop = server.cli("agent", "stop", "--name", "box")
        assert stop.rc == 0 and gone(first.doc["pid"]), stop
        assert server.cli("agent", "stop", "--name", "box").rc == 1
        until(lambda: server.worker("box")["state"] == "disconnected", 10, "box away")


# ids: W1
def test_name_and_devices(snug):
    """The name is the host's where none is given; --devices limits and orders the cards, the CPU stays."""
    cards = "RTX 4090:24GiB:sm89:uuid=U0,RTX 3060:12GiB:sm86:uuid=U1,A:1GiB:sm86:uuid=U2"
    with Server(snug, cards=cards) as server:
        result = server.json("agent", "start", "--devices", "cuda:2,cuda:0")
        assert result.rc == 0, result
        assert result.doc["name"] == re.sub(r"[^A-Za-z0-9._-]", "-", os.uname().nodename)[:64], result
        row = server.online(result.doc["name"])
        assert [d["device"] for d in row["devices"]] == ["cpu", "cuda:2", "cuda:0"], row
        wrong = server.cli("agent", "start", "--name", "other", "--devices", "cuda:7")
        assert wrong.rc == 1 and "cuda:7" in wrong.err, wrong


# ids: W1 W7 promise-P10 promise-P11
def test_server_killed_under_runs(snug):
    """After kill -9 of the server and a start on another port agents find it again; their runs go on."""
    with Server(snug) as server:
        server.agent("box", same_home=True)
        mark = os.path.join(server.dir, "mark")
        runs = [server.sh(COUNT % mark + "sleep 2; echo end", target={"worker": w}) for w in ("box", "local")]
        for run in runs:
            server.wait(run, "running")
        server.kill()
        server.port = 0
        server.start()
        for run in runs:
            server.wait(run, "succeeded")
            assert server.output(run) == "end\n"
        assert lines(mark) == 2
        server.online("box"), server.online("local")


# ids: W7 promise-P1 promise-P2
def test_server_killed_around_the_start(snug):
    """Slurm's crash window: the server is killed at any time after it took a run; it runs once, nothing waits
    for a hand."""
    with Server(snug) as server:
        mark = os.path.join(server.dir, "mark")
        for i, delay in enumerate((0, 0.005, 0.02, 0.05, 0.2)):
            run = server.sh(COUNT % mark + "sleep 0.3")
            time.sleep(delay)
            server.restart()
            server.wait(run, "succeeded")
            assert lines(mark) == i + 1, delay
        assert server.worker("local")["state"] == "online"
        server.wait(server.sh("true"), "succeeded")


# ids: W7 promise-P10 case-F25
def test_agent_killed(snug):
    """kill -9 of an agent and its spawner: runs go on, the next agent takes them over."""
    with Server(snug) as server:
        box = server.agent("box")
        mark = os.path.join(server.dir, "mark")
        run = server.sh(COUNT % mark + "echo one; sleep 2; echo two", target={"worker": "box"})
        server.wait(run, "running")
        for pid, line in processes(box.home).items():
            if "spawner" in line:
                send(pid, signal.SIGKILL)
        box.kill()
        assert of_run(run), "the run went with its agent"
        box.start()
        server.wait(run, "succeeded")
        assert server.output(run) == "one\ntwo\n" and lines(mark) == 1


# ids: W2
def test_spawner_killed(snug):
    """Without its spawner an agent starts runs all the same."""
    with Server(snug) as server:
        box = server.agent("box")
        spawner = [pid for pid, line in processes(box.home).items() if "spawner" in line]
        assert len(spawner) == 1, processes(box.home)
        send(spawner[0], signal.SIGKILL)
        until(lambda: gone(spawner[0]), 5, "the spawner's end")
        run = server.sh("echo still", target={"worker": "box"})
        server.wait(run, "succeeded")
        assert server.output(run) == "still\n" and box.child.poll() is None


# ids: W2 W7 promise-P3 case-F25 case-F35
def test_everything_killed(snug):
    """kill -9 of server, agent, supervisor and work at once: interrupted, nothing left, a new run runs."""
    with Server(snug) as server:
        run = server.sh("(setsid sleep 300 &); echo one; sleep 300")
        server.wait(run, "running")
        until(lambda: of_run(run), 10, "its processes")
        for pid in processes(server.home):
            if pid not in of_run(run) or pid in supervisors(server.home).values():
                send(pid, signal.SIGKILL)
        server.start()
        row = server.wait(run, "interrupted")
        assert row["cause"] == "child_lost", row
        until(lambda: not of_run(run), 10, lambda: "the end of %r" % of_run(run))
        server.wait(server.sh("true"), "succeeded")


# ids: W2 promise-P13 case-F35
def test_crash_of_one(snug):
    """A run that crashes, and one whose supervisor is killed, end alone."""
    with Server(snug, run_queue_max_concurrent="cpu=4") as server:
        good = server.sh("sleep 2; echo good")
        bad = server.sh("kill -SEGV $$")
        lost = server.sh("(setsid sleep 300 &); echo one; sleep 300")
        row = server.wait(bad, "failed")
        assert row["cause"] == "crashed" and "SIGSEGV" in row["error"], row
        server.wait(lost, "running")
        until(lambda: lost in supervisors(server.home), 10, "its supervisor")
        send(supervisors(server.home)[lost], signal.SIGKILL)
        assert server.wait(lost, "interrupted")["cause"] == "child_lost"
        assert not of_run(lost)
        server.wait(good, "succeeded")


# ids: W6 H2
def test_joining(snug):
    """A join token becomes a credential of the worker's own; nobody sees either in a process list."""
    with Server(snug) as server:
        added = server.json("workers", "add", "box")
        assert added.rc == 0, added
        words = shlex.split(added.doc["command"])
        home = os.path.join(server.dir, "other")
        server.homes.append(home)
        env = {"SNUG_HOME": home, "SNUG_ALLOW_COMMANDS": "1"}
        token = words[words.index("--token") + 1]
        result = server.cli(*words[1:], env=env)
        assert result.rc == 0, result
        server.online("box")
        kept = os.path.join(home, "agents", "box.json")
        with open(kept) as f:
            secret = json.load(f)["token"]
        assert secret.startswith("snw_") and stat.S_IMODE(os.stat(kept).st_mode) == 0o600
        shown = command_lines()
        assert token not in shown and secret not in shown
        run = server.sh("env; cat /proc/$PPID/environ | tr '\\0' '\\n'", target={"worker": "box"})
        server.wait(run, "succeeded")
        assert token not in server.output(run) and secret not in server.output(run)
        # It comes back by itself, and not with the token that is spent.
        # Under the name of its join, which need not be given again (docs/workers.md).
        assert server.cli("agent", "stop", env=env).out == "worker box has stopped\n"
        again = server.cli("agent", "start", env=env)
        assert again.rc == 0 and again.out.startswith("worker box is connected"), again
        server.online("box")
        third = dict(env, SNUG_HOME=os.path.join(server.dir, "third"))
        server.homes.append(third["SNUG_HOME"])
        refused = server.cli(*[w if w != "box" else "box2" for w in words[1:]], env=third)
        assert refused.rc == 1, refused
        # Removed: it stops what runs and leaves, for good.
        run = server.sh("echo one; sleep 300", target={"worker": "box"})
        server.wait(run, "running")
        assert server.cli("workers", "remove", "box").rc == 1
        assert server.cli("workers", "remove", "box", "--yes").rc == 0
        until(lambda: not processes(home), 40, lambda: "the end of %r" % processes(home))
        assert server.worker("box") is None and not of_run(run)


# ids: W9 promise-P2
def test_one_shot(snug):
    """Workers that take one run and leave."""
    with Server(snug) as server:
        run = server.sh("echo once", target={"worker": "any", "pool": "night"})
        agents = []
        for name in ("n1", "n2"):
            agents.append(server.agent(name, args=["--one-shot", "--pool", "night"], same_home=True, wait=False))
        server.wait(run, "succeeded")
        until(lambda: [a.child.poll() for a in agents].count(0) == 1, 30, "one of them to leave")
        second = server.sh("echo twice", target={"worker": "any", "pool": "night"})
        server.wait(second, "succeeded")
        until(lambda: [a.child.poll() for a in agents] == [0, 0], 30, "both to leave")
        assert server.run(run)["worker"] != server.run(second)["worker"]
        for a in agents:
            assert "warn" not in a.text(), a.text()  # to be done is nothing to warn of


# ids: W2 R6
def test_graph_on_a_worker(snug):
    """A graph runs in a worker's child, with that worker's cards renumbered."""
    need_fashion()
    with Server(snug, cards="L:4GiB:sm80:uuid=L0") as server:
        server.agent("box", cards="A:4GiB:sm86:uuid=B0,B:4GiB:sm86:uuid=B1", same_home=True)
        run = server.submit(training_graph(), target={"worker": "box", "devices": ["cuda:1"]})
        row = server.wait(run, ("succeeded", "failed"), 120)
        facts = row["execution_facts"]
        assert facts["visible_devices"] == ["cuda:1"] and facts["device_aliases"] == {"cuda:0": "cuda:1"}, row
        assert row["status"] == "succeeded", row


TORCH = r"""
import sys, torch
print(torch.__version__, torch.ones(2).sum().item(), "sitecustomize" in sys.modules)
if len(sys.argv) > 1:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 1.00 GiB total capacity)")
"""


# ids: B6
def test_torch_hook(snug):
    """PyTorch's start-up hook is there for runs on cards, harmless without one; an out of memory under a budget
    names the budget's source."""
    python = "/usr/bin/python3"
    if subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode:
        raise Skip("no PyTorch")
    with Server(snug, cards="A:4GiB:sm86:uuid=A0") as server:
        script, other = server.file("t.py", TORCH), os.path.join(server.dir, "site")
        os.makedirs(other)
        server.file("site/sitecustomize.py", "print('the other one')\n")
        assert server.cli("workers", "share", "local", "cuda:0").rc == 0

        def torch(*argv):
            return server.submit(
                command={"argv": [python, script, *argv], "environment": {"PYTHONPATH": other}},
                target={"worker": "local", "devices": ["cuda:0"], "memory_gib": 1})

        run = torch()
        server.wait(run, "succeeded")
        out = server.output(run)
        assert out.startswith("the other one\n") and " 2.0 True" in out, out
        row = server.wait(torch("oom"), "failed")
        assert row["cause"] == "out_of_memory", row
        assert "budget of 1.00 GiB per card, which was given with the run" in row["error"], row
        assert "declare a larger target.memory_gib" in row["error"], row


FAKE_SSH = r"""#!/usr/bin/python3
import os, socket, subprocess, sys, threading
home, log = os.environ["FAKE_SSH_HOME"], os.environ["FAKE_SSH_LOG"]
args = sys.argv[1:]
with open(log, "a") as f:
    f.write(" ".join(args) + "\n")
def pump(a, b):
    try:
        while True:
            data = a.recv(65536)
            if not data:
                break
            b.sendall(data)
    except OSError:
        pass
    for s in (a, b):
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
def serve(door, to):
    while True:
        near, _ = door.accept()
        far = socket.create_connection(to)
        threading.Thread(target=pump, args=(near, far), daemon=True).start()
        threading.Thread(target=pump, args=(far, near), daemon=True).start()
if "-R" in args:
    at, port, to, to_port = args[args.index("-R") + 1].split(":")
    door = socket.socket()
    door.bind((at, int(port)))
    door.listen(8)
    threading.Thread(target=serve, args=(door, (to, int(to_port))), daemon=True).start()
end = args.index("--")
assert args[end + 1] == "far-box", args
env = dict(os.environ, SNUG_HOME=home, SNUG_ALLOW_COMMANDS="1")
sys.exit(subprocess.call(["/bin/sh", "-c", args[end + 2]], env=env))
"""


# ids: W6 W7
def test_ssh_worker(snug):
    """A worker behind ssh: it connects through a tunnel, comes back after a cut, and leaves nothing behind."""
    with Server(snug, start=False) as server:
        tools, far, log = (os.path.join(server.dir, n) for n in ("tools", "far", "ssh.log"))
        os.makedirs(tools), os.makedirs(far)
        server.homes.append(far)
        os.symlink(os.path.abspath(snug.program), os.path.join(tools, "snug"))
        with open(os.path.join(tools, "ssh"), "w") as f:
            f.write(FAKE_SSH)
        os.chmod(os.path.join(tools, "ssh"), 0o755)
        server.env.update(PATH=tools + ":" + os.environ["PATH"], FAKE_SSH_HOME=far, FAKE_SSH_LOG=log)
        server.start()
        for wrong in ("-oProxyCommand=x", "a b", "a;b", "$(x)"):
            assert server.post("/api/workers", {"ssh": wrong, "name": "w"}).status == 400, wrong
        added = server.cli("workers", "add", "box", "--ssh", "far-box", "--devices", "cpu")
        assert added.rc == 0, added
        row = server.online("box")
        assert row["kind"] == "ssh", row
        assert "snw_" not in command_lines()
        mark = os.path.join(server.dir, "mark")
        run = server.sh(COUNT % mark + "echo one; sleep 4; echo two", target={"worker": "box"})
        server.wait(run, "running")

        def ssh_pids():
            return [p for p, line in processes(server.home).items() if tools + "/ssh" in line and "-R" in line]

        assert len(ssh_pids()) == 1, processes(server.home)
        send(ssh_pids()[0], signal.SIGKILL)  # the connection is cut
        server.wait(run, "succeeded", 60)
        assert server.output(run) == "one\ntwo\n" and lines(mark) == 1
        server.online("box")
        # A restart of the server opens it again; nothing of it but host and devices was kept.
        server.restart()
        server.online("box")
        assert not secrets_below(server.home) and not secrets_below(far)
        assert server.cli("workers", "remove", "box", "--yes").rc == 0
        until(lambda: not processes(far), 60, lambda: "the end of %r" % processes(far))
        until(lambda: not os.listdir(os.path.join(far, "runs")), 60, "the clean-up")
        until(lambda: not [f for f in os.listdir(os.path.join(far, "agents")) if f.startswith("box.")], 30,
              lambda: os.listdir(os.path.join(far, "agents")))


# ids: O2
def test_host_memory(snug):
    """A run that the kernel kills for want of memory is a NodeOOMError (the cgroup's oom_kill count rose)."""
    group = "/sys/fs/cgroup/memory/snug-test-%d" % os.getpid()
    if not os.path.isdir("/sys/fs/cgroup/memory") or os.geteuid() != 0:
        raise Skip("no memory cgroup to make")
    try:
        os.mkdir(group)
        with open(group + "/memory.limit_in_bytes", "w") as f:
            f.write(str(300 << 20))
    except OSError as why:
        raise Skip("no memory cgroup to make: %s" % why)
    try:
        with Server(snug) as server:
            box = server.agent("box", same_home=True)
            for pid in [box.pid] + [p for p, line in processes(server.home).items() if "spawner" in line]:
                with open(group + "/cgroup.procs", "w") as f:
                    f.write(str(pid))
            run = server.sh("exec python3 -c 'x = bytearray(1 << 30)'", target={"worker": "box"})
            row = server.wait(run, "failed")
            assert row["cause"] == "out_of_memory" and row["error"].startswith("NodeOOMError"), row
            server.wait(server.sh("echo next", target={"worker": "box"}), "succeeded")
    finally:
        for _ in range(50):
            try:
                os.rmdir(group)
                break
            except OSError:
                time.sleep(0.1)


# ids: W2 promise-P13
def test_full_disk(snug):
    """A worker whose disk is full: the run that lives ends with its end told, the next is refused with the reason,
    and with room again everything goes on."""
    with Server(snug) as server:
        home = os.path.join(server.dir, "agent-box")
        os.makedirs(home)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "none", home],
                          stderr=subprocess.DEVNULL).returncode:
            raise Skip("no file system to make")
        try:
            server.agent("box")
            fill = os.path.join(home, "fill")
            gate = os.path.join(server.dir, "gate")
            run = server.sh("echo one; head -c 9M /dev/zero >'%s'; touch '%s.full'; while [ ! -e '%s' ]; do "
                            "sleep 0.05; done; echo two" % (fill, gate, gate), target={"worker": "box"})
            until(lambda: os.path.exists(gate + ".full"), 20, "the disk to be full")
            second = server.sh("echo never", target={"worker": "box"})
            row = server.wait(second, "failed")
            assert row["cause"] == "could_not_start" and "No space" in row["error"], row
            open(gate, "w").close()
            server.wait(run, "succeeded")
            os.remove(fill)
            third = server.sh("echo again", target={"worker": "box"})
            server.wait(third, "succeeded")
            assert server.output(third) == "again\n"
        finally:
            for pid in processes(home):
                send(pid, signal.SIGKILL)
            for _ in range(50):
                if subprocess.run(["umount", home], stderr=subprocess.DEVNULL).returncode == 0:
                    break
                time.sleep(0.1)
