"""`regard align`: what a run looked at, shown, written down, and measured."""

import json
from pathlib import Path

import pytest
import torch
from command_line import call, mistake, trained

from regard.metrics.alignment_errors import Tally, compare, gold_of, read_gold

TEXT = "the cat sat on né ."


@pytest.fixture(scope="session")
def reverser(tmp_path_factory) -> Path:
    """A run on the built-in task, hardly trained."""
    folder = tmp_path_factory.mktemp("tasks") / "run"
    trained(folder, "reverse", "--model", "marian-tiny", settings=("data.examples=100",))
    return folder


def told(*arguments) -> dict:
    said = call("align", *arguments, "--json")
    assert (said.code, said.err) == (0, "")
    return json.loads(said.out)


@pytest.mark.parametrize("kind", ["translator", "separate"])
def test_a_source_alone_is_aligned_with_its_translation_as_translate_does(request, kind):
    folder = request.getfixturevalue(kind)
    found = told(folder, TEXT)
    said = call("translate", folder, "--alignments", "--json", stdin=TEXT.encode())
    (best,) = json.loads(said.out)["translations"]
    assert found["target"] == best["text"].strip()
    if found["target_tokens"][:-1] == best["tokens"]:
        length = len(best["attention"])  # without the end, if it was not written
        ours, theirs = torch.tensor(found["attention"])[:length], torch.tensor(best["attention"])
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    else:
        assert kind == "separate"  # bpe may spell a text in several ways
    assert found["target_units"] == found["target"].split()


def test_matrix_links_and_picture_of_a_pair(separate):
    target = "né on the sattheran"
    found = told(separate, f" {TEXT} ", target)
    assert not list(Path().iterdir())
    assert (found["source_units"], found["target_units"]) == (TEXT.split(), target.split())
    assert len(found["attention"]) == len(found["target_tokens"]) > 5
    assert found["source_tokens"][-1] == found["target_tokens"][-1] == "</s>"
    matrix = torch.tensor(found["matrix"])
    assert matrix.shape == (4, 6)
    assert (matrix.sum(-1) < 1).all()
    links = [[int(source), target] for target, source in enumerate(matrix.argmax(-1))]
    assert found["links"] == links
    said = call("align", separate, TEXT, target)
    *shown, printed, wrote = said.out.splitlines()
    assert printed == " ".join(f"{source}-{target}" for source, target in links)
    assert wrote == "wrote alignment.png"
    assert [line.split()[:2] for line in shown[-4:]] == [
        [word, str(i)] for i, word in enumerate(target.split())
    ]
    assert Path("alignment.png").read_bytes().startswith(b"\x89PNG")
    assert call("align", separate, TEXT, target, "-o", "deep/it.svg").out.endswith("deep/it.svg\n")
    assert Path("deep/it.svg").read_bytes().startswith(b"<?xml")


def test_layers_and_heads_are_parts_of_the_whole(separate):
    heads = [told(separate, TEXT, "the né", "--layer", 1, "--head", head) for head in range(4)]
    layer = told(separate, TEXT, "the né", "--layer", 1)
    mean = torch.tensor([one["matrix"] for one in heads]).mean(0)
    torch.testing.assert_close(torch.tensor(layer["matrix"]), mean)
    assert layer["matrix"] == told(separate, TEXT, "the né")["matrix"]  # the upper half of two
    assert layer["matrix"] != told(separate, TEXT, "the né", "--layer", 0)["matrix"]


