"""What training jobs print: a record a line as JSON, as a printed dict, or as names and numbers.

`name: 1.5`, `name=1.5` and `name 1.5` are read wherever they stand in a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Set
from functools import lru_cache
from typing import Final

from spikeguard_replay import names
from spikeguard_replay.log import Table, number_of
from spikeguard_replay.objects import SUMMARY, flat

LONGEST: Final = 20_000  # characters of a line that are looked at
WRAPPERS: Final = (  # of a line, in JSON
    *("log", "textPayload", "message", "MESSAGE", "msg", "Body", "body", "line"),
)
Record = dict[str, object]

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f]")
_UP: Final = "\x1b[A"  # the cursor, a line
_CLOCK = re.compile(
    r"\b\d{2,4}[-/]\d{1,2}[-/]\d{2,4}[ T,]{1,2}\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\b\d{1,2}/\d{1,2} \d{2}:\d{2}:\d{2}\b|\b\d{4}-\d{2}-\d{2}\b"
    r"|\b[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d{2}:\d{2}:\d{2}(?: [A-Z]{3,4})? \d{4}\b"
    r"|\b\w+\.(?:py|cc|cpp):\d+|\b\d{1,3}:\d{2}(?::\d{2}(?:[.,]\d+)?|(?=[<,\]\s]))"
    r"|\b[Cc]ost\w*\W{1,3}[\d.]+ ?s(?:ec(?:ond)?s?)?\b"
)
_CALL = re.compile(r"\b(?:tensor|Array|(?:np|numpy|jnp|torch)\.\w+)\(")
_NUMBER = re.compile(
    r"(?<![\w.])([-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?!_)"
    r"(?:(\s*/\s*\d[\d,]*(?![\w.]*[A-Za-z]))|([A-Za-z%/µ][^\s,;|)\]}\"']*))?"
    r"|(?<![\w.])([-+]?(?:nan|inf(?:inity)?))(?!\w)",
    re.IGNORECASE,
)
_IN_NAME = re.compile(r"\)\s*[:=]\s*[-+.\d]")  # as in `optim/LR (group 0)=0.1`
_NAME_AFTER = re.compile(r"\s?(tok(?:en)?s?/s(?:ec)?\b|(?:(?:avg )?loss|LR)(?=,))")
_RANK = re.compile(  # of torchrun, of mpirun
    r"\s*(?:\[?(?:rank|default)[ _=]?|\[\d+,(?=\d+\]<))(\d{1,6})\]?(?:<\w+>)?:?"
)
_HELD_OUT = re.compile(
    r"(?:(?!loss|train).)*\b(?:valid|validat\w+|evaluat\w+|eval|val(?=\s*[-:\]]|\s+loss))\b"
    r"|\W*test\s*:|.*epoch results:",
    re.IGNORECASE,
)
_PREFIX = re.compile(r"\s*(\d{1,9})(?::| \|)?(?=\s)")
_OVERFLOW = re.compile(r"overflow.*(?:skipping|ignoring|loss scale)", re.IGNORECASE)
_CUT = re.compile(r"[|,;\uff0c\uff1b}[\n]|\. |(?<!=)\{| - |:|> ")
_IS_LOSS = re.compile(r"loss$", re.IGNORECASE)
_TITLE = re.compile(r"^#$|[^\W\d]")
_EDGES: Final = ("|", "│", "┃")
_EDGE = re.compile("[|│┃]")
_BAR = re.compile(r":\s+\d+%\|")  # of progress, behind a row of a table
_IS = re.compile(r"\s(?:is|was|are)$")
_LEVEL = re.compile(r"^.*\b(?:DEBUG|INFO|WARNING|WARN)\b")
_SCALE = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12, "ms": 1e-3}


@lru_cache(maxsize=4096)
def _name(before: str) -> str:
    """The name that the text before a number gives it; empty for none."""
    text = _CUT.split(_IS.sub("", before.rstrip(" \t:\uff1a=|[({\"'`")))[-1]
    text = _LEVEL.sub("", text).strip(" \t)]}[({.*#=\"'`-~")
    text += ")" * (text.count("(") - text.count(")"))
    return " ".join(text.split()) if any(map(str.isalpha, text)) and len(text) <= 80 else ""


def pairs_in(line: str) -> Record:
    """The names and numbers of a line."""
    if "tensor(" in line or "np." in line or "Array(" in line:
        line = _CALL.sub("", line)
    found: Record = {}
    end, last = 0, ""  # where the number before ended; its name, if it may be the step of a loss
    for match in _NUMBER.finditer(line):
        digits, fraction, unit, odd = match.groups()
        if (odd and not _stands_for_a_value(line, match)) or _IN_NAME.match(line, match.end()):
            continue
        name = _name(line[end : match.start()])
        before, end = end, match.end()
        if not name:
            if fraction:
                name = names.PROGRESS
            elif line[end : end + 1] == "]":
                name = names.BRACKETS
            elif names.PROGRESS in found and line[before : match.start()].strip() == ":":
                name = "value"  # as in `100/ 2000: 2.5`
            elif last and line[before : match.start()].isspace() and "." in (digits or ""):
                found[names.PROGRESS], name = found.pop(last), last  # as in `Train loss 100 2.5`
            elif after := _NAME_AFTER.match(unit or line[end : end + 12]):
                name = after[1]
        last = name if name and not odd and digits.isdecimal() and _IS_LOSS.search(name) else ""
        if name and name not in found:
            value = float((odd or digits).replace(",", ""))
            found[name] = round(value * _SCALE[unit], 9) if unit in _SCALE else value
    return found


def _stands_for_a_value(line: str, word: re.Match[str]) -> bool:
    """Whether `nan` or `inf` is a value, not part of a name as in `number of nan iterations`."""
    after = line[word.end() : word.end() + 2]
    before = line[: word.start()].rstrip(" '\"([")
    named = before[-1:] in (":", "=") or _IS.search(before) is not None
    return named or not (after[:1] == " " and after[1:].isalpha())


class LineReader:
    """Puts the lines of a console together to rows."""

    def __init__(self) -> None:
        self.table = Table()
        self.objects = 0  # lines that were a JSON object
        self._broken: list[int] = []  # lines that are cut off
        self._names: Set[str] = frozenset()  # of the newest row
        self._open: dict[object, tuple[int, Record]] = {}  # by rank: rows that may go on
        self._listed: dict[object, bool] = {}  # by rank: whether its row has had a name a line
        self._titles: dict[int, list[str]] = {}  # of the newest table of so many columns
        self._above: list[str] = []  # the titles in the line above, in bars
        self._epoch: object = None  # of a line of its own, for those that follow
        self._bar: object = None  # where a progress bar stands
        self._overflows = 0  # of a loss scaler so far

    def read(self, lines: Iterable[str]) -> Table:
        """All rows of `lines`."""
        number, line = 0, "\n"
        for number, line in enumerate(lines, start=1):
            self._line(number, line)
        if not line.endswith("\n"):
            for rank, (at, record) in list(self._open.items()):
                if at == number and record.keys() < self._names:  # it says less than the row before
                    del self._open[rank]
                    self._broken.append(at)
        for rank in list(self._open):
            self._close(rank)
        self.table.tell_left_out(self._broken, number, "that are no JSON")
        return self.table

    def _line(self, number: int, line: str) -> None:
        if line[:1] == "{" and self._object(number, line):
            return
        line = line.rstrip()
        if _UP in line:  # bars below one another: what follows stands in another line
            for part in line.split(_UP):
                self._line(number, part)
            return
        if not line.isprintable():
            line = _CONTROL.sub("", line.replace("\t", "  "))
        if row := self._row(line[:LONGEST]):
            self._take(number, line, None, {}, row)
            return
        rank: object = None
        record: Record = {}
        for pattern, name in ((_RANK, names.RANK), (_PREFIX, names.PREFIX)):
            if prefix := pattern.match(line):
                rank, line = int(prefix[1]), line[prefix.end() :]
                record[name] = rank
                break
        if ("verflow" in line or "VERFLOW" in line) and (overflow := _OVERFLOW.search(line)):
            line = line[: overflow.start()]
            self._overflows += 1
        said = _said(line[:LONGEST])
        if said:
            self._take(number, line, rank, record, said)

    def _row(self, line: str) -> Record:
        """The cells of a line under the titles of a table, as spaCy, YOLO and MATLAB print it."""
        if in_bars := line.lstrip()[:1] in _EDGES:
            cells = words = [one.strip() for one in _EDGE.split(line.strip()[1:-1])]
        else:
            words = _BAR.split(line)[0].split()
            cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        text = sum(number_of(word) is None for word in words)
        above, self._above = self._above, []
        if text < len(words) if in_bars else text <= (len(words) > 2):
            titles = self._titles.get(len(words), ())
            return dict(zip(titles, words, strict=False))
        goes_on = in_bars and len(above) == len(cells)  # titles may go on in the line below
        titled = [bool(_TITLE.search(cell)) for cell in cells]
        if len(cells) > 1 and text == len(words) and (any(titled) if goes_on else all(titled)):
            if goes_on:
                cells = [f"{one} {cell}".strip() for one, cell in zip(above, cells, strict=True)]
            self._above = self._titles[len(cells)] = cells
        return {}

    def _take(self, number: int, line: str, rank: object, record: Record, said: Record) -> None:
        held = self._open.get(rank)
        alone = len(said) == 1 and names.PROGRESS not in said
        goes_on = line[0] in " \t" or (alone and self._listed.get(rank, False))
        if held is not None and goes_on and not held[1].keys() & {*said, names.EVALUATION}:
            held[1].update(said)
            return
        self._listed[rank] = alone
        self._close(rank)
        only = next(iter(said)) if len(said) == 1 else ""
        if only.lower() == names.EPOCH:
            self._epoch = said[only]
        elif "%|" in line and not line.lstrip().startswith("{"):
            self._bar = said.get(names.PROGRESS, self._bar)
        if self._epoch is not None and not any(name.lower() == names.EPOCH for name in said):
            record[names.EPOCH] = self._epoch
        if self._bar is not None and names.PROGRESS not in said:
            record[names.PROGRESS] = self._bar
        if self._overflows:
            record[names.OVERFLOW] = self._overflows
        if _HELD_OUT.match(line):
            record[names.EVALUATION] = "valid"
        self._open[rank] = (number, record | said)

    def _close(self, rank: object) -> None:
        if held := self._open.pop(rank, None):
            self.table.add(*held)
            self._names = held[1].keys()

    def _object(self, number: int, line: str) -> bool:
        """Whether the line is, or ought to be, a JSON object."""
        cells = _object_in(line)
        if cells is None:
            if self.objects == 0 or not line.startswith('{"'):
                return False
            self._broken.append(number)
            return True
        self.objects += 1
        text = next((cells[name] for name in WRAPPERS if isinstance(cells.get(name), str)), None)
        if text is not None and all(
            names.LOGGERS.search(names.canonical(name))
            for name, value in cells.items()
            if isinstance(value, int | float)
        ):
            self._line(number, str(text))
        elif SUMMARY not in cells:
            self.table.add(number, cells)
        return True


def _said(line: str) -> Record:
    if '{"' in line:
        cells = _object_in(line[line.index('{"') : line.rfind("}") + 1])
        if cells is not None:
            return cells
    return pairs_in(_CLOCK.sub("|", line))


def _object_in(text: str) -> Record | None:
    """The cells of a JSON object; None where `text` is none."""
    try:
        return dict(flat(json.loads(text)))
    except (AttributeError, ValueError, RecursionError):
        return None
