"""The site that `.ci/make_docs.py` makes: what it must never do, on invented notebooks, and what it
looks like in a browser."""
import functools
import importlib.util
import re
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
import pytest

pytest.importorskip('smalldocs', reason='the docs extra is not installed')
ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location('make_docs', ROOT/'.ci/make_docs.py')
docs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(docs)
HOME = 'https://example.org/house/'


def book(*sources, output_file=None):
    cells = [
        dict(
            cell_type='raw', source=[
                '---\n', f'output-file: {output_file}\n' if output_file else '', 'title: x\n',
                '---\n'
            ])
    ]
    return dict(cells=cells + [dict(cell_type='code', source=s, outputs=[]) for s in sources])


def documented(name, signature):
    text = f'---\n\n[source](https://host/x.py#L3){{target="_blank" style="float:right"}}\n\n### {name}\n\n```python\n{signature}\n```\n\n*One sentence about <img>.*'
    return dict(cell_type='code', source=f'#| echo: false\nshow_doc({name})',
                outputs=[dict(data={'text/markdown': text})])


def exported(code):
    return dict(cell_type='code',
                source=f'#| code-fold: show\n#| code-summary: "Exported source"\n{code}',
                outputs=[])


# notebooks in folders

BOOKS = {
    PurePosixPath(p): book(output_file=f)
    for p, f in {
        'grpo/01_kl.ipynb': 'kl.html', 'grpo/02_advantages.ipynb': 'advantages.html',
        'index.ipynb': 'index.html', 'runs/2026-11-21_x.ipynb': None
    }.items()
}
NAMES = docs.page_names(BOOKS)


def test_pages_take_the_names_that_nbdev_gives_them():
    assert [str(p) for p in NAMES.values()
            ] == ['grpo/kl.html', 'grpo/advantages.html', 'index.html', 'runs/2026-11-21_x.html']
    with pytest.raises(SystemExit, match='two notebooks would become grpo/kl.html'):
        docs.page_names({**BOOKS, PurePosixPath('grpo/01a_kl.ipynb'): book(output_file='kl.html')})


@pytest.mark.parametrize('target, here, there', [
    ('01_kl.ipynb', 'grpo/02_advantages.ipynb', 'kl.html'),
    ('../grpo/01_kl.ipynb#why', 'runs/2026-11-21_x.ipynb', '../grpo/kl.html#why'),
    (f'{HOME}grpo/kl.html#kl_full', 'index.ipynb', 'grpo/kl.html#kl_full'),
    (f'{HOME}grpo/kl.html#kl_full', 'grpo/01_kl.ipynb', 'kl.html#kl_full'),
    (f'{HOME}grpo/kl.html#kl_full.method', 'index.ipynb', 'grpo/kl.html#kl_full'),
    (f'{HOME}grpo/kl.html#_private', 'index.ipynb', 'grpo/kl.html'),
    (HOME, 'runs/2026-11-21_x.ipynb', '../index.html'),
    ('https://arxiv.org/abs/1', 'index.ipynb', 'https://arxiv.org/abs/1'),
    ('#below', 'index.ipynb', '#below'), ('curves.csv', 'runs/2026-11-21_x.ipynb', 'curves.csv')
])
def test_links_lead_to_pages_from_wherever_they_stand(target, here, there):
    entries = {PurePosixPath('grpo/kl.html'): {'kl_full'}}
    assert docs.relink(target, PurePosixPath(here), NAMES, HOME, entries) == there


def test_the_sidebar_names_pages_in_the_order_of_the_notebooks():
    sidebar = [
        'index.ipynb', {'section': 'GRPO', 'contents': 'grpo/*'}, {
            'section': 'Runs',
            'contents': ['runs/*.ipynb', {'text': 'x', 'href': 'grpo/01_kl.ipynb'}]
        }
    ]
    assert docs.renamed(sidebar, NAMES) == [
        'index.ipynb', {'section': 'GRPO', 'contents': ['grpo/kl.ipynb', 'grpo/advantages.ipynb']},
        {
            'section': 'Runs',
            'contents': ['runs/2026-11-21_x.ipynb', {'text': 'x', 'href': 'grpo/kl.ipynb'}]
        }
    ]


def test_words_that_nbdev_would_drop_are_told():
    def first(text): return {PurePosixPath('x.ipynb'): dict(cells=[dict(cell_type='markdown', source=text)])}
    for kept in ('# x', '# x\n\n> why?', '# x\n\n> why?\n'): assert list(docs.lost_words(first(kept))) == []
    for lost in ('# x\n\n> why?\n\nBecause.', '# x\nBecause.', '# x\n\n> why?\n\n# y'):
        assert 'x.ipynb: what stands below' in next(docs.lost_words(first(lost)))


