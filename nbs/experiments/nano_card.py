"""`nano` in ten minutes of a card: `python nano_card.py labels DIR` on every core, then `python nano_card.py train DIR --minutes 8`.

`labels` starts a dozen `rookworld_data` side by side: positions of games and of random play, 1,000 nodes each, until its minutes are over; DIR/KIND-N/ keep
the finished shards, and DIR/shipped has the shipped positions in pieces of the same size. Other folders in DIR are read too. `train` continues the embedded `nano` by the recipe of its last evening ([pretrain](../run/05_pretrain.ipynb)) with batches of 512
and products in bfloat16. The schedule follows the clock: warm-up, plateau, and a fall to zero over the second half. Rows are made by every core while the
card trains. Mates are the rarest rows: most are taken from DIR/mates (`rookworld_data --kind mates`), half of them with the colours swapped.
DIR/out: model/ (float32), steps.csv, exam.csv, recipe.json; saved every minute. `--small` rehearses it on a CPU."""
import argparse, csv, json, multiprocessing, os, random, signal, subprocess, sys, time
from collections import deque
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch
import pyarrow.parquet as pq
import torch
from rookworld_nb.chess.dataset import env_example, load_rows
from rookworld_nb.config import PretrainConfig
from rookworld_nb.files import read_json, write_at_once
from rookworld_nb.lm.device import set_numbers
from rookworld_nb.lm.loader import load_model, save_model
from rookworld_nb.lm.tokenizer import load_tokenizer
from rookworld_nb.measure.evaluate import judge_rows, summarize
from rookworld_nb.run import targets
from rookworld_nb.run.pretrain import pretrain_optimizer
from rookworld_nb.run.targets import TokenRows, completion_loss, data_shards, tokenize

POOLED = 0.06    # share of the A rows that are mates out of DIR/mates; a hundredth more is made anew
HERE = Path(__file__).parent


def recipe(given):
    "That of the last evening, in batches of 512."
    last = read_json(HERE.parents[1]/'rookworld_nb'/'assets'/'nano'/'pretrain.json', dict, [])['config']
    data = ','.join(str(d) for d in sorted(given.dir.iterdir()) if d.is_dir() and d.name not in ('mates', 'out') and list(d.glob('*.parquet')))
    sizes = dict(batch_size=8, block_rows=64, workers=1) if given.small else dict(batch_size=512, block_rows=8192, workers=given.processes)
    return PretrainConfig(**(last | dict(data=data, init='nano', learning_rate=given.learning_rate, vector_learning_rate=given.learning_rate/8, move_learning_rate=given.learning_rate/8,
                                         warmup_steps=200, max_steps=10**6, decay_steps=0, seed=given.seed, threads=0) | sizes))


def labels(given):
    "Every process labels positions of its own; what is finished when time is over is kept."
    env, jobs = os.environ | dict(PYTHONPATH=os.pathsep.join([str(HERE.parents[1]), os.environ.get('PYTHONPATH', '')])), []
    (given.dir/'shipped').mkdir(exist_ok=True)
    shipped = pq.read_table(data_shards('positions')[0])
    for i in range(0, len(shipped), 2500): pq.write_table(shipped.slice(i, 2500), given.dir/'shipped'/f'rows-{i//2500:05d}.parquet')
    for i in range(given.processes):
        kind, out = ('games', 'positions')[i % 2], given.dir/f'{("games", "random")[i % 2]}-{i}'
        flags = ['--kind', kind, '--output', out, '--positions', 8 if given.small else 10**6, '--nodes', 1000, '--shard_size', 4 if given.small else 2000, '--seed', given.seed + 100 + i, '--workers', 1]
        jobs.append(subprocess.Popen([sys.executable, '-c', 'import sys; from rookworld_nb.apps.cli import data_command; sys.exit(data_command())', *map(str, flags)],
                                     env=env, stdout=subprocess.DEVNULL, stderr=open(given.dir/f'labels-{i}.log', 'w'), start_new_session=True))
    until = time.monotonic() + 60*given.minutes
    while time.monotonic() < until and any(j.poll() is None for j in jobs): time.sleep(1)
    for j in jobs:
        if j.poll() is None: os.killpg(j.pid, signal.SIGKILL)
    found = list(given.dir.glob('*-*/*.parquet'))
    print(f'{len(found)} shards in {given.dir}', flush=True)


def mirrored(e):
    "An A row with the colours swapped."
    move = targets._mirrored_move
    return env_example(targets._mirrored_fen(e.fen), move(e.task.uci), ' '.join(map(move, e.task.history.split()[:-1])), e.phase)


@cache
def pool(folder): return [e for s in data_shards(folder) for e in load_rows(s, 1.0, 0, 'train')[:]]


def block(kind, number, config, shards, folder):
    "Rows of one task as tokens; of A, most mates come from the pool."
    if kind == 'P' or not folder: return targets._make_block(kind, number, config, shards, 'chess')
    rng, tokenizer = random.Random(f'{config.seed} pool {number}'), load_tokenizer('chess')
    n = round(POOLED*config.block_rows)
    with patch.dict(targets._SPECIALS, mates=0.01): rows = targets._env_block(replace(config, block_rows=config.block_rows - n), list(shards), number)
    mates = [mirrored(e) if rng.random() < 0.5 else e for e in rng.choices(pool(folder), k=n)]
    rows += [e for e in mates if targets.split_of(e.fen) == 'train']
    rng.shuffle(rows)
    return TokenRows(tokenize(e, tokenizer) for e in rows)


