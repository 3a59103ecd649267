"""Acting behind the encoder in one compiled call: an LSTM's step, the layer behind it, and the drawing of choices.

B observations  H hidden  A logits  C choices
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled_fast
from millpond.policies.choice_kernels import draw_choices
from millpond.policies.lstm_kernels import ONE, Flags, Floats
from millpond.policies.lstm_rows import act_forward
from millpond.policies.products import add_product_transposed


@compiled_fast
def act_choices(
    sgemm: int,
    features: Floats,
    w_input: Floats,
    w_hidden: Floats,
    bias: Floats,
    w_output: Floats,
    b_output: Floats,
    input_panels: Floats,
    hidden_panels: Floats,
    state: Floats,
    allowed: Flags,
    sizes: npt.NDArray[np.int64],
    draws: npt.NDArray[np.float64],
    after: Floats,
    action: npt.NDArray[np.int32],
    log_prob: Floats,
    value: Floats,
) -> None:
    """features [B, H], state [B, 2, H], panels as `act_forward` has them, and for `draw_choices` allowed, sizes and draws
    -> state after [B, 2, H], action [B, C], log_prob and value [B].
    """
    batch, logits = len(features), len(b_output) - 1
    act_forward(sgemm, features, w_input, w_hidden, bias, input_panels, hidden_panels, state, after)
    hidden, numbers = np.ascontiguousarray(after[:, 0]), np.empty((batch, logits + 1), np.float32)
    for row in range(batch):
        numbers[row] = b_output
    add_product_transposed(sgemm, hidden, w_output, ONE, numbers)
    for row in range(batch):
        value[row] = numbers[row, logits]
    draw_choices(numbers[:, :logits], allowed, sizes, draws, action, log_prob)
