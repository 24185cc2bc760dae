#!/usr/bin/env python3
"""Turn nbs/ into a website, without Quarto: `pip install -e ".[dev,docs]" && python .ci/make_docs.py`, then open _docs/index.html.

nbdev prepares the notebooks as for `nbdev_docs`, smalldocs renders them by the same `_quarto.yml` and `sidebar.yml`, in the Markdown that
nbdev writes for Quarto (MkDocs and Sphinx would each want a second configuration, and a converter). Between the two, pages get the names
that nbdev gives them, links become relative, and every signature is shown once; afterwards formulas, fonts and search are made to work
without a network, from a file, and below any path. A dead link, or a page that would ask another host for something, is printed, and the
exit code is 1."""
import argparse
import ast
import json
import os
import re
import shutil
import sys
import tempfile
import time
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path, PurePosixPath
from urllib.parse import unquote
import yaml
from nbdev.config import get_config
from nbdev.serve import proc_nbs
from smalldocs.layout import KATEX
from smalldocs.site import build

HERE = Path(__file__).resolve().parent
TARGET = re.compile(r'(?<=\]\()[^)\s]+|(?<=href=")[^"]+')     # what a link in Markdown or HTML points at
FENCE = re.compile(r'```python\n(.*?)```\n*', re.S)


# The pages: where they come from, what they are called, and who links to whom

def read_books(tree):
    "Path -> notebook, of all notebooks in a folder."
    files = sorted(f for f in tree.rglob('*.ipynb') if not any(p[0] in '._' for p in f.relative_to(tree).parts))
    return {PurePosixPath(f.relative_to(tree).as_posix()): json.loads(f.read_text(encoding='utf-8')) for f in files}


def page_names(books):
    "Path of every notebook -> path of its page, by nbdev's `output-file`."
    names = {}
    for source, book in books.items():
        name = re.search(r'^output-file: *(\S+)$', ''.join(book['cells'][0]['source']), re.M)
        names[source] = source.with_name(name[1] if name else f'{source.stem}.html')
    twice = [str(p) for p in names.values() if list(names.values()).count(p) > 1]
    if twice: raise SystemExit(f'two notebooks would become {twice[0]}')
    return names


def relink(target, source, names, home, entries):
    "A link of the notebook `source`, written for its page: notebooks and `home` (where the site is published) become relative."
    if target.startswith(home): path = target[len(home):]
    elif re.match(r'[a-z]+:|[#/]', target): return target
    else: path = os.path.normpath(source.parent/target)
    path, mark, anchor = path.partition('#')
    page = names.get(PurePosixPath(unquote(path)), PurePosixPath(path or 'index.html'))
    if target.startswith(home) and anchor not in entries.get(page, ()):      # nbdev also links methods and private names, which have no entry
        anchor = anchor.partition('.')[0]
        if anchor not in entries.get(page, ()): mark = anchor = ''
    return os.path.relpath(page, names[source].parent) + mark + anchor


def renamed(node, names):
    "A part of `sidebar.yml` with pages for notebooks; a pattern becomes the pages it stands for, in the order of the notebooks."
    if isinstance(node, dict): return {k: renamed(v, names) for k, v in node.items()}
    if isinstance(node, list): return [x for v in node for x in (renamed(v, names) if '*' in str(v) and isinstance(v, str) else [renamed(v, names)])]
    if not isinstance(node, str): return node
    if '*' in node: return [notebook(p) for s, p in names.items() if s.match(node)]
    return notebook(names[PurePosixPath(node)]) if PurePosixPath(node) in names else node


def notebook(page): return str(page.with_suffix('.ipynb'))
def room(source): return '.'.join(re.sub(r'^\d+_', '', part) for part in source.with_suffix('').parts) if len(source.parts) > 1 else None


