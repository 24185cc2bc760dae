"""Which choices of a default run hold its guards? `python defaults_screen.py OUT RUN [RUN ...]` writes held_defaults_tried.csv.

Greedy answers of the last checkpoint of each run directory, and of the shipped model, to prompts that no exam asks: 5,000 new positions (labels by Stockfish, 1,000 nodes),
3,000 moves of random games, 1,000 illegal moves and 1,000 mates, all of the eval split. `--quick` asks 3,000 shipped positions of that split, 2,000 moves and 600 of each
other kind. Each prompt is compared with itself; bootstrap 95 % intervals over prompts. OUT keeps the questions and the answers."""
import argparse
import json
import re
from itertools import islice
from pathlib import Path
import pandas as pd
import torch
from rookworld_nb.chess.dataset import load_rows, policy_example
from rookworld_nb.chess.engine import EnginePool
from rookworld_nb.chess.positions import generate_positions, position_key
from rookworld_nb.chess.synthetic import generate_transitions, special_rows
from rookworld_nb.lm.loader import load_model
from rookworld_nb.measure.evaluate import judge_rows
from rookworld_nb.measure.measures import bootstrap
from claim_arms import LIMITS, fresh_fens, held_out

SHOWN = dict(P=['legal_best', 'coherence', 'best_move', 'top5_overlap', 'regret'], A=['exact', 'recall_legal'], illegal=['recall_illegal'], mates=['recall_mate'])


def positions(path, n=5000):
    "New labelled positions, in neither the shipped rows nor the exam of the claim; kept in a file."
    if not path.exists():
        known = {position_key(e.fen) for e in load_rows('positions', 0.0, 0, 'eval')} | {position_key(fen) for fen in fresh_fens(5000)}
        fens = list(islice((p.fen for p in generate_positions(10**7, 'screen') if held_out(p.fen) and position_key(p.fen) not in known), n))
        with EnginePool(1000, workers=1) as pool: path.write_text(json.dumps([(a.fen, a.moves, a.evals) for a in pool.analyse(fens)]))
    return [policy_example(fen, tuple(moves), tuple(evals)) for fen, moves, evals in json.loads(path.read_text())]


def kept(path, rows):
    "Rows of A as text, made once."
    if not path.exists(): path.write_text(''.join(e.prompt() + e.completion() + '\n' for e in rows))
    return load_rows(str(path), 1.0, 0, 'eval')[:]


def questions(out, quick):
    seed, moves, special = ('scr', 2000, 600) if quick else ('screen', 3000, 1000)
    made = {kind: (e for e in special_rows(kind, 2*special, seed, 'eval') if held_out(e.fen)) for kind in ('illegal', 'mates')}
    games = (e for e in generate_transitions(10**6, seed, 'eval', ordinary=1.0) if held_out(e.fen))
    return dict(P=load_rows('positions', 0.0, 0, 'eval', 3000)[:] if quick else positions(out/'screen-P.json'), A=kept(out/f'{seed}-games.txt', islice(games, moves)),
                **{kind: kept(out/f'{seed}-{kind}.txt', islice(rows, special)) for kind, rows in made.items()})


def answers(out, name, place, asked):
    path = out/f'screened-{name}.parquet'
    if not path.exists():
        model = load_model(place)
        pd.concat([judge_rows(*model, rows, limits=LIMITS).assign(set=s) for s, rows in asked.items()], ignore_index=True).to_parquet(path)
    return pd.read_parquet(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out', type=Path)
    parser.add_argument('runs', nargs='+', type=Path)
    parser.add_argument('--output', type=Path, default=Path(__file__).with_name('held_defaults_tried.csv'))
    parser.add_argument('--quick', action='store_true', help='fewer questions')
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    asked, rows = questions(given.out, given.quick), []
    start = answers(given.out, 'nano', 'nano', asked)
    for run in given.runs:
        last = max((run/'checkpoints').glob('step-*'), key=lambda p: int(re.search(r'\d+$', p.name)[0]))
        after = answers(given.out, run.name, last, asked)
        for s, metrics in SHOWN.items():
            for m in metrics:
                was, now = (d[d.set == s][m].to_numpy(float) for d in (start, after))
                known = ~pd.isna(was) & ~pd.isna(now)
                difference = (now - was)[known][:, None]
                (low,), (high,) = bootstrap(difference)
                rows.append(dict(run=run.name, set=s, metric=m, before=was[known].mean(), difference=difference.mean(), low=low, high=high, n=int(known.sum())))
        pd.DataFrame(rows).round(5).to_csv(given.output, index=False, lineterminator='\n')


if __name__ == '__main__': main()
