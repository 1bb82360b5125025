import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from spaniel.packing import MIN_SHARED, PackedRow, most_tokens

CPU = torch.device("cpu")


sequences = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2 * MIN_SHARED)), min_size=1, max_size=4),
    min_size=1,
    max_size=7,
).map(lambda rows: [[token for token, count in row for _ in range(count)] for row in rows])


@given(sequences, st.booleans())
def test_every_sequence_lies_along_one_path(made, share):
    row = PackedRow(made, share=share, device=CPU)
    positions = row.positions_1N[0].tolist()
    piece_of = {at: n for n, p in enumerate(row.pieces) for at in range(p.start, p.end)}
    assert len(positions) == len(row.tokens) == len(piece_of)
    for sequence, places in zip(made, row.places, strict=True):
        assert [row.tokens[at] for at in places] == sequence
        assert [positions[at] for at in places] == list(range(len(sequence)))
        last = row.pieces[piece_of[places[-1]]]
        walked = list(dict.fromkeys(piece_of[at] for at in places))
        assert (*last.path, piece_of[places[-1]]) == tuple(walked)


@given(sequences)
def test_what_is_not_shared_is_laid_as_it_is(made):
    row = PackedRow(made, share=False, device=CPU)
    assert row.tokens == [token for sequence in made for token in sequence]
    assert all(not piece.path for piece in row.pieces)


@given(sequences)
def test_a_shared_row_is_no_longer_than_what_was_budgeted(made):
    made = sorted(made)
    row = PackedRow(made, share=True, device=CPU)
    budget = len(made[0]) + sum(most_tokens(b, a) for a, b in itertools.pairwise(made))
    assert len(row.tokens) <= budget


def test_two_levels_share_what_they_can():
    q, a = [1] * 20, [2] * 20
    made = [[*q, *a, 3], [*q, *a, 4, 4], [*q, 5]]
    row = PackedRow(made, share=True, device=CPU)
    assert len(row.tokens) == 20 + 20 + 1 + 2 + 1
    assert [piece.path for piece in row.pieces] == [(), (0,), (0, 1), (0, 1), (0,)]


def test_short_beginnings_are_not_worth_a_piece():
    made = [[1] * (MIN_SHARED - 1) + [2], [1] * (MIN_SHARED - 1) + [3]]
    row = PackedRow(made, share=True, device=CPU)
    assert len(row.pieces) == 2


def test_taps_look_back_along_the_path():
    made = [[1] * 20 + [7], [1] * 20 + [8, 9]]
    row = PackedRow(made, share=True, device=CPU)
    inputs = torch.arange(len(row.tokens), dtype=torch.float)[:, None]
    weight = torch.tensor([[0.0, 1.0, 0.0]])
    before = row.convolve(inputs, weight, None, 0)[:, 0].tolist()
    second = row.places[1]
    assert [before[at] for at in second[1:]] == second[:-1]
    assert before[second[0]] == 0.0
