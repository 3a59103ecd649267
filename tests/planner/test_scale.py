"""Plans for several values of one key."""

from __future__ import annotations

import pytest

from millpond.errors import MillpondError
from millpond.planner.scale import scale, show_scale


def test_the_table_by_number_of_agents() -> None:
    text = show_scale(scale("metta", [], "env.num_agents=3,4,8,24"))
    for row in (
        ("3", "2,720", "8,192", "32", "1,572,864", "49,152"),
        ("4", "2,048", "8,192", "32", "2,097,152", "65,536"),
        ("8", "1,024", "8,192", "32", "4,194,304", "131,072"),
        ("24", "320", "8,192", "32", "12,582,912", "393,216"),
    ):
        assert any(line.split()[:6] == list(row) for line in text.splitlines()), row


def test_a_refused_value_is_shown_with_its_error() -> None:
    scaled = scale("metta", [], "trainer.minibatch_size=32768,10000,8_192")
    numbers = scaled.to_json()["plans"]
    assert [entry.get("num_minibatches") for entry in numbers] == [16, None, 64]
    assert "is not a multiple of" in numbers[1]["error"]
    text = show_scale(scaled)
    assert "10,000 is refused" in text
    assert "16 updates instead of 32" in " ".join(text.split())
    assert "2 times the memory of a training step" in " ".join(text.split())


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        ("mixture-seed", "mixture.big_updates=100,1e4,1e6"),
        ("reward", "reward.cycles=1,10,100"),
        ("metta", "trainer.forward_pass_minibatch_target_size=4096,1e12"),
        ("metta", "ppo.gamma=0.9,0.99"),
        ("metta", "policy.core=lstm,gru,none"),
    ],
)
def test_any_key_of_any_kind_can_be_scaled(recipe: str, text: str) -> None:
    shown = show_scale(scale(recipe, [], text))
    assert all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("env.num_agents", "is not KEY=a,b,c"),
        ("env.num_agents=", "is not KEY=a,b,c"),
        ("env.agents=3,4", "did you mean env.num_agents"),
        ("trainer.minibatch_size=10000", "is not a multiple of"),
        (f"env.num_agents={','.join(['3'] * 40)}", "at most 32"),
    ],
)
def test_other_text_cannot_be_scaled(text: str, says: str) -> None:
    with pytest.raises(MillpondError) as caught:
        scale("metta", [], text)
    assert says in str(caught.value)
