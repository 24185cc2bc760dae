"""Labels for `nano` in a few minutes of many cores: `python nano_card.py DIR --minutes 3.1 --processes 12`. Then run the `rookworld_pretrain` that it prints.

As many `rookworld_data` as there are processes label positions side by side, half of games and half of random play, 1,000 nodes each, until the minutes are over;
DIR/KIND-N/ keep the finished shards, and DIR/shipped has the shipped positions in pieces of the same size. Other folders in DIR are read too. The printed command
is the recipe of the embedded `nano` ([pretrain](../../run/09_pretrain.ipynb)) with these rows, for one GPU; it goes on from `nano`. `--small` rehearses it."""
import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
import pyarrow.parquet as pq
from rookworld_nb.config import PretrainConfig, command_line
from rookworld_nb.files import read_json
from rookworld_nb.run.targets import data_shards

HOUSE = Path(__file__).parents[3]


def label(given):
    "Every process labels positions of its own; what is finished when time is over is kept."
    env, jobs = os.environ | dict(PYTHONPATH=os.pathsep.join([str(HOUSE), os.environ.get('PYTHONPATH', '')])), []
    for i in range(given.processes):
        kind, name = (('games', 'games'), ('positions', 'random'))[i % 2]
        flags = ['--kind', kind, '--output', given.dir/f'{name}-{i}', '--positions', 8 if given.small else 10**6, '--nodes', 1000, '--shard_size', 4 if given.small else 2000, '--seed', given.seed + 100 + i, '--workers', 1]
        jobs.append(subprocess.Popen([sys.executable, '-c', 'import sys; from rookworld_nb.apps.cli import data_command; sys.exit(data_command())', *map(str, flags)],
                                     env=env, stdout=subprocess.DEVNULL, stderr=open(given.dir/f'labels-{i}.log', 'w'), start_new_session=True))
    until = time.monotonic() + 60*given.minutes
    while time.monotonic() < until and any(j.poll() is None for j in jobs): time.sleep(1)
    for j in jobs:
        if j.poll() is None: os.killpg(j.pid, signal.SIGKILL)


def split_shipped(folder):
    "The shipped positions, in pieces as large as the new ones, so that a block mixes them evenly."
    folder.mkdir(exist_ok=True)
    shipped = pq.read_table(data_shards('positions')[0])
    for i in range(0, len(shipped), 2500): pq.write_table(shipped.slice(i, 2500), folder/f'rows-{i//2500:05d}.parquet')


def recipe(given):
    "That of the embedded `nano`, with these rows."
    last = read_json(HOUSE/'rookworld_nb'/'assets'/'nano'/'pretrain.json', dict, [])['config']
    data = ','.join(str(d) for d in sorted(given.dir.iterdir()) if d.is_dir() and list(d.glob('*.parquet')))
    return PretrainConfig(**(last | dict(data=data, init='nano', output_dir='nano-next', seed=given.seed)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('dir', type=Path)
    parser.add_argument('--minutes', type=float, default=3.1)
    parser.add_argument('--processes', type=int, default=os.cpu_count())
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--small', action='store_true')
    given = parser.parse_args()
    given.dir.mkdir(parents=True, exist_ok=True)
    label(given)
    split_shipped(given.dir/'shipped')
    print(command_line(recipe(given), without=()))


if __name__ == '__main__': main()
