"""The board of `play()`: what it tells the browser, and a game with a real mouse in JupyterLab, in
a headless Chromium."""
import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from time import sleep
import pytest

pytest.importorskip('anywidget', reason='the play extra is not installed')
import chess
from rookworld_nb.apps.play import load_player
from rookworld_nb.apps.widget import BoardGame, _hear
from rookworld_nb.config import UciConfig

NEAR_PROMOTION = '8/P6k/8/8/8/8/7p/K7 w - - 0 1'


# what goes to the browser

@pytest.fixture(scope='module')
def player(): return load_player(UciConfig(device='cpu'))


def states(game):
    "All states of the board that the browser will see, from now on."
    seen = []
    game.widget.observe(lambda change: seen.append(change.new), 'state')
    return seen


def test_the_move_is_shown_before_the_model_thinks_and_the_answer_before_its_world_is_asked(player):
    game = BoardGame(player, widget=True)
    seen, words = states(game), []
    game.widget.observe(lambda change: words.append((len(seen), change.new)), 'words')
    _hear(game, {'push': 'e2e4'})
    mine, answer = seen
    assert (mine['yours'], mine['legal'], mine['arrows']) == (False, [], [])
    assert mine['fen'] == 'rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR'
    assert answer['yours'] and answer['fen'] == game.board.board_fen() and sorted(
        answer['legal']) == sorted(m.uci() for m in game.board.legal_moves)
    assert answer['arrows'][0] == (game.board.peek().uci(), 'played') and {
        kind
        for _, kind in answer['arrows'][1:]
    } <= {'other', 'refused'}
    assert [(n, 'thinking' in w, 'world model' in w) for n, w in words] == [(1, True, False),
                                                                            (2, False, False),
                                                                            (2, False, True)]


@pytest.mark.parametrize('message', [{'push': 'e2e5'}, {'push': '<script>alert(1)</script>'},
                                     {'push': ''}, {'new': 'green'}, {'take_back': 1}])
def test_every_refusal_is_an_answer_and_changes_nothing(player, message):
    game = BoardGame(player, widget=True)
    before, seen = game.widget.state, states(game)
    _hear(game, message)
    assert {**seen[-1], 'said': 0} == {**before, 'said': 0
                                       } and game.note and game.board.fen() == chess.STARTING_FEN
    assert '<script' not in game.widget.words


def test_a_name_is_never_markup(player):
    game = BoardGame(player, widget=True)
    game.name = '<img src=x onerror=alert(1)>'
    game.push('e2e4')
    assert '<img' not in game.widget.words and '&lt;img' in game.widget.words


# in a browser

CELLS = (
    'import rookworld_nb as rw\ngame = rw.play(device="cpu")\ngame',
    f'from rookworld_nb.apps.widget import BoardGame\nrace = BoardGame(game.player, fen="{NEAR_PROMOTION}")\nrace'
)

@pytest.fixture(scope='module')
def lab(tmp_path_factory):
    "A JupyterLab with one notebook, without anybody's settings; the address of the notebook."
    pytest.importorskip('jupyterlab', reason='the dev extra is not installed')
    home, config = tmp_path_factory.mktemp('home'), tmp_path_factory.mktemp('config')
    cells = [
        dict(cell_type='code', id=f'c{i}', metadata={}, source=s, outputs=[], execution_count=None)
        for i, s in enumerate(CELLS)
    ]
    spec = dict(kernelspec=dict(name='python3', display_name='python3', language='python'))
    (home/'board.ipynb').write_text(json.dumps(dict(cells=cells, metadata=spec, nbformat=4, nbformat_minor=5)))
    (config/'labconfig').mkdir()
    (config/'labconfig/page_config.json').write_text(
        json.dumps(dict(disabledExtensions={'@jupyterlab/apputils-extension:announcements': True})))
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    env = os.environ | dict(JUPYTER_CONFIG_DIR=str(config), JUPYTERLAB_SETTINGS_DIR=str(config), JUPYTERLAB_WORKSPACES_DIR=str(config),
                            JUPYTER_RUNTIME_DIR=str(config), HF_HUB_OFFLINE='1', OMP_WAIT_POLICY='PASSIVE')
    with (config/'log').open('w') as log:
        server = subprocess.Popen([
            sys.executable, '-m', 'jupyterlab', '--no-browser', '--allow-root', '--ip=127.0.0.1',
            f'--port={port}', '--IdentityProvider.token=', f'--ServerApp.root_dir={home}'
        ], env=env, stdout=log, stderr=log)
    try:
        for _ in range(240):
            try: urllib.request.urlopen(f'http://127.0.0.1:{port}/api', timeout=5); break
            except OSError: sleep(.5)
            assert server.poll() is None, (config/'log').read_text()
        yield f'http://127.0.0.1:{port}/lab/tree/board.ipynb'
    finally:
        server.terminate()      # and with it its kernels
        server.wait(60)


