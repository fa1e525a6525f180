"""Parts of dotted names are found as ``in`` finds them."""

from __future__ import annotations

import random

from convertkit.dialects.substrings import names_around


def test_parts_are_those_that_a_plain_search_finds() -> None:
    chance = random.Random(7)
    words = ("a", "ab", "b", "ba", "gate", "gate_proj", "1", "10", "0")
    names = [".".join(chance.choices(words, k=chance.randint(1, 5))) for _ in range(300)]
    texts = {name[chance.randrange(len(name)) :][: chance.randint(1, 9)] for name in names for _ in range(4)}
    texts |= {".".join(chance.choices(words, k=chance.randint(1, 4))) for _ in range(300)} | {".", "..", "x.y"}
    wanted = {text: next(name for name in names if text in name) for text in texts if any(text in n for n in names)}
    assert names_around(sorted(texts), names) == wanted
    assert 100 < len(wanted) < len(texts)


def test_the_first_name_is_told() -> None:
    names = ["m.layers.1.up", "m.layers.10.up", "m.layers.11.up_proj"]
    assert names_around(["layers.1", "s.11", "up_", "layers.2", "ayers.10.u"], names) == {
        "layers.1": "m.layers.1.up", "s.11": "m.layers.11.up_proj", "up_": "m.layers.11.up_proj",
        "ayers.10.u": "m.layers.10.up",
    }  # fmt: skip
