"""The commands that start, stop and ask a server: what they print, their documents, exit statuses."""
import json
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import subprocess

from harness import MLP, Skip, need_fashion, training_graph
from server_harness import Server, gone, processes, send, until


def test_start_and_stop(snug):
    """In the background: the address, the files of SNUG_HOME, a second one refused, a stop that waits."""
    with Server(snug, start=False) as server:
        for command in ("stop", "status", "runs"):
            result = server.json(command)
            assert result.rc == 1 and result.doc["error"]["code"] == "not_found", result
            assert "snug start" in result.doc["error"]["hint"], result
        result = server.json("start", "--port", "0")
        assert result.rc == 0 and result.doc["url"].startswith("http://127.0.0.1:"), result
        server.read_address()
        assert result.doc["url"] == server.url and result.doc["pid"] == server.pid, result
        assert os.stat(os.path.join(server.home, "session.token")).st_mode & 0o777 == 0o600
        assert os.stat(server.home).st_mode & 0o777 == 0o700
        assert server.get("/api/health").doc["status"] == "ok"
        second = server.cli("start", "--port", "0")
        assert second.rc == 1 and server.url in second.err and str(server.pid) in second.err, second
        again = server.json("start", "--foreground", "--port", "0")
        assert again.rc == 1 and again.doc["error"]["code"] == "conflict", again
        stop = server.json("stop")
        assert stop.rc == 0 and stop.doc["pid"] == server.pid and gone(server.pid), stop
        assert not os.path.exists(os.path.join(server.home, "session.token"))
        until(lambda: not processes(server.home), 20, lambda: "the end of %r" % processes(server.home))
        assert server.cli("stop").rc == 1


def test_start_in_the_foreground(snug):
    """--foreground serves until SIGTERM or Ctrl-C, and ends with status 0."""
    with Server(snug, start=False) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            child = server.popen("start", "-f", "--port", "0")
            until(lambda: os.path.exists(os.path.join(server.home, "server.json")), 30, "server.json")
            server.read_address()
            assert server.pid == child.pid
            until(lambda: server.cli("status", "--once").rc == 0, 10, "status")
            child.send_signal(number)
            out, err = child.communicate(timeout=60)
            assert child.returncode == 0, (child.returncode, out, err)
            assert not os.path.exists(os.path.join(server.home, "server.json"))


def test_start_says_why_it_cannot(snug):
    """What keeps the server from starting is said by `snug start` itself."""
    with Server(snug, start=False) as server, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = str(taken.getsockname()[1])
        result = server.json("start", "--port", port)
        assert result.rc == 1 and port in result.doc["error"]["message"], result
        wrong = server.json("start", "--port", "70000")
        assert wrong.rc == 1 and "port" in wrong.doc["error"]["message"], wrong
        cert = server.json("start", "--port", "0", "--tls-cert", "nowhere.pem", "--tls-key", "nowhere.pem")
        assert cert.rc == 1 and "nowhere.pem" in cert.doc["error"]["message"], cert
        with open(os.path.join(server.home, "config.json"), "w") as f:
            f.write('{"run_retention_keep_last": "many"}')
        setting = server.json("start", "--port", "0")
        assert setting.rc == 1 and "run_retention_keep_last" in json.dumps(setting.doc["error"]), setting
        assert not os.path.exists(os.path.join(server.home, "server.json"))


def test_stop_ends_no_other_process(snug):
    """A server.json with the number of another process: that process is left alone."""
    with Server(snug, start=False) as server:
        other = subprocess.Popen(["sleep", "60"])
        try:
            with open(os.path.join(server.home, "server.json"), "w") as f:
                json.dump({"url": "http://127.0.0.1:1", "pid": other.pid, "boot_id": "x"}, f)
            result = server.json("stop")
            assert result.rc == 1 and result.doc["error"]["code"] == "not_found", result
            assert other.poll() is None
            started = server.json("start", "--port", "0")  # and it is no reason not to start
            assert started.rc == 0, started
            server.read_address()
            assert server.pid != other.pid and other.poll() is None
        finally:
            other.kill()
            other.wait()


