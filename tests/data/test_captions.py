"""Lists of images with captions: every form, divided by image, nothing dropped without a count."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from regard.data.readers import captions as module
from regard.data.readers.captions import CaptionCounts, Captioned, encode_captions, gather_captions
from regard.errors import RegardError
from regard.text.learning import learn
from regard.text.specials import BOS, EOS

SAID = {f"{n:02}.png": [f"a picture number {n}", f"{n} in a picture"] for n in range(40)}


def picture(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Forty small pictures, which no test changes."""
    folder = tmp_path_factory.mktemp("pictures")
    for seed, name in enumerate(SAID):
        picture(folder / name, seed)
    return folder


@pytest.fixture
def folder(pictures, tmp_path) -> Path:
    """A folder of one's own with them, without a list."""
    for path in pictures.iterdir():
        os.link(path, tmp_path / path.name)
    return tmp_path


def as_tsv(said: dict[str, list[str]]) -> str:
    return "".join(f"{name}\t{text}\n" for name, texts in said.items() for text in texts)


def as_jsonl(said: dict[str, list[str]]) -> str:
    lines = [json.dumps({"image": name, "captions": texts}) for name, texts in said.items()]
    return "\n".join(lines) + "\n"


def one_by_one(said: dict[str, list[str]]) -> str:
    """Captions of the same image far from one another."""
    pairs = [(name, texts[turn]) for turn in range(2) for name, texts in said.items()]
    return "".join(json.dumps({"image": name, "caption": text}) + "\n" for name, text in pairs)


def write(path: Path, content: str | bytes) -> Path:
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def said(part) -> dict[str, list[str]]:
    return {one.image.name: list(one.captions) for one in part}


# --- forms -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("captions.tsv", as_tsv(SAID)),
        ("a.tsv", as_tsv(SAID).replace("\n", "\r\n")),
        ("b.TSV.gz", as_tsv(SAID)),
        ("captions.jsonl", as_jsonl(SAID)),
        ("c.ndjson", as_jsonl(SAID)),
        ("d.jsonl", one_by_one(SAID)),
        ("e.tsv", "\ufeff" + as_tsv(SAID).replace("07.png", "./x/../07.png", 1)),
    ],
)
def test_every_form_gives_the_same_images_by_file_or_folder(name, content, folder):
    path = write(folder / name, content)
    for given_path in (path, folder, str(folder)):
        found = gather_captions(given_path, held_out=0.0)
        assert said(found.train) == SAID
        assert [one.image for one in found.train] == [folder / name for name in SAID]
        assert found.counts == CaptionCounts(read=80, kept=80, images=40)
        assert found.counts.sentences() == []
        assert found.rule == "nothing held out"
        assert list(found.texts()) == [text for texts in SAID.values() for text in texts]


def test_captions_is_meant_where_there_are_other_lists(folder):
    write(folder / "captions.tsv", "00.png\tyes\n")
    write(folder / "other.tsv", "00.png\tno\n")
    assert list(gather_captions(folder, held_out=0.0).texts()) == ["yes"]


def test_images_may_lie_in_folders_and_have_any_name(tmp_path):
    names = ["deep/down/a.png", "mit Leerzeichen.png", "日本.png", os.fsdecode(b"\xff.png")]
    for seed, name in enumerate(names):
        picture(tmp_path / name, seed)
    write(tmp_path / "a.tsv", b"".join(os.fsencode(name) + b"\tx\n" for name in names))
    found = gather_captions(tmp_path, held_out=0.5)
    assert {one.image for one in [*found.train, *found.valid]} == {tmp_path / n for n in names}
    assert len(found.digest) == 32


