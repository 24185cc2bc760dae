"""Whatever a model may write: the strict parser says what is wrong in a line, the scorer gives a
number, and neither takes long. FUZZ=1000000 for a long night."""
import math
import os
import random
import unicodedata
from collections import Counter
import pytest
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.reward.reward_scorer import score
from rookworld_nb.chess.tasks import PolicyAnswer, parse_completion, parse_prompt, split_row

FUZZ = int(os.environ.get('FUZZ', 5_000))   # strings
ROWS = list(load_rows('positions', env_ratio=0.5, seed=5, limit=2000))
LONG = 100_000                # characters of a long line
LONG_SHARE = 1/1000           # of the strings
SEPARATORS = [
    '+', '++', '/', ' ', '  ', 'M:', ' M: ', 'E: ', ' B: ', 'P: ', 'A: ', '-', '.', ':', '|',
    'M: E: B: ', 'B: e2e4 B: ', '<|endoftext|>'
]
NUMBERS = [
    'nan', 'inf', '-inf', 'Infinity', '1e999', '-1e-999', '9'*30, '9'*400, '-' + '9'*400 + '.0',
    '0'*50 + '.5', '-0.0', '+0.5', '1_0.0', '0x1F', '٣', '٣.٥', '３．５', '²', '½', 'Ⅷ', '१', '1,5',
    '.5', '5.', '--1.0', '1e5'
]
MARKS = [
    '\u0301', '\u200b', '\u200d', '\u202e', '\ufeff', '\u20dd', '\ufe0f', '\U000e0061', '\u212a',
    '\u0131', '\u017f', '\ud800', '♔', '👍🏽', 'е', '＋', '\u00a0', '\u2003', '\u2028', '\u0085'
]
CONTROLS = [chr(i) for i in range(32)] + ['\x7f', '\x9b', '\r\n', '\x1b[31m']


def pick(rng, text): return rng.randint(0, len(text))


def span(rng, text):
    "Where a piece of the text begins and ends."
    i = pick(rng, text)
    return i, min(len(text), i + rng.choice([1, 1, 2, 4, 12]))


def insert(rng, text):
    i = pick(rng, text)
    return text[:i] + chr(rng.randrange(rng.choice([127, 256, 0x110000]))) + text[i:]


def delete(rng, text):
    i, j = span(rng, text)
    return text[:i] + text[j:]


def duplicate(rng, text):
    i, j = span(rng, text)
    return text[:j] + text[i:j] * rng.choice([1, 1, 2, 50]) + text[j:]


def swap(rng, text):
    i, j = sorted((pick(rng, text), pick(rng, text)))
    return text[:i] + text[j:j+2] + text[i+2:j] + text[i:i+2] + text[j+2:]


def swap_words(rng, text):
    words = text.split(' ')
    i, j = rng.randrange(len(words)), rng.randrange(len(words))
    words[i], words[j] = words[j], words[i]
    return ' '.join(words)


def truncate(rng, text): return text[:pick(rng, text)]


def behead(rng, text): return text[pick(rng, text):]


def change_case(rng, text):
    i, j = span(rng, text)
    return rng.choice(
        [text.upper(),
         text.lower(),
         text.swapcase(), text[:i] + text[i:j].swapcase() + text[j:]])


def put(choices):
    def mutate(rng, text):
        i = pick(rng, text)
        return text[:i] + rng.choice(choices) + text[rng.choice([i, i + 1]):]
    return mutate


def other_number(rng, text):
    "A word with a digit in it becomes another number."
    words = text.split(' ')
    at = [i for i, w in enumerate(words) if any(c.isdigit() for c in w)]
    if at:
        words[rng.choice(at)] = rng.choice(
            [*NUMBERS, str(rng.randint(-99, 99)),
             str(rng.gauss(0, 9))])
    return ' '.join(words)


def other_digits(rng, text):
    return text.translate({
        48 + i: chr(rng.choice([0x660, 0x966, 0xff10, 0x1d7ce]) + i)
        for i in rng.sample(range(10), 3)
    })


def other_char(rng, text):
    i = pick(rng, text)
    return text[:i] + rng.choice('12345678abcdefghrnbqkpRNBQKP +-./') + text[i+1:]


def respace(rng, text):
    return text.replace(' ', rng.choice(['  ', '', '\t', '\u00a0', ' '*40, '\n']),
                        rng.choice([1, 2, -1]))


MUTATIONS = [
    insert, delete, duplicate, swap, swap_words, truncate, behead, change_case, other_number,
    other_digits, other_char, other_char, respace, *map(put, (SEPARATORS, NUMBERS, MARKS, CONTROLS))
]


def mutated(rng, row):
    text = rng.choice([row, row, rng.choice(ROWS)]).completion(rng.choice(['compact', 'padded']))
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 6])): text = rng.choice(MUTATIONS)(rng, text)
    return text


