"""A folder of another machine: contents by digest beside the versions, a folder a version, made whole by one rename, and `latest.json`.

Scripts of sh do at the far end what must be done at once, under locks of flock(1) there: who is cut or killed leaves what was, or what
shall be. `latest.json` moves only while it is what was looked at.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from daemon.contract.delivering.orders import Listed, Move, Receipt
from daemon.contract.disk.export_layout import MANIFEST
from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.rsync.connection import Connection, quoted
from handlers.deliver.rsync.declaration import RsyncOptions
from handlers.deliver.store.layout import FOLDER, NAME, document, object_of, ours, run_folder, step_of, why_ahead
from handlers.deliver.target import Setting
from handlers.deliver.version import BLOCK, Pace, SourceFile, Version

WORK = ".ckptd"
"""In the target's folder: contents by digest (`parts`), what is being made, and two locks."""
PARTS = f"{WORK}/parts"
LATEST = "latest.json"
TOKEN = re.compile(r"[0-9a-f]{12}")
NOT_THAT, ELSEWISE, LACKING = 71, 72, 73
"""Exit codes of the scripts: `latest.json` is another by now; something else lies there; a program, or the version, is missing."""
MOVES = 20
"""Of `latest.json`, before others who move it all the time are said."""
ALONE = f"exec 9>>{WORK}/lock; flock 9\n"
CLEAR = f"""for left in {WORK}/new-* {WORK}/old-*; do rm -rf "$left"; done
exec 8>>{WORK}/used
if flock -x -n 8; then find {PARTS} -type f -links 1 -exec rm -f {{}} +; fi
"""
"""Run by who is alone: takes away what others left that were killed, and contents of no version unless another delivery puts some."""
TRANSFERRED = re.compile(rb"(?:^|\r)\s*(\d+)\s+\d+%")
LITERAL = re.compile(rb"Literal data: (\d+) bytes")
LOOK = f"""for program in rsync flock sha256sum; do
  command -v "$program" > /dev/null || {{ echo "$program"; exit {LACKING}; }}
done
for folder in . {WORK} %s; do
  if [ -e "$folder" ] && ! [ -w "$folder" ]; then echo "$folder can't be written: Permission denied" >&2; exit 1; fi
done
"""


class Rsync:
    """The target."""

    def __init__(self, setting: Setting) -> None:
        self._options = RsyncOptions.model_validate(setting.options)
        self._far, self._resume, self._run = Connection(self._options, setting.secret, setting.scratch), setting.resume, setting.run
        self._held = False

    def close(self) -> None:
        """End the connection, and with it the lock."""
        self._far.close()

    def look(self) -> None:
        """Find out whether the folder is there and can be written, and the programs are."""
        code, printed = self._far.run("look at the folder", LOOK % quoted(run_folder(self._run or "run")), (0, LACKING))
        if code:
            cause = f"the machine has no program {printed.decode().strip()}"
            remedy = "install it there (Debian: apt-get install rsync util-linux coreutils)"
            raise Permanent(FaultCode.DELIVERY_REFUSED, "look at the folder", cause, remedy, path=self._options.to)

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Let the contents lie there by their digest."""
        operation, place, name = f"send {file.path}", f"{PARTS}/{file.sha256}", f"part-{file.sha256[:16]}"
        if not self._held:
            self.look()
            self._far.hold(operation, f"mkdir -p {PARTS} && exec 8>>{WORK}/used && flock -s 8")
            self._held = True
        # A name that no other delivery uses: two that write one file at once could mix what they read.
        token = str(self._resume.get(name).get("token"))
        token = token if TOKEN.fullmatch(token) else secrets.token_hex(6)
        started = f"{place}.{token}"
        _, printed = self._far.run(operation, f"for each in {place} {started}; do wc -c < $each 2> /dev/null || echo -1; done")
        whole, begun = (int(number) for number in printed.split())
        if whole == file.size:
            return file.size
        _compare(file)
        self._resume.keep(name, {"token": token})
        self._send(operation, file, started, begun, sent)
        self._take(operation, file, started, place)
        self._resume.keep(name, None)
        return max(0, begun)

    def _send(self, operation: str, file: SourceFile, started: str, begun: int, sent: Callable[[int], None]) -> None:
        words = ["--inplace", "--no-whole-file", "--timeout=300", "--no-human-readable", "--info=progress2,stats2"]
        if file.pace.rate:
            words.append(f"--bwlimit={max(1, file.pace.rate // 1024)}")
        process = self._far.rsync(operation, words, file.source, started)
        assert process.stdout is not None and process.stderr is not None
        known, counted = max(0, begun), 0
        with process.stdout, process.stderr:
            rest = b""
            while part := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
                rest = (rest + part)[-(1 << 16) :]
                if (numbers := TRANSFERRED.findall(rest)) and (fresh := int(numbers[-1]) - known - counted) > 0:
                    sent(fresh)
                    counted += fresh
            said = process.stderr.read()
            self._far.check(operation, process.wait(), said)
        if (total := LITERAL.search(rest)) and (fresh := int(total[1]) - counted) > 0:
            sent(fresh)

    def _take(self, operation: str, file: SourceFile, started: str, place: str) -> None:
        """Let what was sent be the contents of that digest. Raises Permanent where they are others."""
        script = f"""sync {started} 2> /dev/null || sync
