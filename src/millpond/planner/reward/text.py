"""The plan of reward learning as text, the comparison of two, and advice."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.config import RewardRecipe
from millpond.formatting import figures, number, plural, sentence
from millpond.planner.device_memory import describe_cards
from millpond.planner.kind import Advice, Adviser, ComparisonRow, KindText
from millpond.planner.planned import Planned
from millpond.planner.reward.numbers import Dataset, RewardPlan, plan_reward

MAX_PASSES = 1_000  # over the data, before advice says so


def show_reward(recipe: RewardRecipe, plan: RewardPlan) -> list[str]:
    """Return the lines of a plan: the hierarchy, what each level logs, the data, the agent."""
    lines = sentence(
        f"{plural(plan.epochs, 'epoch')} x {plural(plan.cycles, 'cycle')} x {plural(plan.iterations, 'iteration')} x "
        f"{plural(plan.train_batches, 'batch')} = {plural(plan.batches, 'batch')}, one gradient update each."
        if plan.batches > 1
        else "1 epoch x 1 cycle x 1 iteration x 1 batch: one gradient update."
    )
    lines += ["", "The hierarchy", *_tree(plan)]
    lines += ["", "What is logged and saved", *figures(_written(recipe, plan))]
    lines += ["", "Data", *_source(recipe, plan), *figures(_data(plan))]
    if not plan.reward_only:
        rows = [
            ("env steps of the agent", number(plan.env_steps), f"of which {recipe.agent.warmup_steps:,} are random"),
            ("test episodes", number(plan.test_episodes), f"{recipe.agent.test_episodes} per cycle"),
            ("vector", recipe.vector.backend, plan.vector or "" if recipe.vector.backend == "auto" else ""),
        ]
        lines += ["", "Agent", *figures(rows)]
        if recipe.device != "cpu" and plan.device_bytes is not None:
            lines += ["", *sentence(f"On the GPU: {describe_cards(plan.device_bytes)}.")]
    return lines


def _tree(plan: RewardPlan) -> list[str]:
    levels = [
        ("epoch", plan.epochs, plan.batches_per_epoch, "summary; possibly a checkpoint"),
        ("cycle", plan.cycles, plan.batches_per_cycle, "table; one TensorBoard point"),
        ("iteration", plan.iterations, plan.batches_per_iteration, "normaliser; average R_loss"),
        ("batch", plan.train_batches, 1, "gradient; R_loss recorded"),
    ]
    lines = []
    for depth, (name, count, batches, does) in enumerate(levels):
        branch = "  " * depth + ("└ " if depth else "")
        each = f"{plural(batches, 'batch')} each" if batches > 1 or name != "batch" else ""
        lines.append(f"  {f'{branch}{name} 0..{count - 1:,}':<22}{each:<23}{does}".rstrip())
    return lines


def _written(recipe: RewardRecipe, plan: RewardPlan) -> list[tuple[str, str, str]]:
    return [
        ("R_loss values per cycle", number(plan.records_per_cycle), "one per batch"),
        ("R_loss lines per cycle", number(plan.lines_per_cycle), f"every {plural(recipe.reward.log_batches, 'batch')}"),
        ("averages printed per cycle", number(plan.iteration_lines_per_cycle), "one per iteration"),
        ("TensorBoard points", number(plan.tensorboard_points), "one per cycle, x = updates"),
        ("checkpoints", number(plan.checkpoints), f"every {plural(plan.save_freq, 'epoch')}, and at the end"),
        (
            "target network updates",
            number(plan.target_updates),
            f"every {plural(recipe.reward.train_target, 'update')}",
        ),
    ]


def _source(recipe: RewardRecipe, plan: RewardPlan) -> list[str]:
    """Describe where the episodes are, and what is used of them."""
    data = plan.dataset
    if data is None:
        return sentence(f"{recipe.data.path}, not read") if plan.reward_only else []
    action = "missing" if data.action is None else data.action
    return [
        *sentence(f"{data.path}: {data.layout}"),
        *sentence(f"observations: {', '.join(data.observation)}; actions: {action}"),
        *sentence(f"suitable objectives: {', '.join(data.objectives) or 'none'}"),
    ]


def _data(plan: RewardPlan) -> list[tuple[str, str, str]]:
    rows = [
        ("objective", plan.objective, ""),
        (
            "steps per batch",
            number(plan.steps_per_batch),
            f"{plural(plan.steps_per_episode, 'step')} of {plural(plan.episodes_per_batch, 'episode')}",
        ),
        ("steps in total", number(plan.steps_in_all), ""),
    ]
    if plan.dataset_episodes is not None and plan.training_episodes is not None and plan.held_out_episodes is not None:
        split = f"{plan.training_episodes:,} to train on, {plan.held_out_episodes:,} held out"
        failed = plan.dataset_episodes - plan.training_episodes - plan.held_out_episodes
        if failed:
            split += f", {failed:,} left out because they failed"
        rows.append(("episodes", number(plan.dataset_episodes), split))
    if plan.dataset_steps is not None:
        rows.append(("steps in the data", number(plan.dataset_steps), _lengths(plan.dataset)))
    if plan.passes_over_data is not None and plan.batches_per_pass is not None:
        rows.append(("batches per pass", number(plan.batches_per_pass), "over the training data"))
        rows.append(("passes over the training data", number(plan.passes_over_data), ""))
    return rows


def _lengths(data: Dataset | None) -> str:
    if data is None:
        return ""
    same = data.shortest == data.longest
    return f"{data.shortest:,} per episode" if same else f"{data.shortest:,} to {data.longest:,} per episode"


COMPARED = [
    ("Objective", "objective"),
    ("Epochs", "epochs"),
    ("Batches per cycle", "batches_per_cycle"),
    ("Batches per epoch", "batches_per_epoch"),
    ("Batches in total", "batches"),
    ("Steps per batch", "steps_per_batch"),
    ("Passes over the data", "passes_over_data"),
    ("TensorBoard points", "tensorboard_points"),
    ("Checkpoints", "checkpoints"),
    ("Target network updates", "target_updates"),
    ("Env steps of the agent", "env_steps"),
]


def _plan(planned: Planned) -> RewardPlan:
    assert isinstance(planned.plan, RewardPlan)
    return planned.plan


def compare_reward(a: Planned, b: Planned) -> list[ComparisonRow]:
    """Return the table of a comparison."""
    return [ComparisonRow(label, getattr(a.plan, name), getattr(b.plan, name)) for label, name in COMPARED]


def reward_differences(a: Planned, b: Planned) -> Iterator[str]:
    """Yield the differences that matter."""
    p, q = _plan(a), _plan(b)
    if p.objective != q.objective:
        yield (
            f"Objective: {a.loaded.name} uses {p.objective}, {b.loaded.name} {q.objective}. lrd and rrd decompose "
            f"returns, which must differ between episodes; progress learns from order in time."
        )
    if p.batches != q.batches:
        yield f"Length: {p.batches:,} against {plural(q.batches, 'gradient update')}."
    if p.batches_per_cycle != q.batches_per_cycle:
        yield f"Feedback: a TensorBoard point every {p.batches_per_cycle:,} against {plural(q.batches_per_cycle, 'batch')}."
    if p.reward_only != q.reward_only:
        online = a if q.reward_only else b
        yield f"Data: {online.loaded.name} also acts and learns from its own episodes; the other only uses recorded ones."
    if p.passes_over_data and q.passes_over_data and p.passes_over_data != q.passes_over_data:
        yield f"Passes over the training data: {number(p.passes_over_data)} against {number(q.passes_over_data)}."


def reward_better_for(a: Planned, b: Planned) -> Iterator[str]:
    """Yield what plan `a` is better for, each with its reason."""
    p, q = _plan(a), _plan(b)
    if p.batches < q.batches:
        yield f"a quick answer: {plural(p.batches, 'update')} against {q.batches:,}"
    if p.batches > q.batches:
        yield f"a converged network: {plural(p.batches, 'update')} against {q.batches:,}"
    if p.objective in ("lrd", "rrd") and q.objective not in ("lrd", "rrd"):
        yield f"data whose returns differ: {p.objective} explains them step by step"
    if p.objective == "progress" and q.objective in ("lrd", "rrd"):
        yield "demonstrations that all succeed: their returns carry no information, their order in time does"
    if not p.reward_only and q.reward_only:
        yield "judging the reward by an agent that learns from it"


def scale_columns(plan: RewardPlan) -> list[str]:
    """Return the cells of one line of `--scale`."""
    passes = "?" if plan.passes_over_data is None else number(round(plan.passes_over_data, 1))
    counts = [plan.batches, plan.batches_per_cycle, plan.tensorboard_points, plan.checkpoints]
    return [*(number(count) for count in counts), passes]


def advise_reward(recipe: RewardRecipe, plan: RewardPlan) -> list[Advice]:
    """Return all advice, the most important first."""
    adviser = Adviser(recipe, lambda changed: _find_problems(plan_reward(changed, plan.dataset)))
    return [*_passes(plan), *_episode_length(plan, adviser), *_log_interval(recipe, plan, adviser)]


def _mean_length(plan: RewardPlan) -> float | None:
    return plan.dataset_steps / plan.dataset_episodes if plan.dataset_steps and plan.dataset_episodes else None


def _find_problems(plan: RewardPlan) -> set[str]:
    mean = _mean_length(plan)
    problems = {
        "sampled steps": mean is not None and plan.steps_per_episode > mean,
        "log": plan.lines_per_cycle == 0 and plan.batches > 1,
    }
    return {topic for topic, present in problems.items() if present}


def _passes(plan: RewardPlan) -> Iterator[Advice]:
    if plan.passes_over_data is not None and plan.passes_over_data > MAX_PASSES:
        yield Advice(
            "passes",
            f"every recorded step is used {number(round(plan.passes_over_data))} times; watch the held-out metrics, and "
            f"stop when they get worse",
        )


def _episode_length(plan: RewardPlan, advise: Adviser[RewardRecipe]) -> Iterator[Advice]:
    mean = _mean_length(plan)
    if mean is not None and plan.steps_per_episode > mean:
        yield from advise(
            "sampled steps",
            f"{plan.steps_per_episode} steps are sampled from episodes of {mean:.0f} on average; more than an episode has "
            f"adds nothing",
            {"reward.steps_per_episode": max(2, int(mean))},
        )


def _log_interval(recipe: RewardRecipe, plan: RewardPlan, advise: Adviser[RewardRecipe]) -> Iterator[Advice]:
    if "log" in _find_problems(plan):
        yield from advise(
            "log",
            f"a cycle has {plural(plan.batches_per_cycle, 'batch')}, fewer than reward.log_batches="
            f"{recipe.reward.log_batches:,}, so no R_loss line is printed",
            {"reward.log_batches": max(1, plan.batches_per_cycle // 2)},
        )


TEXT = KindText(
    show=show_reward,
    compare_rows=compare_reward,
    differences=reward_differences,
    better_for=reward_better_for,
    in_table=("reward.epochs", "reward.objective"),
    scale_header=("batches", "per cycle", "points", "saves", "passes"),
    scale_columns=scale_columns,
)