# ids: W1
def test_server_killed_and_started_again(snug):
    """kill -9, then start: the same port, another process, another token, the built-in worker back."""
    with Server(snug) as server:
        server.online("local")
        token, port, boot = server.token, server.port, server.boot
        server.restart()
        assert server.port == port and server.token != token and server.boot != boot
        server.online("local")
        assert server.get("/api/workers").doc["local"]["connected"]
        assert server.post("/api/runs", {}, token=token).status == 403


# ids: case-F11
def test_units_start_in_the_foreground(snug):
    """The lines of the systemd units: they parse, stay in the foreground, and end on the unit's signal."""
    folder = os.path.join(snug.root, "docs/systemd")
    with Server(snug, start=False) as server:
        for unit in ("snug-server.service", "snug-agent.service"):
            text = open(os.path.join(folder, unit)).read()
            value = lambda key: re.search(r"^%s=(.*)$" % key, text, re.M).group(1)
            line = shlex.split(value("ExecStart"))
            assert line[0] == "/usr/local/bin/snug" and value("Type") == "exec", text
            assert value("KillMode") == "process" and value("Restart") == "on-failure", text
            line[0] = server.snug.program
            env = dict(server.env, SNUG_PORT="0")
            child = subprocess.Popen(line, env=env, cwd="/", stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            if "server" in unit:
                until(lambda: os.path.exists(os.path.join(server.home, "server.json")), 30, "server.json")
                server.read_address()
                server.online("local")
                first = child
            else:
                name = socket.gethostname()
                server.online(name)
                child.send_signal(getattr(signal, value("KillSignal")))
                assert child.wait(timeout=60) == 0, child.stderr.read()
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=60) == 0
        if shutil.which("systemd-analyze"):
            for unit in os.listdir(folder):
                if unit.endswith(".service"):
                    text = open(os.path.join(folder, unit)).read().replace("/usr/local/bin/snug", server.snug.program)
                    path = server.file(unit, text)
                    result = subprocess.run(["systemd-analyze", "verify", path], stderr=subprocess.PIPE)
                    assert result.returncode == 0, result.stderr


def completions(script, shell, line):
    """What bash would offer at the end of this line."""
    words = line.split(" ")
    ask = "source '%s'\nCOMP_WORDS=(%s)\nCOMP_CWORD=%d\n_snug\nprintf '%%s\\n' \"${COMPREPLY[@]}\"" % (
        script, " ".join(shlex.quote(w) for w in words), len(words) - 1)
    result = subprocess.run([shell, "--norc", "--noprofile", "-c", ask], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)
    assert result.returncode == 0 and not result.stderr, (line, result)
    return [x for x in result.stdout.decode().split("\n") if x]


def test_completions_of_bash(snug):
    """Sourced by bash: commands, words, options, choices, files; every option of every command."""
    script = snug.write("snug.bash", snug("completions", "bash").out)
    offer = lambda line: completions(script, "bash", line)
    assert "run" in offer("snug ru") and "runs" in offer("snug ru") and "status" in offer("snug ")
    assert offer("snug runs ca") == ["cancel"] and offer("snug workers und") == ["undrain"]
    assert offer("snug run --mem") and "--memory-gib" in offer("snug run g --mem")
    assert sorted(offer("snug run --memory ")) == ["dynamic", "planned"]
    assert offer("snug run --target gpu -- " + snug.write("xyzzy", "")[:-2]), "files after --"
    for command in offer("snug "):
        if command.startswith("-") or command == "help":
            continue
        named = set(re.findall(r"^  (--[a-z0-9-]+)", snug(command, "--help").out, re.M))
        assert named <= set(offer("snug %s --" % command)), command
    wrong = snug.json("completions", "fish")
    assert wrong.rc == 2 and "bash and zsh" in wrong.doc["error"]["message"], wrong


