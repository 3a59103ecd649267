"""Lakes with hostile numbers and valid checksums, as a stranger may send them, and everything that reads them.

    python -m tests.support.lake_fuzz --cases 500 --seed 0

Each case copies a small lake, changes some fields of one of its files, makes the checksums right again, and then calls
everything that opens a lake. Allowed are an error of a lake and a result; a crash of the process, any other exception, and more
memory or time than the lake's size explains are not. Run it with NUMBA_BOUNDSCHECK=1 (and a NUMBA_CACHE_DIR of its own) to have
every index in compiled code checked.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import resource
import shutil
import signal
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from millpond.errors import MillpondError
from millpond.replay import Lake
from millpond.replay.export import export
from millpond.replay.lake.checksum import Binding, consecutive_places, record_checksums
from millpond.replay.lake.codec import CHUNK_HEADER, CHUNK_MAGIC
from millpond.replay.lake.format import HEAD_BYTES, HEAD_LAYOUTS, signed_json
from millpond.replay.lake.index import INDEX_HEADER
from millpond.replay.lake.log import commit_dtype, entry_checksums
from millpond.replay.tools import compact, info, repair, verify
from tests.support.naive_lake import MIXED, NaiveLake

LANES = 3
SECONDS = 60  # for one case
MEMORY = 2 << 30  # in addition to what the process has
EXTREME = (0, 1, 2, 3, 7, 255, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)


def make_lake(folder: Path) -> None:
    """Write several segments of two streams, one of them compacted."""
    naive, rng = NaiveLake(), np.random.default_rng(0)
    with Lake.create(folder, MIXED, segment_bytes=4_000) as lake:
        for name in ("a", "b"):
            with lake.writer(name, LANES) as writer:
                for _ in range(6):
                    writer.append(naive.generate(name, LANES, 3, rng, MIXED, fresh=False, ends=0.2))
    compact(folder, "a", keep=2)


class Forger:
    """Changes one file of stream `a` and makes its checksums right again."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.stream = folder / "streams" / "a"
        self.binding = Binding.of(json.loads((folder / "lake.json").read_text())["id"], "a")

    def number(self, bits: int = 32) -> int:
        """Return an extreme number, or a random one."""
        value = self.chance.choice(EXTREME) if self.chance.random() < 0.7 else self.chance.getrandbits(bits)
        return value & ((1 << bits) - 1)

    def commits(self) -> str:
        entries = np.frombuffer((self.stream / "commits").read_bytes(), commit_dtype(LANES)).copy()
        changed = []
        for _ in range(self.chance.randint(1, 3)):
            row = self.chance.randrange(len(entries))
            name = self.chance.choice([n for n in entries.dtype.names or () if n not in ("checksum", "time")])
            if name == "lane_rows":
                entries[name][row, self.chance.randrange(LANES)] = self.number()
            else:
                entries[name][row] = self.number(64 if name == "number" else 32)
            changed.append(name)
        entries["checksum"] = entry_checksums(entries, self.binding, 0)
        (self.stream / "commits").write_bytes(entries.tobytes())
        return f"commits: {changed}"

    def records(self) -> str:
        segment = self.chance.choice([0, 1, 2])
        path = self.stream / f"{segment:06d}.steps"
        records = np.frombuffer(path.read_bytes(), MIXED.record).copy()
        changed = []
        for _ in range(self.chance.randint(1, 6)):
            row = self.chance.randrange(len(records))
            name = self.chance.choice(["flags", "lane", "episode", "episode_step", "frame_end", "round", "reward"])
            value = self.number(8 if name == "flags" else 16 if name == "lane" else 32)
            records[name][row] = self.chance.choice([np.nan, np.inf, -1e38]) if name == "reward" else value
            changed.append(name)
        places = consecutive_places(segment, 0, len(records))
        records["checksum"] = record_checksums(records, self.binding, "steps", places)
        path.write_bytes(records.tobytes())
        if self.chance.random() < 0.7:  # or a reader trusts the index
            path.with_suffix(".index").unlink(missing_ok=True)
        return f"steps {segment}: {changed}"

    def index(self) -> str:
        segment = self.chance.choice([0, 1])
        path = self.stream / f"{segment:06d}.index"
        data = path.read_bytes()
        magic, codec, rows, _ = INDEX_HEADER.unpack_from(data)
        body = bytearray(data[INDEX_HEADER.size :])
        for _ in range(self.chance.randint(1, 8)):
            if self.chance.random() < 0.5:
                body[self.chance.randrange(rows)] = self.number(8)
            else:
                struct.pack_into("<I", body, rows + 4 * self.chance.randrange(rows), self.number())
        rows = self.chance.choice([rows, rows, rows, self.number(64)])
        covered = struct.pack("<4sQ", codec, rows) + bytes(body)
        path.write_bytes(INDEX_HEADER.pack(magic, codec, rows, self.binding.checksum(covered, "index", segment)) + body)
        return f"index {segment}"

    def head(self) -> str:
        layout, magic = HEAD_LAYOUTS[True]
        data = bytearray((self.stream / "head").read_bytes().ljust(2 * HEAD_BYTES, b"\0"))
        for place in (0, HEAD_BYTES):
            body = bytes(data[place : place + layout.size])
            if body.startswith(magic):
                _, boot, *numbers = layout.unpack(body)
                numbers[self.chance.randrange(len(numbers))] = self.number(64)
                body = layout.pack(magic, boot, *numbers)
                checksum = self.binding.checksum(body, "head").to_bytes(4, "little")
                data[place : place + HEAD_BYTES] = body + checksum
        (self.stream / "head").write_bytes(data)
        return "head"

    def chunk(self) -> str:
        path = self.stream / "000000.zst"
        data = bytearray(path.read_bytes())
        _, length, count, _ = CHUNK_HEADER.unpack_from(data)
        begin = CHUNK_HEADER.size
        numbers, packed = bytes(data[begin : begin + 4 * count]), bytes(data[begin + 4 * count :][:length])
        kind = self.chance.choice(["bomb", "declared", "count", "numbers", "length", "noise"])
        if kind == "bomb":
            packed = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 28))
        elif kind == "declared":  # a frame header that declares 2^40 bytes, and a block of one repeated byte
            packed = struct.pack("<IBQ", 0xFD2FB528, 0xE0, 1 << 40) + b"\x0b\x00\x00\x00"
        elif kind == "numbers":
            numbers = b"".join(struct.pack("<I", self.number()) for _ in range(count))
        elif kind == "noise":
            packed = packed[:8] + self.chance.randbytes(len(packed) - 8)
        stated = (self.number() if kind == "length" else len(packed), self.number() if kind == "count" else count)
        covered = struct.pack("<II", *stated) + numbers + packed
        header = CHUNK_HEADER.pack(CHUNK_MAGIC, *stated, self.binding.checksum(covered, "chunk", 0))
        path.write_bytes(header + numbers + packed + bytes(data[begin + 4 * count + length :]))
        if self.chance.random() < 0.5:
            (self.stream / "000000.index").unlink()
        return f"chunk: {kind}"

    def frames(self) -> str:
        path = self.stream / "000002.lz4"
        data = bytearray(path.read_bytes())
        length = int.from_bytes(data[:4], "little")
        block = self.chance.randbytes(length)
        stated = self.chance.choice([length, length, self.number()])
        checksum = self.binding.checksum(block, "frame 0", 2, 0)
        data[: 8 + length] = struct.pack("<II", stated, checksum) + block
        path.write_bytes(data)
        return "frames"

    def manifest(self) -> str:
        path = self.folder / "lake.json"
        tree = json.loads(path.read_text())
        tree.pop("crc32c")
        strange: list[Any] = [None, -1, 0, 10**12, 2**70, 1e300, "x", "../up", "\x1b[31m", [], {}, True, [[]] * 50]
        kind = self.chance.choice(["top", "field", "shape", "deep", "text"])
        if kind == "top":
            tree[self.chance.choice(list(tree))] = self.chance.choice(strange)
        elif kind == "field":
            field = self.chance.choice([tree["schema"]["action"], *tree["schema"]["observation"]])
            field[self.chance.choice(list(field))] = self.chance.choice(
                [*strange, "O", "object", "V99", "U9", "float16"]
            )
        elif kind == "shape":
            field = self.chance.choice([tree["schema"]["action"], *tree["schema"]["observation"]])
            field["shape"] = [self.chance.choice([-1, 0, 10**12, 2**40, 3]) for _ in range(self.chance.randint(1, 40))]
        if kind == "deep":
            path.write_text("[" * 100_000)
        elif kind == "text":
            path.write_bytes(self.chance.randbytes(300))
        else:
            path.write_bytes(signed_json(tree))
        return f"manifest: {kind}"

    def stream_json(self) -> str:
        tree = json.loads((self.stream / "stream.json").read_text())
        tree.pop("crc32c")
        tree[self.chance.choice(list(tree))] = self.chance.choice([None, -1, 0, 2, 4, 10**12, "b", [], True, 1.5])
        (self.stream / "stream.json").write_bytes(signed_json(tree))
        return "stream.json"

    def special_file(self) -> str:
        path = self.chance.choice([p for p in self.folder.rglob("*") if p.is_file()])
        path.unlink()
        kind = self.chance.choice(["fifo", "zero", "loop", "folder", "outside"])
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            target = {"zero": "/dev/zero", "loop": path.name, "outside": "/etc/hostname"}[kind]
            path.symlink_to(target)
        return f"{path.name}: {kind}"

    def losses(self) -> str:
        loss = {"segment": self.number(33), "begin": self.number(33), "end": self.number(33), "reason": "\x1b[31m"}
        tree = {"stream": "a", "losses": self.chance.choice([[loss], [loss] * 3, [None], {}, 7])}
        (self.stream / "losses.json").write_bytes(signed_json(tree))
        return "losses"

    def forge(self) -> str:
        """Change something; return what."""
        kinds: list[Callable[[], str]] = [
            self.commits, self.commits, self.records, self.records, self.index, self.head, self.chunk, self.frames,
            self.manifest, self.stream_json, self.special_file, self.losses,
        ]  # fmt: skip
        return self.chance.choice(kinds)()