# signatures

def test_an_entry_stands_above_its_own_source_and_its_signature_is_there_once():
    cells = docs.signatures_once([
        documented('g', 'def g(\n    x:int, # a count\n)->int: # another'),
        exported(
            'N = 3\n\n\ndef f(x): return N\n\n\n# why\n@cache\ndef g(\n    x: int, # a count\n) '
            '-> int:   # another\n    return x\n\n\ndef _helper(): pass'
        ),
        documented('f', 'def f(\n    x\n)')
    ])
    text = [''.join(c['source']) for c in cells]
    assert [re.sub(r'#\|.*\n', '', t)[:12] for t in text
            ] == ['N = 3', '### f\n\n[sour', 'def f(x): re', '### g\n\n[sour', '# why\n@cache']
    assert sum(t.count('def g(') for t in text) == sum(t.count('a count') for t in text) == 1
    assert text[-1].endswith('def _helper(): pass')
    assert text[1].endswith('*One sentence about &lt;img>.*')


def test_a_signature_without_source_is_a_table():
    entry, = docs.signatures_once([
        documented(
            'f',
            "def f(\n    x:Tensor, # (B, T) float, see [`g`](https://x)\n    *args:int, # more\n  "
            "  how:str|None='a', # 'a' | 'b'\n    **rest\n)->tuple[int, str]: # both"
        )
    ])
    assert entry['source'].endswith('''| parameter | type | default | meaning |
| --- | --- | --- | --- |
| `x` | `Tensor` |  | (B, T) float, see [`g`](https://x) |
| `*args` | `int` |  | more |
| `how` | `str \\| None` | `'a'` | 'a' \\| 'b' |
| `**rest` |  |  |  |
| *returns* | `tuple[int, str]` |  | both |''')


def test_columns_of_numbers_are_aligned_and_others_are_not():
    html = '<table border="1" class="dataframe"><thead><tr><th></th><th colspan="2">both</th></tr><tr><th></th><th>why</th><th>n</th></tr></thead><tbody><tr><th>0</th><td>a 1</td><td>-1.5e-3</td></tr><tr><th>1</th><td>2</td><td></td></tr></tbody></table>'
    assert re.findall(r'<t[dh] class="number">([^<]*)', docs.numbers_right(html)) == ['n', '-1.5e-3', '']
    assert docs.numbers_right(
        '<table><tr><td>1</td></tr></table>') == '<table><tr><td>1</td></tr></table>'


def test_the_name_of_an_index_stands_in_the_row_of_heads():
    head = lambda *rows: '<thead>' + ''.join(
        '<tr>' + ''.join(f'<th>{c}</th>' for c in row) + '</tr>' for row in rows) + '</thead>'
    assert docs.one_head(head(['', '', 'nano'], ['task', 'n', ''])) == head(['task', 'n', 'nano'])
    for kept in (head(['', 'nano']), head(['', 'a', 'b'], ['', 'c', 'd']), head(['x', 'a'], ['y', ''])):
        assert docs.one_head(kept) == kept
    table = '<table border="1" class="dataframe"><tbody><tr><th>0</th><td>a</td></tr></tbody></table>'
    assert '<th class="count">0</th>' in docs.numbers_right(table)


def test_what_is_wider_than_its_box_scrolls_in_it():
    "Tables, code and figures: each has a box that scrolls, a shadow that says so, and on a phone words that can be read."
    style = (ROOT/'nbs/styles.css').read_text(encoding='utf-8')
    rules = re.findall(r'([^{}]+)\{([^{}]*)\}', re.sub(r'/\*.*?\*/', '', style, flags=re.S))
    def said(box, words): return any(box in re.split(r',\s*', where.strip()) and words in rule for where, rule in rules)
    for box in ('.sd-table', '.cell-output-display', 'main.content pre.sourceCode', '.cell-output > pre'):
        assert said(box, 'overflow-x: auto') and said(box, 'background-attachment: local'), box
    phone = style.partition('@media (max-width: 600px)')[2]
    # smalldocs says 100 % of `main.content img`, so less than `main.content` would have no effect
    assert re.search(r'main\.content \.cell-output-display > img,[^{]*\{ max-width: 860px', phone)
    small = [float(size) for size in re.findall(r'font-size: (\.\d+)rem', style)]
    assert min(small)*16.5 >= 11                    # pixels


