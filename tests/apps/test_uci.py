"""rookworld_uci as a chess program meets it: conversations, nonsense, sudden ends. UCI_LINES=10000
UCI_GAMES=200 for a long night."""
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from unittest.mock import patch
import chess
import chess.engine
import pytest
from rookworld_nb.config import UciConfig
from rookworld_nb.apps.uci import LONGEST, Engine, Search, serve

LINES = int(os.environ.get('UCI_LINES', 400))   # of nonsense
GAMES = int(os.environ.get('UCI_GAMES', 2))     # through python-chess
SECONDS = 300                                   # that anything may take on a busy machine
PLIES = 6 if GAMES == 2 else 200                # half-moves of one, at most
REAL = [
    sys.executable, '-c',
    'import sys; from rookworld_nb.apps.cli import uci_command as command; sys.exit(command())'
]
FAKE = [sys.executable, '-c', 'from test_uci import serve_fake; serve_fake()']
ENVIRON = ({k: v
            for k, v in os.environ.items() if not k.startswith('ROOKWORLD_')}
           | {'OMP_NUM_THREADS': '1', 'HF_HUB_OFFLINE': '1'})
UCI = [
    re.compile(p) for p in
    (r'id (name|author) \S.*',
     r'option name \S+ type (check default (true|false)|spin default \d+ min \d+ max \d+|string default \S.*)',
     'uciok', 'readyok', r'info string \S.*', r'info depth 0 score (mate 0|cp 0)',
     r'info depth 1 score cp 0 pv [a-h1-8qrbn]+',
     r'info depth \d+ multipv \d score (cp|mate) -?\d+ nodes \d+ time \d+ pv( [a-h][1-8][a-h][1-8][qrbn]?)+',
     r'bestmove (\(none\)|[a-h][1-8][a-h][1-8][qrbn]?( ponder [a-h][1-8][a-h][1-8][qrbn]?)?)')
]


class Fake:
    "Plays any legal move, at once; every now and then it breaks, or is slow."
    def __init__(self): self.config, self.stopped, self.helped = None, lambda: False, ''

    def look(self, _, board, only=(), draw=0, depth=1):
        board, line = board.copy(), ()
        for n in range(min(depth, 4)):
            moves = only if only and not line else sorted(m.uci() for m in board.legal_moves)
            if not moves: return
            line = (*line, random.Random(f'{draw} {n}').choice(moves))
            board.push_uci(line[-1])
            self.moves, self.refused, self.text = ((line[0], 0.25),), (), ''
            self.stopped()
            if draw % 7 == 6: raise RuntimeError('broken\nhere')
            yield self, line


class Slow(Fake):
    def look(self, *how):
        while not self.stopped(): time.sleep(0.001)
        yield from super().look(*how)


def serve_fake():
    def load(config, log):
        print('this is printed by somebody else')
        player = Slow() if config.seed == 1 else Fake()
        if config.seed == 2: time.sleep(1000)
        return player, player.look
    serve(UciConfig(seed=int(os.environ.get('FAKE', 0))), load)


def proper(lines):
    for line in lines: assert any(p.fullmatch(line) for p in UCI), line
    return lines


class Talk:
    "A conversation with an engine in a process of its own."
    def __init__(self, command=FAKE, **environ):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, bufsize=1,
                                        cwd=os.path.dirname(__file__), env=ENVIRON | environ)
        self.said = []

    def say(self, *lines):
        for line in lines: self.process.stdin.write(line + '\n')
        self.process.stdin.flush()

    def until(self, start):
        "What is said up to a line that begins so."
        found = []
        while not found or not found[-1].startswith(start):
            line = self.process.stdout.readline()
            assert line, (found, self.process.stderr.read())
            found.append(line.rstrip('\n'))
        self.said += found
        return found

    def end(self, seconds=SECONDS):
        "Wait for the end: exit code, standard error."
        out, err = self.process.communicate(timeout=seconds)
        proper([*self.said, *out.splitlines()])
        return self.process.returncode, out, err