def lost_words(books):
    "What nbdev leaves out without a word: text below title and question, in the first cell."
    for source, book in books.items():
        first = book['cells'][0]
        if first['cell_type'] == 'markdown' and re.sub(r'\A#.*\n*|^>.*\n?', '', ''.join(first['source']), flags=re.M).strip():
            yield f'{source}: what stands below title and question in the first cell would be lost; give it a cell of its own'


# Signatures: nbdev shows each above the source it comes from, which has it already

def shown_docs(cell):
    "Name and Markdown of what a cell documents with `show_doc`; None of any other cell."
    name = re.search(r'^show_doc\(([\w.]+)', ''.join(cell['source']), re.M)
    return (name[1], ''.join(cell['outputs'][0]['data']['text/markdown'])) if name and cell.get('outputs') else None


def parameters(code):
    "A signature, one parameter a line, as a Markdown table."
    def cell(text): return text.replace('|', '\\|')
    code = code.replace('=<factory>', '=...')     # a default that is made anew each time
    lines = code.split('\n')
    tree = ast.parse(code.rstrip() + '\n    pass').body[0]
    meaning = lambda node: lines[node.end_lineno - 1].partition(' # ')[2]
    a = tree.args
    defaults = [None]*(len(a.posonlyargs + a.args) - len(a.defaults)) + a.defaults
    every = [('', *x) for x in zip(a.posonlyargs + a.args, defaults)] + [('*', a.vararg, None)]*bool(a.vararg)
    every += [('', *x) for x in zip(a.kwonlyargs, a.kw_defaults)] + [('**', a.kwarg, None)]*bool(a.kwarg)
    code_of = lambda node: f'`{cell(ast.unparse(node))}`' if node is not None else ''
    rows = [(f'`{star}{p.arg}`', code_of(p.annotation), code_of(d), cell(meaning(d or p))) for star, p, d in every]
    if tree.returns: rows.append(('*returns*', code_of(tree.returns), '', cell(meaning(tree.returns))))
    return '\n'.join('| ' + ' | '.join(r) + ' |' for r in [('parameter', 'type', 'default', 'meaning'), ['---']*4, *rows])


def entry(text, source_follows):
    "What `show_doc` made, without the rule above it; the signature is left to the source, or becomes a table where there is none."
    signature = FENCE.search(text)
    text = FENCE.sub('', re.sub(r'\A\s*---\s*', '', text))
    text = re.sub(r'\A(\[source\]\(\S+?\))\{.*?\}\s*(### .*)', r'\2\n\n\1{.source}', text)   # the name first, so that the search finds it
    text = re.sub(r'<(?=[a-z/])', '&lt;', text)                                # docstrings speak of tags, they do not use them
    if signature and not source_follows: text += '\n\n' + parameters(signature[1])
    return {'cell_type': 'markdown', 'metadata': {}, 'source': text}


def source_pieces(code, docs):
    "Exported code, cut where something begins that has an entry: (its name or None, code)."
    lines, cuts = code.split('\n'), [(0, None)]
    for node in ast.parse(code).body:
        if getattr(node, 'name', None) not in docs: continue
        start = min([node.lineno] + [d.lineno for d in node.decorator_list]) - 1
        while start and lines[start - 1].startswith('#'): start -= 1
        cuts.append((start, node.name))
    ends = [start for start, _ in cuts[1:]] + [len(lines)]
    pieces = [(name, '\n'.join(lines[start:end]).strip('\n')) for (start, name), end in zip(cuts, ends)]
    return [(name, piece) for name, piece in pieces if piece]