def test_a_picture_for_a_retina_screen_keeps_the_width_at_which_it_is_shown():
    picture = {'image/png': 'AAAA\n', 'text/plain': '<Figure>'}
    twice = dict(data=dict(picture), metadata={'image/png': {'width': 540, 'height': 689}})
    once = dict(data=dict(picture), metadata={})
    for output in (twice, once): docs.sized(output)
    assert twice['data'] == {'text/html': '<img src="data:image/png;base64,AAAA" width="540">'}
    assert once['data'] == picture
    assert docs.PICTURE.sub('-', twice['data']['text/html']) == '-'          # and leaves the Markdown, too


def test_pictures_in_letters_leave_the_markdown_and_code_stays():
    picture = lambda m: m['code'] or m['alt'] or '-'
    text = '```python\nf\'<img alt="{x}" src="data:{y}">\'\n```\n<p><img class="b" alt="8/8 w" src="data:image/png;base64,AAAA" width="3"><svg>\n</svg></p> <img src="data:x"> <img src="a.png">'
    assert docs.PICTURE.sub(
        picture, text
    ) == '```python\nf\'<img alt="{x}" src="data:{y}">\'\n```\n<p>8/8 w-</p> - <img src="a.png">'


# faults, each put in by hand

FAULTS = {
    'a dead link': ('a.html', '<a href="gone.html">x</a>', 'a.html: gone.html is not there'),
    'a dead place': ('a.html', '<a href="index.html#gone">x</a>',
                     'a.html: index.html#gone has no such place'),
    'a folder, which a file cannot open': ('a.html', '<a href="./">x</a>',
                                           'a.html: ./ is not there'),
    'a missing picture': ('a.html', '<img src="gone.png">', 'a.html: gone.png is not there'),
    'a script of another host': ('a.html', '<script src="https://cdn.net/x.js"></script>',
                                 'a.html: https://cdn.net/x.js is loaded from another host'),
    'a page that nobody finds': ('lost.html', 'x', 'lost.html: no page leads here'),
    'a font of another host': ('x.css', '@import url(https://fonts.net/x);',
                               'x.css: https://fonts.net/x is not there'),
    'a dead link in Markdown': ('a.llms.md', '[x](gone.llms.md)',
                                'a.llms.md: gone.llms.md is not there')
}

@pytest.mark.parametrize('file, text, told', FAULTS.values(), ids=FAULTS)
def test_the_checker_names_the_fault(tmp_path, file, text, told):
    (tmp_path/'index.html').write_text(
        '<h2 id="here">x</h2><a href="a.html">a</a><a href="https://arxiv.org">elsewhere</a>')
    (tmp_path/'a.html').write_text('<a href="index.html#here">x</a><a href="#">top</a>')
    (tmp_path/'llms.txt').write_text('- [a](a.html)\n```\n[x](not a link)\n```\n')
    assert list(docs.problems(tmp_path)) == []
    with (tmp_path/file).open('a') as f: f.write(text)
    assert list(docs.problems(tmp_path)) == [told]


# the site itself

