"""Our lake's side: create it once from real frames, then measure it. Prints JSON.

ours_lake.py make FOLDER FRAMES
ours_lake.py measure FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from lake import BATCH, LANES, STACK, STEPS, append_all, evict, per_second, record_frames
from millpond.replay import Lake


def make(folder: Path, count: int) -> dict[str, float]:
    frames, emulator = record_frames()
    np.save(folder / "frames.npy", frames)
    count = max(2, count // (LANES * STEPS)) * LANES * STEPS  # the first append compiles and is not timed
    return {"frames": count, "append": append_all(folder / "lake", frames, count), "emulator": emulator}


def measure(folder: Path) -> dict[str, float]:
    with Lake(folder / "lake") as lake:
        files = [path for path in lake.folder.rglob("*") if path.is_file()]

        def sample(rng: np.random.Generator) -> None:
            lake.sample(BATCH, rng, stack=STACK)

        def forget() -> None:  # a map keeps its pages in the cache, so all are mapped again for every batch
            lake.release()
            evict(files)

        per_second(sample, 20, 0)
        return {"warm": per_second(sample, 60, 1), "cold": per_second(sample, 15, 2, forget)}


if __name__ == "__main__":
    place = Path(sys.argv[2])
    print(json.dumps(make(place, int(sys.argv[3])) if sys.argv[1] == "make" else measure(place)))
