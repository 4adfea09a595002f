"""Every sentence that an error of the product says, by its code: what sentences.txt holds.

`python -m tests.errors.sentences` writes it anew; the difference is then read like any other change.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SNAPSHOT = Path(__file__).with_name("sentences.txt")
ROOMS = ("common", "distributed", "local", "page", "platforms", "rankdad", "remote", "simulations")
SENTENCE_AT = {  # among an error's arguments
    "SpecError": 1,
    "DataError": 1,
    "EncodingError": 1,
    "PolicyError": 1,
    "FewSamplesError": 1,
    "ProtocolError": 1,
    "RunFailedError": 1,
    "UserError": 0,
    "RankdadError": 0,
    "UnreachableError": 0,
    "RefusedError": 0,
    "QueueError": 0,
    "InterruptedRunError": 0,
    "SimulationError": 0,
    "ValueError": 0,  # of a field, which `validate` names, with the code field-invalid
}


def sources() -> Iterator[Path]:
    """Yield the files of the product."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if not any(part.is_symlink() for part in path.parents if part != ROOT):
                yield path


def raised() -> Iterator[tuple[Path, ast.Call, str]]:
    """Yield where the product makes an error, and of what class."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SENTENCE_AT:
                yield path, node, node.func.id


def code_of(call: ast.Call) -> str:
    """Return the code that an error is made with; "" if that is another error's, or made up at run time."""
    for keyword in call.keywords:
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return ""


def template(node: ast.expr) -> str:
    """Return a sentence with … for what is known only at run time."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return "…"


def sentences() -> str:
    """Return all sentences, a line each: code, a tab, the sentence."""
    lines = set()
    for _, call, name in raised():
        at = SENTENCE_AT[name]
        said = template(call.args[at]) if len(call.args) > at else "…"
        code = name if name == "ValueError" else code_of(call)
        if code and said.strip("… :"):
            lines.add(f"{code}\t{' '.join(said.split())}\n")
    return "".join(sorted(lines))


if __name__ == "__main__":
    SNAPSHOT.write_text(sentences(), encoding="utf-8")
