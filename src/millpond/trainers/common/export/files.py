"""Write a policy's step as an ONNX file or a program of torch.export, with a description of its names inside.

An ONNX file is run by onnxruntime and compared with the policy before it is written. Every number agrees to 1e-5 of its unit
plus 1e-5 of itself. The unit is 1, unless the policy scales the output: the value by the deviation of returns, numbers by
their bounds.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
import zipfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from millpond.durable import replace_file
from millpond.envs.spaces import ActionLayout, ObservationLayout
from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError
from millpond.policies.encoders.grid import GridEncoder, plain_grid_sum
from millpond.policies.encoders.tokens import TokenEncoder, plain_token_sum
from millpond.trainers.common.export.step import PolicyStep, describe_action

ExportFormat = Literal["onnx", "torch"]
SUFFIXES: dict[str, ExportFormat] = {".onnx": "onnx", ".pt2": "torch"}
METADATA = "millpond"  # the key of the description in an ONNX file; in a .pt2 file it is millpond.json
TRIED = (1, 3)  # sizes of the batches with which an exported policy is compared
STEPS = 3  # of each, with the state of the step before
TOLERANCE = 1e-5  # of a number's unit, and of the number itself
TRACED = 2  # size of the batch that is traced; 0 and 1 would become constants


class ExportError(MillpondError):
    """A policy cannot be exported as requested."""


def export_policy(
    network: Any,
    spec: EnvSpec,
    path: str | Path,
    format: str | None = None,
    *,
    observations: ObservationLayout | None = None,
    actions: ActionLayout | None = None,
    about: dict[str, Any] | None = None,
) -> Path:
    """Write one step of a policy to a file, and return its path.

    `format` is `onnx` or `torch`; None takes the one of the file's ending, .onnx or .pt2. The layouts are those of the
    env's spaces, if it has any; `about` is added to the description.
    """
    path, chosen = _require_path(path, format)
    if chosen == "onnx":
        _require_onnx()
    step = PolicyStep(_plain_copy(network), spec, observations, actions)
    inputs = step.draw(TRACED, torch.Generator().manual_seed(0))
    with torch.no_grad(), _quiet():
        outputs = step(inputs)
        try:
            program = _trace(step, inputs)
        except Exception as error:
            raise ExportError(
                f"torch.export cannot trace this policy ({type(network).__name__}): {_first_line(error)}. Custom networks "
                "must not let Python code depend on values of tensors: see docs/export.md"
            ) from error
        described = json.dumps(_describe(step, outputs, about or {}), indent=1)
        data = _onnx_bytes(program, step, outputs, described) if chosen == "onnx" else _torch_bytes(program, described)
    if chosen == "onnx":
        _compare(data, step)
    replace_file(path, data)
    return path


def read_description(path: Path) -> dict[str, Any]:
    """Return the description inside an exported file: names, shapes and meanings of its inputs and outputs."""
    if zipfile.is_zipfile(path):  # a program of torch
        with zipfile.ZipFile(path) as archive:
            text = archive.read(
                next(name for name in archive.namelist() if name.endswith(f"/{METADATA}.json"))
            ).decode()
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        text = session.get_modelmeta().custom_metadata_map[METADATA]
    described: dict[str, Any] = json.loads(text)
    return described


def _plain_copy(network: nn.Module) -> nn.Module:
    """Return a copy on the CPU whose encoders use operations that every runtime has."""
    copy = deepcopy(network).cpu().eval()
    for module in copy.modules():
        if isinstance(module, GridEncoder):
            module.look_up = plain_grid_sum
        if isinstance(module, TokenEncoder):
            module.look_up = plain_token_sum
    return copy


def _require_path(path: str | Path, format: str | None) -> tuple[Path, ExportFormat]:
    path = Path(path)
    chosen = SUFFIXES.get(path.suffix) if format is None else format
    if chosen not in SUFFIXES.values():
        given = f"format={format!r}" if format is not None else f"{str(path)!r} ends in {path.suffix or 'nothing'}"
        raise ExportError(f"{given}: a policy is exported as onnx (FILE.onnx) or torch (FILE.pt2); set one of these")
    if not path.parent.is_dir():
        raise ExportError(f"there is no folder {str(path.parent)!r} for {path.name}; create it first")
    return path, chosen  # type: ignore[return-value]


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ExportError(
            f"exporting to ONNX needs {error.name}, which is not installed: pip install 'millpond[export]' "
            "(format='torch' needs nothing more)"
        ) from error


def _trace(step: PolicyStep, inputs: dict[str, Tensor]) -> Any:
    """Return the program of a step, for any size of the batch."""
    batch = torch.export.Dim("batch", min=1, max=2**20)
    return torch.export.export(step, (inputs,), dynamic_shapes=({name: {0: batch} for name in inputs},), strict=False)


def _describe(step: PolicyStep, outputs: dict[str, Tensor], about: dict[str, Any]) -> dict[str, Any]:
    action = step.spec.action
    return {
        "format": "a step of a millpond policy, version 1",
        **about,
        "env": step.spec.id,
        "agents": step.spec.num_agents,
        "inputs": [one.to_json() for one in step.inputs],
        "outputs": [one.to_json() for one in step.outputs(outputs)],
        "action": {"kind": action.kind, "meaning": describe_action(action), "choices": list(action.sizes)},
    }


def _onnx_bytes(program: Any, step: PolicyStep, outputs: dict[str, Tensor], described: str) -> bytes:
    exported = torch.onnx.export(
        program,
        (),
        dynamo=True,
        verbose=False,
        input_names=[one.name for one in step.inputs],
        output_names=list(outputs),
    )
    assert exported is not None
    model = exported.model_proto
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA, described
    data: bytes = model.SerializeToString()
    return data


def _torch_bytes(program: Any, described: str) -> bytes:
    program.example_inputs = None  # they would be stored as a pickle
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={f"{METADATA}.json": described})
    return buffer.getvalue()


def _compare(data: bytes, step: PolicyStep) -> None:
    """Refuse a file with which onnxruntime does not compute what the policy does, over a few steps.

    Choices are compared by their logits: two options may be equally good.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    generator, units, one = torch.Generator().manual_seed(1), step.units(), torch.ones(())
    for batch in TRIED:
        state: dict[str, Tensor] = {}
        for _ in range(STEPS):
            inputs = step.draw(batch, generator) | state
            with torch.no_grad():
                expected = step(inputs)
            got = session.run(list(expected), {name: tensor.numpy() for name, tensor in inputs.items()})
            for (name, wanted), array in zip(expected.items(), got, strict=True):
                if not wanted.is_floating_point():
                    continue
                away = (torch.from_numpy(array).double() - wanted.double()).abs()
                allowed = TOLERANCE * (units.get(name, one).double() + wanted.double().abs())
                if not bool((away <= allowed).all()):  # NaN is not, either
                    worst = int((away - allowed).nan_to_num(nan=torch.inf).argmax())
                    raise ExportError(
                        f"onnxruntime computes another {name} than the policy: {array.flat[worst]:.9g} instead of "
                        f"{float(wanted.flatten()[worst]):.9g}, where {float(allowed.flatten()[worst]):.1e} are allowed; "
                        "nothing was written. format='torch' may be exact"
                    )
            state = {"state": expected["next_state"]} if step.has_state else {}


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' warnings about their own internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