case $(sha256sum < {started}) in {file.sha256}*) ;; *) rm -f {started}; exit {ELSEWISE};; esac
mv -f {started} {place}
"""
        if self._far.run(operation, script, (0, ELSEWISE))[0] == ELSEWISE:
            _compare(file)
            cause = f"{file.path} is another file at the far end than here"
            remedy = "look at the far end's disk, and deliver again; nothing was made visible"
            raise Permanent(FaultCode.DELIVERY_MISMATCH, operation, cause, remedy, path=self._options.to)

    def put_again(self, file: SourceFile, sent: Callable[[int], None]) -> None:
        """Send them anew; versions get them in the place of what was damaged when they are delivered again."""
        self._far.run(f"send {file.path}", f"rm -f {PARTS}/{file.sha256}")
        self.put(file, sent)

    def read_back(self, file: SourceFile) -> Iterator[bytes]:
        """The contents as they lie there."""
        return self._far.contents(f"read {file.path} back", f"{PARTS}/{file.sha256}")

    def finish(self, version: Version, move: Move) -> Receipt:
        """Make the version's folder, and let `latest.json` name it."""
        run = run_folder(version.run)
        code, printed = self._far.run("make the version", _making(version, f"{run}/{version.name}"), (0, ELSEWISE))
        if code or not ours(f"{run}/{version.name}", printed):
            cause = f"{run}/{version.name} is something else"
            remedy = "look at it, and take it away"
            raise Permanent(FaultCode.DELIVERY_CONFLICT, "make the version", cause, remedy, path=self._options.to)
        why = self._followed(version, move, hashlib.sha256(printed).hexdigest())
        self._let_go()
        self._far.run("take away what was left", ALONE + CLEAR)
        place = f"{self._options.to.rstrip('/')}/{run}/{version.name}"
        return Receipt(
            version=f"{run}/{version.name}", place=place, moved=not why, why_not_moved=why, usage=f"rsync -r {place}/ {version.name}/"
        )

    def _followed(self, version: Version, move: Move, manifest: str) -> str:
        """Let `latest.json` name the version; gives why it does not, "" where it does. `manifest`: the SHA-256 of the version's."""
        if move == "keep":
            return "the target's rule leaves it as it is"
        run, operation = run_folder(version.run), f"move {LATEST}"
        latest = {
            "version": version.name, "run": version.run, "step": version.step, "path": f"{version.name}/", "manifest_sha256": manifest,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        for _ in range(MOVES):
            seen = self._latest(run)
            there = object_of(seen)
            if {**there, "at": ""} == {**latest, "at": ""}:
                return ""
            if move == "move" and seen and (why := why_ahead(there, version)):
                return why
            script = f"""{ALONE}{_unchanged(run, seen)}
[ -f {run}/{version.name}/{MANIFEST} ] || exit {LACKING}
printf %s {quoted(json.dumps(latest))} > {(new := f"{WORK}/new-{secrets.token_hex(6)}")}
sync {new} 2> /dev/null || sync
mv -f {new} {run}/{LATEST}
"""
            code, _ = self._far.run(operation, script, (0, NOT_THAT, LACKING))
            if code == LACKING:
                remedy = "it is delivered again by itself"
                raise Retryable(FaultCode.DELIVERY_CONFLICT, operation, "the version was taken away meanwhile", remedy)
            if code == 0:
                return ""
        raise Retryable(FaultCode.DELIVERY_CONFLICT, operation, "others move it all the time", "deliver again later")

    def _latest(self, run: str) -> bytes:
        return self._far.run(f"read {LATEST}", f"[ ! -f {run}/{LATEST} ] || cat {run}/{LATEST}")[1]

    def _let_go(self) -> None:
        """From now on contents that no version has may be taken away."""
        if self._held:
            self._far.release("flock -u 8")
            self._held = False

    def list(self, run: str) -> Sequence[Listed]:
        """Folders whose manifest says that we made them."""
        script = f"""for file in */*/{MANIFEST} */{LATEST}; do
  if [ -f "$file" ]; then printf '%s\\000' "$file"; tr -d '\\000' < "$file"; printf '\\000'; fi
done
"""
        parts = self._far.run("list the versions", script)[1].split(b"\0")
        texts = {path.decode("utf-8", "replace"): text for path, text in zip(parts[::2], parts[1::2], strict=False)}
        rows = []
        for path, text in texts.items():
            place = path.removesuffix(f"/{MANIFEST}")
            if not _is_version(place) or not (about := ours(place, text)) or run not in ("", of := str(about.get("run"))):
                continue
            folder, _, name = place.partition("/")
            current = object_of(texts.get(f"{folder}/{LATEST}", b"")).get("version") == name
            rows.append(Listed(version=place, run=of, step=int(step_of(name)), export=str(about.get("export_id", "")), current=current))
        return sorted(rows, key=lambda row: (row.run, row.step, row.version))

    def remove(self, version: str) -> None:
        """Take a version away, and contents that no other has."""
        if not _is_version(version) or all(row.version != version for row in self.list("")):
            return
        self._let_go()
        operation, (run, _, name) = f"remove {version}", version.partition("/")
        for _ in range(MOVES):
            seen = self._latest(run)
            if object_of(seen).get("version") == name:
                remedy = "let another version be followed first"
                raise Permanent(FaultCode.DELIVERY_CONFLICT, operation, f"{LATEST} names it", remedy, path=self._options.to)
            old = f"{WORK}/old-{secrets.token_hex(6)}"
            script = f"""{ALONE}{_unchanged(run, seen)}
if [ -d {version} ]; then mv {version} {old}; rm -rf {old}; fi
rmdir {run} 2> /dev/null || true
{CLEAR}"""
            if self._far.run(operation, script, (0, NOT_THAT))[0] == 0:
                return


def _making(version: Version, place: str) -> str:
    """The script that makes a version's folder of contents that lie there, and prints its manifest."""
    new = f"{WORK}/new-{secrets.token_hex(6)}"
    folders = sorted({new, *(f"{new}/{file.path}".rpartition("/")[0] for file in version.files)})
    lines = [
        f"if [ -e {place} ]; then",
        f"  [ -f {place}/{MANIFEST} ] || exit {ELSEWISE}",
        *(_mending(f"{place}/{file.path}", f"{PARTS}/{file.sha256}", new) for file in version.files),
        "else",
        f"  mkdir -p {place.partition('/')[0]} {' '.join(map(quoted, folders))}",
        *(f"  ln {PARTS}/{file.sha256} {quoted(f'{new}/{file.path}')}" for file in version.files),
        f"  printf %s {quoted(document(version).decode())} > {new}/{MANIFEST}",
        f"  sync -f {new} 2> /dev/null || sync",
        f"  mv {new} {place}",
        "fi",
        f"cat {place}/{MANIFEST}",
    ]
    return ALONE + "\n".join(lines) + "\n"


def _mending(path: str, contents: str, new: str) -> str:
    """A line of script that puts contents in the place of a version's file, unless that is them."""
    folder, file = quoted(path.rpartition("/")[0]), quoted(path)
    return f"  [ {file} -ef {contents} ] || {{ mkdir -p {folder}; ln {contents} {new}; mv -f {new} {file}; }}"


def _unchanged(run: str, seen: bytes) -> str:
    """A line of script that ends it where a run's `latest.json` is not what was looked at."""
    now = f"$(if [ -f {run}/{LATEST} ]; then sha256sum < {run}/{LATEST}; else printf '' | sha256sum; fi)"
    return f"case {now} in {hashlib.sha256(seen).hexdigest()}*) ;; *) exit {NOT_THAT};; esac"


def _compare(file: SourceFile) -> None:
    """Raise Permanent where a file is not what the manifest says."""
    with contextlib.closing(dataclasses.replace(file, pace=Pace(0)).open()) as reader:
        while reader.read(BLOCK):
            pass


def _is_version(place: str) -> bool:
    """Whether that may be a version's folder, RUN/NAME: no other name gets into a script."""
    run, _, name = place.partition("/")
    return FOLDER.fullmatch(run) is not None and NAME.fullmatch(name) is not None
