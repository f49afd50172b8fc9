"""Faults: kills, interrupts, odd surroundings, damaged journals, hostile files, extreme jobs.

Usage: python benchmarks/faults.py [--seconds N] [--seed N] [--only NAME,...] [--ray] [--large]

Each kind of fault is tried again and again, with other random numbers, until its share of the time
is used. A try is clean if it ends as the documentation says (docs/scale.md, docs/security.md): the
answer of an undisturbed run, or one of the package's own errors. The exit code is 1 if a try was
not. `--ray` kills workers and drivers of a local Ray too; `--large` reads a table of 10^6 rows and
a trace of 10^7 events, which takes some minutes and 10 GB of memory.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from importlib.util import find_spec
import io
import json
import os
from pathlib import Path
import random
import shutil
import sys
import tempfile
import time
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from extreme_jobs import extremes  # noqa: E402
from interrupted_commands import interrupts  # noqa: E402
from killed_ranks import ranks  # noqa: E402
import numpy as np  # noqa: E402
from surroundings import surroundings  # noqa: E402

from dse.calibration.measurements import read_gemm  # noqa: E402
from dse.errors import DseError, StudyError  # noqa: E402
from dse.machine.platforms import load_platform  # noqa: E402
from dse.model import load_model, read_table_list  # noqa: E402
from dse.search import RunOptions, load_study, run  # noqa: E402
from dse.search.space import load_space  # noqa: E402
from dse.sharding import read_constraints, read_plan  # noqa: E402
from dse.trace.read import read_kineto  # noqa: E402
from tests.fuzzing import limits, mutated_bytes, packed, variants  # noqa: E402
from tests.search.files import journaled, unfinished  # noqa: E402
from tests.search.runs import QUICK_SPACE, Run  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TRIALS = 16


@dataclass
class Workplace:
    """What all faults share.

    Attributes:
        folder: For everything that is written.
        space: The search space of all runs.
        front: Bytes of the front that an undisturbed run ends with.
        journal: Bytes of its journal.
        header: Bytes of its `study.yaml`.
        chance: Random numbers.
    """

    folder: Path
    space: Path
    front: bytes
    journal: bytes
    header: bytes
    chance: random.Random
    made: int = field(default=0)

    def new(self) -> Path:
        """Returns a name that is not taken."""
        self.made += 1
        return self.folder / str(self.made)

    def study(self, journal: bytes) -> Path:
        """Returns a study folder with a journal."""
        out = self.new()
        out.mkdir()
        (out / "study.yaml").write_bytes(self.header)
        (out / "journal.log").write_bytes(journal)
        return out


def prepare(folder: Path, seed: int) -> Workplace:
    space = folder / "quick.yaml"
    space.write_text(QUICK_SPACE)
    study = run(space, RunOptions(out=folder / "whole", trials=TRIALS))
    directory = study.directory
    files = (directory.pareto, directory.journal, directory.header)
    return Workplace(folder, space, *(file.read_bytes() for file in files), random.Random(seed))


#: A try: what it did, and what was wrong or nothing.
Try = tuple[str, str]


def ends_as_undisturbed(place: Workplace, out: Path, known: list[object]) -> str:
    """Resumes a study and returns what is not as in an undisturbed run."""
    found = journaled(out)
    if found[: len(known)] != known:
        return "finished trials were lost"
    run(place.space, RunOptions(out=out, resume=True, trials=TRIALS))
    found = journaled(out)
    if len(found) != len(set(found)):
        return f"{len(found)} evaluations of {len(set(found))} configurations"
    if (out / "pareto.csv").read_bytes() != place.front:
        return "another front"
    if unfinished(out):
        return f"left behind: {unfinished(out)}"
    return ""


def kills(place: Workplace, **settings: object) -> Iterator[Try]:
    """Kill -9 of a run or of its process group at a random moment, up to three times."""
    while True:
        out = place.new()
        for _ in range(place.chance.randrange(1, 4)):
            process = Run(
                place.space,
                out=out,
                resume=(out / "study.yaml").exists(),
                trials=TRIALS,
                **settings,
            )
            process.wait_for(place.chance.randrange(1, TRIALS))
            time.sleep(place.chance.uniform(0, 0.2))
            process.kill(group=place.chance.random() < 0.5)
        lost = set(process.finished) - set(journaled(out))
        yield "kill", "lost" if lost else ends_as_undisturbed(place, out, journaled(out))
        shutil.rmtree(out)


def ray_kills(place: Workplace) -> Iterator[Try]:
    """The same with workers of a local Ray."""
    yield from kills(place, executor="ray", jobs=2)


def pairs(place: Workplace) -> Iterator[Try]:
    """Two runs that resume one folder at random moments; one of them may be killed."""
    while True:
        out = place.new()
        start = place.chance.randrange(2, TRIALS - 4)
        run(place.space, RunOptions(out=out, trials=start))
        runs = []
        for _ in range(2):
            runs.append(Run(place.space, out=out, resume=True, trials=TRIALS))
            time.sleep(place.chance.uniform(0, 0.3))
        if place.chance.random() < 0.5:
            place.chance.choice(runs).kill()
        problem = ""
        for process in runs:
            code = process.join()
            refused = isinstance(process.error, StudyError) and "in use" in str(process.error)
            if code not in (0, -9) and not (code == 2 and refused):
                problem = f"exit code {code}: {process.error}"
        yield "pair", problem or ends_as_undisturbed(place, out, journaled(out))
        shutil.rmtree(out)


def damage(place: Workplace) -> Iterator[Try]:
    """One to four changes of a journal: refused or harmless, and repaired by `repair`."""
    while True:
        content = mutated_bytes(place.journal, place.chance)
        out = place.study(content)
        try:
            records = load_study(out).result.records
            # A torn end was never finished, and an operation that is there twice changes nothing.
            whole = place.journal.startswith(content[: content.rfind(b"\n") + 1])
            known = load_study(place.folder / "whole").result.records
            harmless = {record.parameters: record.values for record in records}.items() <= {
                record.parameters: record.values for record in known
            }.items()
            problem = "" if whole or harmless else "accepted, with other answers"
        except DseError as error:
            problem = "" if str(out) in str(error) else f"does not name the file: {error}"
        if not problem:
            try:
                options = RunOptions(out=out, resume=True, repair=True, trials=TRIALS)
                run(place.space, options)
                if (out / "pareto.csv").read_bytes() != place.front:
                    problem = "another front after the repair"
            except DseError as error:
                problem = f"not repaired: {error}"
        yield "damage", problem
        shutil.rmtree(out)


def readers(folder: Path) -> dict[str, tuple[bytes, Callable[[Path], object]]]:
    """Returns a valid file and its reader, by the name under which it is written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dse.machine.fits import fit_tree_curve

    rows = {name: [128, 256, 512] for name in ("m", "n", "k")}
    table = {**rows, "dtype": ["bf16"] * 3, "time_us": [10.0, 11.0, 12.0]}
    buffer = io.BytesIO()
    pq.write_table(pa.table(table), buffer)
    columns = "\n".join(",".join(map(str, row)) for row in zip(*table.values(), strict=True))
    features = np.random.default_rng(0).normal(size=(200, 3))
    curve = fit_tree_curve(("log_m", "log_n", "log_k"), features, features.sum(axis=1), rounds=4)
    calibration = json.loads((ROOT / "platforms/calibrations/cpu.json").read_text())
    calibration["kernels"] = [one for one in calibration["kernels"] if one["op"] == "gemm"][:1]
    calibration["kernels"][0]["curve"] = {
        "kind": "trees",
        "features": [*curve.feature_names],
        "model": curve.packed,
    }
    calibration["collectives"] = []
    (folder / "p.yaml").write_text(
        (ROOT / "platforms/p100_pcie.yaml").read_text() + "\ncalibrations: [{file: mine.json}]\n"
    )
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op{at}", "pid": 1, "tid": 1, "ts": at, "dur": 1}
        for at in range(20)
    ]
    plan = json.dumps({"schema_version": 1, "model": "x", "tables": []}).encode()
    constraints = b'schema_version: 1\ntables: {"a*": {sharding_types: [row_wise]}}\n'
    return {
        "model.yaml": ((ROOT / "models/dlrm_tiny.yaml").read_bytes(), load_model),
        "platform.yaml": ((ROOT / "platforms/h100_sxm.yaml").read_bytes(), load_platform),
        "space.yaml": (QUICK_SPACE.encode(), load_space),
        "plan.json": (plan, read_plan),
        "constraints.yaml": (constraints, read_constraints),
        "tables.csv": (b"name,rows,dim,pooling\na,1000,64,3+4\nb,50,8,1\n", read_table_list),
        "gemm.csv": (f"{','.join(table)}\n{columns}\n".encode(), read_measurements),
        "gemm.parquet": (buffer.getvalue(), read_measurements),
        "mine.json": (
            json.dumps(calibration).encode(),
            lambda path: load_platform(str(path.with_name("p.yaml"))),
        ),
        "rank0.json": (json.dumps({"traceEvents": events}).encode(), read_kineto),
        "rank1.json.gz": (packed(json.dumps({"traceEvents": events}).encode()), read_kineto),
        "study.yaml": (b"", lambda path: load_study(path.parent)),
    }


