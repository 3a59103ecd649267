"""PufferLib's .ini files are translated."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.config import PPORecipe, load
from millpond.config.puffer import read
from millpond.errors import MillpondError
from millpond.planner import PPOPlan, plan
from millpond.planner.planned import show

DATA = Path(__file__).parent.parent / "data"
METTA = DATA / "puffer_metta.ini"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.ini"
    path.write_text(text)
    return path


def test_the_metta_file_of_pufferlib_is_translated() -> None:
    planned = plan(METTA, ["env.num_agents=64"])
    p = planned.plan
    assert isinstance(p, PPOPlan)
    assert (p.total_agents, p.batch_size, p.segments, p.minibatch_segments, p.gradient_updates) == (
        4_096, 262_144, 4_096, 512, 8,
    )  # fmt: skip
    assert p.iterations == 1_144
    assert (p.groups, p.envs_per_group) == (2, 32)  # vec.batch_size=auto is half of the envs
    recipe = planned.loaded.recipe
    assert isinstance(recipe, PPORecipe)
    assert recipe.trainer.batch_unit == "agent_steps"
    assert recipe.env.id == "mettagrid"
    assert recipe.ppo.learning_rate == 3e-4
    assert recipe.policy.core == "lstm"


def test_defaults_of_pufferlib_are_used_and_listed() -> None:
    loaded = load(METTA, ["env.num_agents=64"])
    recipe = loaded.recipe
    assert isinstance(recipe, PPORecipe)
    assert loaded.defaulted["train.prio_alpha"] == 0.8
    assert recipe.ppo.prio_alpha == 0.8
    assert recipe.ppo.sampling == "prioritized"
    assert recipe.ppo.lr_schedule == "cosine"
    assert recipe.trainer.max_minibatch_size == 32_768
    assert "train.gamma" not in loaded.defaulted
    text = show(plan(METTA, ["env.num_agents=64"]))
    assert "Defaults of PufferLib 3.0" in text
    assert "train.prio_alpha=0.8" in text


def test_the_algorithm_of_pufferlib_is_used_and_one_override_switches_it(tmp_path: Path) -> None:
    recipe = load(METTA, ["env.num_agents=64"]).recipe
    assert isinstance(recipe, PPORecipe)
    ppo = recipe.ppo
    assert (ppo.style, ppo.advantage, ppo.recompute_advantage, recipe.env.reward_clip) == (
        "puffer",
        "puffer",
        True,
        1.0,
    )
    ours = load(METTA, ["env.num_agents=64", "ppo.style=millpond"]).recipe
    assert isinstance(ours, PPORecipe)
    assert (ours.ppo.advantage, ours.ppo.sampling, ours.ppo.row_state, ours.env.reward_clip) == (
        "gae", "uniform", "stored", None,
    )  # fmt: skip
    assert ours.ppo.learning_rate == ppo.learning_rate  # settings of the file stay
    sizes = "[vec]\nnum_envs = 8\n[train]\nminibatch_size = 64\n"
    plain = load(write(tmp_path, sizes + "prio_alpha = 0\nmin_lr_ratio = 0.1\n"), ["env.num_agents=2"]).recipe
    assert isinstance(plain, PPORecipe)
    assert plain.ppo.sampling == "independent"  # even so each minibatch is drawn on its own
    assert (plain.ppo.optimizer, plain.ppo.muon, plain.ppo.adam_beta1, plain.ppo.lr_schedule, plain.ppo.min_lr_ratio) == (
        "muon", "puffer3", 0.95, "cosine", 0.1,
    )  # fmt: skip


def test_the_plan_lists_what_is_kept_as_in_pufferlib() -> None:
    text = show(plan(METTA, ["env.num_agents=64", "ppo.row_state=stored"]))
    assert "ppo.row_end=zero: the last step of a row has advantage 0" in text
    assert "advantages of all 4,096 rows recomputed, with newest ratios and values" in text
    assert "Set otherwise: ppo.row_state=stored." in text
    assert "Kept as in PufferLib" not in show(plan(METTA, ["env.num_agents=64", "ppo.style=millpond"]))


def test_keys_without_a_meaning_are_listed() -> None:
    loaded = load(METTA, ["env.num_agents=64"])
    listed = {"base.policy_name", "env.ore_reward", "train.name", "sweep.metric", "sweep.train.total_timesteps.min"}
    assert listed <= set(loaded.ignored)
    assert "[sweep] with 3 keys" in " ".join(show(plan(METTA, ["env.num_agents=64"])).split())


def test_a_file_may_leave_the_number_of_agents_open() -> None:
    with pytest.raises(MillpondError, match="does not set the number of agents per env"):
        plan(METTA)  # one agent per env is too few for the minibatch
    left_open = plan(METTA, ["trainer.minibatch_size=1024"])
    assert any("1 is assumed" in note for note in left_open.loaded.notes)
    asked = plan(METTA, agents_source=str(DATA / "metta.yaml"))
    assert isinstance(asked.plan, PPOPlan)
    assert asked.plan.num_agents == 64
    assert not asked.alerts
    assert not any("is assumed" in note for note in asked.loaded.notes)
    said = plan(METTA, ["env.num_agents=32"], agents_source=str(DATA / "metta.yaml"))
    assert "the config has 32 agents per env, metta.yaml has 64" in said.alerts[0]


def test_an_auto_horizon_follows_from_the_batch() -> None:
    text = (
        METTA.read_text()
        .replace("batch_size = auto", "batch_size = 8192")
        .replace("bptt_horizon = 64", "bptt_horizon = auto")
    )
    values = read(text.replace("[env]", "[env]\nnum_agents = 4"), "here").values
    assert values["trainer"]["bptt_horizon"] == 8_192 // (64 * 4)


@pytest.mark.parametrize(
    ("vec", "envs", "workers", "groups"),
    [
        ("num_envs = 8\nnum_workers = 4", 8, 4, 2),
        ("num_envs = 8\nnum_workers = 4\nbatch_size = None", 8, 4, 1),
        ("num_envs = 8\nnum_workers = 4\nbatch_size = 2", 8, 4, 4),
        ("num_envs = 8", 8, 8, 2),  # num_workers=auto: one per env
        ("num_envs = 1", 1, 1, 1),
        ("num_envs = 8\nbackend = Serial", 4, 1, 1),  # PufferLib makes only vec.batch_size of them
        ("backend = PufferEnv\nnum_envs = 1", 1, 1, 1),
    ],
)
def test_auto_in_vec_is_resolved_as_pufferlib_does(
    tmp_path: Path, vec: str, envs: int, workers: int, groups: int
) -> None:
    path = write(
        tmp_path, f"[base]\npackage = metta\n[vec]\n{vec}\n[env]\nnum_agents = 8\n[train]\nminibatch_size = 64\n"
    )
    p = plan(path).plan
    assert isinstance(p, PPOPlan)
    assert (p.num_envs, p.num_workers, p.groups) == (envs, workers, groups)
    assert p.batch_size == envs * 8 * 64


def test_envs_inside_a_vec_env_are_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path, "[base]\npackage = ocean\nenv_name = puffer_breakout\n[vec]\nnum_envs = 2\n[env]\nnum_envs = 1024\n"
    )
    p = plan(path).plan
    assert isinstance(p, PPOPlan)
    assert p.num_envs == 2_048
    assert p.observation_bytes is None  # an environment that Millpond does not have


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[other]\na = 1\n", "has none of"),
        ("no section", "is not a PufferLib .ini file"),
        ("[vec]\n[train\n", "line 2 is neither a [section] nor key = value: '[train"),
        ("[vec]\nnum_envs = many\n", "vec.num_envs=many must be a whole number"),
        ("[vec]\nnum_envs = 0\n", "vec.num_envs=0 must be >= 1"),
        ("[vec]\nnum_envs = 8\nbatch_size = 3\n", "vec.num_envs=8 is not a multiple of vec.batch_size=3"),
        ("[train]\nbatch_size = auto\nbptt_horizon = auto\n", "must be a number"),
        ("[train]\nbatch_size = 1\nbptt_horizon = auto\n", "less than one step"),
        ("[train]\noptimizer = sgd\n", "ppo.optimizer=sgd is not one of"),
    ],
)
def test_files_that_cannot_be_translated_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(MillpondError) as caught:
        load(write(tmp_path, text))
    assert says in str(caught.value)


def test_a_recipe_may_extend_an_ini_file(tmp_path: Path) -> None:
    (tmp_path / "puffer.ini").write_text(METTA.read_text())
    (tmp_path / "mine.yaml").write_text("extends: puffer.ini\nenv: {num_agents: 8}\n")
    loaded = load(tmp_path / "mine.yaml")
    assert loaded.recipe.env.num_agents == 8
    assert not loaded.agents_open
    assert loaded.ignored


BREAKOUT = (DATA / "puffer4_breakout.ini").read_text()


def test_a_file_of_pufferlib_4_is_recognised_and_planned_with_its_own_defaults(tmp_path: Path) -> None:
    planned = plan(write(tmp_path, BREAKOUT))
    p, recipe = planned.plan, planned.loaded.recipe
    assert isinstance(p, PPOPlan)
    assert isinstance(recipe, PPORecipe)
    assert (p.total_agents, p.groups, p.num_workers, p.batch_size, p.segments) == (256, 2, 8, 8_192, 256)
    assert (p.num_minibatches, p.gradient_updates) == (11, 11)  # int(1.42 * 8,192 / 1,024)
    assert p.passes_over_data == 11 / 8
    assert (recipe.policy.core, recipe.policy.num_layers, recipe.policy.hidden_size) == ("mingru", 2, 64)
    ppo = recipe.ppo
    assert (ppo.style, ppo.replacement, ppo.optimizer, ppo.muon, ppo.adam_beta1, ppo.min_lr_ratio) == (
        "puffer", True, "muon", "puffer4", 0.95, 0.1,
    )  # fmt: skip
    assert ppo.adam_eps == 1e-12  # not the 1e-8 of PufferLib 3.0
    text = show(planned)
    assert "Defaults of PufferLib 4" in text
    assert "train.gamma=0.995" in text


@pytest.mark.parametrize(("horizon", "weights"), [(32, "delta"), (64, "delta"), (28, "reward"), (10, "reward")])
def test_pufferlib_4_weights_the_reward_alone_where_its_wide_kernel_does_not_fit(
    tmp_path: Path, horizon: int, weights: str
) -> None:
    sizes = f"horizon = {horizon}\nminibatch_size = {horizon * 16}"
    loaded = load(write(tmp_path, BREAKOUT.replace("horizon = 32\nminibatch_size = 1024", sizes)))
    assert isinstance(loaded.recipe, PPORecipe)
    assert loaded.recipe.ppo.rho_weights == weights
    assert any("ppo.rho_weights=reward" in note for note in loaded.notes) == (weights == "reward")


def test_one_override_switches_a_file_of_pufferlib_4(tmp_path: Path) -> None:
    text = BREAKOUT.replace("horizon = 32\nminibatch_size = 1024", "horizon = 28\nminibatch_size = 448")
    path = write(tmp_path, text)
    recipe = plan(path, ["ppo.style=millpond"]).loaded.recipe
    assert isinstance(recipe, PPORecipe)
    ppo = recipe.ppo
    assert (ppo.sampling, ppo.replacement, ppo.rho_weights, recipe.trainer.replay_ratio) == (
        "uniform", False, "delta", None,
    )  # fmt: skip


@pytest.mark.parametrize("key", ["[train]\nmomentum = 0.94", "[train]\nvtrace = 0", "[base]\nasync = 1"])
def test_files_of_pufferlib_5_are_refused_by_name(tmp_path: Path, key: str) -> None:
    section, setting = key.split("\n")
    with pytest.raises(MillpondError, match=f"is for PufferLib 5, since it has .*{setting.split()[0]}"):
        load(write(tmp_path, BREAKOUT.replace(section, key)))
    load(write(tmp_path, BREAKOUT))  # the fix: without these keys


def test_agents_of_pufferlib_4_are_divided_among_envs(tmp_path: Path) -> None:
    path = write(tmp_path, BREAKOUT.replace("[env]\nnum_agents = 1\n", ""))
    p = plan(path, ["env.num_agents=4", "trainer.num_workers=8"]).plan
    assert isinstance(p, PPOPlan)
    assert (p.num_envs, p.total_agents) == (64, 256)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[policy]", "[torch]\nnetwork = Mamba\n[policy]"), "torch.network=Mamba is not one of MinGRU"),
        (("[policy]", "[selfplay]\nenabled = 1\n[policy]"), "selfplay.enabled=1 has no counterpart"),
        (("[base]", "[base]\nreset_state = False"), "base.reset_state=False has no counterpart"),
        (("num_buffers = 2", "num_envs = 2"), "mixes keys of PufferLib 4"),
        (("total_agents = 256", "batch_size = auto"), "mixes keys of PufferLib 4"),
        (("total_agents = 256", "total_agents = 255"), "vec.total_agents=255 is not a multiple"),
    ],
)
def test_what_pufferlib_4_has_and_millpond_has_not_is_refused_by_name(
    tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    with pytest.raises(MillpondError, match=says):
        load(write(tmp_path, BREAKOUT.replace(*change)))


def test_keys_of_pufferlib_3_that_pufferlib_4_does_not_read_are_ignored(tmp_path: Path) -> None:
    """Many of its own files still have them."""
    left = "[train]\nadam_beta1 = 0.7\nadam_eps = 1e-8\nupdate_epochs = 3\nseed = 5"
    file = BREAKOUT.replace("[train]", left).replace("num_layers = 2", "num_layers = 2\nexpansion_factor = 2")
    loaded = load(write(tmp_path, file))
    recipe = loaded.recipe
    assert isinstance(recipe, PPORecipe)
    assert {"train.adam_beta1", "train.update_epochs", "policy.expansion_factor", "train.seed"} <= set(loaded.ignored)
    assert (loaded.puffer_version, recipe.ppo.adam_beta1, recipe.trainer.update_epochs, recipe.seed) == (
        "4",
        0.95,
        1,
        73,
    )


def test_arguments_of_a_network_of_pufferlib_3_do_not_make_its_file_one_of_pufferlib_4() -> None:
    config = read("[vec]\nnum_envs = 8\n[policy]\nnum_layers = 2\n", "here")
    assert config.version == "3.0"
    assert "policy.num_layers" in config.ignored


def test_the_entropy_coefficient_of_pufferlib_4_may_fall_along_a_cosine(tmp_path: Path) -> None:
    change = "min_lr_ratio = 0.1\nent_coef = 0.1\nanneal_ent_coef = 1\nmin_ent_coef_ratio = 0.2"
    recipe = load(write(tmp_path, BREAKOUT.replace("min_lr_ratio = 0.1", change))).recipe
    assert isinstance(recipe, PPORecipe)
    assert recipe.ppo.ent_coef == 0.1
    assert recipe.schedules == {"ppo.ent_coef": {"kind": "cosine", "end": pytest.approx(0.02)}}


@pytest.mark.parametrize("folder", [".", "config/ocean"])
def test_a_file_is_read_on_top_of_the_default_file_of_its_folder(tmp_path: Path, folder: str) -> None:
    """As PufferLib reads it: only with it may it be clear which version the file is for."""
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    default = (tmp_path / folder).parent / "default.ini" if folder != "." else tmp_path / "default.ini"
    default.write_text(BREAKOUT.replace("env_name = breakout", "env_name = None\ncheckpoint_dir = checkpoints"))
    path = tmp_path / folder / "snake.ini"
    path.write_text("[base]\nenv_name = snake\n[train]\nhorizon = 16\n")
    planned = plan(path)
    p, loaded = planned.plan, planned.loaded
    assert isinstance(p, PPOPlan)
    assert (loaded.puffer_version, p.total_agents, p.bptt_horizon) == ("4", 256, 16)
    assert loaded.recipe.env.id == "pufferlib.environments:snake"
    assert loaded.ignored == ()  # keys of the default file are not listed
    assert any(f"read on top of {default}" in note for note in loaded.notes)
    assert any("names no environment" in note for note in load(default).notes)


def test_a_default_file_in_an_unrelated_folder_above_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "default.ini").write_text(BREAKOUT)
    (tmp_path / "mine").mkdir()
    assert (
        load(write(tmp_path / "mine", "[vec]\nnum_envs = 2\n"), ["trainer.minibatch_size=64"]).puffer_version == "3.0"
    )


def test_a_file_of_pufferlib_2_is_refused_with_the_names_of_pufferlib_3(tmp_path: Path) -> None:
    with pytest.raises(
        MillpondError, match=r"for PufferLib 2, since it has train.num_envs.*write vec.num_envs instead of"
    ):
        load(write(tmp_path, "[base]\npackage = metta\n[train]\nnum_envs = 128\nbatch_size = 262144\n"))


def test_a_key_that_is_nearly_a_known_one_is_pointed_out() -> None:
    notes = read("[vec]\nnum_envs = 8\n[train]\nlearning_rat = 0.01\nname = somebody\n", "here").notes
    assert [note for note in notes if "so it is ignored" in note] == [
        "train.learning_rat is no key of PufferLib 3.0, so it is ignored; train.learning_rate is one"
    ]
