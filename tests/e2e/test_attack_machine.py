"""A hostile machine: no disk, no memory, no reader, and Stop at any moment."""
import glob
import os
import random
import resource
import shutil
import signal
import subprocess
import time

import attack
import harness

SOAK = os.environ.get("SNUG_SOAK") == "1"
SEED = int(os.environ.get("SNUG_TEST_SEED", "1"))
ROOT = os.geteuid() == 0


def sanitized(snug):
    return b"__asan_init" in attack.get(snug.program)


def small_disk(snug, size):
    """A file system of that size at snug.dir/disk."""
    path = os.path.join(snug.dir, "disk")
    os.makedirs(path, exist_ok=True)
    if not ROOT or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%d" % size, "tmpfs", path],
                                  capture_output=True).returncode:
        raise harness.Skip("a small disk needs the right to mount")
    return path


def test_full_disk(snug):
    cases = attack.Cases(snug)
    attack.fashion(snug, 200)
    disk = small_disk(snug, 1 << 20)
    home = os.path.join(disk, "home")
    try:
        for what, params, words in (
                ("weights", {}, ("final",)), ("checkpoints by steps", {"train__checkpoint_every_steps": 1}, ()),
                ("checkpoints by epoch", {"train__checkpoint_every": 1}, ())):
            for left in (0, 4096, 60000, 90000):
                shutil.rmtree(home, ignore_errors=True)
                attack.put(os.path.join(disk, "ballast"), bytes((1 << 20) - left - 8192))
                graph = attack.saving_graph(loader__batch_size=50, train__max_steps=0, train__epochs=2, **params)
                cases.fails("%s, %d bytes left" % (what, left), "run", snug.write("graph.json", graph),
                            env={"SNUG_HOME": home}, words=words)
                found = [os.path.join(d, f) for d, _, files in os.walk(home) for f in files if not f.endswith(".slot")]
                whole = [f for f in found if f.endswith((".pt", ".safetensors"))]
                if len(whole) != len(found):
                    cases.wrong.append("%s, %d left: %s" % (what, left, found))
                os.remove(os.path.join(disk, "ballast"))
    finally:
        subprocess.run(["umount", disk], check=True)
    cases.end()


def test_full_output(snug):
    """/dev/full: the answer could not be given, which is a failure."""
    attack.fashion(snug, 40)
    graph = snug.write("graph.json", harness.training_graph(train__max_steps=1))
    for command in ("run", "plan", "validate"):
        for more in ((), ("--json",)):
            with open("/dev/full", "w") as full:
                result = snug(command, graph, *more, stdout=full)
            assert result.rc == 1 and "stdout" in result.err, (command, more, result)
    for more in ((), ("--json",)):
        with open("/dev/full", "w") as full:
            child = subprocess.run([snug.program, "run", graph, *more], env=snug.env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=full, timeout=60)
        assert child.returncode == 0 and child.stdout, (more, child)


def test_closed_streams(snug):
    """Nothing is written into files that happen to get the numbers of closed streams."""
    attack.fashion(snug, 40)
    graph = snug.write("graph.json", attack.saving_graph(train__max_steps=1, train__checkpoint_every_steps=1))
    for closed in ("0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-", "1>&- 2>&-"):
        for more in ("", "--json"):
            shutil.rmtree(snug.home, ignore_errors=True)
            line = "exec '%s' run '%s' %s %s" % (snug.program, graph, more, closed)
            child = subprocess.run(["sh", "-c", line], env=snug.env, cwd=snug.dir, capture_output=True, timeout=60)
            assert child.returncode in (0, 1), (line, child)
            saved = os.path.join(snug.home, "models", "final.safetensors")
            assert len(attack.weights(saved)) == 4, line
            for path in glob.glob(os.path.join(snug.home, "models", "periodic", "*")):
                again = snug("run", graph, "--resume", path)
                assert again.rc == 0, (line, again)