def test_conversation():
    talk = Talk()
    talk.say('uci')
    assert talk.until('uciok')[0].startswith('id name rookworld_nb')
    talk.say('debug on', 'isready', 'ucinewgame', 'position startpos moves e2e4',
             'go movetime 1000')
    move = talk.until('bestmove')[-1].split()[1]
    board = chess.Board()
    board.push_uci('e2e4')
    assert chess.Move.from_uci(move) in board.legal_moves
    talk.say('go infinite', 'isready')
    assert not any(s.startswith('bestmove') for s in talk.until('readyok'))
    talk.say('stop')
    talk.until('bestmove')
    talk.say('position startpos moves f2f3 e7e5 g2g4 d8h4', 'go')
    assert talk.until('bestmove')[-2:] == ['info depth 0 score mate 0', 'bestmove (none)']
    talk.say('quit')
    code, out, err = talk.end()
    assert (code, out, err) == (0, '', 'this is printed by somebody else\n')


@pytest.mark.parametrize('how', ['quit', 'end of input', 'terminated', 'nobody reads'])
def test_the_end_comes_in_the_middle_of_a_search(how):
    talk = Talk(FAKE=' 1')   # slow: thinks until it is stopped
    talk.say('uci', 'isready')
    talk.until('readyok')
    talk.say('go movetime 1' if how == 'end of input' else 'go infinite', 'isready')
    if how != 'end of input': talk.until('readyok')
    start = time.monotonic()
    if how == 'quit': talk.say('quit')
    if how == 'end of input': talk.process.stdin.close(); talk.process.stdin = None
    if how == 'terminated': talk.process.terminate()
    if how == 'nobody reads':
        talk.process.stdout.close()
        talk.say('isready', 'isready')
        assert talk.process.wait(SECONDS) == 0
        return
    code, out, err = talk.end()
    assert time.monotonic() < start + 60 and 'Traceback' not in err
    # the command itself says 130: see below
    assert code == (-signal.SIGTERM if how == 'terminated' else 0)
    assert ('bestmove' in out) == (how == 'end of input')


def test_quit_while_the_weights_are_read():
    talk = Talk(FAKE='2')
    talk.say('uci', 'isready')
    talk.until('uciok')
    time.sleep(0.3)
    talk.say('quit')
    code, out, err = talk.end()
    assert code == 0 and 'Traceback' not in err


def test_interrupts():
    talk = Talk(FAKE='1')
    talk.say('isready', 'go infinite', 'isready')
    talk.until('readyok')
    talk.until('readyok')
    talk.process.send_signal(signal.SIGINT)      # ends the search
    talk.until('bestmove')
    talk.say('isready')
    talk.until('readyok')
    talk.process.send_signal(signal.SIGINT)      # ends the engine
    assert talk.end()[0] != 0


def test_bad_model_is_one_line():
    talk = Talk([*REAL, '--model', 'nowhere'])
    talk.say('uci', 'isready')
    code, out, err = talk.end()
    assert code == 2 and err.startswith("rookworld_uci: no model 'nowhere'") and err.count(
        '\n') == 1


# the words of the protocol

def told(*lines):
    "What the engine says to some lines, and its board."
    said, player = [], Fake()
    engine = Engine(UciConfig(), said.append, lambda config, log: (player, player.look))
    for line in lines: engine.hear(line)
    engine.hang_up()
    engine.work()
    return proper(said), engine.board


@pytest.mark.parametrize('line', [
    'go', 'go depth 3', 'go nodes 100', 'go mate 2', 'go movetime 50',
    'go wtime 1000 btime 1000 winc 10 binc 10 movestogo 3', 'go infinite', 'go ponder',
    'go ponder wtime 1000 btime 1000', 'go searchmoves e2e4 d2d4 depth 2', '\tgo', '  go \r',
    'joho go', 'go joho', 'go  depth  1'
])
def test_every_go_gets_one_answer(line):
    said, board = told(line)
    assert len([s for s in said if s.startswith('bestmove')]) == 1 and chess.Move.from_uci(
        said[-1].split()[1]) in board.legal_moves
    if 'searchmoves' in line: assert said[-1].split()[1] in ('e2e4', 'd2d4')


