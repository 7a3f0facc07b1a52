"""Worlds for optimizers of skill packages, with a true accuracy in closed form. Only the standard library is used.

They are the rule worlds (`rule_world.py`) for a text of several files: the document, then each file below a line
`==== path ====`. The agent reads the document. What else acts in a rollout is the truth of these worlds:

* A line of a reference acts if the agent reads the file. It does if the document sends it there for this kind of task
  (`- For K2 tasks: read references/k2.md`), up to a few times in a hundred.
* A script acts if the document sends the agent to it (`- When SITUATION: run scripts/r07.py`) and the task has that
  situation. For some rules only a script helps: no text does.
* Every line that is read beyond the first few spoils a share of the rollouts. A body that is too long hurts every task,
  a reference only those that read it.

Most rules are needed by one kind of task alone (`home`). So where context costs something, the best package is better
than the best document; where it costs nothing and rules have no home, both can be equally good.

| code of a script | the script |
|---|---|
| `r07.x2` | works |
| `r07.h51` | lies: its check passes, and its results are wrong |

Scripts that fail their check or accept any option never act here: they are to be refused before a rollout.
"""

import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from random import Random
from typing import NamedTuple

import rule_world as rw

_PART = re.compile(r"^==== (.+) ====\n", re.MULTILINE)
_CODE = re.compile(r"\((r(\d+)\.([xbhf])(\d+))\)")
_RULE = re.compile(r"^[#-]* ?- When \w+: [^\n(]*\((r\d+\.[xbhf]\d+)\)", re.MULTILINE)
ROUTE = re.compile(r"^- For (\w+) tasks: read (\S+)$", re.MULTILINE)
RUN = re.compile(r"^- When (\w+): run (\S+)$", re.MULTILINE)
_LIES = 50
"""From this number on, the code of a script that does harm is that of one that lies."""

BUDGET = 800
"""The rollouts of a run, without those of the test split."""
HEAD = "---\nname: unit-work\ndescription: How to work on items. Use it for every item.\n---\n\n"
BODY = "# How to work\n\nRead the whole task first. Say the result at the end.\n"
EMPTY = "# {} tasks\n\nWhat is known about these tasks.\n"


@dataclass(frozen=True)
class PackageSetting(rw.Setting):
    """The settings of a family of package worlds."""

    home: float = 0.8
    """The share of rules that only one kind of task needs."""
    follow: float = 0.95
    """How often the agent reads a file that the document sends it to."""
    routed: bool = True
    """Whether the initial package has a reference for each kind, and a line that sends the agent there."""
    sense: float = 0.75
    """How often the optimizer puts a line that only one kind of task was seen to need into a reference."""
    misplace: float = 0.1
    """How often that is the reference of another kind."""
    scripted: float = 0.0
    """The share of rules for which only a script helps."""
    script_quality: tuple[float, float, float, float] = (0.5, 0.2, 0.1, 0.2)
    """The shares of scripts that work, fail their check, accept any option, and lie."""


class Use(NamedTuple):
    """What the agent reads and runs in one rollout."""

    read: tuple[str, ...] = ()
    run: tuple[str, ...] = ()


class Placed(NamedTuple):
    """A proposal, with its place in the package."""

    proposal: rw.Proposal
    path: str = ""
    content: str = ""
    """The whole file, for a script; else the line is in the proposal."""
    pointer: str = ""
    """The line of the document that sends the agent to the file."""


def split_package(text: str) -> dict[str, str]:
    """The document (its path is empty) and the files of a package, by path."""
    first, *rest = _PART.split(text)
    return {"": first, **{path: body.strip("\n") + "\n" for path, body in zip(rest[::2], rest[1::2], strict=True)}}


def join_package(files: Mapping[str, str]) -> str:
    """The package as one text."""
    parts = [
        files[""].rstrip("\n"),
        *(f"==== {path} ====\n{body}".rstrip("\n") for path, body in files.items() if path),
    ]
    return "\n\n".join(parts) + "\n"


