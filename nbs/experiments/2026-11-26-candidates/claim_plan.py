"""The plan of the claim: what it says, where its measures lie, what is chosen by them and what follows from them. `claim_arms.py` makes the runs."""
import tomllib
from functools import cache, lru_cache
from pathlib import Path
import numpy as np
import pandas as pd
from rookworld_nb.files import write_at_once
from rookworld_nb.measure.measures import mcnemar
from rookworld_nb.report.report import holm

BASE = dict(model='nano', sha256='',   # of the weights of nano that the plan was made for; others are refused
            device='cpu',        # where the models are; `--device` of the command
            data='positions', learning_rates=[1e-4], batch_size=64,
            replay=0.25,         # share of a supervised batch that the starting model wrote itself, sampled at 1
            replay_rows=512,     # of such rows, made once and charged
            label_cost=0.007,    # CPU-seconds of one label, measured with `python claim_arms.py PLAN.toml OUT label_cost`
            nodes=1000, checkpoint=60.0, chain=100, temperature=0.7, threads=1,
            margin=0.03)         # a rate that loses more than this of a guard in its stage is chosen only if all do
STAGE = dict(seeds=[0], budgets=[20.0],
             arms='all',         # or 'chosen': S1, the best other S and the best R of the stage `after`; or their names, the R arm last
             rates='all',        # or 'best': that of the stage `tuned`
             tuned='tuning', after='screening',
             steps={},           # arm -> how many it makes, while its rate falls; the one budget is then what they should cost, and the seeds are its own
             exam='shipped',     # P prompts: the eval split of the data; or 'fresh': new ones, see `fresh_rows`; another word is the seed of others
             P=1000, A=0, special=0, chains=0, games=0)   # how many are measured
SCORED = ('legal_best', 'coherence')                              # what rates and arms are chosen by, on P
GUARDED = dict(best_move=1, top5_overlap=1, regret=-1)            # and what must not be lost there; the sign of better
PRIMARY = dict(legal_best='P', coherence='P', right_states='chain')
GUARDS = dict(best_move='P', top5_overlap='P', regret='P', exact='A random games', recall_illegal='A illegal', recall_mate='A mates')
COLUMN = dict(right_states='right')   # of a judged file, where it is not the name of the metric


def read_plan(file):
    plan = tomllib.loads(Path(file).read_text())
    for table, known in [(plan['base'], BASE), *((s, STAGE) for s in plan['stages'].values())]:
        if unknown := table.keys() - known.keys(): raise SystemExit(f'the plan has an unknown line {min(unknown)}')
    for name, how in plan['stages'].items():
        others = {seed for other, s in plan['stages'].items() if other != name for seed in s.get('seeds', STAGE['seeds'])}
        if 'steps' in how and (len(how.get('budgets', STAGE['budgets'])) > 1 or others & {*how.get('seeds', STAGE['seeds'])}): raise SystemExit(f'the stage {name} has steps, so it needs one budget, and seeds that no other stage has')
    return dict(base=BASE | plan['base'], stages={name: STAGE | s for name, s in plan['stages'].items()}, arms=dict(start=dict(kind='start')) | plan['arms'])


# ---- files

def run_folder(out, arm, rate, seed): return Path(out)/f'{arm}-{rate:g}-{seed}'


def measures(plan, stage, out, arm, rate, seed):
    "Budget -> the file of the measures there."
    budgets = sorted(plan['stages'][stage]['budgets'])
    return {b: run_folder(out, arm, rate, seed)/f'at-{stage}-{b:g}.csv' for b in (budgets if arm != 'start' else budgets[:1])}


def collected(out):
    "All measures so far, (rows,) of a frame; and OUT/arms.csv is that."
    parts = [pd.read_csv(f) for f in sorted(Path(out).glob('*/at-*.csv'))]
    if not parts: return pd.DataFrame(columns=['stage', 'arm', 'learning_rate', 'seed', 'budget', 'steps', 'weights', 'set', 'metric', 'value'])
    table = pd.concat(parts, ignore_index=True).sort_values(['stage', 'budget', 'arm', 'learning_rate', 'seed'], kind='stable')
    write_at_once(Path(out)/'arms.csv', lambda path: table.to_csv(path, index=False, lineterminator='\n'))
    return table


