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
MEANINGS = {  # of codes whose sentences are made up at run time
    "architecture-unsuitable": "transformers cannot build the architecture of this configuration: correct it",
    "cell": "a cell that cannot be used, with its row and column: correct it, or leave the row out",
    "column-not-allowed": "the run reads columns that the policy does not list: list or leave them out",
    "columns-disagree": "the columns of the data contradict each other: correct data in the specification",
    "columns-of-too-few": "a column's numbers would be of fewer rows than the policy allows: see the change it names",
    "error": "a site or region failed without a code of its own: read its log",
    "factory-raised": "the model's function raised an error: correct model.arguments, or the function",
    "file-not-allowed": "the run reads files that the policy does not list: list them in files, or read others",
    "form-refused": "the form of a consortium has mistakes, one a line: correct these fields",
    "free-text": "a column holds free text: leave it out, or read it as texts (data.reader)",
    "identifier-shortened": "identifiers have lost their leading zeros: export the table with the column as text",
    "invalid": "a field of the form cannot be used: correct it as the sentence says",
    "linear-needs-samples": "an exact solution would tell of too few rows: use steps, or more rows",
    "member-failed": "what a member sent cannot be read: read the log of its container",
    "message-too-large": "the engine drops a message of this size: raise its limit, or send fewer rows",
    "mixed-column": "a column has numbers and words: write it in one way, or leave it out",
    "names-rows": "a column seems to name rows, such as an identifier: leave it out, or use it as the key",
    "no-step": "a run's file has no step yet: wait for the first one",
    "package-missing": "the aggregator has no package for curves: install the extra page there",
    "rank-failed": "a rank of LowRank, or of the hook, has failed: see its own error",
    "sample-changed": "a picture or volume has vanished or changed while a run trains: restore it, the others wait",
    "picture-unusable": "a picture cannot be used: replace it, or leave its row out",
    "policy-refuses": "the run asks for more than the policy allows: change the run, or the line that it names",
    "preparation-impossible": "the rows leave nothing to train on or to prepare: see rows and evaluation",
    "rank-ended": "a process of the run ended: read what it said last, and start the run again",
    "record-damaged": "a run's file is damaged or incomplete: see `rankdad check-run DIR`, or restore a backup",
    "refused": "what answered at the address refused the request: read its sentence, and the host's audit log",
    "region-stopped": "a region's aggregator ended: start it again",
    "rounds-differ": "the members are in different rounds: start the run again",
    "run-failed": "the run ended because of a site or the aggregator: the sentence names which and why",
    "site-failed": "a site failed: read its log",
    "spec-invalid": "the specification has mistakes, one a line: correct these fields",
    "step-of-too-many-numbers": "a step would hold as many numbers as its rows: use a smaller model, or larger batches",
    "steps-of-all-repeated": "steps of all rows would be repeated too often: fewer epochs, or smaller batches",
    "steps-of-too-few": "a step would be of fewer rows than the policy allows: larger batches, or another policy",
    "sums-of-too-few": "a sum would be of fewer rows than the policy allows: another evaluation, or another policy",
    "texts-too-short": "the texts are short, so all possible ones can be tried: read a table's column instead",
    "too-many-values": "a column of words has too many values: leave it out, or join some of them",
    "unexpected-error": "an error of the program: its log has the traceback; please report it",
    "weights-hardly-move": "steps at nearly the same weights would add up: a larger learning rate, or fewer epochs",
    "worker-killed": "a process that reads ahead was killed, often for memory: fewer workers, or a smaller cache",
}
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


Known = list[tuple[int, str, ast.expr]]  # line, name and value of what a function assigns


def templates(node: ast.expr | None, known: Known) -> list[str]:
    """Return the sentences that an expression may be, with … for what is known only at run time."""
    if isinstance(node, ast.IfExp):
        return templates(node.body, known) + templates(node.orelse, known)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(_part(part, known) for part in node.values)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [left + right for left in templates(node.left, known) for right in templates(node.right, known)]
    if isinstance(node, ast.Name):
        before = [place for place in known if place[1] == node.id and place[0] < node.lineno]
        if before:
            line, _, value = max(before, key=lambda place: place[0])
            return templates(value, [place for place in known if place[0] < line])
    return ["…"]


def _part(part: ast.expr, known: Known) -> str:
    """Return a part of an f-string: a name's text if that is a sentence, else …."""
    if isinstance(part, ast.FormattedValue):
        found = templates(part.value, known) if isinstance(part.value, ast.Name) else ["…"]
        return found[0] if " " in found[0] else "…"
    return templates(part, known)[0]


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
    assigned = {id(function): [*_assigned(function)] for function in functions}
    for tree in trees:
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            known = assigned.get(id(inner.get(id(call))), [])
            name = name_of(call)
            codes = [code for keyword in call.keywords if keyword.arg == "code" for code in constants(keyword.value)]
            place = places.get(name, len(call.args))
            codes += constants(call.args[place]) if place < len(call.args) else []
            given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg in ("problem", "reason"))]
            if name in SENTENCE_AT:
                given = given[SENTENCE_AT[name] :][:1]
            choices = ([text for text in templates(node, known) if " " in text.strip("… :")] for node in given)
            said = next(filter(None, choices), [""])
            if len(codes) == len(said):
                yield from zip(codes, said, strict=True)
            else:
                yield from ((code, text) for code in codes for text in said)
            if name == BY_FIELD:
                yield from ((BY_FIELD, text) for text in said)


def _assigned(function: Functions) -> Iterator[tuple[int, str, ast.expr]]:
    """Yield what a function assigns to names, and in which line."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.lineno, node.targets[0].id, node.value


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
    lines = {(code, said) for code, all_said in found.items() for said in (all_said - {""} or {MEANINGS.get(code, "")})}
    return "".join(sorted(f"{code}\t{said}".rstrip() + "\n" for code, said in lines if code != BY_FIELD or said))


if __name__ == "__main__":
    SNAPSHOT.write_text(sentences(), encoding="utf-8")