def test_completions_of_zsh(snug):
    """Sourced by zsh: it defines the function; the commands are in it."""
    shell = shutil.which("zsh")
    text = snug("completions", "zsh").out
    assert text.startswith("#compdef snug\n") and "_snug() {" in text
    if not shell:
        raise Skip("zsh is not installed")
    script = snug.write("_snug", text)
    ask = "autoload -Uz compinit; compinit -u -D; source '%s'; print -l $_comps[snug] ${(k)functions[(I)_snug]}" % script
    result = subprocess.run([shell, "-f", "-c", ask], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=dict(os.environ, HOME=snug.dir, ZDOTDIR=snug.dir))
    assert result.returncode == 0 and result.stdout.split() == [b"_snug", b"_snug"], result


# ---- commands that ask a server ----

def graph(**params):
    need_fashion()
    return training_graph(MLP, **{"train__max_steps": 3, **params})


# ids: R2 R11
def test_run_through_the_queue(snug):
    """The same document and exit status as in the foreground; the wait and its reason are shown; --local runs here."""
    with Server(snug) as server:
        server.online("local")
        path = server.file("g.json", graph())
        here = server.json("run", path, "--local")
        there = server.json("run", path)
        assert here.rc == there.rc == 0 and "run_id" not in here.doc, (here, there)
        for key in ("metrics", "peak_bytes_planned", "peak_bytes_measured", "by_category"):
            strip = lambda d: {k: v for k, v in d.items() if k not in ("images_per_s", "memory")}
            a, b = here.doc[key], there.doc[key]
            assert (strip(a) if key == "metrics" else a) == (strip(b) if key == "metrics" else b), key
        assert set(here.doc) <= set(there.doc), set(here.doc) - set(there.doc)
        assert there.doc["run_status"] == "succeeded" and there.doc["worker"] == "local", there
        kinds = [e["event"] for e in there.events]
        assert "plan" in kinds and kinds[-1] == "execution_complete" and "execution_start" in kinds, kinds
        text = server.cli("run", path, "--set", "TrainingLoop.max_steps=5")
        assert text.rc == 0 and "Memory bill" in text.out and "succeeded on local" in text.out, text
        assert server.runs()[0]["name"] == "tiny"
        stored = server.get("/api/runs/%s/graph" % server.runs()[0]["id"]).doc
        train = next(n for n in stored["nodes"] if n["id"] == "train")
        assert train["data"]["params"]["max_steps"] == 5, "--set is applied before submission"


