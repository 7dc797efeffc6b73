"""What `bilevax demo` shows: the method at work on the paper's two smallest problems, in under a minute."""

from __future__ import annotations

from pathlib import Path

from bilevax import __version__, rundir
from bilevax.experiments import completion, toy
from bilevax.files import write_whole
from bilevax.report.tables import markdown


def demo(folder: Path, *, seed: int = 0, steps: int = 1000, n: int = 250, progress: bool = True) -> str:
    """Run both, save runs and pictures under `folder`, and return what to print."""
    toys = {
        config: toy.run(config, progress=progress) for config in (toy.ToyConfig(1.0, 100), toy.ToyConfig(0.1, 1000))
    }
    config = completion.CompletionConfig(seed=seed, steps=steps, n=n)
    completed = completion.run(config, progress=progress)

    toy_rows = [row for key, results in toys.items() for row in toy.rows(key, results)]
    tables = f"{markdown(toy_rows)}\n\n{markdown(completion.rows(config, completed))}"
    pictures = []
    for key, results in toys.items():
        pictures.append(folder / f"toy-mu{key.mu_g:g}.png")
        toy.figure(key, results, pictures[-1])
        for name, result in results.items():
            result.save(folder / "runs" / f"toy-mu{key.mu_g:g}" / _slug(name))
    pictures.append(folder / "completion.png")
    completion.figure(completed, pictures[-1])
    for name, result in completed.items():
        result.save(folder / "runs" / "completion" / _slug(name))

    here = rundir.machine()
    text = f"# bilevax {__version__} demo, seed {seed}\n\n{tables}\n\n{_NOTE}\n"
    write_whole(folder / "table.md", lambda stream: stream.write(text))
    listed = "\n".join(f"  {p}" for p in [*pictures, folder / "table.md", folder / "runs"])
    where = f"Python {here['python']}, jax {here['versions']['jax']}, {here['cores']} cores"
    return f"\n{tables}\n\n{_NOTE}\n\n{where}. Saved:\n{listed}"


_NOTE = (
    'Rows "as printed" follow the paper to the letter. Its completion problem divides the data term by the number\n'
    "of observations: the optimum is then x = 0 up to a thousandth, and the better a solver is, the closer its\n"
    'normalized error comes to 1. With the data term as a sum the same data are completed; "our defaults" also\n'
    "start the adjoint at zero, warm it up, and take steps 2/(k+2) that need no horizon. Seconds count steps only;\n"
    "compilation stands apart."
)


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())
