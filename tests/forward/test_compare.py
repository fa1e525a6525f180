"""The metrics of proposals against plain torch on whole logits, and accept lengths by hand."""

from __future__ import annotations

import pytest
import torch

from convertkit.forward.compare import DIGITS, Slots, _largest, _Scan, output_metrics, rounded
from convertkit.forward.streams import Energy

Tensor = torch.Tensor
WORDS, SLOTS = 40, 6


def scanned(logits: Tensor, tokens: Tensor, ids: Tensor, step: int) -> _Scan:
    seen = _Scan(tokens, ids, 4)
    for first in range(0, WORDS, step):
        seen.add(first, logits[:, :, first : first + step])
    return seen


@pytest.mark.parametrize("step", [1, 7, 40])
def test_statistics_do_not_depend_on_the_tiles(step: int) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, SLOTS, WORDS, generator=generator, dtype=torch.float64) * 20
    ids = torch.arange(WORDS).expand(2, -1) * 3
    tokens = torch.tensor([0, 3, 6, 117, 1, 60])  # 1 is no token of the draft vocabulary
    seen = scanned(logits, tokens, ids, step)
    mine, yours = logits.log_softmax(-1)
    assert torch.allclose(seen.kl(), (mine.exp() * (mine - yours)).sum(-1), rtol=1e-12)
    centred = logits - logits.mean(-1, keepdim=True)
    assert torch.allclose(seen.cosine(), torch.cosine_similarity(centred[0], centred[1], dim=-1), rtol=1e-12)
    assert torch.equal(seen.top[1], logits.topk(4, -1).indices)
    chance = seen.chance()
    places = torch.tensor([0, 1, 2, 39, 0, 20])
    expected = logits.softmax(-1).gather(-1, places.expand(2, -1)[..., None])[..., 0]
    expected[:, 4] = 0
    assert torch.allclose(chance, expected, rtol=1e-12)


def slots(first: list[list[int]], chance: list[list[float]], tokens: list[int], recorded: list[bool]) -> Slots:
    count = len(tokens)
    top = torch.tensor(first)[..., None].expand(-1, -1, 3)
    zeros = torch.zeros(count, dtype=torch.float64)
    return Slots(
        2, zeros, zeros + 1, torch.tensor(first), top, torch.tensor(chance, dtype=torch.float64), torch.tensor(tokens),
        torch.tensor(recorded),
    )  # fmt: skip


def test_accept_lengths_by_hand() -> None:
    """Two anchors of three slots. The reference takes 3 and 1, the candidate 1 and 1 (the third comes too late)."""
    said = slots(
        [[1, 2, 3, 4, 9, 6], [1, 9, 3, 4, 9, 6]],
        [[0.5, 0.5, 1.0, 1.0, 0.0, 1.0], [0.5, 0.0, 1.0, 0.25, 1.0, 1.0]],
        [1, 2, 3, 4, 5, 6],
        [True] * 6,
    )
    found = output_metrics(said, True)
    assert found["accept_length"] == {"reference": 3.0, "candidate": 2.0}
    # (0.5 + 0.25 + 0.25 + 1 + 0 + 0) / 2 and (0.5 + 0 + 0 + 0.25 + 0.25 + 0.25) / 2
    assert found["expected_accept_length"] == {"reference": 2.0, "candidate": 1.625}
    assert found["accept_drop"] == pytest.approx(1 / 3, rel=1e-5)
    assert found["top1_agreement"] == pytest.approx(5 / 6, rel=1e-5)
    assert found["agreed_length"] == 2.0


def test_tokens_that_the_target_did_not_choose_end_a_draft() -> None:
    said = slots([[1, 2, 3, 4, 5, 6]] * 2, [[1.0] * 6] * 2, [1, 2, 3, 4, 5, 6], [True, False, True, True, True, True])
    assert output_metrics(said, True)["accept_length"] == {"reference": 3.0, "candidate": 3.0}
    assert output_metrics(said, False)["accept_length"] is None


def test_what_a_report_states_is_rounded() -> None:
    assert rounded(0.123456789) == 0.123457
    assert rounded(torch.tensor(1234567.0)) == 1234570.0
    assert (rounded(3e-12), rounded(float("nan")), rounded(float("inf")), rounded(None)) == (0.0, None, None, None)
    assert DIGITS == 6


def test_energies() -> None:
    one, two = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])
    energy = Energy()
    energy.add(one, two)
    energy.add(one, one)
    assert energy.rel_rms == pytest.approx((0.25 / 50) ** 0.5)
    nothing = Energy()
    nothing.add(one * 0, one)
    assert nothing.rel_rms is None
    assert Energy().rel_rms == 0.0


def test_the_largest_are_the_same_wherever_they_are_sought() -> None:
    """Equal ones in the order of their places; what is no number never counts as large."""
    nan, infinite = float("nan"), float("inf")
    values = torch.tensor([[1.0, 3.0, 3.0, nan, 2.0, 3.0], [nan] * 6, [-infinite, 0.0, -infinite, nan, infinite, 0.0]])
    assert _largest(values, 2).tolist() == [[1, 2], [0, 1], [4, 1]]
    assert _largest(values, 4).tolist() == [[1, 2, 5, 4], [0, 1, 2, 3], [4, 1, 5, 0]]
    random = torch.randn(3, 5, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(_largest(random, 10), random.topk(10, -1).indices)