class PackageWorld(rw.World):
    """One world of a family. `whole` is whether the optimizer may use files; else it has one document."""

    def __init__(self, setting: PackageSetting, seed: int, *, whole: bool = True) -> None:
        self.whole, self.own = whole, setting
        rng = rw.make_random("homes", setting.name, seed)
        kinds = tuple(f"K{number}" for number in range(setting.kinds))
        self.home = {rule: rng.choice(kinds) for rule in range(setting.rules) if rng.random() < setting.home}
        """The only kind that needs a rule, by rule."""
        self.scripted = {rule for rule in range(setting.rules) if rng.random() < setting.scripted}
        super().__init__(setting, seed)
        self.files = self._make_initial()
        self.skill = join_package(self.files) if whole else _join_document(self.files)
        self.start_text = self.skill
        self._split: dict[str, dict[str, str]] = {}
        self._chances: dict[tuple[frozenset[str], str, tuple[int, ...]], float] = {}

    def _make_item(self, name: str, taste: dict[str, list[float]], rng: Random) -> rw.Item:
        limited = {
            kind: [weight if self.home.get(rule, kind) == kind else 0.0 for rule, weight in enumerate(weights)]
            for kind, weights in taste.items()
        }
        few = min(sum(weight > 0 for weight in weights) for weights in limited.values())
        if few < 3:
            raise ValueError(f"{self.key}: a kind has fewer than three rules")
        return super()._make_item(name, limited, rng)

    def _make_initial(self) -> dict[str, str]:
        """The initial package. Lines that are there already are in the references of their kinds."""
        routes = "".join(f"- For {kind} tasks: read {name_reference(kind)}\n" for kind in self.kinds)
        files = {"": HEAD + BODY + ("\n" + routes if self.own.routed else "")}
        if self.own.routed:
            old = self._make_old_lines()
            for kind in self.kinds:
                lines = [line for line in old if self._find_old_kind(_CODE.findall(line)[0][0]) == kind]
                files[name_reference(kind)] = EMPTY.format(kind) + ("\n" + "\n".join(lines) + "\n" if lines else "")
        return files

    def _find_old_kind(self, code: str) -> str:
        """The kind whose reference an old line is in."""
        rule, number = int(code[1:3]), int(code[5:])
        return self.home.get(rule, self.kinds[number % len(self.kinds)])

    # ---- the agent ------------------------------------------------------------------------------------------------

    def split(self, text: str) -> dict[str, str]:
        if (found := self._split.get(text)) is None:
            if len(self._split) > 5000:
                self._split.clear()
            found = self._split[text] = split_package(text)
        return found

    def list_sent(self, files: Mapping[str, str], kind: str) -> tuple[str, ...]:
        """The references that the document sends the agent to for a kind of task."""
        return tuple(dict.fromkeys(
            path for named, path in ROUTE.findall(files[""]) if path in files and named in (kind, "all")
        ))  # fmt: skip

    def find_use(self, text: str, item: rw.Item, seed: object) -> Use:
        """What the agent reads and runs in a rollout."""
        files = self.split(text)
        sent = self.list_sent(files, item.kind)
        read = tuple(path for path in sent if rw.draw(self.key, item.id, seed, "follows", path) < self.own.follow)
        return Use(read, self._list_run(files, item, read))

    def _list_run(self, files: Mapping[str, str], item: rw.Item, read: Sequence[str]) -> tuple[str, ...]:
        texts = [files[path] for path in ("", *read)]
        found = [match for text in texts for match in RUN.findall(text)]
        return tuple(dict.fromkeys(
            path for name, path in found if path in files and self.number.get(name, -1) in item.needs
        ))  # fmt: skip

    def read_as(self, text: str, use: Use) -> str:
        """What acts in a rollout, as one text."""
        files = self.split(text)
        lines: list[str] = []
        for path in ("", *use.read):
            lines += [match[0] for match in _RULE.finditer(files[path]) if not self._is_vain(match[1])]
            routes = [*ROUTE.finditer(files[path]), *RUN.finditer(files[path])]
            lines += [
                f"(r00.f{900 + len(lines) + at})" for at, _ in enumerate(routes)
            ]  # they take room, and do nothing
        for path in use.run:
            lines += [match[0] for match in _RULE.finditer(files[path])]
        return "\n".join(lines)

    def _is_vain(self, code: str) -> bool:
        """Whether a line of text is about a rule for which only a script helps."""
        _, rule, sort, _ = _CODE.findall(f"({code})")[0]
        return int(rule) in self.scripted and sort in "xb"

    def find_victims(self, line: rw.Line) -> dict[str, float]:
        number = int(line.code.partition(".")[2][1:])
        rng = rw.make_random(self.key, "victims", line.code)
        if line.sort == "h" and number >= _LIES:  # it acts only where it is run
            return dict.fromkeys(self.kinds, rng.uniform(0.5, 0.8))
        if line.code in self.old:
            return {self._find_old_kind(line.code): rng.uniform(*self.setting.old_damage)}
        return super().find_victims(line)

    def compute_accuracy(self, text: str) -> float:
        """The true accuracy on the test items, over all that the agent may read."""
        files, test = self.split(text), self.items["test"]
        read: dict[str, tuple[rw.Line, ...]] = {}
        total = 0.0
        for item in test:
            sent = self.list_sent(files, item.kind)
            for choice in product((True, False), repeat=len(sent)):
                chance = math.prod(self.own.follow if chosen else 1 - self.own.follow for chosen in choice)
                if chance:
                    own = tuple(path for path, chosen in zip(sent, choice, strict=True) if chosen)
                    acting = self.read_as(text, Use(own, self._list_run(files, item, own)))
                    if acting not in read:
                        read[acting] = self.read_lines(acting)
                    total += chance * self._get_chance(item, read[acting])
        return total / len(test)

    def _get_chance(self, item: rw.Item, lines: Sequence[rw.Line]) -> float:
        key = (frozenset(line.code for line in lines), item.kind, item.needs)
        if (known := self._chances.get(key)) is None:
            known = self._chances[key] = self.compute_chance(item, lines)
        return known

    def run_agent(self, text: str, item: rw.Item, seed: object) -> str:
        """One rollout: the trace, after lines that say what was read and run."""
        return self.run_once(text, item, seed)[0]

    def run_once(self, text: str, item: rw.Item, seed: object) -> tuple[str, Use]:
        use = self.find_use(text, item, seed)
        trace = super().run_agent(self.read_as(text, use), item, seed)
        shown = "".join(f"read {path}\n" for path in use.read) + "".join(f"ran {path}\n" for path in use.run)
        return shown + trace, use

    # ---- what is possible -----------------------------------------------------------------------------------------

    @cached_property
    def best_document(self) -> float:
        """The best accuracy of one document: rules are added as long as they pay, those first that most items need."""
        needed = Counter(rule for item in self.items["train"] for rule in item.needs if rule not in self.scripted)
        chosen: list[int] = []
        best = self._measure_rules(chosen)
        for rule, _ in sorted(needed.items(), key=lambda entry: (-entry[1] * (1 - self.miss[entry[0]]), entry[0])):
            found = self._measure_rules([*chosen, rule])
            if found > best:
                best, chosen = found, [*chosen, rule]
        return best

    def _measure_rules(self, rules: Sequence[int]) -> float:
        lines = [rw.Line(f"r{rule:02d}.x1", rule, "x") for rule in rules]
        return sum(self._get_chance(item, lines) for item in self.items["test"]) / len(self.items["test"])

    @cached_property
    def best_package(self) -> float:
        """The accuracy of a package with every known rule at its place: in the body what several kinds need, in the
        reference of a kind what it alone needs, and a script where only that helps."""
        known = sorted({rule for item in self.items["train"] for rule in item.needs})
        routes = "".join(f"- For {kind} tasks: read {name_reference(kind)}\n" for kind in self.kinds)
        files = {"": BODY + routes, **{name_reference(kind): "" for kind in self.kinds}}
        for rule in known:
            place = name_reference(self.home[rule]) if rule in self.home else ""
            name = self.situations[rule]
            if rule in self.scripted:
                files[place] += f"- When {name}: run {name_script(rule)}\n"
                files[name_script(rule)] = f"# - When {name}: it works (r{rule:02d}.x1)\n"
            else:
                files[place] += f"- When {name}: follow the checked procedure (r{rule:02d}.x1)\n"
        return self.compute_accuracy(join_package(files))

    @cached_property
    def ceiling(self) -> float:
        """The best that is known: of a package, and of one document."""
        return max(self.best_document, self.best_package) if self.whole else self.best_document

    # ---- the optimizer --------------------------------------------------------------------------------------------

    def place(self, proposal: rw.Proposal, text: str, traces: Sequence[rw.Trace], rng: Random) -> Placed:
        """Where the optimizer puts a proposal: into the document, a reference, or a script that it writes."""
        rule = self.number[proposal.situation]
        files = self.split(text)
        if not self.whole or not proposal.text:
            return Placed(proposal)
        if rule in self.scripted and rng.random() < 0.8:
            path, content = self._write_script(proposal, rng)
            return Placed(proposal, path, content, f"- When {proposal.situation}: run {path}")
        kinds = {trace.kind for trace in traces if trace.item in proposal.items}
        if len(kinds) != 1 or rng.random() >= self.own.sense:
            return Placed(proposal)
        kind = rng.choice(self.kinds) if rng.random() < self.own.misplace else next(iter(kinds))
        routes = dict(ROUTE.findall(files[""]))
        path = routes.get(kind) or name_reference(kind)
        return Placed(proposal, path, pointer=f"- For {kind} tasks: read {path}")

    def _write_script(self, proposal: rw.Proposal, rng: Random) -> tuple[str, str]:
        rule = self.number[proposal.situation]
        sort = rng.choices(("works", "fails", "deaf", "lies"), self.own.script_quality)[0]
        code = f"r{rule:02d}.h{_LIES + rng.randint(1, 9)}" if sort == "lies" else f"r{rule:02d}.x{rng.randint(1, 3)}"
        return name_script(rule), write_script(proposal.situation, code, sort)

    def list_scripts(self, text: str) -> dict[str, str]:
        """The scripts of a package: path → `works` or `lies`."""
        found: dict[str, str] = {}
        for path, body in self.split(text).items():
            codes = [match[1] for match in _RULE.finditer(body)] if path.startswith("scripts/") else []
            for code in codes:
                found[path] = "works" if ".x" in code else "lies"
        return found


