"""How many rows of `special_rows('mates')` a second, then and now? `python mates.py DIR` measures this package and DIR, a
checkout of 25a7301, by turns, eight seconds in a process each, and writes mates.csv."""
import csv
import os
import subprocess
import sys
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).resolve().parents[3]
CODE = '''
import time
from rookworld_nb.chess.synthetic import special_rows
rows, n = special_rows('mates', 3000, seed={seed}), 0
next(rows)
began, cpu = time.perf_counter(), time.process_time()
for _ in rows:
    n += 1
    if time.perf_counter() - began > 8: break
print(n/(time.perf_counter() - began), n/(time.process_time() - cpu))
'''


def measured(package, seed):
    "Rows a second, rows a CPU-second."
    said = subprocess.run([sys.executable, '-c', CODE.format(seed=seed)], cwd=package, env=os.environ | dict(PYTHONPATH=str(package)),
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    return [round(float(x), 1) for x in said.split()]


def main():
    builds = {'25 November': Path(sys.argv[1]).resolve(), 'now': ROOT}
    with (HERE/'mates.csv').open('w') as f:
        out = csv.writer(f, lineterminator='\n')
        out.writerow('build,repeat,rows_per_s,rows_per_cpu_s'.split(','))
        for repeat in range(5):
            for build in [*builds][::1 if repeat % 2 else -1]:
                out.writerow([build, repeat, *measured(builds[build], repeat)])


if __name__ == '__main__': main()
