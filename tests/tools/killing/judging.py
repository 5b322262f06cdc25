"""Judges a command that was struck, and what it does when it is given once more."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crashing import tree

from .scenes import DECOYS, TEMPORARY, Scene, copied
from .striking import NEVER, Strike, Struck, run

CODES = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
"""How a command ends that is struck in time."""

_CHANGING = ("out/resume/", "out-search/resume/", "out-run/")
"""What legitimately differs from run to run: logs of when and by whom; what they hold is in the results."""

Tree = dict[str, str]

Wrong = tuple[str, str]
"""What must not be, and what was seen of it."""


@dataclass
class Prepared:
    """A scene ready to be run, and what it looks like after a run that nobody interrupts.

    Attributes:
        steps: what it does on the disk.
        seconds, fresh_seconds: how long it takes, in a fork and in a fresh process.
        wrong: what is wrong even without a strike.
    """

    scene: Scene
    template: Path
    before: Tree
    after: Tree
    steps: tuple[str, ...]
    seconds: float
    fresh_seconds: float
    wrong: list[Wrong] = field(default_factory=list)


@dataclass
class Verdict:
    """What a strike showed.

    Attributes:
        wrong: what must not be; nothing where all is well.
        landed: it ended the command.
        early: it came before the command could take notice, and nothing had happened yet.
        left: something hidden lay there before the command was given again.
    """

    wrong: list[Wrong]
    landed: bool
    early: bool
    left: bool


def judged(prepared: Prepared, root: Path, strike: Strike) -> tuple[Struck, Verdict]:
    """Strikes a run in a fresh copy of the scene, judges what is there, gives the command again, judges the end."""
    scene = prepared.scene
    set_up(scene, prepared.template, root)
    struck = run(scene.words, root, strike)
    there = seen(root)
    early = _is_early(prepared, struck, strike, there)
    wrong = [*_ended(prepared, struck, strike, early, there), *_midway(prepared, there, root)]
    left = bool(_hidden(there))
    wrong += _again(prepared, root, there)
    return struck, Verdict(wrong, struck.code not in (0, 2), early, left)


def _is_early(prepared: Prepared, struck: Struck, strike: Strike, there: Tree) -> bool:
    """Ended as Python ends without a handler, before anything was done or after all of it was."""
    asleep = strike.seconds is not None and not struck.steps  # which nobody counts of a fresh process
    untouched = there == prepared.before or _settled(there) == _settled(prepared.after)
    wrapped = strike.fresh or "Error calling __set_name__" in struck.err  # Python 3.11, while it creates a class
    alone = (-strike.number, 1) if wrapped and strike.number == signal.SIGINT else (-strike.number,)
    return asleep and untouched and struck.code in alone and strike.number != signal.SIGKILL


def _ended(prepared: Prepared, struck: Struck, strike: Strike, early: bool, there: Tree) -> Iterator[Wrong]:
    if struck.code == NEVER:
        yield "it hangs", ""
    wanted = CODES[signal.Signals(strike.number)]
    finished = not _hidden(there) and _settled(there) == _settled(prepared.after)
    if early or (finished and struck.code in (0, wanted, -strike.number)):  # nobody is asked while Python shuts down
        return
    if struck.code != wanted:
        yield f"it ended with {struck.code} instead of {wanted}", struck.err.strip()[-200:]
    if "Traceback (most recent" in struck.err:
        yield "a traceback", struck.err.strip()[-300:]


def _midway(prepared: Prepared, there: Tree, root: Path) -> Iterator[Wrong]:
    """Right after the strike: nobody's file has changed, and the output is old, or new, or (of a run) not finished."""
    scene, before, after = prepared.scene, prepared.before, prepared.after
    yield from _foreign(before, {**_set_aside(there, scene), **there}, scene)
    if scene.in_place:
        yield from _undone(prepared, there, root)
    elif scene.words[0] in ("patch", "gguf", "search", "keys"):
        found, old, new = (_below(each, scene.output) for each in (there, before, after))
        found = {name: content for name, content in found.items() if not name.startswith("out/.out.")}
        moving = old == {"out": "folder"} and "out/ropescale.json" not in found
        if found not in (old, new) and not moving and (found or _set_aside(there, scene) != old):
            yield "the output is neither what it was nor what it should be", _difference(new, found)


def _undone(prepared: Prepared, there: Tree, root: Path) -> Iterator[Wrong]:
    """``restore`` gives the originals back, whatever state the strike left; where there is nothing, they are there."""
    copy = root.with_name(root.name + "-restored")
    copied(root, copy)
    done = run(["restore", "model"], copy)
    found, original = _below(seen(copy), "model"), _below(seen(prepared.template.with_name("original")), "model")
    if found != original:
        yield f"restore (exit {done.code}) does not give the originals back", _difference(original, found)
    shutil.rmtree(copy)


