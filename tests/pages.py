"""Runs the blocks of the documentation's pages: `python -m tests.pages [PAGE ...]`, which is `make docs-check`.

A block without a mark holds commands, which run one after the other in a folder of the page's own. A comment before a
block says otherwise:

    <!-- output -->             each line was said by commands above it; figures and digests may differ
    <!-- file NAME -->          is written to this file
    <!-- json KIND -->          fields of a run, or of its part of this name; the normal tests validate them
    <!-- together -->           each line is a process, and all end well
    <!-- until TEXT -->         is started, and goes on once it has said this
    <!-- python FILE MODULE --> runs at two ranks, in the place of `BLOCK` in this file, where MODULE is installed
    <!-- test PATH -->          is run by this test
    <!-- not run: REASON -->    cannot be run here
    <!-- hidden LINES -->       commands that the page does not show, such as functions of pages.sh
    <!-- replace A => B -->     below, B is run in the place of A; $PORT is a free port
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).parent.parent
PROGRAMS = {"python": "", "rankdad": "-m rankdad", "torchrun": "-m torch.distributed.run"}
VARIES = re.compile(r"[0-9a-f]{16}|[\d.,]*\d")  # figures, seconds and digests, of another processor
KINDS = ("", "output", "file", "json", "together", "until", "python", "test", "not run:", "hidden")
MARK = re.compile(rf"({'|'.join(kind for kind in (*KINDS, 'replace') if kind)})[ \n]*(.*)", re.DOTALL)
LONGEST = 1200  # seconds of a page
BESIDE = {"docs/how-to/nvflare.md": "tests/engines/test_page.py"}  # pages of which a test of their own runs all


@dataclass(frozen=True)
class Block:
    """What a page shows in monospaced letters.

    Args:
        page: its path from the repository's root.
        line: where it begins.
        kind: of its mark, one of `KINDS`.
        rest: of its mark.
        text: without its indentation.
    """

    page: str
    line: int
    kind: str
    rest: str
    text: str


def written() -> list[str]:
    """Return the pages that people write."""
    listed = subprocess.run(["git", "ls-files", "docs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    made = ("docs/evidence/", "docs/paper/", "docs/reference/spec.md")
    return ["README.md", *(name for name in listed.split() if name.endswith(".md") and not name.startswith(made))]


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page, and its hidden commands, in their order."""
    lines = [*(ROOT / page).read_text(encoding="utf-8").splitlines(), "end"]
    mark, place = ("", ""), 0
    while place < len(lines):
        line = lines[place]
        if line.lstrip().startswith("<!--"):
            begin = place
            while "-->" not in lines[place]:
                place += 1
            comment = "\n".join(lines[begin : place + 1]).strip().removeprefix("<!--").removesuffix("-->").strip()
            found = MARK.fullmatch(comment)
            if found and found[1] in ("hidden", "replace"):
                yield Block(page, begin + 1, found[1], found[2], textwrap.dedent(found[2]) + "\n")
            elif found:
                mark = (found[1], found[2])
        elif line.startswith("```") or (line.startswith("    ") and not lines[place - 1].strip()):
            begin = place
            if line.startswith("```"):
                place = lines.index("```", place + 1)
                body = lines[begin + 1 : place]
            else:
                while lines[place].startswith("    ") or not lines[place].strip():
                    place += 1
                body, place = lines[begin:place], place - 1
            if "{toctree}" not in line:
                yield Block(page, begin + 1, *mark, textwrap.dedent("\n".join(body)).strip("\n") + "\n")
            mark = ("", "")
        elif line.strip():
            mark = ("", "")
        place += 1


def programs(folder: Path) -> str:
    """Write what the pages' commands are called, and return a PATH that begins with them."""
    folder.mkdir()
    for program, words in PROGRAMS.items():
        (folder / program).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (folder / program).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def unsaid(shown: str, said: list[str]) -> list[str]:
    """Return the lines of a page's output that nobody has said."""
    known = {VARIES.sub("0", " ".join(line.split())) for text in said for line in text.splitlines()}
    together = " ".join(" ".join(text.split()) for text in said)  # a long line may be folded on the page
    lines = [line for line in shown.splitlines() if line.strip()]
    folded = VARIES.sub("0", " ".join(shown.split()))
    if folded in VARIES.sub("0", together):
        return []
    return [line for line in lines if not any(_same(line, other) for other in known)]


def _same(shown: str, said: str) -> bool:
    parts = VARIES.sub("0", " ".join(shown.split())).split("…")
    return re.fullmatch(".*".join(map(re.escape, parts)), said) is not None


