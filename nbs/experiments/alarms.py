"""Which legal moves of random games are taken for mates or for illegal ones? `python alarms.py OUT FILE` reads the answers that `claim_arms.py` left in OUT, and writes the table FILE."""
import sys
from pathlib import Path
import chess
import pandas as pd
from rookworld_nb.chess.tasks import parse_prompt

SAID = {'mate': ('1.0', '1', '0'), 'illegal': ('-1.0', '0', '1')}    # reward, terminated, truncated


def about(prompt):
    "The piece that moves, and does the move give check?"
    task = parse_prompt(prompt)
    board, move = chess.Board(task.fen), chess.Move.from_uci(task.uci)
    return board.piece_at(move.from_square).symbol().lower(), board.gives_check(move)


rows = []
for file in sorted(Path(sys.argv[1]).glob('*/judged-*-A-random-games.csv')):
    arm, _, seed = file.parent.name.replace('e-', 'e').split('-')
    answers = pd.read_csv(file)
    legal = answers[answers['class'] == 'legal']
    said, (piece, check) = legal.completion.str.rsplit('+', n=3).str[1:].map(tuple), zip(*legal.prompt.map(about))
    known = dict(arm=arm, seed=int(seed), placement=answers.fen_placement.mean(), legal=len(legal))
    for word, fields in SAID.items():
        taken = pd.DataFrame(dict(piece=piece, check=check))[(said == fields).to_numpy()]
        known |= {f'taken_for_{word}': len(taken), f'{word}_by_heavy_piece': int(taken.piece.isin(['q', 'r']).sum()), f'{word}_by_king': int((taken.piece == 'k').sum()), f'{word}_with_check': int(taken.check.sum())}
    rows.append(known)
pd.DataFrame(rows).round(5).to_csv(sys.argv[2], index=False, lineterminator='\n')