def test_unwritable_home(snug):
    cases = attack.Cases(snug)
    attack.fashion(snug, 40)
    graph = snug.write("graph.json", attack.saving_graph(train__max_steps=1, train__checkpoint_every_steps=1))
    attack.put(os.path.join(snug.dir, "file"), b"")
    for home in ("/proc/nowhere", os.path.join(snug.dir, "file"), os.path.join(snug.dir, "file", "below"), "/dev/null"):
        cases.fails("home " + home, "run", graph, env={"SNUG_HOME": home}, words=(home,))
        plain = snug.write("plain.json", harness.training_graph(train__max_steps=1))
        result = cases.call("home %s, nothing to write" % home, "run", plain, env={"SNUG_HOME": home})
        if result and result.rc:
            cases.wrong.append("home %s is not needed: %r" % (home, result))
    models = os.path.join(snug.home, "models")
    attack.put(os.path.join(models, "final.safetensors", "in the way"), b"")
    cases.fails("a folder in the way", "run", graph, words=("final.safetensors",))
    shutil.rmtree(models)
    attack.put(os.path.join(models, "periodic"), b"")
    cases.fails("a file in the way", "run", graph, words=("periodic",))
    shutil.rmtree(models)
    for name in ("a" * 300, "../" * 3 + "out", "/", ".", "", "a/" * 600 + "b"):
        other = snug.write("other.json", attack.saving_graph(train__max_steps=1, path=name))
        cases.fails("saved as %.20r" % name, "run", other, node="save")
    if not ROOT:
        os.makedirs(models, exist_ok=True)
        os.chmod(models, 0o500)
        cases.fails("read-only", "run", graph, words=("models",))
        os.chmod(models, 0o700)
    cases.end()


def test_read_only_disk(snug):
    cases = attack.Cases(snug)
    attack.fashion(snug, 40)
    graph = snug.write("graph.json", attack.saving_graph(train__max_steps=1, train__checkpoint_every_steps=1))
    disk = small_disk(snug, 4 << 20)
    try:
        home = os.path.join(disk, "home")
        assert cases.call("writable", "run", graph, env={"SNUG_HOME": home}).rc == 0
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        cases.fails("read-only", "run", graph, env={"SNUG_HOME": home}, words=("read-only",))
        result = cases.call("read-only, nothing to write", "run",
                            snug.write("plain.json", harness.training_graph(train__max_steps=1)),
                            env={"SNUG_HOME": home})
        assert result.rc == 0, result
    finally:
        subprocess.run(["umount", disk], check=True)
    cases.end()


def test_every_allocation_may_fail(snug):
    """Exit 3 with a whole document, whichever allocation fails, and nothing half-written."""
    cases = attack.Cases(snug)
    attack.fashion(snug, 40)
    graph = attack.saving_graph(train__max_steps=2, train__checkpoint_every_steps=1, loader__batch_size=8,
                                loader__num_workers=1)
    attack.add(graph, "state", "CheckpointSaver", {"path": "state.pt"}, ("train", "model", "state", "model"),
               ("train", "optimizer", "state", "optimizer"))
    path = snug.write("graph.json", graph)
    commands = {"plan": 0, "validate": 0, "run": 0, "nodes": 0}
    for command in commands:
        args = (command,) if command == "nodes" else (command, path, "--set", "train.epochs=2")
        low, high = 1, 2
        while high < 1 << 24:  # how many allocations the command makes
            result = cases.call("%s, allocation %d" % (command, high), *args, env={"SNUG_FAIL_ALLOC": str(high)})
            if result is None or result.rc == 0:
                break
            low, high = high, high * 2
        while high - low > high // 50 + 1:
            middle = (low + high) // 2
            result = cases.call("%s, allocation %d" % (command, middle), *args, env={"SNUG_FAIL_ALLOC": str(middle)})
            low, high = (low, middle) if result and result.rc == 0 else (middle, high)
        r, count = random.Random(SEED), {"run": 120, "plan": 40}.get(command, 20) * (10 if SOAK else 1)
        tries = set(range(1, 12)) | {r.randrange(1, high) for _ in range(count)} | set(range(max(1, high - 20), high))
        for n in sorted(tries):
            result = cases.call("%s, allocation %d of %d" % (command, n, high), *args, env={"SNUG_FAIL_ALLOC": str(n)})
            if result and result.rc not in (0, 3):
                cases.wrong.append("%s, allocation %d: exit %d %r" % (command, n, result.rc, result.doc["error"]))
            if result and result.rc == 0 and n < low - 20:
                cases.wrong.append("%s, allocation %d of %d: it did not matter" % (command, n, high))
    cases.end()


