"""Compare the speed of a lake with a memory map, with the emulator that feeds it, and with torchrl.

    python benchmarks/lake.py                      all but torchrl, 10^6 frames (needs 9 GB of disk, a few minutes)
    python benchmarks/lake.py --peer               torchrl too, in a virtual environment that is created on first use
    python benchmarks/lake.py --only warm,cold --frames 200000
    python benchmarks/lake.py --only huge          a lake of 10^8 transitions (10 GB of disk, ten minutes): open, sample, verify

Frames are real: 20,000 recorded from Gravitar, repeated until there are enough. All sides run in
the same minutes on the same frames, batch 256, stacks of 4 with the next observation, one thread each unless noted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hardware import processor
from millpond.replay import Field, Lake, Schema, Steps

SIDE, STACK, BATCH = 84, 4, 256
LANES, STEPS = 128, 32
RECORDED = 20_000
FRAME = Schema((Field.of("observation", (SIDE, SIDE), "uint8"),), Field("action", (), "int32"))
SMALL = Schema((Field("observation", (4,), "float32"),), Field("action", (), "int32"))
PARTS = ("append", "warm", "cold", "scale", "memory")


def record_frames() -> tuple[np.ndarray, float]:
    """Return real frames, lane by lane, and the emulator's env steps per second."""
    from ale_py.vector_env import AtariVectorEnv

    env = AtariVectorEnv("gravitar", 8, stack_num=1, reward_clipping=False)
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    frames = np.empty((8, RECORDED // 8, SIDE, SIDE), np.uint8)
    began = time.perf_counter()
    for t in range(RECORDED // 8):
        frames[:, t] = env.step(rng.integers(0, 18, 8))[0][:, 0]
    speed = RECORDED / (time.perf_counter() - began)
    env.close()
    return frames.reshape(RECORDED, SIDE, SIDE), speed


def append_all(folder: Path, frames: np.ndarray, count: int) -> float:
    """Append `count` frames, 4,096 per acknowledgement; return env steps per second, including syncs."""
    rng, spent = np.random.default_rng(0), 0.0
    with Lake.create(folder, FRAME) as lake, lake.writer("a", LANES) as writer:
        for k in range(count // (LANES * STEPS)):
            starts = rng.integers(0, RECORDED - STEPS, LANES)
            observation = np.ascontiguousarray(frames[starts[None] + np.arange(STEPS)[:, None]])
            terminated = rng.random((STEPS, LANES)) < 0.001
            zeros = np.zeros((STEPS, LANES), bool)
            steps = Steps(observation, zeros.astype(int), zeros.astype(float), terminated, zeros)
            began = time.perf_counter()
            writer.append(steps)
            spent += (time.perf_counter() - began) if k else 0.0  # the first append compiles
    return (count // (LANES * STEPS) - 1) * LANES * STEPS / spent


def write_raw(path: Path, frames: np.ndarray, count: int) -> None:
    with open(path, "wb") as file:
        for begin in range(0, count, RECORDED):
            frames[: min(RECORDED, count - begin)].tofile(file)
        file.flush()
        os.fsync(file.fileno())


def gather(path: Path, count: int, *, stacks: bool) -> Callable[[np.random.Generator], Any]:
    """Return a function that gathers a batch from uncompressed frames in a memory map.

    With `stacks`, both stacks, as a learner needs them (8 frames); else only the five different frames, the least that must
    be read. (The lake reads those five and returns two views of them.)
    """
    raw = np.memmap(path, np.uint8, "r", shape=(count, SIDE * SIDE))
    offsets = [*range(STACK), *range(1, STACK + 1)] if stacks else [*range(STACK + 1)]
    return lambda rng: raw[(rng.integers(0, count - STACK, BATCH)[:, None] + np.array(offsets)).reshape(-1)]


def per_second(work: Callable[[np.random.Generator], Any], batches: int, seed: int, before: Any = None) -> float:
    """Return transitions per second of wall time, from the median batch."""
    rng, spent = np.random.default_rng(seed), []
    for _ in range(batches):
        if before:
            before()
        began = time.perf_counter()
        work(rng)
        spent.append(time.perf_counter() - began)
    return BATCH / float(np.median(spent))


def throughput(work: Callable[[np.random.Generator], Any], batches: int, threads: int) -> float:
    """Return transitions per second of several threads together."""

    def run(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(batches):
            work(rng)

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(run, range(threads)))
    return threads * batches * BATCH / (time.perf_counter() - began)


def warm(lake: Lake, raw: Path, count: int) -> dict[str, float]:
    """Measure with everything in the page cache. Both sides alternate, so that other load hits both."""
    subprocess.run(
        ["cat", str(raw), *(str(p) for p in lake.folder.rglob("*") if p.is_file())], stdout=subprocess.DEVNULL
    )
    parties: dict[str, Callable[[np.random.Generator], Any]] = {
        "lake": lambda rng: lake.sample(BATCH, rng, stack=STACK),
        "mmap, two stacks": gather(raw, count, stacks=True),
        "mmap, five frames": gather(raw, count, stacks=False),
    }
    for work in parties.values():
        per_second(work, 20, 0)
    result: dict[str, float] = {}
    for threads in (1, 2):
        suffix = "" if threads == 1 else ", 2 threads"
        rounds = [{name: throughput(work, 40, threads) for name, work in parties.items()} for _ in range(9)]
        result.update({name + suffix: float(np.median([r[name] for r in rounds])) for name in parties})
        for name in list(parties)[1:]:
            result[f"ratio to {name}{suffix}"] = float(np.median([r["lake"] / r[name] for r in rounds]))
    return result


def evict(paths: list[Path]) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def cold(lake: Lake, raw: Path, count: int) -> dict[str, float]:
    """Measure with nothing in the page cache: files are evicted before every batch."""
    files = [path for path in lake.folder.rglob("*") if path.is_file()]

    def forget() -> None:  # a map keeps its pages in the cache, so all are mapped again for every batch
        lake.release()
        evict(files)

    ours = per_second(lambda rng: lake.sample(BATCH, rng, stack=STACK), 15, 0, forget)
    theirs = per_second(lambda rng: gather(raw, count, stacks=False)(rng), 5, 0, lambda: evict([raw]))
    return {"lake": ours, "mmap, five frames": theirs, "ratio": ours / theirs}


def small_lake(folder: Path, transitions: int) -> None:
    rng = np.random.default_rng(0)
    steps = min(8_192, transitions // LANES)
    with Lake.create(folder, SMALL) as lake, lake.writer("a", LANES) as writer:
        for _ in range(transitions // (LANES * steps)):
            shape = (steps, LANES)
            observation, ended = rng.random((*shape, 4), np.float32), rng.random(shape) < 0.01
            writer.append(Steps(observation, np.zeros(shape, int), np.zeros(shape), ended, np.zeros(shape, bool)))


OPENED = """
import json, os, sys, time, numpy as np
from millpond.replay import Lake
def resident(): return int(next(l for l in open('/proc/self/status') if l.startswith('RssAnon')).split()[1]) * 1024
rng = np.random.default_rng(0)
with Lake(sys.argv[2]) as warm_up: warm_up.sample(256, rng, stack=4)   # everything compiled and loaded
before = resident()
began = time.perf_counter()
lake = Lake(sys.argv[1])
opened = time.perf_counter() - began
held = resident() - before
rows = sum(lake.view(name).num_records for name in lake.streams)
peak = 0
for _ in range(int(sys.argv[3])):
    batch = lake.sample(256, rng, stack=4)
    peak = max(peak, resident())   # anonymous memory: page cache apart
print(json.dumps({'seconds': opened, 'bytes per record': held / rows, 'rows': rows, 'peak': peak}))
"""


def opened(folder: Path, other: Path, batches: int = 50) -> dict[str, float]:
    """Open a lake in a separate process and measure its time and memory."""
    command = [sys.executable, "-c", OPENED, str(folder), str(other), str(batches)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(run.stdout))


def scale(folder: Path) -> dict[str, float]:
    sizes = {"10^5": 100_000, "10^7": 10_000_000}
    lakes = {}
    for name, transitions in sizes.items():
        small_lake(folder / name, transitions)
        lakes[name] = Lake(folder / name)
    sample = {name: (lambda rng, lake=lake: lake.sample(BATCH, rng, stack=STACK)) for name, lake in lakes.items()}
    for name in sizes:
        per_second(sample[name], 1_500, 0)  # until every page of the maps was touched
    rounds = [{name: per_second(sample[name], 50, k) for name in sizes} for k in range(1, 11)]
    result = {f"sampling from {name}": float(np.median([r[name] for r in rounds])) for name in sizes}
    result["cost at 10^7 / cost at 10^5"] = float(np.median([r["10^5"] / r["10^7"] for r in rounds]))
    process = opened(folder / "10^7", folder / "10^5")
    result["opening 10^7, seconds"], result["resident bytes per record"] = (
        process["seconds"],
        process["bytes per record"],
    )
    for lake in lakes.values():
        lake.close()
    return result


VERIFIED = """
import json, sys, time
from millpond.replay.tools import verify
peak = 0
def note(*_):   # anonymous memory: page cache apart
    global peak
    line = next(line for line in open('/proc/self/status') if line.startswith('RssAnon'))
    peak = max(peak, int(line.split()[1]) * 1024)
began = time.perf_counter()
report = verify(sys.argv[1], progress=note)
assert report.good, report.lines()
print(json.dumps({'seconds': time.perf_counter() - began, 'readable': sum(s.readable for s in report.streams), 'peak': peak}))
"""


def huge(folder: Path, transitions: int) -> dict[str, float]:
    """Append small compressed frames, then open, sample and verify in separate processes."""
    schema = Schema((Field("observation", (4, 4), "uint8", "lz4"),), Field("action", (), "int32"))
    rng, steps = np.random.default_rng(0), 1_024
    shape, zeros = (steps, LANES), np.zeros((steps, LANES))
    noise = [rng.integers(0, 256, (*shape, 4, 4), np.uint8) for _ in range(4)]
    began = time.perf_counter()
    for name, count in (("tiny", 1), ("huge", -(-transitions // (steps * LANES)))):
        with Lake.create(folder / name, schema) as lake, lake.writer("a", LANES) as writer:
            for k in range(count):
                ended = rng.random(shape) < 0.01
                writer.append(Steps(noise[k % 4], zeros.astype(int), zeros, ended, zeros > 0))
    appended = time.perf_counter() - began
    process = opened(folder / "huge", folder / "tiny", 200)
    with Lake(folder / "huge") as lake:
        sample = per_second(lambda rng: lake.sample(BATCH, rng, stack=STACK), 400, 0)
        count = lake.transitions()
    with Lake(folder / "tiny") as lake:
        tiny = per_second(lambda rng: lake.sample(BATCH, rng, stack=STACK), 400, 0)
    run = subprocess.run(
        [sys.executable, "-c", VERIFIED, str(folder / "huge")], capture_output=True, text=True, check=True
    )
    verified = json.loads(run.stdout)
    return {
        "transitions": count,
        "GB on disk": sum(p.stat().st_size for p in (folder / "huge").rglob("*") if p.is_file()) / 1e9,
        "appending, seconds": appended,
        "opening, seconds": process["seconds"],
        "resident bytes per record": process["bytes per record"],
        "peak MB while sampling": process["peak"] / 1e6,
        "sampling per second": sample,
        "sampling per second from 10^5": tiny,
        "verifying, seconds": verified["seconds"],
        "transitions verified": verified["readable"],
        "peak MB while verifying": verified["peak"] / 1e6,
    }


def memory(folder: Path) -> dict[str, float]:
    """Measure memory while sampling from 5 GB of noise, which does not compress."""
    rng, appends = np.random.default_rng(0), 180
    for name, count in (("tiny", 1), ("large", appends)):
        with Lake.create(folder / name, FRAME) as lake, lake.writer("a", LANES) as writer:
            zeros = np.zeros((STEPS, LANES), bool)
            for _ in range(count):
                noise = rng.integers(0, 256, (STEPS, LANES, SIDE, SIDE), np.uint8)
                writer.append(Steps(noise, zeros.astype(int), zeros.astype(float), zeros, zeros))
    process = opened(folder / "large", folder / "tiny", 300)
    return {
        "GB on disk": sum(p.stat().st_size for p in (folder / "large").rglob("*.lz4")) / 1e9,
        "peak MB": process["peak"] / 1e6,
    }


def peer(frames: Path, count: int, cache: Path) -> dict[str, Any]:
    """Measure torchrl in a separate virtual environment."""
    python = cache / "bin" / "python"
    if not python.exists():
        print(f"making {cache} with torch and torchrl", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(cache)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "torch", "torchrl", "tensordict", "numpy"], check=True
        )
    script = Path(__file__).with_name("lake_torchrl.py")
    run = subprocess.run(
        [str(python), str(script), str(frames), str(count)], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(f"torchrl failed:\n{run.stderr}")
    return dict(json.loads(run.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}, huge")
    parser.add_argument("--transitions", type=int, default=100_000_000, help="of the part huge")
    parser.add_argument("--peer", action="store_true", help="measure torchrl too")
    parser.add_argument("--peer-environment", type=Path, default=Path.home() / ".cache" / "millpond" / "torchrl")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    work = Path(tempfile.mkdtemp(prefix="lake-benchmark-", dir=arguments.folder))
    print(f"{processor()}; {arguments.frames:,} frames of {SIDE} x {SIDE}, stacks of {STACK}, batch {BATCH}")
    results: dict[str, Any] = {}

    def show(name: str, values: dict[str, Any]) -> None:
        results[name] = values
        print(name, *(f"  {key}: {value:,.3f}" for key, value in values.items()), sep="\n", flush=True)

    try:
        if {"append", "warm", "cold"} & set(parts):
            frames, emulator = record_frames()
            appended = append_all(work / "lake", frames, arguments.frames)
            show("append", {"lake": appended, "emulator": emulator, "ratio": appended / emulator})
            count = arguments.frames // (LANES * STEPS) * LANES * STEPS
            if {"warm", "cold"} & set(parts):
                write_raw(work / "raw", frames, count)
                with Lake(work / "lake") as lake:
                    for name, measure in (("warm", warm), ("cold", cold)):
                        if name in parts:
                            show(name, measure(lake, work / "raw", count))
                        if name in parts and arguments.peer:
                            np.save(work / "frames.npy", frames)
                if arguments.peer:
                    (work / "raw").unlink()
                    show("torchrl", peer(work / "frames.npy", count, arguments.peer_environment))
                    for name, key in (("warm", "warm, stacks as stored"), ("cold", "cold, stacks as stored")):
                        if name in results:
                            show(f"{name} against torchrl", {"ratio": results[name]["lake"] / results["torchrl"][key]})
        if "scale" in parts:
            show("scale", scale(work))
        if "memory" in parts:
            show("memory", memory(work / "memory"))
        if "huge" in parts:
            show("huge", huge(work / "huge", arguments.transitions))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
