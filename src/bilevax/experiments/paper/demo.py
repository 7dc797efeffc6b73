"""What `bilevax demo paper` shows: the methods of the paper on its two smallest problems, as printed and repaired."""

from __future__ import annotations

from pathlib import Path

from bilevax import __version__
from bilevax.drawing import figures
from bilevax.drawing.tables import markdown
from bilevax.experiments.paper import completion, completion_report, toy
from bilevax.experiments.paper.jobs import Options, Run, Runs
from bilevax.files import write_atomic
from bilevax.runs import run_directory

SECONDS = 5.0
"""The most one method may take on the completion problem."""


def demo(folder: Path, *, seed: int = 0, steps: int = 1000, n: int = 250, progress: bool = True) -> str:
    """Run both, save runs and pictures under `folder`, and return what to print."""
    options = Options(seed=seed, repeats=1, steps=steps, seconds=SECONDS, size=n)
    tables, saved = [], []
    for name, jobs, report in (
        ("toy", toy.jobs(options), toy.report),
        ("completion", completion.jobs("synthetic", options), lambda runs: completion_report.report("synthetic", runs)),
    ):
        runs = []
        for job in jobs:
            outcome = job.run(f"{job.folder}, {job.variant}: {job.method}" if progress else False)
            path = outcome.result.save(folder / "runs" / job.path, job.notes(outcome.extras))
            runs.append(Run(*run_directory.load(path)))
        made = report(Runs(runs))
        for picture in made.figures:
            saved.append(folder / f"{picture.name}.png")
            figures.save(picture.draw(), saved[-1])
        tables += [f"**{name}**\n\n{markdown(table.rows)}" for table in made.tables]

    body = "\n\n".join(tables)
    here = run_directory.machine()
    text = f"# bilevax {__version__} demo, seed {seed}\n\n{body}\n\n{_NOTE}\n"
    write_atomic(folder / "table.md", lambda stream: stream.write(text))
    listed = "\n".join(f"  {p}" for p in [*saved, folder / "table.md", folder / "runs"])
    where = f"Python {here['python']}, jax {here['versions']['jax']}, {here['cores']} cores"
    return f"\n{body}\n\n{_NOTE}\n\n{where}. Saved:\n{listed}"


_NOTE = (
    '"printed" follows the paper to the letter. Its completion problem divides the data term by the number of\n'
    "observations: the optimum is then x = 0 up to a thousandth, and the better a solver is, the closer its\n"
    'normalized error comes to 1. "repaired" takes the data term as a sum and steps that work: IBCG starts\n'
    "the adjoint at zero, warms it up and steps 2/(k+2); SBFW's estimator has the right mean; TTSA makes no\n"
    f"noise of its own. Each completion run stops after {SECONDS:g} s. Seconds count steps only; compilation is apart."
)
