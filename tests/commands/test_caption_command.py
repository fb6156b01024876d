"""`regard caption`, and training and measuring on images, as a person uses them."""

import json
import shutil
from pathlib import Path

import pytest
from command_line import call, mistake, trained
from PIL import Image

import regard
from regard.data.builtin.scenes import write_folder

SMALL = ("model.picture=32", "model.width=16", "model.encoder_layers=1", "model.layers=1")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images") / "pictures"
    write_folder(folder, 24, 0, "train", 32, told=3)
    return folder


@pytest.fixture(scope="module", params=["captioner", "captioner-vit-lstm"])
def run(request, pictures, tmp_path_factory) -> Path:
    """A captioner that has hardly learned anything."""
    folder = tmp_path_factory.mktemp("runs") / request.param
    asked = ("--images", pictures, "--model", request.param, "--tokenizer", "word")
    said = trained(folder, *asked, settings=(*SMALL, "data.held_out=0.2", "model.context=20"))
    assert f"regard caption {folder}" in said.out
    assert "BLEU" in said.out
    assert "perplexity" not in said.out
    return folder


def test_what_training_says_at_its_end_is_what_evaluate_says(run):
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    (told,) = (event for event in events if event["event"] == "evaluation")
    found = json.loads(call("evaluate", run, "--json").out)
    assert (found["bleu"], found["exact"]) == (told["bleu"], told["exact"])
    validations = [event for event in events if event["event"] == "validation"]
    assert validations
    assert all("bleu" in one and "loss" not in one for one in validations)
    (end,) = (event for event in events if event["event"] == "end")
    assert end["best_bleu"] == pytest.approx(max(one["bleu"] for one in validations))


