#!/usr/bin/env bash
# python-chess 1.11.2: in a PGN with the piece letters of another language, knights become pawns, and no error is noted.
#
# Expected: a game written with German letters (S for the knight, L for the bishop) is refused, or at least `game.errors` says that "Sf3" was not understood.
# Seen: read_game looks for moves anywhere in the text and takes the part of the word that it knows. "2. Sf3 Sf6" becomes "2. f3 f6", which is legal,
#   so the game goes on as another game. As long as these pawn moves happen to be legal, `errors` is empty, and whoever counts positions counts positions that nobody played.
# Who meets it: whoever builds positions from collections of several countries. Parsing word by word (board.parse_san) notices.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet chess==1.11.2
"$work/venv/bin/python" - <<'P'
import io
import chess
import chess.pgn

def read(moves):
    game = chess.pgn.read_game(io.StringIO(f'[Event "?"]\n[Result "*"]\n\n{moves} *\n'))
    return str(game.mainline_moves()), len(game.errors)

english, german = '1. d4 d5 2. Nf3 Nf6 3. c4 e6', '1. d4 d5 2. Sf3 Sf6 3. c4 e6'
for moves in (english, german): print(moves.ljust(30), '->', *read(moves), 'errors')
assert read(english) == (english, 0)
assert read(german) == ('1. d4 d5 2. f3 f6 3. c4 e6', 0), 'the behaviour has changed'
board = chess.Board()
for san in ('d4', 'd5'): board.push_san(san)
try: board.parse_san('Sf3')
except chess.InvalidMoveError as e: print('parse_san:', e)
else: raise AssertionError('parse_san takes it now')
P
# Output seen on 2026-11-27:
# 1. d4 d5 2. Nf3 Nf6 3. c4 e6   -> 1. d4 d5 2. Nf3 Nf6 3. c4 e6 0 errors
# 1. d4 d5 2. Sf3 Sf6 3. c4 e6   -> 1. d4 d5 2. f3 f6 3. c4 e6 0 errors
# parse_san: invalid san: 'Sf3'
