"""`regard embed`: vectors printed or written, the same in every format."""

import json

import numpy as np
import pytest
from command_line import call, mistake

from regard.commands import embed
from regard.decoding.embedding import embedded
from regard.loading import text_model_of
from regard.runs.stored_run import open_run

LINES = ["the cat sat", "", "a né ran\tunder"]


def vectors_of(folder, texts=LINES, **options) -> np.ndarray:
    return embedded(text_model_of(open_run(folder)), texts, **options).numpy()


@pytest.mark.parametrize("kind", ["decoder", "encoder", "separate"])
def test_every_format_holds_the_vectors_to_the_bit(request, tmp_path, kind):
    folder = request.getfixturevalue(kind)
    expected = vectors_of(folder)
    (tmp_path / "lines.txt").write_text("\n".join(LINES), encoding="utf-8")
    said = call("embed", folder, *LINES)
    assert (said.code, said.err) == (0, "")
    assert said == call("embed", folder, stdin="\r\n".join(LINES).encode())
    for name in ("v.npy", "new/v.jsonl", "v.tsv"):
        wrote = call("embed", folder, "--file", "lines.txt", "--out", name)
        assert wrote.out == f"wrote {name}: 3 vectors of 32 numbers\n"
    for spelled in (said.out, (tmp_path / "new/v.jsonl").read_text()):
        found = [json.loads(line) for line in spelled.splitlines()]
        assert [one["text"] for one in found] == LINES
        assert np.array_equal(np.array([one["vector"] for one in found], np.float32), expected)
    stored = np.load(tmp_path / "v.npy", allow_pickle=False)
    assert stored.dtype == np.float32
    assert np.array_equal(stored, expected)
    assert np.array_equal(np.loadtxt(tmp_path / "v.tsv", np.float32, delimiter="\t"), expected)


def test_pooling_can_be_chosen(encoder):
    for pool in ("mean", "first", "last"):
        said = call("embed", encoder, "the cat", "--pool", pool)
        expected = vectors_of(encoder, ["the cat"], pool=pool)[0]
        assert np.array_equal(np.array(json.loads(said.out)["vector"], np.float32), expected)
    assert call("embed", encoder, "the cat", "--pool", "middle").code == 2


def test_unknown_words_are_counted_over_all_texts(words, translator):
    for folder in (words, translator):
        said = call("embed", folder, "the zebra", "zebra", "a cat")
        assert said.err == "note: 2 of the 5 tokens are unknown to this run\n"
        assert call("embed", folder, "a cat").err == ""


def test_what_cannot_be_written_whole_leaves_what_was_there(encoder, tmp_path, monkeypatch):
    (tmp_path / "v.tsv").write_text("old")
    rows = embed._rows

    def breaks(vectors):
        yield next(rows(vectors))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(embed, "_rows", breaks)
    said = call("embed", encoder, "a", "b", "--out", "v.tsv")
    assert "cannot write v.tsv: no space left" in mistake(said)
    assert (tmp_path / "v.tsv").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["v.tsv"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a", "--out", "v.txt"), "--out must end in .npy, .jsonl, .tsv, but is v.txt"),
        (("a", "--out", "folder.npy"), "folder.npy is a folder"),
        (("a", "--out", "file/v.npy"), "cannot write file/v.npy"),
        (("--file", "nowhere"), "nowhere is not there"),
        (("a", "--file", "file"), "texts or --file, not both"),
        ((), "there is no text in standard input"),
        (("a", "x " * 500), "text 2 has"),
        (("a", "--device", "abacus"), "abacus"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_nothing_is_written(
    encoder, tmp_path, arguments, words
):
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "file").touch()
    said = call("embed", encoder, *arguments)
    assert words in mistake(said)
    assert said.out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"folder.npy", "file"}
