"""What a disk may hold after the power went: images built from a journal that shim.c wrote.

The model, in four sentences. A file's content is durable up to its last finished fsync or fdatasync; a write or a
change of size after that may be there, or not, or in part, down to single sectors of 512 bytes. The names in a folder
are durable up to the last finished fsync of that folder; later creations, removals and renames are there up to some
point in their order and not beyond it. A file whose name is not there is gone with all that was synced into it. What
was there before the recording began is durable.

It is harsher than most file systems, which sync a new file's name with the file, and it never gives credit for more
than was asked for. Bytes outside a torn write keep their old value (SQLite relies on that, and calls it powersafe
overwrite).
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
_HEADER = struct.Struct("=IIQQQQ")
_MAGIC = 0x50435554

#: How unsynced changes end: all lost, all kept, kept up to a torn one, or each sector on its own.
FATES = ("lost", "kept", "torn", "scattered")


class UnmodelledError(Exception):
    """The journal holds something that the model does not know."""


@dataclass(frozen=True, slots=True)
class Record:
    kind: str
    thread: int
    inode: int
    offset: int
    data: bytes

    @property
    def path(self) -> str:
        return os.fsdecode(self.data)


def acknowledge(log: int, text: str) -> None:
    """Write a note of the recorded program into the journal, a file descriptor opened for appending."""
    data = text.encode()
    os.writev(log, [_HEADER.pack(_MAGIC, ord("A"), 0, 0, 0, len(data)), data])


def read_journal(path: str | os.PathLike[str]) -> list[Record]:
    """All whole records; a killed process cannot leave half of one, a full disk could."""
    text = Path(path).read_bytes()
    records, position = [], 0
    while position + _HEADER.size <= len(text):
        magic, kind, thread, inode, offset, length = _HEADER.unpack_from(text, position)
        if magic != _MAGIC:
            raise UnmodelledError(f"not a record at byte {position} of {path}")
        position += _HEADER.size
        records.append(Record(chr(kind), thread, inode, offset, text[position : position + length]))
        position += length
    return records


@dataclass(frozen=True, slots=True)
class _Naming:
    """One change of a folder: an old name goes, a new one comes; a rename is both or neither."""

    old: str | None
    new: str | None = None
    node: _Node | None = None


@dataclass(slots=True, eq=False)
class _Node:
    """A file or folder: what is durable, and what was done since."""

    is_folder: bool = False
    content: bytearray = field(default_factory=bytearray)
    names: dict[str, _Node] = field(default_factory=dict)
    pending: list[tuple[int, Record | _Naming]] = field(default_factory=list)


class Disk:
    """Replays a journal; ``image`` says what may be left at the present point of it."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Take the folder as it is now for durable; the recording begins afterwards."""
        self.root = os.path.realpath(root)
        self._inodes: dict[int, _Node] = {}
        self._top = self._load(self.root)
        # Paths as the programs see them now; `names` of a node are what is durable.
        self._paths: dict[str, _Node] = {}
        self._note_paths(self.root, self._top)
        self._begun: dict[tuple[int, int], int] = {}
        self._count = 0

    def _load(self, path: str) -> _Node:
        about = os.lstat(path)
        node = self._inodes[about.st_ino] = _Node(is_folder=os.path.isdir(path))
        if node.is_folder:
            for name in os.listdir(path):
                if not name.endswith("-shm"):
                    node.names[name] = self._load(os.path.join(path, name))
        else:
            node.content = bytearray(Path(path).read_bytes())
        return node

    def _note_paths(self, path: str, node: _Node) -> None:
        self._paths[path] = node
        for name, child in node.names.items():
            self._note_paths(os.path.join(path, name), child)

    def replay(self, record: Record) -> None:
        """Take one step in the journal."""
        self._count += 1
        handler = getattr(self, f"_on_{record.kind}", None)
        if handler is None:
            raise UnmodelledError(f"{record.kind}: {record.data[:200]!r}")
        handler(record)

    def _on_A(self, record: Record) -> None:
        """A note says nothing about files."""

    def _on_W(self, record: Record) -> None:
        self._inodes[record.inode].pending.append((self._count, record))

    _on_T = _on_W

    def _on_C(self, record: Record) -> None:
        known = self._paths.get(record.path)
        if known is not None and self._inodes.get(record.inode) is known:
            return  # two processes made it at once, and both say so
        # An inode number is used again after its file is gone.
        self._add(record.path, _Node(is_folder=record.offset == 1), record.inode)

    _on_M = _on_C

    def _add(self, path: str, node: _Node, inode: int | None = None) -> None:
        if inode is not None:
            self._inodes[inode] = node
        folder, name = os.path.split(path)
        self._paths[path] = node
        self._paths[folder].pending.append((self._count, _Naming(None, name, node)))

    def _on_U(self, record: Record) -> None:
        folder, name = os.path.split(record.path)
        self._paths.pop(record.path, None)
        self._paths[folder].pending.append((self._count, _Naming(name)))

    def _on_R(self, record: Record) -> None:
        old, new = (os.fsdecode(part) for part in record.data.split(b"\0"))
        node = self._paths.pop(old)
        if node.is_folder or os.path.dirname(old) != os.path.dirname(new):
            raise UnmodelledError(f"rename of a folder or into another one: {old} -> {new}")
        folder = self._paths[os.path.dirname(old)]
        folder.pending.append((self._count, _Naming(os.path.basename(old), os.path.basename(new), node)))
        self._paths[new] = node

    def _on_B(self, record: Record) -> None:
        self._begun[record.thread, record.inode] = self._count

    def _on_E(self, record: Record) -> None:
        begun = self._begun.pop((record.thread, record.inode))
        node = self._inodes[record.inode]
        done = [entry for entry in node.pending if entry[0] < begun]
        node.pending = [entry for entry in node.pending if entry[0] >= begun]
        for _, change in done:
            if isinstance(change, Record):
                _apply(node.content, change)
            else:
                _rename(node.names, change)

    def image(self, chance: random.Random, fate: str | None = None) -> dict[str, bytes | None]:
        """Relative paths and contents (None for a folder) of what may be left if the power went now."""
        left: dict[str, bytes | None] = {}
        self._collect("", self._top, chance, fate, left)
        return left

    def _collect(
        self, path: str, node: _Node, chance: random.Random, fate: str | None, left: dict[str, bytes | None]
    ) -> None:
        chosen = fate or chance.choice(FATES)
        if not node.is_folder:
            left[path] = _content(node, chance, chosen)
            return
        if path:
            left[path] = None
        for name, child in sorted(_names(node, chance, chosen).items()):
            self._collect(os.path.join(path, name), child, chance, fate, left)


