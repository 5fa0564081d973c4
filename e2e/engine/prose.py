# SPDX-License-Identifier: Apache-2.0
"""Text of made-up words: what the tokenizer of the test model is trained on, and what
the tests send. As in prose, a token is four to five bytes."""
import random

SYLLABLES = [c + v + e for c in ("b", "d", "fl", "g", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v") for v in "aeiou" for e in ("", "n", "r", "s")]


def lexicon(n=1500):
    r = random.Random("lexicon")
    return sorted({"".join(r.choice(SYLLABLES) for _ in range(r.choice((1, 2, 2, 3)))) for _ in range(n)})


WORDS = lexicon()


def words(seed, n):
    """n words that repeat no order of another seed, about 1.3 n tokens."""
    r = random.Random(str(seed))
    return " ".join(r.choices(WORDS, k=n)) + " "
