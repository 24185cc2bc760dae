"The scorer as it was before it was made quick: text read word by word, every legal move and every transition by python-chess, square after square. Slow, and sure of itself."
import math
import re
from types import SimpleNamespace
import chess
from rookworld_nb.board import transition
from rookworld_nb.engine import win_probability
from rookworld_nb.reward_scorer import (BOARD_RATE, EVAL_SCALE, ILLEGAL_RATE, JUNK_SCALE, LISTED_FLOOR, REGRET_SCALE, SIDE_RATE, SQUARE_SCALE, UNCHANGED_RATE, UNLISTED_RATE, WEIGHTS)
from rookworld_nb.tasks import EOT, MAX_MOVES, REWARDS, EnvAnswer, EnvTask, PolicyAnswer, PolicyTask

UCI, EVAL = re.compile('[a-h][1-8][a-h][1-8][qrbn]?'), re.compile('-?[0-9]+[.][0-9]+')
EMPTY = str.maketrans({str(n): '.' * n for n in range(1, 9)})
RANK = '(?:[1-8]?[PNBRQKpnbrqk])*[1-8]?'   # two digits never follow each other
PLACEMENT = re.compile(f'{RANK}(?:/{RANK}){{7}}')
CLOCK = '0|[1-9][0-9]{0,8}'
FIELDS = {'side to move': '[wb]', 'castling': '-|(?=[KQkq])K?Q?k?q?', 'en passant': '-|[a-h][36]', 'half-move clock': CLOCK, 'move number': CLOCK}
WORDS = ['side', 'castling', 'en passant', 'half-move clock', 'move number']


def legal_moves(fen): return {m.uci() for m in chess.Board(fen).legal_moves}


# ---- reading

def squares_of(placement):
    ranks = placement.translate(EMPTY).split('/')
    if not PLACEMENT.fullmatch(placement) or any(len(rank) != 8 for rank in ranks): raise ValueError(f'not a board: {placement!r:.100}')
    return ''.join(ranks)


def check_fen(fen):
    placement, _, rest = fen.partition(' ')
    fields = rest.split(' ') if rest else []
    if len(fields) != 5: raise ValueError(f'a FEN has 6 fields with one space between, not {1 + len(fields)}: {fen!r:.100}')
    squares_of(placement)
    for (name, shape), word in zip(FIELDS.items(), fields):
        if not re.fullmatch(shape, word): raise ValueError(f'FEN: {word!r:.20} is no {name}')


def read_prompt(text):
    try:
        if text.startswith('P: '): task = PolicyTask(text[3:].rstrip(' '))
        else:
            fen, uci, history, rest = text.removeprefix('A: ').split('+')
            if rest: raise ValueError('text after the third +')
            task = EnvTask(fen, uci, history)
        check_fen(task.fen)
    except ValueError as error: raise ValueError(f"neither 'P: <fen>' nor 'A: <fen>+<move>+<history>+': {text!r:.200} ({error})") from None
    return task


def check(words, shape, what):
    for w in words:
        if not shape.fullmatch(w): raise ValueError(f'{w!r:.40} is not {what}')


def read_policy(text, strict):
    words = re.split(' +', text.lstrip(' '))
    labels = [w for w in words if w in ('M:', 'E:', 'B:')]
    if labels != ['M:', 'E:', 'B:']: raise ValueError(f"the fields must be M:, E:, B:, in this order, each once, not {' '.join(labels[:6]) or 'none'}")
    m, e, b = map(words.index, labels)
    moves, evals, best = words[m+1:e], words[e+1:b], words[b+1:]
    if m: raise ValueError(f"text before M: {' '.join(words[:m])!r:.40}")
    if not 1 <= len(moves) <= MAX_MOVES: raise ValueError(f'M: must list 1 to {MAX_MOVES} moves, not {len(moves)}')
    check(moves, UCI, 'a move in UCI')
    check(evals, EVAL, 'an eval like -0.25')
    if not all(math.isfinite(float(v)) for v in evals): raise ValueError('an eval is too large for a float')
    if strict and len(evals) != len(moves): raise ValueError(f'{len(moves)} moves but {len(evals)} evals')
    if not best or best == ['']: raise ValueError('no move after B:')
    check(best[:1], UCI, 'a move in UCI')
    if len(best) > 1: raise ValueError(f"text after the best move: {' '.join(best[1:])!r:.40}")
    return PolicyAnswer(tuple(moves), tuple(map(float, evals))[:len(moves)], best[0])


def read_env(text, strict):
    if text != text.strip(): raise ValueError('space around the answer')
    fields = text.split('+')
    if not strict: fields = [f.strip() for f in fields]
    if len(fields) != 4: raise ValueError(f'4 fields with + between are expected, not {len(fields)}')
    fen, reward, *flags = fields
    check_fen(fen)
    if reward not in REWARDS: raise ValueError(f"the reward must be one of {', '.join(REWARDS)}, not {reward!r:.40}")
    for name, flag in zip(('terminated', 'truncated'), flags):
        if flag not in ('0', '1'): raise ValueError(f'{name} must be 0 or 1, not {flag!r:.40}')
    return EnvAnswer(fen, float(reward), flags[0] == '1', flags[1] == '1')