def test_address_space(snug):
    """Whatever the limit, the answer is a document: out of memory, or success."""
    if sanitized(snug):
        raise harness.Skip("a sanitizer's shadow does not fit a limit")
    cases = attack.Cases(snug)
    attack.fashion(snug, 400)
    graph = snug.write("graph.json", harness.training_graph(harness.CNN, loader__batch_size=64, train__max_steps=2,
                                                            loader__num_workers=1))
    codes = {}
    for mib in list(range(60, 420, 20)) + [450, 500, 600, 800, 2000]:
        def limit(size=mib << 20):
            resource.setrlimit(resource.RLIMIT_AS, (size, size))
        child = subprocess.run([snug.program, "run", graph, "--json"], env=snug.env, cwd=snug.dir, preexec_fn=limit,
                               stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        codes[mib] = child.returncode
        if b"error while loading shared libraries" in child.stderr or b"cannot allocate memory" in child.stderr:
            continue  # the program itself does not fit
        try:
            status = harness.Result(child.returncode, child.stdout.decode(), "").doc["status"]
            ok = child.returncode == (0 if status == "succeeded" else 3)
        except ValueError:
            ok = False
        if not ok:
            cases.wrong.append("%d MiB: exit %d, %r, %r" % (mib, child.returncode, child.stdout[:500], child.stderr[-500:]))
    assert codes[2000] == 0, codes
    cases.end()


def stop_at(snug, graph, delay, number, *more):
    child = snug.start("run", graph, "--json", *more, env=attack.SANITIZERS)
    try:
        out, err = child.communicate(timeout=delay)
    except subprocess.TimeoutExpired:
        child.send_signal(number)
        out, err = child.communicate(timeout=60)
    return harness.Result(child.returncode, out.decode(), err.decode())


def same(a, b):
    return attack.weights(a) == attack.weights(b)


# ids: A7
def test_stop_at_any_moment(snug):
    attack.fashion(snug, 600)
    graph = snug.write("graph.json", attack.saving_graph(
        harness.CNN, loader__batch_size=10, train__max_steps=0, train__epochs=3, train__accumulate_steps=2))
    final = os.path.join(snug.home, "models", "final.safetensors")
    begin = time.time()
    assert snug.json("run", graph, "--threads", 1).rc == 0
    whole, wanted = time.time() - begin, os.path.join(snug.dir, "wanted.safetensors")
    os.rename(final, wanted)
    r = random.Random(SEED)
    stopped = 0
    for i in range(40 if SOAK else 8):
        shutil.rmtree(snug.home, ignore_errors=True)
        number = r.choice([signal.SIGINT, signal.SIGTERM])
        result = stop_at(snug, graph, r.random() * whole, number, "--threads", 1)
        if result.rc == -number:
            continue  # before the handler was there
        assert result.rc in (0, 130), result
        doc = result.doc
        assert doc["status"] == {0: "succeeded", 130: "interrupted"}[result.rc], result
        left = [f for _, _, files in os.walk(snug.home) for f in files if ".part" in f]
        assert not left, left
        if result.rc == 130 and (doc.get("metrics") or {}).get("interrupt_checkpoint"):
            stopped += 1
            assert os.path.exists(doc["metrics"]["interrupt_checkpoint"]), doc
            again = snug.json("run", graph, "--resume", "auto", "--threads", 1)
            assert again.rc == 0 and again.doc["resumed_from"] == doc["metrics"]["interrupt_checkpoint"], again
            assert same(final, wanted), "stop %d: other weights after resuming" % i
    assert stopped > 0


def test_second_stop_leaves_nothing_half_written(snug):
    """The second Ctrl-C ends the program at once, also while a checkpoint is being written."""
    attack.fashion(snug, 200)
    wide = harness.layers(("Flatten", {}), ("Linear", {"in_features": 784, "out_features": 4000}), ("ReLU", {}),
                          ("Linear", {"in_features": 4000, "out_features": 10}))
    graph = snug.write("graph.json", attack.saving_graph(
        wide, loader__batch_size=50, train__max_steps=0, train__epochs=50, train__checkpoint_every_steps=1,
        train__checkpoint_keep=2))
    for i in range(10 if SOAK else 4):
        child = snug.start("run", graph, "--json")
        time.sleep(1.0 + 0.13 * i)
        child.send_signal(signal.SIGINT)
        time.sleep(0.005 * i)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=30)
        assert child.returncode == 130, child.returncode
        doc = harness.Result(130, out.decode(), "").doc
        assert doc["status"] == "interrupted", doc
        left = [f for _, _, files in os.walk(snug.home) for f in files if ".part" in f]
        assert not left, left
