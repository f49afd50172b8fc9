"""Python runs this at the start of every process of a command under `dse trace capture`.

It waits for torch to be imported and leaves all else as it was, including a `sitecustomize` that
was there before. It must do so in whatever Python the command starts.
"""

from __future__ import annotations

import json
import os
import sys

_ORDERS = "DSE_CAPTURE"
_HERE = os.path.dirname(os.path.abspath(__file__))


def _begin() -> None:
    """Begins the recording; a failure is told and does not stop the command."""
    try:
        home = json.loads(os.environ[_ORDERS])["home"]
        try:
            import dse.trace.capture._agent as agent
        except ImportError:
            # The command's Python does not have this package; it needs nothing but torch.
            sys.path.append(home)
            for name in [name for name in sys.modules if name.partition(".")[0] == "dse"]:
                del sys.modules[name]
            import dse.trace.capture._agent as agent
        agent.begin(os.environ[_ORDERS])
    except Exception as error:
        sys.stderr.write(f"dse trace capture: cannot record this process: {error}\n")


class _TorchWatch:
    """Begins the recording when torch has been imported."""

    searching = False
    begun = False

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Finds torch as it would be found anyway; nothing else."""
        if name != "torch" or self.searching:
            return None
        import importlib.util

        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_begin(module):  # type: ignore[no-untyped-def]
            execute(module)
            if not self.begun:
                self.begun = True
                _begin()

        spec.loader.exec_module = execute_and_begin  # type: ignore[method-assign]
        return spec


def _run_the_one_before() -> None:
    """Runs the `sitecustomize` that Python would have run."""
    import importlib.machinery

    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        import importlib.util

        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if _ORDERS in os.environ:
    sys.meta_path.insert(0, _TorchWatch())
if __name__ == "sitecustomize":
    _run_the_one_before()