def test_boxes_stay_beside_their_captions_and_other_keys_with_the_image(folder):
    box = [{"start": 0, "stop": 1, "box": [0.1, 0.2, 0.5, 1]}]
    lines = [
        {"image": "00.png", "captions": ["a dog", " ", "a cat"], "boxes": [box, box, []], "id": 7},
        {"image": "00.png", "caption": "none", "id": 8, "split": "train"},
        {"image": "01.png", "caption": "a bird", "boxes": [box]},
    ]
    write(folder / "a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    one, two = gather_captions(folder, held_out=0.0).train
    assert one.captions == ("a dog", "a cat", "none")
    assert one.boxes == (box, [], None)
    assert one.extra == {"id": 8, "split": "train"}
    assert two == Captioned(folder / "01.png", ("a bird",), (box,), {}, two.mark)


# --- mistakes --------------------------------------------------------------------------------


def test_what_is_no_list_is_told(folder):
    with pytest.raises(RegardError, match="has no list of captions"):
        gather_captions(folder)
    with pytest.raises(RegardError, match=r"00\.png is no list of captions; give"):
        gather_captions(folder / "00.png")
    with pytest.raises(RegardError, match="nowhere is not there; give a folder"):
        gather_captions(folder / "nowhere")
    write(folder / "a.tsv", "")
    with pytest.raises(RegardError, match=r"no image with a caption to use \(it is empty\)"):
        gather_captions(folder)
    write(folder / "b.jsonl", "")
    with pytest.raises(RegardError, match=r"has several lists \(a.tsv, b.jsonl\); give one"):
        gather_captions(folder)
    with pytest.raises(RegardError, match="UTF-16"):
        gather_captions(write(folder / "c.tsv", as_tsv(SAID).encode("utf-16")))
    with pytest.raises(RegardError, match="from 0 to below 1"):
        gather_captions(folder, held_out=1.5)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("a.tsv", "00.png\tgood\n", ["00.png", "00.png\ta\tb", "\ta caption", ".\ta caption"]),
        (
            "a.jsonl",
            '{"image": "00.png", "caption": "good"}\n',
            [
                "{",
                "[]",
                "[" * 100_000,
                '{"image": "00.png"}',
                '{"caption": "x"}',
                '{"image": 3, "caption": "x"}',
                '{"image": "00.png", "caption": ["x"]}',
                '{"image": "00.png", "captions": "x"}',
                '{"image": "00.png", "captions": ["x", 3]}',
                '{"image": "00.png", "caption": "x", "captions": ["x"]}',
                '{"image": "00.png", "captions": ["x", "y"], "boxes": [[]]}',
                '{"image": "00.png", "caption": "x", "boxes": [{"words": [0, 1]}]}',
                '{"image": "a\\u0000.png", "caption": "x"}',
            ],
        ),
    ],
)
def test_every_line_that_is_none_is_told_by_its_number(name, good, bad, folder):
    path = write(folder / name, good + good.join(line + "\n" for line in bad) + good)
    with pytest.raises(RegardError) as told:
        gather_captions(path)
    assert str(told.value).startswith(f"{path}: {len(bad)} problems")
    for number in range(len(bad)):
        assert f"line {2 * number + 2}: " in str(told.value)


@pytest.mark.parametrize(
    "name", ["../secret.png", "/etc/passwd", "a/../../x.png", "..", "./../x.png", "../x/../y.png"]
)
@pytest.mark.parametrize("form", ["a.tsv", "a.jsonl"])
def test_paths_that_lead_out_are_refused(name, form, folder):
    line = {"a.tsv": as_tsv, "a.jsonl": as_jsonl}[form]({name: ["x"]})
    with pytest.raises(RegardError, match=r"line 1: .* lies outside of the list's folder"):
        gather_captions(write(folder / form, line))


def test_one_image_over_and_over_cannot_be_divided(folder):
    path = write(folder / "a.tsv", "00.png\ta\n00.png\tb\n")
    with pytest.raises(RegardError, match="only one image, or one over and over"):
        gather_captions(path)
    os.link(folder / "00.png", folder / "copy.png")
    path = write(folder / "a.tsv", "00.png\ta\ncopy.png\tb\n")
    with pytest.raises(RegardError, match="only one image, or one over and over"):
        gather_captions(path)


# --- counts ----------------------------------------------------------------------------------