# ids: O4
def test_exit_statuses_of_queued_runs(snug):
    """0, 1 failed, cancelled, timed out, refused, 2 wrong use, 3 out of memory, 130 Ctrl-C, which leaves it running."""
    with Server(snug, cards="A:8GiB:sm86") as server:
        server.online("local")
        bad = server.json("run", server.file("bad.json", graph(data__data_dir="./nowhere", data__name="CIFAR10")))
        assert bad.rc == 1 and bad.doc["run_status"] == "failed" and bad.doc["error"]["message"], bad
        assert server.json("run", "--", "false").rc == 1
        late = server.json("run", "--timeout", "1s", "--", "sleep", "60")
        assert late.rc == 1 and late.doc["cause"] == "timed_out", late
        oom = server.json("run", server.file("g.json", graph()), "--memory-gib", "0.0001")
        assert oom.rc == 3 and oom.doc["error"]["code"] == "out_of_memory", oom
        assert oom.doc["error"]["message"].count("What to try") == 1, oom.doc["error"]
        shown = server.cli("run", server.file("g.json", graph()), "--memory-gib", "0.0001")
        assert shown.rc == 3 and shown.err.count("What to try") == 1, shown.err
        slow = server.json("run", server.file("g.json", graph()), "--timeout", "0.01s", "--set", "TrainingLoop.epochs=100000")
        assert slow.rc == 1 and slow.doc["cause"] == "timed_out", slow
        assert "it ran past its time limit of 0.01 s" in slow.doc["error"]["message"], slow.doc["error"]
        child = server.popen("run", "--json", "--", "sleep", "60")
        run = until(lambda: server.runs("running"), 30, "the run")[0]["id"]
        cancelled = server.json("runs", "cancel", run[:6])
        assert cancelled.rc == 0 and cancelled.doc["cancelled"], cancelled
        out, _ = child.communicate(timeout=60)
        doc = json.loads(out)
        assert child.returncode == 1 and doc["run_status"] == "cancelled" and "cancelled" in doc["error"]["message"], doc
        for args in ((), ("--json",)):
            child = server.popen("run", *args, "--", "sleep", "60")
            run = until(lambda: server.runs("running"), 30, "the run")[0]["id"]
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=30)
            assert child.returncode == 130, (child.returncode, out, err)
            assert run[:8] in (out + err).decode() and b"snug runs cancel" in out + err, (out, err)
            assert server.status(run) == "running"
            server.cli("runs", "cancel", run)
            server.wait(run, "cancelled")
        for line in ("run", "run g.json -- true", "run --", "run g.json --local --detach", "run --seed 1 -- true",
                     "run g.json --env A=1", "run g.json --threads 2", "run g.json --device cpu --devices cpu",
                     "runs show", "runs frob", "runs show a b", "workers share local", "sweep submit", "keys add"):
            result = server.json(*line.split())
            assert result.rc == 2 and result.doc["error"]["code"] == "usage", (line, result)


# ids: R11
def test_runs_command(snug):
    """list, show, logs, events, metrics, cancel, delete; ids by their first letters; filters."""
    with Server(snug) as server:
        server.online("local")
        assert server.cli("runs").out == "no runs\n"
        first = server.submit(graph(train__epochs=2, train__max_steps=0, loader__batch_size=6000), name="alpha")
        server.wait(first, "succeeded")
        second = server.sh("echo hello; echo $X; exit 4", name="beta")
        server.wait(second, "failed")
        page = server.cli("runs")
        assert page.rc == 0 and "alpha" in page.out and "beta" in page.out and "status 4" in page.out, page
        only = server.json("runs", "--status", "failed").doc
        assert [r["id"] for r in only["runs"]] == [second] and only["total"] == 1, only
        assert len(server.json("runs", "--limit", "1").doc["runs"]) == 1
        shown = server.json("runs", "show", first[:8])
        assert shown.rc == 0 and shown.doc["run"]["id"] == first and shown.doc["run"]["status"] == "succeeded", shown
        assert "graph key" in server.cli("runs", "show", first[:8]).out
        logs = server.cli("runs", "logs", second[:8])
        assert logs.rc == 0 and logs.out == "hello\n\n", logs
        assert server.json("runs", "logs", second).doc["log"] == "hello\n\n"
        long = server.sh("i=0; while [ $i -lt 40000 ]; do echo line $i of a log that is long; i=$((i+1)); done")
        server.wait(long, "succeeded")
        lines = server.cli("runs", "logs", long).out.split("\n")
        assert len(lines) == 40001 and lines[-2] == "line 39999 of a log that is long", (len(lines), lines[-3:])
        held = [server.sh("sleep 100") for _ in range(3)]
        until(lambda: server.status(held[1]) == "running", 30, "two of them run")
        early = server.json("runs", "logs", held[2])
        assert early.rc == 1 and early.doc["error"]["message"], early
        for run in held:
            server.cli("runs", "cancel", run)
        events = server.json("runs", "events", first).doc["events"]
        assert [e["cursor"] for e in events] == list(range(1, len(events) + 1)) and events[0]["type"] == "execution_start"
        assert "execution_complete" in server.cli("runs", "events", first).out
        points = server.json("runs", "metrics", first, "--metric", "train_loss").doc["points"]
        assert [p["step"] for p in points] == [1, 2] and all(p["name"] == "train_loss" for p in points), points
        csv = server.cli("runs", "metrics", first, "--csv")
        assert csv.out.lstrip("\ufeff").startswith("run_id,node_id,name,step,value,ts"), csv
        assert first in csv.out and csv.out.count("train_loss,") >= 2, csv
        nobody = server.json("runs", "show", "zzz")
        assert nobody.rc == 1 and nobody.doc["error"]["code"] == "not_found", nobody
        many = server.json("runs", "show", "")
        assert many.rc == 1 and many.doc["error"]["code"] == "conflict" and first in many.doc["error"]["detail"], many
        assert server.json("runs", "delete", second).rc == 0
        gone_run = server.json("runs", "show", second)
        assert gone_run.rc == 1 and gone_run.doc["error"]["code"] == "not_found", gone_run
        held, let = server.hold("held")
        busy = server.json("runs", "delete", held)
        assert busy.rc == 1 and busy.doc["error"]["code"] == "conflict", busy
        follow = server.popen("runs", "logs", "-f", held[:8])
        let()
        follow.communicate(timeout=60)
        assert follow.returncode == 0