def keep(out, plan, file):
    """What another OUT needs to go on: FILE, the measures of the runs that have all budgets of a stage; and beside it as .parquet the answers that a verdict
    compares, of the stages with a fresh exam."""
    table, key = collected(out), ['stage', 'budget', 'arm', 'learning_rate', 'seed']
    def ended(r): return r.stage in plan['stages'] and all(f.exists() for f in measures(plan, r.stage, out, r.arm, r.learning_rate, r.seed).values())
    table = table[np.array([ended(r) for r in table.itertuples()], dtype=bool)]
    if Path(file).exists() and (lost := {*pd.read_csv(file)[key].itertuples(index=False, name=None)} - {*table[key].itertuples(index=False, name=None)}):
        raise SystemExit(f'{file} has measures that are not in {out} (stage, budget, arm, rate, seed: {min(lost)}); take them over with --known {file}')
    fresh, parts = [name for name, how in plan['stages'].items() if how['exam'] != 'shipped'], []
    for where in dict.fromkeys([*PRIMARY.values(), *GUARDS.values()]):
        columns = [COLUMN.get(m, m) for m, w in {**PRIMARY, **GUARDS}.items() if w == where]
        for f in sorted(f for name in fresh for end in ('', '-again') for f in Path(out).glob(f'*/judged-{name}-*-{where.replace(" ", "-")}{end}.csv')):
            if not at_file_of(f).exists(): continue
            known = pd.read_csv(f)
            parts.append(known[columns].astype('float32').assign(asked=known.asked, run=f.parent.name, file=f.name))
    if parts: write_at_once(Path(file).with_suffix('.parquet'), lambda path: pd.concat(parts, ignore_index=True).to_parquet(path, compression='zstd', index=False))
    write_at_once(file, lambda path: table.to_csv(path, index=False, lineterminator='\n'))


def at_file_of(judged): return judged.with_name('-'.join(['at', *judged.stem.split('-')[1:3]]) + '.csv')


def take_over(out, plan, table):
    "What `keep` wrote of an earlier OUT is not made again, if all budgets of a stage are there. States are not in there, so a run that lacks one begins again."
    answers = Path(table).with_suffix('.parquet')
    answers = dict(list(pd.read_parquet(answers).groupby(['run', 'file'], sort=False))) if answers.exists() else {}
    for (stage, arm, rate, seed), rows in pd.read_csv(table).groupby(['stage', 'arm', 'learning_rate', 'seed'], sort=False):
        if stage not in plan['stages']: continue
        files, folder = measures(plan, stage, out, arm, rate, seed), run_folder(out, arm, rate, seed)
        if arm != 'start' and set(rows.budget) != set(files): continue
        folder.mkdir(parents=True, exist_ok=True)
        for (budget, file), part in zip(files.items(), [rows] if arm == 'start' else [rows[rows.budget == b] for b in files]):
            if file.exists(): continue
            for (run, name), judged in answers.items():
                if run == folder.name and at_file_of(Path(name)).name == file.name:
                    write_at_once(folder/name, lambda path: judged.drop(columns=['run', 'file']).to_csv(path, index=False))
            write_at_once(file, lambda path: part.to_csv(path, index=False, lineterminator='\n'))


def read_steps(file):
    return {(r.arm, r.learning_rate, r.seed, r.budget): r.steps for r in pd.read_csv(file).itertuples()}


# ---- what a stage runs

def standing(table, stage, arm, rate, margin):
    "How good a rate of an arm is in a stage, to be compared: are its guards kept, then the mean of `SCORED`; else how little is lost. At the largest budget."
    def mean(who):
        part = table[(table.stage == stage) & (table['set'] == 'P') & who]
        return part[part.budget == part.budget.max()].groupby('metric').value.mean()
    now, start = mean((table.arm == arm) & (table.learning_rate == rate)), mean(table.arm == 'start')
    if now.empty or start.empty: raise SystemExit(f'the stage {stage} has to be complete first: nothing of {"start" if start.empty else arm}')
    lost = max(sign*(start[m] - now[m]) for m, sign in GUARDED.items())
    return (1, sum(now[m] for m in SCORED)/len(SCORED)) if lost <= margin else (0, -lost)


