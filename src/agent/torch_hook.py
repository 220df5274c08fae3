"""Start-up hook of snug's runs: caps PyTorch's allocator at the run's budget, and tells its peaks.

Python imports this as `sitecustomize` because its folder comes first in PYTHONPATH. It does nothing until
torch is imported, and nothing on a card until the program uses one; another sitecustomize on the path is
run after it. A program that clears PYTHONPATH, or runs `python -I`, has no cap.
"""

import os
import sys


def _note(name, text):
    folder = os.environ.get("SNUG_RUN_DIR")
    if not folder:
        return
    try:
        temporary = os.path.join(folder, ".%s.%d" % (name, os.getpid()))
        with open(temporary, "w") as out:
            out.write(text)
        os.rename(temporary, os.path.join(folder, name))
    except OSError:
        pass


def _cap(torch):
    budget = int(os.environ.get("SNUG_BUDGET_BYTES") or 0)
    for i in range(torch.cuda.device_count() if budget > 0 else 0):
        total = torch.cuda.get_device_properties(i).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), i)


def _peaks(torch):
    import json

    if torch.cuda.is_initialized():
        cards = range(torch.cuda.device_count())
        _note("peaks.%d.json" % os.getpid(), json.dumps([torch.cuda.max_memory_reserved(i) for i in cards]))


def _watch_errors(torch):
    before = sys.excepthook
    kinds = tuple(
        kind for kind in (getattr(torch.cuda, "OutOfMemoryError", None), getattr(torch, "OutOfMemoryError", None))
        if isinstance(kind, type))

    def hook(kind, value, trace):
        if kinds and isinstance(value, kinds) or "CUDA out of memory" in str(value):
            _note("oom", str(value)[:4000])
        before(kind, value, trace)

    sys.excepthook = hook


def _on_torch(torch):
    import atexit

    try:
        # Called when the program first uses CUDA, before anything can be allocated on a card.
        if hasattr(torch.cuda, "_lazy_call"):
            torch.cuda._lazy_call(lambda: _cap(torch))
        elif torch.cuda.is_available():
            _cap(torch)
        atexit.register(_peaks, torch)
        _watch_errors(torch)
    except Exception as problem:
        sys.stderr.write("snug: cannot hold PyTorch to the run's budget: %s\n" % problem)
        if int(os.environ.get("SNUG_BUDGET_BYTES") or 0) > 0:
            os._exit(70)


class _Finder:
    """Finds torch as the others would, and has a look at it once it is there."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = getattr(getattr(spec, "loader", None), "exec_module", None)
        if load is None:
            return spec

        def exec_module(module):
            load(module)
            _on_torch(module)

        spec.loader.exec_module = exec_module
        return spec


def _chain():
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.abspath(p or ".") != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.meta_path.insert(0, _Finder())
_chain()