def read_measurements(path: Path) -> object:
    return read_gemm(path, minimum_points=1)


def files(place: Workplace) -> Iterator[Try]:
    """Hostile files of every kind: read, or refused by an error of ours, in 10 s and 2 GiB."""
    folder = place.new()
    folder.mkdir()
    (folder / "journal.log").write_bytes(place.journal)
    known = readers(folder)
    known["study.yaml"] = (place.header, known["study.yaml"][1])
    number = place.chance.randrange(2**31)
    streams = {
        name: variants([content], 10**9, number + at)
        for at, (name, (content, _)) in enumerate(known.items())
    }
    while True:
        for name, stream in streams.items():
            (folder / name).write_bytes(next(stream))
            problem = ""
            with limits() as start:
                start()
                try:
                    known[name][1](folder / name)
                except DseError as error:
                    problem = "" if str(error).strip() else "an error without words"
                except BaseException as error:
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    problem = f"{type(error).__name__}: {error}"
            if problem:
                kept = (
                    Path(tempfile.gettempdir()) / f"fault_{place.chance.randrange(10**6)}_{name}"
                )
                shutil.copy(folder / name, kept)
                problem = f"{problem} ({kept})"
            yield name, problem


def large(place: Workplace) -> Iterator[Try]:
    """A table of a million rows, and a trace of ten million events."""
    rows = place.new().with_suffix(".csv")
    with rows.open("w") as file:
        file.write("m,n,k,dtype,time_us\n")
        for at in range(10**6):
            file.write(f"{1 + at % 4096},{1 + at // 4096},512,bf16,{1 + at % 97}\n")
    yield "10^6 rows", read_or_refuse(read_measurements, rows)
    trace = place.new().with_suffix(".json")
    with trace.open("w") as file:
        file.write('{"traceEvents":[')
        for at in range(10**7):
            file.write("," if at else "")
            file.write(
                f'{{"ph":"X","cat":"cpu_op","name":"op{at % 100}","pid":1,"tid":1,"ts":{at},'
                '"dur":1}'
            )
        file.write("]}")
    yield "10^7 events", read_or_refuse(read_kineto, trace)


