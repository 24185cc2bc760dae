"The quick scorer and the slow one agree to the last bit: on rows that are right, wrong in every way that other tests know, spoiled letter by letter, and noise. SLOW_SCORER=100000 for a long night."
import os
import random
import struct
from collections import Counter
import pytest
from rookworld_nb.dataset import load_rows
from rookworld_nb.reward_scorer import parse_weights, score
from slow_scorer import legal_moves, slow_score
from test_fuzz import ROWS as FUZZED, MUTATIONS, strings
from test_scorer_properties import any_eval, any_uci, seen, some

SLOW_SCORER = int(os.environ.get('SLOW_SCORER', 1_000))   # rows of each kind
ROWS = [*load_rows('positions', env_ratio=0.5, seed=6, limit=1500)]
HEAVY = parse_weights('regret=0.9 en_passant=0')


def bits(x): return struct.pack('d', x)


def quick(*call, **more):
    found = score(*call, **more)
    return bits(found.total), {n: bits(x) for n, x in found.parts.items()}, [*found.parts], found.reason, repr(found.about[:3])


def slow(*call, **more):
    found, about = slow_score(*call, **more)
    return bits(found.total), {n: bits(x) for n, x in found.parts.items()}, [*found.parts], found.reason, repr(about)


def said(scorer, *call, **more):
    "A score as bits, or an error as text."
    try: return scorer(*call, **more)
    except ValueError as error: return str(error)


def agree(*call, **more):
    one, other = said(quick, *call, **more), said(slow, *call, **more)
    assert one == other, (call, more, one, other)
    return 'error' if isinstance(one, str) else 'refused' if 'unparsable' in one[1] else 'graded'


def targets(rng, row):
    "Typed, as text in both styles, of nobody, of somebody else, and with a move that is not legal."
    other = rng.choice(ROWS)
    yield from (row.target, row.completion(), row.completion('padded'), None)
    yield rng.choice([other.target, other.completion(), some(rng, row).text(), ''])


def test_answers():
    rng, count = random.Random(0), Counter()
    for row in rng.choices(ROWS, k=SLOW_SCORER // 8):
        for text in [*seen(some(rng, row).text(), of=row.kind), row.completion(), rng.choice(ROWS).completion('padded')]:
            prompt, target = rng.choice([row.prompt(), row.prompt() + ' ' * (row.kind == 'P')]), rng.choice([*targets(rng, row)])
            count[row.kind, agree(prompt, text, target)] += 1
            more = dict(weights=HEAVY) if rng.random() < 0.2 else {}
            if row.kind == 'P': more['values'] = {m: any_eval(rng) for m in [*sorted(legal_moves(row.fen))[:3], any_uci(rng)]}
            agree(prompt, text, target, **more)
    assert len(count) == 6, count      # both tasks, each with its errors: the target was somebody else's


@pytest.mark.parametrize('seed', [7, 8])
def test_spoiled_text_and_noise(seed):
    rng = random.Random(seed)
    for row, text in strings(SLOW_SCORER // 2, seed):
        agree(row.prompt(), text, rng.choice([row.target, row.completion(), None]))
        if rng.random() < 0.3: agree(row.prompt(), row.completion(), text)


def test_prompts():
    "Spoiled prompts that can still be read ask about positions that no game has."
    rng, read = random.Random(9), 0
    for row in rng.choices(FUZZED, k=SLOW_SCORER):
        prompt = row.prompt()
        for _ in range(rng.choice([1, 1, 2, 4])): prompt = rng.choice([spoiled_square, spoiled_square, rng.choice(MUTATIONS)])(rng, prompt)
        call = prompt, rng.choice([row, rng.choice(FUZZED)]).completion(), rng.choice([None, None, row.target, row.completion()])
        read += agree(*call) != 'error'
    assert read > SLOW_SCORER / 3, read


def spoiled_square(rng, prompt):
    "A piece of the position is another, a king perhaps."
    at = [i for i, c in enumerate(prompt.partition(' w ')[0].partition(' b ')[0]) if c in 'pnbrqkPNBRQK1' and i > 2]
    i = rng.choice(at or [0])
    return prompt[:i] + rng.choice('pnbrqkPNBRQK1') + prompt[i+1:]
