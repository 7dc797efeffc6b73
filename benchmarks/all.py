"""Runs every benchmark, or those named, one after the other; figures go to benchmarks/results/.

    python benchmarks/all.py [NAME ...]

A script that fails does not stop the others. The exit code is the number of scripts that failed.
"""

import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
# The options that produce the figures we publish; scripts without an entry need none.
OPTIONS = {
    "auto": ["--quick", "--out", str(RESULTS / "auto")],
    "completion_ablation": ["--out", str(RESULTS / "completion.md")],
    "completion_peers": ["--data", "100k"],
    "completion_scale": ["--peer"],
}


def names():
    return sorted(path.stem for path in HERE.glob("*.py") if 'if __name__ == "__main__"' in path.read_text())


def main(asked):
    known = [name for name in names() if name not in ("all", "auto_page")]
    unknown = [name for name in asked if name not in known]
    if unknown:
        sys.exit(f"no benchmark is called {unknown[0]!r}; there are {', '.join(known)}.")
    RESULTS.mkdir(exist_ok=True)
    failed = []
    for name in asked or known:
        print(f"== {name}", flush=True)
        began = time.perf_counter()
        command = [sys.executable, str(HERE / f"{name}.py"), *OPTIONS.get(name, [])]
        command += ["--json", str(RESULTS / f"{name}.json")]
        if subprocess.run(command).returncode:
            failed.append(name)
        print(f"== {name}: {time.perf_counter() - began:.0f} s", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