# ids: R11
def test_commands_as_runs(snug):
    """Arguments to the letter, environment, folder, output and status; off where commands are not allowed."""
    with Server(snug) as server:
        server.online("local")
        odd = ["a b", "$HOME", "*", "--json", "ä", ""]
        result = server.cli("run", "--env", "X=1=2", "--dir", "/tmp", "--", "python3", "-c",
                            "import os,sys; print(sys.argv[1:], os.environ['X'], os.getcwd())", *odd)
        assert result.rc == 0 and result.out == "%r 1=2 /tmp\n" % odd, result
        here = server.cli("run", "--", "pwd")
        assert here.out.strip() == os.path.realpath(server.dir), here
        none = server.json("run", "--", "no-such-program-here")
        assert none.rc == 1 and none.doc["cause"] == "could_not_start", none
        secret = server.cli("run", "--", "env")
        assert server.token not in secret.out and "SNUG_KEY" not in secret.out, secret
    with Server(snug, commands=False) as server:
        server.online("local")
        off = server.json("run", "--", "true")
        assert off.rc == 1 and off.doc["error"]["code"] == "denied", off


# ids: H2
def test_keys(snug):
    """A key opens the server from elsewhere, carries a name, is shown once, is refused once revoked; commands
    want --exec; neither ps nor errors show it."""
    with Server(snug) as server:
        server.online("local")
        made = server.cli("keys", "add", "ada")
        key = made.out.strip()
        assert made.rc == 0 and key.startswith("snk_") and key not in made.err, made
        listed = server.cli("keys")
        assert "ada" in listed.out and key not in listed.out and "never used" in listed.out, listed
        assert server.json("keys", "add", "ada").rc == 1, "a taken name"
        away = {"SNUG_HOME": os.path.join(server.dir, "away"), "SNUG_SERVER": server.url, "SNUG_KEY": key}
        path = server.file("g.json", graph())
        result = server.json("run", path, env=away)
        assert result.rc == 0, result
        assert server.run(result.doc["run_id"])["owner"] == "ada"
        refused = server.json("run", "--", "true", env=away)
        assert refused.rc == 1 and refused.doc["error"]["code"] == "denied", refused
        child = server.popen("run", "--server", server.url, "--key", key, "--target", "nobody", path,
                             env={"SNUG_HOME": away["SNUG_HOME"]})
        out, err = child.communicate(timeout=60)
        assert child.returncode == 1 and key.encode() not in out + err, (out, err)
        exec_key = server.json("keys", "add", "ci", "--exec").doc["token"]
        child = server.popen("run", "--server", server.url, "--key", exec_key, "--", "sleep", "30")
        run = until(lambda: server.runs("running"), 30, "the run")[0]["id"]
        line = open("/proc/%d/cmdline" % child.pid).read()
        assert exec_key not in line and "***" in line, line
        server.cli("runs", "cancel", run)
        child.communicate(timeout=60)
        nothing = server.json("run", path, "--server", server.url, env={"SNUG_HOME": away["SNUG_HOME"]})
        assert nothing.rc == 1 and nothing.doc["error"]["code"] == "denied" and "--key" in nothing.doc["error"]["hint"], nothing
        assert server.json("keys", "revoke", "ada").rc == 0
        late = server.json("run", path, env=away)
        assert late.rc == 1 and late.doc["error"]["code"] == "denied" and key not in late.out + late.err, late
        assert server.json("keys", "revoke", "ada").rc == 1
        assert key not in server.log() and exec_key not in server.log()