def signatures_once(cells):
    "Cells of a notebook, with every entry above its own source, and no signature twice."
    def part(cell): return cell['cell_type'] == 'code' and (shown_docs(cell) is not None or '#| code-summary: "Exported source"' in ''.join(cell['source']))
    out = []
    for is_part, group in groupby(cells, part):
        group = list(group)
        if not is_part:
            out += group
            continue
        docs = dict(filter(None, map(shown_docs, group)))
        sources = [(c, *re.match(r'((?:#\|[^\n]*\n)*)(.*)', ''.join(c['source']), re.S).groups()) for c in group if shown_docs(c) is None]
        sources = [(c, directives, source_pieces(code, docs)) for c, directives, code in sources]
        with_source = {name for *_, pieces in sources for name, _ in pieces}
        out += [entry(text, False) for name, text in docs.items() if name not in with_source]
        for cell, directives, pieces in sources:
            for name, code in pieces:
                if name: out.append(entry(docs[name], True))
                out.append({**cell, 'source': directives + code})
    return out


NUMBER = re.compile(r'\s*(<[^>]*>)*\s*[-+−]?[\d.,]+(e[-+]?\d+)?\s*%?\s*(<[^>]*>)*\s*|–|NaN|')

def numbers_right(html):
    "Data frames with class `number` on the cells of columns that hold numbers only, counted from the right, where no index spans rows."
    def table(found):
        cells = [re.findall(r'<t([dh])[^>]*>(.*?)</t[dh]>', row, re.S) for row in re.findall(r'<tr.*?</tr>', found[0], re.S)]
        body = [row[::-1] for row in cells if any(kind == 'd' for kind, _ in row)]
        numeric = {k for k in range(max(map(len, body), default=0)) if all(row[k][0] == 'd' and NUMBER.fullmatch(row[k][1]) for row in body if len(row) > k)}
        def row(found):
            if 'colspan' in found[0]: return found[0]
            left = iter(range(len(re.findall('<t[dh]', found[0])) - 1, -1, -1))
            return re.sub(r'<(t[dh])', lambda m: f'<{m[1]} class="number"' if next(left) in numeric else m[0], found[0])
        counted = re.sub(r'<th>(\d+)</th>', r'<th class="count">\1</th>', found[0])
        return re.sub(r'<tr.*?</tr>', row, counted, flags=re.S)
    return re.sub(r'<table[^>]*class="dataframe".*?</table>', table, html, flags=re.S)


def one_head(html):
    "Data frames with the name of their index in the row of heads, where pandas gives it a row of its own."
    def head(found):
        above, names = (re.findall(r'<th[^>]*>.*?</th>', row, re.S) for row in found.groups())
        words = [re.sub(r'<[^>]*>', '', cell).strip() for cell in names]
        k = words.index('') if '' in words else len(words)
        if len(above) != len(names) or any(words[k:]) or any(re.sub(r'<[^>]*>', '', cell).strip() for cell in above[:k]): return found[0]
        return f'<thead><tr>{"".join(names[:k] + above[k:])}</tr></thead>'
    return re.sub(r'<thead>\s*<tr[^>]*>((?:(?!</tr>).)*)</tr>\s*<tr[^>]*>((?:(?!</tr>).)*)</tr>\s*</thead>', head, html, flags=re.S)


def sized(output):
    "An output whose picture is wider than it is shown (drawn for a retina screen), with that width: smalldocs 0.5.4 leaves it out."
    width = output.get('metadata', {}).get('image/png', {}).get('width')
    if width: output['data'] = {'text/html': f'<img src="data:image/png;base64,{"".join(output["data"]["image/png"]).strip()}" width="{width}">'}


# The site: from prepared notebooks to files that need nothing else