class Blocks:
    "Blocks of both tasks, made ahead by all processes; each is read once."
    def __init__(self, config, shards, folder, processes):
        self.rest, self.numbers, self.waiting = (config, tuple(shards), folder), dict(P=0, A=0), dict(P=deque(), A=deque())
        self.pool, self.ahead = ProcessPoolExecutor(processes, multiprocessing.get_context('spawn'), targets._start_worker), processes
        self.size, self.left, self.rows, self.waited = config.batch_size, dict(P=deque(), A=deque()), dict(P=0, A=0), 0.0
        for _ in range(self.ahead):
            for kind in 'PA': self.ask(kind)

    def ask(self, kind):
        self.waiting[kind].append(self.pool.submit(block, kind, self.numbers[kind], *self.rest))
        self.numbers[kind] += 1

    def batch(self, kind):
        "The next rows of a task: whichever block is ready first."
        if not self.left[kind]:
            began, ready = time.monotonic(), None
            while ready is None:
                ready = next((f for f in self.waiting[kind] if f.done()), None)
                if ready is None: time.sleep(0.005)
            self.waited += time.monotonic() - began
            self.waiting[kind].remove(ready)
            self.ask(kind)
            made = ready.result()
            self.left[kind].extend((made, part) for part in torch.arange(len(made)).split(self.size))
        rows, these = self.left[kind].popleft()
        self.rows[kind] += len(these)
        return rows.batch(these)


def share_of_rate(spent, whole, step, warmup): return min((step + 1)/warmup, 1, max(1e-4, (whole - spent)/(whole/2)))


def train(given):
    began, out, device = time.monotonic(), given.dir/'out', 'cuda' if torch.cuda.is_available() else 'cpu'
    config = recipe(given)
    (out/'model').mkdir(parents=True, exist_ok=True)
    shards, folder = data_shards(config.data), str(given.dir/'mates') if list(given.dir.glob('mates/*.parquet')) else None
    blocks = Blocks(config, shards, folder, given.processes)
    torch.manual_seed(config.seed)
    model, tokenizer = load_model('nano', device)
    if device == 'cuda': set_numbers(model, 'bfloat16')
    model.train()
    optimizer = pretrain_optimizer(config, model, tokenizer)
    peaks, rows, whole, step, saved = [g['lr'] for g in optimizer.param_groups], [], 60*given.minutes, 0, time.monotonic()
    def fetch(step): return blocks.batch('PA'[step % 2]).to(device)
    def save():
        save_model(model, tokenizer, out/'model')
        with open(out/'steps.csv', 'w', newline='') as f:
            w = csv.DictWriter(f, ['step', 'task', 'loss', 'grad_norm', 'share', 'seconds', 'waited', 'policy_rows', 'env_rows'], lineterminator='\n')
            w.writeheader(), w.writerows(rows)
        about = dict(card=torch.cuda.get_device_name() if device == 'cuda' else 'none', torch=torch.__version__, steps=step, policy_rows=blocks.rows['P'], env_rows=blocks.rows['A'], seconds=round(time.monotonic() - began),
                     waited=round(blocks.waited, 1), shards=len(shards), mates=len(pool(folder)) if folder else 0, config=asdict(config))
        write_at_once(out/'recipe.json', json.dumps(about, indent=1) + '\n')
    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(fetch, 0)
        first = None
        while True:
            batch = coming.result()
            first = first or time.monotonic()
            spent = time.monotonic() - first
            if spent >= whole or given.small and step >= 6: break
            coming = ahead.submit(fetch, step + 1)
            kind, share = 'PA'[step % 2], share_of_rate(spent, whole, step, config.warmup_steps)
            for group, peak in zip(optimizer.param_groups, peaks): group['lr'] = peak*share
            loss = completion_loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
            optimizer.step()
            step += 1
            if step % 50 in (0, 1):      # one step of each task
                rows.append(dict(step=step, task=kind, loss=round(loss.item(), 5), grad_norm=round(norm.item(), 4), share=round(share, 4), seconds=round(spent, 1), waited=round(blocks.waited, 1), policy_rows=blocks.rows['P'], env_rows=blocks.rows['A']))
                if rows[-1]['loss'] != rows[-1]['loss']: raise SystemExit(f'the loss is not a number at step {step}')
                if step % 500 in (0, 1): print(rows[-1], flush=True)
            if time.monotonic() - saved > 60: save(); saved = time.monotonic()
    save()
    blocks.pool.shutdown(wait=False, cancel_futures=True)
    set_numbers(model, 'float32')
    model.eval()
    asked = load_rows('positions', 0.5, 0, 'eval', 8 if given.small else 1000)[:]
    table = summarize(judge_rows(model, tokenizer, asked))
    table.to_csv(out/'exam.csv', index=False)
    print(table[(table.slice == 'all') & table.metric.isin(['exact', 'legal_best', 'best_move', 'top5_overlap'])].to_string(), flush=True)
    os._exit(0)      # the processes that make rows end with this one


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=['labels', 'train'])
    parser.add_argument('dir', type=Path)
    parser.add_argument('--minutes', type=float, default=8.0)
    parser.add_argument('--processes', type=int, default=os.cpu_count())
    parser.add_argument('--learning_rate', type=float, default=0.015)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--small', action='store_true')
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    dict(labels=labels, train=train)[given.what](given)


if __name__ == '__main__': main()
