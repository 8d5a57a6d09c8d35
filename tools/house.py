"""Figures of the house: how large it is, how its modules hang together, and what it costs to enter.

    tools/house.py                     this checkout
    tools/house.py --against 559e2ad   this checkout beside an earlier commit of it
    tools/house.py --tests             count test items, too, which imports all of them

CPU seconds are medians of seven turns, and mean something on a quiet machine only.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TURNS = 7
GENERATED = ("_pb2.py", "_pb2.pyi")
Imports = dict[str, set[str]]


def sources(tree: Path) -> list[Path]:
    """Return the modules that people write."""
    return sorted(path for path in (tree / "src").rglob("*.py") if not path.name.endswith(GENERATED))


def non_blank(tree: Path) -> int:
    """Return how many lines of source are not empty."""
    return sum(bool(line.strip()) for path in sources(tree) for line in path.read_text().splitlines())


def any_words(tree: Path) -> int:
    """Return how often the word ``Any`` stands in the source."""
    return sum(len(re.findall(r"\bAny\b", path.read_text())) for path in sources(tree))


def long_signatures(tree: Path) -> int:
    """Return how many functions name more than eight parameters."""
    return sum(len(_parameters(node)) > 8 for path in sources(tree) for node in _functions(path))


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = node.args
    return [each.arg for each in given.posonlyargs + given.args + given.kwonlyargs if each.arg not in ("self", "cls")]


def imports(tree: Path, *, at_import: bool) -> Imports:
    """Return which of our modules each one imports; ``at_import`` leaves out what is imported later or for types."""
    names = {_module(tree, path): path for path in sources(tree)}
    return {name: set(_imported(name, path, names, at_import)) - {name} for name, path in names.items()}


def _module(tree: Path, path: Path) -> str:
    parts = path.relative_to(tree / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(name: str, path: Path, names: dict[str, Path], at_import: bool) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in _statements(ast.parse(path.read_text()), at_import):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield from (found for found in (f"{base}.{alias.name}", base) if found in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)


def _statements(tree: ast.AST, at_import: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        is_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_for_types(node)
        if not (at_import and is_later):
            yield node
            yield from _statements(node, at_import)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def with_one_user(graph: Imports) -> int:
    """Return how many modules only one other one imports."""
    users: dict[str, int] = dict.fromkeys(graph, 0)
    for wanted in graph.values():
        for name in wanted:
            users[name] += 1
    return sum(count == 1 for count in users.values())


def longest_chain(graph: Imports) -> int:
    """Return how many modules the longest chain of imports has; there are no cycles, import-linter sees to that."""
    known: dict[str, int] = {}

    def depth(name: str, above: tuple[str, ...] = ()) -> int:
        if name not in known:
            below = [depth(other, (*above, name)) for other in graph[name] if other not in above]
            known[name] = 1 + max(below, default=0)
        return known[name]

    return max(map(depth, graph))


def public_names(tree: Path) -> set[str]:
    """Return what ``import holdfast`` offers."""
    code = "import holdfast; print(*holdfast.__all__)"
    return set(_run(tree, code).split())


def cpu_seconds(tree: Path, code: str, without: str = "") -> float:
    """Return the CPU time of a Python process that runs code, above that of one that runs something else."""
    return statistics.median(_cpu(tree, code) - (_cpu(tree, without) if without else 0.0) for _ in range(TURNS))


def _cpu(tree: Path, code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run(tree, code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _run(tree: Path, code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, cwd=tree, check=True, capture_output=True, text=True).stdout


def same_lines(tree: Path) -> str:
    """Return what the command ``duplicates`` says of the source, where there is one: pairs that share six lines."""
    command = shutil.which("duplicates")
    if command is None:
        return "-"
    asked = [command, "--repo", str(tree / "src"), "--most", "1", "--seconds", "120"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    counted = re.search(r"(\d[\d,]*) pairs?", found)
    return counted.group(1) if counted else "0"


def test_items(tree: Path) -> str:
    """Return how many tests are collected."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests"]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    found = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=False).stdout
    counted = re.search(r"(\d+)(?:/\d+)? tests? collected|(\d+) tests collected", found)
    return counted.group(1) if counted else "-"


def figures(tree: Path, *, has_tests: bool) -> dict[str, str]:
    """Return every figure with its name."""
    lines = non_blank(tree)
    whole, eager = imports(tree, at_import=False), imports(tree, at_import=True)
    alchemy, version = "import sqlalchemy", "from holdfast.cli.main import run_command; run_command(['--version'])"
    first_use = "from holdfast import Holdfast; Holdfast('sqlite:///no.db')"
    seconds: dict[str, Callable[[], float]] = {
        "import holdfast, CPU s above SQLAlchemy": lambda: cpu_seconds(tree, "import sqlalchemy, holdfast", alchemy),
        "first Holdfast(…), CPU s above SQLAlchemy": lambda: cpu_seconds(tree, f"{alchemy}; {first_use}", alchemy),
        "holdfast --version, CPU s": lambda: cpu_seconds(tree, f"{version}"),
    }
    loaded = f"{first_use}; import sys; print(sum(name.startswith('holdfast') for name in sys.modules))"
    found = {
        "non-blank source lines": f"{lines:,}",
        "modules": f"{len(sources(tree)):,}",
        "SQL files": str(len(list((tree / "src").rglob("sql/**/*.sql")))),
        "modules with one user": str(with_one_user(whole)),
        "longest import chain": str(longest_chain(eager)),
        "Any per thousand lines": f"{1000 * any_words(tree) / lines:.1f}",
        "functions with more than 8 parameters": str(long_signatures(tree)),
        "public names": str(len(public_names(tree))),
        "modules loaded by the first Holdfast(…)": _run(tree, loaded).strip(),
        "pairs of places that share six lines": same_lines(tree),
        **{name: f"{measure():.3f}" for name, measure in seconds.items()},
    }
    return found | ({"test items": test_items(tree)} if has_tests else {})


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Figures of the house, of this checkout and of an earlier commit.")
    parser.add_argument("--against", metavar="COMMIT", help="an earlier commit to set beside it")
    parser.add_argument("--tests", action="store_true", help="count test items, too")
    asked = parser.parse_args()
    now = figures(ROOT, has_tests=asked.tests)
    if asked.against is None:
        for name, value in now.items():
            print(f"{name:45} {value:>10}")
        return
    with tempfile.TemporaryDirectory() as directory:
        earlier = Path(directory) / "earlier"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(earlier), asked.against], check=True)
        try:
            before, gone = figures(earlier, has_tests=asked.tests), public_names(earlier) - public_names(ROOT)
        finally:
            subprocess.run([*git, "remove", "--force", str(earlier)], check=True)
    print(f"{'':45} {asked.against:>10} {'now':>10}")
    for name, value in now.items():
        print(f"{name:45} {before[name]:>10} {value:>10}")
    print(f"public names gone: {', '.join(sorted(gone)) or 'none'}")


if __name__ == "__main__":
    main()
