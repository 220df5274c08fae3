"""What keeps the server's secrets and its users' machines: tokens in processes, files and logs; bytes that are no
request; pages of others; a graph that takes for ever to plan."""
import os
import random
import socket
import ssl
import subprocess
import threading
import time

from harness import Skip
from server_harness import Server, processes, until


def secrets(server, *more):
    page = server.get("/api/auth/bootstrap").doc["token"]
    return [server.token, page, *more]


# ids: H2
def test_secrets_stay(snug):
    """No token is in a command line, an environment, a log, or the database; a run sees none."""
    with Server(snug, env={"SNUG_KEY": "snk_of_the_servers_shell"}) as server:
        key = server.post("/api/keys", {"name": "ada", "exec": True}).doc["token"]
        server.online("local")
        hidden = secrets(server, key, "snk_of_the_servers_shell")
        run, go_on = server.hold("a", token=key, target={"worker": "local"})
        child = server.sh("env; ls -l /proc/self/fd; cat /proc/$PPID/cmdline | tr '\\0' ' '", target={"worker": "local"})
        server.wait(child, "succeeded")
        printed = server.output(child)
        assert not any(secret in printed for secret in hidden), printed
        assert "snug.db" not in printed and "session.token" not in printed, printed
        for pid, line in processes(server.home).items():
            assert not any(secret in line for secret in hidden), line
            if pid == server.pid:
                continue  # what the shell gave the server itself is the shell's affair
            with open("/proc/%d/environ" % pid, "rb") as f:
                environment = f.read().decode(errors="replace")
            assert not any(secret in environment for secret in hidden), (line, environment)
        go_on()
        server.wait(run, "succeeded")
        for folder, _, names in os.walk(server.home):
            for name in names:
                path = os.path.join(folder, name)
                if name == "session.token":
                    assert os.stat(path).st_mode & 0o777 == 0o600
                    continue
                with open(path, "rb") as f:
                    data = f.read()
                assert not any(secret.encode() in data for secret in hidden), path


# ids: H1
def test_order_of_refusals(snug):
    """Host, then token, then size, then form, whatever is sent."""
    with Server(snug, max_run_body_bytes=2000) as server:
        big = b"x" * 3000
        evil = {"Host": "evil.example"}
        assert server.api("POST", "/api/runs", raw=big, token="", headers=evil).status == 421
        assert server.api("POST", "/api/runs", raw=big, token="").status == 403
        assert server.api("POST", "/api/runs", raw=big, token="snk_no").status == 401
        assert server.api("POST", "/api/runs", raw=big).status == 413
        assert server.api("POST", "/api/runs", raw=b"no").status == 422
        reply = server.api("POST", "/api/runs", raw=b"{}", headers={"Origin": "http://evil.example"})
        assert reply.status == 403, reply
        assert server.get("/api/health").status == 200


# ids: H1
def test_commands_are_the_owners(snug):
    """The page's token and keys without exec run no command; off, nobody does."""
    with Server(snug) as server:
        page = server.get("/api/auth/bootstrap").doc["token"]
        plain = server.post("/api/keys", {"name": "a"}).doc["token"]
        runner = server.post("/api/keys", {"name": "b", "exec": True}).doc["token"]
        for token, status in ((page, 403), (plain, 403), (runner, 200), (None, 200)):
            reply = server.try_submit(command={"argv": ["true"]}, token=token)
            assert reply.status == status, (token, reply)
    with Server(snug, commands=False) as server:
        assert server.try_submit(command={"argv": ["true"]}).status == 403


# ids: H4
def test_noise(snug):
    """Bytes that are no request, cut requests and lost connections: the server goes on, its database whole."""
    rng = random.Random(int(os.environ.get("SNUG_TEST_SEED", "20261129")))
    rounds = 5000 if os.environ.get("SNUG_SOAK") else 150
    with Server(snug) as server:
        head = ("POST /api/runs HTTP/1.1\r\nHost: localhost\r\nX-Snug-Token: %s\r\nContent-Length: 40\r\n\r\n"
                % server.token).encode() + b'{"graph": {"nodes": [], "edges": []}}   '
        for _ in range(rounds):
            s = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            data = bytearray(head if rng.random() < 0.7 else rng.randbytes(rng.randrange(300)))
            for _ in range(rng.randrange(4)):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
            try:
                s.sendall(data[:rng.randrange(len(data) + 1)])
                if rng.random() < 0.3:
                    s.shutdown(socket.SHUT_WR)
                    s.settimeout(0.1)
                    s.recv(4096)
                if rng.random() < 0.2:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            except OSError:
                pass
            s.close()
        health = server.get("/api/health").doc
        assert health["status"] == "ok" and health["boot_id"] == server.boot
        assert not server.runs(), "a request that was cut was taken"


# ids: promise-P15
def test_many_who_do_not_read(snug):
    """Hundreds of streams that nobody reads, and connections that say nothing, keep nobody waiting."""
    with Server(snug) as server:
        idle = []
        for i in range(300):
            s = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            if i % 2:
                s.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            idle.append(s)
        for _ in range(20):
            assert server.get("/api/health", timeout=5).status == 200
        server.stop()
        for s in idle:
            s.close()


# ids: H4
def test_plans_have_a_limit(snug):
    """A plan that takes too long is 504 and its child is gone; others are served meanwhile."""
    with Server(snug, plan_timeout_s=1) as server:
        layers = [{"id": "l%d" % i, "type": "Linear", "position": {"x": 0, "y": i}, "data": {"params": {
            "in_features": 64, "out_features": 64}}} for i in range(3)]
        ok = server.post("/api/graph/plan", {"nodes": layers, "edges": []})
        assert ok.status in (200, 400), ok
        assert "/" not in ok.doc.get("detail", ""), ok
        bad = server.post("/api/graph/plan", {"graph": {"nodes": 3}})
        assert bad.status == 422, bad
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(
            server.post("/api/graph/estimate", {"graph": {"nodes": layers, "edges": []}}).status)) for _ in range(8)]
        for t in threads:
            t.start()
        assert server.get("/api/health", timeout=5).status == 200
        for t in threads:
            t.join()
        assert set(answers) <= {200, 400, 504}, answers
        until(lambda: not [p for p, line in processes(server.home).items() if " estimate " in line or " plan " in line],
              10, "the end of the children")


# ids: H5
def test_tls_by_flags(snug):
    """With a certificate the server, its own worker and the command line speak TLS; plain HTTP gets nothing."""
    if subprocess.run(["sh", "-c", "command -v openssl"], stdout=subprocess.DEVNULL).returncode:
        raise Skip("openssl is missing")
    with Server(snug, start=False) as server:
        pem, key = os.path.join(server.dir, "lab.pem"), os.path.join(server.dir, "lab.key")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-keyout", key, "-out", pem, "-days", "2", "-subj", "/CN=lab",
                        "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server.start("--tls-cert", pem, "--tls-key", key)
        assert server.url.startswith("https://"), server.url
        status = server.json("status", "--once")
        assert status.rc == 0, status
        context = ssl.create_default_context(cafile=pem)
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as s:
                s.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                assert s.recv(100).startswith(b"HTTP/1.1 200")
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as s:
            s.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert not s.recv(100).startswith(b"HTTP/1.1 200")
        end = time.time() + 30
        while time.time() < end:
            reply = server.json("workers")
            if reply.rc == 0 and '"online"' in reply.out:
                break
            time.sleep(0.2)
        assert '"online"' in reply.out, reply
