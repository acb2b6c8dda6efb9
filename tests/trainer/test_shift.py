"""The shift, against an example worked on paper and against its own definition."""

from __future__ import annotations

import numpy as np
import pytest

from eagle3data.trainer.shift import MaskAlignment, ShiftedStep, shift

# Two documents of five and three tokens, then two rows of padding.
IDS = [10, 11, 12, 13, 14, 20, 21, 22, 0, 0]
MASK = [0, 0, 1, 1, 1, 0, 1, 1, 0, 0]
POSITIONS = [0, 1, 2, 3, 4, 0, 1, 2, 0, 0]
DOCUMENTS = [0, 0, 0, 0, 0, 1, 1, 1, -1, -1]

# step: tokens, teacher positions, kept by serving, kept by eagle; worked out by hand.
PAPER = {
    0: (
        [11, 12, 13, 14, 0, 21, 22, 0, 0, 0],
        [1, 2, 3, 4, -1, 6, 7, -1, -1, -1],
        [0, 1, 1, 1, 0, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0, 1, 0, 0, 0],
    ),
    1: (
        [12, 13, 14, 0, 0, 22, 0, 0, 0, 0],
        [2, 3, 4, -1, -1, 7, -1, -1, -1, -1],
        [1, 1, 1, 0, 0, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 1, 0, 0, 0, 0],
    ),
    2: (
        [13, 14, 0, 0, 0, 0, 0, 0, 0, 0],
        [3, 4, -1, -1, -1, -1, -1, -1, -1, -1],
        [1, 1, 0, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0, 0, 0],
    ),
    9: ([0] * 10, [-1] * 10, [0] * 10, [0] * 10),
}


def shifted(step: int, alignment: MaskAlignment) -> ShiftedStep:
    return shift(
        input_ids=np.array(IDS, dtype=np.int32),
        loss_mask=np.array(MASK, dtype=np.uint8),
        position_ids=np.array(POSITIONS, dtype=np.int32),
        document_ids=np.array(DOCUMENTS, dtype=np.int32),
        step=step,
        alignment=alignment,
    )


@pytest.mark.parametrize("step", PAPER)
def test_worked_example(step: int) -> None:
    tokens, teachers, serving, eagle = PAPER[step]
    view = shifted(step, MaskAlignment.SERVING)
    assert view.token_ids.tolist() == tokens
    assert view.teacher_positions.tolist() == teachers
    assert view.rotary_positions.tolist() == [position + step for position in POSITIONS]
    assert view.keep.astype(int).tolist() == serving
    assert shifted(step, MaskAlignment.EAGLE).keep.astype(int).tolist() == eagle


@pytest.mark.parametrize("alignment", MaskAlignment)
def test_a_pack_is_its_documents_one_after_the_other(alignment: MaskAlignment) -> None:
    for step in range(5):
        packed = shifted(step, alignment)
        for start, end in ((0, 5), (5, 8)):
            alone = shift(
                input_ids=np.array(IDS[start:end]),
                loss_mask=np.array(MASK[start:end]),
                position_ids=np.array(POSITIONS[start:end]),
                document_ids=np.zeros(end - start, dtype=np.int32),
                step=step,
                alignment=alignment,
            )
            assert packed.token_ids[start:end].tolist() == alone.token_ids.tolist()
            assert packed.keep[start:end].tolist() == alone.keep.tolist()
            moved = np.where(alone.teacher_positions >= 0, alone.teacher_positions + start, -1)
            assert packed.teacher_positions[start:end].tolist() == moved.tolist()


def test_serving_is_eagle_one_base_position_earlier() -> None:
    serving = shifted(0, MaskAlignment.SERVING).keep
    eagle = shifted(0, MaskAlignment.EAGLE).keep
    for document in ((0, 5), (5, 8)):
        start, end = document
        assert serving[start : end - 2].tolist() == eagle[start + 1 : end - 1].tolist()