def test_all_that_is_left_out_is_counted_and_told(folder):
    Image.new("RGB", (1, 1)).save(folder / "tiny.png")
    write(folder / "torn.png", (folder / "00.png").read_bytes()[:60])
    lines = [
        b"00.png\tgood",
        b"01.png\tkaputt \xff\xc3",
        b"01.png\t ",
        b"",
        b"02.png\t",
        b"tiny.png\tx",
        b"torn.png\tx",
        b"gone.png\tx",
        b"gone.png\ty",
        b"x" * 300 + b".png\tx",
        b"03.png/a.png\tx",
    ]
    found = gather_captions(write(folder / "a.tsv", b"\n".join(lines)), held_out=0.0)
    assert said(found.train) == {"00.png": ["good"], "01.png": ["kaputt ��"]}
    counts = found.counts
    assert (counts.read, counts.empty, counts.broken, counts.kept) == (11, 3, 1, 2)
    assert (counts.images, counts.missing, counts.unusable, counts.bare) == (8, 3, 2, 1)
    assert counts.sentences() == [
        "3 of 11 captions are empty and were left out",
        "1 of 11 captions have bytes that are not UTF-8, replaced by �",
        f"3 of 8 images are not there and were left out, {folder / 'gone.png'} first",
        f"2 of 8 images cannot be used and were left out; the first: {folder / 'tiny.png'} has "
        "only 1 × 1 pixels; a side needs 8 at least",
        "1 of 8 images have no caption and were left out",
    ]


def test_all_images_missing_is_an_error(tmp_path):
    path = write(tmp_path / "a.tsv", as_tsv(SAID))
    with pytest.raises(RegardError) as told:
        gather_captions(tmp_path)
    assert str(told.value) == (
        f"{path}: there is no image with a caption to use (40 of 40 images are not there and were "
        f"left out, {tmp_path / '00.png'} first); the images' paths must be relative to {tmp_path}"
    )


def test_surrogates_that_json_can_spell_are_no_harm(folder):
    lines = '{"image": "00.png", "caption": "a \\ud800 b"}\n{"image": "\\ud800", "caption": "x"}\n'
    found = gather_captions(write(folder / "a.jsonl", lines), held_out=0.0)
    assert list(found.texts()) == ["a � b"]
    assert found.counts.missing == 1
    assert "\n".join(found.counts.sentences()).encode()
    assert found.digest


def test_progress_is_told_how_many_images_were_looked_at(folder):
    seen: list[int] = []
    path = write(folder / "a.tsv", as_tsv(SAID))
    gather_captions(path, path, progress=seen.append)
    assert seen == list(range(1, 81))


# --- parts -----------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 39), st.text("ab ", max_size=4)), min_size=1, max_size=60),
    st.floats(0.01, 0.5),
)
@settings(max_examples=40)
def test_all_captions_of_an_image_are_in_one_part(pictures, tmp_path_factory, lines, share):
    text = "".join(f"{number:02}.png\tx{caption}\n" for number, caption in lines)
    path = tmp_path_factory.getbasetemp() / "listed" / "a.tsv"
    if not path.parent.exists():
        path.parent.mkdir()
        for one in pictures.iterdir():
            os.link(one, path.parent / one.name)
    path.write_text(text)
    if len({number for number, _ in lines}) == 1:
        return
    found = gather_captions(path, held_out=share)
    assert found.train
    assert found.valid
    assert not {one.image for one in found.train} & {one.image for one in found.valid}
    everything = {one.image.name: list(one.captions) for one in [*found.train, *found.valid]}
    expected: dict[str, list[str]] = {}
    for number, caption in lines:
        expected.setdefault(f"{number:02}.png", []).append(f"x{caption}".strip())
    assert everything == expected


def test_about_the_share_asked_for_is_held_out_in_any_order(folder, monkeypatch):
    found = gather_captions(write(folder / "a.tsv", as_tsv(SAID)), held_out=0.1)
    assert len(found.valid) == 4
    assert found.rule == "held out: 0.1 of the images, chosen by their content"
    turned = dict(reversed(SAID.items()))
    again = gather_captions(write(folder / "b.tsv", as_tsv(turned)), held_out=0.1)
    assert said(again.valid) == said(found.valid)
    fewer = {name: texts for name, texts in SAID.items() if name != found.train[0].image.name}
    again = gather_captions(write(folder / "b.tsv", as_tsv(fewer)), held_out=0.1)
    assert len(set(said(again.valid)) & set(said(found.valid))) >= 3
    monkeypatch.setattr(module, "MOST_HELD_OUT", 2)
    assert len(gather_captions(folder / "a.tsv", held_out=0.1).valid) == 2