# ids: SW1 SW2
def test_sweep_and_study(snug):
    """Submitted from words or a file, watched to the end, ranked, as CSV, cancelled; a study paused and resumed."""
    with Server(snug) as server:
        server.online("local")
        path = server.file("g.json", graph(train__max_steps=0, train__epochs=1, loader__batch_size=6000))
        swept = server.json("sweep", "submit", path, "--param", "optimizer.lr=0.1,0.001", "--param",
                            "loader.batch_size=6000..12000:2:int", "--objective", "min:train_loss", "--name", "s")
        assert swept.rc == 0, swept
        doc = swept.doc["sweep"]
        assert doc["state"] == "finished" and [v["rank"] for v in doc["variants"]] == [1, 2, 3, 4], doc
        values = [v["objective"] for v in doc["variants"]]
        assert values == sorted(values), values
        ident = doc["sweep_id"]
        shown = server.cli("sweep", "show", ident[:8])
        assert shown.rc == 0 and "minimize train_loss" in shown.out and shown.out.count("succeeded") == 4, shown
        csv = server.cli("sweep", "csv", ident[:8])
        assert csv.rc == 0 and csv.out.count("\n") >= 5, csv
        assert ident in server.cli("sweep", "list").out
        spec = server.file("spec.json", {
            "base_graph": "g.json", "objective": {"metric": "train_loss", "direction": "minimize"},
            "sweep_spec": {"method": "random", "seed": 3, "samples": 1, "params": [
                {"node_id": "optimizer", "param": "lr", "values": [0.1, 0.01, 0.001]}]}})
        one = server.json("sweep", "submit", spec)
        assert one.rc == 0 and len(one.doc["sweep"]["variants"]) == 1, one
        wrong = server.json("sweep", "submit", path, "--param", "nobody.lr=1", "--objective", "min:x")
        assert wrong.rc == 2 and "nobody" in wrong.doc["error"]["message"], wrong
        refused = server.json("sweep", "submit", path, "--param", "optimizer.lr=-1,2", "--objective", "min:x")
        assert refused.rc == 1 and refused.doc["error"]["message"], refused
        long = server.file("long.json", graph(train__max_steps=10000000, train__epochs=100000))
        many = server.json("sweep", "submit", long, "--param", "optimizer.lr=0.1,0.01,0.001", "--objective", "min:x", "--detach")
        assert many.rc == 0, many
        cancelled = server.json("sweep", "cancel", many.doc["sweep_id"][:8])
        assert cancelled.rc == 0, cancelled
        until(lambda: server.json("sweep", "show", many.doc["sweep_id"]).doc["sweep"]["state"] == "finished", 60, "its end")
        example = server.json("sweep", "submit", os.path.join(snug.root, "examples/fashion-cnn/sweep.json"), "--detach")
        assert example.rc == 0 and [round(v["params"][0]["value"], 5) for v in example.doc["sweep"]["variants"]] == [
            0.001, 0.00316, 0.01], example
        assert server.json("sweep", "cancel", example.doc["sweep_id"]).rc == 0
        study = server.json("study", "submit", path, "--param", "optimizer.lr=0.1,0.001", "--repetitions", "2",
                            "--seed", "1", "--objective", "min:train_loss", "--detach")
        assert study.rc == 0, study
        ident = study.doc["study_id"]
        paused = server.json("study", "pause", ident[:8])
        assert paused.rc == 0, paused
        until(lambda: server.json("study", "show", ident).doc["study"]["state"] == "paused", 30, "paused")
        server.restart()
        assert server.json("study", "show", ident).doc["study"]["state"] == "paused"
        assert server.json("study", "resume", ident).rc == 0
        until(lambda: server.json("study", "show", ident).doc["study"]["state"] == "finished", 90,
              lambda: server.json("study", "show", ident))
        done = server.json("study", "show", ident).doc["study"]
        assert [len(v["cells"]) for v in done["variants"]] == [2, 2], done
        seeds = {c["seed"] for v in done["variants"] for c in v["cells"]}
        assert seeds == {1, 2}, done
        assert "study_finished" in server.cli("study", "events", ident).out
        few = server.json("study", "submit", path, "--param", "optimizer.lr=0.1,0.2", "--runs-max", "1", "--objective",
                          "min:train_loss", "--detach").doc["study_id"]
        until(lambda: "(the budget of 1 runs is spent)" in server.cli("study", "show", few).out, 60, "a spent budget")
        more = server.cli("study", "resume", few, "--runs-max", "2")
        assert more.rc == 0, more
        until(lambda: server.json("study", "show", few).doc["study"]["state"] == "finished", 60, "its end")
        assert [len(v["cells"]) for v in server.json("study", "show", few).doc["study"]["variants"]] == [1, 1]
        assert server.cli("study", "csv", ident).rc == 0 and ident in server.cli("study", "list").out


