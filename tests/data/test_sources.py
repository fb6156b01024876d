"""Raw text is found and read as it is, whatever the file."""

import codecs
import gzip
import hashlib
import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.readers import files
from regard.data.readers.files import broken, find, pieces, spool
from regard.errors import RegardError
from regard.text.invalid_utf8 import escaped, parts, replace_invalid_utf8


def written(path: Path, content: bytes = b"text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def read(path: Path, size: int = 1 << 20) -> list[str]:
    """The documents of a file."""
    documents, text = [], ""
    for piece in pieces(path, size):
        text += piece.text
        if piece.last:
            documents.append(text)
            text = ""
    assert text == ""
    return documents


@given(data=st.binary(min_size=1, max_size=40), block=st.integers(1, 7), size=st.integers(1, 9))
def test_bytes_are_decoded_alike_however_they_are_read(tmp_path_factory, data, block, size):
    path = written(tmp_path_factory.mktemp("read") / "a", data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", block)
        found = "".join(read(path, size))
    assert found == data.decode("utf-8-sig", "surrogateescape")


def test_a_character_that_two_reads_share_survives(tmp_path):
    text = "é€𝄞" * 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", 5)
        assert read(written(tmp_path / "a.txt", text.encode())) == [text]


def test_newlines_and_broken_bytes_stay_and_a_leading_mark_goes(tmp_path):
    path = written(tmp_path / "a.txt", codecs.BOM_UTF8 + b"a\r\nb\rc\n\xff\xfe\n")
    assert read(path) == ["a\r\nb\rc\n\udcff\udcfe\n"]
    assert read(written(tmp_path / "b.txt", b"a" + codecs.BOM_UTF8)) == ["a\ufeff"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.ndjson.gz"])
def test_an_empty_file_has_no_documents(name, tmp_path):
    content = gzip.compress(b"") if name.endswith(".gz") else b""
    assert list(pieces(written(tmp_path / name, content))) == []


def test_compressed_files_are_read_like_plain_ones(tmp_path):
    text = "one two\n" * 5000
    path = written(tmp_path / "a.TXT.GZ", gzip.compress(text.encode()))
    assert read(path) == [text]
    assert len(list(pieces(path, 1000))) > 20


def test_a_line_of_json_is_a_document(tmp_path):
    lines = [{"text": "one\ntwo"}, {"id": 3, "text": "drei é"}, {"text": ""}, {"text": "end"}]
    content = "\n\n".join(map(json.dumps, lines)).encode() + b"\n  \n"
    for name, data in [
        ("a.jsonl", content),
        ("b.ndjson", codecs.BOM_UTF8 + content.replace(b"\n", b"\r\n")),
        ("c.JSONL.gz", gzip.compress(content)),
    ]:
        assert read(written(tmp_path / name, data)) == ["one\ntwo", "drei é", "end"]
        assert read(tmp_path / name, 2) == ["one\ntwo", "drei é", "end"]


def test_surrogates_from_json_are_broken_bytes_or_replacement_characters(tmp_path):
    path = written(tmp_path / "a.jsonl", b'{"text": "a\\ud800 \\udcff \xfe \\ud83d\\ude42"}')
    assert read(path) == ["a\ufffd \udcff \udcfe 🙂"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": "a"', "line 3 is not JSON"),
        ('{"txt": "a"}', 'line 3 has no "text"'),
        ('{"text": 5}', 'line 3 has no "text"'),
        ('["text"]', 'line 3 has no "text"'),
        ("[" * 100_000, "line 3 is not JSON"),
    ],
    ids=["cut off", "no field", "no string", "no object", "too deep"],
)
def test_a_line_that_is_no_document_is_named(line, said, tmp_path):
    path = written(tmp_path / "a.jsonl", b'{"text": "a"}\n\n' + line.encode())
    with pytest.raises(RegardError) as caught:
        read(path)
    assert f"{path}: {said}" in str(caught.value)
    assert 'each line must be an object like {"text": "…"}' in str(caught.value)


@pytest.mark.parametrize("damage", [slice(0, -9), slice(1, None)], ids=["cut off", "no header"])
@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.gz"])
def test_a_damaged_compressed_file_is_named(damage, name, tmp_path):
    content = gzip.compress(b'{"text": "a"}\n' * 1000)[damage]
    path = written(tmp_path / name, content)
    with pytest.raises(RegardError, match=r"is a damaged gzip file .*; fetch it again"):
        read(path)


def test_flipped_bits_in_a_compressed_file_are_noticed(tmp_path):
    content = bytearray(gzip.compress(os.urandom(5000)))
    content[2500] ^= 255
    with pytest.raises(RegardError, match="is a damaged gzip file"):
        read(written(tmp_path / "a.gz", bytes(content)))


def test_folders_are_looked_through_in_order_without_hidden_and_binary_files(tmp_path):
    a, b = written(tmp_path / "a.txt"), written(tmp_path / "sub" / "deep" / "b.py")
    z = written(tmp_path / "z.txt.gz", gzip.compress(b"compressed"))
    skipped = [
        written(tmp_path / ".hidden"),
        written(tmp_path / ".git" / "config").parent,
        written(tmp_path / "sub" / "image.png", b"\x89PNG\0\0"),
        written(tmp_path / "x.gz", gzip.compress(b"\0\1")),
        written(tmp_path / "utf16.txt", "ab".encode("utf-16")),
    ]
    found = find([tmp_path])
    assert found.files == [a, b, z]
    assert sorted(found.skipped) == sorted(skipped)


def test_a_null_byte_counts_only_at_the_beginning(tmp_path):
    late = written(tmp_path / "late", b"a" * 8192 + b"\0")
    early = written(tmp_path / "early", b"a" * 8191 + b"\0")
    found = find([tmp_path])
    assert (found.files, found.skipped) == ([late], [early])


def test_patterns_match_files_at_any_depth(tmp_path):
    a, b = written(tmp_path / "a.txt"), written(tmp_path / "sub" / "b.txt")
    written(tmp_path / "sub" / "c.py")
    assert find([f"{tmp_path}/**/*.txt"]).files == [a, b]
    assert find([f"{tmp_path}/*.txt"]).files == [a]
    assert find([f"{tmp_path}/*"]).files == [a]  # folders are not entered


def test_files_are_found_once_in_the_order_given(tmp_path):
    a, b = written(tmp_path / "a"), written(tmp_path / "b")
    assert find([b, str(tmp_path), a]).files == [b, a]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path):
    odd = written(tmp_path / "a[1].txt")
    written(tmp_path / "a1.txt")
    assert find([str(odd)]).files == [odd]


def test_a_hidden_file_may_be_given_by_name(tmp_path):
    assert find([written(tmp_path / ".hidden")]).files == [tmp_path / ".hidden"]


def test_everything_that_is_wrong_is_said_at_once(tmp_path):
    binary = written(tmp_path / "image", b"\0\1\2\3\0")
    wide = written(tmp_path / "wide", "some text\n".encode("utf-16-le"))
    marked = written(tmp_path / "marked", "中".encode("utf-16"))
    damaged = written(tmp_path / "x.gz", b"\x1f\x8b\x08 no")
    (tmp_path / "empty").mkdir()
    given = [
        tmp_path / "missing", binary, wide, marked, damaged, f"{tmp_path}/*.csv", tmp_path / "empty"
    ]  # fmt: skip
    with pytest.raises(RegardError) as caught:
        find(given)
    message = str(caught.value)
    assert message.startswith("text: 7 problems")
    for said in (
        f"{tmp_path / 'missing'} does not exist",
        f"{binary} is not text",
        f"{wide} looks like UTF-16",
        f"{marked} looks like UTF-16",
        f"{damaged} is a damaged gzip file",
        f"{tmp_path}/*.csv matches no text files",
        f"folder {tmp_path / 'empty'} has no text files",
    ):
        assert said in message


def test_a_folder_of_images_is_told_how_to_be_given(tmp_path):
    written(tmp_path / "dog.JPG", b"\xff\xd8\0\0")
    with pytest.raises(RegardError, match=r"no text files, but images; .* --images"):
        find([tmp_path])


def test_nothing_given_is_a_mistake():
    with pytest.raises(RegardError, match="no file, folder or pattern was given"):
        find([])


def test_a_pipe_is_not_taken_for_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RegardError, match="give - instead"):
        find([tmp_path / "pipe"])


