"""Images with captions: a picture described."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from regard.data.feeds.images import ImageFeed, Pictures, as_tensor, workers_for
from regard.data.progress import Progress
from regard.data.readers.captions import CaptionTexts, encode_firsts, gather_captions
from regard.decoding.captions import captioned
from regard.decoding.settings import TARGET
from regard.decoding.text_model import TextModel
from regard.errors import RegardError
from regard.families.data.images import SCENES, decodable, images_of, kept_scenes, prepared
from regard.families.plan import Plan, PreparedData
from regard.families.settings import Settings
from regard.families.tasks.base import Evaluation, Sample, Trained, Work, write_lines
from regard.inspection.grounding import grounded
from regard.metrics.scores import Scores
from regard.models.captioner.config import CaptionConfig
from regard.models.network import BaseModel, SequenceModule
from regard.text.tokenizer import Tokenizer
from regard.training.caption_scores import compared, described, free_rules, freely
from regard.training.validation import GREEDY, at_rest

TEST_SCENES = 1000  # of which none is arranged as one to learn from


class Captions(Work):
    """The next word about a picture; judged by what is generated, since captions are many."""

    def read(
        self, settings: Settings, progress: Progress, known: Sequence[Tokenizer]
    ) -> PreparedData:
        return prepared(settings, progress, known)

    def sampler(self, plan: Plan, module: BaseModel) -> Sample:
        feed, model, turn = _feed(plan), _model(plan, module), 0
        shown = feed.valid if len(feed.valid) else feed.train

        def sample() -> dict[str, Any]:
            nonlocal turn
            index = turn % len(shown)
            turn += 1
            picture = as_tensor(feed.pictures.get([shown.images[index]]))
            with at_rest(module):
                ((best, *_),) = captioned(model, picture, GREEDY)
            return {
                "source": shown.images[index].name,
                "written": best.text,
                "target": shown.texts[index],
            }

        return sample

    def judge_freely(self, plan: Plan, module: BaseModel) -> Callable[[], Scores] | None:
        feed, model = _feed(plan), _model(plan, module)
        rows = 2 * plan.settings.training.micro_batch_size
        return lambda: freely(model, feed, rows, plan.precision)

    def finished(self, plan: Plan, module: Any, scores: Scores) -> Scores:
        return replace(scores, rules=free_rules(1))

    def evaluate(self, run: Trained, asked: Evaluation) -> tuple[Scores, list[str]]:
        config, tokenizer, given = run.config, run.tokenizer, asked.given
        assert isinstance(config, CaptionConfig)
        texts = _texts(run, given, config)
        told = texts.train if given else texts.valid
        if not told:
            raise RegardError("the run held nothing out; name some images to evaluate it on")
        pictures = Pictures(config.picture, workers_for(len(told)))
        told = decodable(told, pictures, texts.counts)
        if not told:
            first = texts.counts.first["unusable"]
            raise RegardError(f"none of the images can be decoded; the first: {first}")
        shown = encode_firsts(told, tokenizer)
        rows = asked.batch_size
        batches = ImageFeed(shown, shown, pictures, rows).held_out(rows)
        model = TextModel(run.writer, TARGET, tokenizer)
        found = described(model, batches, replace(asked.beam, attention=True))
        if asked.written:
            write_lines(asked.written, [one.text for one in found])
        scores = replace(compared(found, told), rules=free_rules(asked.beam.beams))
        seen = grounded(found, told, tokenizer)
        if seen is not None:
            where = (
                f"; on boxes: attention while {seen.names:,} names of right captions were written"
            )
            how = scores.rules + where
            scores = replace(scores, on_boxes=seen.share, boxes=seen.chance, rules=how)
        return scores, texts.counts.sentences()

    def use(self, plan: Plan, folder: str) -> str:
        feed = _feed(plan)
        shown = feed.valid if len(feed.valid) else feed.train
        return f"regard caption {folder} {shlex.quote(str(shown.images[0]))} --show"

    def failures(self, plan: Plan) -> str:
        failed = _feed(plan).pictures.failed
        if not failed:
            return ""
        first = next(iter(failed.values()))
        return (
            f"{len(failed):,} images could not be decoded, and others stood in for them; the "
            f"first: {first}"
        )


def _feed(plan: Plan) -> ImageFeed:
    assert isinstance(plan.feed, ImageFeed)
    return plan.feed


def _model(plan: Plan, module: BaseModel) -> TextModel:
    assert isinstance(module, SequenceModule)
    return TextModel(module, TARGET, plan.tokenizers[0])


def _texts(run: Trained, given: Sequence[str], config: CaptionConfig) -> CaptionTexts:
    """The images asked for, or those of the run."""
    if tuple(given) == (SCENES,):
        return gather_captions(kept_scenes(TEST_SCENES, 0, "test", config.picture), held_out=0.0)
    if given:
        if len(given) > 1:
            raise RegardError(f"give one folder of images or one list, not {len(given)}")
        return gather_captions(given[0], held_out=0.0)
    texts = images_of(run.settings)
    run.check_data(texts.digest)
    return texts