def read_everything(folder: Path, chance: random.Random) -> str:
    """Call everything that opens a lake; return how it went."""
    outcomes = set()

    def attempt(work: Callable[[], object]) -> None:
        try:
            work()
            outcomes.add("read")
        except MillpondError:
            outcomes.add("refused")
        except OSError as error:
            if not error.filename:  # it would not say what is wrong
                raise
            outcomes.add("refused")

    def sample() -> None:
        rng = np.random.default_rng(chance.getrandbits(32))
        with Lake(folder) as lake:
            attempt(lambda: lake.sample(20, rng, on_damage="skip"))
            attempt(lambda: lake.sample(20, rng, stack=2, n_step=3, on_damage="skip"))
            attempt(lambda: lake.sample(20, rng))
            attempt(lambda: lake.sample_sequences(3, rng, length=2, burn_in=1))
            attempt(lambda: list(lake.episodes()))

    def write() -> None:
        with Lake(folder) as lake, lake.writer("a", LANES) as writer:
            writer.append(NaiveLake().generate("a", LANES, 2, np.random.default_rng(0), MIXED, fresh=True, ends=0))
            writer.rollback(max(writer.position - 2, 0))

    attempt(lambda: info(folder).lines())
    attempt(lambda: verify(folder).lines())
    attempt(sample)
    attempt(lambda: export(folder, folder.parent / "export.npz"))
    attempt(write)
    attempt(lambda: compact(folder))
    attempt(lambda: repair(folder, accept_loss=True).lines())
    attempt(sample)
    return "refused" if outcomes == {"refused"} else "read" if outcomes == {"read"} else "partly"


def main() -> None:
    parser = argparse.ArgumentParser(description="Open lakes with hostile numbers and valid checksums.")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        intact = Path(scratch) / "intact"
        make_lake(intact)
        copy = Path(scratch) / "warm" / "lake"
        shutil.copytree(intact, copy)
        assert read_everything(copy, random.Random(0)) == "read"  # compiles, before the limits
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        for case in range(arguments.cases):
            chance = random.Random(arguments.seed * 1_000_003 + case)
            folder = Path(scratch) / f"case{case}" / "lake"
            shutil.copytree(intact, folder)
            changed = Forger(folder, chance).forge()
            signal.alarm(SECONDS)
            try:
                counts[read_everything(folder, chance)] += 1
            except BaseException:
                print(f"case {case}, seed {arguments.seed}: {changed}", flush=True)
                raise
            signal.alarm(0)
            shutil.rmtree(folder.parent)
    shares = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    print(f"{arguments.cases} hostile lakes: {shares}; no crash, no other exception", flush=True)


if __name__ == "__main__":
    main()
