#!/usr/bin/env bash
# python-chess 1.11.2: best moves written into an EPD line by Board.epd(bm=[...]) stand in the order of the alphabet, not in the order given.
#
# Expected: the operands keep their order, as those of pv do: a list of candidates, best first, comes back best first.
# Seen: bm and am are sorted as text (capitals first, so pieces before pawns). The EPD standard asks for this, the call does not say so, and set_epd then gives another list:
#   its first move is the best one only by chance. Here e4, the best of five, comes back as the last.
# Who meets it: whoever keeps rows of labelled positions in EPD and takes bm[0] as the target: wrong labels, all of them legal and all of them among the best five.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet chess==1.11.2
"$work/venv/bin/python" - <<'P'
import chess

board = chess.Board()
ranked = [board.parse_san(san) for san in ('e4', 'd4', 'Nf3', 'c4', 'Nc3')]
lines = {name: board.epd(**{name: ranked}) for name in ('bm', 'am')}
back = {name: [board.san(m) for m in chess.Board().set_epd(line)[name]] for name, line in lines.items()}
print('given'.ljust(6), [board.san(m) for m in ranked])
for name, sans in back.items(): print(name.ljust(6), sans)
variation = [chess.Move.from_uci(u) for u in ('e2e4', 'e7e5', 'b1c3')]
kept = chess.Board().set_epd(board.epd(pv=variation))['pv'] == variation
print('pv kept', kept)
assert kept and all(sans == ['Nc3', 'Nf3', 'c4', 'd4', 'e4'] for sans in back.values()), f'the behaviour has changed: {back}'
P
# Output seen on 2026-11-27:
# given  ['e4', 'd4', 'Nf3', 'c4', 'Nc3']
# bm     ['Nc3', 'Nf3', 'c4', 'd4', 'e4']
# am     ['Nc3', 'Nf3', 'c4', 'd4', 'e4']
# pv kept True