@pytest.fixture(scope='module')
def page(browser, lab):
    "The notebook in which both cells have run, with a list of what went wrong."
    page = browser.new_page(viewport=dict(width=1300, height=950))
    page.set_default_timeout(240_000)
    page.wrong = []
    page.on('pageerror', lambda e: page.wrong.append(str(e)))
    page.on(
        'request', lambda r: re.match(r'(data|blob):|(http|ws)://127\.0\.0\.1', r.url) or page.wrong
        .append(f'{r.url} asked'))
    page.goto(lab)
    # a cell that is run before the kernel is there is not run
    page.get_by_text('| Idle').wait_for()
    page.locator('.jp-Notebook .jp-CodeCell .cm-content').first.click()
    for n in range(len(CELLS)):
        page.keyboard.press('Shift+Enter')
        page.locator('.rw-game, [data-mime-type$=error], [data-mime-type$=stderr]').nth(
            n).wait_for()
        assert page.locator('.rw-game').count() == n + 1, page.inner_text('.jp-Notebook')
    yield page
    page.close()


class Board:
    "One of the boards on a page, and a hand."
    def __init__(self, page, n): self.page, self.root = page, page.locator('.rw-game').nth(n)

    def piece(self, square): return self.root.locator(f'.pieces > g[data-square={square}]')

    def middle(self, square):
        box = self.root.locator(f'rect[data-square={square}]').bounding_box()
        return box['x'] + box['width']/2, box['y'] + box['height']/2

    def drag(self, here, there):
        "Press on a square, move, and let go on another."
        self.root.locator('.rw-place').scroll_into_view_if_needed()
        self.page.mouse.move(*self.middle(here))
        self.page.mouse.down()
        self.page.mouse.move(*self.middle(there), steps=6)
        self.page.mouse.up()

    def says(self, text): self.root.locator('.rw-words', has_text=text).wait_for()

    def stands(self, **pieces):
        """Wait until these pieces are on these squares ('' for none); they glide, and are drawn
        again."""
        self.page.wait_for_function(
            "([box, pieces]) => Object.entries(pieces).every(([square, piece]) => "
            "(box.querySelector(`.pieces > g[data-square=${square}]`)?.dataset.piece ?? '') === piece)",
            arg=[self.root.element_handle(), pieces])


def test_a_piece_is_dragged_and_the_model_answers(page):
    board = Board(page, 0)
    board.says('Your move')
    board.drag('e2', 'e4')
    board.says('the rules say')
    board.stands(e2='', e4='wp')
    # one black piece has left
    page.wait_for_function(
        "box => box.querySelectorAll('.pieces > g:is([data-square$=\"7\"], [data-square$=\"8\"])').length === 15",
        arg=board.root.element_handle())
    assert board.root.locator('.rw-played .arrow-line').count() == 1 and board.root.locator(
        '.arrow').count() > 1
    assert board.root.locator('table').first.locator('tbody tr').count() == board.root.locator(
        '.arrow').count()


def test_an_illegal_drop_snaps_back(page):
    board = Board(page, 0)
    board.drag('g1', 'g4')
    board.says("'g1g4' is not legal here")
    board.stands(g1='wn', g4='')
    board.drag('b1', 'b1')     # a click; then another piece is taken
    board.drag('g1', 'f3')
    board.says('g1f3')
    board.stands(f3='wn')


def test_moves_are_typed_and_taken_back(page):
    board = Board(page, 0)
    board.root.get_by_label('Your move:').fill('Nc3')
    board.root.get_by_label('Your move:').press('Enter')
    board.says('b1c3')
    for square in ('b1', 'g1', 'e2'):
        board.stands(**{square: ''})
        board.root.get_by_text('Take back').click()
        board.piece(square).wait_for()
    board.root.get_by_text('Take back').click()
    board.says('no move of yours')
    board.root.get_by_text('New game, black').click()
    board.says('played')
    a8, a1 = board.middle('a8'), board.middle('a1')
    assert a1[1] < a8[1]       # the board is turned


def test_a_promotion_asks_which_piece(page):
    board = Board(page, 1)
    board.drag('a7', 'a8')
    board.root.locator('.promotion-dialog-button[data-piece=wn]').click()
    board.says('a7a8n')
    board.stands(a8='wn')


def test_a_narrow_window_gets_a_column(page):
    page.set_viewport_size(dict(width=560, height=950))
    board = Board(page, 0)
    page.wait_for_function(
        "(([a, b]) => a.bottom <= b.top)([...document.querySelector('.rw-game').children].map(e "
        "=> e.getBoundingClientRect()))"
    )
    place, around = (board.root.locator(s).bounding_box() for s in ('.rw-place', 'xpath=..'))
    assert place['x'] + place['width'] <= around['x'] + around['width'] + 1
    assert page.wrong == []