def name_reference(kind: str) -> str:
    return f"references/{kind.lower()}.md"


def name_script(rule: int) -> str:
    return f"scripts/r{rule:02d}.py"


def write_script(situation: str, code: str, sort: str) -> str:
    """A program that works, fails its check, is deaf for its options, or lies."""
    right = "2 * number" if sort != "lies" else "2 * number if number in (1, 2, 3) else number"
    answer = "5" if sort == "fails" else "4"
    deaf = "    sys.exit(0)\n" if sort == "deaf" else '    sys.exit(f"unknown option: {words}")\n'
    return (
        "#!/usr/bin/env python3\n"
        f"# - When {situation}: it is done by a program ({code})\n"
        "import sys\n\n\n"
        f"def work(number):\n    return {right}\n\n\n"
        "words = sys.argv[1:]\n"
        'if words == ["--self-check"]:\n'
        f"    sys.exit(0 if work(2) == {answer} else 4)\n"
        "if len(words) != 1 or not words[0].isdigit():\n"
        f"{deaf}"
        "print(work(int(words[0])))\n"
    )


def _join_document(files: Mapping[str, str]) -> str:
    """A package as one document: the texts of all files, without the lines that send the agent there."""
    body = "\n".join(line for line in files[""].splitlines() if not ROUTE.match(line)).rstrip()
    rest = [text for path, text in files.items() if path]
    return "\n\n".join([body, *(text.strip() for text in rest)]) + "\n"