def prepare(tree, home):
    "Make nbdev's notebooks ready for rendering, in place, and the run directories among them into reports."
    books = read_books(tree)
    names = page_names(books)
    entries = {page: {docs[0].lower() for docs in map(shown_docs, books[source]['cells']) if docs} for source, page in names.items()}
    for source, page in names.items():
        cells = signatures_once(books[source]['cells'])
        def linked(text): return TARGET.sub(lambda m: relink(m[0], source, names, home, entries), ''.join(text))
        for cell in cells:
            if cell['cell_type'] == 'raw': cell['source'] = re.sub(r'^output-file:.*\n', '', ''.join(cell['source']), flags=re.M)
            if cell['cell_type'] == 'markdown': cell['source'] = re.sub('<!-- WARNING: THIS FILE WAS AUTOGENERATED.*?-->', '', linked(cell['source']))
            for data in (o['data'] for o in cell.get('outputs', []) if 'data' in o):
                if 'text/markdown' in data: data['text/markdown'] = linked(data['text/markdown'])
                if 'text/html' in data: data['text/html'] = one_head(numbers_right(re.sub(r'<style scoped>.*?</style>\s*', '', linked(data['text/html']), flags=re.S)))
            for output in cell.get('outputs', []): sized(output)
        (tree/source).unlink()
        (tree/notebook(page)).write_text(json.dumps({**books[source], 'cells': cells}), encoding='utf-8')
    for run in {f.parent for f in tree.rglob('metrics.jsonl')}:
        from rookworld_nb.report.report import write_post_mortem, write_report
        (write_post_mortem if (run/'post_mortem.json').exists() else write_report)(run)
    sidebar = tree/'sidebar.yml'
    sidebar.write_text(yaml.safe_dump(renamed(yaml.safe_load(sidebar.read_text(encoding='utf-8')), names), sort_keys=False), encoding='utf-8')
    config = yaml.safe_load((tree/'_quarto.yml').read_text(encoding='utf-8'))
    config['format'] = {'html': {k: v for k, v in config['format']['html'].items() if k != 'keep-md'} | {'include-in-header': 'head.html'}}
    config['smalldocs'] = {'linkify': True}                                    # `grpo.kl` in backticks leads to the page of that notebook
    stems = [s.stem for s in names]
    called = {name: f'/{p}' for s, p in names.items() for name in (str(s.with_suffix('')), s.stem, room(s)) if name and (name not in stems or stems.count(name) == 1)}
    (tree/'_quarto.yml').write_text(yaml.safe_dump(config, sort_keys=False), encoding='utf-8')
    (tree/'_symbols.json').write_text(json.dumps(called), encoding='utf-8')
    shutil.copy(HERE/'docs'/'head.html', tree)
    return yaml.safe_load(sidebar.read_text(encoding='utf-8'))['website']['sidebar']['contents']


PICTURE = re.compile(r'(?P<code>^(?P<fence>`{3,}).*?^(?P=fence))|<img(?=[^>]* src="data:)(?:[^>]* alt="(?P<alt>[^"]*)")?[^>]*>|<svg.*?</svg>', re.S | re.M)

def localize(out):
    "Formulas, fonts and search without a network, and Markdown without pictures in letters."
    for page in out.rglob('*.html'):
        text = page.read_text(encoding='utf-8')
        if KATEX in text: page.write_text(text.replace(KATEX, os.path.relpath(out/'site_libs'/'katex', page.parent)), encoding='utf-8')
    for page in out.rglob('*.llms.md'):                                          # who reads Markdown wants the position, not its pixels
        text = PICTURE.sub(lambda m: m['code'] or f'(picture: {m["alt"]})'*bool(m['alt']) or '(picture)', page.read_text(encoding='utf-8'))
        page.write_text(text, encoding='utf-8')
    shutil.copytree(HERE/'docs'/'katex', out/'site_libs'/'katex', ignore=shutil.ignore_patterns('README.md'))
    for sheet in (out/'site_libs'/'themes').glob('*.css'):
        sheet.write_text(re.sub(r'@import url\(https?:[^)]*\);', '', sheet.read_text(encoding='utf-8')), encoding='utf-8')
    index = out/'search.json'
    index.with_suffix('.js').write_text(f'window.searchIndex = {index.read_text(encoding="utf-8")};\n', encoding='utf-8')
    index.unlink()