def script(page: str, folder: Path, port: int) -> tuple[str, list[tuple[int, Block, str]]]:
    """Return a page's commands as one script, and of each block of it the result that is known beforehand, if any."""
    lines, results = ["set -e", f". {ROOT}/tests/pages.sh"], []
    replaced = {"$PORT": str(port)}
    for number, block in enumerate(blocks(page)):
        text, said = block.text, folder / f"{number}.said"
        if block.kind == "replace":
            old, new = map(str.strip, block.rest.split("=>"))
            replaced = {old: new} | replaced
            continue
        for old, new in replaced.items():
            text = text.replace(old, new)
        known = ""
        if page in BESIDE or block.kind in ("json", "test", "not run:"):
            known = f"test {BESIDE[page]}" if page in BESIDE else f"{block.kind} {block.rest}"
        elif block.kind == "python" and find_spec(module := block.rest.split()[1]) is None:
            known = f"not run: {module} is not installed"
        elif block.kind != "output":
            lines += [f"exec >{said} 2>&1", *_commands(block, text, said), f"touch {folder}/{number}.done"]
        results.append((number, replace(block, text=text), known))
    return "\n".join(lines) + "\n", results


def _commands(block: Block, text: str, said: Path) -> list[str]:
    match block.kind:
        case "file":
            return [f"mkdir -p $(dirname {block.rest})", f"cat >{block.rest} <<'END OF FILE'", text + "END OF FILE"]
        case "python":
            context = (ROOT / block.rest.split()[0]).read_text(encoding="utf-8")
            found = re.search("^( *)# BLOCK\n", context, re.MULTILINE)
            assert found is not None
            ranks = re.search(r"^RANKS = (\d)$", context, re.MULTILINE)
            whole = context.replace(found[0], textwrap.indent(text, found[1]))
            return [
                "cat >context.py <<'END OF FILE'",
                whole + "END OF FILE",
                f"torchrun --standalone --nproc-per-node {ranks[1] if ranks else 2} context.py",
            ]
        case "together":
            started = [line for line in text.replace("\\\n", "").splitlines() if line.strip()]
            own = [
                f"( {line.partition('  #')[0]} ) >{said}.{place} 2>&1 & own{place}=$!"
                for place, line in enumerate(started)
            ]
            return [*own, *(f"wait $own{place}" for place in range(len(started))), f"cat {said}.*"]
        case "until":
            return [f"{{ {text.rstrip()}\n}} >{said} 2>&1 &", f"wait_for {said} '{block.rest}'"]
        case _:
            return [text]


def followed(page: str, folder: Path) -> list[tuple[Block, str]]:
    """Run a page's commands, and return each block with its result: `passed`, why it was not run, or what is wrong."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    own, work = folder / "said", folder / "work"
    own.mkdir()
    work.mkdir()
    for name in ("simulations", "docs", "docker", "examples"):
        (work / name).symlink_to(ROOT / name)
    text, results = script(page, own, port)
    (folder / "script").write_text(text)
    environment = os.environ | {
        **{"PATH": programs(folder / "programs"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        **{"COLUMNS": "120", "HOME": str(folder), "PORT": str(port), "TERM": "dumb"},
    }
    process = subprocess.Popen(
        ["bash", str(folder / "script")],
        cwd=work,
        env=environment,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )
    try:
        process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        pass
    finally:
        try:
            os.killpg(process.pid, signal.SIGTERM)  # what it has started and left
            process.wait(20)
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    said: list[str] = []
    found = []
    for number, block, known in results:
        found.append((block, known or _result(block, own / f"{number}.done", own / f"{number}.said", said)))
        said += [path.read_text(errors="replace") for path in own.glob(f"{number}.said*")]
    return found


def _result(block: Block, done: Path, own: Path, said: list[str]) -> str:
    if block.kind == "output":
        missing = unsaid(block.text, said)
        near = get_close_matches(missing[0], "\n".join(said).splitlines(), 1, 0.3) if missing else []
        return f"FAILED: nobody said {missing[0]!r}, but {near}" if missing else "passed"
    if done.exists():
        return "passed"
    last = own.read_text(errors="replace").strip().splitlines()[-6:] if own.exists() else ["not reached"]
    return "FAILED: " + " / ".join(last)


def fields(text: str) -> dict[str, Any]:
    """Return what a block of JSON says, which may be some lines of an object."""
    text = text.strip()
    found: dict[str, Any] = json.loads(text if text.startswith("{") else "{" + text.rstrip(",") + "}")
    return found


def main(pages: list[str]) -> int:
    """Print each block with its result, and return how many failed."""
    failed, counts = 0, dict.fromkeys(("passed", "not run", "test", "json"), 0)
    for page in pages or written():
        began = monotonic()
        with tempfile.TemporaryDirectory(prefix="page-") as name:
            for block, result in followed(page, Path(name)):
                failed += result.startswith("FAILED")
                for kind in counts:
                    counts[kind] += result.startswith(kind)
                print(f"{page}:{block.line}\t{result}", flush=True)
            if "--keep" in sys.argv:
                shutil.copytree(name, f"kept-{Path(page).stem}", symlinks=True)
        print(f"{page}\t{monotonic() - began:.0f} s", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()) + f", {failed} failed")
    return failed


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what it has started ends, too
    sys.exit(bool(main([word for word in sys.argv[1:] if not word.startswith("--")])))
