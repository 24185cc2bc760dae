"""What `board` says about a move, against a second set of rules that shares no line with it: a
board of 64 characters."""
import os
import random
import re
from collections import Counter
from functools import cache
from itertools import count, groupby
import chess
import pytest
from rookworld_nb.chess.board import START_FEN, Transition, is_legal, standard_castling, transition
from rookworld_nb.chess.quick_rules import legal_among

# legal moves to compare; the illegal ones come on top
TRANSITIONS = int(os.environ.get('TRANSITIONS', 5_000))
# as a FEN lists them: a8 is 0, h1 is 63
SQUARES = [file + rank for rank in '87654321' for file in 'abcdefgh']
WHOLE = {'w': str.upper, 'b': str.lower}
# king, rook, where the king goes
ROOKS = {
    'K': ('e1', 'h1', 'g1'), 'Q': ('e1', 'a1', 'c1'), 'k': ('e8', 'h8', 'g8'),
    'q': ('e8', 'a8', 'c8')
}
CASTLES = {king + to: (right, rook) for right, (king, rook, to) in ROOKS.items()}


def at(name): return SQUARES.index(name)


def ray(i, dx, dy, far=7):
    "The squares from i in one direction, to the edge."
    return [
        i + n*(dx + 8*dy) for n in range(1, far + 1)
        if 0 <= i % 8 + n*dx < 8 and 0 <= i // 8 + n*dy < 8
    ]


STRAIGHT, DIAGONAL = [(1, 0), (-1, 0), (0, 1), (0, -1)], [(1, 1), (1, -1), (-1, 1), (-1, -1)]
JUMPS = [(x, y) for x in (-2, -1, 1, 2) for y in (-2, -1, 1, 2) if abs(x) != abs(y)]
REACH = {
    'n': (JUMPS, 1), 'k': (STRAIGHT + DIAGONAL, 1), 'b': (DIAGONAL, 7), 'r': (STRAIGHT, 7),
    'q': (STRAIGHT + DIAGONAL, 7)
}
RAYS = {(kind, i): [ray(i, *step, far) for step in steps if ray(i, *step, 1)]
        for kind, (steps, far) in REACH.items()
        for i in range(64)}
# where a pawn on i takes
TAKES = {(side, i): ray(i, -1, dy, 1) + ray(i, 1, dy, 1)
         for side, dy in (('w', -1), ('b', 1))
         for i in range(64)}


def read(fen):
    "FEN → (64 characters, side, rights, en-passant square, half-moves, move)."
    placement, side, rights, ep, clock, number = fen.split()
    return re.sub(r'\d', lambda n: '.'*int(n[0]),
                  placement.replace('/', '')), side, rights, ep, int(clock), int(number)


def write(p):
    rows = (''.join(
        str(len(list(run))) if c == '.' else ''.join(run) for c, run in groupby(p[0][i:i + 8]))
            for i in range(0, 64, 8))
    return ' '.join(['/'.join(rows), *map(str, p[1:])])


def other(side): return 'b' if side == 'w' else 'w'


def attacked(squares, i, by):
    "Does this side attack the square?"
    for kinds in ('n', 'k', 'bq', 'rq'):
        for line in RAYS[kinds[0], i]:
            first = next((squares[j] for j in line if squares[j] != '.'), '.')
            if first in WHOLE[by](kinds): return True
    return any(squares[j] == WHOLE[by]('p') for j in TAKES[other(by), i])


def in_check(squares, side):
    king = squares.find(WHOLE[side]('k'))
    return king >= 0 and attacked(squares, king, other(side))


