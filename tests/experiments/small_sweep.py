"""A sweep whose cells cost nothing: its jobs, the function that computes them, and a program for tests to kill.

It imports little, so that the processes which tests start begin fast.
"""

import os
import random
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from because_rl.experiments.grid import runner
from because_rl.experiments.grid.runner import Job, cell_file, read_cell, sweep, work
from because_rl.io import read_json, write_json

SEEDS, SCENES = [0, 1], 8


def small_jobs(count):
    """`count` jobs of two cells each: seven methods, as many datasets as it takes, splits I and O."""
    return [
        Job(
            f"tiny-{n:04}",
            {
                f"tiny-{n:04}-{split}": {"label": f"m{n % 7}", "dataset": f"because/walk-d{n // 7}-v1", "split": split}
                | {"recipe": {"world": "walk", "behaviour": f"d{n // 7}"}}
                | {"seeds": SEEDS, "episodes": SCENES, "spurious": 1}
                for split in ("I", "O")
            },
        )
        for n in range(count)
    ]


@dataclass(frozen=True)
class SmallCompute:
    """Computes cells. Logs each key that it is asked for, with AGAIN if that cell was finished already."""

    folder: Path
    pause: float = 0.0

    def __call__(self, job, missing):
        for key in missing:
            self.log(key + (" AGAIN" if cell_file(self.folder, key).exists() else ""))
            time.sleep(self.pause)
            yield key, self.result(key)

    def result(self, key):
        rng = random.Random(key)
        outcomes = ["".join(rng.choice("01") for _ in range(SCENES)) for _ in SEEDS]
        return {"per_seed": [o.count("1") / SCENES for o in outcomes], "steps": rng.random(), "outcomes": outcomes}

    def tidy(self, jobs, folder):
        pass

    def log(self, line):
        with open(self.folder.with_suffix(".log"), "a") as log:
            log.write(line + "\n")

    def lines(self):
        return self.folder.with_suffix(".log").read_text().splitlines()


@dataclass(frozen=True)
class Deadly(SmallCompute):
    """Kills its worker once at the first job and always at the third."""

    def __call__(self, job, missing):
        self.log(job.key)
        if job.key == "tiny-0002" or (job.key == "tiny-0000" and self.lines().count(job.key) == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        for key in missing:
            yield key, self.result(key)


JaxRuntimeError = type("JaxRuntimeError", (RuntimeError,), {})
FULL = JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4.36GiB")
ABSENT = RuntimeError("Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform CUDA")


@dataclass(frozen=True)
class Crowded(SmallCompute):
    """Its device fails in the second cell of the first two jobs: `times` times each."""

    times: int = 1

    def __call__(self, job, missing):
        for key in missing:
            self.log(f"{key} {os.getpid()}")
            error = {"tiny-0000-O": FULL, "tiny-0001-O": ABSENT}.get(key)
            if error and len([line for line in self.lines() if line.startswith(key)]) <= self.times:
                raise error
            yield key, self.result(key)


def main(folder, workers, count, pause):
    status = sweep(small_jobs(int(count)), SmallCompute(Path(folder), float(pause)), Path(folder), workers=int(workers))
    assert (status.done, status.failed) == (status.total, 0)


def share(folder, workers, rounds):
    """Fork workers that all go through the same rounds: take jobs, replace one file, and read what others wrote."""
    folder, workers, rounds = Path(folder), int(workers), int(rounds)
    runner.POLL_SECONDS = 0.01
    children = []
    for worker in range(workers):
        if (child := os.fork()) == 0:
            code = 1
            try:
                share_as(worker, folder, workers, rounds)
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))


def share_as(worker, folder, workers, rounds):
    jobs, compute, table = small_jobs(workers * rounds), SmallCompute(folder), folder / "table.json"
    for n in range(rounds):
        work(jobs[n * workers : (n + 1) * workers], compute, folder)
        write_json(table, {"rows": [[worker, n]] * 1000})
        row, *others = read_json(table)["rows"]
        assert others == [row] * 999, "a torn read"
        for job in jobs[max(0, n - 1) * workers : (n + 1) * workers]:
            for key, head in job.cells.items():
                assert read_cell(cell_file(folder, key)) == compute.result(key) | head, "another cell"


if __name__ == "__main__":
    {"share": share}.get(sys.argv[1], main)(*sys.argv[1 + (sys.argv[1] == "share") :])
