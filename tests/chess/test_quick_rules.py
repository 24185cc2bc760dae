"""What `quick_rules` says without a board is what python-chess says with one: games, wild boards,
chessmen where none can stand. QUICK_MOVES=10000000 for a long night."""
import os
import random
from collections import Counter
from itertools import product
import chess
from rookworld_nb.chess.board import START_FEN, transition
from rookworld_nb.chess.quick_rules import legal_among, legal_moves, quick_transition

# questions about legality; one in thirty is about a transition
QUICK_MOVES = int(os.environ.get('QUICK_MOVES', 100_000))
WORDS = [a + b for a, b in product(chess.SQUARE_NAMES, repeat=2)]
WORDS += [
    a + b + p for a, b, p in product(chess.SQUARE_NAMES, chess.SQUARE_NAMES, 'qn') if b[1] in '18'
] + ['', '0000', 'P@e4', 'e2e9', 'E2E4', 'e7e8k', 'e7e8Q', 'e2e4 ', 'e1', 'ä1a2']


def game(rng):
    """Where a random game stands, or one without most of its men; en-passant squares after every
    double push."""
    board = chess.Board()
    if rng.random() < 0.3:
        for square in rng.sample(chess.SQUARES, 50):
            if board.piece_type_at(square) != chess.KING: board.remove_piece_at(square)
    for _ in range(rng.randrange(150)):
        if not (moves := [*board.legal_moves]): break
        board.push(rng.choice(moves))
    return board.fen(en_passant='fen')


def wild(rng):
    "Men anywhere."
    board, places = chess.BaseBoard(None), rng.sample(chess.SQUARES, rng.choice([1, 2, 3, 5, 8, 16, 40]))
    for symbol, square in zip(['K', 'k', *rng.choices('PPNBRQppnbrq'*12 + 'Kk', k=40)], places):
        board.set_piece_at(square, chess.Piece.from_symbol(symbol))
    return ' '.join([board.board_fen(), *tail(rng)])


def castles(rng):
    "Kings and rooks at home, or nearly, and a few men about them."
    board = chess.BaseBoard('r3k2r/8/8/8/8/8/8/R3K2R')
    for square in rng.sample(chess.SQUARES, rng.randint(0, 6)):
        board.set_piece_at(square,
                           rng.choice([None,
                                       chess.Piece.from_symbol(rng.choice('PNBRQpnbrq'))]))
    return ' '.join([board.board_fen(), *tail(rng)])


def pawns(rng):
    """Pawns that meet in the middle or stand before the last row, a king and a rook in line with
    them."""
    board = chess.BaseBoard(None)
    for symbol, rows in (('P', (1, 3, 4, 6)), ('p', (1, 3, 4, 6)), ('P', (4, )), ('p', (3, )),
                         ('r', range(8)), ('R', range(8)), ('b', range(8)), ('K', range(8)),
                         ('k', range(8))):
        for _ in range(2 if symbol in 'Pp' else 1):
            board.set_piece_at(chess.square(rng.randrange(8), rng.choice(rows)),
                               chess.Piece.from_symbol(symbol))
    return ' '.join([board.board_fen(), *tail(rng)])


def tail(rng):
    return rng.choice('wb'), rng.choice(['-', 'KQkq', 'KQ', 'kq', 'K', 'q', 'Kq',
                                         'Qk']), rng.choice([
                                             '-', rng.choice('abcdefgh') + rng.choice('36')
                                         ]), rng.choice(['0', '7', '98', '148', '149',
                                                         '150']), rng.choice(['0', '1', '40'])


KINDS = [game, wild, castles, pawns]


def positions(seed):
    rng = random.Random(seed)
    while True: yield from ((kind, rng, kind(rng)) for kind in KINDS)


def test_legal():
    asked, told = 0, Counter()
    for kind, rng, fen in positions(0):
        legal = {m.uci() for m in chess.Board(fen).legal_moves}
        words = WORDS if rng.random() < 0.1 else [*rng.sample(WORDS, 300), *sorted(legal)]
        found = legal_among(fen, words)
        assert found == legal & {*words}, (fen, found ^ (legal & {*words}))
        told.update([(kind.__name__, bool(legal))])
        if (asked := asked + len(words)) > QUICK_MOVES: break
    assert min(told[kind.__name__, True] for kind in KINDS) > 3, told


def test_transition():
    asked, known = 0, Counter()
    for kind, rng, fen in positions(1):
        legal = sorted(m.uci() for m in chess.Board(fen).legal_moves)
        for uci in [*legal, 'e1g1', 'e1h1', 'e8c8', 'e8a8', *rng.sample(WORDS, 10)]:
            past = rng.choice(
                ['', uci, 'a2a3 '*rng.randrange(18) + uci, 'g1f3 g8f6 f3g1 f6g8 '*4 + uci])
            found, true = quick_transition(fen, uci, past), transition(fen, uci, past)
            assert found is None or found == true, (fen, uci, past, found, true)
            known[kind.__name__,
                  'illegal' if true.truncated else 'over' if true.terminated else 'goes on',
                  found is not None] += 1
            asked += 1
        if asked > QUICK_MOVES / 30: break
    assert not any(known[kind.__name__, 'over', True]
                   for kind in KINDS) and all(known[kind.__name__, what, True] for kind in KINDS
                                              for what in ('illegal', 'goes on')), known


def test_fivefold_is_left_to_the_rules():
    "The sixteenth half-move of a dance ends the game, if the past is given."
    board, past = chess.Board(), []
    for uci in 'g1f3 g8f6 f3g1 f6g8'.split() * 4:
        fen, past = board.fen(), [*past, uci]
        assert quick_transition(fen, uci, ' '.join(past)) in (None, transition(fen, uci, ' '.join(past)))
        board.push_uci(uci)
    assert transition(fen, uci, ' '.join(past)).terminated and quick_transition(
        START_FEN, 'e2e4', 'e2e4').reward == 0.001
    assert legal_among(START_FEN, legal_moves(START_FEN)) == legal_moves(START_FEN)
