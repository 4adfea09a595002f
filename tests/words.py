"""Counts words: `python -m tests.words` prints how many each page has that people write.

It also writes words.txt anew: words that make a page hard to read, whose counts may only fall.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.pages import written

ROOT = Path(__file__).parent.parent
COUNTS = Path(__file__).with_name("words.txt")
EXEMPT = {"docs/style.md", "docs/reference/spec.md", "docs/paper/README.md"}  # the rules, and pages that are generated
PHRASES = (
    "whoever",
    "whatever",
    "wherever",
    "of which",
    "of whom",
    "is told",
    "are told",
    "stands in",
    "stand in",
    "goes on with",
    "come to grief",
    "as it stands",
    "that is to be",
    "what is to be",
    "for want of",
    "none of the run's",
    "does not matter",
    "says no word",
    "nothing of",
    "take note",
    "tell whether",
    "goes on",
    "of what",
    "told of",
    "likewise",
    "dealt out",
    "keeps back",
    "as it came",
    "the run stands",
    "log says more",
    "aggregator's own",
    "behind anything",
    "who is in",
    "could not go on",
    "what stands",
    "stands there",
    "somebody",
    "nobody",
    "of one's own",
    "is there already",
    "anew",
    "told apart",
    "stands for",
    "says so",
    "say so",
    "may be told",
)
WIDTH = 120  # characters of a line; tables and addresses may be longer


def pages() -> list[Path]:
    """Return the files of product and documentation that people read."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = (name for name in listed.split("\0") if name and name not in EXEMPT)
    rooms = ("tests/", "benchmarks/", "compspec", "CHANGELOG")
    return [
        ROOT / name for name in names if name.endswith((".py", ".md", ".html", ".js")) and not name.startswith(rooms)
    ]


def counts() -> dict[str, int]:
    """Return how often each phrase occurs, and how many lines of pages are too long."""
    texts = {path: path.read_text(encoding="utf-8") for path in pages() if not path.is_symlink()}
    patterns = {phrase: re.compile(rf"\b{phrase}\b".replace(" ", r"\s+"), re.IGNORECASE) for phrase in PHRASES}
    found = {phrase: sum(len(pattern.findall(text)) for text in texts.values()) for phrase, pattern in patterns.items()}
    prose = (line for path, text in texts.items() if path.suffix == ".md" for line in text.splitlines())
    found[f"lines over {WIDTH}"] = sum(len(line) > WIDTH and not line.startswith("|") for line in prose)
    return found


def known() -> dict[str, int]:
    """Return how often each may occur."""
    lines = (line.rpartition("\t") for line in COUNTS.read_text(encoding="utf-8").splitlines())
    return {phrase: int(count) for phrase, _, count in lines}


def by_page() -> dict[str, int]:
    """Return how many words each page has that people write: what has a letter or a digit, but no comment."""
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in written()}
    texts = {page: re.sub(r"<!--.*?-->|```{toctree}.*?```", "", text, flags=re.DOTALL) for page, text in texts.items()}
    return {page: sum(bool(re.search(r"\w", word)) for word in text.split()) for page, text in texts.items()}


if __name__ == "__main__":
    for page, count in sorted(by_page().items(), key=lambda pair: pair[1]):
        print(f"{count:6,} {page}")
    print(f"{sum(by_page().values()):6,}")
    COUNTS.write_text("".join(f"{phrase}\t{count}\n" for phrase, count in counts().items()), encoding="utf-8")