def test_status_page(snug):
    """Once in a pipe; on a terminal a page that renews itself until q."""
    with Server(snug, cards="RTX 4090:24GiB:sm89,Small:30MiB:sm86:context=1MiB") as server:
        server.online("local")
        held, let = server.hold("held", device="cuda:0")
        waits = server.sh("true", device="cuda:0", name="waits")
        page = server.cli("status")
        assert page.rc == 0 and "Running (1)" in page.out and "Waiting (1)" in page.out and "RTX 4090" in page.out, page
        assert "\033" not in page.out and held[:8] in page.out and waits[:8] in page.out, page
        assert "cuda:0 on this server is taken by run %s" % held[:8] in page.out, page  # the reason, whole
        assert "free 24.0 / 24.0 GiB" in page.out and "free 30.0 MiB / 30.0 MiB" in page.out, page
        doc = server.json("status").doc
        assert doc["running"]["total"] == 1 and doc["queued"]["total"] == 1 and doc["health"]["status"] == "ok", doc
        later = server.sh("true", device="cuda:0", name="later")
        page = server.cli("status").out
        assert page.index(waits[:8] + "  ") < page.index(later[:8] + "  "), page  # in the order of their turns
        main, other = pty.openpty()
        child = subprocess.Popen([server.snug.program, "status"], env=dict(server.env, TERM="xterm"), stdin=other,
                                 stdout=other, stderr=other, cwd=server.dir)
        os.close(other)
        seen = b""
        while b"q leaves" not in seen:
            seen += os.read(main, 65536)
        assert b"\033[?1049h" in seen and b"Waiting" in seen, seen
        os.write(main, b"q")
        end = until(lambda: child.poll() is not None and child, 20, "its end")
        assert end.returncode == 0
        os.close(main)
        let()