def _rename(names: dict[str, _Node], change: _Naming) -> None:
    if change.old is not None:
        names.pop(change.old, None)
    if change.new is not None and change.node is not None:
        names[change.new] = change.node


def _names(node: _Node, chance: random.Random, fate: str) -> dict[str, _Node]:
    names = dict(node.names)
    kept = {"lost": 0, "kept": len(node.pending)}.get(fate, chance.randint(0, len(node.pending)))
    for _, change in node.pending[:kept]:
        if isinstance(change, _Naming):
            _rename(names, change)
    return names


def _apply(content: bytearray, change: Record) -> None:
    if change.kind == "T":
        del content[change.offset :]
        content.extend(bytes(change.offset - len(content)))
        return
    if len(content) < change.offset:
        content.extend(bytes(change.offset - len(content)))
    content[change.offset : change.offset + len(change.data)] = change.data


def _sectors(change: Record) -> Iterator[Record]:
    """The write, cut at the borders of sectors."""
    start, end = change.offset, change.offset + len(change.data)
    while start < end:
        border = min(end, (start // SECTOR + 1) * SECTOR)
        data = change.data[start - change.offset : border - change.offset]
        yield Record("W", 0, 0, start, data)
        start = border


def _content(node: _Node, chance: random.Random, fate: str) -> bytes:
    content = bytearray(node.content)
    changes = [change for _, change in node.pending if isinstance(change, Record)]
    if fate == "kept":
        kept = changes
    elif fate == "torn" and changes:
        whole = chance.randrange(len(changes))
        kept, last = changes[:whole], changes[whole]
        if last.kind == "W":
            pieces = list(_sectors(last))
            kept = kept + pieces[: chance.randint(0, len(pieces))]
    elif fate == "scattered":
        share = chance.choice((0.1, 0.5, 0.9))
        pieces = [piece for change in changes for piece in (_sectors(change) if change.kind == "W" else (change,))]
        kept = [piece for piece in pieces if chance.random() < share]
    else:
        kept = []
    for change in kept:
        _apply(content, change)
    return bytes(content)


def write_image(image: dict[str, bytes | None], folder: str | os.PathLike[str]) -> None:
    """Make the image's files and folders below ``folder``."""
    for name, content in image.items():
        path = Path(folder) / name
        if content is None:
            path.mkdir(exist_ok=True)
        else:
            path.write_bytes(content)
