"""A score is the same to the last bit when the quick ways are shut: every legal move and every
transition by python-chess, every answer read word by word. On rows that are right, wrong in every
way that other tests know, spoiled letter by letter, and noise. QUICK_SCORES=100000 for a long
night."""
import os
import random
import struct
from collections import Counter
from unittest.mock import patch
import pytest
from rookworld_nb.reward import reward_scorer
from rookworld_nb.chess import tasks
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.quick_rules import legal_moves
from rookworld_nb.reward.reward_scorer import parse_weights, score
from test_reward_scorer_fuzz import ROWS as FUZZED, MUTATIONS, strings
from test_reward_scorer import any_eval, any_uci, seen, some

QUICK_SCORES = int(os.environ.get('QUICK_SCORES', 1_000))   # rows of each kind
ROWS = [*load_rows('positions', env_ratio=0.5, seed=6, limit=1500)]
HEAVY = parse_weights('regret=0.9 en_passant=0')
SHUT = [(reward_scorer, 'legal_among', lambda fen, moves: {*moves} & legal_moves(fen)),
        (reward_scorer, 'quick_transition', lambda *_: None),
        (tasks, '_read_policy', tasks._read_policy_words)]


def bits(x): return struct.pack('d', x)


def said(*call, **more):
    "A score as bits, or an error as text."
    reward_scorer._rules.cache_clear()
    try: found = score(*call, **more)
    except ValueError as error: return str(error)
    return bits(found.total), [(n, bits(x))
                               for n, x in found.parts.items()], found.reason, repr(found.about[:3])


def agree(*call, **more):
    quick = said(*call, **more)
    with patch.object(*SHUT[0]), patch.object(*SHUT[1]), patch.object(*SHUT[2]): slow = said(*call, **more)
    assert quick == slow, (call, more, quick, slow)
    return ('error' if isinstance(quick, str) else
            'refused' if 'unparsable' in dict(quick[1]) else 'graded')


def targets(rng, row):
    "Typed, as text in both styles, of nobody, of somebody else, and with a move that is not legal."
    other = rng.choice(ROWS)
    yield from (row.target, row.completion(), row.completion('padded'), None)
    yield rng.choice([other.target, other.completion(), some(rng, row).text(), ''])


def test_answers():
    rng, count = random.Random(0), Counter()
    for row in rng.choices(ROWS, k=QUICK_SCORES // 8):
        for text in [
                *seen(some(rng, row).text(), of=row.kind),
                row.completion(),
                rng.choice(ROWS).completion('padded')
        ]:
            prompt, target = rng.choice([row.prompt(),
                                         row.prompt() + ' '*(row.kind == 'P')
                                         ]), rng.choice([*targets(rng, row)])
            count[row.kind, agree(prompt, text, target)] += 1
            more = dict(weights=HEAVY) if rng.random() < 0.2 else {}
            if row.kind == 'P':
                more['values'] = {
                    m: any_eval(rng)
                    for m in [*sorted(legal_moves(row.fen))[:3],
                              any_uci(rng)]
                }
            agree(prompt, text, target, **more)
    # both tasks, each with its errors: the target was somebody else's
    assert len(count) == 6, count


def test_spoiled_text_and_noise():
    rng = random.Random(7)
    for row, text in strings(QUICK_SCORES, 7):
        agree(row.prompt(), text, rng.choice([row.target, row.completion(), None]))
        if rng.random() < 0.3: agree(row.prompt(), row.completion(), text)


def test_prompts():
    "Spoiled prompts that can still be read ask about positions that no game has."
    rng, read = random.Random(9), 0
    for row in rng.choices(FUZZED, k=QUICK_SCORES):
        prompt = row.prompt()
        for _ in range(rng.choice([1, 1, 2, 4])):
            prompt = rng.choice([spoiled_square, spoiled_square,
                                 rng.choice(MUTATIONS)])(rng, prompt)
        call = prompt, rng.choice([row, rng.choice(FUZZED)]).completion(), rng.choice(
            [None, None, row.target, row.completion()])
        read += agree(*call) != 'error'
    assert read > QUICK_SCORES / 3, read


def spoiled_square(rng, prompt):
    "A piece of the position is another, a king perhaps."
    at = [
        i for i, c in enumerate(prompt.partition(' w ')[0].partition(' b ')[0])
        if c in 'pnbrqkPNBRQK1' and i > 2
    ]
    i = rng.choice(at or [0])
    return prompt[:i] + rng.choice('pnbrqkPNBRQK1') + prompt[i+1:]


@pytest.mark.parametrize('rights', ['HAha', 'Hh', 'AKkq', 'KQkqK'])
def test_chess960_is_no_part_of_the_format(rights):
    for prompt in (f'P: bqnb1rkr/pp3ppp/3ppn2/2p5/5P2/P2P4/NPP1P1PP/BQ1BNRKR w {rights} - 2 9',
                   f'A: r3k2r/8/8/8/8/8/8/R3K2R w {rights} - 3 9+e1g1++'):
        with pytest.raises(ValueError, match='neither'): score(prompt, 'anything')