def test_copies_of_an_image_under_other_names_stay_together(folder):
    for name in SAID:
        os.link(folder / name, folder / f"copy of {name}")
    both = {**SAID, **{f"copy of {name}": ["a copy"] for name in SAID}}
    found = gather_captions(write(folder / "a.tsv", as_tsv(both)), held_out=0.2)
    held = {one.image.name.removeprefix("copy of ") for one in found.valid}
    assert len(found.valid) == 2 * len(held)


def test_a_named_list_stays_as_it_is_and_what_it_shares_is_told(folder, tmp_path_factory):
    train = write(folder / "a.tsv", as_tsv(SAID))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    picture(elsewhere / "new.png", 100)
    valid = write(elsewhere / "captions.tsv", "new.png\tnew\n")
    found = gather_captions(train, elsewhere)
    assert (said(found.train), said(found.valid)) == (SAID, {"new.png": ["new"]})
    assert found.rule == "held out: a named list"
    os.link(folder / "00.png", elsewhere / "old.png")
    write(valid, "new.png\tnew\nold.png\told\n")
    assert gather_captions(train, valid).rule == (
        "held out: a named list, 1 of its 2 images are also trained on"
    )


def test_the_digest_names_captions_images_and_division(folder):
    def digest(said: dict[str, list[str]], held_out: float = 0.1) -> str:
        return gather_captions(write(folder / "a.tsv", as_tsv(said)), held_out=held_out).digest

    first = digest(SAID)
    assert digest(SAID) == first
    assert digest(SAID, 0.2) != first
    assert digest({**SAID, "05.png": ["another"]}) != first
    assert digest({**SAID, "05.png": ["\t".join(SAID["05.png"]).replace("\t", " ")]}) != first
    os.rename(folder / "05.png", folder / "other name.png")
    renamed = {("other name.png" if name == "05.png" else name): SAID[name] for name in SAID}
    assert digest(renamed) == first
    (folder / "other name.png").unlink()
    picture(folder / "other name.png", 77)
    assert digest(renamed) != first


# --- ids -------------------------------------------------------------------------------------


def test_captions_begin_and_end_and_long_ones_are_counted(folder):
    found = gather_captions(write(folder / "a.tsv", as_tsv(SAID)), held_out=0.0)
    how = learn("word", ["a picture number 0 in 1 2 3"])
    encoded = encode_captions(found.train, how)
    assert len(encoded) == 80
    assert list(encoded.texts) == list(found.texts())
    assert [path.name for path in encoded.images] == [name for name in SAID for _ in range(2)]
    for text, ids in zip(encoded.texts, encoded.targets, strict=True):
        assert ids.tolist() == [BOS, *how.encode(text).tolist(), EOS]
        assert ids.dtype == np.int64
    assert encoded.unknown == 2 * 36
    assert encoded.counts == CaptionCounts(read=80, kept=80, images=40)
    short = encode_captions(
        [Captioned(Path("a"), ("a picture", "a a a", "a a a a"), (None,) * 3, {}, 0)], how, 4
    )
    assert list(short.texts) == ["a picture", "a a a"]  # </s> counts
    assert short.counts.sentences(4) == [
        "1 of 3 captions have more than 4 tokens and were left out"
    ]


@pytest.mark.parametrize(
    "box", [{"start": 1}, [1, 2], {"start": 0, "stop": 1, "box": [1, "x", 2, 3]}, None]
)
def test_a_box_of_another_form_is_told_with_its_line(box, tmp_path):
    line = {"image": "a.png", "caption": "a dog", "boxes": [[box]]}
    (tmp_path / "captions.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(RegardError, match=r"line 1: a box is .*, not"):
        gather_captions(tmp_path)
