"""Mates and illegal moves, each followed by its twin: in the same position another move of the same piece, which is legal and after which the game goes on."""
import random
import chess
from rookworld_nb.chess.dataset import env_example
from rookworld_nb.chess.synthetic import rare_moves
from rookworld_nb.chess.tasks import parse_prompt


def twin(row, rng):
    "None where no move goes on. Where the piece has none, one like it moves; else any."
    task = parse_prompt(row.prompt())
    board, origin = chess.Board(task.fen), chess.parse_square(task.uci[:2])
    def goes_on(move):
        board.push(move)
        over = board.is_game_over(claim_draw=False)
        board.pop()
        return not over
    legal, piece = [m for m in board.legal_moves if goes_on(m)], board.piece_type_at(origin)
    found = [m for m in legal if m.from_square == origin] or [m for m in legal if board.piece_type_at(m.from_square) == piece] or legal
    return env_example(task.fen, rng.choice(found).uci(), ' '.join(task.history.split()[:-1]), row.phase) if found else None


def rare_with_twins(seed):
    rng = random.Random(f'twins {seed}')
    for row in rare_moves(seed):
        yield row
        if other := twin(row, rng): yield other
