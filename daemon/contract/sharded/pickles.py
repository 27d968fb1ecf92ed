"""Reads a pickle as data: a small machine that knows the plain values, and of everything else only what its caller names.

Python's own unpickler calls whatever a pickle names, which is running the code of whoever wrote it. Here a name that is not known raises
`Unsafe`, and one that is known gives one of our own inert values. Nothing is imported. Work and memory are bounded: sizes and memo slots
that a pickle claims are not believed, what it has copied counts as if it had been written out, and only keys whose hashes their writer
can't choose are compared by value. Values may still share their parts, so that nothing may be done with one that walks through it
without an end, as `str` does: callers ask for texts and numbers.
The opcodes are those of Python's `pickletools`, protocols 2 to 5, as torch writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MOST_BYTES = 64 << 20
"""Of one pickle. The description of a model of 1000 tensors on 1000 ranks needs less."""
MOST_WORK = 24_000_000
"""Steps of one pickle, of which each that makes an object counts four times: some ten seconds and half a gigabyte at the worst. A piece of
a tensor takes about 120, so these are 200,000 pieces."""
_MAKES = 3
_LONGEST_INTEGER = 64
_LARGEST_KEY = 1 << 60
"""Greater integers have the hashes of smaller ones."""


class Unreadable(ValueError):
    """The bytes are no pickle that can be read; the text says why."""


class Unsafe(Unreadable):
    """The pickle asks for something that is not known here; `name` is its qualified name."""

    def __init__(self, name: str) -> None:
        self.name = name[:200]
        super().__init__(f"it wants to run {shown(self.name)}")


def shown(name: Any) -> str:
    """A name out of a file, for a sentence: short, on one line, and without what a terminal or a journal can't take."""
    if not isinstance(name, str):
        return f"a {type(name).__name__}"
    text = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in name[:80])
    return text + ("…" if len(name) > 80 else "")


@dataclass(eq=False)
class Instance:
    """An object of a class that is known by its name alone: with what it would have been made, and what would have been set on it."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None

    def field(self, name: str) -> Any:
        """An attribute that the pickle sets; None for one that it doesn't."""
        return self.state.get(name) if isinstance(self.state, dict) else None


@dataclass(frozen=True)
class Named:
    """A name that the pickle refers to and that is known; what is made by calling it, `make` gives."""

    name: str
    make: Callable[..., Any]


Known = Mapping[str, Any]
"""Qualified name → a `Callable` that gives the value of a call, or the value itself for what is no class and no function."""


def inert(name: str) -> Callable[..., Instance]:
    """What gives the inert stand-in for a class."""
    return lambda *arguments: Instance(name, arguments)


def read_pickle(data: bytes, known: Known, stored: Callable[[Any], Any] | None = None) -> Any:
    """The value that a pickle describes. `stored`: gives what a persistent id stands for.

    Raises Unsafe for a name that is not in `known`, Unreadable for bytes that are no whole pickle.
    """
    if len(data) > MOST_BYTES:
        raise Unreadable(f"it has {len(data):,} bytes, more than the {MOST_BYTES:,} that any known checkpoint needs")
    try:
        return _Machine(data, known, stored).run()
    except (IndexError, KeyError, TypeError, AttributeError, struct.error, UnicodeDecodeError, OverflowError, RecursionError):
        raise Unreadable("it is truncated or damaged") from None


class _Mark:
    pass


_MARK = _Mark()


