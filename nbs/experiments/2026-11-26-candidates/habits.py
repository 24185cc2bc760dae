"""Why is an answer to P not coherent, and how many values do its evaluations have? `python habits.py FILE.csv WORD=OUT …`: the runs of the stage long in each OUT, whose lines are marked with WORD."""
import sys
from pathlib import Path
import pandas as pd
from rookworld_nb.chess.tasks import parse_completion
from rookworld_nb.reward.coherence import score_by_rules


def habit(prompt, completion):
    "What keeps an answer from being coherent, and the number of its different evaluations as a share of all."
    try: evals = parse_completion(prompt, completion, strict=True).evals
    except ValueError: return dict(unreadable=1.)
    found = score_by_rules(prompt, completion)
    kind = 'coherent' if found.total == 1 else 'wrong_moves' if 'illegal' in found.reason else 'all_equal' if len(set(evals)) == 1 else 'not_its_best'
    return {kind: 1., 'values': len(set(evals))/len(evals)}


def habits(judged):
    "The means over the answers of a run, as a dict."
    rows = pd.DataFrame([habit(r.prompt, r.completion) for r in judged.itertuples()], columns=['coherent', 'unreadable', 'wrong_moves', 'all_equal', 'not_its_best', 'values'])
    return dict(coherence=judged.coherence.mean(), **rows.drop(columns='values').fillna(0).mean(), values=rows['values'].mean(), n=len(rows))


if __name__ == '__main__':
    if len(sys.argv) < 3 or {'-h', '--help'} & {*sys.argv}: sys.exit(__doc__)
    file, *outs = sys.argv[1:]
    found = {word: sorted(Path(out).glob('*/judged-long-*-P.csv')) for word, out in (o.split('=', 1) for o in outs)}
    rows = [dict(made=word, run=f.parent.name, **habits(pd.read_csv(f, keep_default_na=False, na_values={'coherence': ['']}))) for word, files in found.items() for f in files]
    pd.DataFrame(rows).round(5).to_csv(file, index=False, lineterminator='\n')
