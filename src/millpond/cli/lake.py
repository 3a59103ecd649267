"""The verbs of `millpond lake`: what a lake holds, whether it is whole, and how episodes get out and in."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from millpond.cli.output import print_json, print_text

lake = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    help="""Look into a lake, check it, make it denser, and exchange episodes with others.

    \b
      millpond lake info runs/mixture-1/lake
      millpond lake verify runs/mixture-1/lake
      millpond lake compact runs/mixture-1/lake --keep 2
      millpond lake export runs/mixture-1/lake gravitar.npz
      millpond lake import demonstrations demos.hdf5""",
)

PathArgument = Annotated[Path, typer.Argument(metavar="PATH", help="A lake's folder.")]
StreamOption = Annotated[str | None, typer.Option("--stream", metavar="NAME", help="Only this stream.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@lake.command()
def info(path: PathArgument, json: JsonOption = False) -> None:
    """Say what a lake holds: streams, episodes, transitions, bytes raw and stored, returns by stream and round.

    \b
      millpond lake info runs/mixture-1/lake
      millpond lake info runs/mixture-1/lake --json
    """
    from millpond.cli.output import watched
    from millpond.replay.tools.info import info as look

    with watched("reading") as watch:
        found = look(path, progress=watch)
    if json:
        print_json(found.to_json())
    else:
        print_text("\n".join(found.lines()))


@lake.command()
def verify(path: PathArgument, json: JsonOption = False) -> None:
    """Compare every checksum; say what is damaged, and what is readable all the same. Nothing is changed.

    Exits with 1 where anything is damaged.

    \b
      millpond lake verify runs/mixture-1/lake
      millpond lake verify runs/mixture-1/lake --json
    """
    from millpond.cli.output import watched
    from millpond.replay.lake.format import require_lake
    from millpond.replay.tools.verify import verify as check

    require_lake(path)
    with watched("verifying") as watch:
        report = check(path, progress=watch)
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
    keep: Annotated[int, typer.Option("--keep", min=1, help="Newest files of each stream to leave as they are.")] = 1,
    json: JsonOption = False,
) -> None:
    """Write cold files again, denser: zstd over several frames instead of lz4 one by one.

    Readers and writers may go on meanwhile. Samples stay the same, and cost more to draw from compacted files.

    \b
      millpond lake compact runs/mixture-1/lake
      millpond lake compact runs/mixture-1/lake --stream agent0 --keep 2
    """
    from millpond.cli.output import watched
    from millpond.plurals import plural
    from millpond.replay.tools.compact import compact as make_denser

    with watched("compacting") as watch:
        done = make_denser(path, stream, keep=keep, progress=watch)
    if json:
        print_json(asdict(done))
    elif done.segments:
        times = f"{done.before / max(done.after, 1):.1f} times less"
        print_text(
            f"{path}: {plural(done.segments, 'file')} compacted, {done.before:,} -> {done.after:,} bytes of frames ({times})"
        )
    else:
        print_text(f"{path}: nothing to compact; the newest {keep} of each stream, and files without frames, stay")


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
    from millpond.cli.output import watched
    from millpond.plurals import plural
    from millpond.replay.tools.export import export

    with watched("exporting") as watch:
        done = export(path, target, stream=stream, progress=lambda count: watch("episodes", count))
    if json:
        print_json(asdict(done))
        return
    lines = [f"{done.path}: {plural(done.episodes, 'episode')}, {plural(done.steps, 'step')}"]
    if done.without_final:
        lines.append(
            f"  note: {plural(done.without_final, 'terminated episode')} without a final observation in the lake; "
            f"the last one stands there once more, and is flagged"
        )
    print_text("\n".join(lines))


@lake.command("import")
def import_others(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A lake's folder; it is made where it is missing.")],
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="Recorded episodes, as `millpond data info` reads them."),
    ],
    stream: Annotated[str, typer.Option("--stream", metavar="NAME", help="The stream to append to.")] = "imported",
    json: JsonOption = False,
) -> None:
    """Append the episodes of others to a stream of a lake.

    \b
      millpond lake import demonstrations demos.hdf5
      millpond lake import runs/mixture-1/lake episodes.npz --stream human
    """
    from millpond.cli.output import watched
    from millpond.data.lake import import_episodes
    from millpond.plurals import plural

    with watched("importing") as watch:
        done = import_episodes(source, path, stream=stream, progress=lambda count: watch("episodes", count))
    if json:
        print_json(asdict(done))
    else:
        lines = [
            f"{path}: {plural(done.episodes, 'episode')}, {plural(done.steps, 'step')} into stream {done.stream!r}"
        ]
        print_text("\n".join([*lines, *(f"  note: {note}" for note in done.notes)]))