class _Machine:
    """The stack, the memo and the position of one pickle."""

    def __init__(self, data: bytes, known: Known, stored: Callable[[Any], Any] | None) -> None:
        self._data, self._known, self._stored = data, known, stored
        self._at = 0
        self._work = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            opcode = self._take(1)[0]
            if opcode == 0x2E:  # STOP
                return self._stack.pop()
            step = _STEPS.get(opcode)
            if step is None:
                raise Unreadable(f"it has the opcode {opcode:#x} at byte {self._at - 1:,}, which torch does not write")
            self._charge(1 if opcode in _CHEAP else 1 + _MAKES)
            step(self)

    def _charge(self, work: int) -> None:
        self._work += work
        if self._work > MOST_WORK:
            raise Unreadable(f"it has more parts than are read ({MOST_WORK:,} steps)")

    # Bytes

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise Unreadable(f"it is truncated at byte {len(self._data):,}")
        data = self._data[self._at : end]
        self._at = end
        return data

    def _number(self, form: str) -> int:
        (value,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return int(value)

    def _line(self) -> str:
        end = self._data.index(b"\n", self._at) if b"\n" in self._data[self._at : self._at + 4096] else -1
        if end < 0:
            raise Unreadable(f"it is truncated at byte {self._at:,}")
        return self._take(end + 1 - self._at)[:-1].decode()

    # Stack

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _since_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise Unreadable("it is damaged (no mark)")
        items = self._stack[at + 1 :]
        del self._stack[at:]
        return items

    def _top(self, kind: type) -> Any:
        top = self._stack[-1]
        if not isinstance(top, kind):
            raise Unreadable(f"it is damaged (a {type(top).__name__} instead of a {kind.__name__})")
        return top

    def _key(self, key: Any) -> Any:
        if key is None or isinstance(key, (str, bytes, Instance)) or (isinstance(key, int) and abs(key) < _LARGEST_KEY):
            return key
        return Instance("key", (key,))  # compared by identity: many of one hash would take forever

    def frame(self) -> None:
        self._take(8)

    def protocol(self) -> None:
        if not 2 <= self._take(1)[0] <= 5:
            raise Unreadable("it is not a pickle of the protocols 2 to 5")

    def pop(self) -> None:
        self._stack.pop()

    def pop_mark(self) -> None:
        self._since_mark()

    def duplicate(self) -> None:
        self._push(self._stack[-1])

    def integer(self, form: str) -> None:
        self._push(self._number(form))

    def long(self, form: str) -> None:
        length = self._number(form)
        if not 0 <= length <= _LONGEST_INTEGER:
            raise Unreadable(f"it has an integer of {length:,} bytes")
        self._push(int.from_bytes(self._take(length), "little", signed=True))

    def real(self) -> None:
        (value,) = struct.unpack(">d", self._take(8))
        self._push(value)

    def text(self, form: str) -> None:
        self._push(self._take(self._number(form)).decode("utf-8", "surrogatepass"))

    def raw(self, form: str) -> None:
        self._push(self._take(self._number(form)))

    def old_text(self, form: str) -> None:
        self._push(self._take(self._number(form)).decode("latin-1"))

    def append(self) -> None:
        value = self._stack.pop()
        self._top(list).append(value)

    def extend(self) -> None:
        values = self._since_mark()
        self._top(list).extend(values)

    def pack(self, count: int) -> None:
        if len(self._stack) < count:
            raise Unreadable("it is damaged (too few values)")
        values = tuple(self._stack[len(self._stack) - count :]) if count else ()
        del self._stack[len(self._stack) - count :]
        self._push(values)

    def set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._top(dict)[self._key(key)] = value

    def set_items(self) -> None:
        values = self._since_mark()
        if len(values) % 2:
            raise Unreadable("it is damaged (a key without a value)")
        self._top(dict).update(zip(map(self._key, values[::2]), values[1::2], strict=True))

    def add_items(self) -> None:
        values = self._since_mark()
        self._top(list).extend(values)

    def put(self, form: str) -> None:
        self._memo[self._number(form)] = self._stack[-1]

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def get(self, form: str) -> None:
        self._push(self._memo[self._number(form)])

    # Names and what they make

    def named(self) -> None:
        module = self._line()
        self._refer(module, self._line())

    def named_on_stack(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise Unreadable("it is damaged (a name that is not text)")
        self._refer(module, name)

    def _refer(self, module: str, name: str) -> None:
        qualified = f"{module}.{name}"
        if qualified not in self._known:
            raise Unsafe(qualified)
        value = self._known[qualified]
        self._push(Named(qualified, value) if callable(value) else value)

    def call(self) -> None:
        arguments, made = self._stack.pop(), self._stack.pop()
        if not isinstance(made, Named) or not isinstance(arguments, tuple):
            raise Unreadable("it is damaged (a call of something that is not a function)")
        self._charge(len(arguments) + sum(len(argument) for argument in arguments if isinstance(argument, (list, tuple, dict, str, bytes))))
        self._push(made.make(*arguments))

    def call_with_names(self) -> None:
        if self._stack.pop():
            raise Unreadable("it creates an object with named arguments")
        self.call()

    def build(self) -> None:
        state = self._stack.pop()
        top = self._stack[-1]
        if isinstance(top, Instance):
            top.state = state
        elif not isinstance(top, dict):  # of an OrderedDict only its items count
            raise Unreadable(f"it is damaged (the state of a {type(top).__name__})")

    def persistent(self) -> None:
        if self._stored is None:
            raise Unreadable("it refers to data outside the file")
        self._push(self._stored(self._stack.pop()))


_STEPS: dict[int, Callable[[_Machine], Any]] = {
    0x80: _Machine.protocol, 0x95: _Machine.frame, 0x30: _Machine.pop, 0x31: _Machine.pop_mark, 0x32: _Machine.duplicate,
    0x28: lambda m: m._push(_MARK), 0x4E: lambda m: m._push(None), 0x88: lambda m: m._push(True), 0x89: lambda m: m._push(False),
    0x4A: lambda m: m.integer("<i"), 0x4B: lambda m: m.integer("<B"), 0x4D: lambda m: m.integer("<H"),
    0x8A: lambda m: m.long("<B"), 0x8B: lambda m: m.long("<i"), 0x47: _Machine.real,
    0x58: lambda m: m.text("<I"), 0x8C: lambda m: m.text("<B"), 0x8D: lambda m: m.text("<Q"),
    0x54: lambda m: m.old_text("<i"), 0x55: lambda m: m.old_text("<B"),
    0x42: lambda m: m.raw("<I"), 0x43: lambda m: m.raw("<B"), 0x8E: lambda m: m.raw("<Q"), 0x96: lambda m: m.raw("<Q"),
    0x5D: lambda m: m._push([]), 0x61: _Machine.append, 0x65: _Machine.extend, 0x6C: lambda m: m._push(m._since_mark()),
    0x29: lambda m: m._push(()), 0x74: lambda m: m._push(tuple(m._since_mark())),
    0x85: lambda m: m.pack(1), 0x86: lambda m: m.pack(2), 0x87: lambda m: m.pack(3),
    0x7D: lambda m: m._push({}), 0x73: _Machine.set_item, 0x75: _Machine.set_items,
    0x8F: lambda m: m._push([]), 0x90: _Machine.add_items, 0x91: lambda m: m._push(m._since_mark()),
    0x71: lambda m: m.put("<B"), 0x72: lambda m: m.put("<I"), 0x94: _Machine.memoize,
    0x68: lambda m: m.get("<B"), 0x6A: lambda m: m.get("<I"),
    0x63: _Machine.named, 0x93: _Machine.named_on_stack, 0x52: _Machine.call, 0x81: _Machine.call, 0x92: _Machine.call_with_names,
    0x62: _Machine.build, 0x51: _Machine.persistent,
}  # fmt: skip
"""Opcode → what it does. A set is a list here: what is in one is never asked for."""
_CHEAP = frozenset(
    (0x80, 0x95, 0x30, 0x31, 0x32, 0x28, 0x4E, 0x88, 0x89, 0x4B, 0x61, 0x65, 0x29, 0x73, 0x75, 0x90, 0x71, 0x72, 0x94, 0x68, 0x6A, 0x62)
)
"""Opcodes that make no object."""
