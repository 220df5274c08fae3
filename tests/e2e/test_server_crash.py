"""Server, agents, supervisors and their children killed or stopped at random moments, with runs in flight.

A round submits runs, hurts something, starts again what was killed, waits until every run has its end, and judges:
what was acknowledged is there, nothing started twice, what nobody hurt has succeeded, an exclusive card never had two
runs, the log of events has no gap. Runs write what they do into a file outside, so nothing of the server is believed.
1,000 rounds under SNUG_SOAK=1; SNUG_TEST_SEED, SNUG_TEST_ROUNDS and SNUG_TEST_FIRST repeat some of them.
"""
import os
import random
import signal
import sqlite3
import threading
import time
import urllib.error

from server_harness import ENDED, Server, gone, processes, send, until

SOAK = os.environ.get("SNUG_SOAK") == "1"
SEED = int(os.environ.get("SNUG_TEST_SEED", "1"))
FIRST = int(os.environ.get("SNUG_TEST_FIRST", "0"))
ROUNDS = int(os.environ.get("SNUG_TEST_ROUNDS", "1000" if SOAK else "14"))
GRACE = 3  # seconds that a lost agent has
CARDS = ["cuda:0", "cuda:1"]


class Storm:
    """A server with its own worker and one more, and the diary that the runs write."""

    def __init__(self, snug):
        self.server = Server(snug, worker_resume_grace_s=GRACE, run_retention_keep_last=100000)
        self.diary = None
        self.hurt = set()  # runs that somebody killed, or whose agent was away for longer than the grace

    def __enter__(self):
        self.server.__enter__()
        self.diary = os.path.join(self.server.dir, "diary")
        open(self.diary, "w").close()
        self.agent = self.server.agent("gpu-box", cards="A:8GiB:sm86,B:8GiB:sm86")
        return self

    def __exit__(self, *_):
        self.server.__exit__()

    def submit(self, r, number):
        """An acknowledged run, whatever happens to the server meanwhile: the key makes it one."""
        device = r.choice(CARDS + ["cpu"])
        script = 'd() { printf "%%s %%s %%s\\n" "$1" "$SNUG_RUN_ID" "$(date +%%s%%N)" >>"%s"; }; d start; sleep %.2f; d end' % (
            self.diary, r.choice([0, 0.05, 0.2, 0.6]))
        body = {"command": {"argv": ["/bin/sh", "-c", script]}, "idempotency_key": "round-%d" % number,
                "options": {"target": {"worker": r.choice(["gpu-box", "gpu-box", "any"]) if device != "cpu" else "local",
                                       "devices": [device]}}}
        if device == "cuda:1":
            body["options"]["target"]["worker"] = "gpu-box"

        def acknowledged():
            try:
                reply = self.server.post("/api/runs", body, timeout=20)
            except (OSError, urllib.error.URLError, ConnectionError, ValueError):
                return None  # the server is away: nobody knows whether it was stored
            assert reply.status in (200, 201, 202), reply
            return reply.doc["run_id"]

        return acknowledged

    def entries(self):
        """{run: {"start": [ns], "end": [ns]}}"""
        found = {}
        with open(self.diary) as f:
            for line in f:
                word, run, at = line.split()
                found.setdefault(run, {"start": [], "end": []})[word].append(int(at))
        return found

    def supervisors(self):
        return [p for home in self.server.homes for p, line in processes(home).items() if " child " in line]

    def local_agent(self):
        return [p for p, line in processes(self.server.home).items() if " agent " in line and "--builtin" in line]

    def has_come_back(self):
        if gone(self.server.pid):
            self.server.start()
        if self.agent.child.poll() is not None:
            self.agent.start(wait=False)
        self.server.online("gpu-box", 40)
        self.server.online("local", 40)


def server_killed(storm, r):
    storm.server.kill()
    time.sleep(r.random() * 0.3)


def server_killed_twice(storm, r):
    storm.server.restart()
    time.sleep(r.random() * 0.2)
    storm.server.kill()


def server_asleep(storm, r):
    storm.server.kill(signal.SIGSTOP)
    time.sleep(r.random() * 1.5)
    storm.server.kill(signal.SIGCONT)


def agent_killed(storm, r):
    storm.agent.kill()
    time.sleep(r.random() * 0.3)


def local_killed(storm, r):
    for pid in storm.local_agent():
        send(pid, signal.SIGKILL)


def agent_asleep(storm, r):
    storm.agent.kill(signal.SIGSTOP)
    time.sleep(r.random() * 1.0)
    storm.agent.kill(signal.SIGCONT)


def agent_asleep_past_the_grace(storm, r):
    storm.hurt.add("all")
    storm.agent.kill(signal.SIGSTOP)
    time.sleep(GRACE + 1.5)
    storm.agent.kill(signal.SIGCONT)


def server_and_agent_killed(storm, r):
    storm.server.kill()
    storm.agent.kill()
    local_killed(storm, r)
    time.sleep(r.random() * 0.5)


def children_killed(storm, r):
    storm.hurt.add("all")
    for pid in storm.supervisors():
        if r.random() < 0.7:
            send(pid, signal.SIGKILL)


def everything_killed(storm, r):
    storm.hurt.add("all")
    storm.server.kill()
    storm.agent.kill()
    local_killed(storm, r)
    children_killed(storm, r)


HURTS = [server_killed, server_killed_twice, server_asleep, agent_killed, local_killed, agent_asleep,
         server_and_agent_killed, children_killed, everything_killed, agent_asleep_past_the_grace]