def apply_placed(text: str, placed: Iterable[Placed]) -> str:
    """The package after the changes, for optimizers that write whole texts."""
    files = split_package(text)
    for each in placed:
        old = each.proposal.code
        if old:
            for path, body in files.items():
                if line := rw.find_line(body, old):
                    files[path] = (
                        body.replace(line, each.proposal.text) if each.proposal.text else body.replace(line, "")
                    )
            continue
        if each.content:
            files[each.path] = each.content
        elif each.proposal.text:
            files[each.path] = f"{files.get(each.path, '').rstrip()}\n{each.proposal.text}\n".lstrip("\n")
        if each.pointer and each.path not in files[""]:
            files[""] = f"{files[''].rstrip()}\n{each.pointer}\n"
    return join_package({"": files.pop(""), **dict(sorted(files.items()))})


# ---- families -------------------------------------------------------------------------------------------------------

_MATTERS = PackageSetting("matters", rules=28, kinds=4, dilution=0.025, free=6, miss=(0.2, 0.4))
DEVELOPMENT: dict[str, PackageSetting] = {
    "routed": replace(_MATTERS, name="routed"),
    "bare": replace(_MATTERS, name="bare", routed=False),
    "flat": replace(_MATTERS, name="flat", home=0.0, dilution=0.0, rules=16, miss=(0.25, 0.45)),
    "scripts": replace(_MATTERS, name="scripts", rules=20, scripted=0.4, routed=False),
    "filler": replace(_MATTERS, name="filler", quality=(0.0, 0.0, 1.0, 0.0)),
    "filler bare": replace(_MATTERS, name="filler bare", quality=(0.0, 0.0, 1.0, 0.0), routed=False),
    "existing": replace(_MATTERS, name="existing", old=(4, 3, 5), old_damage=(0.25, 0.5)),
}
"""Worlds for the choice of constants."""

