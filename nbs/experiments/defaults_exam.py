"""What do runs of rookworld_train change in the exam of the claim? `python defaults_exam.py OUT RUN [RUN ...]` writes defaults_exam.csv.

OUT is where the questions are kept, made once; a RUN is a run directory, whose last checkpoint is asked. Greedy answers to the labelled sets of the claim's final
and its chains of positions, paired with those of the starting model: the differences, with bootstrap 95 % intervals over prompts. `--start` is that model,
which is asked the same, or a .parquet that has its answers (claim_measured.parquet: those of the `nano` of the claim). Stockfish labels the new positions."""
import argparse
import re
from pathlib import Path
import pandas as pd
import torch
from rookworld_nb.lm.loader import load_model
from rookworld_nb.measure.measures import bootstrap
from claim_arms import measured
from claim_plan import COLUMN, GUARDS, PRIMARY, read_plan


def row(start, run, metric, where, judged):
    column, file = COLUMN.get(metric, metric), f'-{where.replace(" ", "-")}'
    before = start[start.file.str.removesuffix('.csv').str.removesuffix('-again').str.endswith(file) & (start.asked == judged.asked[0])]
    if len(before) != len(judged): raise SystemExit(f'the start was not asked the set {where!r} with the hash {judged.asked[0]}')
    was, now = before[column].to_numpy(float), judged[column].to_numpy(float)
    known = ~pd.isna(was) & ~pd.isna(now)
    difference = (now - was)[known][:, None]
    (low,), (high,) = bootstrap(difference)
    return dict(run=run.name, set=where, metric=metric, before=was[known].mean(), difference=difference.mean(), low=low, high=high, n=int(known.sum()))


def answers(judged): return pd.concat([frame.assign(file=f'-{name.replace(" ", "-")}') for name, frame in judged.items()])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out', type=Path)
    parser.add_argument('runs', nargs='+', type=Path)
    parser.add_argument('--start', default='nano', help='the starting model, or a .parquet with its answers')
    parser.add_argument('--output', type=Path, default=Path(__file__).with_suffix('.csv'))
    asked = parser.parse_args()
    plan = read_plan(Path(__file__).with_name('claim_arms.toml'))
    stage, base = plan['stages']['final'] | dict(strange=0, games=0), plan['base'] | dict(published='')
    torch.set_num_threads(1)
    start = pd.read_parquet(asked.start).query('run == "start-0-0"') if asked.start.endswith('.parquet') else answers(measured(*load_model(asked.start), stage, base, asked.out)[1])
    rows = []
    for run in asked.runs:
        last = max((run/'checkpoints').glob('step-*'), key=lambda p: int(re.search(r'\d+$', p.name)[0]))
        judged = measured(*load_model(last), stage, base, asked.out)[1]
        rows += [row(start, run, metric, where, judged[where]) for metric, where in {**PRIMARY, **GUARDS}.items()]
        pd.DataFrame(rows).round(5).to_csv(asked.output, index=False, lineterminator='\n')
        print(f'{run}: {last.name}', flush=True)


if __name__ == '__main__': main()     # the engine's processes begin by importing this file