def one_round(storm, number, seen):
    r = random.Random("%d/%d" % (SEED, number))
    hurt = HURTS[number % len(HURTS)]
    if hurt is agent_asleep_past_the_grace and number % 30 != 9:
        hurt = r.choice(HURTS[:-1])
    storm.hurt.clear()
    asks = [storm.submit(r, number * 10 + i) for i in range(r.randint(1, 5))]
    under_way = len(asks) - 1 if r.random() < 0.5 else None  # its answer may get lost with the server
    wait = r.random() * 0.6
    runs = [None if i == under_way else ask() for i, ask in enumerate(asks)]
    time.sleep(wait)
    sender = None
    if under_way is not None:
        sender = threading.Thread(target=lambda: runs.__setitem__(under_way, asks[under_way]()))
        sender.start()
        time.sleep(r.random() * 0.01)
    hurt(storm, r)
    if sender:
        sender.join()
    storm.has_come_back()
    for i, ask in enumerate(asks):
        again = until(ask, 20, "an answer to a submission")
        assert runs[i] in (None, again), "acknowledged as %s, now it is %s" % (runs[i], again)
        runs[i] = again
    about = "round %d (%s)" % (number, hurt.__name__)
    try:
        rows = [storm.server.wait(run, seconds=30) for run in runs]
    except AssertionError as wrong:
        raise AssertionError("%s: %s\n%s\n%s" % (about, wrong, storm.server.log(), storm.agent.text()))
    judge(storm, about, rows, seen)


def judge(storm, about, rows, seen):
    diary = storm.entries()
    for row in rows:
        wrote = diary.get(row["id"], {"start": [], "end": []})
        assert len(wrote["start"]) <= 1 and len(wrote["end"]) <= 1, (about, row, wrote)
        if row["status"] == "succeeded":
            assert len(wrote["start"]) == 1 and len(wrote["end"]) == 1, (about, row, wrote)
        elif not storm.hurt:
            raise AssertionError("%s: nobody hurt run %r, it wrote %r" % (about, row, wrote))
        kinds = [e["type"] for e in storm.server.events(row["id"])]  # gapless, or the harness says so
        last = [k for k in kinds if k in ("execution_complete", "execution_error", "execution_stopped")]
        assert len(last) == 1 and kinds[-1] == last[0], (about, row, kinds)
        seen[row["id"]] = row
    one_at_a_time(about, rows, diary)


def one_at_a_time(about, rows, diary):
    """Exclusive cards: no two of this round's runs at once, by what the runs themselves wrote."""
    for device in CARDS:
        times = sorted((diary[row["id"]]["start"][0], diary[row["id"]]["end"][0]) for row in rows
                       if row["queue_key"] and row["queue_key"].endswith(device) and row["id"] in diary
                       and diary[row["id"]]["start"] and diary[row["id"]]["end"])
        for before, after in zip(times, times[1:]):
            assert before[1] <= after[0], (about, device, times)


def database_is_whole(server):
    db = sqlite3.connect("file:%s?mode=ro" % os.path.join(server.home, "snug.db"), uri=True)
    try:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    finally:
        db.close()


# ids: W2 W7
# ids: promise-P1 promise-P2 promise-P3 promise-P4 promise-P10 promise-P11
def test_storm(snug):
    seen = {}
    with Storm(snug) as storm:
        for number in range(FIRST, FIRST + ROUNDS):
            one_round(storm, number, seen)
            if SOAK and number % 50 == 49:
                print("    %d rounds, %d runs" % (number + 1, len(seen)), flush=True)
        for run, row in seen.items():  # ends do not change
            now = storm.server.run(run)
            assert (now["status"], now["finished_at"]) == (row["status"], row["finished_at"]), (row, now)
        until(lambda: not storm.supervisors(), 10, "the end of the last supervisor")
        storm.server.stop()
        storm.agent.kill(signal.SIGTERM)
        database_is_whole(storm.server)
        left = {p: line for home in storm.server.homes for p, line in processes(home).items()}
        assert not left, left


# ids: W7
# Slurm's window: a controller killed soon after its answer forgot jobs, ran one twice, drained a node.
# ids: promise-P1 promise-P2 case-Q21 case-F1
def test_killed_after_the_answer(snug):
    delays = [0.2, 1, 2, 4, 6, 8, 2.2, 2.2, 2.2, 2.2] if SOAK else [0.0, 0.2, 1, 2.2]
    with Storm(snug) as storm:
        for i, delay in enumerate(delays):
            name = "%s/long-%d" % (storm.server.dir, i)
            run = storm.server.sh("echo start >>%s.log; while [ ! -e %s ]; do sleep 0.05; done; echo end >>%s.log"
                                  % (name, name, name), target={"worker": "gpu-box", "devices": ["cuda:0"]})
            time.sleep(delay)
            storm.server.restart()
            row = storm.server.run(run)
            assert row["status"] in ("queued", "running"), row
            if delay >= 1:
                assert row["status"] == "running", row  # known as what it is, not as pending
            storm.server.wait(run, "running", 20)
            open(name, "w").close()
            row = storm.server.wait(run, "succeeded")
            with open(name + ".log") as f:
                assert f.read() == "start\nend\n", (delay, row)
        worker = storm.server.worker("gpu-box")
        assert worker["state"] == "online" and not worker["draining"], worker
        assert not storm.server.get("/api/workers").doc["refused"]
