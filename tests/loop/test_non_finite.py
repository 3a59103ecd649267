import numpy as np
import pytest
import torch

from millpond.loop import Loop, NonFiniteError, Redraw


def drive(loop, body):
    for at in loop.run():
        body(at)


class Sampler:
    """Draws rows with a generator, as a trainer's sampler does."""

    def __init__(self):
        self.generator = np.random.default_rng(3)

    def state_dict(self):
        return {"generator": self.generator.bit_generator.state}

    def draw(self):
        return {"rows": self.generator.integers(0, 1000, size=4)}

    @staticmethod
    def redraw(state, skip):
        sampler = Sampler()
        sampler.generator.bit_generator.state = state["generator"]
        for _ in range(skip):
            sampler.draw()
        return sampler.draw()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("portion", [None, 8, 11])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_value_names_its_address_and_saves_its_batch(tmp_path, monkeypatch, lazy, portion, bad):
    monkeypatch.setattr(torch.Tensor, "is_cpu", not lazy)
    loop, sampler, drawn, saves = Loop(epoch=2, iteration=2, batch=5), Sampler(), {}, []

    def save(address, batch):
        np.savez(tmp_path / "batch.npz", **batch)
        return tmp_path / "batch.npz"

    loop.on_save(lambda: saves.append(loop.count))
    loop.on_non_finite(Redraw(snapshot=sampler.state_dict, draw=Sampler.redraw, save=save))

    def play(until):
        for at in loop.run(until):
            batch = drawn[at.indices] = sampler.draw()
            loss = bad if at.indices == (1, 0, 2) else float(batch["rows"].mean())
            loop.record("R_loss", torch.tensor(loss), weight=1.0)
            if at.indices == (0, 1, 4):
                loop.request_save()

    if portion is not None:
        play(portion)
        loop.save()  # reads the values and takes a new snapshot, in the middle of an iteration
    with pytest.raises(
        NonFiniteError, match=rf"^epoch 1 iteration 0 batch 2: R_loss = {bad}; the batch is in "
    ) as found:
        play(None)
    assert found.value.address.indices == (1, 0, 2)
    assert found.value.exit_code == 1
    assert np.array_equal(np.load(tmp_path / "batch.npz")["rows"], drawn[1, 0, 2]["rows"])
    assert len(drawn) == (15 if lazy else 13)  # on a device it is read at the end of the iteration
    assert saves[-1] <= 11
    with pytest.raises(NonFiniteError):
        loop.save()  # a state after a nan does not replace a good checkpoint


def test_first_of_several_non_finite_values_is_named(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    loop = Loop(iteration=1, batch=4)

    def body(at):
        loop.record("loss", torch.tensor(float("nan") if at["batch"] >= 2 else 0.0))
        loop.record("grad_norm", torch.tensor(float("inf") if at["batch"] >= 1 else 0.0))

    with pytest.raises(NonFiniteError, match=r"^iteration 0 batch 1: grad_norm = inf$"):
        drive(loop, body)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), torch.tensor(-2.0)])
def test_non_finite_weight_is_refused(weight):
    loop = Loop(iteration=1, batch=1)
    with pytest.raises(NonFiniteError, match=r"iteration 0 batch 0: the weight of loss = "):
        drive(loop, lambda at: loop.record("loss", 1.0, weight=weight))


def test_long_innermost_level_is_read_in_between(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    loop = Loop(batch=5000)
    with pytest.raises(NonFiniteError, match="batch 10: loss = nan"):
        drive(loop, lambda at: loop.record("loss", torch.tensor(float("nan") if at["batch"] == 10 else 0.0)))
    assert loop.count == 999


def test_batch_that_cannot_be_drawn_does_not_hide_the_nan():
    loop = Loop(batch=1)

    def draw(state, skip):
        raise OSError("the dataset is gone")

    loop.on_non_finite(Redraw(snapshot=lambda: None, draw=draw, save=lambda address, batch: None))
    with pytest.raises(NonFiniteError, match="loss = nan") as found:
        drive(loop, lambda at: loop.record("loss", float("nan")))
    assert "the dataset is gone" in str(found.value.__cause__)