def test_a_wide_matrix_comes_in_parts_that_fit_and_shows_any_text(separate, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    said = call("align", separate, "the \x1b 猫 " + "cat " * 18, "the 猫")
    *shown, links, _ = said.out.splitlines()
    assert (said.code, said.err) == (0, "")
    assert sum(line.startswith("the 0 ") for line in shown) == 2
    assert "\x1b" not in said.out
    assert len(links.split()) == 2


def test_the_links_of_files_are_those_of_each_pair(separate, data):
    files = data / "source2", data / "target2"
    said = call("align", separate, "--pairs", *files)
    pairs = list(zip(*(f.read_text(encoding="utf-8").splitlines() for f in files), strict=True))
    lines = said.out.splitlines()
    assert (said.code, said.err, len(lines)) == (0, "", len(pairs))
    for pair, line in list(zip(pairs, lines, strict=True))[:3]:
        links = told(separate, *pair)["links"]
        assert line == " ".join(f"{source}-{target}" for source, target in links)
    both = call("align", separate, "--pairs", *files, "--json").out.splitlines()
    assert [json.loads(line)["line"] for line in both] == list(range(1, len(pairs) + 1))


def test_words_that_the_run_does_not_know_are_told_in_a_note(translator):
    said = call("align", translator, "the zebra sat", "sat quagga gnu the", "--json")
    json.loads(said.out)
    assert "1 of the source's 3 tokens are unknown to this run" in said.err
    assert "2 of the target's 4 tokens are unknown to this run" in said.err
    Path("a.tsv").write_text("the zebra sat\tthe\nsat\tgnu gnu\n", encoding="utf-8")
    said = call("align", translator, "--pairs", "a.tsv")
    assert "3 of the 7 tokens are unknown to this run" in said.err


def test_what_cannot_be_read_has_an_empty_line_and_is_told(separate):
    Path("a.tsv").write_text("the\tthe\n\t\nthe\t" + "dog " * 99 + "\n", encoding="utf-8")
    said = call("align", separate, "--pairs", "a.tsv")
    assert said.out == "0-0\n\n\n"
    assert "2 of 3 pairs were left out; line 2: the source is empty" in said.err


@pytest.mark.parametrize("first", [0, 1])
def test_the_error_rate_against_a_gold_file(separate, data, first):
    files = data / "source2", data / "target2"
    texts = [f.read_text(encoding="utf-8").splitlines() for f in files]
    sizes = [tuple(len(text.split()) for text in pair) for pair in zip(*texts, strict=True)]
    lines = [
        " ".join(f"{size[0] - 1 - j + first}{'-?'[j % 2]}{j + first}" for j in range(size[1]))
        for size in sizes  # each target is its source backwards
    ]
    Path("gold").write_text("\n".join(lines) + "\n", encoding="utf-8")
    based = ["--one-based"] * first
    gold = read_gold("gold", sizes, one_based=bool(first))
    printed = call("align", separate, "--pairs", *files).out.splitlines()
    links = [{tuple(map(int, link.split("-"))) for link in line.split()} for line in printed]
    wanted = sum((compare(a, b) for a, b in zip(links, gold, strict=True)), Tally())
    figures = told(separate, "--pairs", *files, "--gold", "gold", *based)
    assert figures["aer"] == wanted.error
    assert 0.2 < wanted.error < 1
    assert (figures["links"], figures["sure"]) == (wanted.links, wanted.sure)
    shown = call("align", separate, "--pairs", *files, "--gold", "gold", *based).out
    assert f"{wanted.error:.1%}" in shown
    assert f"{wanted.possible}" in shown


def test_a_share_of_nothing_is_a_dash_and_in_json_null(separate):
    Path("a.tsv").write_text("the cat\tcat the\n", encoding="utf-8")
    Path("gold").write_text("0?1 1?0\n", encoding="utf-8")
    asked = ("--pairs", "a.tsv", "--gold", "gold", "--each")
    assert told(separate, *asked)["recall"] is None
    said = call("align", separate, *asked).out
    assert "nan" not in said
    assert said.splitlines()[1].split()[2] == "–"  # AER, precision, recall


@pytest.mark.parametrize(
    ("model", "said"), [("bahdanau", "all the attention that there is"), ("t5-tiny", "all heads")]
)
def test_a_model_of_one_layer_is_not_said_to_have_an_upper_half(data, model, said):
    small = ("model.layers=1", "model.width=32")
    trained("r", "--pairs", data / "source", data / "target", "--model", model, settings=small)
    Path("a.tsv").write_text("the cat\tcat the\n", encoding="utf-8")
    Path("gold").write_text("0-1 1-0\n", encoding="utf-8")
    shown = call("align", "r", "--pairs", "a.tsv", "--gold", "gold", "--each").out
    assert f"links of words: {said};" in shown
    assert "upper half" not in shown
    call("align", "r", "the cat", "cat the", "-o", "a.svg")
    assert "upper half" not in Path("a.svg").read_text(encoding="utf-8")


def test_a_task_is_judged_by_character_and_each_head_too(reverser, monkeypatch):
    from regard.commands import align

    monkeypatch.setattr(align, "EXAMPLES", 60)
    found = told(reverser, "reverse", "--each")
    assert found["by"] == "characters"
    examples = list(align.tasks.pairs("reverse", 60, 0, "test"))
    assert found["pairs"] == 60
    assert found["sure"] == found["links"] == sum(len(e.source) for e in examples)
    first = told(reverser, examples[0].source, examples[0].target, "--layer", 1, "--head", 2)
    assert len(first["matrix"]) == len(first["source_units"]) == len(examples[0].source)
    assert 0 <= compare(map(tuple, first["links"]), gold_of(examples[0])).error <= 1
    assert len(found["each"]) == 2 * (4 + 1) + 1
    one = next(e for e in found["each"] if (e["layer"], e["head"]) == (1, 2))
    alone = told(reverser, "reverse", "--layer", 1, "--head", 2)
    assert one["aer"] == alone["aer"]
    table = call("align", reverser, "reverse", "--each").out
    best = min(found["each"], key=lambda e: e["aer"])
    assert f"*{best['aer']:.1%}" in table
    assert "layer 1" in table


def test_a_task_is_meant_by_its_name_only_where_the_run_was_trained_on_it(reverser, separate):
    said = call("align", reverser, "copy")
    assert "AER" not in said.out
    assert "'copy' is read as a text: the run was not trained on the task" in said.err
    said = call("align", separate, "reverse", "--json")
    assert json.loads(said.out)["source"] == "reverse"
    assert "--pairs reverse takes the task" in said.err
    said = call("align", separate, "reverse", "the", "--json")  # with a target it is no task
    assert (json.loads(said.out)["source"], said.err) == ("reverse", "")


def test_any_task_is_judged_where_pairs_are_asked_for(reverser, monkeypatch):
    monkeypatch.setattr("regard.commands.align.EXAMPLES", 20)
    found = told(reverser, "--pairs", "copy")
    assert (found["pairs"], found["by"]) == (20, "characters")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "give a source text, --pairs, or the run's task"),
        ("a b c", "give a source and a target"),
        ("a --pairs x y", "give texts or --pairs, not both"),
        ("a --gold g", "--gold is for --pairs"),
        ("--pairs reverse --gold g", "a task has its own gold"),
        ("a --one-based", "--one-based is for --gold"),
        ("a --each", "--each needs --gold"),
        ("--pairs reverse --each --layer 1", "leave out --layer and --head"),
        ("--pairs reverse --by words", "gold is for characters"),
        ("--pairs reverse -o x.png", "--out is the picture of one pair"),
        ("a -o x.gif", "must end in one of .png, .svg, .pdf"),
        ("a -o /dev/null/x.png", "cannot write"),
        ("the the --layer 2", "there is no layer 2; this model's attention has layers 0 to 1"),
        ("the the --layer 0 --head 9", "there is no head 9"),
        ("the the --head 1", "say which layer"),
        ("--pairs nowhere none", "nowhere is not there"),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(translator, arguments, said):
    found = call("align", translator, *arguments.split())
    assert said in mistake(found)
    assert found.out == ""
    assert not list(Path().iterdir())


def test_empty_texts_long_texts_wrong_gold_and_other_runs_are_told(translator, decoder, data):
    assert "the source is empty" in mistake(call("align", translator, " ", "the"))
    assert "the target is empty" in mistake(call("align", translator, "the", ""))
    assert "is too long" in mistake(call("align", translator, "the", "dog " * 500))
    assert "it continues texts" in mistake(call("align", decoder, "the", "the"))
    files = data / "source2", data / "target2"
    Path("gold").write_text("0-0\n", encoding="utf-8")
    wrong = call("align", translator, "--pairs", *files, "--gold", "gold")
    assert "gold has 1 lines, but there are 15 pairs" in mistake(wrong)