def best_rate(table, stage, arm, base):
    "The rate with the highest standing; of equals the lowest."
    rates = sorted(table[(table.stage == stage) & (table.arm == arm)].learning_rate.unique().tolist())   # plain numbers: a state with others is not read again
    if rates != sorted(base['learning_rates']): raise SystemExit(f'the stage {stage} has to be complete first: {arm} has rates {rates}')
    return max(rates, key=lambda r: (standing(table, stage, arm, r, base['margin']), -r))


def check_complete(table, stage, plan):
    how = plan['stages'][stage]
    for arm in plan['arms']:
        has = table[(table.stage == stage) & (table.arm == arm) & (table['set'] == 'P') & ((table.budget == max(how['budgets'])) | (arm == 'start'))]
        if lacks := set(how['seeds'] if arm != 'start' else [0]) - set(has.seed): raise SystemExit(f'the stage {stage} has to be complete first: nothing of {arm} with seed {min(lacks)}')


def chosen(table, stage, plan):
    "S1, the best other S and the best R of a stage, which has to be complete; SystemExit where the stopping rule ends it."
    check_complete(table, stage, plan)
    def best(letter):
        arms = [a for a in plan['arms'] if a[0] == letter and a != 'S1']
        return max(arms, key=lambda a: standing(table, stage, a, best_rate(table, plan['stages'][stage]['tuned'], a, plan['base']), plan['base']['margin']))
    part = table[(table.stage == stage) & (table['set'] == 'P') & (table.budget == max(plan['stages'][stage]['budgets']))]
    means = part.groupby(['arm', 'metric']).value.mean().unstack()
    R, S = (means[means.index.str.startswith(letter)] for letter in 'RS')
    if not any(R[m].max() > S[m].max() for m in SCORED): raise SystemExit(f'the stopping rule: after {stage} no R arm is ahead of every S arm on {" or ".join(SCORED)}')
    return ['S1', best('S'), best('R')]


def named(plan, stage, table):
    "The arms of a stage."
    how = plan['stages'][stage]
    if how['arms'] == 'all': return [a for a in plan['arms'] if plan['arms'][a]['kind'] != 'start']
    return chosen(table, how['after'], plan) if how['arms'] == 'chosen' else how['arms']


def runs(plan, stage, out, arms=None, seeds=None):
    "(seed, its (arm, rate)) of a stage, in order: the start, then seed by seed."
    how, base, its = plan['stages'][stage], plan['base'], named(plan, stage, collected(out))
    yield 0, [('start', 0.0)]
    for seed in how['seeds'] if seeds is None else [s for s in how['seeds'] if s in seeds]:
        yield seed, [(arm, rate) for arm in its if not arms or arm in arms
                     for rate in (base['learning_rates'] if how['rates'] == 'all' else [best_rate(collected(out), how['tuned'], arm, base)])]


# ---- what follows

def judged_start(out, stage, budget, where, read=pd.read_csv):
    """Hash of what was asked -> answers of the start. More than one where two machines labelled new positions differently: `…-again.csv` has the start by the other labels.
    SystemExit where these are other prompts: then the same model is not as legal and as coherent on each."""
    file = run_folder(out, 'start', 0.0, 0)/f'judged-{stage}-{budget:g}-{where.replace(" ", "-")}.csv'
    first, *more = [read(f) for f in (file, file.with_stem(f'{file.stem}-again')) if f.exists()]
    for other in more:
        if not all(first[m].equals(other[m]) for m in SCORED): raise SystemExit(f'{file} and its -again are not about the same prompts')
    return {frame.asked[0]: frame for frame in (first, *more)}