@pytest.mark.parametrize('line', [
    'stop', 'ponderhit', 'ucinewgame', 'register later', 'register name a code b', 'debug on',
    'debug off', 'position startpos', 'joho debug on', 'position startpos moves',
    'setoption name Seed value 3', '  setoption  name  top k  value  4',
    'setoption name LogFile value <empty>', '', ' \r'
])
def test_these_words_are_heard_in_silence(line): assert told(line)[0] == []


@pytest.mark.parametrize('wrong', [
    'startpos moves e2e4 e2e5', 'startpos moves g1f3 0000', 'fen 8/8/8/8/8/8/8/8 w - - 0 1', 'fen',
    ''
])
def test_after_a_refused_position_go_names_no_move(wrong):
    refused = [
        'position startpos moves e2e4', f'position {wrong}', 'go movetime 50',
        'go searchmoves e7e5', 'go infinite'
    ]
    assert [s for s in told(*refused)[0] if s.startswith('bestmove')] == ['bestmove (none)']*3
    for again in ('position startpos moves d2d4', 'ucinewgame'):
        said, board = told(*refused, again, 'go')
        assert chess.Move.from_uci(said[-1].split()[1]) in board.legal_moves


def test_a_long_game_and_a_new_one():
    game = 'position startpos moves' + ' g1f3 g8f6 f3g1 f6g8'*150
    said, board = told(game, 'go')
    assert board.ply() == 600 and said[-1].startswith('bestmove')
    assert told(game, 'ucinewgame')[1].fen() == chess.STARTING_FEN


# nonsense

FENS = [
    chess.STARTING_FEN, '8/8/8/8/8/8/8/8 w - - 0 1', '4k3/8/8/8/8/8/4r3/4K3 b - - 0 1',
    '8/P5k1/8/8/8/8/6K1/8 w - - 0 1', 'r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 99 200',
    '7k/5Q2/6K1/8/8/8/8/8 b - - 0 1', 'k7/8/8/8/8/8/8/K7 w - - 0 1',
    'rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR x KQkq e9 -1 zz', '9/8/8', 'k'*64,
    '4k3/8/8/8/8/8/8/4K3 w - - ² ٣'
]
WORDS = [
    'uci', 'isready', 'ucinewgame', 'position', 'go', 'stop', 'ponderhit', 'setoption', 'debug',
    'register', 'startpos', 'fen', 'moves', 'name', 'value', 'on', 'off', 'depth', 'movetime',
    'wtime', 'btime', 'winc', 'movestogo', 'nodes', 'mate', 'infinite', 'ponder', 'searchmoves',
    'e2e4', 'e7e8q', 'a1a1', '0000', 'z9z9', '-1', '0', '1', '99999999999999999999', 'nan', '1e9',
    'Temperature', 'TopK', 'Seed', 'WorldModel', 'MultiPV', 'LogFile', 'Ponder', 'true', '<empty>',
    'later', '\t', '\x00', '\ud800', '\u2028', '♔', '٣', "'; drop", '%s{}', '-'
]