def read_or_refuse(read: Callable[[Path], object], path: Path) -> str:
    start_s = time.monotonic()
    try:
        read(path)
    except DseError as error:
        print(f"  {path.name}: refused: {str(error)[:150]}")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    size_mib, took_s = path.stat().st_size / 2**20, time.monotonic() - start_s
    print(f"  {path.name}: {size_mib:.0f} MiB in {took_s:.0f} s")
    return ""


FAULTS: dict[str, Callable[[Workplace], Iterator[Try]]] = {
    "pairs": pairs,
    "kills": kills,
    "interrupts": interrupts,
    "ranks": ranks,
    "surroundings": surroundings,
    "damage": damage,
    "files": files,
    "extremes": extremes,
    "ray": ray_kills,
    "large": large,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0, help="for all faults together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help=f"out of {', '.join(FAULTS)}")
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    left_out = {name for name in ("ray", "large") if not getattr(options, name)}
    if find_spec("torch") is None:
        left_out.add("ranks")
    chosen = options.only.split(",") if options.only else [n for n in FAULTS if n not in left_out]
    broken_in_all = 0
    with tempfile.TemporaryDirectory() as folder:
        place = prepare(Path(folder), options.seed)
        print(f"{'fault':<12}{'tried':>8}{'clean':>8}{'broken':>8}", flush=True)
        for name in chosen:
            until_s = time.monotonic() + options.seconds / len(chosen)
            tried = 0
            problems = []
            for what, problem in FAULTS[name](place):
                tried += 1
                if problem:
                    problems.append(f"{what}: {problem}")
                if time.monotonic() > until_s:
                    break
            broken_in_all += len(problems)
            print(f"{name:<12}{tried:>8}{tried - len(problems):>8}{len(problems):>8}", flush=True)
            for problem in problems[:10]:
                print(f"  {problem[:300]}")
    return 1 if broken_in_all else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
