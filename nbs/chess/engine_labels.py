"""How far are the labels of other engines from Stockfish's? Quiet positions, through `EnginePool`, as `rookworld_data` asks.

    python engine_labels.py stockfish fairy-stockfish "gnuchess -u" /path/to/sunfish-uci

Each argument is a command that starts a UCI engine. One row an engine goes to engine_labels.csv, which is written anew. An engine that cannot label has its sentence there."""
import argparse
import csv
import os
import shlex
import shutil
import statistics
import tempfile
import time
import warnings
from itertools import islice
from pathlib import Path
import chess
from rookworld_nb.chess.engine import EngineLost, EnginePool, played_positions, win_probability

COLUMNS = 'engine,nodes,picks,lines,mates,best_off,best_within,moves_off,moves_within,seconds,sentence'.split(',')
TRUTH = 100_000   # nodes of Stockfish
NEAR = 0.1        # win probability


def quiet(n=50):
    "Positions of Stockfish's games with itself: nobody is in check, the game is open, and none of the five best moves takes, promotes or gives check."
    with EnginePool() as pool:
        def calm(found):
            board, moves = chess.Board(found.fen), [chess.Move.from_uci(m) for m in found.moves]
            return not board.is_check() and len(moves) == 5 and abs(found.evals[0]) < 3 and not any(board.is_capture(m) or board.gives_check(m) or m.promotion for m in moves)
        return [p.fen for p, found in islice(((p, a) for p, a in played_positions(pool.analyse, seed=7) if calm(a) and p.phase != 'opening'), n)]


def measured(program, name, fens, truth, pool_of_truth):
    "One row."
    begun = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as told, EnginePool(path=program, timeout=20) as pool:
            warnings.simplefilter('always')
            found, s = pool.analyse(fens), pool.skills
    except EngineLost as error: return dict(engine=name, sentence=str(error).replace(program, name))
    seconds = (time.perf_counter() - begun)/len(fens)
    best = [abs(win_probability(a.evals[0]) - win_probability(b.evals[0])) for a, b in zip(found, truth)]
    pairs = [(a.fen, m) for a in found for m in a.moves]
    values = [e for a in found for e in a.evals]
    moves = [abs(win_probability(x) - win_probability(y)) for x, y in zip(values, pool_of_truth.values(pairs))]
    def share(off): return round(sum(x <= NEAR for x in off)/len(off), 3)
    return dict(engine=s.name, nodes=s.nodes, picks=s.picks, lines=s.lines, mates=s.mates, best_off=round(statistics.mean(best), 3), best_within=share(best), moves_off=round(statistics.mean(moves), 3),
                moves_within=share(moves), seconds=round(seconds, 2), sentence='; '.join(str(w.message).replace(program, name) for w in told))


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('engines', nargs='+')
    parser.add_argument('--positions', type=int, default=50)
    parser.add_argument('--output', type=Path, default=Path(__file__).resolve().with_suffix('.csv'))
    args = parser.parse_args()
    fens = quiet(args.positions)
    with tempfile.TemporaryDirectory() as place, EnginePool(TRUTH) as pool, open(args.output, 'w', encoding='utf-8', newline='') as f:
        truth = pool.analyse(fens)
        (table := csv.DictWriter(f, COLUMNS, lineterminator='\n')).writeheader()
        for command in args.engines:
            words = shlex.split(command)
            exe = shutil.which(words[0]) or shutil.which(f'/usr/games/{words[0]}') or parser.error(f'{words[0]} is not installed')
            (program := Path(place)/'engine').write_text(f'#!/bin/sh\nexec {shlex.join([exe, *words[1:]])}\n', encoding='utf-8')
            program.chmod(0o755)
            table.writerow(measured(str(program), os.path.basename(words[0]), fens, truth, pool))
            f.flush()
