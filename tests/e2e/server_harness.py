"""A server of its own for a test: started, asked, killed and started again; agents beside it.

    def test_x(snug):
        with Server(snug, cards="A:8GiB:sm86,B:8GiB:sm86") as server:
            run = server.submit(graph, device="cuda:1")
            server.wait(run, "succeeded")
            other = server.agent("gpu-box", cards="C:24GiB:sm89")     an agent of "another machine"
            server.kill()                                             kill -9
            server.start()

Everything that runs under a home of the test is found by its environment (SNUG_HOME=that folder) and
killed at the end, whatever happened. Nothing is waited for by time: `until` polls a condition.
"""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from harness import MLP, need_fashion, training_graph

SLOW = 10 if os.environ.get("SNUG_TEST_SLOW") else 1  # sanitizers
ENDED = ("succeeded", "failed", "cancelled", "interrupted")


def until(condition, seconds=30, what="a condition", every=0.05):
    """The first true value of condition(); an assertion that names `what` after so many seconds."""
    end = time.time() + seconds * SLOW
    while True:
        value = condition()
        if value:
            return value
        if time.time() > end:
            text = what() if callable(what) else what
            raise AssertionError("%s has not come true within %s s" % (text, seconds))
        time.sleep(every)


def processes(home):
    """{pid: command line} of the live processes whose SNUG_HOME is this folder."""
    want, found = ("SNUG_HOME=%s" % home).encode(), {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as f:
                if want not in f.read().split(b"\0"):
                    continue
            with open("/proc/%s/stat" % name) as f:
                if f.read().rsplit(") ", 1)[1][0] == "Z":
                    continue
            with open("/proc/%s/cmdline" % name, "rb") as f:
                found[int(name)] = f.read().replace(b"\0", b" ").decode(errors="replace").strip()
        except (OSError, IndexError):
            continue
    return found


def send(pid, number):
    """A signal; False where the process is gone."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def gone(pid):
    """Whether no live process has this number (a zombie is gone)."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(") ", 1)[1][0] == "Z"
    except OSError:
        return True


def kill_all(home):
    """SIGKILL to everything of that home until nothing is left."""
    for _ in range(100):
        left = processes(home)
        if not left:
            return
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.02)
    raise AssertionError("processes of %s do not end: %r" % (home, left))


def on(worker, *devices, **more):
    """A target."""
    return dict({"worker": worker}, **({"devices": list(devices)} if devices else {}), **more)


def small(model=MLP, **params):
    """A graph that trains for three steps."""
    need_fashion()
    return training_graph(model, **{"train__max_steps": 3, **params})


def share(server, worker, device, mode="shared"):
    """Sets a card's mode."""
    reply = server.api("PUT", "/api/workers/%s/cards/%s" % (worker, device), {"mode": mode})
    assert reply.status == 200, reply
    return reply


def card(server, worker, device):
    return next(d for d in server.worker(worker)["devices"] if d["device"] == device)


class Reply:
    def __init__(self, status, body, headers):
        self.status, self.text, self.headers = status, body.decode(errors="replace"), headers

    @property
    def doc(self):
        return json.loads(self.text)

    @property
    def detail(self):
        """What a refusal says."""
        return self.doc["detail"]

    def __repr__(self):
        return "(HTTP %s, %.800s)" % (self.status, self.text)