def push(p, uci):
    """Play a move that nobody has checked, as python-chess does; what castles onto nothing ends in
    the corner."""
    squares, side, rights, ep, clock, number = p
    a, b, new, mine = at(uci[:2]), at(uci[2:4]), list(p[0]), WHOLE[side]
    piece, ours = squares[a].lower(), lambda c: c != '.' and c == mine(c)
    if piece == 'k' and uci[:4] in CASTLES and squares[b].lower() != 'r': b = at(CASTLES[uci[:4]][1])
    zeroing = ('p' in (piece, squares[b].lower()) or not ours(squares[a])
               or squares[b] != '.' and not ours(squares[b]))
    new[a] = '.'
    if piece == 'k' and ours(squares[b]):
        new[b], home = '.', 56 if side == 'w' else 0
        new[home +
            (2 if b % 8 < a % 8 else 6)], new[home +
                                              (3 if b % 8 < a % 8 else 5)] = mine('k'), mine('r')
    else: new[b] = mine(uci[4:] or piece)
    if piece == 'p' and ep == SQUARES[b] and abs(a - b) in (7, 9) and squares[b] == '.':
        new[b + (8 if side == 'w' else -8)] = '.'
    kept = ''.join(r for r in 'KQkq' if r in rights and at(ROOKS[r][1]) not in (
        a, b) and not (piece == 'k' and r == mine(r)) and new[at(ROOKS[r][0])] +
                   new[at(ROOKS[r][1])] == ('KR' if r.isupper() else 'kr'))
    after = ''.join(new), other(
        side), kept or '-', '-', 0 if zeroing else clock + 1, number + (side == 'b')
    if piece != 'p' or (a // 8, b - a) != ((6, -16) if side == 'w' else (1, 16)): return after
    offered = *after[:3], SQUARES[(a + b)//2], *after[4:]  # shown only where somebody may take
    return (offered if any(not in_check(push(offered, SQUARES[j] + offered[3])[0], other(side))
                           for j in takers(after, b)) else after)


def takers(p, b):
    return [j for j in ray(b, 1, 0, 1) + ray(b, -1, 0, 1) if p[0][j] == WHOLE[p[1]]('p')]


def candidates(p):
    "Every move that goes the way its piece goes, king in check or not."
    squares, side, rights, ep, *_ = p
    for i, piece in enumerate(squares):
        if piece == '.' or piece != WHOLE[side](piece): continue
        free = []
        if piece in 'Pp':
            ahead, start = -8 if side == 'w' else 8, 6 if side == 'w' else 1
            if squares[i+ahead] == '.': free += ([i+ahead] + [i+2*ahead] * (i//8 == start and squares[i+2*ahead] == '.'))
            free += [
                j for j in TAKES[side, i]
                if SQUARES[j] == ep or squares[j] != '.' and squares[j] != WHOLE[side](squares[j])
            ]
        else:
            for line in RAYS[piece.lower(), i]:
                for j in line:
                    if squares[j] == '.' or squares[j] != WHOLE[side](squares[j]): free.append(j)
                    if squares[j] != '.': break
        for j in free:
            for kind in 'qrbn' if piece in 'Pp' and j // 8 in (0, 7) else ['']:
                yield SQUARES[i] + SQUARES[j] + kind
    for right, (king, rook, to) in ROOKS.items():
        if right not in rights or right != WHOLE[side](right): continue
        e, corner, step = at(king), at(rook), 1 if rook[0] == 'h' else -1
        if all(squares[i] == '.' for i in range(e + step, corner, step)) and not any(
                attacked(squares, e + n*step, other(side)) for n in range(3)):
            yield king + to


def moves(p): return (uci for uci in candidates(p) if not in_check(push(p, uci)[0], p[1]))


def dead(squares):
    "Bare kings, one knight, or bishops of one colour."
    left = [(c.lower(), (i + i//8) % 2) for i, c in enumerate(squares) if c not in '.Kk']
    return (len(left) < 2 and all(c in 'nb' for c, _ in left)
            or all(c == 'b' and shade == left[0][1] for c, shade in left))


def key(p): return write(p).rsplit(' ', 2)[0]


def verdict(p, seen):
    "Reward for the one who moved, and why; `seen`: the keys of the game before."
    if next(moves(p), None) is None:
        return ((1.0, 'mates') if in_check(p[0], p[1]) else (0.5, 'stalemates'))
    if dead(p[0]): return 0.5, 'too little material'
    if p[4] >= 150: return 0.5, '75 moves'
    if seen.count(key(p)) >= 4: return 0.5, 'fivefold'
    return 0.001, ''


def rules(p, uci, seen=()):
    "Position and verdict after a legal move."
    after = push(p, uci)
    reward, why = verdict(after, list(seen))
    return after, Transition(write(after), reward, reward > 0.01, False), why


# What is counted

def kinds(p, uci, after, why):
    "What is special about a legal move."
    squares, side, rights, ep, *_ = p
    a, b = at(uci[:2]), at(uci[2:4])
    piece, takes = squares[a].lower(), squares[b] != '.'
    if why: yield why
    if in_check(after[0], after[1]): yield 'check'
    if piece == 'k' and uci in CASTLES: yield f'castles {CASTLES[uci][0]}'
    elif piece == 'k' and set(rights) & set(WHOLE[side]('kq')): yield 'rights lost: king moves'
    if piece == 'r' and any(SQUARES[a] == ROOKS[r][1] for r in set(rights) - {'-'}): yield 'rights lost: rook moves'
    if squares[b].lower() == 'r' and any(SQUARES[b] == ROOKS[r][1] for r in set(rights) - {'-'}):
        yield 'rights lost: rook taken'
    if piece == 'p' and SQUARES[b] == ep: yield 'en passant'
    elif ep != '-': yield 'en passant expires'
    if piece == 'p' and abs(a - b) == 16:
        yield 'double push: ' + ('may be taken' if after[3] != '-' else
                                 'taker pinned' if takers(after, b) else 'no taker')
    if uci[4:]: yield f'promotes {uci[4:]}' + ', taking' * takes
    elif takes: yield 'takes'


SEEN = {
    'mates', 'stalemates', 'too little material', '75 moves', 'fivefold', 'check', 'castles K',
    'castles Q', 'castles k', 'castles q', 'rights lost: king moves', 'rights lost: rook moves',
    'rights lost: rook taken', 'en passant', 'en passant expires', 'double push: may be taken',
    'double push: taker pinned', 'double push: no taker', 'takes', *(f'promotes {k}{t}'
                                                                     for k in 'qrbn'
                                                                     for t in ('', ', taking'))
}
WRONG = {
    'no text', 'null', 'empty square', "other side's piece", 'no such path', 'king left in check',
    'castling not allowed'
}

# Positions

PERFT = {  # nodes at depth 1, 2, ...: chessprogramming.org/Perft_Results
    START_FEN: (20, 400, 8902, 197281),
    'r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1': (48, 2039, 97862),
    '8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1': (14, 191, 2812, 43238),
    'r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1': (6, 264, 9467),
    'rnbq1k1r/pp1Pbppp/2p5/8/2B5/8/PPP1NnPP/RNBQK2R w KQ - 1 8': (44, 1486, 62379),
    'r4rk1/1pp1qppp/p1np1n2/2b1p1B1/2B1P1b1/P1NP1N2/1PP1QPPP/R4RK1 w - - 0 10': (46, 2079, 89890)}
ROOTS = [
    *PERFT, START_FEN, 'r3k2r/p6p/8/8/8/8/P6P/R3K2R w KQkq - 0 1',
    'r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 3 9', '4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1',
    'n1n5/PPPk4/8/8/8/8/4Kppp/5N1N b - - 0 1', '8/8/4k3/8/r1p4K/8/1P1P4/8 w - - 0 1',
    '4k3/4r3/8/8/8/2p1p3/1P1P4/4K3 w - - 0 1', '4k3/8/8/8/8/8/3n4/R3K2R w KQ - 140 99',
    '6k1/5ppp/8/8/8/8/8/R3K2Q w - - 140 99', '7k/8/5K2/8/8/8/8/6Q1 w - - 0 1',
    '4k3/4P3/8/4K3/8/8/8/8 w - - 0 1', '8/8/3k4/8/2b1B3/8/3p4/4K3 w - - 0 1',
    '8/8/8/4k3/8/3n4/4P3/4K3 w - - 0 1'
]
BY_HAND = [ # what, FEN, move, next FEN, reward
    ('castles K', 'r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 3 9', 'e1g1',
     'r3k2r/8/8/8/8/8/8/R4RK1 b kq - 4 9', 0.001),
    ('castles Q', 'r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 3 9', 'e1c1',
     'r3k2r/8/8/8/8/8/8/2KR3R b kq - 4 9', 0.001),
    ('castles k', 'r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 3 9', 'e8g8',
     'r4rk1/8/8/8/8/8/8/R3K2R w KQ - 4 10', 0.001),
    ('castles q', 'r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 3 9', 'e8c8',
     '2kr3r/8/8/8/8/8/8/R3K2R w KQ - 4 10', 0.001),
    ('castles, the attacked rook does not matter', '4k3/8/8/8/8/8/1r6/R3K3 w Q - 0 1', 'e1c1',
     '4k3/8/8/8/8/8/1r6/2KR4 b - - 1 1', 0.001),
    ('rights lost: king moves', 'r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 3 9', 'e1e2',
     'r3k2r/8/8/8/8/8/4K3/R6R b kq - 4 9', 0.001),
    ('rights lost: rook moves', 'r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 3 9', 'h8h2',
     'r3k3/8/8/8/8/8/7r/R3K2R w KQq - 4 10', 0.001),
    ('rights lost: both rooks', 'r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 3 9', 'h1h8',
     'r3k2R/8/8/8/8/8/8/R3K3 b Qq - 0 9', 0.001),
    ('rights lost: a promotion takes the rook', 'r3k3/1P6/8/8/8/8/8/4K3 w q - 3 9', 'b7a8n',
     'N3k3/8/8/8/8/8/8/4K3 b - - 0 9', 0.5),
    ('double push: may be taken', '4k3/8/8/8/3p4/8/4P3/4K3 w - - 7 1', 'e2e4',
     '4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1', 0.001),
    ('double push: taker pinned on the file', '3k4/8/8/8/3p4/8/4P3/3RK3 w - - 7 1', 'e2e4',
     '3k4/8/8/8/3pP3/8/8/3RK3 b - - 0 1', 0.001),
    ('double push: taker pinned along the rank', '8/8/8/8/R2p3k/8/4P3/4K3 w - - 7 1', 'e2e4',
     '8/8/8/8/R2pP2k/8/8/4K3 b - - 0 1', 0.001),
    ('double push: around the edge of the board', '4k3/8/8/p7/7p/8/P7/4K3 w - - 7 1', 'a2a4',
     '4k3/8/8/p7/P6p/8/8/4K3 b - - 0 1', 0.001),
    ('en passant, Black', '4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1', 'd4e3',
     '4k3/8/8/8/8/4p3/8/4K3 w - - 0 2', 0.001),
    ('en passant, White', '4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1', 'e5d6',
     '4k3/8/3P4/8/8/8/8/4K3 b - - 0 1', 0.001),
    ('en passant expires', '4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1', 'e8e7',
     '8/4k3/8/8/3pP3/8/8/4K3 w - - 1 2', 0.001),
    ('double push, written as if it could be taken',
     'rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1', 'g8f6',
     'rnbqkb1r/pppppppp/5n2/8/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 1 2', 0.001),
    ('promotes, taking', '1r6/P6k/8/8/8/8/8/K7 w - - 5 70', 'a7b8r',
     '1R6/7k/8/8/8/8/8/K7 b - - 0 70', 0.001),
    ('mates', '6k1/5ppp/8/8/8/8/8/R3K3 w - - 149 99', 'a1a8',
     'R5k1/5ppp/8/8/8/8/8/4K3 b - - 150 99', 1.0),
    ('stalemates', '7k/8/5K2/8/8/8/8/6Q1 w - - 0 1', 'g1g6', '7k/8/5KQ1/8/8/8/8/8 b - - 1 1', 0.5),
    ('two knights can go on', '8/8/8/4k3/8/8/3p4/1N2KN2 w - - 9 80', 'e1d2',
     '8/8/8/4k3/8/8/3K4/1N3N2 b - - 0 80', 0.001),
    ('bishops of one colour', '4kb2/8/8/8/8/8/5p2/2B1K3 w - - 9 80', 'e1f2',
     '4kb2/8/8/8/8/8/5K2/2B5 b - - 0 80', 0.5),
    ('bishops of both colours', '4k3/8/8/3b4/8/8/5p2/2B1K3 w - - 9 80', 'e1f2',
     '4k3/8/8/3b4/8/8/5K2/2B5 b - - 0 80', 0.001),
    ('75 moves', '4k3/8/8/8/8/8/8/R3K3 w - - 149 99', 'a1a2', '4k3/8/8/8/8/8/R7/4K3 b - - 150 99',
     0.5),
    ('half a move before', '4k3/8/8/8/8/8/8/R3K3 w - - 148 99', 'a1a2',
     '4k3/8/8/8/8/8/R7/4K3 b - - 149 99', 0.001)
]
REFUSED = [ # what, FEN, move
    ('king left in check', '4r1k1/8/8/8/8/8/4B3/4K3 w - - 0 1', 'e2d3'),
    ('en passant, pinned along the rank', '8/8/8/8/R2pP2k/8/8/4K3 b - e3 0 1', 'd4e3'),
    ('en passant, pinned on the file', '3k4/8/8/8/3pP3/8/8/3RK3 b - e3 0 1', 'd4e3'),
    ('en passant, expired', '4k3/8/8/8/3pP3/8/8/4K3 b - - 0 1', 'd4e3'),
    ('castles in check', '4k3/8/8/8/8/8/4r3/R3K2R w KQ - 0 1', 'e1g1'),
    ('castles through check', '4k3/8/8/8/8/8/3r4/R3K2R w KQ - 0 1', 'e1c1'),
    ('castles into check', '4k3/8/8/8/8/8/6r1/4K2R w K - 0 1', 'e1g1'),
    ('castles without the right', '4k3/8/8/8/8/8/8/R3K2R w Q - 0 1', 'e1g1'),
    ('castles over a knight', '4k3/8/8/8/8/8/8/RN2K3 w Q - 0 1', 'e1c1'),
    ('promotes to nothing', '8/P6k/8/8/8/8/8/K7 w - - 0 1', 'a7a8'),
    ('promotes to a king', '8/P6k/8/8/8/8/8/K7 w - - 0 1', 'a7a8k'),
    ('promotes too early', START_FEN, 'e2e4q'), ('null', START_FEN, '0000')
]


@cache
def perft(fen, depth, walk):
    return 1 if depth == 0 else sum(perft(after, depth-1, walk) for after in walk(fen))


def by_push(fen): return [write(push(p, uci)) for p in [read(fen)] for uci in moves(p)]


def by_transition(fen):
    "`candidates` says what to try, illegal moves among it; `transition` says what counts."
    results = [transition(fen, uci) for uci in candidates(read(fen))]
    assert all(r == Transition(fen, -1.0, False, True) or not r.truncated for r in results)
    return [r.fen for r in results if not r.truncated]


@pytest.mark.parametrize('walk', [by_push, by_transition])
@pytest.mark.parametrize('fen', PERFT)
def test_perft(fen, walk):
    for depth, nodes in enumerate(PERFT[fen], 1):
        if nodes < 10_000 or TRANSITIONS >= 100_000: assert perft(fen, depth, walk) == nodes
    perft.cache_clear()


@pytest.mark.parametrize('what,fen,uci,after,reward', BY_HAND, ids=[row[0] for row in BY_HAND])
def test_by_hand(what, fen, uci, after, reward):
    expected = Transition(after, reward, reward > 0.01, False)
    assert transition(fen, uci) == transition(fen, uci, convention='rookworld') == rules(
        read(fen), uci)[1] == expected
    if uci in CASTLES:      # king takes own rook is how a file may write it, and no name of a move
        by_rook = uci[:2] + CASTLES[uci][1]
        assert transition(fen, by_rook) == Transition(fen, -1.0, False, True) and standard_castling(
            fen, by_rook) == uci


@pytest.mark.parametrize('what,fen,uci', REFUSED, ids=[row[0] for row in REFUSED])
def test_refused(what, fen, uci): assert transition(fen, uci) == Transition(fen, -1.0, False, True)


@pytest.mark.parametrize('fen', sorted({*ROOTS, *(row[1] for row in BY_HAND + REFUSED)}))
def test_every_text(fen):
    "Any two squares, with any letter where a pawn may promote."
    legal = set(moves(read(fen)))
    texts = {
        a + b + kind
        for a in SQUARES
        for b in SQUARES
        for kind in ('', *'qrbnkp'*(a[1] + b[1] in ('78', '21')))
    }
    assert {uci for uci in texts if is_legal(fen, uci)} == legal_among(fen, texts) == legal
    assert {standard_castling(fen, uci) for uci in legal} == legal


# Games

def special(p, legal):
    """Castling and promotions, corners taken, pawns that take or may be taken en passant, ends of
    endings; failing these, everything."""
    ending = len(p[0].replace('.', '')) < 5
    rare = [
        uci for uci in legal
        if uci[4:] or uci in CASTLES or uci[2:4] == p[3] or uci[2:4] in ('a1', 'h1', 'a8', 'h8')
        or p[0][at(uci[:2])] in 'Pp' and takers(push(p, uci), at(uci[2:4]))
        or ending and next(moves(push(p, uci)), None) is None
    ]
    return rare or legal


def wander(played, legal, rare, rng): return rng.choice(rare if rng.random() < 0.35 else legal)


def waver(played, legal, rare, rng):
    "Nine times out of ten the player's own last move backwards."
    back = [uci for uci in legal if len(played) > 1 and uci == played[-2][2:4] + played[-2][:2]]
    return back[0] if back and rng.random() < 0.9 else rng.choice(legal)


def wrong_move(p, legal, rng):
    "A text that is no legal move, and why."
    squares, side, *_ = p
    if rng.random() < 0.1:
        return rng.choice([
            '', 'e2', 'e9e4', 'E2E4', 'e2e2', 'e2e4x', 'e2-e4', 'Nf3', 'O-O', 'e2e4 ', ' e2e4',
            '00000', '²2e4', 'e2e4qq'
        ]), 'no text'
    if rng.random() < 0.05: return '0000', 'null'
    near = [uci for uci in candidates(p) if uci not in legal]
    if near and rng.random() < 0.5: return rng.choice(near), 'king left in check'
    while True:
        a, b = rng.sample(SQUARES, 2)
        if rng.random() < 0.2: a, b = rng.choice([(uci[:2], uci[2:]) for uci in CASTLES])
        if a + b in legal or a + b + 'q' in legal or a + b in near or a + b + 'q' in near or (
                a + b) in alias(legal, squares):
            continue
        piece = squares[at(a)]
        if a + b in CASTLES and piece == WHOLE[side]('k'): return a + b, 'castling not allowed'
        kind = rng.choice('qrbnp') if piece in 'Pp' and rng.random() < 0.3 else ''
        return a + b + kind, 'empty square' if piece == '.' else 'no such path' if piece == WHOLE[
            side](piece) else "other side's piece"


def alias(legal, squares):
    return {
        uci[:2] + CASTLES[uci][1]
        for uci in legal if uci in CASTLES and squares[at(uci[:2])] in 'Kk'
    }


def published(p, fen, uci, why):
    """What FORMATS § 2 says of a wrong move; None in a field where two kings of a colour, or none,
    leave it open."""
    squares, side, rights, ep, clock, number = p
    if why == 'no text': return Transition(fen, -1.0, False, True)
    if why == 'null': after = squares, other(side), rights, '-', clock + 1, number + (side == 'b')
    elif why == 'empty square':
        target = squares[at(uci[2:4])]
        zeroing = target in 'Pp' or target != '.' and target != WHOLE[side](target)
        return Transition(
            write(
                (squares, side, rights, '-', 0 if zeroing else clock + 1, number + (side == 'b'))),
            -1.0, False, True)
    else: after = push(p, uci)
    if not after[0].count('K') == after[0].count('k') == 1: return after
    reward, _ = verdict(after, [])
    return Transition(write(after), reward, reward > 0.01, False)


def lived_through(fen, played):
    """Rewards of a game by `transition`, each with all that was played, and by a python-chess board
    that lived through it."""
    board, rewards = chess.Board(fen), []
    for n, uci in enumerate(played, 1):
        before = board.fen()
        board.push_uci(uci)
        rewards.append((transition(before, uci, ' '.join(played[:n])).reward,
                        0.5 if board.is_fivefold_repetition() else 0.001))
    return rewards


BACK_AND_FORTH = 'e1e2 e8f8 e2e1 f8e8'.split() * 5

def test_fivefold_after_a_pawn_move():
    rewards = lived_through('4k3/7p/8/8/8/8/6P1/4K3 b - - 0 1', ['h7h5', *BACK_AND_FORTH[:16]])
    assert rewards == [(0.001, 0.001)] * 16 + [(0.5, 0.5)]


def test_fivefold_after_an_offer():
    "The first position differs from its repetitions: there a pawn could be taken."
    rewards = lived_through('4k3/7p/8/6P1/8/8/8/4K3 b - - 0 1', ['h7h5', *BACK_AND_FORTH[:16]])
    assert rewards == [(0.001, 0.001)] * 17


def test_games():
    "Legal moves of random games with their history, wrong moves beside them, both conventions."
    done, wrong, asked = Counter(), Counter(), Counter()
    for game in count():
        rng, fen, play = random.Random(game), ROOTS[game % len(ROOTS)], (wander,
                                                                         waver)[game // len(ROOTS) %
                                                                                2]
        # elsewhere, rights that were lost on the way are a guess
        whole = fen == START_FEN or read(fen)[2] == '-'
        p, played, seen = read(fen), [], []
        for _ in range(60):
            fen, legal = write(p), list(moves(p))
            assert len(legal) == chess.Board(fen).legal_moves.count(), fen
            rare = special(p, legal)
            chosen = play(played, legal, rare, rng)
            for uci in dict.fromkeys(
                [rng.choice(legal), *rng.sample(rare, min(2, len(rare))), chosen]):
                told = whole and rng.random() < 0.8
                past, before = ' '.join([*played, uci][0 if told else -10:]), [*seen, key(p)] * told
                after, expected, why = rules(p, uci, before)
                assert transition(fen, uci, past) == expected, (fen, uci, past)
                done.update(kinds(p, uci, after, why) if why != 'fivefold' else [why])
                asked['legal'] += 1
                if rng.random() < 0.2:
                    assert transition(fen, uci, past, 'rookworld') == expected, (fen, uci, past)
                    asked['legal, published'] += 1
            uci, why = wrong_move(p, legal, rng)
            assert transition(fen, uci) == Transition(fen, -1.0, False, True), (fen, uci)
            said, expected = transition(fen, uci, convention='rookworld'), published(p, fen, uci, why)
            if isinstance(expected, Transition): assert said == expected, (fen, uci)
            else:
                assert [v for n, v in enumerate(read(said.fen))
                        if n != 3] == [v for n, v in enumerate(expected) if n != 3], (fen, uci)
            wrong[why] += 1
            after, expected, _ = rules(p, chosen, seen + [key(p)])
            seen, played, p = [*seen, key(p)], [*played, chosen], after
            if expected.terminated: break
        if asked['legal'] >= TRANSITIONS: break
    print(dict(asked), dict(wrong), *sorted(done.items(), key=lambda x: -x[1]), f'{game + 1} games',
          sep='\n')
    assert (SEEN - set(done), WRONG - set(wrong)) == (set(), set())
