"""Which candidates of an answer to P are wrong, and where? `python wrong_moves.py FILE.csv NAME=ANSWERS.csv …`: ANSWERS.csv is a judged-…-P.csv of claim_arms.py, NAME stands for it in FILE.csv."""
import sys
from collections import Counter
import chess
import pandas as pd
from rookworld_nb.chess.quick_rules import legal_moves
from rookworld_nb.chess.tasks import parse_completion, parse_prompt

NARROWER = (5, 10, 20, 30)     # limits of groups of positions, by the number of legal moves


def kind(board, uci, named):
    "What is wrong with a candidate, or None."
    move = chess.Move.from_uci(uci)
    if uci in named: return 'named before'
    if move in board.legal_moves: return None
    if move in board.pseudo_legal_moves: return 'does not end the check' if board.is_check() else 'pinned, or the king walks into check'
    return 'the piece cannot go there' if board.color_at(move.from_square) == board.turn else 'no own piece there'


def found(answers):
    "Wrong candidates by kind, and coherent answers by the number of legal moves: (what, value, n) each."
    kinds, coherent, n = Counter(), {}, 0
    for r in answers.itertuples():
        fen = parse_prompt(r.prompt).fen
        coherent.setdefault(sum(len(legal_moves(fen)) >= k for k in NARROWER), []).append(r.coherence == 1)
        try: moves = parse_completion(r.prompt, r.completion, strict=True).moves
        except ValueError: continue
        n, board = n + len(moves), chess.Board(fen)
        kinds.update(k for i, m in enumerate(moves) if (k := kind(board, m, moves[:i])))
    yield from ((k, c/n, n) for k, c in sorted(kinds.items()))
    yield from ((f'coherent, {[1, *NARROWER][i]}{f" to {NARROWER[i] - 1}" if i < len(NARROWER) else " or more"} legal moves', sum(some)/len(some), len(some)) for i, some in sorted(coherent.items()))


if __name__ == '__main__':
    if len(sys.argv) < 3 or {'-h', '--help'} & {*sys.argv}: sys.exit(__doc__)
    file, *named = sys.argv[1:]
    rows = [dict(name=name, what=what, value=round(value, 5), n=n) for name, answers in (x.split('=', 1) for x in named)
            for what, value, n in found(pd.read_csv(answers, keep_default_na=False, na_values={'coherence': ['']}))]
    pd.DataFrame(rows).to_csv(file, index=False, lineterminator='\n')
