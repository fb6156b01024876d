"""TensorBoard itself reads back what was written for it."""

import math
import sys

import pytest

from regard.errors import RegardError
from regard.runs.tensorboard import TensorBoard


def test_without_the_package_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(RegardError) as caught:
        TensorBoard(tmp_path)
    assert str(caught.value) == "TensorBoard is not installed; run: pip install tensorboard"


@pytest.fixture
def written(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = TensorBoard(tmp_path / "board")
    board.write({"event": "start", "step": 0, "time": 0.0, "run": "a", "steps": 30})
    for step, loss in ((10, 2.5), (20, math.nan), (30, 2.0)):
        event = {"event": "step", "step": step, "time": 1.0, "loss": loss, "learning_rate": 0.5}
        board.write({**event, "memory": 3_000_000_000, "padding": None})
    board.write({"event": "validation", "step": 20, "time": 2.0, "loss": 2.25, "best": True})
    board.write(
        {"event": "sample", "step": 20, "time": 2.0, "prompt": "a", "text": "*b*\n# c\ud800"}
    )
    board.write({"event": "warning", "step": 20, "time": 2.0, "message": "<b>beware</b>"})
    board.close()
    read = accumulator.EventAccumulator(str(tmp_path / "board"))
    read.Reload()
    return read


def test_every_number_is_a_curve_and_nothing_else_is(written):
    names = {"train/loss", "train/learning_rate", "train/memory", "validation/loss"}
    assert set(written.Tags()["scalars"]) == names
    points = [(point.step, point.value) for point in written.Scalars("train/loss")]
    assert points[::2] == [(10, 2.5), (30, 2.0)]
    assert math.isnan(points[1][1])
    assert [(p.step, p.value) for p in written.Scalars("validation/loss")] == [(20, 2.25)]
    assert written.Scalars("train/memory")[0].value == pytest.approx(3e9)


def test_texts_are_shown_as_they_are(written):
    def text(name):
        (event,) = written.Tensors(f"{name}/text_summary")
        assert event.step == (0 if name == "start" else 20)
        return event.tensor_proto.string_val[0].decode()

    assert text("sample") == "**prompt**\n\n    a\n\n**text**\n\n    *b*\n    # c\\ud800"
    assert text("warning") == "**message**\n\n    <b>beware</b>"
    assert "**steps**\n\n    30" in text("start")
