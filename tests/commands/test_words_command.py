"""`regard words`: what word vectors know, from a run or from a file."""

import json

import numpy as np
import pytest
from command_line import call, mistake

from regard.errors import RegardError
from regard.inspection.word_questions import evaluate_analogies, evaluate_similarity
from regard.inspection.word_table import WordTable
from regard.interchange.word_vectors import read_vectors, write_vectors
from regard.runs.stored_run import open_run
from regard.runs.word_vectors import labelled, table_of
from regard.text.specials import SPECIALS

COUNTRIES = ["france", "italy", "japan", "paris", "rome", "tokyo", "apple", "pear"]
QUESTIONS = (
    ": capitals\nparis france rome italy\nparis france tokyo pear\nparis france oslo norway\n"
)
PAIRS = "apple\tpear\t3\nfrance\tparis\t9\nrome\ttokyo\t7\nrome\toslo\t1\n"


@pytest.fixture
def table() -> WordTable:
    """Each capital is its country and one direction more; fruits are elsewhere."""
    rng = np.random.default_rng(0)
    lands, capital = rng.normal(size=(3, 8)), np.eye(8)[0] * 3
    return WordTable(COUNTRIES, np.concatenate([lands, lands + capital, rng.normal(size=(2, 8))]))


@pytest.fixture
def vectors(table, tmp_path):
    write_vectors(table, tmp_path / "vectors.bin", binary=True)
    (tmp_path / "questions").write_text(QUESTIONS)
    (tmp_path / "pairs").write_text(PAIRS)
    return "vectors.bin"


def test_neighbours_and_analogies_are_told_a_line_each(vectors, table):
    said = call("words", vectors, "nearest", "rome", "--count", 3)
    assert (said.code, said.err) == (0, "")
    wanted = [f"{similarity:.4f}\t{word}" for word, similarity in table.nearest("rome", 3)]
    assert said.out.splitlines() == wanted
    said = call("words", vectors, "analogy", "paris", "france", "rome")
    assert said.out.splitlines()[0].split("\t")[1] == "italy"
    assert len(said.out.splitlines()) == len(COUNTRIES) - 3
    said = call("words", vectors, "similarity", "rome", "italy")
    assert said.out == f"{table.similarity('rome', 'italy'):.4f}\n"


def test_json_holds_the_same_figures(vectors, table):
    said = json.loads(call("words", vectors, "nearest", "rome", "--json").out)
    assert said["word"] == "rome"
    assert [tuple(one.values()) for one in said["nearest"]] == table.nearest("rome")
    said = json.loads(call("words", vectors, "analogy", "paris", "france", "rome", "--json").out)
    assert (said["a"], said["b"], said["c"]) == ("paris", "france", "rome")
    assert said["nearest"][0]["word"] == "italy"
    said = json.loads(call("words", vectors, "similarity", "rome", "italy", "--json").out)
    assert said == {"a": "rome", "b": "italy", "similarity": table.similarity("rome", "italy")}


def test_files_are_asked_by_what_they_hold(vectors, table):
    said = call("words", vectors, "evaluate", "pairs", "questions", "--json")
    pairs, questions = (json.loads(line) for line in said.out.splitlines())
    wanted = evaluate_similarity(table, "pairs")
    assert pairs == {
        "file": "pairs",
        "kind": "similarity",
        "spearman": wanted.spearman,
        "pearson": wanted.pearson,
        "pairs": 3,
        "unknown": 1,
    }
    total = {"name": "total", "accuracy": 0.5, "correct": 1, "asked": 2, "skipped": 1}
    assert questions["total"] == total
    assert questions["sections"] == [{**total, "name": "capitals"}]
    assert questions["syntactic"]["accuracy"] is None
    shown = call("words", vectors, "evaluate", "pairs", "questions").out
    assert f"{wanted.spearman:.4f}" in shown
    assert ["capitals", "50.0%", "1", "2", "1"] in [line.split() for line in shown.splitlines()]


def test_evaluation_can_be_restricted_and_mind_the_case(vectors, table, tmp_path):
    (tmp_path / "upper").write_text(QUESTIONS.upper())
    for changes, options in (({"restrict": 5}, ("--restrict", 5)), ({"case": True}, ("--case",))):
        for path in ("questions", "upper"):
            total = evaluate_analogies(table, path, **changes).total
            said = call("words", vectors, "evaluate", path, "--json", *options)
            assert json.loads(said.out)["total"]["asked"] == total.asked
    assert evaluate_analogies(table, "upper", case=True).total.asked == 0