def read(task, text, strict): return (read_policy if isinstance(task, PolicyTask) else read_env)(text if strict else ' '.join(text.replace(EOT, ' ').split()), strict)


# ---- P

def credit_of(best, true, values):
    value = true.get(best, values.get(best))
    if value is None: return 0.
    credit = math.exp(-max(0., win_probability(max(true.values())) - win_probability(value)) / REGRET_SCALE)
    return LISTED_FLOOR + (1 - LISTED_FLOOR) * credit if best in true else UNLISTED_RATE * credit


def policy_shares(fen, answer, true, values):
    listed, off = len(answer.moves), {}
    for m, e in zip(answer.moves, answer.evals):
        if m in true: off[m] = max(off.get(m, 0.), abs(win_probability(e) - win_probability(true[m])))
    legal, hits = {m for m in {answer.best, *answer.moves} if m in true or m in legal_moves(fen)}, set(answer.moves) & true.keys()
    valid = len(legal.intersection(answer.moves)) / max(listed, len(true), 1)
    return {'legal': float(answer.best in legal),
            'tidy': valid,
            'regret': credit_of(answer.best, true, values) * (1 + valid) / 2 if true and answer.best in legal else 0.,
            'candidates': len(hits) / (listed + len(true) - len(hits)) if true else 0.,
            'evals': math.fsum(math.exp(-x / EVAL_SCALE) for x in off.values()) / max(listed, len(true)) if true else 0.}, legal, off


def policy_reason(answer, true, values, legal, off):
    found, known = [], values | true
    if answer.best not in legal: found.append(f'B {answer.best} is illegal')
    elif true and answer.best not in known: found.append(f'B {answer.best} is legal but not listed')
    elif true and known[answer.best] < max(true.values()): found.append(f'B {answer.best} gives away {max(true.values()) - known[answer.best]:.2f} pawns')
    if answer.best not in answer.moves: found.append(f'B {answer.best} is not a candidate')
    if bad := [m for m in dict.fromkeys(answer.moves) if m not in legal]: found.append(f"illegal candidates {' '.join(bad)}")
    if len(set(answer.moves)) < len(answer.moves): found.append('repeated candidates')
    if true: found.append(f'{len(set(answer.moves) & true.keys())} of {len(true)} candidates found')
    if any(off.values()): found.append(f'their evals off by {100 * sum(off.values()) / len(off):.1f} % of win probability')
    return '; '.join(found) if true else '; '.join([*found, 'no target: only legality was judged'])


def score_policy(task, answer, target, weights, values):
    true = dict(zip(target.moves, target.evals)) if target else {}
    same = target and sorted(zip(answer.moves, answer.evals)) == sorted(true.items())
    if same and true.get(answer.best) == true[target.best]: return receipt(weights['both'] | weights['P'], 'exact', 1., 1.)
    shares, legal, off = policy_shares(task.fen, answer, true, values)
    rate = 1 if shares['legal'] else ILLEGAL_RATE
    parts = {name: w * shares[name] * (1 if name == 'legal' else rate) for name, w in weights['P'].items()}
    return receipt({'structure': weights['both']['structure']} | parts, policy_reason(answer, true, values, legal, off), 0.2, 0.8)


# ---- A

def fields_of(fen):
    fields = fen.split(' ')
    if len(fields) != 6: raise ValueError(f'a FEN has 6 fields, found {len(fields)}: {fen[:90]!r}')
    return [squares_of(fields[0]), *fields[1:]]


def square_names(squares): return ' '.join(chess.SQUARE_NAMES[i ^ 56] for i in squares)


def env_shares(before, answer, truth):
    got, true = fields_of(answer.fen), fields_of(truth.fen)
    change = [i for i in range(64) if before[i] != true[0][i]]
    wrong = [i for i in range(64) if got[0][i] != true[0][i]]
    missed = [i for i in wrong if i in change]
    same = {n: float(g == t) for n, g, t in zip(WORDS, got[1:], true[1:])}
    same |= {n: float(getattr(answer, n) == getattr(truth, n)) for n in ('reward', 'terminated', 'truncated')}
    found = 1 - len(missed) / len(change) if change else (same['reward'] + same['truncated']) / 2
    stayed = math.exp(-(len(wrong) - len(missed)) / max(2, SQUARE_SCALE * (64 - true[0].count('.'))))
    gate = UNCHANGED_RATE + (1 - UNCHANGED_RATE) * found**2 * stayed
    findings = [f'squares that had to change: {square_names(missed)}'] if missed else []
    if len(wrong) > len(missed): findings.append(f'squares that had to stay: {square_names(i for i in wrong if i not in change)}')
    findings += [n for n, ok in same.items() if not ok]
    same['clocks'] = (same.pop('half-move clock') + same.pop('move number')) / 2
    rate = BOARD_RATE if wrong else 1 if same['side'] else SIDE_RATE
    shares = {'changed': found * stayed, 'stayed': stayed * gate} | {n: x * gate for n, x in same.items()}
    return {n: x * rate for n, x in shares.items()}, findings


