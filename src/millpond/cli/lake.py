"""The commands `lake info`, `verify`, `compact`, `repair`, `export` and `import`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.options import JsonOption
from millpond.cli.output import print_json, print_text, progress
from millpond.formatting import plural

lake = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""Inspect, verify, compact and repair a lake, and export or import its episodes.

    \b
      millpond lake info runs/mixture-1/lake
      millpond lake verify runs/mixture-1/lake
      millpond lake compact runs/mixture-1/lake --keep 2
      millpond lake repair runs/mixture-1/lake
      millpond lake export runs/mixture-1/lake gravitar.npz
      millpond lake import demonstrations demos.hdf5""",
)

PathArgument = Annotated[Path, typer.Argument(metavar="PATH", help="Folder of a lake.")]
StreamOption = Annotated[str | None, typer.Option("--stream", metavar="NAME", help="Only this stream.")]


@lake.command()
def info(path: PathArgument, json: JsonOption = False) -> None:
    """Describe a lake: streams, episodes, transitions, bytes raw and stored, returns by stream and round.

    \b
      millpond lake info runs/mixture-1/lake
      millpond lake info runs/mixture-1/lake --json
    """
    from millpond.replay.tools import info as read_info

    with progress("reading") as update:
        contents = read_info(path, progress=update)
    if json:
        print_json(contents.to_json())
    else:
        print_text("\n".join(contents.lines()))


@lake.command()
def verify(path: PathArgument, json: JsonOption = False) -> None:
    """Verify every checksum; print what is damaged, and what is still readable. Nothing is changed.

    Exits with 1 if anything is damaged.

    \b
      millpond lake verify runs/mixture-1/lake
      millpond lake verify runs/mixture-1/lake --json
    """
    from millpond.replay.lake.format import require_lake
    from millpond.replay.tools import verify as verify_lake

    require_lake(path)
    with progress("verifying") as update:
        report = verify_lake(path, progress=update)
    if json:
        print_json({"good": report.good, **asdict(report)})
    else:
        print_text("\n".join(report.lines()))
    if not report.good:
        raise typer.Exit(1)


@lake.command()
def compact(
    path: PathArgument,
    stream: StreamOption = None,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Newest files per stream to leave unchanged.")] = 1,
    json: JsonOption = False,
) -> None:
    """Rewrite old files in less space: zstd over several frames instead of lz4 per frame.

    Readers and writers may continue meanwhile. Samples stay the same, and cost more to draw from compacted files.
    A lake of an older format is upgraded first, all its files: this needs as much free space again, and no active writer.

    \b
      millpond lake compact runs/mixture-1/lake
      millpond lake compact runs/mixture-1/lake --stream agent0 --keep 2
    """
    from millpond.replay.tools import compact as compact_lake

    with progress("compacting") as update:
        done = compact_lake(path, stream, keep=keep, progress=update)
    if json:
        print_json(asdict(done))
        return
    if done.upgraded_from is not None:
        print_text(f"{path}: upgraded from format version {done.upgraded_from}")
    if done.segments:
        ratio = f"{done.before / max(done.after, 1):.1f} times smaller"
        print_text(
            f"{path}: {plural(done.segments, 'file')} compacted, {done.before:,} -> {done.after:,} bytes of frames ({ratio})"
        )
    else:
        print_text(
            f"{path}: nothing to compact; the newest {keep} per stream, and files without frames, stay unchanged"
        )


@lake.command()
def repair(
    path: PathArgument,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Write down what is lost, and go on without it.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Make a damaged lake usable again: rebuild what can be rebuilt, and list what is lost.

    A writer refuses a stream that has lost acknowledged data, and `sample` raises an error. This command lists the loss, and
    changes nothing unless there is none, or --accept-loss is given: then the lost records are written down in losses.json,
    and are left out from then on. Exits with 1 if there is a loss that was not accepted.

    \b
      millpond lake repair runs/mixture-1/lake
      millpond lake repair runs/mixture-1/lake --accept-loss
    """
    from millpond.replay.tools import repair as repair_lake

    with progress("verifying") as update:
        report = repair_lake(path, accept_loss=accept_loss, progress=update)
    if json:
        print_json(asdict(report))
    else:
        print_text("\n".join(report.lines()))
    if report.lost and not report.accepted:
        raise typer.Exit(1)


@lake.command("export")
def export_episodes(
    path: PathArgument,
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A new file FILE.npz, or a new folder for a Minari dataset.")
    ],
    stream: StreamOption = None,
    json: JsonOption = False,
) -> None:
    """Write all complete episodes as a Minari dataset (HDF5), or as one npz file.

    \b
      millpond lake export runs/mixture-1/lake gravitar-random      # Minari
      millpond lake export runs/mixture-1/lake episodes.npz --stream agent0
    """
    from millpond.replay.export import export

    with progress("exporting") as update:
        done = export(path, target, stream=stream, progress=lambda count: update("episodes", count))
    if json:
        print_json(asdict(done))
        return
    lines = [f"{done.path}: {plural(done.episodes, 'episode')}, {plural(done.steps, 'step')}"]
    if done.without_final:
        lines.append(
            f"  note: {plural(done.without_final, 'terminated episode')} without a final observation in the lake; "
            f"the last one is repeated in its place, and flagged"
        )
    print_text("\n".join(lines))


@lake.command("import")
def import_into_lake(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Folder of a lake; it is created if it is missing.")],
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="Recorded episodes, in any format that `millpond data info` reads."),
    ],
    stream: Annotated[str, typer.Option("--stream", metavar="NAME", help="Stream to append to.")] = "imported",
    json: JsonOption = False,
) -> None:
    """Append recorded episodes to a stream of a lake.

    \b
      millpond lake import demonstrations demos.hdf5
      millpond lake import runs/mixture-1/lake episodes.npz --stream human
    """
    from millpond.data.lake import import_episodes

    with progress("importing") as update:
        done = import_episodes(source, path, stream=stream, progress=lambda count: update("episodes", count))
    if json:
        print_json(asdict(done))
    else:
        lines = [
            f"{path}: {plural(done.episodes, 'episode')}, {plural(done.steps, 'step')} into stream {done.stream!r}"
        ]
        print_text("\n".join([*lines, *(f"  note: {note}" for note in done.notes)]))
