"""How long do the three products of a linear layer take, by PyTorch's own library (MKL) and by oneDNN?

    python products.py    # writes products.csv: milliseconds of a layer's product, and of its two gradients

Each processor setting is a process of its own: what the processor has, and oneDNN with AVX2 only (MKL has no such switch for AMD)."""
import argparse
import csv
import os
import subprocess
import sys
import time
from pathlib import Path

WIDTHS, ROWS, LAYERS = (192, 768), (2, 8, 64, 512), 12   # as many layers as keep the weights out of the cache


def best(work, at_least=0.3):
    "Milliseconds of the fastest of some runs."
    work()
    took, began = [], time.perf_counter()
    while time.perf_counter() - began < at_least or len(took) < 3:
        t = time.perf_counter()
        work()
        took.append(time.perf_counter() - t)
    return 1e3*min(took)


def measure(threads, isa):
    import torch
    from rookworld_nb.lm.products import _times
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    ways = {'MKL': (torch.nn.functional.linear, lambda g, w: g @ w, lambda g, x: g.T @ x),
            'oneDNN': (_times, lambda g, w: _times(g, w.T), lambda g, x: _times(g.T, x.T))}
    with torch.no_grad():
        for C in WIDTHS:
            weights = [torch.randn(4*C, C) for _ in range(LAYERS)]
            for M in ROWS:
                x, g = torch.randn(M, C), torch.randn(M, 4*C)
                for way, (forward, of_x, of_w) in ways.items():
                    for product, work in dict(y=lambda: [forward(x, w) for w in weights], x=lambda: [of_x(g, w) for w in weights], weight=lambda: [of_w(g, x) for _ in weights]).items():
                        yield [isa, threads, C, M, way, product, f'{best(work)/LAYERS:.4f}']


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--output', type=Path, default=Path(__file__).with_suffix('.csv'))
    parser.add_argument('--one', nargs=2, help=argparse.SUPPRESS)   # threads isa
    a = parser.parse_args()
    if a.one: return csv.writer(sys.stdout, lineterminator='\n').writerows(measure(int(a.one[0]), a.one[1]))
    rows = 'isa,threads,width,rows,library,product,ms\n'
    for isa in ('all', 'AVX2'):
        for threads in (1, 2):
            words = dict(OMP_NUM_THREADS=str(threads)) | (dict(ONEDNN_MAX_CPU_ISA=isa) if isa != 'all' else {})
            rows += subprocess.run([sys.executable, __file__, '--one', str(threads), isa], env=os.environ | words, stdout=subprocess.PIPE, text=True, check=True).stdout
    a.output.write_text(rows)


if __name__ == '__main__': main()