def noise(rng, row):
    "Bytes, any characters, or the format's own words in any order."
    n = rng.randint(0, 300)
    kind = rng.randrange(3)
    if kind == 0:
        return rng.randbytes(n).decode(rng.choice(['latin-1', 'utf-8']),
                                       rng.choice(['replace', 'surrogateescape']))
    if kind == 1: return ''.join(map(chr, rng.choices(range(0x110000), k=n)))
    return ''.join(
        rng.choices([
            *SEPARATORS, *NUMBERS, *MARKS, *'rnbqkpRNBQKP12345678', 'e2e4', ' a7a8q ', '0.5 '
        ], k=n // 4))


def long_line(rng, row):
    "The truth within, before or after a long line of the same thing."
    truth = row.completion()
    unit = rng.choice([
        *SEPARATORS, *NUMBERS, *MARKS, *CONTROLS, 'e2e4 ', '8/', '0.5 ', 'k', '1',
        mutated(rng, row) or 'x'
    ])
    filler = (unit * (LONG // len(unit) + 1))[:LONG]
    i = rng.choice([0, len(truth), pick(rng, truth)])
    return rng.choice([filler, truth[:i] + filler + truth[i:],
                       truth.replace(' ', filler, 1)])[:2*LONG]


def strings(n, seed=0):
    "(row, completion) pairs."
    rng = random.Random(seed)
    for _ in range(n):
        row = rng.choice(ROWS)
        yield row, rng.choices([mutated, noise, long_line],
                               [0.8, 0.2 - LONG_SHARE, LONG_SHARE])[0](rng, row)


def one_line(error): return 0 < len(str(error)) < 1000 and len(str(error).splitlines()) == 1


def read(row, text):
    "The strict parser's answer; None when it refused, with a reason."
    try: return parse_completion(row.prompt(), text)
    except ValueError as error:
        assert type(error) is ValueError and one_line(error), (text[:300], error)


def key(answer):
    return ((sorted(zip(answer.moves, answer.evals)),
             answer.best) if isinstance(answer, PolicyAnswer) else answer)


def test_any_text_is_scored():
    count = Counter()
    for row, text in strings(FUZZ):
        found = score(row.prompt(), text, row.target)
        answer = read(row, text)
        exact = answer is not None and key(answer) == key(row.target)
        count.update([row.kind, 'exact' if exact else 'refused' if answer is None else 'accepted'])
        assert math.isfinite(found.total) and -0.3 <= found.total <= 1, (row, text[:300], found)
        assert (found.total == 1) == exact, (row, text[:300], found)
        assert answer is None and found.total <= 0.2 or answer is not None and found.total >= 0.2, (row, text[:300], found)
        assert abs(math.fsum(found.parts.values()) - found.total) < 1e-9 and one_line(
            found.reason), (row, text[:300], found)
    print(dict(count))
    assert min(count.values()) > FUZZ / 1000, count    # every kind of outcome was seen


@pytest.mark.parametrize('make_target', [lambda row: None, lambda row: row.completion()],
                         ids=['no target', 'target as text'])
def test_any_text_is_scored_against_any_target(make_target):
    for row, text in strings(FUZZ // 20, seed=1):
        found = score(row.prompt(), text, make_target(row))
        assert math.isfinite(found.total) and -0.3 <= found.total <= 1, (row, text[:300], found)


def plain(c):
    """The ASCII character that this one is taken for somewhere: by its case, its value as a digit,
    its compatibility form or its being a space."""
    if c.isspace(): return ' '
    if c.isdigit(): return str(unicodedata.digit(c))
    return next((p for p in (c.lower(), c.upper(), unicodedata.normalize('NFKC', c))
                 if len(p) == 1 and p.isascii()), '')


def accepted_look_alikes(characters):
    "Characters that the strict parser takes for another, anywhere in the truth of some rows."
    found = set()
    for row in [next(r for r in ROWS if r.kind == kind) for kind in 'PA']:
        text = row.completion()
        for c in characters:
            for piece in {plain(c), plain(c).lower(), plain(c).upper()} - {''}:
                found |= {
                    c
                    for i in range(len(text))
                    if text[i] == piece and read(row, text[:i] + c + text[i + 1:])
                }
    return found


# the Kelvin sign is no king
def test_look_alikes_are_refused():
    assert accepted_look_alikes(chr(i) for i in range(128, 0x110000) if plain(chr(i))) == set()


def test_any_prompt_is_read_or_refused():
    rng = random.Random(3)
    for row, text in strings(FUZZ // 4, seed=4):
        prompt = row.prompt() + rng.choice(['', text])
        for _ in range(rng.choice([1, 1, 3])): prompt = rng.choice(MUTATIONS)(rng, prompt)
        for call in (parse_prompt, split_row, lambda p: score(p, row.completion()),
                     lambda p: score(p, row.completion(), row.target)):
            try: call(prompt)
            except ValueError as error:
                assert type(error) is ValueError and one_line(error), (prompt[:300], call, error)
