"""The dump of a run that ended by a number that is NaN or infinite: `non_finite/` in its folder.

    batch.safetensors   the batch that gave it, or the steps of the env that returned it; cut to `MAX_BYTES`
    facts.json          message, position, counters, metrics of that step, and the newest records
    config.yaml         the settings at that time

There is one dump per run: that of its newest failure.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millpond.durable import replace_file, replace_json
from millpond.record import read_records

FOLDER, BATCH, FACTS, CONFIG = "non_finite", "batch.safetensors", "facts.json", "config.yaml"
MAX_BYTES = 64 * 2**20
NUM_RECORDS = 20


def save_batch(folder: Path, batch: Mapping[str, Any], address: str = "") -> Path:
    """Write the arrays of a batch into `non_finite/`. If they are too large, only the first of each are kept."""
    import torch
    from safetensors.torch import save

    path = folder / FOLDER / BATCH
    path.parent.mkdir(exist_ok=True)
    tensors = {name: torch.as_tensor(value).detach() for name, value in batch.items()}
    share = min(1.0, MAX_BYTES / max(1, sum(tensor.nbytes for tensor in tensors.values())))
    kept = {
        name: (tensor if share == 1.0 or not tensor.ndim else tensor[: math.ceil(len(tensor) * share)])
        .cpu()
        .contiguous()
        for name, tensor in tensors.items()
    }
    cut = {name: [len(kept[name]), len(whole)] for name, whole in tensors.items() if kept[name].shape != whole.shape}
    replace_file(path, save(kept, {"address": address, "cut": json.dumps(cut)}))
    return path


def remove_batch(folder: Path) -> None:
    """Remove the batch of an earlier failure, if there is one."""
    (folder / FOLDER / BATCH).unlink(missing_ok=True)


def save_facts(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write the facts of a failure, the newest records and a copy of the config into `non_finite/`; return that folder."""
    path = folder / FOLDER
    path.mkdir(exist_ok=True)
    records = list(deque(read_records(folder / "metrics.jsonl"), maxlen=NUM_RECORDS))
    replace_json(path / FACTS, _plain({**facts, "records": records}))
    if (folder / CONFIG).is_file():
        replace_file(path / CONFIG, (folder / CONFIG).read_bytes())
    return path


def _plain(value: Any) -> Any:
    """Return values for JSON, which has no NaN: numbers that are not finite as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