def test_a_stream_is_kept_under_the_hash_of_its_content(tmp_path, monkeypatch):
    content = b"text \xff" * 1000
    synced, sync = [], os.fsync
    path_of = "/proc/self/fd/{}".format
    monkeypatch.setattr(os, "fsync", lambda d: (sync(d), synced.append(os.readlink(path_of(d)))))
    path = spool(io.BytesIO(content), tmp_path / "new")
    parent, partial, folder = synced  # as a run may read it again after a power cut
    assert (parent, folder) == (str(tmp_path), str(tmp_path / "new"))
    assert Path(partial).parent == tmp_path / "new" != Path(partial)
    assert path.read_bytes() == content
    assert hashlib.sha256(content).hexdigest().startswith(path.stem)
    assert spool(io.BytesIO(content), tmp_path / "new") == path
    assert list((tmp_path / "new").iterdir()) == [path]


def test_a_stream_that_fails_leaves_nothing_behind(tmp_path):
    class Failing(io.BytesIO):
        def read(self, size=-1):
            raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        spool(Failing(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.sampled_from(["a", "é", "\udcff", "\udc80", "🙂"])).map("".join))
def test_broken_bytes_are_counted_mended_and_told_from_the_rest(text):
    expected = sum("\udc80" <= c <= "\udcff" for c in text)
    assert broken(text) == expected
    assert replace_invalid_utf8(text).count("\ufffd") == expected
    assert len(replace_invalid_utf8(text)) == len(text)
    found = list(parts(text))
    assert b"".join(p if isinstance(p, bytes) else p.encode() for p in found) == escaped(text)
    assert sum(len(p) for p in found if isinstance(p, bytes)) == expected
    assert all(found)


def test_a_run_beside_the_data_is_not_taken_for_data(tmp_path):
    (tmp_path / "notes.txt").write_text("notes")
    run = tmp_path / "runs" / "notes"
    run.mkdir(parents=True)
    for name in ("run.toml", "log.jsonl", "tokenizer.json"):
        (run / name).write_text("{}")
    found = find([tmp_path])
    assert found.files == [tmp_path / "notes.txt"]
    assert found.skipped == [run]
