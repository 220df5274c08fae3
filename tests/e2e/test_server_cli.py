"""The commands that start, stop and ask a server: what they print, their documents, exit statuses."""
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess

from harness import Skip
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
