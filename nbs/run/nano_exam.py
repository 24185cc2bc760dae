"""What a model of the size of `nano` can do, line by line: `python nano_exam.py MODEL OUT.csv [LABELLED_DIRECTORY,...] [FILE_OF_PUBLISHED_ROWS]`.

Greedy, on positions of the eval split but the start position, which no training row has; the first moves of a game are the
exception. Labelled directories give fresh P positions (their eval split)."""
import sys
from itertools import islice
import numpy as np
import pandas as pd
import torch
from rookworld_nb.run.targets import data_shards
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.measure.evaluate import judge_policy, judge_rows, random_legal, summarize
from rookworld_nb.measure.measures import bootstrap
from rookworld_nb.lm.loader import load_model
from rookworld_nb.apps.play import self_play, summarize_play
from rookworld_nb.measure.suites import held_out, mate_example
from rookworld_nb.chess.synthetic import generate_transitions, special_rows
from rookworld_nb.chess.tasks import parse_completion

N = 3000


def fresh_policy_rows(directories, n):
    "P rows of the eval split, the same number from every directory."
    found = []
    for d in directories:
        rows = []
        for s in data_shards(d):
            rows += load_rows(s, 0.0, 0, 'eval')[:]
            if len(rows) >= n//len(directories): break
        found += rows[:n//len(directories)]
    return found


def unseen(rows, n):
    "The first `n` of some Examples whose positions no training row has."
    return list(islice((e for e in rows if held_out(e.fen)), n))


def questions(directories, published):
    "Name of a line -> its Examples and the metrics that count."
    policy = ['format_valid', 'legal_best', 'best_move', 'top5_overlap', 'regret', 'reward']
    yield 'A, shipped positions', unseen(load_rows('positions', 1.0, 0, 'eval')[:], N), ['fen_exact', 'exact', 'reward']
    yield 'A, random games', unseen(generate_transitions(2*N, 'exam', 'eval', ordinary=1.0), N), ['fen_exact', 'exact', 'reward']
    yield 'A, openings', unseen(special_rows('openings', 2*N, 'exam', 'eval'), N), ['fen_exact']
    yield 'A, first moves', list(special_rows('first_moves', 20, 'exam')), ['fen_exact']
    for kind, n, metric in (('mates', 1000, 'recall_mate'), ('illegal', N, 'recall_illegal'), ('draws', 900, 'recall_draw')):
        yield f'A, {kind}', unseen(special_rows(kind, n + n//5, 'exam', 'eval'), n), [metric, 'exact']
    yield 'P, shipped positions', load_rows('positions', 0.0, 0, 'eval', N)[:], policy
    if directories: yield 'P, fresh positions', fresh_policy_rows(directories, N), policy
    yield 'P, mate in one', [mate_example(e.fen) for e in special_rows('mates', 1000, 'exam', 'eval')], ['mate_in_one']
    if published: yield 'P, published rows', load_rows(published)[:], policy


def repetitions(judged):
    "Share of the listed candidates that stand in their list already: mean over readable answers."
    moves = [parse_completion(r.prompt, r.completion).moves for r in judged[judged.format_valid == 1].itertuples()]
    shares = np.array([[1 - len(set(m))/len(m)] for m in moves if m])
    low, high = bootstrap(shares)
    return dict(metric='repeated_candidates', value=float(shares.mean()), low=float(low[0]), high=float(high[0]), n=len(shares))


def main(name, out, directories=(), published=None):
    model, tokenizer = load_model(name)
    found = []
    for line, rows, metrics in questions(directories, published):
        for who, judged in [('model', judge_rows(model, tokenizer, rows))] + [('random legal', judge_policy(random_legal, rows))]*(line[0] == 'P'):
            table = summarize(judged)
            table = table[(table.slice == 'all') & (table.task == line[0]) & table.metric.isin(metrics)]
            found += [dict(line=line, who=who, **{k: getattr(r, k) for k in ('metric', 'value', 'low', 'high', 'n')}) for r in table.itertuples()]
            if (line, who) == ('P, shipped positions', 'model'): found.append(dict(line=line, who=who, **repetitions(judged)))
            print(line, who, {r['metric']: round(r['value'], 4) for r in found if (r['line'], r['who']) == (line, who)}, flush=True)
    games = summarize_play(self_play(model, tokenizer, 200, seed=0, world='model'), 0)
    found += [dict(line='self-play', who='model', **{k: r[k] for k in ('metric', 'value', 'low', 'high', 'n')}) for r in games.to_dict('records')]
    print(games.to_string())
    pd.DataFrame(found).round(4).to_csv(out, index=False, lineterminator='\n')


if __name__ == '__main__':
    if len(sys.argv) < 3 or {'-h', '--help'} & {*sys.argv}: sys.exit(print(__doc__))
    torch.set_num_threads(1)
    main(sys.argv[1], sys.argv[2], *([sys.argv[3].split(',')] + sys.argv[4:5] if len(sys.argv) > 3 else []))
