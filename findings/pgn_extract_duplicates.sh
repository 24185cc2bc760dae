#!/usr/bin/env bash
# pgn-extract 19.04 (Debian 12): -D (no duplicates) drops games that begin at another position, where the moves and the position they lead to are the same.
#
# Expected: games are duplicates when position and moves agree. Three puzzles with three boards (a queen, a rook, a knight to take on d2) are three.
# Seen: where a game began does not count: of three boards with the solution Kxd2 one is kept. The same holds for boards that differ in castling rights or clock only.
#   Where the positions still differ at the end, all are kept. Nothing is told with -s; the exit status is 0.
# Who meets it: whoever removes duplicates from puzzles or openings given by FEN before a split into training and test: rows are lost, those whose answers are alike first.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download --quiet=2 pgn-extract=19.04-1 2> /dev/null
dpkg -x pgn-extract_*.deb .
tool=$work/usr/games/pgn-extract
"$tool" --version 2>&1 < /dev/null | grep v19-04
puzzles() {  # name of a file, solution, boards
  local file=$1 solution=$2; shift 2
  for board in "$@"; do printf '[Event "%s"]\n[White "?"]\n[Black "?"]\n[Result "*"]\n[SetUp "1"]\n[FEN "%s"]\n\n%s *\n\n' "$file" "$board" "$solution"; done > "$file.pgn"
}
puzzles capture '1. Kxd2' '4k3/8/8/8/8/8/3q4/4K3 w - - 0 1' '4k3/8/8/8/8/8/3r4/4K3 w - - 0 1' '4k3/8/8/8/8/8/3n4/4K3 w - - 0 1'
puzzles rights '1. Ra2 Kd7' '4k3/8/8/8/8/8/8/R3K3 w - - 0 1' '4k3/8/8/8/8/8/8/R3K3 w Q - 0 1' '4k3/8/8/8/8/8/8/R3K3 w - - 60 80'
puzzles quiet '1. Kd2' '4k3/8/8/8/8/8/8/R3K3 w - - 0 1' '4k3/8/8/8/8/8/7P/4K3 w - - 0 1' '4k3/8/8/8/8/8/7P/R3K3 w - - 0 1'
found=""
for name in capture rights quiet; do
  all=$("$tool" -s "$name.pgn" | grep -c '^\[FEN'); kept=$("$tool" -s -D "$name.pgn" | grep -c '^\[FEN')
  echo "$name: $all different boards, $kept kept by -D"; found="$found $all/$kept"
done
[ "$found" = " 3/1 3/1 3/3" ] || { echo "the behaviour has changed:$found"; exit 1; }
# Output seen on 2026-11-27:
# pgn-extract v19-04
# capture: 3 different boards, 1 kept by -D
# rights: 3 different boards, 1 kept by -D
# quiet: 3 different boards, 3 kept by -D