def answers(out, stage, budget, arm, rate, seeds, metric, where, asked=None, read=pd.read_csv):
    """One value a prompt, (seeds, n). The start is the same for all seeds, judged by the labels of each. SystemExit where another thing was asked than `asked` knows:
    (set, seed) -> hash, which it learns, and set -> answers of the start, as `judged_start` gives them."""
    file, found = f'judged-{stage}-{budget:g}-{where.replace(" ", "-")}.csv', []
    for seed in seeds:
        if arm == 'start': found.append(asked[where][asked.get((where, seed), next(iter(asked[where])))]); continue
        folder = run_folder(out, arm, rate, seed)
        frame = read(folder/file)
        if asked is not None:
            known = {asked[where, seed]} if (where, seed) in asked else asked[where].keys()
            if frame.asked[0] not in known: raise SystemExit(f'{folder} was asked another exam than the rest in the set {where!r}: {frame.asked[0]}, not {" or ".join(known)}')
            asked[where, seed] = frame.asked[0]
        found.append(frame)
    return np.array([frame[COLUMN.get(metric, metric)].to_numpy(float) for frame in found])


@cache
def student(freedom): return np.sort(np.abs(np.random.default_rng(0).standard_t(freedom, 10**6)))


@lru_cache(8)
def resampled(k, n, resamples):
    "How often each of k seeds and each of n prompts is drawn, in blocks of 250 resamples: the same for all metrics of that shape."
    rng = np.random.default_rng(0)
    return [tuple(rng.multinomial(m, np.full(m, 1/m), 250).astype(np.uint16) for m in (k, n)) for _ in range(resamples//250)]


def paired(d, family=1, resamples=4000):
    """Mean of the differences (seeds, n), NaN where nothing was asked; a bootstrap over seeds and prompts gives the interval, 95 % for a whole family, and p.
    Of five seeds that differ a bootstrap is too sure, so Student's interval over their means (`t_low`, `t_high`, `t_p`) stands beside it."""
    known, d = ~np.isnan(d), np.nan_to_num(d)
    means = []
    for seeds, prompts in resampled(*d.shape, resamples):
        means.append(np.einsum('bn,bn->b', seeds @ d, prompts)/np.einsum('bn,bn->b', seeds @ known.astype(float), prompts))
    means = np.concatenate(means)
    low, high = np.quantile(means, [0.025/family, 1 - 0.025/family])
    p = min(1, 2*(1 + min((means <= 0).sum(), (means >= 0).sum()))/(1 + len(means))) if low == low else np.nan
    found = dict(difference=d.sum()/known.sum(), low=low, high=high, p=p, seeds_ahead=int((d.sum(1) > 0).sum()))
    if len(d) > 1:
        each = d.sum(1)/known.sum(1)
        error, center = each.std(ddof=1)/len(d)**0.5, each.mean()
        t = student(len(d) - 1)
        far = t[int(len(t)*(1 - 0.05/family))]*error
        found |= dict(t_low=center - far, t_high=center + far, t_p=1 - np.searchsorted(t*error, abs(center))/len(t) if error == error else np.nan)
    return found


def tosses(x, y):
    "McNemar's p, seed by seed, of shares."
    if not np.isin(np.nan_to_num([x, y]), (0, 1)).all(): return ''
    return ' '.join(f'{mcnemar(int((a > b).sum()), int((a < b).sum())):.2g}' for a, b in zip(x, y))


def verdict(plan, stage, out):
    """The best R arm against every S arm of a stage on the primaries, `holm` where the difference stands among all of them; and, outside of that family,
    on the guards, and against the start on all."""
    how, base, table, found, read = plan['stages'][stage], plan['base'], collected(out), [], cache(pd.read_csv)
    arms = named(plan, stage, table)
    rates, first = {a: best_rate(table, how['tuned'], a, base) for a in arms} | dict(start=0.0), min(how['budgets'])
    for arm, seed in [('start', 0), *((a, s) for a in arms for s in how['seeds'])]:
        for budget, file in measures(plan, stage, out, arm, rates[arm], seed).items():
            if not file.exists(): raise SystemExit(f'the stage {stage} has to be complete first: nothing of {arm} with seed {seed} at {budget:g}')
    asked = {where: judged_start(out, stage, first, where, read) for where in {**PRIMARY, **GUARDS}.values()}
    def values(budget, arm, metric, where): return answers(out, stage, first if arm == 'start' else budget, arm, rates[arm], how['seeds'], metric, where, asked, read)
    for budget in how['budgets']:
        pairs, guards = ([(m, w, arm) for m, w in which.items() for arm in arms[:-1]] for which in (PRIMARY, GUARDS))
        part = []
        for metric, where, arm in [*pairs, *guards, *((m, w, 'start') for m, w in {**PRIMARY, **GUARDS}.items())]:
            x, y = values(budget, arms[-1], metric, where), values(budget, arm, metric, where)
            part.append(dict(budget=budget, arm=arms[-1], against=arm, metric=metric) | paired(x - y, len(pairs) if (metric, where, arm) in pairs else 1) | dict(mcnemar=tosses(x, y)))
        part = pd.DataFrame(part)
        found.append(part.assign(holm=holm(part.p.where(part.index < len(pairs)))))
    found = pd.concat(found, ignore_index=True)
    write_at_once(Path(out)/f'verdict-{stage}.csv', lambda path: found.round(5).to_csv(path, index=False, lineterminator='\n'))
    return found


def conclusion(plan, stage, out, found):
    "Every condition of the claim, and whether a control ties: (what, of, value, held) of a frame; `held` is None where it was not run."
    how, table = plan['stages'][stage], collected(out)
    at, best, rows = found.set_index(['budget', 'against', 'metric']), found.arm[0], []
    first, last, controls = min(how['budgets']), max(how['budgets']), [a for a in found.against.unique() if a != 'start']
    rate = {a: best_rate(table, how['tuned'], a, plan['base']) for a in (best, *controls)}
    later = {name: max(s['budgets']) for name, s in plan['stages'].items() if s['arms'] == how['arms'] and max(s['budgets']) > last}
    def add(what, of, value, held): rows.append(dict(what=what, of=of, value=value, held=None if held is None else bool(held)))
    for metric in SCORED:
        for arm in controls:
            r, of = at.loc[last, arm, metric], f'{metric} against {arm}'
            add('three points ahead', of, r.difference, r.difference >= 0.03 and r.holm and r.low > 0 and r.t_low > 0 and r.seeds_ahead == len(how['seeds']))
            if first < last: add('the lead grows', of, r.difference - at.loc[first, arm, metric].difference, r.difference > at.loc[first, arm, metric].difference)
            for name, most in later.items():
                seeds = plan['stages'][name]['seeds']
                if not all(measures(plan, name, out, a, rate[a], s)[most].exists() for a in (best, arm) for s in seeds): add(f'and not less in {name}', of, float('nan'), None); continue
                then, now = (np.mean(answers(out, n, b, best, rate[best], seeds, metric, 'P') - answers(out, n, b, arm, rate[arm], seeds, metric, 'P')) for n, b in ((stage, last), (name, most)))
                add(f'and not less in {name}', of, now - then, now >= then)
    for metric in GUARDS:
        r, sign = at.loc[last, 'start', metric], GUARDED.get(metric, 1)
        worst = r.low if sign > 0 else -r.high
        add('no more than a point lost', metric, worst, worst > -0.01)
    plays = table[(table.stage == stage) & (table.metric == 'legal_half_moves')]
    if how['games']:
        ratio = plays[(plays.arm == best) & (plays.budget == last)].value.mean()/plays[plays.arm == 'start'].value.mean()
        add('self-play, times that of the start', best, ratio, ratio >= 1.5)
    def all_held(part): return False if any(r['held'] is False for r in part) else None if any(r['held'] is None for r in part) else True
    common = all_held([r for r in rows if ' against ' not in r['of']])
    each = [all_held([r for r in rows if r['of'].startswith(f'{m} against')]) for m in SCORED]
    claim = False if common is False or all(e is False for e in each) else True if common and True in each else None
    for arm in controls:
        sides = [at.loc[last, arm, m][['low', 'high']]*GUARDED.get(m, 1) for m in (*PRIMARY, *GUARDS)]
        add('ties or wins everywhere', arm, float('nan'), all(s.min() <= 0 for s in sides))
    if controls: add('THE CLAIM', f'{best} against {" and ".join(controls)}', float('nan'), claim)
    rows = pd.DataFrame(rows)
    write_at_once(Path(out)/f'conclusion-{stage}.csv', lambda path: rows.round(5).to_csv(path, index=False, lineterminator='\n'))
    return rows