@pytest.fixture(scope='module')
def site(tmp_path_factory):
    "The site of this working tree: `_docs` when nothing changed since it was made, else a new one."
    made, sources = ROOT/'_docs/index.html', [
        *ROOT.glob('nbs/**/*'), *ROOT.glob('rookworld_nb/**/*.py'), *ROOT.glob('.ci/docs/**/*'),
        ROOT/'.ci/make_docs.py', ROOT/'settings.ini'
    ]
    if made.exists() and made.stat().st_mtime > max(f.stat().st_mtime
                                                    for f in sources if f.is_file()):
        return made.parent
    out = tmp_path_factory.mktemp('site')
    done = subprocess.run([sys.executable, ROOT/'.ci/make_docs.py', '--output', out],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return out


def test_every_notebook_is_a_page_with_its_markdown(site):
    assert list(docs.problems(site)) == []
    notebooks = [
        f for f in ROOT.glob('nbs/**/*.ipynb')
        if not any(p[0] in '._' for p in f.relative_to(ROOT).parts)
    ]
    markdown = sorted(f.relative_to(site) for f in site.rglob('*.llms.md'))
    assert len(markdown) == len(notebooks)
    assert sorted(re.findall(r'\]\((\S+)\)', (site/'llms.txt').read_text(
        encoding='utf-8'))) == sorted(map(str, markdown))
    for page in markdown:
        assert (site/page).with_name(page.name.replace('.llms.md', '.html')).exists()


def test_every_run_has_its_report(site):
    runs = [f.parent for f in ROOT.glob('nbs/**/metrics.jsonl')]
    assert runs
    for run in runs:
        page = 'post_mortem.html' if (run/'post_mortem.json').exists() else 'report.html'
        assert 'GRPO run' in (site/run.relative_to(ROOT/'nbs')/page).read_text(encoding='utf-8')


@pytest.fixture
def page(browser):
    "A page that remembers what went wrong on it."
    page = browser.new_page(viewport=dict(width=1400, height=900))
    page.wrong = []
    page.on('console', lambda m: m.type in ('error', 'warning') and page.wrong.append(m.text))
    page.on('pageerror', lambda e: page.wrong.append(str(e)))
    page.on('requestfailed', lambda r: page.wrong.append(f'{r.url} failed'))
    page.on(
        'request', lambda r: re.match(r'file:|data:|blob:|http://127\.0\.0\.1', r.url) or page.wrong
        .append(f'{r.url} asked'))
    yield page
    page.close()


WIDER = '''() => [...document.querySelectorAll('main *, header *')].filter(e => {
  if (e.closest('.katex-mathml, svg *') || e.getBoundingClientRect().right <= innerWidth + 1 || !e.getClientRects().length) return false
  for (let a = e.parentElement; a; a = a.parentElement) if (['auto', 'scroll'].includes(getComputedStyle(a).overflowX)) return false
  return true }).map(e => e.outerHTML.slice(0, 90)).slice(0, 3)'''
BLIND = '[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src.slice(0, 90))'
RAW = "[...document.querySelectorAll('.math')].filter(m => !m.querySelector('.katex') || m.querySelector('.katex-error')).map(m => m.textContent)"

def test_every_page_opens_from_a_file(site, page):
    "No error, no other host, every picture, every formula, nothing wider than a screen or a phone."
    formulas = 0
    for file in sorted(site.rglob('*.html')):
        page.set_viewport_size(dict(width=1400, height=900))
        page.goto(file.as_uri())
        assert (file, page.wrong, page.evaluate(BLIND), page.evaluate(RAW)) == (file, [], [], [])
        formulas += page.locator('.katex').count()
        for width in (1400, 400):
            page.set_viewport_size(dict(width=width, height=900))
            assert (file, width, page.evaluate(WIDER)) == (file, width, [])
            assert page.evaluate('document.documentElement.scrollWidth') <= width
    assert formulas > 100


def find(page, words):
    "What the search lists first."
    page.locator('.smalldocs-search input:visible').fill(words)
    page.wait_for_selector('.search-result')
    return page.locator('.search-result').first


def test_search_dark_mode_and_fonts_from_a_file(site, page):
    page.goto((site/'index.html').as_uri())
    find(page, 'kl_full').click()
    page.wait_for_url(re.compile(r'kl\.html#kl_full$'))
    assert page.locator('#kl_full').is_visible()
    assert page.evaluate(
        "(r => r.top > 0 && r.bottom < "
        "innerHeight)(document.querySelector('.sidebar-link.active').getBoundingClientRect())"
    )
    assert page.inner_text('main').count('def kl_full(') == 1
    assert page.evaluate("document.fonts.check('16px KaTeX_Main')")
    bright = page.evaluate('getComputedStyle(document.body).backgroundColor')
    page.locator('.quarto-color-scheme-toggle:visible').click()
    page.wait_for_function("document.documentElement.classList.contains('quarto-dark')")
    assert page.evaluate('getComputedStyle(document.body).backgroundColor') != bright
    page.reload()
    page.wait_for_function("document.documentElement.classList.contains('quarto-dark')")
    assert page.wrong == []


def test_below_a_path_of_a_server(site, page, tmp_path):
    (tmp_path/'some').mkdir()
    (tmp_path/'some/path').symlink_to(site, target_is_directory=True)
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args): pass

    with ThreadingHTTPServer(('127.0.0.1', 0), functools.partial(Quiet,
                                                                 directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f'http://127.0.0.1:{server.server_port}/some/path/'
        experiment = next(f for f in site.glob('*/*.html')
                          if f.with_name(f.stem + '.llms.md').exists()).relative_to(site)
        page.goto(root + str(experiment))
        find(page, 'kl_full').click()
        page.wait_for_url(re.compile(r'kl\.html#kl_full$'))
        page.locator('.navbar-brand').first.click()
        page.wait_for_url(root + 'index.html')
        server.shutdown()
    assert page.wrong == []
