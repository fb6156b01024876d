"""Results of models that were never trained, to say things about."""

from regard.comparison.results import Comparison, Line, Result, Spread

LENGTHS = [64, 128, 256, 512]


def result(
    name,
    quality=(2.0,),
    *,
    key="bits_per_byte",
    pace=1000.0,
    used=8.0,
    power=1.0,
    lengths=(2.0, 2.0),
    state=100,
    margin=None,
    failed="",
    parameters=1000,
    samples=("said",),
    trained_on=16,
):
    """One model with the given figures."""
    if failed:
        return Result(name, name, "made up", parameters, "as it is", failed)
    counted = [float(n) ** power for n in LENGTHS] if parameters else [None] * 4
    grown = [state * n if power > 1 else state for n in LENGTHS]
    return Result(
        name,
        name,
        "made up",
        parameters,
        "as it is",
        seeds=tuple(range(len(quality))),
        scores={key: Spread(tuple(quality)), "loss": Spread(tuple(quality))},
        margin=margin,
        steps=10,
        pace=Spread((pace,)),
        seconds=Spread((60.0,)),
        memory={"weights": 10, "optimizer": 30, "activations": 100} if parameters else {},
        decoding={"1": pace / 10, "16": pace / 2},
        curve=Line((1.0, 2.0), (3.0, 2.0)),
        context=Line((1.0, 2.0, 4.0, 8.0), (3.0, 2.5, 2.2, 2.0), (0.1, 0.1, 0.1, 0.1)),
        used=used,
        lengths=Line(tuple(range(len(lengths))), tuple(lengths)),
        cost={
            "lengths": LENGTHS,
            "flops": counted,
            "seconds": [0.001 * n for n in LENGTHS],
            "step_flops": counted,
            "step_seconds": [0.001] * 4,
            "state_bytes": grown,
        },
        powers={"flops": power if parameters else None, "seconds": 1.0},
        samples=samples,
        trained_on=trained_on if parameters else 0,
    )


def comparison(*results, pairs=False, title="notes.txt", given=("Once",), gold=()):
    buckets = ((1, 5), (6, 20)) if pairs else ((1, 16), (17, 32))
    facts = {"text": "100 bytes"}
    return Comparison(title, pairs, facts, results, given, gold, buckets)
