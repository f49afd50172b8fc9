"""Python runs this at the start of every process of a command under `dse trace capture`.

It waits for torch to be imported and changes nothing else; another `sitecustomize` on the path
still runs. It must work in any Python that the command starts.
"""

from __future__ import annotations

import json
import os
import sys

_REQUEST = "DSE_CAPTURE"
_HERE = os.path.dirname(os.path.abspath(__file__))


def _begin() -> None:
    """Begins the recording; a failure is reported and does not stop the command."""
    try:
        home = json.loads(os.environ[_REQUEST])["home"]
        try:
            import dse.trace.capture._agent as agent
        except ImportError:
            # The command's Python does not have this package, which only needs torch here.
            sys.path.append(home)
            for name in [name for name in sys.modules if name.partition(".")[0] == "dse"]:
                del sys.modules[name]
            import dse.trace.capture._agent as agent
        agent.begin(os.environ[_REQUEST])
    except Exception as error:
        sys.stderr.write(f"dse trace capture: cannot record this process: {error}\n")


class _TorchWatch:
    """Begins the recording once torch is imported."""

    searching = False
    begun = False

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Finds torch as usual; nothing else."""
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


def _run_next_sitecustomize() -> None:
    """Runs the `sitecustomize` that Python would have run otherwise."""
    import importlib.machinery

    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        import importlib.util

        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if _REQUEST in os.environ:
    sys.meta_path.insert(0, _TorchWatch())
if __name__ == "sitecustomize":
    _run_next_sitecustomize()
