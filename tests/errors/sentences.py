"""Every sentence that an error of the product says, by its code: what sentences.txt holds.

`python -m tests.errors.sentences` writes it anew; the difference is then read like any other change.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SNAPSHOT = Path(__file__).with_name("sentences.txt")
ROOMS = ("common", "distributed", "local", "page", "platforms", "rankdad", "remote", "simulations")
SENTENCE_AT = {  # among an error's arguments, where that is not the first text
    "SpecError": 1,
    "DataError": 1,
    "EncodingError": 1,
    "PolicyError": 1,
    "FewSamplesError": 1,
    "ProtocolError": 1,
    "RunFailedError": 1,
    "refusal": 1,
}
BY_FIELD = "ValueError"  # which `validate` names, with the code field-invalid
Functions = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> Iterator[Path]:
    """Yield the files of the product."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if not any(part.is_symlink() for part in path.parents if part != ROOT):
                yield path


def constants(node: ast.expr | None) -> list[str]:
    """Return the texts that an expression may be."""
    if isinstance(node, ast.IfExp):
        return constants(node.body) + constants(node.orelse)
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value else []


def name_of(call: ast.Call) -> str:
    """Return what is called."""
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def template(node: ast.expr | None, known: Mapping[str, ast.expr]) -> str:
    """Return a sentence with … for what is known only at run time.

    Args:
        node: that makes the sentence.
        known: what the function around it has assigned, by name.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part, known) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left, known) + template(node.right, known)
    if isinstance(node, ast.Name) and node.id in known:
        return template(known[node.id], {name: value for name, value in known.items() if name != node.id})
    return "…"


def raised() -> Iterator[tuple[str, str]]:
    """Yield each code that the product makes an error, a refusal or a warning with, and its sentence."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sources()]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, Functions)]
    places = dict[str, int]()  # of `code` among a function's arguments, where it is given by place
    for function in functions:
        names = [argument.arg for argument in function.args.args if argument.arg not in ("self", "cls")]
        if "code" in names and function.name != "__init__":
            places[function.name] = names.index("code")
        yield from ((code, "") for code in _defaults(function))
    inner = {id(node): function for function in functions for node in ast.walk(function)}
    assigned = {id(function): dict(_assigned(function)) for function in functions}
    for tree in trees:
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            known = assigned.get(id(inner.get(id(call))), {})
            name = name_of(call)
            codes = [code for keyword in call.keywords if keyword.arg == "code" for code in constants(keyword.value)]
            place = places.get(name, len(call.args))
            codes += constants(call.args[place]) if place < len(call.args) else []
            given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg in ("problem", "reason"))]
            if name in SENTENCE_AT:
                given = given[SENTENCE_AT[name] :][:1]
            said = next((text for node in given if " " in (text := template(node, known)).strip("… :")), "")
            yield from ((code, said) for code in (codes if name != BY_FIELD else [BY_FIELD]))


def _assigned(function: Functions) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a function assigns to names."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _defaults(function: Functions) -> Iterator[str]:
    """Yield the codes that a function takes where none is given."""
    given = function.args
    by_place = zip(reversed(given.args), reversed(given.defaults), strict=False)
    for argument, default in (*by_place, *zip(given.kwonlyargs, given.kw_defaults, strict=True)):
        if argument.arg == "code":
            yield from constants(default)


def sentences() -> str:
    """Return all codes and sentences, a line each: code, a tab, the sentence; a code without one stands alone."""
    found = dict[str, set[str]]()
    for code, said in raised():
        found.setdefault(code, set()).add(" ".join(said.split()))
    lines = {(code, said) for code, all_said in found.items() for said in (all_said - {""} or {""})}
    return "".join(sorted(f"{code}\t{said}".rstrip() + "\n" for code, said in lines if code != BY_FIELD or said))


if __name__ == "__main__":
    SNAPSHOT.write_text(sentences(), encoding="utf-8")
