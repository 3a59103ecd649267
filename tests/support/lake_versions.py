"""Tiny lakes of every format version, kept for ever in tests/replay/lake/versions, and what they hold.

`python -m tests.support.lake_versions FOLDER` writes such a lake with the current code. Do so once, when the format changes;
lakes of earlier versions are never written again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from millpond.replay import Lake
from millpond.replay.tools import compact
from tests.support.naive_lake import MIXED, NaiveLake

VERSIONS = Path(__file__).parent.parent / "replay" / "lake" / "versions"
STREAMS = {"a": 2, "b": 3}


def write_lake(folder: Path) -> None:
    """Write two streams of several segments: the oldest one of the first stream is compacted, one append is rolled back."""
    naive, rng = NaiveLake(), np.random.default_rng(0)
    with Lake.create(folder, MIXED, segment_bytes=4_000) as lake:
        for name, lanes in STREAMS.items():
            with lake.writer(name, lanes) as writer:
                for _ in range(4):
                    writer.append(naive.generate(name, lanes, 3, rng, MIXED, fresh=False, ends=0.15))
                writer.append(NaiveLake().generate(name, lanes, 2, rng, MIXED, fresh=False, ends=0))
                writer.rollback(4)
                writer.append(naive.generate(name, lanes, 3, rng, MIXED, fresh=False, ends=0.15))
    compact(folder, "a", keep=2)


def contents(folder: Path) -> dict[str, Any]:
    """Return the number of records and a digest of all stored values of each stream, times excepted."""
    streams: dict[str, Any] = {}
    with Lake(folder) as lake:
        for number, name in enumerate(lake.streams):
            count = lake.view(name).num_records
            stream, numbers = np.full(1, number, np.int32), np.arange(count)[None]
            records, damaged = lake.assembler().records(stream, numbers)
            observed, more = lake.assembler().windows(stream, numbers, records)
            assert not damaged + more
            digest = hashlib.sha256()
            for column in ("flags", "lane", "episode", "episode_step", "reward", "action", "id"):
                digest.update(np.ascontiguousarray(records[0][column]).tobytes())
            for field in sorted(observed):
                digest.update(np.ascontiguousarray(observed[field]).tobytes())
            transitions = [lake.view(name).transitions(stack, n_step) for stack, n_step in ((1, 1), (2, 3))]
            streams[name] = {"records": count, "transitions": transitions, "sha256": digest.hexdigest()}
    return streams


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_lake(target)
    (target / "expected.json").write_text(json.dumps(contents(target), indent=2) + "\n")