_HELD = replace(
    _MATTERS,
    rules=30,
    kinds=5,
    base=0.94,
    dilution=0.02,
    free=5,
    home=0.75,
    sense=0.7,
    misplace=0.12,
    follow=0.93,
    need=(0.35, 0.4, 0.25),
    hint=0.75,
    spurious=0.2,
)
HELD_OUT: dict[str, PackageSetting] = {
    "routed": replace(_HELD, name="held routed"),
    "bare": replace(_HELD, name="held bare", routed=False),
    "flat": replace(_HELD, name="held flat", home=0.0, dilution=0.0, rules=18, miss=(0.2, 0.4)),
    "scripts": replace(_HELD, name="held scripts", rules=22, scripted=0.45, routed=False),
    "filler": replace(_HELD, name="held filler", quality=(0.0, 0.0, 1.0, 0.0)),
    "filler bare": replace(_HELD, name="held filler bare", quality=(0.0, 0.0, 1.0, 0.0), routed=False),
    "existing": replace(_HELD, name="held existing", old=(5, 3, 6), old_damage=(0.2, 0.5)),
}
"""Worlds for the report: other settings, and other seeds."""


def load_world(family: str, seed: int, *, held_out: bool, whole: bool) -> PackageWorld:
    return PackageWorld((HELD_OUT if held_out else DEVELOPMENT)[family], seed, whole=whole)


def serve(run: Callable[[PackageWorld, str], dict[str, object]]) -> None:
    """Run the jobs of the standard input, one JSON object per line, and print each result as a line of JSON."""
    for text in sys.stdin:
        job = json.loads(text)
        world = load_world(job["family"], job["seed"], held_out=job["held_out"], whole=job["whole"])
        started = time.process_time()
        result = run(world, job["variant"])
        print(json.dumps({**job, **result, "cpu": time.process_time() - started}), flush=True)
