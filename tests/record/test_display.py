import pytest

from millpond.record.display import ScreenView, metric_names, page, player_names
from millpond.record.history import History
from millpond.record.usage import Usage

PPO = {
    "updates": 128.0,
    "agent_steps": 393_216.0,
    "policy_loss": -0.0032,
    "value_loss": 0.0047,
    "entropy": 1.5,
    "approx_kl": 0.0069,
    "grad_norm": 0.073,
    "reward_per_agent_step": 0.0031,
    "episode_return": 0.63,
    "episode_length": 256.0,
    "env/ores": 6.98,
    "env/a metric with a very long name that does not fit into its column": 1.0,
    "eval/episode_return": 0.61,
    "eval/episode_return_low": 0.5,
    "eval/episode_return_high": 0.7,
    "time/train": 1.1,
    "agent_steps_per_second": 37_720.0,
}
PLAYER = {"episode_return": 1.0, "q_loss": 0.1, "q_value": 0.5, "grad_norm": 1.0, "epsilon": 0.1, "updates": 10.0}
MIXTURE = {
    "episode_return": 0.8,
    "diversity": 0.4,
    **{f"agent{k}/{name}": value + k for k in range(16) for name, value in PLAYER.items()},
    "big/q_loss": 0.01,
    "big/eval/episode_return": 3.0,
    "agents/eval/episode_return": 2.0,
    **{f"replayed/agent{k}": 10.0 for k in range(16)},
}
REWARD = {
    "R_loss": 0.28,
    "held_out/step_pearson": 0.95,
    "held_out/step_spearman": 0.43,
    "held_out/even/step_pearson": 0.2,
}
WARNINGS = [f"after {k} updates: entropy collapsed, and this text needs more than one line of eighty" for k in range(9)]


def view(record, warnings=(), records=40):
    history = History()
    for k in range(records):
        history.add({name: value * (1 + k % 7) for name, value in record.items()})
    return ScreenView(
        title="a-run-with-quite-a-long-name · ppo · gymnasium:CartPole-v1",
        axis="agent_steps",
        history=history,
        usage=Usage(1.86, 1_234_567_890),
        cores=2,
        memory=25_000_000_000,
        share=0.52,
        seconds_left=245.0,
        seconds=271.0,
        count=1_234_567.0,
        per_second=31_234.0,
        position=[("iteration", 61, 122), ("update_epoch", 1, 4), ("minibatch", 3, None)],
        phases={"collect": 0.41, "train": 0.52, "evaluate": 0.001, "other": 0.07},
        warnings=list(warnings),
    )


def lines(*arguments, width=80, height=23, **options):
    return [line.plain for line in page(view(*arguments), width, height, **options)]


@pytest.mark.parametrize("record", [PPO, MIXTURE, REWARD, {}], ids=["ppo", "mixture", "reward", "empty"])
@pytest.mark.parametrize("size", [(80, 23), (160, 49), (40, 10), (20, 5), (1, 1), (300, 100)])
@pytest.mark.parametrize("warnings", [0, 1, 9])
def test_page_fits_the_terminal(record, size, warnings):
    width, height = size
    shown = page(view(record, WARNINGS[:warnings]), width, height)
    assert len(shown) <= height
    assert all(line.cell_len <= width for line in shown)
    assert not any("\n" in line.plain for line in shown)


def test_progress_speed_and_use_of_the_machine_come_before_the_return():
    title, bar, position, blank, first, second, *_ = lines(PPO)
    assert title.startswith("a-run-with-quite")
    assert title.endswith("1.9 of 2 cores · 1.2 GB of 25.0 GB")
    assert bar.endswith(" 52%  4m05s left")
    assert bar.count("━") / (bar.count("━") + bar.count("─")) == pytest.approx(0.52, abs=0.02)
    assert position == "1.235M agent steps  31.23k/s  4m31s  iteration 61/122  update epoch 1/4"
    assert blank == ""
    assert first.split()[:2] == ["return", f"{0.63 * 5:.4g}"]
    assert first.endswith("best 4.41")
    assert "▁" in first
    assert second.startswith("return, evaluated")
    assert "(2.5 to 3.5)" in second


def test_losses_follow_the_return_and_there_is_one_speed():
    shown = lines(PPO)
    assert shown[7].startswith("policy_loss")
    assert shown[8].startswith("value_loss")
    text = "\n".join(shown)
    assert text.count("/s") == 1
    assert "time  train 52%  collect 41%  other 7%" in text
    assert "agent_steps_per_second" not in text
    assert "eval/episode_return_low" not in text


def test_warnings_are_at_the_bottom_newest_first():
    *_, last = lines(PPO, WARNINGS[:1])
    assert last.strip() == "eighty"
    shown = lines(PPO, WARNINGS)
    first = next(k for k, line in enumerate(shown) if line.startswith("!"))
    assert shown[first].startswith("! after 8 updates")
    assert shown[-1] == "! and 7 more: see the report"
    assert len(shown) - first <= 6
    assert any(line.startswith("policy_loss") for line in shown)


def test_each_player_has_a_line():
    names = player_names(view(MIXTURE).history)
    assert names == [*(f"agent{k}" for k in range(16)), "big"]
    shown = lines(MIXTURE, width=160, height=49)
    header = next(k for k, line in enumerate(shown) if "epsilon" in line)
    assert shown[header].split() == ["return", "evaluated", "q_loss", "q_value", "grad_norm", "epsilon", "updates"]
    assert [line.split()[0] for line in shown[header + 1 : header + 18]] == names
    assert not any(name.startswith("agent1/") for name in metric_names(view(MIXTURE).history))
    low = lines(MIXTURE)
    assert any(line.startswith("and ") and line.endswith("more") for line in low)  # they do not all fit


def test_a_learned_reward_is_judged_on_held_out_episodes_first():
    shown = lines(REWARD)
    assert shown[4].startswith("step_pearson, held out")
    assert shown[5].startswith("R_loss")
    assert "lowest 0.28" in shown[5]
    assert "even" not in "\n".join(shown)


def test_metrics_that_do_not_fit_are_counted():
    many = {f"metric{k}": float(k) for k in range(100)}
    shown = lines(many)
    left_out = next(line for line in shown if line.startswith("and "))
    count = sum(line.count("metric") for line in shown if line.startswith("metric"))
    assert left_out == f"and {100 - count} more in metrics.jsonl"


def test_terminals_without_unicode_get_ascii():
    shown = lines({**PPO, "größe": 1.0}, ascii_only=True)
    assert all(line.isascii() for line in shown)
    assert [len(line) for line in shown] == [len(line) for line in lines({**PPO, "größe": 1.0})]


def test_names_are_printable():
    shown = lines({"bad\x1b[2J": 1.0, "bad\n/episode_return": 1.0, "good/episode_return": 1.0})
    assert all(line.isprintable() for line in shown)
