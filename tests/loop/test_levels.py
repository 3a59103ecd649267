import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.loop import Address, Loop, LoopError, Until


def drive(loop, body):
    for at in loop.run():
        body(at)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_indices_are_the_digits_of_the_counter(sizes):
    names = [f"level{depth}" for depth in range(len(sizes))]
    loop = Loop(**dict(zip(names, sizes, strict=True)))
    seen = [at.indices for at in loop.run()]
    assert seen == list(itertools.product(*(range(size) for size in sizes)))
    assert loop.done
    assert loop.count == len(seen)
    assert list(loop.totals.values()) == list(itertools.accumulate(sizes, lambda a, b: a * b))


def test_describe_shows_the_total_number_of_steps():
    loop = Loop(epoch=10, cycle=100, iteration=100, batch=50)
    assert loop.describe() == "epoch 10 x cycle 100 x iteration 100 x batch 50 = 5,000,000"


def test_address_as_text_and_mapping():
    at = Address(("epoch", "cycle", "iteration", "batch"), (3, 41, 7, 12))
    assert str(at) == "epoch 3 cycle 41 iteration 7 batch 12"
    assert (at["cycle"], dict(at)["batch"]) == (41, 12)
    with pytest.raises(LoopError, match="no level 'round'; the levels are epoch, cycle, iteration, batch"):
        at["round"]


def test_begins_is_true_for_the_first_step_of_an_item():
    loop = Loop(iteration=2, update_epoch=2, minibatch=3)
    begins = [(at.begins("iteration"), at.begins("update_epoch"), at.begins("minibatch")) for at in loop.run()]
    assert [i for i, (iteration, _, _) in enumerate(begins) if iteration] == [0, 6]
    assert [i for i, (_, update_epoch, _) in enumerate(begins) if update_epoch] == [0, 3, 6, 9]
    assert all(minibatch for _, _, minibatch in begins)


def test_sizes_may_differ_between_parents():
    loop = Loop(round=2, phase=2, update=lambda at: 3 if at["phase"] == 0 else at["round"] + 1)
    assert [at.indices for at in loop.run()] == [
        *[(0, 0, i) for i in range(3)],
        (0, 1, 0),
        *[(1, 0, i) for i in range(3)],
        (1, 1, 0),
        (1, 1, 1),
    ]


def test_body_ends_an_open_level():
    loop = Loop(round=None, phase=2, update=None)
    seen = []
    for at in loop.run():
        seen.append(at.indices)
        if at["update"] == at["phase"]:
            loop.end("update")
        if at["round"] == 1 and at.begins("round"):
            loop.end("round")  # in its first step: the rest of the round still comes
    one_round = [(0, 0), (1, 0), (1, 1)]
    assert seen == [(number, *rest) for number in (0, 1) for rest in one_round]
    assert loop.done


def test_predicate_ends_an_open_level_at_the_end_of_an_item():
    steps = 0
    loop = Loop(iteration=Until(lambda: steps >= 7), minibatch=3)
    for _ in loop.run():
        steps += 1
    assert steps == 9  # three whole iterations
    steps = 100
    assert list(Loop(iteration=Until(lambda: steps >= 7), minibatch=3).run()) == []


def test_level_with_a_size_cannot_be_ended_by_end():
    loop = Loop(epoch=2, batch=5)
    with pytest.raises(LoopError, match="level 'batch' has 5 items here and cannot be ended by end"):
        drive(loop, lambda at: loop.end("batch"))


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "ten"])
def test_sizes_are_checked(size):
    with pytest.raises(LoopError, match="level 'batch' has the size"):
        Loop(epoch=2, batch=size)
    loop = Loop(epoch=2, batch=lambda at: size if at["epoch"] else 1)
    with pytest.raises(LoopError, match=r"level 'batch' has the size .* in epoch 1"):
        list(loop.run())


def test_loop_without_levels_is_refused():
    with pytest.raises(LoopError, match="at least one level"):
        Loop()


def saved(loop):
    return loop.state_dict()


def test_finished_run_can_be_extended():
    loop = Loop(epoch=2, batch=3)
    list(loop.run())
    longer = Loop(epoch=3, batch=3)
    longer.load_state_dict(saved(loop))
    assert [at.indices for at in longer.run()] == [(2, 0), (2, 1), (2, 2)]

    budget = [4]
    steps = [0]

    def until():
        return steps[0] >= budget[0]

    first = Loop(iteration=Until(until), minibatch=2)
    for _ in first.run():
        steps[0] += 1
    again = Loop(iteration=Until(until), minibatch=2)
    again.load_state_dict(saved(first))
    assert list(again.run()) == []
    budget[0] = 6
    for at in again.run():
        assert at["iteration"] == 2
        steps[0] += 1
    assert steps[0] == 6


def test_state_of_another_loop_is_refused():
    loop = Loop(epoch=2, batch=5)
    list(loop.run(until=3))
    with pytest.raises(LoopError, match="the levels epoch > batch, this loop has epoch > cycle"):
        Loop(epoch=2, cycle=5).load_state_dict(saved(loop))
    with pytest.raises(LoopError, match="the saved position is epoch 0 batch 3, but level 'batch' now has only 2"):
        Loop(epoch=2, batch=2).load_state_dict(saved(loop))