def nonsense(rng):
    "A line that a chess program might send, or nobody ever."
    def numbers():
        return ' '.join(
            f'{rng.choice(["depth", "movetime", "wtime", "btime", "winc", "nodes", "mate", "movestogo"])} {rng.choice(["3", "1", "0", "-5", "50", "abc", ""])}'
            for _ in range(rng.randint(0, 3)))
    def moves():
        board, found = chess.Board(), []
        for _ in range(rng.choice([0, rng.randint(0, 12)])):
            if not (legal := sorted(m.uci() for m in board.legal_moves)): break
            found.append(rng.choice(legal))
            board.push_uci(found[-1])
        if rng.random() < 0.3: found.insert(rng.randint(0, len(found)), rng.choice(WORDS))
        return ' '.join(found)

    def option():
        return f'setoption name {rng.choice(["Temperature", "TopK", "Seed", "MultiPV", "Ponder", "WorldModel", "top k", "Hash", "Threads", ""])} value {rng.choice(["1", "0.5", "true", "-1", "x", "", "5", "1e99"])}'

    line = rng.choice([
        lambda: f'position startpos moves {moves()}',
        lambda: f'position fen {rng.choice(FENS)}{rng.choice([" moves ", " "])}{moves()}',
        lambda: f'go {numbers()}', lambda:
        f'go searchmoves {" ".join(rng.choices(["e2e4", "a2a3", "e7e5", "a7a6", "a1a1", "0000"], k=rng.randint(0, 3)))} {numbers()}',
        lambda: rng.choice([
            'go infinite', 'go ponder', 'stop', 'ponderhit', 'ucinewgame', 'isready', 'uci',
            'debug on', 'debug off', 'register later'
        ]), option, lambda: ' '.join(rng.choices(WORDS, k=rng.randint(0, 9))), lambda: ''.join(
            chr(rng.randrange(rng.choice([128, 0x110000]))) for _ in range(rng.randint(0, 60))),
        lambda: rng.choice(WORDS)*rng.choice([1, 1, 50, 5000])
    ])()
    if rng.random() < 0.2: line = ' '.join(w for w in line.split(' ') if rng.random() < 0.8)
    if rng.random() < 0.1: line = line[:rng.randint(0, len(line))]
    if rng.random() < 0.001: line = line + ' x'*LONGEST
    return line.replace('\n', ' ').replace('quit', 'quiet')


NOWHERE = chess.Board(None)   # the board after a refused position

def check_game(board):
    "It begins where a game may begin, and every move was legal."
    replayed = board.root()
    assert not replayed.status() & ~(chess.STATUS_INVALID_EP_SQUARE
                                     | chess.STATUS_BAD_CASTLING_RIGHTS)
    for move in board.move_stack:
        assert move in replayed.legal_moves
        replayed.push(move)
    assert replayed.fen() == board.fen()


def test_nonsense():
    """Every go gets one bestmove, legal where it was asked, and none where no position is known; a
    position is taken whole or not at all; nothing else than UCI is said."""
    rng, said, player = random.Random(16), [], Fake()
    engine = Engine(UciConfig(), said.append, lambda config, log: (player, player.look))
    worker = threading.Thread(target=engine.work, daemon=True)
    worker.start()
    asked = []
    with patch('rookworld_nb.apps.uci.Search',
               lambda *how: asked.append(Search(*how)) or asked[-1]):
        for _ in range(LINES):
            before, spoken, line = engine.board, len(said), nonsense(rng)
            engine.hear(line)
            if engine.board.kings and engine.board is not before: check_game(engine.board)
            if any(s.startswith('info string move ') for s in said[spoken:]):
                assert engine.board == NOWHERE, line
    end = len(said)
    for line in ('stop', 'isready'): engine.hear(line)
    engine.hang_up()
    worker.join(SECONDS)
    assert not worker.is_alive() and 'readyok' in said[end:]
    found = [s.split()[1] for s in proper(said) if s.startswith('bestmove')]
    for before, s in zip(said, said[1:]):
        assert not s.startswith('bestmove') or ' score ' in before or not before.startswith(
            'info depth'), before
    assert len(found) == len(asked) > LINES//20
    for move, search in zip(found, asked):
        legal = {m.uci() for m in search.board.legal_moves} or {'(none)'}
        assert move in (search.go.only or legal) and move in legal


def test_nonsense_on_a_pipe():
    rng, talk = random.Random(17), Talk()
    lines = [
        *(nonsense(rng).encode('utf-8', 'replace').decode() for _ in range(LINES)), 'stop',
        'setoption name TheEnd'
    ]
    threading.Thread(target=talk.say, args=lines, daemon=True).start()
    talk.until("info string no option 'TheEnd'")
    talk.say('quit')
    code, out, err = talk.end()
    assert code == 0 and 'Traceback' not in err


