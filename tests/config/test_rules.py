"""Rules between keys: each error names its reason, and the suggested fix is valid."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.config import ConfigError, load
from millpond.config.keys import keys
from millpond.config.load import parse_override

RECALL = ("env.id=recall", "env.num_agents=1", "env.max_steps=null")


def refusal(recipe: str, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(recipe, overrides)
    return caught.value


def test_a_wrong_minibatch_of_metta_is_refused_with_fixes() -> None:
    error = refusal("metta", "trainer.minibatch_size=10000")
    assert str(error) == (
        "trainer.minibatch_size=10,000 is not a multiple of trainer.bptt_horizon=64 (the nearest are 9,984 and 10,048), "
        "and it must divide trainer.batch_size=524,288; try trainer.minibatch_size=8192 or 16384"
    )
    assert error.fix == {"trainer.minibatch_size": 8192}


@pytest.mark.parametrize(
    ("recipe", "overrides", "says"),
    [
        ("mixture", ["env.frame_stack=2"], "has no frames to stack; only atari:GAME has; try env.frame_stack=1"),
        ("metta", ["trainer.num_envs=64"], "both set the number of envs"),
        ("metta", ["trainer.forward_pass_minibatch_target_size=null"], "neither trainer.num_envs nor"),
        ("metta", ["trainer.forward_pass_minibatch_target_size=20"], "workers less than one env; try"),
        ("grid", ["trainer.num_envs=255"], "is not a multiple of both trainer.num_workers=2 and trainer.async_factor=2"),
        ("metta", ["trainer.batch_size=500000"], "is not a multiple of trainer.bptt_horizon=64; try trainer.batch_size=507904"),
        ("metta", ["trainer.minibatch_size=15360"], "does not divide trainer.batch_size=524,288"),
        ("puffer-metta", ["trainer.minibatch_size=20480"], "trainer.batch_size=auto, which is 262,144"),
        ("metta", ["trainer.max_minibatch_size=1000"], "try trainer.max_minibatch_size=1024 or 512"),
        ("metta", ["trainer.total_timesteps=1000"], "less than one iteration"),
        ("metta", ["ppo.sampling=prioritized"], "samples all rows alike"),
        ("mixture", ["eval.deterministic=false"], "try eval.deterministic=true"),
        ("mixture", ["dqn.replay_ratio=4"], "one of them must be null; try mixture.big_updates=null or"),
        ("mixture", ["mixture.big_updates=null"], "are both null: one of them says how much"),
        (
            "mixture-best",
            ["dqn.block_steps=500", "mixture.big_pond_transitions=300"],
            "does not hold one block of dqn.block_steps=500; try mixture.big_pond_transitions=500",
        ),
        ("mixture", ["mixture.big_pond_rounds=2"], "needs dqn.target=q_lambda or retrace"),
        ("mixture-best", ["dqn.n_step_from=10"], "no effect with dqn.target=q_lambda, which has blocks"),
        ("mixture", ["dqn.gamma_from=0.97", "dqn.gamma=1"], "needs dqn.gamma below 1"),
        ("reward", ["policy.target=my:policy"], "networks of its own; try policy.target=null"),
        ("metta", ["policy.separate_critic=true", "ppo.value_trains_core=false"], "would never train the critic's encoder"),
        ("metta", ["trainer.replay_ratio=1.5"], "uses every row once per update epoch"),
        ("puffer-metta", ["trainer.replay_ratio=1.5", "trainer.update_epochs=2"], "both set the number of updates"),
        ("puffer-metta", ["trainer.replay_ratio=0.1"], "is less than one minibatch"),
        ("metta", ["policy.num_layers=2"], "policy.core=lstm has one layer"),
        ("mixture-best", ["policy.core=mingru"], "an LSTM, a GRU, or no memory; try policy.core=none"),
        ("mixture", ["dqn.priority_exponent=0.6"], "needs dqn.target=q_lambda or retrace: a priority"),
        ("mixture-best", ["policy.core=gru", "dqn.priority_exponent=0.6"], "dqn.priority_exponent=0.6 is for networks without"),
        ("mixture-best", ["dqn.quantiles=8"], "with Huber's loss, not dqn.loss=squared; try dqn.loss=huber"),
        ("mixture-best", ["policy.core=gru", "dqn.quantiles=8", "dqn.loss=huber"], "is for networks without memory"),
        ("mixture", ["dqn.burn_in=4"], "has no effect with policy.core=none"),
        ("mixture", ["policy.core=gru"], "needs sequences; try dqn.target=q_lambda"),
        ("mixture-best", ["policy.core=gru", "pqn.num_minibatches=512"], "whole collections of some envs; try pqn.num_mini"),
        ("mixture-best", ["policy.core=gru", "dqn.burn_in=32"], "no step of dqn.block_steps=32 to learn from; try dqn.bu"),
        ("mixture-best", ["policy.core=gru", "dqn.burn_in=8"], "a batch is whole blocks; try dqn.batch_size=120 or 144"),
        ("mixture-best", ["policy.core=gru", "dqn.random_shift=1"], "is for networks without memory; policy.core=gru"),
        ("mixture", ["policy.separate_critic=true"], "Q-networks of a mixture have no critic"),
        ("metta", ["vector.trainer_share=0.1", "vector.backend=inline"], "vector.backend=inline has none; try"),
        ("grid", ["vector.trainer_share=0.999"], "which leaves fewer envs than trainer.num_workers=2"),
        ("metta", ["ppo.prio_alpha=0.5"], "has no effect with ppo.sampling=uniform"),
        ("metta", ["ppo.advantage=puffer"], "which has no ppo.row_end=bootstrap; vtrace is the same"),
        ("metta", ["ppo.style=puffer", "ppo.row_end=bootstrap"], "try ppo.advantage=vtrace"),
        ("metta", ["ppo.ignore_truncation=true", "ppo.bootstrap_truncation=false"], "try ppo.bootstrap_truncation=true"),
        ("metta", ["trainer.graphs=true", "ppo.optimizer=muon"], "captures updates of ppo.optimizer adam or adamw; it is muon"),
        ("metta", ["trainer.graphs=true", "trainer.cpu_offload=true"], "trainer.graphs=true needs trainer.cpu_offload=false"),
        ("metta", ["env.obs_size=10"], "try env.obs_size=9 or 11"),
        ("metta", ["env.grid.walls=400"], "holds at most 192 objects and 96 agents"),
        ("metta", ["env.atari.frame_skip=2"], "env.atari.frame_skip has no effect in env.id=grid"),
        ("metta", ["env.id=gridd"], "env.id=gridd is not one of"),
        ("metta", ["env.id=atari"], "env.id=atari is not one of"),
        ("metta", ["env.id=gymnasium:CartPole-v1", "env.num_agents=3"], "has one agent; try env.num_agents=1"),
        ("grid", ["env.id=recall", "env.max_steps=256"], "env.max_steps=256 cannot truncate the episodes of env.id=recall"),
        ("grid", [*RECALL, "env.recall.min_delay=40"], "is more than env.recall.max_delay=32"),
        ("grid", [*RECALL, "env.recall.cues=1"], "env.recall.cues=1 must be >= 2"),
        ("grid", ["env.recall.cues=3"], "env.recall.cues has no effect in env.id=grid"),
        ("grid", ["env.info=sum"], "env.info has no effect in env.id=grid"),
        ("grid", ["env.clip_actions=true"], "env.clip_actions has no effect in env.id=grid"),
        ("mixture", ["env.id=minatar:breakot"], "try env.id=minatar:breakout"),
        ("mixture", ["mixture.mode=single"], "trains one agent, but mixture.agents=4"),
        ("mixture", ["mixture.agents=1"], "needs several agents"),
        ("mixture", ["mixture.own_fraction=0.2"], "has no effect with mixture.mode=rounds"),
        ("mixture", ["mixture.mode=live", "mixture.own_fraction=0.21"], "not a whole number"),
        ("mixture", ["mixture.epsilon_ladder=[0.4,0.1]"], "has 2 values for mixture.agents=4"),
        ("mixture", ["pqn.num_minibatches=30"], "try pqn.num_minibatches=32 or 16"),
        ("mixture", ["mixture.pond_transitions=100"], "does not hold one collection of 4,096"),
        ("mixture", ["mixture.big_pond_transitions=100"], "does not hold one batch"),
        ("mixture", ["mixture.total_frames=1000"], "less than one collection of all agents, 16,384 frames"),
        ("reward", ["checkpoint.interval=2"], "both set when to save"),
        ("reward-online", ["reward.objective=progress"], "which only lrd and rrd decompose"),
        ("reward-online", ["agent.replay_transitions=10"], "does not hold one batch"),
        ("reward-libero", ["data.expected_steps=3"], "less than one step for each"),
        ("reward", ["data.drop_columns=[states]"], "a column is named FIELD:COLUMN"),
    ],
)  # fmt: skip
def test_a_violation_is_refused_and_its_fix_is_valid(recipe: str, overrides: list[str], says: str) -> None:
    error = refusal(recipe, *overrides)
    assert says in str(error)
    for fix in [*error.violations[0].fixes, *([error.fix] if error.fix else [])]:
        load(recipe, {**dict(parse_override(o) for o in overrides), **fix})


def test_environments_that_step_all_envs_together_need_whole_rounds() -> None:
    overrides = {"env.id": "atari:pong", "env.num_agents": 1, "trainer.batch_size": 524_288 + 16_384}
    with pytest.raises(ConfigError, match=r"cannot be stepped in part; try trainer.batch_size=524288") as caught:
        load("metta", overrides)
    load("metta", {**overrides, **caught.value.fix})


def test_all_violations_are_reported_at_once() -> None:
    error = refusal(
        "metta",
        *("trainer.batchsize=3", "trainer.bptt_horizon=0", "ppo.gamma=1.5", "ppo.sampling=prio", "device=gpu"),
        *("trainer.update_epochs=1.5", "env.obs_size=4", "seed=true"),
    )
    keys = [violation.keys[0] for violation in error.violations]
    assert sorted(keys) == sorted(
        ["trainer.batchsize", "trainer.bptt_horizon", "ppo.gamma", "ppo.sampling", "device", "trainer.update_epochs",
         "env.obs_size", "seed"]
    )  # fmt: skip
    assert str(error).startswith("8 settings of metta are wrong:\n- ")


def test_several_violations_come_with_one_fix_for_all() -> None:
    overrides = (
        "trainer.batch_size=500000",
        "trainer.minibatch_size=10000",
        "trainer.max_minibatch_size=77",
        "env.obs_size=4",
    )
    error = refusal("metta", *overrides)
    assert len(error.violations) == 4
    assert "To fix all of them: " in str(error)
    load("metta", {**dict(parse_override(o) for o in overrides), **error.fix})


def test_a_value_in_place_of_a_section_is_refused() -> None:
    assert "trainer=3 must be a section with keys" in str(refusal("metta", "trainer=3"))


@pytest.mark.parametrize(
    "overrides", [["trainer.batch_size=auto"], ["trainer.batch_size=many"], ["trainer.batch_size=1.5"]]
)
def test_a_batch_size_is_a_number_or_auto(overrides: list[str]) -> None:
    if overrides == ["trainer.batch_size=auto"]:
        assert "auto, which is 174,080" in str(refusal("metta", *overrides))  # 16,384 does not divide it
    else:
        assert "trainer.batch_size=" in str(refusal("metta", *overrides))


@pytest.mark.parametrize("recipe", ["metta", "puffer-metta", "mixture", "reward-online"])
def test_every_fix_of_every_key_is_valid(recipe: str) -> None:
    """Any value of any key: the fix in the error is valid."""
    tried = 0
    for key in keys(load(recipe).recipe.kind):
        for value in (-5, 0, 0.333, 2, 1_000_003):
            try:
                load(recipe, {key: value})
            except ConfigError as error:
                fixes = error.violations[0].fixes if len(error.violations) == 1 else (error.fix,)
            else:
                continue
            for fix in fixes:
                tried += 1
                load(recipe, {key: value, **fix})
    assert tried > 50


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.batch_size=20", "trainer.minibatch_size=64"],
        ["trainer.batch_size=1", "trainer.bptt_horizon=3", "trainer.minibatch_size=3"],
        ["trainer.batch_size=999999999989", "trainer.bptt_horizon=1"],  # a prime
        ["trainer.forward_pass_minibatch_target_size=1e12", "trainer.batch_size=auto"],
        ["env.grid.walls=1e6"],
        ["env.num_agents=1e6"],
    ],
)
def test_unusual_sizes_are_refused_with_a_fix(overrides: list[str]) -> None:
    error = refusal("metta", *overrides)
    assert error.fix
    load("metta", {**dict(parse_override(o) for o in overrides), **error.fix})


def test_presets_are_checked_when_they_are_read() -> None:
    error = refusal("metta", "presets.debug={trainer.batchsize: 5}")
    assert "presets.debug sets trainer.batchsize, which is not a known key; did you mean trainer.batch_size?" in str(
        error
    )


sizes = st.integers(1, 5000)


@st.composite
def ppo_settings(draw: st.DrawFn) -> dict[str, Any]:
    """Random sizes, most of which do not fit together."""
    horizon = draw(st.integers(1, 128))
    scaled = draw(st.booleans())  # half of the time multiples of the horizon
    unit = horizon if scaled else 1
    drawn: dict[str, Any] = {
        "env.num_agents": draw(st.integers(1, 70)),
        "env.grid.width": 60,
        "env.grid.height": 60,
        "trainer.num_workers": draw(st.integers(1, 20)),
        "trainer.async_factor": draw(st.integers(1, 4)),
        "trainer.batch_unit": draw(st.sampled_from(["env_steps", "agent_steps"])),
        "trainer.bptt_horizon": horizon,
        "trainer.batch_size": draw(st.one_of(st.just("auto"), sizes.map(lambda s: s * unit))),
        "trainer.minibatch_size": draw(sizes) * unit,
        "trainer.max_minibatch_size": draw(st.one_of(st.none(), sizes.map(lambda s: s * unit))),
        "trainer.total_timesteps": draw(st.integers(1, 10**9)),
        "trainer.num_envs": None,
        "trainer.forward_pass_minibatch_target_size": None,
    }
    for key in ("trainer.num_envs", "trainer.forward_pass_minibatch_target_size"):
        if draw(st.booleans()):
            drawn[key] = draw(sizes)
    return drawn


@given(ppo_settings())
def test_any_sizes_are_valid_or_refused_with_a_valid_fix(settings: dict[str, Any]) -> None:
    error = None
    try:
        load("metta", settings)
    except ConfigError as refused:
        error = refused
    if error is None:
        return
    assert error.fix, error
    load("metta", {**settings, **error.fix})
    if len(error.violations) == 1:
        assert error.violations[0].fixes
        for fix in error.violations[0].fixes:
            load("metta", {**settings, **fix})


@given(
    agents=st.integers(1, 6),
    envs=st.integers(1, 300),
    steps=st.integers(1, 100),
    minibatches=st.integers(1, 64),
    ponds=st.integers(1, 10**6),
    frames=st.integers(1, 10**8),
    own=st.sampled_from([0, 0.1, 0.2, 0.5, 0.37]),
    mode=st.sampled_from(["rounds", "live", "single", "single-resets", "no-resets"]),
)
def test_any_mixture_is_valid_or_refused_with_a_valid_fix(
    agents: int, envs: int, steps: int, minibatches: int, ponds: int, frames: int, own: float, mode: str
) -> None:
    settings = {
        "mixture.agents": agents,
        "mixture.mode": mode,
        "mixture.own_fraction": own,
        "mixture.pond_transitions": ponds,
        "mixture.big_pond_transitions": ponds,
        "mixture.total_frames": frames,
        "pqn.num_envs": envs,
        "pqn.num_steps": steps,
        "pqn.num_minibatches": minibatches,
    }
    error = None
    try:
        load("mixture", settings)
    except ConfigError as refused:
        error = refused
    if error is not None:
        assert error.fix, error
        load("mixture", {**settings, **error.fix})
