"""Atari games on the real emulator, such as `atari:gravitar`, stepped by ale-py's own vector of envs.

Every choice of preprocessing is an option: by default a frame skip of 4 with the maximum of the last two frames, grayscale
84x84, one frame per observation (stacks are built where they are needed), up to 30 no-ops at the start, sticky actions
with probability .25 (Machado et al., 2018), episodes that end when the game does, and unchanged rewards.

The emulator steps all its envs at once, so a slice cannot be stepped alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EnvError, EpisodeStats, EpisodeTracker, check_seeds, draw, unsavable
from millpond.envs.families import import_extra, parse_options, require
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec

# Sizes of the games' minimal action sets, so that a plan needs no emulator. Games for two players only are left out.
MINIMAL_ACTIONS = {
    game: size
    for size, games in {
        3: "backgammon freeway skiing",
        4: "atlantis atlantis2 blackjack breakout casino kaboom",
        5: "frogger pacman surround tetris video_checkers",
        6: "air_raid basic_math bowling carnival demon_attack galaxian king_kong name_this_game pong pooyan qbert "
        "sir_lancelot space_invaders up_n_down",
        7: "assault",
        8: "gopher phoenix tutankham",
        9: "asterix beam_rider crazy_climber enduro koolaid lost_luggage ms_pacman video_pinball",
        10: "amidar mr_do othello tic_tac_toe_3d time_pilot video_chess wizard_of_wor",
        12: "turmoil",
        14: "asteroids keystone_kapers kung_fu_master",
        16: "journey_escape",
        18: "adventure alien bank_heist battle_zone berzerk boxing centipede chopper_command crossbow darkchambers "
        "defender donkey_kong double_dunk earthworld elevator_action entombed et fishing_derby flag_capture "
        "frostbite gravitar hangman haunted_house hero human_cannonball ice_hockey jamesbond kangaroo klax krull "
        "laser_gates mario_bros miniature_golf montezuma_revenge pitfall pitfall2 private_eye riverraid road_runner "
        "robotank seaquest solaris space_war star_gunner superman tennis trondead venture video_cube word_zapper "
        "yars_revenge zaxxon",
    }.items()
    for game in games.split()
}
FULL_ACTIONS = 18


@dataclass(frozen=True)
class AtariOptions:
    frame_skip: int = 4
    stack_num: int = 1  # frames per observation
    height: int = 84
    width: int = 84
    grayscale: bool = True
    maxpool: bool = True  # the maximum of the last two frames of a skip, against flicker
    noop_max: int = 30  # maximal number of no-ops at the start of an episode
    repeat_action_probability: float = 0.25  # sticky actions
    episodic_life: bool = False  # a lost life terminates
    reward_clipping: bool = False  # clips rewards to -1..1; see also reward_clip, which works with every environment
    fire_reset: bool = False  # press fire at the start of an episode
    full_action_space: bool = False
    max_steps: int = 27_000  # env steps until truncation: 108,000 frames at a skip of 4
    num_threads: int = 0  # of the emulator; 0: one per core, at most one per env

    def __post_init__(self) -> None:
        for name in ("frame_skip", "stack_num", "height", "width", "max_steps"):
            value = getattr(self, name)
            require(value >= 1, "atari", f"{name}={value} must be at least 1")
        for name in ("noop_max", "num_threads"):
            value = getattr(self, name)
            require(value >= 0, "atari", f"{name}={value} must not be negative")
        sticky = self.repeat_action_probability
        require(0.0 <= sticky < 1.0, "atari", f"repeat_action_probability={sticky} must be in 0..1, 1 excluded")


def game_options(game: str, mapping: Mapping[str, Any]) -> AtariOptions:
    if game not in MINIMAL_ACTIONS:
        import difflib

        near = difflib.get_close_matches(game, MINIMAL_ACTIONS, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; names are in snake_case, as in ms_pacman"
        raise EnvError(f"env 'atari:{game}' is not a game of ale-py{hint}")
    return parse_options(AtariOptions, mapping, env_id=f"atari:{game}")


def describe(game: str, mapping: Mapping[str, Any]) -> EnvSpec:
    """Return the spec of a game without importing the emulator."""
    options = game_options(game, mapping)
    planes = options.stack_num if options.grayscale else options.stack_num * 3
    return EnvSpec(
        id=f"atari:{game}",
        observation=ObservationSpec.single((planes, options.height, options.width), "uint8", "pixels", high=255.0),
        action=ActionSpec.discrete(FULL_ACTIONS if options.full_action_space else MINIMAL_ACTIONS[game]),
        frame_skip=options.frame_skip,
        max_steps=options.max_steps,
        partial_step=False,
        releases_gil=True,
        native_vector=True,
    )


class AtariEnvs:
    """N envs of one Atari game."""

    def __init__(self, game: str, num_envs: int, mapping: Mapping[str, Any], buffers: Buffers | None = None) -> None:
        self.options = options = game_options(game, mapping)
        self.spec = describe(game, mapping)
        self.num_envs = num_envs
        self.buffers = Buffers.allocate(self.spec, num_envs) if buffers is None else buffers
        self._tracker = EpisodeTracker(num_envs, 1)
        vector_env = import_extra("ale_py.vector_env", extra="atari", env_id=self.spec.id)
        self._vector = vector_env.AtariVectorEnv(
            game,
            num_envs,
            num_threads=options.num_threads,
            max_num_frames_per_episode=options.max_steps * options.frame_skip,
            repeat_action_probability=options.repeat_action_probability,
            full_action_space=options.full_action_space,
            autoreset_mode="SameStep",
            img_height=options.height,
            img_width=options.width,
            grayscale=options.grayscale,
            stack_num=options.stack_num,
            frameskip=options.frame_skip,
            maxpool=options.maxpool,
            noop_max=options.noop_max,
            episodic_life=options.episodic_life,
            reward_clipping=options.reward_clipping,
            use_fire_reset=options.fire_reset,
        )

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self._tracker.reset()
        buffers = self.buffers
        buffers.reward[:] = 0.0
        buffers.terminated[:] = False
        buffers.truncated[:] = False
        buffers.alive[:] = True
        # The emulator takes 31 bits; mixed first, so that seeds that differ only in high bits give different ones.
        mixed = (draw(check_seeds(seeds, self.num_envs)) >> np.uint64(33)).astype(np.int64)
        observation, _ = self._vector.reset(seed=mixed)
        self._write_frames(observation, slice(None), buffers.observation)

    def step(self, first: int, last: int) -> None:
        if first != 0 or last != self.num_envs:
            raise EnvError(
                f"env {self.spec.id!r} cannot step envs {first}..{last - 1} alone: the emulator steps all of its "
                f"{self.num_envs} at once (spec.partial_step is False)"
            )
        buffers, tracker = self.buffers, self._tracker
        # A copy: the emulator's threads may read the actions while the caller already writes the next ones.
        observation, reward, terminated, truncated, infos = self._vector.step(buffers.action[:, 0].copy())
        buffers.reward[:, 0] = reward
        buffers.terminated[:, 0] = terminated
        buffers.truncated[:, 0] = truncated
        tracker.add_step(0, self.num_envs, buffers.reward)
        self._write_frames(observation, slice(None), buffers.observation)
        ended = np.flatnonzero(terminated | truncated)
        if len(ended):
            self._write_frames(infos["final_obs"], ended, buffers.final_observation)
            for env in ended.tolist():
                tracker.end_episode(env)

    def _write_frames(self, frames: npt.NDArray[np.uint8], envs: Any, into: npt.NDArray[Any]) -> None:
        """Write frames [N, stack, height, width] or, in colour, [N, stack, height, width, 3]."""
        if not self.options.grayscale:
            frames = np.moveaxis(frames, 4, 2).reshape(self.num_envs, *self.spec.observation.shape)
        into[envs, 0] = frames[envs]

    def episodes(self) -> list[EpisodeStats]:
        return self._tracker.pop_ended()

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        raise unsavable(self.spec.id, "saved")

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        raise unsavable(self.spec.id, "restored")

    def render_rgb(self, env: int) -> npt.NDArray[np.uint8]:
        """Return the newest frame as the agent sees it, with three channels."""
        observation = self.buffers.observation[env, 0]
        frame = observation[-1:].repeat(3, 0) if self.options.grayscale else observation[-3:]
        return np.ascontiguousarray(np.moveaxis(frame, 0, 2))

    def close(self) -> None:
        self._vector.close()