def test_a_picture_has_its_words_and_arrows(vectors, tmp_path):
    said = call("words", vectors, "plot", "apple", "-o", "new/w.svg", "--pairs", "italy", "rome")
    assert said.out == "wrote new/w.svg\n"
    drawn = (tmp_path / "new/w.svg").read_text()
    assert "3 words and 1 pair" in drawn
    for word in ("apple", "italy", "rome"):
        assert f">{word}</text>" in drawn


@pytest.mark.parametrize(
    ("name", "options", "start"),
    [
        ("v.txt", (), b"8 8\nfrance "),
        ("v.txt", ("--binary",), b"8 8\nfrance "),
        ("v.bin", (), b"8 8\nfrance "),
        ("v.bin.gz", (), b"\x1f\x8b"),
    ],
)
def test_vectors_are_written_in_other_formats(vectors, table, tmp_path, name, options, start):
    said = call("words", vectors, "export", name, *options)
    assert said.out == f"wrote {name}: 8 vectors of 8 numbers\n"
    written = (tmp_path / name).read_bytes()
    assert written.startswith(start)
    if "gz" not in name:
        is_binary = bool(options) or name == "v.bin"
        assert is_binary == (len(written) == (tmp_path / vectors).stat().st_size)
    found = read_vectors(tmp_path / name)
    assert found.words == table.words
    assert np.array_equal(found.vectors, table.vectors)


def test_a_run_of_words_has_its_embedding(words, tmp_path):
    run = open_run(words)
    weights = run.module.embed.tokens.weight.detach().numpy()
    table = table_of(words)
    assert "cat" in table
    assert not set(SPECIALS) & set(table.words)
    place = run.tokenizer.encode("cat")[0]
    assert np.array_equal(table.vector("cat"), weights[place])
    assert len(table) == len(run.tokenizer) - len(SPECIALS)
    said = call("words", words, "nearest", "cat", "--count", 1)
    assert said.out.split("\t")[1].strip() == table.nearest("cat", 1)[0].word
    assert call("words", words, "export", "run.txt").code == 0
    assert np.array_equal(read_vectors(tmp_path / "run.txt").vectors, table.vectors)


def test_tokens_that_look_alike_are_left_out_and_told():
    notes = []
    found = labelled(["a", "·", "b", "·"], np.arange(8.0).reshape(4, 2), notes.append)
    assert found.words == ("a", "·", "b")
    assert found.vectors.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert notes == ["1 of the 4 tokens look like others and were left out"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nearest",), "words nearest: give one word, not 0"),
        (("nearest", "rome", "paris"), "give one word, not 2"),
        (("analogy", "rome", "paris"), "give three words: paris france rome, not 2"),
        (("similarity", "rome"), "give two words, not 1"),
        (("evaluate",), "give files with questions or with pairs, not 0"),
        (("plot",), "give words, not 0"),
        (("plot", "--pairs", "rome"), "--pairs needs two words for each arrow"),
        (("export",), "give one file to write, not 0"),
        (("nearest", "rome", "--binary"), "--binary is not for `nearest`"),
        (("export", "v.txt", "--json"), "--json is not for `export`"),
        (("nearest", "rom"), "'rom' is not among the 8 words; did you mean 'rome'?"),
        (("nearest", "rome", "--count", "0"), "at least one word must be asked for"),
        (("evaluate", "pairs", "nowhere"), "nowhere does not exist"),
        (("evaluate", "vectors.bin"), "vectors.bin"),
        (("plot", "rome", "paris", "-o", "w.txt"), "must end in one of .png"),
        (("plot", "rome", "paris", "-o", "folder"), "folder is a folder"),
        (("export", "folder"), "folder is a folder"),
        (("export", "pairs/v.txt"), "cannot write pairs/v.txt"),
    ],
)
def test_a_wrong_command_is_one_message_and_nothing_is_written(vectors, tmp_path, arguments, said):
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    found = call("words", vectors, *arguments)
    assert said in mistake(found)
    assert found.out == ""
    assert sorted(tmp_path.iterdir()) == before


def test_what_has_no_vectors_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RegardError, match="empty is no run"):
        table_of(tmp_path / "empty")
    (tmp_path / "prose.txt").write_text("Once upon a time\n")
    with pytest.raises(RegardError, match="is no file of word vectors"):
        table_of(tmp_path / "prose.txt")
    with pytest.raises(RegardError, match="nowhere does not exist"):
        table_of(tmp_path / "nowhere")
    assert call("words", "prose.txt", "fly").code == 2