def test_captions_of_one_picture_and_of_a_folder(run, pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = call("caption", run, pictures / "00001.png")
    assert (one.code, one.err) == (0, "")
    several = call("caption", run, pictures, "--json")
    found = [json.loads(line) for line in several.out.splitlines()]
    assert [Path(each["image"]).name for each in found] == [f"{n:05}.png" for n in range(1, 25)]
    assert found[0]["captions"][0]["text"] == one.out.rstrip("\n")
    assert not list(tmp_path.iterdir())
    for each in found:
        for word in each["captions"][0]["words"]:
            assert len(word["attention"]) == len(word["attention"][0]) == 4
            assert sum(map(sum, word["attention"])) == pytest.approx(1.0, abs=1e-4)


def test_the_picture_with_each_words_attention_is_drawn(run, pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = call("caption", run, pictures / "00001.png", pictures / "00002.png", "--show")
    assert said.code == 0
    for name in ("00001.seen.png", "00002.seen.png"):
        assert f"wrote {name}" in said.out
        with Image.open(tmp_path / name) as drawn:
            assert min(drawn.size) > 100
    assert call("caption", run, pictures / "00001.png", "-o", "a.svg").code == 0
    assert (tmp_path / "a.svg").read_text().count("<image") >= 1


def test_several_captions_and_a_beginning(run, pictures):
    picture = pictures / "00001.png"
    said = call("caption", run, picture, "--beam", 3, "--n-best", 3, "--prefix", "there is")
    lines = said.out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("there is") for line in lines)


def test_from_python(run, pictures):
    model = regard.load(run)
    first, _ = model.caption([pictures / "00001.png", str(pictures / "00002.png")])
    assert first.text == call("caption", run, pictures / "00001.png").out.rstrip("\n")
    assert first.attention.shape == (len(first.ids) + 1, 16) or len(first.ids) == 20
    assert model.caption([]) == []
    with pytest.raises(regard.RegardError, match="describes pictures"):
        model.generate("a dog")


def test_what_cannot_be_read_is_told_and_the_others_are_described(run, pictures, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    shutil.copy(pictures / "00001.png", tmp_path / "good.png")
    said = call("caption", run, tmp_path / "broken.png", tmp_path / "good.png")
    assert said.code == 0
    assert "good.png: " in said.out
    assert "note: " in said.err
    assert "broken.png is no image that is known" in said.err
    assert "broken.png is no image" in mistake(call("caption", run, tmp_path / "broken.png"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name a picture, or a folder of them"),
        (("nothing.png",), "nothing.png is not there"),
        (("EMPTY",), "has no PNG or JPEG in it"),
        (("FOLDER", "-o", "a.png"), "--out is for one picture"),
        (("PICTURE", "-o", "a.txt"), "its name must end in one of"),
        (("PICTURE", "--beam", 0), "--beam must be a whole number"),
    ],
)
def test_mistakes_of_caption(run, pictures, words, said, tmp_path):
    names = {"EMPTY": tmp_path, "FOLDER": pictures, "PICTURE": pictures / "00001.png"}
    words = [names.get(word, word) for word in words]
    assert said in mistake(call("caption", run, *words))


def test_other_models_describe_no_pictures(translator, pictures):
    said = mistake(call("caption", translator, pictures / "00001.png"))
    assert f"{translator} (encoder-decoder) cannot describe pictures: it translates" in said


@pytest.mark.parametrize("command", ["translate", "generate", "score", "embed", "align"])
def test_a_captioner_does_nothing_else(run, command):
    assert "it describes pictures (`caption`)" in mistake(call(command, run, "a dog"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--images", "PICTURES", "--pairs", "a", "b"), "text to train on, not both"),
        (("--images", "nowhere"), "is not there; give a folder of images"),
        (("--images", "PICTURES", "--model", "gpt2-tiny"), "learns from text, not from images"),
        (("notes.txt", "--model", "captioner"), "or give images with --images"),
        (("--images", "PICTURES", "--set", "model.patch=12"), "patch must be a power of 2"),
    ],
)
def test_mistakes_of_training_on_images(pictures, words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("some text\n" * 100)
    words = [pictures if word == "PICTURES" else word for word in words]
    assert said in mistake(call("train", *words, "--steps", 1))


def test_images_that_were_left_out_are_counted(pictures, tmp_path):
    folder = tmp_path / "odd"
    shutil.copytree(pictures, folder)
    (folder / "00003.png").unlink()
    (folder / "00004.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    Image.new("RGB", (1, 1)).save(folder / "00005.png")
    asked = ("--images", folder, "--tokenizer", "word")
    said = trained(tmp_path / "run", *asked, steps=1, settings=(*SMALL, "model.context=20"))
    assert "1 of 24 images are not there" in said.out
    assert "2 of 24 images cannot be used" in said.out


def test_evaluating_on_other_images(run, pictures, tmp_path):
    write_folder(tmp_path / "other", 5, 9, "test", 32)
    found = call("evaluate", run, tmp_path / "other", "--beam", 2, "--written", tmp_path / "said")
    assert found.code == 0, found.err
    assert "beam 2" in found.out
    assert len((tmp_path / "said").read_text().splitlines()) == 5
    assert "is for runs on pairs" in mistake(call("evaluate", run, "--by-length"))
    assert "one folder of images" in mistake(call("evaluate", run, pictures, pictures))


def test_a_run_whose_images_have_changed_cannot_tell_what_it_held_out(pictures, tmp_path):
    folder = tmp_path / "changed"
    shutil.copytree(pictures, folder)
    asked = ("--images", folder, "--tokenizer", "word")
    trained(tmp_path / "run", *asked, steps=1, settings=(*SMALL, "model.context=20"))
    with (folder / "captions.jsonl").open("a") as lines:
        lines.write(json.dumps({"image": "00001.png", "caption": "another one"}) + "\n")
    assert "has changed since it was trained" in mistake(call("evaluate", tmp_path / "run"))


def damaged(folder: Path, name: str) -> None:
    """Break a picture in its middle, where nobody looks at first."""
    whole = bytearray((folder / name).read_bytes())
    middle = len(whole) // 2
    whole[middle : middle + 40] = bytes(40)
    (folder / name).write_bytes(whole)


def test_images_that_are_damaged_in_their_middle_are_stood_in_for_and_told(pictures, tmp_path):
    folder, valid = tmp_path / "train", tmp_path / "valid"
    shutil.copytree(pictures, folder)
    write_folder(valid, 6, 5, "valid", 32)
    damaged(folder, "00002.png")
    damaged(valid, "00003.png")
    asked = ("--images", folder, "--valid", valid, "--tokenizer", "word")
    said = trained(tmp_path / "run", *asked, steps=6, settings=(*SMALL, "model.context=20"))
    told = " ".join(said.out.split())  # lines may be broken anywhere
    assert "1 of 30 images cannot be used and were left out; the first: " in told
    assert "1 images could not be decoded, and others stood in for them" in told
    assert (tmp_path / "run" / "model.safetensors").exists()
    found = call("evaluate", tmp_path / "run")
    assert found.code == 0, found.err
    assert "1 of 30 images cannot be used" in " ".join(found.out.split())


def test_images_of_which_none_can_be_decoded_are_not_evaluated(run, tmp_path):
    write_folder(tmp_path / "torn", 1, 9, "test", 32)
    damaged(tmp_path / "torn", "00001.png")
    said = mistake(call("evaluate", run, tmp_path / "torn"))
    assert "00001.png is damaged" in said
    assert "none of the images can be decoded" in said


def test_drawings_have_names_of_their_own_and_are_not_described(
    run, pictures, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with Image.open(pictures / "00001.png") as image:
        image.save(tmp_path / "one.png")
        image.save(tmp_path / "one.jpg")
    said = call("caption", run, ".", "--show")
    assert {"wrote one.png.seen.png", "wrote one.jpg.seen.png"} <= set(said.out.splitlines())
    again = call("caption", run, ".")
    assert len(again.out.splitlines()) == 2


@pytest.mark.parametrize("name", ["one.png", "link.png", "sub/../one.png"])
def test_no_picture_is_drawn_over(name, run, pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    shutil.copy(pictures / "00001.png", "one.png")
    Path("link.png").symlink_to("one.png")
    said = mistake(call("caption", run, "one.png", "-o", name))
    assert f"the drawing would lie over the picture {name}; name another file" in said
    shutil.copy(pictures / "00002.png", "one.seen.png")
    said = mistake(call("caption", run, "one.png", "one.seen.png", "--show"))
    assert "would lie over the picture one.seen.png" in said
    for copy, original in (("one.png", "00001.png"), ("one.seen.png", "00002.png")):
        assert Path(copy).read_bytes() == (pictures / original).read_bytes()


def test_a_beginning_that_fills_the_context_is_told(run, pictures):
    said = mistake(call("caption", run, pictures / "00001.png", "--prefix", "there is " * 10))
    assert "a caption has at most 20 tokens, and 20 of them are given to begin with" in said


def test_a_beginning_with_unknown_words_is_told(run, pictures):
    said = mistake(call("caption", run, pictures / "00001.png", "--prefix", "zebra"))
    assert "no caption can begin with 'zebra'" in said


def test_any_width_that_is_a_multiple_of_eight_will_do(pictures, tmp_path):
    asked = ("--images", pictures, "--tokenizer", "word")
    wide = ("model.picture=32", "model.width=72", "model.layers=1", "model.context=20")
    trained(tmp_path / "run", *asked, steps=1, settings=wide)


def test_runs_show_the_best_bleu(run):
    assert "BLEU" in call("runs", run.parent).out