def reading_list(contents, pages, level='##'):
    "The lines of `llms.txt`: every page of the sidebar with the question that it answers."
    for item in contents:
        item = {'href': item} if isinstance(item, str) else item
        if 'section' in item: yield f'\n{level} {item["section"]}\n'
        if page := pages.get(PurePosixPath(item.get('href', ''))):
            question = page.meta.get('description', '')
            yield f'- [{page.title}]({page.out.with_suffix(".llms.md")})' + ': '*bool(question) + question
        yield from reading_list(item.get('contents', []), pages, level + '#')


# What must not be on it

class Links(HTMLParser):
    "The ids of a page, and what it links to or loads."
    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids |= {attrs[k] for k in ('id', 'name') if attrs.get(k)}
        loads = tag not in ('a', 'link') or attrs.get('rel') in ('stylesheet', 'icon')
        self.links += [(attrs[k], loads) for k in ('href', 'src') if attrs.get(k)]


def problems(out):
    "Every dead link of a site, every file that comes from another host, and every page that no other leads to."
    pages = {file: Links(file.read_text(encoding='utf-8')) for file in sorted(out.rglob('*.html'))}
    seen = {out/'index.html'}
    for file, page in pages.items():
        for url, loads in page.links:
            told = f'{file.relative_to(out)}: {url}'
            if re.match(r'data:|mailto:', url) or url == '#': continue
            if re.match(r'(https?:)?//', url):
                if loads: yield f'{told} is loaded from another host'
                continue
            path, _, anchor = unquote(url).partition('#')
            there = Path(os.path.normpath(file.parent/path)) if path else file
            if there != file: seen.add(there)
            if not there.is_file(): yield f'{told} is not there'
            elif anchor and there in pages and anchor not in pages[there].ids: yield f'{told} has no such place'
    yield from (f'{file.relative_to(out)}: no page leads here' for file in pages if file not in seen)
    for sheet in out.rglob('*.css'):
        for url in re.findall(r'url\([\'"]?([^\'")]+)', sheet.read_text(encoding='utf-8')):
            if not url.startswith(('data:', '#')) and not (sheet.parent/re.sub('[?#].*', '', url)).is_file(): yield f'{sheet.relative_to(out)}: {url} is not there'
    for file in sorted([out/'llms.txt', *out.rglob('*.llms.md')]):
        prose = re.sub(r'^(`{3,}).*?^\1|`[^`\n]*`', '', file.read_text(encoding='utf-8'), flags=re.S | re.M)
        for url in re.findall(r'\]\(([^)\s]+)', prose):
            if not re.match(r'[a-z]+:|#', url) and not (file.parent/unquote(url.partition('#')[0])).is_file(): yield f'{file.relative_to(out)}: {url} is not there'


def make_docs(target):
    "Render nbs/ into a folder; the problems found."
    config = get_config()
    home = f'{config.doc_host}{config.doc_baseurl}'.rstrip('/') + '/'
    proc_nbs(force=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)/'site'
        shutil.copytree(config.config_path/'_proc', tree)
        contents = prepare(tree, home)
        site = build(tree, quiet=True)
        localize(site.out)
        web = site.project.website
        (site.out/'llms.txt').write_text('\n'.join([f'# {web["title"]}\n\n> {web["description"]}\n', *reading_list(contents, site.pages)]) + '\n', encoding='utf-8')
        if target.exists():
            if any(target.iterdir()) and not (target/'site_libs').is_dir(): raise SystemExit(f'{target} is not empty and no site that this command made')
            shutil.rmtree(target)
        shutil.copytree(site.out, target)
    return len(site.pages), [*lost_words(read_books(config.nbs_path)), *site.warnings, *problems(target)]


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--output', type=Path, help='the folder to write, emptied first; _docs at the root of the repository')
    args = parser.parse_args()
    os.chdir(HERE.parent)
    began = time.monotonic()
    target = (args.output or Path(get_config().doc_path)).resolve()
    pages, found = make_docs(target)
    print(*found, f'{target/"index.html"}: {pages} pages in {time.monotonic() - began:.0f} s, {len(found)} problems', sep='\n')
    sys.exit(bool(found))