class Server:
    def __init__(self, snug, cards=None, env=None, args=(), start=True, commands=True, **settings):
        """settings: run_retention_keep_last=3 becomes SNUG_RUN_RETENTION_KEEP_LAST."""
        self.snug, self.args = snug, list(args)
        self.dir = tempfile.mkdtemp(prefix="snug-server-")
        self.home = os.path.join(self.dir, "home")
        self.env = dict(os.environ, SNUG_HOME=self.home, SNUG_SIM_DIR=os.path.join(self.dir, "sim"),
                        NO_COLOR="1", LC_ALL="C.UTF-8", OMP_NUM_THREADS="1", SNUG_AGENT_HEARTBEAT_S="0.5")
        for name in ("SNUG_SERVER", "SNUG_KEY", "SNUG_SIM_CARDS", "SNUG_JOIN_TOKEN", "http_proxy", "https_proxy", "all_proxy"):
            self.env.pop(name, None)
        if cards:
            self.env["SNUG_SIM_CARDS"] = cards
        if commands:
            self.env["SNUG_ALLOW_COMMANDS"] = "1"
        for name, value in settings.items():
            self.env["SNUG_" + name.upper()] = str(value)
        self.env.update(env or {})
        self.homes, self.agents = [self.home], []
        self.running = start

    def __enter__(self):
        os.makedirs(self.home, mode=0o700)
        try:
            if self.running:
                self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        try:
            for home in self.homes:
                kill_all(home)
        finally:
            if not os.environ.get("SNUG_TEST_KEEP"):
                shutil.rmtree(self.dir, ignore_errors=True)

    # ---- the server as a process ----

    def cli(self, *args, timeout=120, env=None, stdin=None, cwd=None):
        """`snug ARGS` under the server's home: a Result with rc, out, err (and doc)."""
        import harness
        child = subprocess.run(
            [self.snug.program, *map(str, args)], env=dict(self.env, **(env or {})), cwd=cwd or self.dir,
            input=stdin, stdin=None if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=timeout * SLOW)
        result = harness.Result(child.returncode, child.stdout.decode(), child.stderr.decode())
        assert result.rc >= 0, "crash: %r" % result
        return result

    def json(self, command, *args, **more):
        return self.cli(command, "--json", *args, **more)  # before any "--"

    def popen(self, *args, env=None, **more):
        return subprocess.Popen(
            [self.snug.program, *map(str, args)], env=dict(self.env, **(env or {})), cwd=self.dir,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)

    def start(self, *args, port=0, env=None):
        """In the background, as people do it. The port stays the same over restarts."""
        port = getattr(self, "port", 0) or port
        result = self.json("start", "--port", port, *self.args, *args, env=env)
        assert result.rc == 0, (result, self.log())
        self.read_address()
        return self

    def read_address(self):
        with open(os.path.join(self.home, "server.json")) as f:
            said = json.load(f)
        with open(os.path.join(self.home, "session.token")) as f:
            self.token = f.read().strip()
        self.url, self.pid, self.port, self.boot = said["url"], said["pid"], said["port"], said["boot_id"]

    def stop(self):
        result = self.json("stop")
        assert result.rc == 0, result
        return result

    def kill(self, number=signal.SIGKILL):
        """A signal to the server's process alone; after SIGKILL it is gone."""
        send(self.pid, number)
        if number == signal.SIGKILL:
            until(lambda: gone(self.pid), 10, "the server's end")

    def restart(self):
        """kill -9 and a new server."""
        self.kill()
        return self.start()

    def log(self):
        try:
            with open(os.path.join(self.home, "server.log")) as f:
                return f.read()[-4000:]
        except OSError:
            return ""

    def file(self, name, content=""):
        path = os.path.join(self.dir, name)
        with open(path, "w") as out:
            out.write(content if isinstance(content, str) else json.dumps(content))
        return path

    # ---- the API ----

    def api(self, method, path, body=None, token=None, headers=None, timeout=60, raw=None):
        """A Reply, whatever its status. token: "" for none, else the owner's."""
        head = {"Accept": "application/json", **(headers or {})}
        token = self.token if token is None else token
        if token:
            if token.startswith(("snk_", "snw_", "snj_")):
                head["Authorization"] = "Bearer " + token
            else:
                head["X-CodefyUI-Token"] = token
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        if data is not None:
            head.setdefault("Content-Type", "application/json")
        ask = urllib.request.Request(self.url + path, data=data, headers=head, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(ask, timeout=timeout * SLOW) as reply:
                return Reply(reply.status, reply.read(), reply.headers)
        except urllib.error.HTTPError as refusal:
            return Reply(refusal.code, refusal.read(), refusal.headers)

    def get(self, path, **more):
        return self.api("GET", path, **more)

    def post(self, path, body=None, **more):
        return self.api("POST", path, body if body is not None else {}, **more)

    def delete(self, path, **more):
        return self.api("DELETE", path, **more)

    # ---- runs ----

    def try_submit(self, graph=None, command=None, name=None, token=None, key=None, **options):
        body = {"graph": graph} if graph is not None else {"command": command}
        if options:
            body["options"] = options
        if name:
            body["name"] = name
        if key:
            body["idempotency_key"] = key
        return self.post("/api/runs", body, token=token)

    def submit(self, graph=None, command=None, **more):
        """The id of a new run. target=..., device=..., seed=... are options."""
        reply = self.try_submit(graph, command, **more)
        assert reply.status in (200, 201, 202), reply
        return reply.doc["run_id"]

    def sh(self, script, **more):
        """A run of a shell script."""
        return self.submit(command={"argv": ["/bin/sh", "-c", script], "working_dir": self.dir}, **more)

    def gate(self, name, **more):
        """A run that goes on until open(name): (run, opener)."""
        path = os.path.join(self.dir, "gate-" + name)
        run = self.sh("while [ ! -e '%s' ]; do sleep 0.05; done" % path, name=name, **more)
        return run, lambda: open(path, "w").close()

    def hold(self, name, **more):
        """The same, once it runs."""
        run, let = self.gate(name, **more)
        self.wait(run, "running")
        return run, let

    def run(self, run):
        reply = self.get("/api/runs/" + run)
        assert reply.status == 200, reply
        return reply.doc

    def status(self, run):
        return self.run(run)["status"]

    def wait(self, run, status=ENDED, seconds=40):
        """The run's row once it has one of these statuses; fails at once when it ended otherwise."""
        wanted = (status,) if isinstance(status, str) else status
        row = {}

        def there():
            row.clear()
            row.update(self.run(run))
            assert row["status"] in wanted or row["status"] not in ENDED, row
            return row["status"] in wanted

        until(there, seconds, lambda: "%s of run %r" % (wanted, row))
        return row

    def events(self, run, kind=None):
        """All public events, from the first on; of one type."""
        cursor, found = 0, []
        while True:
            page = self.get("/api/runs/%s/events?cursor=%d&limit=2000" % (run, cursor)).doc
            if not page["events"]:
                return [e for e in found if kind is None or e["type"] == kind]
            found += page["events"]
            assert [e["cursor"] for e in page["events"]] == list(
                range(cursor + 1, cursor + 1 + len(page["events"]))), page
            cursor = page["events"][-1]["cursor"]

    def output(self, run):
        """What the run printed."""
        reply = self.get("/api/runs/%s/log" % run)
        assert reply.status == 200, reply
        return reply.doc["text"]

    def runs(self, *statuses):
        query = "&".join("status=" + s for s in statuses)
        return self.get("/api/runs?limit=500&" + query).doc["runs"]

    # ---- workers ----

    def workers(self):
        """{name: row}, this server's own as "local"."""
        doc = self.get("/api/workers").doc
        return {w["name"]: w for w in doc["workers"] + [doc["local"]] if w}

    def worker(self, name):
        return self.workers().get(name)

    def online(self, name, seconds=30):
        """Waits until the worker is there; its row."""
        return until(lambda: (lambda w: w and w["state"] == "online" and w)(self.worker(name)), seconds,
                     lambda: "worker %s online among %r; %s" % (name, self.workers(), self.log()))

    def agent(self, name, cards=None, devices=None, args=(), same_home=False, env=None, wait=True):
        """An agent as of another machine: a home of its own, joined with a token, its credential kept
        there. same_home: as beside `snug start`. It stays in the foreground as a child of the test."""
        home = self.home if same_home else os.path.join(self.dir, "agent-" + name)
        os.makedirs(home, mode=0o700, exist_ok=True)
        own = dict(self.env, SNUG_HOME=home)
        own.pop("SNUG_SIM_CARDS", None)
        if cards:
            own["SNUG_SIM_CARDS"] = cards
        own.update(env or {})
        line = [self.snug.program, "agent", "start", "--foreground", "--name", name, *args]
        if not same_home:
            self.homes.append(home)
            joined = self.post("/api/workers", {"name": name})
            assert joined.status == 201, joined
            own["SNUG_JOIN_TOKEN"] = joined.doc["token"]
            line += ["--server", self.url]
        if devices:
            line += ["--devices", devices]
        agent = Agent(self, name, home, line, own)
        self.agents.append(agent)
        agent.start(wait)
        if own.pop("SNUG_JOIN_TOKEN", None) and wait:  # from now on by its own credential
            until(lambda: os.path.exists(os.path.join(home, "agents", name + ".json")), 10, "its credential")
        return agent


class Agent:
    """An agent in the foreground: killed, stopped with SIGSTOP, started again."""

    def __init__(self, server, name, home, line, env):
        self.server, self.name, self.home, self.line, self.env = server, name, home, line, env

    def start(self, wait=True):
        self.log = open(os.path.join(self.server.dir, "agent-%s.log" % self.name), "a")
        self.child = subprocess.Popen(self.line, env=self.env, cwd=self.server.dir, stdin=subprocess.DEVNULL,
                                      stdout=self.log, stderr=self.log)
        self.pid = self.child.pid
        if wait:
            self.server.online(self.name)
        return self

    def kill(self, number=signal.SIGKILL):
        send(self.pid, number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.child.wait(timeout=30 * SLOW)

    def text(self):
        with open(os.path.join(self.server.dir, "agent-%s.log" % self.name)) as f:
            return f.read()[-4000:]