def score_env(task, answer, truth, weights):
    if answer == truth: return receipt(weights['both'] | weights['A'], 'exact', 1., 1.)
    shares, findings = env_shares(fields_of(task.fen)[0], answer, truth)
    parts = {name: w * shares[name] for name, w in weights['A'].items()}
    return receipt({'structure': weights['both']['structure']} | parts, 'wrong: ' + ', '.join(findings), 0.2, 0.8)


# ---- text that the strict parser refuses

def policy_landmarks(text):
    head, m, rest = text.partition('M: ')
    moves, e, rest = rest.partition('E: ')
    evals, b, best = rest.partition('B: ')
    words = [sum(map(bool, map(re.compile(p).fullmatch, part.split()))) / max(5, len(part.split())) for p, part in ((UCI.pattern, moves), (r'-?[0-9]{1,3}\.[0-9]+', evals))]
    return (bool(m) + bool(e) + bool(b) + sum(words) + bool(UCI.fullmatch(best.strip()))) / 6


def env_landmarks(text):
    fields = text.split('+')
    fen = fields[0].strip().split(' ')
    ranks = [r.translate(EMPTY) for r in fen[0].split('/')]
    good = sum(len(r) == 8 and set(r) <= set('.PNBRQKpnbrqk') for r in ranks) / max(8, len(ranks))
    shape = lambda n, want: max(0, 1 - abs(n - want) / want)
    return (good * (1 + shape(len(fen), 6)) + (good > 0) * shape(len(fields), 4)) / 3


def salvage(task, text):
    if isinstance(task, PolicyTask):
        start = max(0, text.find('M: '))
        found = re.compile(f'B: +{UCI.pattern}').search(text, start)
        used = text[start:found.end()] if found else text
        return read(task, used, strict=False), len(' '.join(used.split()))
    first, *rest = text.split('+')[:4]
    words = [' '.join(first.split()[:6]), *(''.join(field.split()[:1]) for field in rest)]
    try: return read(task, '+'.join(words), strict=False), len('+'.join(words))
    except ValueError: fields_of(words[0])
    return EnvAnswer(words[0], math.nan, None, None), len(words[0])


def score_text(task, text, truth, reason, weights, values):
    answer = None
    try:
        answer, used = salvage(task, text)
        graded = grade(task, answer, truth, weights, values).total
        share = 0.4 + 0.6 * (graded - 0.2) / 0.8 * JUNK_SCALE / (JUNK_SCALE + len(' '.join(text.split())) - used)
    except ValueError: share = 0.4 * (policy_landmarks(text) if isinstance(task, PolicyTask) else env_landmarks(text))
    table = weights['text']
    return receipt({'unparsable': table['unparsable'], 'readable': table['readable'] * share}, f'unparsable: {reason}', -0.3, 0.2), answer


# ---- the door

def receipt(parts, reason, low, high): return SimpleNamespace(total=max(low, min(high, math.fsum(parts.values()))), parts=parts, reason=reason)


def grade(task, answer, truth, weights, values): return score_policy(task, answer, truth, weights, values) if isinstance(task, PolicyTask) else score_env(task, answer, truth, weights)


def truth_of(task, target):
    policy = isinstance(task, PolicyTask)
    if target is None:
        if policy: legal_moves(task.fen)
        return None if policy else EnvAnswer(**vars(transition(task.fen, task.uci, task.history)))
    if isinstance(target, str):
        target = read(task, target, strict=True)
        if policy and (bad := set(target.moves) - legal_moves(task.fen)): raise ValueError(f'target move {min(bad)!r} is not legal in {task.fen!r}')
    if not isinstance(target, PolicyAnswer if policy else EnvAnswer): raise ValueError(f"the target of a {'P' if policy else 'A'} prompt cannot be a {type(target).__name__}: {target!r:.80}")
    return target


def slow_score(prompt, completion, target=None, weights=None, values=None):
    "What `score` says, and the task, answer and truth it is said of."
    task, weights, values = read_prompt(prompt), weights or WEIGHTS, values or {}
    truth = truth_of(task, target)
    try: answer = read(task, completion, strict=True)
    except ValueError as reason: found, answer = score_text(task, completion, truth, reason, weights, values)
    else: found = grade(task, answer, truth, weights, values)
    return found, (task, answer, truth)