# ids: promise-P11
def test_run_outlasts_a_restart(snug):
    """`snug run` looks on through a kill -9 of the server and a new one."""
    with Server(snug) as server:
        server.online("local")
        path = os.path.join(server.dir, "gate")
        child = server.popen("run", "--", "sh", "-c", "echo before; while [ ! -e '%s' ]; do sleep 0.05; done; echo after" % path)
        run = until(lambda: server.runs("running"), 30, "the run")[0]["id"]
        server.restart()
        until(lambda: server.status(run) == "running", 30, "it is taken over")
        open(path, "w").close()
        out, err = child.communicate(timeout=90)
        assert child.returncode == 0 and out == b"before\nafter\n", (child.returncode, out, err)


# ids: H1
def test_tls(snug):
    """--tls-cert and --tls-key: the own commands trust the own certificate; from elsewhere SNUG_CA names it."""
    with Server(snug, start=False) as server:
        made = subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
             "-days", "2", "-subj", "/CN=lab", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
            cwd=server.dir, stderr=subprocess.PIPE)
        if made.returncode:
            raise Skip("openssl cannot make a certificate")
        started = server.json("start", "--port", "0", "--tls-cert", os.path.join(server.dir, "cert.pem"), "--tls-key",
                              os.path.join(server.dir, "key.pem"))
        assert started.rc == 0 and started.doc["url"].startswith("https://"), started
        until(lambda: server.json("workers").doc["local"]["state"] == "online", 30, "the built-in worker")
        assert server.json("run", server.file("g.json", graph())).rc == 0
        key = server.json("keys", "add", "ada").doc["token"]
        away = {"SNUG_HOME": os.path.join(server.dir, "away"), "SNUG_SERVER": started.doc["url"], "SNUG_KEY": key}
        unknown = server.json("runs", env=away)
        assert unknown.rc == 1 and "SNUG_CA" in unknown.doc["error"]["hint"], unknown
        assert server.json("runs", env=dict(away, SNUG_CA=os.path.join(server.dir, "cert.pem"))).rc == 0
        assert server.json("stop").rc == 0


# ids: R2 promise-P3
def test_stop_with_runs(snug):
    """`snug stop` lets what runs write its checkpoint, ends what waits as interrupted, and waits for all of it;
    `snug run --resume auto` goes on from there."""
    with Server(snug) as server:
        server.online("local")
        path = server.file("g.json", graph(train__max_steps=100000000, train__epochs=1000000))
        run = server.json("run", path, "--detach").doc["run_id"]
        until(lambda: any("progress" in str(e["payload"]) for e in server.events(run)), 30, "progress")
        waits = [server.sh("sleep 100") for _ in range(3)]
        stop = server.json("stop")
        assert stop.rc == 0 and not processes(server.home), (stop, processes(server.home))
        server.start()
        for each in [run] + waits:
            row = server.run(each)
            assert row["status"] == "interrupted" and row["cause"] == "server_stopped", row
        saved = server.events(run, "artifact")[-1]["payload"]
        assert saved["kind"] == "checkpoint" and os.path.exists(saved["path"]), saved
        step = saved["meta"]["step"]
        server.online("local")
        again = server.json("run", path, "--resume", "auto", "--set", "TrainingLoop.max_steps=%d" % (step + 2))
        assert again.rc == 0 and again.doc["resumed_from"] == saved["path"], again
        assert again.doc["metrics"]["total_steps"] == step + 2, again.doc["metrics"]


# ids: W1
def test_own_worker_stays_with_its_server(snug):
    """Where SNUG_HOME's own settings name another server, its own worker still serves its own server."""
    with Server(snug, start=False) as server:
        with open(os.path.join(server.home, "config.json"), "w") as f:
            json.dump({"server": "http://127.0.0.1:1", "key": "snk_other"}, f)
        server.start()
        server.online("local")
        asked = server.json("runs")
        assert asked.rc == 1 and "127.0.0.1:1" in asked.doc["error"]["message"], asked
        assert server.json("runs", "--server", server.url, "--key", server.token).rc == 0
