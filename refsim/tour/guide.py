"""The tour's order: what is shown first, and what each chapter needs from those before."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from refsim.cost import Device
from refsim.tour import agreement
from refsim.tour.lengths import lengths
from refsim.tour.life import life
from refsim.tour.page import Chapter, Prose, Table, count
from refsim.tour.setting import Setting
from refsim.tour.sharing import sharing
from refsim.tour.wrong_and_right import wrong_and_right

# The prompt, one request, a shared prefix, the oracle, the growth, the mistakes; and an algorithm each.
STOPS = 6 + len(agreement.ALGORITHMS)


def chapters(setting: Setting, device: Device, tell: Callable[[str], None] = lambda doing: None) -> Iterator[Chapter]:
    """Each chapter as soon as it is ready. `tell` hears what is being done, before each of the `STOPS` stops."""
    tell("reading the prompt")
    yield beginning(setting)
    tell("following one request")
    yield life(setting)
    tell("sharing a prefix")
    yield sharing(setting)
    runs = {}
    for name in (agreement.ORACLE, *agreement.ALGORITHMS):
        tell(f"writing the text with {name}")
        runs[name] = agreement.generate(setting, name)
    yield agreement.agreement(setting, runs)
    yield agreement.traffic(setting, runs)
    tell("counting without running")
    yield lengths(device)
    tell("making mistakes")
    yield wrong_and_right()


def beginning(setting: Setting) -> Chapter:
    """The model and the prompt's tokens."""
    config = setting.decoder.config
    pieces = [setting.tokenizer.decode([token]) for token in setting.ids]
    return Chapter(
        "The model and the prompt",
        (
            Prose(setting.note),
            Table.of(
                ("", "the model"),
                [
                    ("name", setting.decoder.name),
                    ("parameters", setting.decoder.weights.num_parameters),
                    ("layers", config.num_layers),
                    ("query heads", config.num_heads),
                    ("KV heads", config.num_kv_heads),
                    ("numbers a head", config.head_dim),
                    ("context", config.context),
                ],
                "lr",
            ),
            Prose(f"The prompt is {count(len(pieces), 'token')}: " + "|".join(pieces)),
        ),
    )