def test_the_weights_are_loaded_before_readyok():
    said, player = [], Fake()
    engine = Engine(UciConfig(), said.append,
                    lambda config, log: said.append('loaded') or (player, player.look))
    for line in ('isready', 'go'): engine.hear(line)
    engine.hang_up()
    engine.work()
    assert said[:2] == ['loaded', 'readyok'] and said.count('loaded') == 1


# nano, through python-chess

@pytest.fixture(scope='module')
def nano():
    engine = chess.engine.SimpleEngine.popen_uci(REAL, timeout=SECONDS, env=ENVIRON)
    yield engine
    engine.quit()


def test_games(nano):
    "Every move is legal, or python-chess would raise; games end."
    rng = random.Random(0)
    for n in range(GAMES):
        nano.configure({'Temperature': 0.6, 'TopK': 5, 'Seed': n})
        board = chess.Board()
        while not board.is_game_over(claim_draw=True) and board.ply() < PLIES:
            if board.turn == (n % 2 == 0):
                board.push(nano.play(board, chess.engine.Limit(time=60), game=n).move)
            else: board.push(rng.choice(list(board.legal_moves)))
        assert board.ply() >= 4


def test_analysis(nano):
    lines = nano.analyse(chess.Board(), chess.engine.Limit(depth=2), multipv=3)
    assert [l['multipv']
            for l in lines] == [1, 2, 3] and all(l['pv'] and l['score'].relative.score() is not None
                                                 for l in lines)
    assert lines[0]['depth'] == 2 and len(lines[0]['pv']) == 2


def test_stop(nano):
    with nano.analysis(chess.Board(), chess.engine.Limit()) as analysis:
        analysis.next()
        start = time.monotonic()
        analysis.stop()
        assert analysis.wait().move in chess.Board().legal_moves and time.monotonic() < start + 60


# what `fastchess --compliance` asks (Disservin/fastchess, app/src/engine/compliance.hpp): the last
# info line before every bestmove has a score
COMPLIANCE = [
    'position fen 3r2k1/p5n1/1pq1p2p/2p3p1/2P1P1n1/1P1P2pP/PN1Q2K1/5R2 w - - 0 27', 'go wtime 100',
    'go btime 100', 'go wtime 100 winc 100 btime 100 binc 100',
    'go btime 100 binc 100 wtime 100 winc 100', 'ucinewgame', 'position startpos',
    'go wtime 100 btime 100', 'position startpos moves e2e4 e7e5', 'go wtime 100 btime 100',
    'position startpos moves f2f3 e7e5 g2g4 d8h4', 'go movetime 1',
    'position fen 8/8/8/8/8/8/8/8 w - - 0 1', 'go', 'setoption name MultiPV value 5',
    'position fen 8/8/8/8/4k3/8/4K1P1/7q w - - 0 1', 'go movetime 1', 'go'
]

def test_the_last_info_line_has_a_score():
    talk = Talk(REAL)
    talk.say('uci', 'isready')
    assert {'id name',
            'id author'} <= {' '.join(line.split()[:2])
                             for line in talk.until('readyok')}
    for line in COMPLIANCE:
        talk.say(line, *[] if line.startswith('go') else ['isready'])
        said = talk.until('bestmove' if line.startswith('go') else 'readyok')
        if line.startswith('go'):
            assert ' score ' in [s for s in said if s.startswith('info')][-1], said
    talk.say('quit')
    assert talk.end()[0] == 0


def test_every_analysis_has_a_score_and_a_finished_game_no_move(nano):
    for board, limit in (
        (chess.Board(), 0.01), (chess.Board('8/8/8/8/4k3/8/4K1P1/7q w - - 0 1'), 1),
        (chess.Board('3r2k1/p5n1/1pq1p2p/2p3p1/2P1P1n1/1P1P2pP/PN1Q2K1/5R2 w - - 0 27'), 0.1)):
        assert all('score' in info
                   for info in nano.analyse(board, chess.engine.Limit(time=limit), multipv=5))
    mated = chess.Board('rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3')
    assert nano.play(mated, chess.engine.Limit(time=1)).move is None
