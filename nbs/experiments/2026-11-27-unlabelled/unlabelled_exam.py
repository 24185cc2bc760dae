"""What did runs of rookworld_train change? `python unlabelled_exam.py OUT.csv RUN [RUN ...] [--start nano]` asks the start and the last checkpoint of every run the same held-out prompts, greedily:
all probes, and with -n 150 also 3,000 shipped positions (P), 1,050 shipped moves and 450 illegal ones (A). A row of OUT.csv is a paired difference with its bootstrap 95 % interval over prompts."""
import argparse
from dataclasses import replace
from pathlib import Path
import pandas as pd
import torch
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.chess.synthetic import special_rows
from rookworld_nb.lm.loader import load_model
from rookworld_nb.measure.evaluate import compare, judge_rows
from rookworld_nb.measure.probes import PROBES, probe_rows

MEASURES = dict(A=['exact', 'fen_exact'], P=['coherence', 'legal_best', 'best_move', 'top5_overlap', 'eval_error'])


def rows(n):
    shipped = load_rows('positions', 0.25, 0, 'eval')
    found = [e for name in PROBES for e in probe_rows(name, n)]
    found += [replace(e, source='shipped') for kind, k in dict(P=20*n, A=7*n).items() for e in shipped.of_kind(kind)[:k]]
    return found + [replace(e, source='illegal, held out') for e in special_rows('illegal', 3*n, 'exam', 'eval')]


def answers(model, asked):
    judged = judge_rows(*load_model(model), asked, limits=dict(P=60, A=100))
    return judged.assign(colour='', phase='', **{'class': ''})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('out', type=Path)
    parser.add_argument('runs', nargs='+', type=Path)
    parser.add_argument('--start', default='nano')
    parser.add_argument('-n', type=int, default=150, help='rows of each source of the probes')
    told = parser.parse_args()
    torch.set_num_threads(1)
    asked, found = rows(told.n), []
    start = answers(told.start, asked)
    for run in told.runs:
        last = max((run/'checkpoints').glob('step-*'), key=lambda p: int(p.name.split('-')[1]))
        table = compare(start, answers(str(last), asked))
        wanted = [s.startswith('source:') and m in MEASURES.get(t, ()) for t, m, s in zip(table.task, table.metric, table.slice)]
        table = table[wanted]
        found.append(table.assign(run=run.name, slice=table.slice.str.removeprefix('source:')))
        columns = ['run', 'task', 'metric', 'slice', 'before', 'after', 'difference', 'low', 'high', 'n', 'p']
        pd.concat(found)[columns].round(5).to_csv(told.out, index=False, lineterminator='\n')
        print(run, last.name, flush=True)


if __name__ == '__main__': main()
