"""The text around a hidden key: seeded sentences from word lists, or the user's text. Needs no torch.

The word lists hold no digits, so no sentence can hold a key, and none of :data:`NAMES`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import cycle
from typing import TypeVar

from ...errors import DataError

T = TypeVar("T")

NAMES = """
    amber apricot ash aspen azure badger bamboo basil beaver beech birch bison bramble bronze buzzard cactus cedar
    cherry chestnut cinnamon clover cobalt copper coral cotton crane crimson crocus curlew cypress daisy denim
    dolphin eagle ebony elder elm emerald falcon fern fig flint fox garnet ginger gold granite hazel heather heron
    holly indigo iris ivory ivy jade jasmine juniper kestrel larch laurel lavender lemon lichen lilac lime linden
    linnet lynx magnolia maple marble marten mint moss mustard myrtle nettle nutmeg oak ochre olive onyx opal orchid
    osprey otter peach pearl pine plover plum poplar poppy quartz quince raven reed robin rowan ruby rust saffron
    sage salmon sapphire scarlet silver slate sorrel spruce stork swift sycamore teal thistle thyme topaz tulip
    turquoise umber velvet vetch violet walnut willow yarrow yew
""".split()
"""The names of keys."""

DIGITS = 5
"""The digits of a hidden number."""

_PEOPLE = """
    baker carpenter clerk cook driver farmer fisherman gardener guard guest judge librarian mason merchant miller
    musician nurse painter pilot plumber porter potter printer sailor shepherd singer smith student tailor teacher
    traveller visitor waiter watchmaker weaver
""".split()
_QUALITIES = """
    broken careful cheerful clumsy curious dusty gentle hungry lonely narrow nervous noisy patient polite proud quiet
    restless rusty serious shy sleepy slow small stubborn tall tired weary wise worried young
""".split()
_THINGS = """
    barrel basket bell bench bicycle blanket book boot bottle bowl box bridge broom bucket candle cart chair clock coat
    cupboard curtain door drum fence fiddle gate hammer hat kettle ladder lamp lantern letter map mirror mug net oven
    parcel pillow plough pot rope saddle shelf shovel spoon stool stove table tent ticket towel umbrella wagon wheel
""".split()
_ACTS = """
    admired borrowed bought brought carried cleaned counted covered described dragged dropped examined fetched found
    forgot held hid inspected kept lifted lost measured mended moved noticed opened packed painted polished pushed
    repaired returned sold stored tied touched washed watched weighed wrapped
""".split()
_PLACES = """
    attic barn bakery bank castle cellar chapel church factory farm ferry field forest garden harbour hill hospital
    hotel inn kitchen lake library lighthouse market meadow mill museum office orchard palace park pond school shop
    square stable station street theatre tower valley village well workshop yard
""".split()
_NEAR = "behind,beside,in front of,near,not far from,on the way to,opposite".split(",")
_TIMES = [
    *("after breakfast", "after the rain", "all afternoon", "at noon", "before sunrise", "during the storm"),
    *("early in the morning", "every other day", "in the autumn", "in the evening", "in the winter", "last spring"),
    *("late at night", "on the way home", "once again", "one summer", "over the weekend", "that day"),
    *("the week before", "towards evening"),
]
_FORMS = (
    " The {quality} {person} {act} the {thing} {near} the {place}.",
    " The {person} {act} the {thing}, and the {other} {deed} the {quality} {thing2}.",
    " {time}, the {person} {act} the {thing} of the {other}.",
    " {near} the {place}, the {person} {act} the {quality} {thing}.",
    " The {thing} that the {person} {act} stood {near} the {place}.",
    " Nobody knew why the {quality} {person} {act} the {thing} {time2}.",
    " The {person} spoke of the {place} while the {other} {act} the {thing}.",
    " {time}, the {place} was closed, so the {person} {act} the {quality} {thing}.",
)


class Dice:
    """Random numbers from a seed of words: equal in every process and Python version, unlike hashes and ``choice``."""

    def __init__(self, *words: object) -> None:
        # Python promises only for random() that it stays the same between versions.
        self._next = random.Random(" ".join(map(str, words))).random

    def below(self, count: int) -> int:
        """Returns a whole number from ``range(count)``."""
        return int(self._next() * count)

    def one(self, things: Sequence[T]) -> T:
        """Draws one of the items."""
        return things[self.below(len(things))]


class Filler:
    """Random sentences from a small grammar, which begin with a space. They mean little, and repeat only by chance.

    Attributes:
        numbers: the runs of :data:`DIGITS` digits in the text, which cannot be keys.
    """

    numbers: Collection[str] = ()

    def sentences(self, dice: Dice) -> Iterator[str]:
        """Yields an endless sequence of sentences."""
        while True:
            sentence = dice.one(_FORMS).format(
                quality=dice.one(_QUALITIES), person=dice.one(_PEOPLE), other=dice.one(_PEOPLE), act=dice.one(_ACTS),
                deed=dice.one(_ACTS), thing=dice.one(_THINGS), thing2=dice.one(_THINGS), near=dice.one(_NEAR),
                place=dice.one(_PLACES), time=dice.one(_TIMES), time2=dice.one(_TIMES),
            )  # fmt: skip
            yield f" {sentence[1].upper()}{sentence[2:]}"


class CorpusFiller(Filler):
    """The user's text, sentence by sentence in order, from a random place on; wraps around at the end."""

    def __init__(self, text: str) -> None:
        self.numbers = {found[1] for found in re.finditer(f"(?=([0-9]{{{DIGITS}}}))", text)}
        self._sentences = [sentence for sentence in _SENTENCE.findall(text) if sentence.strip()]
        if not self._sentences:
            raise DataError("the haystack is empty; give text to hide the keys in", "haystack")

    def sentences(self, dice: Dice) -> Iterator[str]:
        start = dice.below(len(self._sentences))
        return cycle([*self._sentences[start:], *self._sentences[:start]])


_SENTENCE = re.compile(r"\s*(?:[^.!?\n]|[.!?](?=\w)){1,400}[.!?]*|\s*[.!?]+")
"""A sentence: up to a full stop or the like, the end of the line, or 400 characters."""