def _again(prepared: Prepared, root: Path, there: Tree) -> Iterator[Wrong]:
    """The same command completes; the end is that of a run that nobody interrupted."""
    scene = prepared.scene
    shown = {name: content for name, content in there.items() if name not in _hidden(there)}
    complete = _settled(_below(shown, scene.output)) == _settled(_below(prepared.after, scene.output))
    done = run(scene.words, root)
    allowed = {(0, "")} | ({scene.repeated} if complete else set())
    if not any(done.code == code and words in done.err for code, words in allowed):
        yield f"given again, it ends with {done.code}", done.err.strip()[-300:]
    found = seen(root)
    aside = {f"{scene.output}~{name[len(scene.output) :]}": it for name, it in _set_aside(found, scene).items()}
    if aside:
        yield "given again, it leaves what was set aside", done.err.strip()[-300:]
    yield from _foreign(prepared.before, found, scene)
    if hidden := _hidden(found):
        yield "hidden files are left after the next command", ", ".join(hidden[:5])
    wanted, found = ({k: v for k, v in _settled(each).items() if k not in hidden} for each in (prepared.after, found))
    if found != wanted:
        yield "the end differs from that of a run without interruption", _difference(wanted, found)


def _foreign(before: Tree, there: Tree, scene: Scene) -> Iterator[Wrong]:
    """Files that are not the command's: the user's everywhere, and the source."""
    for name, content in before.items():
        ours = name == scene.output or name.startswith(f"{scene.output}/")
        if (not ours or _is_users(name)) and there.get(name) != content:
            yield f"{name} {'is gone' if name not in there else 'has changed'}", ""


def _is_users(name: str) -> bool:
    """Files of the user's inside an output."""
    return name.endswith(("notes.txt", "original/params.json")) or (name.startswith("model/") and "safetensors" in name)


def _hidden(there: Tree) -> list[str]:
    """What nobody should find: hidden names that are not the user's, and anything in the temporary folder."""
    return [
        name
        for name in there
        if name not in DECOYS
        and (any(part.startswith(".") for part in name.split("/")) or name.startswith(f"{TEMPORARY}/"))
    ]


def _settled(there: Tree) -> Tree:
    """Without what legitimately differs from run to run."""
    return {name: content for name, content in there.items() if not name.startswith(_CHANGING)}


def _below(there: Tree, name: str) -> Tree:
    return {each: content for each, content in there.items() if each == name or each.startswith(f"{name}/")}


def _set_aside(there: Tree, scene: Scene) -> Tree:
    """An earlier output that was renamed to ``out~``, under its old name."""
    aside = f"{scene.output}~"
    return {f"{scene.output}{name[len(aside) :]}": content for name, content in _below(there, aside).items()}


def _difference(wanted: Tree, found: Tree) -> str:
    names = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    said = [
        f"{name} ({'missing' if name not in found else 'more' if name not in wanted else 'other'})" for name in names
    ]
    return ", ".join(said[:6]) + (f", and {len(said) - 6} more" if len(said) > 6 else "")


def prepare(scene: Scene, scratch: Path) -> Prepared:
    """The scene on the disk, run twice without a strike, in a fork and in a fresh process."""
    template, root = scratch / "template", scratch / "root"
    shutil.rmtree(template, ignore_errors=True)
    template.mkdir(parents=True)
    scene.prepare(template, _surely)
    _make_original(scene, template)
    set_up(scene, template, root)
    before = seen(root)
    forked, after = run(scene.words, root), seen(root)
    set_up(scene, template, root)
    fresh, other = run(scene.words, root, Strike(fresh=True)), seen(root)
    wrong = [(f"without a strike it ends with {each.code}", each.err[-300:]) for each in (forked, fresh) if each.code]
    if _settled(after) != _settled(other):
        wrong.append(("two runs without a strike differ", _difference(_settled(after), _settled(other))))
    wrong += [(f"without a strike, {name} is left", "") for name in _hidden(after)]
    return Prepared(scene, template, before, after, forked.steps, forked.seconds, fresh.seconds, wrong)


def set_up(scene: Scene, template: Path, root: Path) -> None:
    """A fresh copy of a scene."""
    copied(template, root)
    if scene.first:
        _surely(list(scene.first), root)


def seen(root: Path) -> Tree:
    """Every file with its bytes, as :func:`crashing.tree` sees it; of a record, without what names the very files."""
    found = tree(root)
    for path in root.rglob("ropescale.json"):
        try:
            record = json.loads(path.read_bytes())
            for entry in record.get("files", {}).values():
                for key in _OF_THE_FILE & entry.keys():
                    entry[key] = key
            found[path.relative_to(root).as_posix()] = json.dumps(record)
        except (ValueError, AttributeError):
            pass  # half of a record, seen as it is
    return found


_OF_THE_FILE = {"inode", "mtime_ns"}
"""Of a file that a record lists: they differ from run to run."""


def _make_original(scene: Scene, template: Path) -> None:
    """The model as it was before any patch in place, to compare restored ones with."""
    if scene.in_place:
        original = template.with_name("original")
        copied(template, original)
        run(["restore", "model"], original)


def _surely(words: list[str], folder: Path) -> None:
    done = run(words, folder)
    if done.code:
        raise RuntimeError(f"ropescale {' '.join(words)} ended with {done.code}: {done.err[-500:]}")
